//! fio job files: what a benchmark asks of the storage, in fio's own format.
//!
//! The same file runs in fio 3.33 and here, and means the same. Where fio is
//! lenient this reader is strict: an option that is not supported, a suffix
//! that fio would drop in silence (`size=1x` is one byte there), a job without
//! `rw` are errors that name the line. So every file that is read here is read
//! by fio, and not the other way round. There is one exception, an extension of
//! ours: `ioengine=raw`, large transfers past the cache in chunks, which fio refuses.
//!
//! The format, as fio reads it:
//! - `[name]` starts a job, `[global]` (any name that starts so) changes the
//!   defaults of the jobs *after* it; it may come several times and adds up;
//! - `option=value`, or `option` alone for switches; the last one wins;
//! - `;` and `#` start a comment, also behind a value.

use readpath_core::request::Priority;
use readpath_core::unit::Time;

mod error;
mod options;
mod parse;
mod units;

pub use error::JobError;
pub use options::OPTIONS;

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
    pub pattern: Pattern,
    /// Bytes in a read (`bs`); at least 1.
    pub block_bytes_read: u64,
    /// Bytes in a write (`bs=READ,WRITE`); at least 1.
    pub block_bytes_write: u64,
    /// How much of its files a process covers in one pass (`size`), for all its files together.
    pub size: Option<Extent>,
    /// How much is moved in total, when that is not one pass (`io_size`).
    pub io_size: Option<Extent>,
    /// Where in each file the area begins (`offset`).
    pub offset: Extent,
    /// How large each file is (`filesize`).
    pub file_bytes: Option<u64>,
    /// The files (`filename`), shared by all processes; empty: one of its own for each process.
    pub file_names: Vec<String>,
    /// The directory of the files (`directory`).
    pub directory: Option<String>,
    /// How many processes do the same (`numjobs`); at least 1.
    pub processes: u32,
    /// How many operations are kept in flight (`iodepth`); 1 for engines that wait.
    pub depth: u32,
    /// How many operations are collected before they are submitted (`iodepth_batch`); 1 to `depth`.
    pub batch: u32,
    /// How many completions are collected before new operations are prepared
    /// (`iodepth_batch_complete`); 1 to `depth`.
    pub batch_complete: u32,
    /// By which system call (`ioengine`).
    pub engine: Engine,
    /// Whether the page cache is bypassed (`direct`, or `buffered=0`).
    pub is_direct: bool,
    /// The longest that a process runs (`runtime`).
    pub runtime: Option<Time>,
    /// Whether a process starts over until `runtime` is up (`time_based`).
    pub is_time_based: bool,
    /// How long a process pauses (`thinktime`); zero for never.
    pub think_time: Time,
    /// After how many completed operations it does (`thinktime_blocks`); at least 1.
    pub think_blocks: u32,
    /// What the kernel is told of the pattern (`fadvise_hint`).
    pub hint: Hint,
    /// The seed of the random places (`randseed`).
    pub seed: u64,
    /// How random places are spread (`random_distribution`).
    pub distribution: Distribution,
    /// Whether a random pass takes each block once (unless `norandommap`).
    pub has_random_map: bool,
    /// Whether its processes are reported as one (`group_reporting`).
    pub is_group_reported: bool,
    /// How long after the start of the run it may begin (`startdelay`).
    pub start_delay: Time,
    /// Whether it waits for all jobs before it to end (`stonewall`).
    pub is_barrier: bool,
    /// How many times the work is done (`loops`); at least 1.
    pub loops: u32,
    /// How often, and how, what was written is put on the medium.
    pub sync: Sync,
    /// The I/O priority (`prioclass`, `prio`); `None`: that of the caller.
    pub priority: Option<Priority>,
}

/// What a job does so that what it wrote survives a loss of power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sync {
    /// After so many writes `fsync(2)` (`fsync`); 0 for never.
    pub writes: u32,
    /// After so many writes `fdatasync(2)` (`fdatasync`); 0 for never.
    pub data_writes: u32,
    /// `fsync(2)` at the end (`end_fsync`).
    pub at_end: bool,
}

/// The order of places, and the direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Whether the places are random; else one after the other.
    pub is_random: bool,
    /// Of a hundred operations, how many are reads: 100 for a reader, 0 for a writer.
    pub reads_percent: u8,
}

/// So many bytes, or a share of a file that must be known first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// A number of bytes.
    Bytes(u64),
    /// 1 to 100 percent (0 too, for an offset).
    Percent(u8),
}

/// By which system call a process moves its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Engine {
    /// `lseek(2)` and `read(2)`.
    Sync,
    /// `pread(2)`.
    #[default]
    Psync,
    /// `io_submit(2)`.
    Libaio,
    /// io_uring.
    IoUring,
    /// A mapping that is copied from: it faults page by page.
    Mmap,
    /// Past the page cache in chunks, which a law of raw I/O cuts: ours alone,
    /// fio has no engine of that name.
    Raw,
}

impl Engine {
    /// Whether several operations of one process may be in flight.
    pub const fn is_async(self) -> bool {
        matches!(self, Engine::Libaio | Engine::IoUring)
    }

    /// Its name in a job file.
    pub const fn name(self) -> &'static str {
        match self {
            Engine::Sync => "sync",
            Engine::Psync => "psync",
            Engine::Libaio => "libaio",
            Engine::IoUring => "io_uring",
            Engine::Mmap => "mmap",
            Engine::Raw => "raw",
        }
    }
}

/// What is said to the kernel of the pattern before the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hint {
    /// Nothing (`0`).
    None,
    /// The job's own pattern, sequential or random (`1`).
    #[default]
    Pattern,
    /// Sequential, whatever the job does.
    Sequential,
    /// Random, whatever the job does.
    Random,
}

/// How random places are spread over the blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Distribution {
    /// Each block as likely as any other.
    #[default]
    Uniform,
    /// The block of rank `k` is chosen with a probability in proportion to `k^-theta`.
    Zipf {
        /// The exponent: above 0, and not 1.
        theta: f64,
    },
}

impl JobFile {
    /// Whether any of its jobs has the engine `raw`.
    pub fn has_raw(&self) -> bool {
        self.jobs.iter().any(|job| job.engine == Engine::Raw)
    }

    /// Reads the text of a job file.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub fn parse(text: &str) -> Result<JobFile, JobError> {
        parse::job_file(text)
    }
}
