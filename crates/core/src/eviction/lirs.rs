//! `lirs`: what comes back soonest stays, by the distance of its last two uses and not by its last
//! one alone.
//!
//! The law in words (LIRS: Jiang and Zhang, SIGMETRICS 2002): all but a hundredth of the memory is
//! for pages of *low* inter-reference recency (LIR), the rest for pages that pass through (HIR).
//! The victim is the HIR page that has waited longest. The *stack* is all pages, those that have
//! left among them, that were used later than the LIR page used longest ago. An HIR page, in memory
//! or not, that is used while it is in the stack has come back sooner than that LIR page: it
//! becomes LIR, and that one HIR, at the end of those that wait. One that is used when it isn't in
//! the stack waits anew. While memory fills up, all pages are LIR as far as there is room for them.
//!
//! There is no stack here: each page has the number of its last use, and is in the stack if that is
//! higher than the LIR page's that was used longest ago. What has left is remembered with its
//! number, as many pages as there are in memory.
//!
//! Where uses are known only when a page is looked at, an LIR page that would become HIR and was
//! used meanwhile counts as used then. One that becomes HIR while nobody can look, because
//! another comes back, is looked at before it goes: if it was used it never should have become
//! HIR, and is LIR again.
//!
//! It is the best there is for loops larger than memory, of which it keeps a part. What walks to
//! and fro it takes for a loop, and misses everything of.

use super::{
    AccessBits, EvictionPolicy, FrameLists, GhostList, Ghosts, List, PageKey, PageOrigin,
    policy_pages,
};
use crate::cache::FrameId;

const HIR: List = List::PROBATION;
const LIR: List = List::KEPT;

/// Of so many pages of memory one is for HIR pages.
const HIR_DIVISOR: u32 = 100;

/// What is counted as uses of a page on a list: whether it became HIR unseen.
const CHECKED: u8 = 0;
const UNCHECKED: u8 = 1;

/// The reclaim law `lirs`. A page's note is the number of its last use; its uses are 1 if it became
/// HIR unseen.
#[derive(Debug)]
pub struct Lirs {
    lir_max: u32,
    hir_max: u32,
    ghosts: Ghosts,
    /// The number of the last use, round and round.
    use_counter: u32,
    /// Whether a page has had to leave yet. From then on a page has to come back to be kept, though
    /// there may be room for a while.
    has_evicted: bool,
}

impl Lirs {
    /// For a cache of so many pages.
    pub fn new(pages: u32) -> Lirs {
        let mut policy = Lirs {
            lir_max: 0,
            hir_max: 0,
            ghosts: Ghosts::new(pages),
            use_counter: 0,
            has_evicted: false,
        };
        policy.share(pages);
        policy
    }

    /// Shares the memory out. A cache that is full may have fewer pages for its law than there are
    /// frames: others are promised, pinned, or on their way.
    fn share(&mut self, pages: u32) {
        self.hir_max = (pages / HIR_DIVISOR).max(1);
        self.lir_max = pages.saturating_sub(self.hir_max);
    }

    fn number(&mut self) -> u32 {
        self.use_counter = self.use_counter.wrapping_add(1);
        self.use_counter
    }

    /// Whether a page whose last use has this number is in the stack.
    fn is_in_stack(&self, places: &FrameLists, number: u32) -> bool {
        let age = |number: u32| self.use_counter.wrapping_sub(number);
        places.oldest(LIR).is_some_and(|oldest| age(number) < age(places.note(oldest)))
    }

    /// Puts a page, which is on no list, on that of LIR pages, as just used.
    fn keep(&mut self, places: &mut FrameLists, frame: FrameId) {
        places.push(frame, LIR);
        self.note_use(places, frame);
    }

    /// Puts a page, which is on no list, at the end of those that wait, as just used.
    fn push_waiting(&mut self, places: &mut FrameLists, frame: FrameId) {
        places.push(frame, HIR);
        self.note_use(places, frame);
    }

    fn note_use(&mut self, places: &mut FrameLists, frame: FrameId) {
        let number = self.number();
        places.set_note(frame, number);
        places.set_uses(frame, CHECKED);
    }

    /// Has LIR pages become HIR until there are no more than there should be. Those that
    /// turn out to have been used, which is asked of each once where one can look, stay.
    fn demote(&mut self, places: &mut FrameLists, mut looks: Option<&mut dyn AccessBits>) {
        while places.pages(LIR) > self.lir_max {
            let Some(oldest) = places.pop(LIR) else { return };
            let uses = looks.as_deref_mut().map(|looks| looks.uses(oldest));
            if uses.is_some_and(|uses| uses > 0) {
                self.keep(places, oldest);
            } else {
                places.push(oldest, HIR);
                places.set_uses(oldest, if uses.is_some() { CHECKED } else { UNCHECKED });
            }
        }
        // What has come out of the stack at its bottom is remembered no longer.
        while let Some(number) = self.ghosts.oldest_word(GhostList::First)
            && !self.is_in_stack(places, number)
        {
            self.ghosts.forget_oldest(GhostList::First);
        }
    }
}

impl EvictionPolicy for Lirs {
    fn enter(
        &mut self,
        places: &mut FrameLists,
        frame: FrameId,
        page: PageKey,
        _entry: PageOrigin,
    ) {
        let ghost = self.ghosts.take(page);
        let is_back = ghost.is_some_and(|(_, number)| self.is_in_stack(places, number));
        if is_back || !self.has_evicted && places.pages(LIR) < self.lir_max {
            self.keep(places, frame);
            self.demote(places, None);
        } else {
            self.push_waiting(places, frame);
        }
    }

