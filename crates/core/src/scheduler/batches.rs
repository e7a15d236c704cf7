//! Batches in sector order, as `deadline` and `mq-deadline` serve them.
//!
//! A batch has requests of one direction, in ascending sector order. At its end the direction of
//! the next batch is chosen, and its first request. One [`BatchState`] serves one or more
//! [`DirectionQueues`]: `mq-deadline` has such queues for each priority class.

use crate::policy::{Spec, SpecError};
use crate::request::{Op, RequestId, RequestTable};
use crate::unit::Time;

use super::requests::{QueuedRequests, SectorKey};

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
    /// The defaults of Linux.
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
    /// Keys of the tunables in a [`Spec`].
    pub(super) const KEYS: [&str; 4] =
        ["read_expire", "write_expire", "writes_starved", "fifo_batch"];

    /// Parses `read_expire` and `write_expire` (ms), `writes_starved`, `fifo_batch`.
    ///
    /// # Errors
    /// A parameter is unknown, or a value is not a number or out of range.
    pub fn from_spec(spec: &Spec) -> Result<DeadlineTunables, SpecError> {
        spec.only(&DeadlineTunables::KEYS)?;
        DeadlineTunables::from_known_keys(spec)
    }

    /// Parses the same keys: times of up to an hour, counts of up to a million. Ignores all others,
    /// which the caller has checked. The defaults are Linux's.
    pub(super) fn from_known_keys(spec: &Spec) -> Result<DeadlineTunables, SpecError> {
        Ok(DeadlineTunables {
            read_expire: Time::from_ms(spec.integer("read_expire", 500, 0..=3_600_000)?),
            write_expire: Time::from_ms(spec.integer("write_expire", 5_000, 0..=3_600_000)?),
            writes_starved: spec.integer("writes_starved", 2, 0..=1_000_000)? as u32,
            fifo_batch: spec.integer("fifo_batch", 16, 1..=1_000_000)? as u32,
        })
    }

    /// Time that a request of this direction may wait before it is preferred.
    fn expire(&self, op: Op) -> Time {
        match op {
            Op::Read => self.read_expire,
            Op::Write => self.write_expire,
        }
    }
}

/// Queued reads and writes, and the sector at which each direction continues.
#[derive(Debug, Default)]
pub(super) struct DirectionQueues {
    /// Queued requests, indexed by direction: reads first, then writes.
    pub queued: [QueuedRequests; 2],
    /// Sector after the last dispatched request, per direction.
    next_sector: [u64; 2],
}

impl DirectionQueues {
    /// Returns true if a request of this direction is queued.
    pub(super) fn has(&self, op: Op) -> bool {
        !self.queued[op as usize].is_empty()
    }

    /// Number of queued requests.
    pub(super) fn count(&self) -> usize {
        self.queued.iter().map(QueuedRequests::count).sum()
    }

    /// The first request at or after the end of the last one of this direction; `None` without one.
    fn next_in_order(&self, op: Op) -> Option<SectorKey> {
        self.queued[op as usize].first_from(self.next_sector[op as usize])
    }

    /// Returns the oldest request of this direction, if it has waited `wait`. `None` if it has not,
    /// or none is queued. A `wait` of zero accepts any.
    pub(super) fn oldest_after(
        &self,
        op: Op,
        wait: Time,
        now: Time,
        requests: &RequestTable,
    ) -> Option<SectorKey> {
        let (key, oldest) = self.queued[op as usize].oldest(requests)?;
        (oldest.arrived + wait <= now).then_some(key)
    }

    /// Removes and returns the request at `key`, which must be queued. The next request in order of
    /// this direction is then the first one from its end on.
    pub(super) fn take(&mut self, op: Op, key: SectorKey, requests: &RequestTable) -> RequestId {
        let chosen = self.queued[op as usize].remove(key);
        let id = chosen.expect("what is chosen waits in this direction").id;
        self.next_sector[op as usize] = requests[id].end();
        id
    }
}

/// State of the current batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchState {
    /// Direction of the current batch.
    pub direction: Op,
    /// Requests dispatched in the current batch; `fifo_batch` for a full one.
    batch_requests: u32,
    /// Read batches chosen while a write waited, since the last batch of writes.
    batches_before_writes: u32,
}

impl BatchState {
    /// State before the first batch: as after a full batch, so that the first dispatch begins one.
    pub(super) fn new(tunables: &DeadlineTunables) -> BatchState {
        BatchState {
            direction: Op::Read,
            batch_requests: tunables.fifo_batch,
            batches_before_writes: 0,
        }
    }

    /// Chooses the next request: of the current batch, or the first of a new batch, which it
    /// begins. A batch ends when it is full, or no request of its direction lies ahead. Returns the
    /// key of the request, which stays queued: the caller takes it. `None` if no request waits.
    pub(super) fn choose_request(
        &mut self,
        queues: &DirectionQueues,
        tunables: &DeadlineTunables,
        now: Time,
        requests: &RequestTable,
    ) -> Option<SectorKey> {
        if self.batch_requests < tunables.fifo_batch
            && let Some(next) = queues.next_in_order(self.direction)
        {
            self.batch_requests += 1;
            return Some(next);
        }
        let direction = self.choose_direction(queues, tunables)?;
        self.begin_batch(direction);
        // A new batch begins at the oldest request if that has expired, and otherwise where the
        // last batch of this direction ended.
        let expired = queues.oldest_after(direction, tunables.expire(direction), now, requests);
        expired.or_else(|| queues.next_in_order(direction)).or_else(|| {
            // No request at a higher sector: the next sweep starts at the oldest.
            queues.oldest_after(direction, Time::ZERO, now, requests)
        })
    }

    /// Begins a batch of this direction, of which the caller dispatches the first request.
    pub(super) fn begin_batch(&mut self, direction: Op) {
        self.direction = direction;
        self.batch_requests = 1;
    }

    /// Chooses the direction of a new batch, and counts the read batches while a write waits:
    /// reads, unless writes were passed over too often. `None` if no request waits.
    fn choose_direction(
        &mut self,
        queues: &DirectionQueues,
        tunables: &DeadlineTunables,
    ) -> Option<Op> {
        match (queues.has(Op::Read), queues.has(Op::Write)) {
            (false, false) => None,
            (true, false) => Some(Op::Read),
            (true, true) if self.batches_before_writes < tunables.writes_starved => {
                self.batches_before_writes += 1;
                Some(Op::Read)
            }
            (_, true) => {
                self.batches_before_writes = 0;
                Some(Op::Write)
            }
        }
    }
}
