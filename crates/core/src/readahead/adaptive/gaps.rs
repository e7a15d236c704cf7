//! Gaps: a reader that moves up through a file and skips pages at random.
//!
//! Bitmap heap scans, sparse indexes, header scans and images with holes read blocks in the order
//! of the file and skip a part of them. No distance repeats, so they form no stride, and each
//! block is a request. The gaps are read along with the blocks, as one stream, if a gap costs less
//! than the request that it saves.
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
//! - *Window.* At most as many pages as the reader has passed since, and as 16 gaps have. A rise
//!   that ends has thus wasted no more than it has shown. Otherwise as for runs: 16 times the cost
//!   of a request, and a share of the memory.
//!
//! `bench/gaps.py` has the readers for which this was chosen, and others that judge it. Rejected
//! designs: `bench/notes/access-patterns.md`.

use super::super::{DeviceEvidence, PageView, WINDOW_COST_FACTOR};
use super::{AccessContext, LatestReadahead, record_window};
use crate::observed::{DECAY_WINDOW, EWMA_WINDOW};
use crate::unit::{PageRange, Time};

/// Present rise of one handle.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RisingGaps {
    /// Page after the last reported request.
    position: u64,
    /// Number of reported requests.
    requests: u64,
    /// Number of recent gaps.
    gaps: u64,
    /// Pages that were used, and pages that were skipped, with these gaps.
    used_pages: u64,
    skipped_pages: u64,
    /// Used pages and time of the present phase: without the gaps, or with them.
    phase: Phase,
    /// Time of a used page without the gaps, in nanoseconds, when reading them along began.
    separate_ns: u64,
    /// End of the pages that were read along; `None` if gaps are not read along now.
    ahead: Option<u64>,
    /// Number of times that reading the gaps along made the reader slower. Kept over all rises.
    failures: u32,
}

/// Progress of a reader since the gaps are read along, or are not.
#[derive(Clone, Copy, Debug, Default)]
struct Phase {
    since: Time,
    /// First page of the phase.
    begin: u64,
    gaps: u64,
    used_pages: u64,
}

impl Phase {
    /// Mean time of a used page since the begin of the phase, in nanoseconds.
    fn page_ns(&self, now: Time) -> u64 {
        now.since(self.since).ns() / self.used_pages.max(1)
    }
}

impl RisingGaps {
    /// True if the gaps are read along, and the request lies in these pages or a gap behind them.
    pub(super) fn is_continued_by(&self, request: PageRange) -> bool {
        self.ahead.is_some_and(|ahead| {
            let end = ahead + self.mean_gap().max(1);
            request.end > self.position && request.first <= end
        })
    }

    /// True if the reader moves up through the file, and so does not return to the skipped pages.
    pub(super) fn is_rising(&self) -> bool {
        self.requests >= EWMA_WINDOW
    }

    /// Updates the counts by a request. A request that begins before the position, or more than 4
    /// MiB behind it, begins a new rise.
    pub(super) fn observe(&mut self, request: PageRange, pages: &mut dyn PageView) {
        let is_rising = request.end > self.position
            && request.first <= self.position + EWMA_WINDOW * DECAY_WINDOW;
        if self.requests == 0 || !is_rising {
            let now = pages.evidence().device.now;
            *self = RisingGaps {
                position: request.end,
                requests: 1,
                used_pages: request.count(),
                phase: Phase { since: now, begin: request.first, ..Phase::default() },
                failures: self.failures,
                ..RisingGaps::default()
            };
            return;
        }
        let skipped_range = self.position..request.first.max(self.position);
        let skipped_pages = skipped_range.end - skipped_range.start;
        let pages = &*pages;
        let (mut used, mut gaps, mut was_used) = (0, 0, true);
        for page in skipped_range {
            let is_used = pages.is_cached(page) && !pages.is_unused(page);
            used += u64::from(is_used);
            gaps += u64::from(was_used && !is_used);
            was_used = is_used;
        }
        let used_pages = used + request.end - request.first.max(self.position);
        self.requests += 1;
        self.gaps += gaps;
        self.used_pages += used_pages;
        // Requests in pages that were read along are not reported. Used pages elsewhere may be of
        // other readers, or of earlier times, so they are no evidence of a rise.
        self.phase.gaps += if self.ahead.is_some() { gaps } else { gaps.min(1) };
        self.phase.used_pages += used_pages;
        self.skipped_pages += skipped_pages - used;
        self.position = request.end;
        if self.gaps >= DECAY_WINDOW {
            for count in [&mut self.gaps, &mut self.used_pages, &mut self.skipped_pages] {
                *count /= 2;
            }
        }
    }

