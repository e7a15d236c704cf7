//! One stream: where its reader is, how far is read ahead of it, and the window.

use super::super::Pages;
use super::add_range;
use crate::unit::PageRange;

/// What a stream may have ahead of it though it has nothing behind it yet costs a
/// quarter of a request, and lies between 16 KiB, what the kernel reads of a file
/// whose first page is asked for, and 256 KiB.
const AHEAD_PAGES_LEAST: u64 = 4;
const AHEAD_PAGES_MOST: u64 = 64;

/// Nor is it more than so many times what the stream has behind it: the kernel reads four
/// pages of a file whose first page is asked for. Two random requests that happen to
/// touch cost little then.
const AHEAD_PER_PAGE_BEHIND: u64 = 4;

/// Up to so much, 128 KiB, twice what a stream has behind it may be ahead: a stream
/// that has just begun reaches the kernel's largest window as soon as there.
const YOUNG_PAGES: u64 = 32;

/// Windows are at most so many times what costs as much as a request: then the
/// device is busy with bytes for 16 parts of 17.
const WINDOW_PER_REQUEST_COST: u64 = 16;

/// The largest window is no smaller than this, 512 KiB: a disk that serves one
/// stream has no seeks to learn the cost of a request from.
const WINDOW_PAGES_MAX_LEAST: u64 = 128;

/// What is ahead of a reader is looked through so far, 1 MiB, to see how much of it was used.
const PIECE_PAGES_MAX: u64 = 256;

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

/// A stream of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    shape: Shape,
    /// The last request that was seen.
    last: PageRange,
    /// The page after the last that was read ahead, or asked for: forward. The
    /// lowest such page: backward. The first page of the next block: strided.
    ahead: u64,
    /// The window in pages.
    window: u64,
    /// Whether the reader had to wait since the last window was read.
    was_late: bool,
    /// What the window may never exceed again, since so much was evicted unused.
    window_limit: u64,
    /// Pages that the reader has behind it.
    behind: u64,
    /// How many requests have continued it.
    proofs: u32,
    /// Whether no other was begun on this handle since.
    pub(super) is_newest: bool,
}

impl Stream {
    /// A request that continues nothing.
    pub(super) fn begun(request: PageRange) -> Stream {
        Stream {
            shape: Shape::Open,
            last: request,
            ahead: request.end,
            window: 0,
            was_late: false,
            window_limit: u64::MAX,
            behind: request.count(),
            proofs: 0,
            is_newest: true,
        }
    }

    /// Three requests, so far apart.
    pub(super) fn strided(request: PageRange, distance: i64) -> Stream {
        Stream {
            shape: Shape::Strided(distance),
            ahead: request.first.wrapping_add_signed(distance),
            behind: 3 * request.count(),
            proofs: 2,
            ..Stream::begun(request)
        }
    }

    pub(super) fn believe(&mut self, shape: Shape) {
        self.shape = shape;
    }

    pub(super) fn proofs(&self) -> u32 {
        self.proofs
    }

    /// How many pages its reader took in a row so far: those that the stream
    /// has seen, and those that were read ahead of it and used since.
    pub(super) fn pages_used(&self, pages: &mut dyn Pages) -> u64 {
        if self.shape != Shape::Forward {
            return self.behind;
        }
        let ahead = self.last.end..self.ahead.min(self.last.end + PIECE_PAGES_MAX);
        let used = ahead.take_while(|&page| pages.is_cached(page) && !pages.is_unused(page));
        self.behind + used.count() as u64
    }

    /// Whether the request goes on where the stream's reader was, or further
    /// within what was read ahead of it.
    ///
    /// What lies between was used by then: a reader that jumps into what was
    /// read ahead doesn't go on.
    pub(super) fn is_continued_by(&self, request: PageRange, pages: &dyn Pages) -> bool {
        let is_forward = || {
            self.last.first < request.first
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
            Shape::Open => is_forward() || is_backward(self.last.first),
            Shape::Forward => is_forward(),
            Shape::Backward => is_backward(self.ahead),
            Shape::Strided(distance) => {
                let steps = self.steps_to(request, distance);
                let steps_ahead = self.ahead.wrapping_sub(self.last.first) as i64 / distance;
                (1..=steps_ahead.max(1)).contains(&steps)
            }
        }
    }

    /// How many strides the request is from the last one; 0 when it is off the stride.
    fn steps_to(&self, request: PageRange, distance: i64) -> i64 {
        let way = request.first.wrapping_sub(self.last.first) as i64;
        if way % distance == 0 { way / distance } else { 0 }
    }

    /// The reader has come to `request`: the window grows if it had to wait,
    /// and shrinks if what was read ahead is gone.
    pub(super) fn advance(&mut self, request: PageRange, pages: &mut dyn Pages) {
        let was_ahead = |page: u64| match self.shape {
            Shape::Open => false,
            Shape::Forward => page < self.ahead,
            Shape::Backward => page >= self.ahead,
            Shape::Strided(distance) => (request.first != self.ahead) && distance != 0,
        };
        let is_evicted = request.pages().any(|page| was_ahead(page) && !pages.is_cached(page));
        let is_late = !pages.is_filled(request.first) || !pages.is_filled(request.end - 1);
        if is_evicted {
            self.window /= 2;
            self.window_limit = self.window;
            self.was_late = false;
        } else {
            self.was_late |= is_late;
        }
        self.proofs += 1;
        match self.shape {
            Shape::Open if request.first > self.last.first => {
                self.shape = Shape::Forward;
                self.behind += request.end - self.last.end;
            }
            Shape::Open => {
                self.shape = Shape::Backward;
                self.ahead = request.first;
                self.behind += self.last.first - request.first;
            }
            Shape::Forward => self.behind += request.end - self.last.end,
            Shape::Backward => self.behind += self.last.first - request.first,
            Shape::Strided(distance) => {
                self.behind += self.steps_to(request, distance) as u64 * request.count();
            }
        }
        self.last = request;
    }

