//! Close cooperators: processes with neighbouring requests, such as several threads that read one
//! file in turn.
//!
//! If a queue runs empty and another has a request close to the head, the other queue is served
//! instead of idling, and the two are joined. With its next request, each process of the one queue
//! moves to the other. A joined queue that becomes seeky (its requests are far apart) is split
//! again, process by process.

use alloc::collections::BTreeSet;

use super::tunables::{HZ, Jiffies};
use super::{Cfq, QueueId};
use crate::decision::Decision;
use crate::request::Class;
use crate::unit::Time;

/// Largest distance that counts as close: 8 × 1024 sectors, 4 MiB, the kernel's value.
pub(super) const CLOSE_SECTORS: u64 = 8 * 1024;

/// With `seeky=mean`: time for which a joined queue must be seeky before it is split. One second,
/// as in 2.6.33.
const SPLIT_AFTER: Jiffies = HZ;

/// Queues by priority level and by the sector of their next request, each as (level, sector,
/// queue).
pub(super) type QueuesBySector = BTreeSet<(u8, u64, QueueId)>;

impl Cfq {
    /// Updates the queue's entry in `by_sector`, at its next request. Only a synchronous queue in a
    /// tree has one, and neither the active queue nor one of the idle class. Called after each
    /// change of these properties.
    pub(super) fn update_sector_index(&mut self, id: QueueId) {
        let queue = &mut self.queues[id];
        let is_findable = queue.is_sync
            && queue.priority.class != Class::Idle
            && queue.position.is_some()
            && self.active != Some(id);
        let level = queue.priority.level;
        let new_key = queue.next.filter(|_| is_findable).map(|next| (level, next.start));
        let key_before = core::mem::replace(&mut queue.next_sector_key, new_key);
        if key_before == new_key {
            return;
        }
        if let Some((level, sector)) = key_before {
            self.by_sector.remove(&(level, sector, id));
        }
        if let Some((level, sector)) = new_key {
            self.by_sector.insert((level, sector, id));
        }
    }

    /// Returns a queue of the same level and class as `id` whose next request is close to the head,
    /// and the distance in sectors. `None` without one, or if one of the two queues is seeky: its
    /// closeness is chance. `None` also if `id` is asynchronous, of the idle class, or the only
    /// busy queue. All queues in `by_sector` are synchronous, not of the idle class, and not
    /// active: the active queue `id` is none of them.
    pub(super) fn find_close_cooperator(&self, id: QueueId) -> Option<(QueueId, u64)> {
        let queue = &self.queues[id];
        if !queue.is_sync
            || queue.is_idle_class()
            || queue.seek.is_seeky()
            || self.trees.busy_queues() == 1
        {
            return None;
        }
        // The nearest entries on both sides of the head may be of another level, if this level has
        // none there. Otherwise the nearer of the two counts.
        let level = queue.priority.level;
        // Precedes all entries of this level that start at the head or behind it.
        let head_entry = (level, self.head, QueueId(0));
        let ahead = self.by_sector.range(head_entry..).next();
        let behind = self.by_sector.range(..head_entry).next_back();
        let distance = |&(_, sector, _): &(u8, u64, QueueId)| sector.abs_diff(self.head);
        let entry = ahead
            .into_iter()
            .chain(behind)
            .filter(|&&(entry_level, ..)| entry_level == level)
            .min_by_key(|entry| distance(entry))?;
        let &(_, _, candidate_id) = entry;
        let candidate = &self.queues[candidate_id];
        let is_partner = distance(entry) <= CLOSE_SECTORS
            && !candidate.seek.is_seeky()
            && (candidate.priority.class == Class::RealTime)
                == (queue.priority.class == Class::RealTime);
        is_partner.then(|| (candidate_id, distance(entry)))
    }

    /// Joins two queues, whose requests are `distance` sectors apart. The processes of the queue
    /// with fewer of them move to the other at their next request; at equal numbers `one` moves. If
    /// `other` is joined already, the end of its chain takes its place. No effect if `one` is
    /// joined already, if the chain ends at `one`, or if a queue has no process.
    pub(super) fn join(&mut self, now: Time, one: QueueId, other: QueueId, distance: u64) {
        let Some(other) = self.last_joined_queue(other, one) else { return };
        if self.queues[one].joins.is_some()
            || self.queues[one].processes == 0
            || self.queues[other].processes == 0
        {
            return;
        }
        let is_other_larger = self.queues[other].processes >= self.queues[one].processes;
        let (from, to) = if is_other_larger { (one, other) } else { (other, one) };
        self.queues[from].joins = Some(to);
        self.queues[to].joined_by += 1;
        self.log.log_with(now, || Decision::Join { queue: from.0, into: to.0, distance });
    }

    /// Returns the last queue of the chain of joins from the queue `first`. Returns `None` if it is
    /// `excluded`, because a join would form a cycle.
    fn last_joined_queue(&self, first: QueueId, excluded: QueueId) -> Option<QueueId> {
        let mut end = first;
        while let Some(next) = self.queues[end].joins {
            end = next;
        }
        Some(end).filter(|&end| end != excluded)
    }

    /// Returns true if the processes of a joined queue should be separated: the next process that
    /// sends a request to it must leave it. Always false for a queue that is not shared.
    pub(super) fn must_split(&self, now: Jiffies, id: QueueId) -> bool {
        let queue = &self.queues[id];
        let is_long_seeky = queue.seeky_since.is_some_and(|since| now > since + SPLIT_AFTER);
        queue.is_shared && (queue.must_split || is_long_seeky)
    }

    /// With `seeky=mean`: sets `seeky_since` of a joined queue to the time since which it is seeky,
    /// or to `None` if it is not. No effect on any other queue.
    pub(super) fn update_seeky_since(&mut self, now: Jiffies, id: QueueId) {
        let queue = &mut self.queues[id];
        if queue.is_shared && queue.seek.uses_mean() {
            queue.seeky_since = queue.seek.is_seeky().then(|| queue.seeky_since.unwrap_or(now));
        }
    }
}
