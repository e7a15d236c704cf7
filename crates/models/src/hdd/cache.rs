//! The drive's cache: segments, each with one contiguous range of sectors.
//!
//! The least recently used segment is evicted. A read-ahead in progress fills a segment whose end
//! moves with time. [`ReadAheadRun`] computes that end, and [`SegmentCache::extend`] records it.
//!
//! [`ReadAheadRun`]: super::ahead::ReadAheadRun

/// One segment: sectors `start` up to `end`, exclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CacheSegment {
    /// First sector.
    pub start: u64,
    /// Sector after the last.
    pub end: u64,
    /// First sector since the allocation of the segment, within its size. Unlike `start`, it does
    /// not move when data is released but not yet overwritten.
    pub allocated_start: u64,
    /// Serial number of the last use. A segment with 0 is reused first.
    last_use: u64,
}

/// All segments.
#[derive(Clone, Debug)]
pub(super) struct SegmentCache {
    /// All segments, empty ones included.
    segments: Vec<CacheSegment>,
    /// Index of the first segment for reads. Segments before it are for writes.
    first_read_segment: usize,
    /// Maximum number of sectors in a segment.
    segment_sectors: u64,
    /// Number of uses so far: the source of `last_use`.
    use_count: u64,
    /// Sectors added since they were last taken.
    added: AddedSpans,
}

/// Spans that contain all sectors that were added to the cache; they may contain others as well.
/// The queue marks the commands in them as possibly cached, and searches the segments only for
/// these.
#[derive(Clone, Debug, Default)]
pub(super) struct AddedSpans {
    /// First sector and end of each span. Only the first `count` entries are in use.
    spans: [(u64, u64); ADDED_SPANS],
    /// Number of entries in use.
    count: usize,
}

/// Number of spans that are recorded separately, chosen. Between two choices of a command the head
/// reads one span and the sectors after it; writes may add others.
const ADDED_SPANS: usize = 4;

impl AddedSpans {
    /// Returns the spans, each as first sector and end.
    pub(super) fn spans(&self) -> &[(u64, u64)] {
        &self.spans[..self.count]
    }

    /// Records the added sectors `start..end` as a span. It is merged with the last span if it
    /// starts in that span or at its end, or if no entry is free. In the second case the span also
    /// covers the sectors between. No effect if `start` is not below `end`.
    fn record(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        if let Some((span_start, span_end)) = self.spans[..self.count].last_mut()
            && ((*span_start..=*span_end).contains(&start) || self.count == ADDED_SPANS)
        {
            (*span_start, *span_end) = ((*span_start).min(start), (*span_end).max(end));
            return;
        }
        self.spans[self.count] = (start, end);
        self.count += 1;
    }
}

impl SegmentCache {
    /// Creates `count` segments of `segment_sectors`. With `has_write_segment`, the first of
    /// several is reserved for writes.
    pub(super) fn new(count: u32, segment_sectors: u32, has_write_segment: bool) -> SegmentCache {
        let first_read_segment = usize::from(has_write_segment && count > 1);
        SegmentCache {
            segments: vec![CacheSegment::default(); count as usize],
            first_read_segment,
            segment_sectors: u64::from(segment_sectors),
            use_count: 0,
            added: AddedSpans::default(),
        }
    }

    /// Takes the spans that contain all sectors added since the last call.
    pub(super) fn take_added_spans(&mut self) -> AddedSpans {
        std::mem::take(&mut self.added)
    }

    /// Returns true if `sector` is in some segment.
    pub(super) fn holds_sector(&self, sector: u64) -> bool {
        // No early exit: the compiler then vectorizes the loop.
        self.segments
            .iter()
            .fold(false, |any, segment| any | ((segment.start <= sector) & (sector < segment.end)))
    }