    fn used(&mut self, places: &mut FrameLists, frame: FrameId, _page: PageKey) {
        let Some(list) = places.list_of(frame) else { return };
        if list == LIR || self.is_in_stack(places, places.note(frame)) {
            places.unlink(frame);
            self.keep(places, frame);
            self.demote(places, None);
        } else {
            places.unlink(frame);
            self.push_waiting(places, frame);
        }
    }

    fn victim(&mut self, places: &mut FrameLists, looks: &mut dyn AccessBits) -> Option<FrameId> {
        self.has_evicted = true;
        self.share(policy_pages(places) + looks.taken());
        if places.pages(HIR) == 0 {
            self.demote(places, Some(&mut *looks));
        }
        while let Some(frame) = places.pop(HIR) {
            if looks.uses(frame) == 0 {
                return Some(frame);
            }
            if places.uses(frame) == UNCHECKED || self.is_in_stack(places, places.note(frame)) {
                self.keep(places, frame);
                self.demote(places, Some(&mut *looks));
            } else {
                self.push_waiting(places, frame);
            }
        }
        while let Some(frame) = places.pop(LIR) {
            if looks.uses(frame) == 0 {
                return Some(frame);
            }
            self.keep(places, frame);
        }
        None
    }

    fn adopt(&mut self, places: &mut FrameLists, frame: FrameId, _page: PageKey, _is_kept: bool) {
        self.has_evicted = true;
        // The first of those that wait are the first to go; the others are in the order of use.
        match places.pages(HIR) < self.hir_max {
            true => self.push_waiting(places, frame),
            false => self.keep(places, frame),
        }
    }

    /// Where there are to be more pages, room is filled as at first.
    fn resize(&mut self, _places: &mut FrameLists, _looks: &dyn AccessBits, pages: u32) {
        self.has_evicted = false;
        self.ghosts.resize(pages);
        self.share(pages);
    }

    fn inherit(&mut self, mut ghosts: Ghosts) -> Option<Ghosts> {
        // When they were used is not known. They are in the stack while an adopted page is LIR.
        ghosts.join(self.use_counter);
        ghosts.resize(self.ghosts.most());
        self.ghosts = ghosts;
        None
    }

    fn release_ghosts(&mut self) -> Option<Ghosts> {
        Some(core::mem::replace(&mut self.ghosts, Ghosts::new(0)))
    }

    fn evicted(&mut self, places: &mut FrameLists, frame: FrameId, page: PageKey) {
        let number = places.note(frame);
        if self.is_in_stack(places, number) {
            self.ghosts.remember(GhostList::First, page, number);
        }
    }

    fn oldest(&mut self, places: &mut FrameLists) -> Option<FrameId> {
        places.oldest(HIR).or_else(|| places.oldest(LIR))
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::trial::victims;
    use super::*;

    /// In a memory of three 1 and 2 are LIR. 3 passes through, and comes back sooner than 1: 3 is
    /// LIR then, and 1 waits to go.
    /// A cache whose uses are known only as bits, until a law looks.
    struct TestAccessBits([u8; 8]);

    impl AccessBits for TestAccessBits {
        fn uses(&mut self, frame: FrameId) -> u8 {
            core::mem::take(&mut self.0[frame.0 as usize])
        }

        fn page(&self, frame: FrameId) -> PageKey {
            PageKey::numbered(frame.0.into())
        }

        fn taken(&self) -> u32 {
            0
        }
    }

    /// Of a memory of four, pages 0 to 2 are LIR. Page 3 leaves and comes back, so that it is LIR and 0,
    /// the oldest, becomes HIR unseen. It was used meanwhile: 0 is LIR again, and 1, which was not,
    /// goes in its place.
    #[test]
    fn a_page_used_before_its_check_becomes_lir_again() {
        let (mut policy, mut places) = (Lirs::new(4), FrameLists::new(8));
        let mut bits = TestAccessBits([0; 8]);
        let page = |frame: u32| PageKey::numbered(frame.into());
        let enter = |policy: &mut Lirs, places: &mut FrameLists, frame: u32| {
            policy.enter(places, FrameId(frame), page(frame), PageOrigin::Asked);
        };
        (0..4).for_each(|frame| enter(&mut policy, &mut places, frame));
        assert_eq!(policy.victim(&mut places, &mut bits), Some(FrameId(3)));
        policy.evicted(&mut places, FrameId(3), page(3));
        enter(&mut policy, &mut places, 3);
        assert_eq!(places.list_of(FrameId(0)), Some(HIR));
        bits.0[0] = 1;
        assert_eq!(policy.victim(&mut places, &mut bits), Some(FrameId(1)));
        assert_eq!(places.list_of(FrameId(0)), Some(LIR));
    }

    #[test]
    fn a_page_that_returns_sooner_than_the_oldest_lir_replaces_it() {
        assert_eq!(victims(Lirs::new(3), 3, [1, 2, 3, 4, 3, 5]), [3, 4, 1]);
        // 1 was used since: it is 2 that waits.
        assert_eq!(victims(Lirs::new(3), 3, [1, 2, 3, 1, 4, 3, 5]), [3, 4, 2]);
    }
}
