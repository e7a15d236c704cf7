//! The pages of one read: what its law adds to the cache, and how the runs of
//! added pages are cut into requests.

use alloc::vec::Vec;

use super::Budget;
use crate::cache::{Cache, FileId, FrameId, FrameState, Mark};
use crate::readahead::{Evidence, Folio, Pages};
use crate::unit::PageRange;

/// Stands in a read's list of frames for a page that has none yet.
pub(super) const NO_FRAME: FrameId = FrameId(u32::MAX);

/// Moves the runs that hold some of the demand to the front, whatever windows
/// they belong to, and leaves the others in their order; gives how many moved.
pub(super) fn demand_first(runs: &mut [PageRange], demand: PageRange) -> usize {
    let mut moved = 0;
    for at in 0..runs.len() {
        let run = runs[at];
        if run.first.max(demand.first) < run.end.min(demand.end) {
            runs[moved..=at].rotate_right(1);
            moved += 1;
        }
    }
    moved
}

/// Sorts runs and joins those that touch; gives how many are left, in front.
pub(super) fn join_adjacent(runs: &mut [PageRange]) -> usize {
    runs.sort_unstable_by_key(|run| run.first);
    let mut joined = 0;
    for at in 0..runs.len() {
        if joined > 0 && runs[joined - 1].end == runs[at].first {
            runs[joined - 1].end = runs[at].end;
        } else {
            runs[joined] = runs[at];
            joined += 1;
        }
    }
    joined
}

/// Cuts a run where the device's largest request forces it, and never so that
/// the demand in it takes a request more than it must: if the run is too large,
/// the demand starts a request of its own.
pub(super) fn cut(
    run: PageRange,
    demand: PageRange,
    pages_max: u64,
    mut piece: impl FnMut(PageRange),
) {
    let is_split_before_demand =
        run.count() > pages_max && run.first < demand.first && demand.first < run.end;
    let middle = if is_split_before_demand { demand.first } else { run.first };
    for half in [PageRange { first: run.first, end: middle }, PageRange { first: middle, ..run }] {
        let mut first = half.first;
        while first < half.end {
            let end = half.end.min(first + pages_max);
            piece(PageRange { first, end });
            first = end;
        }
    }
}

/// One file's pages, as its law sees and extends them during one read.
pub(super) struct FilePages<'a> {
    pub(super) cache: &'a mut Cache,
    pub(super) file: FileId,
    pub(super) file_pages: u64,
    pub(super) demand: PageRange,
    pub(super) frames: &'a mut [FrameId],
    pub(super) runs: &'a mut Vec<PageRange>,
    pub(super) budget: &'a mut Budget,
    /// Pages of memory that are held: no room for them while the read goes on.
    pub(super) held: u64,
    pub(super) evidence: Evidence<'a>,
}

impl FilePages<'_> {
    pub(super) fn add_page(&mut self, page: u64, folio: Folio, mark: Mark) {
        let is_ahead = !self.demand.contains(page);
        let frame = self
            .cache
            .add(self.file, page, folio, mark, is_ahead)
            .expect("pinned and in-flight pages stay within the budget");
        self.evidence.device.added_pages += 1;
        if is_ahead {
            self.budget.ahead += 1;
        } else {
            self.cache.pin(frame);
            self.frames[(page - self.demand.first) as usize] = frame;
        }
        match self.runs.last_mut() {
            Some(run) if run.end == page && !run.is_empty() => run.end += 1,
            _ => self.runs.push(PageRange::new(page, 1)),
        }
    }
}

impl Pages for FilePages<'_> {
    fn is_cached(&self, page: u64) -> bool {
        self.cache.find(self.file, page).is_some()
    }

    fn is_filled(&self, page: u64) -> bool {
        let frame = self.cache.find(self.file, page);
        frame.is_some_and(|frame| self.cache.state(frame) == FrameState::Filled)
    }

    fn is_unused(&self, page: u64) -> bool {
        let frame = self.cache.find(self.file, page);
        frame.is_some_and(|frame| self.cache.is_unused(frame))
    }

    fn evidence(&mut self) -> Evidence<'_> {
        let counters = self.cache.counters();
        let gone = counters.used_pages + counters.waste_pages;
        let Evidence { device, file } = &mut self.evidence;
        device.memory_pages = self.cache.budget_pages().into();
        device.standing_pages = counters.readahead_pages - gone;
        Evidence { device, file }
    }

    fn begin_window(&mut self) {
        // An empty run keeps the windows before and after it apart.
        self.runs.push(PageRange::default());
    }

    fn folio(&self, page: u64) -> Option<Folio> {
        self.cache.folio(self.file, page)
    }

    fn marked(&self, page: u64) -> Option<Folio> {
        self.cache.marked(self.file, page)
    }

    fn clear_mark(&mut self, folio: Folio) {
        self.cache.clear_mark(self.file, folio);
    }

    fn add(&mut self, folio: Folio, is_marked: bool) -> bool {
        let mark = if is_marked { Mark::Set } else { Mark::Clear };
        if folio.order == 0 && folio.first < self.file_pages {
            // By far the most.
            let ahead = u64::from(!self.demand.contains(folio.first));
            let has_room = self.budget.has_room_for(ahead + self.held);
            if has_room {
                self.add_page(folio.first, folio, mark);
            }
            return has_room;
        }
        let range = folio.range().clipped(self.file_pages);
        let ahead = range.pages().filter(|&page| !self.demand.contains(page)).count() as u64;
        if !self.budget.has_room_for(ahead + self.held) {
            return false;
        }
        range.pages().for_each(|page| self.add_page(page, folio, mark));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(run: (u64, u64), demand: (u64, u64)) -> Vec<(u64, u64)> {
        let range = |(first, end)| PageRange { first, end };
        let mut pieces = Vec::new();
        cut(range(run), range(demand), 16, |piece| pieces.push((piece.first, piece.end)));
        pieces
    }

    #[test]
    fn a_run_that_fits_is_one_request_wherever_the_demand_lies() {
        assert_eq!(pieces((0, 16), (5, 9)), [(0, 16)]);
    }

    #[test]
    fn a_demand_that_fits_one_request_gets_one_though_the_run_is_too_large() {
        assert_eq!(pieces((0, 40), (10, 26)), [(0, 10), (10, 26), (26, 40)]);
        assert_eq!(pieces((0, 40), (0, 16)), [(0, 16), (16, 32), (32, 40)]);
        assert_eq!(pieces((4, 40), (30, 50)), [(4, 20), (20, 30), (30, 40)]);
    }

    #[test]
    fn the_demands_runs_come_first_and_the_others_keep_their_windows() {
        let apart = (0, 0);
        let mut runs = [(10, 14), apart, (40, 44), apart, (14, 20), (50, 52)]
            .map(|(first, end)| PageRange { first, end });
        assert_eq!(demand_first(&mut runs, PageRange { first: 12, end: 18 }), 2);
        let expected = [(10, 14), (14, 20), apart, (40, 44), apart, (50, 52)];
        assert_eq!(runs, expected.map(|(first, end)| PageRange { first, end }));
    }

    #[test]
    fn runs_that_touch_are_joined() {
        let mut runs = [(8, 12), (0, 4), (4, 8), (20, 21)]
            .map(|(first, end)| PageRange { first, end })
            .to_vec();
        let joined = join_adjacent(&mut runs);
        let expected = [PageRange { first: 0, end: 12 }, PageRange { first: 20, end: 21 }];
        assert_eq!(runs[..joined], expected);
    }
}
