//! Diagnosis of a program's reads from a recording.
//!
//! # Rules
//!
//! The cost of a cause is the time that the program waited for a device because of it. Computation,
//! and reads of bytes in memory, cost nothing. Each read that waited is charged to one cause: the
//! first of these whose rule holds.
//!
//! 1. [`Again`](WaitCause::Again): most of the bytes fetched for the read had been fetched before.
//! 2. [`Advice`](WaitCause::Advice): a random hint holds, and the read belongs to a sequential run
//!    of at least [`ORDERED_BYTES`] for which nothing was read ahead. Unused bytes that a
//!    sequential hint had fetched are charged to it too, as under `OverRead` below.
//! 3. [`PageFaults`](WaitCause::PageFaults): the read is a touch of a mapping of more than a page,
//!    and one page was fetched for it.
//! 4. [`Small`](WaitCause::Small): the read continues the last one, nothing was read ahead, and it
//!    is smaller than [`SMALL_BYTES`]. The cost of the request exceeds the cost of its bytes.
//!    Without root only direct reads are known to be requests of their own.
//! 5. [`Depth`](WaitCause::Depth): the read does not continue the last one, and neither it nor the
//!    bytes fetched for it are large. The device had less than [`LOW_DEPTH`] requests on average
//!    while it waited.
//!
//! [`Direct`](WaitCause::Direct) precedes `Small`: AIO submitted a read at an unpredictable
//! position, and it filled the page cache, so the submission waited for it. The bytes that direct
//! reads fetch into the page cache without need are charged to it as well.
//!
//! Six causes are found only in the statistics of the whole recording. They take their part of the
//! charges above:
//!
//! - [`OverRead`](WaitCause::OverRead): at least half of the pages fetched of a file were neither
//!   requested nor mapped. The used parts would have taken less time as separate requests, by the
//!   service times of the recording. The difference is charged.
//! - [`ManyFiles`](WaitCause::ManyFiles): the program waits for many small files, one after the
//!   other.
//! - [`SlowFile`](WaitCause::SlowFile): each wait for a file, and each byte of it, takes
//!   [`SLOW_FACTOR`] times as long as for the median of the others. Ordered reads are compared
//!   with ordered ones, and random reads with random ones.
//! - [`Writers`](WaitCause::Writers): waits that began next to a write on the device were twice as
//!   long as the other waits. If all waits did, the waits next to the most written bytes are
//!   compared with the waits next to the fewest.
//! - [`Readers`](WaitCause::Readers): the same for the reads of other programs. If all waits began
//!   next to such reads, nothing is claimed.
//! - [`Stalls`](WaitCause::Stalls): at most a tenth of the waits take 25 ms or more, and eight
//!   times the median of their device and size.
//!
//! [`Calls`](WaitCause::Calls) is the one cause without a wait: the processor time of small reads
//! by system calls. [`Metadata`](WaitCause::Metadata) and [`Sync`](WaitCause::Sync) are times in
//! which the program did nothing else. They need a recording with times by activity.
//!
//! Waits of several threads at the same time share the time that passed. A finding
//! needs [`REPORTED_SHARE_MIN`] of the recording's length, [`SECONDS_MIN`], and [`WAITS_MIN`]
//! waits; causes without single waits need other counts. Long waits without recorded reads raise
//! the least time. Without a finding, the device or work other than reading is the limit.
//!
//! # Limits of the evidence
//!
//! A fault maps up to 2 MiB, and the kernel reports no touch of the mapped pages. These pages never
//! count as fetched without need. Reads that were not seen (`Unseen`) may have used any page, so
//! `OverRead` is not claimed next to them. If they are many, no verdict is given.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use readpath_trace::recording::{Activity, DeviceOperation, ReadMethod, Record};

mod call_cost;
mod cause;
mod depth_sweep;
mod followers;
pub mod gain;
mod gather;
mod interference;
mod measure;
mod pattern;
pub mod readahead;
mod reuse;
mod sample;
mod shape;
mod spans;
mod stalls;
mod wait_sum;

pub use call_cost::SmallCalls;
pub use cause::AssumedParts;
pub use measure::measure;
pub use reuse::ReusePoint;
pub use shape::{FileStatistics, ReadShape, SizeCount, StrideCount, ThreadStatistics};

use gain::Gain;
use gather::{FileData, RecordingData};
use readahead::ReadaheadWaits;

