//! Execution of a batch under the lock. One locked section takes back the returned reads, starts
//! the new reads and shares the completed reads. It reads the clock once, and all requests are
//! submitted together.
//!
//! The pages of a shared read stay pinned until the batch is called again. The next call may come
//! late, or never while the batch's thread reads something else. Two limits prevent other reads
//! from waiting for these pages. All batches together pin at most a quarter of the memory for
//! reads, and one read takes at most half of it. Beyond the limit, a completed read is copied. To
//! *detach* a read is to copy its bytes to memory of their own and to unpin its pages. The
//! *machine* is the state machine of the cache, which pins them.

use std::collections::VecDeque;
use std::sync::Arc;

use readpath_core::machine::ReadError;
use readpath_core::unit::{PAGE_BYTES, Time};
use slab::Slab;

use super::EngineState;
use crate::os::aligned_bytes::AlignedBytes;
use crate::page_cache::own::Handle;
use crate::page_cache::own::in_flight::{CompletedRead, InFlight, InFlightId, QueueId};

/// A read of a batch that the engine has not started. A read in the kernel page cache is one too:
/// the engine starts it only if the kernel cannot provide its bytes.
pub(crate) struct UnstartedRead {
    /// Handle that reads.
    pub(crate) handle: Arc<Handle>,
    /// First byte in the file.
    pub(crate) offset: u64,
    /// Number of bytes, all within the file.
    pub(crate) bytes: u64,
    /// Caller's identifier, returned with the result.
    pub(crate) ticket: u64,
}

/// A completed read, shared with a batch. [`EngineState::release_and_start`] takes it back.
pub(crate) struct SharedRead {
    /// Result, with the pinned frames or the copy of its bytes.
    pub(crate) completed: CompletedRead,
    /// Entry of the read in the engine, which must be released. `None` for a rejected read, one
    /// that failed outside the machine, and a copy from there. A read that was copied at the pin
    /// limit has an entry.
    id: Option<InFlightId>,
    /// Number of pages that the read pins in the machine; 0 for a copy, and after an error.
    pages: u64,
}

impl SharedRead {
    /// Returns the buffer if the read is a copy without an entry in the engine. Otherwise returns
    /// the read itself as the error: the engine must take it back.
    pub(crate) fn into_copy(self) -> Result<AlignedBytes, SharedRead> {
        match self {
            SharedRead {
                id: None, completed: CompletedRead { detached: Some(copy), .. }, ..
            } => Ok(copy),
            shared => Err(shared),
        }
    }

    /// Creates a completed read from bytes that were found outside the machine.
    pub(crate) fn from_copy(ticket: u64, bytes: AlignedBytes) -> SharedRead {
        let result = Some(Ok(bytes.len() as u64));
        let detached = Some(bytes);
        let completed = CompletedRead { ticket, result, detached, ..CompletedRead::default() };
        SharedRead { completed, id: None, pages: 0 }
    }

    /// Creates a completed read from the error of a rejected or failed one.
    pub(crate) fn from_error(ticket: u64, error: ReadError) -> SharedRead {
        let result = Some(Err(error));
        let completed = CompletedRead { ticket, result, ..CompletedRead::default() };
        SharedRead { completed, id: None, pages: 0 }
    }
}

/// Maximum number of pages that batches may pin. `read_bytes_max` is the largest read of the
/// machine.
pub(super) const fn batch_pages_max(read_bytes_max: u64) -> u64 {
    read_bytes_max / PAGE_BYTES / 4
}

