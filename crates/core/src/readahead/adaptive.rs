//! Readahead policy `adaptive`: predicts each reader's next pages from recorded runs, and sizes
//! windows by measured device costs.
//!
//! The goal: a reader never waits for a predictable page, and every prefetched page is used.
//!
//! How it works:
//!
//! - *Streams per handle.* A file handle may have many streams: forward, backward, strided. A
//!   request that continues no stream may begin one. The next request that continues it confirms
//!   it; a stride needs three requests. Strides are detected in bytes or in pages
//!   (`adaptive/stride.rs`).
//! - *Run lengths* are learned: for each length, the share of the runs that went on
//!   (`length_distribution.rs`). Separate distributions exist for runs that begin with their file,
//!   for strides, and for requests elsewhere, by request size. Another one is for runs
//!   that change their request size by more than a factor of two, such as a header and the data
//!   after it. A run ends when its reader goes elsewhere, or closes the file before the file's end.
//!   Without observations a run reaches twice its length with probability one half, and a request
//!   elsewhere is not expected to go on.
//! - *Window size.* The window has the least expected cost. Small windows cost more requests, large
//!   windows cost unused pages. The cost of one more request is measured in pages
//!   (`DeviceEvidence::window`). No parameter or device type is configured: a disk's requests are
//!   expensive and a solid-state drive's are cheap, and both are measured.
//! - *Marginal cost.* A request's service time delays all waiting readers: nearly its whole
//!   duration on a disk, almost none of it on many drives. The rest is latency, which delays one
//!   reader. With `n` waiting readers it costs an `n`-th of their throughput, and at most the time
//!   for which the device is otherwise idle. It costs nothing when the device is never idle
//!   (`estimate.rs`).
//! - *Next window.* A window is read when the reader waits for a page. It is also read when the
//!   reader reaches the middle of the newest window, if the expected gain of a request for which no
//!   reader waits is positive. All pages of a run's first window are marked, because the run's
//!   direction is unknown.
//! - *Mappings.* The policy is called for first touches of unused pages, as far as the mapping's
//!   server reports them. It decides at the same positions as for reads, and learns run lengths
//!   from all touches.
//! - *Memory bound.* A stream's prefetched pages must remain in memory until the reader reaches
//!   them. The bound is the memory times the stream's share of all requested pages. A new stream's
//!   share is one divided by the number of streams. A window is also at most the stream's share of
//!   the memory that prefetching may still use. A prefetched page that was evicted unused halves
//!   the window, and the rest of that window is checked again.
//! - *Round ends.* Windows end at multiples of a power of two, because servers, stripes and drives
//!   transfer such sizes.
//! - *Gaps of a stride* are read along with the blocks if a gap is smaller than a block and costs
//!   less than a request's service time. Otherwise each block is read separately.
//! - *Random gaps.* A reader moves up through the file and skips pages at random. After 16 gaps,
//!   the gaps are read along if the mean gap costs less than a request. Reading them along ends if
//!   a used page then takes more time (`adaptive/gaps.rs`).
//! - *Whole-file prefetch.* A file under random access is read whole, or a region that receives far
//!   more requests than the others. The budget is a sixteenth of the cost of the random requests,
//!   plus twice the cost avoided since (`adaptive/sweep.rs`). A lone reader's file may be read
//!   into free memory early; the parameter `whole_file_mib` is the largest such file in MiB.
//! - *Other requests* are read as requested. A request whose pages are all filled and unmarked
//!   costs only that check.
//!
//! Hints set the initial estimates. After `SEQUENTIAL` each request begins a run that is expected
//! to go on, like a run at the start of a file. After `RANDOM` strides and whole files are not
//! prefetched, nor is anything after a request that continues no stream, until a request continued
//! one. Later observations outweigh both hints.

use alloc::collections::VecDeque;

use super::{
    Advice, DeviceEvidence, Evidence, LatestReadahead, PageView, ReadRequest, ReadaheadPolicy,
    RunBegin, STREAMS_MAX,
};
use crate::decision::Decision;
use crate::observed::EWMA_WINDOW;
use crate::policy::{Spec, SpecError};
use crate::unit::{PAGE_BYTES, PageRange};

mod gaps;
mod reaches;
mod run;
mod stream;
mod stride;
mod sweep;

use gaps::RisingGaps;
use reaches::Reaches;
use stream::ReadStream;
use stride::{RandomAccess, Stride};

/// Argument for added pages whose use starts the next readahead.
const MARKED: bool = true;

/// Argument for added pages without a readahead mark.
const UNMARKED: bool = false;