/// Size below which a request is small. Up to this size, a request takes about constant time on
/// today's devices (a drive with 1 GB/s and 60 µs per request: 60 KB).
pub const SMALL_BYTES: u64 = 64 << 10;

/// Size above which a request is large: its bytes dominate its cost.
pub const LARGE_BYTES: u64 = 512 << 10;

/// Mean number of device requests during a wait below which the queue depth is low. Chosen.
pub const LOW_DEPTH: f64 = 2.0;

/// Length of a run of reads in order that shows a random hint to be wrong: the kernel's default
/// readahead window. Records that are shorter are read whole in a window at most.
pub const ORDERED_BYTES: u64 = 128 << 10;

/// Number of waits before a cause is reported: fewer may be chance, or the start of a program.
pub const WAITS_MIN: u64 = 16;

/// Least time in seconds that a finding costs. Chosen.
pub const SECONDS_MIN: f64 = 1e-3;

/// Ratio to the median of other files above which a file is slow.
pub const SLOW_FACTOR: f64 = 4.0;

/// Fraction of the recording's duration that may be unknown if no cause is found. With more, the
/// limit of the program is `Unknown`. Chosen.
pub const UNKNOWN_SHARE_MAX: f64 = 0.1;

/// Minimum cost of a reported cause, as a part of the waits without recorded reads. A smaller one
/// would hide that the greatest cost is not known.
const HIDDEN_PART_REPORTED_MIN: f64 = 0.3;

/// Activities in which a program has no other work than to wait for reads.
const STORAGE_ACTIVITIES: [Activity; 4] =
    [Activity::Read, Activity::Fault, Activity::SwapIn, Activity::AsyncIo];

/// Fraction of the recording's duration above which a cause is reported. Chosen.
pub const REPORTED_SHARE_MIN: f64 = 0.05;

/// Cause of an avoidable wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitCause {
    /// One request at a time, at unpredictable positions.
    Depth,
    /// Requests smaller than the cost of a request justifies.
    Small,
    /// More data is fetched than used.
    OverRead,
    /// A mapping is fetched page by page.
    PageFaults,
    /// Wrong advice to the kernel.
    Advice,
    /// Bytes are fetched repeatedly.
    Again,
    /// One file is slower than the others.
    SlowFile,
    /// Writes delay the reads.
    Writers,
    /// Reads of other programs delay the reads.
    Readers,
    /// Few reads take most of the time.
    Stalls,
    /// Many small files, one after the other.
    ManyFiles,
    /// Direct or asynchronous reads go through the page cache.
    Direct,
    /// Small reads by system calls: processor time.
    Calls,
    /// Files are looked up, opened, closed, listed or removed.
    Metadata,
    /// Writes and `fsync`.
    Sync,
    /// The kernel's readahead window is too small for the device, or nothing is read ahead.
    Readahead,
}

/// A reported cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The cause.
    pub cause: WaitCause,
    /// Time in seconds that the program waited for it.
    pub seconds: f64,
    /// The wait as a fraction of the recording's duration.
    pub share: f64,
    /// One-line summary.
    pub title: String,
    /// Evidence in the recording.
    pub evidence: String,
    /// Proposed remedy.
    pub remedy: String,
    /// Gain of the remedy, if [`measure`] was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gain: Option<Gain>,
}

/// Limit of a program without a reported cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramLimit {
    /// The program read no files.
    Nothing,
    /// It waited less for devices than it did other work. Mostly its data was in memory or arrived
    /// in time.
    Program,
    /// It waited for devices for the greatest part of its time.
    Device,
    /// Too many of its reads were not seen.
    Unseen,
    /// It rarely slept for the reads that were seen. Much of its time is not accounted for, or it
    /// may have polled for its reads.
    Unknown,
    /// The recording is a trace of requests without durations. It has no waits of a program.
    Untimed,
}

/// Wall time of one activity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ActivityTime {
    /// Activity.
    pub activity: Activity,
    /// Wall time in seconds. A moment in which threads do several things counts as the first of
    /// them in the order of [`Activity`].
    pub seconds: f64,
}

/// Reads of other programs on a device, all the time. Their effect is not known.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OtherReads {
    /// Name of the device.
    pub device: String,
    /// Mean number of their requests in flight. `None` if only their bytes are known.
    pub in_flight: Option<f64>,
    /// Bytes that they read in a second. `None` if their requests are known.
    pub bytes_per_second: Option<f64>,
    /// Name and task of the program that read most, if known.
    pub most: Option<(String, u32)>,
}

