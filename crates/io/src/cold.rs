//! Cold files: dropping a file's pages, and looking which are in memory.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use readpath_core::unit::PAGE_BYTES;
use rustix::fs::{Advice, fadvise, fsync};

/// How often pages are dropped again while some are still there: those that are
/// locked for I/O in flight can't be dropped until it ends.
pub(crate) const ATTEMPTS: u32 = 400;

/// Between two attempts; with [`ATTEMPTS`], two seconds in all.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);

/// Makes the file cold: writes it back, drops its pages, and looks whether
/// that worked. Gives the number of pages that stayed in memory all the same
/// (another process has them mapped, locked or dirty); 0 is cold.
///
/// # Errors
/// What `fsync`, `posix_fadvise`, `mmap` or `mincore` answered.
pub fn make_cold(file: &File) -> io::Result<u64> {
    fsync(file)?;
    let mut left = 0;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        fadvise(file, 0, None, Advice::DontNeed)?;
        left = resident(file)?.iter().filter(|&&is_resident| is_resident).count() as u64;
        if left == 0 {
            break;
        }
    }
    Ok(left)
}

/// For each page of the file, whether it is in the page cache.
///
/// # Errors
/// What `fstat`, `mmap` or `mincore` answered.
pub fn resident(file: &File) -> io::Result<Vec<bool>> {
    let bytes = file.metadata()?.len();
    if bytes == 0 {
        return Ok(Vec::new());
    }
    let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut flags = vec![0u8; bytes.div_ceil(PAGE_BYTES) as usize];
    // SAFETY: a new mapping at an address of the kernel's choice; it is not
    // read or written, only asked about, and taken down before this returns.
    let answer = unsafe {
        let address = libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let answer = match libc::mincore(address, length, flags.as_mut_ptr()) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        libc::munmap(address, length);
        answer
    };
    answer.map(|()| flags.iter().map(|flag| flag & 1 == 1).collect())
}
