//! A file opened without O_DIRECT.

use std::fs::File as StdFile;
use std::io::IoSliceMut;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv, preadv2, retry_on_intr};

use super::blocking_pool::{BlockingRead, FileKey};
use crate::target::Target;

/// A file opened for reads through the kernel page cache.
pub(in crate::page_cache) struct BufferedFile {
    pub(super) file: Arc<StdFile>,
    /// Identifies the file in the waiter's queue.
    pub(in crate::page_cache) key: FileKey,
    /// Second open file with `POSIX_FADV_RANDOM`, opened at first use; `None` if that fails.
    no_readahead_file: OnceLock<Option<Arc<StdFile>>>,
    /// True once prefetched bytes were evicted before their copy: memory is short, so reads then go
    /// without kernel readahead.
    is_memory_short: AtomicBool,
    /// True if the file system does not support `RWF_NOWAIT`.
    lacks_nowait: AtomicBool,
}

impl BufferedFile {
    /// Opens the file of a descriptor again without O_DIRECT, with kernel readahead.
    pub(super) fn open(target: &Target) -> Option<BufferedFile> {
        Some(BufferedFile {
            file: target.reopen_buffered()?,
            key: FileKey::from_target(target),
            no_readahead_file: OnceLock::new(),
            is_memory_short: AtomicBool::new(false),
            lacks_nowait: AtomicBool::new(false),
        })
    }

    /// Like [`open`](BufferedFile::open), without kernel readahead.
    pub(super) fn open_without_readahead(target: &Target) -> Option<BufferedFile> {
        let opened = BufferedFile::open(target)?;
        fadvise(&*opened.file, 0, None, Advice::Random).ok()?;
        Some(opened)
    }

    /// Fills the buffers, `bytes` bytes in total, if all pages are still resident. Otherwise their
    /// content is unspecified.
    pub(in crate::page_cache) fn read_resident(
        &self,
        offset: u64,
        bytes: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> bool {
        self.read_nowait(offset, false, buffers) == Some(bytes)
    }

    /// Reads the resident bytes from the start on without waiting and returns their number. `None`
    /// if the file system does not support the check.
    pub(in crate::page_cache) fn read_nowait(
        &self,
        offset: u64,
        is_without_readahead: bool,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Option<u64> {
        if self.lacks_nowait.load(Ordering::Relaxed) {
            return None;
        }
        match preadv2(
            self.file_for_mode(is_without_readahead),
            buffers,
            offset,
            ReadWriteFlags::NOWAIT,
        ) {
            Ok(bytes) => Some(bytes as u64),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.lacks_nowait.store(true, Ordering::Relaxed);
                None
            }
            Err(_) => Some(0),
        }
    }

    /// Fills a buffer, and waits if needed; false if the file ends before or the device fails.
    #[inline]
    pub(in crate::page_cache) fn read_blocking(&self, offset: u64, buffer: &mut [u8]) -> bool {
        pread(&self.file, &mut *buffer, offset) == Ok(buffer.len())
            || self.read_rest(offset, 0, false, &mut [IoSliceMut::new(buffer)])
    }

    /// Fills buffers of `bytes` bytes in total; false if the file ends before or the device fails.
    pub(in crate::page_cache) fn read_all_blocking(
        &self,
        offset: u64,
        bytes: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> bool {
        preadv(&self.file, &mut *buffers, offset) == Ok(bytes as usize)
            || self.read_rest(offset, 0, false, buffers)
    }

    /// Fills the buffers after their first `done` bytes; false as for
    /// [`read_all_blocking`](BufferedFile::read_all_blocking).
    pub(in crate::page_cache) fn read_rest(
        &self,
        offset: u64,
        done: u64,
        is_without_readahead: bool,
        buffers: &mut [IoSliceMut<'_>],
    ) -> bool {
        let file = self.file_for_mode(is_without_readahead);
        let (mut place, mut skip) = (offset + done, done as usize);
        for buffer in buffers {
            let there = skip.min(buffer.len());
            let mut rest = &mut buffer[there..];
            skip -= there;
            while !rest.is_empty() {
                match retry_on_intr(|| pread(file, &mut *rest, place)) {
                    Ok(read @ 1..) => {
                        place += read as u64;
                        rest = &mut rest[read..];
                    }
                    _ => return false,
                }
            }
        }
        true
    }

    /// Returns the open file. With `is_without_readahead`, returns the one without kernel readahead
    /// if it can be opened.
    fn file_for_mode(&self, is_without_readahead: bool) -> &Arc<StdFile> {
        let open = || {
            let file = StdFile::open(format!("/proc/self/fd/{}", self.file.as_raw_fd())).ok()?;
            fadvise(&file, 0, None, Advice::Random).ok().map(|()| Arc::new(file))
        };
        let apart = if is_without_readahead {
            self.no_readahead_file.get_or_init(open).as_ref()
        } else {
            None
        };
        apart.unwrap_or(&self.file)
    }

    /// Creates a read for a waiter thread.
    pub(in crate::page_cache) fn new_blocking_read(&self, offset: u64, bytes: u64) -> BlockingRead {
        BlockingRead::new(self.file_for_waiting(), self.key, offset, bytes)
    }

    /// Open file for reads that wait apart from their caller.
    pub(in crate::page_cache) fn file_for_waiting(&self) -> Arc<StdFile> {
        Arc::clone(self.file_for_mode(self.is_memory_short.load(Ordering::Relaxed)))
    }

    /// True if the file system does not support `RWF_NOWAIT`.
    pub(in crate::page_cache) fn is_nowait_unsupported(&self) -> bool {
        self.lacks_nowait.load(Ordering::Relaxed)
    }

    /// Records that prefetched bytes were evicted before their copy.
    pub(in crate::page_cache) fn record_eviction(&self) {
        self.is_memory_short.store(true, Ordering::Relaxed);
    }
}
