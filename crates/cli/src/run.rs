//! `readpath run`: one job under every combination of storage and laws that is
//! named, one row each.

use std::path::Path;

use readpath_core::decision::Decided;
use readpath_core::law::Spec;
use readpath_core::unit::PAGE_BYTES;
use readpath_sim::job::{Job, JobFile};
use readpath_sim::report::Row;
use readpath_sim::run::Watch;
use readpath_sim::simulate::{self, About, Setup, SimulateError, simulate_watched};

use crate::args::RunArgs;
use crate::decision_log::{self, DecisionFile};
use crate::exit::{Ended, Failure};
use crate::input;
use crate::load_run;
use crate::made_files::MadeFiles;
use crate::output;
use crate::peer;
use crate::progress::{Bar, Interrupt};
use crate::raw;
use crate::real;
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
    /// Where the laws' decisions go.
    log: Option<DecisionFile>,
}

impl Plan<'_> {
    /// Whether any operation of the job may be a write.
    pub fn writes(&self) -> bool {
        self.job.jobs.iter().any(writes)
    }

    fn setup(&self, device: &Spec, laws: &Combination<'_>) -> Setup {
        Setup {
            readahead: laws.readahead.clone(),
            scheduler: laws.scheduler.clone(),
            raw: laws.raw.clone(),
            memory_bytes: self.memory_bytes,
            seed: self.args.seed,
            ..Setup::new(device.clone())
        }
    }
}

fn writes(job: &Job) -> bool {
    job.pattern.reads_percent < 100
}

/// The log that is asked for. The run itself needs its input and its storages.
pub fn open_log(args: &RunArgs, storages: &[Storage]) -> Result<Option<DecisionFile>, Failure> {
    let Some(log) = &args.log else { return Ok(None) };
    let files = storages.iter().filter_map(|storage| storage.path().map(|path| path.as_path()));
    let needed: Vec<&Path> = files.chain([args.job.as_path()]).collect();
    DecisionFile::create(log, &needed).map(Some)
}

/// One row to be: where, and under which laws.
struct Combination<'a> {
    storage: &'a Storage,
    readahead: &'a Spec,
    scheduler: &'a Spec,
    raw: &'a Spec,
}

/// Runs the job, or the loads, and prints the rows.
pub fn run(args: &RunArgs) -> Ended {
    match load_run::is_load_file(&args.job) {
        true => load_run::run(args),
        false => run_job(args),
    }
}

/// The readahead law where none is named.
const READAHEAD_DEFAULT: &str = "adaptive";

/// The law of raw I/O where none is named.
const RAW_DEFAULT: &str = "ring";

/// Memory of the page cache where none is named.
const MEMORY_DEFAULT: &str = "256MiB";

fn memory_text(args: &RunArgs) -> &str {
    args.memory.as_deref().unwrap_or(MEMORY_DEFAULT)
}

