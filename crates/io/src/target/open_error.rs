//! Errors of opening a file.

use std::path::{Path, PathBuf};

use super::{BufferedBecause, Mode};
use crate::backend::BackendError;
use crate::os::frames::FrameMemoryError;
use crate::read_error::{Forked, ReadError};

/// Error of opening a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// No file has this name.
    Missing {
        /// Given path.
        path: PathBuf,
    },
    /// It is a directory.
    Directory {
        /// Given path.
        path: PathBuf,
    },
    /// The program has no permission to open it this way.
    Refused {
        /// Given path.
        path: PathBuf,
    },
    /// It is neither a regular file nor a block device.
    NotStorage {
        /// Given path.
        path: PathBuf,
    },
    /// The kernel generates its bytes at each read (proc, sysfs and others), so there is no data to
    /// cache.
    Generated {
        /// Given path.
        path: PathBuf,
    },
    /// It is empty.
    Empty {
        /// Given path.
        path: PathBuf,
    },
    /// It is too large to be addressed.
    TooLarge {
        /// Given path.
        path: PathBuf,
        /// Length in bytes.
        bytes: u64,
        /// Largest supported length in bytes.
        bytes_max: u64,
    },
    /// Direct I/O is required and not available.
    NoDirect {
        /// Given path.
        path: PathBuf,
        /// Reason.
        why: BufferedBecause,
    },
    /// Any other error.
    Other {
        /// Given path.
        path: PathBuf,
        /// Error of the kernel, as in `errno(3)`.
        errno: i32,
    },
}

impl OpenError {
    /// Converts a system error for `path`.
    pub(crate) fn from_io_error(path: &Path, error: &std::io::Error) -> OpenError {
        let path = path.to_path_buf();
        // The standard library refuses a NUL byte without a call of the kernel.
        match error.raw_os_error().unwrap_or(libc::EINVAL) {
            libc::ENOENT => OpenError::Missing { path },
            libc::EACCES => OpenError::Refused { path },
            libc::EISDIR => OpenError::Directory { path },
            errno => OpenError::Other { path, errno },
        }
    }
}

impl OpenError {
    /// Error in a child made by `fork` that cannot have an engine, with the system's error number
    /// if there is one.
    pub(crate) fn from_fork(path: &Path, why: Forked) -> OpenError {
        OpenError::from_build_error(
            path,
            match why {
                Forked::Memory(error) => ReadError::Memory { error },
                Forked::Backend(error) => ReadError::Storage { error },
                why => ReadError::Forked { why },
            },
        )
    }

    /// Error if the engine that would read the file cannot be built. It has the error number of the
    /// system for the memory, the ring, AIO or the eventfd. Any other reason becomes `EOPNOTSUPP`.
    pub(crate) fn from_build_error(path: &Path, why: ReadError) -> OpenError {
        let errno = match why {
            ReadError::Memory { error: FrameMemoryError::Memory { errno, .. } } => errno,
            ReadError::Storage {
                error:
                    BackendError::NoRing { errno }
                    | BackendError::NoAio { errno }
                    | BackendError::NoEventFd { errno },
            } => errno,
            _ => libc::EOPNOTSUPP,
        };
        OpenError::Other { path: path.to_path_buf(), errno }
    }
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OpenError::Missing { path } if path.as_os_str().is_empty() => {
                f.write_str("the name is empty; give the path of a file")
            }
            OpenError::Missing { path } if is_url(path) => write!(
                f,
                "{}: there is no such file, and a read path opens local files alone; open a URL \
                 by `File::open`",
                path.display()
            ),
            OpenError::Missing { path } => {
                write!(f, "{}: there is no such file; check the path, or make it", path.display())
            }
            OpenError::Other { path, errno: libc::ENOTDIR } => {
                write!(f, "{}: its folder is no directory; check the path", path.display())
            }
            OpenError::Other { path, errno: libc::EINVAL } if has_nul(path) => {
                write!(f, "{:?}: the name has a NUL byte; check the path", path.display())
            }
            OpenError::Directory { path } => {
                write!(f, "{}: is a directory; name a file or a block device in it", path.display())
            }
            OpenError::Refused { path } => write!(
                f,
                "{}: permission refused; ask its owner, or run as a user who may open it",
                path.display()
            ),
            OpenError::NotStorage { path } => write!(
                f,
                "{}: is neither a regular file nor a block device; name one of these",
                path.display()
            ),
            OpenError::Generated { path } => write!(
                f,
                "{}: is made by the kernel as it is read, and can't be cached; read it with std::fs",
                path.display()
            ),
            OpenError::Empty { path } => {
                write!(f, "{}: is empty; write the data to be read into it first", path.display())
            }
            OpenError::TooLarge { path, bytes, bytes_max } => write!(
                f,
                "{}: has {bytes} bytes, and no more than {bytes_max} (4 PiB) can be addressed; \
                 read it with std::fs, or in parts that are files of their own",
                path.display()
            ),
            OpenError::NoDirect { path, why } => write!(
                f,
                "{}: no direct I/O: {}; allow buffered I/O, or use another file system",
                path.display(),
                Mode::Buffered(*why)
            ),
            OpenError::Other { path, errno } => {
                let error = std::io::Error::from_raw_os_error(*errno);
                write!(f, "{}: can't be opened: {error}", path.display())?;
                match *errno {
                    libc::EROFS => f.write_str("; remount it for writing, or name another place"),
                    // Root gets EPERM too: open(2) for immutable files, cgroups(7) for devices.
                    libc::EPERM => f.write_str(
                        "; root may be refused too: see whether the file is immutable \
                         (lsattr), and which devices and calls a container allows",
                    ),
                    libc::EMFILE => f.write_str("; close files, or raise the limit (ulimit -n)"),
                    libc::ENFILE => f.write_str("; raise the limit of all processes (fs.file-max)"),
                    libc::ENAMETOOLONG => {
                        f.write_str("; shorten the path, or a name in it of more than 255 bytes")
                    }
                    libc::ELOOP => {
                        f.write_str("; use a path with fewer symbolic links, without a cycle")
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

impl std::error::Error for OpenError {}

/// True for a name that begins as a URL does: a scheme, a colon and two slashes.
fn is_url(name: &Path) -> bool {
    let scheme = name.to_str().and_then(|name| name.split_once("://")).map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        scheme.starts_with(|first: char| first.is_ascii_alphabetic()) && scheme.bytes().all(is_part)
    })
}

/// True if no file can have this name because of a NUL byte in it.
fn has_nul(name: &Path) -> bool {
    name.as_os_str().as_encoded_bytes().contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EPERM is 1 and EACCES 13 in errno(3). Only for EACCES another user may open the file.
    #[test]
    fn forbidden_file_keeps_its_number_and_has_another_remedy_than_a_refused_one() {
        let path = Path::new("/dev/vda");
        let error_of =
            |errno| OpenError::from_io_error(path, &std::io::Error::from_raw_os_error(errno));
        assert_eq!(error_of(1), OpenError::Other { path: path.to_path_buf(), errno: 1 });
        assert!(error_of(1).to_string().contains("container"), "{}", error_of(1));
        assert_eq!(error_of(13), OpenError::Refused { path: path.to_path_buf() });
        let kind = |errno| crate::OpenFileError::Open(error_of(errno)).kind();
        assert_eq!([kind(1), kind(13)], [std::io::ErrorKind::PermissionDenied; 2]);
    }
}
