//! A file opened without O_DIRECT.
//!
//! It has up to two open files: one with the kernel's own readahead, and one without it. A page is
//! *resident* if it is in the kernel page cache. `RWF_NOWAIT` is the flag of preadv2(2) that reads
//! resident pages only and never waits for the device. A *waiter thread* makes reads that wait for
//! the device, for tasks and batches. It is of a pool with a queue for each file.

use std::fs::File as StdFile;
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv, preadv2, retry_on_intr};

use super::blocking_pool::{BlockingRead, FileKey};
use crate::os::CALL_BYTES_MAX;
use crate::target::{Target, clear_nonblock};

/// Readahead of the kernel for one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::page_cache) enum KernelReadahead {
    /// The kernel reads ahead as it does for any program.
    Enabled,
    /// The read goes through the open file with `POSIX_FADV_RANDOM`, if it can be opened.
    Disabled,
}

impl KernelReadahead {
    /// Returns `Disabled` if the condition is true, otherwise `Enabled`.
    pub(in crate::page_cache) fn disabled_if(condition: bool) -> KernelReadahead {
        if condition { KernelReadahead::Disabled } else { KernelReadahead::Enabled }
    }
}

/// Largest number of buffers that one call fills (`UIO_MAXIOV`, readv(2)).
const CALL_BUFFERS_MAX: usize = 1024;

/// Returns the parts of `buffers` that belong to the byte range `bytes` of all of them together.
/// Empty parts are left out.
pub(in crate::page_cache) fn buffers_part<'a>(
    buffers: &'a mut [IoSliceMut<'_>],
    bytes: Range<u64>,
) -> Vec<IoSliceMut<'a>> {
    let mut buffer_start = 0;
    let parts = buffers.iter_mut().map(|buffer| {
        let buffer_end = buffer_start + buffer.len() as u64;
        let [start, end] = [bytes.start, bytes.end]
            .map(|byte| (byte.clamp(buffer_start, buffer_end) - buffer_start) as usize);
        buffer_start = buffer_end;
        IoSliceMut::new(&mut buffer[start..end])
    });
    parts.filter(|part| !part.is_empty()).collect()
}

