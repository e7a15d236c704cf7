//! Errors of the creation of a mapping or region.

use std::fmt;
use std::path::PathBuf;

use readpath_core::machine::{BeyondDevice, ConfigError, SwapError};
use readpath_core::policy::SpecError;

use super::uffd::{CallError, UffdError};
use crate::backend::BackendError;
use crate::target::OpenError;

/// Error of the creation of a mapping or region.
#[derive(Debug)]
#[non_exhaustive]
pub enum PagerError {
    /// The file cannot be opened.
    Open(OpenError),
    /// The storage of a region is not available.
    Space {
        /// Folder or device.
        path: PathBuf,
        /// Requested size in bytes.
        bytes: u64,
        /// Error of the system.
        error: std::io::Error,
    },
    /// The path is not a block device. A region would overwrite the file.
    NotADevice {
        /// Path of the file.
        path: PathBuf,
    },
    /// The device is smaller than the region.
    Small {
        /// Path of the device.
        path: PathBuf,
        /// Size of the device in bytes.
        bytes: u64,
        /// Required size in bytes.
        needed_bytes: u64,
    },
    /// The address space of the process is exhausted. A mapping reserves its length twice: for the
    /// program, and for the memory that the device fills. A region reserves its length, and its
    /// memory.
    AddressSpace {
        /// Size of all requested addresses in bytes.
        bytes: u64,
        /// Error number of the system, as in `errno(3)`.
        errno: i32,
    },
    /// The process or the system limits the writable memory. It counts also where no page of it is
    /// in memory.
    WritableMemory {
        /// Requested size in bytes.
        bytes: u64,
        /// Error number of the system, as in `errno(3)`.
        errno: i32,
    },
    /// The system does not provide the memory for the tables of a region.
    Tables {
        /// Length of the region in bytes.
        bytes: u64,
        /// Size of its tables in bytes.
        table_bytes: u64,
        /// Error number of the system, as in `errno(3)`.
        errno: i32,
    },
    /// The system does not provide the memory for the metadata of the pages in memory.
    Metadata {
        /// Requested memory for pages in bytes.
        bytes: u64,
        /// Error number of the system, as in `errno(3)`.
        errno: i32,
    },
    /// The kernel cannot map a file that no server serves.
    Map {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        error: std::io::Error,
    },
    /// A policy does not have the form `NAME,key=value,…`.
    Policy(SpecError),
    /// Faults cannot be served in user space on this system.
    Uffd(UffdError),
    /// A call on an open userfaultfd failed.
    Call(CallError),
    /// The I/O backend is not available on this system.
    Backend(BackendError),
    /// A policy is unknown, or the memory is too small for a page.
    Config(ConfigError),
    /// The swap-in policy is unknown, or the region has too many pages.
    Swap(SwapError),
    /// The file is longer than the device below it.
    Beyond(BeyondDevice),
    /// The process has reached its limit of threads or descriptors.
    System(std::io::Error),
}

impl fmt::Display for PagerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PagerError::Open(error) => error.fmt(f),
            // mmap(2) returns EAGAIN if all future memory is locked and the limit of locked memory
            // is reached.
            PagerError::AddressSpace { bytes, errno: libc::EAGAIN } => write!(
                f,
                "the process locks all its memory (`mlockall`) and may not lock {bytes} bytes of \
                 addresses more; raise its limit (`ulimit -l`), or lock what it needs alone"
            ),
            PagerError::AddressSpace { bytes, errno } => write!(
                f,
                "the process has no room for {bytes} bytes of addresses ({}); map less, or raise \
                 its limit (`ulimit -v`)",
                std::io::Error::from_raw_os_error(*errno)
            ),
            PagerError::WritableMemory { bytes, errno } => write!(
                f,
                "the process may not have {bytes} bytes of writable memory more ({}); ask for \
                 less, raise its limit (`ulimit -d`), or set vm.overcommit_memory to 0",
                std::io::Error::from_raw_os_error(*errno)
            ),
            PagerError::Tables { bytes, table_bytes, errno } => write!(
                f,
                "the tables of a region of {bytes} bytes need {table_bytes} bytes of memory ({}); \
                 make the region shorter, or raise the process's limit if it has one (`ulimit -d`)",
                std::io::Error::from_raw_os_error(*errno)
            ),
            PagerError::Metadata { bytes, errno } => write!(
                f,
                "the tables of {bytes} bytes of memory for pages find no memory ({}); ask for less \
                 memory, or raise the process's limit if it has one (`ulimit -d`)",
                std::io::Error::from_raw_os_error(*errno)
            ),
            PagerError::Map { path, error } => write!(
                f,
                "{}: the kernel can't map the file ({error}); read it through a `ReadPath`, which \
                 needs no mapping",
                path.display()
            ),
            PagerError::Space { path, bytes, error } => {
                let next = space_remedy(error);
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

/// Next step after an error of the file system or device for a region.
fn space_remedy(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => "free some, or name another folder",
        Some(libc::EOPNOTSUPP | libc::EISDIR) => {
            "its file system has no files without a name (O_TMPFILE) or can't reserve space; \
             name a folder on another, such as ext4, xfs or btrfs"
        }
        // EFBIG is a limit of the process or of the file system. fallocate(2) answers EINVAL to a
        // length of 2^63 or more.
        Some(libc::EFBIG | libc::EINVAL) => {
            "make the region smaller, or raise the process's limit on the size of files if it \
             has one (`ulimit -f`)"
        }
        Some(libc::ENOENT | libc::ENOTDIR) => {
            "check the path, or name a folder or device that exists"
        }
        Some(libc::EBUSY) => "it is mounted or in use; name a device that is free",
        _ => "name a folder or device that this user may write to",
    }
}

impl std::error::Error for PagerError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Meanings of the numbers from open(2) and fallocate(2).
    #[test]
    fn space_remedy_is_one_that_helps_against_the_error() {
        for (errno, remedy) in [
            (libc::ENOSPC, "free some"),
            (libc::EDQUOT, "free some"),
            (libc::EFBIG, "make the region smaller"),
            (libc::EINVAL, "make the region smaller"),
            (libc::EFBIG, "ulimit -f"),
            (libc::ENOENT, "that exists"),
            (libc::ENOTDIR, "that exists"),
            (libc::EOPNOTSUPP, "on another"),
            (libc::EBUSY, "that is free"),
            (libc::EACCES, "may write to"),
        ] {
            let text = space_remedy(&std::io::Error::from_raw_os_error(errno));
            assert!(text.contains(remedy), "{errno}: {text}");
        }
    }
}
