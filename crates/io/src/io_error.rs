//! Conversions of errors to [`std::io::Error`], so that `?` works in functions that return it.

use std::io::{self, ErrorKind};

use crate::file::open_file::OpenFileError;
use crate::page_cache::OptionError;
use crate::pager::{LoadError, PagerError};
use crate::path::builder::BuildError;
use crate::raw::RawOpenError;
use crate::read_error::{ReadError, io_error_kind};
use crate::target::OpenError;

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> io::Error {
        io::Error::new(OpenFileError::Open(error.clone()).kind(), error)
    }
}

impl From<OptionError> for io::Error {
    fn from(error: OptionError) -> io::Error {
        io::Error::new(ErrorKind::InvalidInput, error)
    }
}

impl From<BuildError> for io::Error {
    fn from(error: BuildError) -> io::Error {
        io::Error::new(OpenFileError::Build(error.clone()).kind(), error)
    }
}

impl From<RawOpenError> for io::Error {
    fn from(error: RawOpenError) -> io::Error {
        let kind = match &error {
            RawOpenError::Open(error) => OpenFileError::Open(error.clone()).kind(),
            RawOpenError::CreateWithoutWrite { .. } | RawOpenError::Policy(_) => {
                ErrorKind::InvalidInput
            }
            RawOpenError::Memory { .. } => ErrorKind::OutOfMemory,
            RawOpenError::Remote { .. } => ErrorKind::Unsupported,
            // As for a file handle that is out of date.
            RawOpenError::Replaced { .. } => io_error_kind(libc::ESTALE),
            RawOpenError::Backend(_) => ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

impl From<PagerError> for io::Error {
    fn from(error: PagerError) -> io::Error {
        let kind = match &error {
            PagerError::Open(error) => OpenFileError::Open(error.clone()).kind(),
            PagerError::Space { error, .. }
            | PagerError::Map { error, .. }
            | PagerError::System(error) => error.kind(),
            PagerError::AddressSpace { .. }
            | PagerError::WritableMemory { .. }
            | PagerError::Metadata { .. }
            | PagerError::Tables { .. } => ErrorKind::OutOfMemory,
            PagerError::Small { .. } => ErrorKind::StorageFull,
            PagerError::NotADevice { .. }
            | PagerError::Policy(_)
            | PagerError::Config(_)
            | PagerError::Swap(_)
            | PagerError::Beyond(_) => ErrorKind::InvalidInput,
            PagerError::Uffd(_) | PagerError::Call(_) => ErrorKind::Unsupported,
            PagerError::Backend(_) => ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

impl From<LoadError> for io::Error {
    fn from(error: LoadError) -> io::Error {
        match error {
            LoadError::PastEnd { .. } => io::Error::new(ErrorKind::UnexpectedEof, error),
            LoadError::Read(error) => ReadError::from_machine(error).into(),
        }
    }
}