/// Result of the diagnosis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// Name of the program.
    pub program: String,
    /// Duration of the recording in seconds.
    pub seconds: f64,
    /// Time in seconds in which at least one thread waited for a read of a file. Waits for metadata
    /// and writes are in `time`. `None` for a trace of requests, which has no waits.
    pub waited_seconds: Option<f64>,
    /// Processor time of the program in seconds, if known.
    pub processor_seconds: Option<f64>,
    /// Least time in seconds in which no thread waited for a device or used a processor, if the
    /// processor time is known. Exact for one thread.
    pub other_seconds: Option<f64>,
    /// Wall time by activity, longest first. Sums to `seconds`. Empty if the recording has none.
    pub time: Vec<ActivityTime>,
    /// Number of lost events.
    pub lost: u64,
    /// By method: number of reads of which the bytes are not known, and their waits in seconds.
    pub unseen: Vec<(ReadMethod, u64, f64)>,
    /// Devices of the program from which other programs read all the time, without a finding about
    /// it. They have at least one request in flight on average. Without root, they read in half of
    /// the time, and at least as many bytes as the program.
    pub other_reads: Vec<OtherReads>,
    /// Reported causes, the most costly first.
    pub findings: Vec<Finding>,
    /// Text about long waits for files that the findings do not contain, because their reads were
    /// not recorded, or no thread slept for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_waits: Option<String>,
    /// Limit of the program without a reported cause.
    pub limit: ProgramLimit,
    /// The limit as text.
    pub limit_text: String,
    /// Statistics of its reads.
    pub shape: ReadShape,
    /// Reads that waited, by cause: a sample, to measure the gains of remedies.
    #[serde(skip)]
    pub samples: BTreeMap<WaitCause, SampledWaits>,
    /// Waits of reads in order for the kernel's readahead, or for one request of their own at a
    /// time. They are a finding only if a measurement shows that a larger window is faster.
    #[serde(skip)]
    pub readahead: Option<ReadaheadWaits>,
    /// Waits of direct reads in order for one request at a time. They are a finding only if a
    /// measurement shows that larger requests are faster.
    #[serde(skip)]
    pub direct_in_order: Option<ReadaheadWaits>,
    /// Waits in seconds of reads in order for which a measurement showed that no larger size is
    /// faster. 0 before the measurement.
    #[serde(skip)]
    pub none_faster_seconds: f64,
    /// Used parts of over-read files, if the time of requests for them is assumed. A measurement
    /// replaces the assumption.
    #[serde(skip)]
    pub assumed_parts: Option<AssumedParts>,
    /// Small reads by system calls. A measurement subtracts the cost of the recorder.
    #[serde(skip)]
    pub small_calls: Option<SmallCalls>,
}

impl Explanation {
    /// Returns the time in seconds in which the program had no other work than to wait for storage.
    /// 0 without times by activity.
    pub fn idle_seconds(&self) -> f64 {
        let times = self.time.iter().filter(|time| STORAGE_ACTIVITIES.contains(&time.activity));
        // The sum of no times is -0.0.
        0.0 + times.map(|time| time.seconds).sum::<f64>()
    }
}

/// Sample of the reads that waited for one cause.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampledWaits {
    /// Files of the runs.
    pub files: Vec<SampledFile>,
    /// Runs in the order of the recording.
    pub runs: Vec<SampledRun>,
    /// Number of reads that waited, also beyond the sample.
    pub waits: u64,
    /// Sum of their waits in seconds.
    pub waited_seconds: f64,
    /// Mean number of requests in flight at a busy device during these waits.
    pub depth: f64,
}

/// File of sampled reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledFile {
    /// Path.
    pub path: String,
    /// Disk of the file: major × 2²⁰ + minor. 0 if unknown.
    pub device: u64,
    /// Inode number. 0 if unknown.
    pub inode: u64,
    /// Length in bytes at its first occurrence, or up to the last byte that was read since.
    pub bytes: Option<u64>,
}

impl SampledFile {
    /// Returns the file of the gathered data.
    fn from_data(file: &FileData) -> SampledFile {
        let FileData { device, inode, bytes, .. } = *file;
        SampledFile { path: file.path.clone(), device, inode, bytes }
    }
}

