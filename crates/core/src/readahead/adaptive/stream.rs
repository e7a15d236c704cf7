//! One stream: where its reader is, how far is read ahead of it, and the window.

use super::super::{Begin, DeviceEvidence, Era, Pages};
use super::{Ahead, Seen, say};
use crate::observed::{FEW, NEWEST};
use crate::unit::PageRange;

/// In which order a stream takes its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One request was seen; it may go anywhere. Entered at the begin.
    Open,
    /// Upwards without gaps.
    Forward,
    /// Downwards without gaps.
    Backward,
    /// Blocks whose first pages are so far apart.
    Strided(i64),
}

impl Shape {
    fn name(self) -> &'static str {
        match self {
            Shape::Open => "open",
            Shape::Forward => "forward",
            Shape::Backward => "backward",
            Shape::Strided(_) => "strided",
        }
    }
}

/// The next blocks of a stride: how many, of how many pages, so far apart.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    count: u64,
    pages: u64,
    distance: i64,
}

/// A stream of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    shape: Shape,
    /// The last request that was seen.
    last: PageRange,
    /// The page after the last that was read ahead, or asked for: forward. The
    /// lowest such page: backward. The first page of the next block: strided.
    ahead: u64,
    /// How many pages ahead of the reader cost least, as far as was known when that was last asked.
    wanted: u64,
    /// The newest window in pages.
    window: u64,
    /// What the next one may not exceed: half of one of which a page was evicted unused, and so
    /// much more for each that was read since.
    window_limit: u64,
    /// Pages that the reader has behind it.
    behind: u64,
    /// What was known when it began, and how many pages its first request asked for.
    begin: Begin,
    begun_with: u64,
    /// How many pages had been asked for of the device, by everybody, when it began.
    begun_at: u64,
    /// Whether it is taken to go down while nothing shows which way it goes.
    goes_down: bool,
    /// Since when it counts among [`DeviceEvidence::streams`], if it does.
    counted: Option<Era>,
    /// With which length it is taken to have ended, if it is.
    ended_with: Option<u64>,
}

impl Stream {
    /// A request that continues nothing.
    pub(super) fn begun(request: PageRange, begin: Begin, begun_at: u64) -> Stream {
        Stream {
            shape: Shape::Open,
            begin,
            last: request,
            ahead: request.end,
            wanted: 0,
            window: 0,
            window_limit: u64::MAX,
            behind: request.count(),
            begun_with: request.count(),
            begun_at,
            goes_down: false,
            counted: None,
            ended_with: None,
        }
    }

    /// The same, taken to go down if that is what the last did that went on.
    pub(super) fn taken_to_go(self, goes_down: bool) -> Stream {
        Stream { goes_down, ..self }
    }

    /// Three requests, so far apart.
    pub(super) fn strided(request: PageRange, distance: i64, begun_at: u64) -> Stream {
        Stream {
            shape: Shape::Strided(distance),
            ahead: request.first.wrapping_add_signed(distance),
            behind: 3 * request.count(),
            ..Stream::begun(request, Begin::Stride, begun_at)
        }
    }

    /// How long a run is with so many pages behind it: in requests of the size of its first.
    fn length(&self, behind: u64) -> u64 {
        (behind / self.begun_with.max(1)).max(1)
    }

    /// The pages that it was seen to use, and those right ahead that it used unseen.
    fn pages_used(&self, pages: &mut dyn Pages) -> u64 {
        if self.shape != Shape::Forward {
            return self.behind;
        }
        let ahead = self.last.end..self.ahead;
        let used = ahead.take_while(|&page| pages.is_cached(page) && !pages.is_unused(page));
        self.behind + used.count() as u64
    }

    /// How many pages ahead of its reader it is worth reading, where it began anywhere; `None` where it was expected to go on.
    pub(super) fn wanted_anywhere(&self) -> Option<u64> {
        matches!(self.begin, Begin::Request { .. }).then_some(self.wanted)
    }

    /// Whether it is known to go down.
    pub(super) fn is_backward(&self) -> bool {
        self.shape == Shape::Backward
    }

    /// Whether a request continued it.
    pub(super) fn has_gone_on(&self) -> bool {
        self.behind > self.begun_with
    }

