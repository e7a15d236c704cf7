//! `s3fifo`: a small queue filters out the pages that are used once.
//!
//! How it works (S3-FIFO: Yang, Zhang, Qiu, Yue and Rashmi, SOSP 2023): a page enters the *small*
//! queue, which has a tenth of the memory. If it was used at least twice when it reaches the end,
//! it moves to the *main* queue. Any other page leaves, and is remembered as a ghost. A page that
//! returns while it is a ghost enters the main queue at once. At the end of the main queue, a page
//! that was used since it entered moves to the front again, with one use less (at most three are
//! counted). An unused page leaves for good. The number of ghosts is the number of pages in the
//! main queue.
//!
//! The victim is taken from the main queue while that has more than its nine tenths, and otherwise
//! from the small one. Before the first eviction, a page that finds the small queue full enters the
//! main one. A cache that was never full thus keeps its pages in the order of their arrival.
//!
//! A use is only counted and moves no page: late and immediate reports give the same result.

use super::queues::{QueueParameters, SmallAndMainQueues, TwoQueuePolicy};

/// Tenths for the queues, two uses to reach the main queue; at most three are counted. Uses count
/// at once, and any ghost that returns enters the main queue.
pub(super) const PARAMETERS: QueueParameters = QueueParameters {
    small_percent: 10,
    ghost_percent: 90,
    skip_percent: 0,
    uses_to_stay: 2,
    uses_to_return: 0,
    uses_max: 3,
};

/// The eviction policy `s3fifo`.
#[derive(Debug)]
pub struct S3Fifo {
    /// The small and the main queue, with the ghosts.
    queues: SmallAndMainQueues,
}

impl S3Fifo {
    /// Creates the policy for a cache of `pages` pages.
    pub fn new(pages: u32) -> S3Fifo {
        S3Fifo { queues: SmallAndMainQueues::new(pages, PARAMETERS) }
    }
}

impl TwoQueuePolicy for S3Fifo {
    /// The queues, which have the implementation of the policy.
    fn queues(&mut self) -> &mut SmallAndMainQueues {
        &mut self.queues
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::super::simulation::trial::victims;
    use super::super::{EvictionPolicy, FrameLists, PageKey, PageOrigin};
    use super::*;
    use crate::page::FrameId;

    /// Numbers are pages, in a cache of ten. 1 is in the small queue, the others found it full. 11
    /// evicts 1; 1 returns as a ghost, and evicts 11. Then the main queue is too long, and its
    /// oldest page, 2, leaves.
    #[test]
    fn returning_ghosts_and_pages_used_twice_enter_the_main_queue() {
        let filled = || 1..=10;
        assert_eq!(victims(S3Fifo::new(10), 10, filled().chain([11, 1, 12])), [1, 11, 2]);
        // Used twice, 1 moves to the main queue; used once it would not.
        assert_eq!(victims(S3Fifo::new(10), 10, filled().chain([1, 1, 11])), [2]);
        assert_eq!(victims(S3Fifo::new(10), 10, filled().chain([1, 11])), [1]);
    }

    /// In a cache of ten pages, 1 is in the small queue. Pages 1 and 4 were used since they
    /// entered, and no other information ranks the pages.
    #[test]
    fn unused_pages_are_released_before_used_ones() {
        let (mut policy, mut lists) = (S3Fifo::new(10), FrameLists::new(10));
        let page = |frame: u32| PageKey::from_number(frame.into());
        for frame in 1..=10 {
            policy.enter(&mut lists, FrameId(frame), page(frame), PageOrigin::Demand);
        }
        [1, 4].into_iter().for_each(|frame| policy.used(&mut lists, FrameId(frame), page(frame)));
        let order: Vec<u32> =
            policy.give_up(&mut lists).into_iter().map(|(frame, _)| frame.0).collect();
        assert_eq!(order, [2, 3, 5, 6, 7, 8, 9, 10, 1, 4]);
    }
}
