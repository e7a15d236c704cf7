//! Batch reads through the kernel page cache: submitted together, taken in order of completion.
//!
//! Each read is polled with `RWF_NOWAIT`. If none has completed, threads of the
//! [waiter](super::blocking_pool) wait for some reads of each file, and the batch takes the first that
//! ends. A stalled read thus delays no other. Some file systems do not support `RWF_NOWAIT`. There
//! a read is made at once if its pages were resident at submission, unless a thread waits for
//! another read of the file.

use std::io::{self, IoSliceMut};
use std::sync::Arc;

use super::blocking_read::Wish;
use crate::aligned_bytes::Copied;
use crate::engine::Handle;

/// Largest read in bytes whose content a waiter thread keeps for a batch: 16 MiB in 64 reads.
const KEPT_BYTES_MAX: u64 = 256 << 10;

/// Result of a completed read.
pub(crate) enum Came {
    /// The bytes.
    Copied(Copied),
    /// The pages are resident, as far as known; the caller reads them.
    There,
    /// The kernel cannot provide them: the read must bypass its page cache.
    Past,
}

impl Handle {
    /// Polls a read submitted by [`begin_in_kernel`](Handle::begin_in_kernel). A read of up to
    /// `copied_max` bytes is copied at once, into memory of `spare`. `None` if it has not
    /// completed.
    pub(crate) fn look_at_begun(
        &self,
        offset: u64,
        bytes: u64,
        was_held: bool,
        copied_max: u64,
        spare: &mut Vec<Copied>,
    ) -> Option<Came> {
        let pages = &self.file.kernel_pages;
        let (Some(steered), Some(through)) = (&pages.steered, pages.through()) else {
            return Some(Came::Past);
        };
        if self.has_own(offset, bytes) {
            return Some(Came::Past);
        }
        if through.is_blind() {
            let is_there = was_held && !steered.waits_for(through.key);
            return is_there.then_some(Came::There);
        }
        if bytes > copied_max {
            let mut byte = [0];
            let last = &mut [IoSliceMut::new(&mut byte)];
            let is_there = through.read_seen(offset + bytes - 1, false, last) == Some(1);
            return is_there.then_some(Came::There);
        }
        let mut copy = Copied::room(bytes as usize, spare.pop());
        if through.read_seen(offset, false, &mut [IoSliceMut::new(&mut copy)]) == Some(bytes) {
            self.counted(bytes, 0, offset);
            return Some(Came::Copied(copy));
        }
        spare.push(copy);
        None
    }

    /// Starts a waiter thread for a submitted read; `None` if the read must bypass the kernel page
    /// cache.
    ///
    /// # Errors
    /// The system provides no thread.
    pub(crate) fn wish_for_begun(&self, offset: u64, bytes: u64) -> io::Result<Option<Arc<Wish>>> {
        let pages = &self.file.kernel_pages;
        let (Some(steered), Some(through)) = (&pages.steered, pages.through()) else {
            return Ok(None);
        };
        let wish = through.wish(offset, bytes);
        let wish = if bytes <= KEPT_BYTES_MAX { wish.keeping_bytes() } else { wish };
        let wish = Arc::new(wish);
        steered.wait_for(Arc::clone(&wish))?;
        Ok(Some(wish))
    }

    /// Result of a read for which a thread has waited.
    pub(crate) fn came(
        &self,
        wish: &Wish,
        offset: u64,
        bytes: u64,
        spare: &mut Vec<Copied>,
    ) -> Came {
        if let Some(copy) = wish.take_copy() {
            self.counted(bytes, bytes, offset);
            return Came::Copied(copy);
        }
        let Some(through) = self.file.kernel_pages.through() else { return Came::Past };
        if through.is_blind() {
            return Came::There;
        }
        let mut copy = Copied::room(bytes as usize, spare.pop());
        if through.read_seen(offset, false, &mut [IoSliceMut::new(&mut copy)]) == Some(bytes) {
            self.counted(bytes, bytes, offset);
            return Came::Copied(copy);
        }
        through.was_gone();
        spare.push(copy);
        Came::Past
    }
}
