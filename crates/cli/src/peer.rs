//! `kernel:PATH`: the same job through the kernel's own path, one thread a process.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use readpath::Direct;
use readpath_core::request::{Op, Outcome, RequestId};
use readpath_core::unit::Time;
use readpath_peers::clock::Clock;
use readpath_peers::kernel::{KernelEngine, KernelError, KernelFile, KernelOptions};
use readpath_peers::queue::Queue;
use readpath_peers::usage::CpuTime;
use readpath_sim::report::{Row, Stream, Tally};
use readpath_sim::run::{Go, Measured, Progress};
use readpath_sim::workload::{Next, Operation, Process, Workload};

use crate::exit::Failure;
use crate::progress::Bar;
use crate::real::{join, make_cold, notes, open};
use crate::run::Plan;

/// What one process has measured.
#[derive(Debug, Default)]
pub struct Ended {
    tally: Tally,
    first_error: Option<String>,
    /// By which engine its operations were carried out.
    engine: Option<&'static str>,
    /// What it asked the device for.
    pub counted: Counted,
}

/// Requests to the device, where they are counted, and the bytes in them; and
/// the processor time that went into a process's own memory before it began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    pub requests: u64,
    pub bytes: u64,
    pub memory_cpu_seconds: f64,
}

/// What the threads share.
pub struct Shared<'a> {
    /// The file that all files of the job are laid out on.
    pub path: &'a Path,
    /// Where each of them begins in it.
    pub starts: Vec<u64>,
    pub clock: Clock,
    bytes: AtomicU64,
    pub is_stopping: &'a (dyn Fn() -> bool + Sync),
}

impl Shared<'_> {
    /// Where an operation begins in the file that all files are laid out on.
    pub fn offset(&self, operation: Operation) -> u64 {
        self.starts[operation.file.0 as usize] + operation.offset
    }
}

/// The life of a process, from its first operation to its last.
pub type Live<'a> = dyn Fn(Process, &Shared<'_>) -> Result<Ended, Failure> + Sync + 'a;

impl Ended {
    /// Nothing yet, by this engine.
    pub fn by(engine: &'static str) -> Ended {
        Ended { engine: Some(engine), ..Ended::default() }
    }

    /// An operation has ended: well, or with an error in words.
    pub fn record(
        &mut self,
        operation: Operation,
        issued: Time,
        ended: Time,
        result: Result<(), String>,
        shared: &Shared<'_>,
    ) {
        match result {
            Ok(()) => {
                self.tally.record(issued, ended, operation.bytes);
                shared.bytes.fetch_add(operation.bytes, Ordering::Relaxed);
            }
            Err(error) => {
                self.tally.record_error(issued, ended);
                self.first_error.get_or_insert(error);
            }
        }
    }

    /// What was written before is on the medium at `at`, or could not be put there.
    pub fn record_sync(&mut self, at: Time, result: Result<(), String>) {
        self.tally.record_sync(at);
        let error = result.err().map(|error| format!("sync: {error}"));
        self.first_error = self.first_error.take().or(error);
    }
}

/// Runs the job on `path` and gives its row.
pub fn run(plan: &Plan<'_>, path: &Path, bar: &Bar) -> Result<Row, Failure> {
    let (mode, workload) = open(plan, path, Direct::Never)?;
    let residency = make_cold(path, &mut || bar.is_wanted())?;
    let queue = queue_of(path);
    let is_warm = notes(mode, &residency).filter(|_| residency.resident > 0);

    let cpu = CpuTime::of_process();
    let live = |process: Process, shared: &Shared<'_>| {
        run_process(process, shared).map_err(|error| Failure::about(path.display(), error))
    };
    let ran = run_processes(plan, path, workload, &mut |progress| bar.tell(progress), &live)?;
    let mut row = ran.measured.row(&plan.name, &format!("kernel:{}", path.display()), &plan.job);
    row.cpu_seconds = Some(CpuTime::of_process().since(cpu).seconds());
    row.readahead = queue.as_ref().map(|queue| format!("kernel, {} KiB", window_kib(queue)));
    row.scheduler = queue.and_then(|queue| queue.scheduler);
    row.engine = Some(ran.engines);
    row.note = join(row.note, is_warm);
    Ok(row)
}

