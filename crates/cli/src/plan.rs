//! What `readpath run` is going to do, parsed and validated: plain data that the runners take.
//!
//! Whatever can be found wrong without touching a storage is found here, so that bad input costs
//! nobody the rows before it.

mod environment;
pub mod job;
pub mod load;
pub mod log;
pub mod storage;
pub mod trace;

use std::path::Path;

use crate::args::RunArgs;
use crate::exit::Failure;
use job::JobPlan;
use load::LoadPlan;

/// One row for each combination of storage and laws.
pub enum RunPlan {
    /// Rows of a job file.
    Job(Box<JobPlan>),
    /// Rows of loads on memory.
    Loads(LoadPlan),
}

impl RunPlan {
    /// Takes the command line and the files that it names apart.
    pub fn of(args: &RunArgs) -> Result<RunPlan, Failure> {
        match is_load_file(&args.job) {
            true => LoadPlan::of(args).map(RunPlan::Loads),
            false => JobPlan::of(args).map(|plan| RunPlan::Job(Box::new(plan))),
        }
    }
}

/// Whether a file holds loads, by its name, which ends with `.toml`: fio's own files may have any
/// other.
fn is_load_file(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("toml"))
}
