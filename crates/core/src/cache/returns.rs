//! Pages that left to make room, and came back: what a larger memory would have kept.
//!
//! Of each page that leaves 32 bits of its key are noted, at a place that another part of it names; what comes in looks
//! there. A later page that leaves may have taken the place, and then the return isn't counted; one page in 2^32 is taken
//! for another. So it is an estimate, for whoever may change the size of the memory.

use alloc::vec::Vec;

use crate::reclaim::PageKey;

/// Places there are: for 4 GiB of pages that have left.
const PLACES_LOG2: u32 = 20;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Returns {
    left: Vec<u32>,
    /// How many pages have come back.
    pages: u64,
}

impl Returns {
    /// Nothing has left.
    pub(super) fn new() -> Returns {
        Returns { left: alloc::vec![0; 1 << PLACES_LOG2], pages: 0 }
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
    ((page.0 >> (u64::BITS - PLACES_LOG2)) as usize, page.0 as u32 | 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::FileId;

    #[test]
    fn what_left_and_comes_back_is_counted_once() {
        let mut returns = Returns::new();
        let [one, other] = [3, 4].map(|file| move |page| PageKey::of(FileId(file), page));
        (0..1000).for_each(|page| returns.enter(one(page)));
        assert_eq!(returns.pages(), 0);
        (0..1000).for_each(|page| returns.leave(one(page)));
        (0..1000).for_each(|page| returns.enter(other(page)));
        assert_eq!(returns.pages(), 0);
        (500..2000).for_each(|page| returns.enter(one(page)));
        (0..1000).for_each(|page| returns.enter(one(page)));
        // A few places are shared.
        assert!((990..=1000).contains(&returns.pages()), "{}", returns.pages());
    }
}
