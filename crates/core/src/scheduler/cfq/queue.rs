//! A queue: the synchronous requests of one process, or the shared asynchronous requests of one
//! level; and its state.
//!
//! A *slice* is the time for which one queue, the *active* one, has the device. A *tree* has the
//! queues of one class and kind. The device *idles* for a queue while it is kept free for the
//! queue's next request. *Cooperators* are processes with neighbouring requests.

use core::ops::{Index, IndexMut};

use slab::Slab;

use super::QueueId;
use super::seek::SeekDetector;
use super::trees::{TreeKind, TreePosition};
use super::tunables::Jiffies;
use crate::request::{Class, Priority, ProcessId};
use crate::scheduler::requests::{QueuedRequests, SectorKey};

/// A queue.
///
/// Invariants:
///
/// 1. `position` is set while the queue has requests, or is the active one.
/// 2. `next` is set while it has requests.
/// 3. `next_sector_key` is set while it has requests, is synchronous, not of the idle class, and
///    not the active one.
#[derive(Debug)]
pub(super) struct CfqQueue {
    /// Process whose requests the queue holds; `None` if several processes share it, or if it is
    /// asynchronous.
    pub owner: Option<ProcessId>,
    /// True if processes wait for the requests.
    pub is_sync: bool,
    /// Priority of its processes, which selects its tree and the length of its slices.
    pub priority: Priority,
    /// Queued requests.
    pub requests: QueuedRequests,
    /// The request to serve next, unless another has waited too long.
    pub next: Option<SectorKey>,
    /// Number of its requests in the device.
    pub in_device: u32,
    /// Its position in the service trees.
    pub position: Option<TreePosition>,
    /// Level and sector under which cooperators find it.
    pub next_sector_key: Option<(u8, u64)>,

    /// End of its slice; `None` until the first request of the slice has completed.
    pub slice_end: Option<Jiffies>,
    /// Number of requests sent in this slice.
    pub slice_dispatched: u32,
    /// Unused rest of its last slice, in ms; negative if it overran. It makes the queue's next
    /// turn earlier or later once, and is 0 then.
    pub residual: Jiffies,
    /// True if the oldest request was checked in this slice.
    pub is_fifo_checked: bool,
    /// True if it may send one request although its slice is used up, because the device idled for
    /// that request.
    pub must_dispatch: bool,
    /// True if the device idles for it, or did until its only request, a small one, arrived
    /// (`wait_request` of the kernel).
    pub is_device_idle_for_it: bool,
    /// True if it is the only queue, and its slice was extended to wait for its next request
    /// (`wait_busy`).
    pub is_waited_for: bool,

    /// True if idling for it pays.
    pub has_idle_window: bool,
    /// True if it had four queued requests at once, and no idling for it was useless since.
    pub is_deep: bool,
    /// Detector of random access.
    pub seek: SeekDetector,

    /// Number of processes that send their requests here.
    pub processes: u32,
    /// The queue to which its processes move with their next request; `None` if it is not joined.
    pub joins: Option<QueueId>,
    /// Number of queues with this one in `joins`.
    pub joined_by: u32,
    /// True if processes have moved here.
    pub is_shared: bool,
    /// True if the next process that sends a request here gets its own queue again.
    pub must_split: bool,
    /// Time since which a shared queue is seeky (`seeky=mean` only).
    pub seeky_since: Option<Jiffies>,
}

impl CfqQueue {
    /// Creates a queue without requests. It has no process yet: the caller counts it.
    pub(super) fn new(
        owner: Option<ProcessId>,
        is_sync: bool,
        priority: Priority,
        seek: SeekDetector,
    ) -> CfqQueue {
        CfqQueue {
            owner,
            is_sync,
            priority,
            requests: QueuedRequests::default(),
            next: None,
            in_device: 0,
            position: None,
            next_sector_key: None,
            slice_end: None,
            slice_dispatched: 0,
            residual: 0,
            is_fifo_checked: false,
            must_dispatch: false,
            is_device_idle_for_it: false,
            is_waited_for: false,
            has_idle_window: is_sync && priority.class != Class::Idle,
            is_deep: false,
            seek,
            processes: 0,
            joins: None,
            joined_by: 0,
            is_shared: false,
            must_split: false,
            seeky_since: None,
        }
    }

    /// The kind of tree for this queue.
    pub(super) fn kind(&self) -> TreeKind {
        match (self.is_sync, self.has_idle_window) {
            (false, _) => TreeKind::Async,
            (true, false) => TreeKind::SyncNoIdle,
            (true, true) => TreeKind::Sync,
        }
    }

    /// Returns true if its priority class is the idle class.
    pub(super) fn is_idle_class(&self) -> bool {
        self.priority.class == Class::Idle
    }

    /// Returns true if its slice is used up; false before the slice has an end.
    pub(super) fn is_slice_used(&self, now: Jiffies) -> bool {
        self.slice_end.is_some_and(|end| now >= end)
    }

    /// Resets the state of the slice for a new one.
    pub(super) fn begin_slice(&mut self) {
        self.slice_end = None;
        self.slice_dispatched = 0;
        self.is_fifo_checked = false;
        self.must_dispatch = false;
        self.is_device_idle_for_it = false;
        self.is_waited_for = false;
    }

    /// Returns true if it has no request and no process that could send one.
    pub(super) fn is_abandoned(&self) -> bool {
        self.processes == 0 && self.in_device == 0 && self.requests.is_empty()
    }

    /// Returns true if it is abandoned, and no tree or join refers to it.
    fn is_unused(&self) -> bool {
        self.is_abandoned() && self.joined_by == 0 && self.position.is_none()
    }
}

/// All queues by identifier.
#[derive(Debug, Default)]
pub(super) struct CfqQueues(Slab<CfqQueue>);

impl CfqQueues {
    /// Adds a queue, and returns its identifier.
    pub(super) fn add(&mut self, queue: CfqQueue) -> QueueId {
        QueueId(self.0.insert(queue) as u32)
    }

    /// Number of queues.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Removes a queue if it is unused, and then the queue that it joins if that has become unused,
    /// and so on along the chain of joins. Has no effect on a queue that is already removed.
    pub(super) fn remove_if_unused(&mut self, mut id: QueueId) {
        while self.0.get(id.0 as usize).is_some_and(CfqQueue::is_unused) {
            let Some(joined) = self.0.remove(id.0 as usize).joins else { return };
            self[joined].joined_by -= 1;
            id = joined;
        }
    }
}

impl Index<QueueId> for CfqQueues {
    type Output = CfqQueue;
    /// The queue with this identifier, which must not be removed.
    fn index(&self, id: QueueId) -> &CfqQueue {
        &self.0[id.0 as usize]
    }
}

impl IndexMut<QueueId> for CfqQueues {
    /// The queue with this identifier, to be changed.
    fn index_mut(&mut self, id: QueueId) -> &mut CfqQueue {
        &mut self.0[id.0 as usize]
    }
}
