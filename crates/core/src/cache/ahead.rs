//! Pages of files that were read ahead and that nobody has used yet: *promised*.
//!
//! Such a page is none that was used once, nor one that nobody wants. What it is worth is known: it
//! saves a request when its reader comes to it, unless its reader went elsewhere. So none of the
//! reclaim law's judgements are of use for it, and it is none of its pages until its first use. Under
//! a law that has pages [enter](crate::eviction::EvictionPolicy::enters_unused) unused there are no others
//! than the law's.
//!
//! The law in words:
//!
//! - *A bound of their own.* Three quarters of the memory at the most are promised. At that bound nothing more
//!   is read ahead. It would be no gain to have others leave for it: of what is read ahead in streams
//!   the oldest is what is used next.
//! - *A life that is long enough.* A page lives twice as long as those waited for their first use
//!   that were used of late, and as long as it takes to add an eighth of the memory at least. What is
//!   older was promised in vain, and leaves before all others. As long as nothing is known, that is
//!   the time in which half of the memory is added.
//!
//! Time is counted in pages that are added to the cache, whoever asks for them: uses don't age
//! anything, and what is not added drives nothing out. The longest wait fades by a quarter while half
//! of the memory is added.
//!
//! What was there before and is worse: to have the oldest leave at the bound, after half of the
//! memory in pushes to any list. A push is also each use under `lru`, and each page that goes
//! round on a clock; so of 16 streams beside a hot set nearly half of what was read ahead left before
//! its reader came (`readpath cache-regret --cells reads/`).

use super::{Cache, CacheCounters, FileId, Frame, FrameId, FrameList, FrameSet, FrameState};
use crate::eviction::PageOrigin;
use crate::readahead::Credit;

/// Of four pages of memory three may be promised: with a half, one stream of a far server has too little on its way (table C, a
/// tenth of a second at 10 Gbit/s: 0.74 of the best window's rate).
const PREFETCHED_DENOMINATOR: u32 = 4;
const PREFETCHED_NUMERATOR: u32 = 3;
/// Time goes on while one of so many pages of memory is added.
const DECAY_TERM_DIVISOR: u32 = 2;
/// So many times as long as others waited for their first use a promised page lives…
const LIFETIME_FACTOR: u32 = 2;
/// …and until one of so many pages of memory was added at least.
const LIFETIME_MIN_DIVISOR: u32 = 8;
/// The longest wait fades by one of so many parts in each term.
const FADING: u32 = 4;

/// How long pages that are read ahead wait for their first use, in pages added.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstUseWaits {
    /// Pages that were ever added, round and round.
    now: u32,
    /// The longest wait of late, fading.
    longest: u32,
    /// When that last faded.
    faded: u32,
}

impl FirstUseWaits {
    /// None is known of a memory of so many pages.
    pub(super) fn new(pages: u32) -> FirstUseWaits {
        FirstUseWaits { now: 0, longest: pages / DECAY_TERM_DIVISOR / LIFETIME_FACTOR, faded: 0 }
    }

    /// How many pages were ever added, round and round.
    pub(super) fn now(&self) -> u32 {
        self.now
    }

    /// So many pages are added to a memory of `memory_pages`.
    pub(super) fn added(&mut self, count: u32, memory_pages: u32) {
        self.now = self.now.wrapping_add(count);
        if self.now.wrapping_sub(self.faded) > memory_pages / DECAY_TERM_DIVISOR {
            self.faded = self.now;
            self.longest -= self.longest / FADING;
        }
    }

    /// A page that came at `then` is used. It has waited no longer than the whole memory takes, for all
    /// that is learnt from it.
    pub(super) fn ended(&mut self, then: u32, memory_pages: u32) {
        self.longest = self.longest.max(self.now.wrapping_sub(then)).min(memory_pages);
    }

    /// Whether a page that came at `then` has waited for longer than one does that is used.
    fn is_over(&self, then: u32, memory_pages: u32) -> bool {
        let life = (LIFETIME_FACTOR * self.longest).max(memory_pages / LIFETIME_MIN_DIVISOR);
        self.now.wrapping_sub(then) > life
    }
}

impl Cache {
    /// What came of what was read ahead of the file.
    pub fn credit(&self, file: FileId) -> &Credit {
        &self.credits[file.0 as usize]
    }

    /// Nothing is known any more of what is read ahead of the file.
    pub fn forget_credit(&mut self, file: FileId) {
        self.credits[file.0 as usize] = Credit::default();
    }

