//! What the kernel's page cache holds of a file that is read past it.
//!
//! A file that was just written, or that another program reads, lies in memory already; to bring it in
//! from its device once more takes tens of times as long as to copy it. So a read of which this path's
//! own cache has nothing asks the kernel first (`cachestat(2)`, Linux 6.5, which reads nothing and marks nothing),
//! and takes what is held whole, by one `preadv2(2)` straight into the caller's memory: no copy of it comes into
//! our cache, and its laws are told where the read ended, as of any read past them. What is held in part, or by
//! nobody, goes the usual way.
//!
//! To ask costs a system call, as the read itself does. So
//! - a small read asks about the 2 MiB around it, and while these are known to be held, the reads in them ask no more.
//!   Should the kernel have let them go meanwhile, `RWF_NOWAIT` tells, which one small read of eight sets (it costs a tenth of
//!   the read); until then the others bring back what they need through that cache, without its readahead;
//! - small reads that ask in vain one after the other ask ever more rarely, one in 64 in the end. Large ones, of 64 KiB
//!   or more, always do: beside what they cost on a device it is nothing.
//!
//! The bytes are those that any `read(2)` would give: pages that a writer has dirtied included. A page that
//! is in *our* cache is always given from there, so that no reader sees a page's new bytes and then its old ones.
//!
//! Where it can't be asked (an older kernel, a file of somebody else's that we may not write, no `/proc`), all
//! goes the usual way. Block devices do always.

use std::fs::File as StdFile;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use linux_raw_sys::general as raw;
use readpath_core::unit::{PAGE_BYTES, PageRange};
use rustix::fs::{Advice, fadvise};
use rustix::io::{ReadWriteFlags, pread, preadv2};

use crate::engine::Handle;
use crate::engine::below::Opening;
use crate::file::File;
use crate::identity::Identity;
use crate::target::{Mode, Target};

/// Reads of so many bytes ask about themselves, and always.
const LARGE_BYTES: u64 = 64 << 10;
/// Smaller ones ask about so many pages together, 2 MiB.
const WINDOW_PAGES: u64 = 512;
/// The most windows of a file that are remembered: 2 GiB of it.
const WINDOWS_MAX: u64 = 1024;
/// After so many times in vain, one after the other, half as many small reads ask; and so on.
const VAIN_MAX: u32 = 4;
/// One of so many small reads looks whether the kernel has let pages go that were held.
const LOOKED_AT_EACH: u32 = 8;
/// One of so many asks still, in the end.
const ASKS_EACH_MAX_LOG2: u32 = 6;

/// The pages of one open file in the kernel's cache.
pub(crate) struct KernelPages {
    /// The descriptor that passes by that cache, and whose file it is; `None` where there is nothing to ask.
    direct: Option<(RawFd, Identity)>,
    bytes: u64,
    /// How many small reads have asked in vain, one after the other, and how many came since the last that asked.
    vain: AtomicU32,
    silent: AtomicU32,
    /// Opened when something of it is first seen to be held; `None` where that can't be.
    through: OnceLock<Option<Through>>,
}

/// The same file, to be read through that cache.
struct Through {
    file: StdFile,
    /// The windows that were seen to be held, each at its number modulo their count, as one more than its number.
    held: Box<[AtomicU64]>,
    /// How many small reads there were.
    reads: AtomicU32,
}

impl KernelPages {
    /// Those of a file that is about to be opened, unless they are not `wanted`.
    pub(crate) fn of(opening: &Opening, identity: Identity, wanted: bool) -> KernelPages {
        let direct = match opening {
            Opening::Local(target) if wanted && can_be_asked(target) => {
                Some((target.as_raw_fd(), identity))
            }
            _ => None,
        };
        KernelPages {
            direct,
            bytes: opening.bytes(),
            vain: AtomicU32::new(0),
            silent: AtomicU32::new(0),
            through: OnceLock::new(),
        }
    }

    /// The file, where the kernel is known to hold all of `bytes` bytes at `offset`, or is asked and does.
    fn holding_for_read(&self, offset: u64, bytes: u64) -> Option<&Through> {
        if bytes >= LARGE_BYTES {
            return self.holding(offset, bytes);
        }
        let known = self.through.get().and_then(Option::as_ref);
        match known.filter(|through| through.knows(PageRange::covering(offset, bytes))) {
            None if self.is_to_ask() => self.holding(offset, bytes),
            known => known,
        }
    }

