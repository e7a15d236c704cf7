//! The swap area: the page of each slot, and the choice of slots for the next pages.
//!
//! Pages that leave together get neighbouring slots. The search for a run of free slots starts at
//! the end of the last run and covers a bounded range. The result is the longest run there, up
//! to the wanted length. Swap-out thus writes like a circular log.
//!
//! A slot is freed when its page is written in memory, not when its page is read in: a page that
//! stays clean can leave again without I/O. Rejected: overwrite the slot in place, which would save
//! the search but scatter each batch over the area.

use alloc::vec::Vec;

use crate::swapin::MemoryId;
use crate::unit::{PAGE_SECTORS, PageRange};

/// A page of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotOwner {
    /// The mapping.
    pub(super) memory: MemoryId,
    /// Number of the page in its mapping.
    pub(super) page: u64,
}

/// Entry of a free slot: 0, because the system provides zeros without memory until they are
/// changed.
const FREE: u64 = 0;
/// Entry of a slot that the device could not write.
const BAD: u64 = u64::MAX;
/// Number of slots that are searched for a long free run: 16 MiB of the area. It bounds the time of
/// a search in a fragmented area.
const SEARCH_SLOTS: u64 = 4096;

/// All slots. Slot `n` lies `n` pages behind the start of the area.
#[derive(Debug, Default)]
pub(super) struct SwapArea {
    /// First sector of slot 0 on the device.
    start_sector: u64,
    /// Page of each slot: 1 plus a number with the mapping's number in the upper 32 bits and its
    /// page in the lower ones. Or `FREE`, or `BAD`.
    owners: Vec<u64>,
    /// Number of free slots.
    free_count: u64,
    /// Number of slots that the device could not write.
    bad_count: u64,
    /// Slot at which the next search for a free run starts.
    cursor: u64,
    /// Slot at which [`next_matching`](SwapArea::next_matching) continues.
    scan_cursor: u64,
}

impl SwapArea {
    /// Creates an area of `slots` free slots from `start_sector` on. A slot holds one page.
    pub(super) fn new(start_sector: u64, slots: u64) -> SwapArea {
        SwapArea {
            start_sector,
            owners: alloc::vec![FREE; slots as usize],
            free_count: slots,
            ..SwapArea::default()
        }
    }

    /// Number of slots of the area, free or not.
    pub(super) fn slots(&self) -> u64 {
        self.owners.len() as u64
    }

    /// Number of free slots.
    pub(super) fn free_slots(&self) -> u64 {
        self.free_count
    }

    /// Number of slots that the device could not write.
    pub(super) fn bad_slots(&self) -> u64 {
        self.bad_count
    }

    /// First sector of a slot on the device.
    pub(super) fn sector(&self, slot: u64) -> u64 {
        self.start_sector + slot * PAGE_SECTORS
    }

    /// The page that a slot holds; `None` if it is free or bad.
    pub(super) fn owner(&self, slot: u64) -> Option<SlotOwner> {
        let entry = self.owners[slot as usize];
        let owner = entry.checked_sub(1).filter(|_| entry != BAD)?;
        let memory = MemoryId((owner >> 32) as u32);
        Some(SlotOwner { memory, page: owner & 0xffff_ffff })
    }

    /// Finds a run of 1 to `slots_max` free slots, without taking them. The run is the longest one
    /// within [`SEARCH_SLOTS`] slots from the first free slot on, before the end of the area. The
    /// search begins where the last run ended. `None` if no slot is free: all are taken or bad.
    /// `slots_max` is at least 1.
    pub(super) fn find_run(&mut self, slots_max: u64) -> Option<PageRange> {
        if self.free_count == 0 {
            return None;
        }
        let slots = self.slots();
        // The first free slot from the cursor on.
        let first = (0..slots)
            .map(|distance| (self.cursor + distance) % slots)
            .find(|&slot| self.is_free(slot));
        let mut slot = first.expect("a slot is free");
        let end = slots.min(slot + SEARCH_SLOTS);
        let mut longest = PageRange::default();
        while slot < end {
            let length =
                (slot..end).take(slots_max as usize).take_while(|&slot| self.is_free(slot)).count();
            if length as u64 > longest.count() {
                longest = PageRange::new(slot, length as u64);
            }
            if longest.count() == slots_max {
                break;
            }
            // The slot behind the run is taken or bad, or the search ends there.
            slot += length as u64 + 1;
        }
        self.cursor = longest.end % slots;
        Some(longest)
    }