    /// How many more pages of the file may be read ahead on its credit, where a request costs so many.
    pub fn credit_room(&self, file: FileId, request_pages: u64) -> u64 {
        self.credit(file).room(request_pages, self.budget_pages().into())
    }

    /// The page of the frame is used; gives whether it was read ahead, and this is its first use.
    pub(super) fn note_use(&mut self, id: FrameId) -> bool {
        let Cache { unused, counters, credits, frames, .. } = self;
        first_use(unused, counters, credits, &frames[id.0 as usize], id)
    }

    /// The page of the frame went where its uses aren't seen: it counts as used, and is no newer for that.
    pub fn count_as_used(&mut self, id: FrameId) {
        self.note_use(id);
    }

    /// The page of the frame leaves: if it was read ahead and nobody has used it, it was read in vain.
    pub(super) fn count_waste_if_unused(&mut self, id: FrameId) {
        if self.unused.remove(id) {
            let Frame { file, memory, .. } = &self.frames[id.0 as usize];
            self.credits[file.0 as usize].lost();
            self.counters.waste_pages += 1;
            self.counters.memory_waste_pages += u64::from(memory.is_memory);
        }
    }

    /// The page's request was withdrawn: it leaves the cache, and says nothing of what is read ahead.
    pub fn cancel_prefetch(&mut self, id: FrameId) {
        if self.unused.remove(id) {
            self.credits[self.frames[id.0 as usize].file.0 as usize].withdrawn();
            self.counters.withdrawn_pages += 1;
        }
        self.fail(id);
    }

    fn prefetched_pages_max(&self) -> u32 {
        self.budget_pages() / PREFETCHED_DENOMINATOR * PREFETCHED_NUMERATOR
    }

    /// Whether a promised page, the oldest of them, was promised in vain, or they are too many.
    pub(super) fn is_stale(&self, id: FrameId) -> bool {
        self.waits.is_over(self.places.note(id), self.budget_pages())
            || self.places.pages(FrameList::PROMISED) > self.prefetched_pages_max()
    }

    /// The same of a page of memory that was read ahead.
    pub(super) fn is_expired_memory_prefetch(&self, id: FrameId) -> bool {
        self.waits.is_over(self.places.note(id), self.budget_pages())
            || self.places.pages(FrameList::AHEAD) > self.prefetched_pages_max()
    }

    /// A promised page has been used: it is the law's from now on.
    pub(super) fn enter_policy_on_first_use(&mut self, id: FrameId) {
        self.waits.ended(self.places.note(id), self.budget_pages());
        self.places.unlink(id);
        let key = self.frame(id).key();
        self.policy.enter(&mut self.places, id, key, PageOrigin::Asked);
    }

    /// Has a promised page enter the law's lists if it was used meanwhile.
    pub(super) fn enter_policy_if_used(&mut self, id: FrameId, asks_left: &mut u32) -> bool {
        if *asks_left == 0 || self.uses(id) == 0 {
            return false;
        }
        *asks_left -= 1;
        self.note_use(id);
        self.enter_policy_on_first_use(id);
        true
    }

    /// How many of so many more pages may be promised. Those that were used, or were promised in vain,
    /// make room first.
    pub(super) fn prefetch_room(&mut self, pages: u64) -> u64 {
        if self.policy.enters_unused() {
            return pages;
        }
        let mut asks_left = (2 * pages).min(self.prefetched_pages_max().into()) as u32;
        loop {
            let room =
                self.prefetched_pages_max().saturating_sub(self.places.pages(FrameList::PROMISED));
            if u64::from(room) >= pages || !self.retire_oldest_prefetched(&mut asks_left) {
                return pages.min(room.into());
            }
        }
    }

    /// Takes in that the oldest promised page was used, or has it leave if it was promised in vain;
    /// false if it is neither.
    fn retire_oldest_prefetched(&mut self, asks_left: &mut u32) -> bool {
        let Some(id) = self.places.oldest(FrameList::PROMISED) else { return false };
        if self.state(id) != FrameState::Filled || self.frame(id).pins > 0 || *asks_left == 0 {
            return false;
        }
        if self.enter_policy_if_used(id, asks_left) {
            return true;
        }
        let is_over = self.waits.is_over(self.places.note(id), self.budget_pages());
        if !is_over || self.recall_all(&[id]) != 0 {
            return false;
        }
        self.evict(id);
        true
    }
}

