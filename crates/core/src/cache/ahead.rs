//! Prefetched pages of files that are not used yet.
//!
//! A prefetched page is neither a page used once nor a useless one. Its value is known: it saves a
//! request when its reader reaches it, unless the reader stopped. The criteria of the eviction
//! policy don't apply, so the page joins the policy's lists only at its first use. Under a policy
//! whose pages [enter](crate::eviction::EvictionPolicy::enters_unused) unused, all pages are on the
//! policy's lists.
//!
//! How it works:
//!
//! - *A separate limit.* At most three quarters of the memory are prefetched, unused pages. At that
//!   limit no more is prefetched. Evicting others for it would gain nothing: in streams, the oldest
//!   prefetched page is the next one to be used.
//! - *A sufficient lifetime.* A page lives twice the longest recent waiting time until a first use.
//!   It lives at least until an eighth of the memory was added. An older page is considered wasted,
//!   and leaves before all others. Without observations, the lifetime is the time in which half of
//!   the memory is added.
//!
//! Time is counted in pages added to the cache, for any reason: uses don't age pages, and without
//! additions no page is evicted. The longest waiting time decays by a quarter while half of the
//! memory is added.
//!
//! Rejected: evict the oldest page at the limit, after half of the memory in pushes to any list.
//! Each use under `lru`, and each round on a clock, is also a push. With 16 streams and a hot set,
//! nearly half of the prefetched pages left before their use (`readpath eval eviction --cells
//! reads/`).

use super::{Cache, CacheCounters, FileId, Frame, FrameId, FrameList, FrameSet, FrameState};
use crate::eviction::PageOrigin;
use crate::readahead::Credit;

/// Divisor of the memory in the limit of prefetched, unused pages.
const PREFETCHED_SHARE_DIVISOR: u32 = 4;
/// Multiplier in that limit: three quarters of the memory. With a half, one stream of a remote
/// server has too little in flight. Over NFS with a round trip of a tenth of a second at 10 Gbit/s
/// (table C of `readpath reproduce`) it has 0.74 of the best window's rate.
const PREFETCHED_SHARE_FACTOR: u32 = 3;
/// Divisor of the memory that gives the pages added per decay term.
const DECAY_TERM_DIVISOR: u32 = 2;
/// Lifetime of a prefetched page, as a multiple of the longest recent waiting time.
const LIFETIME_FACTOR: u32 = 2;
/// Divisor of the memory that gives the shortest lifetime, in added pages.
const LIFETIME_MIN_DIVISOR: u32 = 8;
/// Divisor by which the longest waiting time decays in each term.
const WAIT_DECAY_DIVISOR: u32 = 4;

/// Waiting times of prefetched pages until their first use, in added pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstUseWaits {
    /// Wrapping count of all pages added.
    added_pages: u32,
    /// The longest recent waiting time, with decay.
    longest_wait: u32,
    /// Value of `added_pages` at the last decay.
    decayed_at: u32,
}

impl FirstUseWaits {
    /// Initial state for a memory of `pages` pages, in which no page was added or used yet.
    pub(super) fn new(pages: u32) -> FirstUseWaits {
        FirstUseWaits {
            added_pages: 0,
            // The lifetime is this multiplied by `LIFETIME_FACTOR`: initially one decay term, half
            // of the memory.
            longest_wait: pages / DECAY_TERM_DIVISOR / LIFETIME_FACTOR,
            decayed_at: 0,
        }
    }

    /// Wrapping count of all pages added: the clock of waiting times.
    pub(super) fn added_pages(&self) -> u32 {
        self.added_pages
    }

    /// Records that `count` pages are added to a memory of `memory_pages`. The longest waiting time
    /// decays each time half of the memory was added, once for each call at most. An outdated long
    /// wait is thus forgotten after some time.
    pub(super) fn record_additions(&mut self, count: u32, memory_pages: u32) {
        self.added_pages = self.added_pages.wrapping_add(count);
        if self.added_pages.wrapping_sub(self.decayed_at) > memory_pages / DECAY_TERM_DIVISOR {
            self.decayed_at = self.added_pages;
            self.longest_wait -= self.longest_wait / WAIT_DECAY_DIVISOR;
        }
    }

