//! How the kernel looks back and ahead for the next absent page.
//!
//! The page cache is a radix tree of 64 slots a node. A folio of up to 32 pages
//! fills that many slots of a lowest node, a larger one fills slots of the node
//! above, 64 pages each. A look-around keeps two things: the *index* that it
//! counts, and the *slot* that it looks at. Its first step finds the folio that
//! holds the index and puts the slot on that folio's **first** slot, but leaves
//! the index where it was; from then on both move by one. So, starting inside a
//! large folio, the two have drifted apart:
//!
//! - looking ahead from the second page of a folio the slot lags one behind,
//!   so that a gap is reported one page late; at the end of the node the slot is
//!   set from the index again, and one slot has not been looked at;
//! - looking back from the last page of a folio of 4 the slot runs 3 ahead, comes
//!   to the next lower node early, and is set from the index there: 61 slots
//!   are not looked at, and from there on the slot is a whole node ahead.
//!
//! This decides where windows begin and how long a run seems, so the law has to
//! do the same. Found by comparing with Linux 6.18 read by read; in a cache of
//! single pages nothing drifts.

use super::PageView;

/// A node has 64 slots: 6 bits of the page number a level.
const LEVEL_BITS: u32 = 6;

/// How many bits the deepest tree has below its root.
const SHIFT_MAX: u32 = 60;

/// Counts the cached pages directly before `page` (which is above 0), as the
/// kernel does: at most `most - 1` of them, and `page` itself when the run
/// seems to reach the start of the file.
pub(super) fn run_before(page: u64, most: u64, pages: &dyn PageView) -> u64 {
    let mut walk = TreeSearch::load(page - 1, pages);
    let mut is_cached = walk.is_cached;
    for _ in 1..most {
        if !is_cached {
            break;
        }
        is_cached = walk.step_back(pages);
    }
    page.wrapping_sub(walk.index).wrapping_sub(1)
}

/// The first absent page from `page` on, as the kernel finds it, within `most` pages.
pub(super) fn absent_from(page: u64, most: u64, pages: &dyn PageView) -> Option<u64> {
    let mut walk = TreeSearch::load(page, pages);
    let mut is_cached = walk.is_cached;
    for _ in 1..most {
        if !is_cached {
            break;
        }
        is_cached = walk.step_ahead(pages);
    }
    (!is_cached).then_some(walk.index)
}

/// A place in the tree: the index that is counted, and the slot that is looked at.
struct TreeSearch {
    index: u64,
    /// The slot's number among all slots of its level: `page >> shift`.
    slot: u64,
    /// The level: 0 for slots of one page, 6 for slots of 64, ….
    shift: u32,
    is_cached: bool,
}

impl TreeSearch {
    /// Finds `index`; inside a folio the slot goes to the folio's first.
    fn load(index: u64, pages: &dyn PageView) -> TreeSearch {
        match pages.folio(index) {
            None => TreeSearch { index, slot: index, shift: 0, is_cached: false },
            Some(folio) => {
                let shift = u32::from(folio.order) / LEVEL_BITS * LEVEL_BITS;
                TreeSearch { index, slot: folio.first >> shift, shift, is_cached: true }
            }
        }
    }

    /// One page back; whether something is in the slot there.
    fn step_back(&mut self, pages: &dyn PageView) -> bool {
        self.index = self.index.wrapping_sub(1);
        // A slot of one page always moves, except at the start of a node that the
        // index seems to be at as well; a larger one when the index has left it.
        let moves_freely = self.shift == 0 && offset(self.slot) != 0;
        if moves_freely || offset(self.slot) != offset(self.index >> self.shift) {
            while offset(self.slot) == 0 {
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

    /// One page ahead; whether something is in the slot there.
    fn step_ahead(&mut self, pages: &dyn PageView) -> bool {
        self.index += 1;
        let last = (1 << LEVEL_BITS) - 1;
        if offset(self.slot) != offset(self.index >> self.shift) {
            while offset(self.slot) == last {
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

    /// Goes down to the folio or the single slot; below, slots follow the index.
    fn descend(&mut self, pages: &dyn PageView) -> bool {
        while self.shift > 0 {
            let folio = pages.folio(self.slot << self.shift);
            if folio.is_some_and(|folio| u32::from(folio.order) >= self.shift) {
                return true;
            }
            self.shift -= LEVEL_BITS;
            self.slot = self.slot << LEVEL_BITS | offset(self.index >> self.shift);
        }
        pages.is_cached(self.slot)
    }
}

/// The slot's place in its node.
const fn offset(slot: u64) -> u64 {
    slot & ((1 << LEVEL_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readahead::{Folio, PageTable};

    /// A table with folios of `order` from page `first` to `end`.
    fn table(folios: &[(u64, u64, u8)]) -> PageTable {
        let mut table = PageTable::default();
        for &(first, end, order) in folios {
            for first in (first..end).step_by(1 << order) {
                assert!(table.add(Folio { first, order }, false));
            }
        }
        table
    }

    #[test]
    fn single_pages_are_counted_as_they_are() {
        let table = table(&[(10, 200, 0)]);
        assert_eq!(absent_from(11, 1000, &table), Some(200));
        assert_eq!(absent_from(201, 1000, &table), Some(201));
        assert_eq!(absent_from(11, 100, &table), None, "no gap within reach");
        assert_eq!(run_before(200, 1000, &table), 190);
        assert_eq!(run_before(200, 100, &table), 99, "the last page looked at doesn't count");
        assert_eq!(run_before(202, 100, &table), 0);
    }

    #[test]
    fn a_run_from_the_start_of_the_file_is_seen_whole() {
        assert_eq!(run_before(70, 1000, &table(&[(0, 70, 0)])), 70);
        assert_eq!(run_before(128, 1000, &table(&[(0, 128, 6)])), 128);
    }

    #[test]
    fn looking_ahead_from_inside_a_folio_reports_the_gap_one_page_late() {
        // Linux 6.18: folios of 4 pages up to 39052, a mark at one of them, the
        // next window began at 39053.
        assert_eq!(absent_from(39_045, 2048, &table(&[(39_044, 39_052, 2)])), Some(39_053));
        // From the first page of a folio nothing drifts.
        assert_eq!(absent_from(39_044, 2048, &table(&[(39_044, 39_052, 2)])), Some(39_052));
        // At the end of a node the slot follows the index again: slot 64 isn't
        // looked at, and the gap at 70 is found where it is.
        assert_eq!(absent_from(61, 2048, &table(&[(60, 64, 2), (65, 70, 0)])), Some(70));
    }

    #[test]
    fn looking_back_over_small_folios_skips_most_of_a_node() {
        // Linux 6.18: 424 cached pages from 26,976, the last 12 in folios of 4,
        // the rest single; it saw a run of 360, a node less.
        let table = table(&[(26_976, 27_388, 0), (27_388, 27_400, 2)]);
        assert_eq!(run_before(27_400, 2048, &table), 424 - 64);
    }

    #[test]
    fn folios_of_64_pages_and_more_lie_a_level_higher() {
        let table = table(&[(128, 512, 7), (512, 1024, 9)]);
        assert_eq!(absent_from(129, 2048, &table), Some(1024));
        assert_eq!(absent_from(513, 2048, &table), Some(1024));
    }
}
