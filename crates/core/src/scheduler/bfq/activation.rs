//! A queue without requests gets one: its share, its budget, and the service that it may end. A
//! queue is *raised* if its weight is larger for a while, because its process is interactive or
//! soft real-time. A queue is *busy* if it has queued requests or is in service. A *turn* of a
//! queue is its activation, or the end of its service with requests left; turns are numbered.

use super::budgets::EndReason;
use super::service_trees::Activation;
use super::{Bfq, QueueId};
use crate::request::RequestTable;
use crate::unit::Time;

/// A request within this multiple of `slice_idle` after the last completion continues the service
/// that ended for want of a request.
const CONTINUATION_FACTOR: u64 = 3;

impl Bfq {
    /// Adds the queue, which has just got a request, to the service trees. Ends the service of
    /// another queue if this one comes before it.
    pub(super) fn activate(&mut self, now: Time, id: QueueId, requests: &RequestTable) {
        let continuation_ns = self.tunables.slice_idle.ns() * CONTINUATION_FACTOR;
        let budget_left = self.trees.budget_left(id);
        let queue = &mut self.queues[id];
        // The queue ran empty in service with budget left (`may_continue`), and its request comes
        // soon: it gets the rest of that budget, not a new one.
        let is_in_time = now.since(queue.last_end).ns() <= continuation_ns;
        let is_continued =
            core::mem::take(&mut queue.may_continue) && is_in_time && budget_left > 0;
        let next_budget = queue.next_budget;
        let was_raised = queue.raising.is_raised();
        let is_raised = self.update_raising(now, id);
        let mut budget = if is_continued { budget_left.min(next_budget) } else { next_budget };
        // A queue that becomes raised gets a small budget, for a low latency. An earlier one stays
        // only if it is smaller.
        if is_raised && !was_raised {
            budget = budget.min(self.raised_budget());
        }
        // A smaller budget would not suffice for the first request.
        let budget = budget.max(self.next_charge(id, requests));
        let queue = &mut self.queues[id];
        queue.is_new = false;
        queue.empty_since = None;
        queue.is_busy = true;
        self.turns += 1;
        queue.turn = self.turns;
        let (class, weight) = (queue.priority.class, queue.weight());
        self.trees.activate(id, Activation { class, weight, budget }, is_continued);
        self.count_busy(id);
        self.preempt(now, id, is_continued);
    }

    /// Ends the service of another queue if the queue `id` may take its place. Its class must be
    /// higher, or its weight in the same class. Or it must continue its own service and be raised
    /// at least as much, in any class. A queue for which idling does not pay gives up its place to
    /// any other: it loses no throughput and no share by that. The next dispatch selects a queue by
    /// the service trees, which may be a third one. No effect if no other queue is in service.
    fn preempt(&mut self, now: Time, id: QueueId, is_continued: bool) {
        let Some(served) = self.in_service.filter(|&served| served != id) else { return };
        let [factor, served_factor] = [id, served].map(|queue| self.queues[queue].raising.factor());
        let [(class, weight), (served_class, served_weight)] =
            [id, served].map(|queue| self.trees.rank(queue));
        // A class that compares lower is the higher one: real-time comes first.
        let is_higher = class < served_class || class == served_class && weight > served_weight;
        let comes_first = is_continued && factor >= served_factor || is_higher;
        if comes_first || !self.is_idling_better(served) {
            self.idle_until = None;
            self.end_service(now, served, EndReason::Preempted);
        }
    }

    /// Ends the service of the queue `id`, which the device has served until now.
    pub(super) fn end_service(&mut self, now: Time, id: QueueId, reason: EndReason) {
        self.end_service_until(now, id, reason, now);
    }

