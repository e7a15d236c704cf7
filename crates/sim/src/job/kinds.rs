//! The kinds of things that a job's options choose between.

use readpath_core::unit::Time;

/// What a job does so that what it wrote survives a loss of power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncRule {
    /// After so many writes `fsync(2)` (`fsync`, `sync`); 0 for never.
    pub writes: u32,
    /// After so many writes `fdatasync(2)` (`fdatasync`, `sync=dsync`); 0 for never.
    pub data_writes: u32,
    /// `fsync(2)` at the end (`end_fsync`, `fsync_on_close`).
    pub at_end: bool,
}

/// The order of places, and the direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobPattern {
    /// Whether the places are random; else one after the other.
    pub is_random: bool,
    /// Of a hundred operations, how many are reads: 100 for a reader, 0 for a writer.
    pub reads_percent: u8,
}

/// So many bytes, or a share of a file that must be known first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BytesOrPercent {
    /// A number of bytes.
    Bytes(u64),
    /// 1 to 100 percent (0 too, for an offset).
    Percent(u8),
}

/// By which system call a process moves its data.
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
    /// A mapping that is copied from: it faults page by page.
    Mmap,
    /// Past the page cache in chunks, which a law of raw I/O cuts: ours alone,
    /// fio has no engine of that name.
    Raw,
}

impl JobEngine {
    /// Whether several operations of one process may be in flight.
    pub const fn is_async(self) -> bool {
        matches!(self, JobEngine::Libaio | JobEngine::IoUring)
    }

    /// Its name in a job file.
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

/// What is said to the kernel of the pattern before the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdviceHint {
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
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Distribution {
    /// Each block as likely as any other.
    #[default]
    Uniform,
    /// The block of rank `k` is chosen with a probability in proportion to `k^-theta`.
    Zipf {
        /// The exponent: above 0, and not 1.
        theta: f64,
        /// Where the most frequent block lies, as a share of the blocks from 0 to 1; `None`:
        /// the ranks are scattered.
        center: Option<f64>,
    },
    /// Self-similar: a share `power` of the blocks gets all but `power` of the operations.
    Pareto {
        /// The share: above 0, below 1.
        power: f64,
        /// As with [`Distribution::Zipf`].
        center: Option<f64>,
    },
    /// A normal distribution.
    Normal {
        /// Its standard deviation, in percent of the blocks.
        deviation_percent: f64,
        /// As with [`Distribution::Zipf`]; `None`: in the middle.
        center: Option<f64>,
    },
    /// Zones with a share of the operations each.
    Zoned {
        /// The zones of reads and of writes, in the order of the file.
        zones: [Vec<DistributionZone>; 2],
        /// Whether a zone's length is in bytes; else it is in percent of the file.
        is_absolute: bool,
    },
}

/// One zone of a [`Distribution::Zoned`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DistributionZone {
    /// Of a hundred operations, how many fall into it.
    pub share: u8,
    /// Its length: bytes, or percent of the file.
    pub length: u64,
}

/// Where the randomness of random places comes from (`random_generator`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Generator {
    /// L'Ecuyer's `taus88`; for very large areas `taus258`, as fio does.
    #[default]
    Tausworthe,
    /// A linear feedback shift register, which takes each block once and needs no map.
    Lfsr,
    /// L'Ecuyer's `taus258`.
    Tausworthe64,
    /// A keyed permutation, which takes each block once in constant memory: ours alone.
    Permutation,
}

/// The sizes of the operations of one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockSizes {
    /// All alike, of so many bytes.
    One(u64),
    /// Any from the least to the most, in steps of the least (`bsrange`).
    Range {
        /// The smallest.
        least: u64,
        /// The largest.
        most: u64,
    },
    /// Some sizes, each with a share in percent (`bssplit`).
    Split(Vec<(u64, u8)>),
}

