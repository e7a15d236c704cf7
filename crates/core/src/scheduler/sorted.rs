//! Values in the order of their keys, of which many may wait.
//!
//! They stand in *runs*: short arrays, each in order, one after the other. The first keys of all runs
//! stand together in an array of their own, so that a search is two searches by halves: one over memory that is
//! looked at all the time, and one over a few lines of it. In a tree of 65,536 it would go through five
//! nodes, which lie anywhere. What comes into a run moves what is behind it there,
//! at most a kilobyte or two; a run that is full becomes two.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// The most values in a run.
const BLOCK_MAX: usize = 64;

/// Values by key; no two keys are the same.
///
/// 1. The keys in a run go up, and from each run to the next. No run is empty but the only one, and any two
///    neighbours have at least half of `BLOCK_MAX` together.
/// 2. `firsts` has the first key of each run, in their order; or a smaller one, which still is larger
///    than all keys before.
#[derive(Debug)]
pub(super) struct BlockSortedMap<K, V> {
    firsts: Vec<K>,
    runs: Vec<SortedRun<K, V>>,
}

/// A key and its value, if there is one.
type Pair<'a, K, V> = Option<(K, &'a V)>;

/// A run.
#[derive(Debug)]
struct SortedRun<K, V> {
    /// How many values are in it; beside the run, so that a search need not look there for it.
    count: usize,
    /// What is in it, and rubbish behind that.
    pairs: Box<Pairs<K, V>>,
}

/// Keys apart from their values: a search looks at keys alone.
#[derive(Debug)]
struct Pairs<K, V> {
    keys: [K; BLOCK_MAX],
    values: [V; BLOCK_MAX],
}

impl<K, V> Default for BlockSortedMap<K, V> {
    fn default() -> BlockSortedMap<K, V> {
        BlockSortedMap { firsts: Vec::new(), runs: Vec::new() }
    }
}

impl<K: Copy + Ord, V: Copy> BlockSortedMap<K, V> {
    pub(super) fn is_empty(&self) -> bool {
        self.runs.first().is_none_or(|run| run.count == 0)
    }

    /// Puts a value in; its key is not there.
    pub(super) fn insert(&mut self, key: K, value: V) {
        if self.runs.is_empty() {
            self.firsts.push(key);
            self.runs.push(SortedRun::of(key, value));
            return;
        }
        let mut nth = self.run_of(&key);
        if self.runs[nth].count == BLOCK_MAX {
            let behind = self.runs[nth].split();
            self.firsts.insert(nth + 1, behind.keys()[0]);
            self.runs.insert(nth + 1, behind);
            nth += usize::from(self.firsts[nth + 1] <= key);
        }
        self.runs[nth].insert(key, value);
        self.firsts[nth] = self.firsts[nth].min(key);
    }

    /// Takes a value out.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        if self.runs.is_empty() {
            return None;
        }
        let nth = self.run_of(key);
        let value = self.runs[nth].remove(key)?;
        if self.runs[nth].count < BLOCK_MAX / 2 {
            self.join(nth);
            self.join(nth.saturating_sub(1));
        }
        Some(value)
    }

    /// The last one before `key`.
    pub(super) fn before(&self, key: &K) -> Pair<'_, K, V> {
        self.around(key).0
    }

    /// The first one at `key` or behind it.
    pub(super) fn from(&self, key: &K) -> Pair<'_, K, V> {
        self.around(key).1
    }

    /// The last one before `key`, and the first one at it or behind it. Their values are not looked at
    /// here, which may lie far away.
    #[inline]
    pub(super) fn around(&self, key: &K) -> (Pair<'_, K, V>, Pair<'_, K, V>) {
        if self.runs.is_empty() {
            return (None, None);
        }
        let nth = self.run_of(key);
        let run = &self.runs[nth];
        let at = run.place(key);
        let before = match at {
            0 => nth.checked_sub(1).and_then(|nth| self.runs[nth].last()),
            _ => run.get(at - 1),
        };
        let from = run.get(at).or_else(|| self.runs.get(nth + 1)?.get(0));
        (before, from)
    }

    /// The run in which a key is, or would be.
    fn run_of(&self, key: &K) -> usize {
        self.firsts.partition_point(|first| first <= key).saturating_sub(1)
    }

    /// Joins a run with the one behind it, if there is little in both or nothing in one.
    fn join(&mut self, nth: usize) {
        let count = self.runs[nth].count;
        if let Some(behind) = self.runs.get(nth + 1)
            && (count + behind.count < BLOCK_MAX / 2 || count == 0 || behind.count == 0)
        {
            self.firsts.remove(nth + 1);
            let behind = self.runs.remove(nth + 1);
            self.runs[nth].append(&behind);
        }
    }
}

impl<K: Copy + Ord, V: Copy> SortedRun<K, V> {
    fn of(key: K, value: V) -> SortedRun<K, V> {
        let pairs = Box::new(Pairs { keys: [key; BLOCK_MAX], values: [value; BLOCK_MAX] });
        SortedRun { count: 1, pairs }
    }

