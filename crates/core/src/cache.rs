//! The page cache: pages of files in frames of memory, under a budget.
//!
//! A frame is [`PAGE_BYTES`](crate::unit::PAGE_BYTES) of memory of the *environment*, the code
//! around the machine. The cache knows only its number. A page is *in flight* from its addition
//! until the device has delivered it. A second reader finds it and waits. One read serves both.
//! An [eviction policy](crate::eviction) selects the page that leaves when memory is short.
//!
//! Invariants:
//! 1. a page is in the table from `add` until it is evicted, dropped, or its read failed;
//! 2. a frame that is pinned or in flight is never reused;
//! 3. pages reach the eviction policy in the order of their addition; one in flight is skipped;
//! 4. at least as many frames are free as are reserved;
//! 5. a prefetched page counts as waste exactly once, when it leaves the cache unused.

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
mod lists;
mod marks;
mod memory;
mod refaults;
mod runs;
mod sharer;
mod size;
mod supply;
mod table;

use ahead::FirstUseWaits;
pub use counters::CacheCounters;
use frame_set::FrameSet;
use lists::FrameList;
pub use memory::LeavingChoice;
use refaults::RefaultTable;
pub use runs::{Mark, RunEntry};
pub use sharer::{PageSharer, UseCount};
use supply::FreeFrames;
use table::{FrameLink, PageTableIndex};

pub use crate::page::{FileId, FrameId};

/// State of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameState {
    /// No page: the initial state, also after a removal or a failed read. Left by [`Cache::add`].
    Free,
    /// A page that the device will deliver, by this request. Entered by [`Cache::add`]; left by
    /// [`Cache::fill`] or [`Cache::fail`].
    InFlight(RequestId),
    /// A page with valid data. Entered by [`Cache::fill`]; left by eviction or a drop.
    Filled,
    /// A pinned page with valid data that was dropped from the table. Left by the last unpin.
    Orphan,
    /// A pinned page without valid data. Entered by [`Cache::fail`]; left by the last unpin.
    Failed,
}

/// A frame that has held a page at least once.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// The file of the page, or the mapping of a page of memory: both have numbers of one sequence.
    file: FileId,
    /// Number of the page in its file or mapping.
    page: u64,
    /// Number of pins: one for each read or fault, and one while a page that the sharer had to
    /// forget is in use.
    pins: u32,
    /// State of the frame: free, or with a page and the validity of its data.
    state: FrameState,
    /// Next frame of its hash chain: its number plus one, or 0 at the end.
    next_in_table: FrameLink,
    /// Order of the folio that the page came in as: an aligned block of `1 << order` pages.
    order: u8,
    /// True if the page carries the readahead mark: its use is reported to the readahead policy.
    is_marked: bool,
    /// For a file's page: true until the use for which it was read, which is not counted again. For
    /// a page of memory: the referenced bit, set by a touch and cleared by eviction.
    is_referenced: bool,
    /// True if its data was overwritten on the device while it was in flight.
    is_stale: bool,
    /// Further state of a page of memory (swap); all flags are false for a page of a file.
    memory: memory::MemoryFlags,
}

impl Frame {
    /// Returns the key of the frame's page, for the eviction policy.
    fn key(&self) -> PageKey {
        PageKey::of(self.file, self.page)
    }
}

/// The page cache.
#[derive(Debug)]
pub struct Cache {
    /// All frames that have ever held a page. Memory of a frame is first touched at its first use.
    frames: Vec<Frame>,
    /// The free frames, and the number of frames in circulation.
    supply: FreeFrames,
    /// Free frames that are reserved for reads.
    reserved: u32,
    /// Frames by file and page: the pages that are filled or in flight.
    table: PageTableIndex,
    /// Lists of the frames, of the policy and of the cache.
    frame_lists: FrameLists,
    /// The eviction policy.
    policy: Box<dyn EvictionPolicy>,
    /// Number of pages that the policy was built for (initially the budget), or last adapted to.
    policy_pages: u32,
    /// True (the default) if pages of memory (swap) have lists separate from the policy's.
    has_memory_lists: bool,
    /// Waiting times of prefetched pages until their first use.
    waits: FirstUseWaits,
    /// Count of returned pages; `None` if they are not counted.
    refaults: Option<RefaultTable>,
    /// Totals of prefetched, used, wasted and evicted pages.
    counters: CacheCounters,
    /// Outcome of prefetched pages, by file: their used share limits further prefetch.
    credits: Vec<Credit>,
    /// Numbers of pages of memory that are held, leaving or being written.
    memory: memory::MemoryCounts,
    /// Shares pages with readers outside the machine; `None`: no such readers.
    sharer: Option<Box<dyn PageSharer>>,
    /// Frames with a prefetched page that is not used yet.
    unused: FrameSet,
    /// Word of `unused` (64 frames) at which [`collect_next_uses`](Cache::collect_next_uses)
    /// continues.
    collect_cursor: u32,
    /// Number of added pages for which `collect_next_uses` checks one word.
    collect_interval: u32,
    /// Pages added since the last check.
    collect_due: u32,
}

