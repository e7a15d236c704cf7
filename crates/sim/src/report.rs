//! Results of a simulation or a measurement: one row of the table.
//!
//! The keys are the command's JSON contract. A value that was not measured is `None` (`null`),
//! never 0.

use hdrhistogram::Histogram;
use readpath_core::cache::CacheCounters;
use readpath_core::machine::Meter;
use readpath_core::unit::{PAGE_BYTES, Time};
use serde::Serialize;

use crate::job::LatencyTarget;
use crate::workload::SearchedDepth;

mod direction;
mod fairness;

pub use direction::{DirectionResults, PERCENTILES, Statistics};
pub use fairness::{ProcessRow, ProcessShare, dropped_time, jain_index, stream_rows};

/// Results of one job on one storage under one set of policies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResultRow {
    /// Name of the job file, without folder and extension.
    pub job: String,
    /// Storage, as the user named it.
    pub storage: String,
    /// Page cache of the reads: `kernel`, `own` or `none`. Null if sections differ.
    pub page_cache: Option<String>,
    /// Readahead policy, or the kernel's setting in its place.
    pub readahead: Option<String>,
    /// Swap-in policy. Null for file reads.
    pub swapin: Option<String>,
    /// Scheduler. For real runs the kernel's scheduler.
    pub scheduler: Option<String>,
    /// Chunking policy of raw jobs. Null without raw jobs.
    pub raw: Option<String>,
    /// I/O engine of the operations, such as `psync` or `io_uring direct`.
    pub engine: Option<String>,
    /// Bytes transferred by the job's operations.
    pub bytes: u64,
    /// Time from the start of the run to the last completion, with the start delays of the jobs.
    pub seconds: f64,
    /// `bytes` per second, in MiB.
    pub mib_per_s: Option<f64>,
    /// `mib_per_s` of each run, in their order, if the row was run repeatedly. The row is then the
    /// run with the median.
    pub runs_mib_per_s: Option<Vec<f64>>,
    /// Operations per second.
    pub iops: Option<f64>,
    /// Latency from the issue of an operation to its end.
    pub latency_us: LatencySummary,
    /// Number of device requests.
    pub device_requests: Option<u64>,
    /// Bytes of all device requests.
    pub device_bytes: Option<u64>,
    /// `device_bytes` per request, in KiB.
    pub device_request_kib_mean: Option<f64>,
    /// Mean queue depth of the device over the time in which it was busy.
    pub device_depth_mean: Option<f64>,
    /// Maximum queue depth of the device.
    pub device_depth_max: Option<u32>,
    /// Bytes read from the device, divided by bytes requested by reads.
    pub amplification: Option<f64>,
    /// Requested bytes found in the cache, divided by requested bytes.
    pub coverage: Option<f64>,
    /// Prefetched bytes that were evicted, or still cached at the end, without use.
    pub waste_bytes: Option<u64>,
    /// User and system time of the process. Real runs only.
    pub cpu_seconds: Option<f64>,
    /// Processor time charged to the simulated host. Simulations only.
    pub host_seconds: Option<f64>,
    /// Operations that failed.
    pub errors: u64,
    /// First error, as text.
    pub first_error: Option<String>,
    /// Hash of all decisions. Simulations only.
    pub decisions: Option<String>,
    /// Caveat about the row.
    pub note: Option<String>,
    /// Results per job section, in the order of the file.
    pub sections: Vec<SectionRow>,
    /// Results per process, in the order of the sections.
    pub streams: Vec<ProcessRow>,
    /// Jain's fairness index of the processes' rates, from 1 ÷ their number (one process got
    /// everything) to 1. Null without concurrent processes.
    pub jain_index: Option<f64>,
}

