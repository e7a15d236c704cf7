//! Invalidation of bytes that another program has changed in the storage.
//!
//! Cached pages are dropped. Pages in flight may carry the old bytes, and a read that arrives
//! before their completion would share them. `invalidate` therefore waits for their completion. A
//! read that begins afterwards sees the change.

use readpath_core::readahead::Advice;
use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::Handle;
use super::pending_read::PendingRead;
use crate::read_error::ReadError;

impl Handle {
    /// Drops the cached pages of a range of the file in each of its open states. Waits for the
    /// pages of the range that are in flight. No effect without an engine, which has no pages.
    pub(crate) fn invalidate(&self, range: PageRange) {
        if self.engine.existing_engine().is_none() {
            return;
        }
        let file = self.machine_ids_or_register().file;
        let mut state = self.engine.lock();
        state.invalidate_all_versions(file, range);
        let stale_versions = state.versions_with_stale_pages(file, range);
        // Own handles are needed: another thread may close the last handle meanwhile.
        let opened_handles: Vec<_> =
            stale_versions.into_iter().map(|(id, file)| (file, state.open_another(id))).collect();
        drop(state);
        let new_handle =
            |(file, machine_ids)| Handle::with_machine_ids(&self.engine, file, Some(machine_ids));
        // All handles are created before the first wait, so that each is closed in any case.
        let readers: Vec<Handle> = opened_handles.into_iter().map(new_handle).collect();
        readers.iter().for_each(|reader| reader.wait_for_stale_range(range));
    }

    /// Waits once for each page of the range that was in flight at the invalidation. Pages behind
    /// the current page that become stale later are awaited by the callers that invalidate them.
    fn wait_for_stale_range(&self, range: PageRange) {
        let mut unchecked_range = range;
        let file = self.machine_ids_or_register().file;
        let first_stale_page =
            |unchecked_range| self.engine.lock().machine.first_stale(file, unchecked_range);
        while let Some(page) = first_stale_page(unchecked_range) {
            self.wait_for_stale(page);
            unchecked_range.first = page + 1;
        }
    }

    /// Waits until a page that was in flight at the invalidation has arrived or failed.
    fn wait_for_stale(&self, page: u64) {
        let range = PageRange::new(page, 1);
        let file = self.machine_ids_or_register().file;
        let is_stale = || self.engine.lock().machine.first_stale(file, range).is_some();
        self.advise(Advice::Random, PageRange::new(0, 0));
        // The loop is needed: the page may have come with an earlier read, or been read without the
        // cache because the executing thread is stalled.
        while is_stale() {
            let read = PendingRead::new(self, page * PAGE_BYTES, 1);
            let waited = read.and_then(|read| read.wait(|_| ()));
            // An unreadable page is not cached either. A failed storage completes no more requests.
            if matches!(waited, Err(ReadError::Storage { .. })) {
                return;
            }
        }
    }
}
