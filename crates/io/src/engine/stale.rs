//! What somebody else has changed in the storage is served no more.
//!
//! What is there of it is dropped. What is on its way may carry the old bytes, and whoever reads it before it is there would
//! share them: so this waits until it is there. A read that begins afterwards sees what was changed before.

use readpath_core::readahead::Advice;
use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::Handle;
use super::pending::PendingRead;
use crate::read_error::ReadError;

impl Handle {
    /// Drops a range of the file, in each state in which it is open, and waits for what is on its way of that.
    pub(crate) fn invalidate(&self, range: PageRange) {
        if self.engine.built().is_none() {
            return;
        }
        let file = self.in_machine().file;
        let mut state = self.engine.lock();
        state.invalidate_states(file, range);
        let stale = state.stale_states(file, range);
        // Handles of their own, from here on: another thread may close the last one meanwhile.
        let opened: Vec<_> =
            stale.into_iter().map(|(id, file)| (file, state.open_again(id))).collect();
        drop(state);
        let open = |(file, named)| Handle::opened(&self.engine, file, Some(named));
        // All of them before the first is waited for, so that each is closed whatever happens.
        let readers: Vec<Handle> = opened.into_iter().map(open).collect();
        readers.iter().for_each(|reader| reader.wait_for_all_stale(range));
    }

    /// Waits for each page of the range that was on its way, once: pages that come to be so meanwhile behind the one that
    /// is waited for are somebody else's to wait for.
    fn wait_for_all_stale(&self, range: PageRange) {
        let mut rest = range;
        let file = self.in_machine().file;
        let first = |rest| self.engine.lock().machine.first_stale(file, rest);
        while let Some(page) = first(rest) {
            self.wait_for_stale(page);
            rest.first = page + 1;
        }
    }

    /// Waits until a page that was on its way is there, or has failed.
    fn wait_for_stale(&self, page: u64) {
        let range = PageRange::new(page, 1);
        let file = self.in_machine().file;
        let is_stale = || self.engine.lock().machine.first_stale(file, range).is_some();
        self.advise(Advice::Random, PageRange::new(0, 0));
        // It may have come with an earlier one; or be read past the cache, since its carrier doesn't get on.
        while is_stale() {
            let read = PendingRead::new(self, page * PAGE_BYTES, 1);
            let waited = read.and_then(|read| read.wait(|_| ()));
            // A page that can't be read is not cached either; where nothing is carried any more, nothing comes.
            if matches!(waited, Err(ReadError::Storage { .. })) {
                return;
            }
        }
    }
}
