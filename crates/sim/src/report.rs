//! What a run measured: one row of the table.
//!
//! The keys are the command's JSON contract. A value that was not measured is
//! `None` (`null`), never 0.

use hdrhistogram::Histogram;
use readpath_core::cache::CacheCounters;
use readpath_core::machine::Meter;
use readpath_core::unit::{PAGE_BYTES, Time};
use serde::Serialize;

mod direction;
mod fairness;

pub use direction::{DirectionResults, PERCENTILES, Statistics};
pub use fairness::{ProcessRow, ProcessShare, jain_index, stream_rows};

/// One run: one job on one storage under one set of laws.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResultRow {
    /// The job file's name without its folder and extension.
    pub job: String,
    /// The storage, as it was named.
    pub storage: String,
    /// The readahead law, or what the kernel did in its place.
    pub readahead: Option<String>,
    /// The swap-in law; null for file reads.
    pub swapin: Option<String>,
    /// The scheduler, or the kernel's own by name.
    pub scheduler: Option<String>,
    /// How the transfers of raw jobs were cut; null where there are none.
    pub raw: Option<String>,
    /// How the operations were carried out, e.g. `psync`, `io_uring direct`.
    pub engine: Option<String>,
    /// Bytes that the job's operations moved.
    pub bytes: u64,
    /// From the start of the run to its last completion.
    pub seconds: f64,
    /// `bytes` per second, in MiB.
    pub mib_per_s: Option<f64>,
    /// Operations per second.
    pub iops: Option<f64>,
    /// From the issue of an operation to its end.
    pub latency_us: LatencySummary,
    /// Requests that the device was given.
    pub device_requests: Option<u64>,
    /// Bytes that the device was asked for.
    pub device_bytes: Option<u64>,
    /// `device_bytes` per request, in KiB.
    pub device_request_kib_mean: Option<f64>,
    /// Requests in the device while it had any, mean over time.
    pub device_depth_mean: Option<f64>,
    /// The most requests in the device at once.
    pub device_depth_max: Option<u32>,
    /// Bytes read from the device ÷ bytes that reads asked for.
    pub amplification: Option<f64>,
    /// Asked bytes that were in the cache when they were asked for ÷ asked bytes.
    pub coverage: Option<f64>,
    /// Bytes read ahead that left the cache, or stood in it at the end, without having been used.
    pub waste_bytes: Option<u64>,
    /// User and system time of the process; real runs only.
    pub cpu_seconds: Option<f64>,
    /// Processor time that the modelled host was charged with; modelled runs only.
    pub host_seconds: Option<f64>,
    /// Operations that ended with an error.
    pub errors: u64,
    /// The first error, in words.
    pub first_error: Option<String>,
    /// A hash of every decision of the run; modelled runs only.
    pub decisions: Option<String>,
    /// Anything that a reader of the row must know.
    pub note: Option<String>,
    /// The same per job section, in the order of the file.
    pub sections: Vec<SectionRow>,
    /// What each process got, in the order of the sections.
    pub streams: Vec<ProcessRow>,
    /// How evenly the processes were served: Jain's index of their rates, from 1
    /// ÷ their number (one got everything) to 1; null where none compete.
    pub jain_index: Option<f64>,
}

/// One job section of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SectionRow {
    /// The section's name.
    pub name: String,
    /// How many processes it had.
    pub processes: u32,
    /// Bytes moved.
    pub bytes: u64,
    /// From its first process's start to its last completion.
    pub seconds: f64,
    /// `bytes` per second, in MiB.
    pub mib_per_s: Option<f64>,
    /// Operations per second.
    pub iops: Option<f64>,
    /// From the issue of an operation to its end.
    pub latency_us: LatencySummary,
    /// Its reads and its writes in detail; not in the document.
    #[serde(skip)]
    pub directions: [DirectionResults; 2],
}

/// Latencies in microseconds; null when no operation ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencySummary {
    /// The median.
    pub p50: Option<f64>,
    /// The 99th percentile.
    pub p99: Option<f64>,
    /// The largest.
    pub max: Option<f64>,
}

/// What was counted of a set of operations. Memory does not grow with their number.
#[derive(Clone, Debug)]
pub struct ReadCounters {
    /// Bytes moved.
    pub bytes: u64,
    /// Operations that ended well.
    pub operations: u64,
    /// Operations that ended with an error.
    pub errors: u64,
    /// When the first operation was issued.
    pub first: Option<Time>,
    /// When the last one ended.
    pub last: Time,
    latency_ns: Histogram<u64>,
}

impl Default for ReadCounters {
    fn default() -> ReadCounters {
        ReadCounters {
            bytes: 0,
            operations: 0,
            errors: 0,
            first: None,
            last: Time::ZERO,
            // Up to an hour, to three digits (an error of at most 0.1 %), in 0.3 MiB.
            latency_ns: Histogram::new_with_bounds(1, 3_600_000_000_000, 3)
                .expect("these bounds and 3 digits are what it takes"),
        }
    }
}

impl ReadCounters {
    /// An operation that was issued at `issued` ended at `ended`, with so many bytes.
    pub fn record(&mut self, issued: Time, ended: Time, bytes: u64) {
        self.reach(issued, ended);
        self.bytes += bytes;
        self.operations += 1;
        self.latency_ns.saturating_record(ended.since(issued).ns().max(1));
    }

