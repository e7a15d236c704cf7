//! `two-lists`: pages that are used once pass through, pages that are used again stay.
//!
//! How it works: a page enters at the front of the *inactive* list. A page that is used a second
//! time while it is there moves to the front of the *active* list. The victim is the page at the
//! back of the inactive list. If the inactive list is shorter than the active one, pages first move
//! from the back of the active list to the front of the inactive one. A long stream of pages that
//! are used once thus passes through the inactive list and does not evict the pages that are used
//! again. This is the structure of Linux's file lists (without its refault distances).
//!
//! As in Linux, a prefetched page enters with the requested ones before its first use, which
//! therefore does not count as a second use.
//!
//! Memory that programs map has two such lists of its own. Its uses are not counted individually. A
//! page with the referenced bit at the back of the inactive list moves to the front of the active
//! one, and the bit is cleared. A prefetched, unused page ages next to them. If memory is short,
//! the oldest page at three list ends is evicted: the inactive list of files, the inactive list of
//! memory, and the prefetched pages. A mapped page can't leave at once: it is unmapped, and written
//! if it is dirty, and is *cold* then. A number of cold pages is kept ready (see
//! [`SwapConfig`](crate::machine::SwapConfig)), so that a fault needn't wait for that.

// Access bits count the uses of a page that readers have not reported, up to two. Reading them
// resets them, so that a loop over used pages ends.
use super::{AccessBits, EvictionPolicy, FrameLists, List, PageKey, PageOrigin};
use crate::page::FrameId;

/// Pages without a second use.
const INACTIVE: List = List::PROBATION;
/// Pages that were used again.
const ACTIVE: List = List::REUSED;

/// The eviction policy `two-lists`. A page's use count is 1 if it was used since it entered its
/// list.
#[derive(Debug, Default)]
pub struct TwoLists;

impl EvictionPolicy for TwoLists {
    /// Adds the page to the inactive list. A requested page has its first use, a prefetched one
    /// none.
    fn enter(
        &mut self,
        lists: &mut FrameLists,
        frame: FrameId,
        _page: PageKey,
        origin: PageOrigin,
    ) {
        lists.push(frame, INACTIVE);
        lists.set_uses(frame, u8::from(origin == PageOrigin::Demand));
    }

    /// Counts the first use of a page on its list. At the second use, an inactive page moves to the
    /// active list, and its count starts again. A second use of any other page has no effect.
    fn used(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey) {
        if lists.uses(frame) == 0 {
            lists.set_uses(frame, 1);
        } else if lists.list_of(frame) == Some(INACTIVE) {
            lists.set_uses(frame, 0);
            lists.renew(frame, ACTIVE);
        }
    }

    /// Refills the inactive list and pops its oldest page. A page with a second use moves to the
    /// active list; the first other page is the victim. `None` if both lists are empty.
    fn victim(
        &mut self,
        lists: &mut FrameLists,
        access_bits: &mut dyn AccessBits,
    ) -> Option<FrameId> {
        loop {
            // Victims that were already taken make space for pages that will enter the inactive
            // list, and count as its pages.
            refill(lists, INACTIVE, ACTIVE, access_bits.taken(), |lists, frame| {
                lists.set_uses(frame, 0);
            });
            let frame = lists.pop(INACTIVE)?;
            let uses = access_bits.uses(frame);
            // `uses` are new. The count of the list has the use before, if there was one.
            let is_second_use = uses > 0 && uses + lists.uses(frame) > 1;
            // An active page starts without uses. A victim keeps its first use, in case it does not
            // leave.
            lists.set_uses(frame, u8::from(!is_second_use && uses + lists.uses(frame) > 0));
            if !is_second_use {
                return Some(frame);
            }
            lists.push(frame, ACTIVE);
        }
    }

    /// Returns the oldest inactive page, after active pages were moved there if the inactive list
    /// is too short. `None` if both lists are empty.
    fn oldest(&mut self, lists: &mut FrameLists) -> Option<FrameId> {
        let pages_outside = 0;
        refill(lists, INACTIVE, ACTIVE, pages_outside, |lists, frame| lists.set_uses(frame, 0));
        lists.oldest(INACTIVE)
    }

    /// Adopts a page of another policy: a reused page becomes active, others inactive with one use,
    /// so that their next use makes them active.
    fn adopt(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey, was_reused: bool) {
        lists.push(frame, if was_reused { ACTIVE } else { INACTIVE });
        lists.set_uses(frame, u8::from(!was_reused));
    }

    /// Returns a victim that did not leave to the front of the inactive list. Its count of uses is
    /// unchanged.
    fn restore_victim(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey) {
        lists.push(frame, INACTIVE);
    }

    /// True: prefetched pages are on the inactive list before their first use.
    fn enters_unused(&self) -> bool {
        true
    }

    /// True: memory has two lists of its own, as in Linux.
    fn has_memory_apart(&self) -> bool {
        true
    }
}

/// Moves pages from the back of an active list to the front of an inactive one until the latter is
/// no shorter. `pages_outside` pages count as part of the inactive list. Calls `on_moved` for each
/// moved page.
#[inline]
pub(crate) fn refill(
    lists: &mut FrameLists,
    inactive: List,
    active: List,
    pages_outside: u32,
    mut on_moved: impl FnMut(&mut FrameLists, FrameId),
) {
    while lists.pages(inactive) + pages_outside < lists.pages(active) {
        let frame = lists.pop(active).expect("it is longer than none");
        on_moved(lists, frame);
        lists.push(frame, inactive);
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::trial::victims;
    use super::*;

    /// Numbers are pages, in a memory of four. In the second sequence, 1 to 3 are active when 5
    /// enters. The inactive list is the shorter one, so that 1 moves there, behind 4 and before 5.
    #[test]
    fn reused_pages_outlive_others_and_return_to_the_inactive_list() {
        assert_eq!(victims(TwoLists, 4, [1, 1, 2, 3, 4, 5, 6]), [2, 3]);
        assert_eq!(victims(TwoLists, 4, [1, 1, 2, 2, 3, 3, 4, 5, 6, 7]), [4, 1, 5]);
    }
}
