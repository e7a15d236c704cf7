//! Processes of a job on real storage: one thread each, phase after phase.
//!
//! A *phase* contains the processes that start when all processes of earlier phases have ended.
use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use readpath_core::request::Op;
use readpath_core::unit::Time;
use readpath_eval::clock::Clock;
use readpath_sim::report::{ProcessShare, ReadCounters, ResultRow};
use readpath_sim::run::{Progress, RunMeasurements};
use readpath_sim::workload::{Lateness, Process, ProcessOperation, SearchedDepth, Workload};

use super::start::PhaseStart;

use crate::decision_log::DecisionFile;
use crate::exit::Failure;
use crate::operation_logs::OperationLogs;
use crate::plan::job::JobRun;
use crate::progress::RunProgress;

/// Measurements of one process.
#[derive(Debug, Default)]
pub struct ProcessFigures {
    /// Counters of the reads and of the writes.
    read_write_counters: [ReadCounters; 2],
    /// True once an operation in the measured time of the process has succeeded.
    is_measured: bool,
    /// Issue time of its first operation before that time, if the operations there were dropped.
    dropped_from: Option<Time>,
    /// State of its search for a queue depth.
    searched_depth: Option<SearchedDepth>,
    /// Number of syncs (`fsync`).
    fsyncs: u64,
    /// Message of the first failed operation or sync.
    first_error: Option<String>,
    /// Engine that executed the operations.
    engine: Option<&'static str>,
    /// Delays of operations that a trace replayed after their time.
    trace_lateness: Lateness,
    /// Requests of the process that bypass the read path, which counts its own.
    pub counted: RequestCounts,
}

/// Requests to the device, where they are counted, and the bytes in them.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestCounts {
    /// Number of reads and writes that the device received.
    pub requests: u64,
    /// Sum of their bytes, read and written.
    pub bytes: u64,
}

/// A process's view of its run, shared with the others of its phase.
pub struct ProcessesShared<'a> {
    /// File on which all files of the job are laid out.
    pub path: &'a Path,
    /// Start offset of each of them in that file.
    file_starts: &'a [u64],
    /// Start of the phase, for which its processes wait until all are prepared.
    phase_start: &'a PhaseStart,
    /// Bytes transferred so far by all processes.
    transferred_bytes: &'a AtomicU64,
    /// Returns true once the run was interrupted.
    pub is_stopping: &'a (dyn Fn() -> bool + Sync),
    /// True once this process has reported that its preparation is done.
    is_prepared: Cell<bool>,
}

impl ProcessesShared<'_> {
    /// Returns the offset of an operation in the file at `path`, which holds all files of the job.
    pub fn offset(&self, operation: ProcessOperation) -> u64 {
        self.file_starts[operation.file.0 as usize] + operation.offset
    }

    /// Reports that this process has its files and its memory, and waits until all processes of its
    /// phase have theirs. The clock of the run stands still until then.
    pub fn begin(&self) {
        self.is_prepared.set(true);
        self.phase_start.on_prepared();
        self.phase_start.wait_until_prepared();
    }

    /// Returns the clock of the run, which does not count preparation.
    ///
    /// # Panics
    /// The process has not begun.
    pub fn clock(&self) -> Clock {
        self.phase_start.clock().expect("a process that has begun")
    }

    /// Returns the time of the run, without preparation.
    pub fn now(&self) -> Time {
        self.clock().now()
    }
}

impl Drop for ProcessesShared<'_> {
    /// Reports the end of the process, also after a failure.
    fn drop(&mut self) {
        // A process that fails before it begins keeps no other one waiting.
        if !self.is_prepared.get() {
            self.phase_start.on_prepared();
        }
        self.phase_start.on_ended();
    }
}

/// Observers of a running row.
pub struct RunObservers<'a> {
    /// Shows the progress and returns an interrupt.
    pub bar: &'a RunProgress,
    /// Receives the decisions of the policies.
    pub decisions: Option<&'a DecisionFile>,
    /// Receive each operation.
    pub operations: &'a OperationLogs,
}

