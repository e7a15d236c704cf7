//! Processes: the *think time* of each, from a completion to its next request, and the queue of its
//! requests.
//!
//! Queues with neighbouring requests are *joined*: the processes of one move to the other. A joined
//! queue is *split* again, process by process, once it is seeky: its requests are far apart. A
//! queue has an *idle window* while idling for its next request pays. A *tree* has the queues of
//! one class and kind.

use alloc::collections::BTreeMap;

use super::queue::CfqQueue;
use super::seek::SeekDetector;
use super::tunables::{Jiffies, jiffies};
use super::{Cfq, QueueId};
use crate::decision::Decision;
use crate::request::{Class, Priority, ProcessId, Request};
use crate::scheduler::decaying_mean::DecayingMean;
use crate::unit::Time;

/// State of a process that has not ended.
#[derive(Debug)]
pub(super) struct CfqProcess {
    /// Priority of the last synchronous request, or of the very first request.
    pub priority: Priority,
    /// Queue of the synchronous requests; `None` before the first.
    pub sync_queue: Option<QueueId>,
    /// Completion time of the last synchronous request; the time of the first request until then.
    pub last_end: Jiffies,
    /// Mean think time: from a completion to the next request, in jiffies.
    pub think: DecayingMean,
}

impl CfqProcess {
    /// Mean think time in jiffies; `None` while there are too few samples.
    pub(super) fn think_time(&self) -> Option<Jiffies> {
        self.think.is_valid().then(|| self.think.mean() as Jiffies)
    }

    /// Adds the think time before a request at `now` to the mean, also of an asynchronous request:
    /// these are excluded only since 3.1. A pause counts at most twice the idle time, because any
    /// longer pause is equally useless.
    pub(super) fn record_think_time(&mut self, now: Jiffies, slice_idle: Jiffies) {
        self.think.add((now - self.last_end).clamp(0, 2 * slice_idle) as u64);
    }
}

/// The asynchronous queues: one for each class and level, one for the whole idle class.
pub(super) type AsyncQueues = BTreeMap<(Class, u8), QueueId>;

impl Cfq {
    /// The queue in which `request` may find a neighbour: the present queue of its process, or the
    /// shared queue of its priority if it is asynchronous. `None` if there is no such queue yet.
    pub(super) fn find_present_queue(&self, request: &Request) -> Option<QueueId> {
        if request.is_sync {
            self.processes.get(&request.process)?.sync_queue
        } else {
            self.async_queues.get(&async_key(request.priority)).copied()
        }
    }

    /// The queue for `request`, created if necessary. An asynchronous request belongs to the shared
    /// queue of its priority. A synchronous one belongs to the queue of its process. The process is
    /// moved if its queue was joined with another one, along a chain of joins by one queue at each
    /// request. It gets a queue of its own if they are split. A new priority of the process is
    /// applied to the queue that it stays in or moves to.
    pub(super) fn queue_for(&mut self, now: Time, request: &Request) -> QueueId {
        let now_jiffies = jiffies(now);
        let process = self.processes.entry(request.process).or_insert_with(|| CfqProcess {
            priority: request.priority,
            sync_queue: None,
            last_end: now_jiffies,
            think: DecayingMean::default(),
        });
        if !request.is_sync {
            return self.async_queue(request.priority);
        }
        let is_priority_new = process.priority != request.priority;
        process.priority = request.priority;
        let Some(mut queue) = process.sync_queue else {
            return self.create_sync_queue(request);
        };
        if self.must_split(now_jiffies, queue) && self.split(now, queue, request.process) {
            return self.create_sync_queue(request);
        }
        if let Some(into) = self.queues[queue].joins {
            self.move_process(request.process, queue, into);
            queue = into;
        }
        if is_priority_new {
            self.set_priority(now_jiffies, queue, request.priority);
        }
        queue
    }

