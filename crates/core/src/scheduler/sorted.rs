//! A sorted map for many queued requests.
//!
//! The entries are in *blocks*: short arrays, each sorted, in ascending order. The first keys of
//! all blocks are in a separate array. A lookup is thus two binary searches, one over memory that
//! is always in the CPU cache, and one over a few cache lines. A tree of 65,536 entries would visit
//! five nodes at arbitrary addresses. An insertion moves the entries behind it in its block, at
//! most one or two kilobytes. A full block is split into two.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// Most values in a block.
const BLOCK_MAX: usize = 64;

/// Values by key; keys are unique.
///
/// Invariants:
///
/// 1. Keys ascend within a block and from block to block. No block is empty except a single one,
///    and two neighbours have at least half of `BLOCK_MAX` entries together.
/// 2. `block_first_keys` has the first key of each block in order, or a smaller one that is still
///    larger than all keys before.
#[derive(Debug)]
pub(super) struct BlockSortedMap<K, V> {
    /// A lower bound of the keys of each block: see invariant 2.
    block_first_keys: Vec<K>,
    /// The blocks in ascending order of their keys.
    blocks: Vec<SortedBlock<K, V>>,
}

/// A key and its value, if present.
type MapEntry<'a, K, V> = Option<(K, &'a V)>;

/// A block of entries.
#[derive(Debug)]
struct SortedBlock<K, V> {
    /// Number of entries. It is stored outside the box, so that a lookup needs no extra memory
    /// access.
    count: usize,
    /// The entries, and unused ones behind them.
    pairs: Box<Pairs<K, V>>,
}

/// Keys separate from their values, because a lookup reads keys only.
#[derive(Debug)]
struct Pairs<K, V> {
    /// The keys, ascending up to the number of entries.
    keys: [K; BLOCK_MAX],
    /// The value of the key at the same index.
    values: [V; BLOCK_MAX],
}

impl<K, V> Default for BlockSortedMap<K, V> {
    /// An empty map, without a block.
    fn default() -> BlockSortedMap<K, V> {
        BlockSortedMap { block_first_keys: Vec::new(), blocks: Vec::new() }
    }
}

impl<K: Copy + Ord, V: Copy> BlockSortedMap<K, V> {
    /// Returns true if the map has no entry.
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.first().is_none_or(|block| block.count == 0)
    }

    /// Inserts a value; its key must be absent.
    pub(super) fn insert(&mut self, key: K, value: V) {
        if self.blocks.is_empty() {
            self.block_first_keys.push(key);
            self.blocks.push(SortedBlock::of(key, value));
            return;
        }
        let mut index = self.block_index(&key);
        if self.blocks[index].count == BLOCK_MAX {
            let behind = self.blocks[index].split();
            self.block_first_keys.insert(index + 1, behind.keys()[0]);
            self.blocks.insert(index + 1, behind);
            // The key belongs to the new block if it is not before it.
            index += usize::from(self.block_first_keys[index + 1] <= key);
        }
        self.blocks[index].insert(key, value);
        self.block_first_keys[index] = self.block_first_keys[index].min(key);
    }

    /// Removes and returns the value of a key; `None` if the key is absent. A block that is less
    /// than half full is merged with the next one, and then the block before with the result, if
    /// they are small.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        if self.blocks.is_empty() {
            return None;
        }
        let index = self.block_index(key);
        let value = self.blocks[index].remove(key)?;
        if self.blocks[index].count < BLOCK_MAX / 2 {
            self.merge_with_next_if_small(index);
            self.merge_with_next_if_small(index.saturating_sub(1));
        }
        Some(value)
    }

    /// The last entry before `key`; `None` without one.
    pub(super) fn last_before(&self, key: &K) -> MapEntry<'_, K, V> {
        let (before, _) = self.entries_around(key);
        before
    }

    /// The first entry at `key` or after it; `None` without one.
    pub(super) fn first_from(&self, key: &K) -> MapEntry<'_, K, V> {
        let (_, at_or_after) = self.entries_around(key);
        at_or_after
    }

    /// Returns the last entry before `key`, and the first one at or after it. The values are not
    /// read here, because they may be far away in memory.
    #[inline]
    pub(super) fn entries_around(&self, key: &K) -> (MapEntry<'_, K, V>, MapEntry<'_, K, V>) {
        if self.blocks.is_empty() {
            return (None, None);
        }
        let block_index = self.block_index(key);
        let block = &self.blocks[block_index];
        let index = block.index_of(key);
        let before = match index {
            0 => block_index.checked_sub(1).and_then(|previous| self.blocks[previous].last()),
            _ => block.get(index - 1),
        };
        let at_or_after = block.get(index).or_else(|| self.blocks.get(block_index + 1)?.get(0));
        (before, at_or_after)
    }

    /// Index of the block that holds the key, or would hold it.
    fn block_index(&self, key: &K) -> usize {
        self.block_first_keys.partition_point(|first| first <= key).saturating_sub(1)
    }

    /// Merges the block at `index` with the next one if the two have fewer than half of `BLOCK_MAX`
    /// entries together, or one is empty. The first key of the block at `index` stays: it is a
    /// lower bound of the merged keys. No effect on the last block.
    fn merge_with_next_if_small(&mut self, index: usize) {
        let count = self.blocks[index].count;
        if let Some(behind) = self.blocks.get(index + 1)
            && (count + behind.count < BLOCK_MAX / 2 || count == 0 || behind.count == 0)
        {
            self.block_first_keys.remove(index + 1);
            let behind = self.blocks.remove(index + 1);
            self.blocks[index].append(&behind);
        }
    }
}

