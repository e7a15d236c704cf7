//! Gaps: a reader that moves up through a file and skips pages at random.
//!
//! Bitmap heap scans, sparse indexes, header scans and images with holes read blocks in the order
//! of the file and skip a part of them. No distance repeats, so they form no stride, and each
//! block is a request. The gaps are read along with the blocks, as one stream, if a gap costs less
//! than the request that it saves. A cost in pages is the time in which the device transfers that
//! number of pages.
//!
//! How it works:
//!
//! - *Evidence.* A rise is a sequence of requests of a handle, each behind the one before. The
//!   pages between two requests are skipped, unless a reader has used them. Pages that were read
//!   along and skipped count as skipped, so a prediction is no evidence for itself.
//! - *Condition.* The rise has 16 gaps, a mean gap costs at most as much as one more request, and
//!   at least an eighth of all pages is used. The last two are checked again at each window. There
//!   must be something to gain: a used page takes half as long again as the bandwidth allows, with
//!   the skipped pages.
//! - *Outcome.* The time of a used page is measured without and with the gaps. If it became longer,
//!   the gaps are not read along, and the next attempt needs twice as many gaps as evidence. An
//!   estimate that is wrong for a device thus costs a small share of the reader's time.
//! - *Window.* A *piece* is the pages used between two gaps. A window has at most the pages of 16
//!   pieces with their gaps, plus the pages passed since reading along began. A rise that ends has
//!   thus wasted no more than it has shown. Otherwise as for runs: 16 times the cost of a request,
//!   and a share of the memory.
//!
//! - *Passed pages.* A rise does not return to the pages that it skipped, so these no longer count
//!   as prefetched and not yet used. Otherwise the gaps alone would fill the half of the memory for
//!   such pages where the kernel caches them, and reading along would end.
//!
//! `bench/gaps.py` has the readers for which this was chosen, and others that judge it. Rejected
//! designs: `bench/notes/access-patterns.md`.

use super::super::{DeviceEvidence, PageView, WINDOW_COST_FACTOR};
use super::{AccessContext, LatestReadahead, MARKED, UNMARKED, record_window, stride};
use crate::observed::{DECAY_WINDOW, EWMA_WINDOW};
use crate::unit::{PageRange, Time};

/// Present rise of one handle: requests that ascend through the file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RisingGaps {
    /// Page after the last reported request.
    position: u64,
    /// Number of reported requests.
    requests: u64,
    /// Number of recent gaps, halved at 64 (`DECAY_WINDOW`) together with the two page counts.
    gaps: u64,
    /// Number of pages that were used, with these gaps.
    used_pages: u64,
    /// Number of pages that were skipped: the sum of the sizes of these gaps.
    skipped_pages: u64,
    /// Used pages and time of the present phase: without the gaps, or with them.
    phase: Phase,
    /// Time of a used page without the gaps, in nanoseconds, when reading them along began.
    separate_ns: u64,
    /// Last pages that were skipped. Streams still compare the next request with them.
    last_gap: PageRange,
    /// End of the pages that were read along; `None` if gaps are not read along now.
    read_along_end: Option<u64>,
    /// Number of times that reading the gaps along made the reader slower. Kept over all rises:
    /// each doubles the evidence for the next attempt.
    failures: u32,
}

/// Progress of a reader since the gaps are read along, or are not.
#[derive(Clone, Copy, Debug, Default)]
struct Phase {
    /// Time of the begin of the phase.
    since: Time,
    /// First page of the phase.
    begin_page: u64,
    /// Number of gaps of the phase, the evidence for a decision.
    gaps: u64,
    /// Number of pages that the reader used in the phase.
    used_pages: u64,
}

impl Phase {
    /// Mean time of a used page since the begin of the phase, in nanoseconds. Compared between two
    /// phases, it shows if reading along helps.
    fn page_ns(&self, now: Time) -> u64 {
        now.since(self.since).ns() / self.used_pages.max(1)
    }
}

