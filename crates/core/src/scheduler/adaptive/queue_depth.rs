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
    mean_scaled: u64,
    /// Number of submissions in the mean, at most [`EWMA_WINDOW`].
    samples: u64,
    /// True if no request has completed since the last submission.
    is_burst: bool,
}

impl QueueDepth {
    /// Updates the mean depth by a new request, while `outstanding` other requests of the process
    /// are outstanding. Only the first request of a burst counts. The result is the mean of the
    /// first 16 samples ([`EWMA_WINDOW`]); each later one weighs a sixteenth.
    pub(super) fn record_request(&mut self, outstanding: u64) {
        if core::mem::replace(&mut self.is_burst, true) {
            return;
        }
        self.samples = (self.samples + 1).min(EWMA_WINDOW);
        self.mean_scaled = (self.mean_scaled * (self.samples - 1)
            + (outstanding + 1) * EWMA_WINDOW)
            / self.samples;
    }

    /// Records a completion of the process: its next request begins a new burst.
    pub(super) fn record_completion(&mut self) {
        self.is_burst = false;
    }

    /// Returns true if some processes keep at least 16 requests, and others a quarter of the
    /// largest depth or less. Processes with fewer than 16 submissions are not compared.
    pub(super) fn is_uneven(queue_depths: impl Iterator<Item = QueueDepth>) -> bool {
        // Without a process to compare, the largest depth stays 0: not uneven.
        let (mut depth_min, mut depth_max) = (u64::MAX, 0);
        for queue_depth in queue_depths.filter(|queue_depth| queue_depth.samples == EWMA_WINDOW) {
            (depth_min, depth_max) =
                (depth_min.min(queue_depth.mean_scaled), depth_max.max(queue_depth.mean_scaled));
        }
        // Depths are in units of 1/EWMA_WINDOW: the largest is at least EWMA_WINDOW, 16 requests.
        depth_max >= EWMA_WINDOW * EWMA_WINDOW && depth_min <= depth_max / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queue depth of a process that keeps `kept_requests` requests outstanding.
    fn queue_depth(kept_requests: u64) -> QueueDepth {
        let mut queue_depth = QueueDepth::default();
        for _ in 0..EWMA_WINDOW {
            queue_depth.record_request(kept_requests - 1);
            queue_depth.record_completion();
        }
        queue_depth
    }

    /// One process must keep at least 16 requests, and another at most a quarter of the most.
    #[test]
    fn queue_depths_are_uneven_from_sixteen_against_four() {
        let are_uneven =
            |depths: &[u64]| QueueDepth::is_uneven(depths.iter().map(|&depth| queue_depth(depth)));
        assert!(are_uneven(&[1, 16]) && are_uneven(&[4, 16, 16]) && are_uneven(&[64, 1, 1, 1]));
        assert!(!are_uneven(&[5, 16]), "more than a quarter");
        assert!(!are_uneven(&[1, 15]), "fifteen are not many");
        assert!(!are_uneven(&[64, 64]) && !are_uneven(&[64]) && !are_uneven(&[]));
    }

    /// Bursts of 200 requests, each sent while none is outstanding, have a depth of 1.
    #[test]
    fn burst_of_requests_counts_as_one_submission() {
        let mut bursts = QueueDepth::default();
        for _ in 0..EWMA_WINDOW {
            (0..200).for_each(|outstanding| bursts.record_request(outstanding));
            bursts.record_completion();
        }
        assert!(!QueueDepth::is_uneven([bursts, queue_depth(1)].into_iter()));
    }
}
