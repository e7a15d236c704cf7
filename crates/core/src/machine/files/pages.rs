//! The pages of one read: additions by its policy, and the division of added runs into requests.
//!
//! The *demand* is the range of the requested pages; all other added pages are prefetched. A
//! *folio* is an aligned block of `1 << order` pages. The use of a page with the *mark* (readahead
//! mark) is reported to the policy. A *window* is a group of runs that is sent in requests of its
//! own.

use alloc::vec::Vec;
use core::mem;

use crate::cache::{Cache, FileId, FrameId, FrameState, RunEntry};
use crate::machine::frames::Budget;
use crate::readahead::{Demand, Evidence, Folio, PageView, ReadRequest, ReadaheadPolicy};
use crate::unit::PageRange;

/// Placeholder in a read's list of frames for a page without a frame.
pub(super) const NO_FRAME: FrameId = FrameId(u32::MAX);

/// Moves the runs with requested pages (`demand`) to the front, across all windows, and keeps the
/// order of the others. Returns the number of moved runs. The empty runs between windows overlap
/// nothing, so they stay among the others.
pub(super) fn move_demand_to_front(runs: &mut [PageRange], demand: PageRange) -> usize {
    let mut moved = 0;
    for index in 0..runs.len() {
        let run = runs[index];
        // The run overlaps the demand.
        if run.first.max(demand.first) < run.end.min(demand.end) {
            if moved < index {
                runs[moved..=index].rotate_right(1);
            }
            moved += 1;
        }
    }
    moved
}

/// Sorts runs by their first page, and joins adjacent ones in place. Returns the new number of
/// runs, at the front of `runs`; the elements behind them have no meaning. Called for the runs of
/// one window of a file, and for the slots of a swap-in. They must not overlap, and none is empty:
/// the empty runs between windows are removed before.
pub(in crate::machine) fn join_adjacent(runs: &mut [PageRange]) -> usize {
    if runs.len() < 2 {
        return runs.len();
    }
    runs.sort_unstable_by_key(|run| run.first);
    let mut joined = 0;
    for index in 0..runs.len() {
        if joined > 0 && runs[joined - 1].end == runs[index].first {
            runs[joined - 1].end = runs[index].end;
        } else {
            runs[joined] = runs[index];
            joined += 1;
        }
    }
    joined
}

/// Splits a non-empty run at the device's largest request of `pages_max` pages, and calls `on_part`
/// with each part in order. The requested pages in it (`demand`) get the least number of requests.
/// If the run is too large, a new request starts at the first of them, so that prefetched pages
/// before it don't use up a part of that request.
pub(in crate::machine) fn split_run(
    run: PageRange,
    demand: PageRange,
    pages_max: u64,
    mut on_part: impl FnMut(PageRange),
) {
    if run.count() <= pages_max {
        return on_part(run);
    }
    let is_split_before_demand = run.first < demand.first && demand.first < run.end;
    let split = if is_split_before_demand { demand.first } else { run.first };
    for side in [PageRange { first: run.first, end: split }, PageRange { first: split, ..run }] {
        let mut first = side.first;
        while first < side.end {
            let end = side.end.min(first + pages_max);
            on_part(PageRange { first, end });
            first = end;
        }
    }
}

/// One file's pages, as its policy sees and extends them during one read.
pub(super) struct FilePages<'a> {
    /// The cache, with the pages of all files.
    pub(super) cache: &'a mut Cache,
    /// Identifier of the file in the cache.
    pub(super) file: FileId,
    /// Size of the file; for a prefetch by advice, the end of its range.
    pub(super) file_pages: u64,
    /// The requested pages.
    pub(super) demand: PageRange,
    /// Frames of the requested pages, or [`NO_FRAME`].
    pub(super) frames: &'a mut [FrameId],
    /// Added runs, to be sent as requests; an empty run separates two windows.
    pub(super) runs: &'a mut Vec<PageRange>,
    /// Numbers of pinned pages and of prefetched pages in flight, for all reads.
    pub(super) budget: &'a mut Budget,
    /// Pages of memory (swap) that are mapped, dirty or being written. They can't leave at once:
    /// their frames are unavailable during this call.
    pub(super) unready_pages: u64,
    /// True if prefetch is limited by [credit](crate::readahead::Credit).
    pub(super) is_on_credit: bool,
    /// Observations about the device and the file, for the policy.
    pub(super) evidence: Evidence<'a>,
}

