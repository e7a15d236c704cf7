//! The decision to keep the device idle for a queue's next request, and the end of the idle time. A
//! queue is *raised* if its weight is larger for a while, because its process is interactive or
//! soft real-time. All other queues are *plain*. A queue is *seeky* if most of its requests are far
//! apart, and *busy* if it has queued requests or is in service.

use super::budgets::EndReason;
use super::tunables::SEEKY_IDLE;
use super::{Bfq, QueueId};
use crate::request::Class;
use crate::unit::Time;

/// Shortest idle time for a queue whose weight is raised.
const RAISED_IDLE: Time = Time::from_ms(20);

/// A device that takes more requests than this at once orders them itself
/// (`BFQ_HW_QUEUE_THRESHOLD`).
const QUEUEING_DEPTH: u32 = 3;

/// Number of requests of other queues in the device from which a raised queue needs idling even
/// next to raised queues alone.
const OTHER_REQUESTS: u32 = 4;

impl Bfq {
    /// Returns true if the device orders several requests itself. The kernel detects it by the
    /// number of requests in the device; here the depth of the device is known.
    pub(super) fn device_queues(depth_max: u32) -> bool {
        depth_max > QUEUEING_DEPTH
    }

    /// Returns true if the busy queues have different weights or classes. The weights of raised
    /// queues do not count.
    pub(super) fn is_asymmetric(&self) -> bool {
        let classes = self.busy_by_class.iter().filter(|&&count| count > 0).count();
        self.busy_plain.len() > 1 || classes > 1
    }

    /// Returns true if idling for the queue pays: it raises the throughput, or it keeps the share
    /// of the queue. False without a process; for any other queue true under `strict_guarantees`.
    pub(super) fn is_idling_better(&self, id: QueueId) -> bool {
        let queue = &self.queues[id];
        // Without a process there is no next request to wait for.
        if queue.processes == 0 {
            return false;
        }
        if self.tunables.strict_guarantees {
            return true;
        }
        // Idling is disabled, no reader waits for the requests, or the class has no share to keep.
        let slice_idle = self.tunables.slice_idle;
        if slice_idle == Time::ZERO || !queue.is_sync || queue.priority.class == Class::Idle {
            return false;
        }
        self.does_idling_raise_throughput(id) || self.needs_idling_for_its_share(id)
    }

    /// Returns true if idling for the queue raises the throughput, and delays no raised queue.
    pub(super) fn does_idling_raise_throughput(&self, id: QueueId) -> bool {
        let queue = &self.queues[id];
        let has_queueing = self.has_queueing;
        // A disk that serves one request at a time always gains, because its head stays near. A
        // disk that queues requests, and other storage that does not, gain only from a queue whose
        // requests are sequential and soon. Other storage that queues requests never gains.
        let is_throughput_higher = self.is_rotational && !has_queueing
            || (self.is_rotational || !has_queueing)
                && queue.is_worth_idling(self.tunables.slice_idle);
        // Idling for another queue would delay the raised ones.
        let delays_no_raised = queue.raising.is_raised() || self.busy_raised == 0;
        is_throughput_higher && delays_no_raised
    }

    /// Returns true if the queue would lose its share of the device without idling. The requests of
    /// the others would reach the device meanwhile, which orders them as it likes. True also for
    /// the only busy queue, as in the kernel: idling for it delays no other.
    fn needs_idling_for_its_share(&self, id: QueueId) -> bool {
        let queue = &self.queues[id];
        let has_plain_others = self.busy_raised < self.busy;
        let has_others_in_device = self.in_device >= queue.in_device + OTHER_REQUESTS;
        let is_raised = queue.raising.is_raised() && (has_plain_others || has_others_in_device);
        is_raised || self.is_asymmetric() || self.busy == 1
    }

    /// Returns true if the queue in service has no queued request, and idling for it pays.
    pub(super) fn must_idle(&self, id: QueueId) -> bool {
        self.queues[id].requests.is_empty() && self.is_idling_better(id)
    }

    /// Begins to keep the device idle for the queue in service. Idling for a seeky queue costs
    /// throughput, so that the time is short, unless different weights demand the whole of it. A
    /// raised queue is idled for longer, seeky or not.
    pub(super) fn begin_idling(&mut self, now: Time, id: QueueId) {
        let is_asymmetric = self.is_asymmetric();
        let queue = &mut self.queues[id];
        queue.idling_start = now;
        let mut idle = self.tunables.slice_idle;
        if queue.raising.is_raised() {
            idle = idle.max(RAISED_IDLE);
        } else if queue.is_seeky() && !is_asymmetric {
            idle = idle.min(SEEKY_IDLE);
        }
        self.idle_until = Some(now + idle);
    }

    /// Ends the idle time if it has passed without a request: the queue leaves service, as of the
    /// end of the idle time. It is not charged for that time. No effect before.
    pub(super) fn end_expired_idling(&mut self, now: Time) {
        let Some(idle_end) = self.idle_until.take_if(|until| *until <= now) else { return };
        let id = self.in_service.expect("the device idles for the queue in service");
        // The time of its service has ended as well, before or during the idle time.
        let is_late = self.queues[id].service_end <= idle_end;
        let reason = if is_late { EndReason::Timeout } else { EndReason::TooIdle };
        let service_stop = self.queues[id].idling_start;
        self.end_service_until(idle_end, id, reason, service_stop);
    }
}
