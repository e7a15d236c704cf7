//! Opening of a file, by one system call where possible.
//!
//! With [`Direct::Late`] the file is opened through the kernel page cache, and with O_DIRECT only
//! at the first transfer that needs it.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FileType, OFlags};

use super::{Direct, OpenError, OpenOptions, check_file_type};

/// A file just opened.
pub(super) struct Opened {
    pub(super) file: File,
    /// True if the file was opened with O_DIRECT.
    pub(super) is_direct: bool,
    /// True if the open has set O_NONBLOCK.
    pub(super) has_nonblock: bool,
}

impl Opened {
    /// Opens the file, with one system call if the options allow it. `creates` is true if a missing
    /// file is created.
    ///
    /// # Errors
    /// The file is no regular file or block device, or the system's error of the open.
    pub(super) fn open(
        path: &Path,
        options: OpenOptions,
        creates: bool,
    ) -> Result<Opened, OpenError> {
        // The caller checks the type of this file, by the attributes of the open file. A failed
        // attempt is repeated below, where its error is found.
        if let Some(file) = try_open_buffered(path, options, creates) {
            return Ok(Opened { file, is_direct: false, has_nonblock: true });
        }
        // Checked before the open, because opening a pipe would wait for its other end.
        match std::fs::metadata(path) {
            Ok(metadata) => {
                check_file_type(path, FileType::from_raw_mode(metadata.mode()))?;
            }
            Err(error) if creates && error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(OpenError::from_io_error(path, &error)),
        }
        let (file, is_direct) = open_file(path, options, creates)?;
        Ok(Opened { file, is_direct, has_nonblock: false })
    }
}

/// Opens a file for reading through the kernel page cache by one system call. `O_NONBLOCK` avoids
/// waiting for the other end of a pipe or for a lease, and `O_NOCTTY` prevents a terminal of this
/// name from becoming the program's. Returns `None` if the options need more (such as `creates`, a
/// missing file to create), or if the open fails.
///
/// `read(2)` of a file waits for its bytes in any case. For io_uring the flag [must be
/// cleared](clear_nonblock).
fn try_open_buffered(path: &Path, options: OpenOptions, creates: bool) -> Option<File> {
    let is_late_read_only = options.direct == Direct::Late && !options.is_writable && !creates;
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let open = || File::options().read(true).custom_flags(flags).open(path).ok();
    is_late_read_only.then(open).flatten()
}

/// Clears the `O_NONBLOCK` of [`try_open_buffered`]: with it, io_uring fails transfers that would
/// have to wait.
pub(crate) fn clear_nonblock(file: &File) -> rustix::io::Result<()> {
    // Clears the other flags that can be set too: the file needs none of them.
    rustix::fs::fcntl_setfl(file, OFlags::empty())
}

/// Opens the file, and creates it if it is missing and `creates` is true. Returns the open file,
/// and true if O_DIRECT was requested and is supported.
fn open_file(path: &Path, options: OpenOptions, creates: bool) -> Result<(File, bool), OpenError> {
    let open = |flags: i32| {
        let mut open = File::options();
        open.read(true).write(options.is_writable).create(creates).custom_flags(flags).open(path)
    };
    let buffered_flags = 0;
    let opened = match options.direct {
        Direct::Never | Direct::Late => open(buffered_flags).map(|file| (file, false)),
        Direct::Preferred | Direct::Required => match open(libc::O_DIRECT) {
            // Error of a file system without direct I/O.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                open(buffered_flags).map(|file| (file, false))
            }
            opened => opened.map(|file| (file, true)),
        },
    };
    opened.map_err(|error| OpenError::from_io_error(path, &error))
}

/// Turns direct I/O off for an open file that cannot use it.
pub(crate) fn clear_direct(file: &File) -> rustix::io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    rustix::fs::fcntl_setfl(file, flags - OFlags::DIRECT)
}