/// Number of bytes that one call reads into `buffers`, if all of them are resident.
fn call_bytes(buffers: &[IoSliceMut<'_>]) -> u64 {
    let call_buffers = buffers.iter().take(CALL_BUFFERS_MAX);
    call_buffers.map(|buffer| buffer.len() as u64).sum::<u64>().min(CALL_BYTES_MAX as u64)
}

/// A file opened for reads through the kernel page cache.
pub(in crate::page_cache) struct BufferedFile {
    /// First open file, with kernel readahead unless it was opened by `open_without_readahead`.
    pub(super) file: Arc<StdFile>,
    /// Identifies the file's queue in the pool of waiter threads.
    pub(in crate::page_cache) key: FileKey,
    /// True once the first open file has no `O_NONBLOCK`; false if the flag cannot be cleared.
    is_for_ring: OnceLock<bool>,
    /// Second open file with `POSIX_FADV_RANDOM`, opened at first use; `None` if that fails.
    no_readahead_file: OnceLock<Option<Arc<StdFile>>>,
    /// True once a waiter thread's bytes were absent for their reader, also after a failed read.
    /// They count as evicted, so memory is short: reads that wait then go without kernel readahead.
    /// It stays true.
    is_memory_short: AtomicBool,
    /// True if the file system does not support `RWF_NOWAIT`.
    is_nowait_unsupported: AtomicBool,
    /// True once a read has tried `RWF_NOWAIT`, and `is_nowait_unsupported` has its answer.
    is_nowait_tried: AtomicBool,
}

impl BufferedFile {
    /// Creates the state over the open file of `target` that has no O_DIRECT, or over another one
    /// opened for this. It has kernel readahead. Returns `None` if it cannot be opened.
    pub(super) fn open(target: &Target) -> Option<BufferedFile> {
        Some(BufferedFile::new(target.reopen_buffered()?, FileKey::from_target(target)))
    }

    /// Creates the state of an open file with kernel readahead.
    fn new(file: Arc<StdFile>, key: FileKey) -> BufferedFile {
        BufferedFile {
            file,
            key,
            is_for_ring: OnceLock::new(),
            no_readahead_file: OnceLock::new(),
            is_memory_short: AtomicBool::new(false),
            is_nowait_unsupported: AtomicBool::new(false),
            is_nowait_tried: AtomicBool::new(false),
        }
    }

    /// Opens the file like [`open`](BufferedFile::open) and disables its kernel readahead. The
    /// target is open with O_DIRECT, so the advice affects only the new open file. Returns `None`
    /// if either fails.
    pub(super) fn open_without_readahead(target: &Target) -> Option<BufferedFile> {
        let opened = BufferedFile::open(target)?;
        // Byte 0 and no length: the whole file.
        fadvise(&*opened.file, 0, None, Advice::Random).ok()?;
        Some(opened)
    }

    /// Reads `bytes` bytes from `offset` on into `buffers`, which have this total length, without
    /// waiting. Returns true if all bytes were resident. False also without `RWF_NOWAIT`. After
    /// false the content of the buffers is unspecified.
    pub(in crate::page_cache) fn read_resident(
        &self,
        offset: u64,
        bytes: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> bool {
        self.read_nowait(offset, KernelReadahead::Enabled, buffers) == Some(bytes)
    }

    /// Reads the leading resident bytes from `offset` on into `buffers`, without waiting. Returns
    /// their number. An error, or the end of the file, ends them like an absent page. Returns
    /// `None` if the file system does not support `RWF_NOWAIT`.
    pub(in crate::page_cache) fn read_nowait(
        &self,
        offset: u64,
        kernel_readahead: KernelReadahead,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Option<u64> {
        let bytes = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let mut bytes_done = self.read_nowait_once(offset, kernel_readahead, buffers)?;
        // A call that has read as much as one call can is no miss: another one continues.
        // `calls_bytes_max` is the largest number of bytes that the calls so far can have read.
        let mut calls_bytes_max = call_bytes(buffers);
        if bytes_done < calls_bytes_max || bytes_done == bytes {
            return Some(bytes_done);
        }
        let mut parts = buffers_part(buffers, bytes_done..bytes);
        let mut rest = &mut parts[..];
        while bytes_done == calls_bytes_max && bytes_done < bytes {
            calls_bytes_max += call_bytes(rest);
            let count = self.read_nowait_once(offset + bytes_done, kernel_readahead, rest)?;
            IoSliceMut::advance_slices(&mut rest, count as usize);
            bytes_done += count;
        }
        Some(bytes_done)
    }

    /// Makes one call of [`read_nowait`](BufferedFile::read_nowait).
    fn read_nowait_once(
        &self,
        offset: u64,
        kernel_readahead: KernelReadahead,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Option<u64> {
        if self.is_nowait_unsupported.load(Ordering::Relaxed) {
            return None;
        }
        let file = self.file_for_mode(kernel_readahead);
        let result = match preadv2(file, buffers, offset, ReadWriteFlags::NOWAIT) {
            Ok(bytes) => Some(bytes as u64),
            // The kernel has no offsets of 2^63 or more, with any flag.
            Err(Errno::INVAL) if i64::try_from(offset).is_err() => return Some(0),
            // The file system, the kernel or a sandbox has no such flag. It is not tried again.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.is_nowait_unsupported.store(true, Ordering::Relaxed);
                None
            }
            // EAGAIN: the first page is absent. The read that waits finds any other error again.
            Err(_) => Some(0),
        };
        // After the answer, so that a thread that finds it true finds the answer too. Written once,
        // because all readers of the file share it.
        if !self.is_nowait_tried.load(Ordering::Relaxed) {
            self.is_nowait_tried.store(true, Ordering::Release);
        }
        result
    }

    /// Reads from `offset` on until `buffer` is full, and waits for the device if needed. Returns
    /// false if the file ends before or the device fails.
    #[inline]
    pub(in crate::page_cache) fn read_blocking(&self, offset: u64, buffer: &mut [u8]) -> bool {
        // `read_rest` continues a call that fails or stops early, and finds the error again.
        let bytes_done = pread(&self.file, &mut *buffer, offset).unwrap_or(0);
        bytes_done == buffer.len()
            || self.read_rest(
                offset,
                bytes_done as u64,
                KernelReadahead::Enabled,
                &mut [IoSliceMut::new(buffer)],
            )
    }

    /// Reads from `offset` on until `buffers`, `bytes` bytes in total, are full. Returns false if
    /// the file ends before or the device fails.
    pub(in crate::page_cache) fn read_all_blocking(
        &self,
        offset: u64,
        bytes: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> bool {
        // As in `read_blocking`. More buffers than one call takes are such an error.
        let bytes_done = preadv(&self.file, &mut *buffers, offset).unwrap_or(0) as u64;
        bytes_done == bytes || self.read_rest(offset, bytes_done, KernelReadahead::Enabled, buffers)
    }

    /// Completes a read from `offset` on whose first `bytes_done` bytes are already in `buffers`.
    /// Returns false if the file ends before the buffers are full or the device fails.
    pub(in crate::page_cache) fn read_rest(
        &self,
        offset: u64,
        bytes_done: u64,
        kernel_readahead: KernelReadahead,
        buffers: &mut [IoSliceMut<'_>],
    ) -> bool {
        let file = self.file_for_mode(kernel_readahead);
        let (mut file_offset, mut filled_bytes) = (offset + bytes_done, bytes_done as usize);
        for buffer in buffers {
            let filled_in_buffer = filled_bytes.min(buffer.len());
            let mut unfilled = &mut buffer[filled_in_buffer..];
            filled_bytes -= filled_in_buffer;
            while !unfilled.is_empty() {
                match retry_on_intr(|| pread(file, &mut *unfilled, file_offset)) {
                    Ok(read_bytes @ 1..) => {
                        file_offset += read_bytes as u64;
                        unfilled = &mut unfilled[read_bytes..];
                    }
                    // The end of the file, or an error.
                    _ => return false,
                }
            }
        }
        true
    }

    /// Returns the open file for reads with or without kernel readahead. Returns the first one in
    /// any case if the other cannot be opened.
    fn file_for_mode(&self, kernel_readahead: KernelReadahead) -> &Arc<StdFile> {
        // The advice is of an open file, so it needs another one of the same file.
        let open = || {
            let file = StdFile::open(format!("/proc/self/fd/{}", self.file.as_raw_fd())).ok()?;
            // Byte 0 and no length: the whole file.
            fadvise(&file, 0, None, Advice::Random).ok().map(|()| Arc::new(file))
        };
        let no_readahead_file = match kernel_readahead {
            KernelReadahead::Disabled => self.no_readahead_file.get_or_init(open).as_ref(),
            KernelReadahead::Enabled => None,
        };
        no_readahead_file.unwrap_or(&self.file)
    }

    /// Creates a read of `bytes` bytes from `offset` on for a waiter thread. It has not started
    /// yet.
    pub(in crate::page_cache) fn new_blocking_read(&self, offset: u64, bytes: u64) -> BlockingRead {
        BlockingRead::new(self.file_for_waiting(), self.key, offset, bytes)
    }

    /// Returns the open file for reads that a thread or a ring awaits instead of the caller. It has
    /// no kernel readahead once prefetched bytes were evicted.
    pub(in crate::page_cache) fn file_for_waiting(&self) -> Arc<StdFile> {
        let is_memory_short = self.is_memory_short.load(Ordering::Relaxed);
        Arc::clone(self.file_for_mode(KernelReadahead::disabled_if(is_memory_short)))
    }

    /// Like [`file_for_waiting`](BufferedFile::file_for_waiting), without the `O_NONBLOCK` of a
    /// file just opened: with it, io_uring may fail a read that has to wait. `None` if the flag
    /// cannot be cleared.
    pub(in crate::page_cache) fn file_for_ring(&self) -> Option<Arc<StdFile>> {
        let is_for_ring = *self.is_for_ring.get_or_init(|| clear_nonblock(&self.file).is_ok());
        // A second open file is opened without the flag.
        is_for_ring.then(|| self.file_for_waiting())
    }

    /// True if the file system supports `RWF_NOWAIT`. The first call reads a byte at `offset` with
    /// it, unless another read has tried it before.
    pub(in crate::page_cache) fn supports_nowait(&self, offset: u64) -> bool {
        if !self.is_nowait_tried.load(Ordering::Acquire) {
            let mut byte = [0];
            let buffers = &mut [IoSliceMut::new(&mut byte)];
            self.read_nowait(offset, KernelReadahead::Enabled, buffers);
        }
        !self.is_nowait_unsupported()
    }

    /// True once a read has shown that the file system does not support `RWF_NOWAIT`.
    pub(in crate::page_cache) fn is_nowait_unsupported(&self) -> bool {
        self.is_nowait_unsupported.load(Ordering::Relaxed)
    }

    /// Records that a waiter thread's bytes were absent for their reader, also after a failed read.
    /// Later reads that [wait](BufferedFile::file_for_waiting) then go without kernel readahead.
    pub(in crate::page_cache) fn record_eviction(&self) {
        self.is_memory_short.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Files of procfs, which has no `RWF_NOWAIT`. Two threads ask for it at once, file by file.
    /// Both learn that it is missing.
    #[test]
    fn missing_nowait_is_known_to_all_threads_at_once() {
        const FILES: usize = 20_000;
        let file = Arc::new(StdFile::open("/proc/version").unwrap());
        let new_file = || BufferedFile::new(Arc::clone(&file), FileKey::default());
        let files: Vec<BufferedFile> = (0..FILES).map(|_| new_file()).collect();
        let arrivals = AtomicUsize::new(0);
        let count_supported = || {
            let supported = files.iter().enumerate().filter(|(index, file)| {
                // Both threads begin with a file together.
                arrivals.fetch_add(1, Ordering::AcqRel);
                while arrivals.load(Ordering::Acquire) < 2 * (index + 1) {
                    std::hint::spin_loop();
                }
                file.supports_nowait(0)
            });
            supported.count()
        };
        let counts = std::thread::scope(|scope| {
            let threads = [0; 2].map(|_| scope.spawn(count_supported));
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(counts, [0, 0]);
    }
}
