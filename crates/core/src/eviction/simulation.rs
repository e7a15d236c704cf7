//! A cache without content, which determines the hits of a reference trace under one policy.
//!
//! The code of the policy is the same as in the page cache. Here every use is reported at once. The
//! page cache reports the uses that it sees only as access bits later.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{AccessBits, EvictionPolicy, FrameLists, PageKey, PageOrigin};
use crate::page::FrameId;

/// End of a chain of frames.
const NO_FRAME: u32 = u32::MAX;

/// A simulated cache.
#[derive(Debug)]
pub struct Simulation {
    /// The policy that selects the victims.
    policy: Box<dyn EvictionPolicy>,
    /// The policy's lists of the frames with a page.
    lists: FrameLists,
    /// The page of each frame.
    frames: SimulatedFrames,
    /// Size of the cache: the largest number of frames with a page.
    pages_max: u32,
}

/// Outcome of a reference to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReferenceOutcome {
    /// The page was in the cache.
    Hit,
    /// The page was absent; `evicted_page` left for it, if the cache was full.
    Miss { evicted_page: Option<PageKey> },
}

/// The page of each frame, and a hash table of the frames.
#[derive(Debug)]
struct SimulatedFrames {
    /// The page of each frame that was ever used.
    pages: Vec<PageKey>,
    /// The next frame in the chain of each frame.
    next: Vec<u32>,
    /// First frame of each hash chain.
    heads: Box<[u32]>,
    /// Frames that were used before and have no page now.
    free: Vec<FrameId>,
}

impl Simulation {
    /// Creates an empty cache of `pages` frames (at least one), with a policy built for the same
    /// size.
    pub fn new(policy: Box<dyn EvictionPolicy>, pages: u32) -> Simulation {
        let frames = SimulatedFrames {
            pages: Vec::new(),
            next: Vec::new(),
            heads: alloc::vec![NO_FRAME; pages as usize].into_boxed_slice(),
            free: Vec::new(),
        };
        Simulation { policy, lists: FrameLists::new(pages), frames, pages_max: pages }
    }

    /// References a page, which is in the cache afterwards. Returns true if it was there before.
    pub fn reference(&mut self, page: PageKey) -> bool {
        self.reference_outcome(page) == ReferenceOutcome::Hit
    }

    /// Returns true if the page is in the cache.
    pub fn holds(&self, page: PageKey) -> bool {
        self.frames.find(page).is_some()
    }

    /// Sets the number of frames (at least one), and resizes the policy. If the cache shrinks, the
    /// policy selects the pages that leave.
    pub fn resize(&mut self, pages: u32) {
        while self.frames.frames_in_use() > pages {
            self.evict();
        }
        self.policy.resize(&mut self.lists, &self.frames, pages);
        self.frames.resize_heads(pages);
        self.pages_max = pages;
    }

    /// Drops the pages for which `is_kept` is false. They leave the policy's lists without notice,
    /// so that it does not remember them as evicted.
    pub fn retain(&mut self, is_kept: impl Fn(PageKey) -> bool) {
        for frame in (0..self.frames.pages.len() as u32).map(FrameId) {
            if self.lists.is_listed(frame) && !is_kept(self.frames.page(frame)) {
                self.lists.unlink(frame);
                self.frames.remove(frame);
            }
        }
    }

    /// Evicts the victim of the policy from the simulated cache, and returns its key.
    fn evict(&mut self) -> PageKey {
        let Simulation { policy, lists, frames, .. } = self;
        let victim = policy.victim(lists, frames).expect("every page is on a list of the policy's");
        let page = frames.page(victim);
        policy.evicted(lists, victim, page);
        frames.remove(victim);
        page
    }

    /// References a page, which is in the cache afterwards. In a full cache an absent page evicts
    /// another one.
    pub(super) fn reference_outcome(&mut self, page: PageKey) -> ReferenceOutcome {
        let Simulation { policy, lists, frames, .. } = self;
        if let Some(frame) = frames.find(page) {
            policy.used(lists, frame, page);
            return ReferenceOutcome::Hit;
        }
        let mut evicted_page = None;
        if frames.frames_in_use() >= self.pages_max {
            // Only an eviction adds a ghost, so a cache with room needs no announcement. The policy
            // may need the ghost of the page before the victim's ghost displaces it.
            policy.demand(page);
            evicted_page = Some(self.evict());
        }
        let Simulation { policy, lists, frames, .. } = self;
        let frame = frames.add(page);
        policy.enter(lists, frame, page, PageOrigin::Demand);
        ReferenceOutcome::Miss { evicted_page }
    }
}

impl SimulatedFrames {
    /// Index of the hash chain of a page.
    fn home(&self, page: PageKey) -> usize {
        // The lowest 32 bits of the key are pseudo-random: scales them to the number of chains.
        (((page.0 & u64::from(u32::MAX)) * self.heads.len() as u64) >> 32) as usize
    }

    /// Number of frames with a page.
    fn frames_in_use(&self) -> u32 {
        (self.pages.len() - self.free.len()) as u32
    }

    /// Rebuilds the hash table with `chains` chains. The frames keep their pages.
    fn resize_heads(&mut self, chains: u32) {
        let frames: Vec<u32> = self.heads.iter().flat_map(|&head| self.chain(head)).collect();
        self.heads = alloc::vec![NO_FRAME; chains as usize].into_boxed_slice();
        for frame in frames {
            let home = self.home(self.pages[frame as usize]);
            self.next[frame as usize] = core::mem::replace(&mut self.heads[home], frame);
        }
    }