/// Results of one job section.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SectionRow {
    /// Name of the section.
    pub name: String,
    /// Number of processes.
    pub processes: u32,
    /// Bytes transferred.
    pub bytes: u64,
    /// Time from the issue of the first operation to the last completion.
    pub seconds: f64,
    /// `bytes` per second, in MiB.
    pub mib_per_s: Option<f64>,
    /// `mib_per_s` of each run, in their order, if the row was run repeatedly.
    pub runs_mib_per_s: Option<Vec<f64>>,
    /// Operations per second.
    pub iops: Option<f64>,
    /// Latency from the issue of an operation to its end.
    pub latency_us: LatencySummary,
    /// Queue depth found for a latency (`latency_target`), of the section's first process. Null
    /// without a search, and if it has not found one.
    pub latency_depth: Option<u32>,
    /// State of that search. Not part of the JSON document.
    #[serde(skip)]
    pub searched_depth: Option<SearchedDepth>,
    /// The latency of that search, and its window. Not part of the JSON document.
    #[serde(skip)]
    pub latency_target: Option<LatencyTarget>,
    /// Number of syncs (`fsync`), without data syncs and the sync at the end. Not part of the JSON
    /// document.
    #[serde(skip)]
    pub fsyncs: u64,
    /// Detailed results of reads and writes. Not part of the JSON document.
    #[serde(skip)]
    pub directions: [DirectionResults; 2],
}

/// Latencies in microseconds. Null if no operation ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencySummary {
    /// Median.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// Maximum.
    pub max: Option<f64>,
}

/// Counters of a set of operations. The memory does not grow with their number.
#[derive(Clone, Debug)]
pub struct ReadCounters {
    /// Bytes transferred.
    pub bytes: u64,
    /// Number of successful operations.
    pub operations: u64,
    /// Number of failed operations.
    pub errors: u64,
    /// Issue time of the first operation.
    pub first: Option<Time>,
    /// End of the last operation.
    pub last: Time,
    /// Histogram of the latencies of successful operations.
    latency_ns: Histogram<u64>,
    /// Maximum latency of successful operations in ns. The histogram has it to three digits only.
    latency_max_ns: u64,
}

impl Default for ReadCounters {
    /// Creates counters without operations.
    fn default() -> ReadCounters {
        ReadCounters {
            bytes: 0,
            operations: 0,
            errors: 0,
            first: None,
            last: Time::ZERO,
            // Latencies up to one hour with three significant digits (error at most 0.1 %), in 0.3
            // MiB.
            latency_ns: Histogram::new_with_bounds(1, 3_600_000_000_000, 3)
                .expect("these bounds and 3 digits are what it takes"),
            latency_max_ns: 0,
        }
    }
}

impl ReadCounters {
    /// Records a successful operation of `bytes` bytes, from its issue time to its end time.
    /// The histogram starts at 1 ns and ends at one hour: latencies outside count as these.
    pub fn record(&mut self, issued: Time, ended: Time, bytes: u64) {
        self.extend_period(issued, ended);
        self.bytes += bytes;
        self.record_latencies(ended.since(issued).ns(), 1);
    }

    /// Drops all counts except the errors.
    pub fn keep_errors_only(&mut self) {
        *self = ReadCounters { errors: self.errors, ..ReadCounters::default() };
    }

    /// Records a failed operation, which counts for the period but not for the latencies.
    pub fn record_error(&mut self, issued: Time, ended: Time) {
        self.extend_period(issued, ended);
        self.errors += 1;
    }

    /// Records that earlier writes are durable at time `end`, which extends the duration of the
    /// work.
    pub fn record_sync(&mut self, end: Time) {
        self.last = self.last.max(end);
    }

    /// Extends the covered period by an operation: from its issue time to its end time.
    fn extend_period(&mut self, issued: Time, ended: Time) {
        self.first = Some(self.first.map_or(issued, |first| first.min(issued)));
        self.last = self.last.max(ended);
    }

    /// Returns pairs of latency in ns and number of operations, with the three digits of the
    /// histogram. Another process can merge them with [`ReadCounters::record_latencies`].
    pub fn latencies(&self) -> Vec<(u64, u64)> {
        let recorded = self.latency_ns.iter_recorded();
        let ns = |bucket_end: u64| bucket_end.min(self.latency_max_ns);
        recorded.map(|value| (ns(value.value_iterated_to()), value.count_at_value())).collect()
    }

    /// Records `operations` successful operations with a latency of `ns` each. Bytes and period
    /// do not change.
    pub fn record_latencies(&mut self, ns: u64, operations: u64) {
        self.operations += operations;
        self.latency_ns.saturating_record_n(ns.max(1), operations);
        self.latency_max_ns = self.latency_max_ns.max(ns.max(1));
    }

