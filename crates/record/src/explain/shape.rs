//! Statistics of a program's reads: files, threads, sizes, streams, waits, reuse.

use serde::Serialize;

use super::gather::RecordingData;
use super::reuse::ReusePoint;
use crate::capture::is_without_block_device;
use readpath_trace::page_set::PAGE_BYTES;
use readpath_trace::recording::ReadMethod;

/// Maximum number of listed files, threads and distances. Chosen.
const LISTED_MAX: usize = 8;

/// Statistics of the reads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReadShape {
    /// Number of reads, including page faults.
    pub reads: u64,
    /// Number of failed reads.
    pub errors: u64,
    /// Bytes read by the program.
    pub got_bytes: u64,
    /// Bytes brought into the page cache for it, or read past it. Holes of files are among them.
    pub fetched_bytes: u64,
    /// True if `fetched_bytes` are an estimate: the bytes of the reads that waited. The recording
    /// has no insertions into the page cache, and thus none of the kernel's readahead. False if
    /// each read was direct.
    pub misses_readahead: bool,
    /// Bytes of its own read requests to block devices, with their metadata. `None` if the
    /// recording has no requests, or if the program made none and read no file on a block device.
    pub device_bytes: Option<u64>,
    /// Number of fetched bytes that had been fetched before.
    pub again_bytes: u64,
    /// Number of fetched bytes that were never requested.
    pub unused_bytes: u64,
    /// Bytes that faults mapped beyond those that count as read. Their use is not known.
    pub mapped_bytes: u64,
    /// Fraction of the reads that continue an earlier one: they begin at its end, or up to 16 KiB
    /// behind it.
    pub sequential_part: f64,
    /// Number of reads by system call or mechanism.
    pub ways: Vec<(ReadMethod, u64)>,
    /// Sizes, by powers of two.
    pub sizes: Vec<SizeCount>,
    /// Waits in nanoseconds, by powers of two.
    pub waits: Vec<SizeCount>,
    /// Most frequent distances between the end of a read and the start of the next.
    pub strides: Vec<StrideCount>,
    /// Mean number of device read requests while busy. 0 without known times of requests, as in a
    /// trace of requests.
    pub depth: f64,
    /// Files with the longest waits, or the most bytes read.
    pub files: Vec<FileStatistics>,
    /// Threads with the longest waits, or the most bytes read.
    pub threads: Vec<ThreadStatistics>,
    /// Miss-ratio curve of the page references (policy `lru`).
    pub reuse: Vec<ReusePoint>,
}

impl ReadShape {
    /// Returns the bytes of its device requests if most of the bytes that count as fetched, more
    /// than half, came from no device, as holes of files do.
    pub fn few_device_bytes(&self) -> Option<u64> {
        self.device_bytes.filter(|bytes| *bytes < self.fetched_bytes / 2)
    }
}

/// Number of values from `from` up to twice that, exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SizeCount {
    /// Lower bound.
    pub from: u64,
    /// Number of values.
    pub count: u64,
}

