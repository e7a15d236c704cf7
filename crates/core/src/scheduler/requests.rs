//! The requests that wait in one place: by sector, for the order of service;
//! by arrival, so that none waits too long; and merged.
//!
//! Two requests merge when one ends where the other starts, they go in the same
//! direction, and both together are no larger than the device takes. The one
//! that was there first keeps its name, and with it its age.

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
    /// The request that now covers both.
    pub into: RequestId,
    /// Where that one stood, and where it stands now.
    pub from: Place,
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
            Some(merge) => Inserted::Merged { into: merge.into },
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

    /// The last request that starts before `sector`.
    fn last_before(&mut self, sector: u64) -> Option<(Place, &mut Waiting)> {
        let before = Place::before_all_at(sector);
        if let Some((place, waiting)) = &mut self.only {
            return (*place < before).then_some((*place, waiting));
        }
        self.by_sector.range_mut(..before).next_back().map(|(&place, waiting)| (place, waiting))
    }

    /// Adds `request` to a neighbour that waits, if there is one in the same
    /// direction and both together have at most `sectors_max` sectors. First
    /// one that ends where the request starts, then one that starts where it ends.
    pub(super) fn merge(&mut self, request: &Request, sectors_max: u32) -> Option<Merge> {
        let fits = |other: &Waiting| {
            other.request.op == request.op
                && other.request.is_sync == request.is_sync
                && other.request.sectors.saturating_add(request.sectors) <= sectors_max
        };
        if let Some((place, other)) = self.last_before(request.start)
            && other.request.end() == request.start
            && fits(other)
        {
            other.request.sectors += request.sectors;
            return Some(Merge { into: other.request.id, from: place, to: place });
        }
        let from = self.first_from(request.end()).filter(|from| from.start == request.end())?;
        self.get(from).filter(|other| fits(other))?;
        let mut grown = self.remove(from)?;
        grown.request.start = request.start;
        grown.request.sectors += request.sectors;
        let to = self.put(from.arrival, grown);
        Some(Merge { into: grown.request.id, from, to })
    }
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
        assert_eq!(back, Some(Merge { into: RequestId(1), from: first, to: first }));
        let front = requests.merge(&read(3, 92, 8), 24).unwrap();
        assert_eq!((front.into, front.to.start), (RequestId(1), 92));
        let (place, whole) = requests.oldest().unwrap();
        assert_eq!((whole.request.start, whole.request.end(), place), (92, 116, front.to));
        assert_eq!(requests.merge(&read(4, 116, 1), 24), None, "25 sectors");
        assert_eq!(requests.merge(&write(5, 116, 1), 100), None, "the other direction");
        assert_eq!(requests.count(), 1);
    }
}
