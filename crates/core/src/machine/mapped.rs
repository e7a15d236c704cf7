//! Calls for a server of mapped pages: queries of pages that may be mapped, and reports of mapped
//! and written pages.
//!
//! An *environment* is the code that calls the machine and maps its frames into programs.

use super::{HandleId, Machine};
use crate::swapin::MemoryId;
use crate::unit::PageRange;

impl Machine {
    /// Returns true if a page of the handle's file is in the cache, or being read into it.
    pub fn is_cached(&self, handle: HandleId, page: u64) -> bool {
        self.base.frames.cache.find(self.files.file_of(handle), page).is_some()
    }

    /// Returns true if a page of the handle's file carries the readahead mark. Its use should reach
    /// the policy, so it must not be mapped with its neighbours.
    pub fn is_marked(&self, handle: HandleId, page: u64) -> bool {
        self.base.frames.cache.marked(self.files.file_of(handle), page).is_some()
    }

    /// Returns true if a page of the handle's file was prefetched, and has no known use yet.
    pub fn is_unused(&self, handle: HandleId, page: u64) -> bool {
        let cache = &self.base.frames.cache;
        cache.find(self.files.file_of(handle), page).is_some_and(|frame| cache.is_unused(frame))
    }

    /// Records that pages of the handle's file are mapped, or certainly will be. Their uses are
    /// invisible from then on, so they count as used. Uncached pages are skipped.
    pub fn mapped(&mut self, handle: HandleId, range: PageRange) {
        let cache = &mut self.base.frames.cache;
        let file = self.files.file_of(handle);
        for page in range.pages() {
            if let Some(frame) = cache.find(file, page) {
                cache.count_as_used(frame);
            }
        }
    }

    /// Records that a mapped page was or may have been written without a fault, while its former
    /// data is being written to its slot of the swap area. The data in the slot is outdated, and is
    /// never read. For environments that couldn't give the device its own copy of the page. Must be
    /// called before the completion of the write is [handled](Machine::handle_completion).
    ///
    /// # Panics
    /// The page is not in memory.
    pub fn handle_written(&mut self, memory: MemoryId, page: u64) {
        self.memory.handle_written(&mut self.base, memory, page);
    }
}