    fn keys(&self) -> &[K] {
        &self.pairs.keys[..self.count]
    }

    /// How many of them come before a key.
    fn place(&self, key: &K) -> usize {
        self.keys().partition_point(|there| there < key)
    }

    #[inline]
    fn get(&self, at: usize) -> Pair<'_, K, V> {
        self.keys().get(at).map(|key| (*key, &self.pairs.values[at]))
    }

    fn last(&self) -> Pair<'_, K, V> {
        self.get(self.count.checked_sub(1)?)
    }

    /// Puts a value in; there is room.
    fn insert(&mut self, key: K, value: V) {
        let (at, count) = (self.place(&key), self.count);
        let Pairs { keys, values } = &mut *self.pairs;
        keys.copy_within(at..count, at + 1);
        values.copy_within(at..count, at + 1);
        (keys[at], values[at]) = (key, value);
        self.count += 1;
    }

    fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.place(key);
        let value = *self.get(at).filter(|(there, _)| there == key)?.1;
        let Pairs { keys, values } = &mut *self.pairs;
        keys.copy_within(at + 1..self.count, at);
        values.copy_within(at + 1..self.count, at);
        self.count -= 1;
        Some(value)
    }

    /// Takes the second half out, of a run that is full.
    fn split(&mut self) -> SortedRun<K, V> {
        let Pairs { keys, values } = &*self.pairs;
        let mut behind = SortedRun::of(keys[BLOCK_MAX / 2], values[BLOCK_MAX / 2]);
        behind.count = BLOCK_MAX / 2;
        behind.pairs.keys[..BLOCK_MAX / 2].copy_from_slice(&keys[BLOCK_MAX / 2..]);
        behind.pairs.values[..BLOCK_MAX / 2].copy_from_slice(&values[BLOCK_MAX / 2..]);
        self.count = BLOCK_MAX / 2;
        behind
    }

    /// Takes in what is in the run behind it; there is room.
    fn append(&mut self, behind: &SortedRun<K, V>) {
        let all = self.count + behind.count;
        self.pairs.keys[self.count..all].copy_from_slice(behind.keys());
        self.pairs.values[self.count..all].copy_from_slice(&behind.pairs.values[..behind.count]);
        self.count = all;
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::*;

    /// Against a tree, through growth to thousands, down to none, and up again.
    #[test]
    fn it_is_what_a_tree_is() {
        let (mut sorted, mut tree) = (BlockSortedMap::default(), BTreeMap::new());
        let mut state = 7_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut most = 0;
        for (steps, inserts_of_eight) in [(20_000, 7), (30_000, 2), (10_000, 6), (20_000, 1)] {
            for _ in 0..steps {
                let key = draw(20_000);
                if draw(8) < inserts_of_eight {
                    if tree.insert(key, key + 1).is_none() {
                        sorted.insert(key, key + 1);
                    }
                } else {
                    // One that is there, as a rule.
                    let key = tree.range(key..).next().map_or(key, |(key, _)| *key);
                    assert_eq!(sorted.remove(&key), tree.remove(&key), "{key}");
                }
                let asked = draw(20_000);
                let pair = |(key, value): (&u64, &u64)| (*key, *value);
                let before = tree.range(..asked).next_back().map(pair);
                assert_eq!(
                    sorted.before(&asked).map(|(key, value)| (key, *value)),
                    before,
                    "before {asked}"
                );
                let from = tree.range(asked..).next().map(pair);
                assert_eq!(
                    sorted.from(&asked).map(|(key, value)| (key, *value)),
                    from,
                    "from {asked}"
                );
                assert_eq!(sorted.is_empty(), tree.is_empty());
                most = most.max(tree.len());
                for pair in sorted.runs.windows(2) {
                    let counts = [pair[0].count, pair[1].count];
                    assert!(counts[0] + counts[1] >= BLOCK_MAX / 2 && !counts.contains(&0));
                }
            }
        }
        assert!(most > 100 * BLOCK_MAX && tree.len() < 10, "{most}, {}", tree.len());
    }

    /// As a sweep through the sectors leaves them: run after run, from the start of one in the middle.
    #[test]
    fn emptied_blocks_are_skipped() {
        let mut sorted = BlockSortedMap::default();
        (0..1_000_u64).for_each(|key| sorted.insert(key, ()));
        for key in 320..704 {
            assert_eq!(sorted.remove(&key), Some(()));
            assert_eq!(sorted.before(&(key + 1)).map(|pair| pair.0), Some(319));
            assert_eq!(sorted.from(&320).map(|pair| pair.0), Some(key + 1));
        }
        (0..320).chain(704..1_000).for_each(|key| assert_eq!(sorted.remove(&key), Some(())));
        assert!(sorted.is_empty() && sorted.runs.len() == 1);
    }
}
