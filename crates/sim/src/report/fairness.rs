//! How evenly the processes of a run were served.
//!
//! A process is tallied in a few words, without a histogram, so that thousands
//! of them cost nothing. Its rate is over its own time, from its first operation
//! to its last completion: of processes that all read as much, one that was done
//! early was served faster. Jain's index is (Σ rate)² ÷ (n · Σ rate²): 1 when
//! all are equal, 1/n when one has everything (Jain, Chiu and Hawe 1984).

use readpath_core::unit::Time;
use serde::Serialize;

use super::{ReadCounters, mib, ratio};
use crate::job::JobFile;
use crate::workload::Process;

/// What was counted of one process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessShare {
    /// Its job: the place in the job file.
    pub job: usize,
    /// Which of the job's processes it is, from 0.
    pub clone: u32,
    /// Processes of different phases do not run side by side.
    pub phase: u32,
    /// Bytes moved.
    pub bytes: u64,
    /// When its first operation was issued.
    pub first: Option<Time>,
    /// When its last one ended.
    pub last: Time,
    /// The longest from the issue of an operation to its end.
    pub latency_max: Option<Time>,
}

impl ProcessShare {
    /// A process that has done nothing yet.
    pub fn new(process: &Process) -> ProcessShare {
        ProcessShare {
            job: process.job(),
            clone: process.clone_index(),
            phase: process.phase(),
            bytes: 0,
            first: None,
            last: Time::ZERO,
            latency_max: None,
        }
    }

    /// An operation that was issued at `issued` ended at `ended`, well, with so many bytes.
    pub fn record(&mut self, issued: Time, ended: Time, bytes: u64) {
        self.record_error(issued, ended);
        self.bytes += bytes;
        self.latency_max = self.latency_max.max(Some(ended.since(issued)));
    }

    /// An operation ended with an error.
    pub fn record_error(&mut self, issued: Time, ended: Time) {
        self.first = Some(self.first.map_or(issued, |first| first.min(issued)));
        self.last = self.last.max(ended);
    }

    /// What was moved before is on the medium at `at`: the work ends no earlier.
    pub fn record_sync(&mut self, at: Time) {
        self.last = self.last.max(at);
    }

    /// Takes in all that was tallied of the process elsewhere.
    pub fn with_tally(self, read_counters: &ReadCounters) -> ProcessShare {
        let latency_max =
            (read_counters.operations > 0).then(|| Time(read_counters.latency_ns.max()));
        ProcessShare {
            bytes: read_counters.bytes,
            first: read_counters.first,
            last: read_counters.last,
            latency_max,
            ..self
        }
    }

    /// Bytes a second while it ran; 0 when it got nothing.
    fn rate(&self) -> f64 {
        let seconds = self.last.since(self.first.unwrap_or(self.last)).seconds();
        ratio(self.bytes as f64, seconds).unwrap_or(0.0)
    }
}

/// One process of a run, as it is reported.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessRow {
    /// The section's name.
    pub name: String,
    /// Which of the section's processes it is, from 0.
    pub process: u32,
    /// Bytes moved.
    pub bytes: u64,
    /// Its MiB per second, from its first operation to its last completion.
    pub mib_per_s: f64,
    /// That rate ÷ the sum of all processes' rates; null when nobody got anything.
    pub share: Option<f64>,
    /// The longest from the issue of an operation to its end; null when none ended well.
    pub latency_us_max: Option<f64>,
}

/// The rows of all processes.
pub fn stream_rows(streams: &[ProcessShare], job_file: &JobFile) -> Vec<ProcessRow> {
    let sum: f64 = streams.iter().map(ProcessShare::rate).sum();
    let row = |stream: &ProcessShare| ProcessRow {
        name: job_file.jobs[stream.job].name.clone(),
        process: stream.clone,
        bytes: stream.bytes,
        mib_per_s: mib(1) * stream.rate(),
        share: ratio(stream.rate(), sum),
        latency_us_max: stream.latency_max.map(|latency| latency.ns() as f64 / 1e3),
    };
    streams.iter().map(row).collect()
}

/// Jain's index of the processes' rates; `None` for fewer than two, for
/// processes that do not run side by side, and when nobody got anything.
pub fn jain_index(streams: &[ProcessShare]) -> Option<f64> {
    let phase = streams.first()?.phase;
    if streams.len() < 2 || streams.iter().any(|stream| stream.phase != phase) {
        return None;
    }
    let sum: f64 = streams.iter().map(ProcessShare::rate).sum();
    let squares: f64 = streams.iter().map(|stream| stream.rate().powi(2)).sum();
    ratio(sum * sum, streams.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that read so many MiB in the second from `start_s` on.
    fn stream(start_s: u64, mib: u64) -> ProcessShare {
        let (job, clone, phase, latency_max) = (0, 0, 0, None);
        let (first, last) = (None, Time::ZERO);
        let mut stream = ProcessShare { job, clone, phase, bytes: 0, first, last, latency_max };
        if mib > 0 {
            let issued = Time::from_s(start_s);
            stream.record(issued, issued + Time::from_s(1), mib << 20);
        }
        stream
    }

    fn index(streams: &[ProcessShare]) -> Option<f64> {
        jain_index(streams)
    }

    #[test]
    fn jains_index_is_one_for_equals_and_a_share_for_one_that_has_everything() {
        assert_eq!(index(&[stream(0, 5), stream(3, 5), stream(9, 5)]), Some(1.0));
        assert_eq!(index(&[stream(0, 8), stream(0, 0), stream(0, 0), stream(0, 0)]), Some(0.25));
        // (1 + 3)² ÷ (2 · (1 + 9)), by hand.
        let uneven = index(&[stream(0, 1), stream(0, 3)]).unwrap();
        assert!((uneven - 0.8).abs() < 1e-12, "{uneven}");
    }

    #[test]
    fn there_is_no_index_of_one_of_nobody_and_of_those_who_do_not_compete() {
        assert_eq!(index(&[stream(0, 5)]), None);
        assert_eq!(index(&[stream(0, 0), stream(0, 0)]), None);
        assert_eq!(index(&[stream(0, 5), ProcessShare { phase: 1, ..stream(5, 5) }]), None);
    }

    #[test]
    fn a_stream_is_told_with_its_rate_its_share_and_its_worst_wait() {
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