/// A distance between reads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StrideCount {
    /// Bytes from the end of a read to the start of the next.
    pub bytes: i64,
    /// Number of occurrences.
    pub count: u64,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileStatistics {
    /// Path.
    pub path: String,
    /// Length in bytes, if known.
    pub bytes: Option<u64>,
    /// Number of reads.
    pub reads: u64,
    /// Bytes read by the program.
    pub got_bytes: u64,
    /// Bytes fetched from the device for it.
    pub fetched_bytes: u64,
    /// Sum of the waits in seconds. `None` for a trace of requests, which has no waits.
    pub waited_seconds: Option<f64>,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThreadStatistics {
    /// Name.
    pub name: String,
    /// Thread ID.
    pub task: u32,
    /// Number of reads.
    pub reads: u64,
    /// Bytes read.
    pub got_bytes: u64,
    /// Sum of the waits in seconds. `None` for a trace of requests, which has no waits.
    pub waited_seconds: Option<f64>,
}

/// Computes the statistics of the program's reads from the gathered counts: bytes, sizes, waits,
/// strides, and the files and threads with the longest waits.
pub(super) fn read_shape(gathered: &RecordingData) -> ReadShape {
    let files = gathered.files.values();
    let pattern = &gathered.pattern;
    let read_count = (pattern.sequential + pattern.other).max(1);
    let mut strides: Vec<StrideCount> =
        pattern.strides.iter().map(|(&bytes, &count)| StrideCount { bytes, count }).collect();
    strides.sort_by_key(|stride| std::cmp::Reverse(stride.count));
    strides.truncate(LISTED_MAX);
    // The key is the binary logarithm of the values.
    let power_counts = |counts_by_log2: &std::collections::BTreeMap<u32, u64>| {
        counts_by_log2.iter().map(|(&log2, &count)| SizeCount { from: 1 << log2, count }).collect()
    };
    ReadShape {
        reads: gathered.reads,
        errors: gathered.errors.values().sum(),
        got_bytes: gathered.got_bytes,
        fetched_bytes: files.clone().map(|file| file.fetched_bytes).sum(),
        misses_readahead: misses_readahead(gathered),
        device_bytes: device_bytes(gathered),
        again_bytes: files.clone().map(|file| file.refetched_bytes).sum(),
        unused_bytes: files.clone().map(|file| file.unused_pages() * PAGE_BYTES).sum(),
        mapped_bytes: files
            .map(|file| file.mapped.count_without(&file.requested) * PAGE_BYTES)
            .sum(),
        sequential_part: pattern.sequential as f64 / read_count as f64,
        ways: gathered.by_method.iter().map(|(way, count)| (*way, *count)).collect(),
        sizes: power_counts(&gathered.sizes),
        waits: power_counts(&gathered.wait_sizes),
        strides,
        depth: gathered.mean_depth(),
        files: top_files(gathered),
        threads: top_threads(gathered),
        reuse: gathered.reuse.curve(),
    }
}

/// Returns true if a read may have used readahead that the recording does not report. A trace of
/// requests has all of them, and direct reads have no readahead.
fn misses_readahead(gathered: &RecordingData) -> bool {
    let has_buffered = gathered.files.values().any(|file| file.direct_reads < file.reads);
    !gathered.has_measured_waits() && !gathered.is_request_trace() && has_buffered
}

/// Returns the bytes of the program's read requests to block devices. `None` if they are unknown:
/// without requests in the recording, or if there are none and all files that were read are on file
/// systems without a block device. Their device numbers have the major number 0.
fn device_bytes(gathered: &RecordingData) -> Option<u64> {
    let read_bytes = gathered.devices.values().map(|device| device.read_bytes).sum();
    let mut read_files = gathered.files.values().filter(|file| file.reads > 0);
    let is_known = read_bytes > 0 || read_files.any(|file| !is_without_block_device(file.device));
    (gathered.has_measured_waits() && is_known).then_some(read_bytes)
}

/// Returns up to [`LISTED_MAX`] files with the longest waits. If waits are equal, those with more
/// bytes read come first. Reads in flight for which no thread slept count as waits here: a program
/// that polls waits for them.
fn top_files(gathered: &RecordingData) -> Vec<FileStatistics> {
    let read_files = gathered.files.values().filter(|file| file.reads > 0);
    let mut files: Vec<_> = read_files.collect();
    files.sort_by_key(|file| std::cmp::Reverse((file.waits.ns + file.unslept_ns, file.got_bytes)));
    let statistics = files.into_iter().take(LISTED_MAX).map(|file| FileStatistics {
        path: file.path.clone(),
        bytes: file.bytes,
        reads: file.reads,
        got_bytes: file.got_bytes,
        fetched_bytes: file.fetched_bytes,
        waited_seconds: gathered.waited_seconds(file.waits.ns),
    });
    statistics.collect()
}

/// Returns up to [`LISTED_MAX`] threads with the longest waits, in the order of [`top_files`].
fn top_threads(gathered: &RecordingData) -> Vec<ThreadStatistics> {
    let mut threads: Vec<_> = gathered.threads.values().filter(|thread| thread.reads > 0).collect();
    threads.sort_by_key(|thread| {
        std::cmp::Reverse((thread.waited_ns + thread.unslept_ns, thread.got_bytes))
    });
    let statistics = threads.into_iter().take(LISTED_MAX).map(|thread| ThreadStatistics {
        name: thread.name.clone(),
        task: thread.task,
        reads: thread.reads,
        got_bytes: thread.got_bytes,
        waited_seconds: gathered.waited_seconds(thread.waited_ns),
    });
    statistics.collect()
}
