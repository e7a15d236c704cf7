//! Options of a job, in the form required by the loop of a process.
//!
//! A *pass* is one repetition of the job's work.

use readpath_core::readahead::Advice;
use readpath_core::request::Priority;
use readpath_core::unit::Time;

use super::block_bytes_largest;
use super::layout::{FileArea, percent_of};
use crate::job::{
    AdviceHint, BytesOrPercent, FileService, Job, JobEngine, PauseRule, StridedZones, SyncRule,
};

/// Rules of one process.
#[derive(Debug)]
pub struct ProcessRules {
    /// Delay of the start (option startdelay of fio).
    pub start_delay: Time,
    /// I/O priority. `None` means the caller's.
    pub priority: Option<Priority>,
    /// I/O engine.
    pub engine: JobEngine,
    /// True for direct I/O.
    pub is_direct: bool,
    /// Advice when a file is opened, for `posix_fadvise(2)`.
    pub advice: Advice,
    /// Advice when a file is mapped, for `madvise(2)`.
    pub mapping_advice: Advice,
    /// Maximum number of operations in flight.
    pub depth: u32,
    /// Number of operations that are submitted together.
    pub batch: u32,
    /// Number of completions that are collected before new operations.
    pub batch_complete: u32,
    /// Number of operations in flight to which a full queue is drained.
    pub low: u32,
    /// Maximum size of an operation.
    pub block_bytes_largest: u64,
    /// The fewest bytes that are worth another pass: the largest block of all directions.
    pub pass_bytes_min: u64,
    /// Percentage of reads.
    pub reads_percent: u8,
    /// True if the process can write.
    pub writes: bool,
    /// True if cached data of a file is dropped before its first use.
    pub invalidates: bool,
    /// Seed of the written contents.
    pub content_seed: u64,
    /// Pauses between operations (option thinktime of fio).
    pub pauses: PauseRule,
    /// True if the job has a maximum rate.
    pub has_rate: bool,
    /// Maximum latency of an operation. A longer one ends the process.
    pub latency_max: Option<Time>,
    /// Run time before the measurement starts.
    pub ramp: Time,
    /// Zones with gaps (`zonemode=strided`).
    pub strides: Option<StridedZones>,
    /// Choice of the next file.
    pub file_service: FileService,
    /// Maximum number of unfinished files in use at a time (option openfiles of fio).
    pub open_files_max: usize,
    /// Number of operations per random position.
    pub draw_every: u32,
    /// Maximum run time.
    pub runtime: Option<Time>,
    /// True if the work is repeated until `runtime` has passed.
    pub is_time_based: bool,
    /// Number of repetitions, at least 1.
    pub loops: u32,
    /// Bytes that end the work, per loop: `io_size`, otherwise `size`.
    pub limit_bytes: u64,
    /// True if the job states `io_size` in bytes. Its passes then repeat the areas until these
    /// bytes are issued.
    pub has_io_size: bool,
    /// Bytes that end a pass.
    pub pass_bytes: u64,
    /// Number of operations that ends the work, per loop.
    pub limit_operations: u64,
    /// Syncs of written data.
    pub sync: SyncRule,
}

impl ProcessRules {
    /// Creates the rules of `job` on `areas`. A job that only creates its files (option create_only
    /// of fio) has a limit of 0 bytes, so it issues nothing.
    pub fn new(job: &Job, areas: &[FileArea]) -> ProcessRules {
        // Files of 2^64 bytes in all are refused later, where no device has room for them.
        let area_bytes = areas.iter().map(|area| area.bytes).fold(0, u64::saturating_add);
        let pass_bytes = match job.size {
            Some(BytesOrPercent::Bytes(bytes)) => bytes.min(area_bytes),
            _ => area_bytes,
        };
        let limit_bytes = match job.io_size {
            Some(BytesOrPercent::Bytes(bytes)) => bytes,
            Some(BytesOrPercent::Percent(percent)) => {
                // A percentage refers to all areas, and gives at most one pass.
                percent_of(area_bytes, percent).min(pass_bytes)
            }
            None => pass_bytes,
        };
        ProcessRules {
            start_delay: job.start_delay,
            priority: job.priority,
            engine: job.engine,
            is_direct: job.is_direct,
            advice: advice(job),
            mapping_advice: mapping_advice(job),
            depth: job.depth,
            batch: job.batch,
            batch_complete: job.batch_complete,
            low: job.low,
            block_bytes_largest: block_bytes_largest(job),
            pass_bytes_min: job
                .block_bytes_read()
                .max(job.block_bytes_write())
                .max(job.trim_block_sizes.largest_bytes()),
            reads_percent: job.pattern.reads_percent,
            writes: job.writes(),
            invalidates: job.invalidates,
            content_seed: job.seed,
            pauses: job.pauses,
            has_rate: job.rate.has_maximum(),
            latency_max: job.latency_max,
            ramp: job.ramp,
            strides: job.strides,
            file_service: job.file_service,
            open_files_max: job.open_files_max.map_or(usize::MAX, |count| count as usize),
            draw_every: job.sequence.every,
            runtime: job.runtime,
            is_time_based: job.is_time_based && !job.is_creation_only,
            loops: job.loops,
            limit_bytes: if job.is_creation_only { 0 } else { limit_bytes },
            limit_operations: job.operations.unwrap_or(u64::MAX),
            pass_bytes,
            // A percentage makes the work smaller, and does not repeat it, as in fio.
            has_io_size: matches!(job.io_size, Some(BytesOrPercent::Bytes(_))),
            sync: job.sync,
        }
    }
}

/// Returns fio's advice to the kernel when it opens a file of this job.
fn advice(job: &Job) -> Advice {
    match job.hint {
        AdviceHint::None => Advice::Normal,
        AdviceHint::Pattern if job.pattern.is_random => Advice::Random,
        AdviceHint::Pattern | AdviceHint::Sequential => Advice::Sequential,
        AdviceHint::Random => Advice::Random,
    }
}

/// Returns fio's advice on the mapping. For the engine `mmap` it is the job's pattern, unless
/// `fadvise_hint=0`. The hints `sequential` and `random` do not affect the mapping (observed with
/// strace on fio 3.33).
fn mapping_advice(job: &Job) -> Advice {
    match job.hint {
        _ if job.engine != JobEngine::Mmap => Advice::Normal,
        AdviceHint::None => Advice::Normal,
        _ if job.pattern.is_random => Advice::Random,
        _ => Advice::Sequential,
    }
}