/// Function that runs a process, from its first operation to its last.
pub type RunProcess<'a> =
    dyn Fn(Process, &ProcessesShared<'_>) -> Result<ProcessFigures, Failure> + Sync + 'a;

impl ProcessFigures {
    /// Empty figures with the name of the engine.
    pub fn with_engine(engine: &'static str) -> ProcessFigures {
        ProcessFigures { engine: Some(engine), ..ProcessFigures::default() }
    }

    /// Records the end of an operation in the counters of its direction. An error counts as such,
    /// and the first message is kept.
    fn record(
        &mut self,
        operation: ProcessOperation,
        issued: Time,
        ended: Time,
        result: Result<(), String>,
        shared: &ProcessesShared<'_>,
    ) {
        match result {
            Ok(()) => {
                self.read_write_counters[operation.op as usize].record(
                    issued,
                    ended,
                    operation.bytes,
                );
                shared.transferred_bytes.fetch_add(operation.bytes, Ordering::Relaxed);
            }
            Err(error) => {
                self.read_write_counters[operation.op as usize].record_error(issued, ended);
                self.first_error.get_or_insert(error);
            }
        }
    }

    /// Reports a successful operation to the process. Records the operation in the counters, unless
    /// it succeeded in the warm-up or a search for a queue depth, and the process has a measured
    /// one. A failure counts there too.
    pub fn record_if_measured(
        &mut self,
        process: &mut Process,
        (operation, issued): (ProcessOperation, Time),
        ended: Time,
        result: Result<(), String>,
        shared: &ProcessesShared<'_>,
    ) {
        if result.is_ok() {
            process.record_latency(ended, issued, &operation, operation.bytes);
        }
        // The first measured operation ends the time before it, of which only the errors count.
        // Without one, as in a job shorter than its warm-up, all operations count, as in fio.
        let is_measured = process.is_measured(issued);
        if result.is_ok() && is_measured && !std::mem::replace(&mut self.is_measured, true) {
            let dropped = self.read_write_counters.iter().filter(|of| of.operations > 0);
            self.dropped_from = dropped.filter_map(|of| of.first).min();
            self.read_write_counters.iter_mut().for_each(ReadCounters::keep_errors_only);
        }
        if result.is_err() || is_measured || !self.is_measured {
            self.record(operation, issued, ended, result, shared);
        }
    }

    /// Adds the figures to the ones of the run, and keeps an earlier process's error. `stream` has
    /// the job of the process, and becomes its part in the fairness.
    fn add_to(self, measured: &mut RunMeasurements, stream: ProcessShare) {
        let mut both_directions = ReadCounters::default();
        let job = &mut measured.jobs[stream.job];
        for (job, read_counters) in job.iter_mut().zip(&self.read_write_counters) {
            job.add(read_counters);
            both_directions.add(read_counters);
        }
        measured.fsyncs[stream.job] += self.fsyncs;
        let searched_depth = &mut measured.searched_depths[stream.job];
        *searched_depth = searched_depth.or(self.searched_depth);
        let stream = ProcessShare { dropped_from: self.dropped_from, ..stream };
        measured.streams.push(stream.with_tally(&both_directions));
        measured.first_error = measured.first_error.take().or(self.first_error);
        measured.trace_lateness.join(self.trace_lateness);
    }

    /// Records the end of the process. If it missed the job's latency or rate limits, it counts one
    /// failed read.
    pub fn record_end(&mut self, process: &Process, now: Time) {
        self.trace_lateness = process.lateness();
        (self.searched_depth, self.fsyncs) = (process.searched_depth(), process.fsyncs());
        if let Some(failure) = process.failure() {
            // The failed read begins and ends now, and has no duration.
            self.read_write_counters[Op::Read as usize].record_error(now, now);
            self.first_error.get_or_insert_with(|| failure.to_owned());
        }
    }

    /// Records a sync that ended at `end`, which extends the duration of the writes, also if it
    /// failed. A failure counts as a failed write. The first error of the process is kept.
    pub fn record_sync(&mut self, end: Time, result: Result<(), String>) {
        let write_counters = &mut self.read_write_counters[Op::Write as usize];
        write_counters.record_sync(end);
        write_counters.errors += u64::from(result.is_err());
        let error = result.err().map(|error| format!("sync: {error}"));
        self.first_error = self.first_error.take().or(error);
    }
}

/// Measurements of all processes together.
pub struct RunFigures {
    /// Counters of the operations.
    pub measured: RunMeasurements,
    /// Names of the engines that executed the operations.
    pub engines: String,
    /// Requests of all processes that bypass the read path.
    pub counted: RequestCounts,
    /// Processor time in seconds of this process while its jobs ran, without their preparation.
    pub cpu_seconds: f64,
}

impl RunFigures {
    /// Returns the row of the run with the figures of its operations. The device's figures are
    /// empty.
    pub fn row(&self, run: &JobRun, storage: &str) -> ResultRow {
        self.measured.row(&run.name, storage, &run.jobs)
    }
}

/// Sets the device requests of a row, their `bytes`, and their mean size, which 0 requests lack.
pub fn set_device_requests(row: &mut ResultRow, requests: u64, bytes: u64) {
    row.device_requests = Some(requests);
    row.device_bytes = Some(bytes);
    if requests > 0 {
        row.device_request_kib_mean = Some(bytes as f64 / 1024.0 / requests as f64);
    }
}

/// Runs phase after phase. All processes of a phase run at the same time, and `poll_observer` is
/// called repeatedly. Returns the sums of all processes, or the first failure. After a failure the
/// other processes of the phase still run to their end, and no later phase begins. The time of a
/// phase continues the time of the one before, without its own preparation.
pub fn run_processes(
    run: &JobRun,
    path: &Path,
    mut workload: Workload,
    observers: &RunObservers<'_>,
    poll_observer: &mut dyn FnMut(),
    run_process: &RunProcess<'_>,
) -> Result<RunFigures, Failure> {
    let bar = observers.bar;
    observers.operations.attach(&run.jobs, &mut workload);
    let (file_starts, _end) = workload.contiguous_starts();
    let bytes_total = workload.bytes_planned();
    let is_stopping = || !bar.should_continue();
    let transferred_bytes = AtomicU64::new(0);
    let phase_shared = PhaseShared {
        path,
        file_starts: &file_starts,
        transferred_bytes: &transferred_bytes,
        is_stopping: &is_stopping,
    };
    // Time of the run at which the next phase begins, and processor time of the phases so far.
    let (mut time, mut cpu_seconds) = (Time::ZERO, 0.0);
    let job_count = run.jobs.jobs.len();
    let mut measured = RunMeasurements {
        total: ReadCounters::default(),
        jobs: vec![Default::default(); job_count],
        streams: Vec::new(),
        first_error: None,
        is_interrupted: false,
        trace_lateness: Lateness::default(),
        searched_depths: vec![None; job_count],
        fsyncs: vec![0; job_count],
    };
    let mut engines: Vec<String> = Vec::new();
    let mut counted = RequestCounts::default();
    let mut waiting = workload.processes;
    while let Some(phase) = waiting.first().map(Process::phase) {
        // The processes are in order of their phases.
        let later = waiting.split_off(waiting.partition_point(|next| next.phase() == phase));
        let phase_start = PhaseStart::new(waiting.len(), time);
        let mut report_progress = || {
            poll_observer();
            // The time stands still until the processes of the phase are prepared.
            let now = phase_start.clock().map_or(time, |clock| clock.now());
            let bytes = transferred_bytes.load(Ordering::Relaxed);
            bar.update(Progress { now, bytes, bytes_total });
        };
        let ended =
            run_phase(waiting, &phase_shared, &phase_start, run_process, &mut report_progress)?;
        (time, cpu_seconds) = (phase_start.end(), cpu_seconds + phase_start.cpu_seconds());
        for (process, figures) in ended {
            let direct = if process.is_direct { " direct" } else { "" };
            let engine = figures.engine.map(|name| format!("{name}{direct}"));
            engines.extend(engine.filter(|engine| !engines.contains(engine)));
            counted.requests += figures.counted.requests;
            counted.bytes += figures.counted.bytes;
            figures.add_to(&mut measured, process.stream);
        }
        waiting = later;
    }
    for read_counters in measured.jobs.iter().flatten() {
        measured.total.add(read_counters);
    }
    measured.is_interrupted = is_stopping();
    Ok(RunFigures { measured, engines: engines.join(", "), counted, cpu_seconds })
}

/// Data of a process that is needed after its end.
struct EndedProcess {
    /// Its part in the fairness of the run, and its job.
    stream: ProcessShare,
    /// True if its requests bypass the page cache.
    is_direct: bool,
}

/// State that the processes of all phases share. The fields are the ones of [`ProcessesShared`].
struct PhaseShared<'a> {
    /// File on which all files of the job are laid out.
    path: &'a Path,
    /// Start offset of each of them in that file.
    file_starts: &'a [u64],
    /// Bytes transferred so far by all processes.
    transferred_bytes: &'a AtomicU64,
    /// Returns true once the run was interrupted.
    is_stopping: &'a (dyn Fn() -> bool + Sync),
}

