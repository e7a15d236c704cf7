//! A cold start: the kernel's cache gives up a file's pages.
//!
//! The kernel takes `POSIX_FADV_DONTNEED` as a wish: a dirty page stays, and so
//! does one that somebody has mapped. So the file is written back first, and
//! afterwards [`resident`] counts, through `mincore(2)`, what stayed.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use readpath_core::unit::{PAGE_BYTES, PageRange};
use rustix::fs::{Advice, SeekFrom};
use rustix::mm::{MapFlags, ProtFlags};

/// How much of a file is mapped at once to look at it: 1 GiB, a byte of answer a page.
const WINDOW_PAGES: u64 = (1 << 30) / PAGE_BYTES;

/// How many of a file's pages the kernel's cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Pages of the file.
    pub pages: u64,
    /// Those of them in the cache.
    pub resident: u64,
}

/// How often a look is repeated: pages that are locked for I/O in flight can't
/// be dropped, and don't count as there, until it ends.
pub(crate) const ATTEMPTS: u32 = 400;

/// Between two looks; with [`ATTEMPTS`], two seconds in all.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);

/// Has the kernel drop the pages of the file or block device at `path`, and
/// says what stayed: 0 resident pages is a cold start.
///
/// The kernel tells residency only to a file's owner, to those who may write
/// it, and to root; to others every page looks resident.
///
/// # Errors
/// The file can't be opened, written back or mapped.
pub fn drop_pages(path: &Path) -> std::io::Result<Residency> {
    make_cold(&File::open(path)?)
}

/// As [`drop_pages`], for a file that is open. Where pages stay it is tried
/// again for two seconds: they may be on their way.
///
/// # Errors
/// As [`drop_pages`].
pub fn make_cold(file: &File) -> std::io::Result<Residency> {
    rustix::fs::fsync(file)?;
    let pages = pages_of(file)?;
    let mut residency = Residency { pages, resident: 0 };
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?;
        residency.resident = 0;
        for first in (0..pages).step_by(WINDOW_PAGES as usize) {
            let window = PageRange::new(first, WINDOW_PAGES).clipped(pages);
            let held = resident(file, window)?;
            residency.resident += held.iter().filter(|&&is_resident| is_resident).count() as u64;
        }
        if residency.resident == 0 {
            break;
        }
    }
    Ok(residency)
}

/// How many pages the file or block device has.
///
/// # Errors
/// It can't be told its end.
pub(crate) fn pages_of(file: &File) -> std::io::Result<u64> {
    Ok(rustix::fs::seek(file, SeekFrom::End(0))?.div_ceil(PAGE_BYTES))
}

/// Says of each page in `pages` whether the kernel's cache holds it.
///
/// # Errors
/// The file can't be mapped, or the range is empty.
pub fn resident(file: impl AsFd, pages: PageRange) -> std::io::Result<Vec<bool>> {
    let bytes = (pages.count() * PAGE_BYTES) as usize;
    let mut answer = vec![0u8; pages.count() as usize];
    // SAFETY: a new mapping at an address of the kernel's choice; its memory is never touched.
    let address = unsafe {
        let offset = pages.first * PAGE_BYTES;
        let null = std::ptr::null_mut();
        rustix::mm::mmap(null, bytes, ProtFlags::READ, MapFlags::SHARED, &file, offset)?
    };
    // SAFETY: the mapping is `bytes` long, and `answer` has a byte for each of its pages.
    let result = unsafe { libc::mincore(address, bytes, answer.as_mut_ptr()) };
    let error = std::io::Error::last_os_error();
    // SAFETY: the mapping made above, to which nothing refers.
    unsafe { rustix::mm::munmap(address, bytes)? };
    if result != 0 {
        return Err(error);
    }
    Ok(answer.iter().map(|&byte| byte & 1 == 1).collect())
}
