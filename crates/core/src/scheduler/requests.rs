//! The requests that wait in one place: by sector, for the order of service;
//! by arrival, so that none waits too long; and merged.
//!
//! Two requests merge when one ends where the other starts, they go in the same
//! direction, and both together are no larger than the device takes. The one
//! that was there first keeps its name, and with it its age. One that has grown
//! by that may touch another that waits: then these two merge as well.

use alloc::collections::BTreeMap;

use crate::request::{Request, RequestId};
use crate::unit::Time;

use super::Inserted;

/// A request's place in the order by sector: its first sector, then its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// The first sector.
    pub start: u64,
    /// The number of its arrival; no two are the same.
    arrival: u64,
}

impl Place {
    /// Before all requests that start at `sector`.
    const fn before_all_at(sector: u64) -> Place {
        Place { start: sector, arrival: 0 }
    }
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub request: Request,
    /// When it came.
    pub arrived: Time,
}

/// What became of a request that has a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Merge {
    /// The request that now covers all.
    pub into: RequestId,
    /// Another one that waited, and is covered now too.
    pub with: Option<Request>,
    /// Where those stood that waited.
    pub from: [Option<Place>; 2],
    /// Where `into` stands now.
    pub to: Place,
}

/// Requests that wait.
///
/// 1. Both maps hold the same requests.
/// 2. They are empty while `only` holds one: where the device has room each request leaves
///    before the next one comes, and a map that is emptied gives its memory back.
#[derive(Debug, Default)]
pub(super) struct Requests {
    only: Option<(Place, Waiting)>,
    by_sector: BTreeMap<Place, Waiting>,
    /// First sector by arrival.
    by_arrival: BTreeMap<u64, u64>,
    /// The number of the last arrival.
    arrivals: u64,
}

impl Requests {
    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.only.is_none() && self.by_sector.is_empty()
    }

    /// How many wait.
    pub(super) fn count(&self) -> usize {
        self.by_sector.len() + usize::from(self.only.is_some())
    }

    /// Takes a request in, merged with a neighbour or not.
    pub(super) fn insert_or_merge(
        &mut self,
        now: Time,
        request: Request,
        sectors_max: u32,
    ) -> Inserted {
        match self.merge(&request, sectors_max) {
            Some(Merge { into, with, .. }) => Inserted::Merged { into, with },
            None => {
                self.insert(now, request);
                Inserted::Queued
            }
        }
    }

    /// Takes a request in, as it is.
    pub(super) fn insert(&mut self, now: Time, request: Request) -> Place {
        self.arrivals += 1;
        self.put(self.arrivals, Waiting { request, arrived: now })
    }

    fn put(&mut self, arrival: u64, waiting: Waiting) -> Place {
        let place = Place { start: waiting.request.start, arrival };
        if self.is_empty() {
            self.only = Some((place, waiting));
            return place;
        }
        for (place, waiting) in self.only.take().into_iter().chain([(place, waiting)]) {
            self.by_sector.insert(place, waiting);
            self.by_arrival.insert(place.arrival, place.start);
        }
        place
    }

    /// Takes the request at `place` out.
    pub(super) fn remove(&mut self, place: Place) -> Option<Waiting> {
        if let Some((_, only)) = self.only.take_if(|(at, _)| *at == place) {
            return Some(only);
        }
        self.by_arrival.remove(&place.arrival);
        self.by_sector.remove(&place)
    }

    /// The request that has waited longest.
    pub(super) fn oldest(&self) -> Option<(Place, &Waiting)> {
        if let Some((place, waiting)) = &self.only {
            return Some((*place, waiting));
        }
        let (&arrival, &start) = self.by_arrival.first_key_value()?;
        let place = Place { start, arrival };
        self.get(place).map(|waiting| (place, waiting))
    }

    fn get(&self, place: Place) -> Option<&Waiting> {
        match &self.only {
            Some((only, waiting)) => (*only == place).then_some(waiting),
            None => self.by_sector.get(&place),
        }
    }

    /// The first request that starts at `sector` or after it.
    pub(super) fn first_from(&self, sector: u64) -> Option<Place> {
        self.next_at_or_after(Place::before_all_at(sector))
    }

    /// The request before `place` in the order by sector.
    pub(super) fn previous(&self, place: Place) -> Option<Place> {
        if let Some((only, _)) = self.only {
            return Some(only).filter(|&only| only < place);
        }
        self.by_sector.range(..place).next_back().map(|(&place, _)| place)
    }

    /// The request after `place` in the order by sector.
    pub(super) fn next(&self, place: Place) -> Option<Place> {
        self.next_at_or_after(Place { arrival: place.arrival + 1, ..place })
    }

    fn next_at_or_after(&self, place: Place) -> Option<Place> {
        if let Some((only, _)) = self.only {
            return Some(only).filter(|&only| only >= place);
        }
        self.by_sector.range(place..).next().map(|(&place, _)| place)
    }

    /// Adds `request` to a neighbour that waits, if there is one. What has grown
    /// by that is merged once more, with what it touches now.
    pub(super) fn merge(&mut self, request: &Request, sectors_max: u32) -> Option<Merge> {
        let first = self.neighbour(request, sectors_max)?;
        let waiting = self.remove(first)?;
        let grown = Waiting { request: joined(waiting.request, request), ..waiting };
        let second = self.neighbour(&grown.request, sectors_max);
        let Some((second, other)) = second.and_then(|place| Some((place, self.remove(place)?)))
        else {
            let to = self.put(first.arrival, grown);
            let into = grown.request.id;
            return Some(Merge { into, with: None, from: [Some(first), None], to });
        };
        let is_first_older = first.arrival < second.arrival;
        let (older, younger) = if is_first_older { (grown, other) } else { (other, grown) };
        let all = Waiting { request: joined(older.request, &younger.request), ..older };
        let to = self.put(first.arrival.min(second.arrival), all);
        let with = if is_first_older { other.request } else { waiting.request };
        let from = [Some(first), Some(second)];
        Some(Merge { into: all.request.id, with: Some(with), from, to })
    }

    /// A request that waits and may be merged with `request`, which does not: both go in the same
    /// direction and have together at most `sectors_max` sectors. First one that ends where it
    /// starts, then one that starts where it ends.
    fn neighbour(&self, request: &Request, sectors_max: u32) -> Option<Place> {
        let fits = |place: &Place| {
            self.get(*place).is_some_and(|Waiting { request: other, .. }| {
                (other.end() == request.start || other.start == request.end())
                    && other.op == request.op
                    && other.is_sync == request.is_sync
                    && other.sectors.saturating_add(request.sectors) <= sectors_max
            })
        };
        let before = self.previous(Place::before_all_at(request.start));
        before.filter(fits).or_else(|| self.first_from(request.end()).filter(fits))
    }
}

