//! What the kernel's page cache holds of a file that is read past it.
//!
//! A file that was just written, or that another program reads, lies in memory already; to bring it in
//! from its device once more takes tens of times as long as to copy it. So a large read of which this path's
//! own cache has nothing asks the kernel first (`cachestat(2)`, Linux 6.5, which reads nothing and marks nothing),
//! and takes what is held whole, by one `preadv2(2)` straight into the caller's memory: no copy of it comes into
//! our cache, and its laws are told where the read ended, as of any read past them. What is held in part, or by
//! nobody, goes the usual way.
//!
//! The bytes are those that any `read(2)` would give: pages that a writer has dirtied included. A page that
//! is in *our* cache is always given from there, so that no reader sees a page's new bytes and then its old ones.
//!
//! Where it can't be asked (an older kernel, a file of somebody else's that we may not write, no `/proc`), all
//! goes the usual way. Block devices do always.

use std::fs::File as StdFile;
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;

use linux_raw_sys::general as raw;
use readpath_core::unit::{PAGE_BYTES, PageRange};
use rustix::fs::{Advice, fadvise};
use rustix::io::{ReadWriteFlags, preadv2};

use crate::engine::Handle;
use crate::engine::below::Opening;
use crate::file::File;
use crate::identity::Identity;
use crate::target::Mode;

/// Smaller reads go through our own cache, where the next one will find them: a system call for
/// each would cost as much as the copy.
const READ_BYTES_MIN: usize = 64 << 10;

/// The pages of one open file in the kernel's cache.
pub(crate) struct KernelPages {
    /// The descriptor that passes by that cache, and whose file it is; `None` where there is nothing to ask.
    direct: Option<(RawFd, Identity)>,
    /// The same file, to be read through that cache: opened when first wanted. `None` where that can't be.
    through: OnceLock<Option<StdFile>>,
}

impl KernelPages {
    /// Those of a file that is about to be opened.
    pub(crate) fn of(opening: &Opening, identity: Identity) -> KernelPages {
        let direct = match opening {
            Opening::Local(target)
                if target.mode() == Mode::Direct && !target.is_block_device() =>
            {
                Some((target.as_raw_fd(), identity))
            }
            _ => None,
        };
        KernelPages { direct, through: OnceLock::new() }
    }

    /// The file, where the kernel holds all of `bytes` bytes at `offset`, as far as one can tell now.
    fn holding(&self, offset: u64, bytes: u64) -> Option<&StdFile> {
        let (direct, identity) = self.direct?;
        let file = self.through.get_or_init(|| opened_again(direct, identity)).as_ref()?;
        let pages = PageRange::covering(offset, bytes);
        let cached = cached_pages(file, pages.first * PAGE_BYTES, pages.count() * PAGE_BYTES)?;
        (cached == pages.count()).then_some(file)
    }

    /// Fills `buffer` from the kernel's cache, if all of it is there; otherwise its content is undefined.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let Some(file) = self.holding(offset, buffer.len() as u64) else { return false };
        let mut filled = 0;
        while filled < buffer.len() {
            // What has gone from the cache since ends the read here, and is not waited for.
            let part = &mut [IoSliceMut::new(&mut buffer[filled..])];
            match preadv2(file, part, offset + filled as u64, ReadWriteFlags::NOWAIT) {
                Ok(0) | Err(_) => return false,
                Ok(bytes) => filled += bytes,
            }
        }
        true
    }
}

impl Handle {
    /// Reads what the kernel's cache holds into `buffer`, all of it or nothing, past the machine and past our
    /// own cache, which must have none of it.
    #[cold]
    pub(crate) fn read_from_kernel(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let bytes = buffer.len() as u64;
        if buffer.len() < READ_BYTES_MIN
            || self.engine.frame_cache.has_any(self.file.id, PageRange::covering(offset, bytes))
            || !self.file.kernel_pages.read(offset, buffer)
        {
            return false;
        }
        self.tally.held(bytes, offset + bytes);
        true
    }
}

impl File {
    /// Whether a read of `bytes` bytes at `offset` would now find all of them in memory, in this path's
    /// cache or in the kernel's, from which reads of 64 KiB and more are taken as well. Then there is nothing
    /// to [`prefetch`](File::prefetch).
    pub fn is_cached(&self, offset: u64, bytes: u64) -> bool {
        let Ok(handle) = self.handle().here_as_seen() else { return false };
        let (engine, file) = (&handle.engine, &handle.file);
        let bytes = bytes.min(file.bytes.saturating_sub(offset));
        let range = PageRange::covering(offset, bytes);
        engine.frame_cache.has(file.id, range)
            || bytes >= READ_BYTES_MIN as u64
                && !engine.frame_cache.has_any(file.id, range)
                && file.kernel_pages.holding(offset, bytes).is_some()
    }
}

/// How many pages of `bytes` bytes at `offset` the kernel's cache has: `cachestat(2)`; `None` where it
/// doesn't say.
fn cached_pages(file: &StdFile, offset: u64, bytes: u64) -> Option<u64> {
    let range = raw::cachestat_range { off: offset, len: bytes };
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

/// The file of a descriptor once more, through the kernel's cache, and without its readahead.
fn opened_again(direct: RawFd, identity: Identity) -> Option<StdFile> {
    let file = StdFile::open(format!("/proc/self/fd/{direct}")).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    if (stat.st_dev, stat.st_ino) != (identity.device, identity.inode) {
        return None;
    }
    fadvise(&file, 0, None, Advice::Random).ok()?;
    Some(file)
}
