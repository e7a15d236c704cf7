//! Classification of reads as sequential or random, and their distances.
//!
//! A *reader* is a thread with a file and a descriptor. A *stream* is a sequence of reads of one
//! reader, each of which begins at or shortly after the end of the last one. A *run* is all reads
//! of a stream so far.

use std::collections::{BTreeMap, VecDeque};

use super::WaitCause;
use super::wait_sum::WaitSum;
use readpath_trace::page_set::PAGE_BYTES;

/// Reader: thread, file, descriptor (none for a mapping).
pub(super) type ReaderKey = (u32, u32, Option<u64>);

/// Number of streams tracked per reader, chosen. The one read longest ago is dropped.
const STREAMS_PER_READER: usize = 4;

/// Maximum number of readers, chosen. If there are more, all are forgotten.
const READERS_MAX: usize = 1 << 16;

/// Maximum gap within a stream, in bytes. Chosen: the program skips up to four pages.
const GAP_BYTES_MAX: u64 = 16 << 10;

/// Maximum number of distinct distances that are counted, chosen. Further ones are not counted.
const STRIDES_MAX: usize = 1 << 10;

/// One stream of reads that follow each other.
#[derive(Clone, Debug, Default)]
struct Stream {
    /// End of its last read in bytes, exclusive.
    end: u64,
    /// Its reads.
    run: Run,
}

/// Reads of a stream so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    /// Offset of its first read.
    begin: u64,
    /// Charges that hold only if the run stays short: cause, waits, nanoseconds, bytes.
    pub provisional: Vec<(Option<WaitCause>, WaitSum)>,
}

/// Position of a read relative to earlier reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// True if it begins at the end of a recent read of the same reader, or a small gap later.
    pub is_sequential: bool,
    /// True if it begins in the last page of that read, or in the next page.
    pub is_adjacent: bool,
    /// Bytes from the beginning of its run to its own end.
    pub run_bytes: u64,
}

/// Streams of reads, and the distances between reads.
#[derive(Debug, Default)]
pub(super) struct AccessStreams {
    /// Streams by reader, the one read last first.
    streams: BTreeMap<ReaderKey, VecDeque<Stream>>,
    /// Number of reads by their distance in bytes from the end of the reader's last read.
    pub strides: BTreeMap<i64, u64>,
    /// Number of reads that continue a stream.
    pub sequential: u64,
    /// Number of reads that continue no stream.
    pub other: u64,
}

impl AccessStreams {
    /// Records a read of the bytes from `offset` to `end`, exclusive. Returns its position relative
    /// to the last reads by the same reader. The read continues the most recent stream that it
    /// follows, or begins another one. The counted distance (stride) is from the end of the
    /// reader's last read, in any stream. The first read of a reader has none.
    pub fn record_read(&mut self, reader: ReaderKey, offset: u64, end: u64) -> Step {
        // Bounds the memory for a recording with very many readers.
        if self.streams.len() >= READERS_MAX && !self.streams.contains_key(&reader) {
            self.streams.clear();
        }
        let streams = self.streams.entry(reader).or_default();
        let continues = |last: &Stream| offset >= last.end && offset - last.end <= GAP_BYTES_MAX;
        let index = streams.iter().position(continues);
        let last_end = streams.front().map(|stream| stream.end);
        let continued = index.and_then(|index| streams.remove(index));
        let is_adjacent = continued
            .as_ref()
            .is_some_and(|stream| offset / PAGE_BYTES <= stream.end.div_ceil(PAGE_BYTES));
        // The run of a continued stream goes on. Any other read begins a stream and its run.
        let run = continued
            .map_or_else(|| Run { begin: offset, ..Run::default() }, |continued| continued.run);
        let run_bytes = end - run.begin;
        streams.push_front(Stream { end, run });
        streams.truncate(STREAMS_PER_READER);
        if let Some(last_end) = last_end {
            let stride = offset.wrapping_sub(last_end) as i64;
            if self.strides.len() < STRIDES_MAX || self.strides.contains_key(&stride) {
                *self.strides.entry(stride).or_default() += 1;
            }
        }
        match index {
            Some(_) => self.sequential += 1,
            None => self.other += 1,
        }
        Step { is_sequential: index.is_some(), is_adjacent, run_bytes }
    }

    /// Returns the run of the reader's last read, or `None` if the reader is unknown.
    pub fn current_run(&mut self, reader: ReaderKey) -> Option<&mut Run> {
        self.streams.get_mut(&reader)?.front_mut().map(|stream| &mut stream.run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: streams from 0 and from 1 GiB alternate. The first read of each is a jump, others
    /// continue their stream. Only the read at 4096 begins at the end of the read before it.
    #[test]
    fn alternating_streams_are_distinguished_from_jumps() {
        let mut pattern = AccessStreams::default();
        let (reader, other_thread) = ((0, 0, Some(3)), (1, 0, Some(3)));
        let mut is_sequential =
            |offset: u64| pattern.record_read(reader, offset, offset + 4096).is_sequential;
        assert_eq!(
            [0, 4096, 1 << 30, 8192, (1 << 30) + 4096].map(&mut is_sequential),
            [false, true, false, true, true]
        );
        assert!(!is_sequential(4096), "backwards");
        assert!(
            !pattern.record_read(other_thread, 8192, 9000).is_sequential,
            "the read is by another thread"
        );
        assert_eq!(pattern.strides.get(&0), Some(&1));
    }

    /// By hand: 100 bytes at 1 MiB, the next 100, then 4096 bytes two pages after the start. Their
    /// run has 8192 + 4096 bytes. A read at 0 begins another run.
    #[test]
    fn run_length_counts_reads_that_follow_each_other() {
        let mut pattern = AccessStreams::default();
        let mut read =
            |offset: u64, bytes| pattern.record_read((0, 0, None), offset, offset + bytes);
        let step =
            |is_sequential, is_adjacent, run_bytes| Step { is_sequential, is_adjacent, run_bytes };
        assert_eq!(read(1 << 20, 100), step(false, false, 100));
        assert_eq!(read((1 << 20) + 100, 100), step(true, true, 200));
        assert_eq!(
            read((1 << 20) + 8192, 4096),
            step(true, false, 12_288),
            "a page lies between the two reads"
        );
        assert_eq!(read(0, 4096), step(false, false, 4096));
    }
}
