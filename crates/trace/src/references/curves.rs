//! Miss-ratio curves: the misses of each eviction policy on a trace by cache size, and the optimum.

use std::collections::BTreeSet;

use readpath_core::eviction::{self, PageKey, Simulation};
use readpath_core::policy::SpecError;

use super::BlockTrace;

/// Name of the curve of the optimum, which no policy can beat.
pub const OPTIMUM: &str = "optimum";

/// Misses of one policy at several sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissCurve {
    /// Policy, as the user named it, or [`OPTIMUM`].
    pub policy: String,
    /// One point per size, in the given order.
    pub points: Vec<MissCurvePoint>,
}

/// Misses at one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissCurvePoint {
    /// Cache size in blocks.
    pub pages: u32,
    /// Number of references that missed.
    pub misses: u64,
}

/// Returns the number of misses of a trace in an initially empty cache of `pages`, under the policy
/// that `spec` names.
///
/// # Errors
/// Fails if the policy does not exist.
pub fn misses(
    trace: &BlockTrace,
    spec: &readpath_core::policy::Spec,
    pages: u32,
) -> Result<u64, SpecError> {
    let mut cache = Simulation::new(eviction::build(spec, pages)?, pages);
    let is_missed = |&&block: &&u32| !cache.reference(PageKey::from_number(block.into()));
    Ok(trace.references.iter().filter(is_missed).count() as u64)
}

/// Returns the number of misses of a cache that knows all future references and evicts the block
/// whose next use is latest. This is the minimum for any policy (Belady, IBM Systems Journal 5(2),
/// 1966). `pages` is at least 1, else the first miss panics.
pub fn belady(trace: &BlockTrace, pages: u32) -> u64 {
    let next_uses = next_uses(trace);
    // `cached` contains the cached blocks by next use, `next_use_of_block` the next use of each
    // block.
    let mut cached: BTreeSet<(u64, u32)> = BTreeSet::new();
    let mut next_use_of_block = vec![ABSENT; trace.blocks as usize];
    let mut misses = 0;
    for (&block, &next_use) in trace.references.iter().zip(&next_uses) {
        // Blocks without a further use are evicted first, in any order.
        // `u32::MAX` marks a reference without a further one.
        let next_use = if next_use == u32::MAX { NEVER } else { next_use.into() };
        let cached_next_use = std::mem::replace(&mut next_use_of_block[block as usize], next_use);
        if cached_next_use == ABSENT {
            misses += 1;
            if cached.len() as u64 >= pages.into() {
                let (_, last) = cached.pop_last().expect("a cache has a page at least");
                next_use_of_block[last as usize] = ABSENT;
            }
        } else {
            cached.remove(&(cached_next_use, block));
        }
        cached.insert((next_use, block));
    }
    misses
}

/// Next use of a block that is not cached.
const ABSENT: u64 = u64::MAX;
/// Next use of a cached block without further references.
const NEVER: u64 = u64::MAX - 1;

/// Returns for each reference the index of the next one to the same block, or `u32::MAX`.
fn next_uses(trace: &BlockTrace) -> Vec<u32> {
    let mut next_of_block = vec![u32::MAX; trace.blocks as usize];
    let mut next_uses = vec![u32::MAX; trace.references.len()];
    for (index, &block) in trace.references.iter().enumerate().rev() {
        next_uses[index] = std::mem::replace(&mut next_of_block[block as usize], index as u32);
    }
    next_uses
}

#[cfg(test)]
mod tests {
    use readpath_core::policy::Spec;

    use super::*;

    /// Trace of these references.
    fn trace(references: &[u32]) -> BlockTrace {
        let blocks = references.iter().max().map_or(0, |most| most + 1);
        BlockTrace { references: references.to_vec(), blocks, note: None }
    }

    /// The textbook's string (Silberschatz, Galvin, Gagne, Operating System Concepts, 10.4): with
    /// three frames the optimum has 9 faults and LRU 12.
    #[test]
    fn textbook_reference_string_has_the_published_fault_counts() {
        let references = trace(&[7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1]);
        assert_eq!(belady(&references, 3), 9);
        assert_eq!(misses(&references, &Spec::plain("lru"), 3), Ok(12));
    }

    /// In a loop of 10 pages with 9 frames LRU never hits. The optimum caches 9 pages in the first
    /// round and then misses one of every nine references.
    #[test]
    fn lru_never_hits_in_a_loop_larger_than_memory() {
        let round: Vec<u32> = (0..10).cycle().take(100).collect();
        assert_eq!(misses(&trace(&round), &Spec::plain("lru"), 9), Ok(100));
        assert_eq!(belady(&trace(&round), 9), 10 + 90 / 9);
    }
}
