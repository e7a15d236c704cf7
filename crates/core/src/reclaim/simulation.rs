//! A cache without content: which references would find their page, under one law.
//!
//! The law is the page cache's, to the line. It is told of each use when it is made, where the page
//! cache tells it late of those that it sees only as a bit.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{Entry, Looks, PageKey, Places, ReclaimLaw};
use crate::cache::FrameId;

const NOBODY: u32 = u32::MAX;

/// A simulated cache.
#[derive(Debug)]
pub struct Simulation {
    law: Box<dyn ReclaimLaw>,
    places: Places,
    frames: Frames,
    pages_max: u32,
}

/// What became of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The page was there.
    Hit,
    /// It was not, and `gone` had to go for it.
    Miss { gone: Option<PageKey> },
}

/// Which page each frame has, and where to find it.
#[derive(Debug)]
struct Frames {
    pages: Vec<PageKey>,
    next: Vec<u32>,
    heads: Box<[u32]>,
    free: Vec<FrameId>,
}

impl Simulation {
    /// An empty cache of `pages` frames, one at least, under a law that was built for as many.
    pub fn new(law: Box<dyn ReclaimLaw>, pages: u32) -> Simulation {
        let frames = Frames {
            pages: Vec::new(),
            next: Vec::new(),
            heads: alloc::vec![NOBODY; pages as usize].into_boxed_slice(),
            free: Vec::new(),
        };
        Simulation { law, places: Places::new(pages), frames, pages_max: pages }
    }

    /// A page is referenced: it is there afterwards. Gives whether it was there before.
    pub fn reference(&mut self, page: PageKey) -> bool {
        self.refer(page) == Outcome::Hit
    }

    /// Whether the page is there.
    pub fn holds(&self, page: PageKey) -> bool {
        self.frames.find(page).is_some()
    }

    /// As `reference`; says what became of it.
    pub(super) fn refer(&mut self, page: PageKey) -> Outcome {
        let Simulation { law, places, frames, .. } = self;
        if let Some(frame) = frames.find(page) {
            law.used(places, frame, page);
            return Outcome::Hit;
        }
        let mut gone = None;
        if frames.free.is_empty() && frames.pages.len() as u32 >= self.pages_max {
            law.awaited(page);
            let victim = law.victim(places, frames).expect("every page is on a list of the law's");
            law.evicted(places, victim, frames.page(victim));
            gone = Some(frames.page(victim));
            frames.remove(victim);
        }
        let frame = frames.add(page);
        law.enter(places, frame, page, Entry::Asked);
        Outcome::Miss { gone }
    }
}

impl Frames {
    fn home(&self, page: PageKey) -> usize {
        (((page.0 & u64::from(u32::MAX)) * self.heads.len() as u64) >> 32) as usize
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
impl Looks for Frames {
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
    pub(in crate::reclaim) fn victims(
        law: impl ReclaimLaw + 'static,
        pages: u32,
        references: impl IntoIterator<Item = u64>,
    ) -> Vec<u64> {
        let mut cache = Simulation::new(Box::new(law), pages);
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
