//! A set of queued requests: by sector, for the order of service; by arrival, to bound the wait;
//! and merged.
//!
//! Two requests merge if one ends where the other starts, they have the same direction, and both
//! together fit into the device's largest request. The older one keeps its identifier and its age.
//! The grown request may touch a third queued request, and the two then merge as well. The sectors
//! of a request are in the [`RequestTable`], where it grows; this set holds only identifiers.

use core::cmp::Ordering;

use crate::request::{Request, RequestId, RequestTable};
use crate::unit::Time;

use super::Inserted;
use super::arrivals::ArrivalQueue;
use super::sorted::BlockSortedMap;

/// A request's position in sector order: its first sector, then its arrival number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SectorKey {
    /// The first sector.
    pub start: u64,
    /// Number of its arrival; unique.
    arrival: u64,
}

impl SectorKey {
    /// The position before all requests that start at `sector`.
    const fn before_all_at(sector: u64) -> SectorKey {
        SectorKey { start: sector, arrival: 0 }
    }

    /// Start and arrival as one number. A comparison of these in a binary search needs no branch,
    /// which would be mispredicted half of the time.
    const fn number(self) -> u128 {
        (self.start as u128) << 64 | self.arrival as u128
    }

    /// The position directly after this one.
    const fn behind(self) -> SectorKey {
        SectorKey { start: self.start, arrival: self.arrival + 1 }
    }
}

impl Ord for SectorKey {
    #[inline]
    fn cmp(&self, other: &SectorKey) -> Ordering {
        self.number().cmp(&other.number())
    }
}

impl PartialOrd for SectorKey {
    #[inline]
    fn partial_cmp(&self, other: &SectorKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }

    #[inline]
    fn lt(&self, other: &SectorKey) -> bool {
        self.number() < other.number()
    }

    #[inline]
    fn le(&self, other: &SectorKey) -> bool {
        self.number() <= other.number()
    }
}

/// A queued request.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingRequest {
    pub id: RequestId,
    /// Time of its arrival.
    pub arrived: Time,
}

/// Result of merging a new request with a queued neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MergeResult {
    /// The request that now covers all.
    pub into: RequestId,
    /// A second queued request that `into` now covers too.
    pub with: Option<RequestId>,
    /// Former positions of the merged requests.
    pub from: [Option<SectorKey>; 2],
    /// New position of `into`.
    pub to: SectorKey,
}

/// A set of queued requests.
///
/// 1. `by_sector` has all requests, and `by_arrival` their identifiers.
/// 2. Both are empty while `only` holds a single request. This is the usual case if the device
///    accepts requests at once: each request leaves before the next one arrives.
#[derive(Debug, Default)]
pub(super) struct QueuedRequests {
    only: Option<(SectorKey, WaitingRequest)>,
    by_sector: BlockSortedMap<SectorKey, SectorEntry>,
    by_arrival: ArrivalQueue<WaitingRequest>,
    /// Number of the last arrival.
    arrivals: u64,
}

/// Entry of the order by sector.
#[derive(Clone, Copy, Debug)]
struct SectorEntry {
    waiting: WaitingRequest,
    /// Size in sectors. A search for a neighbour then need not access the table, whose entries are
    /// far apart in memory.
    sectors: u32,
}

