//! What may go: what is needed before what is doubtful.
//!
//! The law in words: what is awaited, or likely to be used, goes as in `deadline`, with what is written.
//! What was read ahead in doubt goes when no other read waits: upwards through the sectors, each
//! under `deadline`'s rule against writes; and when somebody comes to wait for it. What has
//! waited for as long as `deadline` lets a read wait is withdrawn: its memory is worth more than it is. The two kinds
//! are not merged with each other: what is awaited would only grow by it.
//!
//! What was worse: to have all that nobody waits for go last. Where many read at random what is
//! read whole for all of them serves more of them than their own requests do: half of the throughput was
//! lost where 64 read from one or two disks.

use crate::request::{DeviceCaps, Need, Op, RequestId, RequestTable};
use crate::unit::Time;

use super::super::deadline::{Deadline, DeadlineTunables};
use super::super::requests::{QueuedRequests, SectorKey, WaitingRequest};
use super::super::{Dispatch, Inserted, Scheduler};

/// Requests that may go.
#[derive(Debug)]
pub(super) struct ReadyRequests {
    /// What is needed and what is written, and those doubtful reads whose turn has come.
    first: Deadline,
    speculative: QueuedRequests,
    idle_timeout: Time,
    sectors_max: u32,
    /// Where the last read ended that went.
    next_sector: u64,
}

impl ReadyRequests {
    /// For a device with these abilities.
    pub(super) fn new(caps: &DeviceCaps) -> ReadyRequests {
        let tunables = DeadlineTunables::default();
        ReadyRequests {
            first: Deadline::new(caps, tunables),
            speculative: QueuedRequests::default(),
            idle_timeout: tunables.read_expire,
            sectors_max: caps.request_sectors_max,
            next_sector: 0,
        }
    }

    /// Takes a request in that is new.
    pub(super) fn insert(
        &mut self,
        now: Time,
        id: RequestId,
        requests: &mut RequestTable,
    ) -> Inserted {
        match is_speculative(id, requests) {
            true => self.speculative.insert_or_merge(now, id, requests, self.sectors_max),
            false => self.first.insert(now, id, requests),
        }
    }

    /// Takes in one that waited elsewhere, unmerged.
    pub(super) fn admit(&mut self, waiting: WaitingRequest, requests: &RequestTable) {
        match is_speculative(waiting.id, requests) {
            true => drop(self.speculative.insert(waiting, requests)),
            false => self.first.admit(waiting, requests),
        }
    }

    /// Somebody has come to wait for a request, which may be one of these.
    pub(super) fn demand(&mut self, id: RequestId, requests: &RequestTable) {
        if let Some(place) = self.speculative.find(id, requests) {
            self.make_needed(place, requests);
        }
    }

    /// What goes next.
    pub(super) fn dispatch(&mut self, now: Time, requests: &RequestTable) -> Dispatch {
        if let Some((oldest, waiting)) = self.speculative.oldest(requests) {
            if !self.first.has_reads() {
                let next = self.speculative.first_from(self.next_sector);
                self.make_needed(next.unwrap_or(oldest), requests);
            } else if waiting.arrived + self.idle_timeout <= now {
                self.speculative.remove(oldest);
                return Dispatch::Withdraw(waiting.id);
            }
        }
        let dispatch = self.first.dispatch(now, requests);
        if let Dispatch::Request(id) = dispatch
            && requests[id].op == Op::Read
        {
            self.next_sector = requests[id].end();
        }
        dispatch
    }

    fn make_needed(&mut self, place: SectorKey, requests: &RequestTable) {
        let waiting = self.speculative.remove(place).expect("it waits there");
        self.first.admit(waiting, requests);
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.first.queued() + self.speculative.count()
    }
}

fn is_speculative(id: RequestId, requests: &RequestTable) -> bool {
    requests[id].op == Op::Read && requests[id].need == Need::Speculative
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::super::super::testing::{caps, read};
    use super::*;
    use crate::request::Request;

    fn speculative(start: u64) -> Request {
        Request { need: Need::Speculative, ..read(start, 8) }
    }

    /// Takes these in at time 0, and gives them by name with what they stand in.
    fn taken_in(requests: &[Request]) -> (ReadyRequests, RequestTable, Vec<RequestId>) {
        let (mut open, mut table) = (ReadyRequests::new(&caps()), RequestTable::default());
        let take = |request: &Request| {
            let id = table.open(*request);
            open.insert(Time::ZERO, id, &mut table);
            id
        };
        let ids = requests.iter().map(take).collect();
        (open, table, ids)
    }

    fn places(open: &mut ReadyRequests, now: Time, table: &RequestTable) -> Vec<u64> {
        let next = || match open.dispatch(now, table) {
            Dispatch::Request(id) => Some(table[id].start),
            _ => None,
        };
        core::iter::from_fn(next).collect()
    }

    #[test]
    fn speculative_reads_go_last_and_unmerged() {
        let (mut open, table, _) =
            taken_in(&[speculative(100), read(108, 8), speculative(50), read(500, 8)]);
        assert_eq!(open.count(), 4, "108 follows 100, and is not merged with it");
        // Upwards from where the last one ended, and then the oldest.
        assert_eq!(places(&mut open, Time::ZERO, &table), [108, 500, 100, 50]);
        assert_eq!(open.count(), 0);
    }

    #[test]
    fn a_speculative_read_with_a_waiter_goes_with_the_others() {
        let (mut open, mut table, ids) = taken_in(&[speculative(100), read(500, 8), read(700, 8)]);
        assert_eq!(table.set_demand(ids[0]), Some(ids[0]));
        open.demand(ids[0], &table);
        assert_eq!(places(&mut open, Time::ZERO, &table), [100, 500, 700]);
    }

    /// `deadline` lets a read wait for 500 ms. The device has room for one more at each of these times.
    #[test]
    fn a_speculative_read_is_cancelled_after_the_read_deadline() {
        let (mut open, mut table, ids) = taken_in(&[speculative(100), speculative(900)]);
        let others = [500, 700].map(|start| table.open(read(start, 8)));
        for id in others {
            open.insert(Time::from_ms(400), id, &mut table);
        }
        let mut dispatch = |ms| open.dispatch(Time::from_ms(ms), &table);
        assert_eq!(dispatch(499), Dispatch::Request(others[0]));
        assert_eq!(dispatch(500), Dispatch::Withdraw(ids[0]));
        assert_eq!(dispatch(500), Dispatch::Withdraw(ids[1]));
        assert_eq!(dispatch(500), Dispatch::Request(others[1]));
        assert_eq!((dispatch(500), open.count()), (Dispatch::Nothing, 0));
    }

    #[test]
    fn an_old_speculative_read_goes_on_an_idle_device() {
        let (mut open, table, _) = taken_in(&[speculative(100)]);
        assert_eq!(places(&mut open, Time::from_s(9), &table), [100]);
    }
}
