//! The service trees: the choice of the next queue. A *slice* is the time for which one queue, the
//! *active* one, has the device. A queue is *seeky* if its requests are far apart.
//!
//! A queue with requests is in one tree, by its class (real-time, best-effort) and its kind:
//!
//! - **sync**: a process waits, and idling for the next request pays;
//! - **sync-noidle**: a process waits, but idling does not pay (seeky queues, long think times):
//!   these share one slice, several in the device at once;
//! - **async**: no process waits.
//!
//! The idle class has one tree for all. Inside a tree the lowest key is served first. A key is a
//! time: the time of arrival, plus an offset that grows with the number of queues and with lower
//! priority, minus the rest of the last slice.

use super::QueueId;
use alloc::collections::BTreeMap;

use super::tunables::Jiffies;
use crate::request::Class;

/// Kind of a service tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TreeKind {
    /// No process waits for the requests.
    Async,
    /// Processes wait, and idling for their next requests does not pay.
    SyncNoIdle,
    /// Processes wait, and idling for their next requests pays.
    Sync,
}

impl TreeKind {
    /// All kinds; the first wins when two have equal keys, as in the kernel.
    pub(super) const ALL: [TreeKind; 3] = [TreeKind::SyncNoIdle, TreeKind::Sync, TreeKind::Async];

    /// Name in the decision log.
    pub(super) const fn name(self) -> &'static str {
        match self {
            TreeKind::Async => "async",
            TreeKind::SyncNoIdle => "sync_noidle",
            TreeKind::Sync => "sync",
        }
    }
}

/// A queue's position in the trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TreePosition {
    /// Index of its tree: see `tree_index`.
    tree: usize,
    /// The key, in jiffies.
    pub key: Jiffies,
    /// Insertion number, which orders equal keys.
    insertion: u64,
}

/// A tree: queues by key, equal keys in the order of insertion.
type Tree = BTreeMap<(Jiffies, u64), QueueId>;

/// Number of trees: three kinds for each of two classes, and one for the idle class.
const TREES: usize = 7;

/// All service trees of the one group.
#[derive(Debug, Default)]
pub(super) struct ServiceTrees {
    /// The trees by `tree_index`.
    trees: [Tree; TREES],
    /// Number of insertions so far.
    insertions: u64,
}

/// Index of the tree of a class and kind.
const fn tree_index(class: Class, kind: TreeKind) -> usize {
    let base = match class {
        Class::RealTime => 0,
        Class::BestEffort => 3,
        Class::Idle => return TREES - 1,
    };
    base + kind as usize
}

impl ServiceTrees {
    /// Inserts a queue into the tree of its class and kind, under `key`: the queue with the lowest
    /// key is served first. Returns its position.
    pub(super) fn insert(
        &mut self,
        queue: QueueId,
        class: Class,
        kind: TreeKind,
        key: Jiffies,
    ) -> TreePosition {
        self.insertions += 1;
        let insertion = self.insertions;
        let position = TreePosition { tree: tree_index(class, kind), key, insertion };
        self.trees[position.tree].insert((key, insertion), queue);
        position
    }

    /// Removes the queue at `position`.
    pub(super) fn remove(&mut self, position: TreePosition) {
        self.trees[position.tree].remove(&(position.key, position.insertion));
    }

    /// The queue with the lowest key of a tree, and its key; `None` if the tree is empty.
    pub(super) fn first(&self, class: Class, kind: TreeKind) -> Option<(QueueId, Jiffies)> {
        let ((key, _), &queue) = self.trees[tree_index(class, kind)].first_key_value()?;
        Some((queue, *key))
    }

    /// The highest key of the idle class, behind which a new queue of that class is inserted;
    /// `None` without such a queue.
    pub(super) fn last_idle_key(&self) -> Option<Jiffies> {
        self.trees[TREES - 1].last_key_value().map(|((key, _), _)| *key)
    }

    /// Number of queues in a tree.
    pub(super) fn count(&self, class: Class, kind: TreeKind) -> u32 {
        self.trees[tree_index(class, kind)].len() as u32
    }

    /// Number of queues in the tree of `position`, itself included.
    pub(super) fn queues_in_tree_of(&self, position: TreePosition) -> u32 {
        self.trees[position.tree].len() as u32
    }

    /// Number of busy queues of a class: with requests, or active.
    pub(super) fn busy_queues_of(&self, class: Class) -> u32 {
        match class {
            // The one tree of this class is found under any kind.
            Class::Idle => self.count(class, TreeKind::Sync),
            _ => TreeKind::ALL.iter().map(|&kind| self.count(class, kind)).sum(),
        }
    }

    /// Number of busy queues: with requests, or active.
    pub(super) fn busy_queues(&self) -> u32 {
        self.trees.iter().map(|tree| tree.len() as u32).sum()
    }

    /// Number of busy asynchronous queues, without the idle class, whose tree mixes both kinds.
    pub(super) fn busy_async_queues(&self) -> u32 {
        self.count(Class::RealTime, TreeKind::Async)
            + self.count(Class::BestEffort, TreeKind::Async)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three queues in the sync tree, two of them with equal keys, and one in the sync-noidle tree.
    #[test]
    fn the_lowest_key_is_first_and_equal_keys_keep_their_order() {
        let mut trees = ServiceTrees::default();
        let best = Class::BestEffort;
        let late = trees.insert(QueueId(1), best, TreeKind::Sync, 80);
        trees.insert(QueueId(2), best, TreeKind::Sync, -5);
        trees.insert(QueueId(3), best, TreeKind::Sync, -5);
        trees.insert(QueueId(4), best, TreeKind::SyncNoIdle, -9);
        assert_eq!(trees.first(best, TreeKind::Sync), Some((QueueId(2), -5)));
        assert_eq!(
            (trees.queues_in_tree_of(late), trees.busy_queues_of(best), trees.busy_queues()),
            (3, 4, 4)
        );
        assert_eq!(trees.first(Class::RealTime, TreeKind::Sync), None);
    }
}
