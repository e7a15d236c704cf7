//! Miss-ratio curves: how much of a trace each law would miss at each size, and the least that is
//! possible.

use std::collections::BTreeSet;

use readpath_core::eviction::{self, PageKey, Simulation};
use readpath_core::policy::SpecError;

use super::BlockTrace;

/// The name of the curve below which no law comes.
pub const OPTIMUM: &str = "optimum";

/// The misses of one law at several sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissCurve {
    /// The law, as it was named; [`OPTIMUM`] for the least that is possible.
    pub policy: String,
    /// One for each size, in the order in which they were given.
    pub points: Vec<MissCurvePoint>,
}

/// The misses at one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissCurvePoint {
    /// Memory, in blocks.
    pub pages: u32,
    /// References that found nothing.
    pub misses: u64,
}

/// How many references of a trace find nothing in a cache of so many pages, empty at first,
/// under the law that `spec` names.
///
/// # Errors
/// There is no such law.
pub fn misses(
    trace: &BlockTrace,
    spec: &readpath_core::policy::Spec,
    pages: u32,
) -> Result<u64, SpecError> {
    let mut cache = Simulation::new(eviction::build(spec, pages)?, pages);
    let is_missed = |&&block: &&u32| !cache.reference(PageKey::numbered(block.into()));
    Ok(trace.references.iter().filter(is_missed).count() as u64)
}

/// How many references find nothing in a cache that knows what is to come, and lets go what is
/// wanted again last (Belady, IBM Systems Journal 5(2), 1966): no law misses less.
pub fn belady(trace: &BlockTrace, pages: u32) -> u64 {
    let next = next_uses(trace);
    // What is cached: by when it is wanted next, and when each block of the trace is.
    let mut cached: BTreeSet<(u64, u32)> = BTreeSet::new();
    let mut next_use_of_block = vec![ABSENT; trace.blocks as usize];
    let mut misses = 0;
    for (&block, &next) in trace.references.iter().zip(&next) {
        // What is never wanted again goes first, whichever it is.
        let next = if next == u32::MAX { NEVER } else { next.into() };
        let known = std::mem::replace(&mut next_use_of_block[block as usize], next);
        if known == ABSENT {
            misses += 1;
            if cached.len() as u64 >= pages.into() {
                let (_, last) = cached.pop_last().expect("a cache has a page at least");
                next_use_of_block[last as usize] = ABSENT;
            }
        } else {
            cached.remove(&(known, block));
        }
        cached.insert((next, block));
    }
    misses
}

const ABSENT: u64 = u64::MAX;
const NEVER: u64 = u64::MAX - 1;

/// For each reference the place of the next to the same block; the highest number where there is
/// none.
fn next_uses(trace: &BlockTrace) -> Vec<u32> {
    let mut next_of = vec![u32::MAX; trace.blocks as usize];
    let mut next = vec![u32::MAX; trace.references.len()];
    for (at, &block) in trace.references.iter().enumerate().rev() {
        next[at] = std::mem::replace(&mut next_of[block as usize], at as u32);
    }
    next
}

#[cfg(test)]
mod tests {
    use readpath_core::policy::Spec;

    use super::*;

    fn trace(references: &[u32]) -> BlockTrace {
        let blocks = references.iter().max().map_or(0, |most| most + 1);
        BlockTrace { references: references.to_vec(), blocks, note: None }
    }

    /// The textbook's string (Silberschatz, Galvin, Gagne, Operating System Concepts, 10.4): with
    /// three frames the optimum has 9 faults and LRU 12.
    #[test]
    fn the_textbooks_reference_string_has_its_faults() {
        let string = trace(&[7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1]);
        assert_eq!(belady(&string, 3), 9);
        assert_eq!(misses(&string, &Spec::plain("lru"), 3), Ok(12));
    }

    /// Of a loop of 10 pages in 9 frames LRU has none; the optimum has 9 of the first round and
    /// then misses one in each nine.
    #[test]
    fn of_a_loop_larger_than_memory_lru_has_nothing() {
        let round: Vec<u32> = (0..10).cycle().take(100).collect();
        assert_eq!(misses(&trace(&round), &Spec::plain("lru"), 9), Ok(100));
        assert_eq!(belady(&trace(&round), 9), 10 + 90 / 9);
    }
}
