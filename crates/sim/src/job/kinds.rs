//! Types of the values of a job's options.

use readpath_core::unit::Time;

/// Syncs that make written data durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncRule {
    /// Number of writes between `fsync(2)` calls (`fsync`, `sync`). 0 for never.
    pub writes: u32,
    /// Number of writes between `fdatasync(2)` calls (`fdatasync`, `sync=dsync`). 0 for never.
    pub data_writes: u32,
    /// `fsync(2)` at the end (`end_fsync`, `fsync_on_close`).
    pub at_end: bool,
}

/// Order of the positions, and direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobPattern {
    /// True for random positions, false for sequential ones.
    pub is_random: bool,
    /// Percentage of reads: 100 for a reader, 0 for a writer.
    pub reads_percent: u8,
}

/// A number of bytes, or a fraction of a file of known size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BytesOrPercent {
    /// A number of bytes.
    Bytes(u64),
    /// 1 to 100 percent (for an offset also 0).
    Percent(u8),
}

/// I/O engine: the system call that transfers the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum JobEngine {
    /// `lseek(2)` and `read(2)`.
    Sync,
    /// `pread(2)`.
    #[default]
    Psync,
    /// `io_submit(2)`.
    Libaio,
    /// io_uring.
    IoUring,
    /// Copies from a mapping, with page faults.
    Mmap,
    /// Direct I/O in chunks of a chunking policy. An extension: fio has no such engine.
    Raw,
}

impl JobEngine {
    /// Returns true if a process can have several operations in flight.
    pub const fn is_async(self) -> bool {
        matches!(self, JobEngine::Libaio | JobEngine::IoUring)
    }

    /// Name in a job file.
    pub const fn name(self) -> &'static str {
        match self {
            JobEngine::Sync => "sync",
            JobEngine::Psync => "psync",
            JobEngine::Libaio => "libaio",
            JobEngine::IoUring => "io_uring",
            JobEngine::Mmap => "mmap",
            JobEngine::Raw => "raw",
        }
    }
}

/// Advice to the kernel about the pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdviceHint {
    /// No advice (`0`).
    None,
    /// The job's own pattern, sequential or random (`1`).
    #[default]
    Pattern,
    /// Sequential, for any pattern of the job.
    Sequential,
    /// Random, for any pattern of the job.
    Random,
}

/// Distribution of random positions over the blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Distribution {
    /// All blocks are equally likely.
    #[default]
    Uniform,
    /// The block of rank `k` has a probability proportional to `k^-theta`.
    Zipf {
        /// Exponent, above 0 and not 1.
        theta: f64,
        /// Position of the most frequent block, as a fraction of the blocks from 0 to 1. `None`
        /// scatters the ranks.
        center: Option<f64>,
    },
    /// Self-similar: a fraction `power` of the blocks gets all but `power` of the operations.
    Pareto {
        /// Fraction, above 0 and below 1.
        power: f64,
        /// Position of the most frequent block, as in [`Distribution::Zipf`].
        center: Option<f64>,
    },
    /// A normal distribution.
    Normal {
        /// Standard deviation in percent of the blocks.
        deviation_percent: f64,
        /// Position of the most frequent block, as in [`Distribution::Zipf`]. `None` means the
        /// middle.
        center: Option<f64>,
    },
    /// Zones with a share of the operations each.
    Zoned {
        /// Zones of reads and of writes, in the order of the file.
        zones: [Vec<DistributionZone>; 2],
        /// True if the length of a zone is in bytes, false if it is in percent of the file.
        is_absolute: bool,
    },
}

/// A zone of a [`Distribution::Zoned`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DistributionZone {
    /// Percentage of the operations in this zone.
    pub share: u8,
    /// Length in bytes, or in percent of the file.
    pub length: u64,
}

/// Random generator of the positions (`random_generator`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Generator {
    /// L'Ecuyer's `taus88`, and `taus258` for very large areas, as in fio.
    #[default]
    Tausworthe,
    /// A linear feedback shift register, which covers each block once without a map.
    Lfsr,
    /// L'Ecuyer's `taus258`.
    Tausworthe64,
    /// A keyed permutation, which covers each block once in constant memory. An extension of fio.
    Permutation,
}

