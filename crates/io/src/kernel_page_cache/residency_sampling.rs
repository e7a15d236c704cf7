//! Residency sampling: reads that skip the residency check where the kernel caches the pages.
//!
//! A read with `RWF_NOWAIT` returns resident bytes only and so shows whether the policy is needed.
//! It costs a tenth more than `pread(2)` of 4 resident KiB, and most reads behave like the ones
//! before.
//!
//! After a checked read that hits, the thread's next read is a plain `pread`. After the next
//! checked hit it is the next three, then 7, 15 and 31, so finally one read of 32 is checked. A
//! checked miss resets this. The next two reads are then checked, because content after a header
//! often lies in the header's page and says nothing about later reads. After eight consecutive
//! misses, reads go without a check, which would cost another system call. Each is timed instead,
//! until one is fast enough to be a hit. Other reads read no clock and write no memory shared
//! between threads.
//!
//! While advised pages wait for their reader, and right afterwards, no read is trusted: the policy
//! must see the reader reach them.

use std::sync::atomic::{AtomicU8, Ordering};

/// Largest number of consecutive reads without a check.
const UNCHECKED_READS_MAX: u8 = 31;

/// Number of consecutive misses after which a miss is expected.
const MISSES_BEFORE_EXPECTED: u8 = 8;

/// Residency sampling state of one thread for one file.
///
/// Threads that share it may lose a count, which changes the checks by one read.
#[derive(Debug, Default)]
pub(crate) struct ResidencySampling {
    /// Number of further reads without a check.
    unchecked_left: AtomicU8,
    /// Value of `left` after the last checked read; 0 after a miss.
    unchecked_run: AtomicU8,
    /// Number of consecutive misses.
    consecutive_misses: AtomicU8,
}

impl ResidencySampling {
    /// Consumes one unit of trust; true if the next read needs no check.
    #[inline]
    pub(crate) fn take_unchecked(&self) -> bool {
        let left = self.unchecked_left.load(Ordering::Relaxed);
        if left > 0 {
            self.unchecked_left.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    /// True if the next read is expected to miss.
    pub(crate) fn expects_miss(&self) -> bool {
        self.consecutive_misses.load(Ordering::Relaxed) >= MISSES_BEFORE_EXPECTED
    }

    /// Resets the trust after a read that the policy has seen: the next read is checked.
    pub(crate) fn reset(&self) {
        self.unchecked_run.store(0, Ordering::Relaxed);
        self.unchecked_left.store(0, Ordering::Relaxed);
    }

    /// Records the result of a checked or timed read. A hit without a miss before it lengthens the
    /// run of unchecked reads to 2n + 1, at most 31. A miss, and the first hit after one, end it.
    pub(crate) fn record_check(&self, is_resident: bool) {
        let missed = self.consecutive_misses.load(Ordering::Relaxed).saturating_add(1);
        self.consecutive_misses.store(if is_resident { 0 } else { missed }, Ordering::Relaxed);
        let before = self.unchecked_run.load(Ordering::Relaxed);
        let run =
            if is_resident && missed == 1 { (2 * before + 1).min(UNCHECKED_READS_MAX) } else { 0 };
        self.unchecked_run.store(run, Ordering::Relaxed);
        self.unchecked_left.store(run, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checked reads in a run of resident ones: the 1st, 3rd, 7th, 15th, 31st, and then each 32nd.
    #[test]
    fn resident_reads_are_checked_with_decreasing_frequency() {
        let residency_sampling = ResidencySampling::default();
        let mut looked = Vec::new();
        for nth in 1..=130 {
            if !residency_sampling.take_unchecked() {
                looked.push(nth);
                residency_sampling.record_check(true);
            }
        }
        assert_eq!(looked, [1, 3, 7, 15, 31, 63, 95, 127]);
    }

    #[test]
    fn miss_makes_the_next_two_reads_checked() {
        let residency_sampling = ResidencySampling::default();
        assert!(!residency_sampling.take_unchecked());
        residency_sampling.record_check(true);
        residency_sampling.record_check(true);
        residency_sampling.record_check(false);
        for _ in 0..2 {
            assert!(!residency_sampling.take_unchecked());
            residency_sampling.record_check(true);
        }
        assert!(residency_sampling.take_unchecked() && !residency_sampling.take_unchecked());
    }

    #[test]
    fn eight_misses_predict_a_miss_until_the_next_hit() {
        let residency_sampling = ResidencySampling::default();
        for _ in 0..8 {
            assert!(!residency_sampling.expects_miss());
            residency_sampling.record_check(false);
        }
        assert!(residency_sampling.expects_miss());
        residency_sampling.record_check(true);
        assert!(!residency_sampling.expects_miss());
    }
}
