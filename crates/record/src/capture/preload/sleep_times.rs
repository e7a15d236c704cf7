//! Times in which the threads of a program slept, as upper bounds of the waits of their reads.
//!
//! The preloaded library sees the duration of a call. On a busy machine a part of it is time in the
//! queue of a processor, and in calls that copy or write, time on a processor. The kernel counts
//! both for each thread, and the sampler reports the increases. The waits of a thread's reads
//! cannot exceed the rest of each interval between two samples. Longer waits are shortened in
//! proportion.
//!
//! The kernel adds the time in a queue when it ends. An increase beyond its interval therefore
//! belongs to the intervals just before.

use std::collections::{BTreeMap, VecDeque};

use super::super::state_samples::SampledThread;

/// Number of intervals that are kept of a thread. At pauses of 2 to 50 ms they last 0.1 to 3 s.
const INTERVALS_MAX: usize = 64;

/// Age in nanoseconds after which a thread without samples is forgotten. It has ended.
const THREAD_AGE_MAX_NS: u64 = 10_000_000_000;

/// Wait of one read of a thread, by its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallWait {
    /// Number of the thread.
    pub thread: u32,
    /// Begin of the call.
    pub begin_ns: u64,
    /// End of the call.
    pub end_ns: u64,
    /// Longest possible wait by the duration of the call. It is spread evenly over the call, as the
    /// time of the sleep within it is not known.
    pub wait_ns: u64,
    /// Wait by the duration of the call alone, at most `wait_ns`, where no sample bounds it.
    pub unsampled_wait_ns: u64,
}

/// Interval between two samples of a thread.
#[derive(Clone, Copy, Debug)]
struct Interval {
    /// Time of the sample at its start.
    begin_ns: u64,
    /// Time of the sample at its end.
    end_ns: u64,
    /// Time in which the thread neither ran nor queued for a processor.
    asleep_ns: u64,
    /// Sum of the waits in this interval by the calls.
    claimed_ns: u64,
}

impl Interval {
    /// Returns the part of the call within this interval.
    fn shared_ns(&self, wait: &CallWait) -> u64 {
        self.end_ns.min(wait.end_ns).saturating_sub(self.begin_ns.max(wait.begin_ns))
    }

    /// Returns the part of a wait within this interval, by the duration of its call.
    fn part_of(&self, wait: &CallWait) -> u64 {
        scale(wait.wait_ns, self.shared_ns(wait), wait.end_ns - wait.begin_ns)
    }
}

/// Sampled intervals of all threads.
#[derive(Debug, Default)]
pub(super) struct SleepTimes {
    /// Latest intervals of each thread, the oldest first.
    threads: BTreeMap<u32, VecDeque<Interval>>,
    /// Time of the last search for ended threads.
    searched_ns: u64,
}

impl SleepTimes {
    /// Adds the interval of a thread since its last sample. `busy_ns` of the sample is the time
    /// that the thread ran or queued for a processor.
    pub fn add(&mut self, sample: &SampledThread) {
        let &SampledThread { thread, begin_ns, end_ns, busy_ns } = sample;
        let intervals = self.threads.entry(thread).or_default();
        let length_ns = end_ns.saturating_sub(begin_ns);
        // Time in a queue that the kernel had not yet counted at the samples before.
        let mut excess_ns = busy_ns.saturating_sub(length_ns);
        for earlier in intervals.iter_mut().rev() {
            let moved_ns = excess_ns.min(earlier.asleep_ns);
            earlier.asleep_ns -= moved_ns;
            excess_ns -= moved_ns;
        }
        let asleep_ns = length_ns.saturating_sub(busy_ns);
        intervals.push_back(Interval { begin_ns, end_ns, asleep_ns, claimed_ns: 0 });
        if intervals.len() > INTERVALS_MAX {
            intervals.pop_front();
        }
    }

