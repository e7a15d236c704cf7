//! One stream of requests: its reader's position, the end of its prefetched pages, and its window.

use super::super::{DeviceEvidence, Era, PageView, RunBegin};
use super::run::SequentialRun;
use super::stride::Stride;
use super::{AccessContext, LatestReadahead, record_window};
use crate::observed::{EWMA_WINDOW, MIN_SAMPLES};
use crate::unit::PageRange;

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
    last: PageRange,
    /// Forward: the page after the last one that was prefetched or requested. Backward: the lowest
    /// such page. Unused by strides, which have their own position.
    ahead: u64,
    /// Target window in pages at the last evaluation: the distance of least expected cost.
    wanted: u64,
    /// Latest window in pages.
    window: u64,
    /// Maximum of the next window in pages. Half of a window from which an unused page was evicted,
    /// doubled with each window read since.
    window_limit: u64,
    /// The stream's whole run.
    run: SequentialRun,
    /// Part of the run since the last change of the request size, if the size has changed.
    part: Option<SequentialRun>,
    /// Total number of pages that all readers had requested from the device when the stream began.
    begun_at: u64,
    /// True if a stream of unknown direction is assumed to be backward.
    goes_down: bool,
    /// Era since which the stream is counted in [`DeviceEvidence::streams`], if it is.
    counted: Option<Era>,
}

impl ReadStream {
    /// Creates a stream from a request that continues no other.
    pub(super) fn begun(request: PageRange, begin: RunBegin, begun_at: u64) -> ReadStream {
        ReadStream {
            shape: StreamShape::Open,
            last: request,
            ahead: request.end,
            wanted: 0,
            window: 0,
            window_limit: u64::MAX,
            run: SequentialRun::begun(begin, request.count(), request.count()),
            part: None,
            begun_at,
            goes_down: false,
            counted: None,
        }
    }

    /// Sets the direction that is assumed until a request confirms it: the direction of the stream
    /// continued last.
    pub(super) fn assume_direction(self, goes_down: bool) -> ReadStream {
        ReadStream { goes_down, ..self }
    }

    /// Creates a strided stream from its third request.
    pub(super) fn strided(request: PageRange, stride: Stride, begun_at: u64) -> ReadStream {
        let block_pages = stride.block_pages(request.count());
        ReadStream {
            shape: StreamShape::Strided(stride),
            run: SequentialRun::begun(RunBegin::Stride, block_pages, 3 * block_pages),
            ..ReadStream::begun(request, RunBegin::Stride, begun_at)
        }
    }

    /// Returns the run, or its latest part, from which the run length is predicted.
    fn newest(&self) -> &SequentialRun {
        self.part.as_ref().unwrap_or(&self.run)
    }

    /// Number of pages right after the last request that were used without a call to the policy.
    fn pages_unseen(&self, pages: &dyn PageView) -> u64 {
        if self.shape != StreamShape::Forward {
            return 0;
        }
        let ahead = self.last.end..self.ahead;
        let used = ahead.take_while(|&page| pages.is_cached(page) && !pages.is_unused(page));
        used.count() as u64
    }

    /// Target window in pages, if the stream began at a position without prior knowledge. Returns
    /// `None` if the run was expected to go on.
    pub(super) fn wanted_anywhere(&self) -> Option<u64> {
        matches!(self.run.begin, RunBegin::Request { .. }).then_some(self.wanted)
    }

    /// True if the stream is known to be backward.
    pub(super) fn is_backward(&self) -> bool {
        self.shape == StreamShape::Backward
    }

    /// True if the stream consists of blocks at equal distances.
    pub(super) fn is_strided(&self) -> bool {
        matches!(self.shape, StreamShape::Strided(_))
    }

    /// True if a request has continued the stream.
    pub(super) fn has_gone_on(&self) -> bool {
        self.run.behind > self.run.each
    }

