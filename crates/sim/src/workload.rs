//! Converts a job file to files of known sizes and processes that use them.
//!
//! A [`Workload`] is built once from a [`JobFile`]. Each [`Process`] is then an independent state
//! machine that returns its next action and receives its completions. It has no clock and no
//! device, so the same processes run in virtual and in real time.
//!
//! Order of the jobs: each `stonewall` starts a new phase. A process starts when all processes of
//! earlier phases have ended, and not before its delay, relative to the start of the run.

use std::fmt;

use readpath_core::request::ProcessId;
use readpath_core::unit::{PAGE_BYTES, Time};

use crate::job::{Distribution, Job, JobEngine, JobFile, printable};

mod block_map;
mod chance;
mod layout;
mod lfsr;
mod offsets;
mod pace;
mod permutation;
mod permuted;
mod process;
mod random;
mod rules;
mod skew;
mod together;

pub use chance::below;
pub use pace::SearchedDepth;
pub use process::ScriptStep;
pub use process::seed_of;
pub use process::{
    DueAdvice, GivenAdvice, GivenRead, Lateness, NextAction, Process, ProcessOperation,
};
pub use skew::SkewedPositions;

/// Identifier of a file of the workload: its index in [`Workload::files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// A file used by the processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadFile {
    /// Path, as fio would name it: `directory/name`, or `job.process.0` if the job names none.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// Source of the files, and of their sizes.
#[derive(Clone, Copy)]
pub enum FileSource<'a> {
    /// Files created for the run, each with the size that its jobs need.
    Modelled,
    /// Files created for the run, with a default for unknown sizes.
    Assumed {
        /// Default size.
        file_bytes: u64,
    },
    /// Existing files. The function returns the size in bytes, or `None` for a missing file.
    Existing(&'a dyn Fn(&str) -> Option<u64>),
    /// One existing file for all processes, independent of the names in the jobs.
    One {
        /// Path of the file.
        name: &'a str,
        /// Size in bytes.
        bytes: u64,
    },
}

/// Files and processes, ready to run.
#[derive(Debug)]
pub struct Workload {
    /// The files.
    pub files: Vec<WorkloadFile>,
    /// The processes in the order of the jobs. The index is the identifier.
    pub processes: Vec<Process>,
}

/// Error when a workload is built from a job file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadError {
    /// The job needs more of the file than exists.
    BeyondEnd {
        /// Name of the job.
        job: String,
        /// Name of the file.
        file: String,
        /// End of the area, from `offset` and `size`.
        need_bytes: u64,
        /// Size of the file.
        have_bytes: u64,
    },
    /// The file does not exist.
    NoFile {
        /// Name of the job.
        job: String,
        /// Name of the file.
        file: String,
    },
    /// The job uses a percentage, or the whole, of a file of unknown size.
    UnknownSize {
        /// Name of the job.
        job: String,
        /// Name of the file.
        file: String,
    },
    /// The area is smaller than a block.
    BlockTooLarge {
        /// Name of the job.
        job: String,
        /// Name of the file.
        file: String,
        /// Size of a block.
        block_bytes: u64,
        /// Size of the area.
        area_bytes: u64,
    },
    /// The job file has too many files.
    TooManyFiles {
        /// Number of files.
        asked: u64,
    },
    /// A job waits for a job that does not precede it.
    NoSuchJob {
        /// Name of the job.
        job: String,
        /// Name of the job that it waits for.
        waits_for: String,
    },
    /// An area has too many blocks for random positions.
    TooManyBlocks {
        /// Name of the job.
        job: String,
        /// Number of blocks.
        blocks: u64,
    },
    /// A zone of the distribution (`zoned_abs`) reaches behind the area.
    ZoneBeyondEnd {
        /// Name of the job.
        job: String,
        /// End of the last zone in bytes.
        zones_end: u64,
        /// Size of the area.
        area_bytes: u64,
    },
    /// The job file has too many processes.
    TooManyProcesses {
        /// Number of processes.
        asked: u64,
    },
}

/// Maximum number of processes in a workload, the same as fio's default.
pub const PROCESSES_MAX: u64 = 4096;

impl Workload {
    /// Builds the workload. `seed` is the seed of the run. Each process has a seed derived from it,
    /// from the job's `randseed` and from the number of the process.
    ///
    /// # Errors
    /// Fails in the cases of [`WorkloadError`], for example if an area does not fit into its file.
    pub fn new(
        job_file: &JobFile,
        source: FileSource<'_>,
        seed: u64,
    ) -> Result<Workload, WorkloadError> {
        let process_count: u64 = job_file.jobs.iter().map(|job| u64::from(job.processes)).sum();
        if process_count > PROCESSES_MAX {
            return Err(WorkloadError::TooManyProcesses { asked: process_count });
        }
        let mut layout = layout::FileLayout::new(source);
        let mut dependency_builder = together::DependencyBuilder::default();
        let mut processes = Vec::new();
        let mut phase = 0;
        for (index, job) in job_file.jobs.iter().enumerate() {
            // The first job has none to wait for.
            if job.has_stonewall && index > 0 {
                phase += 1;
            }
            let dependencies = dependency_builder.add_job(job, phase).map_err(|waits_for| {
                WorkloadError::NoSuchJob { job: job.name.clone(), waits_for }
            })?;
            for process_index in 0..job.processes {
                let id = ProcessId(processes.len() as u32);
                let areas = layout.process_areas(job, process_index, id)?;
                check_zones(job, &areas)?;
                let identity = process::JobProcess { id, job: index, process_index, phase };
                let process = Process::new(job, identity, &areas, dependencies.clone(), seed);
                let too_many = |error: offsets::TooManyBlocks| WorkloadError::TooManyBlocks {
                    job: job.name.clone(),
                    blocks: error.blocks,
                };
                processes.push(process.map_err(too_many)?);
            }
        }
        Ok(Workload { files: layout.into_files(), processes })
    }
}

