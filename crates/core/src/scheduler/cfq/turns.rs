//! Time slices: the active queue, the end of its slice, and the next queue.
//!
//! A *slice* is the time for which one queue, the *active* one, has the device. A *tree* has the
//! queues of one class and kind, in the order in which they get slices. One tree is served until
//! its share of the time ends. A queue is *busy* if it has requests, or is active. A *close
//! cooperator* is a queue whose next request is close to the head. A queue is *seeky* if its
//! requests are far apart. Times are in jiffies of 1 ms.

use super::slices::{self, TreeLoad};
use super::trees::TreeKind;
use super::tunables::{HZ, Jiffies, jiffies};
use super::{Cfq, QueueId, ServedTree};
use crate::decision::Decision;
use crate::request::Class;
use crate::unit::Time;

/// Share of the idle class: one jiffy, after which the other trees are checked again. The kernel's
/// value.
const IDLE_CLASS_SLICE: Jiffies = 1;

/// The lowest priority level. A larger number counts as this one.
const LEVEL_LOWEST: u8 = 7;

/// Value of `is_timed` for the end of a slice whose rest counts for the queue's next position: by
/// preemption, and at a completion, unless its processes have ended. As in the kernel.
const TIMED: bool = true;

/// Value of `is_timed` for the end of a slice whose rest is lost: before or after a dispatch, after
/// idling without a request, and at the end of a process. As in the kernel.
const NOT_TIMED: bool = false;

impl Cfq {
    /// The queue that may send now: the active one, or the next one after its slice has ended. A
    /// close cooperator is the next one without regard to its place in the trees. `None`: no
    /// request waits, or the active queue is idled for, or it will be when its requests in the
    /// device have completed.
    pub(super) fn select_queue(&mut self, now: Time) -> Option<QueueId> {
        if self.queued == 0 {
            return None;
        }
        let Some(active) = self.active else { return self.next_queue(now) };
        let queue = &self.queues[active];
        let has_requests = !queue.requests.is_empty();
        // Its slice was extended only to wait for this request.
        if queue.is_waited_for && has_requests {
            self.end_slice(now, "waited_busy", NOT_TIMED);
            return self.next_queue(now);
        }
        // One exception of the kernel can't occur here: the only queue of a group is waited for
        // past its slice while other groups have requests.
        // With `must_dispatch`, the queue may send one more request after its end: the device was
        // kept idle for it.
        if queue.is_slice_used(jiffies(now)) && !queue.must_dispatch {
            self.end_slice(now, "used", NOT_TIMED);
            return self.next_queue(now);
        }
        if has_requests {
            return Some(active);
        }
        if let Some((other, distance)) = self.find_close_cooperator(active) {
            self.join(now, active, other, distance);
            self.end_slice(now, "cooperator_is_close", NOT_TIMED);
            self.begin_slice(now, other, "close_cooperator");
            return Some(other);
        }
        let is_in_device = self.queues[active].in_device > 0;
        if self.idle_until.is_some() || is_in_device && self.should_idle(active) {
            return None;
        }
        self.end_slice(now, "empty", NOT_TIMED);
        self.next_queue(now)
    }

    /// Chooses the tree to serve, and starts the slice of its first queue. `None` if that tree is
    /// empty. The caller has checked that a request is queued, so the chosen tree has a queue.
    fn next_queue(&mut self, now: Time) -> Option<QueueId> {
        self.choose_tree(now);
        let (queue, _) = self.trees.first(self.serving.class, self.serving.kind)?;
        self.begin_slice(now, queue, "first_of_tree");
        Some(queue)
    }

