//! `readpath run`: one job under every combination of storage and laws that is
//! named, one row each.

use std::path::Path;

use readpath_core::law::Spec;
use readpath_sim::job::{JobFile, Pattern};
use readpath_sim::report::Row;
use readpath_sim::simulate::{Setup, SimulateError, simulate};

use crate::args::{self, RunArgs};
use crate::exit::{Ended, Failure};
use crate::made_files::MadeFiles;
use crate::output;
use crate::peer;
use crate::progress::{Bar, Interrupt};
use crate::real;
use crate::size;
use crate::storage::Storage;

/// One job, and how each of its rows is run.
pub struct Plan<'a> {
    /// The job's name in the rows.
    pub name: String,
    /// The job.
    pub job: JobFile,
    /// What the command line says beside it.
    pub args: &'a RunArgs,
    /// Memory of the cache in bytes.
    pub memory_bytes: u64,
    /// Ctrl-C.
    pub interrupt: Interrupt,
}

/// Runs the job everywhere and prints the rows.
pub fn run(args: &RunArgs) -> Ended {
    let storages = Storage::parse_all(&args.storages)?;
    let readaheads = args::specs(&args.readahead)?;
    let schedulers = args::specs(&args.scheduler)?;
    let plan = Plan {
        name: stem(&args.job),
        job: read_job(&args.job)?,
        args,
        memory_bytes: size::parse("--memory", &args.memory)?,
        interrupt: Interrupt::listen(),
    };
    refuse_overwriting(&plan, &storages)?;
    let _made = MadeFiles::make(&plan, &storages)?;

    let mut rows = Vec::new();
    'all: for storage in &storages {
        for (readahead, scheduler) in combinations(storage, &readaheads, &schedulers) {
            if plan.interrupt.has_come() {
                break 'all;
            }
            rows.push(one(&plan, storage, readahead, scheduler)?);
        }
    }
    output::print_rows(&rows, args.seed, args.json)?;
    ended(&plan, &rows)
}

/// The kernel has laws of its own: it gives one row, whatever laws are named.
fn combinations<'a>(
    storage: &Storage,
    readaheads: &'a [Spec],
    schedulers: &'a [Spec],
) -> Vec<(&'a Spec, &'a Spec)> {
    let all =
        readaheads.iter().flat_map(|readahead| schedulers.iter().map(move |s| (readahead, s)));
    match storage {
        Storage::Kernel(_) => all.take(1).collect(),
        Storage::Modelled(_) | Storage::File(_) => all.collect(),
    }
}

fn one(
    plan: &Plan<'_>,
    storage: &Storage,
    readahead: &Spec,
    scheduler: &Spec,
) -> Result<Row, Failure> {
    let label = match storage {
        Storage::Kernel(_) => storage.to_string(),
        _ => format!("{storage} {readahead} {scheduler}"),
    };
    let bar = Bar::new(label, plan.interrupt.clone());
    let setup = |device: &Spec| Setup {
        readahead: readahead.clone(),
        scheduler: scheduler.clone(),
        memory_bytes: plan.memory_bytes,
        seed: plan.args.seed,
        ..Setup::new(device.clone())
    };
    match storage {
        Storage::Modelled(device) => {
            simulate(&plan.name, &plan.job, &setup(device), &mut |progress| bar.tell(progress))
                .map_err(|error| match error {
                    SimulateError::Workload(_) => Failure::about(plan.args.job.display(), error),
                    _ => Failure::about(storage, error),
                })
        }
        Storage::File(path) => real::run(plan, path, &setup(&Spec::plain("file")), &bar),
        Storage::Kernel(path) => peer::run(plan, path, &bar),
    }
}

/// Reads a job file; errors name the file and the line.
pub fn read_job(path: &Path) -> Result<JobFile, Failure> {
    let text = std::fs::read(path).map_err(|error| Failure::about(path.display(), error))?;
    let text = String::from_utf8(text).map_err(|_| {
        Failure::about(path.display(), "is not text; a job file is text in fio's format")
    })?;
    JobFile::parse(&text).map_err(|error| Failure::about(path.display(), error))
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}

fn refuse_overwriting(plan: &Plan<'_>, storages: &[Storage]) -> Ended {
    let writes = |pattern: Pattern| pattern.reads_percent < 100;
    let Some(job) = plan.job.jobs.iter().find(|job| writes(job.pattern)) else { return Ok(()) };
    let real = storages.iter().find(|storage| storage.path().is_some());
    match real {
        Some(storage) if !plan.args.overwrite => Err(Failure::Usage(format!(
            "job `{}` writes, and {storage} holds real data: add --overwrite if it may be lost",
            job.name
        ))),
        _ => Ok(()),
    }
}

fn ended(plan: &Plan<'_>, rows: &[Row]) -> Ended {
    if plan.interrupt.has_come() {
        return Err(Failure::Interrupted);
    }
    let failed: u64 = rows.iter().map(|row| row.errors).sum();
    match rows.iter().find_map(|row| row.first_error.as_ref()) {
        Some(first) => Err(Failure::Run(format!("{failed} operations failed; the first: {first}"))),
        None => Ok(()),
    }
}
