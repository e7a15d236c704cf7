//! The page cache: pages of files in frames of memory, under a budget.
//!
//! A frame is [`PAGE_BYTES`](crate::unit::PAGE_BYTES) of memory that the world outside owns; the
//! cache knows it by number only. A page is *in flight* from the moment it is added until the
//! device has delivered it, so that a second reader of a missing page finds it and waits, and one
//! device read serves both.
//!
//! Which page goes when memory is short a law of [reclaim](crate::eviction) decides.
//!
//! Invariants:
//! 1. a page is in the table from `add` until it is evicted,
//!    dropped, or its read failed;
//! 2. a frame that is pinned or in flight is never given away;
//! 3. pages come to the reclaim law in the order in which they were added, in
//!    whatever order they arrive; one in flight is passed over;
//! 4. as many frames are free as are promised, at least;
//! 5. a page that was read ahead counts as waste exactly once, when it leaves
//!    the cache without having been used.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::eviction::{EvictionPolicy, FrameLists, PageKey};
use crate::readahead::{Credit, Folio};
use crate::request::RequestId;
use crate::unit::PageRange;

mod ahead;
mod counters;
mod eviction;
mod frame_set;
mod lender;
mod lists;
mod memory;
mod refaults;
mod runs;
mod size;
mod supply;
mod table;

use ahead::FirstUseWaits;
pub use counters::CacheCounters;
use frame_set::FrameSet;
pub use lender::{PageSharer, UseCount};
use lists::FrameList;
pub use memory::LeavingChoice;
use refaults::RefaultTable;
pub use runs::RunEntry;
use supply::FreeFrames;
use table::{FrameLink, PageTableIndex};

/// Names a file in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// Names a frame of memory: 0 up to the most that there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameState {
    /// Nothing. Entered at the start, by eviction, by a drop, and when a read
    /// fails; left by [`Cache::add`].
    Free,
    /// A page that the device is to deliver, by the request named. Entered by
    /// [`Cache::add`]; left by [`Cache::fill`] or [`Cache::fail`].
    InFlight(RequestId),
    /// A page whose bytes are good. Entered by [`Cache::fill`]; left by
    /// eviction or a drop.
    Filled,
    /// A page whose bytes are good, and which has left its file's table while a
    /// reader still held it. Entered by a drop; becomes free with the last unpin.
    Orphan,
    /// A page that could not be read while a reader held it; its bytes are no
    /// good. Entered by [`Cache::fail`]; becomes free with the last unpin.
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    file: FileId,
    page: u64,
    pins: u32,
    state: FrameState,
    next_in_table: FrameLink,
    order: u8,
    is_marked: bool,
    /// Of a file: its next use is the one that it was brought in for. Of memory: it was used.
    is_referenced: bool,
    /// Its bytes were overwritten on the device while it was in flight.
    is_stale: bool,
    /// What only a page of memory can be.
    memory: memory::MemoryFlags,
}

impl Frame {
    /// The key of its page.
    fn key(&self) -> PageKey {
        PageKey::of(self.file, self.page)
    }
}

/// The page cache.
#[derive(Debug)]
pub struct Cache {
    /// Those that have held a page, the others after them: memory for a frame is touched when the
    /// frame is first used.
    frames: Vec<Frame>,
    supply: FreeFrames,
    /// Free frames that are kept for reads.
    promised: u32,
    table: PageTableIndex,
    places: FrameLists,
    policy: Box<dyn EvictionPolicy>,
    /// For how many pages it was built.
    policy_pages: u32,
    /// Whether memory has lists apart from the law's.
    is_memory_apart: bool,
    /// How long pages that are read ahead wait for their first use.
    waits: FirstUseWaits,
    /// What has come back; told only where the budget may change.
    refaults: Option<RefaultTable>,
    counters: CacheCounters,
    /// What came of what was read ahead, by file.
    credits: Vec<Credit>,
    memory: memory::MemoryCounts,
    lender: Option<Box<dyn PageSharer>>,
    /// Frames whose page was read ahead and not used yet.
    unused: FrameSet,
    /// The word of `unused` at which [`settle_next`](Cache::settle_next) goes on, for how many
    /// pages that are added it does so once, and how many were added since.
    collect_from: u32,
    collect_each: u32,
    collect_due: u32,
}