impl Cache {
    /// Creates an empty cache of `budget_pages` frames, with a policy built for that size.
    pub fn new(budget_pages: u32, policy: Box<dyn EvictionPolicy>) -> Cache {
        Cache::with_frames_max(budget_pages, budget_pages, policy)
    }

    /// As [`new`](Cache::new), for a budget that may be changed later, up to `frames_max` frames.
    pub fn with_frames_max(
        budget_pages: u32,
        frames_max: u32,
        policy: Box<dyn EvictionPolicy>,
    ) -> Cache {
        let unused = FrameSet::new(frames_max);
        Cache {
            frames: Vec::with_capacity(frames_max as usize),
            supply: FreeFrames::new(budget_pages, frames_max),
            reserved: 0,
            table: PageTableIndex::new(frames_max),
            frame_lists: FrameLists::new(frames_max),
            policy,
            policy_pages: budget_pages,
            has_memory_lists: true,
            waits: FirstUseWaits::new(budget_pages),
            refaults: None,
            counters: CacheCounters::default(),
            credits: Vec::new(),
            memory: memory::MemoryCounts::default(),
            sharer: None,
            collect_cursor: 0,
            collect_interval: eviction::collect_interval(frames_max, unused.words()),
            unused,
            collect_due: 0,
        }
    }

    /// Shares filled pages with readers outside the machine, before the first page is added.
    pub fn share_through(&mut self, sharer: Box<dyn PageSharer>) {
        self.sharer = Some(sharer);
    }

    /// Registers a file without pages, and returns its identifier.
    pub fn add_file(&mut self) -> FileId {
        self.credits.push(Credit::default());
        self.table.add_file()
    }

    /// Returns true if no page of the file is cached, or being read into the cache.
    pub fn is_empty(&self, file: FileId) -> bool {
        self.table.is_empty(file)
    }

    /// Number of frames in circulation: the size of the cache in pages.
    pub fn budget_pages(&self) -> u32 {
        self.supply.budget_frames()
    }

    /// Number of free frames.
    pub fn free_pages(&self) -> u32 {
        self.supply.free_frames()
    }

    /// The counters since the cache was created.
    pub fn counters(&self) -> CacheCounters {
        self.counters
    }

    /// The frame that holds the page, filled or in flight; `None` if the page is absent.
    #[inline]
    pub fn find(&self, file: FileId, page: u64) -> Option<FrameId> {
        self.table.find(&self.frames, file, page)
    }

    /// The state of a frame.
    pub fn state(&self, frame: FrameId) -> FrameState {
        self.frame(frame).state
    }

    /// Returns true if the frame's page was prefetched and is not used yet.
    pub fn is_unused(&self, frame: FrameId) -> bool {
        // For a page in flight, the shared access bits belong to the frame's previous page.
        let is_filled = self.state(frame) == FrameState::Filled;
        let sharer = self.sharer.as_ref().filter(|_| is_filled);
        self.unused.contains(frame) && !sharer.is_some_and(|sharer| sharer.is_used(frame))
    }

    /// The folio (block of pages) that the page came in as; `None` if the page is not cached.
    pub fn folio(&self, file: FileId, page: u64) -> Option<Folio> {
        Some(Folio::holding(page, self.frame(self.find(file, page)?).order))
    }

    /// Records that the device has delivered the page in flight: it becomes filled, and may be
    /// shared.
    pub fn fill(&mut self, id: FrameId) {
        if self.set_filled(id) {
            let Frame { file, page, is_marked, .. } = *self.frame(id);
            self.share(file, page, &[id], u64::from(is_marked));
        }
    }

