//! Idling: keeping the device free for the next request of the process that was just served,
//! because that request will be close and any other far. A queue has an *idle window* while idling
//! for it pays. A queue is *seeky* if its requests are far apart. A *slice* is the time for which
//! one queue, the *active* one, has the device. A *jiffy* is the time unit of the scheduler: 1 ms,
//! as in a kernel with HZ = 1000.

use super::tunables::{Jiffies, jiffies};
use super::{Cfq, QueueId};
use crate::decision::Decision;
use crate::request::Request;
use crate::unit::{PAGE_BYTES, Time};

/// Number of queued requests at which a queue counts as deep: it gets its own slice even if it is
/// seeky. The kernel's value.
const DEEP_QUEUE_MIN: usize = 4;

impl Cfq {
    /// Decides at each synchronous request of the queue `id` if idling for the queue pays: sets its
    /// idle window. A seeky queue gains nothing, because its next request is as far away as any
    /// other. A process that thinks longer than the idle time sends its next request too late.
    /// `think_time` is of the process that sent the request; while it is unknown, the window stays
    /// as it is. A deep queue, with several requests at once, is not taken for seeky. No effect on
    /// an asynchronous queue or the idle class.
    pub(super) fn update_idle_window(&mut self, now: Time, id: QueueId, think_time: ThinkTime) {
        let slice_idle = self.tunables.slice_idle;
        let queue = &mut self.queues[id];
        if !queue.is_sync || queue.is_idle_class() {
            return;
        }
        let queued = queue.requests.count();
        queue.is_deep |= queued >= DEEP_QUEUE_MIN;
        let (is_open, why) = match think_time.mean {
            _ if slice_idle == 0 => (false, "slice_idle_is_0"),
            _ if !queue.is_deep && queue.seek.is_seeky() => (false, "seeky"),
            Some(mean) if mean > slice_idle => (false, "thinks_too_long"),
            Some(_) => (true, "thinks_briefly"),
            None => (queue.has_idle_window, "think_time_unknown"),
        };
        if is_open != queue.has_idle_window {
            queue.has_idle_window = is_open;
            let seek = queue.seek.deciding_value();
            self.log.log_with(now, || Decision::Window {
                queue: id.0,
                is_open,
                why,
                seek,
                think_ms: think_time.mean_ms(),
                queued: queued as u32,
            });
        }
    }

    /// Returns true if the device is kept idle for this queue's next request; never for the idle
    /// class. This is the case if idling for it pays, or if it is the last queue of its tree: the
    /// queues of one class and kind. The sync-noidle tree, of the queues for which idling does not
    /// pay, is thus idled for once, at its end.
    pub(super) fn should_idle(&self, id: QueueId) -> bool {
        let queue = &self.queues[id];
        if queue.is_idle_class() {
            return false;
        }
        if queue.has_idle_window && !self.is_idling_useless() {
            return true;
        }
        queue.is_sync
            && queue.position.is_some_and(|position| self.trees.queues_in_tree_of(position) == 1)
    }

    /// Returns true for a device without a head that queues internally: idling never pays.
    fn is_idling_useless(&self) -> bool {
        !self.is_rotational && self.queueing.is_queueing()
    }

    /// Handles an empty active queue: keeps the device idle for its next request, or logs the
    /// reason against it. In the latter case the next dispatch ends the slice, unless a request
    /// arrives before, or requests in the device decide again.
    pub(super) fn begin_idling_if_useful(&mut self, now: Time, id: QueueId) {
        let now_jiffies = jiffies(now);
        let think_time = self.active_think_time();
        let refusal = self.idle_refusal(now_jiffies, id, think_time);
        if let Some(why) = refusal {
            let think_ms = think_time.mean_ms();
            self.log.log_with(now, || Decision::NoIdle { queue: id.0, why, think_ms });
            return;
        }
        let idle_end_jiffies = now_jiffies + self.tunables.slice_idle;
        self.idle_until = Some(idle_end_jiffies);
        self.queues[id].is_device_idle_for_it = true;
        let has_window = self.queues[id].has_idle_window;
        self.log.log_with(now, || Decision::IdleStart {
            queue: id.0,
            until_ms: idle_end_jiffies,
            why: if has_window { "idle_window" } else { "last_of_tree" },
            think_ms: think_time.mean_ms(),
        });
    }

