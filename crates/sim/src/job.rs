//! fio job files: the load that a benchmark puts on the storage, in fio's own format.
//!
//! A file has the same meaning in fio and here. Every option of fio is known ([`options()`]) and
//! has one of three levels of support:
//!
//! - supported;
//! - without effect here, which the job reports ([`Job::without_effect`]);
//! - rejected with the reason, because ignoring it would change the measurement.
//!
//! fio's engines have the same levels.
//!
//! This parser is stricter than fio. A suffix that fio silently drops (`size=1x` is one byte in
//! fio) and a number that does not fit are errors with a line number. Every file accepted here is
//! therefore accepted by fio, with two exceptions. They are extensions that fio rejects:
//! `ioengine=raw` (large direct transfers in chunks) and `random_generator=permutation` (each block
//! once, in constant memory).
//!
//! The format, as fio reads it:
//!
//! - `[name]` starts a job. `[global]` (any name with that start) changes the defaults of the jobs
//!   *after* it. It can occur several times and accumulates.
//! - `option=value`, or `option` alone for switches. The last one wins.
//! - `;` and `#` start a comment, also after a value.
//! - `include FILE` inserts the lines of that file. `${NAME}` is an environment variable. `$ncpus`,
//!   `$pagesize` and `$mb_memory` are properties of the machine. A job file with these is read by
//!   [`JobFile::parse_in`], which receives their values.

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
pub use error::{JobError, escaped, printable};
pub use kinds::*;
pub use options::{FioOption, OptionClass, options};
pub use parse::{Environment, Inclusion, Variables};

/// A parsed and checked job file.
#[derive(Clone, Debug, PartialEq)]
pub struct JobFile {
    /// Jobs in the order of the file, at least one.
    pub jobs: Vec<Job>,
}

