//! Error statuses of a server: `nfsstat3` (RFC 1813, section 2.6), and `mountstat3`, whose numbers
//! have the same meaning.

use readpath_core::request::DeviceError;

use super::xdr::Garbled;

/// Error status of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Not the owner, or not from this port or host.
    NotPermitted,
    /// There is no such name.
    Missing,
    /// The server's own storage failed.
    Io,
    /// Access is denied to these credentials.
    Refused,
    /// A part of the path is not a directory.
    NotDirectory,
    /// The file is a directory.
    Directory,
    /// The file is gone, or the server has forgotten its handle.
    Stale,
    /// The handle does not belong to this server.
    BadHandle,
    /// The server needs time to provide the bytes; try later.
    Jukebox,
    /// The server does not support the operation.
    Unsupported,
    /// The server has an internal error.
    ServerFault,
    /// Any other status, by its number in RFC 1813.
    Other(u32),
}

impl Status {
    /// Converts a number into a failure; `None` for success. A number outside the standard is
    /// garbled.
    pub(crate) fn failure(status_number: u32) -> Result<Option<Status>, Garbled> {
        Ok(Some(match status_number {
            0 => return Ok(None),
            1 => Status::NotPermitted,
            2 => Status::Missing,
            5 => Status::Io,
            13 => Status::Refused,
            20 => Status::NotDirectory,
            21 => Status::Directory,
            70 => Status::Stale,
            10_001 => Status::BadHandle,
            10_004 => Status::Unsupported,
            10_006 => Status::ServerFault,
            JUKEBOX => Status::Jukebox,
            // The other numbers of the standard, which no caller distinguishes.
            6 | 17..=19 | 22 | 27 | 28 | 30 | 31 | 63 | 66 | 69 | 71 => {
                Status::Other(status_number)
            }
            10_002 | 10_003 | 10_005 | 10_007 => Status::Other(status_number),
            _ => return Err(Garbled),
        }))
    }

    /// Error number of this machine (`errno(3)`) that comes closest to the server's status.
    pub fn errno(self) -> i32 {
        match self {
            Status::NotPermitted => libc::EPERM,
            Status::Missing => libc::ENOENT,
            Status::Io | Status::ServerFault => libc::EIO,
            Status::Refused => libc::EACCES,
            Status::NotDirectory => libc::ENOTDIR,
            Status::Directory => libc::EISDIR,
            Status::Stale | Status::BadHandle => libc::ESTALE,
            Status::Jukebox => libc::ETIMEDOUT,
            Status::Unsupported => libc::EOPNOTSUPP,
            // The first 34 numbers are the same on every Unix. For others, "remote I/O error".
            Status::Other(number) if number <= 34 => number as i32,
            Status::Other(_) => libc::EREMOTEIO,
        }
    }

    /// Device error that a reader receives when the server answers with this status.
    pub(crate) fn device_error(self) -> DeviceError {
        match self {
            Status::Refused => DeviceError::Refused,
            Status::Stale | Status::BadHandle | Status::Missing => DeviceError::Stale,
            Status::Io | Status::ServerFault => DeviceError::Medium,
            // No READ ends with this status: the client repeats it until its time is over, and the
            // call then ends with the same error.
            Status::Jukebox => DeviceError::TimedOut,
            Status::NotPermitted
            | Status::NotDirectory
            | Status::Directory
            | Status::Unsupported
            | Status::Other(_) => DeviceError::Other(self.errno()),
        }
    }
}

/// Number of `NFS3ERR_JUKEBOX`.
pub(crate) const JUKEBOX: u32 = 10_008;

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Status::NotPermitted => "not permitted (NFS3ERR_PERM)",
            Status::Missing => "there is no such file (NFS3ERR_NOENT)",
            Status::Io => "the server's storage failed (NFS3ERR_IO)",
            Status::Refused => "permission refused (NFS3ERR_ACCES)",
            Status::NotDirectory => "is not a directory (NFS3ERR_NOTDIR)",
            Status::Directory => "is a directory (NFS3ERR_ISDIR)",
            Status::Stale => "is not there any more (NFS3ERR_STALE)",
            Status::BadHandle => "has a handle that the server does not know (NFS3ERR_BADHANDLE)",
            Status::Jukebox => "the server is still bringing it in (NFS3ERR_JUKEBOX)",
            Status::Unsupported => "the server does not support this (NFS3ERR_NOTSUPP)",
            Status::ServerFault => "the server has a problem of its own (NFS3ERR_SERVERFAULT)",
            Status::Other(number) => return write!(f, "the server answered with status {number}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the table of RFC 1813, 2.6.
    #[test]
    fn status_numbers_map_to_rfc_names() {
        let names = [
            (1, "NFS3ERR_PERM"),
            (2, "NFS3ERR_NOENT"),
            (5, "NFS3ERR_IO"),
            (13, "NFS3ERR_ACCES"),
            (20, "NFS3ERR_NOTDIR"),
            (21, "NFS3ERR_ISDIR"),
            (70, "NFS3ERR_STALE"),
            (10_001, "NFS3ERR_BADHANDLE"),
            (10_004, "NFS3ERR_NOTSUPP"),
            (10_006, "NFS3ERR_SERVERFAULT"),
            (10_008, "NFS3ERR_JUKEBOX"),
            // Too large, read-only, over quota; a bad cookie.
            (27, "status 27"),
            (30, "status 30"),
            (69, "status 69"),
            (10_003, "status 10003"),
        ];
        for (number, name) in names {
            let status_text =
                Status::failure(number).unwrap().expect("the number is a failure").to_string();
            assert!(status_text.contains(name), "{number}: {status_text}");
        }
        assert_eq!(Status::failure(0), Ok(None));
        for number in [3, 99, 10_000, 10_009] {
            assert_eq!(Status::failure(number), Err(Garbled));
        }
    }
}