/// One request for two that touch, under the name of the first.
fn joined(one: Request, other: &Request) -> Request {
    let sectors = one.sectors + other.sectors;
    Request { start: one.start.min(other.start), sectors, ..one }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{read, write};
    use super::*;

    #[test]
    fn neighbours_merge_at_either_end_up_to_the_limit() {
        let mut requests = Requests::default();
        let first = requests.insert(Time::ZERO, read(1, 100, 8));
        let back = requests.merge(&read(2, 108, 8), 24);
        let from = [Some(first), None];
        assert_eq!(back, Some(Merge { into: RequestId(1), with: None, from, to: first }));
        let front = requests.merge(&read(3, 92, 8), 24).unwrap();
        assert_eq!((front.into, front.to.start), (RequestId(1), 92));
        let (place, whole) = requests.oldest().unwrap();
        assert_eq!((whole.request.start, whole.request.end(), place), (92, 116, front.to));
        assert_eq!(requests.merge(&read(4, 116, 1), 24), None, "25 sectors");
        assert_eq!(requests.merge(&write(5, 116, 1), 100), None, "the other direction");
        assert_eq!(requests.count(), 1);
    }

    /// The gap of 8 sectors between an old request at 108 and a young one at 92 is closed: one
    /// request from 92, with the name, the age and the place in the order of arrival of the old one.
    #[test]
    fn what_touches_after_a_merge_is_merged_under_the_name_of_the_oldest() {
        let mut requests = Requests::default();
        let old = requests.insert(Time::from_ms(1), read(1, 108, 8));
        let other = requests.insert(Time::from_ms(2), read(2, 5000, 8));
        let young = requests.insert(Time::from_ms(3), read(3, 92, 8));
        let merge = requests.merge(&read(4, 100, 8), 24).unwrap();
        assert_eq!((merge.into, merge.with), (RequestId(1), Some(read(3, 92, 8))));
        assert_eq!(merge.from, [Some(young), Some(old)]);
        let (place, oldest) = requests.oldest().unwrap();
        assert_eq!((place, oldest.arrived), (merge.to, Time::from_ms(1)));
        assert_eq!(oldest.request, Request { id: RequestId(1), ..read(0, 92, 24) });
        assert_eq!((requests.count(), requests.next(merge.to)), (2, Some(other)));
    }
}
