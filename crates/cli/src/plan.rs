//! Plan of `readpath run`: parsed and validated, as plain data for the runners.
//!
//! Every fault that is detectable without access to a storage is reported here, before the first
//! row runs.

pub mod environment;
pub mod job;
pub mod load;
pub mod log;
pub mod storage;
pub mod trace;
mod trace_options;
pub mod unused_options;

use std::path::Path;

use crate::args::RunArgs;
use crate::exit::Failure;
use job::JobPlan;
use load::LoadPlan;

/// Plan with one row for each combination of storage and policies.
pub enum RunPlan {
    /// Rows of a job file.
    Job(Box<JobPlan>),
    /// Rows of loads on memory.
    Loads(LoadPlan),
}

impl RunPlan {
    /// Parses the command line and the files it names.
    pub fn of(args: &RunArgs) -> Result<RunPlan, Failure> {
        match is_load_file(&args.job) {
            true => LoadPlan::of(args).map(RunPlan::Loads),
            false => JobPlan::of(args).map(|plan| RunPlan::Job(Box::new(plan))),
        }
    }
}

/// True for a load file, recognized by its ending `.toml`. fio's job files may have any other
/// ending.
fn is_load_file(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("toml"))
}
