//! Durations: the slice of a queue, the share of a tree, and the key that decides the next queue.
//! Pure arithmetic on jiffies of 1 ms. A *slice* is the time for which one queue has the device. A
//! queue is *busy* if it has requests, or has its slice now. A *tree* has the queues of one class
//! and kind, and is served until its share of the time ends.

use super::tunables::{CfqTunables, HZ, Jiffies};

/// Distance of a new idle-class key behind the last idle-class queue: 200 ms, as in the kernel.
pub(super) const IDLE_DELAY: Jiffies = HZ / 5;

/// Value of `is_sync` for a queue of synchronous requests.
const SYNC: bool = true;

/// Shortest share of a tree, in jiffies: CFQ_MIN_TT.
const TREE_SLICE_MIN: Jiffies = 2;

/// Divisor of the slice change per level (CFQ_SLICE_SCALE): a fifth of the base is added for each
/// number that the level is below 4, and subtracted for each above.
const SLICE_SCALE: Jiffies = 5;

/// The middle priority level.
const LEVEL_DEFAULT: Jiffies = 4;

/// The slice of a queue in jiffies by its level (0, the highest priority, to 7), before
/// `low_latency` shrinks it.
pub(super) fn slice_of_level(tunables: &CfqTunables, is_sync: bool, level: u8) -> Jiffies {
    let base = if is_sync { tunables.slice_sync } else { tunables.slice_async };
    base + base / SLICE_SCALE * (LEVEL_DEFAULT - Jiffies::from(level))
}

/// Returns the slice of a queue in ms while `busy_queues` queues of its class are busy. With
/// `low_latency` it shrinks so that all get a slice within `target_latency`. It does not shrink
/// below two idle times, scaled as its level scales the slice. One round is assumed to have
/// `busy_queues` slices of level 4.
pub(super) fn scaled_slice(
    tunables: &CfqTunables,
    is_sync: bool,
    level: u8,
    busy_queues: u32,
) -> Jiffies {
    let slice = slice_of_level(tunables, is_sync, level);
    let round_ms = tunables.slice_sync * Jiffies::from(busy_queues);
    if !tunables.low_latency || round_ms <= tunables.target_latency {
        return slice;
    }
    let slice_min = slice.min(2 * tunables.slice_idle * slice / tunables.slice_sync);
    (slice * tunables.target_latency / round_ms).max(slice_min)
}

/// Number of requests that an asynchronous queue may send in one slice while others wait: twice
/// `slice_async_rq` at level 7, and as many more for each higher level.
pub(super) fn async_requests_per_slice(tunables: &CfqTunables, level: u8) -> u32 {
    2 * tunables.slice_async_rq * (1 + 7u32.saturating_sub(level.into()))
}

/// Distance of a queue's key from the current time when `queues` queues are in the group: the
/// difference between the longest slice and its own, for each other queue. A queue that is being
/// added is not counted yet: the key of the first one lies *before* the current time.
pub(super) fn key_offset(tunables: &CfqTunables, is_sync: bool, level: u8, queues: u32) -> Jiffies {
    let shortfall = slice_of_level(tunables, SYNC, 0) - slice_of_level(tunables, is_sync, level);
    (Jiffies::from(queues) - 1) * shortfall
}

/// Numbers that determine a tree's share of the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct TreeLoad {
    /// Number of queues in the tree.
    pub queues: u32,
    /// Number of busy queues of its class, at present or on average; the larger of the two.
    pub queues_of_class: u32,
    /// For an asynchronous tree: the number of asynchronous busy queues, and of all busy queues.
    pub async_of_busy: Option<(u32, u32)>,
}

/// Share of a tree in jiffies: its queues' part of `target_latency`. An asynchronous tree gets
/// `slice_async` / `slice_sync` of that, or of its part among all busy queues if that is smaller.
/// A synchronous one gets at least two idle times.
pub(super) fn tree_slice(tunables: &CfqTunables, load: TreeLoad) -> Jiffies {
    let target = tunables.target_latency;
    let share = target * Jiffies::from(load.queues) / Jiffies::from(load.queues_of_class.max(1));
    let slice = match load.async_of_busy {
        Some((queues, busy)) => {
            let of_all = target * Jiffies::from(queues) / Jiffies::from(busy.max(1));
            share.min(of_all) * tunables.slice_async / tunables.slice_sync
        }
        None => share.max(2 * tunables.slice_idle),
    };
    slice.max(TREE_SLICE_MIN)
}

