//! Fairness among the processes of a job.
//!
//! A process is counted in a few words, without a histogram, so thousands of processes are cheap.
//! Its rate refers to its own time, from its first operation to its last completion. Among
//! processes with equal amounts, one that finishes early was served faster. Jain's index is (Σ
//! rate)² ÷ (n · Σ rate²). It is 1 if all rates are equal and 1/n if one process has everything
//! (Jain, Chiu and Hawe 1984).

use readpath_core::unit::Time;
use serde::Serialize;

use super::{ReadCounters, mib, ratio};
use crate::job::JobFile;
use crate::workload::Process;

/// Counters of one process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessShare {
    /// Index of its job in the job file.
    pub job: usize,
    /// Index of the process within the job, from 0.
    pub process_index: u32,
    /// Phase of the process. Processes of different phases do not run concurrently.
    pub phase: u32,
    /// Bytes transferred.
    pub bytes: u64,
    /// Issue time of its first operation.
    pub first: Option<Time>,
    /// End of its last operation.
    pub last: Time,
    /// Maximum latency from issue to end of an operation.
    pub latency_max: Option<Time>,
    /// Issue time of its first operation that was dropped: of a ramp time (`ramp_time`) or of a
    /// search for a queue depth. `None` if all operations count.
    pub dropped_from: Option<Time>,
}

impl ProcessShare {
    /// Creates the counters of a process without operations.
    pub fn new(process: &Process) -> ProcessShare {
        ProcessShare {
            job: process.job(),
            process_index: process.clone_index(),
            phase: process.phase(),
            bytes: 0,
            first: None,
            last: Time::ZERO,
            latency_max: None,
            dropped_from: None,
        }
    }

    /// Records a successful operation with issue time, end time and size.
    pub fn record(&mut self, issued: Time, ended: Time, bytes: u64) {
        self.extend_period(issued, ended);
        self.bytes += bytes;
        self.latency_max = self.latency_max.max(Some(ended.since(issued)));
    }

    /// Records a failed operation, which counts for the period only.
    pub fn record_error(&mut self, issued: Time, ended: Time) {
        self.extend_period(issued, ended);
    }

    /// Extends the covered period by an operation: from its issue time to its end time.
    fn extend_period(&mut self, issued: Time, ended: Time) {
        self.first = Some(self.first.map_or(issued, |first| first.min(issued)));
        self.last = self.last.max(ended);
    }

    /// Records that earlier writes are durable at time `end`, which extends the duration of the
    /// work.
    pub fn record_sync(&mut self, end: Time) {
        self.last = self.last.max(end);
    }

    /// Replaces the counters by others of the same process, which were counted where the
    /// process ran.
    pub fn with_tally(self, read_counters: &ReadCounters) -> ProcessShare {
        let latency_max =
            (read_counters.operations > 0).then_some(Time(read_counters.latency_max_ns));
        ProcessShare {
            bytes: read_counters.bytes,
            first: read_counters.first,
            last: read_counters.last,
            latency_max,
            ..self
        }
    }

    /// Bytes per second over the process's own time, or 0 if that time is 0.
    fn bytes_per_s(&self) -> f64 {
        let seconds = self.last.since(self.first.unwrap_or(self.last)).seconds();
        ratio(self.bytes as f64, seconds).unwrap_or(0.0)
    }
}

/// Returns the time of a run in which a process performs operations that are dropped, and no
/// process performs operations that count.
pub fn dropped_time(streams: &[ProcessShare]) -> Time {
    // Each period of a process: start, end, and true if its operations count.
    let periods = streams.iter().filter_map(|stream| {
        let first = stream.first?;
        let dropped = (stream.dropped_from.unwrap_or(first), first, false);
        Some([dropped, (first, stream.last, true)])
    });
    // The number of dropped and of counted periods changes by 1 at each start and each end.
    let mut changes: Vec<(Time, bool, i64)> = periods
        .flatten()
        .flat_map(|(start, end, counts)| [(start, counts, 1), (end, counts, -1)])
        .collect();
    changes.sort_unstable();
    let (mut dropped, mut since) = (Time::ZERO, Time::ZERO);
    let mut running = [0, 0];
    for (time, counts, change) in changes {
        if running[0] > 0 && running[1] == 0 {
            dropped += time.since(since);
        }
        since = time;
        running[usize::from(counts)] += change;
    }
    dropped
}

/// Reported results of one process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessRow {
    /// Name of the section.
    pub name: String,
    /// Index of the process within the section, from 0.
    pub process: u32,
    /// Bytes transferred.
    pub bytes: u64,
    /// MiB per second, from its first operation to its last completion.
    pub mib_per_s: f64,
    /// The rate divided by the sum of all rates. Null if that sum is 0.
    pub share: Option<f64>,
    /// Maximum latency from issue to end of an operation. Null without successful operations.
    pub latency_us_max: Option<f64>,
}

