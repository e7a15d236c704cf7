//! Evicted pages that return: an estimate of the hits of a larger memory.
//!
//! For each evicted page, 31 bits of its key are stored in a slot selected by another part of the
//! key. A page that enters checks its slot. A later eviction may have overwritten the slot, and the
//! return isn't counted then. One page in 2^31 is confused with another. The count is therefore an
//! estimate, for the code that changes the size of the memory.

use alloc::vec::Vec;

use crate::eviction::PageKey;

/// Binary logarithm of the number of slots: enough for 4 GiB of evicted pages.
const SLOTS_LOG2: u32 = 20;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct RefaultTable {
    /// Key bits of the evicted page in each slot, with bit 0 set; 0 if empty.
    evicted_keys: Vec<u32>,
    /// Number of returned pages.
    returned_pages: u64,
}

impl RefaultTable {
    /// Creates an empty table.
    pub(super) fn new() -> RefaultTable {
        RefaultTable { evicted_keys: alloc::vec![0; 1 << SLOTS_LOG2], returned_pages: 0 }
    }

    /// Number of evicted pages that returned, since the start.
    pub(super) fn returned_pages(&self) -> u64 {
        self.returned_pages
    }

    /// Stores the key bits of an evicted page, to recognize its return.
    pub(super) fn record_eviction(&mut self, page: PageKey) {
        let (slot, key_bits) = slot_and_key_bits(page);
        self.evicted_keys[slot] = key_bits;
    }

    /// Counts a return if the entering page is among the stored evicted pages, and removes it from
    /// them.
    pub(super) fn record_entry(&mut self, page: PageKey) {
        let (slot, key_bits) = slot_and_key_bits(page);
        if self.evicted_keys[slot] == key_bits {
            self.evicted_keys[slot] = 0;
            self.returned_pages += 1;
        }
    }
}

/// Returns the slot of a page, and the key bits that are stored there, which are never 0. The key
/// is pseudo-random: its highest bits select the slot. Its lowest 32 bits are stored, with bit 0
/// set.
fn slot_and_key_bits(page: PageKey) -> (usize, u32) {
    ((page.0 >> (u64::BITS - SLOTS_LOG2)) as usize, page.0 as u32 | 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::FileId;

    /// Pages 0 to 999 of a file are evicted. Pages of another file are no returns; the 1,000 pages
    /// count once, whatever else enters. A few slots are shared, and lose an evicted page.
    #[test]
    fn a_returning_page_is_counted_once() {
        let mut refaults = RefaultTable::new();
        let [evicted, other] = [3, 4].map(|file| move |page| PageKey::of(FileId(file), page));
        (0..1000).for_each(|page| refaults.record_entry(evicted(page)));
        assert_eq!(refaults.returned_pages(), 0);
        (0..1000).for_each(|page| refaults.record_eviction(evicted(page)));
        (0..1000).for_each(|page| refaults.record_entry(other(page)));
        assert_eq!(refaults.returned_pages(), 0);
        (500..2000).for_each(|page| refaults.record_entry(evicted(page)));
        (0..1000).for_each(|page| refaults.record_entry(evicted(page)));
        assert!((990..=1000).contains(&refaults.returned_pages()), "{}", refaults.returned_pages());
    }
}