    /// Ends the service of the queue `id`. It goes back to its tree, or leaves the trees without
    /// requests. `until` is the time until which the device served it: earlier than `now` after
    /// idle time, which is not charged.
    pub(super) fn end_service_until(
        &mut self,
        now: Time,
        id: QueueId,
        reason: EndReason,
        until: Time,
    ) {
        self.in_service = None;
        self.idle_until = None;
        self.measurement.cancel();
        // The charge comes first: the next budget depends on the charged service.
        self.charge_slow_service(id, reason, until);
        self.adjust_budget(id, reason);
        let slice_idle = self.tunables.slice_idle;
        let queue = &mut self.queues[id];
        if queue.requests.is_empty() {
            // A queue that has used up its time or its budget must not continue this service.
            let is_used = matches!(reason, EndReason::Timeout | EndReason::Exhausted);
            queue.may_continue = !is_used;
            if queue.in_device == 0 {
                queue.empty_since = Some(now);
                queue.raising.on_empty(now, slice_idle);
            }
            self.uncount_busy(id);
            self.queues[id].is_busy = false;
            self.trees.deactivate(id);
            self.remove_if_unused(id);
            return;
        }
        self.turns += 1;
        queue.turn = self.turns;
        let (class, weight, budget) = (queue.priority.class, queue.weight(), queue.next_budget);
        // Counted again, because its weight or its raising may have changed in service.
        self.uncount_busy(id);
        self.count_busy(id);
        self.trees.requeue(id, Activation { class, weight, budget });
    }

    /// Takes a queue that is not in service, and whose last request was sent, out of the trees: the
    /// request was injected into the service of another queue. It was not in service itself, so its
    /// next request continues no service. The queue is not removed, because that request is still
    /// in the device.
    pub(super) fn leave_trees(&mut self, id: QueueId) {
        self.uncount_busy(id);
        let queue = &mut self.queues[id];
        queue.is_busy = false;
        queue.may_continue = false;
        debug_assert!(queue.in_device > 0, "its last request is in the device");
        self.trees.withdraw(id);
    }

    /// Counts a queue among the busy ones, of its class, and of its weight if that is not raised.
    /// `counted_as` keeps the key, so that `uncount_busy` reverses the same counts.
    fn count_busy(&mut self, id: QueueId) {
        self.busy += 1;
        let queue = &mut self.queues[id];
        let key = (queue.priority.class, queue.plain_weight());
        let is_raised = queue.raising.is_raised();
        queue.counted_as = Some((key, is_raised));
        self.busy_by_class[queue.priority.class as usize] += 1;
        if is_raised {
            self.busy_raised += 1;
        } else {
            *self.busy_plain.entry(key).or_insert(0) += 1;
        }
    }

    /// Reverses `count_busy`, also after its priority or its raising has changed. No effect on a
    /// queue that is not counted. A weight without a queue is removed, because the number of
    /// weights shows if they differ.
    fn uncount_busy(&mut self, id: QueueId) {
        let Some((key, is_raised)) = self.queues[id].counted_as.take() else { return };
        self.busy -= 1;
        let (class, _) = key;
        self.busy_by_class[class as usize] -= 1;
        if is_raised {
            self.busy_raised -= 1;
        } else if let Some(count) = self.busy_plain.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.busy_plain.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Priority, ProcessId, Request, RequestId};
    use crate::scheduler::testing::{SchedulerBench, caps, read};
    use crate::scheduler::{BfqTunables, Dispatch};

    /// Process 0 begins to read. After its request the device is kept idle for it, for 20 ms if it
    /// is raised. Then process 1 begins: it is interactive, of weight 40 × 30. A default process 0
    /// is so, too, and keeps the device. At another level than 4 it is not raised, and the higher
    /// weight ends its service.
    #[test]
    fn raised_queue_ends_the_service_of_a_lower_weight_only() {
        let second = |level| {
            let mut policy = SchedulerBench::new(Bfq::new(&caps(), BfqTunables::default()));
            let priority = Priority { level, ..Priority::default() };
            policy.insert(Time::ZERO, Request { priority, ..read(0, 8) });
            assert_eq!(policy.dispatch(Time::ZERO), Dispatch::Request(RequestId(0)));
            policy.complete(Time::from_ms(2), RequestId(0));
            let process = ProcessId(1);
            policy.insert(Time::from_ms(3), Request { process, ..read(1_000_000, 8) });
            policy.dispatch(Time::from_ms(3))
        };
        assert_eq!(second(4), Dispatch::WaitUntil(Time::from_ms(22)));
        assert_eq!(second(3), Dispatch::Request(RequestId(1)));
    }
}