    /// Reads the next window, when the reader has come to the newest.
    pub(super) fn read_ahead(
        &mut self,
        request: PageRange,
        file_pages: u64,
        pages: &mut dyn Pages,
    ) {
        let device = &pages.evidence().device;
        let request_cost_pages = device.estimate.request_cost_pages();
        let occupied_pages = device.estimate.request_occupies_pages();
        let share = device.window_share_pages();
        let most = (WINDOW_PER_REQUEST_COST * request_cost_pages).max(WINDOW_PAGES_MAX_LEAST);
        let wanted = if self.was_late { 2 * self.window } else { self.window };
        let at_first = (request_cost_pages / 4)
            .clamp(AHEAD_PAGES_LEAST, AHEAD_PAGES_MOST)
            .min(AHEAD_PER_PAGE_BEHIND * self.behind);
        // Whatever its reader needs: smaller ones would keep the device busy with requests.
        let least = (WINDOW_PER_REQUEST_COST * occupied_pages).min(most);
        let size = wanted.max(request.count()).max(least).min(most).min(self.window_limit);
        let young = (2 * self.behind).min(YOUNG_PAGES);
        let risk = young.max(self.behind / 2) + at_first;
        match self.shape {
            Shape::Open => {}
            Shape::Forward => {
                let first = self.ahead.max(request.end);
                let room = risk.saturating_sub(first - request.end).min(share);
                let window = PageRange::new(first, size.min(room)).clipped(file_pages);
                if self.is_worth(window, request, file_pages) {
                    self.window = size;
                    self.was_late = false;
                    // The middle is marked: there the reader still has half of the window,
                    // and has put enough behind it for the next to be larger.
                    let middle = window.first + window.count() / 2;
                    let (half, rest) =
                        (window.clipped(middle), PageRange { first: middle, ..window });
                    let (_, is_half) = add_range(half, false, pages);
                    let (_, is_whole) = add_range(rest, true, pages);
                    self.ahead = if is_half && is_whole { window.end } else { request.end };
                }
            }
            Shape::Backward => {
                let end = self.ahead.min(request.first);
                let room = risk.saturating_sub(request.first - end).min(share);
                self.window = size;
                self.was_late = false;
                let first = end.saturating_sub(size.min(room));
                self.add_backward(PageRange { first, end }, pages);
            }
            Shape::Strided(distance) => {
                self.window = size;
                self.was_late = false;
                let room = risk.min(share).min(size);
                self.read_blocks(request, distance, room, occupied_pages, file_pages, pages);
            }
        }
    }

    /// Whether a window is not just a crumb: nearly all of it was cut off.
    fn is_worth(&self, window: PageRange, request: PageRange, file_pages: u64) -> bool {
        let is_last = window.end == file_pages;
        is_last || window.count() >= request.count().min(AHEAD_PAGES_LEAST)
    }

    /// The reader comes to the last page of a backward window first: that one is marked.
    fn add_backward(&mut self, window: PageRange, pages: &mut dyn Pages) {
        if window.is_empty() {
            return;
        }
        let last = PageRange { first: window.end - 1, end: window.end };
        let below = PageRange { first: window.first, end: window.end - 1 };
        let (_, has_room) = add_range(below, false, pages);
        let (_, is_whole) = add_range(last, true, pages);
        self.ahead = if has_room && is_whole { window.first } else { window.end };
    }

    /// Reads the next blocks of a stride: the gaps too where they are cheap.
    fn read_blocks(
        &mut self,
        request: PageRange,
        distance: i64,
        window: u64,
        gap_pages_max: u64,
        file_pages: u64,
        pages: &mut dyn Pages,
    ) {
        let block = request.count();
        let gap = distance.unsigned_abs().saturating_sub(block);
        let reads_through = gap <= block && gap < gap_pages_max;
        let blocks = (window / block).max(1);
        let mut is_first = true;
        let next = request.first.wrapping_add_signed(distance);
        let is_behind = if distance > 0 { self.ahead < next } else { self.ahead > next };
        if is_behind {
            self.ahead = next;
        }
        for _ in 0..blocks {
            let first = self.ahead;
            if first >= file_pages {
                return;
            }
            let mut range = PageRange::new(first, block).clipped(file_pages);
            if reads_through && distance > 0 {
                range.first = range.first.saturating_sub(gap);
            } else if reads_through {
                range.end = (range.end + gap).min(file_pages);
            }
            let asked = PageRange::new(first, block).clipped(file_pages);
            let (_, has_room) = add_range(asked, is_first, pages);
            if !has_room || !add_range(range, false, pages).1 {
                return;
            }
            is_first = false;
            self.ahead = first.wrapping_add_signed(distance);
        }
    }

    /// Reads the whole piece that is expected here, and nothing beyond it: no page is marked.
    pub(super) fn read_piece(
        &mut self,
        request: PageRange,
        file_pages: u64,
        pages: &mut dyn Pages,
    ) {
        let device = &pages.evidence().device;
        let expected = device.pieces.expected_pages().min(device.window_share_pages());
        let piece = PageRange { first: request.end, end: request.first + expected };
        let piece = piece.clipped(file_pages);
        if piece.is_empty() {
            return;
        }
        add_range(piece, false, pages);
        self.shape = Shape::Forward;
        self.ahead = piece.end;
    }
}
