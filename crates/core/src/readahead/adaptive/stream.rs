//! One stream of requests: its reader's position, the end of its prefetched pages, and its window.
//!
//! The policy is called for requests that wait for a page, and for requests that reach a page with
//! a readahead mark. In a mapping it may also be called for first touches of prefetched pages. All
//! other uses of prefetched pages are *unreported*.

use super::super::{DeviceEvidence, Era, PageView, RunBegin};
use super::AccessContext;
use super::run::SequentialRun;
use super::stride::{self, Stride};
use crate::observed::MIN_SAMPLES;
use crate::unit::PageRange;

mod windows;

/// Order in which a stream reads its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamShape {
    /// Direction unknown: only one request has arrived. Initial state.
    Open,
    /// Ascending without gaps.
    Forward,
    /// Descending without gaps.
    Backward,
    /// Blocks at equal distances.
    Strided(Stride),
}

impl StreamShape {
    /// Name in the decision log.
    fn name(self) -> &'static str {
        match self {
            StreamShape::Open => "open",
            StreamShape::Forward => "forward",
            StreamShape::Backward => "backward",
            StreamShape::Strided(_) => "strided",
        }
    }
}

/// Readahead state of one stream of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadStream {
    /// Order of the requests.
    shape: StreamShape,
    /// Last request that was reported.
    last_request: PageRange,
    /// End of the prefetched and requested pages. Forward: the page after the last of them.
    /// Backward: the lowest of them. Unused by strides, which have their own position.
    prefetch_end: u64,
    /// Target window in pages at the last evaluation: the distance of least expected cost.
    target_pages: u64,
    /// Latest window in pages.
    window_pages: u64,
    /// Maximum of the next window in pages. Half of a window from which an unused page was evicted,
    /// doubled with each window read since.
    window_pages_max: u64,
    /// The stream's whole run.
    run: SequentialRun,
    /// Part of the run since the last change of the request size, if the size has changed.
    latest_part: Option<SequentialRun>,
    /// Total number of pages that all readers had requested from the device when the stream began.
    /// The stream's share of the pages requested since bounds its window.
    requested_pages_at_begin: u64,
    /// True if the stream is assumed to be backward while its direction is unknown.
    is_backward_assumed: bool,
    /// Era in which the stream was counted last in [`DeviceEvidence::streams`]; `None` if it is
    /// not. An era is the time in which half of the memory is added.
    counted_era: Option<Era>,
}

impl ReadStream {
    /// Creates a stream from a request that continues no other. `requested_pages_at_begin` is the
    /// number of pages that all readers have requested from the device until then.
    pub(super) fn new(
        request: PageRange,
        begin: RunBegin,
        requested_pages_at_begin: u64,
    ) -> ReadStream {
        ReadStream {
            shape: StreamShape::Open,
            last_request: request,
            prefetch_end: request.end,
            target_pages: 0,
            window_pages: 0,
            window_pages_max: u64::MAX,
            run: SequentialRun::new(begin, request.count(), request.count()),
            latest_part: None,
            requested_pages_at_begin,
            is_backward_assumed: false,
            counted_era: None,
        }
    }

    /// Sets the direction that is assumed until a request confirms it: the direction of the stream
    /// continued last.
    pub(super) fn assume_direction(self, is_backward_assumed: bool) -> ReadStream {
        ReadStream { is_backward_assumed, ..self }
    }

    /// Shape of the stream by the assumed direction.
    fn assumed_shape(&self) -> StreamShape {
        if self.is_backward_assumed { StreamShape::Backward } else { StreamShape::Forward }
    }

    /// Creates a strided stream from its third request. The three requests have used three blocks.
    pub(super) fn strided(
        request: PageRange,
        stride: Stride,
        requested_pages_at_begin: u64,
    ) -> ReadStream {
        let block_pages = stride.block_pages(request.count());
        ReadStream {
            shape: StreamShape::Strided(stride),
            run: SequentialRun::new(RunBegin::Stride, block_pages, 3 * block_pages),
            ..ReadStream::new(request, RunBegin::Stride, requested_pages_at_begin)
        }
    }