impl Workload {
    /// Returns the total bytes that all processes transfer, or `None` if one of them is limited by
    /// time only.
    pub fn bytes_planned(&self) -> Option<u64> {
        let mut planned = self.processes.iter().map(Process::bytes_planned);
        planned.try_fold(0, |sum: u64, bytes| Some(sum.saturating_add(bytes?)))
    }

    /// Returns the start of each file in bytes when they are placed contiguously on one device in
    /// whole pages, and the end of the last file.
    pub fn contiguous_starts(&self) -> (Vec<u64>, u64) {
        let mut end = 0;
        let starts = self.files.iter().map(|file| {
            let start: u64 = end;
            let pages = file.bytes.div_ceil(PAGE_BYTES);
            end = pages.saturating_mul(PAGE_BYTES).saturating_add(start);
            start
        });
        (starts.collect(), end)
    }
}

/// The reads of one process that has no job file. By default there is none.
#[derive(Clone, Debug)]
pub struct ReadList {
    /// I/O engine.
    pub engine: JobEngine,
    /// True for direct I/O.
    pub is_direct: bool,
    /// Queue depth, for an asynchronous engine.
    pub depth: u32,
    /// Reads in order.
    pub reads: Vec<GivenRead>,
    /// Think time before each read, from the moment at which it could start. Empty for none.
    pub think_times: Vec<Time>,
}

impl Default for ReadList {
    /// A list without reads, of blocking calls.
    fn default() -> ReadList {
        let (reads, think_times) = (Vec::new(), Vec::new());
        ReadList { engine: JobEngine::Psync, is_direct: false, depth: 1, reads, think_times }
    }
}

impl ReadList {
    /// Returns the total bytes of the reads.
    pub fn bytes(&self) -> u64 {
        self.reads.iter().map(|reading| reading.bytes).sum()
    }
}

impl Workload {
    /// Creates processes that each perform a list of reads in `files`, without advice. Each list
    /// becomes a small job whose size and positions the listed reads replace. In the results, all
    /// are processes of job number 0. A list without reads ends at once.
    pub fn from_lists(files: Vec<WorkloadFile>, lists: Vec<ReadList>) -> Workload {
        let processes = lists.into_iter().enumerate().map(|(index, list)| {
            let text = format!(
                "[list]\nrw=read\nsize=4k\nfadvise_hint=0\nioengine={}\ndirect={}\niodepth={}",
                list.engine.name(),
                u8::from(list.is_direct),
                list.depth
            );
            let job = JobFile::parse(&text).expect("the text is well formed").jobs.remove(0);
            let identity = process::JobProcess {
                id: ProcessId(index as u32),
                job: 0,
                process_index: index as u32,
                phase: 0,
            };
            // The listed reads replace the positions in this area, so its size and name are
            // unused.
            let area = layout::FileArea {
                file: list.reads.first().map_or(FileId(0), |read| read.file),
                offset: 0,
                bytes: PAGE_BYTES,
                file_bytes: PAGE_BYTES,
                name_hash: 0,
            };
            let dependencies = together::ProcessDependencies::default();
            // Listed reads have no random choices.
            let run_seed = 0;
            let mut process = Process::new(&job, identity, &[area], dependencies, run_seed)
                .expect("one block is not too many");
            process.set_reads(list.reads, list.think_times);
            process
        });
        Workload { processes: processes.collect(), files }
    }

    /// Adds the advice of each process, in the order of the processes. `window_bytes` is the
    /// kernel's readahead window, which limits one `WillNeed`.
    pub fn with_advice(mut self, advice: Vec<Vec<GivenAdvice>>, window_bytes: u64) -> Workload {
        for (process, advice) in self.processes.iter_mut().zip(advice) {
            process.set_advice(advice, window_bytes);
        }
        self
    }

    /// Keeps the cached pages of a file when a process opens it. Otherwise they are dropped, as in
    /// fio (`invalidate`).
    pub fn with_cached_pages_kept(mut self) -> Workload {
        self.processes.iter_mut().for_each(Process::keep_cached_pages);
        self
    }
}

