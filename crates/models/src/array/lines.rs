//! Cache lines of a controller: lines in its memory, lines being read, and the requests that wait
//! for them.
//!
//! A random line is evicted for a new one. Eviction of the oldest line would be unrealistic: with
//! one stream too many in rotation, each line would be evicted just before its use. A line that is
//! being read cannot be evicted. If all lines are being read, there is no room.

use std::collections::{BTreeMap, BTreeSet};

use crate::random::SeededRng;

/// State of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLineState {
    /// Not in the cache.
    Absent,
    /// Requested, but not yet read.
    Requested,
    /// In the cache.
    Present,
}

/// The cache lines, by line number.
#[derive(Debug)]
pub struct LineCache {
    /// Maximum number of lines, present or being read.
    lines_max: usize,
    /// For each cached line its index in `present`, or `None` while it is being read.
    cached_lines: BTreeMap<u64, Option<usize>>,
    /// Numbers of the present lines, in any order.
    present: Vec<u64>,
    /// Choice of the evicted line. The seed is fixed, so every simulation is repeatable.
    rng: SeededRng,
    /// Pairs of a line that is being read and a request that waits for it.
    waiting: BTreeSet<(u64, u32)>,
}

impl LineCache {
    /// Creates an empty cache of at most `lines_max` lines.
    pub fn new(lines_max: usize) -> LineCache {
        LineCache {
            lines_max,
            cached_lines: BTreeMap::new(),
            present: Vec::new(),
            rng: SeededRng::new(0),
            waiting: BTreeSet::new(),
        }
    }

    /// State of the line with this number.
    pub fn state(&self, line: u64) -> CacheLineState {
        match self.cached_lines.get(&line) {
            None => CacheLineState::Absent,
            Some(None) => CacheLineState::Requested,
            Some(Some(_)) => CacheLineState::Present,
        }
    }

    /// Reserves a place for `line`, which is absent and about to be read. Discards a random present
    /// line if the cache is full. Returns false if all lines of a full cache are being read.
    pub fn reserve_line(&mut self, line: u64) -> bool {
        if self.cached_lines.len() >= self.lines_max {
            if self.present.is_empty() {
                return false;
            }
            let index = self.rng.below(self.present.len() as u64) as usize;
            self.discard(self.present[index]);
        }
        self.cached_lines.insert(line, None);
        true
    }

    /// Marks `line`, which was being read, as present. No effect on any other line.
    pub fn mark_present(&mut self, line: u64) {
        if let Some(present_index @ None) = self.cached_lines.get_mut(&line) {
            *present_index = Some(self.present.len());
            self.present.push(line);
        }
    }

    /// Drops a line that is useless, outdated, or could not be read. No effect on an absent line.
    /// Requests that wait for the line stay recorded; the caller takes them.
    pub fn discard(&mut self, line: u64) {
        if let Some(Some(index)) = self.cached_lines.remove(&line) {
            self.present.swap_remove(index);
            // The last present line has moved to the free index.
            if let Some(moved_line) = self.present.get(index) {
                self.cached_lines.insert(*moved_line, Some(index));
            }
        }
    }

    /// Records that the request `request` waits for `line`, which is being read.
    pub fn add_waiter(&mut self, line: u64, request: u32) {
        self.waiting.insert((line, request));
    }

    /// Removes and returns one of the requests that wait for `line`, or `None` if none waits.
    pub fn take_waiter(&mut self, line: u64) -> Option<u32> {
        let (_, request) = *self.waiting.range((line, 0)..=(line, u32::MAX)).next()?;
        self.waiting.remove(&(line, request));
        Some(request)
    }

    /// Removes the request `request` from the requests that wait for `line`.
    pub fn remove_waiter(&mut self, line: u64, request: u32) {
        self.waiting.remove(&(line, request));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cache has room for two lines. Line 3 gets none while both are being read, and replaces
    /// line 1 when that line is present.
    #[test]
    fn present_line_is_evicted_and_an_expected_one_never() {
        let mut lines = LineCache::new(2);
        assert!(lines.reserve_line(1) && lines.reserve_line(2));
        assert!(!lines.reserve_line(3));
        lines.mark_present(1);
        assert!(lines.reserve_line(3));
        assert_eq!(
            [1, 2, 3].map(|line| lines.state(line)),
            [CacheLineState::Absent, CacheLineState::Requested, CacheLineState::Requested]
        );
        lines.mark_present(2);
        lines.mark_present(3);
        lines.discard(2);
        assert_eq!(
            [2, 3].map(|line| lines.state(line)),
            [CacheLineState::Absent, CacheLineState::Present]
        );
    }

    /// Lines are read in rotation, 1.5 times as many as the cache holds. Eviction of the oldest
    /// would never hit. Random eviction has the hit ratio h = exp(−1.5 (1 − h)) = 0.42: 1.5 (1 − h)
    /// evictions per cached line lie between two uses of a line. The first 10 of 20 rounds fill the
    /// cache and are not counted.
    #[test]
    fn random_eviction_still_hits_with_more_lines_than_the_cache_holds() {
        let mut lines = LineCache::new(1_000);
        let mut hits = 0;
        for round in 0..20 {
            for line in 0..1_500 {
                if lines.state(line) == CacheLineState::Present {
                    hits += u32::from(round >= 10);
                } else {
                    assert!(lines.reserve_line(line));
                    lines.mark_present(line);
                }
            }
        }
        let counted_uses = 10.0 * 1_500.0;
        let hit_ratio = f64::from(hits) / counted_uses;
        assert!((hit_ratio - 0.42).abs() < 0.03, "{hit_ratio}");
    }

    /// Requests 1 and 2 wait for line 7, and request 1 is removed.
    #[test]
    fn each_waiter_is_returned_once() {
        let mut lines = LineCache::new(4);
        assert!(lines.reserve_line(7));
        lines.add_waiter(7, 1);
        lines.add_waiter(7, 2);
        lines.remove_waiter(7, 1);
        assert_eq!(lines.take_waiter(7), Some(2));
        assert_eq!(lines.take_waiter(7), None);
    }
}