    /// Returns the run, or its latest part, from which the run length is predicted. A part begins
    /// where the request size changes by more than a factor of two.
    fn latest_run(&self) -> &SequentialRun {
        self.latest_part.as_ref().unwrap_or(&self.run)
    }

    /// Number of pages right after the last request that were used without a call to the policy.
    /// Counted only for forward streams; 0 for all others, whose length is then a lower bound.
    fn unreported_pages_used(&self, pages: &dyn PageView) -> u64 {
        if self.shape != StreamShape::Forward {
            return 0;
        }
        let prefetched = self.last_request.end..self.prefetch_end;
        let used = prefetched.take_while(|&page| stride::was_used(page, pages));
        used.count() as u64
    }

    /// Target window in pages at the last evaluation. `None` if the begin of the run made a
    /// continuation likely: at the start of the file, as a stride, or after sequential advice.
    pub(super) fn target_of_unexpected_run(&self) -> Option<u64> {
        matches!(self.run.begin, RunBegin::Request { .. }).then_some(self.target_pages)
    }

    /// True if the stream is known to be backward.
    pub(super) fn is_backward(&self) -> bool {
        self.shape == StreamShape::Backward
    }

    /// True if the stream consists of blocks at equal distances.
    pub(super) fn is_strided(&self) -> bool {
        matches!(self.shape, StreamShape::Strided(_))
    }

    /// True if a request has continued the stream. A strided stream counts as continued from its
    /// begin, with three blocks.
    pub(super) fn is_continued(&self) -> bool {
        self.run.used_pages > self.run.request_pages
    }

    /// Page range that any continuing request overlaps, or touches at one of its bounds. This check
    /// alone excludes most requests of other streams.
    pub(super) fn reach(&self) -> PageRange {
        let request_first = self.last_request.first;
        let (last_first, next, prefetch_end) = match self.shape {
            // A request reaches at most the page used first of the first block that was not
            // prefetched (`prefetch_end`). A further request of the last block lies in that block.
            StreamShape::Strided(stride) => {
                let first_used = |block| stride.first_used_page(block).first;
                let last_first = match stride.spans_requests() {
                    true => request_first.min(stride.last_block().first),
                    false => request_first,
                };
                (last_first, first_used(stride.next_block()), first_used(stride.ahead_block()))
            }
            _ => (request_first, request_first, self.prefetch_end),
        };
        let first = last_first.min(prefetch_end).min(next);
        PageRange { first, end: self.last_request.end.max(prefetch_end).max(next) }
    }

    /// True if the request continues after the reader's position, or further on within the
    /// prefetched pages.
    ///
    /// Pages between the position and the request must have been used. A reader that jumps into
    /// prefetched pages does not continue the stream.
    pub(super) fn is_continued_by(&self, access: &AccessContext, pages: &dyn PageView) -> bool {
        let request = access.request;
        // In order: not before the last request, not beyond the prefetched pages, with new pages,
        // and without an unused page directly before it. A backward request has the mirrored
        // conditions.
        let is_forward = || {
            self.last_request.first <= request.first
                && request.first <= self.prefetch_end.max(self.last_request.end)
                && request.end > self.last_request.end
                && (request.first <= self.last_request.end || !pages.is_unused(request.first - 1))
        };
        let is_backward = || {
            request.end < self.last_request.end
                && request.end >= self.prefetch_end.min(self.last_request.first)
                && request.first < self.last_request.first
                && (request.end >= self.last_request.first || !pages.is_unused(request.end))
        };
        match self.shape {
            StreamShape::Strided(stride) => {
                // Step 0 is a further request of the last block. The last step is the first block
                // that was not prefetched, or the next block.
                let first_step = if stride.spans_requests() { 0 } else { 1 };
                let steps_ahead = first_step..=stride.steps_ahead().max(1);
                let was_used = |block| was_used(stride.certain_pages(block), pages);
                // A reader that left the last block early does not continue the stride.
                let is_last_unused = |steps| {
                    let last = stride.last_block();
                    steps > 0
                        && stride.spans_requests()
                        && last.pages().all(|page| pages.is_cached(page))
                        && !was_used(last)
                };
                stride.steps_to(access).is_some_and(|steps| {
                    steps_ahead.contains(&steps)
                        && stride.blocks_between(steps).all(was_used)
                        && !is_last_unused(steps)
                })
            }
            // The assumed direction is not confirmed yet, so both are accepted.
            _ if !self.is_continued() => is_forward() || is_backward(),
            StreamShape::Open | StreamShape::Forward => is_forward(),
            StreamShape::Backward => is_backward(),
        }
    }

