//! Rate control of a process: maximum rates, minimum rates, and detection of a steady state.

use readpath_core::request::Op;
use readpath_core::unit::Time;

use super::chance::RandomChoices;
use crate::job::{LatencyTarget, RateLimits, SteadyStateRule};

/// Nanoseconds in a second.
const SECOND_NS: u64 = 1_000_000_000;

/// Longest time in ns from the start of a process to a due time: 146 years. The start can be added
/// without overflow.
const DUE_NS_MAX: u64 = u64::MAX / 4;

/// Rates of one process, as in fio.
///
/// An operation of a direction is due when the bytes before it have taken their time at the rate.
/// With `rate_process=poisson` it is due after the sum of the random intervals since the start: one
/// interval for each operation, of any size. A delayed process catches up in both cases. Each array
/// of two values is for reads and writes, in this order.
#[derive(Clone, Debug)]
pub struct RateControl {
    /// Limits of the job, by direction; 0 for none.
    rate: RateLimits,
    /// Maximum bytes per second for reads and writes, 0 for no limit.
    bytes_per_s: [u64; 2],
    /// Size in bytes of the smallest operation of each direction.
    smallest_bytes: [u64; 2],
    /// Start of the process.
    start: Time,
    /// Bytes issued since then, per direction. Pauses count as issued bytes if they are not caught
    /// up (`rate_ignore_thinktime`).
    issued_bytes: [u64; 2],
    /// Sum of the drawn times of each direction.
    drawn_time: [Time; 2],
    /// Time at which the next operation of each direction is due.
    due: [Time; 2],
    /// Time of the last check of the minimum rates.
    last_checked: Time,
    /// Completed bytes since that check, per direction.
    done_bytes: [u64; 2],
    /// Completed operations since that check, per direction.
    done_operations: [u64; 2],
}

impl RateControl {
    /// Creates the rates of a job. `smallest_bytes` are the sizes of its smallest operations, by
    /// direction. `has_direction` is true for the directions of the job. A maximum in operations
    /// becomes one in bytes of the smallest operations; a job has only one of the two.
    pub fn new(
        rate: &RateLimits,
        smallest_bytes: [u64; 2],
        has_direction: [bool; 2],
    ) -> RateControl {
        // An unused direction cannot be too slow.
        let mut rate = *rate;
        for direction in (0..2).filter(|direction| !has_direction[*direction]) {
            (rate.least_bytes_per_s[direction], rate.least_operations_per_s[direction]) = (0, 0);
        }
        let bytes_per_s = [0, 1].map(|direction| match rate.operations_per_s[direction] {
            0 => rate.bytes_per_s[direction],
            operations_per_s => {
                u64::from(operations_per_s).saturating_mul(smallest_bytes[direction])
            }
        });
        RateControl {
            rate,
            bytes_per_s,
            smallest_bytes,
            start: Time::ZERO,
            issued_bytes: [0; 2],
            drawn_time: [Time::ZERO; 2],
            due: [Time::ZERO; 2],
            last_checked: Time::ZERO,
            done_bytes: [0; 2],
            done_operations: [0; 2],
        }
    }

    /// Records the start of the process.
    pub fn begin(&mut self, now: Time) {
        (self.start, self.last_checked) = (now, now);
    }

    /// Returns the time at which an operation of this direction may start, or zero for immediately.
    pub fn due_time(&self, op: Op) -> Time {
        self.due[op as usize]
    }

    /// Returns the next direction of a mix, and its due time. The drawn direction is used unless it
    /// is delayed and the other one is due earlier.
    pub fn next_direction(&self, drawn: Op, now: Time) -> (Op, Time) {
        let other = match drawn {
            Op::Read => Op::Write,
            Op::Write => Op::Read,
        };
        let (own_due, other_due) = (self.due_time(drawn), self.due_time(other));
        match own_due > now && other_due < own_due {
            true => (other, other_due),
            false => (drawn, own_due),
        }
    }

