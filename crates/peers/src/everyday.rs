//! What programs do with files every day, written once for whatever gives them the bytes.
//!
//! A row of `readpath bench` is one of these families of accesses, over something that
//! [reads at places](ReadAt) or [from a place of its own](SequentialFile): the library, or one of its
//! [peers](Peer). All of them make the same accesses in the same order, and each pass gives a
//! [`Checksum`] over what was read, which must be the same for all.
//!
//! - [`places`]: reads at places: streams, strides, backwards, at random, by many threads;
//! - [`streams`]: `Read` from the start to the end, and `std::io::copy`;
//! - [`whole_files`]: many small files, each opened, read whole and closed;
//! - [`formats`]: a header first, then the ranges that it names;
//! - [`batches`]: many reads at once from one thread.

use std::io::{self, Read, Seek};

pub mod batches;
mod checksum;
mod direct;
pub mod formats;
mod page_buffer;
mod peer;
pub mod places;
pub mod streams;
mod threads;
pub mod whole_files;

pub use checksum::Checksum;
pub use page_buffer::PageBuffer;
pub use peer::{InMemory, Peer};

/// A file that is read at places, by any number of threads.
pub trait ReadAt: Send + Sync {
    /// Its length in bytes.
    fn bytes(&self) -> u64;

    /// Reads bytes from `offset` on into `buffer`; gives how many: fewer than there is room for
    /// only at the end of the file.
    ///
    /// # Errors
    /// What the system answered.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// The `buffer.len()` bytes at `offset`, all in the file: where they lie in memory, or else read
    /// into `buffer`.
    ///
    /// # Errors
    /// As [`read_at`](ReadAt::read_at); and the file ends before.
    fn lend<'a>(&'a self, buffer: &'a mut [u8], offset: u64) -> io::Result<&'a [u8]> {
        match self.read_at(buffer, offset)? == buffer.len() {
            true => Ok(buffer),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// A file that is read from a place of its own.
pub trait SequentialFile: Read + Seek {}

impl<T: Read + Seek> SequentialFile for T {}

/// Accesses that can be made again and again over what they have open.
pub trait Accesses {
    /// Makes all of them once.
    ///
    /// # Errors
    /// One of them failed.
    fn pass(&mut self) -> io::Result<Checksum>;
}
