//! Written data that is reported complete and not yet on the medium.
//!
//! It is limited in sectors and in contiguous ranges (spans). Sectors count until they are on the
//! medium, including those being written. A write that continues a span joins it. A write inside a
//! span replaces its data. A span goes to the medium in pieces of at most one track, the nearest
//! piece first.

use super::drive::WriteCacheSpec;
use super::geometry::SectorPosition;

/// Contiguous sectors that wait for the medium.
#[derive(Clone, Copy, Debug)]
struct WriteSpan {
    /// First sector.
    start: u64,
    /// Sector after the last.
    end: u64,
    /// Time in ns at which the first sector is in the cache.
    ready_ns: u64,
    /// Position of the first sector.
    first_position: SectorPosition,
}

/// The part of a span that goes to the medium next: sectors of one track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TrackPiece {
    /// First sector.
    pub start: u64,
    /// Number of sectors.
    pub sectors: u64,
}

/// Written data that waits for the medium, oldest span first.
#[derive(Clone, Debug)]
pub(super) struct WriteCache {
    /// The spans, oldest first.
    spans: Vec<WriteSpan>,
    /// Maximum number of spans and of sectors.
    spec: WriteCacheSpec,
    /// Number of sectors in all spans.
    sectors: u64,
    /// Number of sectors in the last transfer to the medium. They occupy room until its end.
    transfer_sectors: u64,
    /// End of the last transfer, in ns.
    transfer_end_ns: u64,
}

impl WriteCache {
    /// Creates an empty cache.
    pub(super) fn new(spec: WriteCacheSpec) -> WriteCache {
        WriteCache { spans: Vec::new(), spec, sectors: 0, transfer_sectors: 0, transfer_end_ns: 0 }
    }

    /// Returns true if no data waits for the medium. A transfer can still be in progress.
    pub(super) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns true if an empty cache has room for a write of `sectors`. False without a cache.
    pub(super) fn can_hold(&self, sectors: u32) -> bool {
        self.spec.spans > 0 && u64::from(sectors) <= self.spec.sectors
    }

    /// Returns true if a write of the sectors `start..end` fits at `time_ns`. A write that only
    /// partly overlaps a span needs room for all its sectors. A write inside a span needs none,
    /// because it replaces the span's data. A write that continues a span needs no new span.
    pub(super) fn has_room_for(&self, time_ns: u64, start: u64, end: u64) -> bool {
        if self.contains_all(start, end) {
            return true;
        }
        let is_transferring = time_ns < self.transfer_end_ns;
        let held_sectors = self.sectors + if is_transferring { self.transfer_sectors } else { 0 };
        let is_span_left = self.spans.len() < self.spec.spans as usize;
        held_sectors + (end - start) <= self.spec.sectors
            && (is_span_left || self.continued_span(start).is_some())
    }

    /// Returns true if waiting data overlaps the sectors `start..end`.
    pub(super) fn overlaps(&self, start: u64, end: u64) -> bool {
        self.spans.iter().any(|span| span.start < end && start < span.end)
    }

    /// Adds the sectors `start..end`, for which the caller has found room (`has_room_for`). The
    /// first one is at `position`. They are in the cache at `ready_ns`; if they continue a span,
    /// its older time stays, since its first sector is written first. No effect if one span holds
    /// all of them. Sectors that overlap a span in part count twice.
    pub(super) fn add(
        &mut self,
        (start, end): (u64, u64),
        position: SectorPosition,
        ready_ns: u64,
    ) {
        if self.contains_all(start, end) {
            return;
        }
        self.sectors += end - start;
        match self.continued_span(start) {
            Some(index) => self.spans[index].end = end,
            None => {
                self.spans.push(WriteSpan { start, end, ready_ns, first_position: position });
            }
        }
    }

    /// Returns the earliest time in ns at which data can go to the medium; `None` without data. It
    /// can lie in the past.
    pub(super) fn earliest_ready_ns(&self) -> Option<u64> {
        self.spans.iter().map(|span| span.ready_ns).min()
    }

    /// Returns the least cost among the spans that are in the cache at `time_ns`; `None` if there
    /// is none. `cost` returns the queue policy's cost of a position.
    pub(super) fn least_cost(
        &self,
        time_ns: u64,
        cost: impl Fn(&SectorPosition) -> u64,
    ) -> Option<u64> {
        let ready_spans = self.spans.iter().filter(|span| span.ready_ns <= time_ns);
        ready_spans.map(|span| cost(&span.first_position)).min()
    }

    /// Removes and returns a piece of the span that is in the cache at `time_ns` and has the least
    /// cost. Returns `None` if there is none. `locate` returns the position of a sector.
    pub(super) fn take_nearest(
        &mut self,
        time_ns: u64,
        cost: impl Fn(&SectorPosition) -> u64,
        locate: impl Fn(u64) -> SectorPosition,
    ) -> Option<TrackPiece> {
        let ready_spans =
            (0..self.spans.len()).filter(|index| self.spans[*index].ready_ns <= time_ns);
        let index = ready_spans.min_by_key(|index| cost(&self.spans[*index].first_position))?;
        Some(self.take_piece(index, locate))
    }

