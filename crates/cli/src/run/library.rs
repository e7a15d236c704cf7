//! `file:PATH` and `nfs://HOST/PATH`: a job through the library, with its public API.
//!
//! A process of the job is a thread with its own handle:
//!
//! | a job with | runs as |
//! |---|---|
//! | `psync`, `sync` | [`File::read_exact_at`](readpath::File::read_exact_at) |
//! | `libaio`, `io_uring` | from depth 2 on a [`Batch`](readpath::Batch), a ticket for each read |
//! | `mmap` | copies out of one [`Mapping`](readpath::Mapping) that all processes share |
//! | `direct=1` | a [`RawFile`](readpath::RawFile), or a [`RawBatch`] with several in flight |
//! | `raw` | a [`RawFile`](readpath::RawFile) under the named chunking policy |
//!
//! All files of a read path share its memory and its policies: the named ones, or the library's
//! defaults. Writes bypass the cache, one at a time, and invalidate the cached pages
//! ([`File::raw`](readpath::File::raw)).

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use readpath::pager::MappingMode;
use readpath::raw::RawFile;

use readpath::{BackendKind, Direct, File, Mapping, PageCache, ReadPath};
use readpath_core::request::Op;
use readpath_eval::kernel::copy_mapped;
use readpath_eval::usage::storage_read_bytes;
use readpath_sim::job::JobEngine;
use readpath_sim::report::ResultRow;
use readpath_sim::simulate::SimulationSetup;
use readpath_sim::workload::{Process, Workload};

use super::issue::{add_raw_counters, run_batch, run_calls, run_raw_batch, transfer_raw};
use super::layout::{Layout, lay_out, open_and_lay_out};
use super::processes::{
    ProcessFigures, ProcessesShared, RunObservers, run_processes, set_device_requests,
};
use crate::exit::Failure;
use crate::note;
use crate::plan::job::{JobRun, LibraryOptions};
use crate::plan::unused_options::bypasses_cache;
use crate::real_file::make_cold;

/// Checks that [`run`] could start, without running.
pub fn check(run: &JobRun, path: &Path, setup: &SimulationSetup) -> Result<(), Failure> {
    refuse_written_mappings(run, path)?;
    check_file(run, path)?;
    check_policies(setup)?;
    let logs_decisions = false;
    build_read_path(run, setup, logs_decisions).map(drop)
}

/// Checks that the job fits on the file, and that the file can be opened for it.
pub fn check_file(run: &JobRun, path: &Path) -> Result<(), Failure> {
    open_and_lay_out(run, path, Direct::Preferred).map(drop)
}

/// Checks the names and parameters of the policies.
pub fn check_policies(setup: &SimulationSetup) -> Result<(), Failure> {
    let builder = ReadPath::builder()
        .memory(setup.memory_bytes)
        .readahead(&setup.readahead.to_string())
        .scheduler(&setup.scheduler.to_string())
        .eviction(&setup.eviction.to_string());
    builder.build().map(drop).map_err(Failure::usage)
}