/// Reads of a file, each from the end of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledRun {
    /// Index into [`SampledWaits::files`].
    pub file: usize,
    /// Offset of the first read in bytes.
    pub offset: u64,
    /// Bytes of all reads, at most 256 KiB if they are several.
    pub bytes: u64,
    /// Number of reads, at least one.
    pub reads: u64,
}

/// Processes the records of a recording one after the other.
///
/// Its memory grows with the lengths of the files, not with the number of reads. It takes two bits
/// for each page that was read or fetched. Pages that are fetched again, mapped by faults, or
/// announced by the program take a bit more for each of these.
#[derive(Debug, Default)]
pub struct Explainer {
    /// Sums of the records so far.
    data: RecordingData,
    /// Start of the explained interval in nanoseconds since the start of the recording.
    begin_ns: u64,
}

impl Explainer {
    /// Creates an explainer of the interval from `begin_ns` to `end_ns`, in nanoseconds since the
    /// start of the recording. The caller passes only records of the interval to `take`.
    pub fn of_interval(begin_ns: u64, end_ns: u64) -> Explainer {
        let mut data = RecordingData::default();
        data.length_ns = end_ns;
        Explainer { data, begin_ns }
    }

    /// Processes the next record.
    pub fn take(&mut self, record: &Record) {
        self.data.add_record(record);
    }

    /// Ends the diagnosis: charges all waits to causes, selects the findings, and returns them with
    /// the statistics.
    pub fn finish(mut self) -> Explanation {
        self.data.finish();
        // Until here the length counts from the start of the recording.
        self.data.length_ns = self.data.length_ns.saturating_sub(self.begin_ns);
        let gathered = &self.data;
        let length_ns = gathered.length_ns.max(1) as f64;
        let charged = cause::charge_waits(gathered);
        // The cost of each cause, in nanoseconds. `Calls` is the processor time that fewer calls
        // save. `Metadata` and `Sync` are times in which the program did nothing else.
        let costs = charged.by_cause.iter().copied().chain([
            (WaitCause::Calls, cause::calls_ns(gathered)),
            (WaitCause::Metadata, gathered.spent_ns(Activity::Metadata)),
            (WaitCause::Sync, cause::sync_ns(gathered)),
        ]);
        // The causes that cost enough become findings, also in comparison with the waits that no
        // recorded read contains, or else with the reads for which no thread slept (`hidden`).
        let hidden = cause::hidden_waits(gathered).or_else(|| cause::polled_waits(gathered));
        let hidden_ns = hidden.as_ref().map_or(0.0, |hidden| hidden.unrecorded_ns);
        let is_reported = |&(cause, ns): &(WaitCause, f64)| {
            ns / length_ns >= REPORTED_SHARE_MIN
                && ns >= HIDDEN_PART_REPORTED_MIN * hidden_ns
                && ns >= SECONDS_MIN * 1e9
                && cause::has_evidence(cause, gathered)
        };
        let mut findings: Vec<Finding> = costs
            .filter(is_reported)
            .map(|(cause, ns)| cause::build_finding(cause, ns, ns / length_ns, gathered, &charged))
            .collect();
        findings.sort_by(|left, right| right.seconds.total_cmp(&left.seconds));
        let (limit, limit_text) = cause::program_limit(gathered, hidden.as_ref());
        let has_readers = findings.iter().any(|finding| finding.cause == WaitCause::Readers);
        let mut samples = sampled_waits(gathered);
        // A cause mostly charged for programs and libraries has no trial: their remedy is not
        // another depth or size of the same reads.
        samples.retain(|cause, _| !cause::is_of_programs(*cause, &charged));
        let assumed_parts = cause::assumed_parts(gathered, &charged, &findings);
        let in_order =
            |is_direct| readahead::reportable_waits(gathered, &charged.remaining_shares, is_direct);
        Explanation {
            program: gathered.program.clone(),
            seconds: gathered.length_ns as f64 / 1e9,
            waited_seconds: gathered.waited_seconds(gathered.waits.union_ns()),
            processor_seconds: gathered.processor_ns.map(|ns| ns as f64 / 1e9),
            other_seconds: gathered.processor_ns.map(|processor_ns| {
                let known_ns = gathered.waits.union_ns() + processor_ns;
                gathered.length_ns.saturating_sub(known_ns) as f64 / 1e9
            }),
            time: activity_times(gathered),
            lost: gathered.lost,
            unseen: gathered
                .unseen
                .iter()
                .map(|(method, unseen)| (*method, unseen.count, unseen.waited_ns as f64 / 1e9))
                .collect(),
            other_reads: if has_readers { Vec::new() } else { other_reads(gathered) },
            findings,
            hidden_waits: hidden.map(|hidden| hidden.text),
            limit,
            limit_text,
            shape: shape::read_shape(gathered),
            samples,
            readahead: in_order(false),
            direct_in_order: in_order(true),
            none_faster_seconds: 0.0,
            assumed_parts,
            small_calls: cause::small_calls(gathered),
        }
    }
}

