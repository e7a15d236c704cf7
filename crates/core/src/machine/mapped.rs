//! What who serves mapped pages asks of the machine: which he may map, and telling which he did, and which may have changed.

use super::{HandleId, Machine};
use crate::swapin::MemoryId;
use crate::unit::PageRange;

impl Machine {
    /// Whether a page of the handle's file is in the cache, or on its way into it.
    pub fn is_cached(&self, handle: HandleId, page: u64) -> bool {
        self.base.frames.cache.find(self.files.file_of(handle), page).is_some()
    }

    /// Whether a page of the handle's file carries the readahead mark: its use
    /// should reach the law, so it is not to be mapped with its neighbours.
    pub fn is_marked(&self, handle: HandleId, page: u64) -> bool {
        self.base.frames.cache.marked(self.files.file_of(handle), page).is_some()
    }

    /// Whether a page of the handle's file was read ahead, and nobody is known to have used it yet.
    pub fn is_unused(&self, handle: HandleId, page: u64) -> bool {
        let cache = &self.base.frames.cache;
        cache.find(self.files.file_of(handle), page).is_some_and(|frame| cache.is_unused(frame))
    }

    /// Pages of the handle's file are mapped, or will be for certain: nobody will hear whether they are used, so from
    /// here on they are taken to be. Those of them that aren't cached are passed over.
    pub fn mapped(&mut self, handle: HandleId, range: PageRange) {
        let cache = &mut self.base.frames.cache;
        let file = self.files.file_of(handle);
        for page in range.pages() {
            if let Some(frame) = cache.find(file, page) {
                cache.count_as_used(frame);
            }
        }
    }

    /// A page that a program maps was written to, or may have been, though no fault has told: what is on its way to its
    /// slot is not what it holds, and is never read. For worlds that couldn't give a write the page's bytes; before its
    /// completion is [handled](Machine::handle_completion).
    ///
    /// # Panics
    /// The page is not in memory.
    pub fn handle_written(&mut self, memory: MemoryId, page: u64) {
        self.memory.handle_written(&mut self.base, memory, page);
    }
}