/// Runs the job on `path` and returns its row. The file's pages are dropped from the kernel page
/// cache first.
pub fn run(
    run: &JobRun,
    path: &Path,
    setup: &SimulationSetup,
    observers: &RunObservers<'_>,
) -> Result<ResultRow, Failure> {
    let failure = |error: &dyn std::fmt::Display| Failure::usage_of(path.display(), error);
    let (direct_mode, layout) = open_and_lay_out(run, path, Direct::Preferred)?;
    let residency = make_cold(path, &mut || observers.bar.should_continue())?;
    let read_path = build_read_path(run, setup, observers.decisions.is_some())?;
    let file = read_path.open(path).map_err(|error| failure(&error))?;
    let note = note::join(
        note::job_modes_caveat(&run.jobs, direct_mode, file.mode()),
        note::residency_caveat(&residency),
    );
    let is_mapped = run.jobs.jobs.iter().any(|job| job.engine == JobEngine::Mmap);
    let mapping = match is_mapped {
        true => Some(map_file(run, path, setup).map_err(|error| failure(&error))?),
        false => None,
    };
    let note = note::join(note, read_path.stats().backend.and_then(note::backend_caveat));
    let mapping_mode = mapping.as_ref().map(Mapping::mode);
    let library_run = LibraryRun::new(file, mapping, run.library.backend.unwrap_or_default());
    let name = format!("file:{}", path.display());
    let mut row = run_and_count(run, &name, path, library_run, layout.workload, observers)?;
    // Page cache of jobs that map the file. Other jobs have the page cache of the read path.
    let mapping_cache = match mapping_mode {
        Some(MappingMode::Served) => "own",
        _ => "kernel",
    };
    row.page_cache = run.jobs.page_cache(read_path.page_cache().name(), mapping_cache);
    // Direct reads have neither policy, and mappings have no scheduler.
    row.readahead = match run.jobs.jobs.iter().all(|job| job.is_direct) {
        true => None,
        false if is_mapped => Some(setup.readahead.to_string()),
        false => Some(readahead_name(read_path.page_cache(), setup)),
    };
    let uses_scheduler = !run.jobs.jobs.iter().all(bypasses_cache);
    row.scheduler = uses_scheduler.then(|| setup.scheduler.to_string());
    let caveats = note::join(layout.note, note::priority_caveat(&run.jobs));
    row.note = note::join(note::join(row.note, note), caveats);
    Ok(row)
}

/// Checks that [`run_nfs`] could start, without running. Opens the file on the server.
pub fn check_nfs(run: &JobRun, url: &str, setup: &SimulationSetup) -> Result<(), Failure> {
    let logs_decisions = false;
    open_nfs(run, url, path_builder(run, setup, logs_decisions)).map(drop)
}

/// Runs the job on a file of an NFS server and returns its row. The note names the READ size and
/// the type of port.
pub fn run_nfs(
    run: &JobRun,
    url: &str,
    setup: &SimulationSetup,
    observers: &RunObservers<'_>,
) -> Result<ResultRow, Failure> {
    let builder = path_builder(run, setup, observers.decisions.is_some());
    let (file, layout) = open_nfs(run, url, builder)?;
    let note = file.connection().map(|connection| {
        let port = match connection.is_from_reserved_port {
            true => "a reserved",
            false => "an unprivileged",
        };
        format!("READs of at most {} bytes, from {port} port", connection.read_bytes_max)
    });
    let page_cache = file.page_cache();
    // `open_nfs` has refused jobs that map the file.
    let no_mapping = None;
    let library_run = LibraryRun::new(file, no_mapping, run.library.backend.unwrap_or_default());
    let mut row = run_and_count(run, url, Path::new(url), library_run, layout.workload, observers)?;
    row.page_cache = Some(page_cache.name().to_owned());
    row.readahead = Some(readahead_name(page_cache, setup));
    row.scheduler = Some(setup.scheduler.to_string());
    let caveats = note::join(layout.note, note::priority_caveat(&run.jobs));
    row.note = note::join(note::join(row.note, note), caveats);
    Ok(row)
}

/// Opens the file on the server and lays the job out on it. Refuses jobs that write, are direct or
/// map the file, and empty files.
fn open_nfs(
    run: &JobRun,
    url: &str,
    builder: readpath::Builder,
) -> Result<(File, Layout), Failure> {
    if run.writes() {
        return Err(Failure::Usage(format!(
            "{url}: the job writes, and files on a server are only read; run it on file: or on a \
             modelled device"
        )));
    }
    if let Some(job) = run.jobs.jobs.iter().find(|job| bypasses_cache(job)) {
        return Err(Failure::Usage(format!(
            "{url}: job `{}` is direct or maps its file, and a server's file is read through the \
             cache; take direct=1 out, or another ioengine",
            job.name
        )));
    }
    let file = builder.open(url).map_err(Failure::usage)?;
    if file.is_empty() {
        return Err(Failure::Usage(format!(
            "{url}: is empty; write the data to be read into it first"
        )));
    }
    // A server has no direct I/O.
    let block_bytes = 1;
    let layout = lay_out(run, url, file.len(), block_bytes)?;
    Ok((file, layout))
}

