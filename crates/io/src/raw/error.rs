//! What can go wrong with a raw file: opening it, and moving its bytes.

use std::io;
use std::path::PathBuf;

use readpath_core::policy::SpecError;
use readpath_core::request::{DeviceError, Op};

use crate::backend::BackendError;
use crate::frames::FrameMemoryError;
use crate::read_error::Forked;
use crate::target::OpenError;

/// Why a raw file could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawOpenError {
    /// The file can't be opened so.
    Open(OpenError),
    /// The law, its chunk or its depth can't be used.
    Policy(SpecError),
    /// There is no memory for the ring's buffers.
    Memory {
        /// Bytes for all buffers together.
        bytes: usize,
        /// What the system said.
        error: FrameMemoryError,
    },
    /// The backend isn't to be had here.
    Backend(BackendError),
    /// The file is a server's, which has no raw way.
    Remote {
        /// Its address.
        path: PathBuf,
    },
    /// Another file has the name now of the one that a read path has open.
    Replaced {
        /// The name.
        path: PathBuf,
    },
}

impl std::fmt::Display for RawOpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RawOpenError::Open(error) => error.fmt(f),
            RawOpenError::Policy(error) => error.fmt(f),
            RawOpenError::Memory { bytes, .. } => write!(
                f,
                "the system has no room for {bytes} bytes of buffers; take a smaller chunk, or \
                 less depth"
            ),
            RawOpenError::Backend(error) => error.fmt(f),
            RawOpenError::Remote { path } => write!(
                f,
                "{}: only files and devices of this machine are written raw; mount it",
                path.display()
            ),
            RawOpenError::Replaced { path } => write!(
                f,
                "{}: another file has this name now; open or revalidate the cached one first",
                path.display()
            ),
        }
    }
}

impl std::error::Error for RawOpenError {}

/// Why a transfer, or another call on a raw file, failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawError {
    /// Which file.
    pub path: PathBuf,
    /// What happened.
    pub fault: RawFault,
}

/// What happened to a call on a raw file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawFault {
    /// The device failed.
    Device {
        /// What it was to do: a write at its edges also reads.
        op: Op,
        /// The first byte that was not moved.
        offset: u64,
        /// How many bytes before it were moved, of those asked for.
        bytes_done: u64,
        /// What it said.
        error: DeviceError,
    },
    /// The file ended before all of [`read_exact_at`](super::RawFile::read_exact_at) was read.
    EndOfFile {
        /// The end of the file.
        offset: u64,
        /// How many bytes before it were read, of those asked for.
        bytes_done: u64,
    },
    /// The kernel takes no more bytes, and says nothing of why.
    Stalled {
        /// The first byte that was not written.
        offset: u64,
        /// How many bytes before it were written, of those asked for.
        bytes_done: u64,
    },
    /// A write would reach past the end of a block device. Nothing was written.
    PastEnd {
        /// The length of the device.
        device_bytes: u64,
    },
    /// The range reaches past the largest offset that there is (2⁶³ − 1).
    Range {
        /// Where it begins.
        offset: u64,
    },
    /// A place or a length is no whole multiple of the file's alignment, as a batch asks.
    Misaligned {
        /// The offset or the length, in bytes.
        value: u64,
        /// The alignment, in bytes.
        alignment_bytes: u32,
    },
    /// The file was not opened for writing.
    ReadOnly,
    /// The length of the file could not be learned, or not be set back after a
    /// write whose last block reaches past it.
    Length {
        /// The kernel's answer, as in `errno(3)`.
        errno: i32,
    },
    /// What was written could not be made to last. Some of what was written since
    /// the last success may be lost, and asking again can't bring it back.
    Sync {
        /// What the device said.
        error: DeviceError,
    },
    /// The kernel refused the exchange over the ring.
    Backend(BackendError),
    /// It was made before a `fork(2)`, and can't be used in the child.
    Forked(Forked),
}

impl std::fmt::Display for RawError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.fault)
    }
}

impl std::fmt::Display for RawFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            RawFault::Device { op, offset, bytes_done, error } => {
                let what = if op == Op::Read { "reading" } else { "writing" };
                write!(f, "{what} at byte {offset}, after {bytes_done} bytes: {error}; ")?;
                f.write_str(match error {
                    DeviceError::Medium => "look into the kernel's log for the device",
                    DeviceError::Gone => "see whether it is still attached",
                    DeviceError::Full => "make room, or write less",
                    DeviceError::Refused => "open it as a user who may",
                    DeviceError::Other(libc::EINVAL) => {
                        "it asks for another alignment than it told: open it buffered"
                    }
                    DeviceError::Other(libc::EFBIG) => {
                        "the file may not grow so large here (ulimit -f)"
                    }
                    _ => "what comes before was moved, and the rest may be tried again",
                })
            }
            RawFault::EndOfFile { offset, bytes_done } => write!(
                f,
                "the file ends at byte {offset}, after {bytes_done} bytes of what was asked; ask \
                 for less, or use read_at"
            ),
            RawFault::Stalled { offset, bytes_done } => write!(
                f,
                "nothing more was written from byte {offset} on, after {bytes_done} bytes; see \
                 whether there is room"
            ),
            RawFault::PastEnd { device_bytes } => write!(
                f,
                "the device ends at byte {device_bytes}; nothing was written: write less, or before \
                 that"
            ),
            RawFault::Range { offset } => write!(
                f,
                "a range from byte {offset} on that reaches past the largest offset; ask for less"
            ),
            RawFault::Misaligned { value, alignment_bytes } => write!(
                f,
                "{value} is no whole multiple of {alignment_bytes} bytes, as a batch asks of places \
                 and lengths; align it, or use read_at and write_at"
            ),
            RawFault::ReadOnly => f.write_str("was opened for reading alone; open it with `write`"),
            RawFault::Length { errno } => write!(
                f,
                "its length can't be told or set: {}; check the file system",
                io::Error::from_raw_os_error(errno)
            ),
            RawFault::Sync { error } => write!(
                f,
                "can't be made to last: {error}; what was written since the last success may be \
                 lost: write it again"
            ),
            RawFault::Backend(error) => error.fmt(f),
            RawFault::Forked(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for RawError {}

impl From<RawError> for io::Error {
    fn from(error: RawError) -> io::Error {
        let kind = match error.fault {
            RawFault::EndOfFile { .. } => io::ErrorKind::UnexpectedEof,
            RawFault::Stalled { .. } => io::ErrorKind::WriteZero,
            RawFault::PastEnd { .. } | RawFault::Device { error: DeviceError::Full, .. } => {
                io::ErrorKind::StorageFull
            }
            RawFault::Range { .. } | RawFault::Misaligned { .. } => io::ErrorKind::InvalidInput,
            RawFault::ReadOnly | RawFault::Device { error: DeviceError::Refused, .. } => {
                io::ErrorKind::PermissionDenied
            }
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