    /// Sets a delivered page to filled, and puts it on its list if it is on none. A page that was
    /// overwritten on the device meanwhile leaves the cache. Returns true if the page may be shared
    /// with outside readers. A page of memory (swap) is never shared.
    #[inline]
    fn set_filled(&mut self, id: FrameId) -> bool {
        debug_assert!(matches!(self.state(id), FrameState::InFlight(_)));
        let frame = self.frame_mut(id);
        frame.state = FrameState::Filled;
        // Only pages of files are invalidated, so the stale flag is not checked.
        if frame.memory.is_memory {
            self.list_memory(id);
            return false;
        }
        if frame.is_stale {
            self.remove_page(id);
            return false;
        }
        self.list_file(id);
        true
    }

    /// Shares filled pages from page `first` on with readers outside the machine, if any exist.
    /// `marked_bits` has the readahead marks of the pages, the lowest bit for page `first`.
    fn share(&mut self, file: FileId, first: u64, frames: &[FrameId], marked_bits: u64) {
        if let Some(sharer) = self.sharer.as_mut().filter(|_| !frames.is_empty()) {
            sharer.share(file, first, frames, marked_bits);
        }
    }

    /// Records that the device could not deliver the page, which leaves the cache. An unused
    /// prefetched page counts as waste, a pinned one as used.
    pub fn fail(&mut self, id: FrameId) {
        debug_assert!(matches!(self.state(id), FrameState::InFlight(_)));
        self.remove_page(id);
        // A pinned page became an orphan: its reader must not take the content for valid data.
        if self.state(id) == FrameState::Orphan {
            self.frame_mut(id).state = FrameState::Failed;
        }
    }

    /// Pins the frame, which prevents its reuse. A page of memory leaves its list, unless it is on
    /// the eviction policy's. A page on a list of the policy stays there: the search for a victim
    /// skips pinned pages.
    pub fn pin(&mut self, id: FrameId) {
        self.update_frame(id, |frame| frame.pins += 1);
        if self.frame(id).memory.is_memory {
            self.unlist_memory(id);
        }
    }

    /// Releases one pin. With the last one, a frame whose page was dropped or failed becomes free.
    /// Any other filled page that is on no list returns to the one that it belongs to.
    pub fn unpin(&mut self, id: FrameId) {
        debug_assert!(self.frame(id).pins > 0, "unpinned more often than pinned");
        self.update_frame(id, |frame| frame.pins -= 1);
        let frame = self.frame(id);
        if frame.pins > 0 {
            return;
        }
        match frame.state {
            FrameState::Orphan | FrameState::Failed => self.free_frame(id),
            FrameState::Filled if frame.memory.is_memory => self.list_memory(id),
            // Eviction may have removed it from its list because it was pinned.
            FrameState::Filled => self.list_file(id),
            // A page in flight is listed when it arrives.
            _ => {}
        }
    }

    /// Records a use of the page, which then never counts as waste. The use is reported to the
    /// policy unless it is the one that the page was read for. The first use moves a prefetched
    /// page from the list of prefetched pages to the policy.
    pub fn touch(&mut self, id: FrameId) {
        let is_first = self.record_use(id);
        // The flag is set for the use that the page was read for, which the policy knows already.
        if core::mem::take(&mut self.frame_mut(id).is_referenced) {
            return;
        }
        if is_first && self.frame_lists.list_of(id) == Some(FrameList::PREFETCHED) {
            self.enter_policy_on_first_use(id);
        } else {
            let key = self.frame(id).key();
            self.policy.used(&mut self.frame_lists, id, key);
        }
    }

    /// Records a use that belongs to the same reference as the use before it: two reads that meet
    /// within a page. Counts only if the page was not used since it was added. Otherwise a sequence
    /// of small reads would make the page look reused to the policy.
    pub fn continue_use(&mut self, id: FrameId) {
        if self.frame(id).is_referenced || self.unused.contains(id) {
            self.touch(id);
        }
    }

    /// Drops the filled pages of the range that are not in use now, as `POSIX_FADV_DONTNEED` does.
    /// Pages that are pinned, in flight or being copied by a sharer's reader stay in the cache.
    pub fn drop_unused(&mut self, file: FileId, range: PageRange) {
        let mut ids = self.table.cached_frames(&self.frames, file, range);
        ids.retain(|&id| self.state(id) == FrameState::Filled && self.frame(id).pins == 0);
        let never_if_in_use = |_: &mut Cache, _: FrameId| false;
        self.drop_all(&ids, never_if_in_use);
    }

