//! One stream: where its reader is, how far is read ahead of it, and the window.

use super::super::{DeviceEvidence, Era, PageView, RunBegin};
use super::run::SequentialRun;
use super::stride::Stride;
use super::{AccessContext, LatestReadahead, say};
use crate::observed::{EWMA_WINDOW, MIN_SAMPLES};
use crate::unit::PageRange;

/// In which order a stream takes its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamShape {
    /// One request was seen; it may go anywhere. Entered at the begin.
    Open,
    /// Upwards without gaps.
    Forward,
    /// Downwards without gaps.
    Backward,
    /// Blocks at one distance.
    Strided(Stride),
}

impl StreamShape {
    fn name(self) -> &'static str {
        match self {
            StreamShape::Open => "open",
            StreamShape::Forward => "forward",
            StreamShape::Backward => "backward",
            StreamShape::Strided(_) => "strided",
        }
    }
}

/// A stream of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadStream {
    shape: StreamShape,
    /// The last request that was seen.
    last: PageRange,
    /// The page after the last that was read ahead, or asked for: forward. The
    /// lowest such page: backward. A stride knows it by itself.
    ahead: u64,
    /// How many pages ahead of the reader cost least, as far as was known when that was last asked.
    wanted: u64,
    /// The newest window in pages.
    window: u64,
    /// What the next one may not exceed: half of one of which a page was evicted unused, and so
    /// much more for each that was read since.
    window_limit: u64,
    /// All that the reader has behind it.
    run: SequentialRun,
    /// What of it came since a request was of another size than those before it, if one was.
    part: Option<SequentialRun>,
    /// How many pages had been asked for of the device, by everybody, when it began.
    begun_at: u64,
    /// Whether it is taken to go down while nothing shows which way it goes.
    goes_down: bool,
    /// Since when it counts among [`DeviceEvidence::streams`], if it does.
    counted: Option<Era>,
}

impl ReadStream {
    /// A request that continues nothing.
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

    /// The same, taken to go down if that is what the last did that went on.
    pub(super) fn taken_to_go(self, goes_down: bool) -> ReadStream {
        ReadStream { goes_down, ..self }
    }

    /// Three requests, so far apart.
    pub(super) fn strided(request: PageRange, stride: Stride, begun_at: u64) -> ReadStream {
        ReadStream {
            shape: StreamShape::Strided(stride),
            run: SequentialRun::begun(RunBegin::Stride, request.count(), 3 * request.count()),
            ..ReadStream::begun(request, RunBegin::Stride, begun_at)
        }
    }

    /// The run, or its newest part, by which it is judged how it goes on.
    fn newest(&self) -> &SequentialRun {
        self.part.as_ref().unwrap_or(&self.run)
    }

    /// How many pages right ahead it has used unseen.
    fn pages_unseen(&self, pages: &dyn PageView) -> u64 {
        if self.shape != StreamShape::Forward {
            return 0;
        }
        let ahead = self.last.end..self.ahead;
        let used = ahead.take_while(|&page| pages.is_cached(page) && !pages.is_unused(page));
        used.count() as u64
    }

    /// How many pages ahead of its reader it is worth reading, where it began anywhere; `None`
    /// where it was expected to go on.
    pub(super) fn wanted_anywhere(&self) -> Option<u64> {
        matches!(self.run.begin, RunBegin::Request { .. }).then_some(self.wanted)
    }

    /// Whether it is known to go down.
    pub(super) fn is_backward(&self) -> bool {
        self.shape == StreamShape::Backward
    }

    /// Whether it is of blocks at one distance.
    pub(super) fn is_strided(&self) -> bool {
        matches!(self.shape, StreamShape::Strided(_))
    }

    /// Whether a request continued it.
    pub(super) fn has_gone_on(&self) -> bool {
        self.run.behind > self.run.each
    }

    /// The pages between which a request lies, or which it touches, that continues the stream:
    /// most of what others ask for is passed over by this alone.
    pub(super) fn reach(&self) -> PageRange {
        let (next, ahead) = match self.shape {
            StreamShape::Strided(stride) => (stride.next_pages().first, stride.ahead_pages().first),
            _ => (self.last.first, self.ahead),
        };
        let first = self.last.first.min(ahead).min(next);
        PageRange { first, end: self.last.end.max(ahead).max(next) }
    }

