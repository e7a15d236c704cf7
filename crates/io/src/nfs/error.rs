//! Why a file on a server can't be opened.

use std::io;
use std::net::SocketAddr;

use super::lookup::LINKS_MAX;
use super::rpc::CallError;
use super::status::Status;
use super::url::{NfsUrl, UrlError};
use crate::read_error::kind_of;

/// Number of exports that a message names.
const EXPORTS_NAMED: usize = 20;

/// The program that was being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NfsStep {
    /// The port mapper.
    PortMapper,
    /// MOUNT.
    Mount,
    /// NFS itself.
    File,
}

/// Why a file on a server can't be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NfsError {
    /// It is no URL of a file.
    Url(UrlError),
    /// The host has no address.
    NoHost {
        /// The host.
        host: String,
        /// What its look-up said.
        what: String,
    },
    /// Nobody answers there.
    Connect {
        /// Where.
        address: SocketAddr,
        /// The kernel's answer, as in `errno(3)`.
        errno: i32,
    },
    /// The server's port mapper knows no such program.
    NoService {
        /// The host.
        host: String,
        /// The program.
        step: NfsStep,
    },
    /// A call got no results.
    Call {
        /// Of which program.
        step: NfsStep,
        /// Why.
        error: CallError,
    },
    /// The path lies in no directory that the server exports.
    NoExport {
        /// What was asked for.
        url: String,
        /// What there is; control characters as escapes.
        exports: Vec<String>,
    },
    /// The server does not let the export be mounted.
    NotMounted {
        /// The export.
        export: String,
        /// What it says.
        status: Status,
    },
    /// There is no such file.
    Missing {
        /// What was asked for.
        url: String,
    },
    /// The user may not read it.
    Refused {
        /// What was asked for.
        url: String,
    },
    /// It is a directory.
    Directory {
        /// What was asked for.
        url: String,
    },
    /// More symbolic links lead to it than are followed.
    LinkLoop {
        /// What was asked for.
        url: String,
    },
    /// A symbolic link on the way leads out of the export.
    Outside {
        /// What was asked for.
        url: String,
        /// What the link holds, from where it leads out; control characters as escapes.
        target: String,
    },
    /// It is neither a regular file nor a directory.
    NotFile {
        /// What was asked for.
        url: String,
    },
    /// It has more bytes than can be addressed.
    TooLarge {
        /// What was asked for.
        url: String,
        /// Its length, as the server tells it.
        bytes: u64,
        /// The most that there may be.
        bytes_max: u64,
    },
    /// The server says anything else.
    Other {
        /// What was asked for.
        url: String,
        /// What it says.
        status: Status,
    },
}

impl NfsError {
    /// A call of this program got no results.
    pub(crate) fn call(step: NfsStep, error: CallError) -> NfsError {
        NfsError::Call { step, error }
    }

    /// As this machine numbers it (`errno(3)`).
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

    /// What the server said of the file, or of a directory on the way to it.
    pub(crate) fn of_file(url: &NfsUrl, status: Status) -> NfsError {
        let url = url.to_string();
        match status {
            Status::Missing | Status::NotDirectory => NfsError::Missing { url },
            Status::Refused | Status::NotPermitted => NfsError::Refused { url },
            Status::Directory => NfsError::Directory { url },
            status => NfsError::Other { url, status },
        }
    }
}

impl From<NfsError> for io::Error {
    fn from(error: NfsError) -> io::Error {
        io::Error::new(kind_of(error.errno()), error)
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
                let told = io::Error::from_raw_os_error(*errno);
                write!(f, "{address}: {told}; check that an NFS server listens there")
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