/// Returns the read path options of a row: memory, backend and policies, as far as the command line
/// names them. `logs_decisions` enables the decision log.
fn path_builder(run: &JobRun, setup: &SimulationSetup, logs_decisions: bool) -> readpath::Builder {
    let LibraryOptions { page_cache, backend, is_memory_named, are_policies_named } = &run.library;
    let mut builder = ReadPath::builder().log_decisions(logs_decisions);
    if let Some(page_cache) = page_cache {
        builder = builder.page_cache(*page_cache);
    }
    if *is_memory_named {
        builder = builder.memory(setup.memory_bytes);
    }
    // Mappings and direct jobs have policies and requests of their own.
    if run.jobs.jobs.iter().all(bypasses_cache) {
        return builder;
    }
    let [readahead, scheduler, eviction] = are_policies_named;
    if *readahead {
        builder = builder.readahead(&setup.readahead.to_string());
    }
    if *scheduler {
        builder = builder.scheduler(&setup.scheduler.to_string());
    }
    if *eviction {
        builder = builder.eviction(&setup.eviction.to_string());
    }
    match backend {
        Some(backend) => builder.backend(*backend),
        None => builder,
    }
}

/// Readahead policy of a row: the policy of the library for this page cache.
fn readahead_name(page_cache: PageCache, setup: &SimulationSetup) -> String {
    match page_cache {
        PageCache::None => "none".to_owned(),
        PageCache::Kernel | PageCache::Own { .. } => setup.readahead.to_string(),
    }
}

/// Builds the read path of a row. `logs_decisions` enables its decision log.
fn build_read_path(
    run: &JobRun,
    setup: &SimulationSetup,
    logs_decisions: bool,
) -> Result<ReadPath, Failure> {
    path_builder(run, setup, logs_decisions).build().map_err(Failure::usage)
}

/// Maps the file through the library, with the memory, the backend and the readahead policy of the
/// row. The row's values are set also where the command line names none: a mapping shares nothing
/// with the read path of [`path_builder`].
fn map_file(
    run: &JobRun,
    path: &Path,
    setup: &SimulationSetup,
) -> Result<Mapping, readpath::PagerError> {
    let backend = run.library.backend.unwrap_or_default();
    let builder = Mapping::builder().memory(setup.memory_bytes).backend(backend);
    // SAFETY: the file does not change during the run: a job that maps it does not write.
    unsafe { builder.readahead(&setup.readahead.to_string()).open(path) }
}

/// Refuses a writing job with mappings: the library's mappings are read-only.
fn refuse_written_mappings(run: &JobRun, path: &Path) -> Result<(), Failure> {
    let mapped_job = run.jobs.jobs.iter().find(|job| job.engine == JobEngine::Mmap);
    match mapped_job.filter(|_| run.writes()) {
        None => Ok(()),
        Some(job) => Err(Failure::Usage(format!(
            "file:{}: job `{}` maps a file that is written, and mappings of the library are for \
             reading; give another ioengine, or run it on kernel: or a modelled device",
            path.display(),
            job.name
        ))),
    }
}

/// State shared by the processes of a run.
struct LibraryRun {
    /// The file on which all files of the job are laid out.
    file: File,
    /// Mapping of the file, for jobs with `ioengine=mmap`.
    mapping: Option<Mapping>,
    /// Backend of the files for direct transfers.
    backend: BackendKind,
    /// Bytes requested by reads through the cache.
    requested_bytes: AtomicU64,
    /// Part of the requested bytes that was in the cache.
    cached_bytes: AtomicU64,
    /// Part of the cached bytes that the kernel page cache had.
    kernel_cached_bytes: AtomicU64,
}

impl LibraryRun {
    /// Creates the state of a run, with all counts 0.
    fn new(file: File, mapping: Option<Mapping>, backend: BackendKind) -> LibraryRun {
        let (requested_bytes, cached_bytes, kernel_cached_bytes) = Default::default();
        LibraryRun { file, mapping, backend, requested_bytes, cached_bytes, kernel_cached_bytes }
    }
}

