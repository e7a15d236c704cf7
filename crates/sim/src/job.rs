//! fio job files: what a benchmark asks of the storage, in fio's own format.
//!
//! The same file runs in fio and here, and means the same. Every option of fio is known
//! ([`options()`]) and has one of three classes: it is honoured; or it changes nothing here,
//! and the job says that it stands there ([`Job::without_effect`]); or it is refused, with the
//! reason, because ignoring it would change what is measured. So it is with fio's engines.
//!
//! Where fio is lenient this reader is strict: a suffix that fio would drop in silence (`size=1x`
//! is one byte there), a number that does not fit, a job without `rw` are errors that name the
//! line. So every file that is read here is read by fio. There are two exceptions, extensions of
//! ours that fio refuses: `ioengine=raw`, large transfers past the cache in chunks, and
//! `random_generator=permutation`, each block once in constant memory.
//!
//! The format, as fio reads it:
//! - `[name]` starts a job, `[global]` (any name that starts so) changes the
//!   defaults of the jobs *after* it; it may come several times and adds up;
//! - `option=value`, or `option` alone for switches; the last one wins;
//! - `;` and `#` start a comment, also behind a value;
//! - `include FILE` stands for the lines of that file, `${NAME}` for a variable of the
//!   environment, `$ncpus`, `$pagesize`, `$mb_memory` for facts of the machine. A job file that
//!   has them is read with [`JobFile::parse_in`], which is told of them.

use readpath_core::request::Priority;
use readpath_core::unit::Time;

mod arithmetic;
mod draft;
mod engines;
mod error;
mod kinds;
mod options;
mod parse;
mod value;

pub use engines::{ENGINES, EngineClass, FioEngine};
pub use error::{JobError, shown};
pub use kinds::*;
pub use options::{FioOption, OptionClass, options};
pub use parse::{Environment, Inclusion, Variables};

/// A job file, read and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct JobFile {
    /// The jobs in the order of the file; at least one.
    pub jobs: Vec<Job>,
}

/// One job: what each of its processes does.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The section's name, or the value of `name`.
    pub name: String,
    /// Free text (`description`).
    pub description: Option<String>,
    /// The line of the section, counted from 1.
    pub line: usize,
    /// Where and in which direction (`rw`).
    pub pattern: JobPattern,
    /// The sizes of reads and of writes (`bs`, `bsrange`, `bssplit`); at least 1 byte.
    pub block_sizes: [BlockSizes; 2],
    /// The sizes of trims: none is ever made, but fio's bounds count them.
    pub trim_block_sizes: BlockSizes,
    /// Whether a size need not be a multiple of the smallest (`bs_unaligned`).
    pub is_unaligned: bool,
    /// Whether the first size is that of sequential and the second that of random places
    /// (`bs_is_seq_rand`); else of reads and of writes.
    pub is_size_by_order: bool,
    /// To what random places are aligned (`blockalign`), reads and writes; `None`: to the smallest
    /// size.
    pub align_bytes: [Option<u64>; 2],
    /// How much of its files a process covers in one pass (`size`), for all its files together.
    pub size: Option<BytesOrPercent>,
    /// How much is moved in total, when that is not one pass (`io_size`).
    pub io_size: Option<BytesOrPercent>,
    /// Where in each file the area begins (`offset`).
    pub offset: BytesOrPercent,
    /// By how much further each process begins than the one before (`offset_increment`).
    pub offset_increment: BytesOrPercent,
    /// To what an offset in percent is rounded up (`offset_align`); `None`: to the smallest size.
    pub offset_align_bytes: Option<u64>,
    /// How many operations end a pass (`number_ios`).
    pub operations: Option<u64>,
    /// How large each file is (`filesize`): the smallest and the largest.
    pub file_bytes: Option<(u64, u64)>,
    /// The files (`filename`), shared by all processes; empty: files of its own for each process.
    pub file_names: Vec<String>,
    /// How many files each process has where none are named (`nrfiles`); at least 1.
    pub files: u32,
    /// How files are named where none are (`filename_format`).
    pub file_name_format: Option<String>,
    /// Which of several files is next (`file_service_type`).
    pub file_service: FileService,
    /// The directories of the files (`directory`); processes take them in turn.
    pub directories: Vec<String>,
    /// How many processes do the same (`numjobs`); at least 1.
    pub processes: u32,
    /// How many operations are kept in flight (`iodepth`); 1 for engines that wait.
    pub depth: u32,
    /// How many operations are collected before they are submitted (`iodepth_batch`); 1 to `depth`.
    pub batch: u32,
    /// How many completions are collected before new operations are prepared
    /// (`iodepth_batch_complete`); 1 to `depth`.
    pub batch_complete: u32,
    /// Down to how many in flight a full queue is drained (`iodepth_low`); 1 to `depth`.
    pub low: u32,
    /// By which system call (`ioengine`).
    pub engine: JobEngine,
    /// The engine that the file names, where another one of ours stands in for it.
    pub engine_named: Option<&'static str>,
    /// Whether the page cache is bypassed (`direct`, or `buffered=0`).
    pub is_direct: bool,
    /// The longest that a process runs (`runtime`).
    pub runtime: Option<Time>,
    /// Whether a process starts over until `runtime` is up (`time_based`).
    pub is_time_based: bool,
    /// How long it runs before anything is measured (`ramp_time`).
    pub ramp: Time,
    /// When a process pauses (`thinktime`).
    pub pauses: PauseRule,
    /// How fast it goes at most, and must go at least (`rate`).
    pub rate: RateLimits,
    /// The longest that an operation may take: one that takes longer ends the job (`max_latency`).
    pub latency_max: Option<Time>,
    /// How the depth follows the latency (`latency_target`).
    pub latency_target: Option<LatencyTarget>,
    /// Its share of a flow (`flow`).
    pub flow: Option<FlowShareRule>,
    /// When its rate counts as steady (`steadystate`).
    pub steady: Option<SteadyStateRule>,
    /// What the kernel is told of the pattern (`fadvise_hint`).
    pub hint: AdviceHint,
    /// The seed of the random places (`randseed`).
    pub seed: u64,
    /// Whether the file gives that seed.
    pub has_seed: bool,
    /// Whether another run has the same places (`randrepeat`).
    pub is_repeatable: bool,
    /// Where the randomness of places comes from (`random_generator`).
    pub generator: Generator,
    /// Of a hundred places of a random job, how many are random (`percentage_random`); reads, writes.
    pub random_percent: [u8; 2],
    /// Where places between the random ones lie, and gaps between sequential ones (`rw=…:N`).
    pub sequence: RandomSequence,
    /// Zones with gaps (`zonemode=strided`).
    pub strides: Option<StridedZones>,
    /// How random places are spread (`random_distribution`).
    pub distribution: Distribution,
    /// Whether a random pass takes each block once (unless `norandommap`).
    pub has_random_map: bool,
    /// Whether its processes are reported as one (`group_reporting`).
    pub is_group_reported: bool,
    /// How long after the start of the run it may begin (`startdelay`).
    pub start_delay: Time,
    /// Whether it waits for all jobs before it to end (`stonewall`).
    pub has_stonewall: bool,
    /// The job whose end it waits for (`wait_for`).
    pub wait_for: Option<String>,
    /// Whether a group of reports begins with it (`new_group`).
    pub is_new_group: bool,
    /// Whom it takes along when it ends (`exitall`).
    pub takes_along: ExitScope,
    /// Whether it only has its files made, and moves nothing (`create_only`).
    pub is_creation_only: bool,
    /// Whether what is cached of a file is dropped before it is used (`invalidate`).
    pub invalidates: bool,
    /// Whether, and when, what was written is read back (`verify`).
    pub verify: Option<VerifyRule>,
    /// The trace that is replayed in place of a pattern (`read_iolog`).
    pub replay: Option<ReplayOptions>,
    /// What is written down of its operations (`write_lat_log` and others).
    pub logs: LogOptions,
    /// How many times the work is done (`loops`); at least 1.
    pub loops: u32,
    /// How often, and how, what was written is put on the medium.
    pub sync: SyncRule,
    /// The I/O priority (`prioclass`, `prio`); `None`: that of the caller.
    pub priority: Option<Priority>,
    /// The options of the file that change nothing here, each once, in the order of the file.
    pub without_effect: Vec<&'static str>,
}

