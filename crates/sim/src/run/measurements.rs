//! Results of a run, and their row.

use super::{RunningJob, RunningProcess};
use crate::job::JobFile;
use crate::report::{
    ProcessShare, ReadCounters, ResultRow, SectionRow, dropped_time, jain_index, stream_rows,
};
use crate::workload::{Lateness, SearchedDepth};

/// Results of the operations of a run.
#[derive(Debug)]
pub struct RunMeasurements {
    /// All operations.
    pub total: ReadCounters,
    /// Reads and writes of each job, in the order of the job file.
    pub jobs: Vec<[ReadCounters; 2]>,
    /// Results per process, in the order of the jobs.
    pub streams: Vec<ProcessShare>,
    /// First error, as text.
    pub first_error: Option<String>,
    /// True if the caller stopped the run early.
    pub is_interrupted: bool,
    /// Delays of a trace's operations behind their recorded times.
    pub trace_lateness: Lateness,
    /// State of each job's search for a queue depth (`latency_target`), of its first process with
    /// one.
    pub searched_depths: Vec<Option<SearchedDepth>>,
    /// Number of each job's syncs (`fsync`).
    pub fsyncs: Vec<u64>,
}

impl RunningJob<'_> {
    /// Sums up the results of all processes. Only the observer stops a run early, so that a stopped
    /// one counts as interrupted.
    pub(super) fn into_measurements(mut self) -> RunMeasurements {
        self.add_unmeasured();
        let mut total = ReadCounters::default();
        self.jobs.iter().flatten().for_each(|read_counters| total.add(read_counters));
        let mut trace_lateness = Lateness::default();
        let mut searched_depths = vec![None; self.jobs.len()];
        let mut fsyncs = vec![0; self.jobs.len()];
        for RunningProcess { process, .. } in &self.processes {
            trace_lateness.join(process.lateness());
            fsyncs[process.job()] += process.fsyncs();
            searched_depths[process.job()] =
                searched_depths[process.job()].or(process.searched_depth());
        }
        RunMeasurements {
            total,
            jobs: self.jobs,
            streams: self.processes.iter().map(|running| running.share).collect(),
            first_error: self.first_error,
            is_interrupted: self.is_stopping,
            trace_lateness,
            searched_depths,
            fsyncs,
        }
    }
}

impl RunMeasurements {
    /// Builds the row of the run, as far as it depends on its operations. `name` is the job's
    /// name in the row, and `storage` the device as the user named it.
    pub fn row(&self, name: &str, storage: &str, job_file: &JobFile) -> ResultRow {
        let row = ResultRow::new(name, storage, &self.total);
        let mut row = row.without_time(dropped_time(&self.streams), &self.total);
        row.first_error = self.first_error.clone();
        row.note = self.is_interrupted.then(|| "interrupted before its end".to_owned());
        let Lateness { operations, longest_delay } = self.trace_lateness;
        // The note of an interrupted run omits the delays.
        if row.note.is_none() && operations > 0 {
            let seconds = longest_delay.seconds();
            row.note = Some(format!(
                "{operations} requests went out up to {seconds:.3} s after their time, from which on \
                 their latency counts"
            ));
        }
        row.engine = Some(job_file.engine_names());
        // In the simulation buffered and mapped operations both use the machine's own page
        // cache.
        row.page_cache = job_file.page_cache("own", "own");
        row.sections = job_file
            .jobs
            .iter()
            .zip(&self.jobs)
            .map(|(job, counters)| ReadCounters::section(counters, &job.name, job.processes))
            .collect();
        let searches = job_file.jobs.iter().zip(&self.searched_depths);
        for (section, (job, depth)) in row.sections.iter_mut().zip(searches) {
            section.latency_depth = depth.and_then(SearchedDepth::found);
            (section.searched_depth, section.latency_target) = (*depth, job.latency_target);
        }
        for (section, fsyncs) in row.sections.iter_mut().zip(&self.fsyncs) {
            section.fsyncs = *fsyncs;
        }
        // The depth is the result of a search, so the table has it too.
        let depth_of = |section: &SectionRow| {
            let depth = section.searched_depth?;
            Some(format!("latency_target of `{}`: {depth}", section.name))
        };
        let notes = row.note.take().into_iter().chain(row.sections.iter().filter_map(depth_of));
        row.note = notes.reduce(|first, second| format!("{first}; {second}"));
        row.streams = stream_rows(&self.streams, job_file);
        row.jain_index = jain_index(&self.streams);
        row
    }
}