    /// Creates the queue for the synchronous requests of the process that sent `request`.
    fn create_sync_queue(&mut self, request: &Request) -> QueueId {
        let seek = SeekDetector::new(self.tunables.seeky, self.is_rotational);
        let is_sync = true;
        let mut queue = CfqQueue::new(Some(request.process), is_sync, request.priority, seek);
        queue.processes = 1;
        let id = self.queues.add(queue);
        if let Some(process) = self.processes.get_mut(&request.process) {
            process.sync_queue = Some(id);
        }
        id
    }

    /// The shared asynchronous queue of a level, which is never removed.
    fn async_queue(&mut self, priority: Priority) -> QueueId {
        let key = async_key(priority);
        if let Some(&id) = self.async_queues.get(&key) {
            return id;
        }
        let seek = SeekDetector::new(self.tunables.seeky, self.is_rotational);
        let (class, level) = key;
        let owner = None;
        let is_sync = false;
        let mut queue = CfqQueue::new(owner, is_sync, Priority { class, level }, seek);
        // A process that never ends keeps the queue.
        queue.processes = 1;
        let id = self.queues.add(queue);
        self.async_queues.insert(key, id);
        id
    }

    /// Moves `process` from the queue `from` to the queue `to`, which several processes share from
    /// now on, and which thus has no owner. Requests that are queued in `from` are served there. An
    /// unused `from` is removed.
    fn move_process(&mut self, process: ProcessId, from: QueueId, to: QueueId) {
        self.queues[from].processes -= 1;
        self.queues[to].processes += 1;
        self.queues[to].is_shared = true;
        self.queues[to].owner = None;
        if let Some(state) = self.processes.get_mut(&process) {
            state.sync_queue = Some(to);
        }
        self.queues.remove_if_unused(from);
    }

    /// Removes the process from a joined queue. Returns true if it needs a new queue. The last
    /// process keeps the old queue, which is then no longer shared, and false is returned.
    fn split(&mut self, now: Time, id: QueueId, process: ProcessId) -> bool {
        let queue = &mut self.queues[id];
        let seek = queue.seek.deciding_value();
        self.log.log_with(now, || Decision::Split { queue: id.0, process, seek });
        if queue.processes == 1 {
            queue.owner = Some(process);
            queue.is_shared = false;
            queue.must_split = false;
            queue.seeky_since = None;
            return false;
        }
        queue.processes -= 1;
        true
    }

    /// Applies a new priority of the process: its queue moves to the matching tree if it is in one,
    /// and is found as a cooperator under the new level. A change of class resets the idle window
    /// to the initial value of the new class.
    fn set_priority(&mut self, now_jiffies: Jiffies, id: QueueId, priority: Priority) {
        let queue = &mut self.queues[id];
        if queue.priority.class != priority.class {
            queue.has_idle_window = priority.class != Class::Idle;
        }
        queue.priority = priority;
        if queue.position.is_some() {
            let is_first = false;
            self.insert_into_trees(now_jiffies, id, is_first);
            self.update_sector_index(id);
        }
    }

    /// Handles the end of a process: it leaves its queue, whose slice ends, even if other processes
    /// share the queue. Queued requests of the process are still served. No effect on an unknown
    /// process.
    pub(super) fn forget_process(&mut self, now: Time, process: ProcessId) {
        let Some(gone) = self.processes.remove(&process) else { return };
        let Some(queue) = gone.sync_queue else { return };
        if self.active == Some(queue) {
            // The rest of the slice is lost.
            let is_timed = false;
            self.end_slice(now, "process_ended", is_timed);
        }
        self.queues[queue].processes -= 1;
        self.queues.remove_if_unused(queue);
    }
}

/// Key of the asynchronous queue for a priority: class and level, of which 7 is the lowest.
fn async_key(priority: Priority) -> (Class, u8) {
    match priority.class {
        Class::Idle => (Class::Idle, 7),
        class => (class, priority.level.min(7)),
    }
}
