//! `kernel:PATH`: the same job through the kernel's own read path, one thread per process.

use std::path::Path;

use readpath::Direct;
use readpath_core::request::{Op, Outcome, RequestId};
use readpath_core::unit::Time;
use readpath_eval::clock::Clock;
use readpath_eval::kernel::{
    KernelEngine, KernelError, KernelFile, KernelOptions, set_thread_priority,
};
use readpath_os::queue::QueueLimits;
use readpath_sim::report::ResultRow;
use readpath_sim::workload::{NextAction, Process, ProcessOperation};

use super::content;
use super::layout::{Layout, open_and_lay_out};
use super::processes::{
    ProcessFigures, ProcessesShared, RunObservers, run_processes, sleep_until, sync,
};
use crate::exit::{CommandResult, Failure};
use crate::note;
use crate::plan::job::JobRun;
use crate::real_file::{kernel_queue, make_cold};

/// Checks that [`run`] could start, without running.
pub fn check(run: &JobRun, path: &Path) -> CommandResult {
    lay_out(run, path).map(drop)
}

/// Opens the file and lays the job out on it. Refuses a request whose size has more than 32 bits,
/// which only a trace can have.
fn lay_out(run: &JobRun, path: &Path) -> Result<Layout, Failure> {
    // The file is checked with buffered reads; a process with `is_direct` opens it on its own.
    let (_mode, layout) = open_and_lay_out(run, path, Direct::Never)?;
    let largest_bytes = layout.workload.processes.iter().map(Process::block_bytes_max).max();
    match largest_bytes.filter(|bytes| u32::try_from(*bytes).is_err()) {
        None => Ok(layout),
        Some(bytes) => Err(Failure::Usage(format!(
            "kernel:{}: a request has {bytes} bytes, and the kernel's rows take less than 4 GiB; \
             replay it on file: or a modelled device",
            path.display()
        ))),
    }
}

/// Runs the job on `path` and returns its row. The file's pages are dropped from the kernel page
/// cache first.
pub fn run(run: &JobRun, path: &Path, observers: &RunObservers<'_>) -> Result<ResultRow, Failure> {
    let layout = lay_out(run, path)?;
    let residency = make_cold(path, &mut || observers.bar.should_continue())?;
    let queue = kernel_queue(path);
    // Reads through the kernel page cache are meant here: only pages left in it are a caveat.
    let warm_note = note::residency_caveat(&residency);
    let run_process = |process: Process, shared: &ProcessesShared<'_>| {
        run_process(process, layout.file_bytes, shared)
            .map_err(|error| Failure::usage_of(path.display(), error))
    };
    // The kernel does not report its decisions.
    let nothing_to_poll = &mut || {};
    let run_figures =
        run_processes(run, path, layout.workload, observers, nothing_to_poll, &run_process)?;
    let mut row = run_figures.row(run, &format!("kernel:{}", path.display()));
    row.cpu_seconds = Some(run_figures.cpu_seconds);
    // The kernel caches the pages of buffered reads and of mappings alike.
    let (buffered_cache, mapping_cache) = ("kernel", "kernel");
    row.page_cache = run.jobs.page_cache(buffered_cache, mapping_cache);
    row.readahead = queue.as_ref().map(|queue| format!("kernel, {} KiB", window_kib(queue)));
    row.scheduler = queue.and_then(|queue| queue.scheduler);
    row.engine = Some(run_figures.engines);
    row.note = note::join(row.note, note::join(warm_note, layout.note));
    Ok(row)
}

/// Returns the kernel's readahead window in KiB.
fn window_kib(queue: &QueueLimits) -> u64 {
    queue.read_ahead_bytes / 1024
}

