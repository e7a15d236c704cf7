//! `lru-k`: evicts the page whose last use but one is the longest ago.
//!
//! How it works (LRU-K: O'Neil, O'Neil and Weikum, SIGMOD 1993, with K = 2): the policy records the
//! last two uses of each page. The victim is the least recently used page among those with one
//! known use. Without such pages it is the page with the oldest last use but one. Evicted pages are
//! remembered with their last use, as many as memory has pages. A page that returns while it is
//! remembered has two known uses at once.
//!
//! A page used once soon leaves, so that a scan passes through. Two uses rank pages by an estimate
//! of the time between uses. The authors' correlated reference period is zero here: each use
//! counts, also shortly after the one before it. A page with two uses that is not used any more
//! stays as long as there are pages with one. In a loop larger than memory and its ghosts, and in a
//! walk to and fro, nearly all pages miss.
//!
//! If uses are known only from access bits, the next victim is examined, and its uses count then.

use alloc::vec::Vec;

use super::frame_heap::FrameHeap;
// Access bits count the uses of a page that readers have not reported, up to two. Reading them
// resets them, so that a loop over used pages ends.
use super::{AccessBits, EvictionPolicy, FrameLists, GhostList, Ghosts, List, PageKey, PageOrigin};
use crate::page::FrameId;

/// List of the pages with one known use.
const ONCE: List = List::PROBATION;
/// List of the pages with two known uses.
const AGAIN: List = List::REUSED;

/// Use counts of pages: the number of known uses.
const USED_ONCE: u8 = 1;
const USED_AGAIN: u8 = 2;

/// The eviction policy `lru-k`. A page's note, which the lists keep for its frame, is the number of
/// its last use.
#[derive(Debug)]
pub struct LruK {
    /// Pages with two known uses, by the number of the last use but one. A page that left its list
    /// without notice remains until it is the first.
    last_but_one: FrameHeap,
    /// Evicted pages; the word is the number of the last use.
    ghosts: Ghosts,
    /// Wrapping number of the last use of any page.
    use_counter: u32,
}

impl LruK {
    /// Creates the policy for a cache of `pages` pages.
    pub fn new(pages: u32) -> LruK {
        LruK { last_but_one: FrameHeap::default(), ghosts: Ghosts::new(pages), use_counter: 0 }
    }

    /// Records a use, now, of a page that is on no list and has no other known use.
    fn push_once(&mut self, lists: &mut FrameLists, frame: FrameId) {
        lists.push(frame, ONCE);
        lists.set_uses(frame, USED_ONCE);
        self.record_use(lists, frame);
    }

    /// Records a use, now, of a page that is on no list. `last_use` is the number of the use before
    /// it.
    fn push_again(&mut self, lists: &mut FrameLists, frame: FrameId, last_use: u32) {
        lists.push(frame, AGAIN);
        lists.set_uses(frame, USED_AGAIN);
        self.last_but_one.insert(frame, last_use);
        self.record_use(lists, frame);
    }

    /// Advances the count of uses, and notes it as the last use of the page.
    fn record_use(&mut self, lists: &mut FrameLists, frame: FrameId) {
        self.use_counter = self.use_counter.wrapping_add(1);
        lists.set_note(frame, self.use_counter);
    }

    /// The next victim, which stays on its list; `None` without a page. Drops entries of pages that
    /// left without notice.
    fn next_victim(&mut self, lists: &FrameLists) -> Option<FrameId> {
        let used_once = lists.oldest(ONCE);
        if used_once.is_some() {
            return used_once;
        }
        while let Some(frame) = self.last_but_one.first() {
            if lists.list_of(frame) == Some(AGAIN) {
                return Some(frame);
            }
            self.last_but_one.remove(frame);
        }
        None
    }

    /// Removes the next victim from its list; `None` without a page.
    fn pop(&mut self, lists: &mut FrameLists) -> Option<FrameId> {
        let frame = self.next_victim(lists)?;
        lists.unlink(frame);
        self.last_but_one.remove(frame);
        Some(frame)
    }
}

