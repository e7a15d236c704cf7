//! Execution of a job's rows.
//!
//! A *row* is one result: the job on one storage under one combination of policies. Its *runner*
//! ([`JobRunner`]) is the simulation, the library or the kernel.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use readpath_core::decision::LoggedDecision;
use readpath_core::unit::SECTOR_BYTES;
use readpath_sim::observe::{Events, Observer};
use readpath_sim::report::ResultRow;
use readpath_sim::run::RunObserver;
use readpath_sim::simulate::{Participants, device_caps, simulate_with};
use readpath_trace::block_trace::simulate_trace;

use super::processes::RunObservers;
use super::{kernel, library, raw, repeated};
use crate::decision_log::DecisionFile;
use crate::exit::{CommandResult, Failure};
use crate::note;
use crate::operation_logs::OperationLogs;
use crate::plan::job::{JobPlan, JobRow, JobRun, JobRunner};
use crate::plan::trace::TraceSource;
use crate::progress::{Interrupt, RunProgress};
use crate::scratch_files::ScratchFiles;

/// Maximum number of recorded events of each kind in a row. It bounds the memory and the size of
/// the page. Chosen, not measured.
const EVENTS_MAX: usize = 20_000;

/// Runs the job on every storage. All storages are checked before the first row: bad input then
/// fails at once. After the last run or a failure, adds the median of the finished runs of each row
/// to `finished_rows`. `recorded_events` gets an element for each row, which is empty for rows in
/// real time and of traces.
pub fn run(
    plan: &JobPlan,
    finished_rows: &mut Vec<ResultRow>,
    recorded_events: Option<&mut Vec<Events>>,
) -> CommandResult {
    let interrupt = Interrupt::listen();
    let log = plan.log.as_deref().map(DecisionFile::create);
    let log = log.transpose()?;
    let _created_files = make_files(plan, &interrupt)?;
    plan.rows.iter().try_for_each(|row| check_row(&plan.run, row))?;
    // A repeated row would have the result of an earlier one, for example on the kernel, which
    // ignores the policies. It was only checked.
    let rows_to_run: Vec<&JobRow> = plan.rows.iter().filter(|row| !row.is_repeated).collect();
    let mut runs_of_rows: Vec<Vec<ResultRow>> = vec![Vec::new(); rows_to_run.len()];
    let outcome =
        run_rows(plan, &rows_to_run, log.as_ref(), &interrupt, &mut runs_of_rows, recorded_events);
    finished_rows.extend(runs_of_rows.into_iter().filter_map(repeated::median_run));
    // The failure of a run precedes the failure of its log.
    outcome.and(log.map_or(Ok(()), |log| log.finish()))?;
    match interrupt.is_signalled() {
        true => Err(Failure::Interrupted),
        false => fail_if_operations_failed(finished_rows),
    }
}

/// Runs the rows `rows_to_run` in the plan's rounds, until an interrupt, which is no error here, or
/// the first failure. Adds each finished run to the row's element of `runs_of_rows`.
fn run_rows(
    plan: &JobPlan,
    rows_to_run: &[&JobRow],
    log: Option<&DecisionFile>,
    interrupt: &Interrupt,
    runs_of_rows: &mut [Vec<ResultRow>],
    mut recorded_events: Option<&mut Vec<Events>>,
) -> CommandResult {
    let input_paths = input_paths(plan);
    for (round, row_index) in run_order(rows_to_run, plan.runs) {
        if interrupt.is_signalled() {
            break;
        }
        let row = rows_to_run[row_index];
        let jobs = &plan.run.jobs;
        let row_number = row_index + 1;
        // Logs of the job, and events for the page.
        let operations = OperationLogs::create(jobs, &input_paths, row_number, rows_to_run.len())?;
        let observer = recorded_events.is_some().then(|| Observer::new(EVENTS_MAX));
        let row_observers = (log, observer.as_ref());
        let measured = run_row(&plan.run, row, row_observers, &operations, interrupt);
        // The logs are completed in any case. The failure of a run precedes the one of its logs.
        let logs_written = operations.finish();
        let mut measured = measured?;
        logs_written?;
        // Caveats of the measurement, of the job file, and of the names of the logs.
        let log_note = match rows_to_run.len() {
            2.. if jobs.jobs.iter().any(|job| job.logs.is_any()) => {
                Some(format!("its logs have -{row_number} in their names"))
            }
            _ => None,
        };
        measured.note = note::join(measured.note, plan.run.note.clone());
        measured.note = note::join(measured.note, log_note);
        runs_of_rows[row_index].push(measured);
        // The page shows the events of the first round.
        if let (0, Some(recorded_events), Some(observer)) =
            (round, recorded_events.as_mut(), observer)
        {
            recorded_events.push(observer.take());
        }
    }
    Ok(())
}

/// Returns pairs of round and row index, in the order of the runs. `rounds` is the number of
/// repetitions. All rows run in the first round. Later rounds have only rows on real storage,
/// because a simulated row repeats exactly. Each second round is in reverse order, so that no row
/// always runs before another.
fn run_order(rows: &[&JobRow], rounds: u32) -> impl Iterator<Item = (u32, usize)> {
    let is_real_time: Vec<bool> =
        rows.iter().map(|row| !matches!(row.runner, JobRunner::Modelled)).collect();
    (0..rounds).flat_map(move |round| {
        let mut indices: Vec<usize> =
            (0..is_real_time.len()).filter(|&index| round == 0 || is_real_time[index]).collect();
        if round % 2 == 1 {
            indices.reverse();
        }
        indices.into_iter().map(move |index| (round, index))
    })
}

