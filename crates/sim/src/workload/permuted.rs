//! Random blocks by a keyed permutation, in constant memory (`random_generator=permutation`).
//!
//! Blocks are counted from the start of the area, with the size of an operation of their direction.
//! A partial block at the end is never used. A *pass* is one repetition of the job's work.

use rand_distr::{Distribution as _, Zipf};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;

use super::chance::below;
use super::permutation::Permutation;
use crate::job::{Distribution, Job};

/// Blocks of one area, for reads and for writes.
#[derive(Clone, Debug)]
pub struct PermutedBlocks {
    /// Number of whole blocks in the area, of the size of a read and of a write.
    blocks: [u64; 2],
    /// Order of the blocks, with its state.
    order: PermutationOrder,
}

/// Order of the blocks.
#[derive(Clone, Debug)]
enum PermutationOrder {
    /// Each block once. Reads and writes share the first permutation and index if their blocks
    /// have equal size (`is_shared`). `next_index` is the index of the next block in its
    /// permutation.
    EachOnce { permutations: [Permutation; 2], next_index: [u64; 2], is_shared: bool },
    /// Random blocks with repetitions.
    Any,
    /// Ranks with a Zipf distribution, scattered over the area by a permutation.
    Skewed { ranks: [Zipf<f64>; 2], scatter: [Permutation; 2] },
}

impl PermutedBlocks {
    /// Creates the blocks of `job` in an area of `area_bytes`. `random` supplies the keys. The
    /// only skewed distribution here is Zipf's, always scattered: its center and the other
    /// distributions have no effect.
    pub fn new(job: &Job, area_bytes: u64, random: &mut Xoshiro256PlusPlus) -> PermutedBlocks {
        let block_bytes = [job.block_bytes_read(), job.block_bytes_write()];
        // At least 1 for each direction that the job has: an area holds its blocks.
        let blocks = block_bytes.map(|bytes| area_bytes / bytes);
        let mut permutations =
            || blocks.map(|blocks| Permutation::new(blocks.max(1), random.next_u64()));
        let order = match job.distribution {
            Distribution::Zipf { theta, .. } => PermutationOrder::Skewed {
                ranks: blocks.map(|blocks| {
                    Zipf::new(blocks.max(1) as f64, theta)
                        .expect("the count is at least 1 and theta above 0")
                }),
                scatter: permutations(),
            },
            _ if job.has_random_map => PermutationOrder::EachOnce {
                permutations: permutations(),
                next_index: [0; 2],
                is_shared: block_bytes[0] == block_bytes[1],
            },
            _ => PermutationOrder::Any,
        };
        PermutedBlocks { blocks, order }
    }

    /// Returns the next block of a direction (0 for reads, 1 for writes). `None` if each block was
    /// used once, the end of the pass. Orders with repetitions never end.
    pub fn next(&mut self, direction: usize, random: &mut Xoshiro256PlusPlus) -> Option<u64> {
        let blocks = self.blocks[direction];
        match &mut self.order {
            PermutationOrder::EachOnce { permutations, next_index, is_shared } => {
                let permutation = if *is_shared { 0 } else { direction };
                let index = next_index[permutation];
                next_index[permutation] += u64::from(index < blocks);
                (index < blocks).then(|| permutations[permutation].number_at(index))
            }
            PermutationOrder::Any => Some(below(random, blocks)),
            PermutationOrder::Skewed { ranks, scatter } => {
                // Ranks count from 1. The limits only guard the permutation's range.
                let rank = ranks[direction].sample(random) as u64;
                Some(scatter[direction].number_at(rank.clamp(1, blocks) - 1))
            }
        }
    }

    /// Starts the next pass, with the same order. Orders with repetitions have no pass, and
    /// continue.
    pub fn restart(&mut self) {
        if let PermutationOrder::EachOnce { next_index, .. } = &mut self.order {
            *next_index = [0; 2];
        }
    }
}
