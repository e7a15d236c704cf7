//! `clock2q`: as `s3fifo`, and uses soon after the first one count for nothing.
//!
//! The law in words (Clock2Q+, VLDB 2026): a page enters the *small* queue, which has a tenth of
//! the memory. Uses of it do not count while it is in the *correlation window*, that is until half
//! as many pages as the small queue has entered it after it: programs that touch a page touch it
//! again at once, and that says nothing of whether they come back. One that was used once at least
//! after that goes on, at the end of the small queue, to the *main* queue; any other leaves, and is
//! remembered as a ghost. A page that comes back while it is a ghost enters the main queue at once.
//! The main queue is a clock: at its end a page that was used since it came there goes round once
//! more; one that was not leaves for good. There are nine ghosts for ten pages of memory.
//!
//! The victim is taken from the main queue while that has more than its nine tenths, else from the
//! small one. As long as nothing had to leave, what finds the small queue full enters the main one.
//!
//! A use is only counted. Where uses are known late they are, for the correlation window, as late
//! as they are told: a page that is looked at only at the end of the small queue would count every
//! one of them. So the cache counts uses by itself as programs make them, and reads that follow
//! each other within a page are one.

use alloc::vec::Vec;

use super::queues::{SMALL, SmallAndMainQueues, UseThresholds};
use super::{AccessBits, EvictionPolicy, FrameLists, Ghosts, PageKey, PageOrigin};
use crate::cache::FrameId;

const COUNTING: UseThresholds = UseThresholds { uses_to_stay: 1, uses_max: 1 };

/// The reclaim law `clock2q`. The note of a page in the small queue is how many had entered that
/// queue when it did.
#[derive(Debug)]
pub struct Clock2Q {
    queues: SmallAndMainQueues,
    /// Pages that have entered the small queue, round and round.
    entered: u32,
}

impl Clock2Q {
    /// For a cache of so many pages.
    pub fn new(pages: u32) -> Clock2Q {
        Clock2Q { queues: SmallAndMainQueues::new(pages, COUNTING), entered: 0 }
    }

    fn note_entry(&mut self, places: &mut FrameLists, frame: FrameId, is_small: bool) {
        if is_small {
            self.entered = self.entered.wrapping_add(1);
            places.set_note(frame, self.entered);
        }
    }
}

impl EvictionPolicy for Clock2Q {
    fn enter(
        &mut self,
        places: &mut FrameLists,
        frame: FrameId,
        page: PageKey,
        _entry: PageOrigin,
    ) {
        let is_small = self.queues.enter(places, frame, page);
        self.note_entry(places, frame, is_small);
    }

    fn used(&mut self, places: &mut FrameLists, frame: FrameId, _page: PageKey) {
        let is_correlated = places.list_of(frame) == Some(SMALL)
            && self.entered.wrapping_sub(places.note(frame)) * 2 < self.queues.small_max;
        if !is_correlated {
            self.queues.used(places, frame);
        }
    }

    fn victim(&mut self, places: &mut FrameLists, looks: &mut dyn AccessBits) -> Option<FrameId> {
        self.queues.victim(places, looks)
    }

    fn evicted(&mut self, places: &mut FrameLists, frame: FrameId, page: PageKey) {
        self.queues.evicted(places, frame, page);
    }

    fn oldest(&mut self, places: &mut FrameLists) -> Option<FrameId> {
        self.queues.oldest(places)
    }

    fn adopt(&mut self, places: &mut FrameLists, frame: FrameId, _page: PageKey, is_kept: bool) {
        let is_small = self.queues.adopt(places, frame, is_kept);
        self.note_entry(places, frame, is_small);
    }

    fn resize(&mut self, _places: &mut FrameLists, _looks: &dyn AccessBits, pages: u32) {
        self.queues.resize(pages);
    }

    fn give_up(&mut self, places: &mut FrameLists) -> Vec<(FrameId, bool)> {
        self.queues.give_up(places)
    }

    fn inherit(&mut self, ghosts: Ghosts) -> Option<Ghosts> {
        self.queues.inherit(ghosts);
        None
    }

    fn release_ghosts(&mut self) -> Option<Ghosts> {
        Some(self.queues.release_ghosts())
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::trial::victims;
    use super::*;

    /// Of twenty pages 1 and 2 are in the small queue, whose correlation window is one page: a use
    /// of 2 is too soon after 2 came, one of 1 is not.
    #[test]
    fn a_use_within_the_correlation_window_does_not_count() {
        let filled = || 1..=20;
        assert_eq!(victims(Clock2Q::new(20), 20, filled().chain([1, 2, 21])), [2]);
        // Once a page has come after 21 its window is over.
        let later = filled().chain([21, 21, 22, 21, 23, 24]);
        assert_eq!(victims(Clock2Q::new(20), 20, later), [1, 2, 22, 3]);
    }
}
