//! Order between writes of batches and calls, on one raw file in one process.
//!
//! A *call* is a write by the raw file itself, and not by a batch of it. A call that writes a part
//! of a block reads the whole block and writes it back. A batch's write of that block in between
//! would be lost. A call that truncates the file to its content would cut off a batch's write
//! behind it. Three rules prevent that:
//!
//! 1. A call whose partial blocks overlap a batch's write in flight is refused. The batch belongs
//!    to a thread that may be the caller's own, so a wait could last forever.
//! 2. A call does not truncate the file if a batch's write behind the content is in flight, or has
//!    ended since the call began.
//! 3. A batch's write of a call's partial block, or behind the content while the call truncates,
//!    waits until that is over. A call ends without the help of another thread.
//!
//! A batch's write is in flight from its start until the batch has returned it. Whole blocks need
//! no order: the device writes each of them as a unit.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use slab::Slab;

use super::RawFault;
use super::layout::intersection;

/// Ranges of the file that batches and the running call write.
#[derive(Default)]
pub(super) struct BatchWrites {
    ranges: Mutex<WrittenRanges>,
    /// Signalled when a call leaves ranges.
    call_has_ended: Condvar,
}

/// Byte ranges in the file. Calls run one after another, so at most one has ranges.
#[derive(Default)]
struct WrittenRanges {
    /// Writes of batches in flight.
    batch_writes: Slab<Range<u64>>,
    /// Largest end of the batches' writes that have ended since the last call began.
    ended_writes_end: u64,
    /// Partial blocks of the running call, and the bytes that it cuts off; empty without them.
    call_ranges: [Range<u64>; 3],
    /// Number of batches' writes that wait for the running call.
    waiting_writes: u32,
}

/// Partial blocks in `WrittenRanges::call_ranges`.
const PARTIAL_BLOCKS: Range<usize> = 0..2;

/// Bytes cut off, in `WrittenRanges::call_ranges`.
const CUT_OFF: Range<usize> = 2..3;

/// A batch's write in flight. Drop removes its range.
pub(super) struct BatchWriteGuard<'f> {
    batch_writes: &'f BatchWrites,
    /// Key of the range.
    key: usize,
}

/// Ranges of a call in progress. Drop removes them and wakes waiting batches.
pub(super) struct CallGuard<'f> {
    batch_writes: &'f BatchWrites,
    /// Indices in `WrittenRanges::call_ranges`.
    indices: Range<usize>,
}

impl BatchWrites {
    fn lock(&self) -> MutexGuard<'_, WrittenRanges> {
        // No method panics between two changes that belong together: a poisoned lock is safe.
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the partial blocks of a call, until the guard is dropped. Returns `None` if it has
    /// only whole blocks. From here on, ended writes of batches count for `begin_truncation`.
    ///
    /// # Errors
    /// A batch's write in flight overlaps them.
    pub(super) fn begin_call(
        &self,
        partial_blocks: [Range<u64>; 2],
    ) -> Result<Option<CallGuard<'_>>, RawFault> {
        let mut ranges = self.lock();
        ranges.ended_writes_end = 0;
        if partial_blocks.iter().all(Range::is_empty) {
            return Ok(None);
        }
        let busy_block = partial_blocks.iter().filter(|block| !block.is_empty()).find(|block| {
            ranges.batch_writes.iter().any(|(_, write)| ranges_overlap(write, block))
        });
        if let Some(block) = busy_block {
            return Err(RawFault::BatchInFlight { offset: block.start });
        }
        ranges.call_ranges[PARTIAL_BLOCKS].clone_from_slice(&partial_blocks);
        Ok(Some(CallGuard { batch_writes: self, indices: PARTIAL_BLOCKS }))
    }

    /// Registers that the running call truncates the file to `content_end` or more, until the guard
    /// is dropped. Returns `None` if a batch's write beyond it is in flight or has ended since the
    /// call began: the call then keeps the length.
    pub(super) fn begin_truncation(&self, content_end: u64) -> Option<CallGuard<'_>> {
        let mut ranges = self.lock();
        let in_flight = ranges.batch_writes.iter().map(|(_, write)| write.end);
        if in_flight.chain([ranges.ended_writes_end]).any(|end| end > content_end) {
            return None;
        }
        ranges.call_ranges[CUT_OFF].fill(content_end..u64::MAX);
        Some(CallGuard { batch_writes: self, indices: CUT_OFF })
    }

    /// Registers a batch's write of `range`, until the guard is dropped. Waits for the end of a
    /// call that has a range there.
    pub(super) fn begin_batch_write(&self, range: Range<u64>) -> BatchWriteGuard<'_> {
        let mut ranges = self.lock();
        ranges.waiting_writes += 1;
        let mut ranges = self
            .call_has_ended
            .wait_while(ranges, |ranges| {
                ranges.call_ranges.iter().any(|block| ranges_overlap(&range, block))
            })
            .unwrap_or_else(PoisonError::into_inner);
        ranges.waiting_writes -= 1;
        let key = ranges.batch_writes.insert(range);
        BatchWriteGuard { batch_writes: self, key }
    }
}