    /// Number of pages that the stream uses by going on to `request`, or 0 if the request lies
    /// behind it. For a stride, `steps` returns the number of strides to the request. Each step of
    /// a stride uses one block, the unit of its run.
    fn pages_advanced_to(&self, request: PageRange, steps: impl FnOnce(&Stride) -> i64) -> u64 {
        match &self.shape {
            StreamShape::Open | StreamShape::Forward => {
                request.end.saturating_sub(self.last_request.end)
            }
            StreamShape::Backward => self.last_request.first.saturating_sub(request.first),
            StreamShape::Strided(stride) => steps(stride).max(0) as u64 * self.run.request_pages,
        }
    }

    /// Moves the reader's position to the request, which must continue the stream, and adds the
    /// pages to the run. Halves the window if a prefetched page of the request was evicted, but not
    /// below 4 pages (`MIN_SAMPLES`), so that a changed pattern is noticed.
    pub(super) fn advance(&mut self, access: &AccessContext, pages: &mut dyn PageView) {
        let request = access.request;
        if !self.is_continued() {
            self.set_direction(request);
        }
        let was_prefetched = |page: u64| match self.shape {
            StreamShape::Open | StreamShape::Forward => page < self.prefetch_end,
            StreamShape::Backward => page >= self.prefetch_end,
            // The request is in a prefetched block unless it is the first block that was not
            // prefetched. It continues the stride, so it lies no further ahead.
            StreamShape::Strided(stride) => !stride.is_next_ahead(access),
        };
        let is_evicted = request.pages().any(|page| was_prefetched(page) && !pages.is_cached(page));
        if is_evicted {
            self.window_pages = (self.window_pages / 2).max(MIN_SAMPLES);
            self.window_pages_max = self.window_pages;
            // The rest of the window may have gaps, so it is checked again. A stride has its own
            // position and does not use this one.
            self.prefetch_end = match self.shape {
                StreamShape::Backward => request.first,
                StreamShape::Strided(_) => self.prefetch_end,
                StreamShape::Open | StreamShape::Forward => request.end,
            };
        }
        // `steps_to` has a result, because the request continues the stride.
        let steps_of = |stride: &Stride| stride.steps_to(access).unwrap_or(0);
        let new_pages = self.pages_advanced_to(request, steps_of);
        if let StreamShape::Strided(stride) = &mut self.shape {
            stride.skip_blocks(steps_of(stride));
        }
        // A new part of the run begins where the size of requests changes. The part before gets no
        // recorded end, because the reader goes on.
        let has_other_size =
            !self.is_strided() && self.latest_run().has_other_size(request.count());
        let device = &mut *pages.evidence().device;
        self.run.record_growth(new_pages, device);
        if let Some(latest_part) = &mut self.latest_part {
            latest_part.record_growth(new_pages, device);
        }
        if has_other_size {
            self.latest_part =
                Some(SequentialRun::new(RunBegin::Part, request.count(), request.count()));
        }
        self.last_request = request;
    }

