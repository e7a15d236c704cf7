//! A file opened without O_DIRECT, and the windows of it that are known to be resident.

use std::fs::File as StdFile;
use std::io::IoSliceMut;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use readpath_core::splitmix;
use readpath_core::unit::{PAGE_BYTES, PageRange};
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv, preadv2, retry_on_intr};

use super::blocking_pool::{BlockingRead, FileKey};
use crate::target::Target;

/// Size of a residency window in pages (2 MiB).
const WINDOW_PAGES: u64 = 512;
/// Largest number of remembered windows of a file: 2 GiB.
const WINDOWS_MAX: u64 = 1024;
/// Rate of small reads that check for evictions: one of 2^3.
const CHECK_PERIOD_LOG2: u32 = 3;

/// A file opened for reads through the kernel page cache.
pub(super) struct BufferedFile {
    pub(super) file: Arc<StdFile>,
    /// Identifies the file in the waiter's queue.
    pub(super) key: FileKey,
    /// Second open file with `POSIX_FADV_RANDOM`, opened at first use; `None` if that fails.
    no_readahead_file: OnceLock<Option<Arc<StdFile>>>,
    /// True once prefetched bytes were evicted before their copy: memory is short, so reads then go
    /// without kernel readahead.
    is_memory_short: AtomicBool,
    /// True if the file system does not support `RWF_NOWAIT`.
    lacks_nowait: AtomicBool,
    /// Resident windows: window number plus 1, at index number modulo length. Empty if the kernel
    /// caches the pages.
    resident_windows: Box<[AtomicU64]>,
}

impl BufferedFile {
    /// Opens the file of a descriptor again without O_DIRECT. Without kernel readahead, unless the
    /// kernel caches the pages (`is_kept`).
    pub(super) fn open(target: &Target, is_kernel_cached: bool) -> Option<BufferedFile> {
        let file = target.reopen_buffered()?;
        if !is_kernel_cached {
            fadvise(&*file, 0, None, Advice::Random).ok()?;
        }
        // Residency is not checked if the kernel caches the pages, and so not remembered.
        let windows = match is_kernel_cached {
            true => 0,
            false => target.bytes().div_ceil(PAGE_BYTES * WINDOW_PAGES).clamp(1, WINDOWS_MAX),
        };
        let held = (0..windows).map(|_| AtomicU64::new(0)).collect();
        let (alone, is_short) = (OnceLock::new(), AtomicBool::new(false));
        let key = FileKey::from_target(target);
        let is_blind = AtomicBool::new(false);
        Some(BufferedFile {
            file,
            key,
            no_readahead_file: alone,
            is_memory_short: is_short,
            lacks_nowait: is_blind,
            resident_windows: held,
        })
    }

    /// Fills the buffers, `bytes` bytes in total, if all pages are still resident. Otherwise their
    /// content is unspecified.
    pub(super) fn read_resident(
        &self,
        offset: u64,
        bytes: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> bool {
        self.read_nowait_bytes(offset, buffers) == bytes || self.forget_residency(offset, bytes)
    }

    /// Fills a small buffer whose pages are known to be resident. One read of eight, selected by a
    /// hash of its offset, checks for evictions.
    pub(super) fn read_with_sampling(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let bytes = buffer.len() as u64;
        let spread = offset.wrapping_mul(splitmix::STEP);
        if spread >> (u64::BITS - CHECK_PERIOD_LOG2) > 0 {
            return self.read_blocking(offset, buffer);
        }
        self.read_resident(offset, bytes, &mut [IoSliceMut::new(buffer)])
    }

    /// Reads the resident bytes from the start on without waiting and returns their number.
    fn read_nowait_bytes(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> u64 {
        self.read_nowait(offset, false, buffers).unwrap_or(0)
    }

    /// Like `read_nowait_bytes`; `None` if the file system does not support the check.
    pub(super) fn read_nowait(
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
    pub(super) fn read_blocking(&self, offset: u64, buffer: &mut [u8]) -> bool {
        pread(&self.file, &mut *buffer, offset) == Ok(buffer.len())
            || self.read_rest(offset, 0, false, &mut [IoSliceMut::new(buffer)])
    }

    /// Fills buffers of `bytes` bytes in total; false if the file ends before or the device fails.
    pub(super) fn read_all_blocking(
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
    pub(super) fn read_rest(
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

    /// Returns the open file. With `is_alone`, returns the one without kernel readahead if it can
    /// be opened.
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
    pub(super) fn new_blocking_read(&self, offset: u64, bytes: u64) -> BlockingRead {
        let file = Arc::clone(self.file_for_mode(self.is_memory_short.load(Ordering::Relaxed)));
        BlockingRead::new(file, self.key, offset, bytes)
    }

    /// True if the file system does not support `RWF_NOWAIT`.
    pub(super) fn is_nowait_unsupported(&self) -> bool {
        self.lacks_nowait.load(Ordering::Relaxed)
    }

    /// Records that prefetched bytes were evicted before their copy.
    pub(super) fn record_eviction(&self) {
        self.is_memory_short.store(true, Ordering::Relaxed);
    }

    /// True if the pages lie in windows known to be resident.
    #[inline]
    pub(super) fn are_known_resident(&self, pages: PageRange) -> bool {
        !self.resident_windows.is_empty()
            && self
                .window_entries(pages)
                .all(|(place, window)| place.load(Ordering::Relaxed) == window + 1)
    }

    /// Marks the windows of these pages as resident.
    pub(super) fn mark_resident(&self, pages: PageRange) {
        self.window_entries(pages)
            .for_each(|(place, window)| place.store(window + 1, Ordering::Relaxed));
    }

    /// Forgets the residency of a range. Returns false.
    pub(super) fn forget_residency(&self, offset: u64, bytes: u64) -> bool {
        let pages = PageRange::covering(offset, bytes);
        self.window_entries(pages).for_each(|(place, _)| place.store(0, Ordering::Relaxed));
        false
    }

    /// Entries of the windows of these pages; none if the kernel caches the pages.
    fn window_entries(&self, pages: PageRange) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let windows = match self.resident_windows.is_empty() {
            true => 0..0,
            false => pages.first / WINDOW_PAGES..pages.end.div_ceil(WINDOW_PAGES),
        };
        windows.map(|window| {
            (&self.resident_windows[(window % self.resident_windows.len() as u64) as usize], window)
        })
    }
}

/// Extends a page range to whole windows.
pub(super) fn covering_windows(pages: PageRange) -> PageRange {
    PageRange {
        first: pages.first / WINDOW_PAGES * WINDOW_PAGES,
        end: pages.end.next_multiple_of(WINDOW_PAGES),
    }
}
