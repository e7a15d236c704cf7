//! A set of queued requests: by sector, for the order of service; by arrival, to bound the wait;
//! and merged.
//!
//! Two requests merge if one ends where the other starts, they have the same direction and the same
//! `is_sync`, and both together fit into the device's largest request. The older one keeps its
//! identifier and its age. The grown request may touch a third queued request, and the two then
//! merge as well. The sectors of a request are in the [`RequestTable`], where it grows; this set
//! holds only identifiers.

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
    /// The position before all requests that start at `sector`. Arrivals are counted from 1.
    const fn before_all_at(sector: u64) -> SectorKey {
        SectorKey { start: sector, arrival: 0 }
    }

    /// Start and arrival as one number. A comparison of these in a binary search needs no branch,
    /// which would be mispredicted half of the time.
    const fn comparison_number(self) -> u128 {
        (self.start as u128) << 64 | self.arrival as u128
    }

    /// The position directly after this one: no request lies between the two.
    const fn successor(self) -> SectorKey {
        SectorKey { start: self.start, arrival: self.arrival + 1 }
    }
}

impl Ord for SectorKey {
    /// Compares first sectors, and arrival numbers of equal sectors.
    #[inline]
    fn cmp(&self, other: &SectorKey) -> Ordering {
        self.comparison_number().cmp(&other.comparison_number())
    }
}

impl PartialOrd for SectorKey {
    #[inline]
    fn partial_cmp(&self, other: &SectorKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }

    #[inline]
    fn lt(&self, other: &SectorKey) -> bool {
        self.comparison_number() < other.comparison_number()
    }

    #[inline]
    fn le(&self, other: &SectorKey) -> bool {
        self.comparison_number() <= other.comparison_number()
    }
}

/// A queued request.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingRequest {
    /// Its identifier in the table of requests.
    pub id: RequestId,
    /// Time of its arrival.
    pub arrived: Time,
}

/// Result of merging a new request with a queued neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MergeResult {
    /// The request that now covers all.
    pub into: RequestId,
    /// A second queued request, which is now part of `into` as well. `None` if the new request
    /// touched only one.
    pub absorbed: Option<RequestId>,
    /// Former keys of the merged requests; the second is `None` if only one was queued.
    pub former_keys: [Option<SectorKey>; 2],
    /// New key of `into`.
    pub new_key: SectorKey,
}

impl MergeResult {
    /// Returns true if a request was absorbed, or the grown one begins at another sector. A request
    /// that has grown only at its end keeps its key and its place.
    pub(super) fn has_changed_key(&self) -> bool {
        self.former_keys != [Some(self.new_key), None]
    }
}

/// A set of queued requests.
///
/// Invariants:
///
/// 1. `by_sector` has all requests, and `by_arrival` their identifiers.
/// 2. Both are empty while `only` holds a single request. This is the usual case if the device
///    accepts requests at once: each request leaves before the next one arrives.
#[derive(Debug, Default)]
pub(super) struct QueuedRequests {
    /// The request that was added to the empty set, until a second one is added.
    only: Option<(SectorKey, WaitingRequest)>,
    /// The requests in sector order.
    by_sector: BlockSortedMap<SectorKey, SectorEntry>,
    /// The requests in the order of their arrival.
    by_arrival: ArrivalQueue<WaitingRequest>,
    /// Number of the last arrival.
    arrivals: u64,
}

/// Entry of the order by sector.
#[derive(Clone, Copy, Debug)]
struct SectorEntry {
    /// The request, with the time of its arrival.
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

    /// Adds a request that arrives at `now`, merged with a neighbour if both fit into `sectors_max`
    /// sectors. Returns which of the two happened.
    pub(super) fn insert_or_merge(
        &mut self,
        now: Time,
        id: RequestId,
        requests: &mut RequestTable,
        sectors_max: u32,
    ) -> Inserted {
        match self.merge(id, requests, sectors_max) {
            Some(MergeResult { into, absorbed, .. }) => Inserted::Merged { into, with: absorbed },
            None => {
                self.insert(WaitingRequest { id, arrived: now }, requests);
                Inserted::Queued
            }
        }
    }

