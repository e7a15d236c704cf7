//! `file:PATH` for raw jobs. Each operation is one call on a raw file, which cuts it into chunks.
//! Each process has a thread and its own raw file.

use std::path::Path;

use readpath::{BackendKind, Direct, RawFile};
use readpath_core::policy::Spec;
use readpath_sim::job::JobEngine;
use readpath_sim::report::ResultRow;
use readpath_sim::workload::Process;

use super::issue::{add_raw_counters, run_calls, transfer_raw};
use super::layout::open_and_lay_out;
use super::processes::{
    ProcessFigures, ProcessesShared, RunObservers, run_processes, set_device_requests,
};
use crate::exit::Failure;
use crate::note;
use crate::plan::job::JobRun;
use crate::real_file::make_cold;

/// Runs the job on `path` under the chunking policy `policy`, and returns its row. The file's pages
/// are dropped from the kernel page cache first.
pub fn run(
    run: &JobRun,
    path: &Path,
    policy: &Spec,
    observers: &RunObservers<'_>,
) -> Result<ResultRow, Failure> {
    let (mode, layout) = open_and_lay_out(run, path, Direct::Preferred)?;
    let residency = make_cold(path, &mut || observers.bar.should_continue())?;
    let note = note::start_caveat(mode, &residency);
    let backend = run.library.backend.unwrap_or_default();
    // Opened only to find out the backend in use.
    let probe_file = RawFile::builder().backend(backend).open(path).map_err(Failure::usage)?;
    let note = note::join(note, note::backend_caveat(probe_file.backend()));
    drop(probe_file);
    let end_bytes = layout.file_bytes;
    let run_process = |process: Process, shared: &ProcessesShared<'_>| {
        run_process(process, shared, end_bytes, policy, backend)
    };
    // Chunking policies log no decisions.
    let nothing_to_poll = &mut || {};
    let run_figures =
        run_processes(run, path, layout.workload, observers, nothing_to_poll, &run_process)?;
    let counted = run_figures.counted;
    let mut row = run_figures.row(run, &format!("file:{}", path.display()));
    row.cpu_seconds = Some(run_figures.cpu_seconds);
    row.raw = Some(policy.to_string());
    set_device_requests(&mut row, counted.requests, counted.bytes);
    row.note = note::join(row.note, note::join(note, layout.note));
    Ok(row)
}

/// Runs one process, from its first operation to its last. Reads end before `end_bytes`, the length
/// of the file.
fn run_process(
    process: Process,
    shared: &ProcessesShared<'_>,
    end_bytes: u64,
    policy: &Spec,
    backend: BackendKind,
) -> Result<ProcessFigures, Failure> {
    let builder = RawFile::builder().write(process.writes()).policy(&policy.to_string());
    let file = builder.backend(backend).open(shared.path).map_err(Failure::usage)?;
    let mut figures = ProcessFigures::with_engine(JobEngine::Raw.name());
    run_calls(process, shared, end_bytes, &mut figures, |operation, offset, memory| {
        transfer_raw(&file, memory, operation, offset)
    })?;
    add_raw_counters(&mut figures, &file);
    Ok(figures)
}
