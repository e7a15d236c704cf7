//! `deadline`: in sector order, with a bound on the wait.
//!
//! How it works: requests of one direction are served in batches, in ascending sector order. After
//! the end of a batch, reads come before writes, unless writes have been passed over
//! `writes_starved` times. If the oldest request of the chosen direction is past its deadline, the
//! next batch starts there, and otherwise at the end of the last one. It ignores processes and
//! never leaves the device idle. Source: KERNEL.md section 4.13 (Linux 2.6's `deadline`).
//!
//! Longest wait: an expired read is served after the current batch and after the expired reads
//! before it. Each of these costs one batch, and after `writes_starved` such batches of reads one
//! batch of writes may follow.

use crate::policy::{Spec, SpecError};
use crate::request::{DeviceCaps, Op, RequestId, RequestTable};
use crate::unit::Time;

use super::requests::{QueuedRequests, SectorKey, WaitingRequest};
use super::{Dispatch, Inserted, Scheduler};

/// The tunables of `deadline`, under the kernel's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlineTunables {
    /// Time that a read may wait before it is preferred (`read_expire`; 500 ms).
    pub read_expire: Time,
    /// The corresponding time of a write (`write_expire`; 5,000 ms).
    pub write_expire: Time,
    /// Number of read batches that may pass waiting writes (`writes_starved`; 2).
    pub writes_starved: u32,
    /// Most requests in a batch (`fifo_batch`; 16).
    pub fifo_batch: u32,
}

impl Default for DeadlineTunables {
    fn default() -> DeadlineTunables {
        DeadlineTunables {
            read_expire: Time::from_ms(500),
            write_expire: Time::from_s(5),
            writes_starved: 2,
            fifo_batch: 16,
        }
    }
}

impl DeadlineTunables {
    /// Parses `read_expire` and `write_expire` (ms), `writes_starved`, `fifo_batch`.
    ///
    /// # Errors
    /// A parameter is unknown, or a value is not a number or out of range.
    pub fn from_spec(spec: &Spec) -> Result<DeadlineTunables, SpecError> {
        spec.only(&["read_expire", "write_expire", "writes_starved", "fifo_batch"])?;
        Ok(DeadlineTunables {
            read_expire: Time::from_ms(spec.integer("read_expire", 500, 0..=3_600_000)?),
            write_expire: Time::from_ms(spec.integer("write_expire", 5_000, 0..=3_600_000)?),
            writes_starved: spec.integer("writes_starved", 2, 0..=1_000_000)? as u32,
            fifo_batch: spec.integer("fifo_batch", 16, 1..=1_000_000)? as u32,
        })
    }
}

/// The scheduler `deadline`.
#[derive(Debug)]
pub struct Deadline {
    tunables: DeadlineTunables,
    /// Largest request of the device, in sectors.
    sectors_max: u32,
    /// Queued reads and writes, indexed by direction.
    queued: [QueuedRequests; 2],
    /// Direction of the current batch.
    direction: Op,
    /// Sector at which the batch continues, per direction.
    next_sector: [u64; 2],
    /// Requests dispatched in the current batch.
    batch_requests: u32,
    /// Read batches chosen since writes began to wait.
    batches_before_writes: u32,
}

impl Deadline {
    /// Creates the scheduler for a device with these properties.
    pub fn new(caps: &DeviceCaps, tunables: DeadlineTunables) -> Deadline {
        Deadline {
            tunables,
            sectors_max: caps.request_sectors_max,
            queued: Default::default(),
            direction: Op::Read,
            next_sector: [0; 2],
            // No batch has begun: the first dispatch begins one.
            batch_requests: tunables.fifo_batch,
            batches_before_writes: 0,
        }
    }

    /// Inserts a request that waited elsewhere, without merging and with its original arrival time.
    pub(super) fn admit(&mut self, waiting: WaitingRequest, requests: &RequestTable) {
        self.queued[requests[waiting.id].op as usize].insert(waiting, requests);
    }

    /// Returns true if a read is queued.
    pub(super) fn has_reads(&self) -> bool {
        !self.queued[Op::Read as usize].is_empty()
    }

    /// Chooses the next request: of the current batch, or the first of a new batch, which it
    /// begins. Returns its key; `None` if no request waits.
    fn choose_request(&mut self, now: Time, requests: &RequestTable) -> Option<SectorKey> {
        if self.batch_requests < self.tunables.fifo_batch
            && let Some(next) = self.next_in_order(self.direction)
        {
            self.batch_requests += 1;
            return Some(next);
        }
        self.direction = self.choose_direction()?;
        self.batch_requests = 1;
        let expired = self.expired_request(self.direction, now, requests);
        expired.or_else(|| self.next_in_order(self.direction)).or_else(|| {
            // No request at a higher sector: the next sweep starts at the oldest.
            self.queued[self.direction as usize].oldest(requests).map(|(key, _)| key)
        })
    }

    /// Chooses the direction of a new batch, and counts the read batches while a write waits:
    /// reads, unless writes were passed over too often. `None` if no request waits.
    fn choose_direction(&mut self) -> Option<Op> {
        let is_queued = |op: Op| !self.queued[op as usize].is_empty();
        match (is_queued(Op::Read), is_queued(Op::Write)) {
            (false, false) => None,
            (true, false) => Some(Op::Read),
            (true, true) if self.batches_before_writes < self.tunables.writes_starved => {
                self.batches_before_writes += 1;
                Some(Op::Read)
            }
            (_, true) => {
                self.batches_before_writes = 0;
                Some(Op::Write)
            }
        }
    }