/// Runs one process on a file of `file_bytes` bytes, from its first operation to its last
/// completion. Returns its figures. After an interrupt no further operation starts, and the process
/// ends with its last operation in flight, without [`record_end`](ProcessFigures::record_end).
///
/// # Errors
/// The file cannot be opened, the kernel refuses the priority, or the engine fails to wait. A
/// failed operation is counted in the figures instead.
fn run_process(
    mut process: Process,
    file_bytes: u64,
    shared: &ProcessesShared<'_>,
) -> Result<ProcessFigures, KernelError> {
    let name = process.engine().name();
    let engine = KernelEngine::from_ioengine(name).expect("every engine of a job file has a peer");
    let options = KernelOptions {
        invalidates: process.invalidates(),
        engine,
        is_direct: process.is_direct(),
        depth: process.depth(),
        bytes_max: u32::try_from(process.block_bytes_max()).expect("`lay_out` has checked it"),
        is_writable: process.writes(),
        advice: process.advice(),
        mapping_advice: process.mapping_advice(),
    };
    // The thread is the process's own, and ends with it.
    if let Some(priority) = process.priority() {
        set_thread_priority(priority)?;
    }
    // Preparation: the file is open and its buffers are in memory before the clock starts.
    let mut file = KernelFile::open(shared.path, options, Clock::start())?;
    file.touch_buffers();
    shared.begin();
    file.set_clock(shared.clock());
    let mut in_flight = KernelOperations { file_bytes, operations: slab::Slab::new() };
    let mut figures = ProcessFigures::with_engine(file.engine().name());
    sleep_until(process.start_delay(), shared);
    loop {
        let now = shared.now();
        if (shared.is_stopping)() && in_flight.is_empty() {
            return Ok(figures);
        }
        // After an interrupt only the operations in flight are awaited.
        let action =
            if (shared.is_stopping)() { NextAction::WaitForCompletion } else { process.next(now) };
        match action {
            NextAction::Operation(operation) => {
                issue_operation(&mut file, &mut in_flight, operation, now, &process, shared);
            }
            NextAction::Sync { is_data_enough: is_fdatasync_enough } => {
                let synced = sync(shared.path, is_fdatasync_enough);
                figures.record_sync(shared.now(), synced.map_err(|error| error.to_string()));
                process.synced(shared.now());
            }
            NextAction::WaitUntil(time) if in_flight.is_empty() => sleep_until(time, shared),
            NextAction::WaitUntil(time) => {
                file.wait(Some(time))?;
                record_completions(&mut file, &mut in_flight, &mut process, &mut figures, shared);
            }
            NextAction::WaitForCompletion => {
                let no_deadline = None;
                file.wait(no_deadline)?;
                record_completions(&mut file, &mut in_flight, &mut process, &mut figures, shared);
            }
            NextAction::Ended => {
                figures.record_end(&process, now);
                return Ok(figures);
            }
        }
        if file.free_slots() == 0 && !in_flight.is_empty() {
            // The queue is full: operations that have ended are recorded before the process is
            // asked for more. A synchronous engine has always ended its one operation here.
            // A deadline that has passed submits the started requests without sleeping.
            file.wait(Some(Time::ZERO))?;
            record_completions(&mut file, &mut in_flight, &mut process, &mut figures, shared);
        }
    }
}

/// Operations of one process in flight.
struct KernelOperations {
    /// Length of the file in bytes when the job was laid out on it.
    file_bytes: u64,
    /// Operations with their times of issue, indexed by request id.
    operations: slab::Slab<(ProcessOperation, Time)>,
}

impl KernelOperations {
    /// True if no operation is in flight.
    fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }
}

/// Issues an operation of `process` on the kernel's file. It completes later, see
/// [`record_completions`].
fn issue_operation(
    file: &mut KernelFile,
    in_flight: &mut KernelOperations,
    operation: ProcessOperation,
    issue_time: Time,
    process: &Process,
    shared: &ProcessesShared<'_>,
) {
    let id = RequestId(in_flight.operations.insert((operation, issue_time)) as u32);
    let offset = shared.offset(operation);
    match operation.op {
        Op::Read => file.read(id, offset, operation.bytes as u32),
        Op::Write => file.write(id, offset, operation.bytes as u32, |bytes| {
            // Without verification any content will do.
            bytes.fill(id.0 as u8);
            content::fill_write(process, operation, offset, bytes);
        }),
    }
}

/// Takes all completions, verifies their data, and records them. Does not wait for further ones.
fn record_completions(
    file: &mut KernelFile,
    in_flight: &mut KernelOperations,
    process: &mut Process,
    figures: &mut ProcessFigures,
    shared: &ProcessesShared<'_>,
) {
    while let Some((completion, bytes)) = file.poll() {
        let bytes = std::hint::black_box(bytes);
        let (mut operation, issued) = in_flight.operations.remove(completion.id.0 as usize);
        let error = match completion.outcome {
            Outcome::Done => None,
            // A trace's last read, widened to whole blocks, has all bytes to the end of the file.
            Outcome::Short { bytes: moved_bytes }
                if operation.op == Op::Read
                    && shared.offset(operation) + moved_bytes == in_flight.file_bytes
                    && moved_bytes > 0 =>
            {
                operation.bytes = moved_bytes;
                None
            }
            Outcome::Short { bytes: moved_bytes } => Some(format!(
                "{} of {} bytes at {}: the file ends there",
                moved_bytes, operation.bytes, operation.offset
            )),
            Outcome::Failed(error) => Some(format!("at byte {}: {error}", operation.offset)),
        };
        let result = match error {
            Some(error) => Err(error),
            None => content::verify_read(process, operation, shared.offset(operation), bytes),
        };
        figures.record_if_measured(process, (operation, issued), completion.at, result, shared);
        process.completed(completion.at);
    }
}