/// Runs the job, counts its device requests, and returns its row. `name` is the storage in the row.
/// `path` is the file, which some processes open themselves; for NFS it is a mere name.
fn run_and_count(
    run: &JobRun,
    name: &str,
    path: &Path,
    library_run: LibraryRun,
    workload: Workload,
    observers: &RunObservers<'_>,
) -> Result<ResultRow, Failure> {
    let read_path = library_run.file.read_path();
    let run_process =
        |process: Process, shared: &ProcessesShared<'_>| run_process(process, shared, &library_run);
    // Each policy keeps only its last decisions, which must be taken while the job runs.
    let mut poll_decisions = || {
        if let Some(log) = observers.decisions {
            read_path.take_decisions().iter().for_each(|decision| log.write_decision(decision));
        }
    };
    let read_bytes_before = storage_read_bytes();
    let run_figures =
        run_processes(run, path, workload, observers, &mut poll_decisions, &run_process)?;
    let mut row = run_figures.row(run, name);
    row.engine = Some(run_figures.engines);
    row.cpu_seconds = Some(run_figures.cpu_seconds);
    let stats = read_path.stats();
    let mapped = library_run.mapping.as_ref().map(Mapping::stats);
    let (mapping_requests, mapping_bytes) =
        mapped.map_or((0, 0), |mapped| (mapped.device_reads, mapped.device_read_bytes));
    let requested_bytes = library_run.requested_bytes.load(Ordering::Relaxed);
    // The kernel does not report its device requests, only the bytes read for this process. A job
    // without cached reads has no part in the page cache.
    let is_kernel_cached =
        requested_bytes > 0 && library_run.file.page_cache() == PageCache::Kernel;
    let is_kernel_mapping =
        library_run.mapping.as_ref().is_some_and(|mapping| mapping.mode() != MappingMode::Served);
    let is_counted = !is_kernel_cached && !is_kernel_mapping;
    let requests = stats.device_reads + run_figures.counted.requests + mapping_requests;
    let bytes = match is_counted {
        true => Some(stats.device_bytes + run_figures.counted.bytes + mapping_bytes),
        false => storage_read_bytes()
            .zip(read_bytes_before)
            .map(|(now, before)| now.saturating_sub(before)),
    };
    row.device_bytes = bytes;
    if let Some(bytes) = bytes.filter(|_| is_counted) {
        set_device_requests(&mut row, requests, bytes);
    }
    // The read path knows the queue depth only of its own requests.
    if is_counted && run_figures.counted.requests + mapping_requests == 0 {
        row.device_depth_mean = stats.depth_mean_milli.map(|milli| milli as f64 / 1e3);
        row.device_depth_max = (requests > 0).then_some(stats.depth_max);
    }
    let cached_bytes = library_run.cached_bytes.load(Ordering::Relaxed);
    // The coverage is known only if all operations of the job were reads through the cache.
    if requested_bytes == row.bytes && requested_bytes > 0 {
        row.coverage = Some(cached_bytes as f64 / requested_bytes as f64);
        row.waste_bytes = is_counted.then_some(stats.unused_bytes);
    }
    // An amplification is of reads alone, and the bytes of the row contain the writes.
    if !run.writes() && row.bytes > 0 {
        row.amplification = bytes.map(|bytes| bytes as f64 / row.bytes as f64);
    }
    let kernel_cached = library_run.kernel_cached_bytes.load(Ordering::Relaxed);
    let kernel_note = note::kernel_cache_caveat(kernel_cached);
    let mapping_note =
        library_run.mapping.as_ref().and_then(|mapping| note::mapping_caveat(mapping.mode()));
    row.note = note::join(row.note, note::join(kernel_note, mapping_note));
    Ok(row)
}

/// Runs one process from its first operation to its last: by the mapping, by direct transfers or
/// through the cache. Returns its figures.
fn run_process(
    process: Process,
    shared: &ProcessesShared<'_>,
    library_run: &LibraryRun,
) -> Result<ProcessFigures, Failure> {
    let mut figures = ProcessFigures::with_engine(process.engine().name());
    match (process.engine(), process.is_direct()) {
        (JobEngine::Mmap, _) => run_mapped(process, shared, library_run, &mut figures)?,
        (_, true) => run_direct(process, shared, library_run, &mut figures)?,
        (_, false) => run_cached(process, shared, library_run, &mut figures)?,
    }
    Ok(figures)
}

