//! Pages that left to make room, and came back: what a larger memory would have kept.
//!
//! Of each page that leaves 32 bits of its key are noted, at a place that another part of it names; what comes in looks
//! there. A later page that leaves may have taken the place, and then the return isn't counted; one page in 2^32 is taken
//! for another. So it is an estimate, for whoever may change the size of the memory.

use alloc::vec::Vec;

use crate::eviction::PageKey;

/// Places there are: for 4 GiB of pages that have left.
const SLOTS_LOG2: u32 = 20;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct RefaultTable {
    left: Vec<u32>,
    /// How many pages have come back.
    pages: u64,
}

impl RefaultTable {
    /// Nothing has left.
    pub(super) fn new() -> RefaultTable {
        RefaultTable { left: alloc::vec![0; 1 << SLOTS_LOG2], pages: 0 }
    }

    /// How many pages have come back.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// The page has left to make room.
    pub(super) fn leave(&mut self, page: PageKey) {
        let (place, note) = noted(page);
        self.left[place] = note;
    }

    /// The page comes in.
    pub(super) fn enter(&mut self, page: PageKey) {
        let (place, note) = noted(page);
        if self.left[place] == note {
            self.left[place] = 0;
            self.pages += 1;
        }
    }
}

/// Where a page is noted, and as what: never 0.
fn noted(page: PageKey) -> (usize, u32) {
    ((page.0 >> (u64::BITS - SLOTS_LOG2)) as usize, page.0 as u32 | 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::FileId;

    #[test]
    fn a_returning_page_is_counted_once() {
        let mut refaults = RefaultTable::new();
        let [one, other] = [3, 4].map(|file| move |page| PageKey::of(FileId(file), page));
        (0..1000).for_each(|page| refaults.enter(one(page)));
        assert_eq!(refaults.pages(), 0);
        (0..1000).for_each(|page| refaults.leave(one(page)));
        (0..1000).for_each(|page| refaults.enter(other(page)));
        assert_eq!(refaults.pages(), 0);
        (500..2000).for_each(|page| refaults.enter(one(page)));
        (0..1000).for_each(|page| refaults.enter(one(page)));
        // A few places are shared.
        assert!((990..=1000).contains(&refaults.pages()), "{}", refaults.pages());
    }
}