impl Cache {
    /// An empty cache of `budget_pages` frames, under a law that was built for as many.
    pub fn new(budget_pages: u32, policy: Box<dyn EvictionPolicy>) -> Cache {
        Cache::with_frames_max(budget_pages, budget_pages, policy)
    }

    /// As [`new`](Cache::new), of one whose budget may be changed later, up to `frames_max`.
    pub fn with_frames_max(
        budget_pages: u32,
        frames_max: u32,
        policy: Box<dyn EvictionPolicy>,
    ) -> Cache {
        let unused = FrameSet::new(frames_max);
        Cache {
            frames: Vec::with_capacity(frames_max as usize),
            supply: FreeFrames::new(budget_pages, frames_max),
            promised: 0,
            table: PageTableIndex::new(frames_max),
            places: FrameLists::new(frames_max),
            policy,
            policy_pages: budget_pages,
            is_memory_apart: true,
            waits: FirstUseWaits::new(budget_pages),
            refaults: (budget_pages < frames_max).then(RefaultTable::new),
            counters: CacheCounters::default(),
            credits: Vec::new(),
            memory: memory::MemoryCounts::default(),
            lender: None,
            collect_from: 0,
            collect_each: (frames_max / eviction::SETTLED / unused.words().max(1)).max(1),
            unused,
            collect_due: 0,
        }
    }

    /// Has filled pages lent to readers beside the machine; before the first page is added.
    pub fn lend_through(&mut self, lender: Box<dyn PageSharer>) {
        self.lender = Some(lender);
    }

    /// Makes room for the pages of one more file.
    pub fn add_file(&mut self) -> FileId {
        self.credits.push(Credit::default());
        self.table.add_file()
    }

    /// Whether no page of the file is cached, or on its way into the cache.
    pub fn is_empty(&self, file: FileId) -> bool {
        self.table.is_empty(file)
    }

    /// How many frames there are in circulation.
    pub fn budget_pages(&self) -> u32 {
        self.supply.budget()
    }

    /// How many frames hold nothing.
    pub fn free_pages(&self) -> u32 {
        self.supply.free()
    }

    /// What was counted so far.
    pub fn counters(&self) -> CacheCounters {
        self.counters
    }

    /// The frame that holds the page, filled or in flight.
    #[inline]
    pub fn find(&self, file: FileId, page: u64) -> Option<FrameId> {
        self.table.find(&self.frames, file, page)
    }

    /// What the frame holds.
    pub fn state(&self, frame: FrameId) -> FrameState {
        self.frame(frame).state
    }

    /// Whether the frame's page was read ahead and not used yet.
    pub fn is_unused(&self, frame: FrameId) -> bool {
        // Of a frame whose page is on its way the lender knows only who used the one before.
        let is_lent = self.state(frame) == FrameState::Filled;
        let lender = self.lender.as_ref().filter(|_| is_lent);
        self.unused.contains(frame) && !lender.is_some_and(|lender| lender.is_used(frame))
    }

    /// The folio that the page came in as, if it is cached.
    pub fn folio(&self, file: FileId, page: u64) -> Option<Folio> {
        Some(Folio::holding(page, self.frame(self.find(file, page)?).order))
    }

    /// The folio of the page, if the page carries the readahead mark.
    pub fn marked(&self, file: FileId, page: u64) -> Option<Folio> {
        let frame = self.frame(self.find(file, page)?);
        frame.is_marked.then(|| Folio::holding(page, frame.order))
    }

    /// Takes the readahead mark off every page of the folio.
    pub fn clear_mark(&mut self, file: FileId, folio: Folio) {
        for page in folio.range().pages() {
            if let Some(frame) = self.find(file, page) {
                self.frame_mut(frame).is_marked = false;
                if let (FrameState::Filled, Some(lender)) = (self.state(frame), &mut self.lender) {
                    lender.unmark(frame);
                }
            }
        }
    }

    /// Adds an absent page, in flight; `is_ahead` when nobody has asked for it yet.
    /// None when every frame is pinned or in flight.
    pub fn add(
        &mut self,
        file: FileId,
        page: u64,
        folio: Folio,
        mark: Mark,
        is_ahead: bool,
    ) -> Option<FrameId> {
        let marked = u64::from(mark == Mark::Set);
        let entry = RunEntry { order: folio.order, marked, is_ahead, is_pinned: false };
        let mut added = None;
        self.add_run(file, PageRange::new(page, 1), entry, |_, id| added = Some(id));
        added
    }