impl Job {
    /// The most bytes in a read.
    pub fn block_bytes_read(&self) -> u64 {
        self.block_sizes[0].most()
    }

    /// The most bytes in a write.
    pub fn block_bytes_write(&self) -> u64 {
        self.block_sizes[1].most()
    }

    /// Whether any of its operations may be a read.
    pub fn reads(&self) -> bool {
        self.pattern.reads_percent > 0 || self.verify.is_some()
    }

    /// Whether any of its operations may be a write.
    pub fn writes(&self) -> bool {
        self.pattern.reads_percent < 100 && !self.verify.is_some_and(|verify| verify.is_only)
    }
}

/// A span of time as `runtime` takes it: in seconds, or with a unit.
///
/// # Errors
/// What a time must be, where this is none.
pub fn span(text: &str) -> Result<Time, String> {
    let value = value::OptionValue { text, is_given: true, kilo: value::ByteUnits::default() };
    value.span(Time::from_s(1))
}

impl JobFile {
    /// Whether any of its jobs has the engine `raw`.
    pub fn has_raw(&self) -> bool {
        self.jobs.iter().any(|job| job.engine == JobEngine::Raw)
    }

    /// Reads the text of a job file that stands for itself: nothing of the machine or its
    /// environment comes in.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub fn parse(text: &str) -> Result<JobFile, JobError> {
        JobFile::parse_in(text, &Environment::default())
    }

    /// Reads the text of a job file, with the files and variables that it brings in.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub fn parse_in(text: &str, environment: &Environment<'_>) -> Result<JobFile, JobError> {
        parse::job_file(text, environment)
    }

    /// The same jobs, each process of which runs for so long at most: a time as `runtime` takes it.
    ///
    /// # Errors
    /// What a time must be, where this is none.
    pub fn with_runtime_limit(mut self, most: &str) -> Result<JobFile, String> {
        let most = span(most)?;
        for job in &mut self.jobs {
            job.runtime = Some(job.runtime.map_or(most, |runtime| runtime.min(most)));
        }
        Ok(self)
    }

    /// What a reader of its figures must know: options that change nothing here, and engines
    /// that another one stands in for. `None` where there is neither.
    pub fn note(&self) -> Option<String> {
        let mut names: Vec<&str> = Vec::new();
        let mut engines: Vec<String> = Vec::new();
        for job in &self.jobs {
            names.extend(&job.without_effect);
            let stands_in = |named| format!("ioengine={named} is run as {}", job.engine.name());
            engines.extend(job.engine_named.map(stands_in));
        }
        let mut seen = std::collections::BTreeSet::new();
        names.retain(|name| seen.insert(*name));
        engines.sort();
        engines.dedup();
        if !names.is_empty() {
            engines.push(format!("without effect here: {}", names.join(", ")));
        }
        (!engines.is_empty()).then(|| engines.join("; "))
    }
}