/// Readahead policy `adaptive` for one open file.
#[derive(Clone, Debug, Default)]
pub struct AdaptiveReadahead {
    /// Streams in the order of their last request, the most recent at the end.
    streams: VecDeque<ReadStream>,
    /// Page range that a request must overlap or touch to continue each stream.
    reaches: Reaches,
    /// Requests in the order of the file with skipped pages (gaps) between them.
    gaps: RisingGaps,
    /// Last request that continued no stream ("scattered" in names), for the detection of strides.
    last_scattered: Option<RandomAccess>,
    /// Number of consecutive requests without a stream that each lay above the previous one.
    rises: u64,
    /// Number of consecutive requests without a stream that each lay below the previous one.
    falls: u64,
    /// Latest `Normal`, `Sequential` or `Random` advice for the file.
    advice: Advice,
    /// True if the stream that was continued last is backward.
    is_last_stream_backward: bool,
    /// True if a request has continued a stream since the last advice.
    has_continued_stream: bool,
    /// Parameter `whole_file_mib` in pages; `None` without a limit.
    whole_file_pages_max: Option<u64>,
}

/// A request with the cache state of its pages.
#[derive(Clone, Copy, Debug)]
struct AccessContext {
    /// Pages of the request, within the file.
    request: PageRange,
    /// Offset of the request in bytes.
    offset: u64,
    /// Size of the request in bytes.
    bytes: u64,
    /// Size of the file in pages.
    file_pages: u64,
    /// True if a page is not filled, so that the reader waits.
    reader_waits: bool,
    /// True if a page is neither cached nor being read: it was not prefetched.
    has_absent_page: bool,
    /// True if a page is marked as a trigger for the next window.
    has_marked_page: bool,
    /// True for a touch of a mapping. The policy may then be called for any first touch, marked or
    /// not.
    is_touch: bool,
}

impl AccessContext {
    /// Collects the cache state of the pages of a read request or a touch. A touch of a mapping
    /// (`is_touch`) counts as one page.
    fn of(
        request: PageRange,
        read: &ReadRequest,
        is_touch: bool,
        pages: &dyn PageView,
    ) -> AccessContext {
        let (mut reader_waits, mut has_absent_page, mut has_marked_page) = (false, false, false);
        for page in request.pages() {
            reader_waits |= !pages.is_filled(page);
            has_absent_page |= !pages.is_cached(page);
            has_marked_page |= pages.marked(page).is_some();
        }
        let (offset, bytes) = match is_touch {
            true => (request.first * PAGE_BYTES, PAGE_BYTES),
            false => (read.offset, read.bytes),
        };
        let file_pages = read.file_pages();
        AccessContext {
            request,
            offset,
            bytes,
            file_pages,
            reader_waits,
            has_absent_page,
            has_marked_page,
            is_touch,
        }
    }

    /// True if the next window should be considered.
    fn is_decision_due(&self) -> bool {
        self.reader_waits || self.has_marked_page
    }
}

impl AdaptiveReadahead {
    /// Parses `adaptive` and its parameter `whole_file_mib`, in MiB. Its default and largest value
    /// is 1 TiB, which means no limit.
    ///
    /// # Errors
    /// A parameter is unknown, or its value is out of range.
    pub fn from_spec(spec: &Spec) -> Result<AdaptiveReadahead, SpecError> {
        spec.only(&["whole_file_mib"])?;
        let unlimited_mib = 1 << 20;
        let mib = spec.integer("whole_file_mib", unlimited_mib, 0..=unlimited_mib)?;
        let whole_file_pages_max = (mib < unlimited_mib).then_some(mib * (1 << 20) / PAGE_BYTES);
        Ok(AdaptiveReadahead { whole_file_pages_max, ..AdaptiveReadahead::default() })
    }

    /// Target window, in pages, of the latest stream. `None` without a stream, or if its begin made
    /// a continuation likely: at the start of the file, as a stride, or after sequential advice. A
    /// caller whose pages the kernel caches turns the kernel's readahead off if that would read
    /// more than this. 0 if the stream's window was never evaluated.
    pub fn wanted_anywhere(&self) -> Option<u64> {
        self.streams.back()?.target_of_unexpected_run()
    }

