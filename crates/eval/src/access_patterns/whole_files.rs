//! Many small files: each is opened, read whole, and closed.

use std::io;
use std::path::{Path, PathBuf};

use readpath_core::splitmix;
use readpath_core::unit::PAGE_BYTES;
use readpath_os::page_buffer::PageBuffer;

use super::threads::read_in_parallel;
use super::{Accesses, Checksum, ReadAt};

/// Minimum file size in bytes. Chosen, not measured.
pub const FILE_BYTES_MIN: u64 = 4 << 10;

/// Maximum file size in bytes. Chosen, not measured.
pub const FILE_BYTES_MAX: u64 = 200 << 10;

/// Returns `count` pseudo-random file sizes, distributed evenly on a logarithmic scale. Each
/// doubling of the size has the same number of files. The seed is fixed: every call returns the
/// same sizes.
pub fn lengths(count: usize) -> impl Iterator<Item = u64> {
    let mut rng_state = 1;
    let ratio = FILE_BYTES_MAX as f64 / FILE_BYTES_MIN as f64;
    (0..count).map(move |_| {
        let share = splitmix::next(&mut rng_state) as f64 / u64::MAX as f64;
        (FILE_BYTES_MIN as f64 * ratio.powf(share)) as u64
    })
}

/// Function that opens a file.
pub type OpenFn = dyn Fn(&Path) -> io::Result<Box<dyn ReadAt>> + Sync;

/// Reads of whole files by several threads. Files are dealt to the threads in the order of the
/// list, so each thread reads the same files with every implementation.
pub struct WholeFiles {
    /// The open function of the implementation, called once for each file.
    open: Box<OpenFn>,
    /// Files of at most [`FILE_BYTES_MAX`] bytes, in the order of the list.
    paths: Vec<PathBuf>,
    /// One buffer per thread, for the largest file.
    buffers: Vec<PageBuffer>,
}

impl WholeFiles {
    /// Creates the accesses to the files at `paths` by `threads` threads. Each file has at most
    /// [`FILE_BYTES_MAX`] bytes.
    pub fn over(open: Box<OpenFn>, paths: Vec<PathBuf>, threads: usize) -> WholeFiles {
        let buffers = (0..threads).map(|_| PageBuffer::new(FILE_BYTES_MAX)).collect();
        WholeFiles { open, paths, buffers }
    }
}

impl Accesses for WholeFiles {
    /// Reads each file whole with one read, by all threads at once. Returns the checksum of the
    /// data.
    fn pass(&mut self) -> io::Result<Checksum> {
        let WholeFiles { open, paths, buffers } = self;
        let threads = buffers.len();
        read_in_parallel(buffers, |thread, buffer| {
            let mut sum = Checksum::default();
            for (file_number, path) in paths.iter().enumerate().skip(thread).step_by(threads) {
                let file = open(path)?;
                let from_start = 0;
                // Whole pages, so that `O_DIRECT` needs no bounce buffer.
                let buffer_bytes = file.bytes().next_multiple_of(PAGE_BYTES) as usize;
                let bytes = file.read_at(&mut buffer[..buffer_bytes], from_start)?;
                // A distinct offset per file makes the checksum detect exchanged files.
                let checksum_offset =
                    file_number as u64 * FILE_BYTES_MAX.next_multiple_of(PAGE_BYTES);
                // The first byte of each page, then the file's first and last byte. The last one
                // shows the length.
                sum.add(checksum_offset, &buffer[..bytes]);
                sum.add_ends(checksum_offset, &buffer[..bytes]);
            }
            Ok(sum)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_lengths_are_log_uniform_over_the_whole_range() {
        let lengths: Vec<u64> = lengths(2000).collect();
        assert!(lengths.iter().all(|bytes| (FILE_BYTES_MIN..=FILE_BYTES_MAX).contains(bytes)));
        // Worked by hand: log2(200 / 4) = 5.64 doublings, so 2000 / 5.64 = 354 files in each.
        let first_doubling = lengths.iter().filter(|&&bytes| bytes < 8 << 10).count();
        assert!((300..410).contains(&first_doubling), "{first_doubling} files below 8 KiB");
        let last_doubling = lengths.iter().filter(|&&bytes| bytes >= 100 << 10).count();
        assert!((300..410).contains(&last_doubling), "{last_doubling} files from 100 KiB on");
    }
}
