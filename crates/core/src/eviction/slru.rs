//! `slru`: an LRU list for new pages, and a protected one for pages that were used again.
//!
//! How it works (segmented LRU: Karedla, Love and Wherry, IEEE Computer 27(3), 1994): a page enters
//! the *probationary* segment. A use moves it to the front of the *protected* segment, which has at
//! most four fifths of the memory. The least recently used page of a protected segment that is too
//! long moves to the front of the probationary one. The victim is the least recently used
//! probationary page.
//!
//! A scan passes through the probationary segment only. The size of the protected segment is the
//! one of caches in use today (Caffeine's main space).
//!
//! If uses are known only from access bits, a used page at the end of the probationary segment
//! moves to the protected one. A page that leaves the protected one is examined again at the end of
//! the probationary one.

// Access bits count the uses of a page that readers have not reported, up to two. Reading them
// resets them, so that a loop over used pages ends.
use super::{AccessBits, EvictionPolicy, FrameLists, List, PageKey, PageOrigin};
use crate::page::FrameId;

/// Lists of the two segments.
const PROBATIONARY: List = List::PROBATION;
const PROTECTED: List = List::REUSED;

/// The eviction policy `slru`.
#[derive(Debug)]
pub struct Slru {
    /// Most pages of the protected segment.
    protected_max: u32,
}

/// Size of the protected segment in a cache of `pages` pages: four fifths, as in Caffeine.
fn protected_max(pages: u32) -> u32 {
    (u64::from(pages) * 4 / 5) as u32
}

impl Slru {
    /// Creates the policy for a cache of `pages` pages.
    pub fn new(pages: u32) -> Slru {
        Slru { protected_max: protected_max(pages) }
    }

    /// Moves the oldest protected pages to the front of the probationary segment, until the
    /// protected one has its size.
    fn demote(&self, lists: &mut FrameLists) {
        while lists.pages(PROTECTED) > self.protected_max {
            let Some(frame) = lists.pop(PROTECTED) else { return };
            lists.push(frame, PROBATIONARY);
        }
    }
}

impl EvictionPolicy for Slru {
    /// Adds a page at the front of the probationary segment.
    fn enter(
        &mut self,
        lists: &mut FrameLists,
        frame: FrameId,
        _page: PageKey,
        _entry: PageOrigin,
    ) {
        lists.push(frame, PROBATIONARY);
    }

    /// Moves a used page to the front of the protected segment. A page that is on no list is not
    /// moved.
    fn used(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey) {
        if lists.is_listed(frame) {
            lists.renew(frame, PROTECTED);
            self.demote(lists);
        }
    }

    /// Pops the oldest probationary pages, or protected ones without these. The first unused one is
    /// the victim; used ones become protected. `None` without a page.
    fn victim(
        &mut self,
        lists: &mut FrameLists,
        access_bits: &mut dyn AccessBits,
    ) -> Option<FrameId> {
        loop {
            let frame = lists.pop(PROBATIONARY).or_else(|| lists.pop(PROTECTED))?;
            if access_bits.uses(frame) == 0 {
                return Some(frame);
            }
            lists.push(frame, PROTECTED);
            self.demote(lists);
        }
    }

    /// The oldest probationary page, or the oldest protected one without these. `None` without a
    /// page.
    fn oldest(&mut self, lists: &mut FrameLists) -> Option<FrameId> {
        lists.oldest(PROBATIONARY).or_else(|| lists.oldest(PROTECTED))
    }

    /// Adopts a page of another policy: a reused page as protected, any other as probationary.
    fn adopt(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey, was_reused: bool) {
        lists.push(frame, if was_reused { PROTECTED } else { PROBATIONARY });
        self.demote(lists);
    }

    /// Sets the size of the protected segment for a memory of `pages` pages, and demotes the
    /// excess.
    fn resize(&mut self, lists: &mut FrameLists, _access_bits: &dyn AccessBits, pages: u32) {
        self.protected_max = protected_max(pages);
        self.demote(lists);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::super::simulation::trial::victims;
    use super::*;
    use crate::splitmix;

    /// Numbers are pages, in a memory of five, four of them protected at most. 1 to 4 are used
    /// again and protected, so the scan of 6 to 8 evicts 5, 6 and 7. The use of 8 demotes 1, which
    /// is the next victim.
    #[test]
    fn a_scan_evicts_probationary_pages_only() {
        let references = [1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 7, 8, 8, 9];
        assert_eq!(victims(Slru::new(5), 5, references), [5, 6, 7, 1]);
    }

    /// Victims of a reference model: two vectors of pages, the oldest first.
    fn model_victims(pages: usize, references: &[u64]) -> Vec<u64> {
        let (mut probationary, mut protected) = (Vec::new(), Vec::new());
        let mut evicted = Vec::new();
        for &page in references {
            let is_present = probationary.contains(&page) || protected.contains(&page);
            probationary.retain(|other| *other != page);
            protected.retain(|other| *other != page);
            if !is_present && probationary.len() + protected.len() == pages {
                let segment =
                    if probationary.is_empty() { &mut protected } else { &mut probationary };
                evicted.push(segment.remove(0));
            }
            if is_present { &mut protected } else { &mut probationary }.push(page);
            if protected.len() > pages * 4 / 5 {
                probationary.push(protected.remove(0));
            }
        }
        evicted
    }

    /// Pseudo-random references to 40 pages, half of them to ten pages.
    #[test]
    fn victims_equal_a_reference_model() {
        let random_page = |seed: u64| (splitmix::mixed(seed) >> 32) % 40;
        let reference = |seed: u64| {
            let is_of_all = random_page(seed + 1) < 20;
            if is_of_all { random_page(seed) } else { random_page(seed) % 10 }
        };
        let references: Vec<u64> = (0..4000).map(reference).collect();
        for pages in [1, 2, 5, 12, 30] {
            let found = victims(Slru::new(pages), pages, references.iter().copied());
            assert_eq!(found, model_victims(pages as usize, &references), "{pages} pages");
        }
    }
}
