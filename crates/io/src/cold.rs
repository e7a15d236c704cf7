//! Cold files: dropping a file's pages, and looking which are in memory.

use std::fs::File;
use std::io;
use std::time::Duration;

use rustix::fs::{Advice, fadvise, fsync};

use crate::mapping::Mapping;

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

/// For each page of the file, whether it is in the page cache and read.
///
/// # Errors
/// What `fstat`, `mmap` or `mincore` answered.
pub fn resident(file: &File) -> io::Result<Vec<bool>> {
    Mapping::of(file)?.map_or_else(|| Ok(Vec::new()), |mapping| mapping.resident())
}