    /// Chooses the tree to serve, of the highest class with requests. It stays the same while its
    /// share lasts; then the tree whose first queue has the lowest key follows.
    fn choose_tree(&mut self, now: Time) {
        let now_jiffies = jiffies(now);
        let class = [Class::RealTime, Class::BestEffort]
            .into_iter()
            .find(|&class| self.trees.busy_queues_of(class) > 0)
            .unwrap_or(Class::Idle);
        // The reason for leaving the served tree, if there is one. The idle class has one tree: if
        // that is empty, there is no other to choose. Without an end (`expires`) the tree is left,
        // too: no tree was served yet, all trees were empty since, or a queue of another kind
        // preempts.
        let ServedTree { class: served_class, kind: served_kind, expires } = self.serving;
        let is_empty = self.trees.count(served_class, served_kind) == 0;
        let why = if class != served_class {
            "class"
        } else if class != Class::Idle && is_empty {
            "tree_empty"
        } else if expires.is_none_or(|end| now_jiffies >= end) {
            "share_used"
        } else {
            return;
        };
        // The next tree, and its share of the time.
        let lowest = TreeKind::ALL
            .into_iter()
            .filter_map(|kind| {
                let (_, key) = self.trees.first(class, kind)?;
                Some((key, kind))
            })
            .min_by_key(|&(key, _)| key);
        // Whenever this runs, some queue has a request. The default is thus not used.
        let kind = lowest.map_or(TreeKind::SyncNoIdle, |(_, kind)| kind);
        let busy = self.trees.busy_queues_of(class);
        let average = self.average_busy_queues(class);
        let queues = self.trees.count(class, kind);
        let slice = if class == Class::Idle {
            IDLE_CLASS_SLICE
        } else {
            let async_of_busy = (kind == TreeKind::Async)
                .then(|| (self.trees.busy_async_queues(), self.trees.busy_queues()));
            // The larger number, as in the kernel: a queue that is empty for a moment still gets
            // its part of the time.
            let queues_of_class = busy.max(average);
            slices::tree_slice(&self.tunables, TreeLoad { queues, queues_of_class, async_of_busy })
        };
        self.serving = ServedTree { class, kind, expires: Some(now_jiffies + slice) };
        self.log.log_with(now, || Decision::Tree {
            class,
            kind: kind.name(),
            why,
            queues,
            busy,
            average,
            until_ms: now_jiffies + slice,
        });
    }

    /// The average number of busy queues of a class. For the idle class it is the best-effort
    /// average, which only the log shows.
    fn average_busy_queues(&self, class: Class) -> u32 {
        if class == Class::RealTime { self.average_real_time } else { self.average_best_effort }
    }

    /// Makes `id` the active queue, and logs it with the reason `why`. The length of its slice is
    /// set at its first completion, so that the first seek is not a part of it.
    fn begin_slice(&mut self, now: Time, id: QueueId, why: &'static str) {
        self.active = Some(id);
        self.active_process = None;
        self.queues[id].begin_slice();
        // An active queue is no longer found as a cooperator.
        self.update_sector_index(id);
        let queue = &self.queues[id];
        self.log.log_with(now, || Decision::SliceBegin {
            queue: id.0,
            process: queue.owner,
            class: queue.priority.class,
            level: queue.priority.level,
            kind: queue.kind().name(),
            why,
            // A queue with requests has a position: the 0 is not used.
            key_ms: queue.position.map_or(0, |position| position.key),
            queued: queue.requests.count() as u32,
        });
    }

    /// Sets the length of the slice of queue `id` once its first request has completed, from the
    /// mean number of busy queues, which is updated here.
    fn set_slice_length(&mut self, now: Time, id: QueueId) {
        let queue = &self.queues[id];
        // For the idle class, the busy best-effort queues count.
        let class = queue.priority.class.min(Class::BestEffort);
        let average =
            slices::busy_average(self.average_busy_queues(class), self.trees.busy_queues_of(class));
        match class {
            Class::RealTime => self.average_real_time = average,
            _ => self.average_best_effort = average,
        }
        let level = queue.priority.level.min(LEVEL_LOWEST);
        let slice = slices::scaled_slice(&self.tunables, queue.is_sync, level, average);
        let end = jiffies(now) + slice;
        self.queues[id].slice_end = Some(end);
        self.log.log_with(now, || Decision::SliceSet {
            queue: id.0,
            slice_ms: slice,
            end_ms: end,
            average,
        });
    }

    /// Handles a completed request of the active queue: its slice continues, the device is kept
    /// idle for it, or its slice ends. The first completion of a slice sets its length, because the
    /// seek to the queue's first request is not a part of it. The slice of the only busy queue is
    /// extended by the idle time if its next request may come after its end. A queue with requests,
    /// or an asynchronous one, simply continues its slice.
    pub(super) fn continue_after_completion(&mut self, now: Time, id: QueueId) {
        let now_jiffies = jiffies(now);
        if self.queues[id].slice_end.is_none() {
            self.set_slice_length(now, id);
        }
        if self.should_wait_busy(now_jiffies, id) {
            self.queues[id].slice_end = Some(now_jiffies + self.tunables.slice_idle);
            self.queues[id].is_waited_for = true;
        }
        let queue = &self.queues[id];
        if queue.is_abandoned() {
            self.end_slice(now, "process_ended", NOT_TIMED);
        } else if queue.is_slice_used(now_jiffies) {
            self.end_slice(now, "used", TIMED);
        } else if queue.is_idle_class() {
            self.end_slice(now, "idle_class", TIMED);
        } else if queue.is_sync
            && queue.requests.is_empty()
            && self.find_close_cooperator(id).is_none()
        {
            // Without a request of its own, and without one of another process close to the head.
            // With such a one, the next dispatch gives its queue the slice.
            self.begin_idling_if_useful(now, id);
        }
    }

