//! Which reads are taken on trust to be held by the kernel's cache, where it keeps the pages.
//!
//! A read with `RWF_NOWAIT` gives what is held and nothing else, and so tells whether our law has anything to do. But it costs
//! more than `pread(2)` does (of 4 KiB that are held a tenth), and mostly one read is as the ones before it. The law in words:
//! a read that was looked at and was held has the thread's next one made by `pread` alone; the next that is looked at and
//! held, the next three; then 7, 15, 31 and no more, so that in the end one of 32 is looked at. A read that was looked at and was not
//! held ends that: the next two are looked at, for what follows a header of which the page came in with it is held, and
//! tells nothing of what comes after. After eight in a row that were not held the next ones are read at once, for to look
//! would cost a system call of them more; each is timed instead, until one was so fast that it must have been held. But for that no
//! clock is read, and no memory shared between threads is written to.
//!
//! While pages that the kernel was advised of wait for their reader, nobody trusts: the law is to see him come to them. And nobody
//! has reason to trust right afterwards.

use std::sync::atomic::{AtomicU8, Ordering};

/// The most reads in a row that are not looked at.
const TRUSTED_MAX: u8 = 31;

/// After so many reads in a row that were not held the next one is expected not to be.
const MISSED_MAX: u8 = 8;

/// What one thread trusts of one file.
///
/// Threads that share it lose a count now and then, which makes a read more or less be looked at.
#[derive(Debug, Default)]
pub(crate) struct ResidencySampling {
    /// How many of the next reads are trusted.
    left: AtomicU8,
    /// How many were when the last one was looked at; 0 where that one was not held.
    run: AtomicU8,
    /// How many in a row were not held.
    missed: AtomicU8,
}

impl ResidencySampling {
    /// Whether the read that is about to be made is trusted.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    /// Whether the read that is about to be made will hardly be held.
    pub(crate) fn expects_miss(&self) -> bool {
        self.missed.load(Ordering::Relaxed) >= MISSED_MAX
    }

    /// The law has seen a read, whatever came of it: the next one that it needn't see is looked at.
    pub(crate) fn ends(&self) {
        self.run.store(0, Ordering::Relaxed);
        self.left.store(0, Ordering::Relaxed);
    }

    /// A read was looked at, or timed.
    pub(crate) fn looked(&self, is_held: bool) {
        let missed = self.missed.load(Ordering::Relaxed).saturating_add(1);
        self.missed.store(if is_held { 0 } else { missed }, Ordering::Relaxed);
        let before = self.run.load(Ordering::Relaxed);
        let run = if is_held && missed == 1 { (2 * before + 1).min(TRUSTED_MAX) } else { 0 };
        self.run.store(run, Ordering::Relaxed);
        self.left.store(run, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of held reads the 1st, 3rd, 7th, 15th, 31st and each 32nd after it are looked at.
    #[test]
    fn what_is_held_is_looked_at_ever_more_rarely_and_then_once_in_thirty_two() {
        let residency_sampling = ResidencySampling::default();
        let mut looked = Vec::new();
        for nth in 1..=130 {
            if !residency_sampling.take() {
                looked.push(nth);
                residency_sampling.looked(true);
            }
        }
        assert_eq!(looked, [1, 3, 7, 15, 31, 63, 95, 127]);
    }

    #[test]
    fn what_is_not_held_has_the_next_two_reads_looked_at() {
        let residency_sampling = ResidencySampling::default();
        assert!(!residency_sampling.take());
        residency_sampling.looked(true);
        residency_sampling.looked(true);
        residency_sampling.looked(false);
        for _ in 0..2 {
            assert!(!residency_sampling.take());
            residency_sampling.looked(true);
        }
        assert!(residency_sampling.take() && !residency_sampling.take());
    }

    #[test]
    fn eight_that_were_not_held_let_the_next_be_expected_not_to_be_until_one_is() {
        let residency_sampling = ResidencySampling::default();
        for _ in 0..8 {
            assert!(!residency_sampling.expects_miss());
            residency_sampling.looked(false);
        }
        assert!(residency_sampling.expects_miss());
        residency_sampling.looked(true);
        assert!(!residency_sampling.expects_miss());
    }
}