    /// Removes and returns the first piece of the oldest span that overlaps `start..end`; `None` if
    /// no span does. The piece starts at the span's start, which can lie before `start`. The caller
    /// repeats the call until no waiting data overlaps.
    ///
    /// The caller needs these sectors on the medium, so the cost does not count. The arrival time
    /// does not count either: the model does not delay a read for it. `locate` returns the position
    /// of a sector.
    pub(super) fn take_overlapping(
        &mut self,
        start: u64,
        end: u64,
        locate: impl Fn(u64) -> SectorPosition,
    ) -> Option<TrackPiece> {
        let overlaps = |span: &WriteSpan| span.start < end && start < span.end;
        let index = self.spans.iter().position(overlaps)?;
        Some(self.take_piece(index, locate))
    }

    /// Records that `piece` is on the medium at `end_ns`, and occupies room until then. The arm
    /// writes one piece at a time, so only the last one is recorded.
    pub(super) fn record_transfer(&mut self, piece: TrackPiece, end_ns: u64) {
        (self.transfer_sectors, self.transfer_end_ns) = (piece.sectors, end_ns);
    }

    /// Removes and returns a piece of at most one track from the start of the span at `index`. A
    /// span without further sectors is removed. The rest of a span keeps its time of arrival.
    fn take_piece(&mut self, index: usize, locate: impl Fn(u64) -> SectorPosition) -> TrackPiece {
        let span = &mut self.spans[index];
        // `run_sectors` is the number of consecutive sectors from the first one on its track.
        let sectors = (span.end - span.start).min(u64::from(span.first_position.run_sectors));
        let piece = TrackPiece { start: span.start, sectors };
        span.start += sectors;
        self.sectors -= sectors;
        if span.start == span.end {
            self.spans.remove(index);
        } else {
            span.first_position = locate(span.start);
        }
        piece
    }

    /// Returns true if one span contains all sectors `start..end`.
    fn contains_all(&self, start: u64, end: u64) -> bool {
        self.spans.iter().any(|span| span.start <= start && end <= span.end)
    }

    /// Returns the index of the span that a write from sector `start` continues, or `None`.
    fn continued_span(&self, start: u64) -> Option<usize> {
        self.spans.iter().position(|span| span.end == start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACK_SECTORS: u32 = 10;

    /// Returns the position on a disk with one track of `TRACK_SECTORS` sectors per cylinder.
    fn locate(sector: u64) -> SectorPosition {
        let index_on_track = (sector % u64::from(TRACK_SECTORS)) as u32;
        let cylinder = (sector / u64::from(TRACK_SECTORS)) as u32;
        let run_sectors = TRACK_SECTORS - index_on_track;
        SectorPosition { cylinder, run_sectors, ..SectorPosition::default() }
    }

    /// Returns an empty cache with room for `spans` spans and `sectors` sectors.
    fn cache(spans: u32, sectors: u64) -> WriteCache {
        WriteCache::new(WriteCacheSpec { spans, sectors })
    }

    /// Adds the sectors from `start` to `end`, which are in the cache at time 0.
    fn add(cache: &mut WriteCache, start: u64, end: u64) {
        cache.add((start, end), locate(start), 0);
    }

    #[test]
    fn write_cache_counts_sectors_until_they_are_on_the_medium() {
        // 25 of 30 sectors are used. Five of them are being written until 1,000 ns.
        let mut cache = cache(8, 30);
        add(&mut cache, 5, 30);
        assert!(cache.has_room_for(0, 100, 105) && !cache.has_room_for(0, 100, 106));
        let equal_cost = |_: &SectorPosition| 0;
        let piece = cache.take_nearest(0, equal_cost, locate).expect("the cache has a piece");
        assert_eq!(
            piece,
            TrackPiece { start: 5, sectors: 5 },
            "the piece ends at the end of the track"
        );
        cache.record_transfer(piece, 1000);
        assert!(!cache.has_room_for(999, 100, 106) && cache.has_room_for(1000, 100, 110));
        assert!(cache.can_hold(30) && !cache.can_hold(31));
    }

    /// Sectors 0 to 7 and 500 to 507 are the two spans that fit. Sectors 8 to 15 join the first, 8
    /// to 11 are written again, so 24 are held. The first piece ends with the track at sector 10.
    #[test]
    fn spans_are_joined_overwritten_and_bounded_in_number() {
        let (spans_max, sectors_max) = (2, 1000);
        let mut cache = cache(spans_max, sectors_max);
        add(&mut cache, 0, 8);
        add(&mut cache, 500, 508);
        assert!(!cache.has_room_for(0, 900, 908) && cache.has_room_for(0, 8, 16));
        add(&mut cache, 8, 16);
        assert!(cache.has_room_for(0, 4, 12), "a second write of the same sectors needs no room");
        add(&mut cache, 4, 12);
        assert_eq!(cache.sectors, 24);
        assert!(cache.overlaps(15, 17) && !cache.overlaps(16, 500));
        assert_eq!(
            cache.take_overlapping(10, 11, locate),
            Some(TrackPiece { start: 0, sectors: 10 })
        );
    }

    #[test]
    fn nearest_arrived_span_is_written_first() {
        let mut cache = cache(8, 1000);
        // Cylinder 10 is nearer to 0 than cylinder 90, but its data arrives only at 50 ns.
        cache.add((100, 108), locate(100), 50);
        cache.add((900, 908), locate(900), 0);
        let distance = |position: &SectorPosition| u64::from(position.cylinder);
        assert_eq!(cache.earliest_ready_ns(), Some(0));
        assert_eq!(cache.least_cost(0, distance), Some(90));
        assert_eq!(cache.take_nearest(50, distance, locate).map(|piece| piece.start), Some(100));
    }
}
