//! Map from each page written during a simulation to its block.
//!
//! It is a hash table, because pages are written in any order. With a few million pages, a look-up
//! touches one place in memory and a page takes 13 to 26 bytes. A tree would touch seven places.
//! Eight adjacent pages are stored together, so a stream passes through the table cache line by
//! cache line. Entries are never removed.

/// Bits of a block number in an entry: more than the mapping has blocks. The page number plus one
/// is stored above them.
const BLOCK_BITS: u32 = 24;

/// Number of adjacent pages that are stored together.
const GROUP_PAGES: u64 = 8;

/// The block of each written page.
///
/// At most five of eight entries are used, so each search ends after a few steps. An entry is 0, or
/// the page number plus one together with the block.
#[derive(Debug, Default)]
pub struct WrittenPages {
    /// Entries of the table. Their number is 0 or a power of two of at least [`GROUP_PAGES`].
    entries: Vec<u64>,
    /// Number of used entries.
    count: usize,
}

impl WrittenPages {
    /// Number of pages in the table.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the block of a page; `None` if the page was never set.
    #[inline]
    pub fn get(&self, page: u64) -> Option<u32> {
        if self.entries.is_empty() {
            return None;
        }
        let entry = self.entries[self.entry_index(page)];
        (entry != 0).then_some((entry & ((1 << BLOCK_BITS) - 1)) as u32)
    }

    /// Sets the block of a page, in place of an earlier one. Panics if a number is too large.
    pub fn set(&mut self, page: u64, block: u32) {
        assert!(page < 1 << 39 && block < 1 << BLOCK_BITS, "both numbers fit the entry");
        if 8 * self.count >= 5 * self.entries.len() {
            self.double_table();
        }
        let index = self.entry_index(page);
        self.count += usize::from(self.entries[index] == 0);
        self.entries[index] = (page + 1) << BLOCK_BITS | u64::from(block);
    }

    /// Returns the index of a page's entry, or of the free entry where it belongs. The table must
    /// not be empty. It always has free entries, so the search ends.
    #[inline]
    fn entry_index(&self, page: u64) -> usize {
        let mask = self.entries.len() - 1;
        // Fibonacci hashing: the factor is 2^64 divided by the golden ratio. The lowest 20 bits are
        // dropped, because a low bit of the product depends on few bits of the group number.
        let group = (page / GROUP_PAGES).wrapping_mul(readpath_core::splitmix::STEP) >> 20;
        let mut index = (group * GROUP_PAGES + page % GROUP_PAGES) as usize & mask;
        while self.entries[index] != 0 && (self.entries[index] >> BLOCK_BITS) - 1 != page {
            index = (index + 1) & mask;
        }
        index
    }

    /// Doubles the table and inserts all entries again.
    fn double_table(&mut self) {
        // At least 64 entries: chosen.
        let count = (2 * self.entries.len()).max(64);
        let old_entries = std::mem::replace(&mut self.entries, vec![0; count]);
        for entry in old_entries.into_iter().filter(|entry| *entry != 0) {
            let index = self.entry_index((entry >> BLOCK_BITS) - 1);
            self.entries[index] = entry;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::random::SeededRng;

    /// Sets the blocks of streams, of every eighth page, of random pages, and of all again. A tree
    /// with the same contents is the reference. Pages with bit 36 inverted are mostly never set.
    #[test]
    fn written_pages_match_a_btree_map() {
        let (mut written, mut tree, mut rng) =
            (WrittenPages::default(), BTreeMap::new(), SeededRng::new(3));
        let random_pages: Vec<u64> = (0..20_000).map(|_| rng.below(1 << 38)).collect();
        let streams = (0..20_000).chain((1 << 37)..(1 << 37) + 5_000);
        let strided = (0..20_000).map(|nth| (1 << 30) + nth * 8);
        let pages: Vec<u64> = streams.chain(strided).chain(random_pages).collect();
        for (nth, page) in pages.iter().chain(&pages).enumerate() {
            let block = rng.below(1 << BLOCK_BITS) as u32;
            assert_eq!(written.get(*page), tree.insert(*page, block), "{nth}");
            written.set(*page, block);
            assert_eq!(written.get(page ^ 1 << 36), tree.get(&(page ^ 1 << 36)).copied());
        }
        assert_eq!(written.count(), tree.len());
    }
}
