//! The drive's cache: segments, each with one span of sectors.
//!
//! Which segment is given up is decided by least recent use. What the head is
//! reading ahead at this moment is not here but in [`ReadAheadRun`]: its
//! segment's end moves with time.
//!
//! [`ReadAheadRun`]: super::ahead::ReadAheadRun

/// One segment: sectors `start` up to, and without, `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CacheSegment {
    /// The first sector.
    pub start: u64,
    /// After the last.
    pub end: u64,
    /// The first sector since it was taken, as far back as the segment reaches: unlike
    /// `start` it stays when data is given up that nothing has overwritten yet.
    pub from: u64,
    /// When it was last of use, as a count of uses.
    used: u64,
}

/// All segments.
#[derive(Clone, Debug)]
pub(super) struct SegmentCache {
    segments: Vec<CacheSegment>,
    /// Segments from this one on are for reads; those before it for writes.
    reads_from: usize,
    segment_sectors: u64,
    uses: u64,
}

impl SegmentCache {
    /// `count` segments of `segment_sectors`, the first kept for writes when `write_segment`.
    pub(super) fn new(count: u32, segment_sectors: u32, write_segment: bool) -> SegmentCache {
        let reads_from = usize::from(write_segment && count > 1);
        SegmentCache {
            segments: vec![CacheSegment::default(); count as usize],
            reads_from,
            segment_sectors: u64::from(segment_sectors),
            uses: 0,
        }
    }

    /// Whether `sector` lies in some segment.
    pub(super) fn holds(&self, sector: u64) -> bool {
        // All of them, whatever the first says: so the compiler takes several at a time.
        self.segments
            .iter()
            .fold(false, |any, segment| any | ((segment.start <= sector) & (sector < segment.end)))
    }

    /// The segment in which `sector` lies; of several, the one that reaches farthest.
    pub(super) fn with(&self, sector: u64) -> Option<usize> {
        let holds = |segment: &CacheSegment| segment.start <= sector && sector < segment.end;
        let holding = self.segments.iter().enumerate().filter(|(_, segment)| holds(segment));
        holding.max_by_key(|(_, segment)| segment.end).map(|(index, _)| index)
    }

    /// The segment `index`.
    pub(super) fn segment(&self, index: usize) -> &CacheSegment {
        &self.segments[index]
    }

    /// Notes a use of segment `index`.
    pub(super) fn touch(&mut self, index: usize) {
        self.uses += 1;
        self.segments[index].used = self.uses;
    }

    /// Gives up what segment `index` holds before `start`.
    pub(super) fn release_before(&mut self, index: usize, start: u64) {
        let segment = &mut self.segments[index];
        segment.start = segment.start.max(start.min(segment.end));
    }

    /// Gives up the least recently used read segment for sectors from `start` to `end`.
    pub(super) fn allocate_for_read(&mut self, start: u64, end: u64) -> usize {
        let index = self.least_recently_used(self.reads_from, self.segments.len());
        self.fill(index, start, end);
        index
    }

    /// Puts written sectors into a segment: the one that they continue, where they may go on in
    /// that, or a new one.
    pub(super) fn store_written(&mut self, start: u64, end: u64, may_go_on: bool) -> usize {
        let writes_to = if self.reads_from > 0 { self.reads_from } else { self.segments.len() };
        let continues =
            |segment: &CacheSegment| segment.end == start && segment.end > segment.start;
        let index = match self.segments[..writes_to].iter().position(continues) {
            Some(index) if may_go_on => {
                self.extend(index, end);
                index
            }
            _ => {
                let index = self.least_recently_used(0, writes_to);
                self.fill(index, start, end);
                index
            }
        };
        self.touch(index);
        index
    }

    /// Moves the end of segment `index`; what no longer fits falls out at its start.
    pub(super) fn extend(&mut self, index: usize, end: u64) {
        let segment = &mut self.segments[index];
        segment.end = segment.end.max(end);
        let reach = segment.end.saturating_sub(self.segment_sectors);
        segment.start = segment.start.max(reach);
        segment.from = segment.from.max(reach);
    }

    /// Gives up every segment with sectors from `start` to `end`: they are written anew.
    ///
    /// A segment holds one span and is given up whole (as the measured drives do: reads
    /// near a write that fell into a segment go to the medium).
    pub(super) fn drop_overlap(&mut self, start: u64, end: u64) {
        for segment in &mut self.segments {
            if segment.start < end && start < segment.end {
                segment.end = segment.start;
                segment.used = 0;
            }
        }
    }

    /// Gives up segment `index`; it is taken first when one is needed.
    pub(super) fn empty(&mut self, index: usize) {
        let segment = &mut self.segments[index];
        (segment.end, segment.used) = (segment.start, 0);
    }

    fn least_recently_used(&self, from: usize, to: usize) -> usize {
        (from..to).min_by_key(|index| self.segments[*index].used).expect("a cache has a segment")
    }

    fn fill(&mut self, index: usize, start: u64, end: u64) {
        self.uses += 1;
        self.segments[index] = CacheSegment { start, end, from: start, used: self.uses };
        self.extend(index, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_segment_is_given_up() {
        let mut segments = SegmentCache::new(2, 100, false);
        let first = segments.allocate_for_read(0, 10);
        let second = segments.allocate_for_read(1000, 1010);
        segments.touch(first);
        assert_eq!(segments.allocate_for_read(2000, 2010), second);
        assert_eq!((segments.with(5), segments.with(1005)), (Some(first), None));
    }

    #[test]
    fn a_full_segment_loses_its_start() {
        let mut segments = SegmentCache::new(1, 100, false);
        let index = segments.allocate_for_read(0, 50);
        segments.extend(index, 130);
        assert_eq!((segments.with(29), segments.with(30)), (None, Some(index)));
        segments.release_before(index, 60);
        assert_eq!((segments.with(59), segments.with(60)), (None, Some(index)));
    }

    #[test]
    fn writes_have_their_own_segment_and_end_old_data() {
        let mut segments = SegmentCache::new(2, 100, true);
        let read = segments.allocate_for_read(0, 50);
        let written = segments.store_written(200, 208, true);
        assert_eq!(segments.store_written(208, 216, true), written);
        assert_eq!(segments.segment(written).end, 216);
        assert_ne!(read, written);
        segments.drop_overlap(49, 51);
        assert_eq!(segments.with(10), None);
    }
}
