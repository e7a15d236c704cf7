//! Whether a read goes on where one before it ended, and how far it is from there.

use std::collections::{BTreeMap, VecDeque};

/// Who reads: a thread, a file, a descriptor (none for a mapping).
pub(super) type ReaderKey = (u32, u32, Option<u64>);

/// Of each reader so many streams are followed.
const STREAMS: usize = 4;

/// Readers that are followed; when there are more all is forgotten.
const READERS_MAX: usize = 1 << 16;

/// A step that is no larger is a gap in a stream.
const GAP_BYTES: u64 = 16 << 10;

/// Distances that are told apart.
const STRIDES_MAX: usize = 1 << 10;

/// Streams of reads, and the distances between them.
#[derive(Debug, Default)]
pub(super) struct AccessStreams {
    ends: BTreeMap<ReaderKey, VecDeque<u64>>,
    /// How often each distance from the last end was seen.
    pub strides: BTreeMap<i64, u64>,
    pub sequential: u64,
    pub other: u64,
}

impl AccessStreams {
    /// Takes a read; says whether it goes on where one of the last by the same reader ended.
    pub fn take(&mut self, reader: ReaderKey, offset: u64, end: u64) -> bool {
        if self.ends.len() >= READERS_MAX && !self.ends.contains_key(&reader) {
            self.ends.clear();
        }
        let ends = self.ends.entry(reader).or_default();
        let goes_on = |last: &u64| offset >= *last && offset - *last <= GAP_BYTES;
        let place = ends.iter().position(goes_on);
        let last = ends.front().copied();
        if let Some(place) = place {
            ends.remove(place);
        }
        ends.push_front(end);
        ends.truncate(STREAMS);
        if let Some(last) = last {
            let stride = offset.wrapping_sub(last) as i64;
            if self.strides.len() < STRIDES_MAX || self.strides.contains_key(&stride) {
                *self.strides.entry(stride).or_default() += 1;
            }
        }
        match place {
            Some(_) => self.sequential += 1,
            None => self.other += 1,
        }
        place.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_told_from_jumps_also_when_they_alternate() {
        let mut pattern = AccessStreams::default();
        let mut take = |offset: u64| pattern.take((0, 0, Some(3)), offset, offset + 4096);
        assert_eq!(
            [0, 4096, 1 << 30, 8192, (1 << 30) + 4096].map(&mut take),
            [false, true, false, true, true]
        );
        assert!(!take(4096), "backwards");
        assert!(!pattern.take((1, 0, Some(3)), 8192, 9000), "another thread");
        assert_eq!(pattern.strides.get(&0), Some(&1));
    }
}