    /// The file, where the kernel is asked, and holds all of `bytes` bytes at `offset`.
    fn holding(&self, offset: u64, bytes: u64) -> Option<&Through> {
        let (direct, identity) = self.direct?;
        let pages = PageRange::covering(offset, bytes);
        // SAFETY: the file's own descriptor, which stays open as long as this; see `KernelPages::of`.
        let asked = unsafe { BorrowedFd::borrow_raw(direct) };
        let file_pages = self.bytes.div_ceil(PAGE_BYTES);
        let is_small = bytes < LARGE_BYTES;
        let range = if is_small { windows_of(pages).clipped(file_pages) } else { pages };
        let cached = cached_pages(asked, range)?;
        let is_whole = cached == range.count();
        let is_held =
            is_whole || is_small && cached > 0 && cached_pages(asked, pages)? == pages.count();
        if !is_held {
            self.vain.fetch_add(is_small.into(), Ordering::Relaxed);
            return None;
        }
        self.vain.store(0, Ordering::Relaxed);
        let open = || Through::open(direct, identity, file_pages);
        let through = self.through.get_or_init(open).as_ref()?;
        if is_whole && is_small {
            through.remember(range);
        }
        Some(through)
    }

    /// Whether a small read is to ask, by how many have asked in vain.
    fn is_to_ask(&self) -> bool {
        let vain = self.vain.load(Ordering::Relaxed);
        let each_log2 = vain.saturating_sub(VAIN_MAX).min(ASKS_EACH_MAX_LOG2);
        self.silent.fetch_add(1, Ordering::Relaxed) & ((1 << each_log2) - 1) == 0
    }

    /// Fills the buffers, of `bytes` bytes together, from the kernel's cache, if all of it is there; otherwise their
    /// content is undefined.
    fn read(&self, offset: u64, bytes: u64, buffers: &mut [IoSliceMut<'_>]) -> bool {
        let Some(through) = self.holding_for_read(offset, bytes) else { return false };
        let is_looked_at = bytes >= LARGE_BYTES
            || through.reads.fetch_add(1, Ordering::Relaxed) % LOOKED_AT_EACH == 0;
        let read = match buffers {
            [buffer] if !is_looked_at => pread(&through.file, &mut **buffer, offset),
            // What has gone from the cache since ends the read early, and is not waited for.
            _ => preadv2(&through.file, buffers, offset, ReadWriteFlags::NOWAIT),
        };
        let is_whole = read.is_ok_and(|read| read as u64 == bytes);
        if !is_whole {
            through.forget(PageRange::covering(offset, bytes));
        }
        is_whole
    }
}

impl Through {
    /// The file of a descriptor once more, through the kernel's cache, and without its readahead.
    fn open(direct: RawFd, identity: Identity, file_pages: u64) -> Option<Through> {
        let file = StdFile::open(format!("/proc/self/fd/{direct}")).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        if (stat.st_dev, stat.st_ino) != (identity.device, identity.inode) {
            return None;
        }
        fadvise(&file, 0, None, Advice::Random).ok()?;
        let windows = file_pages.div_ceil(WINDOW_PAGES).clamp(1, WINDOWS_MAX);
        let held = (0..windows).map(|_| AtomicU64::new(0)).collect();
        Some(Through { file, held, reads: AtomicU32::new(0) })
    }

    /// Whether the pages lie in windows that were seen to be held.
    fn knows(&self, pages: PageRange) -> bool {
        self.places(pages).all(|(place, window)| place.load(Ordering::Relaxed) == window + 1)
    }

    fn remember(&self, pages: PageRange) {
        self.places(pages).for_each(|(place, window)| place.store(window + 1, Ordering::Relaxed));
    }

    fn forget(&self, pages: PageRange) {
        self.places(pages).for_each(|(place, _)| place.store(0, Ordering::Relaxed));
    }

