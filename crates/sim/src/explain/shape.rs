//! What a program's reads are like: files, threads, sizes, streams, waits, reuse.

use serde::Serialize;

use super::gather::RecordingData;
use super::reuse::ReusePoint;
use crate::page_set::PAGE_BYTES;
use crate::recording::ReadMethod;

/// So many are told of what there may be many of.
const LISTED_MAX: usize = 8;

/// What reads are like.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReadShape {
    /// How many reads there were, touches of mappings among them.
    pub reads: u64,
    /// How many of them failed.
    pub errors: u64,
    /// Bytes that the program was given.
    pub got_bytes: u64,
    /// Bytes that were fetched from devices for its files.
    pub fetched_bytes: u64,
    /// Bytes of those that had been fetched before.
    pub again_bytes: u64,
    /// Bytes of those that nobody asked for.
    pub unused_bytes: u64,
    /// Bytes that faults mapped beyond those that count as read. Their use is not known.
    pub mapped_bytes: u64,
    /// The part of the reads that begin where one before them ended.
    pub sequential_part: f64,
    /// By which ways, with how many reads each.
    pub ways: Vec<(ReadMethod, u64)>,
    /// Sizes, by powers of two.
    pub sizes: Vec<SizeCount>,
    /// Waits in nanoseconds, by powers of two.
    pub waits: Vec<SizeCount>,
    /// The most frequent distances between the end of a read and the beginning of the next.
    pub strides: Vec<StrideCount>,
    /// How many requests to read devices had on average, while they had any.
    pub depth: f64,
    /// The files that were waited for the longest, or read the most.
    pub files: Vec<FileStatistics>,
    /// The threads that waited the longest, or read the most.
    pub threads: Vec<ThreadStatistics>,
    /// The part of the references to pages that a memory of each size would not hold (law `lru`).
    pub reuse: Vec<ReusePoint>,
}

/// How many are at least so large, and less than twice that.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SizeCount {
    /// The least of them.
    pub from: u64,
    /// How many.
    pub count: u64,
}

/// A distance between reads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StrideCount {
    /// From the end of a read to the beginning of the next, in bytes.
    pub bytes: i64,
    /// How often.
    pub count: u64,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileStatistics {
    /// Its path.
    pub path: String,
    /// Its length in bytes, where it is known.
    pub bytes: Option<u64>,
    /// How many reads.
    pub reads: u64,
    /// Bytes that they were given.
    pub got_bytes: u64,
    /// Bytes fetched from the device for it.
    pub fetched_bytes: u64,
    /// How long they waited together, in seconds.
    pub waited_seconds: f64,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThreadStatistics {
    /// Its name.
    pub name: String,
    /// The kernel's number of it.
    pub task: u32,
    /// How many reads.
    pub reads: u64,
    /// Bytes that they were given.
    pub got_bytes: u64,
    /// How long they waited together, in seconds.
    pub waited_seconds: f64,
}

/// The shape of what was gathered.
pub(super) fn of(gathered: &RecordingData) -> ReadShape {
    let files = gathered.files.values();
    let pattern = &gathered.pattern;
    let counted = (pattern.sequential + pattern.other).max(1);
    let mut strides: Vec<StrideCount> =
        pattern.strides.iter().map(|(&bytes, &count)| StrideCount { bytes, count }).collect();
    strides.sort_by_key(|stride| std::cmp::Reverse(stride.count));
    strides.truncate(LISTED_MAX);
    let sizes = |counts: &std::collections::BTreeMap<u32, u64>| {
        counts.iter().map(|(&log, &count)| SizeCount { from: 1 << log, count }).collect()
    };
    ReadShape {
        reads: gathered.reads,
        errors: gathered.errors,
        got_bytes: gathered.got_bytes,
        fetched_bytes: files.clone().map(|file| file.fetched_bytes).sum(),
        again_bytes: files.clone().map(|file| file.again_bytes).sum(),
        unused_bytes: files.clone().map(|file| file.unused_pages() * PAGE_BYTES).sum(),
        mapped_bytes: files.map(|file| file.mapped.count_without(&file.asked) * PAGE_BYTES).sum(),
        sequential_part: pattern.sequential as f64 / counted as f64,
        ways: gathered.by_way.iter().map(|(way, count)| (*way, *count)).collect(),
        sizes: sizes(&gathered.sizes),
        waits: sizes(&gathered.wait_sizes),
        strides,
        depth: gathered.depth(),
        files: file_shapes(gathered),
        threads: thread_shapes(gathered),
        reuse: gathered.reuse.curve(),
    }
}

fn file_shapes(gathered: &RecordingData) -> Vec<FileStatistics> {
    let read = gathered.files.values().filter(|file| file.reads > 0);
    let mut files: Vec<_> = read.collect();
    files.sort_by_key(|file| std::cmp::Reverse((file.waits.ns, file.got_bytes)));
    let shapes = files.into_iter().take(LISTED_MAX).map(|file| FileStatistics {
        path: file.path.clone(),
        bytes: file.bytes,
        reads: file.reads,
        got_bytes: file.got_bytes,
        fetched_bytes: file.fetched_bytes,
        waited_seconds: file.waits.ns as f64 / 1e9,
    });
    shapes.collect()
}

fn thread_shapes(gathered: &RecordingData) -> Vec<ThreadStatistics> {
    let mut threads: Vec<_> = gathered.threads.values().filter(|it| it.reads > 0).collect();
    threads.sort_by_key(|thread| std::cmp::Reverse((thread.waited_ns, thread.got_bytes)));
    let shapes = threads.into_iter().take(LISTED_MAX).map(|thread| ThreadStatistics {
        name: thread.name.clone(),
        task: thread.task,
        reads: thread.reads,
        got_bytes: thread.got_bytes,
        waited_seconds: thread.waited_ns as f64 / 1e9,
    });
    shapes.collect()
}