impl QueuedRequests {
    /// Returns true if no request is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.only.is_none() && self.by_sector.is_empty()
    }

    /// Number of queued requests.
    pub(super) fn count(&self) -> usize {
        self.by_arrival.count() + usize::from(self.only.is_some())
    }

    /// Adds a request, merged with a neighbour if possible.
    pub(super) fn insert_or_merge(
        &mut self,
        now: Time,
        id: RequestId,
        requests: &mut RequestTable,
        sectors_max: u32,
    ) -> Inserted {
        match self.merge(id, requests, sectors_max) {
            Some(MergeResult { into, with, .. }) => Inserted::Merged { into, with },
            None => {
                self.insert(WaitingRequest { id, arrived: now }, requests);
                Inserted::Queued
            }
        }
    }

    /// Adds a request without merging.
    pub(super) fn insert(&mut self, waiting: WaitingRequest, requests: &RequestTable) -> SectorKey {
        self.arrivals += 1;
        let place = SectorKey { start: requests[waiting.id].start, arrival: self.arrivals };
        if self.is_empty() {
            self.only = Some((place, waiting));
            return place;
        }
        for (place, waiting) in self.only.take().into_iter().chain([(place, waiting)]) {
            self.by_arrival.push(place.arrival, waiting);
            self.put(place, waiting, requests);
        }
        place
    }

    /// Adds a request to the order by sector.
    fn put(&mut self, place: SectorKey, waiting: WaitingRequest, requests: &RequestTable) {
        let sectors = requests[waiting.id].sectors;
        self.by_sector.insert(place, SectorEntry { waiting, sectors });
    }

    /// Removes the request at `place`.
    pub(super) fn remove(&mut self, place: SectorKey) -> Option<WaitingRequest> {
        if let Some((_, only)) = self.only.take_if(|(at, _)| *at == place) {
            return Some(only);
        }
        let SectorEntry { waiting, .. } = self.by_sector.remove(&place)?;
        self.by_arrival.remove(place.arrival);
        Some(waiting)
    }

    /// The request that has waited longest.
    pub(super) fn oldest(&self, requests: &RequestTable) -> Option<(SectorKey, WaitingRequest)> {
        self.only.or_else(|| {
            let (arrival, waiting) = *self.by_arrival.first()?;
            Some((SectorKey { start: requests[waiting.id].start, arrival }, waiting))
        })
    }

    /// The first request that starts at `sector` or after it.
    pub(super) fn first_from(&self, sector: u64) -> Option<SectorKey> {
        self.next_at_or_after(SectorKey::before_all_at(sector))
    }

    /// The position of a request, if it is queued here.
    pub(super) fn find(&self, id: RequestId, requests: &RequestTable) -> Option<SectorKey> {
        if let Some((place, only)) = &self.only {
            return (only.id == id).then_some(*place);
        }
        let start = requests[id].start;
        let mut place = SectorKey::before_all_at(start);
        loop {
            let (there, SectorEntry { waiting, .. }) = self.by_sector.from(&place)?;
            if there.start != start || waiting.id == id {
                return (there.start == start).then_some(there);
            }
            place = there.behind();
        }
    }

    /// The request before `place` in sector order.
    pub(super) fn previous(&self, place: SectorKey) -> Option<SectorKey> {
        if let Some((only, _)) = self.only {
            return Some(only).filter(|&only| only < place);
        }
        self.by_sector.before(&place).map(|(place, _)| place)
    }

    /// The request after `place` in sector order.
    pub(super) fn next(&self, place: SectorKey) -> Option<SectorKey> {
        self.next_at_or_after(place.behind())
    }

    /// The first request at `place` or after it.
    fn next_at_or_after(&self, place: SectorKey) -> Option<SectorKey> {
        if let Some((only, _)) = self.only {
            return Some(only).filter(|&only| only >= place);
        }
        self.by_sector.from(&place).map(|(place, _)| place)
    }

    /// Merges the request `id` with a queued neighbour, if there is one. The grown request is
    /// merged once more if it touches another one.
    pub(super) fn merge(
        &mut self,
        id: RequestId,
        requests: &mut RequestTable,
        sectors_max: u32,
    ) -> Option<MergeResult> {
        if let Some((place, waiting)) = &mut self.only {
            let into = waiting.id;
            if !may_merge(&requests[into], &requests[id], sectors_max) {
                return None;
            }
            requests.merge(into, id);
            let from = *place;
            place.start = requests[into].start;
            return Some(MergeResult { into, with: None, from: [Some(from), None], to: *place });
        }
        if self.by_sector.is_empty() {
            return None;
        }
        let (first, one) = self.neighbour(&requests[id], requests, sectors_max)?;
        self.by_sector.remove(&first);
        let grown = joined(&requests[one.id], &requests[id]);
        let Some((second, other)) = self.neighbour(&grown, requests, sectors_max) else {
            requests.merge(one.id, id);
            let to = self.put_back(first, one, requests);
            return Some(MergeResult { into: one.id, with: None, from: [Some(first), None], to });
        };
        self.by_sector.remove(&second);
        let is_first_older = first.arrival < second.arrival;
        let (place, older, absorbed, younger) = match is_first_older {
            true => (first, one, second, other),
            false => (second, other, first, one),
        };
        self.by_arrival.remove(absorbed.arrival);
        let (into, with) = (older.id, younger.id);
        // The new request usually lies between the two. If requests overlap, the neighbour may
        // touch the other one itself.
        let is_beside = requests[id].touches(&requests[with]);
        requests.merge(if is_beside { id } else { into }, with);
        requests.merge(into, id);
        let to = self.put_back(place, older, requests);
        let from = [Some(first), Some(second)];
        Some(MergeResult { into, with: Some(with), from, to })
    }

    /// Returns a grown request to the order by sector; its position by arrival is unchanged.
    fn put_back(
        &mut self,
        before: SectorKey,
        waiting: WaitingRequest,
        requests: &RequestTable,
    ) -> SectorKey {
        let place = SectorKey { start: requests[waiting.id].start, ..before };
        self.put(place, waiting, requests);
        place
    }

    /// A queued request that may be merged with `request`, which is not queued. A request that ends
    /// at its start is preferred to one that starts at its end.
    fn neighbour(
        &self,
        request: &Request,
        requests: &RequestTable,
        sectors_max: u32,
    ) -> Option<(SectorKey, WaitingRequest)> {
        let fits = |(_, there): &(SectorKey, &SectorEntry)| {
            may_merge(&requests[there.waiting.id], request, sectors_max)
        };
        // A request that starts further before either ends before it, or is too large together with
        // it.
        let is_close = |(place, _): &(SectorKey, &SectorEntry)| {
            request.start - place.start <= u64::from(sectors_max)
        };
        let ends_there = |(place, there): &(SectorKey, &SectorEntry)| {
            place.start + u64::from(there.sectors) == request.start
        };
        let starts_there = |(place, _): &(SectorKey, &SectorEntry)| place.start == request.end();
        let (before, next) = self.by_sector.around(&SectorKey::before_all_at(request.start));
        let behind = || match next {
            // This one overlaps the request; a later one may touch its end.
            Some((place, _)) if place.start < request.end() => {
                self.by_sector.from(&SectorKey::before_all_at(request.end()))
            }
            _ => next,
        };
        let found = before.filter(is_close).filter(ends_there).filter(fits);
        let found = found.or_else(|| behind().filter(starts_there).filter(fits));
        found.map(|(place, there)| (place, there.waiting))
    }
}

