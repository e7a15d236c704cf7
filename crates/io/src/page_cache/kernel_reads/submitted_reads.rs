//! Batch reads through the kernel page cache: submitted together, taken in order of completion.
//!
//! A page is *resident* if it is in the kernel page cache. `RWF_NOWAIT` is the flag of preadv2(2)
//! that reads resident pages only and never waits for the device. The *awaited* bytes of a read are
//! the bytes that were not resident. A *waiter thread* is a thread of the [pool], which makes one
//! read at a time for tasks and batches.
//!
//! Each read is polled with `RWF_NOWAIT`. If none has completed, an io_uring of the batch waits for
//! the reads, or threads of the [pool] for some reads of each file. The batch takes the first that
//! ends. A stalled read thus delays no other. Some file systems do not support `RWF_NOWAIT`. There
//! a read is made at once if its pages were resident at submission, unless a thread waits for
//! another read of the file.
//!
//! [pool]: crate::page_cache::kernel::blocking_pool

use std::fs::File as StdFile;
use std::io::{self, IoSliceMut};
use std::sync::Arc;

use readpath_core::machine::ReadError;
use readpath_core::request::DeviceError;

use crate::os::aligned_bytes::AlignedBytes;
use crate::page_cache::kernel::KernelFile;
use crate::page_cache::kernel::blocking_read::BlockingRead;
use crate::page_cache::kernel::buffered_file::{BufferedFile, KernelReadahead};
use crate::page_cache::own::Handle;

/// Largest read in bytes whose content a waiter thread keeps for a batch: 16 MiB in the 64 reads
/// that threads await at most. The bytes of a larger read are copied from the pages. Also the
/// largest piece of a task's read without `RWF_NOWAIT`. A warm future of 4 MiB on overlayfs took
/// 1.6 ms at best in such pieces, 3.7 ms in pieces of 64 KiB, and 2.2 ms whole.
pub(super) const COPIED_BYTES_MAX: u64 = 256 << 10;

/// Result of a completed read.
pub(crate) enum KernelReadStatus {
    /// The bytes.
    Copied(AlignedBytes),
    /// The caller reads the bytes through the kernel page cache. The pages are resident as far as
    /// known, so that the call does not block. They may be absent only if no thread was available
    /// to wait for them, or if the thread had no memory. `is_awaited` is true if they came in after
    /// the submission: the caller then takes them by [`read_awaited`](Handle::read_awaited).
    LeftToCaller { is_awaited: bool },
    /// The kernel cannot provide the bytes: the read must bypass its page cache.
    MustBypass,
    /// The read has failed. Another attempt could wait, because there is no `RWF_NOWAIT`.
    Failed(ReadError),
}

/// Residency of a range when its read was submitted, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubmittedResidency {
    /// All pages were resident.
    Resident,
    /// At least one page was absent, and its I/O was started.
    Absent,
}

impl Handle {
    /// Returns the file, and its open file without O_DIRECT. Returns `None` if the kernel does not
    /// cache the pages, or if the file cannot be opened so.
    fn opened_kernel_file(&self) -> Option<(&KernelFile, &BufferedFile)> {
        let file = self.file.pages.kernel_file()?;
        Some((file, file.open_buffered()?))
    }