/// Sizes of the operations of one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockSizes {
    /// A single size in bytes.
    One(u64),
    /// A random size between the bounds, in steps of the smallest (`bsrange`).
    Range {
        /// Smallest size.
        least: u64,
        /// Largest size.
        most: u64,
    },
    /// Several sizes in bytes, each with its share in percent (`bssplit`).
    Split(Vec<(u64, u8)>),
}

impl BlockSizes {
    /// Largest size in bytes.
    pub fn largest_bytes(&self) -> u64 {
        match self {
            BlockSizes::One(bytes) | BlockSizes::Range { most: bytes, .. } => *bytes,
            BlockSizes::Split(parts) => parts.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0),
        }
    }

    /// Smallest size in bytes.
    pub fn smallest_bytes(&self) -> u64 {
        match self {
            BlockSizes::One(bytes) | BlockSizes::Range { least: bytes, .. } => *bytes,
            BlockSizes::Split(parts) => parts.iter().map(|(bytes, _)| *bytes).min().unwrap_or(0),
        }
    }
}

/// Modification of the order by `rw=randread:8` or `rw=read:4k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomSequence {
    /// Number of operations per random position, at least 1.
    pub every: u32,
    /// Behaviour of the operations in between (`rw_sequencer`).
    pub kind: Sequencer,
    /// Bytes added to each sequential position after the first. Can be negative.
    pub skip_bytes: i64,
}

impl Default for RandomSequence {
    /// Each position of a random job is random, and sequential operations have no gaps.
    fn default() -> RandomSequence {
        RandomSequence { every: 1, kind: Sequencer::default(), skip_bytes: 0 }
    }
}

/// Behaviour of the operations between two random positions (`rw_sequencer`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sequencer {
    /// They continue the previous operation.
    #[default]
    Sequential,
    /// They repeat the same position.
    Identical,
}

/// Choice of the next file among several (`file_service_type`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FileService {
    /// Rule for the choice.
    pub kind: FileServiceKind,
    /// Number of operations between choices, at least 1. `None` means at the end of each file.
    pub operations_per_turn: Option<u32>,
}

impl Default for FileService {
    /// One operation in each file in turn, as in fio.
    fn default() -> FileService {
        FileService { kind: FileServiceKind::RoundRobin, operations_per_turn: Some(1) }
    }
}

/// Rule for the choice of the next file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileServiceKind {
    /// In rotation.
    RoundRobin,
    /// At random.
    Random,
}

/// Rate limits of a job per direction. 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// Maximum bytes per second (`rate`), reads and writes.
    pub bytes_per_s: [u64; 2],
    /// Maximum operations per second (`rate_iops`).
    pub operations_per_s: [u32; 2],
    /// Minimum bytes per second (`rate_min`).
    pub least_bytes_per_s: [u64; 2],
    /// Minimum operations per second (`rate_iops_min`).
    pub least_operations_per_s: [u32; 2],
    /// Period over which the minimum rates are checked (`rate_cycle`).
    pub check_period: Time,
    /// True for exponentially distributed intervals (`rate_process=poisson`), false for equal ones.
    pub is_poisson: bool,
    /// True if pauses are not made up for (`rate_ignore_thinktime`).
    pub ignores_pauses: bool,
}

impl RateLimits {
    /// Returns true if there is a maximum rate.
    pub fn has_maximum(&self) -> bool {
        self.bytes_per_s != [0; 2] || self.operations_per_s != [0; 2]
    }
}

/// Pauses of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseRule {
    /// Duration (`thinktime`). Zero for no pauses.
    pub time: Time,
    /// Number of operations between pauses (`thinktime_blocks`), at least 1. `None` is 1 without a
    /// `work_time`, and no number with one.
    pub blocks: Option<u32>,
    /// True if issued operations are counted (`thinktime_blocks_type=issue`), false for completed
    /// ones.
    pub counts_issued: bool,
    /// Time between pauses (`thinktime_iotime`). With `blocks`, the first of both causes a pause.
    pub work_time: Option<Time>,
}

impl Default for PauseRule {
    /// No pauses. If a time is set, there is one after each completed operation.
    fn default() -> PauseRule {
        PauseRule { time: Time::ZERO, blocks: None, counts_issued: false, work_time: None }
    }
}

/// Zones that are read in sequence, with gaps between (`zonemode=strided`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StridedZones {
    /// Bytes transferred in each zone (`zonesize`).
    pub moved_bytes: u64,
    /// Length of the range of a zone (`zonerange`).
    pub range_bytes: u64,
    /// Bytes between the end of one range and the start of the next (`zoneskip`).
    pub skip_bytes: u64,
}

