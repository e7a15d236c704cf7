//! The queue of each process, and the shared asynchronous queues.

use alloc::collections::BTreeMap;

use super::budgets::EndReason;
use super::queue::BfqQueue;
use super::{Bfq, QueueId};
use crate::request::{Class, Priority, ProcessId, Request};
use crate::unit::Time;

/// The asynchronous queues: one for each class and level, one for the whole idle class.
pub(super) type AsyncQueues = BTreeMap<(Class, u8), QueueId>;

impl Bfq {
    /// The present queue for `request`, in which it may find a neighbour; `None` before the first
    /// request of its process, or of its asynchronous priority.
    pub(super) fn find_queue(&self, request: &Request) -> Option<QueueId> {
        if request.is_sync {
            self.processes.get(&request.process).copied()
        } else {
            self.async_queues.get(&async_key(request.priority)).copied()
        }
    }

    /// The queue for `request`, created if necessary. A synchronous request sets the priority of
    /// the queue, which counts from its next activation or service on. Its queue may also be merged
    /// with another one here: the result is then the common queue.
    pub(super) fn queue_for(&mut self, now: Time, request: &Request) -> QueueId {
        if let Some(id) = self.find_queue(request) {
            if request.is_sync {
                // Asynchronous queues have a fixed priority.
                self.queues[id].priority = request.priority;
                return self.merge_if_due(now, request.process, id);
            }
            return id;
        }
        let (class, level) = async_key(request.priority);
        let priority = if request.is_sync { request.priority } else { Priority { class, level } };
        let queue = BfqQueue::new(now, request.is_sync, priority, self.first_budget());
        let id = self.queues.add(queue);
        self.trees.add(id);
        if request.is_sync {
            self.processes.insert(request.process, id);
            // A burst is a number of processes that begin together. A device without a head that
            // orders its requests serves one fast enough.
            if self.is_rotational || !self.has_queueing {
                self.add_to_burst(now, id);
            }
            return self.group_new_queue(now, request.process, id);
        }
        self.async_queues.insert((class, level), id);
        id
    }

    /// Handles the end of a process. Several processes can share a merged queue. If it was the last
    /// one, the scheduler no longer idles for the queue, which is removed once it has no requests.
    /// The end of its service also removes it.
    pub(super) fn forget_process(&mut self, now: Time, process: ProcessId) {
        let Some(id) = self.processes.remove(&process) else { return };
        self.queues[id].processes -= 1;
        if self.queues[id].processes > 0 {
            return;
        }
        if self.in_service == Some(id) && self.queues[id].requests.is_empty() {
            self.end_service(now, id, EndReason::NoMoreRequests);
        } else {
            self.remove_if_unused(id);
        }
    }

    /// Removes a queue that has neither requests, queued or in the device, nor a process, and is
    /// not in service. No effect on any other.
    pub(super) fn remove_if_unused(&mut self, id: QueueId) {
        let queue = &self.queues[id];
        if queue.processes == 0 && queue.is_empty() && !queue.is_busy {
            self.queues.remove(id);
            self.forget_group_of(id);
            self.trees.remove(id);
            self.burst.forget(id);
        }
    }
}

/// Key of the asynchronous queue for a priority: class and level, of which 7 is the lowest.
fn async_key(priority: Priority) -> (Class, u8) {
    match priority.class {
        Class::Idle => (Class::Idle, 7),
        class => (class, priority.level.min(7)),
    }
}
