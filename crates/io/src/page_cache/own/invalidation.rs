//! Invalidation of bytes that another program has changed in the storage.
//!
//! Cached pages are dropped. Pages in flight may carry the old bytes, and a read that arrives
//! before their completion would share them. `invalidate` therefore waits for their completion. A
//! read that begins afterwards sees the change. A *version* of a file is its content between two
//! changes, as found at an opening. A *handle* is one opening of a version. A *stale* page was in
//! flight at the invalidation, and still is. The *engine* is the path's cache with its requests,
//! and the *machine* the state machine that decides on them.

use readpath_core::readahead::Advice;
use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::Handle;
use super::pending_read::PendingRead;
use crate::read_error::ReadError;

impl Handle {
    /// Drops the cached pages of a range of the file in each of its open versions. Waits for the
    /// pages of the range that are in flight. No effect without an engine: it would have no pages.
    pub(crate) fn invalidate(&self, range: PageRange) {
        if self.engine.existing_engine().is_none() {
            return;
        }
        let file_id = self.machine_ids_or_register().file_id;
        let mut state = self.engine.lock();
        state.invalidate_all_versions(file_id, range);
        let stale_versions = state.versions_with_stale_pages(file_id, range);
        // Own handles are needed to read the stale pages: another thread may close the last handle
        // meanwhile. The drop of an own handle closes it.
        let files_with_new_ids: Vec<_> = stale_versions
            .into_iter()
            .map(|(version_id, file)| (file, state.open_another_handle(version_id)))
            .collect();
        // The waits below take the lock, and so does the drop of a handle.
        drop(state);
        let new_handle =
            |(file, machine_ids)| Handle::with_machine_ids(&self.engine, file, Some(machine_ids));
        // All handles are created before the first wait, so that each is closed in any case.
        let own_handles: Vec<Handle> = files_with_new_ids.into_iter().map(new_handle).collect();
        own_handles.iter().for_each(|handle| handle.wait_for_stale_range(range));
    }

    /// Waits once for each stale page of the range. A page that becomes stale after its wait is
    /// awaited by the caller that has invalidated it.
    fn wait_for_stale_range(&self, range: PageRange) {
        let mut unchecked_range = range;
        let file_id = self.machine_ids_or_register().file_id;
        let first_stale_page =
            |unchecked_range| self.engine.lock().machine.first_stale(file_id, unchecked_range);
        while let Some(page) = first_stale_page(unchecked_range) {
            self.wait_for_stale(page);
            unchecked_range.first = page + 1;
        }
    }

    /// Waits until a stale page has arrived or failed. Sets the readahead of this handle to random,
    /// so that the wait reads no other page.
    fn wait_for_stale(&self, page: u64) {
        let range = PageRange::new(page, 1);
        let file_id = self.machine_ids_or_register().file_id;
        let is_stale = || self.engine.lock().machine.first_stale(file_id, range).is_some();
        // This advice applies to the whole handle. The range is not used.
        self.advise(Advice::Random, PageRange::new(0, 0));
        // A read of the page waits for its completion. One read may not be enough: the page may
        // come from an earlier read, or be read past the cache because the executing thread is
        // stalled.
        while is_stale() {
            // One byte suffices: the machine reads whole pages.
            let read = PendingRead::new(self, page * PAGE_BYTES, 1);
            let waited = read.and_then(|read| read.wait(|_| ()));
            // An unreadable page is not cached either. A failed storage completes no more requests.
            if matches!(waited, Err(ReadError::Storage { .. })) {
                return;
            }
        }
    }
}
