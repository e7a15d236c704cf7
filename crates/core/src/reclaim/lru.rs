//! `lru`: what was used longest ago goes first.
//!
//! The law in words: a page that comes, and a page that is used, goes to the front of one list; the
//! victim is the page at its back. Where uses are known only when a page is looked at, a page at
//! the back that was used meanwhile goes to the front, as if it had been used then: that is CLOCK.
//!
//! It is the best there is where a page is the less likely to be used the longer ago it was used;
//! one scan drives out everything, and of a loop that is larger than memory nothing is ever there.

use super::{Entry, List, Looks, PageKey, Places, ReclaimLaw};
use crate::cache::FrameId;

const ALL: List = List::PROBATION;

/// The reclaim law `lru`.
#[derive(Debug, Default)]
pub struct Lru;

impl ReclaimLaw for Lru {
    fn enter(&mut self, places: &mut Places, frame: FrameId, _page: PageKey, _entry: Entry) {
        places.push(frame, ALL);
    }

    fn used(&mut self, places: &mut Places, frame: FrameId, _page: PageKey) {
        if places.is_listed(frame) {
            places.renew(frame, ALL);
        }
    }

    fn victim(&mut self, places: &mut Places, looks: &mut dyn Looks) -> Option<FrameId> {
        loop {
            let frame = places.pop(ALL)?;
            if looks.uses(frame) == 0 {
                return Some(frame);
            }
            places.push(frame, ALL);
        }
    }

    fn evicted(&mut self, _places: &mut Places, _frame: FrameId, _page: PageKey) {}

    fn oldest(&mut self, places: &mut Places) -> Option<FrameId> {
        places.oldest(ALL)
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::trial::victims;
    use super::*;

    #[test]
    fn what_was_used_longest_ago_goes() {
        assert_eq!(victims(Lru, 3, [1, 2, 3, 1, 4, 5]), [2, 3]);
    }
}
