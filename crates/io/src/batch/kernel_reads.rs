//! Batch reads that were submitted to the kernel page cache, taken in order of completion.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{Thread, current, park};

use super::Batch;
use crate::page_cache::kernel::blocking_read::BlockingRead;
use crate::page_cache::kernel_reads::submitted_reads::KernelReadStatus;
use crate::page_cache::own::OpenFile;
use crate::page_cache::own::state::batch_reads::UnstartedRead;

/// Number of reads checked by one system call each, oldest first, before the batch waits for one.
const CHECKS_MAX: u32 = 8;
/// Limits of reads that helper threads await for one batch: per file, and in total.
const FILE_WAITERS_MAX: u32 = 16;
const WAITERS_MAX: u32 = 64;

/// A batch read submitted to the kernel page cache.
pub(super) struct KernelCacheRead {
    pub(super) unstarted: UnstartedRead,
    /// True if all its pages were resident at submission.
    pub(super) was_resident: bool,
    /// Request to a helper thread that waits for the read; `None` until the batch has to wait.
    pub(super) blocking_read: Option<Arc<BlockingRead>>,
}

/// Waker that unparks the batch's thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Batch {
    /// Returns the next completed read of the kernel page cache, and waits if there is none. Reads
    /// of up to `copied_max` bytes are returned as copies where that is as cheap. `None` if no read
    /// is in flight.
    pub(super) fn next_kernel_read(
        &mut self,
        copied_max: u64,
    ) -> Option<(UnstartedRead, KernelReadStatus)> {
        while !self.kernel_reads.is_empty() {
            if let Some(found) = self.take_first_completed(copied_max) {
                return Some(found);
            }
            if !self.wait_on_threads() {
                // No helper thread is available: this thread blocks in the read itself.
                return self
                    .kernel_reads
                    .pop_front()
                    .map(|kernel_read| (kernel_read.unstarted, KernelReadStatus::Resident));
            }
        }
        None
    }

    /// Polls the oldest reads once and removes the first completed one.
    fn take_first_completed(
        &mut self,
        copied_max: u64,
    ) -> Option<(UnstartedRead, KernelReadStatus)> {
        let mut checks = 0;
        for at in 0..self.kernel_reads.len() {
            let KernelCacheRead { unstarted, was_resident: was_held, blocking_read: wish } =
                &self.kernel_reads[at];
            let UnstartedRead { handle, offset, bytes, .. } = unstarted;
            let status = match wish {
                Some(wish) if wish.has_ended() => {
                    Some(handle.take_waited(wish, *offset, *bytes, &mut self.free_buffers))
                }
                None if checks < CHECKS_MAX => {
                    checks += 1;
                    let spare = &mut self.free_buffers;
                    handle.poll_submitted(*offset, *bytes, *was_held, copied_max, spare)
                }
                _ => None,
            };
            if let Some(status) = status {
                let kernel_read = self.kernel_reads.remove(at).expect("it was found there");
                return Some((kernel_read.unstarted, status));
            }
        }
        None
    }

    /// Starts helper threads for the oldest reads of each file, and sleeps until one completes.
    /// Returns false if the system provides no thread.
    fn wait_on_threads(&mut self) -> bool {
        let waker = Waker::from(Arc::new(Unpark(current())));
        let mut waiters_by_file: BTreeMap<*const OpenFile, u32> = BTreeMap::new();
        let (mut count, mut has_ended) = (0, false);
        for kernel_read in &mut self.kernel_reads {
            let UnstartedRead { handle, offset, bytes, .. } = &kernel_read.unstarted;
            let file_waiters = waiters_by_file.entry(Arc::as_ptr(&handle.file)).or_default();
            // The first read of a file may exceed the total limit, so every file progresses.
            if *file_waiters >= FILE_WAITERS_MAX || *file_waiters > 0 && count >= WAITERS_MAX {
                continue;
            }
            *file_waiters += 1;
            count += 1;
            if kernel_read.blocking_read.is_none() {
                match handle.wait_on_thread(*offset, *bytes) {
                    Ok(Some(wish)) => kernel_read.blocking_read = Some(wish),
                    // The read does not go through the kernel page cache. The next check finds that
                    // out.
                    Ok(None) => return true,
                    Err(_) => return false,
                }
            }
            has_ended |= kernel_read.blocking_read.as_ref().is_some_and(|wish| wish.poll(&waker));
        }
        if !has_ended {
            // After a spurious wake-up the caller checks again and parks again.
            park();
        }
        true
    }
}