    /// Sets the direction of the stream from its second request. If it is not the assumed one, the
    /// prefetch begins again at the first request. No effect on a stride.
    fn set_direction(&mut self, request: PageRange) {
        let is_backward = request.first < self.last_request.first;
        match self.shape {
            StreamShape::Open | StreamShape::Forward if is_backward => {
                (self.shape, self.prefetch_end) = (StreamShape::Backward, self.last_request.first);
            }
            StreamShape::Open => self.shape = StreamShape::Forward,
            StreamShape::Backward if !is_backward => {
                (self.shape, self.prefetch_end) = (StreamShape::Forward, self.last_request.end);
            }
            _ => {}
        }
    }

    /// Records the end of the run, because the reader went elsewhere. Pages used without a report
    /// count as part of the run.
    pub(super) fn record_reader_left(&mut self, pages: &mut dyn PageView) {
        let unreported_pages = self.unreported_pages_used(pages);
        self.record_end(unreported_pages, pages.evidence().device);
    }

    /// Records the end of the run when its file of `file_pages` pages is closed. `last_page` is the
    /// page in which the last read of the handle ended, reported to the policy or not; `None` if
    /// unknown. The last read may belong to another stream: it counts only if it continues this
    /// one. A run that reached the end of the file is not recorded as ended: in a longer file it
    /// might have gone on.
    pub(super) fn record_close(
        &mut self,
        last_page: Option<u64>,
        file_pages: u64,
        device: &mut DeviceEvidence,
    ) {
        // The last reads of the handle may not have been reported.
        let request_pages = self.last_request.count();
        let (mut last_request, mut unreported_pages) = (self.last_request, 0);
        if let Some(page) = last_page {
            // The request that ended with `last_page`, if it had the size of the one before it.
            let first = (page + 1).saturating_sub(request_pages);
            let assumed = PageRange { first, end: page + 1 };
            let mut steps = 0;
            let new_pages = self.pages_advanced_to(assumed, |stride| {
                steps = stride.steps_to_block_end(page);
                steps
            });
            if new_pages > 0 && self.reach().contains(assumed.first) {
                (last_request, unreported_pages) = (assumed, new_pages);
                // Below, the next block shows if the stride has reached the end of the file.
                if let StreamShape::Strided(stride) = &mut self.shape {
                    stride.skip_blocks(steps);
                }
            }
        }
        if self.is_at_file_end(last_request, file_pages) {
            return self.stop_counting(device);
        }
        self.record_end(unreported_pages, device);
    }

    /// True if the stream cannot go on behind `last_request`: the file of `file_pages` pages ends
    /// there. A backward stream ends at page 0, and a strided one with its last block.
    fn is_at_file_end(&self, last_request: PageRange, file_pages: u64) -> bool {
        match self.shape {
            StreamShape::Open | StreamShape::Forward => last_request.end >= file_pages,
            StreamShape::Backward => last_request.first == 0,
            StreamShape::Strided(stride) => {
                let next = stride.next_block();
                next.is_empty() || next.first >= file_pages
            }
        }
    }

    /// Records that the run ended `unreported_pages` pages after its last reported request.
    fn record_end(&mut self, unreported_pages: u64, device: &mut DeviceEvidence) {
        self.run.record_end(unreported_pages, device);
        if let Some(latest_part) = &mut self.latest_part {
            latest_part.record_end(unreported_pages, device);
        }
        self.stop_counting(device);
    }

    /// Removes the stream from the device's count of active streams. No effect if it is not
    /// counted.
    pub(super) fn stop_counting(&mut self, device: &mut DeviceEvidence) {
        device.streams.remove_stream(self.counted_era.take());
    }
}

/// True if all pages of the range have been used: each is in memory, and no prefetched one is
/// unused.
fn was_used(range: PageRange, pages: &dyn PageView) -> bool {
    range.pages().all(|page| stride::was_used(page, pages))
}