    /// Processes a request that waits, reaches a mark, or touches an unused prefetched page. Clears
    /// its marks, assigns it to a stream, and prefetches if that pays.
    fn process(&mut self, access: AccessContext, pages: &mut dyn PageView) {
        for page in access.request.pages() {
            if let Some(folio) = pages.marked(page) {
                pages.clear_mark(folio);
            }
        }
        // The gaps come first: pages that are read along for them belong to no other stream.
        let is_in_gaps = self.gaps.is_continued_by(access.request);
        self.gaps.record_request(access.request, pages);
        // Reading along that has begun goes on after any advice. `prefetch_with_gaps` returns true
        // if it reads along: then the request belongs to no stream.
        if is_in_gaps && self.gaps.prefetch_with_gaps(&access, pages) {
            return;
        }
        match self.find_continued_stream(&access, pages) {
            Some(index) => {
                // The stream is taken out of both lists, and becomes the most recent one below.
                self.reaches.remove(index);
                let mut stream = self.streams.remove(index).expect("it was found there");
                // The first request that continues a stream sets its direction.
                let is_decision_due = access.is_decision_due() || !stream.is_continued();
                stream.advance(&access, pages);
                self.is_last_stream_backward = stream.is_backward();
                // After `POSIX_FADV_RANDOM`, equally spaced requests may be coincidence: do not
                // prefetch strides.
                let is_ignored = self.advice == Advice::Random && stream.is_strided();
                self.has_continued_stream |= !is_ignored;
                if is_decision_due && !is_ignored {
                    stream.read_ahead(access, pages);
                }
                self.push_newest(stream);
            }
            None => {
                // Reading the gaps along may begin with this request. Else it may begin a stream.
                let reads_gaps =
                    self.advice != Advice::Random && self.gaps.prefetch_with_gaps(&access, pages);
                if !reads_gaps {
                    self.begin_stream(access, pages);
                }
            }
        }
    }

    /// Returns the index of the most recent stream that the request continues; `None` if it
    /// continues none. The exact bounds are compared first: `reaches` has clamped ones, and
    /// `is_continued_by` also examines pages.
    fn find_continued_stream(&self, access: &AccessContext, pages: &dyn PageView) -> Option<usize> {
        let request = access.request;
        self.reaches.find_last(request, |index| {
            let reach = self.streams[index].reach();
            let touches = reach.first <= request.end && request.first <= reach.end;
            touches && self.streams[index].is_continued_by(access, pages)
        })
    }

    /// Adds the stream as the most recent one. Both lists keep one order, so that an index is valid
    /// in both.
    fn push_newest(&mut self, stream: ReadStream) {
        self.reaches.push(stream.reach());
        self.streams.push_back(stream);
    }

    /// Begins a stream by a request that continues none. The stream replaces the oldest of
    /// [`STREAMS_MAX`] streams. The request may cause a prefetch, also of the whole file.
    fn begin_stream(&mut self, access: AccessContext, pages: &mut dyn PageView) {
        let request = access.request;
        // The reader of the latest stream has gone elsewhere, as far as is known now.
        if let Some(stream) = self.streams.back_mut() {
            stream.record_reader_left(pages);
        }
        let scattered = RandomAccess::after(self.last_scattered, &access);
        // The largest window of one of the active streams.
        let block_pages_max = pages.evidence().device.stream_share_pages();
        let detected = scattered.detect_stride(self.last_scattered, block_pages_max, pages);
        let is_on_stride = detected.is_some();
        // A stride whose blocks span several requests, with gaps, begins a plain stream if no
        // window has room for a block.
        let stride =
            detected.filter(|stride| !stride.must_fit_window() || fits_window(stride, pages));
        let (is_above, is_below) = scattered.is_above_or_below();
        self.rises = if is_above { self.rises + 1 } else { 0 };
        self.falls = if is_below { self.falls + 1 } else { 0 };
        self.last_scattered = Some(scattered);
        // The pages requested since then show the stream's share of all requests.
        let requested_pages_at_begin = pages.evidence().device.requested_pages();
        // After random advice, nothing is prefetched for a stride, or until a request has continued
        // a stream. The advice counts until a request contradicts it.
        let prefetches_nothing =
            self.advice == Advice::Random && (stride.is_some() || !self.has_continued_stream);
        // The kind of begin selects the distribution of run lengths that predicts the run. A
        // request at the start of a file announces a run, unless random advice speaks against it.
        let begin = match self.advice {
            _ if stride.is_some() => RunBegin::Stride,
            Advice::Sequential => RunBegin::Sequential,
            _ if request.first == 0 && !prefetches_nothing => RunBegin::Sequential,
            _ => RunBegin::Request { pages: request.count() },
        };
        let mut stream = match (stride, begin) {
            (Some(stride), _) => ReadStream::strided(request, stride, requested_pages_at_begin),
            // From the start of a file, or after sequential advice, a run goes upwards.
            (None, RunBegin::Sequential) => {
                ReadStream::new(request, begin, requested_pages_at_begin)
            }
            _ => ReadStream::new(request, begin, requested_pages_at_begin)
                .assume_direction(self.is_last_stream_backward),
        };
        if !prefetches_nothing {
            stream.read_ahead(access, pages);
            // A reader that moves over the file in one direction does not return to the pages it
            // skipped.
            let is_one_pass = self.gaps.is_rising() || self.rises.max(self.falls) >= EWMA_WINDOW;
            // Whole-file prefetch counts only requests at random positions.
            let is_random = matches!(begin, RunBegin::Request { .. }) && !is_on_stride;
            if is_random && self.advice != Advice::Random {
                let whole_file_pages_max = self.whole_file_pages_max.unwrap_or(u64::MAX);
                sweep::sweep(access, is_one_pass, whole_file_pages_max, pages);
            }
        }
        // A forgotten stream no longer counts as active. Its run gets no further record.
        if self.streams.len() == STREAMS_MAX
            && let Some(mut oldest) = self.streams.pop_front()
        {
            // Both lists begin with the oldest stream.
            self.reaches.remove(0);
            oldest.stop_counting(pages.evidence().device);
        }
        self.push_newest(stream);
    }
}