    /// Mean gap in pages, rounded up. Requests without a gap before them do not count: they are
    /// one run with the request before.
    fn mean_gap(&self) -> u64 {
        self.skipped_pages.div_ceil(self.gaps.max(1))
    }

    /// Mean number of pages used between two gaps, at least 1.
    fn mean_piece(&self) -> u64 {
        (self.used_pages / self.gaps.max(1)).max(1)
    }

    /// True if reading the gaps along is expected to cost less than separate requests, and has not
    /// taken longer. Counts a failure if it has taken longer.
    fn pays(&mut self, device: &DeviceEvidence) -> bool {
        let gaps_min = EWMA_WINDOW << self.failures.min(16);
        let has_evidence = match self.ahead {
            None => {
                // The time of a used page with its share of the skipped ones, by the bandwidth.
                let passed = self.used_pages + self.skipped_pages;
                let least_ns = device.estimate.page_ps() * passed / self.used_pages.max(1) / 1000;
                self.phase.gaps >= gaps_min && 2 * self.phase.page_ns(device.now) >= 3 * least_ns
            }
            Some(_) if self.phase.gaps >= EWMA_WINDOW => {
                let is_slower = WINDOW_COST_FACTOR * self.phase.page_ns(device.now)
                    > (WINDOW_COST_FACTOR + 1) * self.separate_ns;
                self.failures += u32::from(is_slower);
                !is_slower
            }
            Some(_) => true,
        };
        has_evidence
            && self.mean_gap() <= device.marginal_cost_pages(self.mean_piece())
            && EWMA_WINDOW * self.used_pages >= 2 * (self.used_pages + self.skipped_pages)
    }

    /// Prefetches the next pages with their gaps, if that pays. Returns false if it does not pay,
    /// so that the caller treats the request in another way.
    pub(super) fn read_ahead(&mut self, access: &AccessContext, pages: &mut dyn PageView) -> bool {
        let request = access.request;
        let device = &mut *pages.evidence().device;
        if !self.pays(device) {
            if self.ahead.take().is_some() {
                self.phase = Phase { since: device.now, begin: request.end, ..Phase::default() };
            }
            return false;
        }
        if self.ahead.is_none() {
            self.separate_ns = self.phase.page_ns(device.now);
            self.phase = Phase { since: device.now, begin: request.end, ..Phase::default() };
        }
        let piece_pages = self.mean_piece();
        let sample_pages = EWMA_WINDOW * (piece_pages + self.mean_gap());
        let passed = sample_pages + request.end - self.phase.begin;
        let bounds = [
            (WINDOW_COST_FACTOR * device.marginal_cost_pages(piece_pages), "occupies"),
            (passed, "passed"),
            (device.stream_share_pages(), "memory"),
        ];
        let (size, why) = bounds.into_iter().min_by_key(|bound| bound.0).expect("three bounds");
        let first = self.ahead.unwrap_or(0).max(request.end);
        let room = size.saturating_sub(first - request.end);
        let window = PageRange::new(first, room).clipped(access.file_pages);
        if window.is_empty() || (!access.waits && room < size / 2) {
            self.ahead = Some(first);
            return true;
        }
        // A single marked page may be skipped, so as many are marked as hold several requests.
        let middle = window.first + window.count() / 2;
        let marked = EWMA_WINDOW * (piece_pages + self.mean_gap());
        let [begin, marks, rest] = [
            window.clipped(middle),
            PageRange { first: middle, end: middle + marked }.clipped(window.end),
            PageRange { first: (middle + marked).min(window.end), end: window.end },
        ];
        let is_whole = pages.add_absent(begin, false)
            && marks.pages().all(|page| pages.add_absent(PageRange::new(page, 1), true))
            && pages.add_absent(rest, false);
        let is_there = |page: &u64| pages.is_cached(*page);
        let end = match is_whole {
            true => window.end,
            false => window.first + window.pages().take_while(is_there).count() as u64,
        };
        self.ahead = Some(end);
        let range = window.clipped(end);
        if !range.is_empty() {
            record_window(
                pages,
                LatestReadahead { range, shape: "gaps", why, behind: passed, size },
            );
        }
        true
    }
}
