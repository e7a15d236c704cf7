//! Preemption: a request of one queue ends the turn of another.
//!
//! The queue that cuts in is put in front of its tree by a whole second. That
//! also makes its *tree* the one with the lowest key, so that trees in which
//! queues often cut in (sync-noidle, by its own rule below) get more than their
//! share, and two processes that keep cutting in can keep others out. Both are
//! traits of the kernel's law, kept here as they are.

use super::cooperators::CLOSE_SECTORS;
use super::trees::TreeKind;
use super::tunables::jiffies;
use super::{Cfq, QueueId};
use crate::decision::Decision;
use crate::request::{Class, Request};
use crate::unit::Time;

impl Cfq {
    /// Lets the queue `new`, to which `request` has just come, take the turn
    /// of the active one, if it may. Returns whether it did.
    pub(super) fn try_preempt(&mut self, now: Time, new: QueueId, request: &Request) -> bool {
        let Some(active) = self.active.filter(|&active| active != new) else { return false };
        let Some(why) = self.preemption_reason(now, active, new, request) else { return false };
        let distance = request.start.abs_diff(self.head);
        self.log.say(now, || Decision::Preempt { queue: new.0, active: active.0, why, distance });
        // Were the tree of the active queue served to its end, the new queue
        // would only be the first of another tree: the kernel dropped the
        // rest of the share here too, once that was noticed.
        if self.queues[active].kind() != self.queues[new].kind() {
            self.serving.expires = None;
        }
        self.end_slice(now, "preempted", true);
        self.put_in_trees(jiffies(now), new, true);
        true
    }

    /// Why `new` goes first; the first rule that matches decides.
    ///
    /// One rule of the kernel has no place here: metadata before other
    /// requests, which our requests don't tell apart.
    fn preemption_reason(
        &self,
        now: Time,
        active: QueueId,
        new: QueueId,
        request: &Request,
    ) -> Option<&'static str> {
        let (old, queue) = (&self.queues[active], &self.queues[new]);
        if queue.is_idle_class() {
            return None;
        }
        if old.is_idle_class() {
            return Some("active_is_idle_class");
        }
        let is_real_time = queue.priority.class == Class::RealTime;
        let is_active_real_time = old.priority.class == Class::RealTime;
        if is_active_real_time && !is_real_time {
            return None;
        }
        if request.is_sync && !old.is_sync {
            return Some("sync_before_async");
        }
        if old.is_slice_used(jiffies(now)) {
            return Some("slice_used");
        }
        // The active queue is the last of its tree and idled for: no need to,
        // now that another one of the tree has work.
        let is_tree_idling = self.serving.kind == TreeKind::SyncNoIdle
            && queue.kind() == TreeKind::SyncNoIdle
            && queue.position.is_some_and(|position| self.trees.queues_in_tree_of(position) == 2)
            && old.requests.is_empty();
        if is_tree_idling {
            return Some("noidle_tree_has_work");
        }
        if is_real_time && !is_active_real_time {
            return Some("real_time");
        }
        let is_close = request.start.abs_diff(self.head) <= CLOSE_SECTORS;
        (old.is_idled_for && is_close).then_some("close_to_head")
    }
}
