//! Order between writes of batches and partial blocks of calls, on one raw file in one process.
//!
//! A call that writes a part of a block reads the whole block and writes it back. A batch's write
//! of that block in between would be lost. Two rules prevent that:
//!
//! 1. A call whose partial blocks overlap a batch's write in flight is refused. The batch belongs
//!    to a thread that may be the caller's own, so a wait could last forever.
//! 2. A batch's write of a call's partial block waits until the call has ended. A call ends without
//!    the help of another thread.
//!
//! A batch's write is in flight from its start until the batch has returned it. Whole blocks need
//! no order: the device writes each of them as a unit.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use slab::Slab;

use super::RawFault;

/// Ranges of the file that batches and the running call write.
#[derive(Default)]
pub(super) struct BatchWrites {
    ranges: Mutex<WrittenRanges>,
    /// Signalled at the end of a call with partial blocks.
    call_has_ended: Condvar,
}

/// Byte ranges in the file. Calls run one after another, so at most one has partial blocks.
#[derive(Default)]
pub(super) struct WrittenRanges {
    /// Writes of batches in flight.
    batch_writes: Slab<Range<u64>>,
    /// Partial blocks of the running call; empty ranges without one.
    partial_blocks: [Range<u64>; 2],
}

/// A batch's write in flight. Drop removes its range.
pub(super) struct BatchWriteGuard<'f> {
    batch_writes: &'f BatchWrites,
    /// Key of the range.
    key: usize,
}

/// A call in progress with its partial blocks. Drop removes them and wakes waiting batches.
pub(super) struct CallGuard<'f> {
    batch_writes: &'f BatchWrites,
}

impl BatchWrites {
    /// Locks the ranges. No batch's write begins or ends until [`begin_call`](Self::begin_call).
    pub(super) fn lock(&self) -> MutexGuard<'_, WrittenRanges> {
        // No method panics between two changes that belong together: a poisoned lock is safe.
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the partial blocks of a call, under the lock `ranges`.
    ///
    /// # Errors
    /// A batch's write in flight overlaps them.
    pub(super) fn begin_call(
        &self,
        mut ranges: MutexGuard<'_, WrittenRanges>,
        partial_blocks: [Range<u64>; 2],
    ) -> Result<CallGuard<'_>, RawFault> {
        let busy_block = partial_blocks.iter().find(|block| {
            ranges.batch_writes.iter().any(|(_, write)| ranges_overlap(write, block))
        });
        if let Some(block) = busy_block {
            return Err(RawFault::BatchInFlight { offset: block.start });
        }
        ranges.partial_blocks = partial_blocks;
        Ok(CallGuard { batch_writes: self })
    }

    /// Registers a batch's write of `range`, after the call that has a partial block there.
    pub(super) fn begin_batch_write(&self, range: Range<u64>) -> BatchWriteGuard<'_> {
        let mut ranges = self
            .call_has_ended
            .wait_while(self.lock(), |ranges| {
                ranges.partial_blocks.iter().any(|block| ranges_overlap(&range, block))
            })
            .unwrap_or_else(PoisonError::into_inner);
        let key = ranges.batch_writes.insert(range);
        BatchWriteGuard { batch_writes: self, key }
    }
}

impl Drop for BatchWriteGuard<'_> {
    fn drop(&mut self) {
        self.batch_writes.lock().batch_writes.remove(self.key);
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.batch_writes.lock().partial_blocks = Default::default();
        self.batch_writes.call_has_ended.notify_all();
    }
}

/// True if two ranges have a byte in common.
fn ranges_overlap(range: &Range<u64>, other: &Range<u64>) -> bool {
    range.start.max(other.start) < range.end.min(other.end)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A call has blocks 10 and 30 of ten bytes in part.
    #[test]
    fn batch_write_of_a_calls_partial_block_waits_for_the_end_of_the_call() {
        let batch_writes = BatchWrites::default();
        let call = batch_writes.begin_call(batch_writes.lock(), [10..20, 30..40]).unwrap();
        drop(batch_writes.begin_batch_write(20..30));
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _write = batch_writes.begin_batch_write(39..50);
                assert!(has_ended.load(Ordering::SeqCst));
            });
            // Time for the other thread to reach its wait; too short a time hides a fault only.
            std::thread::sleep(std::time::Duration::from_millis(50));
            has_ended.store(true, Ordering::SeqCst);
            drop(call);
        });
    }
}