    /// The first request at or after the end of the last one of this direction; `None` without one.
    fn next_in_order(&self, op: Op) -> Option<SectorKey> {
        self.queued[op as usize].first_from(self.next_sector[op as usize])
    }

    /// Returns the oldest request of this direction, if it is past its deadline.
    fn expired_request(&self, op: Op, now: Time, requests: &RequestTable) -> Option<SectorKey> {
        let wait_max = match op {
            Op::Read => self.tunables.read_expire,
            Op::Write => self.tunables.write_expire,
        };
        let (key, oldest) = self.queued[op as usize].oldest(requests)?;
        (oldest.arrived + wait_max <= now).then_some(key)
    }
}

impl Scheduler for Deadline {
    /// Adds a request to the queue of its direction, merged with a neighbour if possible.
    fn insert(&mut self, now: Time, id: RequestId, requests: &mut RequestTable) -> Inserted {
        let direction = requests[id].op as usize;
        self.queued[direction].insert_or_merge(now, id, requests, self.sectors_max)
    }

    /// Removes the chosen request, and continues the batch after its end.
    fn dispatch(&mut self, now: Time, requests: &RequestTable) -> Dispatch {
        let Some(key) = self.choose_request(now, requests) else { return Dispatch::Nothing };
        let direction = self.direction as usize;
        let chosen = self.queued[direction].remove(key);
        let id = chosen.expect("what is chosen waits in this direction").id;
        self.next_sector[direction] = requests[id].end();
        Dispatch::Request(id)
    }

    /// Ignores completions.
    fn complete(&mut self, _now: Time, _id: RequestId, _requests: &RequestTable) {}

    /// Number of requests that are not in the device.
    fn queued(&self) -> usize {
        self.queued.iter().map(QueuedRequests::count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{SchedulerBench, caps, read, write};
    use super::*;

    /// The scheduler with these tunables.
    fn deadline(tunables: DeadlineTunables) -> SchedulerBench {
        SchedulerBench::new(Deadline::new(&caps(), tunables))
    }

    /// Requests are numbered from 0 in the order of arrival. The last one ends at sector 9008.
    #[test]
    fn batch_runs_upwards_and_the_next_sweep_starts_at_the_oldest_request() {
        let mut policy = deadline(DeadlineTunables::default());
        for start in [5000, 100, 9000] {
            policy.insert(Time::ZERO, read(start, 8));
        }
        // The head is at sector 0: upwards from there.
        assert_eq!(policy.dispatch_all(Time::ZERO), [(1, 100, 8), (0, 5000, 8), (2, 9000, 8)]);
        for start in [700, 200] {
            policy.insert(Time::ZERO, read(start, 8));
        }
        // No request above 9008: the oldest first, then upwards from it, then again the oldest.
        assert_eq!(policy.dispatch_all(Time::ZERO), [(3, 700, 8), (4, 200, 8)]);
    }

    /// Request 0 arrives at 0 ms, 1 and 2 at 400 ms, each in a batch of its own. The read deadline
    /// is 500 ms.
    #[test]
    fn an_expired_request_starts_the_next_batch() {
        let dispatch_order = |fifo_batch, dispatch_ms| {
            let mut policy = deadline(DeadlineTunables { fifo_batch, ..Default::default() });
            policy.insert(Time::ZERO, read(9000, 8));
            policy.insert(Time::from_ms(400), read(100, 8));
            policy.insert(Time::from_ms(400), read(200, 8));
            policy.dispatch_all(Time::from_ms(dispatch_ms)).map(|(id, ..)| id)
        };
        assert_eq!(dispatch_order(1, 501), [0, 1, 2]);
        // Not expired yet at 499 ms: by sector.
        assert_eq!(dispatch_order(1, 499), [1, 2, 0]);
    }

    /// Request 0 is a write, and 1 to 3 are reads, each in a batch of its own.
    #[test]
    fn reads_pass_a_write_at_most_writes_starved_times() {
        let dispatch_order = |writes_starved| {
            let mut policy =
                deadline(DeadlineTunables { fifo_batch: 1, writes_starved, ..Default::default() });
            policy.insert(Time::ZERO, write(50_000, 8));
            for nth in 0..3 {
                policy.insert(Time::ZERO, read(1000 * nth, 8));
            }
            policy.dispatch_all::<4>(Time::ZERO).map(|(id, ..)| id)
        };
        assert_eq!(dispatch_order(2), [1, 2, 0, 3]);
        assert_eq!(dispatch_order(1), [1, 0, 2, 3]);
    }

    #[test]
    fn tunables_are_read_from_the_spec() {
        let spec = Spec::parse("deadline,read_expire=20,fifo_batch=1").unwrap();
        let tunables = DeadlineTunables::from_spec(&spec).unwrap();
        assert_eq!(tunables.read_expire, Time::from_ms(20));
        assert_eq!((tunables.fifo_batch, tunables.writes_starved), (1, 2));
        assert!(DeadlineTunables::from_spec(&Spec::parse("deadline,quantum=1").unwrap()).is_err());
    }
}