impl Workload {
    /// Creates one process that performs `steps` on a file of `file_bytes`, with the other options
    /// of `job`. No step is larger than `largest_bytes`; all steps together move `all_bytes`.
    pub fn from_steps(
        job: &Job,
        file_bytes: u64,
        largest_bytes: u64,
        all_bytes: u64,
        steps: Box<dyn Iterator<Item = ScriptStep> + Send>,
    ) -> Workload {
        let identity = process::JobProcess { id: ProcessId(0), job: 0, process_index: 0, phase: 0 };
        // The steps replace the positions in this area, so its size and name are unused.
        let area = layout::FileArea {
            file: FileId(0),
            offset: 0,
            bytes: PAGE_BYTES,
            file_bytes: PAGE_BYTES,
            name_hash: 0,
        };
        let dependencies = together::ProcessDependencies::default();
        // Steps have no random choices.
        let run_seed = 0;
        let mut process = Process::new(job, identity, &[area], dependencies, run_seed)
            .expect("one block is not too many");
        process.set_steps(steps, largest_bytes, all_bytes);
        let file = WorkloadFile { name: "trace".to_owned(), bytes: file_bytes };
        Workload { files: vec![file], processes: vec![process] }
    }
}

/// Checks that the zones of a distribution in bytes lie within the smallest area. At the first draw
/// of a zone behind the area, fio ends the work in the file without a message. No check is needed
/// for zones in percent, for a sequential job, or for a direction that the job has not. Ends are
/// compared in whole blocks: a zone may end in the partial block behind the last whole one.
fn check_zones(job: &Job, areas: &[layout::FileArea]) -> Result<(), WorkloadError> {
    let Distribution::Zoned { zones, is_absolute: true } = &job.distribution else {
        return Ok(());
    };
    let area_bytes = areas.iter().map(|area| area.bytes).min().unwrap_or(u64::MAX);
    let has_direction = [job.pattern.reads_percent > 0, job.pattern.reads_percent < 100];
    for direction in (0..2).filter(|direction| has_direction[*direction] && job.pattern.is_random) {
        let block_bytes = job.align_bytes[direction]
            .unwrap_or_else(|| job.block_sizes[direction].smallest_bytes());
        let zones_end = skew::zones_end(&zones[direction]);
        if zones_end / block_bytes > area_bytes / block_bytes {
            let job = job.name.clone();
            return Err(WorkloadError::ZoneBeyondEnd { job, zones_end, area_bytes });
        }
    }
    Ok(())
}

/// Returns the maximum size in bytes of an operation of the job. Sizes by order
/// (`is_size_by_order`) do not depend on the direction.
fn block_bytes_largest(job: &Job) -> u64 {
    match job.pattern.reads_percent {
        _ if job.is_size_by_order => job.block_bytes_read().max(job.block_bytes_write()),
        0 => job.block_bytes_write(),
        100 => job.block_bytes_read(),
        _ => job.block_bytes_read().max(job.block_bytes_write()),
    }
}

impl fmt::Display for WorkloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkloadError::BeyondEnd { job, file, need_bytes, have_bytes } => write!(
                f,
                "job `{}`: `{}` has {have_bytes} bytes, and the job uses {need_bytes} \
                 (offset and size); make `size` smaller or the file larger",
                printable(job),
                printable(file)
            ),
            WorkloadError::NoFile { job, file } => write!(
                f,
                "job `{}`: there is no file `{}`; create it, or name another with `filename=`",
                printable(job),
                printable(file)
            ),
            WorkloadError::UnknownSize { job, file } => write!(
                f,
                "job `{}`: the size of `{}` is not known; give `size=` in bytes, or `filesize=`",
                printable(job),
                printable(file)
            ),
            WorkloadError::BlockTooLarge { job, file, block_bytes, area_bytes } => write!(
                f,
                "job `{}`: a block of {block_bytes} bytes does not fit into the {area_bytes} \
                 bytes that it uses of `{}`; make `bs` smaller or `size` larger",
                printable(job),
                printable(file)
            ),
            WorkloadError::TooManyFiles { asked } => write!(
                f,
                "the jobs have {asked} files together, and {} is the most; make `nrfiles` smaller",
                layout::FILES_MAX
            ),
            WorkloadError::NoSuchJob { job, waits_for } => write!(
                f,
                "job `{}` waits for `{}`, and no job above it has that name; put that one first",
                printable(job),
                printable(waits_for)
            ),
            WorkloadError::TooManyBlocks { job, blocks } => write!(
                f,
                "job `{}`: {blocks} blocks are too many for random places that come once; make \
                 `bs` larger, or add `norandommap` or `random_generator=permutation`",
                printable(job)
            ),
            WorkloadError::ZoneBeyondEnd { job, zones_end, area_bytes } => write!(
                f,
                "job `{}`: the zones of `zoned_abs` reach to {zones_end} bytes, and the area has \
                 {area_bytes}; make the zones smaller or `size` larger",
                printable(job)
            ),
            WorkloadError::TooManyProcesses { asked } => write!(
                f,
                "the jobs have {asked} processes together, and {PROCESSES_MAX} is the most; \
                 make `numjobs` smaller"
            ),
        }
    }
}

impl std::error::Error for WorkloadError {}
