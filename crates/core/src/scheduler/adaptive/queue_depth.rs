//! Queue depth of each process.
//!
//! A limit on the requests in progress applies only while it protects a process. Some processes
//! must keep many requests queued or in progress, at least sixteen, and others a quarter of that or
//! less. A process *keeps* the requests that are outstanding when it sends a new one after a
//! completion. A burst, as a readahead policy sends it, counts as one submission with any number of
//! requests.

use crate::observed::EWMA_WINDOW;

/// Mean queue depth of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QueueDepth {
    /// Mean, in units of 1/[`EWMA_WINDOW`] request.
    at_a_time: u64,
    /// Number of submissions in the mean, at most [`EWMA_WINDOW`].
    asks: u64,
    /// True if no request has completed since the last submission.
    is_burst: bool,
}

impl QueueDepth {
    /// Records a new request while `others` of the process are outstanding.
    pub(super) fn asks(&mut self, others: u64) {
        if core::mem::replace(&mut self.is_burst, true) {
            return;
        }
        self.asks = (self.asks + 1).min(EWMA_WINDOW);
        self.at_a_time =
            (self.at_a_time * (self.asks - 1) + (others + 1) * EWMA_WINDOW) / self.asks;
    }

    /// Records a completion.
    pub(super) fn got(&mut self) {
        self.is_burst = false;
    }

    /// Returns true if some processes keep at least 16 requests, and others a quarter of the
    /// largest depth or less.
    pub(super) fn are_uneven(all: impl Iterator<Item = QueueDepth>) -> bool {
        let (mut least, mut most) = (u64::MAX, 0);
        for queue_depth in all.filter(|queue_depth| queue_depth.asks == EWMA_WINDOW) {
            (least, most) = (least.min(queue_depth.at_a_time), most.max(queue_depth.at_a_time));
        }
        most >= EWMA_WINDOW * EWMA_WINDOW && least <= most / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue_depth(at_a_time: u64) -> QueueDepth {
        let mut queue_depth = QueueDepth::default();
        for _ in 0..EWMA_WINDOW {
            queue_depth.asks(at_a_time - 1);
            queue_depth.got();
        }
        queue_depth
    }

    #[test]
    fn uneven_is_sixteen_against_four_and_no_less() {
        let are_uneven =
            |all: &[u64]| QueueDepth::are_uneven(all.iter().map(|&it| queue_depth(it)));
        assert!(are_uneven(&[1, 16]) && are_uneven(&[4, 16, 16]) && are_uneven(&[64, 1, 1, 1]));
        assert!(!are_uneven(&[5, 16]), "more than a quarter");
        assert!(!are_uneven(&[1, 15]), "fifteen are not many");
        assert!(!are_uneven(&[64, 64]) && !are_uneven(&[64]) && !are_uneven(&[]));
    }

    #[test]
    fn a_burst_is_one_submission() {
        let mut bursts = QueueDepth::default();
        for _ in 0..EWMA_WINDOW {
            (0..200).for_each(|others| bursts.asks(others));
            bursts.got();
        }
        assert!(!QueueDepth::are_uneven([bursts, queue_depth(1)].into_iter()));
    }
}