/// Updates the average number of busy queues of a class: follows a rise fast (3/4 at once) and a
/// fall slowly (1/4). The result is rounded to the nearest number.
pub(super) fn busy_average(average: u32, busy: u32) -> u32 {
    /// `hist_divisor` of the kernel.
    const DIVISOR: u32 = 4;
    ((DIVISOR - 1) * average.max(busy) + average.min(busy) + DIVISOR / 2) / DIVISOR
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Value of `is_sync` for a queue of asynchronous requests.
    const ASYNC: bool = false;

    /// The published table: 180 to 40 ms, and 72 to 16 ms; 32 to 4 requests.
    #[test]
    fn slice_lengths_by_level_match_the_published_table() {
        let tunables = CfqTunables::default();
        let by_level = |is_sync| -> Vec<_> {
            (0..8).map(|level| slice_of_level(&tunables, is_sync, level)).collect()
        };
        assert_eq!(by_level(SYNC), [180, 160, 140, 120, 100, 80, 60, 40]);
        assert_eq!(by_level(ASYNC), [72, 64, 56, 48, 40, 32, 24, 16]);
        let requests: Vec<_> =
            (0..8).map(|level| async_requests_per_slice(&tunables, level)).collect();
        assert_eq!(requests, [32, 28, 24, 20, 16, 12, 8, 4]);
    }

    #[test]
    fn low_latency_shrinks_slices_to_the_target_or_two_idle_times() {
        let tunables = CfqTunables::default();
        let slice_ms = |queues| scaled_slice(&tunables, SYNC, 4, queues);
        // 3 queues fit into 300 ms; 6 get 300/6. 64 would get 4.7, and get 2 * 8.
        assert_eq!([1, 3, 6, 64].map(slice_ms), [100, 100, 50, 16]);
        let off = CfqTunables { low_latency: false, ..tunables };
        assert_eq!(scaled_slice(&off, SYNC, 4, 64), 100);
    }

    /// One queue of 4 gets a quarter of 300 ms, one of 100 the minimum of two idle times of 8 ms.
    /// An asynchronous tree gets at least 2 ms.
    #[test]
    fn a_tree_gets_its_share_of_the_target() {
        let tunables = CfqTunables::default();
        let share = |queues, queues_of_class, async_of_busy| {
            tree_slice(&tunables, TreeLoad { queues, queues_of_class, async_of_busy })
        };
        assert_eq!(share(1, 4, None), 75);
        assert_eq!(share(1, 100, None), 16);
        // A quarter of 300 ms, scaled by 40/100.
        assert_eq!(share(1, 4, Some((1, 4))), 30);
        assert_eq!(share(1, 400, Some((1, 400))), 2);
    }

    #[test]
    fn the_average_rises_fast_and_falls_slowly() {
        // (3*8+0+2)/4 = 6; (3*8+6+2)/4 = 8; (3*8+0+2)/4 = 6; (3*6+0+2)/4 = 5.
        let mut average = 0;
        let trail = [8, 8, 0, 0].map(|busy| {
            average = busy_average(average, busy);
            average
        });
        assert_eq!(trail, [6, 8, 6, 5]);
    }

    /// The slices are 180 ms at level 0 and 100 ms at level 4; an asynchronous one has 40 ms. The
    /// offset is the difference to 180 ms, times the number of queues less 1.
    #[test]
    fn key_offset_depends_on_the_number_of_queues_and_the_level() {
        let tunables = CfqTunables::default();
        assert_eq!(key_offset(&tunables, SYNC, 4, 0), -80);
        assert_eq!(key_offset(&tunables, SYNC, 4, 1), 0);
        assert_eq!(key_offset(&tunables, SYNC, 4, 3), 160);
        assert_eq!(key_offset(&tunables, SYNC, 0, 3), 0);
        assert_eq!(key_offset(&tunables, ASYNC, 4, 3), 280);
    }
}
