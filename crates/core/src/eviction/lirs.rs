//! `lirs`: keeps the pages with the shortest distance between their last two uses, instead of the
//! most recently used ones.
//!
//! How it works (LIRS: Jiang and Zhang, SIGMETRICS 2002): 99 % of the memory is for pages of *low*
//! inter-reference recency (LIR), the rest for pages that pass through (HIR). The victim is the HIR
//! page that has waited longest. The *stack* consists of all pages, evicted ones included, that
//! were used later than the least recently used LIR page. An HIR page, in memory or not, that is
//! used while it is in the stack has returned sooner than that LIR page. It becomes LIR, and that
//! LIR page becomes HIR, at the end of the waiting ones. An HIR page that is used outside the stack
//! moves to the end of the waiting ones. While memory fills up, all pages become LIR while there is
//! space for them.
//!
//! The implementation has no stack. Each page has the number of its last use, and is in the stack
//! if that is higher than the number of the least recently used LIR page. Evicted pages are
//! remembered with their numbers, up to the number of pages in memory.
//!
//! If uses are known only from access bits, an LIR page that is about to become HIR and was used
//! meanwhile counts as used then. A page that becomes HIR at a time when the bits can't be read is
//! checked before its eviction. If it was used, the change was wrong, and it becomes LIR again.
//!
//! It is the best policy for loops larger than memory, of which it keeps a part. It treats
//! alternating forward and backward scans as a loop, and misses all of their pages.

// Access bits count the uses of a page that readers have not reported, up to two. Reading them
// resets them, so that a loop over used pages ends.
use super::{
    AccessBits, EvictionPolicy, FrameLists, GhostList, Ghosts, List, PageKey, PageOrigin,
    policy_pages,
};
use crate::page::FrameId;

/// List of waiting HIR pages.
const HIR: List = List::PROBATION;
/// List of LIR pages.
const LIR: List = List::REUSED;

/// Divisor of the memory that gives the number of HIR pages: 1 %.
const HIR_DIVISOR: u32 = 100;

/// Use count of an HIR page that shows if its access bits were read when it became HIR.
const USES_CHECKED: u8 = 0;
const USES_UNCHECKED: u8 = 1;

/// The eviction policy `lirs`. A page's note, which the lists keep for its frame, is the number of
/// its last use. Its use count is 1 if it became HIR without a check of its access bits.
#[derive(Debug)]
pub struct Lirs {
    /// Most LIR pages.
    lir_max: u32,
    /// Most HIR pages that an adopted order may fill.
    hir_max: u32,
    /// Evicted pages of the stack, all in the first list; the word is the number of the last use.
    ghosts: Ghosts,
    /// Wrapping number of the last use.
    use_counter: u32,
    /// True once a page has been evicted. From then on a page must return to be kept, even if there
    /// is space for a while.
    has_evicted: bool,
}

impl Lirs {
    /// Creates the policy for a cache of `pages` pages.
    pub fn new(pages: u32) -> Lirs {
        let mut policy = Lirs {
            lir_max: 0,
            hir_max: 0,
            ghosts: Ghosts::new(pages),
            use_counter: 0,
            has_evicted: false,
        };
        policy.set_limits(pages);
        policy
    }

    /// Sets the limits of LIR and HIR pages for a memory of `pages` pages. A full cache may have
    /// fewer pages for its policy than frames, because others are reserved, pinned, or being read.
    /// At least one page is HIR, so that a new page can pass through.
    fn set_limits(&mut self, pages: u32) {
        self.hir_max = (pages / HIR_DIVISOR).max(1);
        self.lir_max = pages.saturating_sub(self.hir_max);
    }

    /// Advances the count of uses, and returns it as the number of a new use.
    fn next_use_number(&mut self) -> u32 {
        self.use_counter = self.use_counter.wrapping_add(1);
        self.use_counter
    }

    /// Returns true if a page whose last use has this number is in the stack, as it is newer than
    /// the oldest LIR page. False without an LIR page.
    fn is_in_stack(&self, lists: &FrameLists, use_number: u32) -> bool {
        let age = |use_number: u32| self.use_counter.wrapping_sub(use_number);
        lists.oldest(LIR).is_some_and(|oldest| age(use_number) < age(lists.note(oldest)))
    }