    /// Polls a read submitted by [`submit_to_kernel`](Handle::submit_to_kernel), without waiting.
    /// Returns `None` if the read has not completed. Only a copied read is counted here: a read
    /// left to the caller is counted when the caller makes it. A read submitted with absent pages
    /// counts with all its bytes as awaited.
    ///
    /// A read of up to `copied_bytes_max` bytes is copied into memory of `free_buffers`. A larger
    /// read counts as resident if its last byte is resident, and is not copied. Without
    /// `RWF_NOWAIT`, a read counts as resident if `residency` says so and no thread waits for
    /// another read of the file.
    pub(crate) fn poll_submitted(
        &self,
        offset: u64,
        bytes: u64,
        residency: SubmittedResidency,
        copied_bytes_max: u64,
        free_buffers: &mut Vec<AlignedBytes>,
    ) -> Option<KernelReadStatus> {
        let Some((file, buffered_file)) = self.opened_kernel_file() else {
            return Some(KernelReadStatus::MustBypass);
        };
        if buffered_file.is_nowait_unsupported() {
            let is_resident = residency == SubmittedResidency::Resident
                && !file.readahead.has_blocking_read(buffered_file.key);
            return is_resident.then_some(KernelReadStatus::LeftToCaller { is_awaited: false });
        }
        let is_awaited = residency == SubmittedResidency::Absent;
        if bytes > copied_bytes_max {
            // One byte is checked. The pages before it are assumed to have come first. If one has
            // not, the caller's read waits for it.
            let mut last_byte = [0];
            let buffers = &mut [IoSliceMut::new(&mut last_byte)];
            let last_offset = offset + bytes - 1;
            let is_resident =
                buffered_file.read_nowait(last_offset, KernelReadahead::Enabled, buffers)
                    == Some(1);
            return is_resident.then_some(KernelReadStatus::LeftToCaller { is_awaited });
        }
        let mut copy = AlignedBytes::allocate(bytes as usize, free_buffers.pop());
        if buffered_file.read_resident(offset, bytes, &mut [IoSliceMut::new(&mut copy)]) {
            if is_awaited {
                file.readahead.record_wait(bytes);
            }
            self.record_kernel_read(bytes, if is_awaited { bytes } else { 0 }, offset);
            return Some(KernelReadStatus::Copied(copy));
        }
        // Not all bytes are resident: the memory is kept for the next copy.
        free_buffers.push(copy);
        None
    }

    /// Reads a submitted read that was left to the caller, and whose pages came in since, into
    /// `buffer`. Counts all its bytes as awaited. Returns false, and counts nothing, if a page is
    /// absent again. Waits for the device only without `RWF_NOWAIT`.
    pub(crate) fn read_awaited(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let Some((file, buffered_file)) = self.opened_kernel_file() else { return false };
        let bytes = buffer.len() as u64;
        // Without `RWF_NOWAIT` a thread has read the bytes, and its wait is counted.
        let is_wait_counted = buffered_file.is_nowait_unsupported();
        let is_read = match is_wait_counted {
            true => buffered_file.read_blocking(offset, buffer),
            false => buffered_file.read_resident(offset, bytes, &mut [IoSliceMut::new(buffer)]),
        };
        if is_read && !is_wait_counted {
            file.readahead.record_wait(bytes);
        }
        let awaited_bytes = bytes;
        is_read && self.record_kernel_read(bytes, awaited_bytes, offset)
    }

    /// Returns the open file for a submitted read in an io_uring, without `O_NONBLOCK`. Returns
    /// `None` if a thread must wait for the read: if that flag cannot be cleared, on a file system
    /// without a block device, and without `RWF_NOWAIT`. There the kernel would use threads of its
    /// own, and a few stuck reads would delay all others.
    pub(crate) fn file_for_ring(&self) -> Option<Arc<StdFile>> {
        let (file, buffered_file) = self.opened_kernel_file()?;
        let waits_without_thread =
            !buffered_file.is_nowait_unsupported() && !file.readahead.may_block(&file.target);
        waits_without_thread.then(|| buffered_file.file_for_ring()).flatten()
    }

    /// Adds a submitted read of `bytes` bytes that waits in a ring to the file's counters of
    /// awaited reads.
    pub(crate) fn record_wait(&self, bytes: u64) {
        if let Some(file) = self.file.pages.kernel_file() {
            file.readahead.record_wait(bytes);
        }
    }

    /// Returns the status of a read of `bytes` bytes from `offset` on that a ring has ended, with
    /// its content in `buffer`. `has_all_bytes` is true if the ring has read all of them. Counts
    /// the read, with all its bytes as awaited.
    pub(crate) fn take_from_ring(
        &self,
        buffer: AlignedBytes,
        has_all_bytes: bool,
        offset: u64,
        bytes: u64,
    ) -> KernelReadStatus {
        if !has_all_bytes {
            return KernelReadStatus::MustBypass;
        }
        let awaited_bytes = bytes;
        self.record_kernel_read(bytes, awaited_bytes, offset);
        KernelReadStatus::Copied(buffer)
    }