    /// Adds other counters. The period from the first issue to the last end then covers both.
    pub fn add(&mut self, other: &ReadCounters) {
        self.bytes += other.bytes;
        self.operations += other.operations;
        self.errors += other.errors;
        self.first = match (self.first, other.first) {
            (Some(own), Some(other)) => Some(own.min(other)),
            (own, other) => own.or(other),
        };
        self.last = self.last.max(other.last);
        self.latency_ns.add(&other.latency_ns).expect("both have the same bounds");
        self.latency_max_ns = self.latency_max_ns.max(other.latency_max_ns);
    }

    /// Returns the latencies in microseconds.
    pub fn latency(&self) -> LatencySummary {
        if self.latency_ns.is_empty() {
            return LatencySummary::default();
        }
        let us = |ns: u64| Some(ns as f64 / 1e3);
        LatencySummary {
            p50: us(self.latency_at(0.5)),
            p99: us(self.latency_at(0.99)),
            max: us(self.latency_max_ns),
        }
    }

    /// Latency in ns at a quantile from 0 to 1: the end of its bucket, or the maximum if that is
    /// smaller.
    fn latency_at(&self, quantile: f64) -> u64 {
        self.latency_ns.value_at_quantile(quantile).min(self.latency_max_ns)
    }

    /// Builds the row of a section from the counters of its reads and its writes, in this order.
    /// `name` and `processes` are the section's name and its number of processes.
    pub fn section(by_direction: &[ReadCounters; 2], name: &str, processes: u32) -> SectionRow {
        let [reads, writes] = by_direction;
        let mut both = reads.clone();
        both.add(writes);
        let directions = [DirectionResults::of(reads), DirectionResults::of(writes)];
        SectionRow { directions, ..both.section_without_directions(name, processes) }
    }

    /// Builds the row of a section without the details per direction, from the counters of its
    /// reads and writes together. The caller sets the search for a depth and the syncs.
    fn section_without_directions(&self, name: &str, processes: u32) -> SectionRow {
        let seconds = self.last.since(self.first.unwrap_or(self.last)).seconds();
        SectionRow {
            name: name.to_owned(),
            processes,
            bytes: self.bytes,
            seconds,
            mib_per_s: per_second(mib(self.bytes), seconds),
            runs_mib_per_s: None,
            iops: per_second(self.operations as f64, seconds),
            latency_us: self.latency(),
            latency_depth: None,
            searched_depth: None,
            latency_target: None,
            fsyncs: 0,
            directions: Default::default(),
        }
    }
}

impl ResultRow {
    /// Creates a row from the counters of all reads and writes. The duration is from time 0 to the
    /// end of the last operation. All other values are unknown.
    pub fn new(job: &str, storage: &str, counters: &ReadCounters) -> ResultRow {
        let row = ResultRow {
            job: job.to_owned(),
            storage: storage.to_owned(),
            page_cache: None,
            readahead: None,
            swapin: None,
            scheduler: None,
            raw: None,
            engine: None,
            bytes: counters.bytes,
            seconds: 0.0,
            mib_per_s: None,
            runs_mib_per_s: None,
            iops: None,
            latency_us: counters.latency(),
            device_requests: None,
            device_bytes: None,
            device_request_kib_mean: None,
            device_depth_mean: None,
            device_depth_max: None,
            amplification: None,
            coverage: None,
            waste_bytes: None,
            cpu_seconds: None,
            host_seconds: None,
            errors: counters.errors,
            first_error: None,
            decisions: None,
            note: None,
            sections: Vec::new(),
            streams: Vec::new(),
            jain_index: None,
        };
        row.without_time(Time::ZERO, counters)
    }

    /// Takes the time of dropped operations, as of a ramp time, out of the duration and the rates.
    /// `counters` are the ones of the row.
    pub(crate) fn without_time(mut self, dropped: Time, counters: &ReadCounters) -> ResultRow {
        self.seconds = counters.last.since(dropped).seconds();
        self.mib_per_s = per_second(mib(counters.bytes), self.seconds);
        self.iops = per_second(counters.operations as f64, self.seconds);
        self
    }