    /// The device has delivered the page.
    pub fn fill(&mut self, id: FrameId) {
        if self.arrive(id) {
            let Frame { file, page, is_marked, .. } = *self.frame(id);
            self.lend(file, page, &[id], u64::from(is_marked));
        }
    }

    /// A page has come; whether it is to be lent.
    #[inline]
    fn arrive(&mut self, id: FrameId) -> bool {
        debug_assert!(matches!(self.state(id), FrameState::InFlight(_)));
        let frame = self.frame_mut(id);
        frame.state = FrameState::Filled;
        if frame.memory.is_memory {
            self.list_memory(id);
            return false;
        }
        if frame.is_stale {
            self.remove(id);
            return false;
        }
        self.list_file(id);
        true
    }

    fn lend(&mut self, file: FileId, first: u64, frames: &[FrameId], marked: u64) {
        if let Some(lender) = self.lender.as_mut().filter(|_| !frames.is_empty()) {
            lender.lend(file, first, frames, marked);
        }
    }

    /// The device could not deliver the page: it leaves the cache.
    pub fn fail(&mut self, id: FrameId) {
        debug_assert!(matches!(self.state(id), FrameState::InFlight(_)));
        self.remove(id);
        if self.state(id) == FrameState::Orphan {
            self.frame_mut(id).state = FrameState::Failed;
        }
    }

    /// Keeps the frame from being given away.
    pub fn pin(&mut self, id: FrameId) {
        self.change(id, |frame| frame.pins += 1);
        if self.frame(id).memory.is_memory {
            self.unlist_apart(id);
        }
    }

    /// Takes one pin back.
    pub fn unpin(&mut self, id: FrameId) {
        debug_assert!(self.frame(id).pins > 0, "unpinned more often than pinned");
        self.change(id, |frame| frame.pins -= 1);
        let frame = self.frame(id);
        if frame.pins > 0 {
            return;
        }
        match frame.state {
            FrameState::Orphan | FrameState::Failed => self.release(id),
            FrameState::Filled if frame.memory.is_memory => self.list_memory(id),
            // Reclaim took it off its list when it found it pinned.
            FrameState::Filled => self.list_file(id),
            _ => {}
        }
    }

    /// Somebody uses the page: it is no waste any more. The law hears of it, unless it is the use
    /// that the page was brought in for.
    pub fn touch(&mut self, id: FrameId) {
        let is_first = self.note_use(id);
        if core::mem::take(&mut self.frame_mut(id).is_referenced) {
            return;
        }
        if is_first && self.places.list_of(id) == Some(FrameList::PROMISED) {
            self.enter_policy_on_first_use(id);
        } else {
            let key = self.frame(id).key();
            self.policy.used(&mut self.places, id, key);
        }
    }

    /// Somebody goes on using the page, within one reference: if it was not used since it came it is now.
    pub fn continue_use(&mut self, id: FrameId) {
        if self.frame(id).is_referenced || self.unused.contains(id) {
            self.touch(id);
        }
    }

    /// Drops the filled pages of the range that nobody holds, as `POSIX_FADV_DONTNEED` does.
    pub fn drop_unused(&mut self, file: FileId, range: PageRange) {
        let mut ids = self.table.cached(&self.frames, file, range);
        ids.retain(|&id| self.state(id) == FrameState::Filled && self.frame(id).pins == 0);
        self.drop_all(&ids, |_, _| false);
    }

    /// Takes in which pages that the [`PageSharer`] was to forget are in use no more.
    pub fn take_returned(&mut self) {
        let returned = self.lender.as_mut().map_or(Vec::new(), |lender| lender.take_returned());
        returned.into_iter().for_each(|id| self.unpin(id));
    }

    /// Has the lender tell what was used since it was last asked, so that
    /// [`counters`](Cache::counters) are those of this moment.
    pub fn settle(&mut self) {
        for id in (0..self.frames.len() as u32).map(FrameId) {
            if self.state(id) == FrameState::Filled {
                (0..self.uses(id)).for_each(|_| self.touch(id));
            }
        }
    }

    /// The first page of the range that is on its way into the cache.
    pub fn first_in_flight(&self, file: FileId, range: PageRange) -> Option<u64> {
        let is_in_flight = |frame: &Frame| matches!(frame.state, FrameState::InFlight(_));
        Some(self.table.first_where(&self.frames, file, range, is_in_flight)?.0)
    }

