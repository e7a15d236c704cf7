//! Residency sampling: reads that skip the residency check where the kernel caches the pages.
//!
//! A page is *resident* if it is in the kernel page cache. A read *hits* if all its pages are
//! resident, and *misses* otherwise. The *policy* is the readahead policy of this process, which
//! must see the misses.
//!
//! A read with `RWF_NOWAIT` returns resident bytes only and so shows whether the policy is needed.
//! It costs a tenth more than `pread(2)` of 4 resident KiB, and most reads behave like the ones
//! before. A *run* is the series of reads without a check after a hit. Each thread has a state for
//! each file that it reads:
//!
//! | state | the next read | then |
//! |---|---|---|
//! | trusted | is a plain `pread` | after the last one of a run: sampling |
//! | sampling | is checked | hit: trusted, 1, 3, 7, 15, then 31 reads; 8 misses in a row: missing |
//! | missing | goes without a check and is timed | fast enough to be a hit: sampling |
//! | prefetching | is shown to the policy first | once no advised page waits: sampling or missing |
//!
//! After a miss the next two reads are checked, because content after a header often lies in the
//! header's page and says nothing about later reads. Trusted reads read no clock and write no
//! memory shared between threads. Advised pages are of the file, so all its threads are prefetching
//! together: no read is trusted, because the policy must see the reader reach them. Each of these
//! reads ends the trust of its thread. A thread that was *missing* is so again afterwards.

use std::sync::atomic::{AtomicU16, Ordering};

/// Largest number of consecutive reads without a check: the largest number of 5 bits.
pub(super) const UNCHECKED_READS_MAX: u16 = 31;

/// Number of consecutive misses after which a miss is expected.
const MISSES_BEFORE_EXPECTED: u16 = 8;

/// Method of the next read of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadMethod {
    /// Without a check.
    Trusted,
    /// With a check.
    Sampling,
    /// Without a check, because a miss is expected. Its duration shows a miss.
    Missing,
    /// Shown to the policy first: advised pages wait for their reader.
    Prefetching,
}

/// State of one thread for one file. Prefetching is a state of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SamplerState {
    /// `left` further reads of a run of `run` are not checked.
    Trusted { run: u16, left: u16 },
    /// The next read is checked. The last run without a check had `run` reads.
    Sampling { run: u16, misses: u16 },
    /// The next read is expected to miss.
    Missing,
}

/// One unit of `left` in a packed state (bits 5 to 9), and all its bits.
const LEFT_ONE: u16 = 1 << 5;
const LEFT_MASK: u16 = 31 << 5;

impl SamplerState {
    /// Packs the state: 5 bits of `run`, 5 of `left` and 4 of `misses`.
    fn pack(self) -> u16 {
        match self {
            SamplerState::Trusted { run, left } => run | left << 5,
            SamplerState::Sampling { run, misses } => run | misses << 10,
            SamplerState::Missing => MISSES_BEFORE_EXPECTED << 10,
        }
    }

    /// Returns the method of a read that is not trusted in this state.
    fn untrusted_method(self) -> ReadMethod {
        match self {
            SamplerState::Missing => ReadMethod::Missing,
            _ => ReadMethod::Sampling,
        }
    }

    /// Unpacks a state that [`pack`](SamplerState::pack) has packed. Without reads left, 8 misses
    /// mean `Missing`, and fewer `Sampling`.
    fn unpack(bits: u16) -> SamplerState {
        let (run, left, misses) = (bits & 31, bits >> 5 & 31, bits >> 10);
        match (left, misses) {
            (0, MISSES_BEFORE_EXPECTED..) => SamplerState::Missing,
            (0, _) => SamplerState::Sampling { run, misses },
            (1.., _) => SamplerState::Trusted { run, left },
        }
    }

    /// State after a checked or timed read. `is_resident` is true if all its pages were resident, a
    /// hit. A hit lengthens the run of unchecked reads from n to 2n + 1, at most 31. A miss, and
    /// the first hit after one, end the run. The 8th miss in a row leads to `Missing`.
    fn after_check(self, is_resident: bool) -> SamplerState {
        let (run, misses) = match self {
            // Another thread with this sampler has changed the state since this read began.
            SamplerState::Trusted { run, .. } => (run, 0),
            SamplerState::Sampling { run, misses } => (run, misses),
            SamplerState::Missing => (0, MISSES_BEFORE_EXPECTED),
        };
        match (is_resident, misses) {
            (true, 0) => {
                let run = (2 * run + 1).min(UNCHECKED_READS_MAX);
                SamplerState::Trusted { run, left: run }
            }
            (true, 1..) => SamplerState::Sampling { run: 0, misses: 0 },
            (false, ..) if misses + 1 >= MISSES_BEFORE_EXPECTED => SamplerState::Missing,
            (false, ..) => SamplerState::Sampling { run: 0, misses: misses + 1 },
        }
    }
}

/// Residency sampler of one thread for one file.
///
/// Threads that share it may lose a count, which changes the checks by one read.
#[derive(Debug, Default)]
pub(crate) struct ResidencySampler {
    /// A packed [`SamplerState`].
    bits: AtomicU16,
}

impl ResidencySampler {
    /// Returns the unpacked present state.
    #[inline]
    fn state(&self) -> SamplerState {
        SamplerState::unpack(self.bits.load(Ordering::Relaxed))
    }

