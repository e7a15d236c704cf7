//! `lru`: what was used longest ago goes first.
//!
//! The law in words: a page that comes, and a page that is used, goes to the front of one list; the
//! victim is the page at its back. Where uses are known only when a page is looked at, a page at
//! the back that was used meanwhile goes to the front, as if it had been used then: that is CLOCK.
//!
//! It is the best there is where a page is the less likely to be used the longer ago it was used;
//! one scan drives out everything, and of a loop that is larger than memory nothing is ever there.

use super::{AccessBits, EvictionPolicy, FrameLists, List, PageKey, PageOrigin};
use crate::cache::FrameId;

const ALL: List = List::PROBATION;

/// The reclaim law `lru`.
#[derive(Debug, Default)]
pub struct Lru;

impl EvictionPolicy for Lru {
    fn enter(
        &mut self,
        places: &mut FrameLists,
        frame: FrameId,
        _page: PageKey,
        _entry: PageOrigin,
    ) {
        places.push(frame, ALL);
    }

    fn used(&mut self, places: &mut FrameLists, frame: FrameId, _page: PageKey) {
        if places.is_listed(frame) {
            places.renew(frame, ALL);
        }
    }

    fn victim(&mut self, places: &mut FrameLists, looks: &mut dyn AccessBits) -> Option<FrameId> {
        loop {
            let frame = places.pop(ALL)?;
            if looks.uses(frame) == 0 {
                return Some(frame);
            }
            places.push(frame, ALL);
        }
    }

    fn evicted(&mut self, _places: &mut FrameLists, _frame: FrameId, _page: PageKey) {}

    fn oldest(&mut self, places: &mut FrameLists) -> Option<FrameId> {
        places.oldest(ALL)
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::trial::victims;
    use super::*;

    #[test]
    fn the_least_recently_used_page_is_evicted() {
        assert_eq!(victims(Lru, 3, [1, 2, 3, 1, 4, 5]), [2, 3]);
    }
}
