//! Conversion of errors to Python's built-in exceptions.
//!
//! Each cause has one class: OSError if the system or the storage refuses, ValueError for an
//! invalid request.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use readpath::nfs::NfsError;
use readpath::pager::PagerError;
use readpath::{BackendError, BuildError, FrameMemoryError, OpenError, OpenFileError, ReadError};
use readpath_core::request::DeviceError;

use crate::spec::refused;

/// Reason of a failed read.
pub enum Failure {
    /// The file is closed.
    Closed,
    /// The read path reports an error.
    Read(ReadError),
    /// The read path reports an error about the object of a URL.
    Url {
        /// The error.
        error: ReadError,
        /// Text of the last error of a request to the server, if there was one.
        cause: Option<String>,
        /// The URL without credentials.
        url: String,
    },
    /// A child of `fork` has found another file at the name of its parent's file.
    Replaced {
        /// Path, or the URL without credentials.
        name: OsString,
    },
    /// A system call failed.
    System(io::Error),
    /// A signal handler has raised this exception.
    Signal(PyErr),
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Failure {
        Failure::Read(error)
    }
}

impl From<io::Error> for Failure {
    /// Takes the [`ReadError`] out of the error, if it contains one.
    fn from(error: io::Error) -> Failure {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<ReadError>()) {
            Some(error) => Failure::Read(*error),
            None => Failure::System(error),
        }
    }
}

impl From<Failure> for PyErr {
    /// Raises ValueError for a closed file, like Python's own files. A read error becomes an
    /// OSError, whose class Python selects by the error number.
    fn from(failure: Failure) -> PyErr {
        match failure {
            Failure::Closed => PyValueError::new_err("I/O operation on closed file."),
            Failure::Replaced { name } => {
                let text = "the file was replaced after this process was forked, and before its \
                            first read; open it again, or call revalidate()";
                PyOSError::new_err((ESTALE, text, name))
            }
            Failure::System(error) => error.into(),
            Failure::Signal(error) => error,
            Failure::Read(error) => PyOSError::new_err((read_errno(&error), error.to_string())),
            Failure::Url { error, cause, url } => {
                let text = match error {
                    ReadError::Device { error: DeviceError::Stale, .. } => {
                        "the object has changed in its storage, or is gone; open it again, or call \
                         revalidate()"
                            .to_owned()
                    }
                    // The cause says if the server was not reached, or has answered wrongly.
                    ReadError::Device { offset, error: DeviceError::Medium } => {
                        format!("the request for byte {offset} of the object failed")
                    }
                    error => error.to_string(),
                };
                let cause = cause.map_or(String::new(), |cause| format!("; {cause}"));
                PyOSError::new_err((read_errno(&error), format!("{text}{cause}"), url))
            }
        }
    }
}

impl Failure {
    /// The exception. The one of a read error has the name of the file that was read as its
    /// filename. Other failures have a name of their own, or none.
    pub fn of_file(self, name: Py<PyAny>) -> PyErr {
        match self {
            Failure::Read(error) => {
                PyOSError::new_err((read_errno(&error), error.to_string(), name))
            }
            other => other.into(),
        }
    }
}

/// Error number of the system for a failed read.
fn read_errno(error: &ReadError) -> i32 {
    match *error {
        ReadError::Device { error, .. } => match error {
            DeviceError::Gone => 19,       // ENODEV
            DeviceError::Full => 28,       // ENOSPC
            DeviceError::Cancelled => 125, // ECANCELED
            DeviceError::Refused => 13,    // EACCES
            DeviceError::Stale => ESTALE,
            DeviceError::TimedOut => 110, // ETIMEDOUT
            DeviceError::Garbled => 74,   // EBADMSG
            DeviceError::Other(errno) => errno,
            _ => EIO,
        },
        ReadError::Shrunk { .. } => ESTALE,
        ReadError::TooManyReads { .. } => EAGAIN,
        ReadError::TooManyPinned { .. } => 16, // EBUSY
        ReadError::TooLarge { .. } => 22,      // EINVAL
        _ => EIO,
    }
}

/// Exception for a name that cannot be opened: a local one or a URL.
pub fn open_error(error: &OpenFileError, name: &Path) -> PyErr {
    match error {
        OpenFileError::Open(error) => local_open_error(error),
        OpenFileError::Nfs(error) => nfs_open_error(error, name),
        OpenFileError::Build(error) => build_error(error),
        OpenFileError::Backend(error) => backend_error(error),
        OpenFileError::Forked { .. } => PyOSError::new_err((EIO, error.to_string())),
        _ => PyOSError::new_err((EIO, error.to_string())),
    }
}

/// Exception for a read path that cannot be built: OSError if memory or the backend is not
/// available, ValueError for an unusable option.
pub fn build_error(error: &BuildError) -> PyErr {
    match error {
        BuildError::Backend(error) => backend_error(error),
        BuildError::Memory(FrameMemoryError::Memory { errno, .. }) => {
            PyOSError::new_err((*errno, error.to_string()))
        }
        _ => refused(error),
    }
}

