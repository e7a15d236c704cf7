//! `2q`: a first-in first-out queue for new pages, and an LRU list for pages that return.
//!
//! How it works (2Q in its full version: Johnson and Shasha, VLDB 1994): a page enters the queue
//! *A1in*, and uses do not move it there. If A1in has more than a quarter of the memory, its oldest
//! page leaves, and is remembered as a ghost in *A1out*. Otherwise the least recently used page of
//! the list *Am* leaves, and is not remembered. A page that returns while it is a ghost enters Am.
//! A1out has as many ghosts as half of the memory has pages.
//!
//! Uses shortly after the first one say little, so only a page that returns after it has left A1in
//! counts as used again. The quarter and the half are the authors' values.
//!
//! If uses are known only from access bits, Am is a clock: a used page at its end moves to the
//! front.

// Access bits count the uses of a page that readers have not reported, up to two. Reading them
// resets them, so that a loop over used pages ends.
use super::{AccessBits, EvictionPolicy, FrameLists, GhostList, Ghosts, List, PageKey, PageOrigin};
use crate::page::FrameId;

/// List of the queue of new pages.
const A1IN: List = List::PROBATION;
/// List of the pages that returned.
const AM: List = List::REUSED;
/// List of the ghosts of pages that left the queue.
const A1OUT: GhostList = GhostList::First;

/// Notes of a victim, which the lists keep for its frame: the list that it left.
const FROM_A1IN: u32 = 0;
const FROM_AM: u32 = 1;

/// Word of each ghost: this policy needs none.
const UNUSED_WORD: u32 = 0;

/// The eviction policy `2q`.
#[derive(Debug)]
pub struct TwoQueues {
    /// Most pages of A1in while Am has pages.
    a1in_max: u32,
    /// The list A1out.
    ghosts: Ghosts,
}

/// Number of ghosts for a cache of `pages` pages.
fn ghosts_max(pages: u32) -> u32 {
    pages / 2
}

impl TwoQueues {
    /// Creates the policy for a cache of `pages` pages. A1in has a quarter of them.
    pub fn new(pages: u32) -> TwoQueues {
        TwoQueues { a1in_max: pages / 4, ghosts: Ghosts::new(ghosts_max(pages)) }
    }

    /// The list of the next victim: A1in if it exceeds its size or Am is empty, and otherwise Am.
    fn next_victim_list(&self, lists: &FrameLists) -> List {
        let is_a1in_next = lists.pages(A1IN) > self.a1in_max || lists.pages(AM) == 0;
        if is_a1in_next { A1IN } else { AM }
    }
}

impl EvictionPolicy for TwoQueues {
    /// Adds a returning page, whose ghost is removed, to Am, and any other page to A1in.
    fn enter(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey, _entry: PageOrigin) {
        let is_returning = self.ghosts.take_entering(page).is_some();
        lists.push(frame, if is_returning { AM } else { A1IN });
    }

    /// Moves a used page of Am to its front. A page in A1in is not moved.
    fn used(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey) {
        if lists.list_of(frame) == Some(AM) {
            lists.renew(frame, AM);
        }
    }

    /// Pops the oldest pages of A1in or Am, as `next_victim_list` chooses. A used page of Am moves
    /// to its front; the first other page is the victim, with its list as note. `None` without a
    /// page.
    fn victim(
        &mut self,
        lists: &mut FrameLists,
        access_bits: &mut dyn AccessBits,
    ) -> Option<FrameId> {
        loop {
            let list = self.next_victim_list(lists);
            let frame = lists.pop(list)?;
            if list == AM && access_bits.uses(frame) > 0 {
                lists.push(frame, AM);
                continue;
            }
            lists.set_note(frame, if list == AM { FROM_AM } else { FROM_A1IN });
            return Some(frame);
        }
    }

