//! What a job file becomes: files of a certain size, and processes that use them.
//!
//! A [`Workload`] is laid out once from a [`JobFile`]; after that each
//! [`Process`] is a machine of its own that says what it does next and hears of
//! its completions. It knows no clock and no device, so that the same processes
//! run in virtual and in real time.
//!
//! How the jobs follow each other: each `stonewall` begins a new phase. A
//! process may start when all processes of earlier phases have ended, and not
//! before its delay, counted from the start of the run.

use std::fmt;

use readpath_core::request::ProcessId;
use readpath_core::unit::{PAGE_BYTES, Time};

use crate::job::{Job, JobEngine, JobFile, shown};

mod block_map;
mod chance;
mod layout;
mod lfsr;
mod pace;
mod permutation;
mod permuted;
mod places;
mod process;
mod random;
mod rules;
mod skew;
mod together;

pub(crate) use chance::below;
pub(crate) use process::ScriptStep;
pub(crate) use process::seed_of;
pub use process::{GivenRead, Lateness, NextAction, Process, ProcessOperation};
pub(crate) use skew::SkewedPositions;

/// Names a file of the workload: its place in [`Workload::files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// A file that the processes use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadFile {
    /// Its path as fio would name it: `directory/name`, or `job.process.0` when the job names none.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// Where the files come from, and so what is known of their sizes.
#[derive(Clone, Copy)]
pub enum FileSource<'a> {
    /// Files that are made for the run, each as large as its jobs need.
    Modelled,
    /// The same, where a file whose size nobody gave has so many bytes.
    Assumed {
        /// The size of such a file.
        file_bytes: u64,
    },
    /// Files that exist; the function gives the size in bytes, `None` for a file that isn't there.
    Existing(&'a dyn Fn(&str) -> Option<u64>),
    /// One file that exists, for every process, whatever the jobs name.
    One {
        /// Its path.
        name: &'a str,
        /// Its size.
        bytes: u64,
    },
}

/// Files and processes, ready to run.
#[derive(Debug)]
pub struct Workload {
    /// The files.
    pub files: Vec<WorkloadFile>,
    /// The processes, in the order of the jobs; each is named by its place.
    pub processes: Vec<Process>,
}

/// Why a job file can't be laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadError {
    /// The job needs more of the file than there is.
    BeyondEnd {
        /// The job.
        job: String,
        /// The file.
        file: String,
        /// The end of the area, from `offset` and `size`.
        need_bytes: u64,
        /// The size of the file.
        have_bytes: u64,
    },
    /// The file is not there.
    NoFile {
        /// The job.
        job: String,
        /// The file.
        file: String,
    },
    /// A percentage, or the whole, of a file whose size nobody gave.
    UnknownSize {
        /// The job.
        job: String,
        /// The file.
        file: String,
    },
    /// Not one block fits into the area.
    BlockTooLarge {
        /// The job.
        job: String,
        /// The file.
        file: String,
        /// The size of a block.
        block_bytes: u64,
        /// The size of the area.
        area_bytes: u64,
    },
    /// More files than are supported.
    TooManyFiles {
        /// How many the job file asks for.
        asked: u64,
    },
    /// A job waits for one that does not stand above it.
    NoSuchJob {
        /// The job.
        job: String,
        /// The name of the one that it waits for.
        waits_for: String,
    },
    /// An area has more blocks than random places can be drawn of.
    TooManyBlocks {
        /// The job.
        job: String,
        /// How many there are.
        blocks: u64,
    },
    /// More processes than are supported.
    TooManyProcesses {
        /// How many the job file asks for.
        asked: u64,
    },
}

/// The most processes in one workload: as many as fio runs at most by default.
pub const PROCESSES_MAX: u64 = 4096;