/// Verification of written data by reading it back (`verify`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyRule {
    /// Verifies after all writes (`do_verify`).
    pub at_end: bool,
    /// Number of writes between verifications (`verify_backlog`). 0 for never.
    pub backlog: u32,
    /// Number of operations of the backlog per verification (`verify_backlog_batch`). 0 for all.
    pub backlog_batch: u32,
    /// True if the job writes nothing and verifies the data of an earlier run (`verify_only`).
    pub is_only: bool,
}

/// Share of this job in the operations of all jobs with the same flow (`flow`, `flow_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowShareRule {
    /// Flow number.
    pub id: u32,
    /// Weight, at least 1.
    pub weight: u32,
    /// Wait time when the job is ahead of its share (`flow_sleep`).
    pub sleep: Time,
}

/// Condition of a steady state, which ends the job (`steadystate`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SteadyStateRule {
    /// True for operations per second (`iops`), false for bytes per second (`bw`).
    pub is_operations: bool,
    /// True for a limit on the slope of the rates (`iops_slope`), false for their deviation.
    pub is_slope: bool,
    /// Limit: a fraction of the mean if `is_share`, otherwise in the unit of the rate.
    pub limit: f64,
    /// True if the limit is a fraction of the mean.
    pub is_share: bool,
    /// Duration in seconds (`steadystate_duration`).
    pub seconds: u32,
    /// Time excluded at the start (`steadystate_ramp_time`).
    pub ramp: Time,
}

/// Search for the queue depth with a given latency (`latency_target`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyTarget {
    /// Maximum latency.
    pub target: Time,
    /// Period in which it must be met (`latency_window`).
    pub window: Time,
    /// Percentage of the operations that must meet it (`latency_percentile`).
    pub percentile: f64,
    /// True if the job goes on after the search for its whole run time (`latency_run`). False
    /// if the end of the search ends it.
    pub continues_after: bool,
}

/// Jobs that end with a job (`exitall`, `exit_what`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExitScope {
    /// No others.
    #[default]
    OnlyItself,
    /// The jobs of its reporting group.
    Group,
    /// The jobs since the last barrier.
    Phase,
    /// All jobs.
    All,
}

/// A trace that is replayed instead of a pattern (`read_iolog`).
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayOptions {
    /// Files of the trace, one per process.
    pub names: Vec<String>,
    /// True if the times are kept. Otherwise operations follow each other directly
    /// (`replay_no_stall`).
    pub keeps_times: bool,
    /// Speed in percent (`replay_time_scale`).
    pub time_percent: u32,
    /// Divisor of the offsets (`replay_scale`).
    pub scale: u32,
    /// Unit to which offsets are rounded down (`replay_align`).
    pub align_bytes: u64,
    /// File that receives all operations (`replay_redirect`).
    pub redirect: Option<String>,
    /// Directions that are omitted (`replay_skip`): reads, writes.
    pub skips: [bool; 2],
}

/// Logs of the operations of each process, given by the prefix of their file names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Latencies (`write_lat_log`).
    pub latency: Option<String>,
    /// Bandwidth (`write_bw_log`).
    pub bandwidth: Option<String>,
    /// Operations per second (`write_iops_log`).
    pub operations: Option<String>,
    /// The operations themselves, as a trace (`write_iolog`).
    pub trace: Option<String>,
    /// Window over which values are averaged (`log_avg_msec`). Zero means one line per value.
    pub window: Time,
    /// True if the maximum of a window is logged (`log_max_value`), false for the mean.
    pub logs_maximum: bool,
    /// True if a line contains the offset (`log_offset`).
    pub has_offset: bool,
    /// True if a line contains the full priority (`log_prio`). Otherwise it only marks the highest
    /// class.
    pub has_priority: bool,
    /// True if a line contains the issue time (`log_issue_time`).
    pub has_issue_time: bool,
    /// True if all processes write to the same files (`per_job_logs=0`).
    pub is_one_file_for_all: bool,
}

impl LogOptions {
    /// Returns true if there is any log.
    pub fn is_any(&self) -> bool {
        let prefixes = [&self.latency, &self.bandwidth, &self.operations, &self.trace];
        prefixes.iter().any(|log| log.is_some())
    }
}
