//! `hits`: swap-in readahead by its hit rate (Linux since 3.8, 2012).
//!
//! How it works: for the whole system, count the faults that found a prefetched page (`hits`,
//! initially 4). A fault that must read takes `pages = hits + 2` and resets the count to 0. Without
//! a hit (2 pages) it reads only its own page. Exception: if its slot is next to the slot of the
//! last fault without a hit, on either side, it reads 2, so that a sequence can begin. With hits,
//! `pages` is rounded up to a power of two, at least 4. The limit is `1 << page_cluster`. The
//! aligned block of that number of slots is read.
//!
//! Purpose: a random load on a solid-state drive, for which each useless page is expensive, falls
//! to single pages after one fault. A sequential load keeps the whole block, because each block
//! brings 7 hits.
//!
//! Parameters:
//! - `page_cluster` (default 3: 8 pages); 0 turns readahead off.
//! - `halving` (0 or 1; default 0, as in 2012): since 3.14 the size does not fall below half of the
//!   last one, so that a run without hits decays 8, 4, 2, 1.
//! - `least` (1 or 2, default 1): 2 selects the earlier version of the policy, without the rule of
//!   neighbouring slots. It always read one page too many at random faults.

use super::{SwapFault, SwapRead, SwapinPolicy, SwappedPageQueries, aligned_block, pages_max};
use crate::policy::{Spec, SpecError};

/// Size of the next block, by the hits of the last one.
#[derive(Clone, Copy, Debug)]
pub(super) struct HitRate {
    /// Largest block in pages.
    pages_max: u64,
    /// Pages read without a hit: 1 or 2.
    pages_min: u64,
    /// True if each block has at least half of the size of the one before.
    limits_shrinking: bool,
    /// Number of hits since the last fault that read.
    hits: u64,
    /// Slot or page of the last fault that read without a hit before it; `None` before the first.
    /// If the policy calls `record_fault`, it is the page of the last fault of either kind.
    previous_position: Option<u64>,
    /// Size of the last block in pages.
    last_pages: u64,
}

impl HitRate {
    /// Initial number of hits, as in the kernel: 4 + 2 is rounded up, and the first fault reads a
    /// block of 8.
    const HITS_AT_START: u64 = 4;

    /// Creates the state before the first fault.
    pub(super) fn new(pages_max: u64, pages_min: u64, limits_shrinking: bool) -> HitRate {
        HitRate {
            pages_max,
            pages_min,
            limits_shrinking,
            hits: Self::HITS_AT_START,
            previous_position: None,
            last_pages: 0,
        }
    }

    /// Counts a used prefetched page.
    pub(super) fn count_hit(&mut self) {
        self.hits += 1;
    }

    /// Number of pages to read at a fault at `position` (a slot, or a page of a mapping), by the
    /// hits since the last fault that read. Resets the count of hits, and records the position if
    /// there was no hit. The result is a power of two, at most `pages_max`.
    pub(super) fn take_window_pages(&mut self, position: u64) -> u64 {
        // Readahead is off (`page_cluster` is 0): no page is prefetched, and so none is hit.
        if self.pages_max == 1 {
            return 1;
        }
        // As in the kernel: 2 pages stand for no hit.
        let mut pages = core::mem::take(&mut self.hits) + 2;
        // No hit since the last fault.
        if pages == 2 {
            let is_adjacent =
                self.previous_position.is_some_and(|last| last.abs_diff(position) == 1);
            // A sequence may begin: 2 pages, so that the next fault can be a hit.
            pages = if is_adjacent { 2 } else { self.pages_min };
            self.previous_position = Some(position);
        } else {
            // A single hit gives 3, which is rounded up to 4.
            pages = pages.next_power_of_two().max(4);
        }
        if self.limits_shrinking {
            pages = pages.max(self.last_pages / 2);
        }
        self.last_pages = pages.min(self.pages_max);
        self.last_pages
    }

    /// Records the position of the last fault, hit or not, for a policy that follows the direction.
    pub(super) fn record_fault(&mut self, position: u64) {
        self.previous_position = Some(position);
    }

    /// Returns the recorded position of the last fault; `None` before the first one.
    pub(super) fn previous_position(&self) -> Option<u64> {
        self.previous_position
    }
}

/// The policy `hits`.
#[derive(Clone, Copy, Debug)]
pub struct Hits {
    /// Count of hits, and the size of the last block, of the whole system.
    rate: HitRate,
}

