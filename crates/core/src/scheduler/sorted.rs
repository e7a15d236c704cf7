//! Queued requests of one direction: by name, by sector, and merged.
//!
//! Two requests merge when one ends where the other starts and both together
//! are no larger than the device takes. The one that was there first keeps its
//! name, and with it its place in its queue and its deadline.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::request::{Request, RequestId};

use super::Inserted;

/// Requests of one direction. Two of them may start at the same sector: the
/// keys hold the name as well.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    /// By name; names are small, they are reused.
    requests: Vec<Option<Request>>,
    by_start: BTreeSet<(u64, RequestId)>,
    by_end: BTreeSet<(u64, RequestId)>,
}

impl Sorted {
    pub(super) fn len(&self) -> usize {
        self.by_start.len()
    }

    /// Takes a request in, merged with a neighbour where that is possible.
    pub(super) fn insert(&mut self, request: Request, sectors_max: u32) -> Inserted {
        let before = self.neighbour(&self.by_end, request.start, &request, sectors_max);
        if let Some(grown) = before {
            self.remove(grown.id);
            self.place(Request { sectors: grown.sectors + request.sectors, ..grown });
            return Inserted::Merged { into: grown.id };
        }
        let after = self.neighbour(&self.by_start, request.end(), &request, sectors_max);
        if let Some(grown) = after {
            self.remove(grown.id);
            let sectors = grown.sectors + request.sectors;
            self.place(Request { start: request.start, sectors, ..grown });
            return Inserted::Merged { into: grown.id };
        }
        self.place(request);
        Inserted::Queued
    }

    /// Takes the request of that name out; None when it is not here.
    pub(super) fn remove(&mut self, id: RequestId) -> Option<Request> {
        let request = self.requests.get_mut(id.0 as usize)?.take()?;
        self.by_start.remove(&(request.start, id));
        self.by_end.remove(&(request.end(), id));
        Some(request)
    }

    /// The request of that name.
    pub(super) fn find(&self, id: RequestId) -> Option<Request> {
        *self.requests.get(id.0 as usize)?
    }

    /// The first request that starts at `sector` or after it.
    pub(super) fn first_from(&self, sector: u64) -> Option<Request> {
        let &(_, id) = self.by_start.range((sector, RequestId(0))..).next()?;
        self.requests[id.0 as usize]
    }

    fn neighbour(
        &self,
        index: &BTreeSet<(u64, RequestId)>,
        sector: u64,
        request: &Request,
        sectors_max: u32,
    ) -> Option<Request> {
        let (from, to) = ((sector, RequestId(0)), (sector, RequestId(u32::MAX)));
        let &(_, id) = index.range(from..=to).next()?;
        self.requests[id.0 as usize].filter(|other| {
            other.sectors + request.sectors <= sectors_max && other.is_sync == request.is_sync
        })
    }

    fn place(&mut self, request: Request) {
        let at = request.id.0 as usize;
        if at >= self.requests.len() {
            self.requests.resize(at + 1, None);
        }
        self.requests[at] = Some(request);
        self.by_end.insert((request.end(), request.id));
        self.by_start.insert((request.start, request.id));
    }
}