/// Returns the devices that both the program and others read from, if others read much. With
/// recorded requests, this means at least one request of others in flight on average. With samples,
/// it means samples of others in half of the time, with at least the bytes of the program. Samples
/// decide only where the requests do not.
fn other_reads(gathered: &RecordingData) -> Vec<OtherReads> {
    let length_ns = gathered.length_ns.max(1);
    let others = gathered.devices.iter().filter_map(|(number, device)| {
        let in_flight = device.other_reads.sum_ns() as f64 / length_ns as f64;
        let has_requests = device.read_bytes > 0 && in_flight >= 1.0;
        // Samples of most of the time count as all of it.
        let sampled_ns = device.sampled_other_reads_ns;
        let own_bytes = gathered.fetched_bytes(*number);
        let has_samples = !has_requests
            && own_bytes > 0
            && sampled_ns * 2 >= length_ns
            && device.sampled_other_bytes >= own_bytes;
        let bytes_per_second = device.sampled_other_bytes as f64 * 1e9 / sampled_ns.max(1) as f64;
        (has_requests || has_samples).then(|| OtherReads {
            device: device.name.clone(),
            in_flight: has_requests.then_some(in_flight),
            bytes_per_second: has_samples.then_some(bytes_per_second),
            most: gathered
                .largest_other_program(*number, DeviceOperation::Read)
                .map(|other| (other.name.clone(), other.task)),
        })
    });
    others.collect()
}

/// Returns the samples of all causes, with the paths of their files. The sample of `OverRead` has
/// only the files for which a cost of requests is assumed.
fn sampled_waits(gathered: &RecordingData) -> BTreeMap<WaitCause, SampledWaits> {
    let over_read_files: BTreeSet<u32> =
        cause::over_read::assumed_files(gathered).map(|(number, _)| number).collect();
    let with_file_indexes = |cause: WaitCause, sample: &sample::RunSample| {
        let mut indexes: BTreeMap<u32, usize> = BTreeMap::new();
        let mut sampled = SampledWaits {
            waits: sample.waits,
            waited_seconds: sample.waited_ns as f64 / 1e9,
            depth: sample.depth.mean(),
            ..SampledWaits::default()
        };
        let is_over_read = cause == WaitCause::OverRead;
        for &sample::Run { file, offset, bytes, reads } in sample.runs() {
            if is_over_read && !over_read_files.contains(&file) {
                continue;
            }
            let index = *indexes.entry(file).or_insert_with(|| {
                sampled.files.push(SampledFile::from_data(&gathered.files[&file]));
                sampled.files.len() - 1
            });
            sampled.runs.push(SampledRun { file: index, offset, bytes, reads });
        }
        if is_over_read {
            // Replaces the number, the sum and the depth of all waits by the ones of these files.
            cause::over_read::count_assumed_waits(gathered, &mut sampled);
        }
        sampled
    };
    let samples = gathered.samples.iter();
    samples.map(|(cause, sample)| (*cause, with_file_indexes(*cause, sample))).collect()
}

/// Wall times of the program by activity in seconds, the longest first. Time that no activity
/// covers is [`Activity::Unknown`]. Empty if the recording has no times by activity.
fn activity_times(gathered: &RecordingData) -> Vec<ActivityTime> {
    let activity_time =
        |(&activity, &ns): (&Activity, &u64)| ActivityTime { activity, seconds: ns as f64 / 1e9 };
    let mut spent_ns = gathered.spent_ns.clone();
    // Children of the program may extend the recording beyond its end. This rest is unknown.
    if !spent_ns.is_empty() {
        let counted_ns: u64 = spent_ns.values().sum();
        *spent_ns.entry(Activity::Unknown).or_default() +=
            gathered.length_ns.saturating_sub(counted_ns);
    }
    let mut times: Vec<ActivityTime> =
        spent_ns.iter().filter(|(_, ns)| **ns > 0).map(activity_time).collect();
    times.sort_by(|left, right| right.seconds.total_cmp(&left.seconds));
    times
}
