//! Search for the next absent page, backward and forward, as the kernel does it.
//!
//! The page cache is a radix tree of 64 slots per node. A folio of up to 32 pages fills that number
//! of slots of a lowest node. A larger folio fills slots of the node above, 64 pages each. A search
//! keeps two values: the *index* that it counts, and the *slot* that it reads. Its first step finds
//! the folio of the index and sets the slot to the **first** slot of that folio, but does not
//! change the index. From then on both move by one. If the search starts inside a large folio, the
//! two drift apart:
//!
//! - forward from the second page of a folio, the slot lags one behind, so that a gap is reported
//!   one page late. At the end of the node the slot is set from the index again, and one slot is
//!   skipped;
//! - backward from the last page of a folio of 4, the slot is 3 ahead, reaches the next lower node
//!   early, and is set from the index there. Then 61 slots are skipped, and from there on the slot
//!   is a whole node ahead.
//!
//! The result decides the start of windows and the apparent length of a run, so the policy copies
//! this behaviour. Found by comparison with Linux 6.18 read by read. In a cache of single pages the
//! two values never drift apart.

use super::PageView;

/// Bits of the page number per tree level: a node has 64 slots.
const LEVEL_BITS: u32 = 6;

/// Shift of the root of the deepest tree, in bits.
const SHIFT_MAX: u32 = 60;

/// Number of cached pages directly before `page` (which is above 0), counted as in the kernel. The
/// search looks at up to `pages_max` pages. The last one counts as absent even if it is cached, so
/// the result is at most `pages_max - 1`. It is `page` itself if the run appears to reach the start
/// of the file.
pub(super) fn run_before(page: u64, pages_max: u64, pages: &dyn PageView) -> u64 {
    let mut search = TreeSearch::start(page - 1, pages);
    let mut is_cached = search.is_cached;
    for _ in 1..pages_max {
        if !is_cached {
            break;
        }
        is_cached = search.step_back(pages);
    }
    // If the run appears to reach page 0, the index has wrapped around below it.
    page.wrapping_sub(search.index).wrapping_sub(1)
}

/// Returns the first absent page from `page` on, as the kernel finds it. `None` if it is not among
/// the next `pages_max` pages.
pub(super) fn absent_from(page: u64, pages_max: u64, pages: &dyn PageView) -> Option<u64> {
    let mut search = TreeSearch::start(page, pages);
    let mut is_cached = search.is_cached;
    for _ in 1..pages_max {
        if !is_cached {
            break;
        }
        is_cached = search.step_ahead(pages);
    }
    (!is_cached).then_some(search.index)
}

/// Position of a search in the tree.
struct TreeSearch {
    /// Page number that is counted.
    index: u64,
    /// Number of the slot that is read, among all slots of its level: `page >> shift`.
    slot: u64,
    /// The level: 0 for slots of one page, 6 for slots of 64, ….
    shift: u32,
    /// True if the slot holds a page.
    is_cached: bool,
}

impl TreeSearch {
    /// Starts a search at `index`. Inside a folio the slot goes to the first slot of the folio.
    fn start(index: u64, pages: &dyn PageView) -> TreeSearch {
        match pages.folio(index) {
            None => TreeSearch { index, slot: index, shift: 0, is_cached: false },
            Some(folio) => {
                let shift = u32::from(folio.order) / LEVEL_BITS * LEVEL_BITS;
                TreeSearch { index, slot: folio.first >> shift, shift, is_cached: true }
            }
        }
    }

    /// Moves the index one page back, and the slot as xas_prev() and __xas_prev() of the kernel do.
    /// Returns true if the new slot holds a page. Returns false if it is empty, or at the start of
    /// the tree.
    fn step_back(&mut self, pages: &dyn PageView) -> bool {
        self.index = self.index.wrapping_sub(1);
        // xas_prev() moves a slot of one page without a comparison with the index, unless the slot
        // is the first of its node. In all other cases __xas_prev() compares the position of the
        // slot in its node with the position of the index, and moves only if they differ. A slot of
        // 64 pages thus moves when the index has left it.
        let moves_freely = self.shift == 0 && slot_in_node(self.slot) != 0;
        if moves_freely || slot_in_node(self.slot) != slot_in_node(self.index >> self.shift) {
            // The slot before a node is found on the level above: one before the node's own slot.
            while slot_in_node(self.slot) == 0 {
                if self.shift == SHIFT_MAX {
                    return false;
                }
                self.slot >>= LEVEL_BITS;
                self.shift += LEVEL_BITS;
            }
            self.slot -= 1;
        }
        self.descend(pages)
    }

