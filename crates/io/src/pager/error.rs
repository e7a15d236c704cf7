//! Why there is no mapping or region.

use std::fmt;
use std::path::PathBuf;

use readpath_core::machine::{BeyondDevice, ConfigError, SwapError};
use readpath_core::policy::SpecError;

use super::uffd::{CallError, UffdError};
use crate::backend::BackendError;
use crate::target::OpenError;

/// Why there is no mapping or region.
#[derive(Debug)]
#[non_exhaustive]
pub enum PagerError {
    /// The file can't be opened.
    Open(OpenError),
    /// The storage of a region can't be had.
    Space {
        /// The folder or device.
        path: PathBuf,
        /// How much was asked for.
        bytes: u64,
        /// The system's answer.
        error: std::io::Error,
    },
    /// A region overwrites what it lies on, and this is no block device.
    NotADevice {
        /// What was named as one.
        path: PathBuf,
    },
    /// The device is smaller than the region.
    Small {
        /// The device.
        path: PathBuf,
        /// How long it is.
        bytes: u64,
        /// How long it must be.
        needed_bytes: u64,
    },
    /// The process has no room for the addresses.
    AddressSpace {
        /// How many were asked for.
        bytes: u64,
        /// The system's answer, as in `errno(3)`.
        errno: i32,
    },
    /// A law is not of the form `NAME,key=value,…`.
    Policy(SpecError),
    /// Faults can't be served in user space here.
    Uffd(UffdError),
    /// They can, and a call for it was refused all the same.
    Call(CallError),
    /// The backend isn't to be had here.
    Backend(BackendError),
    /// A law is unknown, or there is no memory for a page.
    Config(ConfigError),
    /// The swap-in law is unknown, or the region has too many pages.
    Swap(SwapError),
    /// The file is longer than the device below it.
    Beyond(BeyondDevice),
    /// The process has no thread or descriptor left.
    System(std::io::Error),
}

impl fmt::Display for PagerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PagerError::Open(error) => error.fmt(f),
            // What mmap(2) answers where all future memory is locked, and the limit of that is met.
            PagerError::AddressSpace { bytes, errno: libc::EAGAIN } => write!(
                f,
                "the process locks all its memory (`mlockall`) and may not lock twice {bytes} \
                 bytes of addresses more; raise its limit (`ulimit -l`), or lock what it needs \
                 alone"
            ),
            PagerError::AddressSpace { bytes, errno } => write!(
                f,
                "the process has no room for twice {bytes} bytes of addresses ({}); map \
                 less, or raise its limit (`ulimit -v`)",
                std::io::Error::from_raw_os_error(*errno)
            ),
            PagerError::Space { path, bytes, error } => {
                let next = match error.raw_os_error() {
                    Some(libc::ENOSPC | libc::EDQUOT) => "free some, or name another folder",
                    Some(libc::EOPNOTSUPP | libc::EISDIR) => {
                        "its file system has no files without a name (O_TMPFILE) or can't reserve \
                         space; name a folder on another, such as ext4, xfs or btrfs"
                    }
                    Some(libc::EFBIG) => "raise the limit on the size of files (`ulimit -f`)",
                    Some(libc::EBUSY) => "it is mounted or in use; name a device that is free",
                    _ => "name a folder or device that this user may write to",
                };
                write!(f, "{}: {bytes} bytes for a region: {error}; {next}", path.display())
            }
            PagerError::NotADevice { path } => write!(
                f,
                "{} is no block device, and a region would overwrite it; name a device that is \
                 free, or a folder, where the region makes a file of its own",
                path.display()
            ),
            PagerError::Small { path, bytes, needed_bytes } => write!(
                f,
                "{} has {bytes} bytes, and the region needs {needed_bytes}; name a larger device",
                path.display()
            ),
            PagerError::Policy(error) => error.fmt(f),
            PagerError::Swap(error) => error.fmt(f),
            PagerError::Uffd(error) => error.fmt(f),
            PagerError::Call(error) => error.fmt(f),
            PagerError::Backend(error) => error.fmt(f),
            PagerError::Config(error) => error.fmt(f),
            PagerError::Beyond(error) => error.fmt(f),
            PagerError::System(error) => write!(
                f,
                "the pager's thread can't be started ({error}); raise the process's limit of \
                 threads or descriptors (`ulimit -u`, `ulimit -n`)"
            ),
        }
    }
}

impl std::error::Error for PagerError {}