    /// Page range that any continuing request overlaps or touches. This check alone excludes most
    /// requests of other streams.
    pub(super) fn reach(&self) -> PageRange {
        let (next, ahead) = match self.shape {
            StreamShape::Strided(stride) => {
                let requests = [stride.next_pages(), stride.ahead_pages()];
                requests.map(|block| stride.first_used(block).first).into()
            }
            _ => (self.last.first, self.ahead),
        };
        let first = self.last.first.min(ahead).min(next);
        PageRange { first, end: self.last.end.max(ahead).max(next) }
    }

    /// True if the request continues after the reader's position, or further on within the
    /// prefetched pages.
    ///
    /// Pages between the position and the request must have been used. A reader that jumps into
    /// prefetched pages does not continue the stream.
    pub(super) fn is_continued_by(&self, access: &AccessContext, pages: &dyn PageView) -> bool {
        let request = access.request;
        let is_forward = || {
            self.last.first <= request.first
                && request.first <= self.ahead.max(self.last.end)
                && request.end > self.last.end
                && (request.first <= self.last.end || !pages.is_unused(request.first - 1))
        };
        let is_backward = |ahead: u64| {
            request.end < self.last.end
                && request.end >= ahead.min(self.last.first)
                && request.first < self.last.first
                && (request.end >= self.last.first || !pages.is_unused(request.end))
        };
        match self.shape {
            StreamShape::Strided(stride) => {
                let steps = stride.steps_to(access);
                let is_ahead = (1..=stride.steps_ahead().max(1)).contains(&steps);
                is_ahead && stride.blocks_between(steps).all(|block| was_used(block, pages))
            }
            // The assumed direction is not confirmed yet, so both are accepted.
            _ if !self.has_gone_on() => is_forward() || is_backward(self.ahead),
            StreamShape::Open | StreamShape::Forward => is_forward(),
            StreamShape::Backward => is_backward(self.ahead),
        }
    }

    /// Number of pages that the stream uses by going on to `request`, or 0 if the request lies
    /// behind it. For a stride, `steps` returns the number of strides.
    fn pages_on_to(&self, request: PageRange, steps: impl FnOnce(&Stride) -> i64) -> u64 {
        match &self.shape {
            StreamShape::Open | StreamShape::Forward => request.end.saturating_sub(self.last.end),
            StreamShape::Backward => self.last.first.saturating_sub(request.first),
            StreamShape::Strided(stride) => steps(stride).max(0) as u64 * self.run.each,
        }
    }

    /// Moves the reader's position to the request, and adds the pages to the run. Halves the window
    /// if a prefetched page of the request was evicted.
    pub(super) fn advance(&mut self, access: &AccessContext, pages: &mut dyn PageView) {
        let request = access.request;
        if !self.has_gone_on() {
            self.turn(request);
        }
        let was_ahead = |page: u64| match self.shape {
            StreamShape::Open | StreamShape::Forward => page < self.ahead,
            StreamShape::Backward => page >= self.ahead,
            StreamShape::Strided(stride) => !stride.is_next_ahead(access),
        };
        let is_evicted = request.pages().any(|page| was_ahead(page) && !pages.is_cached(page));
        if is_evicted {
            self.window = (self.window / 2).max(MIN_SAMPLES);
            self.window_limit = self.window;
            // The rest of the window may have gaps, so it is checked again.
            self.ahead = match self.shape {
                StreamShape::Backward => request.first,
                StreamShape::Strided(_) => self.ahead,
                StreamShape::Open | StreamShape::Forward => request.end,
            };
        }
        let new_pages = self.pages_on_to(request, |stride| stride.steps_to(access));
        if let StreamShape::Strided(stride) = &mut self.shape {
            stride.advance(access);
        }
        let is_of_other_size =
            !self.is_strided() && self.newest().is_of_other_size(request.count());
        let device = &mut *pages.evidence().device;
        self.run.grew(new_pages, device);
        if let Some(part) = &mut self.part {
            part.grew(new_pages, device);
        }
        if is_of_other_size {
            self.part =
                Some(SequentialRun::begun(RunBegin::Part, request.count(), request.count()));
        }
        self.last = request;
    }