    /// Records the first use of a prefetched page. `added_at` is the count of added pages at which
    /// it was added. The waiting time counts as at most `memory_pages`, the size of the memory.
    pub(super) fn record_first_use(&mut self, added_at: u32, memory_pages: u32) {
        let wait = self.added_pages.wrapping_sub(added_at);
        self.longest_wait = self.longest_wait.max(wait).min(memory_pages);
    }

    /// Returns true if a prefetched page has exceeded its lifetime. `added_at` is the count of
    /// added pages at which it was added.
    fn has_expired(&self, added_at: u32, memory_pages: u32) -> bool {
        let lifetime =
            (LIFETIME_FACTOR * self.longest_wait).max(memory_pages / LIFETIME_MIN_DIVISOR);
        self.added_pages.wrapping_sub(added_at) > lifetime
    }
}

impl Cache {
    /// Counts of the file's prefetched pages: used, lost, and not used yet.
    pub fn credit(&self, file: FileId) -> &Credit {
        &self.credits[file.0 as usize]
    }

    /// Resets the counts of the file's prefetched pages, for a new file with the same identifier.
    pub fn forget_credit(&mut self, file: FileId) {
        self.credits[file.0 as usize] = Credit::default();
    }

    /// Number of further pages of the file that its credit allows. The credit bounds the
    /// prefetched, unused pages of a file by the use of its earlier ones. `request_pages` is the
    /// number of pages that the device transfers in the time of a request. Each used page earns
    /// that number of further pages, because it saved a request.
    pub fn credit_room(&self, file: FileId, request_pages: u64) -> u64 {
        self.credit(file).room(request_pages, self.budget_pages().into())
    }

    /// Records a use of the frame's page. Returns true if it is the first use of a prefetched page.
    pub(super) fn record_use(&mut self, id: FrameId) -> bool {
        let Cache { unused, counters, credits, frames, .. } = self;
        count_first_use(unused, counters, credits, &frames[id.0 as usize], id)
    }

    /// Counts the page as used, because its later uses are invisible. The caller maps it into a
    /// program, for example. A prefetched page enters the eviction policy, as at any first use. No
    /// other use is reported to the policy.
    pub fn count_as_used(&mut self, id: FrameId) {
        if self.record_use(id) && self.frame_lists.list_of(id) == Some(FrameList::PREFETCHED) {
            self.enter_policy_on_first_use(id);
        }
    }

    /// Counts the page as waste if it leaves prefetched and unused: in the totals, and in the
    /// credit of its file. A page of memory (swap) counts in `waste_pages` like a page of a file,
    /// and also in `memory_waste_pages`.
    pub(super) fn count_waste_if_unused(&mut self, id: FrameId) {
        if self.unused.remove(id) {
            let Frame { file, memory, .. } = &self.frames[id.0 as usize];
            self.credits[file.0 as usize].lost();
            self.counters.waste_pages += 1;
            self.counters.memory_waste_pages += u64::from(memory.is_memory);
        }
    }

    /// Removes a page in flight whose request was cancelled; counts it neither as used nor as
    /// waste.
    pub fn cancel_prefetch(&mut self, id: FrameId) {
        if self.unused.remove(id) {
            self.credits[self.frames[id.0 as usize].file.0 as usize].withdrawn();
            self.counters.withdrawn_pages += 1;
        }
        // It is not counted as unused any more, so `fail` counts no waste.
        self.fail(id);
    }

    /// Limit of prefetched, unused pages, from the size of the memory.
    fn prefetched_pages_max(&self) -> u32 {
        self.budget_pages() / PREFETCHED_SHARE_DIVISOR * PREFETCHED_SHARE_FACTOR
    }

    /// Returns true if `id`, the oldest prefetched page of a file, has exceeded its lifetime, or
    /// there are more than `prefetched_pages_max` such pages, as after a reduction of the memory.
    pub(super) fn is_expired_file_prefetch(&self, id: FrameId) -> bool {
        // The note of a prefetched page is the count of added pages at its addition.
        self.waits.has_expired(self.frame_lists.note(id), self.budget_pages())
            || self.frame_lists.pages(FrameList::PREFETCHED) > self.prefetched_pages_max()
    }

