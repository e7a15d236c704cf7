//! Write cache of a controller: its data, the writes that wait for room, and the flushes that wait
//! for data.
//!
//! Each write that enters the cache becomes one write-back, numbered in order. Write-backs begin in
//! this order and end in any. A flush waits for the write-backs up to the newest one at its
//! arrival, so later writes do not delay it.
//!
//! A write-back is *due* while a request of the host waits for it: a write without room, unless the
//! write-backs in the device make that room already, or a flush.
//!
//! A cache that survives a power loss makes no flush wait. It requests *member flushes* instead,
//! for the memory of the device. A member flush makes no write-back due. The flushes that arrive
//! while one waits share the next one.
//!
//! The error of a lost write keeps the number of its write-back. A flush takes the errors up to the
//! number that it needs, so it reports no later write.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use readpath_core::request::{DeviceError, Outcome, RequestId};

/// The write cache, with everything that waits for it.
pub(super) struct WriteCache {
    /// Size in bytes.
    bytes_max: u64,
    /// Bytes in the cache, including those in the device.
    used_bytes: u64,
    /// Bytes of the write-backs in the device.
    in_device_bytes: u64,
    /// Writes that wait for room, in order of arrival.
    writes_waiting: VecDeque<WaitingWrite>,
    /// Bytes of these writes.
    waiting_bytes: u64,
    /// Number of write-backs so far, which is the number of the newest one.
    newest_number: u64,
    /// Write-backs that have not begun, oldest first.
    queued: VecDeque<QueuedWriteBack>,
    /// Numbers of the write-backs that have not ended.
    unfinished: BTreeSet<u64>,
    /// Flushes that wait, in order of arrival, each with the newest number that it needs.
    flushes_waiting: VecDeque<(RequestId, u64)>,
    /// Newest number that a member flush has been requested for.
    member_flush_wanted: u64,
    /// Number of the member flush that waits, or of the newest one that has begun.
    member_flush_target: u64,
    /// Number of the newest member flush that has begun. It is at most `member_flush_target`, which
    /// is at most `member_flush_wanted`.
    member_flush_begun: u64,
    /// Errors of write-backs that no flush has taken, by their numbers. A member flush has the
    /// number of its newest write-back.
    lost_writes: BTreeMap<u64, DeviceError>,
}

/// A write that waits for room.
#[derive(Clone, Copy, Debug)]
struct WaitingWrite {
    /// Key of the request in the controller.
    slot: u32,
    /// Size in bytes.
    bytes: u64,
}

/// A write-back that has not begun.
#[derive(Clone, Copy, Debug)]
struct QueuedWriteBack {
    /// Number in order of the writes.
    number: u64,
    /// Key of the job in the controller.
    job: u32,
    /// Size in bytes.
    bytes: u64,
}

impl WriteCache {
    /// Creates an empty cache of `bytes_max` bytes.
    pub(super) fn new(bytes_max: u64) -> WriteCache {
        WriteCache {
            bytes_max,
            used_bytes: 0,
            in_device_bytes: 0,
            writes_waiting: VecDeque::new(),
            waiting_bytes: 0,
            newest_number: 0,
            queued: VecDeque::new(),
            unfinished: BTreeSet::new(),
            flushes_waiting: VecDeque::new(),
            member_flush_wanted: 0,
            member_flush_target: 0,
            member_flush_begun: 0,
            lost_writes: BTreeMap::new(),
        }
    }

    /// Adds the write in `slot` to the waiting ones.
    pub(super) fn add_write(&mut self, slot: u32, bytes: u64) {
        self.writes_waiting.push_back(WaitingWrite { slot, bytes });
        self.waiting_bytes += bytes;
    }

    /// Moves the oldest waiting write into the cache if it has room. Returns the slot of the write,
    /// and the number of its write-back, which the caller then queues. A write larger than the
    /// cache needs an empty one.
    pub(super) fn admit_write(&mut self) -> Option<(u32, u64)> {
        let WaitingWrite { slot, bytes } = *self.writes_waiting.front()?;
        if self.used_bytes + bytes > self.bytes_max && self.used_bytes > 0 {
            return None;
        }
        self.writes_waiting.pop_front();
        self.waiting_bytes -= bytes;
        self.used_bytes += bytes;
        self.newest_number += 1;
        self.unfinished.insert(self.newest_number);
        Some((slot, self.newest_number))
    }

