//! Plan of a job file: one row for each combination of the named storages and policies.

use std::fmt::Display;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use readpath::{BackendKind, PageCache};
use readpath_core::eviction;
use readpath_core::policy::Spec;
use readpath_core::unit::PAGE_BYTES;
use readpath_sim::job::{Job, JobEngine, JobFile, printable};
use readpath_sim::simulate::{self, ErrorSubject, SimulateError, SimulationSetup};
use readpath_sim::workload::{FileSource, Workload};
use readpath_trace::block_trace::TraceFormat;

use super::environment;
use super::log;
use super::storage::Storage;
use super::trace::{TraceSource, check_is_file};
use super::unused_options::{bypasses_cache, refuse_unused_options};
use crate::args::{PageCacheMode, RunArgs};
use crate::exit::{CommandResult, Failure};
use crate::input;

/// Default readahead policy.
const READAHEAD_DEFAULT: &str = "adaptive";

/// Default chunking policy of raw I/O.
const CHUNKING_DEFAULT: &str = "ring";

/// Default memory of the page cache. Chosen, not measured.
const MEMORY_DEFAULT: &str = "256MiB";

/// Rows of a job, in the order of the table.
pub struct JobPlan {
    /// Job that every row runs.
    pub run: JobRun,
    /// Rows to run.
    pub rows: Vec<JobRow>,
    /// Size at which missing files are created; `None`: they must exist.
    pub created_file_bytes: Option<u64>,
    /// True if the job writes to files that the run creates, and may write to no other. A file that
    /// exists by then is an error.
    pub writes_only_created: bool,
    /// Log of the policies' decisions.
    pub log: Option<PathBuf>,
    /// Number of runs of each row in real time. Rows in virtual time are run once.
    pub runs: u32,
}

/// Job, common to all rows.
pub struct JobRun {
    /// Name of the job in the rows: the file name without its ending.
    pub name: String,
    /// Path of the job file or of the trace on the command line.
    pub path: PathBuf,
    /// Jobs of the file, or the one job that stands for a trace.
    pub jobs: JobFile,
    /// Seed of everything random.
    pub seed: u64,
    /// Options of the library for files, as given on the command line.
    pub library: LibraryOptions,
    /// Caveat about the job file, which belongs to every row.
    pub note: Option<String>,
    /// Trace that is replayed instead of the jobs.
    pub trace: Option<TraceSource>,
}

/// Options of the library for files. Options that are not given have the library's defaults.
pub struct LibraryOptions {
    /// Page cache; `None` if not given.
    pub page_cache: Option<PageCache>,
    /// I/O backend; `None` if not given.
    pub backend: Option<BackendKind>,
    /// True if `--memory` is given. By default the library sizes its cache from the free memory.
    pub is_memory_named: bool,
    /// True if the policies of this kind are given: readahead, scheduler, eviction.
    pub are_policies_named: [bool; 3],
}

impl LibraryOptions {
    /// Takes the options of the library from the command line.
    fn of(args: &RunArgs) -> LibraryOptions {
        LibraryOptions {
            page_cache: args.page_cache.map(PageCacheMode::page_cache),
            backend: args.backend,
            is_memory_named: args.memory.is_some(),
            are_policies_named: [
                args.readahead.is_some(),
                args.scheduler.is_some(),
                args.eviction.is_some(),
            ],
        }
    }
}

/// Row to run.
pub struct JobRow {
    /// Storage as named by `--on`.
    pub storage: String,
    /// Storage and policies that distinguish this row from the others.
    pub label: String,
    /// Runner of the row.
    pub runner: JobRunner,
    /// Policies and memory.
    pub setup: SimulationSetup,
    /// True if the row would repeat an earlier one. It is then validated but not run.
    pub is_repeated: bool,
}

/// Runner of a job's row.
pub enum JobRunner {
    /// Simulation on a device model, in virtual time.
    Modelled,
    /// Library, on a file or block device.
    Library(PathBuf),
    /// Library, on a file of an NFS server: its valid URL, with its options.
    Nfs(String),
    /// Raw files of the library, on a file or block device, for jobs with `ioengine=raw`.
    Raw(PathBuf),
    /// Kernel's own read path, on a file or block device.
    Kernel(PathBuf),
}

