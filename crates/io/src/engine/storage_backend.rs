//! The storage backend of an engine: any number of files of this machine, or one file of a server.

use std::sync::Arc;

use libc::iovec;
use readpath_core::request::{Completion, DeviceRequest};

use crate::backend::{BackendError, BackendInUse};
use crate::nfs::lookup::RegularFile;
use crate::nfs::storage::{NfsShared, NfsStorage};
use crate::storage::{FileStorage, Storage};
use crate::target::{Mode, Target};
use crate::transfers::Progress;

pub(crate) enum Below {
    /// Files and block devices of this machine.
    Files(Box<FileStorage>),
    /// A file of an NFS server.
    Server(Box<NfsStorage>),
}

/// A file to open in an engine. A clone is the same open file.
#[derive(Clone)]
pub(crate) enum Opening {
    /// A file of this machine.
    Local(Target),
    /// A file of the server.
    Server(RegularFile),
}

impl Opening {
    /// Length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Opening::Local(target) => target.bytes(),
            Opening::Server(found) => found.attributes.bytes,
        }
    }

    /// I/O mode of the file. The bytes of a server's file bypass this machine's kernel page cache.
    pub(crate) fn mode(&self) -> Mode {
        match self {
            Opening::Local(target) => target.mode(),
            Opening::Server(_) => Mode::Direct,
        }
    }
}

impl Below {
    /// Adds a file and returns its first sector.
    ///
    /// # Panics
    /// The file belongs to the other kind of backend.
    pub(crate) fn add(&mut self, opening: Opening) -> u64 {
        match (self, opening) {
            (Below::Files(files), Opening::Local(target)) => files.add(target),
            (Below::Server(server), Opening::Server(found)) => server.add(found),
            _ => unreachable!("an engine over a server has no other file"),
        }
    }

    /// Removes the file whose first sector is `start`. No request of the file may be in flight.
    pub(crate) fn remove(&mut self, start: u64) {
        match self {
            Below::Files(files) => files.remove(start),
            Below::Server(server) => server.remove(start),
        }
    }

    /// Connection through which the server's file is looked up again; `None` for files of this
    /// machine.
    pub(crate) fn finder(&self) -> Option<Arc<NfsShared>> {
        match self {
            Below::Files(_) => None,
            Below::Server(server) => Some(server.finder()),
        }
    }

    /// I/O backend of the files of this machine; `None` for a server.
    pub(crate) fn backend(&self) -> Option<BackendInUse> {
        match self {
            Below::Files(files) => Some(files.backend()),
            Below::Server(_) => None,
        }
    }

    /// True if a waiting thread may [execute](Below::progress) its own request.
    pub(crate) fn lets_carry(&self) -> bool {
        match self {
            Below::Files(files) => files.lets_carry(),
            Below::Server(_) => false,
        }
    }

    /// Prepares a request that the caller executes itself.
    ///
    /// # Panics
    /// The storage does not permit this.
    pub(crate) fn progress(&self, request: DeviceRequest, segments: Vec<iovec>) -> Progress {
        match self {
            Below::Files(files) => files.progress(request, segments),
            Below::Server(_) => unreachable!("a server's answers come to everybody"),
        }
    }

    /// See [`Storage::submit`].
    ///
    /// # Safety
    /// As for [`Storage::submit`].
    pub(crate) unsafe fn submit(&mut self, request: DeviceRequest, memory: &[iovec]) {
        // SAFETY: the caller guarantees the contract of `submit`.
        unsafe {
            match self {
                Below::Files(files) => files.submit(request, memory),
                Below::Server(server) => server.submit(request, memory),
            }
        }
    }

    /// See [`Storage::collect`].
    ///
    /// # Errors
    /// As for [`Storage::collect`].
    pub(crate) fn collect(
        &mut self,
        completions: &mut Vec<Completion>,
    ) -> Result<bool, BackendError> {
        match self {
            Below::Files(files) => files.collect(completions),
            Below::Server(server) => server.collect(completions),
        }
    }
}
