//! The requests that wait in one place: by sector, for the order of service;
//! by arrival, so that none waits too long; and merged.
//!
//! Two requests merge when one ends where the other starts, they go in the same
//! direction, and both together are no larger than the device takes. The one
//! that was there first keeps its name, and with it its age. One that has grown
//! by that may touch another that waits: then these two merge as well. What a request covers
//! stands in the [`RequestTable`], where it grows; here only names wait.

use core::cmp::Ordering;

use crate::request::{Request, RequestId, RequestTable};
use crate::unit::Time;

use super::Inserted;
use super::arrivals::ArrivalQueue;
use super::sorted::BlockSortedMap;

/// A request's place in the order by sector: its first sector, then its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SectorKey {
    /// The first sector.
    pub start: u64,
    /// The number of its arrival; no two are the same.
    arrival: u64,
}

impl SectorKey {
    /// Before all requests that start at `sector`.
    const fn before_all_at(sector: u64) -> SectorKey {
        SectorKey { start: sector, arrival: 0 }
    }

    /// Start and arrival as one number: a search by halves that compares these needs no branch, which would go
    /// the unforeseen way every other time.
    const fn number(self) -> u128 {
        (self.start as u128) << 64 | self.arrival as u128
    }

    /// Before all that come behind this one.
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

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingRequest {
    pub id: RequestId,
    /// When it came.
    pub arrived: Time,
}

/// What became of a request that has a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MergeResult {
    /// The request that now covers all.
    pub into: RequestId,
    /// Another one that waited, and is covered now too.
    pub with: Option<RequestId>,
    /// Where those stood that waited.
    pub from: [Option<SectorKey>; 2],
    /// Where `into` stands now.
    pub to: SectorKey,
}

/// Requests that wait.
///
/// 1. `by_sector` has all that are there, and `by_arrival` their names.
/// 2. Both are empty while `only` holds one: where the device has room each request leaves
///    before the next one comes.
#[derive(Debug, Default)]
pub(super) struct QueuedRequests {
    only: Option<(SectorKey, WaitingRequest)>,
    by_sector: BlockSortedMap<SectorKey, SectorEntry>,
    by_arrival: ArrivalQueue<WaitingRequest>,
    /// The number of the last arrival.
    arrivals: u64,
}

/// What stands in the order by sector.
#[derive(Clone, Copy, Debug)]
struct SectorEntry {
    waiting: WaitingRequest,
    /// How many sectors it covers: so who looks for a neighbour need not look into the table, where those that wait
    /// lie far apart.
    sectors: u32,
}

impl QueuedRequests {
    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.only.is_none() && self.by_sector.is_empty()
    }

    /// How many wait.
    pub(super) fn count(&self) -> usize {
        self.by_arrival.count() + usize::from(self.only.is_some())
    }

    /// Takes a request in, merged with a neighbour or not.
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

    /// Takes a request in, as it is.
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

    fn put(&mut self, place: SectorKey, waiting: WaitingRequest, requests: &RequestTable) {
        let sectors = requests[waiting.id].sectors;
        self.by_sector.insert(place, SectorEntry { waiting, sectors });
    }

    /// Takes the request at `place` out.
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

    /// Where the request stands, if it waits here.
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

    /// The request before `place` in the order by sector.
    pub(super) fn previous(&self, place: SectorKey) -> Option<SectorKey> {
        if let Some((only, _)) = self.only {
            return Some(only).filter(|&only| only < place);
        }
        self.by_sector.before(&place).map(|(place, _)| place)
    }

    /// The request after `place` in the order by sector.
    pub(super) fn next(&self, place: SectorKey) -> Option<SectorKey> {
        self.next_at_or_after(place.behind())
    }

    fn next_at_or_after(&self, place: SectorKey) -> Option<SectorKey> {
        if let Some((only, _)) = self.only {
            return Some(only).filter(|&only| only >= place);
        }
        self.by_sector.from(&place).map(|(place, _)| place)
    }

    /// Adds the request `id` to a neighbour that waits, if there is one. What has grown
    /// by that is merged once more, with what it touches now.
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
        let (place, older, gone, younger) = match is_first_older {
            true => (first, one, second, other),
            false => (second, other, first, one),
        };
        self.by_arrival.remove(gone.arrival);
        let (into, with) = (older.id, younger.id);
        // The new one lies between the two as a rule. Where requests overlap, the one that it
        // touches may touch the other one itself.
        let is_beside = requests[id].touches(&requests[with]);
        requests.merge(if is_beside { id } else { into }, with);
        requests.merge(into, id);
        let to = self.put_back(place, older, requests);
        let from = [Some(first), Some(second)];
        Some(MergeResult { into, with: Some(with), from, to })
    }

    /// Puts one that has grown back into the order by sector; its place by arrival is as it was.
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

    /// A request in the order by sector that may be merged with `request`, which is not in it: first one
    /// that ends where it starts, then one that starts where it ends.
    fn neighbour(
        &self,
        request: &Request,
        requests: &RequestTable,
        sectors_max: u32,
    ) -> Option<(SectorKey, WaitingRequest)> {
        let fits = |(_, there): &(SectorKey, &SectorEntry)| {
            may_merge(&requests[there.waiting.id], request, sectors_max)
        };
        // Whoever starts further before it ends before it, or is too large together with it.
        let is_close = |(place, _): &(SectorKey, &SectorEntry)| {
            request.start - place.start <= u64::from(sectors_max)
        };
        let ends_there = |(place, there): &(SectorKey, &SectorEntry)| {
            place.start + u64::from(there.sectors) == request.start
        };
        let starts_there = |(place, _): &(SectorKey, &SectorEntry)| place.start == request.end();
        let (before, next) = self.by_sector.around(&SectorKey::before_all_at(request.start));
        let behind = || match next {
            // It overlaps the request; somebody further behind may touch it.
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

/// Whether two requests may be one: they touch, go in the same direction, are of one kind, and
/// have together at most `sectors_max` sectors.
fn may_merge(one: &Request, other: &Request, sectors_max: u32) -> bool {
    one.touches(other)
        && one.op == other.op
        && one.is_sync == other.is_sync
        && one.sectors.saturating_add(other.sectors) <= sectors_max
}

/// What two that touch cover together.
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

    /// The gap of 8 sectors between an old request at 108 and a young one at 92 is closed: one
    /// request from 92, with the name, the age and the place in the order of arrival of the old one.
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
