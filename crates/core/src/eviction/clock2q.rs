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

use super::queues::{QueueParameters, SmallAndMainQueues, TwoQueuePolicy};
use super::s3fifo;

/// A page needs one use after half of the small queue to reach the main queue; one is counted. The
/// queues and the ghosts have the sizes of `s3fifo`.
const PARAMETERS: QueueParameters =
    QueueParameters { skip_percent: 50, uses_to_stay: 1, uses_max: 1, ..s3fifo::PARAMETERS };

/// The eviction policy `clock2q`.
#[derive(Debug)]
pub struct Clock2Q {
    /// The small and the main queue, with the ghosts.
    queues: SmallAndMainQueues,
}

impl Clock2Q {
    /// Creates the policy for a cache of `pages` pages.
    pub fn new(pages: u32) -> Clock2Q {
        Clock2Q { queues: SmallAndMainQueues::new(pages, PARAMETERS) }
    }
}

impl TwoQueuePolicy for Clock2Q {
    /// The queues, which have the implementation of the policy.
    fn queues(&mut self) -> &mut SmallAndMainQueues {
        &mut self.queues
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