    /// Adds a request without merging, and returns its key.
    pub(super) fn insert(&mut self, waiting: WaitingRequest, requests: &RequestTable) -> SectorKey {
        self.arrivals += 1;
        let key = SectorKey { start: requests[waiting.id].start, arrival: self.arrivals };
        if self.is_empty() {
            self.only = Some((key, waiting));
            return key;
        }
        // With a second request, both go to the two orders.
        for (key, waiting) in self.only.take().into_iter().chain([(key, waiting)]) {
            self.by_arrival.push(key.arrival, waiting);
            self.insert_by_sector(key, waiting, requests);
        }
        key
    }

    /// Adds a request to the order by sector.
    fn insert_by_sector(
        &mut self,
        key: SectorKey,
        waiting: WaitingRequest,
        requests: &RequestTable,
    ) {
        let sectors = requests[waiting.id].sectors;
        self.by_sector.insert(key, SectorEntry { waiting, sectors });
    }

    /// Removes the request at `key`; `None` if there is none.
    pub(super) fn remove(&mut self, key: SectorKey) -> Option<WaitingRequest> {
        if let Some((_, only)) = self.only.take_if(|(only_key, _)| *only_key == key) {
            return Some(only);
        }
        let SectorEntry { waiting, .. } = self.by_sector.remove(&key)?;
        self.by_arrival.remove(key.arrival);
        Some(waiting)
    }

    /// The request that arrived first, with its key; `None` if none is queued.
    pub(super) fn oldest(&self, requests: &RequestTable) -> Option<(SectorKey, WaitingRequest)> {
        self.only.or_else(|| {
            let (arrival, waiting) = *self.by_arrival.first()?;
            // The start is in the table alone: merges may have changed it since the arrival.
            Some((SectorKey { start: requests[waiting.id].start, arrival }, waiting))
        })
    }

    /// The request at `key`; `None` if there is none.
    pub(super) fn waiting(&self, key: SectorKey) -> Option<WaitingRequest> {
        if let Some((only_key, only)) = self.only {
            return (only_key == key).then_some(only);
        }
        let (found_key, entry) = self.by_sector.first_from(&key)?;
        (found_key == key).then_some(entry.waiting)
    }

    /// The key of the first request that starts at `sector` or after it; `None` without one.
    pub(super) fn first_from(&self, sector: u64) -> Option<SectorKey> {
        self.next_at_or_after(SectorKey::before_all_at(sector))
    }

    /// Returns the key of a request; `None` if it is not queued here.
    pub(super) fn find(&self, id: RequestId, requests: &RequestTable) -> Option<SectorKey> {
        if let Some((key, only)) = &self.only {
            return (only.id == id).then_some(*key);
        }
        let start = requests[id].start;
        // Several requests may start at this sector.
        let mut key = SectorKey::before_all_at(start);
        loop {
            let (found_key, SectorEntry { waiting, .. }) = self.by_sector.first_from(&key)?;
            if found_key.start != start || waiting.id == id {
                return (found_key.start == start).then_some(found_key);
            }
            key = found_key.successor();
        }
    }

    /// Returns the key of the request before `key` in sector order; `None` without one.
    pub(super) fn previous(&self, key: SectorKey) -> Option<SectorKey> {
        if let Some((only, _)) = self.only {
            return Some(only).filter(|&only| only < key);
        }
        self.by_sector.last_before(&key).map(|(key, _)| key)
    }

    /// Returns the key of the request after `key` in sector order; `None` without one.
    pub(super) fn next(&self, key: SectorKey) -> Option<SectorKey> {
        self.next_at_or_after(key.successor())
    }

    /// Returns the key of the first request at `key` or after it; `None` without one.
    fn next_at_or_after(&self, key: SectorKey) -> Option<SectorKey> {
        if let Some((only, _)) = self.only {
            return Some(only).filter(|&only| only >= key);
        }
        self.by_sector.first_from(&key).map(|(key, _)| key)
    }