    /// Makes a page, which is on no list, LIR, as just used.
    fn push_lir(&mut self, lists: &mut FrameLists, frame: FrameId) {
        lists.push(frame, LIR);
        self.record_use(lists, frame);
    }

    /// Puts a page, which is on no list, at the end of the waiting HIR pages, as just used.
    fn push_hir(&mut self, lists: &mut FrameLists, frame: FrameId) {
        lists.push(frame, HIR);
        self.record_use(lists, frame);
    }

    /// Records a use of the page now: the number of the use, and that its uses are known.
    fn record_use(&mut self, lists: &mut FrameLists, frame: FrameId) {
        let use_number = self.next_use_number();
        lists.set_note(frame, use_number);
        lists.set_uses(frame, USES_CHECKED);
    }

    /// Demotes the oldest LIR pages to HIR until the limit is met. With `access_bits`, pages that
    /// were used stay LIR; without, a demoted page is marked to be checked before its eviction.
    /// Then drops the ghosts that have left the stack.
    fn demote(&mut self, lists: &mut FrameLists, mut access_bits: Option<&mut dyn AccessBits>) {
        while lists.pages(LIR) > self.lir_max
            && let Some(oldest) = lists.pop(LIR)
        {
            let uses = access_bits.as_deref_mut().map(|bits| bits.uses(oldest));
            if uses.is_some_and(|uses| uses > 0) {
                self.push_lir(lists, oldest);
            } else {
                lists.push(oldest, HIR);
                lists.set_uses(oldest, if uses.is_some() { USES_CHECKED } else { USES_UNCHECKED });
            }
        }
        // The word of a ghost is the number of its last use.
        while let Some(use_number) = self.ghosts.oldest_word(GhostList::First)
            && !self.is_in_stack(lists, use_number)
        {
            self.ghosts.forget_oldest(GhostList::First);
        }
    }
}

impl EvictionPolicy for Lirs {
    /// A page whose ghost is in the stack becomes LIR; so does any page while memory fills up.
    /// Every other page waits as HIR.
    fn enter(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey, _entry: PageOrigin) {
        let ghost = self.ghosts.take(page);
        let is_in_stack = ghost.is_some_and(|(_, use_number)| self.is_in_stack(lists, use_number));
        if is_in_stack || !self.has_evicted && lists.pages(LIR) < self.lir_max {
            self.push_lir(lists, frame);
            let no_access_bits = None;
            self.demote(lists, no_access_bits);
        } else {
            self.push_hir(lists, frame);
        }
    }

    /// Renews an LIR page. An HIR page becomes LIR if it is in the stack, and otherwise waits
    /// again. A page that is on no list is not moved.
    fn used(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey) {
        let Some(list) = lists.list_of(frame) else { return };
        if list == LIR || self.is_in_stack(lists, lists.note(frame)) {
            lists.unlink(frame);
            self.push_lir(lists, frame);
            let no_access_bits = None;
            self.demote(lists, no_access_bits);
        } else {
            lists.unlink(frame);
            self.push_hir(lists, frame);
        }
    }

    /// Sets the limits by the present number of pages, and pops the HIR pages that have waited
    /// longest. The first unused one is the victim; a used one becomes LIR or waits again. LIR
    /// pages follow only without HIR pages. `None` without any page.
    fn victim(
        &mut self,
        lists: &mut FrameLists,
        access_bits: &mut dyn AccessBits,
    ) -> Option<FrameId> {
        self.has_evicted = true;
        // Victims that are taken and not yet evicted still count as pages of the policy.
        self.set_limits(policy_pages(lists) + access_bits.taken());
        // Without waiting pages, LIR pages beyond the limit become HIR.
        if lists.pages(HIR) == 0 {
            self.demote(lists, Some(&mut *access_bits));
        }
        while let Some(frame) = lists.pop(HIR) {
            if access_bits.uses(frame) == 0 {
                return Some(frame);
            }
            // A use from before it became HIR, or while it is in the stack, makes it LIR.
            if lists.uses(frame) == USES_UNCHECKED || self.is_in_stack(lists, lists.note(frame)) {
                self.push_lir(lists, frame);
                self.demote(lists, Some(&mut *access_bits));
            } else {
                self.push_hir(lists, frame);
            }
        }
        // All pages are LIR. The oldest one without an unreported use leaves.
        while let Some(frame) = lists.pop(LIR) {
            if access_bits.uses(frame) == 0 {
                return Some(frame);
            }
            self.push_lir(lists, frame);
        }
        None
    }

