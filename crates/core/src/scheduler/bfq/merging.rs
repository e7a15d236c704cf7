//! Stable merges: the queues of processes that begin together become one queue.
//!
//! Parallel processes of one program need no protection from each other, and only their common end
//! counts. A *group* is the queues of one priority that are created within 600 ms of the first. A
//! new queue is merged with the first of its group if that was created at most 180 ms before it.
//! On a disk, and on a device that takes one request at a time, the merge waits until the requests
//! of the queue are known. It does not happen if idling for the queue raises the throughput and no
//! raised queue is busy. A queue is *raised* while its weight is larger, and *busy* if it has
//! queued requests or is in service.
//!
//! A merged process keeps the common queue to its end. The weight of the common queue is raised if
//! the weight of a merged queue was.
//!
//! Source: descriptions of the changes "block, bfq: merge bursts of newly-created queues" and
//! "block, bfq: let also stably-merged queues enjoy weight raising" (Linux 5.13, P. Valente).
//! Merges of queues by the places of their requests are omitted.

use super::budgets::EndReason;
use super::{Bfq, QueueId};
use crate::request::{Priority, ProcessId};
use crate::unit::Time;

/// Longest time from the creation of the first queue of a group to the creation of a queue that is
/// merged with it (bfq_burst_interval).
const CREATION_GAP: Time = Time::from_ms(180);

/// Time after which a created queue is the first of another group (bfq_activation_stable_merging).
const GROUP_TIME: Time = Time::from_ms(600);

/// Age of a queue at a delayed merge (bfq_late_stable_merging).
const MERGE_AGE: Time = Time::from_ms(600);

/// The first queue of the present group.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupStart {
    id: QueueId,
    created: Time,
    priority: Priority,
}

impl Bfq {
    /// Adds the new queue `id` of `process` to the present group, or begins a group with it. Merges
    /// it with the first queue of the group, or plans the merge. Returns the queue for the requests
    /// of the process: the common one if the merge does not wait.
    pub(super) fn group_new_queue(
        &mut self,
        now: Time,
        process: ProcessId,
        id: QueueId,
    ) -> QueueId {
        let priority = self.queues[id].priority;
        let is_same_group =
            |start: &GroupStart| now <= start.created + GROUP_TIME && start.priority == priority;
        let Some(start) = self.group_start.filter(is_same_group) else {
            self.group_start = Some(GroupStart { id, created: now, priority });
            return id;
        };
        if start.created + CREATION_GAP < now {
            // Too late to be merged, and too early to begin another group.
            return id;
        }
        if !self.is_rotational && self.has_queueing {
            self.merge_queues(now, process, id, start.id);
            return start.id;
        }
        self.queues[id].merges_with = Some(start.id);
        id
    }

    /// Does the delayed merge of the queue `id` of `process`, if its time has come. The decision is
    /// made once: the plan is dropped if idling for the queue is useful then, or if the other queue
    /// has no process. Returns the queue for the next request of the process.
    pub(super) fn merge_if_due(&mut self, now: Time, process: ProcessId, id: QueueId) -> QueueId {
        let queue = &mut self.queues[id];
        if queue.is_new || now <= queue.created + MERGE_AGE {
            return id;
        }
        let Some(target) = queue.merges_with.take() else { return id };
        // Next to a raised queue idling is for its share, and decides nothing here.
        let is_idling_useful = self.busy_raised == 0 && self.does_idling_raise_throughput(id);
        if is_idling_useful || self.queues[target].processes == 0 {
            return id;
        }
        self.merge_queues(now, process, id, target);
        target
    }

    /// Gives the process of the queue `id` the queue `target` for its next requests, with the
    /// raised weight. Requests that are queued stay in the queue `id`. Without one its service
    /// ends, because no further request comes.
    fn merge_queues(&mut self, now: Time, process: ProcessId, id: QueueId, target: QueueId) {
        self.processes.insert(process, target);
        self.queues[target].processes += 1;
        self.queues[id].processes -= 1;
        if let Some(raising) = self.queues[id].raising.take_raised_state() {
            self.queues[target].raising.adopt_raised_state(raising);
        }
        if self.in_service == Some(id) && self.queues[id].requests.is_empty() {
            self.end_service(now, id, EndReason::NoMoreRequests);
        } else {
            self.remove_if_unused(id);
        }
    }

    /// Removes a queue that is gone from the plans of others.
    pub(super) fn forget_group_of(&mut self, id: QueueId) {
        self.group_start = self.group_start.filter(|start| start.id != id);
        self.queues.forget_merges_with(id);
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    use super::super::BfqTunables;
    use super::*;
    use crate::request::{Class, DeviceCaps, Request, RequestTable};
    use crate::scheduler::testing::{caps, read};
    use crate::scheduler::{Dispatch, Scheduler};

    /// Time between two requests of a reader, and between two readers. The device is not kept idle
    /// for longer than 20 ms.
    const PERIOD: Time = Time::from_ms(100);
    const OFFSET: Time = Time::from_ms(25);

    /// Number of queues after each of the periods in `counted`. Each reader is the period of its
    /// first request and its level. Its requests of 4 KiB are far apart.
    fn queues_after(caps: &DeviceCaps, readers: &[(u64, u8)], counted: &[u64]) -> Vec<usize> {
        let mut bfq = Bfq::new(caps, BfqTunables::default());
        let mut requests = RequestTable::default();
        let mut counts = Vec::new();
        for period in 0..=counted[counted.len() - 1] {
            for (index, (first_period, level)) in (0_u32..).zip(readers) {
                if period < *first_period {
                    continue;
                }
                let now = Time(PERIOD.ns() * period + OFFSET.ns() * u64::from(index));
                let start = u64::from(index) * 100_000_000 + period * 100_000;
                let priority = Priority { class: Class::BestEffort, level: *level };
                let process = ProcessId(index);
                let id = requests.open(Request { process, priority, ..read(start, 8) });
                bfq.insert(now, id, &mut requests);
                for now in [now, now + Time::from_ms(22)] {
                    if let Dispatch::Request(sent) = bfq.dispatch(now, &requests) {
                        bfq.complete(now + Time::from_ms(1), sent, &requests);
                    }
                }
            }
            if counted.contains(&period) {
                counts.push(bfq.processes.values().collect::<BTreeSet<_>>().len());
            }
        }
        counts
    }

    /// Three readers begin at 0, 25 and 150 ms. The queue of the second is older than 600 ms at its
    /// request of 725 ms, the third's at 850 ms. A reader that begins at 375 ms keeps its own
    /// queue, and so does one of another level, with which another group begins.
    #[test]
    fn far_readers_that_begin_together_share_a_queue_after_600_ms() {
        let readers = [(0, 4), (0, 4), (1, 4), (3, 4)];
        assert_eq!(queues_after(&caps(), &readers, &[1, 6, 7, 8, 15]), [3, 4, 3, 2, 2]);
        assert_eq!(queues_after(&caps(), &[(0, 4), (0, 3)], &[0, 15]), [2, 2]);
    }

    /// A disk that takes one request at a time always gains by idling, so the queues stay. A device
    /// without a head that orders its requests never does, and the merge does not wait.
    #[test]
    fn device_decides_when_queues_are_merged() {
        let readers = [(0, 4), (0, 4)];
        let one_at_a_time = DeviceCaps { depth_max: 1, ..caps() };
        assert_eq!(queues_after(&one_at_a_time, &readers, &[0, 15]), [2, 2]);
        let solid_state = DeviceCaps { is_rotational: false, ..caps() };
        assert_eq!(queues_after(&solid_state, &readers, &[0, 15]), [1, 1]);
    }
}