impl RisingGaps {
    /// True if the gaps are read along, and the request lies in these pages or a gap behind them.
    pub(super) fn is_continued_by(&self, request: PageRange) -> bool {
        self.read_along_end.is_some_and(|read_along_end| {
            let end = read_along_end + self.mean_gap_pages().max(1);
            request.end > self.position && request.first <= end
        })
    }

    /// True after 16 ascending requests (`EWMA_WINDOW`): the reader moves up through the file, and
    /// so does not return to the skipped pages.
    pub(super) fn is_rising(&self) -> bool {
        self.requests >= EWMA_WINDOW
    }

    /// Updates the counts by a request. A request that ends at or before the position, or begins
    /// more than 4 MiB above it, begins a new rise, for which no gaps are read along yet.
    pub(super) fn record_request(&mut self, request: PageRange, pages: &mut dyn PageView) {
        // 16 × 64 pages are 4 MiB, a chosen bound.
        let continues_rise = request.end > self.position
            && request.first <= self.position + EWMA_WINDOW * DECAY_WINDOW;
        if self.requests == 0 || !continues_rise {
            let now = pages.evidence().device.now;
            *self = RisingGaps {
                position: request.end,
                requests: 1,
                used_pages: request.count(),
                phase: Phase { since: now, begin_page: request.first, ..Phase::default() },
                failures: self.failures,
                ..RisingGaps::default()
            };
            return;
        }
        let gap = PageRange { first: self.position, end: request.first.max(self.position) };
        // A gap begins at each unused page whose predecessor was used, or requested. A page counts
        // as used if it is cached, unless it was prefetched and not used yet.
        let (mut used, mut gaps, mut was_used) = (0, 0, true);
        for page in gap.pages() {
            let is_used = stride::was_used(page, pages);
            used += u64::from(is_used);
            gaps += u64::from(was_used && !is_used);
            was_used = is_used;
        }
        let used_pages = used + request.end - request.first.max(self.position);
        self.requests += 1;
        self.gaps += gaps;
        self.used_pages += used_pages;
        // While the gaps are read along, most requests are not reported, so several gaps may lie
        // between two reports. Otherwise one gap counts at most: the used pages within it may be of
        // other readers or earlier times.
        self.phase.gaps += if self.read_along_end.is_some() { gaps } else { gaps.min(1) };
        self.phase.used_pages += used_pages;
        self.skipped_pages += gap.count() - used;
        self.position = request.end;
        // The reader does not return to the gap before this one.
        if self.is_rising() {
            pages.forget_unused(self.last_gap);
        }
        self.last_gap = gap;
        if self.gaps >= DECAY_WINDOW {
            for count in [&mut self.gaps, &mut self.used_pages, &mut self.skipped_pages] {
                *count /= 2;
            }
        }
    }

    /// Mean gap in pages, rounded up. Requests without a gap before them do not count: they are
    /// one run with the request before.
    fn mean_gap_pages(&self) -> u64 {
        self.skipped_pages.div_ceil(self.gaps.max(1))
    }

    /// Mean number of pages used between two gaps, at least 1. It is the size of the request that a
    /// gap read along saves.
    fn mean_piece_pages(&self) -> u64 {
        (self.used_pages / self.gaps.max(1)).max(1)
    }

    /// Returns true if the gaps should be read along: this is expected to cost less than separate
    /// requests, and has not taken longer. Longer means by more than a sixteenth of the time of a
    /// used page before (`WINDOW_COST_FACTOR` is 16). Counts a failure if it has taken longer.
    fn evaluate_gap_reading(&mut self, device: &DeviceEvidence) -> bool {
        // 16 gaps, doubled by each failure. The bound of the shift only avoids an overflow.
        let gaps_min = EWMA_WINDOW << self.failures.min(16);
        let has_evidence = match self.read_along_end {
            None => {
                // The time of a used page with its share of the skipped ones, by the bandwidth. At
                // 1.5 times that, there is something to gain.
                let passed_pages = self.used_pages + self.skipped_pages;
                let total_ps = device.estimate.page_ps() * passed_pages;
                let bandwidth_ns = total_ps / self.used_pages.max(1) / 1000;
                let page_ns = self.phase.page_ns(device.now);
                self.phase.gaps >= gaps_min && 2 * page_ns >= 3 * bandwidth_ns
            }
            Some(_) if self.phase.gaps >= EWMA_WINDOW => {
                let is_slower = WINDOW_COST_FACTOR * self.phase.page_ns(device.now)
                    > (WINDOW_COST_FACTOR + 1) * self.separate_ns;
                self.failures += u32::from(is_slower);
                !is_slower
            }
            // The phase with the gaps is too short to be compared.
            Some(_) => true,
        };
        let is_gap_cheap =
            self.mean_gap_pages() <= device.marginal_cost_pages(self.mean_piece_pages());
        // `EWMA_WINDOW` is 16: eight times the used pages are at least all pages.
        let is_eighth_used =
            EWMA_WINDOW * self.used_pages >= 2 * (self.used_pages + self.skipped_pages);
        has_evidence && is_gap_cheap && is_eighth_used
    }