    /// Records the issue of an operation, and sets the due time of the next one in its direction.
    /// No effect without a maximum rate.
    pub fn on_issue(&mut self, op: Op, bytes: u64, random: &mut RandomChoices) {
        let direction = op as usize;
        let bytes_per_s = self.bytes_per_s[direction];
        if bytes_per_s == 0 {
            return;
        }
        self.issued_bytes[direction] = self.issued_bytes[direction].saturating_add(bytes);
        let run_ns = match self.rate.is_poisson {
            true => {
                // An exponential interval with the mean time of the smallest operation.
                let mean_ns = span_ns(self.smallest_bytes[direction], bytes_per_s) as f64;
                let drawn_ns = (-random.draw_unit(op).ln() * mean_ns) as u64;
                let sum_ns = self.drawn_time[direction].ns().saturating_add(drawn_ns);
                self.drawn_time[direction] = Time(sum_ns.min(DUE_NS_MAX));
                self.drawn_time[direction].ns()
            }
            false => span_ns(self.issued_bytes[direction], bytes_per_s),
        };
        self.due[direction] = self.start + Time(run_ns);
    }

    /// Counts the bytes that the rate allows during a pause as issued, if the job does not catch up
    /// pauses. One operation is excluded, so that it is due right after the pause, as in fio. `op`
    /// is the last direction.
    pub fn on_pause(&mut self, op: Op, pause: Time) {
        let direction = op as usize;
        let bytes_per_s = self.bytes_per_s[direction];
        let smallest_bytes = self.smallest_bytes[direction];
        if !self.rate.ignores_pauses || bytes_per_s == 0 {
            return;
        }
        let missed_bytes = u128::from(bytes_per_s) * u128::from(pause.ns()) / u128::from(SECOND_NS);
        // A number beyond 64 bits is as good as endless; a quarter leaves room for sums.
        let missed_bytes = u64::try_from(missed_bytes).unwrap_or(u64::MAX / 4);
        // The first operation, if the pause is long enough for it.
        let first_bytes =
            if span_ns(smallest_bytes, bytes_per_s) <= pause.ns() { smallest_bytes } else { 0 };
        let issued_bytes = &mut self.issued_bytes[direction];
        *issued_bytes = issued_bytes.saturating_add(missed_bytes.saturating_sub(first_bytes));
        // With random intervals, the pause counts as one.
        self.drawn_time[direction] += pause;
    }

    /// Counts a completed operation of this direction, for the check of minimum rates.
    pub fn on_completed(&mut self, op: Op, bytes: u64) {
        self.done_bytes[op as usize] += bytes;
        self.done_operations[op as usize] += 1;
    }

    /// Returns false if the rate since the last check is below a minimum rate. A check ends the
    /// check period, of 1 ms or more, and begins the next. Before the end of the period the result
    /// is true.
    pub fn check_minimum_rates(&mut self, now: Time) -> bool {
        let rate = &self.rate;
        if (rate.least_bytes_per_s, rate.least_operations_per_s) == ([0; 2], [0; 2]) {
            return true;
        }
        let period = now.since(self.last_checked);
        if period < rate.check_period.max(Time::from_ms(1)) {
            return true;
        }
        let per_s = |count: u64| count as f64 * SECOND_NS as f64 / period.ns() as f64;
        let is_slow = (0..2).any(|direction| {
            per_s(self.done_bytes[direction]) < rate.least_bytes_per_s[direction] as f64
                || per_s(self.done_operations[direction])
                    < f64::from(rate.least_operations_per_s[direction])
        });
        self.last_checked = now;
        (self.done_bytes, self.done_operations) = ([0; 2], [0; 2]);
        !is_slow
    }
}

/// Returns the time in ns of `bytes` at a rate of `bytes_per_s`, at most [`DUE_NS_MAX`].
fn span_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    let ns = u128::from(bytes) * u128::from(SECOND_NS) / u128::from(bytes_per_s);
    ns.min(u128::from(DUE_NS_MAX)) as u64
}