impl Hits {
    /// Builds the policy from the parameters `page_cluster`, `halving` and `least`.
    ///
    /// # Errors
    /// A parameter is unknown, or a value is out of range.
    pub fn from_spec(spec: &Spec) -> Result<Hits, SpecError> {
        spec.only(&["page_cluster", "halving", "least"])?;
        let limits_shrinking = spec.integer("halving", 0, 0..=1)? == 1;
        let pages_min = spec.integer("least", 1, 1..=2)?;
        Ok(Hits { rate: HitRate::new(pages_max(spec)?, pages_min, limits_shrinking) })
    }

    /// The version of 2012, with at most `pages_max` pages.
    pub(super) fn version_2012(pages_max: u64) -> Hits {
        let pages_min = 1;
        let limits_shrinking = false;
        Hits { rate: HitRate::new(pages_max, pages_min, limits_shrinking) }
    }
}

impl SwapinPolicy for Hits {
    /// Counts a used prefetched page, which enlarges the next window. Reads nothing.
    fn hit(
        &mut self,
        _fault: &SwapFault,
        _swapped: &mut dyn SwappedPageQueries,
    ) -> Option<SwapRead> {
        self.rate.count_hit();
        None
    }

    /// Reads an aligned block of slots around the slot of the fault. Its size depends on the hits
    /// since the last fault.
    fn miss(&mut self, fault: &SwapFault, _swapped: &mut dyn SwappedPageQueries) -> SwapRead {
        aligned_block(fault.slot, self.rate.take_window_pages(fault.slot))
    }

    /// False: the policy ignores the costs of requests.
    fn uses_costs(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fault, hit, miss};
    use super::*;
    use crate::unit::PageRange;

    /// Checks the policy `text` by a table. Each row has the hits before a fault, the slot of the
    /// fault, and the block that it reads: first slot and number of slots.
    fn assert_trajectory(text: &str, table: &[(u32, u64, (u64, u64))]) {
        let mut policy = Hits::from_spec(&Spec::parse(text).unwrap()).unwrap();
        for (row, &(hits, slot, (first, count))) in table.iter().enumerate() {
            // The place of a hit has no influence.
            (0..hits).for_each(|_| hit(&mut policy, fault(1, 1)));
            let expected = SwapRead::Slots(PageRange::new(first, count));
            assert_eq!(miss(&mut policy, fault(900, slot)), expected, "{text}, row {row}");
        }
    }

    /// Worked by hand from the rule: hits + 2, rounded up to a power of two, at most 8.
    #[test]
    fn windows_follow_the_hits_as_computed_by_hand() {
        assert_trajectory(
            "hits",
            &[
                (0, 100, (96, 8)),  // initially 4: 6 → 8
                (7, 104, (104, 8)), // a sequence: 9 → 16, capped
                (0, 500, (500, 1)), // no hit, no fault without hits before: alone
                (0, 501, (500, 2)), // next to the last: a pair, aligned
                (0, 500, (500, 2)), // backwards too
                (0, 502, (502, 1)), // two away: alone
                (1, 600, (600, 4)), // one hit: 3 → 4
                (2, 605, (604, 4)), // two: 4
                (3, 610, (608, 8)), // three: 5 → 8
                (0, 503, (502, 2)), // next to 502, the last without a hit
            ],
        );
    }

    /// The largest block has `1 << page_cluster` slots: 16, 2 or 1.
    #[test]
    fn page_cluster_caps_the_window_and_0_disables_readahead() {
        assert_trajectory("hits,page_cluster=4", &[(8, 100, (96, 16)), (30, 17, (16, 16))]);
        assert_trajectory("hits,page_cluster=1", &[(8, 101, (100, 2))]);
        assert_trajectory("hits,page_cluster=0", &[(8, 101, (101, 1)), (8, 102, (102, 1))]);
    }

    /// Faults without hits, far from each other. The first block has 8 slots by the initial hits.
    #[test]
    fn halving_option_halves_the_window_at_each_fault_without_hits() {
        let table = [(0, 100, (96, 8)), (0, 301, (300, 4)), (0, 501, (500, 2)), (0, 701, (701, 1))];
        assert_trajectory("hits,halving=1", &table);
    }

    /// With `least=2` a fault without hits reads the aligned block of two slots.
    #[test]
    fn the_earlier_version_reads_a_neighbour_without_hits() {
        let table = [(0, 100, (96, 8)), (0, 301, (300, 2)), (0, 501, (500, 2))];
        assert_trajectory("hits,least=2", &table);
    }
}