    /// Moves the index one page forward, and the slot as xas_next() of the kernel does. Returns
    /// true if the new slot holds a page. Returns false if it is empty, or at the end of the tree.
    fn step_ahead(&mut self, pages: &dyn PageView) -> bool {
        self.index += 1;
        let last_slot = (1 << LEVEL_BITS) - 1;
        // A slot of one page lagged the index by 0 to 31 positions of a node before this step, so
        // the two differ now, and it always moves. A slot of 64 pages moves when the index has left
        // it.
        if slot_in_node(self.slot) != slot_in_node(self.index >> self.shift) {
            while slot_in_node(self.slot) == last_slot {
                if self.shift == SHIFT_MAX {
                    return false;
                }
                self.slot >>= LEVEL_BITS;
                self.shift += LEVEL_BITS;
            }
            self.slot += 1;
        }
        self.descend(pages)
    }

    /// Descends from the current level to the folio that covers the slot, or to the slot of one
    /// page. On each level below, the slot is set from the index. Returns true if a page is there.
    fn descend(&mut self, pages: &dyn PageView) -> bool {
        while self.shift > 0 {
            let folio = pages.folio(self.slot << self.shift);
            if folio.is_some_and(|folio| u32::from(folio.order) >= self.shift) {
                return true;
            }
            self.shift -= LEVEL_BITS;
            self.slot = self.slot << LEVEL_BITS | slot_in_node(self.index >> self.shift);
        }
        // At this level the number of a slot is the number of its page.
        pages.is_cached(self.slot)
    }
}

/// The slot's position in its node, 0 to 63.
const fn slot_in_node(slot: u64) -> u64 {
    slot & ((1 << LEVEL_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readahead::{Folio, PageTable};

    /// A table with the folios of each element `(first, end, order)`: folios of that order from
    /// page `first` to `end`.
    fn table(folios: &[(u64, u64, u8)]) -> PageTable {
        let (mut table, is_marked) = (PageTable::default(), false);
        for &(first, end, order) in folios {
            for first in (first..end).step_by(1 << order) {
                assert!(table.add(Folio { first, order }, is_marked));
            }
        }
        table
    }

    /// The pages 10 to 199 are cached, each by itself: 190 pages.
    #[test]
    fn gaps_and_runs_of_single_pages_are_counted_exactly() {
        let table = table(&[(10, 200, 0)]);
        assert_eq!(absent_from(11, 1000, &table), Some(200));
        assert_eq!(absent_from(201, 1000, &table), Some(201));
        assert_eq!(absent_from(11, 100, &table), None, "no gap within reach");
        assert_eq!(run_before(200, 1000, &table), 190);
        assert_eq!(run_before(200, 100, &table), 99, "the last page looked at doesn't count");
        assert_eq!(run_before(202, 100, &table), 0);
    }

    /// The run begins at page 0, in single pages or in folios of 64 pages.
    #[test]
    fn run_from_the_start_of_the_file_is_counted_whole() {
        assert_eq!(run_before(70, 1000, &table(&[(0, 70, 0)])), 70);
        assert_eq!(run_before(128, 1000, &table(&[(0, 128, 6)])), 128);
    }

    #[test]
    fn looking_ahead_from_inside_a_folio_reports_the_gap_one_page_late() {
        // Linux 6.18: folios of 4 pages up to 39052, a mark at one of them; the next window began
        // at 39053.
        assert_eq!(absent_from(39_045, 2048, &table(&[(39_044, 39_052, 2)])), Some(39_053));
        // From the first page of a folio there is no drift.
        assert_eq!(absent_from(39_044, 2048, &table(&[(39_044, 39_052, 2)])), Some(39_052));
        // At the end of a node the slot follows the index again: slot 64 is skipped, and the gap at
        // 70 is found at 70.
        assert_eq!(absent_from(61, 2048, &table(&[(60, 64, 2), (65, 70, 0)])), Some(70));
    }

    #[test]
    fn looking_back_over_small_folios_skips_most_of_a_node() {
        // Linux 6.18: 424 cached pages from 26,976, the last 12 in folios of 4, the rest single. It
        // found a run of 360, a node less.
        let table = table(&[(26_976, 27_388, 0), (27_388, 27_400, 2)]);
        assert_eq!(run_before(27_400, 2048, &table), 424 - 64);
    }

    /// The pages 128 to 1023 are cached in folios of 128 and 512 pages. The searches begin at the
    /// second page of a folio, and report the gap exactly.
    #[test]
    fn folios_of_64_pages_and_more_lie_a_level_higher() {
        let table = table(&[(128, 512, 7), (512, 1024, 9)]);
        assert_eq!(absent_from(129, 2048, &table), Some(1024));
        assert_eq!(absent_from(513, 2048, &table), Some(1024));
    }
}
