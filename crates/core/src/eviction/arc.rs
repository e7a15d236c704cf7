//! `arc`: how much memory pages used once get beside those used again is found by trial.
//!
//! The law in words (ARC: Megiddo and Modha, FAST 2003): pages used once are on the list *T1*,
//! pages used again on *T2*, each in the order of their last use. What leaves T1 is remembered in
//! *B1*, what leaves T2 in *B2*. A page that comes back and is in B1 would have been there had T1
//! been larger: so T1's target grows, by one or, where B2 is longer, by as many times as it is; one
//! that is in B2 lets it shrink likewise. Either enters T2. The victim is the oldest of T1 while
//! that has more than its target, else the oldest of T2. T1 and B1 together remember no more pages
//! than there is memory for, all four no more than twice that.
//!
//! Where uses are known only when a page is looked at, a page at the end of T1 or T2 that was used
//! meanwhile goes to the front of T2 then (as in CAR: Bansal and Modha, FAST 2004).

use super::{AccessBits, EvictionPolicy, FrameLists, GhostList, Ghosts, List, PageKey, PageOrigin};
use crate::cache::FrameId;

const T1: List = List::PROBATION;
const T2: List = List::KEPT;
const B1: GhostList = GhostList::First;
const B2: GhostList = GhostList::Second;

/// The target is counted in parts of a page: the lengths' ratio, by which it moves, is no whole
/// number.
const PART: u64 = 1 << 16;

/// The reclaim law `arc`.
#[derive(Debug)]
pub struct Arc {
    pages: u32,
    /// How many pages T1 should have, in parts of [`PART`].
    target: u64,
    ghosts: Ghosts,
    /// A page that is about to come, and whose ghost it was.
    demand: Option<(PageKey, GhostList)>,
}

impl Arc {
    /// For a cache of so many pages.
    pub fn new(pages: u32) -> Arc {
        Arc { pages, target: 0, ghosts: Ghosts::new(pages + 1), demand: None }
    }

    /// Takes in that a page comes back, if it is remembered; whose ghost it was.
    fn take_ghost(&mut self, page: PageKey) -> Option<GhostList> {
        let [first, second] = [B1, B2].map(|line| u64::from(self.ghosts.count(line)));
        let (line, _) = self.ghosts.take(page)?;
        self.target = match line {
            B1 => {
                (self.target + (second * PART / first).max(PART)).min(u64::from(self.pages) * PART)
            }
            B2 => self.target.saturating_sub((first * PART / second).max(PART)),
        };
        Some(line)
    }

    /// Forgets what there are too many ghosts of.
    fn forget(&mut self, places: &FrameLists) {
        let [first, second] = [T1, T2].map(|list| places.pages(list));
        if first + self.ghosts.count(B1) >= self.pages {
            self.ghosts.forget_oldest(B1);
        } else if first + second + self.ghosts.count(B1) + self.ghosts.count(B2) >= 2 * self.pages {
            self.ghosts.forget_oldest(B2);
        }
    }
}

impl EvictionPolicy for Arc {
    fn enter(
        &mut self,
        places: &mut FrameLists,
        frame: FrameId,
        page: PageKey,
        _entry: PageOrigin,
    ) {
        let line = match self.demand.take() {
            Some((demand, line)) if demand == page => Some(line),
            _ => self.take_ghost(page),
        };
        places.push(frame, if line.is_some() { T2 } else { T1 });
    }

    fn used(&mut self, places: &mut FrameLists, frame: FrameId, _page: PageKey) {
        if places.is_listed(frame) {
            places.renew(frame, T2);
        }
    }

    fn victim(&mut self, places: &mut FrameLists, looks: &mut dyn AccessBits) -> Option<FrameId> {
        if self.demand.is_none() {
            self.forget(places);
        }
        loop {
            let list = self.next_list(places);
            let frame = places.pop(list)?;
            if looks.uses(frame) == 0 {
                places.set_note(frame, u32::from(list == T2));
                return Some(frame);
            }
            places.push(frame, T2);
        }
    }

    fn evicted(&mut self, places: &mut FrameLists, frame: FrameId, page: PageKey) {
        let is_second = places.note(frame) == 1;
        // Itself, and the page that it makes room for, if that enters T1.
        let coming = if self.demand.is_some() { 1 } else { 2 };
        if is_second || places.pages(T1) + self.ghosts.count(B1) + coming <= self.pages {
            self.ghosts.remember(if is_second { B2 } else { B1 }, page, 0);
        }
    }

    fn oldest(&mut self, places: &mut FrameLists) -> Option<FrameId> {
        places.oldest(self.next_list(places))
    }

    fn adopt(&mut self, places: &mut FrameLists, frame: FrameId, _page: PageKey, is_kept: bool) {
        places.push(frame, if is_kept { T2 } else { T1 });
    }

    /// T1's target stays the same share of the memory.
    fn resize(&mut self, places: &mut FrameLists, _looks: &dyn AccessBits, pages: u32) {
        self.target = (u128::from(self.target) * u128::from(pages) / u128::from(self.pages)) as u64;
        self.pages = pages;
        let [first, second] = [T1, T2].map(|list| places.pages(list));
        while self.ghosts.count(B1) > pages.saturating_sub(first) {
            self.ghosts.forget_oldest(B1);
        }
        let all = first + second + self.ghosts.count(B1);
        while self.ghosts.count(B2) > (2 * pages).saturating_sub(all) {
            self.ghosts.forget_oldest(B2);
        }
        self.ghosts.resize(pages + 1);
    }

    fn inherit(&mut self, mut ghosts: Ghosts) -> Option<Ghosts> {
        ghosts.resize(self.ghosts.most());
        self.ghosts = ghosts;
        None
    }

    fn release_ghosts(&mut self) -> Option<Ghosts> {
        Some(core::mem::replace(&mut self.ghosts, Ghosts::new(0)))
    }

    fn demand(&mut self, page: PageKey) {
        self.demand = self.take_ghost(page).map(|line| (page, line));
    }
}

impl Arc {
    fn next_list(&self, places: &FrameLists) -> List {
        let [first, second] = [T1, T2].map(|list| places.pages(list));
        let is_second = matches!(self.demand, Some((_, B2)));
        let parts = u64::from(first) * PART;
        let is_first = parts > self.target || parts == self.target && is_second;
        if first > 0 && is_first || second == 0 { T1 } else { T2 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::trial::victims;
    use super::*;

    /// In a memory of two 1 is used again; 3 drives 2 out, which comes back: T1 is to have one
    /// page, and has it, so that 1 goes. It comes back from B2: T1 is to have none, and 3 goes.
    #[test]
    fn a_returning_page_adjusts_the_target_of_t1() {
        assert_eq!(victims(Arc::new(2), 2, [1, 2, 1, 3, 2, 1]), [2, 1, 3]);
    }
}
