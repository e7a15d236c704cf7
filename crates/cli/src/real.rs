//! `file:PATH` and `nfs://HOST/PATH`: a job through the library, as a program uses it.
//!
//! A process of the job is a thread with a handle of its own:
//!
//! | a job with | runs as |
//! |---|---|
//! | `psync`, `sync` | [`File::read_exact_at`](readpath::File::read_exact_at) |
//! | `libaio`, `io_uring` | a [`Batch`](readpath::Batch) with a ticket for each read in flight |
//! | `mmap` | copies out of one [`Mapping`](readpath::Mapping) that all processes share |
//! | `direct=1` | a [`RawFile`](readpath::RawFile), or a [`RawBatch`] of it where many are in flight |
//! | `raw` | a [`RawFile`](readpath::RawFile) under the law that is named |
//!
//! All files of a read path share its memory and its laws, which are the library's own unless
//! others are named. What is written goes past the cache, one write at a time, and the read path
//! takes notice of it ([`File::raw`](readpath::File::raw)).

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use readpath::nfs::NfsUrl;
use readpath::raw::{RawBatch, RawError, RawFault, RawFile, RawFileBuilder, RawMemory, RawMoved};
use readpath::{BackendInUse, BackendKind, Direct, File, Mapping, Mode, OpenError, ReadPath};
use readpath_core::request::Op;
use readpath_core::unit::Time;
use readpath_peers::cold;
use readpath_peers::kernel::copy_mapped;
use readpath_peers::usage::CpuTime;
use readpath_sim::job::Engine;
use readpath_sim::report::Row;
use readpath_sim::run::{Go, Progress, Watch};
use readpath_sim::simulate::Setup;
use readpath_sim::workload::{Next, Operation, Placement, Process, Workload, WorkloadError};

use crate::exit::Failure;
use crate::peer::{self, Ended, Shared, run_processes, sleep_until};
use crate::run::Plan;

/// Finds out whether [`run`] would begin, without running.
pub fn check(plan: &Plan<'_>, path: &Path, setup: &Setup) -> Result<(), Failure> {
    refuse_written_mappings(plan, path)?;
    open(plan, path, Direct::Preferred)?;
    build(plan, setup, false).map(drop)
}

/// Runs the job on `path` and gives its row.
pub fn run(plan: &Plan<'_>, path: &Path, setup: &Setup, watch: Watch<'_>) -> Result<Row, Failure> {
    let about = |error: &dyn std::fmt::Display| Failure::about(path.display(), error);
    let (mode, workload) = open(plan, path, Direct::Preferred)?;
    let nothing_yet = Progress { now: Time::ZERO, bytes: 0, bytes_total: None };
    let residency = make_cold(path, &mut || matches!((watch.tell)(nothing_yet), Go::On))?;
    let note = notes(mode, &residency);
    let cpu = CpuTime::of_process();
    let read_path = build(plan, setup, watch.decided.is_some())?;
    let file = read_path.open(path).map_err(|error| about(&error))?;
    let is_mapped = plan.job.jobs.iter().any(|job| job.engine == Engine::Mmap);
    let mapping = match is_mapped {
        true => Some(map(plan, path, setup).map_err(|error| about(&error))?),
        false => None,
    };
    let note = join(note, read_path.stats().backend.and_then(carried_by));
    let stack = Stack::new(file, mapping, plan.args.backend);
    let name = format!("file:{}", path.display());
    let mut row = run_on(plan, &name, path, stack, workload, watch)?;
    row.cpu_seconds = Some(CpuTime::of_process().since(cpu).seconds());
    row.readahead = Some(laws(plan, setup));
    row.scheduler = Some(setup.scheduler.to_string());
    row.note = join(row.note, note);
    Ok(row)
}

/// Has the kernel's cache give up the file's pages, as long as the run is wanted.
pub fn make_cold(path: &Path, is_wanted: cold::Wanted<'_>) -> Result<cold::Residency, Failure> {
    cold::drop_pages_while(path, is_wanted).map_err(|error| match error.kind() {
        std::io::ErrorKind::Interrupted => Failure::Interrupted,
        _ => Failure::about(path.display(), error),
    })
}