/// Runs a process that copies from the mapping of the file. After a bus error all its further
/// operations fail.
fn run_mapped(
    process: Process,
    shared: &ProcessesShared<'_>,
    library_run: &LibraryRun,
    figures: &mut ProcessFigures,
) -> Result<(), Failure> {
    let mapping = library_run.mapping.as_ref().expect("a job that maps has its file mapped");
    // The advice of a process is for the whole file.
    let from_start = 0;
    mapping.advise(process.mapping_advice(), from_start, mapping.len() as u64);
    let mut has_failed = false;
    run_calls(process, shared, mapping.len() as u64, figures, |operation, offset, memory| {
        if has_failed {
            return Err("the mapping could not be read before".to_owned());
        }
        let start = offset as usize;
        let block = &mapping.as_slice()[start..start + operation.bytes as usize];
        // SAFETY: after an error this process no longer accesses the mapping. Other
        // processes fail at the same bytes: the file became shorter, or its device fails
        // there.
        let copied = unsafe { copy_mapped(block, memory) };
        has_failed = copied.is_err();
        copied.map_err(|address| {
            let byte = offset + (address - block.as_ptr() as usize) as u64;
            format!(
                "at byte {byte}: a bus error: the file has become shorter, or can't be read there"
            )
        })
    })
}

/// Runs a process of direct transfers, past every cache.
fn run_direct(
    process: Process,
    shared: &ProcessesShared<'_>,
    library_run: &LibraryRun,
    figures: &mut ProcessFigures,
) -> Result<(), Failure> {
    let file = open_raw(&process, shared, library_run)?;
    let end_bytes = library_run.file.len();
    match process.depth() {
        1 => run_calls(process, shared, end_bytes, figures, |operation, offset, memory| {
            transfer_raw(&file, memory, operation, offset)
        })?,
        depth => {
            let mut batch = file.batch(depth).map_err(Failure::usage)?;
            run_raw_batch(process, shared, end_bytes, figures, &mut batch)?;
        }
    }
    add_raw_counters(figures, &file);
    Ok(())
}

/// Runs a process that reads through the cache, and adds its counters to `library_run` and
/// `figures`. A queue depth of 1 makes single calls, a larger one batches. Writes are direct
/// transfers.
fn run_cached(
    process: Process,
    shared: &ProcessesShared<'_>,
    library_run: &LibraryRun,
    figures: &mut ProcessFigures,
) -> Result<(), Failure> {
    let file = library_run.file.reopen();
    // As in fio, a job with `invalidate` drops the cached pages when it starts.
    if process.invalidates() {
        let from_start = 0;
        file.invalidate(from_start, file.len());
    }
    file.advise(process.advice());
    let raw_file = process.writes().then(|| open_raw(&process, shared, library_run)).transpose()?;
    match process.depth() {
        1 => run_calls(process, shared, file.len(), figures, |operation, offset, memory| {
            match (operation.op, &raw_file) {
                (Op::Write, Some(raw_file)) => transfer_raw(raw_file, memory, operation, offset),
                // A read: a process that writes has a `raw_file`.
                _ => file.read_exact_at(memory, offset).map_err(|error| error.to_string()),
            }
        })?,
        _ => run_batch(process, shared, figures, &file, raw_file.as_ref())?,
    }
    let stats = file.stats();
    library_run.requested_bytes.fetch_add(stats.bytes, Ordering::Relaxed);
    library_run.cached_bytes.fetch_add(stats.cached_bytes, Ordering::Relaxed);
    let kernel_cached_bytes = stats.kernel_cached_bytes;
    library_run.kernel_cached_bytes.fetch_add(kernel_cached_bytes, Ordering::Relaxed);
    if let Some(raw_file) = raw_file {
        add_raw_counters(figures, &raw_file);
    }
    Ok(())
}

/// Opens the file for direct I/O. A process that writes opens it through the read path: its writes
/// invalidate the cached pages there. Other processes open the file by its path.
fn open_raw(
    process: &Process,
    shared: &ProcessesShared<'_>,
    library_run: &LibraryRun,
) -> Result<RawFile, Failure> {
    let builder = RawFile::builder().write(process.writes()).backend(library_run.backend);
    let file = match process.writes() {
        true => library_run.file.raw(builder),
        false => builder.open(shared.path),
    };
    file.map_err(Failure::usage)
}