    /// Sets the figures of the device and the page cache from the counters of the machine and its
    /// cache. Ratios without a divisor, such as of a run without reads, are `None`.
    pub fn with_meter(mut self, meter: &Meter, cache: &CacheCounters) -> ResultRow {
        let requests = meter.device_reads + meter.device_writes;
        let bytes = meter.device_read_bytes + meter.device_write_bytes;
        self.device_requests = Some(requests);
        self.device_bytes = Some(bytes);
        self.device_request_kib_mean = ratio(bytes as f64 / 1024.0, requests as f64);
        // The meter has thousandths of a request.
        self.device_depth_mean = meter.depth_mean_milli().map(|milli| milli as f64 / 1e3);
        self.device_depth_max = (requests > 0).then_some(meter.depth_max);
        self.amplification = ratio(meter.device_read_bytes as f64, meter.requested_bytes as f64);
        self.coverage = ratio(meter.hit_bytes as f64, meter.requested_bytes as f64);
        self.waste_bytes = Some(cache.unused_pages() * PAGE_BYTES);
        self
    }
}

/// Converts bytes to MiB.
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Divides an amount by a duration. Returns `None` for a duration of 0.
fn per_second(amount: f64, seconds: f64) -> Option<f64> {
    ratio(amount, seconds)
}

/// Divides two numbers. Returns `None` if the divisor is not positive.
pub fn ratio(amount: f64, divisor: f64) -> Option<f64> {
    (divisor > 0.0).then(|| amount / divisor)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 operations of 1 MiB and 10 ms follow each other in one second.
    #[test]
    fn rates_are_per_second_and_latencies_in_microseconds() {
        let mut read_counters = ReadCounters::default();
        for nth in 0..100 {
            let issued = Time::from_ms(10 * nth);
            read_counters.record(issued, issued + Time::from_ms(10), 1 << 20);
        }
        let row = ResultRow::new("job", "hdd", &read_counters);
        assert_eq!(row.seconds, 1.0);
        assert_eq!(row.mib_per_s, Some(100.0));
        assert_eq!(row.iops, Some(100.0));
        let p50 = row.latency_us.p50.unwrap();
        assert!((9_990.0..=10_010.0).contains(&p50), "{p50}");
    }

    /// The latencies pass through a histogram with an error of up to 0.1 %. The bounds allow 0.3 %
    /// of 12,345 µs, which is 37 µs.
    #[test]
    fn latencies_survive_transfer_to_another_process() {
        let mut read_counters = ReadCounters::default();
        for us in [100, 100, 100, 12_345] {
            read_counters.record(Time::ZERO, Time::from_us(us), 4096);
        }
        let mut other = ReadCounters::default();
        read_counters
            .latencies()
            .into_iter()
            .for_each(|(ns, count)| other.record_latencies(ns, count));
        assert_eq!((other.operations, other.latency()), (4, read_counters.latency()));
        let max = other.latency().max.unwrap();
        assert!((12_310.0..=12_380.0).contains(&max), "{max}");
    }

    /// A histogram of three digits has 1,000,741 ns in a bucket that ends at 1,000,959 ns.
    #[test]
    fn maximum_latency_is_exact_and_no_quantile_exceeds_it() {
        let mut read_counters = ReadCounters::default();
        for ns in [900_000, 1_000_741] {
            read_counters.record(Time::ZERO, Time(ns), 4096);
        }
        let expected = (Some(1000.741), Some(1000.741));
        let mut other = ReadCounters::default();
        let latencies = read_counters.latencies();
        latencies.into_iter().for_each(|(ns, count)| other.record_latencies(ns, count));
        for counters in [&read_counters, &other] {
            let latency = counters.latency();
            assert_eq!((latency.p99, latency.max), expected);
        }
        let mut sum = ReadCounters::default();
        sum.add(&read_counters);
        let latencies = DirectionResults::of(&sum).latency_ns;
        assert_eq!((latencies.max, latencies.percentiles.last()), (1_000_741, Some(&1_000_741)));
    }

    /// Counters without any operation or request: there is nothing to divide by.
    #[test]
    fn unmeasured_values_are_null() {
        let row = ResultRow::new("job", "hdd", &ReadCounters::default());
        assert_eq!((row.mib_per_s, row.latency_us.max), (None, None));
        let row = row.with_meter(&Meter::default(), &CacheCounters::default());
        assert_eq!((row.amplification, row.device_depth_max), (None, None));
    }
}