    fn places(&self, pages: PageRange) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let windows = pages.first / WINDOW_PAGES..pages.end.div_ceil(WINDOW_PAGES);
        windows.map(|window| (&self.held[(window % self.held.len() as u64) as usize], window))
    }
}

/// The windows around a range of pages.
fn windows_of(pages: PageRange) -> PageRange {
    PageRange {
        first: pages.first / WINDOW_PAGES * WINDOW_PAGES,
        end: pages.end.next_multiple_of(WINDOW_PAGES),
    }
}

/// Whether what the kernel holds of a file may be other than what we read of it.
fn can_be_asked(target: &Target) -> bool {
    target.mode() == Mode::Direct && !target.is_block_device()
}

/// Whether the kernel's cache holds all of a file that is read past it, as far as one can tell now.
pub(crate) fn holds_all(target: &Target) -> bool {
    let pages = target.bytes().div_ceil(PAGE_BYTES);
    let holds = |range: PageRange| cached_pages(target.as_fd(), range) == Some(range.count());
    // Both ends first: to count the pages of a large file takes a while.
    let ends = [PageRange::new(0, 1), PageRange { first: pages.saturating_sub(1), end: pages }];
    pages > 0
        && can_be_asked(target)
        && ends.into_iter().all(holds)
        && holds(PageRange { first: 0, end: pages })
}

impl Handle {
    /// Reads what the kernel's cache holds into `buffer`, all of it or nothing, past the machine and past our
    /// own cache, which must have none of it.
    #[inline]
    pub(crate) fn read_from_kernel(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let bytes = buffer.len() as u64;
        self.read_vectored_from_kernel(offset, bytes, &mut [IoSliceMut::new(buffer)])
    }

    /// The same bytes in memory of their own.
    pub(crate) fn copied_from_kernel(&self, offset: u64, bytes: u64) -> Option<Box<[u8]>> {
        // Looked at before there is memory for them.
        self.file.kernel_pages.holding_for_read(offset, bytes)?;
        let mut copy = vec![0; bytes as usize].into_boxed_slice();
        self.read_from_kernel(offset, &mut copy).then_some(copy)
    }

    /// As [`read_from_kernel`](Handle::read_from_kernel), into buffers of `bytes` bytes together.
    pub(crate) fn read_vectored_from_kernel(
        &self,
        offset: u64,
        bytes: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> bool {
        let pages = &self.file.kernel_pages;
        if pages.direct.is_none()
            || self.has_pages()
                && self.engine.frame_cache.has_any(self.file.id, PageRange::covering(offset, bytes))
            || !pages.read(offset, bytes, buffers)
        {
            return false;
        }
        self.tally.from_kernel(bytes, offset + bytes);
        true
    }
}

impl File {
    /// Whether a read of `bytes` bytes at `offset` would now find all of them in memory, in this path's
    /// cache or in the kernel's. Then there is nothing to [`prefetch`](File::prefetch).
    pub fn is_cached(&self, offset: u64, bytes: u64) -> bool {
        let Ok(handle) = self.handle().here_as_seen() else { return false };
        let (engine, file) = (&handle.engine, &handle.file);
        let bytes = bytes.min(file.bytes.saturating_sub(offset));
        let range = PageRange::covering(offset, bytes);
        engine.frame_cache.has(file.id, range)
            || !engine.frame_cache.has_any(file.id, range)
                && file.kernel_pages.holding(offset, bytes).is_some()
    }
}

/// How many pages of a range the kernel's cache has: `cachestat(2)`; `None` where it doesn't say.
fn cached_pages(file: BorrowedFd<'_>, pages: PageRange) -> Option<u64> {
    let range =
        raw::cachestat_range { off: pages.first * PAGE_BYTES, len: pages.count() * PAGE_BYTES };
    let mut counted = raw::cachestat {
        nr_cache: 0,
        nr_dirty: 0,
        nr_writeback: 0,
        nr_evicted: 0,
        nr_recently_evicted: 0,
    };
    // SAFETY: the kernel reads the one and writes to the other, and both live.
    let result = unsafe {
        libc::syscall(raw::__NR_cachestat.into(), file.as_raw_fd(), &range, &mut counted, 0)
    };
    (result == 0).then_some(counted.nr_cache)
}