    /// Sets the direction of the stream from its second request.
    fn turn(&mut self, request: PageRange) {
        let goes_down = request.first < self.last.first;
        match self.shape {
            StreamShape::Open | StreamShape::Forward if goes_down => {
                (self.shape, self.ahead) = (StreamShape::Backward, self.last.first);
            }
            StreamShape::Open => self.shape = StreamShape::Forward,
            StreamShape::Backward if !goes_down => {
                (self.shape, self.ahead) = (StreamShape::Forward, self.last.end);
            }
            _ => {}
        }
    }

    /// Records the end of the run, because the reader went elsewhere. Pages used without a report
    /// count as part of the run.
    pub(super) fn record_leave(&mut self, pages: &mut dyn PageView) {
        let unseen = self.pages_unseen(pages);
        self.ended(unseen, pages.evidence().device);
    }

    /// Records the end of the run when its file of `file_pages` pages is closed. `last_page` is the
    /// last page that was read, if known. A run that reached the end of the file is not recorded as
    /// ended: in a longer file it might have gone on.
    pub(super) fn closed(
        &mut self,
        last_page: Option<u64>,
        file_pages: u64,
        device: &mut DeviceEvidence,
    ) {
        let count = self.last.count();
        let (mut last, mut more) = (self.last, 0);
        if let Some(page) = last_page {
            let unseen = PageRange { first: (page + 1).saturating_sub(count), end: page + 1 };
            let mut steps = 0;
            let pages = self.pages_on_to(unseen, |stride| {
                steps = stride.steps_to_last_page(page);
                steps
            });
            if pages > 0 && self.reach().contains(unseen.first) {
                (last, more) = (unseen, pages);
                if let StreamShape::Strided(stride) = &mut self.shape {
                    stride.went(steps);
                }
            }
        }
        let is_whole = match self.shape {
            StreamShape::Open | StreamShape::Forward => last.end >= file_pages,
            StreamShape::Backward => last.first == 0,
            StreamShape::Strided(stride) => {
                let next = stride.next_pages();
                next.is_empty() || next.first >= file_pages
            }
        };
        if is_whole {
            return self.leave(device);
        }
        self.ended(more, device);
    }

    /// Records that the run ended `unseen_pages` pages after its last reported request.
    fn ended(&mut self, unseen_pages: u64, device: &mut DeviceEvidence) {
        self.run.ended(unseen_pages, device);
        if let Some(part) = &mut self.part {
            part.ended(unseen_pages, device);
        }
        self.leave(device);
    }

    /// Removes the stream from the count of active streams.
    pub(super) fn leave(&mut self, device: &mut DeviceEvidence) {
        device.streams.remove_stream(self.counted.take());
    }

