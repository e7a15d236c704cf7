//! `clock2q`: as `s3fifo`, but uses soon after the first one don't count.
//!
//! How it works (Clock2Q+, VLDB 2026): a page enters the *small* queue, which has a tenth of the
//! memory. Its uses do not count during the *correlation window*, which ends when half of the size
//! of the small queue has entered after it. Programs often touch a page several times at once,
//! which does not predict a later use. A page with at least one counted use moves to the *main*
//! queue at the end of the small one. Any other page leaves, and is remembered as a ghost. A page
//! that returns while it is a ghost enters the main queue at once. The main queue is a clock: at
//! its end, a page that was used since it entered moves to the front again; an unused page leaves
//! for good. There are nine ghosts for ten pages of memory.
//!
//! The victim is taken from the main queue while that has more than its nine tenths, and otherwise
//! from the small one. Before the first eviction, a page that finds the small queue full enters the
//! main one.
//!
//! A use is only counted. Late reports of uses come too late for the correlation window: a page
//! that is checked only at the end of the small queue would count every use. The cache therefore
//! counts consecutive reads within a page as one use.

use alloc::vec::Vec;

use super::queues::{SMALL, SmallAndMainQueues, UseThresholds};
use super::{AccessBits, EvictionPolicy, FrameLists, Ghosts, PageKey, PageOrigin};
use crate::page::FrameId;

/// A page needs one counted use to reach the main queue; one is counted.
const USE_THRESHOLDS: UseThresholds = UseThresholds { uses_to_stay: 1, uses_max: 1 };

/// The eviction policy `clock2q`. The note of a page in the small queue is the value of
/// `small_entries` at its entry.
#[derive(Debug)]
pub struct Clock2Q {
    queues: SmallAndMainQueues,
    /// Wrapping count of pages that have entered the small queue.
    small_entries: u32,
}

impl Clock2Q {
    /// Creates the policy for a cache of `pages` pages.
    pub fn new(pages: u32) -> Clock2Q {
        Clock2Q { queues: SmallAndMainQueues::new(pages, USE_THRESHOLDS), small_entries: 0 }
    }

    /// Sets the note of a page that entered the small queue (`is_small`) to the next value of
    /// `small_entries`. No effect on other pages.
    fn note_entry(&mut self, lists: &mut FrameLists, frame: FrameId, is_small: bool) {
        if is_small {
            self.small_entries = self.small_entries.wrapping_add(1);
            lists.set_note(frame, self.small_entries);
        }
    }
}

impl EvictionPolicy for Clock2Q {
    /// Adds a page to the small or to the main queue, and numbers it in the small queue.
    fn enter(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey, _entry: PageOrigin) {
        let is_small = self.queues.enter(lists, frame, page);
        self.note_entry(lists, frame, is_small);
    }

    /// Counts a use, except within the correlation window of a page in the small queue.
    fn used(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey) {
        let is_correlated = lists.list_of(frame) == Some(SMALL)
            && self.small_entries.wrapping_sub(lists.note(frame)) * 2 < self.queues.small_max;
        if !is_correlated {
            self.queues.used(lists, frame);
        }
    }

    /// Removes and returns the next victim of the two queues; see `SmallAndMainQueues`.
    fn victim(
        &mut self,
        lists: &mut FrameLists,
        access_bits: &mut dyn AccessBits,
    ) -> Option<FrameId> {
        self.queues.victim(lists, access_bits)
    }

    /// Remembers the page as a ghost if it left the small queue.
    fn evicted(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey) {
        self.queues.evicted(lists, frame, page);
    }

    /// The page that is checked next as a victim; it stays on its queue.
    fn oldest(&mut self, lists: &mut FrameLists) -> Option<FrameId> {
        self.queues.oldest(lists)
    }

    /// Adopts a page of another policy in one of the queues, and numbers it in the small queue.
    fn adopt(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey, was_reused: bool) {
        let is_small = self.queues.adopt(lists, frame, was_reused);
        self.note_entry(lists, frame, is_small);
    }

    /// Sets the sizes of the queues and the number of ghosts for a memory of `pages` pages.
    fn resize(&mut self, _lists: &mut FrameLists, _bits: &dyn AccessBits, pages: u32) {
        self.queues.resize(pages);
    }

    /// Releases all pages for another policy, the used ones last.
    fn give_up(&mut self, lists: &mut FrameLists) -> Vec<(FrameId, bool)> {
        self.queues.give_up(lists)
    }

    /// Takes over the ghosts of another policy. Returns `None`, because none is left over.
    fn inherit(&mut self, ghosts: Ghosts) -> Option<Ghosts> {
        self.queues.inherit(ghosts);
        None
    }

    /// Releases all ghosts for another policy, and keeps none.
    fn release_ghosts(&mut self) -> Option<Ghosts> {
        Some(self.queues.release_ghosts())
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::trial::victims;
    use super::*;

    /// Numbers are pages, in a cache of twenty. 1 and 2 are in the small queue. Its correlation
    /// window is one page: a use of 2 comes too soon after its entry, a use of 1 does not.
    #[test]
    fn a_use_within_the_correlation_window_does_not_count() {
        let filled = || 1..=20;
        assert_eq!(victims(Clock2Q::new(20), 20, filled().chain([1, 2, 21])), [2]);
        // The window of 21 is over once another page has entered after it.
        let later = filled().chain([21, 21, 22, 21, 23, 24]);
        assert_eq!(victims(Clock2Q::new(20), 20, later), [1, 2, 22, 3]);
    }
}