    /// Prefetches the next pages with their gaps, if that pays. Returns false, and ends reading
    /// them along, if it does not: the caller then handles the request in another way. Returns true
    /// also without a prefetch: if enough is read along, the file ends, or memory is short.
    pub(super) fn prefetch_with_gaps(
        &mut self,
        access: &AccessContext,
        pages: &mut dyn PageView,
    ) -> bool {
        let request = access.request;
        let device = &mut *pages.evidence().device;
        let new_phase = Phase { since: device.now, begin_page: request.end, ..Phase::default() };
        if !self.evaluate_gap_reading(device) {
            if self.read_along_end.take().is_some() {
                self.phase = new_phase;
            }
            return false;
        }
        if self.read_along_end.is_none() {
            self.separate_ns = self.phase.page_ns(device.now);
            self.phase = new_phase;
        }
        let piece_pages = self.mean_piece_pages();
        // The pages of 16 pieces with their gaps.
        let sample_pages = EWMA_WINDOW * (piece_pages + self.mean_gap_pages());
        // The passed pages, with the sample: in the first window the reader has passed none yet.
        let passed_pages = sample_pages + request.end - self.phase.begin_page;
        // The least bound decides: 16 times the cost of a request (in the log "occupies"), the
        // sample with the passed pages, or the reader's share of the memory.
        let bounds = [
            (WINDOW_COST_FACTOR * device.marginal_cost_pages(piece_pages), "occupies"),
            (passed_pages, "passed"),
            (device.stream_share_pages(), "memory"),
        ];
        let (size, why) = bounds.into_iter().min_by_key(|&(size, _)| size).expect("three bounds");
        // The first page that is neither requested nor read along already. Pages that are read
        // along count as a part of the window.
        let first = self.read_along_end.unwrap_or(0).max(request.end);
        let missing_pages = size.saturating_sub(first - request.end);
        let window = PageRange::new(first, missing_pages).clipped(access.file_pages);
        // Less than half of a window is read only if the reader waits.
        if window.is_empty() || (!access.reader_waits && missing_pages < size / 2) {
            // Reading along goes on, with the pages that are there.
            self.read_along_end = Some(first);
            return true;
        }
        // The reader may skip a single marked page. As many pages are marked as hold 16 requests.
        let middle = window.first + window.count() / 2;
        let marked_end = middle + sample_pages;
        let [before_marks, marked, after_marks] = [
            window.clipped(middle),
            PageRange { first: middle, end: marked_end }.clipped(window.end),
            PageRange { first: marked_end.min(window.end), end: window.end },
        ];
        let is_all_added = pages.add_absent(before_marks, UNMARKED)
            && marked.pages().all(|page| pages.add_absent(PageRange::new(page, 1), MARKED))
            && pages.add_absent(after_marks, UNMARKED);
        // If memory was short, reading along ends before the first missing page.
        let is_cached = |page: &u64| pages.is_cached(*page);
        let end = match is_all_added {
            true => window.end,
            false => window.first + window.pages().take_while(is_cached).count() as u64,
        };
        self.read_along_end = Some(end);
        let range = window.clipped(end);
        if !range.is_empty() {
            record_window(
                pages,
                LatestReadahead { range, shape: "gaps", why, behind: passed_pages, size },
            );
        }
        true
    }
}
