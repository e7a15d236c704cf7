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

use crate::request::{DeviceCaps, Op, RequestId, RequestTable};
use crate::unit::Time;

use super::batches::{BatchState, DeadlineTunables, DirectionQueues};
use super::requests::WaitingRequest;
use super::{Dispatch, Inserted, Scheduler};

/// The scheduler `deadline`.
#[derive(Debug)]
pub struct Deadline {
    /// Deadlines of reads and writes, and the sizes of batches.
    tunables: DeadlineTunables,
    /// Largest request of the device, in sectors.
    sectors_max: u32,
    /// The queued reads and writes.
    queues: DirectionQueues,
    /// The batch in progress.
    batch: BatchState,
}

impl Deadline {
    /// Creates the scheduler for a device with these properties.
    pub fn new(caps: &DeviceCaps, tunables: DeadlineTunables) -> Deadline {
        Deadline {
            tunables,
            sectors_max: caps.request_sectors_max,
            queues: DirectionQueues::default(),
            batch: BatchState::new(&tunables),
        }
    }

    /// Inserts a request that waited in another queue of the calling policy, without merging and
    /// with its original arrival time.
    pub(super) fn admit(&mut self, waiting: WaitingRequest, requests: &RequestTable) {
        self.queues.queued[requests[waiting.id].op as usize].insert(waiting, requests);
    }

    /// Returns true if a read is queued.
    pub(super) fn has_reads(&self) -> bool {
        self.queues.has(Op::Read)
    }
}

impl Scheduler for Deadline {
    /// Adds a request to the queue of its direction, merged with a neighbour if possible.
    fn insert(&mut self, now: Time, id: RequestId, requests: &mut RequestTable) -> Inserted {
        let direction = requests[id].op as usize;
        self.queues.queued[direction].insert_or_merge(now, id, requests, self.sectors_max)
    }

    /// Removes the chosen request, and continues the batch after its end. `Nothing` if no request
    /// waits.
    fn dispatch(&mut self, now: Time, requests: &RequestTable) -> Dispatch {
        let Deadline { tunables, queues, batch, .. } = self;
        let Some(key) = batch.choose_request(queues, tunables, now, requests) else {
            return Dispatch::Nothing;
        };
        Dispatch::Request(queues.take(batch.direction, key, requests))
    }

    /// Ignores completions.
    fn complete(&mut self, _now: Time, _id: RequestId, _requests: &RequestTable) {}

    /// Number of requests that are not in the device.
    fn queued(&self) -> usize {
        self.queues.count()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{SchedulerBench, caps, read, write};
    use super::*;
    use crate::policy::Spec;

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
