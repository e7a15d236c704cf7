//! Times in which the threads of a program slept, as upper bounds of the waits of their reads.
//!
//! The preloaded library sees the duration of a call. On a busy machine a part of it is time in the
//! queue of a processor, and in calls that copy or write, time on a processor. The kernel counts
//! both for each thread, and the sampler reports the increases. The waits of a thread's reads
//! cannot exceed the rest of each interval between two samples. Longer waits are shortened in
//! proportion.
//!
//! The sleep includes other calls, such as reads of a pipe. The activities of the samples divide
//! it: the waits of reads within [`WINDOW_NS`] cannot exceed the part that was asleep in reads.
//!
//! The kernel adds the time in a queue when it ends. An increase beyond its interval therefore
//! belongs to the intervals just before.

use std::collections::{BTreeMap, VecDeque};

use readpath_trace::recording::Activity;

use super::super::state_samples::SampledThread;

/// Time in nanoseconds between a read and its record. A sample counts the time in a processor's
/// queue after its end, and is at most 50 ms late on an idle machine.
pub(super) const DELAY_NS: u64 = 200_000_000;

/// Number of intervals that are kept of a thread at least. At pauses of 50 ms they last 3 s.
const INTERVALS_MIN: usize = 64;

/// Age in nanoseconds up to which more intervals are kept. A wait is bounded [`DELAY_NS`] after its
/// end, with the intervals of a window before it: two of the five. The other three, 600 ms, are for
/// the call and for late records. The rest of a longer call counts without samples.
const KEPT_NS: u64 = 5 * DELAY_NS;

/// Time in nanoseconds before and after a wait within which samples divide the sleep. Up to
/// [`DELAY_NS`] after a wait the samples and the other waits are known.
const WINDOW_NS: u64 = DELAY_NS;

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
    /// Activity at its end.
    activity: Activity,
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

    /// Returns the sum of the waits in this interval, at most the sleep.
    fn bounded_ns(&self) -> u64 {
        self.claimed_ns.min(self.asleep_ns)
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
        let &SampledThread { thread, begin_ns, end_ns, busy_ns, activity } = sample;
        let intervals = self.threads.entry(thread).or_default();
        let length_ns = end_ns.saturating_sub(begin_ns);
        // Time in a queue that the kernel had not yet counted at the samples before.
        let mut excess_ns = busy_ns.saturating_sub(length_ns);
        for earlier in intervals.iter_mut().rev() {
            if excess_ns == 0 {
                break;
            }
            let moved_ns = excess_ns.min(earlier.asleep_ns);
            earlier.asleep_ns -= moved_ns;
            excess_ns -= moved_ns;
        }
        let asleep_ns = length_ns.saturating_sub(busy_ns);
        intervals.push_back(Interval { begin_ns, end_ns, asleep_ns, claimed_ns: 0, activity });
        while intervals.len() > INTERVALS_MIN
            && intervals.front().is_some_and(|first| first.end_ns + KEPT_NS < end_ns)
        {
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
        if let Some(intervals) = self.threads.get_mut(&wait.thread) {
            let overlapping = overlapping(intervals, (wait.begin_ns, wait.end_ns));
            for interval in intervals.range_mut(overlapping) {
                interval.claimed_ns += interval.part_of(wait);
            }
        }
    }

    /// Returns the wait that the sleep of the thread allows. Each interval shortens its part of the
    /// wait in proportion, if all waits in it exceed the sleep. All parts are shortened if the
    /// waits around exceed the sleep in reads. The part of a call outside the sampled intervals
    /// counts with `unsampled_wait_ns`.
    pub fn bounded(&self, wait: &CallWait) -> u64 {
        let duration_ns = wait.end_ns - wait.begin_ns;
        let Some(intervals) = self.threads.get(&wait.thread) else {
            return wait.unsampled_wait_ns;
        };
        let (mut bounded_ns, mut unsampled_ns) = (0, duration_ns);
        for interval in intervals.range(overlapping(intervals, (wait.begin_ns, wait.end_ns))) {
            unsampled_ns = unsampled_ns.saturating_sub(interval.shared_ns(wait));
            let part_ns = interval.part_of(wait);
            bounded_ns += match interval.claimed_ns > interval.asleep_ns {
                true => scale(part_ns, interval.asleep_ns, interval.claimed_ns),
                false => part_ns,
            };
        }
        let window =
            (wait.begin_ns.saturating_sub(WINDOW_NS), wait.end_ns.saturating_add(WINDOW_NS));
        let window = overlapping(intervals, window);
        let waits_ns: u64 = intervals.range(window.clone()).map(Interval::bounded_ns).sum();
        // With too few samples the sleep in reads is not known, and shortens nothing.
        let read_ns = read_sleep(intervals.range(window)).unwrap_or(waits_ns);
        if read_ns < waits_ns {
            bounded_ns = scale(bounded_ns, read_ns, waits_ns);
        }
        bounded_ns + scale(wait.unsampled_wait_ns, unsampled_ns, duration_ns)
    }
}

/// Returns the indices of the intervals that overlap the time from `begin_ns` to `end_ns`. The
/// intervals are in the order of their times and do not overlap each other.
fn overlapping(
    intervals: &VecDeque<Interval>,
    (begin_ns, end_ns): (u64, u64),
) -> std::ops::Range<usize> {
    let first = intervals.partition_point(|interval| interval.end_ns <= begin_ns);
    let end = intervals.partition_point(|interval| interval.begin_ns < end_ns);
    first..end.max(first)
}

