//! Cold start: removes a file's pages from the kernel page cache and checks the result.
//!
//! `POSIX_FADV_DONTNEED` is only a hint: dirty pages and mapped pages stay. Therefore the file is
//! written back first, and the remaining pages are counted afterwards. `cachestat(2)` counts them
//! at a cost that depends on the cached pages, not on the file size. Before Linux 6.5,
//! and on overlayfs, `mincore(2)` is used on one window after the other, without the holes.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use readpath_core::unit::{PAGE_BYTES, PageRange};
use readpath_os::page_cache;
use rustix::fs::{Advice, SeekFrom};
use rustix::io::Errno;

/// Window size of a `mincore(2)` call in pages: 1 GiB, one result byte per page.
const WINDOW_PAGES: u64 = (1 << 30) / PAGE_BYTES;

/// Number of a file's pages in the kernel page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Number of pages in the file.
    pub pages: u64,
    /// Number of resident pages.
    pub resident: u64,
}

/// Maximum number of attempts to drop the pages. A page with I/O in flight cannot be dropped until
/// the I/O ends. `mincore(2)` counts a page that is being read as absent.
pub const ATTEMPTS: u32 = 400;

/// Pause between two attempts. With [`ATTEMPTS`] attempts the total is two seconds.
pub const PAUSE: Duration = Duration::from_millis(5);

/// Drops the pages of the file or block device at `path` from the kernel page cache and returns the
/// residency. A start is cold with 0 resident pages.
///
/// The kernel reports residency only to the file's owner, to users with write permission, and to
/// root. For other users every page looks resident.
///
/// # Errors
/// The file cannot be opened, written back or examined.
pub fn drop_pages(path: &Path) -> io::Result<Residency> {
    drop_pages_while(path, &mut || true)
}

/// Like [`drop_pages`], but calls `should_continue` before each attempt and within long counts, and
/// stops when it returns false. The file is written back before the first call.
///
/// # Errors
/// As [`drop_pages`], and [`Interrupted`](io::ErrorKind::Interrupted) when `should_continue`
/// returns false.
pub fn drop_pages_while(path: &Path, should_continue: ContinueFn<'_>) -> io::Result<Residency> {
    make_cold_while(&File::open(path)?, should_continue)
}

/// Callback that returns true while a long operation shall continue.
pub type ContinueFn<'a> = &'a mut dyn FnMut() -> bool;

/// Like [`drop_pages`], for an open file. While pages stay resident, it retries for two seconds,
/// because their I/O may be in flight.
///
/// # Errors
/// As [`drop_pages`].
pub fn make_cold(file: &File) -> io::Result<Residency> {
    make_cold_while(file, &mut || true)
}

/// Writes a file back and drops its cached pages, in up to [`ATTEMPTS`] attempts with a [`PAUSE`]
/// between two. Returns the residency after the last attempt, or the first error. Stops
/// with `Interrupted` if `should_continue` returns false. Moves the file position.
fn make_cold_while(file: &File, should_continue: ContinueFn<'_>) -> io::Result<Residency> {
    rustix::fs::fsync(file)?;
    let pages = page_count(file)?;
    let mut residency = Residency { pages, resident: 0 };
    for attempt in 0..ATTEMPTS {
        check_continue(should_continue)?;
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        // The whole file: from 0 on, without an end.
        rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?;
        residency.resident = count_resident(file, pages, should_continue)?;
        if residency.resident == 0 {
            break;
        }
    }
    Ok(residency)
}

/// Returns the residency of the file at `path`. The page cache stays as it is.
///
/// # Errors
/// The file cannot be opened or examined.
pub fn residency(path: &Path) -> io::Result<Residency> {
    let file = File::open(path)?;
    let pages = page_count(&file)?;
    let resident = count_resident(&file, pages, &mut || true)?;
    Ok(Residency { pages, resident })
}

/// Returns the number of resident pages of a file of `pages` pages: by `cachestat(2)`, or by
/// `mincore(2)` where that counts no pages. Stops with `Interrupted` if `should_continue` returns
/// false.
fn count_resident(file: &File, pages: u64, should_continue: ContinueFn<'_>) -> io::Result<u64> {
    match count_by_cachestat(file, pages)? {
        Some(resident) => Ok(resident),
        None => count_by_mincore(file, pages, should_continue),
    }
}