impl Workload {
    /// Lays the jobs out. `seed` is the run's; each process draws from its own
    /// seed, made of that one, the job's `randseed` and the place of the process.
    ///
    /// # Errors
    /// An area does not fit into its file, or a size can't be known.
    pub fn new(
        job_file: &JobFile,
        placement: FileSource<'_>,
        seed: u64,
    ) -> Result<Workload, WorkloadError> {
        let asked: u64 = job_file.jobs.iter().map(|job| u64::from(job.processes)).sum();
        if asked > PROCESSES_MAX {
            return Err(WorkloadError::TooManyProcesses { asked });
        }
        let mut layout = layout::FileLayout::new(placement);
        let mut knots = together::DependencyBuilder::default();
        let mut processes = Vec::new();
        let mut phase = 0;
        for (index, job) in job_file.jobs.iter().enumerate() {
            if job.has_stonewall && index > 0 {
                phase += 1;
            }
            let ties = knots.job(job, phase).map_err(|waits_for| WorkloadError::NoSuchJob {
                job: job.name.clone(),
                waits_for,
            })?;
            for clone in 0..job.processes {
                let areas = layout.areas(job, clone)?;
                let id = ProcessId(processes.len() as u32);
                let place = process::JobProcess { id, job: index, clone, phase };
                let process = Process::new(job, place, &areas, ties.clone(), seed);
                let too_many = |error: places::TooManyBlocks| WorkloadError::TooManyBlocks {
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
    /// The bytes that all processes will have moved at their ends; `None` when
    /// only time ends one of them.
    pub fn bytes_planned(&self) -> Option<u64> {
        self.processes.iter().map(Process::bytes_planned).sum()
    }

    /// Where each file begins when they are laid side by side on one device, in
    /// bytes, and where the last one ends: whole pages each.
    pub fn side_by_side(&self) -> (Vec<u64>, u64) {
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

/// What one process reads, where no job file says it.
#[derive(Clone, Debug)]
pub struct ReadList {
    /// By which system call.
    pub engine: JobEngine,
    /// Whether it bypasses the page cache.
    pub is_direct: bool,
    /// How many reads it keeps in flight, for an engine that can.
    pub depth: u32,
    /// What it reads, in this order; at least one.
    pub readings: Vec<GivenRead>,
    /// For how long it does something else before each of them, once it could begin it; empty
    /// where it never does.
    pub thinks: Vec<Time>,
}

impl ReadList {
    /// How many bytes it reads.
    pub fn bytes(&self) -> u64 {
        self.readings.iter().map(|reading| reading.bytes).sum()
    }
}

impl Workload {
    /// Processes that each read a list of places in `files`, and give no hints.
    pub(crate) fn listed(files: Vec<WorkloadFile>, lists: Vec<ReadList>) -> Workload {
        let processes = lists.into_iter().enumerate().map(|(at, list)| {
            let text = format!(
                "[list]\nrw=read\nsize=4k\nfadvise_hint=0\nioengine={}\ndirect={}\niodepth={}",
                list.engine.name(),
                u8::from(list.is_direct),
                list.depth
            );
            let job = JobFile::parse(&text).expect("the text is well formed").jobs.remove(0);
            let place = process::JobProcess {
                id: ProcessId(at as u32),
                job: 0,
                clone: at as u32,
                phase: 0,
            };
            let area = layout::FileArea {
                file: list.readings[0].file,
                offset: 0,
                bytes: PAGE_BYTES,
                file_bytes: PAGE_BYTES,
                name_hash: 0,
            };
            let ties = together::ProcessDependencies::default();
            let mut process =
                Process::new(&job, place, &[area], ties, 0).expect("one block is not too many");
            process.follow(list.readings, list.thinks);
            process
        });
        Workload { processes: processes.collect(), files }
    }
}

impl Workload {
    /// One process that goes through `steps` on a file of so many bytes, and else does as `job`
    /// says; none of the steps is larger than `largest_bytes`.
    pub(crate) fn scripted(
        job: &Job,
        file_bytes: u64,
        largest_bytes: u64,
        all_bytes: u64,
        steps: Box<dyn Iterator<Item = ScriptStep> + Send>,
    ) -> Workload {
        let place = process::JobProcess { id: ProcessId(0), job: 0, clone: 0, phase: 0 };
        let area = layout::FileArea {
            file: FileId(0),
            offset: 0,
            bytes: PAGE_BYTES,
            file_bytes: PAGE_BYTES,
            name_hash: 0,
        };
        let ties = together::ProcessDependencies::default();
        let mut process =
            Process::new(job, place, &[area], ties, 0).expect("one block is not too many");
        process.set_steps(steps, largest_bytes, all_bytes);
        let file = WorkloadFile { name: "trace".to_owned(), bytes: file_bytes };
        Workload { files: vec![file], processes: vec![process] }
    }
}

/// The most bytes that one operation of the job moves.
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
                shown(job),
                shown(file)
            ),
            WorkloadError::NoFile { job, file } => write!(
                f,
                "job `{}`: there is no file `{}`; create it, or name another with `filename=`",
                shown(job),
                shown(file)
            ),
            WorkloadError::UnknownSize { job, file } => write!(
                f,
                "job `{}`: the size of `{}` is not known; give `size=` in bytes, or `filesize=`",
                shown(job),
                shown(file)
            ),
            WorkloadError::BlockTooLarge { job, file, block_bytes, area_bytes } => write!(
                f,
                "job `{}`: a block of {block_bytes} bytes does not fit into the {area_bytes} \
                 bytes that it uses of `{}`; make `bs` smaller or `size` larger",
                shown(job),
                shown(file)
            ),
            WorkloadError::TooManyFiles { asked } => write!(
                f,
                "the jobs have {asked} files together, and {} is the most; make `nrfiles` smaller",
                layout::FILES_MAX
            ),
            WorkloadError::NoSuchJob { job, waits_for } => write!(
                f,
                "job `{}` waits for `{}`, and no job above it has that name; put that one first",
                shown(job),
                shown(waits_for)
            ),
            WorkloadError::TooManyBlocks { job, blocks } => write!(
                f,
                "job `{}`: {blocks} blocks are too many for random places that come once; make \
                 `bs` larger, or add `norandommap` or `random_generator=permutation`",
                shown(job)
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
