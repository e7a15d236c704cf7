//! The open requests by identifier, and the parts of merged requests.

use core::num::NonZeroU32;
use core::ops::Index;

use slab::Slab;

use super::{Need, Request, RequestId};

/// All open requests. Other structures hold identifiers, and look them up here.
///
/// A request that is merged into another one becomes a *part* of it, and is closed with it. The
/// other one, its *head*, now covers both, and each of the two identifiers still finds its own
/// bytes.
///
/// 1. The parts of a request, itself included, are adjacent by sector, and together they are the
///    request.
/// 2. The need of a request is the highest need of its parts.
/// 3. The parts of a request are closed together: the head first, and then the most recently merged
///    part. A closed identifier is reused.
#[derive(Debug, Default)]
pub struct RequestTable {
    /// The open requests by the number of their identifier.
    slots: Slab<RequestSlot>,
}

/// An open request with its links.
#[derive(Debug)]
struct RequestSlot {
    /// For a head, all sectors that it covers; for any other part, its sectors when it was merged.
    request: Request,
    /// First sector of the request when it was opened.
    start: u64,
    /// Size of the request when it was opened.
    sectors: u32,
    /// The request that it is a part of; itself if it was not merged into another one.
    head: RequestId,
    /// The part that is closed after this one.
    next_to_close: RequestLink,
    /// First part of a head, by sector.
    first: RequestId,
    /// Last part of a head, by sector.
    last: RequestId,
    /// The next part by sector.
    next_by_sector: RequestLink,
}

/// Optional identifier of another part in four bytes: the identifier plus one.
#[derive(Clone, Copy, Debug, Default)]
struct RequestLink(Option<NonZeroU32>);

impl RequestLink {
    /// Creates a link to a request.
    fn to(id: RequestId) -> RequestLink {
        RequestLink(NonZeroU32::new(id.0 + 1))
    }

    /// Returns the request that the link refers to, if any.
    fn get(self) -> Option<RequestId> {
        self.0.map(|number| RequestId(number.get() - 1))
    }
}

/// Number of slots to add to a table of `count` requests: a quarter, plus 16 for small tables. A
/// policy that prefetches single pages has as many requests as half of the memory has pages.
/// Doubling the table would then allocate twice the number that ever exists.
pub(crate) fn slots_to_add(count: usize) -> usize {
    count / 4 + 16
}

impl RequestTable {
    /// Adds a request, and returns its identifier.
    pub fn open(&mut self, request: Request) -> RequestId {
        // Grows by a quarter, and is not doubled: see `slots_to_add`.
        if self.slots.len() == self.slots.capacity() {
            self.slots.reserve_exact(slots_to_add(self.slots.len()));
        }
        let entry = self.slots.vacant_entry();
        let id = RequestId(entry.key() as u32);
        let Request { start, sectors, .. } = request;
        entry.insert(RequestSlot {
            request,
            start,
            sectors,
            head: id,
            next_to_close: RequestLink::default(),
            first: id,
            last: id,
            next_by_sector: RequestLink::default(),
        });
        id
    }

    /// Closes a part of a request. `id` is a head, or the part that the previous call returned.
    /// Returns the request as it was opened, and the part to be closed next. `None` after the last.
    pub fn close(&mut self, id: RequestId) -> (Request, Option<RequestId>) {
        let slot = self.slots.remove(id.0 as usize);
        let next_part = slot.next_to_close.get();
        // True only for a head with other parts: any later part is its own head by then.
        if next_part.is_some_and(|part| self.slot(part).head == id) {
            // The identifier of the closed head may be reused: each remaining part becomes its own
            // head.
            self.set_head(next_part, |part| part);
        }
        (slot.opened(), next_part)
    }

    /// Closes a request with all its parts. Their identifiers may be reused.
    pub fn close_all(&mut self, id: RequestId) {
        let mut part = Some(id);
        while let Some(id) = part {
            (_, part) = self.close(id);
        }
    }

    /// Merges the request `part`, with all its parts, into the request `into`, which it must touch.
    /// Both are heads. `into` then covers the sectors of both, with the higher of both needs. The
    /// parts keep their identifiers.
    pub fn merge(&mut self, into: RequestId, part: RequestId) {
        let RequestSlot { request, first, last, .. } = *self.slot(part);
        // The last one in the order of closing, which is from the newest part to the oldest.
        let oldest_part =
            self.set_head(Some(part), |_| into).expect("a request is a part of itself");
        let head = self.slot_mut(into);
        debug_assert_eq!(head.request.op, request.op, "both go in one direction");
        debug_assert!(head.request.touches(&request), "there is no gap between them");
        let is_behind = head.request.end() == request.start;
        head.request.start = head.request.start.min(request.start);
        head.request.sectors += request.sectors;
        head.request.need = head.request.need.max(request.need);
        // The new parts are closed directly after the head, before the ones merged earlier.
        let newest_before = core::mem::replace(&mut head.next_to_close, RequestLink::to(part));
        // In sector order, the new parts go to the end or to the start.
        if is_behind {
            let last_before = core::mem::replace(&mut head.last, last);
            self.slot_mut(last_before).next_by_sector = RequestLink::to(first);
        } else {
            let first_before = core::mem::replace(&mut head.first, first);
            self.slot_mut(last).next_by_sector = RequestLink::to(first_before);
        }
        self.slot_mut(oldest_part).next_to_close = newest_before;
    }