    /// Prefetches the next window, if the reader waits or another request pays for itself. The
    /// window is the least of the target, the limit after evictions, and the pages that stay in
    /// memory.
    pub(super) fn read_ahead(&mut self, access: AccessContext, pages: &mut dyn PageView) {
        let AccessContext { request, file_pages, .. } = access;
        let device = &mut *pages.evidence().device;
        let is_at_end = match self.shape {
            StreamShape::Backward => request.first == 0,
            _ => request.end >= file_pages,
        };
        if is_at_end {
            self.leave(device);
        } else if self.run.length() > 1 {
            self.counted = device.record_stream_progress(self.counted);
        }
        let newest = *self.newest();
        let (begin, request_pages, length) = (newest.begin, newest.each, newest.length());
        let target = device.window(begin, length, request_pages);
        self.wanted = target.pages;
        let bounds = [
            (target.pages, target.why),
            (self.window_limit, "evicted"),
            (self.pages_that_live(device), "memory"),
        ];
        let (size, why) = bounds.into_iter().min_by_key(|bound| bound.0).expect("three bounds");
        let gap_pages_max = device.estimate.request_service_pages();
        let share = device.stream_share_pages();
        if self.shape == StreamShape::Open && size > 0 {
            self.shape = if self.goes_down { StreamShape::Backward } else { StreamShape::Forward };
        }
        let added = match self.shape {
            StreamShape::Open => PageRange::default(),
            StreamShape::Backward => {
                let end = self.ahead.min(request.first);
                let room = size.saturating_sub(request.first - end).min(share);
                let window = PageRange { first: round_begin(end, room), end };
                self.add_backward(window, pages);
                window
            }
            StreamShape::Forward => {
                let first = self.ahead.max(request.end);
                let room = size.saturating_sub(first - request.end).min(share);
                let window = PageRange { first, end: round_end(first, room) }.clipped(file_pages);
                // Less than a quarter of a window is not worth a request. It is read only if
                // nothing is prefetched, or if it ends with the file.
                let is_crumb = window.count() < size.min(share) / 4 && window.end < file_pages;
                if first > request.end && is_crumb {
                    return;
                }
                let ahead = (first + 1 - request.end).div_ceil(request_pages);
                if !access.waits && !device.pays_ahead(begin, length, request_pages, ahead) {
                    return;
                }
                let has_room_for_two = why != "memory" || 2 * window.count() <= size;
                self.add_forward(window, access, has_room_for_two, pages);
                window
            }
            StreamShape::Strided(mut stride) => {
                if stride.steps_ahead() < 1 {
                    stride.restart();
                    self.shape = StreamShape::Strided(stride);
                }
                let steps_ahead = stride.steps_ahead() as u64 - 1;
                let block_pages = stride.block_pages(request.count());
                let blocks_max = (size.min(share) / block_pages).max(1);
                // Keep up to one and a half windows ahead, so that a small disk array has enough
                // requests to sort.
                let count = (3 * blocks_max / 2).saturating_sub(steps_ahead).min(blocks_max);
                let pays = || device.pays_ahead(begin, length, request_pages, steps_ahead + 1);
                if count < (blocks_max / 4).max(1) || !(access.waits || pays()) {
                    return;
                }
                let gap = stride.gap_pages(block_pages);
                let reads_through = gap < block_pages && gap < gap_pages_max;
                let count = match reads_through {
                    true => count,
                    false => device.blocks_that_pay(length, request_pages, steps_ahead + 1, count),
                };
                self.add_blocks(stride, count, reads_through, file_pages, pages)
            }
        };
        if added.is_empty() {
            return;
        }
        self.window = size;
        self.window_limit = self.window_limit.saturating_mul(2);
        let (shape, behind) = (self.shape.name(), self.run.behind);
        record_window(pages, LatestReadahead { range: added, shape, why, behind, size });
    }

    /// Maximum number of pages ahead of the reader that remain in memory until the reader reaches
    /// them.
    ///
    /// The memory is replaced once as many pages were requested as it has. The stream's share of
    /// these is its number of used pages, divided by all pages requested since it began. While
    /// these numbers are small, the share is one divided by the number of streams.
    fn pages_that_live(&self, device: &DeviceEvidence) -> u64 {
        let requested_pages = device.requested_pages().saturating_sub(self.begun_at);
        let weighted_pages = requested_pages + EWMA_WINDOW * device.streams.count();
        device.memory_pages * (self.run.behind + EWMA_WINDOW) / weighted_pages.max(1)
    }

    /// Prefetches a forward window, and moves `ahead` behind the added pages. Its middle page is
    /// marked, so that the next window is read while the reader still has half of this one. If
    /// memory has no room for two windows, the last page is marked instead.
    fn add_forward(
        &mut self,
        window: PageRange,
        access: AccessContext,
        has_room_for_two: bool,
        pages: &mut dyn PageView,
    ) {
        let request = access.request;
        let unmarked_pages =
            if has_room_for_two { window.count() / 2 } else { window.count().saturating_sub(1) };
        if !(self.has_gone_on() || access.is_touch) {
            // Mark each page, so that the reader's next position is reported wherever it is.
            let has_room = |page| pages.add_absent(PageRange::new(page, 1), true);
            self.ahead = if window.pages().all(has_room) { window.end } else { request.end };
            return;
        }
        let middle = window.first + unmarked_pages;
        let is_half = pages.add_absent(window.clipped(middle), false);
        let is_whole = pages.add_absent(PageRange { first: middle, ..window }, true);
        // If the window was cut short, the next one begins after the pages that were added. The
        // mark must lie below `ahead`: a request that finds its pages is reported only at a mark,
        // and a mark beyond `ahead` would begin another stream.
        let is_there = |page: &u64| pages.is_cached(*page);
        self.ahead = match is_half && is_whole {
            true => window.end,
            false => window.first + window.pages().take_while(is_there).count() as u64,
        };
    }