impl BlockSizes {
    /// The largest size in bytes.
    pub fn most(&self) -> u64 {
        match self {
            BlockSizes::One(bytes) | BlockSizes::Range { most: bytes, .. } => *bytes,
            BlockSizes::Split(parts) => parts.iter().map(|part| part.0).max().unwrap_or(0),
        }
    }

    /// The smallest size in bytes.
    pub fn least(&self) -> u64 {
        match self {
            BlockSizes::One(bytes) | BlockSizes::Range { least: bytes, .. } => *bytes,
            BlockSizes::Split(parts) => parts.iter().map(|part| part.0).min().unwrap_or(0),
        }
    }
}

/// What `rw=randread:8` and `rw=read:4k` change in the order of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomSequence {
    /// A new random place is drawn after so many operations; at least 1.
    pub every: u32,
    /// What the operations between do (`rw_sequencer`).
    pub kind: Sequencer,
    /// Added to each sequential place after the first, in bytes; may be negative.
    pub skip_bytes: i64,
}

impl Default for RandomSequence {
    fn default() -> RandomSequence {
        RandomSequence { every: 1, kind: Sequencer::default(), skip_bytes: 0 }
    }
}

/// What the operations between two random places do (`rw_sequencer`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sequencer {
    /// They go on behind the last one.
    #[default]
    Sequential,
    /// They go to the same place again.
    Identical,
}

/// Which of several files is next (`file_service_type`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FileService {
    /// How the next one is chosen.
    pub kind: FileServiceKind,
    /// After how many operations; at least 1. `None`: when the file is done.
    pub every: Option<u32>,
}

impl Default for FileService {
    fn default() -> FileService {
        FileService { kind: FileServiceKind::InTurn, every: Some(1) }
    }
}

/// How the next file is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileServiceKind {
    /// One after the other.
    InTurn,
    /// At random.
    Random,
}

/// How fast a job goes at most, per direction; 0 for as fast as it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// Bytes a second (`rate`), reads and writes.
    pub bytes: [u64; 2],
    /// Operations a second (`rate_iops`).
    pub operations: [u32; 2],
    /// Bytes a second that it must reach (`rate_min`).
    pub least_bytes: [u64; 2],
    /// Operations a second that it must reach (`rate_iops_min`).
    pub least_operations: [u32; 2],
    /// Over which time it must reach them (`rate_cycle`).
    pub cycle: Time,
    /// Whether the times between operations are exponential (`rate_process=poisson`); else equal.
    pub is_poisson: bool,
    /// Whether a pause is not caught up (`rate_ignore_thinktime`).
    pub ignores_pauses: bool,
}

impl RateLimits {
    /// Whether it says anything at all.
    pub fn is_any(&self) -> bool {
        self.is_limit() || self.least_bytes != [0; 2] || self.least_operations != [0; 2]
    }

    /// Whether it holds a job back.
    pub fn is_limit(&self) -> bool {
        self.bytes != [0; 2] || self.operations != [0; 2]
    }
}

/// When a process pauses, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseRule {
    /// How long (`thinktime`); zero for never.
    pub time: Time,
    /// After how many operations (`thinktime_blocks`); at least 1.
    pub blocks: u32,
    /// Whether issued operations count (`thinktime_blocks_type=issue`); else completed ones.
    pub counts_issued: bool,
    /// After how long a time of work in place of the operations (`thinktime_iotime`).
    pub work_time: Option<Time>,
}

impl Default for PauseRule {
    fn default() -> PauseRule {
        PauseRule { time: Time::ZERO, blocks: 1, counts_issued: false, work_time: None }
    }
}

/// Zones that are read one after the other with gaps between (`zonemode=strided`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StridedZones {
    /// Bytes that are moved in each zone (`zonesize`).
    pub moved_bytes: u64,
    /// Bytes from which they are chosen (`zonerange`).
    pub range_bytes: u64,
    /// Bytes between one range's end and the next one's start (`zoneskip`).
    pub skip_bytes: u64,
}