impl Drop for BatchWriteGuard<'_> {
    fn drop(&mut self) {
        let mut ranges = self.batch_writes.lock();
        let write = ranges.batch_writes.remove(self.key);
        ranges.ended_writes_end = ranges.ended_writes_end.max(write.end);
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let mut ranges = self.batch_writes.lock();
        ranges.call_ranges[self.indices.clone()].fill(0..0);
        // The standard library makes a system call for each notification, also without a waiter.
        if ranges.waiting_writes > 0 {
            self.batch_writes.call_has_ended.notify_all();
        }
    }
}

/// True if two ranges have a byte in common.
fn ranges_overlap(range: &Range<u64>, other: &Range<u64>) -> bool {
    !intersection(range, other).is_empty()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Fails unless the start of a batch's write waits for the drop of `guard`.
    fn assert_write_waits<T>(batch_writes: &BatchWrites, written: Range<u64>, guard: T) {
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _write = batch_writes.begin_batch_write(written);
                assert!(has_ended.load(Ordering::SeqCst));
            });
            // Time for the other thread to reach its wait; too short a time hides a fault only.
            std::thread::sleep(std::time::Duration::from_millis(50));
            has_ended.store(true, Ordering::SeqCst);
            drop(guard);
        });
    }

    /// A call has blocks 10 and 30 of ten bytes in part.
    #[test]
    fn batch_write_of_a_calls_partial_block_waits_for_the_end_of_the_call() {
        let batch_writes = BatchWrites::default();
        let call = batch_writes.begin_call([10..20, 30..40]).unwrap();
        drop(batch_writes.begin_batch_write(20..30));
        assert_write_waits(&batch_writes, 39..50, call);
    }

    /// Calls on whole blocks; the content ends at 40. Bytes behind it may not be lost, and
    /// writes before it are no reason to keep a longer file.
    #[test]
    fn call_truncates_only_without_a_batch_write_behind_the_content() {
        let batch_writes = BatchWrites::default();
        let before = batch_writes.begin_batch_write(30..40);
        let behind = batch_writes.begin_batch_write(40..50);
        assert!(batch_writes.begin_call([0..0, 0..0]).unwrap().is_none());
        assert!(batch_writes.begin_truncation(40).is_none(), "in flight");
        drop(behind);
        assert!(batch_writes.begin_truncation(40).is_none(), "ended during the call");
        drop(before);
        assert!(batch_writes.begin_call([0..0, 0..0]).unwrap().is_none());
        let _before = batch_writes.begin_batch_write(30..40);
        let truncation = batch_writes.begin_truncation(40).unwrap();
        assert_write_waits(&batch_writes, 90..100, truncation);
    }
}