/// Progress of a read before it waits for its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadProgress {
    /// All its remaining absent pages were added together, up to its end.
    AllAdded,
    /// Its pages were added one by one, up to this page (exclusive).
    Until { end_page: u64 },
    /// A requested page failed for another read, and there is no frame for a retry.
    Stuck { failed_page: u64 },
}

/// Order of the folio of a single page.
const SINGLE_PAGE_ORDER: u8 = 0;
/// Number of marked pages in a run without the readahead mark.
const UNMARKED: u64 = 0;

impl FilePages<'_> {
    /// Adds the next requested pages, from `first_page` on: all at once if the policy answers
    /// `Demand::Whole`, or else one by one up to the first page that is in flight. The read waits
    /// for that page before it goes on. The policy is asked for each page, cached or not, and may
    /// prefetch at that call.
    pub(super) fn add_next_requested(
        &mut self,
        policy: &mut dyn ReadaheadPolicy,
        read: &ReadRequest,
        first_page: u64,
    ) -> ReadProgress {
        let mut page = first_page;
        while page < self.demand.end {
            if policy.demand(page, read, self) == Demand::Whole {
                return self.add_rest(page);
            }
            if !self.add_page(page) {
                return ReadProgress::Stuck { failed_page: page };
            }
            let frame = self.frames[(page - self.demand.first) as usize];
            page += 1;
            if matches!(self.cache.state(frame), FrameState::InFlight(_)) {
                break;
            }
        }
        ReadProgress::Until { end_page: page }
    }

    /// Adds the requested pages from `first_page` on, to be sent in as few requests as possible.
    /// Behind the first page of the read they are checked one by one, because other reads may have
    /// added or failed them since the read began.
    fn add_rest(&mut self, first_page: u64) -> ReadProgress {
        if first_page == self.demand.first {
            self.add_demand();
            return ReadProgress::AllAdded;
        }
        match (first_page..self.demand.end).find(|&page| !self.add_page(page)) {
            Some(failed_page) => ReadProgress::Stuck { failed_page },
            None => ReadProgress::AllAdded,
        }
    }

    /// Adds a single requested page, if it is absent, and pins it for this read. Returns false if
    /// another read's request for it has failed, and there is no frame for this read's own try.
    ///
    /// A frame was reserved for each page that was absent when the read began. Adding the page uses
    /// that reservation; it is released if another read has added the page meanwhile. Without a
    /// failure the frame of a page that was cached at the begin is pinned already.
    fn add_page(&mut self, page: u64) -> bool {
        let index = (page - self.demand.first) as usize;
        let frame = self.frames[index];
        if frame != NO_FRAME && self.cache.state(frame) == FrameState::Failed {
            if self.cache.pins(frame) == 1 {
                // No other read has pinned the frame: it becomes free for the next try. A failed
                // page is in no table, so `find` below does not return it again.
                self.cache.unpin(frame);
                assert!(self.cache.reserve_frames(1), "a frame was given back just now");
            } else if self.cache.reserve_frames(1) {
                self.cache.unpin(frame);
            } else {
                return false;
            }
            self.frames[index] = NO_FRAME;
        }
        if self.frames[index] == NO_FRAME {
            // Another read may have added the page meanwhile.
            match self.cache.find(self.file, page) {
                Some(frame) => {
                    self.cache.pin(frame);
                    self.cache.release_reservation(1);
                    self.frames[index] = frame;
                }
                None => {
                    // The page is sent in a request of its own, as in a kernel that reads page by
                    // page, unless the rest of the read is joined.
                    self.begin_window();
                    self.add_run(PageRange::new(page, 1), SINGLE_PAGE_ORDER, UNMARKED);
                }
            }
        }
        true
    }

    /// Adds the requested pages that are still absent, run by run, without a mark.
    fn add_demand(&mut self) {
        let mut index = 0;
        while index < self.frames.len() {
            let absent_count =
                self.frames[index..].iter().take_while(|&&frame| frame == NO_FRAME).count();
            if absent_count > 0 {
                let first = self.demand.first + index as u64;
                let run = PageRange::new(first, absent_count as u64);
                self.add_run(run, SINGLE_PAGE_ORDER, UNMARKED);
            }
            // The page behind the run has a frame, or is the end.
            index += absent_count + 1;
        }
    }

    /// Adds the absent pages of the range, as far as memory allows. No page is marked.
    pub(super) fn add_window(&mut self, range: PageRange) {
        let is_marked = false;
        self.add_absent(range, is_marked);
    }

    /// Number of pages, up to `pages`, that may be prefetched within the credit and the limit of
    /// the cache, which may evict others for them. Only the limit of the cache applies if
    /// `is_on_credit` is false.
    fn allowed_prefetch_pages(&mut self, pages: u64) -> u64 {
        let mut credit_pages = pages;
        if self.is_on_credit {
            // Cost of a request in pages: each used page earns credit for as many.
            let request_pages = self.evidence.device.estimate.request_cost_pages();
            credit_pages = self.cache.credit_room(self.file, request_pages);
            if credit_pages < pages {
                // Uses since the last check may have earned more credit.
                self.cache.collect_first_uses();
                credit_pages = self.cache.credit_room(self.file, request_pages);
            }
        }
        // The cache limits prefetched, unused pages to a part of the memory.
        self.cache.room_ahead(pages.min(credit_pages))
    }

    /// Adds absent pages, of folios of one order, with the mark on the first `marked_pages` of
    /// them. Either all of them are requested pages, which this read pins, or none is. All of them
    /// must find frames: requested pages have reserved ones, and the caller has checked the room
    /// for others. Counts the pages in the budget and in the evidence, and adds them to the runs to
    /// be sent.
    pub(super) fn add_run(&mut self, run: PageRange, order: u8, marked_pages: u64) {
        let is_ahead = !self.demand.contains(run.first);
        let entry = RunEntry { order, marked: marked_pages, is_ahead, is_pinned: !is_ahead };
        let (frames, first_requested) = (&mut *self.frames, self.demand.first);
        let added = self.cache.add_run(self.file, run, entry, |page, frame| {
            if !is_ahead {
                frames[(page - first_requested) as usize] = frame;
            }
        });
        assert_eq!(added, run.count(), "what has room, or was promised frames, finds them");
        // For the policies: a measure of the memory's turnover.
        self.evidence.device.added_pages += added;
        self.budget.prefetch_pages += if is_ahead { added } else { 0 };
        match self.runs.last_mut() {
            Some(last) if last.end == run.first && !last.is_empty() => last.end = run.end,
            // A policy that reads downwards adds the pages in that order.
            Some(last) if run.end == last.first && !last.is_empty() => last.first = run.first,
            _ => self.runs.push(run),
        }
    }

    /// Splits a range into three parts: before, within and after the requested pages. A part may be
    /// empty.
    fn cut_at_demand(&self, range: PageRange) -> [PageRange; 3] {
        let PageRange { first, end } = self.demand;
        // Without an overlap, the part within the requested pages is empty.
        let clamped = |page: u64| page.clamp(range.first, range.end.max(range.first));
        let (first, end) = (clamped(first), clamped(end.max(first)));
        [
            PageRange { first: range.first, end: first },
            PageRange { first, end },
            PageRange { first: end, end: range.end },
        ]
    }
}