/// Detects the steady state of a process's rate, second by second.
#[derive(Clone, Debug)]
pub struct SteadyStateDetector {
    /// Period, limit and unit of the rate.
    rule: SteadyStateRule,
    /// Time from which seconds count: the start of the process plus the ramp.
    measurement_start: Time,
    /// Number of the present second since then.
    second: u64,
    /// Bytes or operations in the present second.
    count_in_second: f64,
    /// Rates of the last seconds, the oldest first.
    rates: std::collections::VecDeque<f64>,
}

impl SteadyStateDetector {
    /// Creates a detector without measured seconds.
    pub fn new(rule: SteadyStateRule) -> SteadyStateDetector {
        let rates = std::collections::VecDeque::new();
        SteadyStateDetector {
            rule,
            measurement_start: Time::ZERO,
            second: 0,
            count_in_second: 0.0,
            rates,
        }
    }

    /// Records the start of the process.
    pub fn begin(&mut self, now: Time) {
        self.measurement_start = now + self.rule.ramp;
    }

    /// Records the end of an operation. Returns true if the rate has been steady for long enough,
    /// in any of the seconds that have ended since the last call.
    pub fn record_end(&mut self, now: Time, bytes: u64) -> bool {
        if now < self.measurement_start {
            return false;
        }
        let second = now.since(self.measurement_start).ns() / SECOND_NS;
        let mut is_steady = false;
        // Seconds without operations count too. One more than the period replaces all its rates.
        for _ in 0..(second - self.second).min(u64::from(self.rule.seconds) + 1) {
            self.rates.push_back(std::mem::take(&mut self.count_in_second));
            if self.rates.len() > self.rule.seconds as usize {
                self.rates.pop_front();
            }
            is_steady |= self.rates.len() == self.rule.seconds as usize && self.is_steady();
        }
        self.second = second;
        self.count_in_second += if self.rule.is_operations { 1.0 } else { bytes as f64 };
        is_steady
    }

    /// Returns true if the rates of the present period meet the limit, which is absolute, or a
    /// share of the mean with `is_share`. False for a mean of 0.
    fn is_steady(&self) -> bool {
        let count = self.rates.len() as f64;
        let mean = self.rates.iter().sum::<f64>() / count;
        let deviation = match self.rule.is_slope {
            // Slope of the least-squares line through the rates.
            true => {
                let middle = (count - 1.0) / 2.0;
                let (mut covariance, mut variance) = (0.0, 0.0);
                for (second, rate) in self.rates.iter().enumerate() {
                    let from_middle = second as f64 - middle;
                    covariance += from_middle * rate;
                    variance += from_middle * from_middle;
                }
                // A single rate has no slope.
                if variance > 0.0 { (covariance / variance).abs() } else { 0.0 }
            }
            // Maximum difference from the mean.
            false => self.rates.iter().map(|rate| (rate - mean).abs()).fold(0.0, f64::max),
        };
        let limit = if self.rule.is_share { self.rule.limit * mean } else { self.rule.limit };
        mean > 0.0 && deviation <= limit
    }
}

/// Searches the maximum queue depth that meets a latency: a binary search with one window of time
/// per depth. Only operations that are issued at a depth count for it. Unless the job goes on
/// afterwards, one more window at the depth found is the measured time of the process, as in fio.
#[derive(Clone, Debug)]
pub struct DepthSearch {
    /// The latency to meet, its percentile, and the length of a window.
    rule: LatencyTarget,
    /// Present queue depth.
    depth: u32,
    /// Time from which the process has this depth.
    depth_since: Time,
    /// True once the search is over.
    is_found: bool,
    /// Largest depth known to meet the latency. 0 before the first.
    largest_good_depth: u32,
    /// Smallest depth known to miss it, or the maximum depth plus 1.
    smallest_bad_depth: u32,
    /// End of the present window of time. `None` before its first operation.
    window_end: Option<Time>,
    /// Operations that ended in the present window.
    all_operations: u64,
    /// The ones above the target latency.
    late_operations: u64,
}

