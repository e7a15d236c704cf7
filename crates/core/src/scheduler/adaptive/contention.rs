//! Contention: requests that delay each other in the device.
//!
//! If the device serves its requests independently, the shortest latency is about the mean. If they
//! wait for each other (one head, one link), the shortest latency is a small part of the mean. For
//! `n` requests that one server serves in turn it is an `n`-th. The pattern also appears when some
//! requests find the head at their position.

use crate::observed::DECAY_WINDOW;
use crate::unit::Time;

/// Latencies of requests that were in the device together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contention {
    /// The current block.
    now: CompletionBlock,
    /// The full block before it.
    before: CompletionBlock,
}

/// Statistics of consecutive completions. The newest block and the one before it count.
#[derive(Clone, Copy, Debug)]
struct CompletionBlock {
    completions: u64,
    /// Sum of the latencies.
    latency_ns: u64,
    /// Shortest latency.
    quickest_ns: u64,
    /// Sum of the numbers of requests in the device.
    in_device: u64,
}

impl Default for CompletionBlock {
    fn default() -> CompletionBlock {
        CompletionBlock { completions: 0, latency_ns: 0, quickest_ns: u64::MAX, in_device: 0 }
    }
}

impl Contention {
    /// Records a latency, and the number of requests in the device at the completion.
    pub(super) fn add(&mut self, latency: Time, in_device: u32) {
        if self.now.completions == DECAY_WINDOW {
            self.before = core::mem::take(&mut self.now);
        }
        self.now.completions += 1;
        self.now.latency_ns += latency.ns();
        self.now.quickest_ns = self.now.quickest_ns.min(latency.ns());
        self.now.in_device += u64::from(in_device);
    }

    /// Returns true if requests wait for each other: the shortest latency is below the share of the
    /// mean that would result if a third of them were served at once.
    pub(super) fn is_contended(&self) -> bool {
        let completions = self.now.completions + self.before.completions;
        let mean_ns = (self.now.latency_ns + self.before.latency_ns) / completions.max(1);
        let contention = (self.now.in_device + self.before.in_device) / completions.max(1);
        let third = (contention / 3).clamp(2, 8);
        let quickest_ns = self.now.quickest_ns.min(self.before.quickest_ns);
        contention >= 2 && completions >= 2 * third && quickest_ns * third <= mean_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contention(latencies_ms: &[u64]) -> Contention {
        let mut contention = Contention::default();
        for &latency in latencies_ms {
            contention.add(Time::from_ms(latency), latencies_ms.len() as u32);
        }
        contention
    }

    #[test]
    fn requests_to_one_head_contend_and_requests_to_a_store_do_not() {
        let one_head: Vec<u64> = (1..=16).map(|place| 8 * place).collect();
        assert!(contention(&one_head).is_contended());
        let store = [12, 15, 18, 22, 25, 28, 30, 30, 31, 33, 36, 40, 50, 60, 100, 200];
        assert!(!contention(&store).is_contended());
    }

    #[test]
    fn a_single_reader_has_no_contention() {
        let mut contention = Contention::default();
        for latency in [1, 100, 1, 100, 1, 100] {
            contention.add(Time::from_ms(latency), 1);
        }
        assert!(!contention.is_contended());
    }

    use alloc::vec::Vec;
}