impl JobPlan {
    /// Parses and validates the command line and the job file.
    pub fn of(args: &RunArgs) -> Result<JobPlan, Failure> {
        if args.swapin.is_some() {
            return Err(Failure::Usage(format!(
                "--swapin is for loads on memory, and {} is a job; leave it out",
                args.job.display()
            )));
        }
        let storages = Storage::parse_all(&args.storages)?;
        if let Some(region) = storages.iter().find(|on| matches!(on, Storage::Region(_))) {
            return Err(Failure::Usage(format!(
                "{region}: is memory, for loads in TOML; name file:PATH or kernel:PATH for a job"
            )));
        }
        let policies = Policies::of(args)?;
        if args.log.is_some() {
            policies.refuse_without_log(&storages)?;
        }
        // From here on, combinations that some storage or job does not permit are refused.
        let run = JobRun::of(args)?;
        let memory = args.memory.as_deref().unwrap_or(MEMORY_DEFAULT);
        let memory_bytes = memory_bytes(memory)?;
        if let Some(trace) = &run.trace {
            trace.check_storages(&storages)?;
        }
        refuse_unused_options(args, &storages, &run.jobs, run.trace.is_some())?;
        refuse_raw_combinations(&run, args.chunking.is_some(), &storages)?;
        refuse_overwriting(&run, args, &storages)?;
        // The memory has to hold one read of each job. The kernel's page cache does not have the
        // size of `--memory`.
        if storages.iter().any(|storage| !matches!(storage, Storage::Kernel(_))) {
            simulate::check_memory(&run.jobs, memory_bytes).map_err(|error| {
                Failure::usage_of(format!("--memory {memory}"), run.job_file_error(error))
            })?;
        }
        let rows: Vec<JobRow> = storages
            .iter()
            .flat_map(|storage| policies.rows(storage, &run, memory_bytes))
            .collect();
        for row in rows.iter().filter(|row| matches!(row.runner, JobRunner::Modelled)) {
            simulate::check(&run.jobs, &row.setup).map_err(|error| row.failure(&run, &error))?;
        }
        let created_file_bytes = args.create.then(|| run.file_bytes()).transpose()?;
        let runs = args.runs.map_or(1, NonZero::get);
        if runs > 1 && run.jobs.jobs.iter().any(|job| job.logs.is_any()) {
            return Err(Failure::Usage(format!(
                "--runs {runs}: the job writes logs, which are of one run; leave out --runs, or the \
                 options write_*_log and write_iolog"
            )));
        }
        let writes_only_created = run.writes() && !args.overwrite;
        let log = args.log.clone();
        Ok(JobPlan { run, rows, created_file_bytes, writes_only_created, log, runs })
    }
}

/// Named policies, each kind in the order of the command line.
struct Policies {
    /// Readahead policies, at least one.
    readaheads: Vec<Spec>,
    /// Schedulers, at least one.
    schedulers: Vec<Spec>,
    /// One for all rows.
    eviction: Spec,
    /// Policies of raw transfers, which bypass the cache.
    chunkings: Vec<Spec>,
}

impl Policies {
    /// Parses the policies on the command line, with the default of each kind that it lacks.
    fn of(args: &RunArgs) -> Result<Policies, Failure> {
        Ok(Policies {
            readaheads: input::parse_specs(args.readahead.as_deref().unwrap_or(READAHEAD_DEFAULT))?,
            schedulers: input::parse_specs(args.scheduler.as_deref().unwrap_or("adaptive"))?,
            eviction: eviction_policy(args.eviction.as_deref().unwrap_or("adaptive"))?,
            chunkings: input::parse_specs(args.chunking.as_deref().unwrap_or(CHUNKING_DEFAULT))?,
        })
    }

