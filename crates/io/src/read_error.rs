//! Errors of reads. The *machine* is the core's state machine of a cache. A *guard* pins a cached
//! page for the program.

use std::io;

use readpath_core::machine;
use readpath_core::request::DeviceError;

use crate::backend::BackendError;
use crate::os::frames::FrameMemoryError;

/// Error of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadError {
    /// The storage failed on requested bytes.
    Device {
        /// Offset of the first byte that could not be read.
        offset: u64,
        /// Error of the storage.
        error: DeviceError,
    },
    /// The file is shorter than at opening.
    Shrunk {
        /// Offset of the first missing byte.
        offset: u64,
    },
    /// One read of a batch is larger than the limit of its path.
    TooLarge {
        /// Requested bytes.
        bytes: u64,
        /// Largest read in bytes, from the start of a page.
        bytes_max: u64,
    },
    /// Guards pin as much memory as allowed.
    TooManyPinned {
        /// Limit in bytes.
        held_bytes_max: u64,
    },
    /// Too many reads are in progress.
    TooManyReads {
        /// Limit of concurrent reads.
        reads_max: u32,
    },
    /// The kernel caches the pages and has failed a read, so the path needs memory of its own. The
    /// system cannot provide it.
    Memory {
        /// Error of the system.
        error: FrameMemoryError,
    },
    /// The storage has failed as a whole.
    Storage {
        /// Error of the backend.
        error: BackendError,
    },
    /// The check for changes of the file ([`Coherence`](crate::Coherence)), by `fstat(2)`, failed.
    Look {
        /// Error of the kernel, as in `errno(3)`.
        errno: i32,
    },
    /// The object was created before a `fork(2)` and cannot be used in the child.
    Forked {
        /// Reason.
        why: Forked,
    },
}

/// Reason why an object created before a `fork(2)` cannot be used in the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forked {
    /// An operation that continues in the parent: a batch, a polled future, a page guard.
    UnderWay,
    /// A file of an NFS server, whose connection belongs to the parent.
    Server,
    /// The child has closed the file descriptor.
    Closed,
    /// The system cannot provide memory for the child.
    Memory(FrameMemoryError),
    /// The kernel provides no I/O backend for the child.
    Backend(BackendError),
}

impl std::fmt::Display for Forked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it was made before a fork, and this is the child: ")?;
        match self {
            Forked::UnderWay => {
                f.write_str("the operation continues in the parent; begin it again here")
            }
            Forked::Server => f.write_str("the connection is the parent's; open the file again"),
            Forked::Closed => f.write_str("the descriptor was closed; open the file again"),
            Forked::Memory(error) => error.fmt(f),
            Forked::Backend(error) => error.fmt(f),
        }
    }
}

impl ReadError {
    /// Converts an error of the core's machine to the public error.
    pub(crate) fn from_machine(error: machine::ReadError) -> ReadError {
        match error {
            machine::ReadError::Device { offset, error } => ReadError::Device { offset, error },
            machine::ReadError::Shrunk { offset } => ReadError::Shrunk { offset },
            machine::ReadError::TooManyReads { open_reads_max } => {
                ReadError::TooManyReads { reads_max: open_reads_max }
            }
            // Other reads are split to fit, so only a batch meets this. Both numbers count whole
            // pages.
            machine::ReadError::NotEnoughMemory { needed_bytes, memory_bytes } => {
                ReadError::TooLarge { bytes: needed_bytes, bytes_max: memory_bytes }
            }
            // The others concern direct transfers, writes and regions, not reads of files.
            other => unreachable!("{other}"),
        }
    }
}

/// Error: the limit of pinned pages is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PinLimitReached {
    /// The limit in bytes.
    pub(crate) pinned_bytes_max: u64,
}

impl From<PinLimitReached> for ReadError {
    /// Reports the limit. The memory that guards pin is called *held* in the public API.
    fn from(PinLimitReached { pinned_bytes_max: held_bytes_max }: PinLimitReached) -> ReadError {
        ReadError::TooManyPinned { held_bytes_max }
    }
}

impl From<ReadError> for io::Error {
    /// Wraps the error, with the kind of `std::io` that comes closest.
    fn from(error: ReadError) -> io::Error {
        let kind = match error {
            ReadError::Shrunk { .. } => io::ErrorKind::UnexpectedEof,
            ReadError::TooLarge { .. } => io::ErrorKind::InvalidInput,
            ReadError::TooManyPinned { .. } | ReadError::TooManyReads { .. } => {
                io::ErrorKind::ResourceBusy
            }
            ReadError::Device { error, .. } => match error {
                DeviceError::Refused => io_error_kind(libc::EACCES),
                DeviceError::Stale => io_error_kind(libc::ESTALE),
                DeviceError::TimedOut => io_error_kind(libc::ETIMEDOUT),
                DeviceError::Garbled => io_error_kind(libc::EBADMSG),
                DeviceError::Full => io_error_kind(libc::ENOSPC),
                DeviceError::Other(errno) => io_error_kind(errno),
                // The other errors of a device have no kind in `std::io`.
                _ => io::ErrorKind::Other,
            },
            ReadError::Look { errno } => io_error_kind(errno),
            ReadError::Memory { .. } => io::ErrorKind::OutOfMemory,
            ReadError::Storage { .. } | ReadError::Forked { .. } => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// Kind of an `errno(3)` number: the standard library's, and for errors of servers that it does not
/// know, the nearest kind.
pub(crate) fn io_error_kind(errno: i32) -> io::ErrorKind {
    match errno {
        libc::EBADMSG => io::ErrorKind::InvalidData,
        libc::EPROTONOSUPPORT => io::ErrorKind::Unsupported,
        // No system call was interrupted: callers that check for `Interrupted` would retry for
        // ever.
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
                "one read of a batch has {bytes} bytes, and the limit of this path is {bytes_max}; \
                 read in smaller pieces, or by `read_at`"
            ),
            ReadError::TooManyPinned { held_bytes_max } => write!(
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