/// The page of a frame is used; gives whether it was read ahead, and this is its first use.
pub(super) fn first_use(
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

    use super::super::{FileId, RunEntry as Added};
    use super::*;
    use crate::eviction::{Lru, TwoLists};
    use crate::unit::PageRange;

    const AHEAD: Added = Added { order: 0, marked: 0, is_ahead: true, is_pinned: false };
    const ASKED: Added = Added { is_ahead: false, ..AHEAD };

    /// Adds pages, which come in at once.
    fn filled(cache: &mut Cache, file: FileId, first: u64, count: u64, entry: Added) {
        let mut frames = Vec::new();
        cache.add_run(file, PageRange::new(first, count), entry, |_, id| frames.push(id));
        frames.into_iter().for_each(|id| cache.fill(id));
    }

    fn used(cache: &mut Cache, file: FileId, pages: core::ops::Range<u64>) {
        for page in pages {
            let id = cache.find(file, page).expect("it was read ahead and lives");
            cache.touch(id);
        }
    }

    /// Of three on their way one is withdrawn, which is neither use nor waste.
    #[test]
    fn cancelled_prefetch_counts_neither_as_used_nor_as_waste() {
        let mut cache = Cache::new(64, Box::new(Lru));
        let file = cache.add_file();
        let mut frames = Vec::new();
        cache.add_run(file, PageRange::new(0, 3), AHEAD, |_, id| frames.push(id));
        cache.cancel_prefetch(frames[1]);
        assert_eq!((cache.find(file, 0), cache.find(file, 1)), (Some(frames[0]), None));
        let counted = cache.counters();
        assert_eq!((counted.withdrawn_pages, counted.waste_pages), (1, 0));
        assert_eq!((counted.standing_pages(), cache.credit(file).standing_pages()), (2, 2));
        assert_eq!(cache.credit(file).used_percent(), None);
    }

    /// In 64 pages 48 may be promised. 24 pages that are asked for and used leave before them,
    /// though uses move pages on the lists of `lru`; and once 8 of the 48 are used there is room for 8.
    #[test]
    fn prefetched_pages_are_bounded_and_outlive_pages_used_meanwhile() {
        let mut cache = Cache::new(64, Box::new(Lru));
        let (file, other) = (cache.add_file(), cache.add_file());
        assert_eq!(cache.room_ahead(100), 48);
        filled(&mut cache, file, 0, 48, AHEAD);
        assert_eq!(cache.room_ahead(1), 0);
        for page in 0..24 {
            filled(&mut cache, other, page, 1, ASKED);
            (0..10).for_each(|_| used(&mut cache, other, page..page + 1));
        }
        used(&mut cache, file, 0..8);
        assert_eq!((cache.room_ahead(100), cache.counters().waste_pages), (8, 0));
        // Nobody comes for the other 40. The longest wait was 24 pages: they live for 48.
        filled(&mut cache, other, 100, 30, ASKED);
        assert_eq!(cache.room_ahead(100), 48, "those that were over have left");
        assert_eq!(cache.counters().waste_pages, 40);
    }

    /// The first wait is 10 pages; it fades to a quarter less while 32 of 64 pages are added, but
    /// an eighth of the memory is the least.
    #[test]
    fn a_prefetched_page_lives_twice_the_longest_recent_wait() {
        let mut waits = FirstUseWaits { now: 0, longest: 0, faded: 0 };
        waits.added(10, 64);
        waits.ended(0, 64);
        assert!(!waits.is_over(u32::MAX - 9, 64) && waits.is_over(u32::MAX - 10, 64));
        (0..33).for_each(|_| waits.added(1, 64));
        // 10 - 10 / 4 = 8, and so 16.
        assert_eq!((waits.longest, waits.now), (8, 43));
        assert!(!waits.is_over(43 - 16, 64) && waits.is_over(43 - 17, 64));
        (0..20).for_each(|_| waits.added(33, 64));
        assert!(!waits.is_over(waits.now - 8, 64) && waits.is_over(waits.now - 9, 64));
    }

    #[test]
    fn two_lists_has_no_bound_on_prefetched_pages() {
        let mut cache = Cache::new(64, Box::new(TwoLists));
        let file = cache.add_file();
        filled(&mut cache, file, 0, 60, AHEAD);
        assert_eq!(cache.room_ahead(100), 100);
    }
}