impl EvictionPolicy for LruK {
    /// A page with a ghost has two known uses, any other page one.
    fn enter(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey, _entry: PageOrigin) {
        match self.ghosts.take_entering(page) {
            Some((_, last_use)) => self.push_again(lists, frame, last_use),
            None => self.push_once(lists, frame),
        }
    }

    /// Records a use. A page that is on no list is not moved.
    fn used(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey) {
        if lists.is_listed(frame) {
            lists.unlink(frame);
            let last_use = lists.note(frame);
            self.push_again(lists, frame, last_use);
        }
    }

    /// Pops the next victims. The first unused one is the victim. The uses of the others are
    /// recorded. `None` without a page.
    fn victim(
        &mut self,
        lists: &mut FrameLists,
        access_bits: &mut dyn AccessBits,
    ) -> Option<FrameId> {
        loop {
            let frame = self.pop(lists)?;
            let uses = access_bits.uses(frame);
            if uses == 0 {
                return Some(frame);
            }
            let last_use = lists.note(frame);
            self.push_again(lists, frame, last_use);
            // The first of them is recorded; the others follow.
            for _ in 1..uses {
                self.used(lists, frame, access_bits.page(frame));
            }
        }
    }

    /// Remembers the page with its last use.
    fn evicted(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey) {
        self.ghosts.remember(GhostList::First, page, lists.note(frame));
    }

    /// The next victim, which stays on its list; `None` without a page.
    fn oldest(&mut self, lists: &mut FrameLists) -> Option<FrameId> {
        self.next_victim(lists)
    }

    /// If the requested page is a ghost, removes the ghost, before the ghost of the next victim
    /// displaces it, and notes its last use until the page enters. No effect on any other page.
    fn demand(&mut self, page: PageKey) {
        self.ghosts.announce(page);
    }

    /// A victim that did not leave keeps its known uses, and with two its place in the order. A
    /// page with one use returns as the newest of its list.
    fn restore_victim(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey) {
        match self.last_but_one.use_number(frame) {
            // The heap keeps the number of a removed frame: the last use but one.
            Some(use_number) if lists.uses(frame) == USED_AGAIN => {
                lists.push(frame, AGAIN);
                self.last_but_one.insert(frame, use_number);
            }
            _ => lists.push(frame, ONCE),
        }
    }

    /// Adopts a page of another policy: a reused page with two uses, any other with one.
    fn adopt(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey, was_reused: bool) {
        // The times of the uses are unknown. The order of adoption replaces them.
        match was_reused {
            true => self.push_again(lists, frame, self.use_counter),
            false => self.push_once(lists, frame),
        }
    }

    /// Sets the number of ghosts for a memory of `pages` pages.
    fn resize(&mut self, _lists: &mut FrameLists, _bits: &dyn AccessBits, pages: u32) {
        self.ghosts.resize(pages);
    }

    /// Releases all pages for another policy, in the order of eviction. The flag is true for a page
    /// with two known uses.
    fn give_up(&mut self, lists: &mut FrameLists) -> Vec<(FrameId, bool)> {
        let next = || self.pop(lists).map(|frame| (frame, lists.uses(frame) == USED_AGAIN));
        core::iter::from_fn(next).collect()
    }

    /// Takes over the ghosts of another policy, up to the own limit. Returns `None`, because none
    /// is left over.
    fn inherit(&mut self, ghosts: Ghosts) -> Option<Ghosts> {
        // The time of their use is unknown. They count as used now.
        self.ghosts.replace_by_joined(ghosts, self.use_counter);
        None
    }

