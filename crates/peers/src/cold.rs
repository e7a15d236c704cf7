//! A cold start: the kernel's cache gives up a file's pages.
//!
//! The kernel takes `POSIX_FADV_DONTNEED` as a wish: a dirty page stays, and so
//! does one that somebody has mapped. So the file is written back first, and
//! afterwards it is counted what stayed: by `cachestat(2)`, which looks at what is cached
//! alone, however large the file is; before Linux 6.5, through `mincore(2)`, a window after
//! the other of what isn't a hole.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::Duration;

use linux_raw_sys::general as raw;
use readpath_core::unit::{PAGE_BYTES, PageRange};
use rustix::fs::{Advice, SeekFrom};
use rustix::io::Errno;
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
/// The file can't be opened, written back or looked at.
pub fn drop_pages(path: &Path) -> io::Result<Residency> {
    drop_pages_while(path, &mut || true)
}

/// As [`drop_pages`], as long as it is wanted, which is asked before each step that may take
/// a while.
///
/// # Errors
/// As [`drop_pages`]; [`Interrupted`](io::ErrorKind::Interrupted) once it is not wanted.
pub fn drop_pages_while(path: &Path, is_wanted: ContinueFn<'_>) -> io::Result<Residency> {
    make_cold_while(&File::open(path)?, is_wanted)
}

/// Whether what takes a while is still wanted.
pub type ContinueFn<'a> = &'a mut dyn FnMut() -> bool;

/// As [`drop_pages`], for a file that is open. Where pages stay it is tried
/// again for two seconds: they may be on their way.
///
/// # Errors
/// As [`drop_pages`].
pub fn make_cold(file: &File) -> io::Result<Residency> {
    make_cold_while(file, &mut || true)
}

fn make_cold_while(file: &File, is_wanted: ContinueFn<'_>) -> io::Result<Residency> {
    rustix::fs::fsync(file)?;
    let pages = pages_of(file)?;
    let mut residency = Residency { pages, resident: 0 };
    for attempt in 0..ATTEMPTS {
        ask(is_wanted)?;
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?;
        residency.resident = resident_pages(file, pages, is_wanted)?;
        if residency.resident == 0 {
            break;
        }
    }
    Ok(residency)
}

/// How much of the file at `path` the kernel's cache holds, and nothing is changed.
///
/// # Errors
/// The file can't be opened or looked at.
pub fn residency(path: &Path) -> io::Result<Residency> {
    let file = File::open(path)?;
    let pages = pages_of(&file)?;
    let resident = resident_pages(&file, pages, &mut || true)?;
    Ok(Residency { pages, resident })
}

fn resident_pages(file: &File, pages: u64, is_wanted: ContinueFn<'_>) -> io::Result<u64> {
    match counted(file, pages)? {
        Some(resident) => Ok(resident),
        None => looked_at(file, pages, is_wanted),
    }
}

fn ask(is_wanted: ContinueFn<'_>) -> io::Result<()> {
    match is_wanted() {
        true => Ok(()),
        false => Err(io::ErrorKind::Interrupted.into()),
    }
}

/// How many of the file's `pages` pages are cached, as the kernel counts them; `None` where it
/// doesn't (before Linux 6.5, and on hugetlbfs).
fn counted(file: &File, pages: u64) -> io::Result<Option<u64>> {
    let error = match cached_pages(file, 0, 0) {
        Ok(cached) => return Ok(Some(cached)),
        Err(error) => error,
    };
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EOPNOTSUPP) => Ok(None),
        // As mincore(2) says it to those who may not know.
        Some(libc::EPERM) => Ok(Some(pages)),
        _ => Err(error),
    }
}

/// How many pages of `bytes` bytes of the file from `offset` on the kernel's cache has, 0 bytes for
/// all up to the end: `cachestat(2)`.
pub(crate) fn cached_pages(file: &File, offset: u64, bytes: u64) -> io::Result<u64> {
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
    match result {
        0 => Ok(counted.nr_cache),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The same by looking at them: those of holes aside, which nobody brings in from a device.
fn looked_at(file: &File, pages: u64, is_wanted: ContinueFn<'_>) -> io::Result<u64> {
    let mut count = 0;
    let mut first = 0;
    while first < pages {
        ask(is_wanted)?;
        // A file system that knows of no holes says that there is data everywhere.
        let data = match rustix::fs::seek(file, SeekFrom::Data(first * PAGE_BYTES)) {
            Ok(offset) => offset / PAGE_BYTES,
            Err(Errno::NXIO) => break,
            Err(_) => first,
        };
        let window = PageRange::new(data.max(first), WINDOW_PAGES).clipped(pages);
        count +=
            resident(file, window)?.into_iter().filter(|&is_resident| is_resident).count() as u64;
        first = window.end;
    }
    Ok(count)
}

/// How many pages the file or block device has.
///
/// # Errors
/// It can't be told its end.
pub(crate) fn pages_of(file: &File) -> io::Result<u64> {
    Ok(rustix::fs::seek(file, SeekFrom::End(0))?.div_ceil(PAGE_BYTES))
}

/// Says of each page in `pages` whether the kernel's cache holds it.
///
/// # Errors
/// The file can't be mapped, or the range is empty.
pub fn resident(file: impl AsFd, pages: PageRange) -> io::Result<Vec<bool>> {
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
    let error = io::Error::last_os_error();
    // SAFETY: the mapping made above, to which nothing refers.
    unsafe { rustix::mm::munmap(address, bytes)? };
    if result != 0 {
        return Err(error);
    }
    Ok(answer.iter().map(|&byte| byte & 1 == 1).collect())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A file of a terabyte and a page, with data at three places.
    fn sparse() -> File {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("readpath-cold-{}-{number}", std::process::id());
        let name = std::env::temp_dir().join(name);
        let mut options = File::options();
        let mut file = options.read(true).write(true).create_new(true).open(&name).unwrap();
        std::fs::remove_file(&name).unwrap();
        file.write_all(&[1; 8192]).unwrap();
        file.write_all_at(&[2; 4096], 1 << 35).unwrap();
        file.write_all_at(&[3; 4096], 1 << 40).unwrap();
        file
    }

    #[test]
    fn both_ways_to_count_agree_on_a_file_that_is_mostly_holes() {
        let file = sparse();
        let pages = pages_of(&file).unwrap();
        let mut looks = 0;
        let looked_at = looked_at(&file, pages, &mut || {
            looks += 1;
            true
        });
        assert_eq!(looked_at.unwrap(), 4);
        // One for each window that has data; a terabyte has 1024.
        assert!(looks <= 4, "{looks} windows");
        match counted(&file, pages).unwrap() {
            Some(counted) => assert_eq!(counted, 4),
            None => eprintln!("skipped: no cachestat(2) here"),
        }
        assert_eq!(make_cold(&file).unwrap(), Residency { pages, resident: 0 });
    }

    #[test]
    fn who_wants_it_no_more_is_heard() {
        let error = make_cold_while(&sparse(), &mut || false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
    }
}