/// One job: the work of each of its processes.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Name of the section, or the value of `name`.
    pub name: String,
    /// Free text (`description`).
    pub description: Option<String>,
    /// Line of the section, from 1.
    pub line: usize,
    /// Order and direction of the operations (`rw`).
    pub pattern: JobPattern,
    /// Sizes of reads and of writes (`bs`, `bsrange`, `bssplit`), at least 1 byte.
    pub block_sizes: [BlockSizes; 2],
    /// Sizes of trims (third value of `bs`). No trim is ever issued, but, as in fio, they count
    /// in the smallest and largest size of the job.
    pub trim_block_sizes: BlockSizes,
    /// True if sizes need not be multiples of the smallest one (`bs_unaligned`).
    pub is_unaligned: bool,
    /// True if the first size is for sequential and the second for random positions
    /// (`bs_is_seq_rand`). Otherwise they are for reads and writes.
    pub is_size_by_order: bool,
    /// Alignment of random positions (`blockalign`) for reads and writes. `None` means the smallest
    /// size.
    pub align_bytes: [Option<u64>; 2],
    /// Bytes of its files that a process covers in one pass (`size`), for all its files together.
    pub size: Option<BytesOrPercent>,
    /// Total bytes to transfer, if different from one pass (`io_size`).
    pub io_size: Option<BytesOrPercent>,
    /// Start of the area in each file (`offset`).
    pub offset: BytesOrPercent,
    /// Distance between the starts of consecutive processes (`offset_increment`).
    pub offset_increment: BytesOrPercent,
    /// Unit to which an offset in percent is rounded up (`offset_align`). `None` means the smallest
    /// size.
    pub offset_align_bytes: Option<u64>,
    /// Number of operations that ends a pass (`number_ios`).
    pub operations: Option<u64>,
    /// Minimum and maximum file size (`filesize`).
    pub file_bytes: Option<(u64, u64)>,
    /// Files (`filename`), shared by all processes. If empty, each process has files of its own.
    pub file_names: Vec<String>,
    /// Number of files per process if none are named (`nrfiles`), at least 1.
    pub files: u32,
    /// Maximum number of files in use at a time (`openfiles`). `None` means all.
    pub open_files_max: Option<u32>,
    /// Format of the names of such files (`filename_format`).
    pub file_name_format: Option<String>,
    /// Choice of the next file among several (`file_service_type`).
    pub file_service: FileService,
    /// Directories of the files (`directory`), assigned to the processes in rotation.
    pub directories: Vec<String>,
    /// Number of identical processes (`numjobs`), at least 1.
    pub processes: u32,
    /// Queue depth (`iodepth`). 1 for synchronous engines.
    pub depth: u32,
    /// Number of operations that are submitted together (`iodepth_batch`), 1 to `depth`.
    pub batch: u32,
    /// Number of completions that are collected before new operations (`iodepth_batch_complete`), 1
    /// to `depth`.
    pub batch_complete: u32,
    /// Number of operations in flight to which a full queue is drained (`iodepth_low`), 1 to
    /// `depth`.
    pub low: u32,
    /// I/O engine (`ioengine`).
    pub engine: JobEngine,
    /// The engine in the file, if another engine replaces it.
    pub engine_named: Option<&'static str>,
    /// True for direct I/O (`direct`, or `buffered=0`).
    pub is_direct: bool,
    /// Maximum run time of a process (`runtime`).
    pub runtime: Option<Time>,
    /// True if a process repeats its work until `runtime` has passed (`time_based`).
    pub is_time_based: bool,
    /// Run time before the measurement starts (`ramp_time`).
    pub ramp: Time,
    /// Pauses of a process (`thinktime`).
    pub pauses: PauseRule,
    /// Maximum and minimum rate (`rate`).
    pub rate: RateLimits,
    /// Maximum latency of an operation. A longer one ends the job (`max_latency`).
    pub latency_max: Option<Time>,
    /// Search for the queue depth with a given latency (`latency_target`).
    pub latency_target: Option<LatencyTarget>,
    /// Share in a flow (`flow`).
    pub flow: Option<FlowShareRule>,
    /// Condition of a steady state (`steadystate`).
    pub steady: Option<SteadyStateRule>,
    /// Advice to the kernel about the pattern (`fadvise_hint`).
    pub hint: AdviceHint,
    /// Seed of the random positions (`randseed`).
    pub seed: u64,
    /// True if the file contains that seed.
    pub has_seed: bool,
    /// True if each run has the same positions (`randrepeat`).
    pub is_repeatable: bool,
    /// True if each run has the same random numbers of all kinds, whatever the seed is
    /// (`allrandrepeat`).
    pub is_all_repeatable: bool,
    /// Random generator of the positions (`random_generator`).
    pub generator: Generator,
    /// Percentage of random positions in a random job (`percentage_random`), for reads and writes.
    pub random_percent: [u8; 2],
    /// Positions between the random ones, and gaps between sequential ones (`rw=…:N`).
    pub sequence: RandomSequence,
    /// Zones with gaps (`zonemode=strided`).
    pub strides: Option<StridedZones>,
    /// Distribution of the random positions (`random_distribution`).
    pub distribution: Distribution,
    /// True if a random pass covers each block once (unless `norandommap`).
    pub has_random_map: bool,
    /// True if the processes are reported together (`group_reporting`).
    pub is_group_reported: bool,
    /// Delay after the start of the run (`startdelay`).
    pub start_delay: Time,
    /// True if the job waits for the end of all earlier jobs (`stonewall`).
    pub has_stonewall: bool,
    /// Job whose end this job waits for (`wait_for`).
    pub wait_for: Option<String>,
    /// True if a reporting group starts with this job (`new_group`).
    pub is_new_group: bool,
    /// Jobs that end with this one (`exitall`).
    pub exit_scope: ExitScope,
    /// True if the job only creates its files (`create_only`).
    pub is_creation_only: bool,
    /// True if cached data of a file is dropped before its first use (`invalidate`).
    pub invalidates: bool,
    /// Verification of written data (`verify`).
    pub verify: Option<VerifyRule>,
    /// Trace that is replayed instead of a pattern (`read_iolog`).
    pub replay: Option<ReplayOptions>,
    /// Logs of its operations (`write_lat_log` and others).
    pub logs: LogOptions,
    /// Number of repetitions (`loops`), at least 1.
    pub loops: u32,
    /// Syncs of written data.
    pub sync: SyncRule,
    /// I/O priority (`prioclass`, `prio`). `None` means the caller's.
    pub priority: Option<Priority>,
    /// Options of the file without effect here, each once, in the order of the file.
    pub without_effect: Vec<&'static str>,
}

impl Job {
    /// Maximum size of a read.
    pub fn block_bytes_read(&self) -> u64 {
        self.block_sizes[0].largest_bytes()
    }

    /// Maximum size of a write.
    pub fn block_bytes_write(&self) -> u64 {
        self.block_sizes[1].largest_bytes()
    }

    /// Returns true if the job can read: by its pattern, or to verify its writes.
    pub fn reads(&self) -> bool {
        self.pattern.reads_percent > 0 || self.verify.is_some()
    }

    /// Returns true if the job can write. A job with `verify_only` writes nothing, whatever its
    /// pattern is: it verifies data of an earlier run.
    pub fn writes(&self) -> bool {
        self.pattern.reads_percent < 100 && !self.verify.is_some_and(|verify| verify.is_only)
    }
}

/// Parses a time in the form of `runtime`: in seconds, or with a unit such as `10s` or `5m`. It may
/// have decimals, such as `1.5s`, which fio would drop.
///
/// # Errors
/// Returns the expected form. Whole parts above ten years are invalid too.
pub fn span(text: &str) -> Result<Time, String> {
    // The byte units of `kilo` do not matter for a time.
    let parse = |text: &str| {
        let kilo = value::ByteUnits::default();
        value::OptionValue { text, is_given: true, kilo }.span(Time::from_s(1))
    };
    let Some((whole, decimals, suffix)) = split_decimals(text) else { return parse(text) };
    let [whole, unit] = [parse(&format!("{whole}{suffix}"))?, parse(&format!("1{suffix}"))?];
    // The decimals are a part of one unit, rounded down to nanoseconds.
    let part: u64 = decimals.parse().map_err(|error| format!("a number ({error})"))?;
    let part_ns = u128::from(part) * u128::from(unit.ns()) / 10_u128.pow(decimals.len() as u32);
    Ok(Time(whole.ns() + part_ns as u64))
}