impl<K: Copy + Ord, V: Copy> SortedBlock<K, V> {
    /// A block with one entry.
    fn of(key: K, value: V) -> SortedBlock<K, V> {
        let pairs = Box::new(Pairs { keys: [key; BLOCK_MAX], values: [value; BLOCK_MAX] });
        SortedBlock { count: 1, pairs }
    }

    /// Keys of the entries in ascending order.
    fn keys(&self) -> &[K] {
        &self.pairs.keys[..self.count]
    }

    /// Returns the index of the key in this block, or the index where it belongs: the number of
    /// smaller keys.
    fn index_of(&self, key: &K) -> usize {
        self.keys().partition_point(|other_key| other_key < key)
    }

    /// Returns the entry at an index; `None` past the last one.
    #[inline]
    fn get(&self, index: usize) -> MapEntry<'_, K, V> {
        self.keys().get(index).map(|key| (*key, &self.pairs.values[index]))
    }

    /// Entry with the largest key of the block; `None` in an empty block.
    fn last(&self) -> MapEntry<'_, K, V> {
        self.get(self.count.checked_sub(1)?)
    }

    /// Inserts a value; the block must not be full.
    fn insert(&mut self, key: K, value: V) {
        let (index, count) = (self.index_of(&key), self.count);
        let Pairs { keys, values } = &mut *self.pairs;
        keys.copy_within(index..count, index + 1);
        values.copy_within(index..count, index + 1);
        (keys[index], values[index]) = (key, value);
        self.count += 1;
    }

    /// Removes and returns the value of a key; `None` if the key is absent.
    fn remove(&mut self, key: &K) -> Option<V> {
        let index = self.index_of(key);
        let (_, &value) = self.get(index).filter(|(found_key, _)| found_key == key)?;
        let Pairs { keys, values } = &mut *self.pairs;
        keys.copy_within(index + 1..self.count, index);
        values.copy_within(index + 1..self.count, index);
        self.count -= 1;
        Some(value)
    }

    /// Moves the second half of a full block into a new one.
    fn split(&mut self) -> SortedBlock<K, V> {
        let Pairs { keys, values } = &*self.pairs;
        let mut behind = SortedBlock::of(keys[BLOCK_MAX / 2], values[BLOCK_MAX / 2]);
        behind.count = BLOCK_MAX / 2;
        behind.pairs.keys[..BLOCK_MAX / 2].copy_from_slice(&keys[BLOCK_MAX / 2..]);
        behind.pairs.values[..BLOCK_MAX / 2].copy_from_slice(&values[BLOCK_MAX / 2..]);
        self.count = BLOCK_MAX / 2;
        behind
    }

    /// Appends the entries of the next block; they must fit.
    fn append(&mut self, next_block: &SortedBlock<K, V>) {
        let total = self.count + next_block.count;
        self.pairs.keys[self.count..total].copy_from_slice(next_block.keys());
        self.pairs.values[self.count..total]
            .copy_from_slice(&next_block.pairs.values[..next_block.count]);
        self.count = total;
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::*;

    /// The map is compared with a tree while it grows to thousands of entries, shrinks, grows again
    /// and shrinks to a few. Each phase has a number of steps and of insertions in eight steps.
    #[test]
    fn block_sorted_map_matches_a_btree_map() {
        let (mut sorted, mut tree) = (BlockSortedMap::default(), BTreeMap::new());
        let mut state = 7_u64;
        // Returns a random number below `below`.
        let mut draw_below = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut entries_max = 0;
        for (steps, inserts_of_eight) in [(20_000, 7), (30_000, 2), (10_000, 6), (20_000, 1)] {
            for _ in 0..steps {
                let key = draw_below(20_000);
                if draw_below(8) < inserts_of_eight {
                    if tree.insert(key, key + 1).is_none() {
                        sorted.insert(key, key + 1);
                    }
                } else {
                    // An existing key, if there is one.
                    let key = tree.range(key..).next().map_or(key, |(key, _)| *key);
                    assert_eq!(sorted.remove(&key), tree.remove(&key), "{key}");
                }
                let searched_key = draw_below(20_000);
                let pair = |(key, value): (&u64, &u64)| (*key, *value);
                let before = tree.range(..searched_key).next_back().map(pair);
                assert_eq!(
                    sorted.last_before(&searched_key).map(|(key, value)| (key, *value)),
                    before,
                    "before {searched_key}"
                );
                let from = tree.range(searched_key..).next().map(pair);
                assert_eq!(
                    sorted.first_from(&searched_key).map(|(key, value)| (key, *value)),
                    from,
                    "from {searched_key}"
                );
                assert_eq!(sorted.is_empty(), tree.is_empty());
                entries_max = entries_max.max(tree.len());
                for pair in sorted.blocks.windows(2) {
                    let counts = [pair[0].count, pair[1].count];
                    assert!(counts[0] + counts[1] >= BLOCK_MAX / 2 && !counts.contains(&0));
                }
            }
        }
        assert!(entries_max > 100 * BLOCK_MAX && tree.len() < 10, "{entries_max}, {}", tree.len());
    }

    /// Removal in ascending order empties block after block in the middle of the map. The
    /// neighbours of the removed keys are then found across the gap.
    #[test]
    fn emptied_blocks_are_skipped() {
        let mut sorted = BlockSortedMap::default();
        (0..1_000_u64).for_each(|key| sorted.insert(key, ()));
        for key in 320..704 {
            assert_eq!(sorted.remove(&key), Some(()));
            assert_eq!(sorted.last_before(&(key + 1)).map(|(before, _)| before), Some(319));
            assert_eq!(sorted.first_from(&320).map(|(next, _)| next), Some(key + 1));
        }
        (0..320).chain(704..1_000).for_each(|key| assert_eq!(sorted.remove(&key), Some(())));
        assert!(sorted.is_empty() && sorted.blocks.len() == 1);
    }
}