    /// Replaces the present state.
    #[inline]
    fn set_state(&self, state: SamplerState) {
        self.bits.store(state.pack(), Ordering::Relaxed);
    }

    /// Returns the method of the next read. `is_prefetching` is true while advised pages of the
    /// file wait for a reader. A trusted read is subtracted from the reads of its run.
    #[inline]
    pub(crate) fn next_read(&self, is_prefetching: bool) -> ReadMethod {
        if is_prefetching {
            return ReadMethod::Prefetching;
        }
        // A packed state without trust left means sampling, after a run of this length.
        let bits = self.bits.load(Ordering::Relaxed);
        if bits & LEFT_MASK != 0 {
            self.bits.store(bits - LEFT_ONE, Ordering::Relaxed);
            return ReadMethod::Trusted;
        }
        SamplerState::unpack(bits).untrusted_method()
    }

    /// Returns the method of a read for which `next_read` returned `Prefetching`, if the read
    /// belongs to a stream that is left to the kernel. The advised pages then wait for another
    /// reader. Trust that is left counts as `Sampling`: the caller has begun the read as one that
    /// may wait.
    pub(crate) fn untrusted_method(&self) -> ReadMethod {
        self.state().untrusted_method()
    }

    /// Ends the trust after a read that the policy has seen: the next read is checked. The misses
    /// in a row stay counted.
    pub(crate) fn reset(&self) {
        self.set_state(match self.state() {
            SamplerState::Trusted { .. } => SamplerState::Sampling { run: 0, misses: 0 },
            SamplerState::Sampling { misses, .. } => SamplerState::Sampling { run: 0, misses },
            SamplerState::Missing => SamplerState::Missing,
        });
    }

    /// Records the result of a checked or timed read: `is_resident` is true if all its pages were
    /// resident. The result selects the method of the next reads, see the table of the module.
    pub(crate) fn record_check(&self, is_resident: bool) {
        self.set_state(self.state().after_check(is_resident));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HIT: bool = true;
    const MISS: bool = false;

    /// Method of the next read while no advised page waits for a reader.
    fn next_read(sampler: &ResidencySampler) -> ReadMethod {
        let is_prefetching = false;
        sampler.next_read(is_prefetching)
    }

    /// All reads hit. The runs of unchecked reads have 1, 3, 7, 15 and then 31 reads. The checked
    /// reads are therefore the 1st, 3rd, 7th, 15th, 31st, and then each 32nd.
    #[test]
    fn resident_reads_are_checked_with_decreasing_frequency() {
        let sampler = ResidencySampler::default();
        let mut checked_reads = Vec::new();
        for read_number in 1..=130 {
            if next_read(&sampler) != ReadMethod::Trusted {
                checked_reads.push(read_number);
                sampler.record_check(HIT);
            }
        }
        assert_eq!(checked_reads, [1, 3, 7, 15, 31, 63, 95, 127]);
    }

    /// After the miss, two hits are needed until a read is trusted again.
    #[test]
    fn miss_makes_the_next_two_reads_checked() {
        let sampler = ResidencySampler::default();
        assert!(next_read(&sampler) != ReadMethod::Trusted);
        sampler.record_check(HIT);
        sampler.record_check(HIT);
        sampler.record_check(MISS);
        for _ in 0..2 {
            assert!(next_read(&sampler) != ReadMethod::Trusted);
            sampler.record_check(HIT);
        }
        assert!(next_read(&sampler) == ReadMethod::Trusted);
    }

    /// While a miss is expected, reads go without a check. One hit ends that state.
    #[test]
    fn eight_misses_predict_a_miss_until_the_next_hit() {
        let sampler = ResidencySampler::default();
        for _ in 0..8 {
            assert!(next_read(&sampler) == ReadMethod::Sampling);
            sampler.record_check(MISS);
        }
        assert_eq!(next_read(&sampler), ReadMethod::Missing);
        sampler.record_check(HIT);
        assert!(next_read(&sampler) == ReadMethod::Sampling);
    }

    /// A trusted sampler, and then one that expects a miss, meet a read of an advised page.
    #[test]
    fn prefetching_ends_the_trust_but_not_the_expectation_of_a_miss() {
        let sampler = ResidencySampler::default();
        sampler.record_check(HIT);
        let is_prefetching = true;
        assert_eq!(sampler.next_read(is_prefetching), ReadMethod::Prefetching);
        sampler.reset();
        assert_eq!(next_read(&sampler), ReadMethod::Sampling);
        (0..8).for_each(|_| sampler.record_check(MISS));
        sampler.reset();
        assert_eq!(next_read(&sampler), ReadMethod::Missing);
        assert_eq!(sampler.untrusted_method(), ReadMethod::Missing);
    }

    /// All states that can occur: at most as many reads are left as the run has.
    #[test]
    fn packed_states_are_distinct_and_return() {
        let mut all_states = vec![SamplerState::Missing];
        for run in 0..=UNCHECKED_READS_MAX {
            all_states.extend((1..=run).map(|left| SamplerState::Trusted { run, left }));
            all_states.push(SamplerState::Sampling { run, misses: 0 });
        }
        let miss_counts = 1..MISSES_BEFORE_EXPECTED;
        all_states.extend(miss_counts.map(|misses| SamplerState::Sampling { run: 0, misses }));
        for state in all_states {
            assert_eq!(SamplerState::unpack(state.pack()), state);
        }
    }
}