/// State of a search for the queue depth that meets a latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchedDepth {
    /// The search has ended with this depth.
    Found(u32),
    /// The search has not ended, and has this depth at present.
    Searching(u32),
    /// No depth meets the latency. The process uses depth 1.
    NoneMeets,
}

impl SearchedDepth {
    /// Returns the depth found; `None` without one.
    pub fn found(self) -> Option<u32> {
        match self {
            SearchedDepth::Found(depth) => Some(depth),
            SearchedDepth::Searching(_) | SearchedDepth::NoneMeets => None,
        }
    }

    /// Returns the depth that the process uses at present.
    pub fn present(self) -> u32 {
        match self {
            SearchedDepth::Found(depth) | SearchedDepth::Searching(depth) => depth,
            SearchedDepth::NoneMeets => 1,
        }
    }
}

impl std::fmt::Display for SearchedDepth {
    /// Writes the result of the search for a note.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SearchedDepth::Found(depth) => write!(f, "depth {depth}"),
            SearchedDepth::Searching(depth) => {
                write!(f, "the search had not ended (at depth {depth})")
            }
            SearchedDepth::NoneMeets => f.write_str("no depth meets the target"),
        }
    }
}

impl DepthSearch {
    /// Creates a search of depths from 1 to `depth`.
    pub fn new(rule: LatencyTarget, depth: u32) -> DepthSearch {
        let depth_above = depth.saturating_add(1);
        DepthSearch {
            rule,
            depth: 1,
            depth_since: Time::ZERO,
            is_found: false,
            largest_good_depth: 0,
            smallest_bad_depth: depth_above,
            window_end: None,
            all_operations: 0,
            late_operations: 0,
        }
    }

    /// Returns the present queue depth.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns the state of the search.
    pub fn searched_depth(&self) -> SearchedDepth {
        match (self.is_found, self.largest_good_depth) {
            (false, _) => SearchedDepth::Searching(self.depth),
            (true, 0) => SearchedDepth::NoneMeets,
            (true, depth) => SearchedDepth::Found(depth),
        }
    }

    /// Returns true if an operation issued at `issued` belongs to the results of the process.
    pub fn is_measured(&self, issued: Time) -> bool {
        self.rule.continues_after || (self.is_found && issued >= self.depth_since)
    }