    /// Frames of the hash chain that begins with frame `head`.
    fn chain(&self, head: u32) -> impl Iterator<Item = u32> {
        let frame_index = |index: u32| (index != NO_FRAME).then_some(index);
        core::iter::successors(frame_index(head), move |&index| {
            frame_index(self.next[index as usize])
        })
    }

    /// Returns the frame of a page, or `None` if it is absent.
    fn find(&self, page: PageKey) -> Option<FrameId> {
        let mut index = self.heads[self.home(page)];
        while index != NO_FRAME {
            if self.pages[index as usize] == page {
                return Some(FrameId(index));
            }
            index = self.next[index as usize];
        }
        None
    }

    /// Puts a page into a free frame, or into a new one, and returns the frame.
    fn add(&mut self, page: PageKey) -> FrameId {
        let home = self.home(page);
        let next = self.heads[home];
        let frame = match self.free.pop() {
            Some(frame) => {
                self.pages[frame.0 as usize] = page;
                self.next[frame.0 as usize] = next;
                frame
            }
            None => {
                self.pages.push(page);
                self.next.push(next);
                FrameId(self.pages.len() as u32 - 1)
            }
        };
        self.heads[home] = frame.0;
        frame
    }

    /// Removes the page of a frame, which must have one, from the hash table, and frees the frame.
    fn remove(&mut self, frame: FrameId) {
        let home = self.home(self.pages[frame.0 as usize]);
        let next = self.next.as_mut_slice();
        let next_frame = next[frame.0 as usize];
        let mut link = &mut self.heads[home];
        while *link != frame.0 {
            link = &mut next[*link as usize];
        }
        *link = next_frame;
        self.free.push(frame);
    }
}

/// Every use has already been reported, so the access bits are zero.
impl AccessBits for SimulatedFrames {
    /// No unreported use.
    fn uses(&mut self, _frame: FrameId) -> u8 {
        0
    }

    /// The page that the frame holds, or held last.
    fn page(&self, frame: FrameId) -> PageKey {
        self.pages[frame.0 as usize]
    }

    /// No victim is taken without being evicted at once.
    fn taken(&self) -> u32 {
        0
    }
}

#[cfg(test)]
pub(super) mod trial {
    use alloc::boxed::Box;
    use alloc::vec::Vec;

    use super::*;

    /// Access bits of a cache in which the page of frame n has the key of number n.
    #[derive(Default)]
    pub(in crate::eviction) struct TestAccessBits {
        /// Number of unreported uses of each frame; 0 for the frames behind the end.
        pub uses: Vec<u8>,
        /// Number of victims that were taken and have not left yet.
        pub taken: u32,
    }

    impl AccessBits for TestAccessBits {
        fn uses(&mut self, frame: FrameId) -> u8 {
            self.uses.get_mut(frame.0 as usize).map_or(0, core::mem::take)
        }

        fn page(&self, frame: FrameId) -> PageKey {
            PageKey::from_number(frame.0.into())
        }

        fn taken(&self) -> u32 {
            self.taken
        }
    }

    /// References pages in a cache of `pages` under a policy. Returns the evicted pages, in order.
    pub(in crate::eviction) fn victims(
        policy: impl EvictionPolicy + 'static,
        pages: u32,
        references: impl IntoIterator<Item = u64>,
    ) -> Vec<u64> {
        let mut cache = Simulation::new(Box::new(policy), pages);
        let mut cached: Vec<u64> = Vec::new();
        let mut evicted = Vec::new();
        for page in references {
            let is_hit = cache.reference(PageKey::from_number(page));
            assert_eq!(is_hit, cached.contains(&page));
            if !is_hit {
                cached.push(page);
            }
            let is_absent = |page: &u64| cache.frames.find(PageKey::from_number(*page)).is_none();
            if let Some(index) = cached.iter().position(is_absent) {
                evicted.push(cached.remove(index));
            }
            // At most one page leaves for a reference.
            assert!(cached.len() <= pages as usize && !cached.iter().any(is_absent));
        }
        evicted
    }
}

#[cfg(test)]
mod tests {
    use super::super::Lru;
    use super::*;

    /// Pages 1 to 4 are referenced in a cache of four, which shrinks to two: 3 and 4 stay. After
    /// growth to three, page 5 evicts none, and page 6 evicts the oldest, 3. Without page 5, page 7
    /// evicts none.
    #[test]
    fn a_shrinking_cache_evicts_by_its_policy_and_a_growing_one_evicts_none() {
        let key = PageKey::from_number;
        let mut cache = Simulation::new(Box::new(Lru), 4);
        (1..=4).for_each(|page| assert!(!cache.reference(key(page))));
        cache.resize(2);
        cache.resize(3);
        assert!(!cache.reference(key(5)));
        assert_eq!(
            [1, 2, 3, 4, 5].map(|page| cache.holds(key(page))),
            [false, false, true, true, true]
        );
        assert!(!cache.reference(key(6)));
        cache.retain(|page| page != key(5));
        assert_eq!([3, 4, 5, 6].map(|page| cache.holds(key(page))), [false, true, false, true]);
        assert!(!cache.reference(key(7)));
        assert!(cache.holds(key(4)), "there was room");
    }
}
