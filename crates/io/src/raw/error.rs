//! Errors of raw files: opening and transfers.

use std::io;
use std::path::PathBuf;

use readpath_core::policy::SpecError;
use readpath_core::request::{DeviceError, Op};
use rustix::process::{Resource, getrlimit};

use crate::backend::BackendError;
use crate::os::frames::FrameMemoryError;
use crate::read_error::Forked;
use crate::target::{OpenError, Target};

/// Error of opening a raw file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawOpenError {
    /// The file cannot be opened this way.
    Open(OpenError),
    /// The file is to be created, but not to be written.
    CreateWithoutWrite {
        /// Path of the file.
        path: PathBuf,
    },
    /// The policy, its chunk size or its depth is not valid.
    Policy(SpecError),
    /// Memory for the ring's buffers is short.
    Memory {
        /// Size of all buffers together in bytes.
        bytes: usize,
        /// Error of the system.
        error: FrameMemoryError,
    },
    /// The backend is not available here.
    Backend(BackendError),
    /// The file is on an NFS server or of a source, which have no raw access.
    Remote {
        /// Address of the file.
        path: PathBuf,
    },
    /// Another file now has the name of the file that the read path has open.
    Replaced {
        /// The name.
        path: PathBuf,
    },
}

impl std::fmt::Display for RawOpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RawOpenError::Open(error) => error.fmt(f),
            RawOpenError::CreateWithoutWrite { path } => write!(
                f,
                "{}: a file is created only to be written; open it with `write` too, or without \
                 `create`",
                path.display()
            ),
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

/// Error of a transfer or another call on a raw file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawError {
    /// Path of the file.
    pub path: PathBuf,
    /// The fault.
    pub fault: RawFault,
}

/// Fault of a call on a raw file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawFault {
    /// The device failed.
    Device {
        /// Operation of the failed request. A write also reads its edge blocks.
        op: Op,
        /// First byte that was not moved.
        offset: u64,
        /// Number of requested bytes before it that were moved. Always 0 for a transfer of a batch,
        /// which counts as a whole.
        bytes_done: u64,
        /// Error of the device.
        error: DeviceError,
    },
    /// The file ended before [`read_exact_at`](super::RawFile::read_exact_at) was complete.
    EndOfFile {
        /// End of the file.
        offset: u64,
        /// Number of requested bytes before it that were read.
        bytes_done: u64,
    },
    /// The kernel accepts no more bytes and reports no error.
    Stalled {
        /// First byte that was not written.
        offset: u64,
        /// Number of requested bytes before it that were written.
        bytes_done: u64,
    },
    /// The write would exceed the block device. No bytes were written.
    PastEnd {
        /// Length of the device.
        device_bytes: u64,
    },
    /// The range exceeds the largest offset (2⁶³ − 1).
    Range {
        /// Start of the range.
        offset: u64,
    },
    /// An offset or length in a batch is not a multiple of the file's alignment.
    Misaligned {
        /// The offset or length in bytes.
        value: u64,
        /// The alignment in bytes.
        alignment_bytes: u32,
    },
    /// The write contains only a part of a block that a batch is writing. No bytes were written.
    BatchInFlight {
        /// Offset of the block.
        offset: u64,
    },
    /// The file was not opened for writing.
    ReadOnly,
    /// The length of the file cannot be read, or cannot be restored after a write whose last block
    /// exceeds it.
    Length {
        /// Error of the kernel, as in `errno(3)`.
        errno: i32,
    },
    /// The sync failed. Data written since the last success may be lost, and another sync cannot
    /// restore it.
    Sync {
        /// Error of the device.
        error: DeviceError,
    },
    /// The kernel rejected the submission to the backend.
    Backend(BackendError),
    /// The object was created before a `fork(2)` and cannot be used in the child.
    Forked(Forked),
}

impl std::fmt::Display for RawError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.fault)
    }
}

impl RawFault {
    /// Returns the fault of a call whose earlier parts have moved `bytes_before` bytes. `self` is
    /// the fault of its last part alone.
    pub(super) fn after(mut self, bytes_before: u64) -> RawFault {
        if let RawFault::Device { bytes_done, .. } = &mut self {
            *bytes_done += bytes_before;
        }
        self
    }
}