    /// Prefetches a backward window. Its last page is marked, because the reader uses it first.
    /// Pieces of doubling size are added from the end, so that a full memory cuts off the pages
    /// used last.
    fn add_backward(&mut self, window: PageRange, pages: &mut dyn PageView) {
        let mut end = window.end;
        while end > window.first {
            let count = (window.end - end).max(1);
            let piece = PageRange { first: end.saturating_sub(count).max(window.first), end };
            if !pages.add_absent(piece, end == window.end) {
                break;
            }
            end = piece.first;
        }
        if !window.is_empty() {
            self.ahead = end;
        }
    }

    /// Prefetches the next `count` blocks of a stride, with the gaps before them if `reads_through`
    /// is set. Returns the range from the lowest to the highest page.
    fn add_blocks(
        &mut self,
        mut stride: Stride,
        count: u64,
        reads_through: bool,
        file_pages: u64,
        pages: &mut dyn PageView,
    ) -> PageRange {
        let mut covered = PageRange::default();
        let mut previous_block = stride.before_ahead_pages();
        for index in 0..count {
            let block = stride.ahead_pages().clipped(file_pages);
            if block.is_empty() {
                break;
            }
            let range = match reads_through {
                true => PageRange {
                    first: block.first.min(previous_block.end),
                    end: block.end.max(previous_block.first).min(file_pages),
                },
                false => block,
            };
            let is_marked = index == count / 4;
            let has_room = match stride.is_contiguous() {
                // The rest of the last block, whose request alone has arrived, is read first.
                true => {
                    let rest = if index == 0 { previous_block } else { PageRange::default() };
                    let first_used = stride.first_used(block).clipped(file_pages);
                    pages.add_absent(rest, false)
                        && pages.add_absent(first_used, is_marked)
                        && pages.add_absent(block, false)
                }
                false => pages.add_absent(block, is_marked),
            };
            if !has_room || !pages.add_absent(range, false) {
                break;
            }
            covered = match index {
                0 => range,
                _ => PageRange {
                    first: covered.first.min(range.first),
                    end: covered.end.max(range.end),
                },
            };
            previous_block = block;
            stride.pass();
        }
        self.shape = StreamShape::Strided(stride);
        covered
    }
}

/// True if all pages of the range have been used: each is in memory, and no prefetched one is
/// unused.
fn was_used(range: PageRange, pages: &dyn PageView) -> bool {
    range.pages().all(|page| pages.is_cached(page) && !pages.is_unused(page))
}

/// Power of two to which a window's end is rounded, at most half of the window.
///
/// Servers, stripes and drives transfer powers of two. With NFS calls of 32 KiB, 68 KiB take three
/// calls and 64 KiB take two. Rounding costs little: a window a quarter larger or smaller than the
/// best one costs a thirtieth more.
fn roundness(pages: u64) -> u64 {
    1 << (pages.max(2).ilog2() - 1)
}

/// Rounded end of a window of about `pages` pages that begins at `first`.
fn round_end(first: u64, pages: u64) -> u64 {
    let by = roundness(pages);
    let end = (first + pages + by / 2) / by * by;
    if end > first { end } else { first + pages }
}

/// Rounded begin of a backward window of at least `pages` pages that ends at `end`. Rounding down
/// never shortens the window.
fn round_begin(end: u64, pages: u64) -> u64 {
    end.saturating_sub(pages) / roundness(pages) * roundness(pages)
}