/// Whether, and when, what was written is read back (`verify`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyRule {
    /// After all is written (`do_verify`).
    pub at_end: bool,
    /// After so many writes (`verify_backlog`); 0 for never.
    pub backlog: u32,
    /// So many at a time of the backlog (`verify_backlog_batch`); 0 for all.
    pub backlog_batch: u32,
    /// Whether nothing is written, and what an earlier run wrote is read (`verify_only`).
    pub is_only: bool,
}

/// This job's share of the operations of all jobs with the same flow (`flow`, `flow_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowShareRule {
    /// Which flow.
    pub id: u32,
    /// Its weight, at least 1.
    pub weight: u32,
    /// How long it waits when it is ahead of its share (`flow_sleep`).
    pub sleep: Time,
}

/// When a job's rate counts as steady, which ends it (`steadystate`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SteadyStateRule {
    /// Whether operations a second are looked at (`iops`); else bytes (`bw`).
    pub is_operations: bool,
    /// Whether the slope of the rates must be small (`iops_slope`); else their deviation.
    pub is_slope: bool,
    /// How small: a share of the mean where `is_share`, else in the unit of the rate.
    pub limit: f64,
    /// Whether the limit is a share of the mean.
    pub is_share: bool,
    /// Over how many seconds (`steadystate_duration`).
    pub seconds: u32,
    /// What is left out at the start (`steadystate_ramp_time`).
    pub ramp: Time,
}

/// How the depth follows the latency (`latency_target`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyTarget {
    /// The latency that is to be kept.
    pub target: Time,
    /// For how long it must be kept (`latency_window`).
    pub window: Time,
    /// By how many percent of the operations (`latency_percentile`).
    pub percentile: f64,
    /// Whether the search goes on for the whole runtime (`latency_run`).
    pub runs_on: bool,
}

/// Whom a job takes along when it ends (`exitall`, `exit_what`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExitScope {
    /// Nobody.
    #[default]
    Nobody,
    /// The jobs of its reporting group.
    Group,
    /// The jobs that run since the last barrier.
    Phase,
    /// All jobs.
    All,
}

/// A trace that is replayed in place of a pattern (`read_iolog`).
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayOptions {
    /// The files of the trace, one a process.
    pub names: Vec<String>,
    /// Whether its times are kept; else each operation follows the one before (`replay_no_stall`).
    pub keeps_times: bool,
    /// In percent, how fast it goes (`replay_time_scale`).
    pub time_percent: u32,
    /// Offsets are divided by so much (`replay_scale`).
    pub scale: u32,
    /// Offsets are rounded down to a multiple of so many bytes (`replay_align`).
    pub align_bytes: u64,
    /// The file that everything goes to (`replay_redirect`).
    pub redirect: Option<String>,
    /// What is left out (`replay_skip`): reads, writes.
    pub skips: [bool; 2],
}

/// The logs that each process of a job writes of its operations. Each is named by how its file's
/// name begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Of latencies (`write_lat_log`).
    pub latency: Option<String>,
    /// Of bytes a second (`write_bw_log`).
    pub bandwidth: Option<String>,
    /// Of operations a second (`write_iops_log`).
    pub operations: Option<String>,
    /// Of the operations themselves, as a trace (`write_iolog`).
    pub trace: Option<String>,
    /// Over which time values are put together (`log_avg_msec`); zero: each has a line.
    pub window: Time,
    /// Whether of a window the largest value counts (`log_max_value`); else the mean.
    pub logs_maximum: bool,
    /// Whether a line has the operation's offset (`log_offset`).
    pub has_offset: bool,
    /// Whether a line has the priority in full (`log_prio`); else only whether it is the highest.
    pub has_priority: bool,
    /// Whether a line has the time of the issue (`log_issue_time`).
    pub has_issue_time: bool,
    /// Whether all processes write to the same files (`per_job_logs=0`).
    pub is_of_all: bool,
}

impl LogOptions {
    /// Whether there is any.
    pub fn is_any(&self) -> bool {
        let all = [&self.latency, &self.bandwidth, &self.operations, &self.trace];
        all.iter().any(|log| log.is_some())
    }
}