    /// Unpins the pages that the [`PageSharer`] had to forget and that are no longer in use.
    pub fn take_returned(&mut self) {
        let returned = self.sharer.as_mut().map_or(Vec::new(), |sharer| sharer.take_returned());
        returned.into_iter().for_each(|id| self.unpin(id));
    }

    /// Collects all uses from the sharer, so that [`counters`](Cache::counters) are up to date.
    pub fn collect_uses(&mut self) {
        for id in (0..self.frames.len() as u32).map(FrameId) {
            if self.state(id) == FrameState::Filled {
                (0..self.take_uses(id)).for_each(|_| self.touch(id));
            }
        }
    }

    /// First page of the range that is in flight and was [invalidated](Cache::invalidate); `None`
    /// without such a page.
    pub fn first_stale(&self, file: FileId, range: PageRange) -> Option<u64> {
        let is_stale =
            |frame: &Frame| frame.is_stale && matches!(frame.state, FrameState::InFlight(_));
        self.table.first_matching(&self.frames, file, range, is_stale).map(|(page, _)| page)
    }

    /// Records that the data of the range has changed on the device: no page of it may be served
    /// again. Readers with a pinned page keep its old data.
    pub fn invalidate(&mut self, file: FileId, range: PageRange) {
        let mut ids = self.table.cached_frames(&self.frames, file, range);
        ids.retain(|&id| {
            let frame = self.frame_mut(id);
            // A page in flight leaves the cache when it arrives: see `set_filled`.
            frame.is_stale |= frame.state != FrameState::Filled;
            frame.state == FrameState::Filled
        });
        self.drop_all(&ids, |cache, id| {
            // It leaves the table, and stays pinned for its present readers until they return it.
            cache.sharer.as_mut().expect("only a sharer refuses").forget(id);
            cache.pin(id);
            true
        });
    }

    /// Drops the filled pages of these frames. One in use by an outside reader is dropped only if
    /// `may_drop` returns true for it. The freed frames are reused in the order of `ids`.
    fn drop_all(&mut self, ids: &[FrameId], mut may_drop: impl FnMut(&mut Cache, FrameId) -> bool) {
        let freed_before = self.supply.freed_count();
        for batch in ids.chunks(eviction::RECALL_BATCH_MAX) {
            // Ends their sharing. A bit is set for each page that an outside reader uses now.
            let refused_bits = self.recall_all(batch);
            for (index, &id) in batch.iter().enumerate() {
                if refused_bits >> index & 1 == 0 || may_drop(self, id) {
                    self.remove_page(id);
                }
            }
        }
        self.supply.reverse_freed_since(freed_before);
    }

    /// Removes the page from the table and its list. It counts as waste if it was prefetched and
    /// never used. A pinned page counts as used, and its frame becomes an orphan; any other frame
    /// becomes free.
    #[inline]
    fn remove_page(&mut self, id: FrameId) {
        let is_pinned = self.frame(id).pins > 0;
        if self.frame_lists.is_listed(id) {
            self.frame_lists.unlink(id);
        }
        self.table.remove(&mut self.frames, id);
        if is_pinned {
            // Its reader will report the use only after it has left.
            self.record_use(id);
            self.update_frame(id, |frame| frame.state = FrameState::Orphan);
        } else {
            self.count_waste_if_unused(id);
            self.free_frame(id);
        }
    }

    /// Frees a frame: its page leaves the cache, and the frame returns to the supply.
    fn free_frame(&mut self, id: FrameId) {
        self.update_frame(id, |frame| {
            frame.state = FrameState::Free;
            frame.memory = memory::MemoryFlags::default();
        });
        self.supply.put_back(id);
    }

    /// Applies `update` to a frame. If it holds a page of memory, updates the counts in `memory`.
    fn update_frame(&mut self, id: FrameId, update: impl FnOnce(&mut Frame)) {
        let frame = &mut self.frames[id.0 as usize];
        if !frame.memory.is_memory {
            return update(frame);
        }
        self.memory.subtract_frame(frame);
        update(frame);
        self.memory.add_frame(frame);
    }

    /// Returns the frame with this identifier, which was used before.
    fn frame(&self, id: FrameId) -> &Frame {
        &self.frames[id.0 as usize]
    }

