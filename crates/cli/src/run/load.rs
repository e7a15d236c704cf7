//! Execution of the rows of loads on memory. A *load* has processes that touch their memory under a
//! limit. A *row* is one load on one storage under one combination of policies.

use readpath_core::decision::LoggedDecision;
use readpath_sim::load::{LoadRow, LoadSetup, simulate_load_with};
use readpath_sim::observe::{Events, Observer};
use readpath_sim::run::RunObserver;

use super::kernel_swap;
use super::region;
use crate::decision_log::DecisionFile;
use crate::exit::{CommandResult, Failure};
use crate::plan::load::{LoadPlan, LoadRun, LoadRunner};
use crate::progress::{Interrupt, RunProgress};

/// Maximum number of recorded requests in a row. It bounds the memory and the size of the page.
/// Chosen, not measured.
const EVENTS_MAX: usize = 20_000;

/// Runs the planned rows and adds each to `finished_rows`, which keeps them if a later one fails.
/// `recorded_events` gets an element for each row, which is empty for rows on real storage. A
/// runner is a simulation, a memory region of the library, or the kernel's own swap.
pub fn run(
    plan: &LoadPlan,
    finished_rows: &mut Vec<LoadRow>,
    mut recorded_events: Option<&mut Vec<Events>>,
) -> CommandResult {
    let log = plan.log.as_deref().map(DecisionFile::create);
    let log = log.transpose()?;
    let interrupt = Interrupt::listen();
    for row in &plan.rows {
        let bar = RunProgress::new(format!("{} {}", row.load.name, row.storage), interrupt.clone());
        let observer = recorded_events.is_some().then(|| Observer::new(EVENTS_MAX));
        finished_rows.push(match &row.runner {
            LoadRunner::Modelled(setup) => {
                // While the guard lives, the process ends 0.8 s after a signal at the latest.
                let _modelled = interrupt.begin_modelled_run();
                simulate(row, setup, &bar, log.as_ref(), observer.clone())
            }
            LoadRunner::Region { path, swapin, eviction } => {
                region::run(row, path, swapin, eviction, &interrupt)
            }
            LoadRunner::Kernel { path, page_cluster } => {
                kernel_swap::run(row, path, *page_cluster, &interrupt)
            }
        }?);
        if let (Some(recorded_events), Some(observer)) = (recorded_events.as_mut(), observer) {
            recorded_events.push(observer.take());
        }
    }
    log.map_or(Ok(()), |log| log.finish())?;
    fail_if_unmeasured(finished_rows)
}

/// Simulates one row of a load on memory. Decisions of the policies go to `log`, device events to
/// `observer`; both are optional. Fails with [`Failure::Interrupted`] if the user ended the run.
fn simulate(
    row: &LoadRun,
    setup: &LoadSetup,
    bar: &RunProgress,
    log: Option<&DecisionFile>,
    observer: Option<Observer>,
) -> Result<LoadRow, Failure> {
    if let Some(log) = log {
        let LoadRun { load, storage, .. } = row;
        log.begin_row(&format!("{} {storage} {} {}", load.name, setup.swapin, setup.scheduler));
    }
    let mut on_progress = |progress| bar.update(progress);
    let mut on_decision = log.map(|log| |decision: &LoggedDecision| log.write_decision(decision));
    let on_decision =
        on_decision.as_mut().map(|on_decision| on_decision as &mut dyn FnMut(&LoggedDecision));
    // A load has touches in place of a workload of operations.
    let on_workload = None;
    let run_observer = RunObserver { on_progress: &mut on_progress, on_decision, on_workload };
    let simulated = simulate_load_with(&row.load, setup, observer, run_observer);
    let simulated = simulated.map_err(|error| row.failure(&error))?;
    if bar.should_continue() { Ok(simulated) } else { Err(Failure::Interrupted) }
}

/// Fails with the reason of the first row without figures. `Ok` if all rows have them.
fn fail_if_unmeasured(rows: &[LoadRow]) -> CommandResult {
    let row = rows.iter().find(|row| row.seconds.is_none());
    row.map_or(Ok(()), |row| {
        let reason = row.note.as_deref().unwrap_or("it was not measured");
        Err(Failure::Unavailable(format!("{} on {}: {reason}", row.job, row.storage)))
    })
}
