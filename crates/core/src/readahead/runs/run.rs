//! A run: pages that are touched in order, and the direction of that order.
//!
//! The policy learns of the touch of a page that is absent, or that carries a *mark* (the readahead
//! mark). A run is *watched* while its length is measured: its pages then carry extra marks.

use crate::unit::PageRange;

/// Number of marks of a watched run between one distance and its double. They determine a length to
/// an eighth, and a length below 16 pages exactly.
const MARKS_PER_DOUBLING: u64 = 8;

/// Direction in which a run's pages are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TouchOrder {
    /// Towards the end of the file.
    Up,
    /// Towards page 0.
    Down,
}

impl TouchOrder {
    /// Converts a range of pages to positions along this direction, which increase in the order of
    /// touches, or positions to pages: the conversion is its own inverse.
    pub(super) fn convert_range(self, range: PageRange) -> PageRange {
        match self {
            TouchOrder::Up => range,
            TouchOrder::Down => PageRange {
                first: DOWNWARD_POSITIONS - range.end,
                end: DOWNWARD_POSITIONS - range.first,
            },
        }
    }

    /// Converts a page to its position along this direction, or a position to its page.
    pub(super) fn convert(self, page_or_position: u64) -> u64 {
        self.convert_range(PageRange::new(page_or_position, 1)).first
    }

    /// The opposite direction.
    pub(super) fn opposite(self) -> TouchOrder {
        match self {
            TouchOrder::Up => TouchOrder::Down,
            TouchOrder::Down => TouchOrder::Up,
        }
    }
}

/// Number of positions downwards: page 0 is the last. It exceeds the page count of any file.
const DOWNWARD_POSITIONS: u64 = 1 << 62;

/// A run of touched pages. A *position* is the number of a page, counted in the order of touches:
/// for a downward run it increases towards page 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct TouchedRun {
    /// Direction of the touches.
    pub(super) order: TouchOrder,
    /// Position of the first touched page.
    pub(super) first: u64,
    /// Position behind the last page that is known to have been touched.
    pub(super) touched_end: u64,
    /// Position behind the last page that was read for the run.
    pub(super) window_end: u64,
    /// Size of the newest window in pages, before it was cut at an end of the file or of memory.
    pub(super) window_pages: u64,
    /// Position whose touch starts the read of the next window.
    pub(super) trigger: Option<u64>,
    /// Position of the last page read; its touch shows that the whole window was used.
    pub(super) last_read: Option<u64>,
    /// True if the pages carry extra marks, to measure the length of the run.
    pub(super) is_length_measured: bool,
    /// True if the reader had to wait since the newest window was read.
    pub(super) was_late: bool,
}

impl TouchedRun {
    /// Number of pages from the first touched one to the end of the window.
    pub(super) fn pages_so_far(&self) -> u64 {
        self.window_end - self.first
    }

    /// Number of pages known to have been touched.
    pub(super) fn touched_pages(&self) -> u64 {
        self.touched_end - self.first
    }

    /// The touched pages, as positions along the opposite direction.
    pub(super) fn touched_in_opposite_order(&self) -> PageRange {
        let positions = PageRange { first: self.first, end: self.touched_end };
        let pages = self.order.convert_range(positions);
        self.order.opposite().convert_range(pages)
    }

    /// Reverses the run: it goes on in the opposite direction from its start. Its window begins
    /// again behind the touched pages, and no page of it triggers a read.
    pub(super) fn reverse(&mut self) {
        let touched = self.touched_in_opposite_order();
        self.order = self.order.opposite();
        self.first = touched.first;
        self.touched_end = touched.end;
        self.window_end = touched.end;
        (self.trigger, self.last_read) = (None, None);
    }

    /// The length of the run in pages; `None` if only a lower bound is known.
    ///
    /// It is known if the whole window was touched, or if the run is watched
    /// (`is_length_measured`): it then ended before the first mark without a touch. The result is
    /// the distance of that mark from the first page, or of the window's end: an upper bound. A
    /// position without a mark shows nothing, because its touch is not reported.
    pub(super) fn length(&self) -> Option<u64> {
        if self.touched_end == self.window_end {
            // The whole window was touched, and no page behind it.
            return Some(self.touched_pages());
        }
        let first_untouched_mark =
            (self.touched_pages()..self.pages_so_far()).find(|&distance| is_length_mark(distance));
        self.is_length_measured.then(|| first_untouched_mark.unwrap_or(self.pages_so_far()))
    }
}

/// Returns true if a watched run has a mark at this distance, in pages, from its first page.
pub(super) fn is_length_mark(distance: u64) -> bool {
    let power_of_two = 1 << distance.max(1).ilog2();
    distance.is_multiple_of((power_of_two / MARKS_PER_DOUBLING).max(1))
}