impl PageView for FilePages<'_> {
    /// True if the page is in the cache, or being read into it.
    fn is_cached(&self, page: u64) -> bool {
        self.cache.find(self.file, page).is_some()
    }

    /// True if the page is in the cache with its data.
    fn is_filled(&self, page: u64) -> bool {
        let frame = self.cache.find(self.file, page);
        frame.is_some_and(|frame| self.cache.state(frame) == FrameState::Filled)
    }

    /// True if the page was prefetched and not used yet.
    fn is_unused(&self, page: u64) -> bool {
        let frame = self.cache.find(self.file, page);
        frame.is_some_and(|frame| self.cache.is_unused(frame))
    }

    /// Evidence of the device and the file, with the present sizes of memory, of free frames, and
    /// of prefetched, unused pages (`standing_pages`). The memory is at most the size that the
    /// configuration lets policies assume.
    fn evidence(&mut self) -> Evidence<'_> {
        let Evidence { device, file } = &mut self.evidence;
        let memory_pages = u64::from(self.cache.budget_pages());
        device.memory_pages = memory_pages.min(self.budget.policy_pages_max);
        device.free_pages = u64::from(self.cache.free_pages());
        device.standing_pages = self.cache.counters().standing_pages();
        Evidence { device, file }
    }

    /// Separates the following pages from the window before: they are sent as separate requests.
    fn begin_window(&mut self) {
        // An empty run separates the windows before and after it.
        self.runs.push(PageRange::default());
    }

    /// Folio of a cached page; `None` if the page is not cached.
    fn folio(&self, page: u64) -> Option<Folio> {
        self.cache.folio(self.file, page)
    }

    /// Folio of a page with the readahead mark; `None` without a mark, or if the page is not
    /// cached.
    fn marked(&self, page: u64) -> Option<Folio> {
        self.cache.marked(self.file, page)
    }

    /// Removes the readahead mark from the pages of the folio.
    fn clear_mark(&mut self, folio: Folio) {
        self.cache.clear_mark(self.file, folio);
    }

    /// Puts a readahead mark on a cached page.
    fn mark(&mut self, page: u64) {
        self.cache.mark(self.file, page);
    }

    /// Adds a folio of absent pages, clipped at the end of the file and split at the requested
    /// pages. With `is_marked`, every page of it is marked.
    /// Returns false, and adds nothing, if its prefetched part exceeds the budget, the credit or
    /// the limit of the cache. Requested pages have no limit: their frames are reserved.
    fn add(&mut self, folio: Folio, is_marked: bool) -> bool {
        let parts = self.cut_at_demand(folio.range().clipped(self.file_pages));
        let ahead_pages = parts[0].count() + parts[2].count();
        if !self.budget.has_room_for(ahead_pages + self.unready_pages)
            || self.allowed_prefetch_pages(ahead_pages) < ahead_pages
        {
            return false;
        }
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            // A folio carries the mark as a whole, unlike a run of single pages.
            let marked_pages = if is_marked { part.count() } else { UNMARKED };
            self.add_run(part, folio.order, marked_pages);
        }
        true
    }

    /// Adds absent pages run by run, within the file and split at the requested pages. Stops at the
    /// first prefetched page beyond the budget, the credit or the limit of the cache, and then
    /// returns false. With `is_marked`, the first added page is marked. Requested pages have no
    /// limit: their frames are reserved.
    fn add_absent(&mut self, range: PageRange, is_marked: bool) -> bool {
        let mut remaining = range.clipped(self.file_pages);
        let mut marked_pages = u64::from(is_marked);
        while let Some(run) = self.cache.absent_run(self.file, remaining) {
            remaining.first = run.end;
            for part in self.cut_at_demand(run).into_iter().filter(|part| !part.is_empty()) {
                let room_pages = self.budget.unreserved_pages().saturating_sub(self.unready_pages);
                let is_ahead = !self.demand.contains(part.first);
                let count = match is_ahead {
                    true => self.allowed_prefetch_pages(part.count().min(room_pages)),
                    false => part.count(),
                };
                if count > 0 {
                    let run = PageRange::new(part.first, count);
                    self.add_run(run, SINGLE_PAGE_ORDER, mem::take(&mut marked_pages));
                }
                if count < part.count() {
                    return false;
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST_PAGES_MAX: u64 = 16;

    /// Parts of the run, split at `REQUEST_PAGES_MAX`. All ranges are (first page, end page).
    fn parts(run: (u64, u64), demand: (u64, u64)) -> Vec<(u64, u64)> {
        let range = |(first, end)| PageRange { first, end };
        let mut parts = Vec::new();
        split_run(range(run), range(demand), REQUEST_PAGES_MAX, |part| {
            parts.push((part.first, part.end));
        });
        parts
    }

    #[test]
    fn run_within_the_request_limit_is_one_request_for_any_demand_range() {
        assert_eq!(parts((0, 16), (5, 9)), [(0, 16)]);
    }

    #[test]
    fn demand_that_fits_one_request_is_not_split_in_an_oversized_run() {
        assert_eq!(parts((0, 40), (10, 26)), [(0, 10), (10, 26), (26, 40)]);
        assert_eq!(parts((0, 40), (0, 16)), [(0, 16), (16, 32), (32, 40)]);
        assert_eq!(parts((4, 40), (30, 50)), [(4, 20), (20, 30), (30, 40)]);
    }

    /// Pages 12 to 17 are requested: two runs of different windows have some of them.
    #[test]
    fn runs_with_demand_pages_come_first_and_others_keep_their_windows() {
        let window_end = (0, 0);
        let mut runs = [(10, 14), window_end, (40, 44), window_end, (14, 20), (50, 52)]
            .map(|(first, end)| PageRange { first, end });
        assert_eq!(move_demand_to_front(&mut runs, PageRange { first: 12, end: 18 }), 2);
        let expected = [(10, 14), (14, 20), window_end, (40, 44), window_end, (50, 52)];
        assert_eq!(runs, expected.map(|(first, end)| PageRange { first, end }));
    }

    #[test]
    fn adjacent_runs_are_joined() {
        let mut runs = [(8, 12), (0, 4), (4, 8), (20, 21)]
            .map(|(first, end)| PageRange { first, end })
            .to_vec();
        let joined = join_adjacent(&mut runs);
        let expected = [PageRange { first: 0, end: 12 }, PageRange { first: 20, end: 21 }];
        assert_eq!(runs[..joined], expected);
    }
}