    /// Assigns the free slot `slot` to the page `owner`.
    pub(super) fn assign_slot(&mut self, slot: u64, owner: SlotOwner) {
        debug_assert!(self.is_free(slot), "a slot holds one page");
        debug_assert!(owner.page <= 0xffff_ffff);
        self.owners[slot as usize] = (u64::from(owner.memory.0) << 32 | owner.page) + 1;
        self.free_count -= 1;
    }

    /// Frees a slot whose data is obsolete or was not written: its page was changed or discarded,
    /// or the write failed.
    pub(super) fn release_slot(&mut self, slot: u64) {
        debug_assert!(self.owner(slot).is_some());
        self.owners[slot as usize] = FREE;
        self.free_count += 1;
    }

    /// Marks a taken slot as bad, so that it is never used again.
    pub(super) fn mark_bad(&mut self, slot: u64) {
        debug_assert!(self.owner(slot).is_some());
        self.owners[slot as usize] = BAD;
        self.bad_count += 1;
    }

    /// Returns the next slot, in circular order from the last one returned, with a page for which
    /// `is_match` is true. `None` if there is none. Used to free slots of clean pages in turn, when
    /// the area is full.
    pub(super) fn next_matching(
        &mut self,
        is_match: impl Fn(SlotOwner) -> bool,
    ) -> Option<(u64, SlotOwner)> {
        for _ in 0..self.slots() {
            let slot = self.scan_cursor;
            self.scan_cursor = (slot + 1) % self.slots();
            if let Some(owner) = self.owner(slot).filter(|&owner| is_match(owner)) {
                return Some((slot, owner));
            }
        }
        None
    }

    /// Returns true if the slot is free.
    fn is_free(&self, slot: u64) -> bool {
        self.owners[slot as usize] == FREE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Assigns the next free run, of at most `slots_max` slots, to pages: slot n to page 70 + n.
    /// Returns the first slot and the number of slots.
    fn take_run(area: &mut SwapArea, slots_max: u64) -> (u64, u64) {
        let run = area.find_run(slots_max).unwrap();
        for slot in run.pages() {
            area.assign_slot(slot, SlotOwner { memory: MemoryId(3), page: 70 + slot });
        }
        (run.first, run.count())
    }

    /// Ten slots from sector 800 on, of 8 sectors each: slot 9 begins at sector 872.
    #[test]
    fn swap_slots_are_taken_in_adjacent_runs_and_in_rotation() {
        let mut area = SwapArea::new(800, 10);
        assert_eq!([take_run(&mut area, 4), take_run(&mut area, 4)], [(0, 4), (4, 4)]);
        assert_eq!(area.owner(5), Some(SlotOwner { memory: MemoryId(3), page: 75 }));
        for slot in [1, 2, 6] {
            area.release_slot(slot);
        }
        // Slots 8 and 9 are left at the end; then 1 and 2, which is a longer run than 6.
        assert_eq!(take_run(&mut area, 4), (8, 2));
        assert_eq!(take_run(&mut area, 4), (1, 2));
        assert_eq!(take_run(&mut area, 4), (6, 1));
        assert_eq!(area.find_run(1), None);
        assert_eq!((area.free_slots(), area.sector(9)), (0, 872));
    }

    /// Slots 0 to 4 of six are taken, and 0, 2 and 3 are freed.
    #[test]
    fn occupied_slots_are_found_in_rotation() {
        let mut area = SwapArea::new(0, 6);
        take_run(&mut area, 5);
        for slot in [0, 2, 3] {
            area.release_slot(slot);
        }
        let next = |area: &mut SwapArea, is_match: fn(SlotOwner) -> bool| {
            area.next_matching(is_match).map(|(slot, owner)| (slot, owner.page))
        };
        // The occupied slots are 1 and 4.
        let found = [(); 3].map(|()| next(&mut area, |_| true));
        assert_eq!(found, [Some((1, 71)), Some((4, 74)), Some((1, 71))]);
        assert_eq!(next(&mut area, |owner| owner.page == 71), Some((1, 71)));
        assert_eq!(next(&mut area, |owner| owner.page == 73), None);
    }

    /// One of two slots is bad: a run of at most two has only the other one.
    #[test]
    fn a_bad_slot_is_never_used_again() {
        let mut area = SwapArea::new(0, 2);
        take_run(&mut area, 1);
        area.mark_bad(0);
        assert_eq!((area.owner(0), area.bad_slots()), (None, 1));
        assert_eq!(take_run(&mut area, 2), (1, 1));
        assert_eq!(area.find_run(2), None);
    }
}
