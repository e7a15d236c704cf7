//! `arc`: finds the best division of memory between pages used once and pages used again.
//!
//! How it works (ARC: Megiddo and Modha, FAST 2003): pages used once are on the list *T1*, pages
//! used again on *T2*, each in the order of their last use. Pages evicted from T1 are remembered in
//! *B1*, pages evicted from T2 in *B2*. A returning page in B1 would have been a hit with a larger
//! T1. The target size of T1 therefore grows by one, or by the ratio of B2 to B1 if B2 is longer. A
//! returning page in B2 shrinks the target in the same way. Both enter T2. The victim is the oldest
//! page of T1 while that has more than its target, and otherwise the oldest of T2. T1 and B1
//! together have at most the number of pages in memory, all four lists at most twice that.
//!
//! If uses are known only from access bits, a used page at the end of T1 or T2 moves to the front
//! of T2 at that time (as in CAR: Bansal and Modha, FAST 2004).

// Access bits count the uses of a page that readers have not reported, up to two. Reading them
// resets them, so that a loop over used pages ends.
use super::{AccessBits, EvictionPolicy, FrameLists, GhostList, Ghosts, List, PageKey, PageOrigin};
use crate::page::FrameId;

/// The four lists of the header: pages used once and again, and the ghosts of each.
const T1: List = List::PROBATION;
const T2: List = List::REUSED;
const B1: GhostList = GhostList::First;
const B2: GhostList = GhostList::Second;

/// Notes of a victim, which the lists keep for its frame: the list that it left.
const FROM_T1: u32 = 0;
const FROM_T2: u32 = 1;

/// Word of each ghost: this policy needs none.
const UNUSED_WORD: u32 = 0;

/// Units of the target per page: it moves by a ratio of lengths, which is not an integer.
const TARGET_UNITS: u64 = 1 << 16;

/// The eviction policy `arc`.
#[derive(Debug)]
pub struct Arc {
    /// Size of the cache in pages.
    pages: u32,
    /// Target size of T1, in units of 1/[`TARGET_UNITS`] page.
    t1_target: u64,
    /// The lists B1 and B2.
    ghosts: Ghosts,
    /// A page that will enter next, and the list of its ghost, which is removed already.
    returning: Option<(PageKey, GhostList)>,
}

impl Arc {
    /// Creates the policy for a cache of `pages` pages.
    pub fn new(pages: u32) -> Arc {
        // Between an eviction and the entry that it makes space for, memory has one page less. The
        // limit of all four lists then allows one ghost more than memory has pages.
        Arc { pages, t1_target: 0, ghosts: Ghosts::new(pages + 1), returning: None }
    }

    /// Handles the return of a page: if it is remembered, removes its ghost, adjusts the target and
    /// returns the list of the ghost. `None` if it is not remembered. The lengths of the ghost
    /// lists still include this ghost, so that no divisor is 0.
    fn take_ghost(&mut self, page: PageKey) -> Option<GhostList> {
        let [b1_ghosts, b2_ghosts] =
            [B1, B2].map(|ghost_list| u64::from(self.ghosts.count(ghost_list)));
        let (ghost_list, _) = self.ghosts.take(page)?;
        self.t1_target = match ghost_list {
            // A ghost of B1 makes T1 larger, one of B2 smaller: by the ratio of the other list to
            // its own, but by at least one page.
            B1 => (self.t1_target + (b2_ghosts * TARGET_UNITS / b1_ghosts).max(TARGET_UNITS))
                .min(u64::from(self.pages) * TARGET_UNITS),
            B2 => self
                .t1_target
                .saturating_sub((b1_ghosts * TARGET_UNITS / b2_ghosts).max(TARGET_UNITS)),
        };
        Some(ghost_list)
    }

    /// Makes space for the ghost of the next victim. Drops the oldest ghost of B1 if T1 and B1
    /// together are full, or else of B2 if all lists reach twice the memory.
    fn forget_excess_ghost(&mut self, lists: &FrameLists) {
        let [t1_pages, t2_pages] = [T1, T2].map(|list| lists.pages(list));
        let [b1_ghosts, b2_ghosts] = [B1, B2].map(|ghost_list| self.ghosts.count(ghost_list));
        if t1_pages + b1_ghosts >= self.pages {
            self.ghosts.forget_oldest(B1);
        } else if t1_pages + t2_pages + b1_ghosts + b2_ghosts >= 2 * self.pages {
            self.ghosts.forget_oldest(B2);
        }
    }
}

impl EvictionPolicy for Arc {
    /// A page with a ghost enters T2, any other page T1. The ghost is removed, and the target
    /// adjusted by it, unless `demand` has done that before.
    fn enter(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey, _entry: PageOrigin) {
        let ghost_list = match self.returning.take() {
            Some((returning, ghost_list)) if returning == page => Some(ghost_list),
            _ => self.take_ghost(page),
        };
        lists.push(frame, if ghost_list.is_some() { T2 } else { T1 });
    }