    /// Remembers the page as a ghost if it left A1in.
    fn evicted(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey) {
        if lists.note(frame) == FROM_A1IN {
            self.ghosts.remember(A1OUT, page, UNUSED_WORD);
        }
    }

    /// The oldest page of the list that the next victim comes from; `None` without a page.
    fn oldest(&mut self, lists: &mut FrameLists) -> Option<FrameId> {
        lists.oldest(self.next_victim_list(lists))
    }

    /// If the requested page is a ghost, removes the ghost, before the ghost of the next victim
    /// displaces it, and notes the page until it enters. No effect on any other page.
    fn demand(&mut self, page: PageKey) {
        self.ghosts.announce(page);
    }

    /// A victim that did not leave returns to the list that it left.
    fn restore_victim(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey) {
        lists.push(frame, if lists.note(frame) == FROM_AM { AM } else { A1IN });
    }

    /// Adopts a page of another policy: a reused page in Am, any other in A1in.
    fn adopt(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey, was_reused: bool) {
        lists.push(frame, if was_reused { AM } else { A1IN });
    }

    /// Sets the size of A1in and the number of ghosts for a memory of `pages` pages.
    fn resize(&mut self, _lists: &mut FrameLists, _access_bits: &dyn AccessBits, pages: u32) {
        self.a1in_max = pages / 4;
        self.ghosts.resize(ghosts_max(pages));
    }

    /// Takes over the ghosts of another policy, up to the own limit. Returns `None`, because none
    /// is left over.
    fn inherit(&mut self, ghosts: Ghosts) -> Option<Ghosts> {
        self.ghosts.replace_by_joined(ghosts, UNUSED_WORD);
        None
    }

    /// Releases all ghosts for another policy, and keeps none.
    fn release_ghosts(&mut self) -> Option<Ghosts> {
        Some(self.ghosts.take_all())
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::trial::victims;
    use super::*;

    /// Numbers are pages, in a memory of four with an A1in of one. The use of 1 in A1in moves
    /// nothing, so 5 evicts it. 1 returns from A1out to Am, and 2 leaves. 6 and 7 evict 3 and 4, as
    /// A1in is too long.
    #[test]
    fn only_a_page_that_returns_counts_as_used_again() {
        let references = [1, 2, 3, 4, 1, 5, 1, 6, 7];
        assert_eq!(victims(TwoQueues::new(4), 4, references), [1, 2, 3, 4]);
    }

    /// In the same memory, 5 and 6 evict 1 and 2. As 1, 2 and 3 return, 3, 4 and 5 leave. A1in then
    /// has its length of one. 1 is used, so 7 evicts the least recently used page of Am: 2.
    #[test]
    fn with_a_short_first_queue_the_least_recently_used_returned_page_leaves() {
        let references = [1, 2, 3, 4, 5, 6, 1, 2, 3, 1, 7];
        assert_eq!(victims(TwoQueues::new(4), 4, references), [1, 2, 3, 4, 5, 2]);
    }

    /// A cache of four pages has two ghosts. Two pages that leave A1in displace all inherited ones,
    /// whatever their list.
    #[test]
    fn inherited_ghosts_are_displaced_by_later_ones() {
        let (mut policy, mut lists) = (TwoQueues::new(4), FrameLists::new(4));
        let mut ghosts = Ghosts::new(4);
        ghosts.remember(GhostList::Second, PageKey::from_number(9), UNUSED_WORD);
        assert!(policy.inherit(ghosts).is_none());
        for page in 1..=2 {
            policy.enter(&mut lists, FrameId(0), PageKey::from_number(page), PageOrigin::Demand);
            let victim = lists.pop(A1IN).unwrap();
            lists.set_note(victim, FROM_A1IN);
            policy.evicted(&mut lists, victim, PageKey::from_number(page));
        }
        assert!(policy.ghosts.take(PageKey::from_number(9)).is_none());
        assert!(policy.ghosts.take(PageKey::from_number(1)).is_some());
    }
}