impl EngineState {
    /// Takes back the `returned` reads, which leaves that list empty. Then starts the `unstarted`
    /// ones, given by their keys in `reads`. Their handles are registered. A read that the machine
    /// rejects is added to `ready`; the others complete in `queue`. The ticket of each result is
    /// the key. The caller removes the reads from `reads` without the lock, because the drop of the
    /// last handle of a file takes it.
    pub(crate) fn release_and_start(
        &mut self,
        queue: QueueId,
        returned: &mut Vec<SharedRead>,
        unstarted: &[usize],
        reads: &Slab<UnstartedRead>,
        ready: &mut VecDeque<SharedRead>,
    ) {
        let now = self.take_returned_frames();
        returned.drain(..).for_each(|shared| self.release_shared(now, shared));
        for &key in unstarted {
            let UnstartedRead { handle, offset, bytes, .. } = &reads[key];
            let ticket = key as u64;
            if let Err(error) = self.begin(now, handle, *offset, *bytes, queue, ticket) {
                ready.push_back(SharedRead::from_error(ticket, error));
            }
        }
        self.step_until_idle(now);
    }

    /// Moves completed reads of the queue to `ready`. `first` is a completed read that the caller
    /// has removed from the queue already. If it exceeds the pin limit, it is copied, because the
    /// batch waits for it. Then follow the next completed reads, up to the first one that exceeds
    /// the limit. The others stay in the queue for a later call.
    pub(crate) fn share_completed(
        &mut self,
        queue: QueueId,
        first: InFlightId,
        ready: &mut VecDeque<SharedRead>,
    ) {
        if !self.is_within_pin_limit(first) {
            let now = self.clock.now();
            // False for a failed read, which has no bytes, and for one that is detached already.
            if self.detach(now, first) {
                // Reads that wait for memory may use the unpinned pages.
                self.step_until_idle(now);
            }
        }
        let mut next_id = Some(first);
        while let Some(id) = next_id {
            let completed = self.in_flight.take_completed(id);
            let pages = completed.frames.len() as u64;
            self.batch_pages += pages;
            ready.push_back(SharedRead { completed, id: Some(id), pages });
            let (pinned_pages, pinned_pages_max) = (self.batch_pages, self.batch_pages_max);
            let fits_pin_limit = |in_flight: &InFlight, id| {
                pinned_pages + in_flight.pinned_pages(id) <= pinned_pages_max
            };
            next_id = self.in_flight.pop_done_if(queue, fits_pin_limit);
        }
    }

    /// True if batches may pin the pages of the completed read `id` in addition to their other
    /// pages.
    fn is_within_pin_limit(&self, id: InFlightId) -> bool {
        self.batch_pages + self.in_flight.pinned_pages(id) <= self.batch_pages_max
    }

    /// Number of pages that batches pin now.
    #[cfg(test)]
    pub(super) fn batch_pages(&self) -> u64 {
        self.batch_pages
    }

    /// Releases a returned read, and subtracts its pages from the pages that batches pin. The
    /// caller then calls `step_until_idle`, because waiting reads may now begin.
    fn release_shared(&mut self, now: Time, shared: SharedRead) {
        self.batch_pages -= shared.pages;
        if let Some(id) = shared.id {
            self.release_completed(now, id, shared.completed);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::page_cache::PageCache;
    use crate::path::ReadPath;

    /// Each read counts the pages that it pins until the batch returns it.
    #[test]
    fn returned_batch_reads_release_their_pinned_pages() {
        let name = std::env::current_exe().expect("this program has a file");
        let path = ReadPath::builder()
            .page_cache(PageCache::Own { bytes: None })
            .readahead("none")
            .kernel_cache(false)
            .build()
            .unwrap();
        let file = path.open(name).unwrap();
        let mut batch = path.batch();
        for round in 0..3 {
            let ticket = 0;
            batch.read(&file, round * 20_000, 8192, ticket).unwrap();
            // Bytes 0 to 8,192 lie in pages 0 and 1, bytes 20,000 to 28,192 in pages 4 to 6, and
            // bytes 40,000 to 48,192 in pages 9 to 11.
            let pinned_pages = [2, 3, 3][round as usize];
            assert!(batch.wait().unwrap().is_some());
            assert_eq!(path.engine().lock().batch_pages(), pinned_pages);
        }
        assert!(batch.wait().unwrap().is_none());
        assert_eq!(path.engine().lock().batch_pages(), 0);
    }
}
