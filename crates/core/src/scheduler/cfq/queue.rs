//! A queue: the requests of one process for which it waits, or the shared
//! asynchronous requests of one level; and what the law knows of it.

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
/// 1. `position` is there while the queue has requests, or is the active one.
/// 2. `next` is there as long as requests are.
/// 3. `next_sector_key` is there while it has requests, is synchronous, not of
///    the idle class, and not the active one.
#[derive(Debug)]
pub(super) struct CfqQueue {
    /// Whose it is; `None`: many processes share it.
    pub owner: Option<ProcessId>,
    pub is_sync: bool,
    pub priority: Priority,
    /// What waits.
    pub requests: QueuedRequests,
    /// Which of them is served next, unless one has waited too long.
    pub next: Option<SectorKey>,
    /// How many of its requests are in the device.
    pub in_device: u32,
    /// Where it stands in the service trees.
    pub position: Option<TreePosition>,
    /// Under which level and sector cooperators find it.
    pub next_sector_key: Option<(u8, u64)>,

    /// When its slice ends; `None` until the first request of the slice has completed.
    pub slice_end: Option<Jiffies>,
    /// How many requests it sent in this slice.
    pub slice_dispatched: u32,
    /// What was left of its last slice; negative: it overran it.
    pub residual: Jiffies,
    /// Whether the oldest request was looked at in this slice.
    pub is_fifo_checked: bool,
    /// Whether it may send one request though its slice is used up: that request was idled for.
    pub must_dispatch: bool,
    /// Whether it is idled for, or was until its only request, a small one, came (`wait_request`
    /// of the kernel).
    pub is_idled_for: bool,
    /// Whether it is the only queue, and its slice was stretched to wait for its next request
    /// (`wait_busy`).
    pub is_waited_for: bool,

    /// Whether idling for it pays.
    pub has_idle_window: bool,
    /// Whether it had four requests waiting at once, and no idling for it was in vain since.
    pub is_deep: bool,
    /// The distances between its requests.
    pub seek: SeekDetector,

    /// How many processes send their requests here.
    pub processes: u32,
    /// The queue to which its processes move with their next request.
    pub joins: Option<QueueId>,
    /// How many queues have this one in `joins`.
    pub joined_by: u32,
    /// Whether processes have moved here.
    pub is_shared: bool,
    /// Whether the next process that sends a request here gets a queue of its own again.
    pub must_split: bool,
    /// Since when a shared queue is seeky (`seeky=mean` only).
    pub seeky_since: Option<Jiffies>,
}

impl CfqQueue {
    /// A queue without requests.
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
            is_idled_for: false,
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

    /// In which kind of tree it belongs.
    pub(super) fn kind(&self) -> TreeKind {
        match (self.is_sync, self.has_idle_window) {
            (false, _) => TreeKind::Async,
            (true, false) => TreeKind::SyncNoIdle,
            (true, true) => TreeKind::Sync,
        }
    }

    /// Whether it is of the idle class.
    pub(super) fn is_idle_class(&self) -> bool {
        self.priority.class == Class::Idle
    }

    /// Whether its slice is used up.
    pub(super) fn is_slice_used(&self, now: Jiffies) -> bool {
        self.slice_end.is_some_and(|end| now >= end)
    }

    /// Readies it for a new slice.
    pub(super) fn begin_slice(&mut self) {
        self.slice_end = None;
        self.slice_dispatched = 0;
        self.is_fifo_checked = false;
        self.must_dispatch = false;
        self.is_idled_for = false;
        self.is_waited_for = false;
    }

    /// Whether it has no request and no process that will send one.
    pub(super) fn is_abandoned(&self) -> bool {
        self.processes == 0 && self.in_device == 0 && self.requests.is_empty()
    }

    /// Whether nothing and nobody needs it any more.
    fn is_unused(&self) -> bool {
        self.is_abandoned() && self.joined_by == 0 && self.position.is_none()
    }
}

/// All queues, by id.
#[derive(Debug, Default)]
pub(super) struct CfqQueues(Slab<CfqQueue>);

impl CfqQueues {
    /// Takes a queue in.
    pub(super) fn add(&mut self, queue: CfqQueue) -> QueueId {
        QueueId(self.0.insert(queue) as u32)
    }

    /// How many queues there are.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Forgets a queue that nothing needs, and the one that it joins when nothing but it needed
    /// that. One that is forgotten already stays so.
    pub(super) fn release(&mut self, id: QueueId) {
        let is_unused = self.0.get(id.0 as usize).is_some_and(CfqQueue::is_unused);
        let mut unused = Some(id).filter(|_| is_unused);
        while let Some(id) = unused {
            let queue = self.0.remove(id.0 as usize);
            unused = queue.joins.filter(|&joined| {
                self[joined].joined_by -= 1;
                self[joined].is_unused()
            });
        }
    }
}

impl Index<QueueId> for CfqQueues {
    type Output = CfqQueue;
    fn index(&self, id: QueueId) -> &CfqQueue {
        &self.0[id.0 as usize]
    }
}

impl IndexMut<QueueId> for CfqQueues {
    fn index_mut(&mut self, id: QueueId) -> &mut CfqQueue {
        &mut self.0[id.0 as usize]
    }
}
