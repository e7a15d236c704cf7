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
    start: u64,
    /// Sector after the last.
    end: u64,
    /// Time in ns at which the first sector is in the cache.
    ready_at: u64,
    /// Position of the first sector.
    place: SectorPosition,
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
    spans: Vec<WriteSpan>,
    spec: WriteCacheSpec,
    /// Number of sectors in all spans.
    sectors: u64,
    /// Number of sectors being written to the medium, and the end of that transfer in ns.
    landing: (u64, u64),
}

impl WriteCache {
    /// Creates an empty cache.
    pub(super) fn new(spec: WriteCacheSpec) -> WriteCache {
        WriteCache { spans: Vec::new(), spec, sectors: 0, landing: (0, 0) }
    }

    /// Returns true if no data waits for the medium. A transfer can still be in progress.
    pub(super) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns true if an empty cache has room for a write of `sectors`. False without a write
    /// cache.
    pub(super) fn takes(&self, sectors: u32) -> bool {
        self.spec.spans > 0 && u64::from(sectors) <= self.spec.sectors
    }

    /// Returns true if a write of the sectors from `start` to `end` fits at `time_ns`.
    pub(super) fn has_room_for(&self, time_ns: u64, start: u64, end: u64) -> bool {
        if self.holds(start, end) {
            return true;
        }
        let (landing_sectors, landing_end_ns) = self.landing;
        let held_sectors =
            self.sectors + if time_ns < landing_end_ns { landing_sectors } else { 0 };
        let is_span_left = self.spans.len() < self.spec.spans as usize;
        held_sectors + (end - start) <= self.spec.sectors
            && (is_span_left || self.joined(start).is_some())
    }

    /// Returns true if waiting data overlaps the sectors from `start` to `end`.
    pub(super) fn overlaps(&self, start: u64, end: u64) -> bool {
        self.spans.iter().any(|span| span.start < end && start < span.end)
    }

    /// Adds the sectors from `start` to `end`. The first one is at `position`. They are in the
    /// cache at `ready_ns`. No effect if one span holds all of them.
    pub(super) fn put(
        &mut self,
        (start, end): (u64, u64),
        position: SectorPosition,
        ready_ns: u64,
    ) {
        if self.holds(start, end) {
            return;
        }
        self.sectors += end - start;
        match self.joined(start) {
            Some(index) => self.spans[index].end = end,
            None => self.spans.push(WriteSpan { start, end, ready_at: ready_ns, place: position }),
        }
    }

    /// Returns the earliest time in ns at which data can go to the medium; `None` without data.
    pub(super) fn ready_at(&self) -> Option<u64> {
        self.spans.iter().map(|span| span.ready_at).min()
    }

    /// Returns the least cost among the spans that are in the cache at `time_ns`; `None` if there
    /// is none. `cost` returns the cost of a position.
    pub(super) fn least_cost(
        &self,
        time_ns: u64,
        cost: impl Fn(&SectorPosition) -> u64,
    ) -> Option<u64> {
        let ready_spans = self.spans.iter().filter(|span| span.ready_at <= time_ns);
        ready_spans.map(|span| cost(&span.place)).min()
    }

    /// Removes a piece of the span that is in the cache at `time_ns` and has the least cost.
    /// Returns `None` if there is none. `locate` returns the position of a sector.
    pub(super) fn take_nearest(
        &mut self,
        time_ns: u64,
        cost: impl Fn(&SectorPosition) -> u64,
        locate: impl Fn(u64) -> SectorPosition,
    ) -> Option<TrackPiece> {
        let ready_spans =
            (0..self.spans.len()).filter(|index| self.spans[*index].ready_at <= time_ns);
        let index = ready_spans.min_by_key(|index| cost(&self.spans[*index].place))?;
        Some(self.take_piece(index, locate))
    }

    /// Removes a piece of the oldest span that overlaps the sectors from `start` to `end`.
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

    /// Records that the last piece is on the medium at `end_ns`. It occupies room in the cache
    /// until then.
    pub(super) fn record_landing(&mut self, piece: TrackPiece, end_ns: u64) {
        self.landing = (piece.sectors, end_ns);
    }

    /// Removes a piece of at most one track from the start of the span at `index`. A span without
    /// further sectors is removed.
    fn take_piece(&mut self, index: usize, locate: impl Fn(u64) -> SectorPosition) -> TrackPiece {
        let span = &mut self.spans[index];
        let sectors = (span.end - span.start).min(u64::from(span.place.run_sectors));
        let piece = TrackPiece { start: span.start, sectors };
        span.start += sectors;
        self.sectors -= sectors;
        if span.start == span.end {
            self.spans.remove(index);
        } else {
            span.place = locate(span.start);
        }
        piece
    }

    /// Returns true if one span contains all sectors from `start` to `end`.
    fn holds(&self, start: u64, end: u64) -> bool {
        self.spans.iter().any(|span| span.start <= start && end <= span.end)
    }

    /// Returns the index of the span that a write from sector `start` continues.
    fn joined(&self, start: u64) -> Option<usize> {
        self.spans.iter().position(|span| span.end == start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACK: u32 = 10;

    fn locate(sector: u64) -> SectorPosition {
        let on_track = (sector % u64::from(TRACK)) as u32;
        let cylinder = (sector / u64::from(TRACK)) as u32;
        SectorPosition { cylinder, run_sectors: TRACK - on_track, ..SectorPosition::default() }
    }

    fn cache(spans: u32, sectors: u64) -> WriteCache {
        WriteCache::new(WriteCacheSpec { spans, sectors })
    }

    fn put(cache: &mut WriteCache, start: u64, end: u64) {
        cache.put((start, end), locate(start), 0);
    }

    #[test]
    fn write_cache_counts_sectors_until_they_are_on_the_medium() {
        let mut cache = cache(8, 30);
        put(&mut cache, 5, 30);
        assert!(cache.has_room_for(0, 100, 105) && !cache.has_room_for(0, 100, 106));
        let piece = cache.take_nearest(0, |_| 0, locate).expect("it is here");
        assert_eq!(piece, TrackPiece { start: 5, sectors: 5 }, "to the end of the track");
        cache.record_landing(piece, 1000);
        assert!(!cache.has_room_for(999, 100, 106) && cache.has_room_for(1000, 100, 110));
        assert!(cache.takes(30) && !cache.takes(31));
    }

    #[test]
    fn spans_are_joined_overwritten_and_bounded_in_number() {
        let mut cache = cache(2, 1000);
        put(&mut cache, 0, 8);
        put(&mut cache, 500, 508);
        assert!(!cache.has_room_for(0, 900, 908) && cache.has_room_for(0, 8, 16));
        put(&mut cache, 8, 16);
        assert!(cache.has_room_for(0, 4, 12), "it takes the place of what is there");
        put(&mut cache, 4, 12);
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
        cache.put((100, 108), locate(100), 50);
        cache.put((900, 908), locate(900), 0);
        let distance = |place: &SectorPosition| u64::from(place.cylinder);
        assert_eq!(cache.ready_at(), Some(0));
        assert_eq!(cache.least_cost(0, distance), Some(90));
        assert_eq!(cache.take_nearest(50, distance, locate).map(|piece| piece.start), Some(100));
    }
}