/// Interval of the reports of progress, in which logged decisions are taken too. Each policy keeps
/// only its last ones, so that a longer interval would lose some. Chosen, not measured.
const REPORT_INTERVAL: Duration = Duration::from_millis(5);

/// Longest sleep of a process between two checks of the interrupt. Chosen, not measured.
const INTERRUPT_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Runs the processes of one phase in a thread each, and calls `report_progress` until all have
/// ended. Returns their figures in order, or the first failure in this order.
fn run_phase(
    processes: Vec<Process>,
    shared: &PhaseShared<'_>,
    phase_start: &PhaseStart,
    run_process: &RunProcess<'_>,
    report_progress: &mut dyn FnMut(),
) -> Result<Vec<(EndedProcess, ProcessFigures)>, Failure> {
    let PhaseShared { path, file_starts, transferred_bytes, is_stopping } = *shared;
    std::thread::scope(|scope| {
        let run = move |process: Process| {
            let is_prepared = Cell::new(false);
            let shared = ProcessesShared {
                path,
                file_starts,
                phase_start,
                transferred_bytes,
                is_stopping,
                is_prepared,
            };
            run_process(process, &shared)
        };
        let threads: Vec<_> = processes
            .into_iter()
            .map(|process| {
                let ended_process = EndedProcess {
                    stream: ProcessShare::new(&process),
                    is_direct: process.is_direct(),
                };
                (ended_process, scope.spawn(move || run(process)))
            })
            .collect();
        while !phase_start.wait_for_end(REPORT_INTERVAL) {
            report_progress();
        }
        // The last decisions and the final number of bytes.
        report_progress();
        threads
            .into_iter()
            .map(|(ended_process, thread)| {
                let figures = thread.join().expect("a process's thread does not panic")?;
                Ok((ended_process, figures))
            })
            .collect()
    })
}

/// Writes cached writes of the file back to the medium, through any descriptor.
/// `is_fdatasync_enough` selects `fdatasync(2)` instead of `fsync(2)`.
pub fn sync(path: &Path, is_fdatasync_enough: bool) -> std::io::Result<()> {
    let file = std::fs::OpenOptions::new().write(true).open(path)?;
    if is_fdatasync_enough { file.sync_data() } else { file.sync_all() }
}

/// Sleeps until a time of the run, in steps short enough to notice an interrupt.
pub fn sleep_until(time: Time, shared: &ProcessesShared<'_>) {
    loop {
        let time_left = time.since(shared.now());
        if time_left == Time::ZERO || (shared.is_stopping)() {
            return;
        }
        std::thread::sleep(Duration::from_nanos(time_left.ns()).min(INTERRUPT_CHECK_INTERVAL));
    }
}