    /// Forgets the threads without a sample for a long time before `now_ns`, once in that time.
    pub fn forget_ended_threads(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.searched_ns) < THREAD_AGE_MAX_NS {
            return;
        }
        self.searched_ns = now_ns;
        self.threads.retain(|_, intervals| {
            intervals.back().is_some_and(|last| last.end_ns + THREAD_AGE_MAX_NS > now_ns)
        });
    }

    /// Adds a wait to the sums of its intervals. All waits of an interval are added before the
    /// first one is bounded.
    pub fn claim(&mut self, wait: &CallWait) {
        for interval in self.threads.get_mut(&wait.thread).into_iter().flatten() {
            interval.claimed_ns += interval.part_of(wait);
        }
    }

    /// Returns the wait that the sleep of the thread allows. Each interval shortens its part of the
    /// wait in proportion, if all waits in it exceed the sleep. The part of a call outside the
    /// sampled intervals counts with `unsampled_wait_ns`.
    pub fn bounded(&self, wait: &CallWait) -> u64 {
        let duration_ns = wait.end_ns - wait.begin_ns;
        let (mut bounded_ns, mut unsampled_ns) = (0, duration_ns);
        for interval in self.threads.get(&wait.thread).into_iter().flatten() {
            let part_ns = interval.part_of(wait);
            unsampled_ns = unsampled_ns.saturating_sub(interval.shared_ns(wait));
            bounded_ns += match interval.claimed_ns > interval.asleep_ns {
                true => scale(part_ns, interval.asleep_ns, interval.claimed_ns),
                false => part_ns,
            };
        }
        bounded_ns + scale(wait.unsampled_wait_ns, unsampled_ns, duration_ns)
    }
}

/// Returns `value × part / whole`, rounded down; 0 if `whole` is 0.
fn scale(value: u64, part: u64, whole: u64) -> u64 {
    let product = u128::from(value) * u128::from(part);
    product.checked_div(u128::from(whole)).unwrap_or(0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thread number of the tests.
    const THREAD: u32 = 7;

    fn sample(begin_ns: u64, end_ns: u64, busy_ns: u64) -> SampledThread {
        SampledThread { thread: THREAD, begin_ns, end_ns, busy_ns }
    }

    fn call(begin_ns: u64, end_ns: u64, wait_ns: u64) -> CallWait {
        CallWait { thread: THREAD, begin_ns, end_ns, wait_ns, unsampled_wait_ns: wait_ns }
    }

    /// Waits after the samples and all claims, in the order of the calls.
    fn bounded(samples: &[SampledThread], calls: &[CallWait]) -> Vec<u64> {
        let mut times = SleepTimes::default();
        samples.iter().for_each(|sample| times.add(sample));
        calls.iter().for_each(|call| times.claim(call));
        calls.iter().map(|call| times.bounded(call)).collect()
    }

    /// 100 ns, of which 70 were on a processor or in its queue: 30 ns are left for waits of 60.
    #[test]
    fn waits_of_an_interval_share_its_sleep_in_proportion() {
        let calls = [call(0, 50, 40), call(50, 100, 20)];
        assert_eq!(bounded(&[sample(0, 100, 70)], &calls), [20, 10]);
    }

    #[test]
    fn waits_within_the_sleep_stay() {
        assert_eq!(bounded(&[sample(0, 100, 40)], &[call(0, 50, 40), call(60, 80, 20)]), [40, 20]);
    }

    /// The second interval counts 100 ns in a queue that began in the first one.
    #[test]
    fn queue_time_counted_late_shortens_the_interval_before() {
        let samples = [sample(0, 50, 0), sample(50, 100, 100)];
        assert_eq!(bounded(&samples, &[call(0, 100, 100)]), [0]);
        let samples = [sample(0, 100, 0), sample(100, 150, 80)];
        assert_eq!(bounded(&samples, &[call(0, 100, 100), call(100, 150, 50)]), [70, 0]);
    }

    /// Half of the call lies before the first sample, and another thread is not known at all.
    #[test]
    fn waits_outside_the_samples_stay() {
        let samples = [sample(100, 200, 100)];
        assert_eq!(bounded(&samples, &[call(50, 150, 80)]), [40]);
        let other = CallWait { thread: THREAD + 1, ..call(50, 150, 80) };
        assert_eq!(bounded(&samples, &[other]), [80]);
    }

    /// By hand: without a sample, 20 ns of the 80 are a wait. Half of the call lies before the
    /// first sample: 10 ns of them, and 40 of the 80, which the sleep of 100 ns allows.
    #[test]
    fn longest_wait_counts_only_where_the_sleep_is_sampled() {
        let wait = CallWait { unsampled_wait_ns: 20, ..call(50, 150, 80) };
        assert_eq!(bounded(&[sample(100, 200, 0)], &[wait]), [50]);
        assert_eq!(bounded(&[], &[wait]), [20]);
    }
}
