//! A cache without content: which references would find their page, under one law.
//!
//! The law is the page cache's, to the line. It is told of each use when it is made, where the page
//! cache tells it late of those that it sees only as a bit.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{AccessBits, EvictionPolicy, FrameLists, PageKey, PageOrigin};
use crate::cache::FrameId;

const NOBODY: u32 = u32::MAX;

/// A simulated cache.
#[derive(Debug)]
pub struct Simulation {
    policy: Box<dyn EvictionPolicy>,
    places: FrameLists,
    frames: SimulatedFrames,
    pages_max: u32,
}

/// What became of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReferenceOutcome {
    /// The page was there.
    Hit,
    /// It was not, and `gone` had to go for it.
    Miss { gone: Option<PageKey> },
}

/// Which page each frame has, and where to find it.
#[derive(Debug)]
struct SimulatedFrames {
    pages: Vec<PageKey>,
    next: Vec<u32>,
    heads: Box<[u32]>,
    free: Vec<FrameId>,
}

impl Simulation {
    /// An empty cache of `pages` frames, one at least, under a law that was built for as many.
    pub fn new(policy: Box<dyn EvictionPolicy>, pages: u32) -> Simulation {
        let frames = SimulatedFrames {
            pages: Vec::new(),
            next: Vec::new(),
            heads: alloc::vec![NOBODY; pages as usize].into_boxed_slice(),
            free: Vec::new(),
        };
        Simulation { policy, places: FrameLists::new(pages), frames, pages_max: pages }
    }

    /// A page is referenced: it is there afterwards. Gives whether it was there before.
    pub fn reference(&mut self, page: PageKey) -> bool {
        self.refer(page) == ReferenceOutcome::Hit
    }

    /// Whether the page is there.
    pub fn holds(&self, page: PageKey) -> bool {
        self.frames.find(page).is_some()
    }

    /// Has so many frames from now on, one at least, and a law for as many: pages leave as the law has
    /// them leave, or room is left.
    pub fn resize(&mut self, pages: u32) {
        while self.frames.held() > pages {
            self.evict();
        }
        self.policy.resize(&mut self.places, &self.frames, pages);
        self.frames.resize_heads(pages);
        self.pages_max = pages;
    }

    /// Drops the pages that are not to be kept, as if nobody had ever referenced them.
    pub fn retain(&mut self, is_kept: impl Fn(PageKey) -> bool) {
        for frame in (0..self.frames.pages.len() as u32).map(FrameId) {
            if self.places.is_listed(frame) && !is_kept(self.frames.page(frame)) {
                self.places.unlink(frame);
                self.frames.remove(frame);
            }
        }
    }

    /// One page goes.
    fn evict(&mut self) -> PageKey {
        let Simulation { policy, places, frames, .. } = self;
        let victim =
            policy.victim(places, frames).expect("every page is on a list of the policy's");
        let page = frames.page(victim);
        policy.evicted(places, victim, page);
        frames.remove(victim);
        page
    }

    /// As `reference`; says what became of it.
    pub(super) fn refer(&mut self, page: PageKey) -> ReferenceOutcome {
        let Simulation { policy, places, frames, .. } = self;
        if let Some(frame) = frames.find(page) {
            policy.used(places, frame, page);
            return ReferenceOutcome::Hit;
        }
        let mut gone = None;
        if frames.held() >= self.pages_max {
            policy.demand(page);
            gone = Some(self.evict());
        }
        let Simulation { policy, places, frames, .. } = self;
        let frame = frames.add(page);
        policy.enter(places, frame, page, PageOrigin::Asked);
        ReferenceOutcome::Miss { gone }
    }
}

impl SimulatedFrames {
    fn home(&self, page: PageKey) -> usize {
        (((page.0 & u64::from(u32::MAX)) * self.heads.len() as u64) >> 32) as usize
    }

    /// How many have a page.
    fn held(&self) -> u32 {
        (self.pages.len() - self.free.len()) as u32
    }

    /// Has as many chains as there are to be frames.
    fn resize_heads(&mut self, pages: u32) {
        let chained: Vec<u32> = self.heads.iter().flat_map(|&head| self.chain(head)).collect();
        self.heads = alloc::vec![NOBODY; pages as usize].into_boxed_slice();
        for frame in chained {
            let home = self.home(self.pages[frame as usize]);
            self.next[frame as usize] = core::mem::replace(&mut self.heads[home], frame);
        }
    }

    /// The frames of a chain.
    fn chain(&self, head: u32) -> impl Iterator<Item = u32> {
        let on = |at: u32| (at != NOBODY).then_some(at);
        core::iter::successors(on(head), move |&at| on(self.next[at as usize]))
    }

    fn find(&self, page: PageKey) -> Option<FrameId> {
        let mut at = self.heads[self.home(page)];
        while at != NOBODY {
            if self.pages[at as usize] == page {
                return Some(FrameId(at));
            }
            at = self.next[at as usize];
        }
        None
    }

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

    fn remove(&mut self, frame: FrameId) {
        let home = self.home(self.pages[frame.0 as usize]);
        let next = self.next.as_mut_slice();
        let behind = next[frame.0 as usize];
        let mut link = &mut self.heads[home];
        while *link != frame.0 {
            link = &mut next[*link as usize];
        }
        *link = behind;
        self.free.push(frame);
    }
}

/// Every use has been told of already.
impl AccessBits for SimulatedFrames {
    fn uses(&mut self, _frame: FrameId) -> u8 {
        0
    }

    fn page(&self, frame: FrameId) -> PageKey {
        self.pages[frame.0 as usize]
    }

    fn taken(&self) -> u32 {
        0
    }
}

#[cfg(test)]
pub(super) mod trial {
    use alloc::boxed::Box;
    use alloc::vec::Vec;

    use super::*;

    /// References pages in a cache of `pages` under a law; gives those that had to go, in order.
    pub(in crate::eviction) fn victims(
        policy: impl EvictionPolicy + 'static,
        pages: u32,
        references: impl IntoIterator<Item = u64>,
    ) -> Vec<u64> {
        let mut cache = Simulation::new(Box::new(policy), pages);
        let mut there: Vec<u64> = Vec::new();
        let mut gone = Vec::new();
        for page in references {
            let was_there = cache.reference(PageKey::numbered(page));
            assert_eq!(was_there, there.contains(&page));
            if !was_there {
                there.push(page);
            }
            let is_gone = |page: &u64| cache.frames.find(PageKey::numbered(*page)).is_none();
            if let Some(at) = there.iter().position(is_gone) {
                gone.push(there.remove(at));
            }
            assert!(there.len() <= pages as usize && !there.iter().any(is_gone));
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::super::Lru;
    use super::*;

    /// Of four pages the two used last stay in a cache of two; one that grows to three gives up none,
    /// and the next after that drives out the oldest.
    #[test]
    fn a_shrinking_cache_evicts_by_its_policy_and_a_growing_one_evicts_none() {
        let key = PageKey::numbered;
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
