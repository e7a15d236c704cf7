//! `readpath run`: plans the rows, runs them, and prints their table.

mod content;
mod fio_options;
mod issue;
mod job;
mod kernel;
mod kernel_swap;
mod layout;
mod library;
mod load;
mod page;
mod processes;
mod raw;
mod region;
mod repeated;
mod start;

use std::iter;
use std::path::Path;

use crate::args::RunArgs;
use crate::exit::{CommandResult, Failure};
use crate::html::check_output_folder;
use crate::output::{self, OutputFormat};
use crate::output_file::check_not_needed;
use crate::plan::RunPlan;

/// Runs the job or the loads, and prints the rows.
pub fn run(args: &RunArgs) -> CommandResult {
    if args.fio_options {
        return fio_options::print_all();
    }
    check_output_folder(args.html.as_deref())?;
    let plan = RunPlan::of(args)?;
    check_outputs(args, &plan)?;
    match plan {
        RunPlan::Job(plan) => {
            let mut rows = Vec::new();
            let mut recorded_events = args.html.as_ref().map(|_| Vec::new());
            let outcome = job::run(&plan, &mut rows, recorded_events.as_mut());
            print_completed(&rows, outcome, |rows| {
                let printed = output::print_rows(rows, args.seed, args.format());
                if let (Some(path), Some(recorded_events)) = (&args.html, &recorded_events) {
                    page::job_page(rows, recorded_events).write(path)?;
                }
                printed
            })
        }
        RunPlan::Loads(plan) => {
            let mut rows = Vec::new();
            let mut recorded_events = args.html.as_ref().map(|_| Vec::new());
            let outcome = load::run(&plan, &mut rows, recorded_events.as_mut());
            print_completed(&rows, outcome, |rows| {
                let is_json = args.format() == OutputFormat::Json;
                let printed = output::print_load_rows(rows, args.seed, is_json);
                if let (Some(path), Some(recorded_events)) = (&args.html, &recorded_events) {
                    page::load_page(rows, recorded_events).write(path)?;
                }
                printed
            })
        }
    }
}

/// Refuses a log or a page that would overwrite the job, its trace, a storage or the other one.
fn check_outputs(args: &RunArgs, plan: &RunPlan) -> CommandResult {
    let inputs = match plan {
        RunPlan::Job(plan) => job::input_paths(plan),
        RunPlan::Loads(plan) => {
            let storages = plan.rows.iter().filter_map(|row| row.runner.path());
            iter::once(args.job.as_path()).chain(storages).map(Path::to_owned).collect()
        }
    };
    check_not_needed(args.log.as_deref(), &inputs)?;
    check_not_needed(args.html.as_deref(), inputs.iter().chain(&args.log))
}

/// Prints the completed rows, even if a later one failed, and returns `outcome`. A failure before
/// the first row prints nothing; an interrupt prints an empty table.
fn print_completed<R>(
    rows: &[R],
    outcome: CommandResult,
    print: impl FnOnce(&[R]) -> CommandResult,
) -> CommandResult {
    if !rows.is_empty() || matches!(outcome, Ok(()) | Err(Failure::Interrupted)) {
        print(rows)?;
    }
    // An interrupt with printed figures has a message of its own.
    outcome.map_err(|failure| failure.after_figures(rows.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupt_before_the_first_row_is_one_without_figures() {
        let end = |rows: &[u8]| print_completed(rows, Err(Failure::Interrupted), |_| Ok(()));
        assert!(matches!(end(&[]), Err(Failure::Interrupted)));
        assert!(matches!(end(&[1]), Err(Failure::InterruptedAfterFigures)));
    }
}