    /// The pages between which a request lies, or which it touches, that continues the stream:
    /// most of what others ask for is passed over by this alone.
    pub(super) fn reach(&self) -> PageRange {
        let mut next = self.last.first;
        let mut ahead = self.ahead;
        if let Shape::Strided(distance) = self.shape {
            next = next.saturating_add_signed(distance);
            // A stride that goes down to the start of the file comes to no page below it.
            let is_below = distance < 0 && ahead > self.last.first;
            ahead = if is_below { 0 } else { ahead };
        }
        let first = self.last.first.min(ahead).min(next);
        PageRange { first, end: self.last.end.max(ahead).max(next) }
    }

    /// Whether the request goes on where the stream's reader was, or further
    /// within what was read ahead of it.
    ///
    /// What lies between was used by then: a reader that jumps into what was
    /// read ahead doesn't go on.
    pub(super) fn is_continued_by(&self, request: PageRange, pages: &dyn Pages) -> bool {
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
            Shape::Strided(distance) => {
                let steps = self.steps_to(request, distance);
                let steps_ahead = self.ahead.wrapping_sub(self.last.first) as i64 / distance;
                (1..=steps_ahead.max(1)).contains(&steps)
            }
            // Where it was taken to go isn't known to be so.
            _ if !self.has_gone_on() => is_forward() || is_backward(self.ahead),
            Shape::Open | Shape::Forward => is_forward(),
            Shape::Backward => is_backward(self.ahead),
        }
    }

    /// How many strides the request is from the last one; 0 when it is off the stride.
    fn steps_to(&self, request: PageRange, distance: i64) -> i64 {
        let way = request.first.wrapping_sub(self.last.first) as i64;
        if way % distance == 0 { way / distance } else { 0 }
    }

    /// How many pages more the stream has used when its reader has come to `request`; 0 where that lies behind it.
    fn pages_on_to(&self, request: PageRange) -> u64 {
        match self.shape {
            Shape::Open | Shape::Forward => request.end.saturating_sub(self.last.end),
            Shape::Backward => self.last.first.saturating_sub(request.first),
            Shape::Strided(distance) => {
                self.steps_to(request, distance).max(0) as u64 * request.count()
            }
        }
    }

    /// The reader has come to `request`: the window shrinks if what was read ahead is gone.
    pub(super) fn advance(&mut self, request: PageRange, pages: &mut dyn Pages) {
        if !self.has_gone_on() {
            self.turn(request);
        }
        let was_ahead = |page: u64| match self.shape {
            Shape::Open | Shape::Forward => page < self.ahead,
            Shape::Backward => page >= self.ahead,
            Shape::Strided(distance) => (request.first != self.ahead) && distance != 0,
        };
        let is_evicted = request.pages().any(|page| was_ahead(page) && !pages.is_cached(page));
        if is_evicted {
            self.window = (self.window / 2).max(FEW);
            self.window_limit = self.window;
            // What is left of it may have holes: it is gone through anew.
            self.ahead = match self.shape {
                Shape::Backward => request.first,
                Shape::Strided(_) => self.ahead,
                Shape::Open | Shape::Forward => request.end,
            };
        }
        let before = self.length(self.behind);
        self.behind += self.pages_on_to(request);
        self.last = request;
        let length = self.length(self.behind);
        let survival = pages.evidence().device.lengths.of_mut(self.begin);
        if let Some(length) = self.ended_with.take() {
            survival.goes_on_after_all(length);
        }
        survival.grew(before, length);
    }

    /// The request shows which way it goes.
    fn turn(&mut self, request: PageRange) {
        let goes_down = request.first < self.last.first;
        match self.shape {
            Shape::Open | Shape::Forward if goes_down => {
                (self.shape, self.ahead) = (Shape::Backward, self.last.first);
            }
            Shape::Open => self.shape = Shape::Forward,
            Shape::Backward if !goes_down => {
                (self.shape, self.ahead) = (Shape::Forward, self.last.end);
            }
            _ => {}
        }
    }

    /// Its reader went elsewhere.
    pub(super) fn left(&mut self, pages: &mut dyn Pages) {
        let used = self.pages_used(pages);
        self.ended(used, pages.evidence().device);
    }

    /// Its file, of so many pages, was closed; the last that was read is `last_page`, where that is known. What came to the end
    /// of the file tells of no end: it may have gone on in a longer one.
    pub(super) fn closed(
        &mut self,
        last_page: Option<u64>,
        file_pages: u64,
        device: &mut DeviceEvidence,
    ) {
        let count = self.last.count();
        let (mut last, mut behind) = (self.last, self.behind);
        if let Some(page) = last_page {
            let unseen = PageRange { first: (page + 1).saturating_sub(count), end: page + 1 };
            let pages = self.pages_on_to(unseen);
            if pages > 0 && self.reach().contains(unseen.first) {
                (last, behind) = (unseen, behind + pages);
            }
        }
        let is_whole = match self.shape {
            Shape::Open | Shape::Forward => last.end >= file_pages,
            Shape::Backward => last.first == 0,
            Shape::Strided(distance) => {
                last.first.checked_add_signed(distance).is_none_or(|next| next >= file_pages)
            }
        };
        if is_whole {
            return self.leave(device);
        }
        self.ended(behind, device);
    }

    /// It has ended with so many pages, as far as is known.
    fn ended(&mut self, pages: u64, device: &mut DeviceEvidence) {
        if self.ended_with.is_none() {
            let length = self.length(pages);
            self.ended_with = Some(length);
            let survival = device.lengths.of_mut(self.begin);
            survival.grew(self.length(self.behind), length);
            survival.ended(length);
        }
        self.leave(device);
    }

    /// It has ended, as far as is known.
    pub(super) fn leave(&mut self, device: &mut DeviceEvidence) {
        device.streams.ended(self.counted.take());
    }

    /// Reads the next window, when the reader has come to the newest.
    pub(super) fn read_ahead(&mut self, seen: Seen, pages: &mut dyn Pages) {
        let Seen { request, file_pages, .. } = seen;
        let device = &mut *pages.evidence().device;
        let is_at_end = match self.shape {
            Shape::Backward => request.first == 0,
            _ => request.end >= file_pages,
        };
        let length = self.length(self.behind);
        if is_at_end {
            self.leave(device);
        } else if length > 1 {
            self.counted = device.stream_goes_on(self.counted);
        }
        let wanted = device.window(self.begin, length, self.begun_with.max(1));
        self.wanted = wanted.pages;
        let bounds = [
            (wanted.pages, wanted.why),
            (self.window_limit, "evicted"),
            (self.pages_that_live(device), "memory"),
        ];
        let (size, why) = bounds.into_iter().min_by_key(|bound| bound.0).expect("three bounds");
        let gap_pages_max = device.estimate.request_occupies_pages();
        let share = device.stream_share_pages();
        if self.shape == Shape::Open && size > 0 {
            self.shape = if self.goes_down { Shape::Backward } else { Shape::Forward };
        }
        let added = match self.shape {
            Shape::Open => PageRange::default(),
            Shape::Backward => {
                let end = self.ahead.min(request.first);
                let room = size.saturating_sub(request.first - end).min(share);
                let window = PageRange { first: round_begin(end, room), end };
                self.add_backward(window, pages);
                window
            }
            Shape::Forward => {
                let first = self.ahead.max(request.end);
                let room = size.saturating_sub(first - request.end).min(share);
                let window = PageRange { first, end: round_end(first, room) }.clipped(file_pages);
                // A crumb waits until it is more, or until there is nothing ahead; the end of the
                // file never will be more.
                let is_crumb = window.count() < size.min(share) / 4 && window.end < file_pages;
                if first > request.end && is_crumb {
                    return;
                }
                let ahead = (first + 1 - request.end).div_ceil(self.begun_with.max(1));
                if !seen.waits && !device.pays_ahead(self.begin, length, ahead) {
                    return;
                }
                let has_room_for_two = why != "memory" || 2 * window.count() <= size;
                self.add_forward(window, seen, has_room_for_two, pages);
                window
            }
            Shape::Strided(distance) => {
                let next = request.first.wrapping_add_signed(distance);
                let steps_ahead = self.ahead.wrapping_sub(next) as i64 / distance;
                if steps_ahead < 0 {
                    self.ahead = next;
                }
                let steps_ahead = steps_ahead.max(0) as u64;
                let all = (size.min(share) / request.count()).max(1);
                // Half a window more than one, so that a few disks have enough to put in order.
                let count = (3 * all / 2).saturating_sub(steps_ahead).min(all);
                let pays = || device.pays_ahead(self.begin, length, steps_ahead + 1);
                if count < (all / 4).max(1) || !(seen.waits || pays()) {
                    return;
                }
                let blocks = Blocks { count, pages: request.count(), distance };
                self.add_blocks(blocks, gap_pages_max, file_pages, pages)
            }
        };
        if added.is_empty() {
            return;
        }
        self.window = size;
        self.window_limit = self.window_limit.saturating_mul(2);
        let (shape, behind) = (self.shape.name(), self.behind);
        say(pages, Ahead { range: added, shape, why, behind, size });
    }

    /// How many pages ahead of the reader are still in memory when it comes to them.
    ///
    /// The memory is refilled while as many pages are asked for as it has; of these the stream has
    /// its part. What part that is the pages that it has behind it say, of all that were asked for
    /// meanwhile; and as long as these are few, how many streams there are.
    fn pages_that_live(&self, device: &DeviceEvidence) -> u64 {
        let asked = device.asked_pages().saturating_sub(self.begun_at);
        let all = asked + NEWEST * device.streams.count();
        device.memory_pages * (self.behind + NEWEST) / all.max(1)
    }

    /// Where the next window can be on its way while this one is used, the middle is
    /// marked: there the reader still has half of it. Where memory has no room for
    /// both, the last page is: the next one is then as large as this.
    fn add_forward(
        &mut self,
        window: PageRange,
        seen: Seen,
        has_room_for_two: bool,
        pages: &mut dyn Pages,
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
        // Where there was no room for all of it, it goes on behind what there was room for. A reader that finds its pages is
        // heard of at a mark alone: were that beyond what is believed to be ahead, it would be another stream.
        let is_there = |page: &u64| pages.is_cached(*page);
        self.ahead = match is_half && is_whole {
            true => window.end,
            false => window.first + window.pages().take_while(is_there).count() as u64,
        };
    }

    /// The reader comes to the last page of a backward window first: that one is marked, and where memory has no
    /// room for all, those next to it come in, in pieces that double.
    fn add_backward(&mut self, window: PageRange, pages: &mut dyn Pages) {
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

    /// Reads the next blocks of a stride: the gaps too where they are cheap. Gives
    /// from where to where.
    fn add_blocks(
        &mut self,
        blocks: Blocks,
        gap_pages_max: u64,
        file_pages: u64,
        pages: &mut dyn Pages,
    ) -> PageRange {
        let Blocks { count, pages: block, distance } = blocks;
        let gap = distance.unsigned_abs().saturating_sub(block);
        let reads_through = gap < block && gap < gap_pages_max;
        let mut all = PageRange::default();
        for nth in 0..count {
            let first = self.ahead;
            if first >= file_pages {
                break;
            }
            let asked = PageRange::new(first, block).clipped(file_pages);
            let mut range = asked;
            if reads_through && distance > 0 {
                range.first = range.first.saturating_sub(gap);
            } else if reads_through {
                range.end = (range.end + gap).min(file_pages);
            }
            let has_room = pages.add_absent(asked, nth == count / 4);
            if !has_room || !pages.add_absent(range, false) {
                break;
            }
            all = match nth {
                0 => range,
                _ => PageRange { first: all.first.min(range.first), end: all.end.max(range.end) },
            };
            self.ahead = first.wrapping_add_signed(distance);
        }
        all
    }
}

/// What a window is rounded by, so that it ends at a round page number: a power of two, half of it
/// at most.
///
/// Servers, stripes and drives take bytes in powers of two. A piece of 68 KiB is three calls of an
/// NFS server whose calls are of 32 KiB, and one of 64 KiB is two; and the cost of a window is flat where it
/// is least: a quarter more or less of it costs a thirtieth.
fn roundness(pages: u64) -> u64 {
    1 << (pages.max(2).ilog2() - 1)
}

/// Where a window of about so many pages ends that begins at `first`.
fn round_end(first: u64, pages: u64) -> u64 {
    let by = roundness(pages);
    let end = (first + pages + by / 2) / by * by;
    if end > first { end } else { first + pages }
}

/// Where a backward window of so many pages begins that ends at `end`: no later, for its reader comes
/// to its last page first, and what is cut off there is a window that comes late.
fn round_begin(end: u64, pages: u64) -> u64 {
    end.saturating_sub(pages) / roundness(pages) * roundness(pages)
}