    /// Whether the request goes on where the stream's reader was, or further
    /// within what was read ahead of it.
    ///
    /// What lies between was used by then: a reader that jumps into what was
    /// read ahead doesn't go on.
    pub(super) fn is_continued_by(&self, seen: &AccessContext, pages: &dyn PageView) -> bool {
        let request = seen.request;
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
                let steps = stride.steps_to(seen);
                let is_ahead = (1..=stride.steps_ahead().max(1)).contains(&steps);
                is_ahead && stride.blocks_between(steps).all(|block| was_used(block, pages))
            }
            // Where it was taken to go isn't known to be so.
            _ if !self.has_gone_on() => is_forward() || is_backward(self.ahead),
            StreamShape::Open | StreamShape::Forward => is_forward(),
            StreamShape::Backward => is_backward(self.ahead),
        }
    }

    /// How many pages more the stream has used when its reader has come to `request`, for a stride
    /// so many steps on; 0 where that lies behind it.
    fn pages_on_to(&self, request: PageRange, steps: impl FnOnce(&Stride) -> i64) -> u64 {
        match &self.shape {
            StreamShape::Open | StreamShape::Forward => request.end.saturating_sub(self.last.end),
            StreamShape::Backward => self.last.first.saturating_sub(request.first),
            StreamShape::Strided(stride) => steps(stride).max(0) as u64 * self.run.each,
        }
    }

    /// The reader has come to `request`: the window shrinks if what was read ahead is gone.
    pub(super) fn advance(&mut self, seen: &AccessContext, pages: &mut dyn PageView) {
        let request = seen.request;
        if !self.has_gone_on() {
            self.turn(request);
        }
        let was_ahead = |page: u64| match self.shape {
            StreamShape::Open | StreamShape::Forward => page < self.ahead,
            StreamShape::Backward => page >= self.ahead,
            StreamShape::Strided(stride) => !stride.is_next_ahead(seen),
        };
        let is_evicted = request.pages().any(|page| was_ahead(page) && !pages.is_cached(page));
        if is_evicted {
            self.window = (self.window / 2).max(MIN_SAMPLES);
            self.window_limit = self.window;
            // What is left of it may have holes: it is gone through anew.
            self.ahead = match self.shape {
                StreamShape::Backward => request.first,
                StreamShape::Strided(_) => self.ahead,
                StreamShape::Open | StreamShape::Forward => request.end,
            };
        }
        let on = self.pages_on_to(request, |stride| stride.steps_to(seen));
        if let StreamShape::Strided(stride) = &mut self.shape {
            stride.advance(seen);
        }
        let is_of_other_size =
            !self.is_strided() && self.newest().is_of_other_size(request.count());
        let device = &mut *pages.evidence().device;
        self.run.grew(on, device);
        if let Some(part) = &mut self.part {
            part.grew(on, device);
        }
        if is_of_other_size {
            self.part =
                Some(SequentialRun::begun(RunBegin::Part, request.count(), request.count()));
        }
        self.last = request;
    }

    /// The request shows which way it goes.
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

    /// Its reader went elsewhere.
    pub(super) fn left(&mut self, pages: &mut dyn PageView) {
        let unseen = self.pages_unseen(pages);
        self.ended(unseen, pages.evidence().device);
    }

    /// Its file, of so many pages, was closed; the last that was read is `last_page`, where that is
    /// known. What came to the end of the file tells of no end: it may have gone on in a longer
    /// one.
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

    /// It has ended with so many pages more than were seen, as far as is known.
    fn ended(&mut self, unseen_pages: u64, device: &mut DeviceEvidence) {
        self.run.ended(unseen_pages, device);
        if let Some(part) = &mut self.part {
            part.ended(unseen_pages, device);
        }
        self.leave(device);
    }

    /// It has ended, as far as is known.
    pub(super) fn leave(&mut self, device: &mut DeviceEvidence) {
        device.streams.ended(self.counted.take());
    }

    /// Reads the next window, when the reader has come to the newest.
    pub(super) fn read_ahead(&mut self, seen: AccessContext, pages: &mut dyn PageView) {
        let AccessContext { request, file_pages, .. } = seen;
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
        let (begin, each, length) = (newest.begin, newest.each, newest.length());
        let wanted = device.window(begin, length, each);
        self.wanted = wanted.pages;
        let bounds = [
            (wanted.pages, wanted.why),
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
                // A crumb waits until it is more, or until there is nothing ahead; the end of the
                // file never will be more.
                let is_crumb = window.count() < size.min(share) / 4 && window.end < file_pages;
                if first > request.end && is_crumb {
                    return;
                }
                let ahead = (first + 1 - request.end).div_ceil(each);
                if !seen.waits && !device.pays_ahead(begin, length, each, ahead) {
                    return;
                }
                let has_room_for_two = why != "memory" || 2 * window.count() <= size;
                self.add_forward(window, seen, has_room_for_two, pages);
                window
            }
            StreamShape::Strided(mut stride) => {
                if stride.steps_ahead() < 1 {
                    stride.restart();
                    self.shape = StreamShape::Strided(stride);
                }
                let steps_ahead = stride.steps_ahead() as u64 - 1;
                let all = (size.min(share) / request.count()).max(1);
                // Half a window more than one, so that a few disks have enough to put in order.
                let count = (3 * all / 2).saturating_sub(steps_ahead).min(all);
                let pays = || device.pays_ahead(begin, length, each, steps_ahead + 1);
                if count < (all / 4).max(1) || !(seen.waits || pays()) {
                    return;
                }
                let gap = stride.gap_pages(request.count());
                let reads_through = gap < request.count() && gap < gap_pages_max;
                let count = match reads_through {
                    true => count,
                    false => device.blocks_that_pay(length, each, steps_ahead + 1, count),
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
        say(pages, LatestReadahead { range: added, shape, why, behind, size });
    }

    /// How many pages ahead of the reader are still in memory when it comes to them.
    ///
    /// The memory is refilled while as many pages are asked for as it has; of these the stream has
    /// its part. What part that is the pages that it has behind it say, of all that were asked for
    /// meanwhile; and as long as these are few, how many streams there are.
    fn pages_that_live(&self, device: &DeviceEvidence) -> u64 {
        let asked = device.requested_pages().saturating_sub(self.begun_at);
        let all = asked + EWMA_WINDOW * device.streams.count();
        device.memory_pages * (self.run.behind + EWMA_WINDOW) / all.max(1)
    }

    /// Where the next window can be on its way while this one is used, the middle is
    /// marked: there the reader still has half of it. Where memory has no room for
    /// both, the last page is: the next one is then as large as this.
    fn add_forward(
        &mut self,
        window: PageRange,
        seen: AccessContext,
        has_room_for_two: bool,
        pages: &mut dyn PageView,
    ) {
        let request = seen.request;
        let early =
            if has_room_for_two { window.count() / 2 } else { window.count().saturating_sub(1) };
        if !(self.has_gone_on() || seen.is_touch) {
            // Wherever the reader is next, that is heard of.
            let has_room = |page| pages.add_absent(PageRange::new(page, 1), true);
            self.ahead = if window.pages().all(has_room) { window.end } else { request.end };
            return;
        }
        let middle = window.first + early;
        let is_half = pages.add_absent(window.clipped(middle), false);
        let is_whole = pages.add_absent(PageRange { first: middle, ..window }, true);
        // Where there was no room for all of it, it goes on behind what there was room for. A
        // reader that finds its pages is heard of at a mark alone: were that beyond what is
        // believed to be ahead, it would be another stream.
        let is_there = |page: &u64| pages.is_cached(*page);
        self.ahead = match is_half && is_whole {
            true => window.end,
            false => window.first + window.pages().take_while(is_there).count() as u64,
        };
    }

    /// The reader comes to the last page of a backward window first: that one is marked, and where
    /// memory has no room for all, those next to it come in, in pieces that double.
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

    /// Reads the next blocks of a stride, so many, and the gaps before them if that is worth it.
    /// Gives from where to where.
    fn add_blocks(
        &mut self,
        mut stride: Stride,
        count: u64,
        reads_through: bool,
        file_pages: u64,
        pages: &mut dyn PageView,
    ) -> PageRange {
        let mut all = PageRange::default();
        let mut before = stride.before_ahead_pages();
        for nth in 0..count {
            let asked = stride.ahead_pages().clipped(file_pages);
            if asked.is_empty() {
                break;
            }
            let range = match reads_through {
                true => PageRange {
                    first: asked.first.min(before.end),
                    end: asked.end.max(before.first).min(file_pages),
                },
                false => asked,
            };
            let has_room = pages.add_absent(asked, nth == count / 4);
            if !has_room || !pages.add_absent(range, false) {
                break;
            }
            all = match nth {
                0 => range,
                _ => PageRange { first: all.first.min(range.first), end: all.end.max(range.end) },
            };
            before = asked;
            stride.pass();
        }
        self.shape = StreamShape::Strided(stride);
        all
    }
}

/// True if a reader has used all pages of a range: each is in memory, and none that was read ahead
/// is still unused.
fn was_used(range: PageRange, pages: &dyn PageView) -> bool {
    range.pages().all(|page| pages.is_cached(page) && !pages.is_unused(page))
}

/// What a window is rounded by, so that it ends at a round page number: a power of two, half of it
/// at most.
///
/// Servers, stripes and drives take bytes in powers of two. A piece of 68 KiB is three calls of an
/// NFS server whose calls are of 32 KiB, and one of 64 KiB is two; and the cost of a window is flat
/// where it is least: a quarter more or less of it costs a thirtieth.
fn roundness(pages: u64) -> u64 {
    1 << (pages.max(2).ilog2() - 1)
}

/// Where a window of about so many pages ends that begins at `first`.
fn round_end(first: u64, pages: u64) -> u64 {
    let by = roundness(pages);
    let end = (first + pages + by / 2) / by * by;
    if end > first { end } else { first + pages }
}

/// Where a backward window of so many pages begins that ends at `end`: no later, for its reader
/// comes to its last page first, and what is cut off there is a window that comes late.
fn round_begin(end: u64, pages: u64) -> u64 {
    end.saturating_sub(pages) / roundness(pages) * roundness(pages)
}