    /// The first page of the range that was on its way when it was [invalidated](Cache::invalidate), and still is.
    pub fn first_stale(&self, file: FileId, range: PageRange) -> Option<u64> {
        let is_stale =
            |frame: &Frame| frame.is_stale && matches!(frame.state, FrameState::InFlight(_));
        Some(self.table.first_where(&self.frames, file, range, is_stale)?.0)
    }

    /// The bytes of the range have changed on the device: no page of it may be
    /// served again. Readers that hold one keep what they have.
    pub fn invalidate(&mut self, file: FileId, range: PageRange) {
        let mut ids = self.table.cached(&self.frames, file, range);
        ids.retain(|&id| {
            let frame = self.frame_mut(id);
            frame.is_stale |= frame.state != FrameState::Filled;
            frame.state == FrameState::Filled
        });
        self.drop_all(&ids, |cache, id| {
            // Who uses it keeps it until it is returned.
            cache.lender.as_mut().expect("only a lender refuses").forget(id);
            cache.pin(id);
            true
        });
    }

    /// Drops filled pages; of each that is in use only if `is_to_go` says so. The first to go is
    /// the first whose frame is used again, as in reclaim.
    fn drop_all(&mut self, ids: &[FrameId], mut is_to_go: impl FnMut(&mut Cache, FrameId) -> bool) {
        let mark = self.supply.mark();
        for ids in ids.chunks(eviction::RECALL_BATCH_MAX) {
            let refused = self.recall_all(ids);
            for (nth, &id) in ids.iter().enumerate() {
                if refused >> nth & 1 == 0 || is_to_go(self, id) {
                    self.remove(id);
                }
            }
        }
        self.supply.turn(mark);
    }

    /// Takes the page out of its table; its frame becomes free, or an orphan while it is held.
    #[inline]
    fn remove(&mut self, id: FrameId) {
        let is_held = self.frame(id).pins > 0;
        if self.places.is_listed(id) {
            self.places.unlink(id);
        }
        self.table.remove(&mut self.frames, id);
        if is_held {
            // Its reader says that he uses it only after it has left.
            self.note_use(id);
            self.change(id, |frame| frame.state = FrameState::Orphan);
        } else {
            self.count_waste_if_unused(id);
            self.release(id);
        }
    }

    fn release(&mut self, id: FrameId) {
        self.change(id, |frame| {
            frame.state = FrameState::Free;
            frame.memory = memory::MemoryFlags::default();
        });
        self.supply.put(id);
    }

    /// Changes a frame, and what is counted of it as memory; it doesn't become memory by it.
    fn change(&mut self, id: FrameId, change: impl FnOnce(&mut Frame)) {
        let frame = &mut self.frames[id.0 as usize];
        if !frame.memory.is_memory {
            return change(frame);
        }
        self.memory.forget(frame);
        change(frame);
        self.memory.count(frame);
    }

    fn frame(&self, id: FrameId) -> &Frame {
        &self.frames[id.0 as usize]
    }

    fn frame_mut(&mut self, id: FrameId) -> &mut Frame {
        &mut self.frames[id.0 as usize]
    }
}