/// Exception for an unavailable backend. Only an unusable depth is a ValueError.
fn backend_error(error: &BackendError) -> PyErr {
    let errno = match *error {
        BackendError::Depth { .. } => return refused(error),
        BackendError::OldRing => ENOSYS,
        BackendError::AioShare { .. } => EAGAIN,
        BackendError::NoRing { errno }
        | BackendError::NoAio { errno }
        | BackendError::NoEventFd { errno }
        | BackendError::Exchange { errno } => errno,
    };
    PyOSError::new_err((errno, error.to_string()))
}

/// Exception for paged memory that cannot be created. If the folder or file is the reason, the
/// OSError has its path as the filename, and the message no longer begins with it. Without a number
/// of the system, such an error gets EINVAL, and `System` gets EIO. Other errors have a number of
/// their own, or are a ValueError.
pub fn pager_error(error: &PagerError) -> PyErr {
    let errno = match error {
        PagerError::Open(error) => return local_open_error(error),
        PagerError::Backend(error) => return backend_error(error),
        PagerError::Policy(_) | PagerError::Config(_) | PagerError::Swap(_) => {
            return refused(error);
        }
        PagerError::Space { error: system_error, path, .. }
        | PagerError::Map { error: system_error, path } => {
            let text = error.to_string();
            let words =
                text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text).to_owned();
            // The standard library refuses a NUL byte in a name without a call of the kernel.
            let errno = system_error.raw_os_error().unwrap_or(EINVAL);
            return PyOSError::new_err((errno, words, path.clone().into_os_string()));
        }
        PagerError::System(error) => error.raw_os_error(),
        PagerError::AddressSpace { errno, .. }
        | PagerError::WritableMemory { errno, .. }
        | PagerError::Metadata { errno, .. }
        | PagerError::Tables { errno, .. } => Some(*errno),
        PagerError::Small { .. } => Some(28),      // ENOSPC
        PagerError::NotADevice { .. } => Some(15), // ENOTBLK
        _ => Some(ENOSYS),                         // Faults can't be served here.
    };
    PyOSError::new_err((errno.unwrap_or(EIO), error.to_string()))
}

const EIO: i32 = 5;
const EINVAL: i32 = 22;
const ENOSYS: i32 = 38;
const EAGAIN: i32 = 11;
/// Error number of a file that has become shorter, from Linux.
pub const ESTALE: i32 = 116;

/// Exception for a local name that cannot be opened. Python selects the class by the number. The
/// path becomes the filename of the exception, and the message no longer begins with it.
pub fn local_open_error(error: &OpenError) -> PyErr {
    let (errno, path) = match error {
        OpenError::Missing { path } => (2, path),    // ENOENT
        OpenError::Directory { path } => (21, path), // EISDIR
        OpenError::Refused { path } => (13, path),   // EACCES
        OpenError::Other { path, errno } => (*errno, path),
        OpenError::TooLarge { path, .. } => (27, path), // EFBIG
        // EINVAL: neither a file nor a block device, or not usable in this way.
        OpenError::NotStorage { path }
        | OpenError::Empty { path }
        | OpenError::Generated { path }
        | OpenError::NoDirect { path, .. } => (22, path),
    };
    let text = error.to_string();
    let words = text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text);
    // Replaces names of Rust by names of Python.
    let words =
        words.replace("std::fs", "the built-in open").replace("`File::open`", "`readpath.open`");
    PyOSError::new_err((errno, words, path.clone().into_os_string()))
}

/// Exception for a server's file that cannot be opened. The URL becomes the filename of the
/// exception, as the path of a local file does. `name`: the URL, which an error of the connection
/// does not contain.
fn nfs_open_error(error: &NfsError, name: &Path) -> PyErr {
    let text = error.to_string();
    // The name that the message begins with: a URL, an export or an address.
    let (errno, url) = (
        error.errno(),
        match error {
            NfsError::Url(_) => return refused(text),
            NfsError::Missing { url }
            | NfsError::NoExport { url, .. }
            | NfsError::Refused { url }
            | NfsError::Directory { url }
            | NfsError::LinkLoop { url }
            | NfsError::Outside { url, .. }
            | NfsError::NotFile { url }
            | NfsError::TooLarge { url, .. }
            | NfsError::Other { url, .. } => url.clone(),
            NfsError::NotMounted { export, .. } => export.clone(),
            NfsError::Connect { address, .. } => address.to_string(),
            NfsError::NoHost { .. } | NfsError::NoService { .. } | NfsError::Call { .. } => {
                return PyOSError::new_err((error.errno(), text, name.as_os_str().to_owned()));
            }
        },
    );
    let words = text.strip_prefix(&format!("{url}: ")).unwrap_or(&text).to_owned();
    PyOSError::new_err((errno, words, url))
}