    /// Moves a used page to the newest end of T2. A page that is on no list is not moved.
    fn used(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey) {
        if lists.is_listed(frame) {
            lists.renew(frame, T2);
        }
    }

    /// Makes space for a ghost, unless `demand` has, and pops the oldest pages of T1 or T2 as
    /// `next_victim_list` chooses. Used ones move to T2; the first unused one is the victim. `None`
    /// if both lists are empty.
    fn victim(
        &mut self,
        lists: &mut FrameLists,
        access_bits: &mut dyn AccessBits,
    ) -> Option<FrameId> {
        // The ghost of a returning page was removed by `demand`, which makes space.
        if self.returning.is_none() {
            self.forget_excess_ghost(lists);
        }
        loop {
            let list = self.next_victim_list(lists);
            let frame = lists.pop(list)?;
            if access_bits.uses(frame) == 0 {
                lists.set_note(frame, if list == T2 { FROM_T2 } else { FROM_T1 });
                return Some(frame);
            }
            lists.push(frame, T2);
        }
    }

    /// Remembers the victim in the ghost list of its page list. A page of T1 is remembered only if
    /// the limit of T1 and B1 allows it, and a page of T2 in any case.
    fn evicted(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey) {
        let is_from_t2 = lists.note(frame) == FROM_T2;
        // The victim itself, and the page that it makes space for. A page that returns from a ghost
        // enters T2 and does not count.
        let pages_entering = if self.returning.is_some() { 1 } else { 2 };
        if is_from_t2 || lists.pages(T1) + self.ghosts.count(B1) + pages_entering <= self.pages {
            self.ghosts.remember(if is_from_t2 { B2 } else { B1 }, page, UNUSED_WORD);
        }
    }

    /// Returns the oldest page of the list that the next victim comes from; `None` if both lists
    /// are empty.
    fn oldest(&mut self, lists: &mut FrameLists) -> Option<FrameId> {
        lists.oldest(self.next_victim_list(lists))
    }

    /// Adopts a page of another policy: a reused page in T2, any other page in T1.
    fn adopt(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey, was_reused: bool) {
        lists.push(frame, if was_reused { T2 } else { T1 });
    }

    /// Adapts the lists of ghosts to a memory of `pages` pages. The target of T1 stays the same
    /// share of the memory. Excess ghosts are dropped by the limits of the four lists.
    fn resize(&mut self, lists: &mut FrameLists, _bits: &dyn AccessBits, pages: u32) {
        self.t1_target =
            (u128::from(self.t1_target) * u128::from(pages) / u128::from(self.pages)) as u64;
        self.pages = pages;
        let [t1_pages, t2_pages] = [T1, T2].map(|list| lists.pages(list));
        while self.ghosts.count(B1) > pages.saturating_sub(t1_pages) {
            self.ghosts.forget_oldest(B1);
        }
        let remembered_pages = t1_pages + t2_pages + self.ghosts.count(B1);
        while self.ghosts.count(B2) > (2 * pages).saturating_sub(remembered_pages) {
            self.ghosts.forget_oldest(B2);
        }
        self.ghosts.resize(pages + 1);
    }

    /// Takes over the ghosts of another policy, up to the own limit. Its two lists become B1 and
    /// B2. Returns `None`, because none is left over.
    fn inherit(&mut self, ghosts: Ghosts) -> Option<Ghosts> {
        self.ghosts.replace_by(ghosts);
        None
    }

    /// Releases all ghosts for another policy, and keeps none.
    fn release_ghosts(&mut self) -> Option<Ghosts> {
        Some(self.ghosts.take_all())
    }

    /// If the requested page is a ghost, removes the ghost, adjusts the target by it, and notes its
    /// list until the page enters. No effect on any other page.
    fn demand(&mut self, page: PageKey) {
        self.returning = self.take_ghost(page).map(|ghost_list| (page, ghost_list));
    }
}

impl Arc {
    /// The list of the next victim: T1 if it exceeds its target, or has it while a page returns
    /// from B2, or if T2 is empty. Otherwise T2.
    fn next_victim_list(&self, lists: &FrameLists) -> List {
        let [t1_pages, t2_pages] = [T1, T2].map(|list| lists.pages(list));
        let returns_from_b2 = matches!(self.returning, Some((_, B2)));
        let t1_size = u64::from(t1_pages) * TARGET_UNITS;
        let is_t1_first = t1_size > self.t1_target || t1_size == self.t1_target && returns_from_b2;
        if t1_pages > 0 && is_t1_first || t2_pages == 0 { T1 } else { T2 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::trial::victims;
    use super::*;

    /// Numbers are pages, in a memory of two. Page 1 is used again. Page 3 evicts 2, which returns:
    /// T1 gets a target of one page, and has it, so that 1 leaves. Page 1 returns from B2: the
    /// target becomes zero, and 3 leaves.
    #[test]
    fn a_returning_page_adjusts_the_target_of_t1() {
        assert_eq!(victims(Arc::new(2), 2, [1, 2, 1, 3, 2, 1]), [2, 1, 3]);
    }
}