    /// Returns the reason against keeping the device idle for the queue; `None` if the device may
    /// be kept idle. The first reason that applies is returned.
    fn idle_refusal(
        &self,
        now: Jiffies,
        id: QueueId,
        think_time: ThinkTime,
    ) -> Option<&'static str> {
        let queue = &self.queues[id];
        // Also if it is the last queue of its tree: `should_idle` does not exclude that case.
        if self.is_idling_useless() {
            return Some("device_without_head_queues_itself");
        }
        if self.tunables.slice_idle == 0 {
            return Some("slice_idle_is_0");
        }
        if !self.should_idle(id) {
            return Some("seeky_or_slow_and_not_last_of_tree");
        }
        // The completion of these requests decides again.
        if queue.in_device > 0 {
            return Some("requests_in_device");
        }
        if !think_time.is_alive {
            return Some("process_ended");
        }
        // The next request is likely to come after the end of the slice.
        let left_ms = queue.slice_end.map(|end| end - now);
        match (left_ms, think_time.mean) {
            (Some(left_ms), Some(mean)) if left_ms < mean => Some("slice_ends_before_it_thinks"),
            _ => None,
        }
    }

    /// Ends the idle time of the device, if there is one, and logs it with the reason `why`. The
    /// flag `is_device_idle_for_it` stays: the end of the slice or an arriving request clears it.
    pub(super) fn stop_idling(&mut self, now: Time, id: QueueId, why: &'static str) {
        if self.idle_until.take().is_some() {
            self.log.log_with(now, || Decision::IdleStop { queue: id.0, why });
        }
    }

    /// Handles a request of the active queue during idling. Idling ends, except for a small request
    /// (up to a page) of the only busy queue. There the timer continues as in the kernel, where
    /// such a request stays plugged for merging. It may be sent although the slice is used up.
    pub(super) fn on_arrival_while_idling(&mut self, now: Time, id: QueueId, request: &Request) {
        if !self.queues[id].is_device_idle_for_it {
            return;
        }
        if request.bytes() > PAGE_BYTES || self.trees.busy_queues() > 1 {
            self.queues[id].is_device_idle_for_it = false;
            self.stop_idling(now, id, "arrival");
        } else {
            self.queues[id].must_dispatch = true;
        }
    }

    /// Ends the idle time when it has expired; no effect before. It was useless unless a request
    /// arrived meanwhile and still waits: then the slice goes on with it. If such a request was
    /// already sent, the queue is empty and the slice ends.
    pub(super) fn end_expired_idling(&mut self, now: Time) {
        let now_jiffies = jiffies(now);
        if self.idle_until.is_none_or(|until| now_jiffies < until) {
            return;
        }
        let Some(id) = self.active else { return };
        let queue = &mut self.queues[id];
        let is_used = queue.is_slice_used(now_jiffies);
        if queue.must_dispatch || !is_used && !queue.requests.is_empty() {
            return self.stop_idling(now, id, "arrival");
        }
        // If the slice is not used up, idling was useless, and the queue must become deep again.
        queue.is_deep &= is_used;
        self.stop_idling(now, id, "in_vain");
        // The rest of the slice is lost.
        let is_timed = false;
        self.end_slice(now, if is_used { "used" } else { "idled_in_vain" }, is_timed);
    }

    /// Returns true if the only busy queue should be waited for although its slice ends: no other
    /// queue needs the device. False before its slice has a length. Also true for a queue with
    /// requests, whose slice then ends at once. This is a mistake of 2.6.33 to 2.6.37, which both
    /// variants of the policy reproduce; 2.6.38 waits only for an empty queue.
    pub(super) fn should_wait_busy(&self, now: Jiffies, id: QueueId) -> bool {
        let Some(end) = self.queues[id].slice_end else { return false };
        if self.trees.busy_queues() > 1 {
            return false;
        }
        let is_thinking_longer = self.active_think_time().mean.is_some_and(|mean| end - now < mean);
        // A think time below 1 ms counts as 0, so that the last jiffy of the slice is checked too.
        now >= end || is_thinking_longer || end - now == 1
    }

    /// Think time of the process whose request was sent last: the time from a completion to its
    /// next request.
    fn active_think_time(&self) -> ThinkTime {
        let process = self.active_process.and_then(|process| self.processes.get(&process));
        ThinkTime {
            mean: process.and_then(|process| process.think_time()),
            is_alive: process.is_some(),
        }
    }
}

/// Think time of a process between two requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThinkTime {
    /// The mean in jiffies, once there are enough samples.
    pub mean: Option<Jiffies>,
    /// True if the process has not ended.
    pub is_alive: bool,
}

impl ThinkTime {
    /// Mean think time in ms for the log; 0 while it is unknown.
    fn mean_ms(self) -> u64 {
        self.mean.unwrap_or(0) as u64
    }
}
