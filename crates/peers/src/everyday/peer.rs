//! The three ways to a file's bytes that a program has without the library.

use std::fs::File;
use std::io::{self, Cursor};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::direct::{DirectFile, DirectStream};
use super::{ReadAt, SequentialFile};
use crate::mapping::PlainMapping;

/// How a peer reads. None of them tells the kernel anything of what it will read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// `pread(2)`, or `read(2)` of a stream, through the kernel's cache.
    Pread,
    /// A shared mapping of the whole file, copied out of.
    Mmap,
    /// `pread(2)` past the kernel's cache, into memory that begins at a page. What doesn't begin and end
    /// at pages is rounded out to them.
    Direct,
}

impl Peer {
    /// All three.
    pub const ALL: [Peer; 3] = [Peer::Pread, Peer::Mmap, Peer::Direct];

    /// Its name, as tables have it.
    pub const fn name(self) -> &'static str {
        match self {
            Peer::Pread => "pread",
            Peer::Mmap => "mmap",
            Peer::Direct => "O_DIRECT",
        }
    }

    /// Opens a file to be read at places.
    ///
    /// # Safety
    /// Nobody changes the file while it is open.
    ///
    /// # Errors
    /// It can't be opened in that way; it is empty, and can't be mapped.
    pub unsafe fn open(self, path: &Path) -> io::Result<Box<dyn ReadAt>> {
        Ok(match self {
            Peer::Pread => Box::new(File::open(path)?),
            // SAFETY: the caller's promise.
            Peer::Mmap => Box::new(InMemory(unsafe { Mapped::of(path) }?)),
            Peer::Direct => Box::new(DirectFile::open(path)?),
        })
    }

    /// Opens a file to be read from a place of its own.
    ///
    /// # Safety
    /// Nobody changes the file while it is open.
    ///
    /// # Errors
    /// As [`open`](Peer::open).
    pub unsafe fn open_stream(self, path: &Path) -> io::Result<Box<dyn SequentialFile>> {
        Ok(match self {
            Peer::Pread => Box::new(File::open(path)?),
            // SAFETY: the caller's promise.
            Peer::Mmap => Box::new(Cursor::new(unsafe { Mapped::of(path) }?)),
            Peer::Direct => Box::new(DirectStream::over(DirectFile::open(path)?)),
        })
    }
}

impl ReadAt for File {
    fn bytes(&self) -> u64 {
        self.metadata().map_or(0, |metadata| metadata.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        // One call: of a regular file it brings all that is asked for, up to 2 GiB (read(2)).
        FileExt::read_at(self, buffer, offset)
    }
}

/// A file whose bytes are memory: read by copying, lent where they lie.
#[derive(Debug)]
pub struct InMemory<M>(pub M);

impl<M: AsRef<[u8]> + Send + Sync> ReadAt for InMemory<M> {
    fn bytes(&self) -> u64 {
        self.0.as_ref().len() as u64
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let memory = self.0.as_ref();
        let from = &memory[memory.len().min(offset as usize)..];
        let bytes = from.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&from[..bytes]);
        Ok(bytes)
    }

    fn lend<'a>(&'a self, buffer: &'a mut [u8], offset: u64) -> io::Result<&'a [u8]> {
        let end = offset as usize + buffer.len();
        self.0.as_ref().get(offset as usize..end).ok_or(io::ErrorKind::UnexpectedEof.into())
    }
}

/// The kernel's mapping of a file that nobody changes.
#[derive(Debug)]
struct Mapped(PlainMapping);

impl Mapped {
    /// # Safety
    /// Nobody changes the file as long as this lives.
    unsafe fn of(path: &Path) -> io::Result<Mapped> {
        let mapping = PlainMapping::of(&File::open(path)?)?;
        mapping.map(Mapped).ok_or_else(|| io::Error::other("an empty file can't be mapped"))
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: nobody changes the file, as was promised at the start.
        unsafe { self.0.as_slice() }
    }
}
