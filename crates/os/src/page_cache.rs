//! Kernel page cache of a file: `cachestat(2)`, `mincore(2)` and `readahead(2)`.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use linux_raw_sys::general as raw;
use rustix::mm::{MapFlags, ProtFlags};

/// Page size in bytes.
const PAGE_BYTES: usize = 4096;
/// `f_type` of overlayfs (statfs(2)).
pub const OVERLAYFS: i64 = 0x794c_7630;

/// Number of pages of a file's range that are in the kernel page cache. The range has `bytes` bytes
/// from `offset` on; 0 bytes means the rest of the file. The number is 0 for any file
/// [on overlayfs](is_on_overlay).
///
/// # Errors
/// `ENOSYS` before Linux 6.5, `EOPNOTSUPP` on a file system of huge pages, and `EPERM` for a file
/// that the process neither owns nor may write.
pub fn resident_pages(file: impl AsFd, offset: u64, bytes: u64) -> io::Result<u64> {
    // The kernel fills all counts, of which one is used.
    let range = raw::cachestat_range { off: offset, len: bytes };
    let mut counts = raw::cachestat {
        nr_cache: 0,
        nr_dirty: 0,
        nr_writeback: 0,
        nr_evicted: 0,
        nr_recently_evicted: 0,
    };
    let descriptor = file.as_fd().as_raw_fd();
    // The call has no flags yet.
    let flags = 0;
    // SAFETY: the kernel reads `range` and writes to `counts`. Both are alive.
    let result = unsafe {
        libc::syscall(raw::__NR_cachestat.into(), descriptor, &range, &mut counts, flags)
    };
    match result {
        0 => Ok(counts.nr_cache),
        _ => Err(io::Error::last_os_error()),
    }
}

/// True if the file is on overlayfs. The pages of such a file belong to the file below it, so that
/// [`resident_pages`] counts none. [`residency_flags`] reports them. False also if the call fails.
/// Makes a request to the server of a network file system.
pub fn is_on_overlay(file: impl AsFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|found| found.f_type == OVERLAYFS)
}

/// Returns one flag per page of a range: true when the page is in the kernel page cache. The range
/// has `bytes` bytes. It starts at `offset`, a multiple of the page size. All flags are true for a
/// file that the process neither owns nor may write (`mincore(2)`).
///
/// # Errors
/// The file cannot be mapped, or the range is empty.
pub fn residency_flags(file: impl AsFd, offset: u64, bytes: usize) -> io::Result<Vec<bool>> {
    let mut flag_bytes = vec![0u8; bytes.div_ceil(PAGE_BYTES)];
    let null = std::ptr::null_mut();
    // SAFETY: a new mapping at an address of the kernel's choice; its memory is never touched.
    let address =
        unsafe { rustix::mm::mmap(null, bytes, ProtFlags::READ, MapFlags::SHARED, &file, offset)? };
    // SAFETY: the mapping is `bytes` long, and `flag_bytes` has a byte for each of its pages.
    let result = unsafe { libc::mincore(address, bytes, flag_bytes.as_mut_ptr()) };
    // Used if `mincore` has failed. Taken now, because a later call may replace it.
    let error = io::Error::last_os_error();
    // SAFETY: the mapping was made above and has no references.
    unsafe { rustix::mm::munmap(address, bytes)? };
    match result {
        0 => Ok(flag_bytes.iter().map(|&byte| byte & 1 == 1).collect()),
        _ => Err(error),
    }
}

/// Starts to read `bytes` bytes from `offset` on into the page cache, and does not wait for them.
/// The kernel reads at most its readahead window or its largest request per call, whichever is
/// larger.
///
/// # Errors
/// The file has no page cache (a pipe, a directory), or is not open for reading.
pub fn read_ahead(file: impl AsFd, offset: u64, bytes: usize) -> io::Result<()> {
    let descriptor = file.as_fd().as_raw_fd();
    // SAFETY: the call accesses no memory of the process.
    match unsafe { libc::readahead(descriptor, offset as libc::off64_t, bytes) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// The test's own program is in memory while it runs: its first page is resident. An old
    /// kernel, or a file of another owner, gives one of two errors.
    #[test]
    fn running_program_is_resident() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        match resident_pages(&file, 0, 4096) {
            Ok(pages) => assert_eq!(pages, 1),
            Err(error) => {
                let code = error.raw_os_error();
                assert!([Some(libc::ENOSYS), Some(libc::EPERM)].contains(&code), "{error}");
            }
        }
        read_ahead(&file, 0, 4096).unwrap();
    }

    #[test]
    fn pipe_has_no_pages_to_read_ahead() {
        let (reader, _writer) = io::pipe().unwrap();
        let error = read_ahead(&reader, 0, 4096).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