    /// Releases all ghosts for another policy, and keeps none.
    fn release_ghosts(&mut self) -> Option<Ghosts> {
        Some(self.ghosts.take_all())
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::trial::{TestAccessBits, victims};
    use super::*;
    use crate::splitmix;

    /// Worked by hand, three pages: 1 and 2 are used again, so 4 evicts 3, and 5 evicts 4. Page 3
    /// returns while it is remembered, and evicts 5. The last uses but one of 1, 2 and 3 are the
    /// first, second and third reference: 6 evicts 1, and 7 evicts 6, which was used once.
    #[test]
    fn pages_with_one_known_use_leave_first() {
        let references = [1, 2, 3, 1, 2, 4, 5, 3, 6, 7];
        assert_eq!(victims(LruK::new(3), 3, references), [3, 4, 5, 1, 6]);
    }

    /// Worked by hand, two pages: the last uses but one are the second reference for 1, and the
    /// third for 2. Thus 3 evicts 1, although 2 is the least recently used page.
    #[test]
    fn the_last_use_but_one_ranks_pages_used_again() {
        assert_eq!(victims(LruK::new(2), 2, [1, 1, 2, 2, 1, 3]), [1]);
    }

    /// Frames 0 to 3 are used in this order, and then 2, 1 and 0. The pages with two uses leave in
    /// the order of their first one.
    #[test]
    fn pages_are_released_in_the_order_of_eviction() {
        let (mut policy, mut lists) = (LruK::new(4), FrameLists::new(4));
        let page = |frame: u32| PageKey::from_number(frame.into());
        for frame in 0..4 {
            policy.enter(&mut lists, FrameId(frame), page(frame), PageOrigin::Demand);
        }
        for frame in [2, 1, 0] {
            policy.used(&mut lists, FrameId(frame), page(frame));
        }
        // Frame 1 leaves without notice, and returns as a victim that did not leave.
        lists.unlink(FrameId(1));
        policy.restore_victim(&mut lists, FrameId(1), page(1));
        lists.unlink(FrameId(0));
        let order: Vec<(u32, bool)> = policy
            .give_up(&mut lists)
            .into_iter()
            .map(|(frame, was_reused)| (frame.0, was_reused))
            .collect();
        assert_eq!(order, [(3, false), (1, true), (2, true)]);
    }

    /// Frame 0 was used twice after the others entered. Frames 1 and 2 leave before it, and both
    /// uses are recorded: the last use but one is the fourth of all.
    #[test]
    fn unreported_uses_are_recorded_before_an_eviction() {
        let (mut policy, mut lists) = (LruK::new(3), FrameLists::new(3));
        let mut bits = TestAccessBits { uses: [2].to_vec(), taken: 0 };
        for frame in 0..3 {
            let page = bits.page(FrameId(frame));
            policy.enter(&mut lists, FrameId(frame), page, PageOrigin::Demand);
        }
        let order = [1, 2, 0].map(|frame| Some(FrameId(frame)));
        assert_eq!(order, order.map(|_| policy.victim(&mut lists, &mut bits)));
        assert_eq!(policy.last_but_one.use_number(FrameId(0)), Some(4));
    }

    /// Victims of a reference model with two vectors. One has the pages with their last two uses,
    /// zero for an unknown one; the other has the ghosts with their last use, the oldest first.
    fn expected(pages: usize, references: &[u64]) -> Vec<u64> {
        let (mut present, mut ghosts) = (Vec::<(u64, u64, u64)>::new(), Vec::<(u64, u64)>::new());
        let mut gone = Vec::new();
        for (&page, now) in references.iter().zip(1..) {
            if let Some(it) = present.iter_mut().find(|it| it.2 == page) {
                *it = (it.1, now, page);
                continue;
            }
            let ghost = ghosts.iter().position(|it| it.0 == page).map(|index| ghosts.remove(index));
            if present.len() == pages {
                let victim = *present.iter().min().unwrap();
                present.retain(|it| *it != victim);
                ghosts.push((victim.2, victim.1));
                if ghosts.len() > pages {
                    ghosts.remove(0);
                }
                gone.push(victim.2);
            }
            present.push((ghost.map_or(0, |it| it.1), now, page));
        }
        gone
    }

    /// Pseudo-random references to 80 pages, half of them to ten pages.
    #[test]
    fn victims_equal_a_reference_model() {
        let draw = |at: u64| (splitmix::mixed(at) >> 32) % 80;
        let page = |at: u64| if draw(at + 1) < 40 { draw(at) } else { draw(at) % 10 };
        let references: Vec<u64> = (0..8000).map(page).collect();
        for pages in [1, 2, 5, 12, 30] {
            let found = victims(LruK::new(pages), pages, references.iter().copied());
            assert_eq!(found, expected(pages as usize, &references), "{pages} pages");
        }
    }
}