/// What the kernel decides by for the device below a path, where it says so.
pub fn queue_of(path: &Path) -> Option<Queue> {
    Queue::of(&std::fs::metadata(path).ok()?)
}

fn window_kib(queue: &Queue) -> u64 {
    queue.read_ahead_bytes / 1024
}

/// What all processes have measured together.
pub struct Ran {
    pub measured: Measured,
    /// The engines that carried their operations out.
    pub engines: String,
    pub counted: Counted,
}

/// Runs phase after phase, the processes of each at the same time.
pub fn run_processes(
    plan: &Plan<'_>,
    path: &Path,
    workload: Workload,
    tell: &mut dyn FnMut(Progress) -> Go,
    live: &Live<'_>,
) -> Result<Ran, Failure> {
    let (starts, _) = workload.side_by_side();
    let bytes_total = workload.bytes_planned();
    let interrupt = &plan.interrupt;
    let is_stopping = || interrupt.has_come();
    let clock = Clock::start();
    let bytes = AtomicU64::new(0);
    let shared = Shared { path, starts, clock, bytes, is_stopping: &is_stopping };

    let mut jobs = vec![Tally::default(); plan.job.jobs.len()];
    let mut streams = Vec::new();
    let mut first_error = None;
    let mut engines: Vec<String> = Vec::new();
    let mut counted = Counted::default();
    let mut waiting = workload.processes;
    while let Some(phase) = waiting.first().map(Process::phase) {
        let later = waiting.split_off(waiting.partition_point(|next| next.phase() == phase));
        let mut tell = || {
            tell(Progress {
                now: shared.clock.now(),
                bytes: shared.bytes.load(Ordering::Relaxed),
                bytes_total,
            })
        };
        for (process, ended) in run_phase(waiting, &shared, live, &mut tell)? {
            let direct = if process.is_direct { " direct" } else { "" };
            let engine = ended.engine.map(|name| format!("{name}{direct}"));
            engines.extend(engine.filter(|engine| !engines.contains(engine)));
            jobs[process.stream.job].add(&ended.tally);
            streams.push(process.stream.with_tally(&ended.tally));
            first_error = first_error.or(ended.first_error);
            counted.requests += ended.counted.requests;
            counted.bytes += ended.counted.bytes;
            counted.memory_cpu_seconds += ended.counted.memory_cpu_seconds;
        }
        waiting = later;
    }
    let mut total = Tally::default();
    jobs.iter().for_each(|job| total.add(job));
    let is_interrupted = plan.interrupt.has_come();
    let measured = Measured { total, jobs, streams, first_error, is_interrupted };
    Ok(Ran { measured, engines: engines.join(", "), counted })
}

/// What is still known of a process after it has ended.
struct Past {
    stream: Stream,
    is_direct: bool,
}

fn run_phase(
    processes: Vec<Process>,
    shared: &Shared<'_>,
    live: &Live<'_>,
    tell: &mut dyn FnMut() -> Go,
) -> Result<Vec<(Past, Ended)>, Failure> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = processes
            .into_iter()
            .map(|process| {
                let past = Past { stream: Stream::new(&process), is_direct: process.is_direct() };
                (past, scope.spawn(|| live(process, shared)))
            })
            .collect();
        while threads.iter().any(|(_, thread)| !thread.is_finished()) {
            tell();
            std::thread::sleep(Duration::from_millis(5));
        }
        tell();
        threads
            .into_iter()
            .map(|(past, thread)| {
                let ended = thread.join().expect("a process's thread does not panic")?;
                Ok((past, ended))
            })
            .collect()
    })
}

