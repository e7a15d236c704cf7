//! `two-lists`: pages that are used once flow through, pages that are used again stay.
//!
//! The law in words: a page enters at the front of the *inactive* list. A page
//! that is used a second time while it is there moves to the front of the
//! *active* list. The victim is the page at the back of the inactive list; when
//! the inactive list is shorter than the active one, pages first move from the
//! back of the active list to the front of the inactive one. So a long stream
//! of pages that are used once flows through the inactive list and leaves the
//! pages that are used again alone. This is the shape of Linux's file lists
//! (without its refault distances).
//!
//! As in Linux a page that is read ahead enters with those that were asked for, before anybody has
//! used it: its first use is then no second one.
//!
//! Memory that programs map has two such lists of its own. Its uses
//! are not counted one by one: a page that carries the referenced bit when it comes to the back of
//! the inactive list goes to the front of the active one, without the bit. A page that was read
//! ahead and not used yet ages beside them. When memory is short the oldest of the three backs goes
//! (that of the inactive list of files, of that of memory, of the pages read ahead). A page that a
//! program maps can't go at once: it is unmapped, and written if it is dirty, and is *cold* then.
//! So many cold pages are kept ready (see [`SwapConfig`](crate::machine::SwapConfig)) that a fault
//! needn't wait for that.

use super::{AccessBits, EvictionPolicy, FrameLists, List, PageKey, PageOrigin};
use crate::cache::FrameId;

const INACTIVE: List = List::PROBATION;
const ACTIVE: List = List::KEPT;

/// The reclaim law `two-lists`. A page's uses are 1 if it was used since it came to its list.
#[derive(Debug, Default)]
pub struct TwoLists;

impl EvictionPolicy for TwoLists {
    fn enter(
        &mut self,
        places: &mut FrameLists,
        frame: FrameId,
        _page: PageKey,
        entry: PageOrigin,
    ) {
        places.push(frame, INACTIVE);
        places.set_uses(frame, u8::from(entry == PageOrigin::Asked));
    }

    fn used(&mut self, places: &mut FrameLists, frame: FrameId, _page: PageKey) {
        if places.uses(frame) == 0 {
            places.set_uses(frame, 1);
        } else if places.list_of(frame) == Some(INACTIVE) {
            places.set_uses(frame, 0);
            places.renew(frame, ACTIVE);
        }
    }

    fn victim(&mut self, places: &mut FrameLists, looks: &mut dyn AccessBits) -> Option<FrameId> {
        loop {
            // What was taken already makes room for pages that are to come to the inactive list.
            refill(places, INACTIVE, ACTIVE, looks.taken(), |places, frame| {
                places.set_uses(frame, 0);
            });
            let frame = places.pop(INACTIVE)?;
            let uses = looks.uses(frame);
            let is_again = uses > 0 && uses + places.uses(frame) > 1;
            places.set_uses(frame, u8::from(!is_again && uses + places.uses(frame) > 0));
            if !is_again {
                return Some(frame);
            }
            places.push(frame, ACTIVE);
        }
    }

    fn evicted(&mut self, _places: &mut FrameLists, _frame: FrameId, _page: PageKey) {}

    fn oldest(&mut self, places: &mut FrameLists) -> Option<FrameId> {
        refill(places, INACTIVE, ACTIVE, 0, |places, frame| places.set_uses(frame, 0));
        places.oldest(INACTIVE)
    }

    fn adopt(&mut self, places: &mut FrameLists, frame: FrameId, _page: PageKey, is_kept: bool) {
        places.push(frame, if is_kept { ACTIVE } else { INACTIVE });
        places.set_uses(frame, u8::from(!is_kept));
    }

    fn put_back(&mut self, places: &mut FrameLists, frame: FrameId, _page: PageKey) {
        places.push(frame, INACTIVE);
    }

    fn enters_unused(&self) -> bool {
        true
    }

    fn has_memory_apart(&self) -> bool {
        true
    }
}

/// Moves pages from the back of an active list to the front of an inactive one until
/// that is no shorter; `beside` pages age beside it. Each is told to `moved`.
#[inline]
pub(crate) fn refill(
    places: &mut FrameLists,
    inactive: List,
    active: List,
    beside: u32,
    mut moved: impl FnMut(&mut FrameLists, FrameId),
) {
    while places.pages(inactive) + beside < places.pages(active) {
        let frame = places.pop(active).expect("it is longer than none");
        moved(places, frame);
        places.push(frame, inactive);
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::trial::victims;
    use super::*;

    /// Of three active pages 1 has to come back to the inactive list, which would be shorter; it is
    /// behind 4 there, and before 5 and 6.
    #[test]
    fn reused_pages_outlive_others_and_return_to_the_inactive_list() {
        assert_eq!(victims(TwoLists, 4, [1, 1, 2, 3, 4, 5, 6]), [2, 3]);
        assert_eq!(victims(TwoLists, 4, [1, 1, 2, 2, 3, 3, 4, 5, 6, 7]), [4, 1, 5]);
    }
}