    /// Merges the request `id`, which is not queued, with a queued neighbour. The grown request is
    /// merged once more if it touches another one. Changes the table and this set. `None` if there
    /// is no neighbour of the same direction and synchronicity, or the merged request would exceed
    /// `sectors_max` sectors. The caller then inserts the request.
    pub(super) fn merge(
        &mut self,
        id: RequestId,
        requests: &mut RequestTable,
        sectors_max: u32,
    ) -> Option<MergeResult> {
        // The only request is the only possible neighbour.
        if let Some((key, waiting)) = &mut self.only {
            let into = waiting.id;
            if !may_merge(&requests[into], &requests[id], sectors_max) {
                return None;
            }
            requests.merge(into, id);
            let former_key = *key;
            key.start = requests[into].start;
            return Some(MergeResult {
                into,
                absorbed: None,
                former_keys: [Some(former_key), None],
                new_key: *key,
            });
        }
        if self.by_sector.is_empty() {
            return None;
        }
        // A first neighbour, and a second one that touches both together.
        let (first, first_request) = self.neighbour(&requests[id], requests, sectors_max)?;
        self.by_sector.remove(&first);
        let grown = covering_request(&requests[first_request.id], &requests[id]);
        let Some((second, second_request)) = self.neighbour(&grown, requests, sectors_max) else {
            requests.merge(first_request.id, id);
            let new_key = self.reinsert_grown(first, first_request, requests);
            return Some(MergeResult {
                into: first_request.id,
                absorbed: None,
                former_keys: [Some(first), None],
                new_key,
            });
        };
        // All three become one: the older of the two keeps its identifier and its age.
        self.by_sector.remove(&second);
        let is_first_older = first.arrival < second.arrival;
        let (key, older, younger_key, younger) = match is_first_older {
            true => (first, first_request, second, second_request),
            false => (second, second_request, first, first_request),
        };
        self.by_arrival.remove(younger_key.arrival);
        let (into, absorbed) = (older.id, younger.id);
        // The new request usually lies between the two: it takes in the younger one, and the older
        // one takes in both. If requests overlap, the older one may touch the younger one itself.
        let touches_younger = requests[id].touches(&requests[absorbed]);
        requests.merge(if touches_younger { id } else { into }, absorbed);
        requests.merge(into, id);
        let new_key = self.reinsert_grown(key, older, requests);
        let former_keys = [Some(first), Some(second)];
        Some(MergeResult { into, absorbed: Some(absorbed), former_keys, new_key })
    }

    /// Adds a grown request to the order by sector again, and returns its new key. Its position by
    /// arrival is unchanged.
    fn reinsert_grown(
        &mut self,
        former_key: SectorKey,
        waiting: WaitingRequest,
        requests: &RequestTable,
    ) -> SectorKey {
        let key = SectorKey { start: requests[waiting.id].start, ..former_key };
        self.insert_by_sector(key, waiting, requests);
        key
    }

    /// Returns true if the request `id`, which is not queued, would be merged with a request that
    /// ends where it starts. `mq-deadline` without front merges allows no other merge.
    pub(super) fn merges_at_its_start(
        &self,
        id: RequestId,
        requests: &RequestTable,
        sectors_max: u32,
    ) -> bool {
        let request = &requests[id];
        if let Some((_, only)) = &self.only {
            let only = &requests[only.id];
            return only.end() == request.start && may_merge(only, request, sectors_max);
        }
        let neighbour = self.neighbour(request, requests, sectors_max);
        neighbour.is_some_and(|(key, _)| key.start < request.start)
    }

