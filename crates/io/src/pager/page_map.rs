//! Maps from page numbers.
//!
//! A request consists of hundreds of adjacent pages, and each is looked up several times on its way
//! to the program. The standard library's hash took a sixth of the processor time of the serving
//! thread (`bench/python_tensors.py`): it resists keys chosen by an attacker, and scatters adjacent
//! pages over the table. Here the pages of a block are adjacent in the table too. Blocks are
//! scattered by Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, 6.4), so that
//! no stride between blocks fills one part of the table.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use readpath_core::splitmix;

/// A map from page numbers.
pub(super) type PageMap<V> = HashMap<u64, V, BuildHasherDefault<PageHasher>>;

/// Binary logarithm of the number of pages in a block: 2 MiB.
const BLOCK_ORDER: u32 = 9;

/// Hashes one page number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PageHasher(u64);

impl Hasher for PageHasher {
    /// Hashes a page number. Adjacent pages of a block get adjacent hashes.
    fn write_u64(&mut self, page: u64) {
        // 2^64 divided by the golden ratio, odd.
        let block_hash = (page >> BLOCK_ORDER).wrapping_mul(splitmix::STEP);
        // The high bits are mixed best, and the low bits select the slot in the table.
        self.0 = block_hash.rotate_left(32).wrapping_add(page);
    }

    /// Never called: the keys are page numbers.
    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("a page number is hashed by `write_u64`")
    }

    /// Returns the hash of the last page number.
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Hash of one page number.
    fn hash(page: u64) -> u64 {
        let mut hasher = PageHasher::default();
        hasher.write_u64(page);
        hasher.finish()
    }

    /// 1,000 page numbers at each stride that is a power of two: most have a slot of their own.
    #[test]
    fn page_hash_keeps_neighbours_adjacent_and_spreads_block_strides() {
        assert_eq!(hash(1025).wrapping_sub(hash(1024)), 1);
        for stride in (9..40).map(|order| 1u64 << order) {
            // In a table of 65,536 slots, the low 16 bits select one.
            let slots: BTreeSet<u64> =
                (0..1000).map(|index| hash(index * stride) & 0xffff).collect();
            assert!(slots.len() > 900, "{} places at a stride of {stride}", slots.len());
        }
    }
}
