//! What can go wrong when a file is read.

use std::io;

use readpath_core::machine;
use readpath_core::request::DeviceError;

use crate::backend::BackendError;
use crate::engine::frame_cache::HeldMax;
use crate::frames::FrameMemoryError;

/// Why bytes could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadError {
    /// The storage failed on bytes that were needed.
    Device {
        /// The first byte of the file that could not be read.
        offset: u64,
        /// What the storage said.
        error: DeviceError,
    },
    /// The file has become shorter than it was when it was opened.
    Shrunk {
        /// The first byte that is no longer there.
        offset: u64,
    },
    /// One read of a batch asks for more than there is memory for at once.
    TooLarge {
        /// How many bytes were asked for.
        bytes: u64,
        /// How many a read may ask for, from the start of a page.
        bytes_max: u64,
    },
    /// As much is held by guards as may be.
    HeldMax {
        /// How many bytes that is.
        held_bytes_max: u64,
    },
    /// Too many reads are under way.
    TooManyReads {
        /// How many there may be.
        reads_max: u32,
    },
    /// The path takes memory of its own only now that the kernel, which keeps the pages, has failed a read; and the system has no
    /// room for it.
    Memory {
        /// Why not.
        error: FrameMemoryError,
    },
    /// The storage carries nothing any more.
    Storage {
        /// Why.
        error: BackendError,
    },
    /// The path looks whether the file has changed ([`Coherence`](crate::Coherence)), and can't.
    Look {
        /// The kernel's answer, as in `errno(3)`.
        errno: i32,
    },
    /// It was made before a `fork(2)`, and can't be used in the child.
    Forked {
        /// Why not.
        why: Forked,
    },
}

/// Why something that was made before a `fork(2)` can't be used in the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forked {
    /// It is in the middle of something that goes on in the parent: a batch, a future that was
    /// polled, a page guard.
    UnderWay,
    /// It is a file of a server, whose connection is the parent's.
    Server,
    /// The child has closed the descriptor of the file.
    Closed,
    /// The system has no room for a memory of the child's own.
    Memory(FrameMemoryError),
    /// The kernel gives nothing that would carry the child's reads.
    Backend(BackendError),
}

impl std::fmt::Display for Forked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it was made before a fork, and this is the child: ")?;
        match self {
            Forked::UnderWay => f.write_str("what was begun goes on in the parent; begin it anew"),
            Forked::Server => f.write_str("the connection is the parent's; open the file again"),
            Forked::Closed => f.write_str("the descriptor was closed; open the file again"),
            Forked::Memory(error) => error.fmt(f),
            Forked::Backend(error) => error.fmt(f),
        }
    }
}

impl ReadError {
    /// What the machine's error is to a program.
    pub(crate) fn of(error: machine::ReadError) -> ReadError {
        match error {
            machine::ReadError::Device { offset, error } => ReadError::Device { offset, error },
            machine::ReadError::Shrunk { offset } => ReadError::Shrunk { offset },
            machine::ReadError::TooManyReads { open_reads_max } => {
                ReadError::TooManyReads { reads_max: open_reads_max }
            }
            machine::ReadError::NotEnoughMemory { needed_bytes, memory_bytes } => {
                ReadError::TooLarge { bytes: needed_bytes, bytes_max: memory_bytes }
            }
            // Direct transfers and writes are not made here.
            other => unreachable!("{other}"),
        }
    }
}

impl From<HeldMax> for ReadError {
    fn from(HeldMax { held_bytes_max }: HeldMax) -> ReadError {
        ReadError::HeldMax { held_bytes_max }
    }
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> io::Error {
        let kind = match error {
            ReadError::Shrunk { .. } => io::ErrorKind::UnexpectedEof,
            ReadError::TooLarge { .. } => io::ErrorKind::InvalidInput,
            ReadError::HeldMax { .. } | ReadError::TooManyReads { .. } => {
                io::ErrorKind::ResourceBusy
            }
            ReadError::Device { error, .. } => match error {
                DeviceError::Refused => kind_of(libc::EACCES),
                DeviceError::Stale => kind_of(libc::ESTALE),
                DeviceError::TimedOut => kind_of(libc::ETIMEDOUT),
                DeviceError::Garbled => kind_of(libc::EBADMSG),
                DeviceError::Full => kind_of(libc::ENOSPC),
                DeviceError::Other(errno) => kind_of(errno),
                _ => io::ErrorKind::Other,
            },
            ReadError::Look { errno } => kind_of(errno),
            ReadError::Memory { .. } => io::ErrorKind::OutOfMemory,
            ReadError::Storage { .. } | ReadError::Forked { .. } => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// The kind of error that a number of `errno(3)` stands for: the standard library's, and
/// where that has none, the one that says the same of what a server answers.
pub(crate) fn kind_of(errno: i32) -> io::ErrorKind {
    match errno {
        libc::EBADMSG => io::ErrorKind::InvalidData,
        libc::EPROTONOSUPPORT => io::ErrorKind::Unsupported,
        // No call was interrupted: who looks for that would try again for ever.
        libc::EIO | libc::EREMOTEIO | libc::ECANCELED | libc::EINTR => io::ErrorKind::Other,
        errno => io::Error::from_raw_os_error(errno).kind(),
    }
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ReadError::Device { offset, error } => {
                write!(f, "at byte {offset} of the file: {error}")
            }
            ReadError::Shrunk { offset } => write!(
                f,
                "the file ends at or before byte {offset}: it has become shorter since it was \
                 opened; open it again, or revalidate it"
            ),
            ReadError::TooLarge { bytes, bytes_max } => write!(
                f,
                "one read of {bytes} bytes, and there is memory for {bytes_max}; give the path \
                 more memory, or read in smaller pieces"
            ),
            ReadError::HeldMax { held_bytes_max } => write!(
                f,
                "guards hold {held_bytes_max} bytes, the limit; drop some, or raise `held_memory`"
            ),
            ReadError::TooManyReads { reads_max } => {
                write!(f, "{reads_max} reads are under way, the limit; wait for some to end")
            }
            ReadError::Memory { error } => error.fmt(f),
            ReadError::Storage { error } => error.fmt(f),
            ReadError::Look { errno } => write!(
                f,
                "the file can't be looked at: {}; see whether its file system is there",
                io::Error::from_raw_os_error(*errno)
            ),
            ReadError::Forked { why } => why.fmt(f),
        }
    }
}

impl std::error::Error for ReadError {}
