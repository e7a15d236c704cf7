//! How large the cache may be, changed while it is in use.
//!
//! To become larger costs nothing at once. To become smaller, pages leave as reclaim would have them leave; what is in
//! use, or promised, stays.

use alloc::vec::Vec;

use super::{Cache, FrameId};

impl Cache {
    /// Brings up to `frames` more into circulation, as far as there are any.
    pub fn grow(&mut self, frames: u32) {
        self.supply.grow(frames);
    }

    /// Takes up to `frames` out of circulation, as far as pages can go: first those that were never used, then free
    /// ones, then those whose pages reclaim likes least. Gives those that have held a page: once the world has taken their
    /// memory back it [says so](Cache::withdrawn), and until then they are nobody's.
    pub fn shrink(&mut self, frames: u32) -> Vec<FrameId> {
        let frames = self.free_beside(frames).min(frames);
        self.supply.shrink(frames)
    }

    /// How many frames have memory: those that have ever held a page, and were not withdrawn since.
    pub fn backed_pages(&self) -> u32 {
        self.supply.backed()
    }

    /// The world has taken back the memory of frames that were given to it.
    pub fn withdrawn(&mut self, frames: &[FrameId]) {
        self.supply.withdrawn(frames);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{FileId, Mark};
    use crate::readahead::Folio;

    fn filled(cache: &mut Cache, file: FileId, page: u64) -> Option<FrameId> {
        let id = cache.add(file, page, Folio::holding(page, 0), Mark::Clear, false)?;
        cache.fill(id);
        Some(id)
    }

    #[test]
    fn a_cache_that_shrinks_keeps_what_reclaim_would_keep_and_one_that_grows_keeps_all() {
        let mut cache = Cache::of_up_to(6, 12);
        let file = cache.add_file();
        for page in 0..4 {
            filled(&mut cache, file, page);
        }
        // Of six, two were never used.
        assert_eq!(cache.shrink(2), []);
        assert_eq!(cache.counters().evicted_pages, 0);
        let withdrawing = cache.shrink(1);
        assert_eq!(withdrawing.len(), 1);
        assert_eq!((cache.find(file, 0), cache.budget_pages()), (None, 3));
        cache.withdrawn(&withdrawing);
        cache.grow(5);
        for page in 10..15 {
            filled(&mut cache, file, page);
        }
        let kept = [1, 2, 3, 10, 11, 12, 13, 14].map(|page| cache.find(file, page).is_some());
        assert_eq!(kept, [true; 8]);
        assert_eq!((cache.budget_pages(), cache.free_pages()), (8, 0));
    }

    #[test]
    fn what_is_pinned_or_in_flight_stays_in_circulation() {
        let mut cache = Cache::new(4);
        let file = cache.add_file();
        let pinned = filled(&mut cache, file, 0).unwrap();
        cache.pin(pinned);
        filled(&mut cache, file, 1);
        cache.add(file, 2, Folio::holding(2, 0), Mark::Clear, false).unwrap();
        assert_eq!(cache.shrink(4).len(), 1);
        assert_eq!((cache.budget_pages(), cache.free_pages()), (2, 0));
        assert_eq!(cache.find(file, 0), Some(pinned));
        assert!(cache.find(file, 2).is_some());
    }
}