/// Returns the rows of all processes. A share refers to all of them, also of other phases.
pub fn stream_rows(streams: &[ProcessShare], job_file: &JobFile) -> Vec<ProcessRow> {
    let total_rate: f64 = streams.iter().map(ProcessShare::bytes_per_s).sum();
    // `mib(1)` is the size of a byte in MiB.
    let row = |stream: &ProcessShare| ProcessRow {
        name: job_file.jobs[stream.job].name.clone(),
        process: stream.process_index,
        bytes: stream.bytes,
        mib_per_s: mib(1) * stream.bytes_per_s(),
        share: ratio(stream.bytes_per_s(), total_rate),
        latency_us_max: stream.latency_max.map(|latency| latency.ns() as f64 / 1e3),
    };
    streams.iter().map(row).collect()
}

/// Returns Jain's index of the rates of concurrent processes: of the only phase with two or more.
/// Returns `None` without such a phase, with several, and if all rates are 0.
pub fn jain_index(streams: &[ProcessShare]) -> Option<f64> {
    // The processes are in order of their phases.
    let phases = streams.chunk_by(|one, other| one.phase == other.phase);
    let mut concurrent = phases.filter(|phase| phase.len() >= 2);
    let (Some(phase), None) = (concurrent.next(), concurrent.next()) else { return None };
    let sum: f64 = phase.iter().map(ProcessShare::bytes_per_s).sum();
    let squares: f64 = phase.iter().map(|stream| stream.bytes_per_s().powi(2)).sum();
    ratio(sum * sum, phase.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a process that read `mib` MiB in the second from `start_s` on.
    fn stream(start_s: u64, mib: u64) -> ProcessShare {
        let mut stream = ProcessShare {
            job: 0,
            process_index: 0,
            phase: 0,
            bytes: 0,
            first: None,
            last: Time::ZERO,
            latency_max: None,
            dropped_from: None,
        };
        if mib > 0 {
            let issued = Time::from_s(start_s);
            stream.record(issued, issued + Time::from_s(1), mib << 20);
        }
        stream
    }

    #[test]
    fn jains_index_is_1_for_equal_shares_and_1_over_n_for_a_monopoly() {
        assert_eq!(jain_index(&[stream(0, 5), stream(3, 5), stream(9, 5)]), Some(1.0));
        let monopoly = [stream(0, 8), stream(0, 0), stream(0, 0), stream(0, 0)];
        assert_eq!(jain_index(&monopoly), Some(0.25));
        // By hand: (1 + 3)² ÷ (2 · (1 + 9)).
        let uneven = jain_index(&[stream(0, 1), stream(0, 3)]).unwrap();
        assert!((uneven - 0.8).abs() < 1e-12, "{uneven}");
    }

    /// A single process, processes without data, and processes of different phases.
    #[test]
    fn fairness_index_is_none_without_two_competing_processes() {
        assert_eq!(jain_index(&[stream(0, 5)]), None);
        assert_eq!(jain_index(&[stream(0, 0), stream(0, 0)]), None);
        let later = |mib| ProcessShare { phase: 1, ..stream(5, mib) };
        assert_eq!(jain_index(&[stream(0, 5), later(5)]), None);
        // One phase of concurrent processes has an index, and two have none together.
        assert_eq!(jain_index(&[stream(0, 5), stream(0, 5), later(3)]), Some(1.0));
        assert_eq!(jain_index(&[stream(0, 5), stream(0, 5), later(3), later(3)]), None);
    }

    /// By hand: 0 to 2 s, less the second that the other one reads, and 7 to 10 s of a later phase.
    /// A process without measured operations, as in a run that was stopped, drops no time.
    #[test]
    fn dropped_time_is_the_time_without_counted_operations() {
        let dropping = |from_s, start_s| ProcessShare {
            dropped_from: Some(Time::from_s(from_s)),
            ..stream(start_s, 1)
        };
        assert_eq!(dropped_time(&[stream(3, 1), stream(5, 1)]), Time::ZERO);
        let streams = [dropping(0, 2), stream(1, 1), dropping(7, 10), dropping(8, 10)];
        assert_eq!(dropped_time(&streams), Time::from_s(4));
        assert_eq!(dropped_time(&[stream(0, 0)]), Time::ZERO);
    }

    /// The slow process moves 1 MiB in each of two seconds, and an operation that fails ends at 4
    /// s: 2 MiB in 4 s. The fast one moves 2 MiB in 1 s. The longest successful operation takes 1
    /// s.
    #[test]
    fn process_rows_report_rate_share_and_longest_wait() {
        let job = JobFile::parse("[a]\nrw=read\nsize=1m\nnumjobs=2\n").unwrap();
        let mut slow = stream(0, 1);
        slow.record(Time::from_s(1), Time::from_s(2), 1 << 20);
        slow.record_error(Time::from_s(2), Time::from_s(4));
        let rows = stream_rows(&[slow, stream(0, 2)], &job);
        let [slow, fast] = &rows[..] else { panic!("two rows") };
        assert_eq!((slow.mib_per_s, fast.mib_per_s), (0.5, 2.0));
        assert_eq!((slow.share, fast.share), (Some(0.2), Some(0.8)));
        assert_eq!(slow.latency_us_max, Some(1e6));
    }
}