/// Creates the missing files of the rows, if the plan requests that. If the job may write to
/// created files only, an existing file is an error. Dropping the result removes the created files.
fn make_files(plan: &JobPlan, interrupt: &Interrupt) -> Result<ScratchFiles, Failure> {
    let mut created_files = ScratchFiles::default();
    let Some(bytes) = plan.created_file_bytes else { return Ok(created_files) };
    let mut created_paths = BTreeSet::new();
    for path in plan.rows.iter().filter_map(|row| row.runner.path()) {
        // A created file may have a second spelling, such as `./new` for `new`.
        let is_created = path.canonicalize().is_ok_and(|path| created_paths.contains(&path));
        if (plan.writes_only_created && !is_created) || !path.exists() {
            // Fails for an existing file, whose data must not be lost.
            created_files.add(path, bytes, plan.run.seed, interrupt)?;
            created_paths.extend(path.canonicalize());
        }
    }
    Ok(created_files)
}

/// Returns the input files and storages of the run, which no output may overwrite.
pub(super) fn input_paths(plan: &JobPlan) -> Vec<PathBuf> {
    let trace = plan.run.trace.as_ref().map(|trace| trace.path.as_path());
    let storages = plan.rows.iter().filter_map(|row| row.runner.path());
    let paths = [Some(plan.run.path.as_path()), trace].into_iter().flatten().chain(storages);
    paths.map(Path::to_owned).collect()
}

/// Checks that a row can run on its storage, without running it.
fn check_row(run: &JobRun, row: &JobRow) -> CommandResult {
    match &row.runner {
        // The plan has checked it.
        JobRunner::Modelled => Ok(()),
        JobRunner::Nfs(url) => library::check_nfs(run, url, &row.setup),
        JobRunner::Library(path) => library::check(run, path, &row.setup),
        // Unknown policies are refused even where the row does not use them.
        JobRunner::Raw(path) => {
            library::check_file(run, path)?;
            library::check_policies(&row.setup)
        }
        JobRunner::Kernel(path) => {
            kernel::check(run, path)?;
            library::check_policies(&row.setup)
        }
    }
}

/// Runs one row with its runner and returns its results. A decision file gets the row's decisions.
fn run_row(
    run: &JobRun,
    row: &JobRow,
    (decisions, observer): (Option<&DecisionFile>, Option<&Observer>),
    operations: &OperationLogs,
    interrupt: &Interrupt,
) -> Result<ResultRow, Failure> {
    if let Some(log) = decisions {
        log.begin_row(&row.label);
    }
    let bar = RunProgress::new(row.label.clone(), interrupt.clone());
    let observers = &RunObservers { bar: &bar, decisions, operations };
    let measured = match &row.runner {
        JobRunner::Modelled => {
            // While the guard lives, the process ends 0.8 s after a signal at the latest: a model
            // may compute for longer between two checks of the interrupt.
            let _modelled = interrupt.begin_modelled_run();
            simulate(run, row, observers, observer)
        }
        JobRunner::Library(path) => library::run(run, path, &row.setup, observers),
        JobRunner::Nfs(url) => library::run_nfs(run, url, &row.setup, observers),
        JobRunner::Raw(path) => raw::run(run, path, &row.setup.chunking, observers),
        JobRunner::Kernel(path) => kernel::run(run, path, observers),
    }?;
    run.trace.as_ref().map_or(Ok(()), TraceSource::check_replayed)?;
    Ok(measured)
}

/// Simulates one row on its modelled device, from the job file or from the trace of `--trace`.
/// Decisions and operations go to the logs of `observers`, device events to `observer` if the run
/// has a page to draw. The replay of a trace records no device events.
fn simulate(
    run: &JobRun,
    row: &JobRow,
    observers: &RunObservers<'_>,
    observer: Option<&Observer>,
) -> Result<ResultRow, Failure> {
    let mut on_progress = |progress| observers.bar.update(progress);
    let mut on_decision =
        observers.decisions.map(|log| |decision: &LoggedDecision| log.write_decision(decision));
    let on_decision =
        on_decision.as_mut().map(|on_decision| on_decision as &mut dyn FnMut(&LoggedDecision));
    let mut attach_logs = |workload: &mut _| observers.operations.attach(&run.jobs, workload);
    let run_observer = RunObserver {
        on_progress: &mut on_progress,
        on_decision,
        on_workload: Some(&mut attach_logs),
    };
    if let Some(trace) = &run.trace {
        let caps = device_caps(&row.setup).map_err(|error| row.failure(run, &error))?;
        let block_bytes = u64::from(caps.alignment_sectors) * SECTOR_BYTES;
        let device_bytes = caps.sectors.saturating_mul(SECTOR_BYTES);
        let is_real = false;
        let (workload, note) = trace.workload(device_bytes, block_bytes, is_real)?;
        let mut measured = simulate_trace(&run.name, &run.jobs, workload, &row.setup, run_observer)
            .map_err(|error| row.failure(run, &error))?;
        measured.note = note::join(measured.note, note);
        return Ok(measured);
    }
    let participants = Participants { observer: observer.cloned(), ..Participants::default() };
    simulate_with(&run.name, &run.jobs, &row.setup, participants, run_observer)
        .map_err(|error| row.failure(run, &error))
}

/// Turns failed operations in the rows into a failure of the command. `Ok` if none has failed.
fn fail_if_operations_failed(rows: &[ResultRow]) -> CommandResult {
    let failed: u64 = rows.iter().map(|row| row.errors).sum();
    let first_failed = rows.iter().find_map(|row| Some((&row.storage, row.first_error.as_ref()?)));
    match first_failed {
        Some((storage, error)) => Err(Failure::Run(format!(
            "{failed} operations failed; the first, on {storage}: {error}"
        ))),
        None => Ok(()),
    }
}
