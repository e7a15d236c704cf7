//! Changes of the cache size at run time.
//!
//! The *environment* is the code around the machine, which owns the memory of the frames. Growth
//! has no immediate cost. A smaller cache evicts pages in their normal order; pages in use and
//! reserved frames stay.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{Cache, Frame, FrameId, RefaultTable};
use crate::eviction::{AccessBits, EvictionPolicy, PageKey};

impl Cache {
    /// Adds up to `frames` frames to circulation, as far as they exist.
    pub fn grow(&mut self, frames: u32) {
        self.supply.grow(frames);
    }

    /// Removes up to `frames` frames from circulation, as far as pages can leave. Frames without
    /// memory (never used, or withdrawn before) go first, because taking back memory has a cost.
    /// The others, free or of the next victims, are returned. The environment takes back their
    /// memory and then [reports it](Cache::on_withdrawn); until then they are no part of the cache.
    pub fn shrink(&mut self, frames: u32) -> Vec<FrameId> {
        // Evicts pages as needed, and returns the number of free, unreserved frames.
        let removable = self.evict_until_unreserved(frames).min(frames);
        self.supply.shrink(removable)
    }

    /// Number of frames that exist, in circulation or out of it.
    pub(crate) fn frames_max(&self) -> u32 {
        self.supply.frames_max()
    }

    /// Number of frames with memory: they have held a page, and were not withdrawn since.
    pub fn backed_pages(&self) -> u32 {
        self.supply.backed_frames()
    }

    /// Counts evicted pages that return from now on, for the choice of a size. Costs 4 MiB.
    pub fn count_refaults(&mut self) {
        self.refaults = Some(RefaultTable::new());
    }

    /// Approximate number of evicted pages that returned. 0 unless
    /// [`count_refaults`](Self::count_refaults) was called.
    pub fn refault_pages(&self) -> u64 {
        self.refaults.as_ref().map_or(0, |refaults| refaults.returned_pages())
    }

    /// Number of pages that the eviction policy was built for, or last adapted to.
    pub fn policy_pages(&self) -> u32 {
        self.policy_pages
    }

    /// Replaces the eviction policy by one built for `pages` pages. The new policy adopts the pages
    /// on the old policy's lists in its order of eviction, the first victim first. The old policy's
    /// learned state is lost; [`resize_policy`](Cache::resize_policy) keeps it.
    /// `was_reused` is true for pages that the old policy counted as reused.
    pub fn replace_policy(&mut self, policy: Box<dyn EvictionPolicy>, pages: u32) {
        let eviction_order = self.policy.give_up(&mut self.frame_lists);
        (self.policy, self.policy_pages) = (policy, pages);
        for (id, was_reused) in eviction_order {
            let key = self.frame(id).key();
            self.policy.adopt(&mut self.frame_lists, id, key, was_reused);
        }
    }

    /// Adapts the eviction policy to a memory of `pages` pages. Its learned state is kept.
    pub fn resize_policy(&mut self, pages: u32) {
        let Cache { policy, frame_lists, frames, .. } = self;
        policy.resize(frame_lists, &PageKeys(frames), pages);
        self.policy_pages = pages;
    }

    /// Records that the environment has taken back the memory of frames.
    pub fn on_withdrawn(&mut self, frames: &[FrameId]) {
        self.supply.record_withdrawn(frames);
    }
}

/// Access of a policy to the keys of pages, without uses.
struct PageKeys<'a>(&'a [Frame]);

