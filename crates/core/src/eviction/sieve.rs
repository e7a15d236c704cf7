//! `sieve`: a hand moves over the pages in the order of their arrival, and evicts unused ones.
//!
//! How it works (SIEVE: Zhang, Yang, Yue, Vigfusson and Rashmi, NSDI 2024): all pages are in one
//! queue, in the order of their arrival, and a use only marks the page. The hand starts at the
//! oldest page. It clears the mark of each marked page, and evicts the first page without one. The
//! next search continues there, towards newer pages. After the newest page it starts again at the
//! oldest.
//!
//! A marked page stays where it is, so the pages that the hand has passed in earlier rounds are
//! mostly used ones, and new pages are examined more often. A loop larger than memory never hits.
//!
//! A late report of a use gives the same result as an immediate one.

use alloc::vec::Vec;

// Access bits count the uses of a page that readers have not reported, up to two. Reading them
// resets them, so that a loop over used pages ends.
use super::{AccessBits, EvictionPolicy, FrameLists, List, PageKey, PageOrigin};
use crate::page::FrameId;

/// Notes of a page, which the lists keep for its frame: a marked page was used since the hand last
/// passed it.
const UNMARKED: u32 = 0;
const MARKED: u32 = 1;

/// The eviction policy `sieve`.
///
/// The queue is two lists: the pages that the hand has passed in this round, and the newer ones,
/// which it has still to examine.
#[derive(Debug)]
pub struct Sieve {
    /// Pages that the hand has still to examine; the hand is at the oldest of them.
    unexamined: List,
    /// Pages that the hand has passed in this round.
    examined: List,
}

impl Sieve {
    /// Creates the policy. It uses two of a policy's lists, which change roles after each round:
    /// their usual names have no meaning here.
    pub fn new() -> Sieve {
        Sieve { unexamined: List::PROBATION, examined: List::REUSED }
    }

    /// Moves the hand to the oldest page, if it has passed the newest one.
    fn end_round(&mut self, lists: &FrameLists) {
        if lists.pages(self.unexamined) == 0 {
            core::mem::swap(&mut self.unexamined, &mut self.examined);
        }
    }

    /// Puts a frame at the newest end of the unexamined list, with the note `mark`.
    fn push(&self, lists: &mut FrameLists, frame: FrameId, mark: u32) {
        lists.push(frame, self.unexamined);
        lists.set_note(frame, mark);
    }
}

impl Default for Sieve {
    /// Creates the policy, as [`new`](Sieve::new) does.
    fn default() -> Sieve {
        Sieve::new()
    }
}

impl EvictionPolicy for Sieve {
    /// Adds an unmarked page as the newest one.
    fn enter(
        &mut self,
        lists: &mut FrameLists,
        frame: FrameId,
        _page: PageKey,
        _entry: PageOrigin,
    ) {
        self.push(lists, frame, UNMARKED);
    }

    /// Marks the page, which stays where it is.
    fn used(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey) {
        lists.set_note(frame, MARKED);
    }

    /// Moves the hand from the oldest unexamined page on, and clears marks. The first page with
    /// neither a mark nor an unreported use is the victim. `None` without a page.
    fn victim(
        &mut self,
        lists: &mut FrameLists,
        access_bits: &mut dyn AccessBits,
    ) -> Option<FrameId> {
        loop {
            self.end_round(lists);
            let frame = lists.pop(self.unexamined)?;
            if access_bits.uses(frame) == 0 && lists.note(frame) == UNMARKED {
                // If it was the newest page, the next search starts at the oldest, and not at a
                // page that enters meanwhile.
                self.end_round(lists);
                return Some(frame);
            }
            lists.push(frame, self.examined);
            lists.set_note(frame, UNMARKED);
        }
    }

    /// The page that the hand examines next; `None` without a page.
    fn oldest(&mut self, lists: &mut FrameLists) -> Option<FrameId> {
        lists.oldest(self.unexamined).or_else(|| lists.oldest(self.examined))
    }

    /// Adopts a page of another policy as the newest one. A reused page counts as marked.
    fn adopt(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey, was_reused: bool) {
        self.push(lists, frame, if was_reused { MARKED } else { UNMARKED });
    }

    /// Releases all pages: the unmarked ones first, each group in the order of the hand. The flag
    /// is true for a marked page.
    fn give_up(&mut self, lists: &mut FrameLists) -> Vec<(FrameId, bool)> {
        let mut pages = Vec::new();
        for list in [self.unexamined, self.examined] {
            while let Some(frame) = lists.pop(list) {
                pages.push((frame, lists.note(frame) == MARKED));
            }
        }
        pages.sort_by_key(|(_, is_marked)| *is_marked);
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::trial::victims;
    use super::*;

    /// Numbers are pages, in a memory of four. 1 and 3 are marked. 5 clears the mark of 1 and
    /// evicts 2. The hand is at 3: 6 clears its mark and evicts 4. The hand is at 5, so 7 evicts 5,
    /// and 8 evicts 6.
    #[test]
    fn the_hand_continues_where_it_stopped() {
        let references = [1, 2, 3, 4, 1, 3, 5, 6, 7, 8];
        assert_eq!(victims(Sieve::new(), 4, references), [2, 4, 5, 6]);
    }

    /// All pages are marked: the hand clears the marks of all, and starts again at the oldest.
    #[test]
    fn after_the_newest_page_the_hand_starts_at_the_oldest() {
        assert_eq!(victims(Sieve::new(), 3, [1, 2, 3, 1, 2, 3, 4, 5]), [1, 2]);
    }
}