    /// Returns true if `id`, the oldest prefetched page of memory, has exceeded its lifetime, or
    /// there are more than `prefetched_pages_max` such pages. Their addition is not limited.
    pub(super) fn is_expired_memory_prefetch(&self, id: FrameId) -> bool {
        // The note of a prefetched page is the count of added pages at its addition.
        self.waits.has_expired(self.frame_lists.note(id), self.budget_pages())
            || self.frame_lists.pages(FrameList::MEMORY_PREFETCHED) > self.prefetched_pages_max()
    }

    /// Moves a page from the list of prefetched pages to the policy's lists, at its first use.
    pub(super) fn enter_policy_on_first_use(&mut self, id: FrameId) {
        // The note is the count of added pages at its addition, until the policy sets another one.
        self.waits.record_first_use(self.frame_lists.note(id), self.budget_pages());
        self.frame_lists.unlink(id);
        let key = self.frame(id).key();
        // For the policy the page enters with its first use, as a requested one does.
        self.policy.enter(&mut self.frame_lists, id, key, PageOrigin::Demand);
    }

    /// Moves a prefetched page to the policy's lists if readers outside the machine have used it.
    /// Returns true if they have. `queries_left` is the number of pages that may still be found
    /// used in this scan, and is reduced by such a page; at 0 the page counts as unused. The query
    /// resets the uses of the page; several count as one.
    pub(super) fn enter_policy_if_used(&mut self, id: FrameId, queries_left: &mut u32) -> bool {
        if *queries_left == 0 || self.take_uses(id) == 0 {
            return false;
        }
        *queries_left -= 1;
        self.record_use(id);
        self.enter_policy_on_first_use(id);
        true
    }

    /// Number of further pages, up to `pages`, that may be prefetched within the limit. Used and
    /// expired pages leave the list first.
    pub(super) fn allowed_prefetch_pages(&mut self, pages: u64) -> u64 {
        // All prefetched pages are on the policy's lists, and have no limit of their own.
        if self.policy.enters_unused() {
            return pages;
        }
        // Bounds the number of used pages that this call moves to the policy, in proportion to the
        // pages that it is called for, and by the longest possible list. The factor 2 is chosen,
        // not measured.
        let mut queries_left = (2 * pages).min(self.prefetched_pages_max().into()) as u32;
        loop {
            let allowed_pages = self
                .prefetched_pages_max()
                .saturating_sub(self.frame_lists.pages(FrameList::PREFETCHED));
            if u64::from(allowed_pages) >= pages
                || !self.retire_oldest_prefetched(&mut queries_left)
            {
                return pages.min(allowed_pages.into());
            }
        }
    }

    /// Moves the oldest prefetched page to the policy if it was used, or evicts it if it has
    /// expired. The page stays, and the result is false, if it is neither used nor expired, in
    /// flight, pinned or in use. Returns false also if the list is empty or `queries_left` is 0.
    fn retire_oldest_prefetched(&mut self, queries_left: &mut u32) -> bool {
        let Some(id) = self.frame_lists.oldest(FrameList::PREFETCHED) else { return false };
        if self.state(id) != FrameState::Filled || self.frame(id).pins > 0 || *queries_left == 0 {
            return false;
        }
        if self.enter_policy_if_used(id, queries_left) {
            return true;
        }
        // The limit of prefetched pages is no reason to evict here: see the module.
        if !self.waits.has_expired(self.frame_lists.note(id), self.budget_pages()) {
            return false;
        }
        // A recall other than 0 was refused: a reader outside the machine uses the page.
        match self.recall_all(&[id]) {
            0 => self.evict(id),
            // The recall has found its first use.
            _ if !self.unused.contains(id) => self.enter_policy_on_first_use(id),
            _ => return false,
        }
        true
    }
}

