//! Dispatchable requests: reads of favoured processes, then needed ones, then speculative ones.
//!
//! A process is *favoured* while it has enough credit for device time that it did without. A read
//! is *speculative* if it is a prefetch of pages that will probably not be used.
//!
//! How it works: reads of favoured processes are dispatched first, in ascending sector order. Other
//! demand reads, likely prefetches and writes are dispatched as in `deadline`. Speculative reads
//! are dispatched when no other read waits, in ascending sector order, and each under `deadline`'s
//! rule against writes. A speculative read also goes as soon as a reader waits for it. It is
//! cancelled after the time for which `deadline` lets a read wait, because its memory is then worth
//! more. The kinds are not merged with each other: a demand read would only become larger.
//!
//! Rejected: dispatch all prefetches last. With many random readers, whole-file prefetch serves
//! more of them than their own requests do. Half of the throughput was lost with 64 readers on one
//! or two disks.

use crate::request::{DeviceCaps, Need, Op, RequestId, RequestTable};
use crate::unit::Time;

use super::super::batches::DeadlineTunables;
use super::super::deadline::Deadline;
use super::super::requests::{QueuedRequests, SectorKey, WaitingRequest};
use super::super::{Dispatch, Inserted, Scheduler};

/// Dispatchable requests.
#[derive(Debug)]
pub(super) struct ReadyRequests {
    /// Reads of favoured processes, which are dispatched first.
    first: QueuedRequests,
    /// Needed reads, writes, and the speculative reads that are due.
    needed: Deadline,
    /// Speculative reads, which are dispatched when no needed read waits.
    speculative: QueuedRequests,
    /// Longest wait of a speculative read: `read_expire` of `deadline`.
    speculative_wait_max: Time,
    /// Largest request of the device, in sectors.
    sectors_max: u32,
    /// Sector after the last dispatched read.
    next_sector: u64,
}

impl ReadyRequests {
    /// Creates the queues for a device with these properties.
    pub(super) fn new(caps: &DeviceCaps) -> ReadyRequests {
        let tunables = DeadlineTunables::default();
        ReadyRequests {
            first: QueuedRequests::default(),
            needed: Deadline::new(caps, tunables),
            speculative: QueuedRequests::default(),
            speculative_wait_max: tunables.read_expire,
            sectors_max: caps.request_sectors_max,
            next_sector: 0,
        }
    }

    /// Adds a request to the speculative, the first or the needed ones, and merges it with a
    /// neighbour if possible. `is_favoured`: it is a read of a favoured process, and goes first
    /// unless it is speculative.
    pub(super) fn insert(
        &mut self,
        now: Time,
        id: RequestId,
        is_favoured: bool,
        requests: &mut RequestTable,
    ) -> Inserted {
        let queue = match is_speculative(id, requests) {
            true => &mut self.speculative,
            false if is_favoured => &mut self.first,
            false => return self.needed.insert(now, id, requests),
        };
        queue.insert_or_merge(now, id, requests, self.sectors_max)
    }

    /// Inserts a request that waited elsewhere, without merging and with its original arrival time.
    /// It does not go first, even if its process has become favoured since it was parked: only
    /// reads that arrive later do.
    pub(super) fn admit(&mut self, waiting: WaitingRequest, requests: &RequestTable) {
        match is_speculative(waiting.id, requests) {
            true => drop(self.speculative.insert(waiting, requests)),
            false => self.needed.admit(waiting, requests),
        }
    }

    /// Records that a reader waits for a request. A speculative one moves to the needed reads, or
    /// to the first ones if its process is favoured. Any other is unchanged.
    pub(super) fn record_waiting_reader(
        &mut self,
        id: RequestId,
        is_favoured: bool,
        requests: &RequestTable,
    ) {
        let Some(key) = self.speculative.find(id, requests) else { return };
        match is_favoured {
            true => {
                let waiting = self.speculative.remove(key).expect("it was found there");
                self.first.insert(waiting, requests);
            }
            false => self.move_to_needed(key, requests),
        }
    }

    /// Removes and returns the next read of favoured processes, in ascending sector order from the
    /// last read on. After the highest one it starts again at the oldest. `None` without one.
    pub(super) fn dispatch_first(&mut self, requests: &RequestTable) -> Option<RequestId> {
        let (oldest, _) = self.first.oldest(requests)?;
        let key = self.first.first_from(self.next_sector).unwrap_or(oldest);
        let waiting = self.first.remove(key).expect("it waits there");
        self.next_sector = requests[waiting.id].end();
        Some(waiting.id)
    }