/// Returns true if two requests may become one. They must touch, have the same direction and the
/// same synchronicity, and have together at most `sectors_max` sectors.
fn may_merge(one: &Request, other: &Request, sectors_max: u32) -> bool {
    one.touches(other)
        && one.op == other.op
        && one.is_sync == other.is_sync
        && one.sectors.saturating_add(other.sectors) <= sectors_max
}

/// The request that covers two touching ones.
fn joined(one: &Request, other: &Request) -> Request {
    let sectors = one.sectors + other.sectors;
    Request { start: one.start.min(other.start), sectors, ..*one }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{read, write};
    use super::*;

    #[test]
    fn neighbours_merge_at_either_end_up_to_the_limit() {
        let mut table = RequestTable::default();
        let mut requests = QueuedRequests::default();
        let id = table.open(read(100, 8));
        let first = requests.insert(WaitingRequest { id, arrived: Time::ZERO }, &table);
        let merge =
            |requests: &mut QueuedRequests, table: &mut RequestTable, request, sectors_max| {
                let new = table.open(request);
                (requests.merge(new, table, sectors_max), table[id])
            };
        let (back, _) = merge(&mut requests, &mut table, read(108, 8), 24);
        assert_eq!(
            back,
            Some(MergeResult { into: id, with: None, from: [Some(first), None], to: first })
        );
        let (front, whole) = merge(&mut requests, &mut table, read(92, 8), 24);
        let front = front.unwrap();
        assert_eq!((front.into, front.to.start), (id, 92));
        let (place, oldest) = requests.oldest(&table).unwrap();
        assert_eq!((whole.start, whole.end()), (92, 116));
        assert_eq!((oldest.id, place), (id, front.to));
        assert_eq!(merge(&mut requests, &mut table, read(116, 1), 24).0, None, "25 sectors");
        assert_eq!(
            merge(&mut requests, &mut table, write(116, 1), 100).0,
            None,
            "the other direction"
        );
        assert_eq!(requests.count(), 1);
    }

    /// The gap of 8 sectors between an old request at 108 and a young one at 92 is closed. The
    /// result is one request from 92, with the identifier, the age and the arrival position of the
    /// old one.
    #[test]
    fn requests_that_touch_after_a_merge_join_the_oldest() {
        let mut table = RequestTable::default();
        let mut requests = QueuedRequests::default();
        let [old, other, young] = [(1, 108), (2, 5000), (3, 92)].map(|(ms, start)| {
            let id = table.open(read(start, 8));
            (id, requests.insert(WaitingRequest { id, arrived: Time::from_ms(ms) }, &table))
        });
        let new = table.open(read(100, 8));
        let merge = requests.merge(new, &mut table, 24).unwrap();
        assert_eq!((merge.into, merge.with), (old.0, Some(young.0)));
        assert_eq!(merge.from, [Some(young.1), Some(old.1)]);
        let (place, oldest) = requests.oldest(&table).unwrap();
        assert_eq!((place, oldest.arrived), (merge.to, Time::from_ms(1)));
        assert_eq!((oldest.id, table[old.0]), (old.0, read(92, 24)));
        assert_eq!((requests.count(), requests.next(merge.to)), (2, Some(other.1)));
    }
}