    /// Returns a queued request that may be merged with `request`, which is not queued; `None`
    /// without one. A queued request that ends at the start of `request` is preferred to one that
    /// starts at its end. Only one is examined on each side: the last that starts before `request`,
    /// and the first that starts at its end.
    fn neighbour(
        &self,
        request: &Request,
        requests: &RequestTable,
        sectors_max: u32,
    ) -> Option<(SectorKey, WaitingRequest)> {
        let fits = |(_, entry): &(SectorKey, &SectorEntry)| {
            may_merge(&requests[entry.waiting.id], request, sectors_max)
        };
        // A request that starts further before either ends before it, or is too large together with
        // it.
        let is_close = |(key, _): &(SectorKey, &SectorEntry)| {
            request.start - key.start <= u64::from(sectors_max)
        };
        let ends_at_start = |(key, entry): &(SectorKey, &SectorEntry)| {
            key.start + u64::from(entry.sectors) == request.start
        };
        let starts_at_end = |(key, _): &(SectorKey, &SectorEntry)| key.start == request.end();
        let (before, next) =
            self.by_sector.entries_around(&SectorKey::before_all_at(request.start));
        let find_from_end = || match next {
            // The found request overlaps `request`; a later one may start at its end.
            Some((key, _)) if key.start < request.end() => {
                self.by_sector.first_from(&SectorKey::before_all_at(request.end()))
            }
            _ => next,
        };
        let found = before.filter(is_close).filter(ends_at_start).filter(fits);
        let found = found.or_else(|| find_from_end().filter(starts_at_end).filter(fits));
        found.map(|(key, entry)| (key, entry.waiting))
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

/// Returns the request that covers two touching requests, with the other properties of `one`.
fn covering_request(one: &Request, other: &Request) -> Request {
    let sectors = one.sectors + other.sectors;
    Request { start: one.start.min(other.start), sectors, ..*one }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{read, write};
    use super::*;

    /// A request of 8 sectors at 100 grows by 8 sectors at its end, and then by 8 at its start. The
    /// limit is 24 sectors.
    #[test]
    fn neighbours_merge_at_either_end_up_to_the_limit() {
        let mut table = RequestTable::default();
        let mut requests = QueuedRequests::default();
        let id = table.open(read(100, 8));
        let first = requests.insert(WaitingRequest { id, arrived: Time::ZERO }, &table);
        // Merges a new request. Returns the result, and the first request as it is then.
        let merge =
            |requests: &mut QueuedRequests, table: &mut RequestTable, request, sectors_max| {
                let new = table.open(request);
                (requests.merge(new, table, sectors_max), table[id])
            };
        let (back, _) = merge(&mut requests, &mut table, read(108, 8), 24);
        assert_eq!(
            back,
            Some(MergeResult {
                into: id,
                absorbed: None,
                former_keys: [Some(first), None],
                new_key: first,
            })
        );
        let (front, whole) = merge(&mut requests, &mut table, read(92, 8), 24);
        let front = front.unwrap();
        assert_eq!((front.into, front.new_key.start), (id, 92));
        let (key, oldest) = requests.oldest(&table).unwrap();
        assert_eq!((whole.start, whole.end()), (92, 116));
        assert_eq!((oldest.id, key), (id, front.new_key));
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
        let [(old_id, old_key), (_, other_key), (young_id, young_key)] =
            [(1, 108), (2, 5000), (3, 92)].map(|(arrived_ms, start)| {
                let id = table.open(read(start, 8));
                let arrived = Time::from_ms(arrived_ms);
                (id, requests.insert(WaitingRequest { id, arrived }, &table))
            });
        let new = table.open(read(100, 8));
        let merge = requests.merge(new, &mut table, 24).unwrap();
        assert_eq!((merge.into, merge.absorbed), (old_id, Some(young_id)));
        assert_eq!(merge.former_keys, [Some(young_key), Some(old_key)]);
        let (key, oldest) = requests.oldest(&table).unwrap();
        assert_eq!((key, oldest.arrived), (merge.new_key, Time::from_ms(1)));
        assert_eq!((oldest.id, table[old_id]), (old_id, read(92, 24)));
        assert_eq!((requests.count(), requests.next(merge.new_key)), (2, Some(other_key)));
    }
}
