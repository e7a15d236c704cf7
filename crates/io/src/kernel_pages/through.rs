//! A file that is read through the kernel's cache, and what of it was seen to be held there.

use std::fs::File as StdFile;
use std::io::IoSliceMut;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use readpath_core::splitmix;
use readpath_core::unit::{PAGE_BYTES, PageRange};
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv, preadv2, retry_on_intr};

use super::waiter::{FileKey, Wish};
use crate::target::Target;

/// What is held is known of so many pages together, 2 MiB.
const WINDOW_PAGES: u64 = 512;
/// The most windows of a file that are remembered: 2 GiB of it.
const WINDOWS_MAX: u64 = 1024;
/// One of eight small reads looks whether the kernel has let pages go that were held.
const LOOKED_AT_LOG2: u32 = 3;

/// A file, to be read through the kernel's cache.
pub(super) struct Through {
    pub(super) file: Arc<StdFile>,
    pub(super) key: FileKey,
    /// The same file, of which the kernel reads what is asked for and no more; opened when it is first needed, and `None` where it
    /// can't be.
    alone: OnceLock<Option<Arc<StdFile>>>,
    /// What was brought in was gone before it was copied: memory is short, and nothing but what is asked for is to be brought in.
    is_short: AtomicBool,
    /// The file system doesn't tell what it holds (`RWF_NOWAIT`).
    is_blind: AtomicBool,
    /// The windows that were seen to be held, each at its number modulo their count, as one more than its number; none of a
    /// file that `is_kept`.
    held: Box<[AtomicU64]>,
}

impl Through {
    /// The file of a descriptor once more, through the kernel's cache; without its readahead, unless it `is_kept` there.
    pub(super) fn open(target: &Target, is_kept: bool) -> Option<Through> {
        let file = target.through_cache()?;
        if !is_kept {
            fadvise(&*file, 0, None, Advice::Random).ok()?;
        }
        // What the kernel keeps is not asked for, and so not remembered.
        let windows = match is_kept {
            true => 0,
            false => target.bytes().div_ceil(PAGE_BYTES * WINDOW_PAGES).clamp(1, WINDOWS_MAX),
        };
        let held = (0..windows).map(|_| AtomicU64::new(0)).collect();
        let (alone, is_short) = (OnceLock::new(), AtomicBool::new(false));
        let key = FileKey::of(target);
        let is_blind = AtomicBool::new(false);
        Some(Through { file, key, alone, is_short, is_blind, held })
    }

    /// Fills the buffers, of `bytes` bytes together, if all of it is there still; otherwise their content is undefined.
    pub(super) fn read_held(
        &self,
        offset: u64,
        bytes: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> bool {
        self.read_now(offset, buffers) == bytes || self.forget(offset, bytes)
    }

    /// Fills a small buffer that is known to be held. One read of eight looks whether it is, by its place; the others read on.
    pub(super) fn read_known(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let bytes = buffer.len() as u64;
        let spread = offset.wrapping_mul(splitmix::STEP);
        if spread >> (u64::BITS - LOOKED_AT_LOG2) > 0 {
            return self.read_whole(offset, buffer);
        }
        self.read_held(offset, bytes, &mut [IoSliceMut::new(buffer)])
    }

    /// Reads what is there without waiting for more; gives how many bytes from the first on.
    fn read_now(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> u64 {
        self.read_seen(offset, false, buffers).unwrap_or(0)
    }

    /// As `read_now`; `None` where the file system doesn't tell.
    pub(super) fn read_seen(
        &self,
        offset: u64,
        is_alone: bool,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Option<u64> {
        if self.is_blind.load(Ordering::Relaxed) {
            return None;
        }
        match preadv2(self.file(is_alone), buffers, offset, ReadWriteFlags::NOWAIT) {
            Ok(bytes) => Some(bytes as u64),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.is_blind.store(true, Ordering::Relaxed);
                None
            }
            Err(_) => Some(0),
        }
    }

    /// Fills a buffer; false where the file ends before, or the device fails.
    #[inline]
    pub(super) fn read_whole(&self, offset: u64, buffer: &mut [u8]) -> bool {
        pread(&self.file, &mut *buffer, offset) == Ok(buffer.len())
            || self.read_rest(offset, 0, false, &mut [IoSliceMut::new(buffer)])
    }

    /// Fills the buffers, which have room for `bytes` bytes together; false where the file ends before, or the device fails.
    pub(super) fn read_all(&self, offset: u64, bytes: u64, buffers: &mut [IoSliceMut<'_>]) -> bool {
        preadv(&self.file, &mut *buffers, offset) == Ok(bytes as usize)
            || self.read_rest(offset, 0, false, buffers)
    }

    /// Fills the buffers, whose first `done` bytes are there; false as [`read_all`](Through::read_all).
    pub(super) fn read_rest(
        &self,
        offset: u64,
        done: u64,
        is_alone: bool,
        buffers: &mut [IoSliceMut<'_>],
    ) -> bool {
        let file = self.file(is_alone);
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

    /// The file; where a read `is_alone` the one that the kernel reads nothing ahead of, if there may be such.
    fn file(&self, is_alone: bool) -> &Arc<StdFile> {
        let open = || {
            let file = StdFile::open(format!("/proc/self/fd/{}", self.file.as_raw_fd())).ok()?;
            fadvise(&file, 0, None, Advice::Random).ok().map(|()| Arc::new(file))
        };
        let apart = if is_alone { self.alone.get_or_init(open).as_ref() } else { None };
        apart.unwrap_or(&self.file)
    }

    /// A read that a thread makes for a task.
    pub(super) fn wish(&self, offset: u64, bytes: u64) -> Wish {
        let file = Arc::clone(self.file(self.is_short.load(Ordering::Relaxed)));
        Wish::new(file, self.key, offset, bytes)
    }

    /// Whether the file system doesn't tell what it holds.
    pub(super) fn is_blind(&self) -> bool {
        self.is_blind.load(Ordering::Relaxed)
    }

    /// What was brought in is gone again.
    pub(super) fn was_gone(&self) {
        self.is_short.store(true, Ordering::Relaxed);
    }

    /// Whether the pages lie in windows that were seen to be held.
    #[inline]
    pub(super) fn knows(&self, pages: PageRange) -> bool {
        !self.held.is_empty()
            && self.places(pages).all(|(place, window)| place.load(Ordering::Relaxed) == window + 1)
    }

    pub(super) fn remember(&self, pages: PageRange) {
        self.places(pages).for_each(|(place, window)| place.store(window + 1, Ordering::Relaxed));
    }

    /// Nothing is known of these bytes any more. False, always.
    pub(super) fn forget(&self, offset: u64, bytes: u64) -> bool {
        let pages = PageRange::covering(offset, bytes);
        self.places(pages).for_each(|(place, _)| place.store(0, Ordering::Relaxed));
        false
    }

    /// Where it stands which windows of these pages are held; nowhere, of a file that is kept.
    fn places(&self, pages: PageRange) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let windows = match self.held.is_empty() {
            true => 0..0,
            false => pages.first / WINDOW_PAGES..pages.end.div_ceil(WINDOW_PAGES),
        };
        windows.map(|window| (&self.held[(window % self.held.len() as u64) as usize], window))
    }
}

/// The windows around a range of pages.
pub(super) fn windows_of(pages: PageRange) -> PageRange {
    PageRange {
        first: pages.first / WINDOW_PAGES * WINDOW_PAGES,
        end: pages.end.next_multiple_of(WINDOW_PAGES),
    }
}
