//! Whether requests that are served together are in each other's way.
//!
//! Where many are in the device and each is served as if it were alone, the
//! quickest takes about as long as the mean. Where they wait for each other (one
//! head, one link), the quickest, which happened to be next, takes a
//! small part of the mean: of `n` that one server serves in turn, an `n`-th.
//! The same shows where some find the head where they need it.

use crate::observed::REMEMBERED;
use crate::unit::Time;

/// What requests take that were in the device together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Crowd {
    now: Block,
    before: Block,
}

/// Completions, one after the other. The newest block and the one before it count.
#[derive(Clone, Copy, Debug)]
struct Block {
    completions: u64,
    latency_ns: u64,
    quickest_ns: u64,
    in_device: u64,
}

impl Default for Block {
    fn default() -> Block {
        Block { completions: 0, latency_ns: 0, quickest_ns: u64::MAX, in_device: 0 }
    }
}

impl Crowd {
    /// A request took so long, and so many were in the device at the end.
    pub(super) fn add(&mut self, latency: Time, in_device: u32) {
        if self.now.completions == REMEMBERED {
            self.before = core::mem::take(&mut self.now);
        }
        self.now.completions += 1;
        self.now.latency_ns += latency.ns();
        self.now.quickest_ns = self.now.quickest_ns.min(latency.ns());
        self.now.in_device += u64::from(in_device);
    }

    /// Whether they wait for each other: the quickest took less than its share of
    /// the mean, if a third of them had been served at once.
    pub(super) fn is_in_its_own_way(&self) -> bool {
        let completions = self.now.completions + self.before.completions;
        let mean_ns = (self.now.latency_ns + self.before.latency_ns) / completions.max(1);
        let crowd = (self.now.in_device + self.before.in_device) / completions.max(1);
        let part = (crowd / 3).clamp(2, 8);
        let quickest_ns = self.now.quickest_ns.min(self.before.quickest_ns);
        crowd >= 2 && completions >= 2 * part && quickest_ns * part <= mean_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd(latencies_ms: &[u64]) -> Crowd {
        let mut crowd = Crowd::default();
        for &latency in latencies_ms {
            crowd.add(Time::from_ms(latency), latencies_ms.len() as u32);
        }
        crowd
    }

    #[test]
    fn sixteen_of_one_head_wait_for_each_other_and_sixteen_of_a_store_do_not() {
        let one_head: Vec<u64> = (1..=16).map(|place| 8 * place).collect();
        assert!(crowd(&one_head).is_in_its_own_way());
        let store = [12, 15, 18, 22, 25, 28, 30, 30, 31, 33, 36, 40, 50, 60, 100, 200];
        assert!(!crowd(&store).is_in_its_own_way());
    }

    #[test]
    fn a_single_reader_is_in_nobodys_way() {
        let mut crowd = Crowd::default();
        for latency in [1, 100, 1, 100, 1, 100] {
            crowd.add(Time::from_ms(latency), 1);
        }
        assert!(!crowd.is_in_its_own_way());
    }

    use alloc::vec::Vec;
}
