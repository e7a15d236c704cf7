//! Results of a job's reads, or of its writes, in the detail of fio's reports.

use readpath_core::unit::Time;

use super::ReadCounters;

/// Reported latency percentiles, the same as fio's.
pub const PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

/// Results of the operations of one direction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirectionResults {
    /// Bytes transferred.
    pub bytes: u64,
    /// Number of successful operations.
    pub operations: u64,
    /// Number of failed operations.
    pub errors: u64,
    /// Time from the first issue to the last end.
    pub span: Time,
    /// Latencies in nanoseconds.
    pub latency_ns: Statistics,
    /// Latency histogram: upper bound of each bucket in nanoseconds, and number of operations.
    pub recorded: Vec<(u64, u64)>,
}

/// Statistics of a set of numbers. All are zero for an empty set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics {
    /// Minimum.
    pub min: u64,
    /// Maximum.
    pub max: u64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub deviation: f64,
    /// Percentiles, in the order of [`PERCENTILES`].
    pub percentiles: Vec<u64>,
}

impl DirectionResults {
    /// Computes the results of one direction from its counters.
    pub fn of(counters: &ReadCounters) -> DirectionResults {
        let latencies = &counters.latency_ns;
        let latency_at = |percentile: f64| counters.latency_at(percentile / 100.0);
        let latency_ns = match latencies.is_empty() {
            true => Statistics::default(),
            false => Statistics {
                min: latencies.min(),
                max: counters.latency_max_ns,
                mean: latencies.mean(),
                deviation: latencies.stdev(),
                percentiles: PERCENTILES.map(latency_at).to_vec(),
            },
        };
        DirectionResults {
            bytes: counters.bytes,
            operations: counters.operations,
            errors: counters.errors,
            span: counters.last.since(counters.first.unwrap_or(counters.last)),
            latency_ns,
            recorded: counters.latencies(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For 100 and 300 µs the mean is 200 and the deviation 100. The histogram rounds by up to 0.1
    /// %.
    #[test]
    fn latency_statistics_match_hand_computed_values() {
        let mut read_counters = ReadCounters::default();
        for us in [100, 300] {
            read_counters.record(Time::ZERO, Time::from_us(us), 4096);
        }
        let reads = DirectionResults::of(&read_counters);
        let near = |value: f64, expected: f64| {
            assert!((value / expected - 1.0).abs() < 0.01, "{value}");
        };
        near(reads.latency_ns.mean, 200_000.0);
        near(reads.latency_ns.deviation, 100_000.0);
        near(reads.latency_ns.max as f64, 300_000.0);
        assert_eq!((reads.operations, reads.span), (2, Time::from_us(300)));
        assert_eq!(DirectionResults::of(&ReadCounters::default()), DirectionResults::default());
    }
}