impl AccessBits for PageKeys<'_> {
    /// No unreported use. Reading the uses would reset them, and the search for a victim needs
    /// them.
    fn uses(&mut self, _id: FrameId) -> u8 {
        0
    }

    /// The key of the page in a frame.
    fn page(&self, id: FrameId) -> PageKey {
        self.0[id.0 as usize].key()
    }

    /// No victim was taken. A change of size takes no victim from the policy.
    fn taken(&self) -> u32 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{FileId, Mark};
    use crate::eviction::{POLICIES, TwoLists, build};
    use crate::policy::Spec;
    use crate::readahead::Folio;

    /// Adds a requested page, which the device delivers at once. `None` if no frame is available.
    fn add_filled(cache: &mut Cache, file: FileId, page: u64) -> Option<FrameId> {
        let is_ahead = false;
        let id = cache.add(file, page, Folio::holding(page, 0), Mark::Clear, is_ahead)?;
        cache.fill(id);
        Some(id)
    }

    /// A cache of 6 frames, of at most 12, holds four pages. It shrinks to 4 and to 3, which evicts
    /// the oldest page, and grows to 8.
    #[test]
    fn a_shrinking_cache_evicts_in_order_and_a_growing_one_keeps_all() {
        let mut cache = Cache::with_frames_max(6, 12, Box::new(TwoLists));
        let file = cache.add_file();
        for page in 0..4 {
            add_filled(&mut cache, file, page);
        }
        // Two of the six frames were never used.
        assert_eq!(cache.shrink(2), []);
        assert_eq!(cache.counters().evicted_pages, 0);
        let withdrawing = cache.shrink(1);
        assert_eq!(withdrawing.len(), 1);
        assert_eq!((cache.find(file, 0), cache.budget_pages()), (None, 3));
        cache.on_withdrawn(&withdrawing);
        cache.grow(5);
        for page in 10..15 {
            add_filled(&mut cache, file, page);
        }
        let kept = [1, 2, 3, 10, 11, 12, 13, 14].map(|page| cache.find(file, page).is_some());
        assert_eq!(kept, [true; 8]);
        assert_eq!((cache.budget_pages(), cache.free_pages()), (8, 0));
    }

    /// Of four frames, one is pinned, one filled, one in flight and one free: two can be removed,
    /// of which only the filled one has memory.
    #[test]
    fn shrink_leaves_pinned_and_in_flight_frames_in_the_cache() {
        let mut cache = Cache::new(4, Box::new(TwoLists));
        let file = cache.add_file();
        let pinned = add_filled(&mut cache, file, 0).unwrap();
        cache.pin(pinned);
        add_filled(&mut cache, file, 1);
        let is_ahead = false;
        cache.add(file, 2, Folio::holding(2, 0), Mark::Clear, is_ahead).unwrap();
        assert_eq!(cache.shrink(4).len(), 1);
        assert_eq!((cache.budget_pages(), cache.free_pages()), (2, 0));
        assert_eq!(cache.find(file, 0), Some(pinned));
        assert!(cache.find(file, 2).is_some());
    }

    /// With every policy, a cache of 8 pages grows to 32 with a new policy, and holds all 30 pages.
    /// It then shrinks by 28 frames to 4: two of them were never used, so that 26 pages leave.
    #[test]
    fn every_policy_adopts_the_pages_when_the_size_changes() {
        for policy in POLICIES {
            let build_policy = |pages| build(&Spec::plain(policy.name), pages).unwrap();
            let mut cache = Cache::with_frames_max(8, 100, build_policy(8));
            let file = cache.add_file();
            for page in 0..30 {
                if page == 8 {
                    cache.replace_policy(build_policy(32), 32);
                    cache.grow(24);
                }
                let id = add_filled(&mut cache, file, page).unwrap();
                if page % 3 == 0 {
                    cache.touch(id);
                }
            }
            assert_eq!(cache.counters().evicted_pages, 0, "{}", policy.name);
            assert_eq!(cache.shrink(28).len(), 26, "{}", policy.name);
            cache.resize_policy(4);
            assert_eq!(cache.counters().evicted_pages, 26, "{}", policy.name);
            for page in 100..200 {
                add_filled(&mut cache, file, page).unwrap();
            }
            let cached_pages = (0..200).filter(|&page| cache.find(file, page).is_some()).count();
            assert_eq!(cached_pages, 4, "{}", policy.name);
        }
    }
}
