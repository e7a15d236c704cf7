//! Preemption: a request of one queue ends the slice of another. A *slice* is the time for which
//! one queue, the *active* one, has the device.
//!
//! A *tree* has the queues of one class and kind, in the order of their keys, which are times. The
//! preempting queue is put in front of its tree by a whole second. This also makes its tree the one
//! with the lowest key. Trees with frequent preemption therefore get more than their share. An
//! example is sync-noidle, by its own rule below: the queues for which idling does not pay. Two
//! processes that keep preempting can starve others. Both are properties of the kernel's policy,
//! reproduced here.

use super::cooperators::CLOSE_SECTORS;
use super::trees::TreeKind;
use super::tunables::jiffies;
use super::{Cfq, QueueId};
use crate::decision::Decision;
use crate::request::{Class, Request};
use crate::unit::Time;

impl Cfq {
    /// Gives the queue `new`, which has just received `request`, the slice of the active queue if a
    /// rule allows it. Returns true if it did; false also without another active queue. The new
    /// queue only becomes the first of its tree here. The next dispatch begins its slice.
    pub(super) fn try_preempt(&mut self, now: Time, new: QueueId, request: &Request) -> bool {
        let Some(active) = self.active.filter(|&active| active != new) else { return false };
        let Some(why) = self.preemption_reason(now, active, new, request) else { return false };
        let distance = request.start.abs_diff(self.head);
        self.log.log_with(now, || Decision::Preempt {
            queue: new.0,
            active: active.0,
            why,
            distance,
        });
        // Without this, the tree of the active queue would be served to its end, and the new queue
        // would only be the first of another tree. The kernel later dropped the rest of the share
        // here for the same reason.
        if self.queues[active].kind() != self.queues[new].kind() {
            self.serving.expires = None;
        }
        // The rest of the ended slice counts for the active queue's next position.
        let is_timed = true;
        self.end_slice(now, "preempted", is_timed);
        let is_first = true;
        self.insert_into_trees(jiffies(now), new, is_first);
        true
    }

    /// The reason for which `new` preempts; the first matching rule decides. `None` if `new` must
    /// not preempt. The order of the rules is the kernel's.
    ///
    /// One rule of the kernel is omitted: metadata before other requests, because requests here
    /// have no such flag.
    fn preemption_reason(
        &self,
        now: Time,
        active: QueueId,
        new: QueueId,
        request: &Request,
    ) -> Option<&'static str> {
        let (active_queue, new_queue) = (&self.queues[active], &self.queues[new]);
        if new_queue.is_idle_class() {
            return None;
        }
        if active_queue.is_idle_class() {
            return Some("active_is_idle_class");
        }
        let is_real_time = new_queue.priority.class == Class::RealTime;
        let is_active_real_time = active_queue.priority.class == Class::RealTime;
        if is_active_real_time && !is_real_time {
            return None;
        }
        if request.is_sync && !active_queue.is_sync {
            return Some("sync_before_async");
        }
        if active_queue.is_slice_used(jiffies(now)) {
            return Some("slice_used");
        }
        // The active queue was the last of its tree and is idled for. Idling is unnecessary once
        // another queue of the tree has requests: the tree has these two.
        let is_tree_idling = self.serving.kind == TreeKind::SyncNoIdle
            && new_queue.kind() == TreeKind::SyncNoIdle
            && new_queue
                .position
                .is_some_and(|position| self.trees.queues_in_tree_of(position) == 2)
            && active_queue.requests.is_empty();
        if is_tree_idling {
            return Some("noidle_tree_has_work");
        }
        if is_real_time && !is_active_real_time {
            return Some("real_time");
        }
        // The idle device can serve a request next to the head almost without a seek.
        let is_close = request.start.abs_diff(self.head) <= CLOSE_SECTORS;
        (active_queue.is_device_idle_for_it && is_close).then_some("close_to_head")
    }
}