/// Finds out whether [`run_nfs`] would begin, without running.
pub fn check_nfs(plan: &Plan<'_>, url: &NfsUrl, setup: &Setup) -> Result<(), Failure> {
    open_nfs(plan, url, builder(plan, setup, false)).map(drop)
}

/// Runs the job on a file of an NFS server and gives its row.
pub fn run_nfs(
    plan: &Plan<'_>,
    url: &NfsUrl,
    setup: &Setup,
    watch: Watch<'_>,
) -> Result<Row, Failure> {
    let cpu = CpuTime::of_process();
    let (file, workload) = open_nfs(plan, url, builder(plan, setup, watch.decided.is_some()))?;
    let note = file.connection().map(|connection| {
        let port = match connection.is_from_reserved_port {
            true => "a reserved",
            false => "an unprivileged",
        };
        format!("READs of at most {} bytes, from {port} port", connection.read_bytes_max)
    });
    let name = url.to_string();
    let stack = Stack::new(file, None, plan.args.backend);
    let mut row = run_on(plan, &name, Path::new(&name), stack, workload, watch)?;
    row.cpu_seconds = Some(CpuTime::of_process().since(cpu).seconds());
    row.readahead = Some(setup.readahead.to_string());
    row.scheduler = Some(setup.scheduler.to_string());
    row.note = join(row.note, note);
    Ok(row)
}

/// Finds the file and lays the job out on it.
fn open_nfs(
    plan: &Plan<'_>,
    url: &NfsUrl,
    builder: readpath::Builder,
) -> Result<(File, Workload), Failure> {
    let past_the_cache =
        |job: &&readpath_sim::job::Job| job.is_direct || job.engine == Engine::Mmap;
    if plan.writes() {
        return Err(Failure::Usage(format!(
            "{url}: the job writes, and files on a server are only read; run it on file: or on a \
             modelled device"
        )));
    }
    if let Some(job) = plan.job.jobs.iter().find(past_the_cache) {
        return Err(Failure::Usage(format!(
            "{url}: job `{}` is direct or maps its file, and a server's file is read through the \
             cache; take direct=1 out, or another ioengine",
            job.name
        )));
    }
    let file = builder.open(url.to_string()).map_err(Failure::usage)?;
    if file.is_empty() {
        return Err(Failure::Usage(format!(
            "{url}: is empty; write the data to be read into it first"
        )));
    }
    let workload = workload_on(plan, &url.to_string(), file.len())?;
    Ok((file, workload))
}

fn builder(plan: &Plan<'_>, setup: &Setup, logs_decisions: bool) -> readpath::Builder {
    ReadPath::builder()
        .backend(plan.args.backend)
        .log_decisions(logs_decisions)
        .memory(setup.memory_bytes)
        .readahead(&setup.readahead.to_string())
        .scheduler(&setup.scheduler.to_string())
}

fn build(plan: &Plan<'_>, setup: &Setup, logs_decisions: bool) -> Result<ReadPath, Failure> {
    builder(plan, setup, logs_decisions).build().map_err(Failure::usage)
}

/// Maps the file, under the mapping's own law unless another is named.
fn map(plan: &Plan<'_>, path: &Path, setup: &Setup) -> Result<Mapping, readpath::PagerError> {
    let mut builder = Mapping::builder().memory(setup.memory_bytes).backend(plan.args.backend);
    if plan.args.readahead.is_some() {
        builder = builder.readahead(&setup.readahead.to_string());
    }
    // SAFETY: nobody changes the file of a run while it runs: a job that maps does not write.
    unsafe { builder.open(path) }
}

/// The readahead laws that run: a mapping has one of its own.
fn laws(plan: &Plan<'_>, setup: &Setup) -> String {
    let jobs = &plan.job.jobs;
    let is_mapped = |job: &readpath_sim::job::Job| job.engine == Engine::Mmap;
    if plan.args.readahead.is_some() || !jobs.iter().any(is_mapped) {
        return setup.readahead.to_string();
    }
    let own = Mapping::builder().law().to_string();
    if jobs.iter().all(is_mapped) { own } else { format!("{}, {own}", setup.readahead) }
}