/// Largest number of decimals of a time that count: 18 digits fit 64 bits.
const DECIMALS_MAX: usize = 18;

/// Splits `1.5s` into the digits `1`, the decimals `5` and the suffix `s`. Later decimals than
/// [`DECIMALS_MAX`] are dropped. `None` for another form.
fn split_decimals(text: &str) -> Option<(&str, &str, &str)> {
    let (whole, rest) = text.trim().split_once('.')?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let has_digits =
        end > 0 && !whole.is_empty() && whole.bytes().all(|byte| byte.is_ascii_digit());
    has_digits.then(|| (whole, &rest[..end.min(DECIMALS_MAX)], &rest[end..]))
}

impl JobFile {
    /// Returns true if any job has the engine `raw`.
    pub fn has_raw(&self) -> bool {
        self.jobs.iter().any(|job| job.engine == JobEngine::Raw)
    }

    /// Returns the names of the jobs' engines, each once, such as `mmap` or `libaio direct`.
    pub(crate) fn engine_names(&self) -> String {
        let mut names: Vec<String> = Vec::new();
        for job in &self.jobs {
            let direct = if job.is_direct { " direct" } else { "" };
            let name = format!("{}{direct}", job.engine.name());
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(", ")
    }

    /// Page cache of the jobs' operations. Jobs through a cache have the caller's name of it:
    /// `buffered` for calls, `mapped` for mappings. Direct and raw jobs have `none`. Returns `None`
    /// if the jobs differ.
    pub fn page_cache(&self, buffered: &str, mapped: &str) -> Option<String> {
        let cache_of = |job: &Job| match job.engine {
            JobEngine::Mmap => mapped.to_owned(),
            JobEngine::Raw => "none".to_owned(),
            _ if job.is_direct => "none".to_owned(),
            _ => buffered.to_owned(),
        };
        let mut page_caches = self.jobs.iter().map(cache_of);
        let first = page_caches.next()?;
        page_caches.all(|page_cache| page_cache == first).then_some(first)
    }

    /// Parses a self-contained job file, without includes, variables and properties of the machine.
    ///
    /// # Errors
    /// Returns the first error with its line.
    pub fn parse(text: &str) -> Result<JobFile, JobError> {
        JobFile::parse_in(text, &Environment::default())
    }

    /// Parses a job file with its includes and variables.
    ///
    /// # Errors
    /// Returns the first error with its line.
    pub fn parse_in(text: &str, environment: &Environment<'_>) -> Result<JobFile, JobError> {
        parse::parse_job_file(text, environment)
    }

    /// Limits the run time of each process to `runtime_max`, a time in the form of the option
    /// `runtime`. 0 sets no limit, as in fio.
    ///
    /// # Errors
    /// Returns the expected form of a time.
    pub fn with_runtime_limit(mut self, runtime_max: &str) -> Result<JobFile, String> {
        let runtime_max = span(runtime_max)?;
        if runtime_max == Time::ZERO {
            return Ok(self);
        }
        for job in &mut self.jobs {
            job.runtime = Some(job.runtime.map_or(runtime_max, |runtime| runtime.min(runtime_max)));
        }
        Ok(self)
    }

    /// Returns the caveats for the results: the replaced engines of all jobs, then the options
    /// without effect, each once, in one text. `None` if there are none.
    pub fn note(&self) -> Option<String> {
        let mut names: Vec<&str> = Vec::new();
        let mut caveats: Vec<String> = Vec::new();
        for job in &self.jobs {
            names.extend(&job.without_effect);
            let replacement_note =
                |named| format!("ioengine={named} is run as {}", job.engine.name());
            caveats.extend(job.engine_named.map(replacement_note));
        }
        let mut known_names = std::collections::BTreeSet::new();
        names.retain(|name| known_names.insert(*name));
        caveats.sort();
        caveats.dedup();
        if !names.is_empty() {
            caveats.push(format!("without effect here: {}", names.join(", ")));
        }
        (!caveats.is_empty()).then(|| caveats.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand, in nanoseconds. More decimals than nanoseconds are rounded down.
    #[test]
    fn span_may_have_decimals() {
        let cases = [
            ("2", 2_000_000_000),
            ("0.5", 500_000_000),
            ("1.25m", 75_000_000_000),
            ("0.9273904955s", 927_390_495),
            ("20.5ms", 20_500_000),
            ("0.0000000000000000000009", 0),
        ];
        for (text, ns) in cases {
            assert_eq!(span(text), Ok(Time(ns)), "{text}");
        }
        for text in [".5", "1.", "1.s", "1.5x", "-1.5", "1.5.5", "0x1.8s", "9999999999.5"] {
            assert!(span(text).is_err(), "{text}");
        }
    }
}