    /// Queues the write-back with this number: `job` of the controller, with `bytes` bytes.
    pub(super) fn queue_write_back(&mut self, number: u64, job: u32, bytes: u64) {
        self.queued.push_back(QueuedWriteBack { number, job, bytes });
    }

    /// Returns true if a request of the host waits for the oldest write-back that has not begun.
    pub(super) fn is_due(&self) -> bool {
        let Some(oldest) = self.queued.front() else { return false };
        let does_flush_wait =
            self.flushes_waiting.back().is_some_and(|(_, newest)| oldest.number <= *newest);
        // Size of the cache once the write-backs in the device have ended and all waiting writes
        // have entered it.
        let needed_bytes = self.used_bytes + self.waiting_bytes - self.in_device_bytes;
        does_flush_wait || (!self.writes_waiting.is_empty() && needed_bytes > self.bytes_max)
    }

    /// Removes and returns the job of the oldest write-back that has not begun. It goes to the
    /// device.
    pub(super) fn begin_oldest(&mut self) -> Option<u32> {
        let QueuedWriteBack { job, bytes, .. } = self.queued.pop_front()?;
        self.in_device_bytes += bytes;
        Some(job)
    }

    /// Records the end of the write-back with this number, and frees its `bytes` bytes.
    pub(super) fn end_write_back(&mut self, number: u64, bytes: u64, outcome: Outcome) {
        self.unfinished.remove(&number);
        self.in_device_bytes -= bytes;
        self.used_bytes -= bytes;
        self.record_outcome(number, outcome);
    }

    /// Records the outcome of the write-back or the member flush with this number. Data that the
    /// device did not store are lost. The first error of a number stays.
    pub(super) fn record_outcome(&mut self, number: u64, outcome: Outcome) {
        let error = match outcome {
            Outcome::Done => return,
            Outcome::Short { .. } => DeviceError::Medium,
            Outcome::Failed(error) => error,
        };
        self.lost_writes.entry(number).or_insert(error);
    }

    /// Number of the newest write-back: the last one that a flush arriving now needs.
    pub(super) fn newest_number(&self) -> u64 {
        self.newest_number
    }

    /// Adds a flush that needs the write-backs up to `number`.
    pub(super) fn add_flush(&mut self, id: RequestId, number: u64) {
        self.flushes_waiting.push_back((id, number));
    }

    /// Removes and returns the oldest flush, and the number that it needs, if all write-backs up to
    /// that number have ended.
    pub(super) fn take_written_flush(&mut self) -> Option<(RequestId, u64)> {
        let (_, number) = *self.flushes_waiting.front()?;
        if self.is_written(number) { self.flushes_waiting.pop_front() } else { None }
    }

    /// Requests a member flush that covers the write-backs up to `number`. No effect if one was
    /// requested for this number or a later one.
    pub(super) fn request_member_flush(&mut self, number: u64) {
        self.member_flush_wanted = self.member_flush_wanted.max(number);
    }

    /// Begins the next member flush if all write-backs that it covers have ended. Returns the
    /// number of the newest of them; `None` if some have not ended or no flush is requested. A call
    /// without a fixed flush fixes the requested one, if any: later requests do not delay it. The
    /// last flush need not have ended.
    pub(super) fn begin_member_flush(&mut self) -> Option<u64> {
        if self.member_flush_target == self.member_flush_begun {
            self.member_flush_target = self.member_flush_wanted;
        }
        let number = self.member_flush_target;
        if number == self.member_flush_begun || !self.is_written(number) {
            return None;
        }
        self.member_flush_begun = number;
        Some(number)
    }

    /// Returns true if all write-backs up to `number` have ended.
    fn is_written(&self, number: u64) -> bool {
        self.unfinished.first().is_none_or(|oldest| *oldest > number)
    }

    /// Removes the errors of the lost writes up to and including `number`, for the flush that
    /// reports them. Returns the error with the lowest number; `None` without lost writes.
    pub(super) fn take_lost_writes(&mut self, number: u64) -> Option<DeviceError> {
        let later = self.lost_writes.split_off(&(number + 1));
        std::mem::replace(&mut self.lost_writes, later).into_values().next()
    }
}
