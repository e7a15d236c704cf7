//! The requests that are open, by name, and what each was merged from.

use core::num::NonZeroU32;
use core::ops::Index;

use slab::Slab;

use super::{Need, Request, RequestId};

/// All open requests. Whoever deals with a request holds its name, and looks here.
///
/// A request that is merged into another one becomes a *part* of it, and is closed with it: the
/// other one, its *head*, now covers both, and each of the two names still finds its own bytes.
///
/// 1. The parts of a request, itself among them, follow each other by sector without a gap, and
///    together they are what the request covers.
/// 2. A request is needed as much as that of its parts which is needed most.
/// 3. The parts of a request are closed together, the head first, and then the one that was merged
///    into it last. A name that was closed is given again.
#[derive(Debug, Default)]
pub struct RequestTable {
    slots: Slab<RequestSlot>,
}

#[derive(Debug)]
struct RequestSlot {
    /// Of a head, all that it covers; of any other part, what it covered when it was merged.
    request: Request,
    /// Where the request lay when it was opened.
    start: u64,
    sectors: u32,
    /// The request that it is a part of; itself if it was not merged into another one.
    head: RequestId,
    /// The part that is closed after this one.
    next: RequestLink,
    /// The first and the last part of a head, by sector.
    first: RequestId,
    last: RequestId,
    /// The part behind this one, by sector.
    behind: RequestLink,
}

/// The name of another part, or none, in four bytes: one more than the name.
#[derive(Clone, Copy, Debug, Default)]
struct RequestLink(Option<NonZeroU32>);

impl RequestLink {
    fn to(id: RequestId) -> RequestLink {
        RequestLink(NonZeroU32::new(id.0 + 1))
    }

    fn get(self) -> Option<RequestId> {
        self.0.map(|number| RequestId(number.get() - 1))
    }
}

/// For how many more requests room is made where there is some for `count`: a quarter. There are as many as half of the
/// memory has pages where a law reads single pages ahead; to double then would be room for twice as many as there ever are.
pub(crate) fn more_requests(count: usize) -> usize {
    count / 4 + 16
}

impl RequestTable {
    /// Takes a request in, and names it.
    pub fn open(&mut self, request: Request) -> RequestId {
        if self.slots.len() == self.slots.capacity() {
            self.slots.reserve_exact(more_requests(self.slots.len()));
        }
        let entry = self.slots.vacant_entry();
        let id = RequestId(entry.key() as u32);
        let Request { start, sectors, .. } = request;
        let (head, first, last) = (id, id, id);
        let (next, behind) = (RequestLink::default(), RequestLink::default());
        entry.insert(RequestSlot { request, start, sectors, head, next, first, last, behind });
        id
    }

    /// Ends a request that was not merged, or the next part of a merged one. Gives it as it was
    /// opened, and the part that is to be closed now.
    pub fn close(&mut self, id: RequestId) -> (Request, Option<RequestId>) {
        let slot = self.slots.remove(id.0 as usize);
        let next = slot.next.get();
        if next.is_some_and(|part| self.slot(part).head == id) {
            // The next request of this name is not the head of those that are left.
            self.set_head(next, |part| part);
        }
        (slot.opened(), next)
    }

    /// Ends a request with all its parts.
    pub fn close_all(&mut self, id: RequestId) {
        let mut part = Some(id);
        while let Some(id) = part {
            (_, part) = self.close(id);
        }
    }

    /// Makes `part`, with all its parts, a part of `into`, which it must touch.
    pub fn merge(&mut self, into: RequestId, part: RequestId) {
        let RequestSlot { request, first, last, .. } = *self.slot(part);
        let oldest = self.set_head(Some(part), |_| into).expect("a request is a part of itself");
        let head = self.slot_mut(into);
        debug_assert_eq!(head.request.op, request.op, "both go in one direction");
        debug_assert!(head.request.touches(&request), "there is no gap between them");
        let is_behind = head.request.end() == request.start;
        head.request.start = head.request.start.min(request.start);
        head.request.sectors += request.sectors;
        head.request.need = head.request.need.max(request.need);
        let newest_before = core::mem::replace(&mut head.next, RequestLink::to(part));
        if is_behind {
            let last_before = core::mem::replace(&mut head.last, last);
            self.slot_mut(last_before).behind = RequestLink::to(first);
        } else {
            let first_before = core::mem::replace(&mut head.first, first);
            self.slot_mut(last).behind = RequestLink::to(first_before);
        }
        self.slot_mut(oldest).next = newest_before;
    }