    /// Returns the frame with this identifier, to be changed.
    fn frame_mut(&mut self, id: FrameId) -> &mut Frame {
        &mut self.frames[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::TwoLists;

    /// Values of `is_ahead`.
    const REQUESTED: bool = false;
    const PREFETCHED: bool = true;

    fn add_filled(cache: &mut Cache, file: FileId, page: u64, is_ahead: bool) -> FrameId {
        let id = cache.add(file, page, Folio::holding(page, 0), Mark::Clear, is_ahead).unwrap();
        cache.fill(id);
        id
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_unused_page_is_evicted_first() {
        let mut cache = Cache::new(3, Box::new(TwoLists));
        let file = cache.add_file();
        for page in 0..5 {
            add_filled(&mut cache, file, page, REQUESTED);
        }
        let cached: Vec<u64> = (0..5).filter(|&page| cache.find(file, page).is_some()).collect();
        assert_eq!(cached, [2, 3, 4]);
        assert_eq!((cache.counters().evicted_pages, cache.free_pages()), (2, 0));
    }

    #[test]
    fn page_used_twice_outlives_a_stream_of_pages_used_once() {
        let mut cache = Cache::new(4, Box::new(TwoLists));
        let file = cache.add_file();
        let kept = add_filled(&mut cache, file, 100, REQUESTED);
        cache.touch(kept);
        cache.touch(kept);
        for page in 0..50 {
            let frame = add_filled(&mut cache, file, page, REQUESTED);
            cache.touch(frame);
        }
        assert_eq!(cache.find(file, 100), Some(kept));
    }

    #[test]
    fn pinned_and_in_flight_pages_stay_and_a_full_cache_refuses_new_pages() {
        let mut cache = Cache::new(2, Box::new(TwoLists));
        let file = cache.add_file();
        let pinned = add_filled(&mut cache, file, 0, REQUESTED);
        cache.pin(pinned);
        let in_flight = cache.add(file, 1, Folio::holding(1, 0), Mark::Clear, REQUESTED).unwrap();
        assert_eq!(cache.add(file, 2, Folio::holding(2, 0), Mark::Clear, REQUESTED), None);
        cache.unpin(pinned);
        assert_eq!(cache.add(file, 2, Folio::holding(2, 0), Mark::Clear, REQUESTED), Some(pinned));
        assert_eq!(cache.find(file, 1), Some(in_flight));
        assert_eq!(cache.find(file, 0), None);
    }

    #[test]
    fn prefetched_page_evicted_unused_counts_as_waste() {
        let mut cache = Cache::new(2, Box::new(TwoLists));
        let file = cache.add_file();
        let used = add_filled(&mut cache, file, 0, PREFETCHED);
        cache.touch(used);
        add_filled(&mut cache, file, 1, PREFETCHED);
        add_filled(&mut cache, file, 2, PREFETCHED);
        add_filled(&mut cache, file, 3, PREFETCHED);
        let counted = cache.counters();
        assert_eq!((counted.readahead_pages, counted.used_pages, counted.waste_pages), (4, 1, 1));
    }

    #[test]
    fn prefetched_page_invalidated_while_pinned_counts_as_used() {
        let mut cache = Cache::new(2, Box::new(TwoLists));
        let file = cache.add_file();
        let held = add_filled(&mut cache, file, 0, PREFETCHED);
        cache.pin(held);
        cache.invalidate(file, PageRange::new(0, 1));
        cache.touch(held);
        let counted = cache.counters();
        assert_eq!((counted.readahead_pages, counted.used_pages, counted.waste_pages), (1, 1, 0));
    }

    #[test]
    fn failed_page_leaves_the_table_at_once_and_frees_its_frame_on_unpin() {
        let mut cache = Cache::new(1, Box::new(TwoLists));
        let file = cache.add_file();
        let id = cache.add(file, 7, Folio::holding(7, 0), Mark::Clear, REQUESTED).unwrap();
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
        let id = cache.add(file, 0, Folio::holding(0, 0), Mark::Clear, REQUESTED).unwrap();
        cache.invalidate(file, PageRange::new(0, 4));
        cache.fill(id);
        assert_eq!(cache.find(file, 0), None);
        assert_eq!(cache.free_pages(), 2);
    }

    #[test]
    fn dontneed_spares_pinned_pages() {
        let mut cache = Cache::new(4, Box::new(TwoLists));
        let file = cache.add_file();
        let held = add_filled(&mut cache, file, 0, REQUESTED);
        cache.pin(held);
        add_filled(&mut cache, file, 1, REQUESTED);
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
            cache.add(file, page, folio, Mark::Set, PREFETCHED).unwrap();
        }
        assert_eq!(cache.marked(file, 6), Some(folio));
        cache.clear_mark(file, folio);
        assert_eq!(cache.marked(file, 4), None);
    }
}
