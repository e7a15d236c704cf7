//! Errors of opening a file on a server.

use std::io;
use std::net::SocketAddr;

use super::rpc::CallError;
use super::status::Status;
use super::url::{NfsUrl, UrlError};
use crate::read_error::io_error_kind;

/// Maximum number of links on the way to one file: Linux's `MAXSYMLINKS`.
pub(crate) const LINKS_MAX: u32 = 40;

/// Number of exports that a message names.
const EXPORTS_NAMED: usize = 20;

/// The RPC program of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NfsStep {
    /// The port mapper.
    PortMapper,
    /// MOUNT.
    Mount,
    /// NFS itself.
    File,
}

/// Error of opening a file on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NfsError {
    /// The text is not a URL of a file.
    Url(UrlError),
    /// The host has no address.
    NoHost {
        /// Name of the host.
        host: String,
        /// Error of its look-up.
        what: String,
    },
    /// No server answers at the address.
    Connect {
        /// Address of the server.
        address: SocketAddr,
        /// Error number of the kernel, as in `errno(3)`.
        errno: i32,
    },
    /// The server's port mapper does not know the program.
    NoService {
        /// Name of the host.
        host: String,
        /// The program.
        step: NfsStep,
    },
    /// A call has no results.
    Call {
        /// Program of the call.
        step: NfsStep,
        /// Reason.
        error: CallError,
    },
    /// The path lies in no directory that the server exports.
    NoExport {
        /// Requested URL.
        url: String,
        /// Exports of the server, with control characters escaped.
        exports: Vec<String>,
    },
    /// The server refuses to mount the export.
    NotMounted {
        /// Name of the export.
        export: String,
        /// Status from the server.
        status: Status,
    },
    /// There is no such file.
    Missing {
        /// Requested URL.
        url: String,
    },
    /// The user may not read the file.
    Refused {
        /// Requested URL.
        url: String,
    },
    /// The path names a directory.
    Directory {
        /// Requested URL.
        url: String,
    },
    /// The path has more symbolic links than are followed.
    LinkLoop {
        /// Requested URL.
        url: String,
    },
    /// A symbolic link of the path leads out of the export.
    Outside {
        /// Requested URL.
        url: String,
        /// Target of the link if it is absolute, with control characters escaped. `..` if a
        /// relative link leaves the export.
        target: String,
    },
    /// The path names neither a regular file nor a directory.
    NotFile {
        /// Requested URL.
        url: String,
    },
    /// The file has more bytes than can be addressed.
    TooLarge {
        /// Requested URL.
        url: String,
        /// Length of the file in bytes, as the server reports it.
        bytes: u64,
        /// Largest supported length in bytes.
        bytes_max: u64,
    },
    /// Any other status of the server.
    Other {
        /// Requested URL.
        url: String,
        /// Status from the server.
        status: Status,
    },
}

impl NfsError {
    /// Creates the error of a failed call to the program `step`.
    pub(crate) fn from_call(step: NfsStep, error: CallError) -> NfsError {
        NfsError::Call { step, error }
    }

    /// Error number of this machine (`errno(3)`) that comes closest to the error.
    pub fn errno(&self) -> i32 {
        match self {
            NfsError::Url(_) | NfsError::NotFile { .. } => libc::EINVAL,
            NfsError::NoHost { .. } => libc::EHOSTUNREACH,
            NfsError::Connect { errno, .. } => *errno,
            NfsError::NoService { .. } => libc::EPROTONOSUPPORT,
            NfsError::Call { error, .. } => error.errno(),
            NfsError::NoExport { .. } | NfsError::Missing { .. } => libc::ENOENT,
            NfsError::NotMounted { status, .. } | NfsError::Other { status, .. } => status.errno(),
            NfsError::Refused { .. } => libc::EACCES,
            NfsError::Directory { .. } => libc::EISDIR,
            NfsError::LinkLoop { .. } => libc::ELOOP,
            NfsError::Outside { .. } => libc::EXDEV,
            NfsError::TooLarge { .. } => libc::EFBIG,
        }
    }

    /// Creates the error for the server's status of the file at `url`, or of a directory on the way
    /// to it.
    pub(crate) fn from_status(url: &NfsUrl, status: Status) -> NfsError {
        let url = url.to_string();
        match status {
            Status::Missing | Status::NotDirectory => NfsError::Missing { url },
            Status::Refused | Status::NotPermitted => NfsError::Refused { url },
            Status::Directory => NfsError::Directory { url },
            // Its text names the status.
            status => NfsError::Other { url, status },
        }
    }
}

impl From<NfsError> for io::Error {
    /// Wraps the error, with the kind of `std::io` for its error number.
    fn from(error: NfsError) -> io::Error {
        io::Error::new(io_error_kind(error.errno()), error)
    }
}

impl From<UrlError> for NfsError {
    fn from(error: UrlError) -> NfsError {
        NfsError::Url(error)
    }
}

impl std::fmt::Display for NfsStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NfsStep::PortMapper => "the port mapper",
            NfsStep::Mount => "MOUNT",
            NfsStep::File => "NFS",
        })
    }
}

impl std::fmt::Display for NfsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NfsError::Url(error) => error.fmt(f),
            NfsError::NoHost { host, what } => {
                write!(f, "host `{host}` can't be found: {what}; check its name")
            }
            NfsError::Connect { address, errno } => {
                let errno_text = io::Error::from_raw_os_error(*errno);
                write!(f, "{address}: {errno_text}; check that an NFS server listens there")
            }
            NfsError::NoService { host, step } => write!(
                f,
                "the port mapper of {host} knows no {step} version 3 over TCP; have the server \
                 serve it, or name its port: nfs://HOST:PORT/…"
            ),
            NfsError::Call { step, error } => write!(f, "{step}: {error}"),
            NfsError::NoExport { url, exports } => {
                let (named, more) = exports.split_at(exports.len().min(EXPORTS_NAMED));
                let named = named.join(", ");
                write!(
                    f,
                    "{url}: lies in no directory that the server exports; it exports {named}"
                )?;
                match more.len() {
                    0 => Ok(()),
                    count => write!(f, " and {count} more"),
                }
            }
            NfsError::NotMounted { export, status } => write!(
                f,
                "export {export}: {status}; check the export's name, and that it is exported to \
                 this host and port"
            ),
            NfsError::Missing { url } => {
                write!(f, "{url}: there is no such file; check the path")
            }
            NfsError::Refused { url } => write!(
                f,
                "{url}: permission refused; name a user who may read it with `uid` and `gid`, or \
                 ask its owner"
            ),
            NfsError::Directory { url } => {
                write!(f, "{url}: is a directory; name a file in it")
            }
            NfsError::LinkLoop { url } => write!(
                f,
                "{url}: leads over more than {LINKS_MAX} symbolic links (ELOOP); look for one that \
                 leads back to itself"
            ),
            NfsError::Outside { url, target } => write!(
                f,
                "{url}: leads over a symbolic link to `{target}`, which lies outside of the export; \
                 name the file by an export that it lies in"
            ),
            NfsError::NotFile { url } => write!(f, "{url}: is no regular file; name one"),
            NfsError::TooLarge { url, bytes, bytes_max } => write!(
                f,
                "{url}: has {bytes} bytes, the server says, and no more than {bytes_max} (4 PiB) \
                 can be addressed; have it served in parts that are files of their own"
            ),
            NfsError::Other { url, status } => write!(f, "{url}: {status}"),
        }
    }
}

impl std::error::Error for NfsError {}