/// Records a use of the frame's page in the counters. Returns true if it is the first use of a
/// prefetched page. Takes parts of the cache, for callers that have borrowed other parts.
pub(super) fn count_first_use(
    unused: &mut FrameSet,
    counters: &mut CacheCounters,
    credits: &mut [Credit],
    frame: &Frame,
    id: FrameId,
) -> bool {
    let is_first = unused.remove(id);
    if is_first {
        counters.used_pages += 1;
        credits[frame.file.0 as usize].used();
    }
    is_first
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;
    use alloc::vec::Vec;

    use super::super::{FileId, PageSharer, RunEntry, UseCount};
    use super::*;
    use crate::eviction::{Lru, TwoLists};
    use crate::unit::PageRange;

    const PREFETCHED: RunEntry = RunEntry { order: 0, marked: 0, is_ahead: true, is_pinned: false };
    const REQUESTED: RunEntry = RunEntry { is_ahead: false, ..PREFETCHED };

    /// Adds `count` pages from `first` on, which the device delivers at once.
    fn add_filled(cache: &mut Cache, file: FileId, first: u64, count: u64, entry: RunEntry) {
        let mut frames = Vec::new();
        cache.add_run(file, PageRange::new(first, count), entry, |_, id| frames.push(id));
        frames.into_iter().for_each(|id| cache.fill(id));
    }

    /// Touches pages, all of which must be cached.
    fn use_pages(cache: &mut Cache, file: FileId, pages: core::ops::Range<u64>) {
        for page in pages {
            let id = cache.find(file, page).expect("it was read ahead and lives");
            cache.touch(id);
        }
    }

    /// One of three pages in flight is cancelled, which is neither use nor waste.
    #[test]
    fn cancelled_prefetch_counts_neither_as_used_nor_as_waste() {
        let mut cache = Cache::new(64, Box::new(Lru));
        let file = cache.add_file();
        let mut frames = Vec::new();
        cache.add_run(file, PageRange::new(0, 3), PREFETCHED, |_, id| frames.push(id));
        cache.cancel_prefetch(frames[1]);
        assert_eq!((cache.find(file, 0), cache.find(file, 1)), (Some(frames[0]), None));
        let counted = cache.counters();
        assert_eq!((counted.withdrawn_pages, counted.waste_pages), (1, 0));
        assert_eq!((counted.standing_pages(), cache.credit(file).standing_pages()), (2, 2));
        assert_eq!(cache.credit(file).used_percent(), None);
    }

    /// In a memory of 64 pages, three quarters may be prefetched: 48. Then 24 pages are requested
    /// and used. For the last 8 of them others of the 24 leave, not the older prefetched pages,
    /// although uses move pages on the lists of `lru`. Once 8 of the 48 are used, 8 more are
    /// allowed.
    #[test]
    fn prefetched_pages_are_bounded_and_outlive_pages_used_meanwhile() {
        let mut cache = Cache::new(64, Box::new(Lru));
        let (file, other) = (cache.add_file(), cache.add_file());
        assert_eq!(cache.room_ahead(100), 48);
        add_filled(&mut cache, file, 0, 48, PREFETCHED);
        assert_eq!(cache.room_ahead(1), 0);
        for page in 0..24 {
            add_filled(&mut cache, other, page, 1, REQUESTED);
            (0..10).for_each(|_| use_pages(&mut cache, other, page..page + 1));
        }
        use_pages(&mut cache, file, 0..8);
        assert_eq!((cache.room_ahead(100), cache.counters().waste_pages), (8, 0));
        // The other 40 are never used. The longest wait was 24 added pages, so that the lifetime is
        // at most 48: the 24 pages before and 30 more exceed it.
        add_filled(&mut cache, other, 100, 30, REQUESTED);
        assert_eq!(cache.room_ahead(100), 48, "those that were over have left");
        assert_eq!(cache.counters().waste_pages, 40);
    }

    /// In a memory of 64 pages, the first wait is 10 added pages: the lifetime is 20. The wait
    /// decays by a quarter each time more than 32 pages were added. The minimum of the lifetime is
    /// an eighth of the memory: 8.
    #[test]
    fn a_prefetched_page_lives_twice_the_longest_recent_wait() {
        const MEMORY_PAGES: u32 = 64;
        let mut waits = FirstUseWaits { added_pages: 0, longest_wait: 0, decayed_at: 0 };
        waits.record_additions(10, MEMORY_PAGES);
        waits.record_first_use(0, MEMORY_PAGES);
        // The clock is at 10: these pages were added 20 and 21 pages before.
        assert!(!waits.has_expired(u32::MAX - 9, MEMORY_PAGES));
        assert!(waits.has_expired(u32::MAX - 10, MEMORY_PAGES));
        (0..33).for_each(|_| waits.record_additions(1, MEMORY_PAGES));
        // 10 - 10 / 4 = 8 (in integers), a lifetime of 16.
        assert_eq!((waits.longest_wait, waits.added_pages), (8, 43));
        assert!(!waits.has_expired(43 - 16, MEMORY_PAGES));
        assert!(waits.has_expired(43 - 17, MEMORY_PAGES));
        (0..20).for_each(|_| waits.record_additions(33, MEMORY_PAGES));
        assert!(!waits.has_expired(waits.added_pages - 8, MEMORY_PAGES));
        assert!(waits.has_expired(waits.added_pages - 9, MEMORY_PAGES));
    }

    /// Three quarters of 64 pages are prefetched. The environment maps 8 of them.
    #[test]
    fn pages_that_count_as_used_make_room_for_prefetched_ones() {
        let mut cache = Cache::new(64, Box::new(Lru));
        let file = cache.add_file();
        add_filled(&mut cache, file, 0, 48, PREFETCHED);
        assert_eq!(cache.room_ahead(100), 0);
        for page in 0..8 {
            let id = cache.find(file, page).expect("it was read ahead and lives");
            cache.count_as_used(id);
        }
        assert_eq!(cache.room_ahead(100), 8);
    }

    /// A reader that pins each page between the query of its uses and its recall.
    #[derive(Debug, Default)]
    struct PinnedAtRecall {
        /// Number of queries so far.
        queries: u32,
    }

    impl PageSharer for PinnedAtRecall {
        fn share(&mut self, _file: FileId, _first: u64, _frames: &[FrameId], _marked: u64) {}

        fn unmark(&mut self, _frame: FrameId) {}

        fn take_uses(&mut self, _frame: FrameId) -> UseCount {
            self.queries += 1;
            // The first query is the one before a recall.
            if self.queries.is_multiple_of(2) { UseCount::Once } else { UseCount::None }
        }

        fn take_uses_of(&mut self, _first: FrameId, _frame_bits: u64) -> [u64; 2] {
            [0; 2]
        }

        fn is_used(&self, _frame: FrameId) -> bool {
            false
        }

        fn recall(&mut self, _frame: FrameId) -> bool {
            false
        }

        fn forget(&mut self, _frame: FrameId) {}

        fn take_returned(&mut self) -> Vec<FrameId> {
            Vec::new()
        }

        fn allow_pins(&mut self, _may_pin: bool) {}
    }

    /// One of 128 pages is prefetched. 70 others are added, more than the first lifetime of 64. A
    /// reader uses the page at its recall, so that it stays, as a page of the policy. Three
    /// quarters of the memory may be prefetched: 96.
    #[test]
    fn prefetched_page_used_at_its_refused_recall_enters_the_policy() {
        let mut cache = Cache::new(128, Box::new(Lru));
        cache.share_through(Box::new(PinnedAtRecall::default()));
        let [file, other] = [0; 2].map(|_| cache.add_file());
        add_filled(&mut cache, file, 0, 1, PREFETCHED);
        add_filled(&mut cache, other, 0, 70, REQUESTED);
        assert_eq!(cache.allowed_prefetch_pages(96), 96);
        assert_eq!((cache.counters().used_pages, cache.counters().evicted_pages), (1, 0));
    }

    #[test]
    fn two_lists_has_no_bound_on_prefetched_pages() {
        let mut cache = Cache::new(64, Box::new(TwoLists));
        let file = cache.add_file();
        add_filled(&mut cache, file, 0, 60, PREFETCHED);
        assert_eq!(cache.room_ahead(100), 100);
    }
}
