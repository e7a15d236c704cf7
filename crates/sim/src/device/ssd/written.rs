//! Which block holds each page that a run has written.
//!
//! A hash table, as pages are written anywhere: of a few million that were, each is found at one place of memory and
//! takes 13 to 26 bytes, where a tree would go through seven places. Eight neighbours stand side by side, so that a stream
//! goes through the table line by line. Nothing is ever taken out.

/// Bits of a block's number; those of a page, and one more, stand above them.
const BLOCK_BITS: u32 = 24;

/// Neighbours that stand side by side.
const GROUP: u64 = 8;

/// Blocks by page.
///
/// At most five of eight places are taken: so what is looked for is found, or a free place, after a few steps, streams or
/// not. A place is 0, or one more than the page, and its block.
#[derive(Debug, Default)]
pub struct WrittenPages {
    /// A power of two of them, of `GROUP` at least; or none.
    places: Vec<u64>,
    count: usize,
}

impl WrittenPages {
    /// How many pages are in it.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The block of a page.
    #[inline]
    pub fn get(&self, page: u64) -> Option<u32> {
        if self.places.is_empty() {
            return None;
        }
        let place = self.places[self.find(page)];
        (place != 0).then_some((place & ((1 << BLOCK_BITS) - 1)) as u32)
    }

    /// The page is in this block now.
    pub fn set(&mut self, page: u64, block: u32) {
        assert!(page < 1 << 39 && block < 1 << BLOCK_BITS, "no drive is so large");
        if 8 * self.count >= 5 * self.places.len() {
            self.grow();
        }
        let at = self.find(page);
        self.count += usize::from(self.places[at] == 0);
        self.places[at] = (page + 1) << BLOCK_BITS | u64::from(block);
    }

    /// The place of a page, or the free one where it would be.
    #[inline]
    fn find(&self, page: u64) -> usize {
        let mask = self.places.len() - 1;
        let group = (page / GROUP).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let mut at = (group * GROUP + page % GROUP) as usize & mask;
        while self.places[at] != 0 && (self.places[at] >> BLOCK_BITS) - 1 != page {
            at = (at + 1) & mask;
        }
        at
    }

    fn grow(&mut self) {
        let count = (2 * self.places.len()).max(64);
        let before = std::mem::replace(&mut self.places, vec![0; count]);
        for place in before.into_iter().filter(|place| *place != 0) {
            let at = self.find((place >> BLOCK_BITS) - 1);
            self.places[at] = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::device::random::SeededRng;

    /// Against a tree: streams, pages anywhere, pages of which only every eighth is written, and all of
    /// them again.
    #[test]
    fn it_is_what_a_tree_is() {
        let (mut written, mut tree, mut draw) =
            (WrittenPages::default(), BTreeMap::new(), SeededRng::new(3));
        let anywhere: Vec<u64> = (0..20_000).map(|_| draw.below(1 << 38)).collect();
        let streams = (0..20_000).chain((1 << 37)..(1 << 37) + 5_000);
        let strided = (0..20_000).map(|nth| (1 << 30) + nth * 8);
        let pages: Vec<u64> = streams.chain(strided).chain(anywhere).collect();
        for (nth, page) in pages.iter().chain(&pages).enumerate() {
            let block = draw.below(1 << BLOCK_BITS) as u32;
            assert_eq!(written.get(*page), tree.insert(*page, block), "{nth}");
            written.set(*page, block);
            assert_eq!(written.get(page ^ 1 << 36), tree.get(&(page ^ 1 << 36)).copied());
        }
        assert_eq!(written.count(), tree.len());
    }
}