/// One process, from its first operation to its last completion.
fn run_process(mut process: Process, shared: &Shared<'_>) -> Result<Ended, KernelError> {
    let name = process.engine().name();
    let engine = KernelEngine::of_ioengine(name).expect("every engine of a job file has a peer");
    let options = KernelOptions {
        engine,
        is_direct: process.is_direct(),
        depth: process.depth(),
        bytes_max: u32::try_from(process.block_bytes_max()).unwrap_or(u32::MAX),
        is_writable: process.writes(),
        advice: process.advice(),
        mapping_advice: process.mapping_advice(),
    };
    let mut file = KernelFile::open(shared.path, options, shared.clock)?;
    file.touch_buffers();
    let mut under = Under::default();
    let mut ended = Ended::by(file.engine().name());
    sleep_until(process.start_delay(), shared);
    loop {
        let now = shared.clock.now();
        if (shared.is_stopping)() && under.is_empty() {
            return Ok(ended);
        }
        let next = if (shared.is_stopping)() { Next::WaitForCompletion } else { process.next(now) };
        match next {
            Next::Operation(operation) => start(&mut file, &mut under, operation, now, shared),
            Next::Sync { is_data_enough } => {
                let synced = sync(shared.path, is_data_enough);
                ended.record_sync(shared.clock.now(), synced.map_err(|error| error.to_string()));
                process.synced(shared.clock.now());
            }
            Next::WaitUntil(time) if under.is_empty() => sleep_until(time, shared),
            Next::WaitUntil(time) => {
                file.wait(Some(time))?;
                collect(&mut file, &mut under, &mut process, &mut ended, shared);
            }
            Next::WaitForCompletion => {
                file.wait(None)?;
                collect(&mut file, &mut under, &mut process, &mut ended, shared);
            }
            Next::Ended => return Ok(ended),
        }
        if file.room() == 0 && !under.is_empty() {
            file.wait(Some(Time::ZERO))?;
            collect(&mut file, &mut under, &mut process, &mut ended, shared);
        }
    }
}

/// Puts what was written to the file on the medium, by whichever descriptor it was.
pub fn sync(path: &Path, is_data_enough: bool) -> std::io::Result<()> {
    let file = std::fs::OpenOptions::new().write(true).open(path)?;
    if is_data_enough { file.sync_data() } else { file.sync_all() }
}

/// The operations of one process that are under way, by the name of their request.
#[derive(Debug, Default)]
struct Under {
    operations: Vec<Option<(Operation, Time)>>,
    free: Vec<u32>,
}

impl Under {
    fn is_empty(&self) -> bool {
        self.free.len() == self.operations.len()
    }

    fn open(&mut self, operation: Operation, now: Time) -> RequestId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() as u32 - 1
        });
        self.operations[id as usize] = Some((operation, now));
        RequestId(id)
    }

    fn close(&mut self, id: RequestId) -> (Operation, Time) {
        self.free.push(id.0);
        self.operations[id.0 as usize].take().expect("only what was started ends")
    }
}

fn start(
    file: &mut KernelFile,
    under: &mut Under,
    operation: Operation,
    now: Time,
    shared: &Shared<'_>,
) {
    let id = under.open(operation, now);
    let offset = shared.offset(operation);
    match operation.op {
        Op::Read => file.read(id, offset, operation.bytes as u32),
        Op::Write => file.write(id, offset, operation.bytes as u32, |bytes| bytes.fill(id.0 as u8)),
    }
}

fn collect(
    file: &mut KernelFile,
    under: &mut Under,
    process: &mut Process,
    ended: &mut Ended,
    shared: &Shared<'_>,
) {
    while let Some((completion, bytes)) = file.poll() {
        std::hint::black_box(bytes);
        let (operation, issued) = under.close(completion.id);
        let error = match completion.outcome {
            Outcome::Done => None,
            Outcome::Short { bytes } => Some(format!(
                "{} of {} bytes at {}: the file ends there",
                bytes, operation.bytes, operation.offset
            )),
            Outcome::Failed(error) => Some(format!("at byte {}: {error}", operation.offset)),
        };
        ended.record(operation, issued, completion.at, error.map_or(Ok(()), Err), shared);
        process.completed(completion.at);
    }
}

/// Sleeps until a time of the run, in steps short enough to hear of an interrupt.
pub fn sleep_until(time: Time, shared: &Shared<'_>) {
    loop {
        let left = time.since(shared.clock.now());
        if left == Time::ZERO || (shared.is_stopping)() {
            return;
        }
        std::thread::sleep(Duration::from_nanos(left.ns()).min(Duration::from_millis(50)));
    }
}
