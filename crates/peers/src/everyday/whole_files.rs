//! Many small files: each is opened, read whole, and closed.

use std::io;
use std::path::{Path, PathBuf};

use readpath_core::splitmix;
use readpath_core::unit::PAGE_BYTES;

use super::threads::by_threads;
use super::{Accesses, Checksum, PageBuffer, ReadAt};

/// The smallest file has so many bytes.
pub const FILE_BYTES_MIN: u64 = 4 << 10;

/// The largest has at most so many.
pub const FILE_BYTES_MAX: u64 = 200 << 10;

/// The lengths of so many files: there are as many from 4 to 8 KiB as from 8 to 16 KiB, and so on.
pub fn lengths(count: usize) -> impl Iterator<Item = u64> {
    let mut state = 1;
    let ratio = FILE_BYTES_MAX as f64 / FILE_BYTES_MIN as f64;
    (0..count).map(move |_| {
        let share = splitmix::next(&mut state) as f64 / u64::MAX as f64;
        (FILE_BYTES_MIN as f64 * ratio.powf(share)) as u64
    })
}

/// How a file is opened.
pub type OpenFn = dyn Fn(&Path) -> io::Result<Box<dyn ReadAt>> + Sync;

/// Each file of a list, by several threads. They take turns in the order of the list, so that each thread
/// has the same files whatever the way.
pub struct WholeFiles {
    open: Box<OpenFn>,
    paths: Vec<PathBuf>,
    /// One for each thread.
    buffers: Vec<PageBuffer>,
}

impl WholeFiles {
    /// Nothing has been opened yet.
    pub fn over(open: Box<OpenFn>, paths: Vec<PathBuf>, threads: usize) -> WholeFiles {
        let buffers = (0..threads).map(|_| PageBuffer::of(FILE_BYTES_MAX)).collect();
        WholeFiles { open, paths, buffers }
    }
}

impl Accesses for WholeFiles {
    fn pass(&mut self) -> io::Result<Checksum> {
        let WholeFiles { open, paths, buffers } = self;
        let threads = buffers.len();
        by_threads(buffers, |thread, buffer| {
            let mut sum = Checksum::default();
            for (number, path) in paths.iter().enumerate().skip(thread).step_by(threads) {
                let file = open(path)?;
                let room = file.bytes().next_multiple_of(PAGE_BYTES) as usize;
                let bytes = file.read_at(&mut buffer[..room], 0)?;
                // Each file as if it lay in a place of its own.
                let place = number as u64 * FILE_BYTES_MAX.next_multiple_of(PAGE_BYTES);
                sum.add(place, &buffer[..bytes]);
                sum.add_ends(place, &buffer[..bytes]);
            }
            Ok(sum)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_spread_over_the_whole_span() {
        let lengths: Vec<u64> = lengths(2000).collect();
        assert!(lengths.iter().all(|bytes| (FILE_BYTES_MIN..=FILE_BYTES_MAX).contains(bytes)));
        // By hand: log2(200 / 4) = 5.64 doublings, so 2000 / 5.64 = 354 files in each.
        let first = lengths.iter().filter(|&&bytes| bytes < 8 << 10).count();
        assert!((300..410).contains(&first), "{first} files below 8 KiB");
        let last = lengths.iter().filter(|&&bytes| bytes >= 100 << 10).count();
        assert!((300..410).contains(&last), "{last} files from 100 KiB on");
    }
}
