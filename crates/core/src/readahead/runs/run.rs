//! A run: pages that are touched in order, and which way that is.

use crate::unit::PageRange;

/// A watched run is marked at so many places from one distance to its double.
const MARKS_PER_DOUBLING: u64 = 8;

/// The order in which a run's pages are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TouchOrder {
    Up,
    Down,
}

impl TouchOrder {
    /// The places of pages along this way, which grow in the order of touches; and, the
    /// same again, the pages at such places.
    pub(super) fn along(self, pages: PageRange) -> PageRange {
        match self {
            TouchOrder::Up => pages,
            TouchOrder::Down => PageRange {
                first: DOWNWARD_POSITIONS - pages.end,
                end: DOWNWARD_POSITIONS - pages.first,
            },
        }
    }

    /// The place of a page, or the page at a place.
    pub(super) fn at(self, page: u64) -> u64 {
        self.along(PageRange::new(page, 1)).first
    }

    pub(super) fn back(self) -> TouchOrder {
        match self {
            TouchOrder::Up => TouchOrder::Down,
            TouchOrder::Down => TouchOrder::Up,
        }
    }
}

/// Page 0 is the last place on the way down. No file has so many pages, by far.
const DOWNWARD_POSITIONS: u64 = 1 << 62;

/// Pages that were touched in order, by their places along its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct TouchedRun {
    pub(super) way: TouchOrder,
    pub(super) first: u64,
    /// The place after the last that is known to have been touched: exclusive.
    pub(super) touched_end: u64,
    /// The place after the last that was read for it: exclusive.
    pub(super) window_end: u64,
    /// The size of its last window.
    pub(super) window_pages: u64,
    /// The place whose touch reads the next window.
    pub(super) trigger: Option<u64>,
    /// The place whose touch tells that all of the window was used: the last that was read.
    pub(super) last: Option<u64>,
    pub(super) has_length_marks: bool,
    /// Whether its reader had to wait since the last window was read.
    pub(super) was_late: bool,
}

impl TouchedRun {
    /// How far it has come with what was read for it.
    pub(super) fn come(&self) -> u64 {
        self.window_end - self.first
    }

    pub(super) fn touched(&self) -> u64 {
        self.touched_end - self.first
    }

    /// What it has touched, on the way back.
    pub(super) fn touched_back(&self) -> PageRange {
        let touched = PageRange { first: self.first, end: self.touched_end };
        self.way.back().along(self.way.along(touched))
    }

    /// Has it go the other way from where it began.
    pub(super) fn turn(&mut self) {
        let touched = self.touched_back();
        self.way = self.way.back();
        self.first = touched.first;
        self.touched_end = touched.end;
        self.window_end = touched.end;
        (self.trigger, self.last) = (None, None);
    }

    /// Its length in pages; `None` where only the least is known that it can be.
    ///
    /// Of a watched run that ended between two marks it is the most.
    pub(super) fn length(&self) -> Option<u64> {
        if self.touched_end == self.window_end {
            return Some(self.touched());
        }
        let untouched = (self.touched()..self.come()).find(|&distance| is_length_mark(distance));
        self.has_length_marks.then(|| untouched.unwrap_or(self.come()))
    }
}

/// Whether a watched run is marked so many pages behind its first.
pub(super) fn is_length_mark(distance: u64) -> bool {
    let doubling = 1 << distance.max(1).ilog2();
    distance.is_multiple_of((doubling / MARKS_PER_DOUBLING).max(1))
}