    /// Returns the index of the segment that contains `sector`: among several, the one with the
    /// greatest end, which holds the most of a read from there. `None` if no segment contains it.
    pub(super) fn segment_with(&self, sector: u64) -> Option<usize> {
        // The vectorized test is faster than the search below, which a miss then avoids.
        if !self.holds_sector(sector) {
            return None;
        }
        let has_sector = |segment: &CacheSegment| segment.start <= sector && sector < segment.end;
        let matching = self.segments.iter().enumerate().filter(|(_, segment)| has_sector(segment));
        matching.max_by_key(|(_, segment)| segment.end).map(|(index, _)| index)
    }

    /// Returns the segment with this index.
    pub(super) fn segment(&self, index: usize) -> &CacheSegment {
        &self.segments[index]
    }

    /// Records a use of segment `index`, which is then the most recently used one.
    pub(super) fn mark_used(&mut self, index: usize) {
        self.use_count += 1;
        self.segments[index].last_use = self.use_count;
    }

    /// Releases the data of segment `index` before sector `start`, and all of it if the segment
    /// ends before.
    pub(super) fn release_before(&mut self, index: usize, start: u64) {
        let segment = &mut self.segments[index];
        segment.start = segment.start.max(start.min(segment.end));
    }

    /// Evicts the least recently used read segment for sectors `start..end`. Returns its index.
    pub(super) fn allocate_for_read(&mut self, start: u64, end: u64) -> usize {
        let index = self.least_recently_used(self.first_read_segment, self.segments.len());
        self.replace_contents(index, start, end);
        index
    }

    /// Stores the written sectors `start..end` in a segment. With `may_continue_segment`, a segment
    /// that ends at `start` is extended. Otherwise, or without such a segment, they replace the
    /// least recently used segment for writes. Returns the index of the segment.
    pub(super) fn store_written(
        &mut self,
        start: u64,
        end: u64,
        may_continue_segment: bool,
    ) -> usize {
        // Without a segment of their own, writes use all segments.
        let write_segments =
            if self.first_read_segment > 0 { self.first_read_segment } else { self.segments.len() };
        let continues =
            |segment: &CacheSegment| segment.end == start && segment.end > segment.start;
        let index = match self.segments[..write_segments].iter().position(continues) {
            Some(index) if may_continue_segment => {
                self.extend(index, end);
                index
            }
            _ => {
                let index = self.least_recently_used(0, write_segments);
                self.replace_contents(index, start, end);
                index
            }
        };
        self.mark_used(index);
        index
    }

    /// Extends segment `index` to `end`, exclusive. A segment that reaches further keeps its end.
    /// Data beyond the segment size is dropped at the start.
    pub(super) fn extend(&mut self, index: usize, end: u64) {
        let segment = &mut self.segments[index];
        self.added.record(segment.end, end);
        segment.end = segment.end.max(end);
        let start_min = segment.end.saturating_sub(self.segment_sectors);
        segment.start = segment.start.max(start_min);
        segment.allocated_start = segment.allocated_start.max(start_min);
    }

    /// Drops every segment that overlaps the overwritten sectors `start..end`.
    ///
    /// A segment has one range and is dropped as a whole. The measured drives do the same: reads
    /// near a write that fell into a segment go to the medium.
    pub(super) fn drop_overlapping(&mut self, start: u64, end: u64) {
        for segment in &mut self.segments {
            if segment.start < end && start < segment.end {
                segment.end = segment.start;
                segment.last_use = 0;
            }
        }
    }

    /// Empties segment `index`, which is then the first to be reused.
    pub(super) fn clear(&mut self, index: usize) {
        let segment = &mut self.segments[index];
        (segment.end, segment.last_use) = (segment.start, 0);
    }

    /// Returns the index of the least recently used segment among the indices `from..to`. A segment
    /// with last use 0 (never used, or cleared) comes first. `from` is less than `to`.
    fn least_recently_used(&self, from: usize, to: usize) -> usize {
        let (mut oldest, mut oldest_use) = (from, u64::MAX);
        for (index, segment) in self.segments[..to].iter().enumerate().skip(from) {
            if segment.last_use < oldest_use {
                (oldest, oldest_use) = (index, segment.last_use);
            }
        }
        oldest
    }