    /// An operation ended with an error.
    pub fn record_error(&mut self, issued: Time, ended: Time) {
        self.reach(issued, ended);
        self.errors += 1;
    }

    /// What was moved before is on the medium at `at`: the work ends no earlier.
    pub fn record_sync(&mut self, at: Time) {
        self.last = self.last.max(at);
    }

    fn reach(&mut self, issued: Time, ended: Time) {
        self.first = Some(self.first.map_or(issued, |first| first.min(issued)));
        self.last = self.last.max(ended);
    }

    /// How many operations took how many nanoseconds, each to the three digits that are kept:
    /// what [`ReadCounters::record_latencies`] takes in another process.
    pub fn latencies(&self) -> Vec<(u64, u64)> {
        let recorded = self.latency_ns.iter_recorded();
        recorded.map(|value| (value.value_iterated_to(), value.count_at_value())).collect()
    }

    /// So many more operations ended well, each after so many nanoseconds.
    pub fn record_latencies(&mut self, ns: u64, operations: u64) {
        self.operations += operations;
        self.latency_ns.saturating_record_n(ns.max(1), operations);
    }

    /// Takes another tally's operations in.
    pub fn add(&mut self, other: &ReadCounters) {
        self.bytes += other.bytes;
        self.operations += other.operations;
        self.errors += other.errors;
        self.first = match (self.first, other.first) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
        self.last = self.last.max(other.last);
        self.latency_ns.add(&other.latency_ns).expect("both have the same bounds");
    }

    /// The latencies in microseconds.
    pub fn latency(&self) -> LatencySummary {
        if self.latency_ns.is_empty() {
            return LatencySummary::default();
        }
        let us = |ns: u64| Some(ns as f64 / 1e3);
        LatencySummary {
            p50: us(self.latency_ns.value_at_quantile(0.5)),
            p99: us(self.latency_ns.value_at_quantile(0.99)),
            max: us(self.latency_ns.max()),
        }
    }

    /// The row of a section of which these are the reads and the writes, and what both are together.
    pub fn section(tallies: &[ReadCounters; 2], name: &str, processes: u32) -> SectionRow {
        let mut both = tallies[0].clone();
        both.add(&tallies[1]);
        let directions = [DirectionResults::of(&tallies[0]), DirectionResults::of(&tallies[1])];
        SectionRow { directions, ..both.section_of_both(name, processes) }
    }

    fn section_of_both(&self, name: &str, processes: u32) -> SectionRow {
        let seconds = self.last.since(self.first.unwrap_or(self.last)).seconds();
        SectionRow {
            name: name.to_owned(),
            processes,
            bytes: self.bytes,
            seconds,
            mib_per_s: per_second(mib(self.bytes), seconds),
            iops: per_second(self.operations as f64, seconds),
            latency_us: self.latency(),
            directions: Default::default(),
        }
    }
}

impl ResultRow {
    /// The row of a run of which only the operations are known so far.
    pub fn new(job: &str, storage: &str, read_counters: &ReadCounters) -> ResultRow {
        let seconds = read_counters.last.seconds();
        ResultRow {
            job: job.to_owned(),
            storage: storage.to_owned(),
            readahead: None,
            swapin: None,
            scheduler: None,
            raw: None,
            engine: None,
            bytes: read_counters.bytes,
            seconds,
            mib_per_s: per_second(mib(read_counters.bytes), seconds),
            iops: per_second(read_counters.operations as f64, seconds),
            latency_us: read_counters.latency(),
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
            errors: read_counters.errors,
            first_error: None,
            decisions: None,
            note: None,
            sections: Vec::new(),
            streams: Vec::new(),
            jain_index: None,
        }
    }

    /// Adds what the machine and its cache have counted.
    pub fn with_meter(mut self, meter: &Meter, cache: &CacheCounters) -> ResultRow {
        let requests = meter.device_reads + meter.device_writes;
        let bytes = meter.device_read_bytes + meter.device_write_bytes;
        self.device_requests = Some(requests);
        self.device_bytes = Some(bytes);
        self.device_request_kib_mean = ratio(bytes as f64 / 1024.0, requests as f64);
        self.device_depth_mean = meter.depth_mean_milli().map(|milli| milli as f64 / 1e3);
        self.device_depth_max = (requests > 0).then_some(meter.depth_max);
        self.amplification = ratio(meter.device_read_bytes as f64, meter.asked_bytes as f64);
        self.coverage = ratio(meter.hit_bytes as f64, meter.asked_bytes as f64);
        self.waste_bytes = Some(cache.unused_pages() * PAGE_BYTES);
        self
    }
}

pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn per_second(amount: f64, seconds: f64) -> Option<f64> {
    ratio(amount, seconds)
}

/// None where there is nothing to divide by.
pub(crate) fn ratio(amount: f64, per: f64) -> Option<f64> {
    (per > 0.0).then(|| amount / per)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_bytes_and_operations_per_second_and_latencies_are_in_microseconds() {
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

    /// 0.3 % of 12.345 ms would be 37 µs.
    #[test]
    fn latencies_survive_the_way_to_another_process() {
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

    #[test]
    fn what_was_not_measured_is_null() {
        let row = ResultRow::new("job", "hdd", &ReadCounters::default());
        assert_eq!((row.mib_per_s, row.latency_us.max), (None, None));
        let row = row.with_meter(&Meter::default(), &CacheCounters::default());
        assert_eq!((row.amplification, row.device_depth_max), (None, None));
    }
}