    /// Passes a submitted read of `bytes` bytes from `offset` on to a waiter thread. Returns the
    /// read that the thread makes, for [`take_waited`](Handle::take_waited) at its end. Returns
    /// `None` if the read must bypass the kernel page cache, as in `opened_kernel_file`.
    ///
    /// # Errors
    /// The system provides no thread.
    pub(crate) fn wait_on_thread(
        &self,
        offset: u64,
        bytes: u64,
    ) -> io::Result<Option<Arc<BlockingRead>>> {
        let Some((file, buffered_file)) = self.opened_kernel_file() else { return Ok(None) };
        let blocking_read = buffered_file.new_blocking_read(offset, bytes);
        let blocking_read =
            if bytes <= COPIED_BYTES_MAX { blocking_read.copying_bytes() } else { blocking_read };
        let blocking_read = Arc::new(blocking_read);
        file.readahead.record_wait(bytes);
        file.readahead.start_blocking_read(Arc::clone(&blocking_read))?;
        Ok(Some(blocking_read))
    }

    /// Returns the status of a read of `bytes` bytes from `offset` on that a thread has made. The
    /// content comes from the thread. If the thread kept none (the read was too large, or failed),
    /// resident pages are copied into memory of `free_buffers`. Counts the read in both cases, with
    /// all its bytes as awaited. If not all pages are resident now, the read must bypass the kernel
    /// page cache. Without `RWF_NOWAIT` no pages are copied here: the caller makes the read, which
    /// is counted then, or the read has failed.
    pub(crate) fn take_waited(
        &self,
        blocking_read: &BlockingRead,
        offset: u64,
        bytes: u64,
        free_buffers: &mut Vec<AlignedBytes>,
    ) -> KernelReadStatus {
        let awaited_bytes = bytes;
        if let Some(copy) = blocking_read.take_copy() {
            self.record_kernel_read(bytes, awaited_bytes, offset);
            return KernelReadStatus::Copied(copy);
        }
        let Some((_, buffered_file)) = self.opened_kernel_file() else {
            return KernelReadStatus::MustBypass;
        };
        if buffered_file.is_nowait_unsupported() {
            return status_without_content(blocking_read.error());
        }
        let mut copy = AlignedBytes::allocate(bytes as usize, free_buffers.pop());
        if buffered_file.read_resident(offset, bytes, &mut [IoSliceMut::new(&mut copy)]) {
            self.record_kernel_read(bytes, awaited_bytes, offset);
            return KernelReadStatus::Copied(copy);
        }
        // Pages were evicted again, or the read failed. Later reads that wait then go without
        // kernel readahead.
        buffered_file.record_eviction();
        free_buffers.push(copy);
        KernelReadStatus::MustBypass
    }
}

/// Status of a thread's read without its content, on a file system without `RWF_NOWAIT`. `error` is
/// `None` if the thread has read all bytes and kept none. The caller, whose memory may suffice,
/// also makes a read for which the thread had none.
fn status_without_content(error: Option<ReadError>) -> KernelReadStatus {
    match error {
        None => KernelReadStatus::LeftToCaller { is_awaited: true },
        Some(ReadError::Device { error: DeviceError::Other(libc::ENOMEM), .. }) => {
            KernelReadStatus::LeftToCaller { is_awaited: false }
        }
        Some(error) => KernelReadStatus::Failed(error),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{OFlags, fcntl_getfl};

    use super::*;
    use crate::path::ReadPath;

    /// io_uring of Linux before 5.12 fails a read that has to wait with EAGAIN if its open file has
    /// O_NONBLOCK (io_prep_rw in fs/io_uring.c).
    #[test]
    fn ring_reads_a_file_that_waits_for_its_bytes() {
        let name = std::env::current_exe().expect("this program has a file");
        let path = ReadPath::builder().build().unwrap();
        let file = path.open(name).unwrap();
        match file.handle().file_for_ring() {
            Some(opened) => assert!(!fcntl_getfl(opened).unwrap().contains(OFlags::NONBLOCK)),
            None => eprintln!("skipped: a thread waits for reads of this file system"),
        }
    }

    #[test]
    fn caller_makes_a_read_for_which_the_thread_had_no_memory() {
        let status = |error| status_without_content(Some(ReadError::Device { offset: 0, error }));
        let no_memory = status(DeviceError::Other(libc::ENOMEM));
        assert!(matches!(no_memory, KernelReadStatus::LeftToCaller { is_awaited: false }));
        assert!(matches!(status(DeviceError::Medium), KernelReadStatus::Failed(_)));
    }
}