    /// Ends short slices after a dispatch while other queues wait: of an asynchronous queue after
    /// its number of requests, of the idle class after each request. All other slices end by time.
    pub(super) fn end_short_slice(&mut self, now: Time, id: QueueId) {
        let queue = &self.queues[id];
        if self.trees.busy_queues() <= 1 {
            return;
        }
        let level = queue.priority.level.min(LEVEL_LOWEST);
        let requests_max = slices::async_requests_per_slice(&self.tunables, level);
        if queue.is_idle_class() {
            self.end_slice(now, "idle_class", NOT_TIMED);
        } else if !queue.is_sync && queue.slice_dispatched >= requests_max {
            self.end_slice(now, "async_requests_used", NOT_TIMED);
        }
    }

    /// Ends the slice of the active queue, if there is one, and the idle time for it; `why` is the
    /// reason for the log. A queue without requests leaves the trees. Any other gets a new position
    /// in its tree. With `is_timed`, the unused or overrun time counts for its next position in the
    /// tree.
    pub(super) fn end_slice(&mut self, now: Time, why: &'static str, is_timed: bool) {
        let Some(id) = self.active else { return };
        let now_jiffies = jiffies(now);
        self.stop_idling(now, id, why);
        let queue = &mut self.queues[id];
        let left_ms = queue.slice_end.map(|end| end - now_jiffies);
        let dispatched = queue.slice_dispatched;
        self.log.log_with(now, || Decision::SliceEnd { queue: id.0, why, left_ms, dispatched });
        queue.is_device_idle_for_it = false;
        queue.is_waited_for = false;
        // With `seeky=history`, a joined queue that is seeky at the end of a slice is split. The
        // other detector splits it later, after a time.
        queue.must_split |= queue.is_shared && !queue.seek.uses_mean() && queue.seek.is_seeky();
        if let Some(left_ms) = left_ms.filter(|_| is_timed) {
            queue.residual = left_ms;
        }
        self.active = None;
        self.active_process = None;
        if self.queues[id].requests.is_empty() {
            self.remove_from_trees(id);
        } else {
            let is_first = false;
            self.insert_into_trees(now_jiffies, id, is_first);
        }
        self.update_sector_index(id);
        self.queues.remove_if_unused(id);
    }

    /// Removes a queue from the trees. Without another queue there, the share of the served tree
    /// ends.
    fn remove_from_trees(&mut self, id: QueueId) {
        if let Some(position) = self.queues[id].position.take() {
            self.trees.remove(position);
        }
        if self.trees.busy_queues() == 0 {
            self.serving.expires = None;
        }
    }

    /// Inserts a queue into its tree, or moves it there. `is_first`: before all others of its tree.
    /// Otherwise its key is the present time, plus an offset by its level, minus the rest of its
    /// last slice, which counts once. The idle class has its own keys.
    pub(super) fn insert_into_trees(&mut self, now: Jiffies, id: QueueId, is_first: bool) {
        let queue = &mut self.queues[id];
        let (class, kind) = (queue.priority.class, queue.kind());
        // In both values the queue itself counts if it is already in the trees.
        let first_key = self.trees.first(class, kind).map_or(now, |(_, key)| key);
        let queues = self.trees.busy_queues();
        if let Some(position) = queue.position.take() {
            self.trees.remove(position);
        }
        // The idle class is served in order. Preemption puts a queue a second before the first one,
        // as in the kernel: also its tree then has the lowest key.
        let key = if class == Class::Idle {
            self.trees.last_idle_key().unwrap_or(now) + slices::IDLE_DELAY
        } else if is_first {
            first_key - HZ
        } else {
            let level = queue.priority.level.min(LEVEL_LOWEST);
            let offset = slices::key_offset(&self.tunables, queue.is_sync, level, queues);
            now + offset - core::mem::take(&mut queue.residual)
        };
        queue.position = Some(self.trees.insert(id, class, kind, key));
    }
}
