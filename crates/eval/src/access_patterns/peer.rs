//! Baselines: three ways to read a file without the library.

use std::fs::File;
use std::io::{self, Cursor};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::direct::{DirectFile, DirectStream};
use super::{ReadAt, SequentialFile};
use crate::mapping::PlainMapping;

/// A baseline's way to read. No baseline advises the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Baseline {
    /// `pread(2)`, or `read(2)` for a stream, through the kernel page cache.
    Pread,
    /// A shared mapping of the whole file. Bytes are copied out of it.
    Mmap,
    /// `pread(2)` with `O_DIRECT` into page-aligned memory. Unaligned ranges are extended to whole
    /// pages.
    Direct,
}

impl Baseline {
    /// All baselines.
    pub const ALL: [Baseline; 3] = [Baseline::Pread, Baseline::Mmap, Baseline::Direct];

    /// Name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Baseline::Pread => "pread",
            Baseline::Mmap => "mmap",
            Baseline::Direct => "O_DIRECT",
        }
    }

    /// Opens a file for positional reads.
    ///
    /// # Safety
    /// The file must not change while it is open.
    ///
    /// # Errors
    /// The file cannot be opened in this way, or an empty file was to be mapped.
    pub unsafe fn open(self, path: &Path) -> io::Result<Box<dyn ReadAt>> {
        Ok(match self {
            Baseline::Pread => Box::new(File::open(path)?),
            // SAFETY: guaranteed by the caller.
            Baseline::Mmap => Box::new(MemoryFile(unsafe { Mapped::open(path) }?)),
            Baseline::Direct => Box::new(DirectFile::open(path)?),
        })
    }

    /// Opens a file for sequential reads.
    ///
    /// # Safety
    /// The file must not change while it is open.
    ///
    /// # Errors
    /// As [`open`](Baseline::open).
    pub unsafe fn open_stream(self, path: &Path) -> io::Result<Box<dyn SequentialFile>> {
        Ok(match self {
            Baseline::Pread => Box::new(File::open(path)?),
            // SAFETY: guaranteed by the caller.
            Baseline::Mmap => Box::new(Cursor::new(unsafe { Mapped::open(path) }?)),
            Baseline::Direct => Box::new(DirectStream::over(DirectFile::open(path)?)),
        })
    }
}

impl ReadAt for File {
    /// Size of the file in bytes, or 0 if it is unknown.
    fn bytes(&self) -> u64 {
        self.metadata().map_or(0, |metadata| metadata.len())
    }

    /// Reads with pread(2). Returns the number of bytes.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        // One call is enough: for a regular file it returns all requested bytes up to 2 GiB
        // (read(2)).
        FileExt::read_at(self, buffer, offset)
    }
}

/// A file in memory. Reads copy the bytes, and `borrow_at` returns them in place.
#[derive(Debug)]
pub struct MemoryFile<M>(pub M);

impl<M: AsRef<[u8]> + Send + Sync> ReadAt for MemoryFile<M> {
    /// Length of the file in bytes.
    fn bytes(&self) -> u64 {
        self.0.as_ref().len() as u64
    }

    /// Copies from the mapping. Returns the number of bytes, less at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let memory = self.0.as_ref();
        let rest = &memory[memory.len().min(offset as usize)..];
        let bytes = rest.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&rest[..bytes]);
        Ok(bytes)
    }

    /// Returns the file's bytes at `offset` in place, as many as the buffer has, without using the
    /// buffer.
    fn borrow_at<'a>(&'a self, buffer: &'a mut [u8], offset: u64) -> io::Result<&'a [u8]> {
        let end = offset as usize + buffer.len();
        self.0.as_ref().get(offset as usize..end).ok_or(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Mapping of a file that does not change.
#[derive(Debug)]
struct Mapped(PlainMapping);

impl Mapped {
    /// Maps the file at a path.
    ///
    /// # Safety
    /// The file must not change during the lifetime of the mapping.
    unsafe fn open(path: &Path) -> io::Result<Mapped> {
        let mapping = PlainMapping::of(&File::open(path)?)?;
        mapping.map(Mapped).ok_or_else(|| io::Error::other("an empty file can't be mapped"))
    }
}

impl AsRef<[u8]> for Mapped {
    /// Returns all bytes of the file.
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the caller of `open` guarantees that the file does not change.
        unsafe { self.0.as_slice() }
    }
}