/// Returns the error `Interrupted` if `should_continue` returns false.
fn check_continue(should_continue: ContinueFn<'_>) -> io::Result<()> {
    match should_continue() {
        true => Ok(()),
        false => Err(io::ErrorKind::Interrupted.into()),
    }
}

/// Counts the resident pages with `cachestat(2)`. Returns `None` before Linux 6.5, on hugetlbfs,
/// and for a count of 0 on overlayfs, where the call counts no pages. Without permission all pages
/// count as resident, as with `mincore(2)`.
fn count_by_cachestat(file: &File, pages: u64) -> io::Result<Option<u64>> {
    // A length of 0 means the whole file.
    let error = match page_cache::resident_pages(file, 0, 0) {
        Ok(0) if page_cache::is_on_overlay(file) => return Ok(None),
        Ok(cached) => return Ok(Some(cached)),
        Err(error) => error,
    };
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EOPNOTSUPP) => Ok(None),
        // Without permission `mincore(2)` reports every page as resident. The result here is the
        // same.
        Some(libc::EPERM) => Ok(Some(pages)),
        _ => Err(error),
    }
}

/// Counts the resident pages with `mincore(2)`, one window at a time. Holes are skipped, since no
/// device read fills them. Stops with `Interrupted` if `should_continue` returns false. Moves the
/// file position.
fn count_by_mincore(file: &File, pages: u64, should_continue: ContinueFn<'_>) -> io::Result<u64> {
    let mut count = 0;
    let mut first = 0;
    while first < pages {
        check_continue(should_continue)?;
        let data_page = match rustix::fs::seek(file, SeekFrom::Data(first * PAGE_BYTES)) {
            Ok(offset) => offset / PAGE_BYTES,
            // The rest of the file is a hole.
            Err(Errno::NXIO) => break,
            // Without a report of holes, all is data.
            Err(_) => first,
        };
        let window = PageRange::new(data_page.max(first), WINDOW_PAGES).clipped(pages);
        count +=
            residency_flags(file, window)?.into_iter().filter(|&is_resident| is_resident).count()
                as u64;
        first = window.end;
    }
    Ok(count)
}

/// Returns the number of pages in the file or block device, rounded up. Moves the file position to
/// the end, because the metadata of a block device has no length.
///
/// # Errors
/// The kernel reports no end offset.
pub fn page_count(file: &File) -> io::Result<u64> {
    Ok(rustix::fs::seek(file, SeekFrom::End(0))?.div_ceil(PAGE_BYTES))
}

/// Returns one flag per page in `pages`: true when the page is in the kernel page cache.
///
/// # Errors
/// The file cannot be mapped, or the range is empty.
pub fn residency_flags(file: impl AsFd, pages: PageRange) -> io::Result<Vec<bool>> {
    let (offset, bytes) = (pages.first * PAGE_BYTES, pages.count() * PAGE_BYTES);
    page_cache::residency_flags(file, offset, bytes as usize)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Creates a file of one terabyte and one page, without a name. Three areas have four pages of
    /// data.
    fn create_sparse_file() -> File {
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

    /// Only the four pages with data can be resident.
    #[test]
    fn mincore_and_cachestat_counts_agree_on_a_sparse_file() {
        let file = create_sparse_file();
        let pages = page_count(&file).unwrap();
        let mut window_count = 0;
        let resident_count = count_by_mincore(&file, pages, &mut || {
            window_count += 1;
            true
        });
        assert_eq!(resident_count.unwrap(), 4);
        // One call of the closure per window with data. A terabyte has 1024 windows.
        assert!(window_count <= 4, "{window_count} windows");
        match count_by_cachestat(&file, pages).unwrap() {
            Some(counted) => assert_eq!(counted, 4),
            None => eprintln!("skipped: no cachestat(2) here"),
        }
        // A file of a tmpfs has no other copy of its pages.
        let is_in_memory = rustix::fs::fstatfs(&file).unwrap().f_type == libc::TMPFS_MAGIC;
        let resident = if is_in_memory { 4 } else { 0 };
        assert_eq!(make_cold(&file).unwrap(), Residency { pages, resident });
    }

    #[test]
    fn make_cold_can_be_interrupted() {
        let error = make_cold_while(&create_sparse_file(), &mut || false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
    }
}