/// Runs the job everywhere and prints the rows. What can be wrong is found out
/// before the first row, so that bad input costs nobody the rows before it.
fn run_job(args: &RunArgs) -> Ended {
    if args.swapin.is_some() {
        return Err(Failure::Usage(format!(
            "--swapin is for loads on memory, and {} is a job; leave it out",
            args.job.display()
        )));
    }
    let storages = Storage::parse_all(&args.storages)?;
    if let Some(region) = storages.iter().find(|storage| matches!(storage, Storage::Region(_))) {
        return Err(Failure::Usage(format!(
            "{region}: is memory, for loads in TOML; name file:PATH or kernel:PATH for a job"
        )));
    }
    let readaheads = input::specs(args.readahead.as_deref().unwrap_or(READAHEAD_DEFAULT))?;
    let schedulers = input::specs(&args.scheduler)?;
    let raws = input::specs(args.raw.as_deref().unwrap_or(RAW_DEFAULT))?;
    let all = combinations(&storages, &readaheads, &schedulers, &raws);
    if args.log.is_some() {
        all.iter()
            .try_for_each(|row| decision_log::check(row.storage, row.readahead, row.scheduler))?;
    }
    let mut plan = Plan {
        name: stem(&args.job),
        job: read_job(&args.job)?,
        args,
        memory_bytes: memory_bytes(memory_text(args))?,
        interrupt: Interrupt::listen(),
        log: None,
    };
    raw::check(&plan, &storages)?;
    refuse_overwriting(&plan, &storages)?;
    refuse_small_memory(&plan, &storages)?;
    let (modelled, real): (Vec<_>, Vec<_>) =
        all.iter().partition(|combination| combination.storage.is_modelled());
    modelled.into_iter().try_for_each(|combination| check(&plan, combination))?;
    plan.log = open_log(args, &storages)?;
    let plan = plan;
    let mut rows = Vec::new();
    let failure = MadeFiles::make(&plan, &storages)
        .and_then(|made| {
            real.into_iter().try_for_each(|combination| check(&plan, combination))?;
            run_all(&plan, &all, &mut rows)?;
            drop(made);
            plan.log.as_ref().map_or(Ok(()), DecisionFile::finish)?;
            ended(&plan, &rows)
        })
        .err();
    if !rows.is_empty() || matches!(failure, None | Some(Failure::Interrupted)) {
        output::print_rows(&rows, args.seed, args.json)?;
    }
    failure.map_or(Ok(()), Err)
}

fn run_all(plan: &Plan<'_>, all: &[Combination<'_>], rows: &mut Vec<Row>) -> Ended {
    for (index, combination) in all.iter().enumerate() {
        if plan.interrupt.has_come() {
            break;
        }
        if all[..index].iter().any(|earlier| is_repeated(plan, earlier, combination)) {
            continue;
        }
        rows.push(one(plan, combination)?);
    }
    Ok(())
}

/// Whether a row would be an earlier one over again: the kernel has laws of its
/// own and gives one row, whatever laws are named; and a raw file knows neither
/// readahead nor a scheduler.
fn is_repeated(plan: &Plan<'_>, earlier: &Combination<'_>, this: &Combination<'_>) -> bool {
    std::ptr::eq(earlier.storage, this.storage)
        && match this.storage {
            Storage::Kernel(_) => true,
            Storage::File(_) => plan.job.has_raw() && std::ptr::eq(earlier.raw, this.raw),
            Storage::Modelled(_) | Storage::Nfs(_) | Storage::Region(_) => false,
        }
}

fn combinations<'a>(
    storages: &'a [Storage],
    readaheads: &'a [Spec],
    schedulers: &'a [Spec],
    raws: &'a [Spec],
) -> Vec<Combination<'a>> {
    let mut all = Vec::new();
    for storage in storages {
        for readahead in readaheads {
            for scheduler in schedulers {
                for raw in raws {
                    all.push(Combination { storage, readahead, scheduler, raw });
                }
            }
        }
    }
    all
}

/// Finds out whether a row could be run, without running it.
fn check(plan: &Plan<'_>, combination: &Combination<'_>) -> Ended {
    let storage = combination.storage;
    match storage {
        Storage::Modelled(device) => simulate::check(&plan.job, &plan.setup(device, combination))
            .map_err(|error| told(plan, storage, &error)),
        Storage::File(path) | Storage::Kernel(path) | Storage::Region(path) => {
            let setup = plan.setup(&Spec::plain("file"), combination);
            real::check(plan, path, &setup)
        }
        Storage::Nfs(url) => {
            real::check_nfs(plan, url, &plan.setup(&Spec::plain("nfs"), combination))
        }
    }
}

