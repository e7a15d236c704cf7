//! Why there is no mapping or region.

use std::fmt;

use readpath_core::machine::{BeyondDevice, ConfigError};

use super::uffd::{CallError, UffdError};
use crate::backend::BackendError;
use crate::target::OpenError;

/// Why there is no mapping or region.
#[derive(Debug)]
#[non_exhaustive]
pub enum PagerError {
    /// The file can't be opened.
    Open(OpenError),
    /// The process has no room for the addresses.
    AddressSpace {
        /// How many were asked for.
        bytes: u64,
        /// The system's answer.
        errno: rustix::io::Errno,
    },
    /// Faults can't be served in user space here.
    Uffd(UffdError),
    /// They can, and a call for it was refused all the same.
    Call(CallError),
    /// The backend isn't to be had here.
    Backend(BackendError),
    /// A law is unknown, or there is no memory for a page.
    Config(ConfigError),
    /// The file is longer than the device below it.
    Beyond(BeyondDevice),
    /// The process has no thread or descriptor left.
    System(std::io::Error),
}

impl fmt::Display for PagerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PagerError::Open(error) => error.fmt(f),
            PagerError::AddressSpace { bytes, errno } => write!(
                f,
                "the process has no room for twice {bytes} bytes of addresses ({errno}); map \
                 less, or raise its limit (`ulimit -v`)"
            ),
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