    /// Records the end of an operation. At the end of a window, moves to the next depth: halfway
    /// between the largest good and the smallest bad one. Returns true if the run is over: one
    /// window after the search. With `continues_after` it never returns true, and keeps the depth
    /// found.
    pub fn record_end(&mut self, now: Time, issued: Time) -> bool {
        if issued < self.depth_since {
            return false;
        }
        self.all_operations += 1;
        self.late_operations += u64::from(now.since(issued) > self.rule.target);
        if now < *self.window_end.get_or_insert(issued + self.rule.window) {
            return false;
        }
        if self.is_found {
            return !self.rule.continues_after;
        }
        let percent_in_time = 100.0 * (self.all_operations - self.late_operations) as f64
            / self.all_operations as f64;
        match percent_in_time >= self.rule.percentile {
            true => self.largest_good_depth = self.depth,
            false => self.smallest_bad_depth = self.depth,
        }
        (self.all_operations, self.late_operations, self.window_end) = (0, 0, None);
        self.depth_since = now;
        self.is_found = self.smallest_bad_depth - self.largest_good_depth <= 1;
        self.depth = match self.is_found {
            // Depth 1 is used even if no depth meets the latency.
            true => self.largest_good_depth.max(1),
            false => {
                self.largest_good_depth + (self.smallest_bad_depth - self.largest_good_depth) / 2
            }
        };
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::ProcessSeeds;
    use super::*;

    /// Random choices of the first process of a job.
    fn random_choices(job: &crate::job::Job) -> RandomChoices {
        let (process_number, is_clone, run_seed) = (0, false, 1);
        let seeds = ProcessSeeds::new(job, process_number, is_clone, run_seed);
        let (is_wide, own_seed) = (false, 0);
        RandomChoices::new(job, seeds, is_wide, own_seed)
    }

    /// 4096 bytes at 1 MiB per second take 1/256 s = 3,906,250 ns. The process starts at 1 s.
    #[test]
    fn a_rate_spaces_operations() {
        let job = crate::job::JobFile::parse("[j]\nrate=1m\n").unwrap().jobs.remove(0);
        let (smallest_bytes, has_direction) = ([4096; 2], [true; 2]);
        let mut control = RateControl::new(&job.rate, smallest_bytes, has_direction);
        let mut random = random_choices(&job);
        control.begin(Time::from_s(1));
        for nth in 1..=3 {
            control.on_issue(Op::Read, 4096, &mut random);
            assert_eq!(control.due_time(Op::Read), Time(1_000_000_000 + nth * 3_906_250));
        }
    }

    /// At 1 byte per second, 16 GiB take 544 years and 32 GiB 1,089. 2^64 ns are 584 years. The
    /// process starts after 100 years, and each due time is at most 146 years later.
    #[test]
    fn due_times_of_a_tiny_rate_are_limited_and_in_order() {
        let start = Time::from_s(100 * 365 * 86_400);
        for options in ["rate=1", "rate=1\nrate_process=poisson"] {
            let text = format!("[j]\n{options}\n");
            let job = crate::job::JobFile::parse(&text).unwrap().jobs.remove(0);
            let mut control = RateControl::new(&job.rate, [16 << 30; 2], [true; 2]);
            let mut random = random_choices(&job);
            control.begin(start);
            let mut last_due = start;
            for _ in 0..50 {
                control.on_issue(Op::Read, 16 << 30, &mut random);
                let due = control.due_time(Op::Read);
                assert!(last_due <= due, "{options}");
                last_due = due;
            }
            assert_eq!(last_due, Time(start.ns() + u64::MAX / 4), "{options}");
        }
    }

    /// Rates of 100, 102 and 98 per second deviate from their mean by 2 %. The operation in the
    /// fourth second ends the third one.
    #[test]
    fn a_rate_is_steady_within_its_limit() {
        let steady_after = |limit: f64| {
            let rule = SteadyStateRule {
                is_operations: true,
                is_slope: false,
                limit,
                is_share: true,
                seconds: 3,
                ramp: Time::ZERO,
            };
            let mut detector = SteadyStateDetector::new(rule);
            detector.begin(Time::ZERO);
            let mut is_steady = false;
            for (second, count) in [100_u64, 102, 98, 1].into_iter().enumerate() {
                for nth in 0..count {
                    let now = Time::from_s(second as u64) + Time::from_ms(nth);
                    is_steady |= detector.record_end(now, 4096);
                }
            }
            is_steady
        };
        assert!(steady_after(0.021));
        assert!(!steady_after(0.019));
    }

    /// A device on which 5 operations in flight meet 1 ms and 6 do not. The search is from 1 to 32.
    #[test]
    fn depth_search_finds_the_greatest_depth_within_the_latency_target() {
        let rule = LatencyTarget {
            target: Time::from_ms(1),
            window: Time::from_ms(10),
            percentile: 100.0,
            continues_after: false,
        };
        let mut search = DepthSearch::new(rule, 32);
        let mut now = Time::ZERO;
        for _ in 0..10_000 {
            let latency =
                if search.depth() <= 5 { Time::from_us(900) } else { Time::from_us(1100) };
            let issued = now;
            now += latency;
            if search.record_end(now, issued) {
                break;
            }
        }
        assert_eq!(search.depth(), 5);
    }
}