/// A mapping of the library is for reading.
fn refuse_written_mappings(plan: &Plan<'_>, path: &Path) -> Result<(), Failure> {
    let is_mapped = plan.job.jobs.iter().find(|job| job.engine == Engine::Mmap);
    match is_mapped.filter(|_| plan.writes()) {
        None => Ok(()),
        Some(job) => Err(Failure::Usage(format!(
            "file:{}: job `{}` maps a file that is written, and mappings of the library are for \
             reading; give another ioengine, or run it on kernel: or a modelled device",
            path.display(),
            job.name
        ))),
    }
}

/// What the processes of a run share.
struct Stack {
    file: File,
    mapping: Option<Mapping>,
    backend: BackendKind,
    /// Bytes that reads through the cache asked for, and those that were there.
    asked_bytes: AtomicU64,
    cached_bytes: AtomicU64,
}

impl Stack {
    fn new(file: File, mapping: Option<Mapping>, backend: BackendKind) -> Stack {
        let (asked_bytes, cached_bytes) = Default::default();
        Stack { file, mapping, backend, asked_bytes, cached_bytes }
    }
}

/// Runs the job, and counts what its device was asked for.
fn run_on(
    plan: &Plan<'_>,
    name: &str,
    path: &Path,
    stack: Stack,
    workload: Workload,
    watch: Watch<'_>,
) -> Result<Row, Failure> {
    let Watch { tell, mut decided } = watch;
    let read_path = stack.file.read_path();
    let live = |process: Process, shared: &Shared<'_>| run_process(process, shared, &stack);
    // Each law keeps its last decisions only: they are taken while the job runs.
    let mut tell = |progress| {
        if let Some(decided) = &mut decided {
            read_path.take_decisions().iter().for_each(decided);
        }
        tell(progress)
    };
    let ran = run_processes(plan, path, workload, &mut tell, &live)?;
    let mut row = ran.measured.row(&plan.name, name, &plan.job);
    row.engine = Some(ran.engines);
    let stats = read_path.stats();
    let mapped = stack.mapping.as_ref().map(Mapping::statistics);
    let mapped_reads =
        mapped.map_or((0, 0), |mapped| (mapped.device_reads, mapped.device_read_bytes));
    let requests = stats.device_reads + ran.counted.requests + mapped_reads.0;
    let bytes = stats.device_bytes + ran.counted.bytes + mapped_reads.1;
    row.device_requests = Some(requests);
    row.device_bytes = Some(bytes);
    if requests > 0 {
        row.device_request_kib_mean = Some(bytes as f64 / 1024.0 / requests as f64);
    }
    if ran.counted.requests + mapped_reads.0 == 0 {
        row.device_depth_mean = stats.depth_mean_milli.map(|milli| milli as f64 / 1e3);
        row.device_depth_max = (requests > 0).then_some(stats.depth_max);
    }
    let asked = stack.asked_bytes.load(Ordering::Relaxed);
    let cached = stack.cached_bytes.load(Ordering::Relaxed);
    if asked == row.bytes && asked > 0 {
        row.coverage = Some(cached as f64 / asked as f64);
        row.waste_bytes = Some(stats.unused_bytes);
    }
    if !plan.writes() && row.bytes > 0 {
        row.amplification = Some(bytes as f64 / row.bytes as f64);
    }
    Ok(row)
}