impl ReadaheadPolicy for AdaptiveReadahead {
    /// Processes a read if its reader waits or reaches a mark. Ignores other reads.
    fn read(&mut self, read: &ReadRequest, pages: &mut dyn PageView) {
        let is_touch = false;
        let access =
            AccessContext::of(read.request().clipped(read.file_pages()), read, is_touch, pages);
        if access.is_decision_due() {
            self.process(access, pages);
        }
    }

    /// Processes a touch of a mapping if its reader waits, reaches a mark or touches an unused
    /// page. Later touches of that page are invisible, so this one counts, unlike for reads.
    fn fault(&mut self, page: u64, read: &ReadRequest, pages: &mut dyn PageView) {
        let is_touch = true;
        let access = AccessContext::of(PageRange::new(page, 1), read, is_touch, pages);
        if access.is_decision_due() || pages.is_unused(page) {
            self.process(access, pages);
        }
    }

    /// Sets the advice for later requests, and forgets that a request continued a stream. Ignores
    /// advice for single ranges.
    fn advise(&mut self, advice: Advice) {
        if matches!(advice, Advice::Normal | Advice::Sequential | Advice::Random) {
            self.advice = advice;
            self.has_continued_stream = false;
        }
    }

    /// True: the policy logs each prefetched window with its reason.
    fn keeps_log(&self) -> bool {
        true
    }

    /// Records the end of the run of each stream, and forgets the streams.
    fn on_close(&mut self, last_page: Option<u64>, file_pages: u64, device: &mut DeviceEvidence) {
        for mut stream in self.streams.drain(..) {
            stream.record_close(last_page, file_pages, device);
        }
    }

    /// False: [`read`](ReadaheadPolicy::read) ignores requests whose pages are all filled and
    /// unmarked.
    fn needs_every_hit(&self) -> bool {
        false
    }
}

/// True if a window has room for a block of the stride, whose blocks span several requests. Longer
/// blocks are prefetched as streams, each from its first request.
fn fits_window(stride: &Stride, pages: &mut dyn PageView) -> bool {
    // The size of the request has no effect on a block that spans several.
    let request_pages = 1;
    let block_pages = stride.block_pages(request_pages);
    let device = &*pages.evidence().device;
    // A stride is detected at its third block.
    let blocks_read = 3;
    let window = device.window(RunBegin::Stride, blocks_read, block_pages);
    window.pages.min(device.stream_share_pages()) >= block_pages
}

/// Records the prefetched `window` as the newest of its file. If the log is on, logs the window
/// (first page, pages, shape, reason) with the number of readers, the request costs and the unused
/// pages that it is based on.
fn record_window(pages: &mut dyn PageView, window: LatestReadahead) {
    let Evidence { device, file } = pages.evidence();
    file.newest = Some(window);
    if !device.log.is_on() {
        return;
    }
    let LatestReadahead { range, shape, why, behind, size } = window;
    let decision = Decision::ReadAhead {
        file: file.number,
        first: range.first,
        pages: range.count(),
        shape,
        why,
        behind,
        size,
        readers: device.open_reads,
        request_pages: device.estimate.request_cost_pages(),
        service_pages: device.estimate.request_service_pages(),
        unused_pages: device.standing_pages,
    };
    device.log.log_with(device.now, || decision);
}
