//! What is known of pages, by their number.
//!
//! A request is hundreds of neighbours, and each is looked up several times on its
//! way to the program. With the standard library's hash that was a sixth of the
//! processor time of the thread that serves faults (`bench/python_tensors.py`): it is made against
//! keys that an enemy chooses, and scatters neighbours over the table. Here the pages of a block
//! are neighbours in the table too, and blocks are scattered by Fibonacci hashing (Knuth, The
//! Art of Computer Programming, volume 3, 6.4), so that no stride between them fills one
//! part of it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map from page numbers.
pub(super) type PageMap<V> = HashMap<u64, V, BuildHasherDefault<PageHasher>>;

/// The binary logarithm of the pages of a block: 2 MiB.
const BLOCK_ORDER: u32 = 9;

/// Hashes one page number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PageHasher(u64);

impl Hasher for PageHasher {
    fn write_u64(&mut self, page: u64) {
        // 2^64 ÷ the golden ratio, odd.
        let random_access = (page >> BLOCK_ORDER).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // Its high bits are the best mixed; the low ones choose the place in the table.
        self.0 = random_access.rotate_left(32).wrapping_add(page);
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("a page number is hashed as a whole")
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn hash(page: u64) -> u64 {
        let mut hasher = PageHasher::default();
        hasher.write_u64(page);
        hasher.finish()
    }

    #[test]
    fn neighbours_are_neighbours_and_no_stride_of_blocks_falls_on_one_place() {
        assert_eq!(hash(1025).wrapping_sub(hash(1024)), 1);
        for stride in (9..40).map(|order| 1u64 << order) {
            // A table of 65,536 places: the low 16 bits choose one.
            let places: BTreeSet<u64> = (0..1000).map(|at| hash(at * stride) & 0xffff).collect();
            assert!(places.len() > 900, "{} places at a stride of {stride}", places.len());
        }
    }
}