impl std::fmt::Display for RawFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            RawFault::Device { op, offset, bytes_done, error } => {
                let what = if op == Op::Read { "reading" } else { "writing" };
                write!(f, "{what} at byte {offset}, after {bytes_done} bytes: {error}; ")?;
                f.write_str(remedy(error))
            }
            RawFault::EndOfFile { offset, bytes_done } => write!(
                f,
                "the file ends at byte {offset}, after {bytes_done} of the requested bytes; \
                 request fewer, or use read_at"
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
            RawFault::BatchInFlight { offset } => write!(
                f,
                "the block at byte {offset} is written in part, and a batch's write to it is in \
                 flight; take that from the batch first, or write whole blocks"
            ),
            RawFault::ReadOnly => f.write_str("was opened for reading alone; open it with `write`"),
            RawFault::Length { errno } => write!(
                f,
                "its length cannot be read or set: {}; check the file system",
                io::Error::from_raw_os_error(errno)
            ),
            RawFault::Sync { error } => write!(
                f,
                "the sync failed: {error}; data written since the last successful sync may be lost; \
                 write it again"
            ),
            RawFault::Backend(error) => error.fmt(f),
            RawFault::Forked(why) => why.fmt(f),
        }
    }
}

/// Error of a write to `target` whose blocks end at `end`. The kernel cuts a write at the limit on
/// file sizes of the process. It rejects an unaligned rest with EINVAL in place of EFBIG
/// (generic_write_checks in fs/read_write.c). The limit is for regular files.
pub(super) fn write_error(error: DeviceError, end: u64, target: &Target) -> DeviceError {
    let limit = getrlimit(Resource::Fsize).current;
    let exceeds_limit = limit.is_some_and(|limit| end > limit) && !target.is_block_device();
    match error {
        DeviceError::Other(libc::EINVAL) if exceeds_limit => DeviceError::Other(libc::EFBIG),
        error => error,
    }
}

/// Next step after an error of a device.
fn remedy(error: DeviceError) -> &'static str {
    match error {
        DeviceError::Medium => "look into the kernel's log for the device",
        DeviceError::Gone => "see whether it is still attached",
        DeviceError::Full => "make room, or write less",
        DeviceError::Refused => "open it as a user who may",
        DeviceError::Other(libc::EPERM) => {
            "the system forbids it to every user here (a seal, a container, an immutable file)"
        }
        DeviceError::Other(libc::EINVAL) => {
            "it needs another alignment than it reported: open it buffered"
        }
        DeviceError::Other(libc::EROFS) => {
            "its file system is read-only: look into the kernel's log, and remount it"
        }
        DeviceError::Other(libc::EFBIG) => "the file may not grow so large here (ulimit -f)",
        // No special remedy is known.
        _ => "the bytes before it are transferred; try the rest again",
    }
}

impl std::error::Error for RawError {}

impl From<RawError> for io::Error {
    /// Wraps the error, with the kind of `std::io` that comes closest.
    fn from(error: RawError) -> io::Error {
        let kind = match error.fault {
            RawFault::EndOfFile { .. } => io::ErrorKind::UnexpectedEof,
            RawFault::Stalled { .. } => io::ErrorKind::WriteZero,
            RawFault::PastEnd { .. } | RawFault::Device { error: DeviceError::Full, .. } => {
                io::ErrorKind::StorageFull
            }
            RawFault::Range { .. } | RawFault::Misaligned { .. } => io::ErrorKind::InvalidInput,
            RawFault::Device { error: DeviceError::Other(libc::EROFS), .. } => {
                io::ErrorKind::ReadOnlyFilesystem
            }
            RawFault::BatchInFlight { .. } => io::ErrorKind::ResourceBusy,
            RawFault::ReadOnly
            | RawFault::Device {
                error: DeviceError::Refused | DeviceError::Other(libc::EPERM),
                ..
            } => io::ErrorKind::PermissionDenied,
            // The others have no closer kind.
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
