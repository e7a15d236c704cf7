//! Common file access patterns, written once for every implementation of the reads.
//!
//! A row of `readpath bench` is one of these families of accesses. It uses [positioned
//! reads](ReadAt) or [a file position](SequentialFile) of the library or of one of its
//! [baselines](Baseline). All implementations make the same accesses in the same order. Each pass
//! returns a [`Checksum`] of the bytes read, which must be the same for all.
//!
//! - [`positional_reads`]: reads at offsets: streams, strides, backwards, at random, by many
//!   threads;
//! - [`streams`]: `Read` from the start to the end, and `std::io::copy`;
//! - [`whole_files`]: many small files, each opened, read whole and closed;
//! - [`formats`]: a header first, then the ranges that it names;
//! - [`batches`]: many reads at once from one thread.

use std::io::{self, Read, Seek};

pub mod batches;
mod checksum;
mod direct;
pub mod formats;
mod peer;
pub mod positional_reads;
pub mod streams;
mod threads;
pub mod whole_files;

pub use checksum::Checksum;
pub use peer::{Baseline, MemoryFile};

/// A file for positional reads from any number of threads.
pub trait ReadAt: Send + Sync {
    /// Length in bytes.
    fn bytes(&self) -> u64;

    /// Reads bytes at `offset` into `buffer`. Returns their number, which is less than the buffer's
    /// length only at the end of the file.
    ///
    /// # Errors
    /// Error of the system call.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Returns the `buffer.len()` bytes at `offset`. The slice points to shared memory where
    /// possible, else to `buffer`.
    ///
    /// # Errors
    /// As [`read_at`](ReadAt::read_at), and `UnexpectedEof` when the file is shorter.
    fn borrow_at<'a>(&'a self, buffer: &'a mut [u8], offset: u64) -> io::Result<&'a [u8]> {
        match self.read_at(buffer, offset)? == buffer.len() {
            true => Ok(buffer),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// A file with a position of its own.
pub trait SequentialFile: Read + Seek {}

impl<T: Read + Seek> SequentialFile for T {}

/// Repeatable accesses to open files.
pub trait Accesses {
    /// Performs all accesses once. Returns the checksum of their data.
    ///
    /// # Errors
    /// One access failed.
    fn pass(&mut self) -> io::Result<Checksum>;
}
