//! Contention: requests that delay each other in the device.
//!
//! If the device serves its requests independently, the shortest latency is about the mean. If they
//! wait for each other (one head, one link), the shortest latency is a small part of the mean. For
//! `n` requests that one server serves in turn it is an `n`-th. The pattern also appears when some
//! requests find the head at their position. A device that accepts one request at a time shows no
//! such latencies: its requests wait in the scheduler, and are counted there.

use crate::observed::{DECAY_WINDOW, MIN_SAMPLES};
use crate::unit::Time;

/// Latencies of requests that were in the device together: up to 128 of the newest completions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contention {
    /// The current block.
    current_block: CompletionBlock,
    /// The full block before it.
    previous_block: CompletionBlock,
}

/// Statistics of up to 64 consecutive completions (`DECAY_WINDOW`). The newest block and the one
/// before it count.
#[derive(Clone, Copy, Debug)]
struct CompletionBlock {
    /// Number of completions.
    completions: u64,
    /// Sum of the latencies.
    latency_sum_ns: u64,
    /// Shortest latency.
    shortest_ns: u64,
    /// Sum, over the completions, of the number of requests in the device.
    in_device_sum: u64,
    /// Number of completions of a single request in the device, while others waited for it outside.
    waited_for: u64,
}

impl Default for CompletionBlock {
    /// A block without completions; any latency is shorter than its shortest one.
    fn default() -> CompletionBlock {
        CompletionBlock {
            completions: 0,
            latency_sum_ns: 0,
            shortest_ns: u64::MAX,
            in_device_sum: 0,
            waited_for: 0,
        }
    }
}

impl Contention {
    /// Records a latency, and the number of requests in the device at the completion, the completed
    /// one included. `is_full`: other requests wait outside, because the device accepts no more. A
    /// full block becomes the previous one, and the block before that is dropped.
    pub(super) fn record_completion(&mut self, latency: Time, in_device: u32, is_full: bool) {
        if self.current_block.completions == DECAY_WINDOW {
            self.previous_block = core::mem::take(&mut self.current_block);
        }
        self.current_block.completions += 1;
        self.current_block.latency_sum_ns += latency.ns();
        self.current_block.shortest_ns = self.current_block.shortest_ns.min(latency.ns());
        self.current_block.in_device_sum += u64::from(in_device);
        self.current_block.waited_for += u64::from(is_full && in_device == 1);
    }

    /// Returns true if requests wait for each other. With a mean of n requests in the device, the
    /// shortest latency must be at most the mean latency divided by n ÷ 3, a divisor from 2 to 8.
    /// For requests that one server serves in turn it would be divided by n: a third of that is
    /// enough, and for a large n an eighth. At least twice the divisor completions are needed. With
    /// a mean below two requests in the device there is none to wait for, and no contention.
    ///
    /// A device that accepts one request at a time shows it by the requests that wait outside, at
    /// more than half of at least 4 completions (`MIN_SAMPLES`).
    pub(super) fn is_contended(&self) -> bool {
        let completions = self.current_block.completions + self.previous_block.completions;
        let waited_for = self.current_block.waited_for + self.previous_block.waited_for;
        if completions >= MIN_SAMPLES && 2 * waited_for > completions {
            return true;
        }
        let latency_sum_ns = self.current_block.latency_sum_ns + self.previous_block.latency_sum_ns;
        let mean_ns = latency_sum_ns / completions.max(1);
        let in_device_sum = self.current_block.in_device_sum + self.previous_block.in_device_sum;
        let mean_in_device = in_device_sum / completions.max(1);
        let divisor = (mean_in_device / 3).clamp(2, 8);
        let shortest_ns = self.current_block.shortest_ns.min(self.previous_block.shortest_ns);
        mean_in_device >= 2 && completions >= 2 * divisor && shortest_ns * divisor <= mean_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records one completion for each latency, with all of the requests in the device.
    fn contention(latencies_ms: &[u64]) -> Contention {
        let mut contention = Contention::default();
        for &latency_ms in latencies_ms {
            contention.record_completion(
                Time::from_ms(latency_ms),
                latencies_ms.len() as u32,
                false,
            );
        }
        contention
    }

    /// One head serves 16 requests in turn, 8 ms each: the shortest latency is a 16th of the
    /// longest. The latencies of an object store, in ms, spread less towards short ones.
    #[test]
    fn requests_to_one_head_contend_and_requests_to_a_store_do_not() {
        let one_head: Vec<u64> = (1..=16).map(|turn| 8 * turn).collect();
        assert!(contention(&one_head).is_contended());
        let store = [12, 15, 18, 22, 25, 28, 30, 30, 31, 33, 36, 40, 50, 60, 100, 200];
        assert!(!contention(&store).is_contended());
    }

    /// The device accepts one request, and another one waits at each completion, or at half of
    /// them.
    #[test]
    fn requests_that_wait_outside_of_a_device_without_a_queue_contend() {
        let after = |is_full: [bool; 4]| {
            let mut contention = Contention::default();
            for is_full in is_full {
                contention.record_completion(Time::from_ms(8), 1, is_full);
            }
            contention.is_contended()
        };
        assert!(after([true; 4]));
        assert!(!after([true, false, true, false]));
    }

    /// Latencies that differ by a factor of 100, but one request in the device at a time.
    #[test]
    fn a_single_reader_has_no_contention() {
        let mut contention = Contention::default();
        for latency_ms in [1, 100, 1, 100, 1, 100] {
            contention.record_completion(Time::from_ms(latency_ms), 1, false);
        }
        assert!(!contention.is_contended());
    }

    use alloc::vec::Vec;
}