    /// Refuses the log if a row would have no decisions to log.
    fn refuse_without_log(&self, storages: &[Storage]) -> CommandResult {
        for storage in storages {
            for readahead in &self.readaheads {
                for scheduler in &self.schedulers {
                    log::check_job(storage, readahead, scheduler)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the rows of one storage, one for each combination of policies.
    fn rows(&self, storage: &Storage, run: &JobRun, memory_bytes: u64) -> Vec<JobRow> {
        let is_raw = run.jobs.has_raw();
        let bypasses_scheduler = run.jobs.jobs.iter().all(bypasses_cache);
        let mut rows = Vec::new();
        for (readahead_index, readahead) in self.readaheads.iter().enumerate() {
            for (scheduler_index, scheduler) in self.schedulers.iter().enumerate() {
                for (chunking_index, chunking) in self.chunkings.iter().enumerate() {
                    let runner = JobRunner::of(storage, is_raw);
                    let is_first_pair = (readahead_index, scheduler_index) == (0, 0);
                    // The kernel has its own policies, and a raw file has neither readahead nor a
                    // scheduler. Only the first of the rows that differ in these alone runs.
                    let (label, is_repeated) = match runner {
                        JobRunner::Kernel(_) => {
                            (storage.to_string(), !is_first_pair || chunking_index > 0)
                        }
                        // Direct jobs and mappings of a file have no scheduler.
                        JobRunner::Library(_) if bypasses_scheduler => {
                            (format!("{storage} {readahead}"), scheduler_index > 0)
                        }
                        JobRunner::Raw(_) => (format!("{storage} {chunking}"), !is_first_pair),
                        // A modelled device runs raw jobs and others together.
                        _ if is_raw => {
                            (format!("{storage} {readahead} {scheduler} {chunking}"), false)
                        }
                        _ => (format!("{storage} {readahead} {scheduler}"), false),
                    };
                    let setup = SimulationSetup {
                        readahead: readahead.clone(),
                        scheduler: scheduler.clone(),
                        eviction: self.eviction.clone(),
                        chunking: chunking.clone(),
                        memory_bytes,
                        seed: run.seed,
                        ..SimulationSetup::new(device_spec(storage))
                    };
                    let storage = storage.to_string();
                    rows.push(JobRow { storage, label, runner, setup, is_repeated });
                }
            }
        }
        rows
    }
}

/// Parses and validates the eviction policy. Rows of the kernel would not detect an unknown one.
pub(super) fn eviction_policy(text: &str) -> Result<Spec, Failure> {
    let policy = Spec::parse(text).map_err(Failure::usage)?;
    // A cache of any size shows if the policy is valid.
    let cache_pages = 1;
    eviction::build(&policy, cache_pages).map_err(Failure::usage)?;
    Ok(policy)
}

/// Device specification of the storage. Other storages than models get a placeholder name.
fn device_spec(storage: &Storage) -> Spec {
    match storage {
        Storage::Modelled(device) => device.clone(),
        Storage::Nfs(_) => Spec::plain("nfs"),
        Storage::File(_) | Storage::Kernel(_) | Storage::Region(_) => Spec::plain("file"),
    }
}

impl JobRunner {
    /// Returns the runner for a storage. `is_raw` is true if the job file has jobs with
    /// `ioengine=raw`.
    fn of(storage: &Storage, is_raw: bool) -> JobRunner {
        match storage {
            Storage::Modelled(_) => JobRunner::Modelled,
            Storage::File(path) if is_raw => JobRunner::Raw(path.clone()),
            Storage::File(path) => JobRunner::Library(path.clone()),
            Storage::Kernel(path) => JobRunner::Kernel(path.clone()),
            Storage::Nfs(url) => JobRunner::Nfs(url.clone()),
            Storage::Region(_) => unreachable!("a job on a region is refused"),
        }
    }

    /// Returns the local file or device of the row; `None` for a modelled device or a server.
    pub fn path(&self) -> Option<&Path> {
        match self {
            JobRunner::Modelled | JobRunner::Nfs(_) => None,
            JobRunner::Library(path) | JobRunner::Raw(path) | JobRunner::Kernel(path) => Some(path),
        }
    }
}

impl JobRow {
    /// Failure with the subject of the error in front: the job file, the policy, or the storage.
    pub fn failure(&self, run: &JobRun, error: &SimulateError) -> Failure {
        match error.about() {
            // The simulation makes no progress, which is no error of the user.
            _ if matches!(error, SimulateError::Stuck(_)) => {
                Failure::Run(format!("{}: {error}", self.storage))
            }
            ErrorSubject::Job => Failure::usage(run.job_file_error(error)),
            ErrorSubject::Policies => Failure::usage(error),
            ErrorSubject::Storage => Failure::usage_of(&self.storage, error),
        }
    }
}

impl JobRun {
    /// Reads the job file, or the trace in its place. Errors name the file and the line.
    fn of(args: &RunArgs) -> Result<JobRun, Failure> {
        let path = &args.job;
        let stem = path.file_stem();
        let name = stem.map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        if let Some(trace) = TraceSource::of(args)? {
            return Ok(JobRun {
                name,
                path: path.clone(),
                note: None,
                jobs: trace.job(),
                trace: Some(trace),
                seed: args.seed,
                library: LibraryOptions::of(args),
            });
        }
        let text = input::read_text(path, "a job file is text in fio's format")?;
        // A trace in a regular file was recognized above. One in a pipe is recognized only here,
        // and refused.
        if TraceFormat::detect(text.as_bytes()).is_some() {
            check_is_file(path)?;
        }
        let jobs = environment::parse(&text, path)
            .map_err(|error| Failure::usage_of(printable(&path.display().to_string()), error))?;
        let jobs = match args.runtime.as_deref() {
            None => jobs,
            Some(limit_text) => jobs.with_runtime_limit(limit_text).map_err(|expected| {
                Failure::Usage(format!("--runtime {}: expected {expected}", printable(limit_text)))
            })?,
        };
        // The job file may name a trace itself, by its option for an iolog.
        let trace = TraceSource::of_jobs(&jobs, path)?;
        Ok(JobRun {
            name,
            path: path.clone(),
            note: jobs.note(),
            jobs: trace.as_ref().map_or(jobs, TraceSource::job),
            trace,
            seed: args.seed,
            library: LibraryOptions::of(args),
        })
    }

    /// Error message with the job file in front.
    pub fn job_file_error(&self, error: impl Display) -> String {
        format!("{}: {error}", printable(&self.path.display().to_string()))
    }

    /// True if any operation of the job may be a write.
    pub fn writes(&self) -> bool {
        self.jobs.jobs.iter().any(Job::writes)
    }

    /// Returns the total length in bytes of all files of the job, laid out one after the other.
    fn file_bytes(&self) -> Result<u64, Failure> {
        if let Some(trace) = &self.trace {
            return Ok(trace.bytes());
        }
        let workload = Workload::new(&self.jobs, FileSource::Modelled, self.seed)
            .map_err(|error| Failure::usage(self.job_file_error(error)))?;
        let (_starts, end) = workload.contiguous_starts();
        Ok(end)
    }
}

/// Refuses three combinations: a chunking policy without raw jobs, raw jobs on an NFS file, and raw
/// jobs together with others on `file:`, where the two kinds take different paths.
/// `is_policy_named` is true if the user gave a chunking policy.
fn refuse_raw_combinations(
    run: &JobRun,
    is_policy_named: bool,
    storages: &[Storage],
) -> CommandResult {
    let job_file = run.path.display();
    if !run.jobs.has_raw() {
        return match is_policy_named {
            true => Err(Failure::Usage(format!(
                "--chunking is for jobs with ioengine=raw, and {job_file} has none; leave it out"
            ))),
            false => Ok(()),
        };
    }
    if let Some(storage) = storages.iter().find(|storage| matches!(storage, Storage::Nfs(_))) {
        return Err(Failure::Usage(format!(
            "{storage}: raw jobs need a device or a file of this machine; {job_file} has some: \
             set direct=1 and another ioengine there, or leave {storage} out"
        )));
    }
    let other_job = run.jobs.jobs.iter().find(|job| job.engine != JobEngine::Raw);
    let file = storages.iter().find(|storage| matches!(storage, Storage::File(_)));
    match (other_job, file) {
        (Some(job), Some(storage)) => Err(Failure::Usage(format!(
            "{job_file}: on {storage} raw jobs can't run together with other jobs, and `{}` is \
                not raw; move it to another job file",
            job.name
        ))),
        _ => Ok(()),
    }
}

/// Refuses a writing job on real storage, unless `--overwrite` is given or `--create` creates a
/// missing file.
fn refuse_overwriting(run: &JobRun, args: &RunArgs, storages: &[Storage]) -> CommandResult {
    let Some(job) = run.jobs.jobs.iter().find(|job| job.writes()) else { return Ok(()) };
    let holds_data = |path: &PathBuf| !args.create || path.symlink_metadata().is_ok();
    match storages.iter().find(|storage| storage.path().is_some_and(holds_data)) {
        Some(storage) if !args.overwrite => Err(Failure::Usage(format!(
            "job `{}` writes, and {storage} holds real data: add --overwrite if it may be lost",
            job.name
        ))),
        _ => Ok(()),
    }
}

/// Parses the memory of the cache, in bytes. It holds at least one page. Its bookkeeping of 64
/// bytes per page must fit into the memory of this machine.
fn memory_bytes(text: &str) -> Result<u64, Failure> {
    let bytes = input::size("--memory", text)?;
    let system = rustix::system::sysinfo();
    let bytes_max = simulate::memory_bytes_max(system.totalram as u64 * u64::from(system.mem_unit));
    match bytes {
        0..PAGE_BYTES => Err(Failure::Usage(format!(
            "--memory {text}: holds no page; give at least {PAGE_BYTES} bytes"
        ))),
        _ if bytes > bytes_max => Err(Failure::Usage(format!(
            "--memory {text}: the bookkeeping of this cache doesn't fit into this machine's \
                memory; give at most {} GiB",
            bytes_max >> 30
        ))),
        _ => Ok(bytes),
    }
}