    /// Adopts a page of another policy. The first pages become HIR up to the limit, the others LIR.
    /// A page that enters later must return to become LIR, as after an eviction.
    fn adopt(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey, _was_reused: bool) {
        self.has_evicted = true;
        // The first adopted pages wait, because they are the next victims. The others are in the
        // order of use.
        match lists.pages(HIR) < self.hir_max {
            true => self.push_hir(lists, frame),
            false => self.push_lir(lists, frame),
        }
    }

    /// Sets the limits for a memory of `pages` pages. Free space is then filled as initially.
    /// Excess LIR pages are demoted later, by uses and evictions.
    fn resize(&mut self, _lists: &mut FrameLists, _bits: &dyn AccessBits, pages: u32) {
        self.has_evicted = false;
        self.ghosts.resize(pages);
        self.set_limits(pages);
    }

    /// Takes over the ghosts of another policy, up to the own limit. Returns `None`, because none
    /// is left over.
    fn inherit(&mut self, ghosts: Ghosts) -> Option<Ghosts> {
        // The time of their use is unknown. They stay in the stack while an adopted page is LIR.
        self.ghosts.replace_by_joined(ghosts, self.use_counter);
        None
    }

    /// Releases all ghosts for another policy, and keeps none.
    fn release_ghosts(&mut self) -> Option<Ghosts> {
        Some(self.ghosts.take_all())
    }

    /// Remembers the evicted page if it is still in the stack.
    fn evicted(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey) {
        let use_number = lists.note(frame);
        if self.is_in_stack(lists, use_number) {
            self.ghosts.remember(GhostList::First, page, use_number);
        }
    }

    /// The HIR page that has waited longest, or the least recently used LIR page without HIR pages.
    fn oldest(&mut self, lists: &mut FrameLists) -> Option<FrameId> {
        lists.oldest(HIR).or_else(|| lists.oldest(LIR))
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::trial::{TestAccessBits, victims};
    use super::*;

    /// In a memory of four, pages 0 to 2 are LIR. Page 3 leaves and returns, so that it is LIR, and
    /// page 0, the oldest, becomes HIR unchecked. Page 0 was used meanwhile and becomes LIR again;
    /// page 1, which was not used, is evicted instead.
    #[test]
    fn a_page_used_before_its_check_becomes_lir_again() {
        let (mut policy, mut lists) = (Lirs::new(4), FrameLists::new(8));
        let mut bits = TestAccessBits { uses: [0; 8].to_vec(), taken: 0 };
        let page = |frame: u32| PageKey::from_number(frame.into());
        let enter = |policy: &mut Lirs, lists: &mut FrameLists, frame: u32| {
            policy.enter(lists, FrameId(frame), page(frame), PageOrigin::Demand);
        };
        (0..4).for_each(|frame| enter(&mut policy, &mut lists, frame));
        assert_eq!(policy.victim(&mut lists, &mut bits), Some(FrameId(3)));
        policy.evicted(&mut lists, FrameId(3), page(3));
        enter(&mut policy, &mut lists, 3);
        assert_eq!(lists.list_of(FrameId(0)), Some(HIR));
        bits.uses[0] = 1;
        assert_eq!(policy.victim(&mut lists, &mut bits), Some(FrameId(1)));
        assert_eq!(lists.list_of(FrameId(0)), Some(LIR));
    }

    /// Numbers are pages, in a memory of three. 1 and 2 are LIR. 3 passes through, and returns
    /// sooner than 1: 3 becomes LIR, and 1 is the next victim.
    #[test]
    fn a_page_that_returns_sooner_than_the_oldest_lir_replaces_it() {
        assert_eq!(victims(Lirs::new(3), 3, [1, 2, 3, 4, 3, 5]), [3, 4, 1]);
        // 1 was used since: 2 is the next victim.
        assert_eq!(victims(Lirs::new(3), 3, [1, 2, 3, 1, 4, 3, 5]), [3, 4, 2]);
    }
}
