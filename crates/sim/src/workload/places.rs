//! Where in an area the next operation goes.
//!
//! Blocks are counted from the start of the area, each as long as an operation
//! of its direction; what is left behind the last whole block is never used, as
//! in fio.

use rand_distr::{Distribution as _, Zipf};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;
use readpath_core::request::Op;

use super::permutation::Permutation;
use crate::job::{Distribution, Job};

/// The places of one process in one area.
#[derive(Clone, Debug)]
pub struct Places {
    /// Whole blocks in the area, and bytes in each; reads, then writes.
    grids: [Grid; 2],
    order: Order,
}

#[derive(Clone, Copy, Debug)]
struct Grid {
    blocks: u64,
    block_bytes: u64,
}

/// How one block follows another.
#[derive(Clone, Debug)]
enum Order {
    /// Forward; a reader and a writer in one job each walk on their own, as in fio.
    Forward { next_block: [u64; 2] },
    /// Each block once. Reads and writes draw from one permutation when their
    /// blocks are equally long; else each direction has its own.
    EachOnce { permutations: [Permutation; 2], next_index: [u64; 2], is_shared: bool },
    /// Any block, repeats allowed.
    Any,
    /// Few blocks often: ranks by Zipf's law, scattered over the area by a permutation.
    Skewed { ranks: [Zipf<f64>; 2], scatter: [Permutation; 2] },
}

impl Places {
    /// The places of `job` in an area of `area_bytes`; `random` gives the keys.
    pub fn new(job: &Job, area_bytes: u64, random: &mut Xoshiro256PlusPlus) -> Places {
        let grids = [job.block_bytes_read, job.block_bytes_write]
            .map(|block_bytes| Grid { blocks: area_bytes / block_bytes, block_bytes });
        let mut permutations =
            || grids.map(|grid| Permutation::new(grid.blocks.max(1), random.next_u64()));
        let order = match job.distribution {
            _ if !job.pattern.is_random => Order::Forward { next_block: [0; 2] },
            Distribution::Zipf { theta } => Order::Skewed {
                ranks: grids.map(|grid| {
                    Zipf::new(grid.blocks.max(1) as f64, theta)
                        .expect("the count is at least 1 and theta above 0")
                }),
                scatter: permutations(),
            },
            Distribution::Uniform if job.has_random_map => Order::EachOnce {
                permutations: permutations(),
                next_index: [0; 2],
                is_shared: grids[0].block_bytes == grids[1].block_bytes,
            },
            Distribution::Uniform => Order::Any,
        };
        Places { grids, order }
    }

    /// The next place for an operation, in bytes from the start of the area;
    /// `None` when this pass has come to its end.
    pub fn next(&mut self, op: Op, random: &mut Xoshiro256PlusPlus) -> Option<u64> {
        let direction = op as usize;
        let Grid { blocks, block_bytes } = self.grids[direction];
        let block = match &mut self.order {
            Order::Forward { next_block } => counted(&mut next_block[direction], blocks)?,
            Order::EachOnce { permutations, next_index, is_shared } => {
                let turn = if *is_shared { 0 } else { direction };
                permutations[turn].at(counted(&mut next_index[turn], blocks)?)
            }
            Order::Any => below(random, blocks),
            Order::Skewed { ranks, scatter } => {
                let rank = ranks[direction].sample(random) as u64;
                scatter[direction].at(rank.clamp(1, blocks) - 1)
            }
        };
        Some(block * block_bytes)
    }

    /// Begins the next pass. A random pass takes the blocks in the same order
    /// again, as fio does.
    pub fn restart(&mut self) {
        match &mut self.order {
            Order::Forward { next_block: next } | Order::EachOnce { next_index: next, .. } => {
                *next = [0; 2];
            }
            Order::Any | Order::Skewed { .. } => {}
        }
    }
}

/// The count before this call, as long as it is below `end`.
fn counted(count: &mut u64, end: u64) -> Option<u64> {
    let now = *count;
    *count += u64::from(now < end);
    (now < end).then_some(now)
}

/// A number below `bound`: the high half of a product, in place of a division.
/// Its bias is below `bound / 2^64`.
pub fn below(random: &mut Xoshiro256PlusPlus, bound: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(bound)) >> 64) as u64
}
