//! `lru`: evicts the least recently used page.
//!
//! How it works: a new page, and a used page, moves to the front of one list; the victim is the
//! page at its back. If uses are known only from access bits, a page at the back that was used
//! meanwhile moves to the front, as if it were used then: that is CLOCK.
//!
//! It is the best policy if the probability of a use falls with the time since the last one. One
//! scan evicts all pages, and a loop larger than memory never finds a page.

// Access bits count the uses of a page that readers have not reported, up to two. Reading them
// resets them, so that a loop over used pages ends.
use super::{AccessBits, EvictionPolicy, FrameLists, List, PageKey, PageOrigin};
use crate::page::FrameId;

/// The list of all pages.
const ALL: List = List::PROBATION;

/// The eviction policy `lru`.
#[derive(Debug, Default)]
pub struct Lru;

impl EvictionPolicy for Lru {
    /// Adds the page at the newest end.
    fn enter(
        &mut self,
        lists: &mut FrameLists,
        frame: FrameId,
        _page: PageKey,
        _entry: PageOrigin,
    ) {
        lists.push(frame, ALL);
    }

    /// Moves a used page to the newest end. A page that is on no list is not moved.
    fn used(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey) {
        if lists.is_listed(frame) {
            lists.renew(frame, ALL);
        }
    }

    /// Pops the oldest pages. Used ones move to the front; the first unused one is the victim.
    /// `None` if the list is empty.
    fn victim(
        &mut self,
        lists: &mut FrameLists,
        access_bits: &mut dyn AccessBits,
    ) -> Option<FrameId> {
        loop {
            let frame = lists.pop(ALL)?;
            if access_bits.uses(frame) == 0 {
                return Some(frame);
            }
            lists.push(frame, ALL);
        }
    }

    /// The least recently used page; `None` without a page.
    fn oldest(&mut self, lists: &mut FrameLists) -> Option<FrameId> {
        lists.oldest(ALL)
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::trial::victims;
    use super::*;

    /// Numbers are pages, in a memory of three: 1 is used again before 4 and 5 enter.
    #[test]
    fn the_least_recently_used_page_is_evicted() {
        assert_eq!(victims(Lru, 3, [1, 2, 3, 1, 4, 5]), [2, 3]);
    }
}