    /// Marks the request, and the one that it is a part of, as awaited. Returns the latter if it
    /// was not awaited before; `None` if it was. The caller informs the scheduler only in the first
    /// case.
    pub fn set_demand(&mut self, id: RequestId) -> Option<RequestId> {
        let head = self.slot(id).head;
        let was_demand = self.slot(head).request.need == Need::Demand;
        self.slot_mut(id).request.need = Need::Demand;
        self.slot_mut(head).request.need = Need::Demand;
        (!was_demand).then_some(head)
    }

    /// The parts of a request in sector order.
    pub fn parts(&self, id: RequestId) -> impl Iterator<Item = RequestId> + '_ {
        let first = self.slot(id).first;
        core::iter::successors(Some(first), |&part| self.slot(part).next_by_sector.get())
    }

    /// Returns true if the request, a head, has other parts that were merged into it.
    pub fn is_merged(&self, id: RequestId) -> bool {
        self.slot(id).next_to_close.get().is_some()
    }

    /// Returns a part as it was opened, without the requests merged into it later.
    pub fn opened(&self, part: RequestId) -> Request {
        self.slot(part).opened()
    }

    /// Returns true if no request is open.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Sets the head of each part from `first_part` on, in the order of closing, to the result of
    /// `new_head`. Returns the last of these parts; `None` without a part. The chain of
    /// `next_to_close` has all parts of a head.
    fn set_head(
        &mut self,
        first_part: Option<RequestId>,
        new_head: impl Fn(RequestId) -> RequestId,
    ) -> Option<RequestId> {
        let (mut next, mut last) = (first_part, None);
        while let Some(part) = next {
            let slot = self.slot_mut(part);
            slot.head = new_head(part);
            next = slot.next_to_close.get();
            last = Some(part);
        }
        last
    }

    /// Entry of an open request.
    fn slot(&self, id: RequestId) -> &RequestSlot {
        &self.slots[id.0 as usize]
    }

    /// Entry of an open request, to be changed.
    fn slot_mut(&mut self, id: RequestId) -> &mut RequestSlot {
        &mut self.slots[id.0 as usize]
    }
}

impl RequestSlot {
    /// The request as it was opened.
    fn opened(&self) -> Request {
        Request { start: self.start, sectors: self.sectors, ..self.request }
    }
}

impl Index<RequestId> for RequestTable {
    type Output = Request;

    /// The request, with all requests merged into it.
    fn index(&self, id: RequestId) -> &Request {
        &self.slot(id).request
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::request::{Op, ProcessId};

    /// Opens a read of 8 sectors from sector `start` on.
    fn open_read(table: &mut RequestTable, start: u64, need: Need) -> RequestId {
        table.open(Request {
            op: Op::Read,
            start,
            sectors: 8,
            process: ProcessId(0),
            priority: Default::default(),
            is_sync: true,
            need,
        })
    }

    fn is_demand(request: &Request) -> bool {
        request.need == Need::Demand
    }

    /// First sector and number of sectors of a request.
    fn extent(request: &Request) -> (u64, u32) {
        (request.start, request.sectors)
    }

    /// Three requests of 8 sectors: the middle one is merged into the high one, and both into the
    /// low one.
    #[test]
    fn parts_are_in_sector_order_after_any_merge_order() {
        let mut table = RequestTable::default();
        let [low, high, middle] =
            [0, 16, 8].map(|start| open_read(&mut table, start, Need::Prefetch));
        table.merge(high, middle);
        assert_eq!(extent(&table[high]), (8, 16));
        table.merge(low, high);
        assert_eq!(extent(&table[low]), (0, 24));
        assert_eq!(table.parts(low).collect::<Vec<_>>(), [low, middle, high]);
        assert_eq!(extent(&table.opened(low)), (0, 8));
        let (closed, next) = table.close(low);
        assert_eq!((extent(&closed), next), ((0, 8), Some(high)));
        let (_, next) = table.close(high);
        assert_eq!(next, Some(middle));
        let (closed, next) = table.close(middle);
        assert_eq!((extent(&closed), next), ((8, 8), None));
        assert!(table.is_empty());
    }

    /// A reader waits for the last of three merged requests. Then a speculative request absorbs an
    /// awaited one.
    #[test]
    fn a_request_is_demand_as_soon_as_a_part_is() {
        let mut table = RequestTable::default();
        let [head, middle, last] =
            [0, 8, 16].map(|start| open_read(&mut table, start, Need::Prefetch));
        table.merge(middle, last);
        table.merge(head, middle);
        assert!(!is_demand(&table[head]));
        assert_eq!((table.set_demand(last), table.set_demand(middle)), (Some(head), None));
        assert!(is_demand(&table[head]) && is_demand(&table.opened(last)));
        let other = open_read(&mut table, 24, Need::Demand);
        let behind = open_read(&mut table, 32, Need::Speculative);
        table.merge(behind, other);
        assert!(is_demand(&table[behind]));
    }

    /// The head's identifier is reused while the other part is still open.
    #[test]
    fn a_part_that_outlives_its_head_has_no_head() {
        let mut table = RequestTable::default();
        let [head, part] = [0, 8].map(|start| open_read(&mut table, start, Need::Prefetch));
        table.merge(head, part);
        table.close(head);
        assert_eq!(open_read(&mut table, 100, Need::Prefetch), head);
        table.set_demand(part);
        assert!(!is_demand(&table[head]) && is_demand(&table[part]));
    }
}
