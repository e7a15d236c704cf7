//! The rows of loads on memory.

use readpath_core::decision::Decided;
use readpath_sim::load::{LoadRow, LoadSetup, simulate_load};
use readpath_sim::run::Watch;

use super::kernel_swap;
use super::region;
use crate::decision_log::DecisionFile;
use crate::exit::{Ended, Failure};
use crate::plan::load::{LoadPlan, LoadRun, LoadRunner};
use crate::progress::{Bar, Interrupt};

/// Runs the loads everywhere.
pub fn run(plan: &LoadPlan, rows: &mut Vec<LoadRow>) -> Ended {
    let log = plan.log.as_ref().map(|log| DecisionFile::create(&log.path, &log.needed));
    let log = log.transpose()?;
    let interrupt = Interrupt::listen();
    for row in &plan.rows {
        let bar = Bar::new(format!("{} {}", row.load.name, row.storage), interrupt.clone());
        rows.push(match &row.runner {
            LoadRunner::Modelled(setup) => simulate(row, setup, &bar, log.as_ref()),
            LoadRunner::Region { path, swapin } => region::run(row, path, swapin, &interrupt),
            LoadRunner::Kernel { path, page_cluster } => {
                kernel_swap::run(row, path, *page_cluster, &interrupt)
            }
        }?);
    }
    log.map_or(Ok(()), |log| log.finish())?;
    unmeasured(rows)
}

fn simulate(
    row: &LoadRun,
    setup: &LoadSetup,
    bar: &Bar,
    log: Option<&DecisionFile>,
) -> Result<LoadRow, Failure> {
    if let Some(log) = log {
        let LoadRun { load, storage, .. } = row;
        log.begin(&format!("{} {storage} {} {}", load.name, setup.swapin, setup.scheduler));
    }
    let mut tell = |progress| bar.tell(progress);
    let mut decided = log.map(|log| |one: &Decided| log.decided(one));
    let decided = decided.as_mut().map(|decided| decided as &mut dyn FnMut(&Decided));
    let simulated =
        simulate_load(&row.load, setup, Watch { tell: &mut tell, decided, prepare: None });
    let simulated = simulated.map_err(|error| row.failure(&error))?;
    if bar.is_wanted() { Ok(simulated) } else { Err(Failure::Interrupted) }
}

/// A row without figures is not nothing: the command's exit code says so.
fn unmeasured(rows: &[LoadRow]) -> Ended {
    let row = rows.iter().find(|row| row.seconds.is_none());
    row.map_or(Ok(()), |row| {
        let reason = row.note.as_deref().unwrap_or("it was not measured");
        Err(Failure::Unavailable(format!("{} on {}: {reason}", row.job, row.storage)))
    })
}
