//! Use of mappings, estimated from their faults.
//!
//! A fault names one page and maps up to a whole folio (2 MiB on Linux 6.18). The kernel reports no
//! touch of the other pages. The estimate follows the order of the faults:
//!
//! - A fault at the page where an earlier range of the same thread and file ended belongs to a
//!   stream. A page of a stream that is not mapped causes a fault. All pages of both ranges count
//!   as used. Streams that run backward are treated alike.
//! - Any other fault counts as a use of the page that was touched.
//!
//! The mapped ranges themselves are the upper bound of the use.

use std::collections::{BTreeMap, VecDeque};

use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::{Mapped, ReadOutcome, ReadRecord};

/// Number of ranges that are remembered per thread and file, and so of streams that are followed.
/// Chosen, not measured.
const STREAMS_PER_READER: usize = 4;

/// Number of pairs of a thread and a file that are followed, and of threads with a range for their
/// next fault. All are forgotten when there are more, which bounds the memory. Chosen, not
/// measured.
const READERS_MAX: usize = 1 << 16;

/// Largest gap between two ranges of one stream, in pages. Chosen, not measured.
const GAP_PAGES: u64 = 4;

/// Estimate of the used pages from the faults of a recording.
#[derive(Clone, Debug, Default)]
pub struct MappedUse {
    /// File and range of a [`Mapped`] record whose fault has not followed yet, by thread.
    next_ranges: BTreeMap<u32, (u32, PageRange)>,
    /// Recent ranges, the newest first, by thread and file.
    readers: BTreeMap<(u32, u32), VecDeque<StreamRange>>,
}

/// A range that a fault mapped, and the part of it that counts as used.
#[derive(Clone, Copy, Debug)]
struct StreamRange {
    /// Pages that the fault mapped.
    mapped: PageRange,
    /// Pages that count as used: all of a stream, otherwise the touched one.
    used: PageRange,
}

/// Pages that a fault shows to be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultUse {
    /// Pages that the fault mapped.
    pub mapped: PageRange,
    /// True if the fault belongs to a stream.
    pub is_stream: bool,
    /// Pages that count as used from now on: one range, or two.
    pub used: Vec<PageRange>,
}

impl MappedUse {
    /// Keeps the range of a fault for the following read of that fault. A later range of the same
    /// thread replaces it. All ranges are forgotten first if there are `READERS_MAX`.
    pub fn map(&mut self, mapped: &Mapped) {
        let range = PageRange::covering(mapped.offset, mapped.bytes);
        if self.next_ranges.len() >= READERS_MAX {
            self.next_ranges.clear();
        }
        self.next_ranges.insert(mapped.thread, (mapped.file, range));
    }

    /// Records the read of a fault. Returns the pages that it shows to be used. The fault has
    /// mapped the range that [`map`](MappedUse::map) kept for its thread, if the touched page lies
    /// in it. Otherwise it has mapped the pages of the read alone.
    pub fn fault(&mut self, read: &ReadRecord) -> FaultUse {
        let touched = PageRange::new(read.offset / PAGE_BYTES, 1);
        // Recordings of version 1 have the range that was mapped in the read itself.
        let own_range = PageRange::covering(read.offset, read.asked_bytes.max(1));
        let announced = self.next_ranges.remove(&read.thread);
        let mapped = announced
            .filter(|(file, range)| *file == read.file && range.contains(touched.first))
            .map_or(own_range, |(_, range)| range);
        if self.readers.len() >= READERS_MAX {
            self.readers.clear();
        }
        let ranges = self.readers.entry((read.thread, read.file)).or_default();
        // A stream next needs the first page that is not mapped. Windows of random touches may lie
        // next to each other as well.
        let continues = |last: &StreamRange| follows(last.mapped.end, touched.first);
        // Backward, a touch of the first page precedes the last range with all mapped pages, any
        // other touch with its own page.
        let touched_end = if touched.first == mapped.first { mapped.end } else { touched.end };
        let precedes = |last: &StreamRange| follows(touched_end, last.mapped.first);
        let index = ranges.iter().position(|last| continues(last) || precedes(last));
        let last = index.and_then(|index| ranges.remove(index));
        // The rest of the last range counts as used too, since the stream has passed it.
        let used = match last {
            Some(last) if continues(&last) => {
                join_adjacent(PageRange { first: last.used.end, end: last.mapped.end }, mapped)
            }
            Some(last) => {
                join_adjacent(mapped, PageRange { first: last.mapped.first, end: last.used.first })
            }
            None => vec![touched],
        };
        let known_used = if last.is_some() { mapped } else { touched };
        ranges.push_front(StreamRange { mapped, used: known_used });
        ranges.truncate(STREAMS_PER_READER);
        FaultUse { mapped, is_stream: last.is_some(), used }
    }