/// Whether a page carries the readahead mark: its use starts the next window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// It does.
    Set,
    /// It does not.
    Clear,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::TwoLists;

    fn filled(cache: &mut Cache, file: FileId, page: u64, is_ahead: bool) -> FrameId {
        let id = cache.add(file, page, Folio::holding(page, 0), Mark::Clear, is_ahead).unwrap();
        cache.fill(id);
        id
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_unused_page_goes_first() {
        let mut cache = Cache::new(3, Box::new(TwoLists));
        let file = cache.add_file();
        for page in 0..5 {
            filled(&mut cache, file, page, false);
        }
        let cached: Vec<u64> = (0..5).filter(|&page| cache.find(file, page).is_some()).collect();
        assert_eq!(cached, [2, 3, 4]);
        assert_eq!(cache.counters().evicted_pages, 2);
        assert_eq!(cache.free_pages(), 0);
    }

    #[test]
    fn a_page_that_was_used_twice_outlives_a_stream_of_pages_that_were_used_once() {
        let mut cache = Cache::new(4, Box::new(TwoLists));
        let file = cache.add_file();
        let kept = filled(&mut cache, file, 100, false);
        cache.touch(kept);
        cache.touch(kept);
        for page in 0..50 {
            let frame = filled(&mut cache, file, page, false);
            cache.touch(frame);
        }
        assert_eq!(cache.find(file, 100), Some(kept));
    }

    #[test]
    fn pinned_and_in_flight_pages_stay_and_a_full_cache_refuses_new_pages() {
        let mut cache = Cache::new(2, Box::new(TwoLists));
        let file = cache.add_file();
        let pinned = filled(&mut cache, file, 0, false);
        cache.pin(pinned);
        let folio = Folio::holding(1, 0);
        let in_flight = cache.add(file, 1, folio, Mark::Clear, false).unwrap();
        assert_eq!(cache.add(file, 2, Folio::holding(2, 0), Mark::Clear, false), None);
        cache.unpin(pinned);
        assert_eq!(cache.add(file, 2, Folio::holding(2, 0), Mark::Clear, false), Some(pinned));
        assert_eq!(cache.find(file, 1), Some(in_flight));
        assert_eq!(cache.find(file, 0), None);
    }

    #[test]
    fn a_prefetched_page_that_leaves_unused_is_waste() {
        let mut cache = Cache::new(2, Box::new(TwoLists));
        let file = cache.add_file();
        let used = filled(&mut cache, file, 0, true);
        cache.touch(used);
        filled(&mut cache, file, 1, true);
        filled(&mut cache, file, 2, true);
        filled(&mut cache, file, 3, true);
        let counted = cache.counters();
        assert_eq!((counted.readahead_pages, counted.used_pages, counted.waste_pages), (4, 1, 1));
    }

    #[test]
    fn a_page_that_leaves_while_a_reader_holds_it_is_counted_once() {
        let mut cache = Cache::new(2, Box::new(TwoLists));
        let file = cache.add_file();
        let held = filled(&mut cache, file, 0, true);
        cache.pin(held);
        cache.invalidate(file, PageRange::new(0, 1));
        cache.touch(held);
        let counted = cache.counters();
        assert_eq!((counted.readahead_pages, counted.used_pages, counted.waste_pages), (1, 1, 0));
    }

    #[test]
    fn a_failed_page_is_gone_from_the_table_at_once_and_its_frame_with_the_last_pin() {
        let mut cache = Cache::new(1, Box::new(TwoLists));
        let file = cache.add_file();
        let id = cache.add(file, 7, Folio::holding(7, 0), Mark::Clear, false).unwrap();
        cache.pin(id);
        cache.fail(id);
        assert_eq!(cache.find(file, 7), None);
        assert_eq!(cache.state(id), FrameState::Failed);
        assert_eq!(cache.free_pages(), 0);
        cache.unpin(id);
        assert_eq!(cache.free_pages(), 1);
    }

    #[test]
    fn a_page_overwritten_while_in_flight_is_not_served_later() {
        let mut cache = Cache::new(2, Box::new(TwoLists));
        let file = cache.add_file();
        let id = cache.add(file, 0, Folio::holding(0, 0), Mark::Clear, false).unwrap();
        cache.invalidate(file, PageRange::new(0, 4));
        cache.fill(id);
        assert_eq!(cache.find(file, 0), None);
        assert_eq!(cache.free_pages(), 2);
    }

    #[test]
    fn dontneed_spares_pinned_pages() {
        let mut cache = Cache::new(4, Box::new(TwoLists));
        let file = cache.add_file();
        let held = filled(&mut cache, file, 0, false);
        cache.pin(held);
        filled(&mut cache, file, 1, false);
        cache.drop_unused(file, PageRange::new(0, 1000));
        assert_eq!(cache.find(file, 0), Some(held));
        assert_eq!(cache.find(file, 1), None);
    }

    #[test]
    fn the_mark_belongs_to_the_whole_folio() {
        let mut cache = Cache::new(8, Box::new(TwoLists));
        let file = cache.add_file();
        let folio = Folio { first: 4, order: 2 };
        for page in folio.range().pages() {
            cache.add(file, page, folio, Mark::Set, true).unwrap();
        }
        assert_eq!(cache.marked(file, 6), Some(folio));
        cache.clear_mark(file, folio);
        assert_eq!(cache.marked(file, 4), None);
    }
}
