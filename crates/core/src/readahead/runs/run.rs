//! A run: pages that are touched in order, and the direction of that order.

use crate::unit::PageRange;

/// Number of marks of a watched run between one distance and its double.
const MARKS_PER_DOUBLING: u64 = 8;

/// Direction in which a run's pages are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TouchOrder {
    Up,
    Down,
}

impl TouchOrder {
    /// Converts pages to positions along this direction, which increase in the order of touches.
    /// This conversion is its own inverse.
    pub(super) fn along(self, pages: PageRange) -> PageRange {
        match self {
            TouchOrder::Up => pages,
            TouchOrder::Down => PageRange {
                first: DOWNWARD_POSITIONS - pages.end,
                end: DOWNWARD_POSITIONS - pages.first,
            },
        }
    }

    /// Converts a page to its position along this direction, or a position to its page.
    pub(super) fn at(self, page_or_position: u64) -> u64 {
        self.along(PageRange::new(page_or_position, 1)).first
    }

    /// The opposite direction.
    pub(super) fn back(self) -> TouchOrder {
        match self {
            TouchOrder::Up => TouchOrder::Down,
            TouchOrder::Down => TouchOrder::Up,
        }
    }
}

/// Number of positions downwards: page 0 is the last. It exceeds the page count of any file.
const DOWNWARD_POSITIONS: u64 = 1 << 62;

/// Pages that were touched in order, as positions along its direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct TouchedRun {
    pub(super) way: TouchOrder,
    /// Position of the first touched page.
    pub(super) first: u64,
    /// Position behind the last page that is known to have been touched.
    pub(super) touched_end: u64,
    /// Position behind the last page that was read for the run.
    pub(super) window_end: u64,
    /// Size of the newest window in pages.
    pub(super) window_pages: u64,
    /// Position whose touch starts the read of the next window.
    pub(super) trigger: Option<u64>,
    /// Position of the last page read; its touch shows that the whole window was used.
    pub(super) last: Option<u64>,
    /// True if the pages carry extra marks, to measure the length of the run.
    pub(super) is_length_measured: bool,
    /// True if the reader had to wait since the newest window was read.
    pub(super) was_late: bool,
}

impl TouchedRun {
    /// Pages of the run, up to the end of its window.
    pub(super) fn pages_so_far(&self) -> u64 {
        self.window_end - self.first
    }

    /// Number of pages known to have been touched.
    pub(super) fn touched(&self) -> u64 {
        self.touched_end - self.first
    }

    /// The touched pages, as positions along the opposite direction.
    pub(super) fn touched_back(&self) -> PageRange {
        let touched = PageRange { first: self.first, end: self.touched_end };
        self.way.back().along(self.way.along(touched))
    }

    /// Reverses the run: it goes on in the opposite direction from its start.
    pub(super) fn reverse(&mut self) {
        let touched = self.touched_back();
        self.way = self.way.back();
        self.first = touched.first;
        self.touched_end = touched.end;
        self.window_end = touched.end;
        (self.trigger, self.last) = (None, None);
    }

    /// The length of the run in pages; `None` if only a lower bound is known.
    ///
    /// For a watched run that ended between two marks it is the upper bound.
    pub(super) fn length(&self) -> Option<u64> {
        if self.touched_end == self.window_end {
            return Some(self.touched());
        }
        let untouched =
            (self.touched()..self.pages_so_far()).find(|&distance| is_length_mark(distance));
        self.is_length_measured.then(|| untouched.unwrap_or(self.pages_so_far()))
    }
}

/// Returns true if a watched run has a mark at this distance from its first page.
pub(super) fn is_length_mark(distance: u64) -> bool {
    let doubling = 1 << distance.max(1).ilog2();
    distance.is_multiple_of((doubling / MARKS_PER_DOUBLING).max(1))
}