/// One process, from its first operation to its last.
fn run_process(process: Process, shared: &Shared<'_>, stack: &Stack) -> Result<Ended, Failure> {
    let mut ended = Ended::by(process.engine().name());
    match (process.engine(), process.is_direct()) {
        (Engine::Mmap, _) => {
            let mapping = stack.mapping.as_ref().expect("a job that maps has its file mapped");
            mapping.advise(process.mapping_advice(), 0, mapping.len() as u64);
            let mut has_failed = false;
            run_calls(process, shared, &mut ended, |operation, offset, memory| {
                if has_failed {
                    return Err("the mapping could not be read before".to_owned());
                }
                let at = offset as usize;
                let block = &mapping.as_slice()[at..at + operation.bytes as usize];
                // SAFETY: after an error nothing of the mapping is looked at by this process, and others
                // fail at the same bytes: the file has become shorter, or its device fails there.
                let copied = unsafe { copy_mapped(block, memory) };
                has_failed = copied.is_err();
                copied.map_err(|address| {
                    let byte = offset + (address - block.as_ptr() as usize) as u64;
                    format!("at byte {byte}: a bus error: the file has become shorter, or can't be read there")
                })
            })?;
        }
        (_, true) => {
            let file = raw(&process, shared, stack)?;
            match process.depth() {
                1 => run_calls(process, shared, &mut ended, |operation, offset, memory| {
                    move_raw(&file, memory, operation, offset)
                })?,
                depth => {
                    let mut batch = file.batch(depth).map_err(Failure::usage)?;
                    run_raw_batch(process, shared, &mut ended, &mut batch)?;
                }
            }
            count(&mut ended, &file);
        }
        (_, false) => {
            let file = stack.file.reopen();
            // As fio does when a job starts (`invalidate`): what is cached goes.
            file.invalidate(0, file.len());
            file.advise(process.advice());
            let written = process.writes().then(|| raw(&process, shared, stack)).transpose()?;
            match process.depth() {
                1 => run_calls(process, shared, &mut ended, |operation, offset, memory| {
                    match (operation.op, &written) {
                        (Op::Write, Some(written)) => move_raw(written, memory, operation, offset),
                        _ => file.read_exact_at(memory, offset).map_err(|error| error.to_string()),
                    }
                })?,
                _ => run_batch(process, shared, &mut ended, &file, written.as_ref())?,
            }
            let stats = file.stats();
            stack.asked_bytes.fetch_add(stats.bytes, Ordering::Relaxed);
            stack.cached_bytes.fetch_add(stats.cached_bytes, Ordering::Relaxed);
            if let Some(written) = written {
                count(&mut ended, &written);
            }
        }
    }
    Ok(ended)
}

/// The way past the cache, of whose writes the read path takes notice.
fn raw(process: &Process, shared: &Shared<'_>, stack: &Stack) -> Result<RawFile, Failure> {
    let builder = RawFile::builder().write(process.writes()).backend(stack.backend);
    let file = if process.writes() { stack.file.raw(builder) } else { builder.open(shared.path) };
    file.map_err(Failure::usage)
}

/// Counts what a raw file has asked its device for.
pub fn count(ended: &mut Ended, file: &RawFile) {
    let counters = file.counters();
    ended.counted.requests += counters.reads + counters.writes;
    ended.counted.bytes += counters.read_bytes + counters.written_bytes;
}

/// A process of whose operations each has ended when the call returns.
pub fn run_calls(
    mut process: Process,
    shared: &Shared<'_>,
    ended: &mut Ended,
    mut call: impl FnMut(Operation, u64, &mut [u8]) -> Result<(), String>,
) -> Result<(), Failure> {
    let cpu = CpuTime::of_thread();
    let mut memory = RawMemory::new(process.block_bytes_max() as usize).map_err(Failure::usage)?;
    ended.counted.memory_cpu_seconds = CpuTime::of_thread().since(cpu).seconds();
    sleep_until(process.start_delay(), shared);
    while !(shared.is_stopping)() {
        let now = shared.clock.now();
        match process.next(now) {
            Next::Operation(operation) => {
                let memory = &mut memory[..operation.bytes as usize];
                let moved = call(operation, shared.offset(operation), memory);
                end(&mut process, ended, shared, (operation, now), moved);
            }
            Next::Sync { is_data_enough } => synced(&mut process, ended, shared, is_data_enough),
            Next::WaitUntil(time) => sleep_until(time, shared),
            Next::WaitForCompletion => unreachable!("a call has ended when it returns"),
            Next::Ended => break,
        }
    }
    Ok(())
}

/// Puts what a process has written on the medium.
fn synced(process: &mut Process, ended: &mut Ended, shared: &Shared<'_>, is_data_enough: bool) {
    let synced = peer::sync(shared.path, is_data_enough);
    let done = shared.clock.now();
    ended.record_sync(done, synced.map_err(|error| error.to_string()));
    process.synced(done);
}