    /// Returns the reads that represent a read: itself, or the used pages of a fault.
    pub fn reads(&mut self, read: &ReadRecord) -> Vec<ReadRecord> {
        if read.way != super::ReadMethod::Fault {
            return vec![read.clone()];
        }
        let of_range = |range: PageRange| ReadRecord {
            offset: range.first * PAGE_BYTES,
            asked_bytes: range.count() * PAGE_BYTES,
            outcome: ReadOutcome::Bytes(range.count() * PAGE_BYTES),
            ..read.clone()
        };
        let mut reads: Vec<ReadRecord> = self.fault(read).used.into_iter().map(of_range).collect();
        // One fault is one wait.
        reads.iter_mut().skip(1).for_each(|read| read.waited_ns = 0);
        reads
    }
}

/// Returns true if a range that begins at page `first` continues a range that ends at page `end`,
/// with at most [`GAP_PAGES`] between.
fn follows(end: u64, first: u64) -> bool {
    first >= end && first - end <= GAP_PAGES
}

/// Returns two ranges in order, or one if they are adjacent or one is empty.
fn join_adjacent(below: PageRange, above: PageRange) -> Vec<PageRange> {
    if below.is_empty() || above.is_empty() {
        return vec![if below.is_empty() { above } else { below }];
    }
    match below.end == above.first {
        true => vec![PageRange { first: below.first, end: above.end }],
        false => vec![below, above],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::ReadMethod;

    /// Pages that each fault shows to be used. `faults`: touched page, and first and end of the
    /// mapped pages.
    fn pages_used_by(faults: &[(u64, (u64, u64))]) -> Vec<Vec<(u64, u64)>> {
        let mut uses = MappedUse::default();
        let used_ranges = faults.iter().map(|&(page, (first, end))| {
            let (offset, bytes) = (first * PAGE_BYTES, (end - first) * PAGE_BYTES);
            uses.map(&Mapped { offset, bytes, ..Mapped::default() });
            let read = ReadRecord {
                way: ReadMethod::Fault,
                offset: page * PAGE_BYTES,
                asked_bytes: PAGE_BYTES,
                ..ReadRecord::default()
            };
            uses.fault(&read).used.iter().map(|range| (range.first, range.end)).collect()
        });
        used_ranges.collect()
    }

    /// Folios of 512 pages in order: the second fault shows that the first one's were used.
    #[test]
    fn stream_of_large_folios_is_used_as_a_whole() {
        let actual = pages_used_by(&[(0, (0, 512)), (512, (512, 1024)), (1024, (1024, 1536))]);
        assert_eq!(actual, [vec![(0, 1)], vec![(1, 1024)], vec![(1024, 1536)]]);
        let total: u64 = actual.iter().flatten().map(|(first, end)| end - first).sum();
        assert_eq!(total, 1536);
    }

    #[test]
    fn backward_stream_is_used_as_a_whole() {
        let actual = pages_used_by(&[(1535, (1024, 1536)), (1023, (512, 1024)), (511, (0, 512))]);
        assert_eq!(actual, [vec![(1535, 1536)], vec![(512, 1535)], vec![(0, 512)]]);
    }

    #[test]
    fn touches_far_apart_count_one_page_each() {
        // The last window is adjacent to the first one, and the touch is not.
        let actual = pages_used_by(&[(5, (0, 16)), (1000, (992, 1008)), (25, (16, 32))]);
        assert_eq!(actual, [vec![(5, 6)], vec![(1000, 1001)], vec![(25, 26)]]);
    }

    /// Two streams of one thread, in turn.
    #[test]
    fn streams_that_alternate_are_followed() {
        let faults = [(0, (0, 16)), (900, (896, 912)), (16, (16, 32)), (912, (912, 928))];
        let actual = pages_used_by(&faults);
        assert_eq!(actual[2..], [vec![(1, 32)], vec![(901, 928)]]);
    }
}