    /// Replaces the contents of segment `index` by sectors `start..end`. If they exceed its size,
    /// the last ones are kept.
    fn replace_contents(&mut self, index: usize, start: u64, end: u64) {
        self.use_count += 1;
        self.added.record(start, end);
        let last_use = self.use_count;
        self.segments[index] = CacheSegment { start, end, allocated_start: start, last_use };
        self.extend(index, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both segments are in use when a third range is allocated. The first was used last.
    #[test]
    fn least_recently_used_segment_is_evicted() {
        let has_write_segment = false;
        let mut segments = SegmentCache::new(2, 100, has_write_segment);
        let first = segments.allocate_for_read(0, 10);
        let second = segments.allocate_for_read(1000, 1010);
        segments.mark_used(first);
        assert_eq!(segments.allocate_for_read(2000, 2010), second);
        assert_eq!((segments.segment_with(5), segments.segment_with(1005)), (Some(first), None));
    }

    /// A segment of 100 sectors that ends at sector 130 starts at 30.
    #[test]
    fn a_full_segment_loses_its_start() {
        let has_write_segment = false;
        let mut segments = SegmentCache::new(1, 100, has_write_segment);
        let index = segments.allocate_for_read(0, 50);
        segments.extend(index, 130);
        assert_eq!((segments.segment_with(29), segments.segment_with(30)), (None, Some(index)));
        segments.release_before(index, 60);
        assert_eq!((segments.segment_with(59), segments.segment_with(60)), (None, Some(index)));
    }

    /// Each cached sector was cached at the last call, or is in a span that the next call returns.
    /// This holds for any order of fills, extensions and removals of segments.
    #[test]
    fn added_sectors_lie_within_the_reported_spans() {
        let mut state = 11;
        let mut random_below = |bound: u64| readpath_core::splitmix::next(&mut state) % bound;
        let has_write_segment = true;
        let mut segments = SegmentCache::new(4, 40, has_write_segment);
        let mut cached_before = Vec::new();
        for _ in 0..20_000 {
            for _ in 0..random_below(8) {
                let (index, start) = (random_below(4) as usize, random_below(200));
                let end = start + 1 + random_below(60);
                match random_below(6) {
                    0 => drop(segments.allocate_for_read(start, end)),
                    1 => segments.extend(index, end),
                    2 => segments.release_before(index, start),
                    3 => drop(segments.store_written(start, end, start % 2 == 0)),
                    4 => segments.drop_overlapping(start, end),
                    _ => segments.clear(index),
                }
            }
            let added = segments.take_added_spans();
            let is_added =
                |sector: u64| added.spans().iter().any(|&(from, to)| from <= sector && sector < to);
            let cached: Vec<u64> =
                (0..300).filter(|sector| segments.holds_sector(*sector)).collect();
            for sector in &cached {
                assert!(cached_before.contains(sector) || is_added(*sector), "{sector}: {added:?}");
            }
            cached_before = cached;
        }
    }

    /// Two writes in sequence share the write segment. An overwrite of sector 49 empties the read
    /// segment, sectors 0 to 49.
    #[test]
    fn writes_use_their_own_segment_and_drop_overlapping_data() {
        let has_write_segment = true;
        let mut segments = SegmentCache::new(2, 100, has_write_segment);
        let read = segments.allocate_for_read(0, 50);
        let may_continue_segment = true;
        let written = segments.store_written(200, 208, may_continue_segment);
        assert_eq!(segments.store_written(208, 216, may_continue_segment), written);
        assert_eq!(segments.segment(written).end, 216);
        assert_ne!(read, written);
        segments.drop_overlapping(49, 51);
        assert_eq!(segments.segment_with(10), None);
    }
}