    /// Removes and returns the next needed request. If no needed read waits, a speculative one
    /// becomes a needed one before, however old it is. It is the next one in sector order from the
    /// last dispatched read on, or the oldest if none lies ahead. If needed reads wait, the oldest
    /// speculative read is removed and returned for its cancellation instead, once it has waited
    /// too long. Reads of favoured processes are ignored: the caller has taken them by
    /// `dispatch_first`.
    pub(super) fn dispatch(&mut self, now: Time, requests: &RequestTable) -> Dispatch {
        if let Some((oldest, waiting)) = self.speculative.oldest(requests) {
            if !self.needed.has_reads() {
                let next = self.speculative.first_from(self.next_sector);
                self.move_to_needed(next.unwrap_or(oldest), requests);
            } else if waiting.arrived + self.speculative_wait_max <= now {
                self.speculative.remove(oldest);
                return Dispatch::Withdraw(waiting.id);
            }
        }
        let dispatch = self.needed.dispatch(now, requests);
        // Writes do not move the position from which reads continue.
        if let Dispatch::Request(id) = dispatch
            && requests[id].op == Op::Read
        {
            self.next_sector = requests[id].end();
        }
        dispatch
    }

    /// Moves the speculative read at `key` to the needed reads.
    fn move_to_needed(&mut self, key: SectorKey, requests: &RequestTable) {
        let waiting = self.speculative.remove(key).expect("it waits there");
        self.needed.admit(waiting, requests);
    }

    /// Number of dispatchable requests.
    pub(super) fn count(&self) -> usize {
        self.first.count() + self.needed.queued() + self.speculative.count()
    }
}

/// Returns true for a speculative read.
fn is_speculative(id: RequestId, requests: &RequestTable) -> bool {
    requests[id].op == Op::Read && requests[id].need == Need::Speculative
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::super::super::testing::{caps, read};
    use super::*;
    use crate::request::Request;

    /// Speculative read of 8 sectors.
    fn speculative(start: u64) -> Request {
        Request { need: Need::Speculative, ..read(start, 8) }
    }

    /// Inserts the requests at time 0. Returns the queues, the table and the identifiers in order.
    fn insert_all(requests: &[Request]) -> (ReadyRequests, RequestTable, Vec<RequestId>) {
        let (mut ready, mut table) = (ReadyRequests::new(&caps()), RequestTable::default());
        let insert = |request: &Request| {
            let id = table.open(*request);
            ready.insert(Time::ZERO, id, false, &mut table);
            id
        };
        let ids = requests.iter().map(insert).collect();
        (ready, table, ids)
    }

    /// Dispatches requests until none is left. Returns their first sectors in order.
    fn dispatch_starts(ready: &mut ReadyRequests, now: Time, table: &RequestTable) -> Vec<u64> {
        let next = || match ready.dispatch(now, table) {
            Dispatch::Request(id) => Some(table[id].start),
            _ => None,
        };
        core::iter::from_fn(next).collect()
    }

    /// The demand reads at 108 and 500 go first. No speculative read lies above them, so the oldest
    /// follows.
    #[test]
    fn speculative_reads_are_dispatched_last_and_unmerged() {
        let (mut ready, table, _) =
            insert_all(&[speculative(100), read(108, 8), speculative(50), read(500, 8)]);
        assert_eq!(ready.count(), 4, "108 follows 100, and is not merged with it");
        // Upwards from the end of the last read, and then the oldest.
        assert_eq!(dispatch_starts(&mut ready, Time::ZERO, &table), [108, 500, 100, 50]);
        assert_eq!(ready.count(), 0);
    }

    /// A reader begins to wait for the speculative read at 100, which is then first by sector.
    #[test]
    fn speculative_read_with_a_waiter_is_ordered_with_demand_reads() {
        let (mut ready, mut table, ids) =
            insert_all(&[speculative(100), read(500, 8), read(700, 8)]);
        assert_eq!(table.set_demand(ids[0]), Some(ids[0]));
        ready.record_waiting_reader(ids[0], false, &table);
        assert_eq!(dispatch_starts(&mut ready, Time::ZERO, &table), [100, 500, 700]);
    }

    /// `deadline` lets a read wait for 500 ms. The device accepts one more request at each of these
    /// times.
    #[test]
    fn a_speculative_read_is_cancelled_after_the_read_deadline() {
        let (mut ready, mut table, ids) = insert_all(&[speculative(100), speculative(900)]);
        let demand_reads = [500, 700].map(|start| table.open(read(start, 8)));
        for id in demand_reads {
            ready.insert(Time::from_ms(400), id, false, &mut table);
        }
        let mut dispatch = |ms| ready.dispatch(Time::from_ms(ms), &table);
        assert_eq!(dispatch(499), Dispatch::Request(demand_reads[0]));
        assert_eq!(dispatch(500), Dispatch::Withdraw(ids[0]));
        assert_eq!(dispatch(500), Dispatch::Withdraw(ids[1]));
        assert_eq!(dispatch(500), Dispatch::Request(demand_reads[1]));
        assert_eq!((dispatch(500), ready.count()), (Dispatch::Nothing, 0));
    }

    /// After 9 s the read is past its deadline of 500 ms. Without demand reads it is dispatched,
    /// not cancelled.
    #[test]
    fn expired_speculative_read_is_dispatched_to_an_idle_device() {
        let (mut ready, table, _) = insert_all(&[speculative(100)]);
        assert_eq!(dispatch_starts(&mut ready, Time::from_s(9), &table), [100]);
    }
}