/// One transfer past the cache, whole.
pub fn move_raw(
    file: &RawFile,
    memory: &mut [u8],
    operation: Operation,
    offset: u64,
) -> Result<(), String> {
    let moved = match operation.op {
        Op::Read => file.read_exact_at(memory, offset),
        Op::Write => file.write_all_at(memory, offset),
    };
    moved.map_err(|RawError { fault, .. }: RawError| match fault {
        RawFault::EndOfFile { bytes_done, .. } => short(bytes_done, operation),
        fault => fault.to_string(),
    })
}

fn short(bytes_done: u64, operation: Operation) -> String {
    format!(
        "{bytes_done} of {} bytes at {}: the file ends there",
        operation.bytes, operation.offset
    )
}

/// An operation, and when it was issued.
type Issued = (Operation, Time);

/// Operations under way, by ticket.
type Under = slab::Slab<Issued>;

/// What a process does next; once the run is stopping it issues nothing more.
fn next(process: &mut Process, shared: &Shared<'_>, under: &Under, now: Time) -> Next {
    match (shared.is_stopping)() {
        true if under.is_empty() => Next::Ended,
        true => Next::WaitForCompletion,
        false => process.next(now),
    }
}

/// What came of an operation of which so many bytes were moved.
fn whole(operation: Operation, moved: Result<usize, String>) -> Result<(), String> {
    match moved? as u64 {
        bytes if bytes < operation.bytes => Err(short(bytes, operation)),
        _ => Ok(()),
    }
}

/// An operation has ended: it is recorded, and its process hears of it.
fn end(
    process: &mut Process,
    ended: &mut Ended,
    shared: &Shared<'_>,
    (operation, issued): Issued,
    moved: Result<(), String>,
) {
    let done = shared.clock.now();
    ended.record(operation, issued, done, moved, shared);
    process.completed(done);
}

/// A process with many reads through the cache in flight; its writes are calls.
fn run_batch(
    mut process: Process,
    shared: &Shared<'_>,
    ended: &mut Ended,
    file: &File,
    written: Option<&RawFile>,
) -> Result<(), Failure> {
    let mut memory = RawMemory::new(process.block_bytes_max() as usize).map_err(Failure::usage)?;
    let mut batch = file.read_path().batch();
    let mut under = Under::new();
    sleep_until(process.start_delay(), shared);
    loop {
        let now = shared.clock.now();
        let next = next(&mut process, shared, &under, now);
        match (next, written) {
            (Next::Operation(operation @ Operation { op: Op::Write, .. }), Some(written)) => {
                let memory = &mut memory[..operation.bytes as usize];
                let moved = move_raw(written, memory, operation, shared.offset(operation));
                end(&mut process, ended, shared, (operation, now), moved);
            }
            (Next::Operation(operation), _) => {
                let offset = shared.offset(operation);
                let ticket = under.insert((operation, now)) as u64;
                batch.read(file, offset, operation.bytes, ticket).map_err(Failure::usage)?;
                if operation.is_batch_end {
                    batch.start();
                }
            }
            (Next::Sync { is_data_enough }, _) => {
                synced(&mut process, ended, shared, is_data_enough);
            }
            (Next::WaitUntil(time), _) => sleep_until(time, shared),
            (Next::WaitForCompletion, _) => {
                let read = batch.wait().map_err(|error| Failure::Run(error.to_string()))?;
                let read = read.expect("what is waited for is under way");
                let under = under.remove(read.ticket() as usize);
                let copied = read.copy_to(&mut memory);
                std::hint::black_box(&memory);
                let moved = whole(under.0, copied.map_err(|error| error.to_string()));
                end(&mut process, ended, shared, under, moved);
            }
            (Next::Ended, _) => return Ok(()),
        }
    }
}