/// Least number of samples with sleep that divide it. If a tenth of the sleep is in reads, 32
/// samples have none of it in 0.9³² = 3 of 100 cases.
/// Measured in `bench/notes/recording.md`: with 4 or 16 samples up to four fifths of real waits are
/// lost. The run compares 32 with no higher minimum.
const SLEEPS_MIN: u32 = 32;

/// Returns the part of the sleep in these intervals that was in reads, in nanoseconds. It is
/// divided in the ratio of the samples that found the thread asleep. `None` if fewer than
/// [`SLEEPS_MIN`] samples did: without a read in them, they are no evidence that there was none.
fn read_sleep<'a>(intervals: impl Iterator<Item = &'a Interval>) -> Option<u64> {
    let (mut asleep_ns, mut in_reads_ns, mut in_others_ns) = (0, 0, 0);
    let mut sleeps = 0;
    for interval in intervals {
        asleep_ns += interval.asleep_ns;
        match interval.activity {
            Activity::Read => in_reads_ns += interval.asleep_ns,
            // No sleep, or one that may be a read.
            Activity::Processor | Activity::ProcessorQueue | Activity::Unknown => continue,
            _ => in_others_ns += interval.asleep_ns,
        }
        sleeps += 1;
    }
    let sampled_ns = in_reads_ns + in_others_ns;
    (sampled_ns > 0 && sleeps >= SLEEPS_MIN).then(|| scale(asleep_ns, in_reads_ns, sampled_ns))
}

/// Returns `value × part / whole`, rounded down; 0 if `whole` is 0.
fn scale(value: u64, part: u64, whole: u64) -> u64 {
    let product = u128::from(value) * u128::from(part);
    product.checked_div(u128::from(whole)).unwrap_or(0) as u64
}

#[cfg(test)]
mod tests {
    use readpath_trace::recording::Activity;

    use super::*;

    /// Thread number of the tests.
    const THREAD: u32 = 7;

    fn sample(begin_ns: u64, end_ns: u64, busy_ns: u64) -> SampledThread {
        let activity = Activity::Processor;
        SampledThread { thread: THREAD, begin_ns, end_ns, busy_ns, activity }
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

    /// Samples every 2 ms of a thread that is asleep for 1.8 ms of each. `activity`: at the sample
    /// with this number.
    fn with_other_sleep(activity: impl Fn(u64) -> Activity) -> Vec<SampledThread> {
        let sample = |at| {
            let activity = activity(at);
            SampledThread { activity, ..sample(at * MS * 2, (at + 1) * MS * 2, MS / 5) }
        };
        (0..50).map(sample).collect()
    }

    const MS: u64 = 1_000_000;

    /// A cached read of 87 µs in each 2 ms, of which 41 µs were taken for a wait. The samples of
    /// 100 ms are in a pipe or on a processor: they have no `Read`.
    #[test]
    fn sleep_in_other_calls_allows_no_wait() {
        let samples = with_other_sleep(|at| match at % 3 {
            0 => Activity::Processor,
            _ => Activity::Others,
        });
        let calls: Vec<CallWait> =
            (0..50).map(|at| call(at * 2 * MS, at * 2 * MS + 87_000, 41_000)).collect();
        assert_eq!(bounded(&samples, &calls), [0; 50]);
    }

    /// Eight samples, all in a futex: a read between them may have waited.
    #[test]
    fn few_samples_of_other_sleep_leave_the_waits() {
        let sample = |at: u64| SampledThread {
            activity: Activity::Lock,
            ..sample(at * 50 * MS, (at + 1) * 50 * MS, 5 * MS)
        };
        let samples: Vec<SampledThread> = (0..8).map(sample).collect();
        let calls: Vec<CallWait> =
            (0..8).map(|at| call(at * 50 * MS, at * 50 * MS + 2 * MS, MS)).collect();
        assert_eq!(bounded(&samples, &calls), [MS; 8]);
    }

    /// By hand: a quarter of the samples with sleep is in a read, so 0.45 of 1.8 ms. A read with a
    /// wait of 0.4 ms keeps it, and one of 0.9 ms has half of it left. The samples of a processor
    /// do not count.
    #[test]
    fn sleep_is_divided_between_reads_and_other_calls_by_the_samples() {
        let activity = |at| match at % 5 {
            0 => Activity::Read,
            1 => Activity::Processor,
            _ => Activity::Others,
        };
        for (wait_ns, expected) in [(400_000, 400_000), (900_000, 450_000)] {
            let calls: Vec<CallWait> =
                (0..50).map(|at| call(at * 2 * MS, at * 2 * MS + MS, wait_ns)).collect();
            assert_eq!(bounded(&with_other_sleep(activity), &calls), [expected; 50]);
        }
    }

    /// A thread reads for 40 ms, and then waits for a pipe for 60 ms. No read is shortened.
    #[test]
    fn phase_of_other_sleep_does_not_shorten_the_waits_before_it() {
        let samples =
            with_other_sleep(|at| if at < 20 { Activity::Read } else { Activity::Others });
        let calls: Vec<CallWait> =
            (0..20).map(|at| call(at * 2 * MS, (at + 1) * 2 * MS, 1_700_000)).collect();
        assert_eq!(bounded(&samples, &calls), [1_700_000; 20]);
    }
}