fn one(plan: &Plan<'_>, combination: &Combination<'_>) -> Result<Row, Failure> {
    let &Combination { storage, readahead, scheduler, raw: raw_law } = combination;
    let is_raw = plan.job.has_raw();
    let label = match storage {
        Storage::Kernel(_) => storage.to_string(),
        Storage::File(_) if is_raw => format!("{storage} {raw_law}"),
        _ if is_raw => format!("{storage} {readahead} {scheduler} {raw_law}"),
        _ => format!("{storage} {readahead} {scheduler}"),
    };
    let mut decided = plan.log.as_ref().map(|log| {
        log.begin(&label);
        |decided: &Decided| log.decided(decided)
    });
    let bar = Bar::new(label, plan.interrupt.clone());
    let mut tell = |progress| bar.tell(progress);
    let decided = decided.as_mut().map(|decided| decided as &mut dyn FnMut(&Decided));
    let watch = Watch { tell: &mut tell, decided };
    let setup = |device: &Spec| plan.setup(device, combination);
    match storage {
        Storage::Modelled(device) => simulate_watched(&plan.name, &plan.job, &setup(device), watch)
            .map_err(|error| told(plan, storage, &error)),
        Storage::File(path) if is_raw => raw::run(plan, path, raw_law, &bar),
        Storage::File(path) => real::run(plan, path, &setup(&Spec::plain("file")), watch),
        Storage::Kernel(path) => peer::run(plan, path, &bar),
        Storage::Nfs(url) => real::run_nfs(plan, url, &setup(&Spec::plain("nfs")), watch),
        Storage::Region(_) => unreachable!("refused before the first row"),
    }
}

/// What is wrong with the job is told of the job file, all else of the storage.
fn told(plan: &Plan<'_>, storage: &Storage, error: &SimulateError) -> Failure {
    match error.about() {
        About::Job => Failure::about(plan.args.job.display(), error),
        About::Laws => Failure::usage(error),
        About::Storage => Failure::about(storage, error),
    }
}

/// Reads a job file; errors name the file and the line.
pub fn read_job(path: &Path) -> Result<JobFile, Failure> {
    let text = input::text(path, "a job file is text in fio's format")?;
    JobFile::parse(&text).map_err(|error| Failure::about(path.display(), error))
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}

fn refuse_overwriting(plan: &Plan<'_>, storages: &[Storage]) -> Ended {
    let Some(job) = plan.job.jobs.iter().find(|job| writes(job)) else { return Ok(()) };
    let real = storages.iter().find(|storage| storage.path().is_some());
    match real {
        Some(storage) if !plan.args.overwrite => Err(Failure::Usage(format!(
            "job `{}` writes, and {storage} holds real data: add --overwrite if it may be lost",
            job.name
        ))),
        _ => Ok(()),
    }
}

/// Memory of the cache: at least a page, and so much at most that the cache's
/// own books find room in this machine's memory: 64 bytes a page.
fn memory_bytes(text: &str) -> Result<u64, Failure> {
    let bytes = input::size("--memory", text)?;
    let system = rustix::system::sysinfo();
    let most = simulate::memory_bytes_max(system.totalram as u64 * u64::from(system.mem_unit));
    match bytes {
        0..PAGE_BYTES => Err(Failure::Usage(format!(
            "--memory {text}: holds no page; give at least {PAGE_BYTES} bytes"
        ))),
        _ if bytes > most => Err(Failure::Usage(format!(
            "--memory {text}: the books of so large a cache don't fit into this machine; give at \
             most {} GiB",
            most >> 30
        ))),
        _ => Ok(bytes),
    }
}

/// The kernel's own path has memory of its own.
fn refuse_small_memory(plan: &Plan<'_>, storages: &[Storage]) -> Ended {
    if storages.iter().all(|storage| matches!(storage, Storage::Kernel(_))) {
        return Ok(());
    }
    simulate::check_memory(&plan.job, plan.memory_bytes).map_err(|error| {
        let job_file = plan.args.job.display();
        Failure::Usage(format!("--memory {}: {job_file}: {error}", memory_text(plan.args)))
    })
}

fn ended(plan: &Plan<'_>, rows: &[Row]) -> Ended {
    if plan.interrupt.has_come() {
        return Err(Failure::Interrupted);
    }
    let failed: u64 = rows.iter().map(|row| row.errors).sum();
    let first = rows.iter().find_map(|row| Some((&row.storage, row.first_error.as_ref()?)));
    match first {
        Some((storage, error)) => Err(Failure::Run(format!(
            "{failed} operations failed; the first, on {storage}: {error}"
        ))),
        None => Ok(()),
    }
}
