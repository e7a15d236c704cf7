//! The requests of one queue: by sector, for the order of service; by arrival,
//! so that none waits too long.
//!
//! Neighbours are merged here, and only here: never across queues, since each
//! queue is a process's own (or the shared one of all asynchronous requests of
//! a level).

use alloc::collections::BTreeMap;

use super::tunables::{CfqTunables, Jiffies};
use crate::request::{Request, RequestId};

/// A request's place in the order by sector: its first sector, then its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// The first sector.
    pub start: u64,
    /// The number of its arrival; no two are the same.
    pub arrival: u64,
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub request: Request,
    /// When it came.
    pub arrived: Jiffies,
    /// When it is served out of order.
    pub expires: Jiffies,
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

/// The requests of one queue. Invariant: both maps hold the same requests.
#[derive(Debug, Default)]
pub(super) struct Requests {
    by_sector: BTreeMap<Place, Waiting>,
    /// First sector by arrival.
    by_arrival: BTreeMap<u64, u64>,
}

impl Requests {
    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.by_sector.is_empty()
    }

    /// How many wait.
    pub(super) fn count(&self) -> usize {
        self.by_sector.len()
    }

    /// Takes a request in.
    pub(super) fn insert(&mut self, arrival: u64, waiting: Waiting) -> Place {
        let place = Place { start: waiting.request.start, arrival };
        self.by_sector.insert(place, waiting);
        self.by_arrival.insert(arrival, place.start);
        place
    }

    /// Takes the request at `place` out.
    pub(super) fn remove(&mut self, place: Place) -> Option<Waiting> {
        self.by_arrival.remove(&place.arrival);
        self.by_sector.remove(&place)
    }

    /// The request that has waited longest.
    pub(super) fn oldest(&self) -> Option<(Place, &Waiting)> {
        let (&arrival, &start) = self.by_arrival.first_key_value()?;
        let place = Place { start, arrival };
        self.by_sector.get(&place).map(|waiting| (place, waiting))
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
        let before = Place { start: request.start, arrival: 0 };
        if let Some((&place, other)) = self.by_sector.range_mut(..before).next_back()
            && other.request.end() == request.start
            && fits(other)
        {
            other.request.sectors += request.sectors;
            return Some(Merge { into: other.request.id, from: place, to: place });
        }
        let after = Place { start: request.end(), arrival: 0 };
        let (&from, other) = self.by_sector.range(after..).next()?;
        if other.request.start != request.end() || !fits(other) {
            return None;
        }
        let mut grown = self.remove(from)?;
        grown.request.start = request.start;
        grown.request.sectors += request.sectors;
        let to = self.insert(from.arrival, grown);
        Some(Merge { into: grown.request.id, from, to })
    }

    /// Which of the two neighbours of `place` is served after it: the next one,
    /// or the first of all behind the last, against the previous one.
    pub(super) fn follower(&self, place: Place, tunables: &CfqTunables) -> Option<Place> {
        let after = Place { arrival: place.arrival + 1, ..place };
        let previous = self.by_sector.range(..place).next_back().map(|(&place, _)| place);
        let next = self.by_sector.range(after..).next().map(|(&place, _)| place).or_else(|| {
            self.by_sector.first_key_value().map(|(&first, _)| first).filter(|&f| f != place)
        });
        nearer(next, previous, place.start, tunables)
    }
}

/// Which of two requests is served first when the head is at `head`: the
/// nearer one ahead; one that lies at most `back_seek_max` behind counts with
/// its distance times `back_seek_penalty`; those further behind come last, the
/// lowest sector first, as the head will come to it first after a sweep back.
pub(super) fn nearer(
    one: Option<Place>,
    other: Option<Place>,
    head: u64,
    tunables: &CfqTunables,
) -> Option<Place> {
    let (Some(one), Some(other)) = (one, other) else { return one.or(other) };
    let distance = |place: Place| match head.checked_sub(place.start) {
        None | Some(0) => Some(place.start - head),
        Some(behind) if behind <= tunables.back_seek_max_sectors() => {
            Some(behind.saturating_mul(tunables.back_seek_penalty))
        }
        Some(_) => None,
    };
    let is_one = match (distance(one), distance(other)) {
        (Some(a), Some(b)) if a != b => a < b,
        (Some(_), Some(_)) => one.start >= other.start,
        (Some(_), None) => true,
        (None, Some(_)) => false,
        (None, None) => one.start <= other.start,
    };
    Some(if is_one { one } else { other })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Op, Priority, ProcessId};

    fn waiting(id: u32, start: u64, sectors: u32) -> Waiting {
        let request = Request {
            id: RequestId(id),
            op: Op::Read,
            start,
            sectors,
            process: ProcessId(1),
            priority: Priority::default(),
            is_sync: true,
        };
        Waiting { request, arrived: 0, expires: 125 }
    }

    #[test]
    fn neighbours_merge_at_either_end_up_to_the_limit() {
        let mut requests = Requests::default();
        let first = requests.insert(1, waiting(1, 100, 8));
        let back = requests.merge(&waiting(2, 108, 8).request, 24);
        assert_eq!(back, Some(Merge { into: RequestId(1), from: first, to: first }));
        let front = requests.merge(&waiting(3, 92, 8).request, 24).unwrap();
        assert_eq!((front.into, front.to.start), (RequestId(1), 92));
        let (place, whole) = requests.oldest().unwrap();
        assert_eq!((whole.request.start, whole.request.end(), place), (92, 116, front.to));
        assert_eq!(requests.merge(&waiting(4, 116, 1).request, 24), None, "25 sectors");
        let write = Request { op: Op::Write, ..waiting(5, 116, 1).request };
        assert_eq!(requests.merge(&write, 100), None, "the other direction");
        assert_eq!(requests.count(), 1);
    }

    #[test]
    fn the_nearer_is_ahead_or_a_little_behind() {
        let at = |start| Some(Place { start, arrival: start });
        let chosen =
            |a, b, head| nearer(at(a), at(b), head, &CfqTunables::default()).unwrap().start;
        assert_eq!(chosen(1_100, 1_300, 1_000), 1_100, "both ahead");
        assert_eq!(chosen(1_100, 960, 1_000), 960, "40 behind count 80");
        assert_eq!(chosen(1_100, 940, 1_000), 1_100, "60 behind count 120");
        // 16 MiB are 32,768 sectors.
        assert_eq!(chosen(1_000_000, 100_000 - 32_769, 100_000), 1_000_000, "too far behind");
        assert_eq!(chosen(1_000_000, 100_000 - 32_768, 100_000), 67_232);
        assert_eq!(chosen(500, 400, 100_000), 400, "both too far behind: the lower");
    }

    #[test]
    fn behind_the_last_comes_the_first() {
        let mut requests = Requests::default();
        let places = [10, 500_000, 1_000_000]
            .map(|start| requests.insert(start, waiting(start as u32, start, 8)));
        let tunables = CfqTunables::default();
        assert_eq!(requests.follower(places[0], &tunables), Some(places[1]));
        // Back 500,000 sectors and back 999,990 are both too far: the lower one.
        assert_eq!(requests.follower(places[2], &tunables), Some(places[0]));
    }
}