/// A process with many transfers past the cache in flight.
fn run_raw_batch(
    mut process: Process,
    shared: &Shared<'_>,
    ended: &mut Ended,
    batch: &mut RawBatch<'_>,
) -> Result<(), Failure> {
    let bytes = process.block_bytes_max() as usize;
    let spare: Result<Vec<RawMemory>, _> =
        (0..process.depth()).map(|_| RawMemory::new(bytes)).collect();
    let mut spare = spare.map_err(Failure::usage)?;
    let mut under = Under::new();
    sleep_until(process.start_delay(), shared);
    loop {
        let now = shared.clock.now();
        let next = next(&mut process, shared, &under, now);
        match next {
            Next::Operation(operation) => {
                let offset = shared.offset(operation);
                let ticket = under.insert((operation, now)) as u64;
                let memory = spare.pop().expect("no more than the depth are in flight");
                let bytes = operation.bytes as usize;
                let started = match operation.op {
                    Op::Read => batch.read(memory, bytes, offset, ticket),
                    Op::Write => batch.write(memory, bytes, offset, ticket),
                };
                started.map_err(Failure::usage)?;
            }
            Next::Sync { is_data_enough } => synced(&mut process, ended, shared, is_data_enough),
            Next::WaitUntil(time) => sleep_until(time, shared),
            Next::WaitForCompletion => {
                let moved = batch.wait().map_err(|error| Failure::Run(error.to_string()))?;
                let RawMoved { ticket, memory, result } =
                    moved.expect("what is waited for is under way");
                spare.push(memory);
                let under = under.remove(ticket as usize);
                let moved = whole(under.0, result.map_err(|error| error.fault.to_string()));
                ended.counted.requests += 1;
                ended.counted.bytes += under.0.bytes;
                end(&mut process, ended, shared, under, moved);
            }
            Next::Ended => return Ok(()),
        }
    }
}

/// Opens the storage and lays the job out on it; says which way its bytes take.
pub fn open(plan: &Plan<'_>, path: &Path, direct: Direct) -> Result<(Mode, Workload), Failure> {
    let builder = RawFile::builder().write(plan.writes()).direct(direct);
    let (mode, bytes) = found(path, builder)?;
    Ok((mode, workload_on(plan, &path.display().to_string(), bytes)?))
}

/// Which way the bytes of a file or device take, and how many there are.
pub fn found(path: &Path, builder: RawFileBuilder) -> Result<(Mode, u64), Failure> {
    let file = builder.open(path).map_err(Failure::usage)?;
    match file.bytes().map_err(Failure::usage)? {
        0 => Err(Failure::usage(OpenError::Empty { path: path.to_path_buf() })),
        bytes => Ok((file.mode(), bytes)),
    }
}

/// Lays the job's files out side by side on one existing file; a job that
/// gives no size uses the whole of it.
fn workload_on(plan: &Plan<'_>, name: &str, have_bytes: u64) -> Result<Workload, Failure> {
    let about_job = |error| Failure::about(plan.args.job.display(), error);
    let seed = plan.args.seed;
    let workload = match Workload::new(&plan.job, Placement::Modelled, seed) {
        Err(WorkloadError::UnknownSize { .. }) => {
            let one = Placement::One { name, bytes: have_bytes };
            return Workload::new(&plan.job, one, seed).map_err(about_job);
        }
        laid_out => laid_out.map_err(about_job)?,
    };
    let (starts, _) = workload.side_by_side();
    let ends = workload.files.iter().zip(starts).map(|(file, start)| start + file.bytes);
    match ends.max().unwrap_or(0) {
        need_bytes if need_bytes > have_bytes => Err(Failure::Usage(format!(
            "{}: the job's files need {need_bytes} bytes and {name} has {have_bytes}; make `size` \
             or `numjobs` smaller, or the file larger",
            plan.args.job.display()
        ))),
        _ => Ok(workload),
    }
}

/// What a reader of the row must know of how it began.
pub fn notes(mode: Mode, residency: &cold::Residency) -> Option<String> {
    let mode = (mode != Mode::Direct).then(|| mode.to_string());
    let warm = (residency.resident > 0).then(|| {
        format!("not cold: {} of {} pages stayed in memory", residency.resident, residency.pages)
    });
    join(mode, warm)
}

/// What carries the requests, where that is not the best there is.
pub fn carried_by(in_use: BackendInUse) -> Option<String> {
    let is_named = in_use.because.is_some() || in_use.kind == BackendKind::Threads;
    is_named.then(|| format!("carried by {in_use}"))
}

/// Two notes as one.
pub fn join(one: Option<String>, two: Option<String>) -> Option<String> {
    [one, two].into_iter().flatten().reduce(|one, two| format!("{one}; {two}"))
}
