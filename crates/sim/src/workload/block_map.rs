//! Bitmap of the used blocks of an area, with a tree above it. A bit of the tree means that all 64
//! bits below it are set. The next free block is therefore found in a few steps at any fill level.
//! Memory that was never written costs only address space.

/// Maximum number of blocks in a map: 8 GiB of bits, chosen.
pub const BLOCKS_MAX: u64 = 1 << 36;

/// A map of blocks, initially all free.
#[derive(Clone, Debug)]
pub struct BlockMap {
    /// Number of blocks.
    blocks: u64,
    /// Number of used blocks.
    used_blocks: u64,
    /// The bitmap, followed by the levels of the tree up to a single word. Bit `n` of a level
    /// stands for word `n` of the level before.
    levels: Vec<Vec<u64>>,
}

impl BlockMap {
    /// Creates a map of `blocks` blocks, at most [`BLOCKS_MAX`].
    pub fn new(blocks: u64) -> BlockMap {
        assert!(blocks <= BLOCKS_MAX, "the caller looks at the bound");
        let mut levels = Vec::new();
        let mut words = blocks.div_ceil(64).max(1);
        loop {
            levels.push(vec![0; words as usize]);
            if words == 1 {
                break;
            }
            words = words.div_ceil(64);
        }
        BlockMap { blocks, used_blocks: 0, levels }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns true if a block is used.
    pub fn is_used(&self, block: u64) -> bool {
        block < self.blocks && self.levels[0][(block / 64) as usize] >> (block % 64) & 1 == 1
    }

    /// Marks up to `count` contiguous free blocks from `block` on as used. Returns the number of
    /// marked blocks, which ends before the first used one. 0 if `block` is used.
    pub fn mark_used(&mut self, block: u64, count: u64) -> u64 {
        let free_count = (block..self.blocks.min(block.saturating_add(count)))
            .take_while(|block| !self.is_used(*block))
            .count() as u64;
        (block..block + free_count).for_each(|block| self.mark_block(block));
        free_count
    }

    /// Marks one free block as used, and the bits of the tree above it whose words are full.
    fn mark_block(&mut self, block: u64) {
        self.used_blocks += 1;
        let mut bit = block;
        for level in &mut self.levels {
            let word = &mut level[(bit / 64) as usize];
            *word |= 1 << (bit % 64);
            if *word != u64::MAX {
                break;
            }
            bit /= 64;
        }
    }

    /// Returns the first free block from `block` on, otherwise from the start. `None` if all are
    /// used.
    pub fn next_free(&self, block: u64) -> Option<u64> {
        if self.used_blocks == self.blocks {
            return None;
        }
        self.free_from(block).or_else(|| self.free_from(0))
    }

    /// Returns the first free block from `block` on; `None` if there is none.
    fn free_from(&self, block: u64) -> Option<u64> {
        let mut position = block;
        let mut height = 0;
        loop {
            let level = &self.levels[height];
            let word = (position / 64) as usize;
            if word >= level.len() {
                return None;
            }
            let free_bits = !level[word] & (u64::MAX << (position % 64));
            if free_bits == 0 {
                // Continue to the right of this word, one level up.
                position = position / 64 + 1;
                height += 1;
                if height == self.levels.len() {
                    return None;
                }
                continue;
            }
            position = position / 64 * 64 + u64::from(free_bits.trailing_zeros());
            // Bits beyond the last block are never set, and are no free blocks.
            if height == 0 {
                return Some(position).filter(|block| *block < self.blocks);
            }
            // The word below this bit has a free bit: the search descends to its start.
            height -= 1;
            position *= 64;
        }
    }

    /// Marks all blocks as free.
    pub fn clear(&mut self) {
        if self.used_blocks > 0 {
            self.levels.iter_mut().for_each(|level| level.fill(0));
            self.used_blocks = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks up to 15 blocks from random ones on, until all are used, and compares with a list of
    /// flags. The sizes are close to the size of a word or of a level of the tree.
    #[test]
    fn next_free_block_matches_a_list_of_flags() {
        for blocks in [1, 63, 64, 65, 4096, 4097, 10_000] {
            let mut map = BlockMap::new(blocks);
            let mut flags = vec![false; blocks as usize];
            let mut random = 12_345_u64;
            for _ in 0..2 * blocks {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (from, count) = ((random >> 33) % blocks, random >> 60);
                let order = (from..blocks).chain(0..from);
                let free = order.clone().find(|block| !flags[*block as usize]);
                assert_eq!(map.next_free(from), free, "from {from} of {blocks}");
                let Some(free) = free else { break };
                let used = map.mark_used(free, count);
                for block in free..free + used {
                    assert!(!std::mem::replace(&mut flags[block as usize], true));
                }
                let is_cut = used < count;
                let end = (free + used) as usize;
                assert!(!is_cut || end == flags.len() || flags[end], "cut at what is taken");
            }
        }
    }
}
