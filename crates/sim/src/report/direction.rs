//! The reads of a job, or its writes, in the detail that fio reports.

use readpath_core::unit::Time;

use super::ReadCounters;

/// The percentiles of latencies that are reported, as fio does.
pub const PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

/// What was counted of the operations of one direction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirectionResults {
    /// Bytes moved.
    pub bytes: u64,
    /// Operations that ended well.
    pub operations: u64,
    /// Operations that ended with an error.
    pub errors: u64,
    /// From the issue of the first operation to the end of the last.
    pub span: Time,
    /// Latencies in nanoseconds.
    pub latency_ns: Statistics,
    /// How many operations ended within a latency: its upper bound in nanoseconds, and the number,
    /// for each latency that is told from others.
    pub recorded: Vec<(u64, u64)>,
}

/// The smallest, the largest, the mean and the deviation of some numbers; zero where there are none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics {
    /// The smallest.
    pub min: u64,
    /// The largest.
    pub max: u64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub deviation: f64,
    /// The percentiles, in the order of [`PERCENTILES`].
    pub percentiles: Vec<u64>,
}

impl DirectionResults {
    /// The figures of a tally.
    pub fn of(read_counters: &ReadCounters) -> DirectionResults {
        let latencies = &read_counters.latency_ns;
        let at = |percentile: f64| latencies.value_at_quantile(percentile / 100.0);
        let latency_ns = match latencies.is_empty() {
            true => Statistics::default(),
            false => Statistics {
                min: latencies.min(),
                max: latencies.max(),
                mean: latencies.mean(),
                deviation: latencies.stdev(),
                percentiles: PERCENTILES.map(at).to_vec(),
            },
        };
        DirectionResults {
            bytes: read_counters.bytes,
            operations: read_counters.operations,
            errors: read_counters.errors,
            span: read_counters.last.since(read_counters.first.unwrap_or(read_counters.last)),
            latency_ns,
            recorded: read_counters.latencies(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 and 300 µs: the mean is 200, the deviation 100.
    #[test]
    fn the_spread_is_that_of_the_numbers() {
        let mut read_counters = ReadCounters::default();
        for us in [100, 300] {
            read_counters.record(Time::ZERO, Time::from_us(us), 4096);
        }
        let reads = DirectionResults::of(&read_counters);
        let near = |value: f64, want: f64| assert!((value / want - 1.0).abs() < 0.01, "{value}");
        near(reads.latency_ns.mean, 200_000.0);
        near(reads.latency_ns.deviation, 100_000.0);
        near(reads.latency_ns.max as f64, 300_000.0);
        assert_eq!((reads.operations, reads.span), (2, Time::from_us(300)));
        assert_eq!(DirectionResults::of(&ReadCounters::default()), DirectionResults::default());
    }
}