    /// Somebody waits for the request, and so for the one that it is a part of: gives that one, if
    /// nobody has waited for it before.
    pub fn set_demand(&mut self, id: RequestId) -> Option<RequestId> {
        let head = self.slot(id).head;
        let was_demand = self.slot(head).request.need == Need::Demand;
        self.slot_mut(id).request.need = Need::Demand;
        self.slot_mut(head).request.need = Need::Demand;
        (!was_demand).then_some(head)
    }

    /// The parts of a request in the order of their sectors.
    pub fn parts(&self, id: RequestId) -> impl Iterator<Item = RequestId> + '_ {
        core::iter::successors(Some(self.slot(id).first), |&part| self.slot(part).behind.get())
    }

    /// Whether the request was merged with others.
    pub fn is_merged(&self, id: RequestId) -> bool {
        self.slot(id).next.get().is_some()
    }

    /// A part as it was opened, whatever was merged into it since.
    pub fn opened(&self, part: RequestId) -> Request {
        self.slot(part).opened()
    }

    /// Whether no request is open.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Says of each part from this one on what its head is; gives the last of them.
    fn set_head(
        &mut self,
        from: Option<RequestId>,
        head: impl Fn(RequestId) -> RequestId,
    ) -> Option<RequestId> {
        let (mut next, mut last) = (from, None);
        while let Some(part) = next {
            let slot = self.slot_mut(part);
            slot.head = head(part);
            next = slot.next.get();
            last = Some(part);
        }
        last
    }

    fn slot(&self, id: RequestId) -> &RequestSlot {
        &self.slots[id.0 as usize]
    }

    fn slot_mut(&mut self, id: RequestId) -> &mut RequestSlot {
        &mut self.slots[id.0 as usize]
    }
}

impl RequestSlot {
    fn opened(&self) -> Request {
        Request { start: self.start, sectors: self.sectors, ..self.request }
    }
}

impl Index<RequestId> for RequestTable {
    type Output = Request;

    /// The request, with all that was merged into it.
    fn index(&self, id: RequestId) -> &Request {
        &self.slot(id).request
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::request::{Op, ProcessId};

    fn open(table: &mut RequestTable, start: u64, need: Need) -> RequestId {
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

    fn extent(request: &Request) -> (u64, u32) {
        (request.start, request.sectors)
    }

    /// 0 to 8, then 16 to 24, and what lies between them last.
    #[test]
    fn parts_are_in_sector_order_after_any_merge_order() {
        let mut table = RequestTable::default();
        let [low, high, middle] = [0, 16, 8].map(|start| open(&mut table, start, Need::Prefetch));
        table.merge(high, middle);
        assert_eq!(extent(&table[high]), (8, 16));
        table.merge(low, high);
        assert_eq!(extent(&table[low]), (0, 24));
        assert_eq!(table.parts(low).collect::<Vec<_>>(), [low, middle, high]);
        assert_eq!(extent(&table.opened(low)), (0, 8));
        let (closed, next) = table.close(low);
        assert_eq!((extent(&closed), next), ((0, 8), Some(high)));
        assert_eq!(table.close(high).1, Some(middle));
        let (closed, next) = table.close(middle);
        assert_eq!((extent(&closed), next), ((8, 8), None));
        assert!(table.is_empty());
    }

    #[test]
    fn a_request_is_demand_as_soon_as_a_part_is() {
        let mut table = RequestTable::default();
        let [head, middle, last] = [0, 8, 16].map(|start| open(&mut table, start, Need::Prefetch));
        table.merge(middle, last);
        table.merge(head, middle);
        assert!(!is_demand(&table[head]));
        assert_eq!((table.set_demand(last), table.set_demand(middle)), (Some(head), None));
        assert!(is_demand(&table[head]) && is_demand(&table.opened(last)));
        let other = open(&mut table, 24, Need::Demand);
        let behind = open(&mut table, 32, Need::Speculative);
        table.merge(behind, other);
        assert!(is_demand(&table[behind]));
    }

    /// The head's name is given again while the other part is still there.
    #[test]
    fn a_part_that_outlives_its_head_has_no_head() {
        let mut table = RequestTable::default();
        let [head, part] = [0, 8].map(|start| open(&mut table, start, Need::Prefetch));
        table.merge(head, part);
        table.close(head);
        assert_eq!(open(&mut table, 100, Need::Prefetch), head);
        table.set_demand(part);
        assert!(!is_demand(&table[head]) && is_demand(&table[part]));
    }
}
