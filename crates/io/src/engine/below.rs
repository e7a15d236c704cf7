//! What an engine stands on: any number of files of this machine, or one file
//! of a server.

use std::sync::Arc;

use libc::iovec;
use readpath_core::request::{Completion, DeviceRequest};

use crate::backend::{BackendError, BackendInUse};
use crate::nfs::lookup::RegularFile;
use crate::nfs::storage::{NfsShared, NfsStorage};
use crate::storage::{FileStorage, Storage};
use crate::target::{Mode, Target};
use crate::transfers::Progress;

/// What an engine stands on.
pub(crate) enum Below {
    /// Files and block devices of this machine.
    Files(Box<FileStorage>),
    /// A file of an NFS server.
    Server(Box<NfsStorage>),
}

/// A file that is to be opened in an engine; a copy is the same open file.
#[derive(Clone)]
pub(crate) enum Opening {
    /// One of this machine.
    Local(Target),
    /// The server's.
    Server(RegularFile),
}

impl Opening {
    /// Its length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Opening::Local(target) => target.bytes(),
            Opening::Server(found) => found.attributes.bytes,
        }
    }

    /// The way that its bytes take; those of a server pass by this kernel's cache.
    pub(crate) fn mode(&self) -> Mode {
        match self {
            Opening::Local(target) => target.mode(),
            Opening::Server(_) => Mode::Direct,
        }
    }
}

impl Below {
    /// Adds a file; gives its first sector.
    ///
    /// # Panics
    /// The file is of the other kind.
    pub(crate) fn add(&mut self, opening: Opening) -> u64 {
        match (self, opening) {
            (Below::Files(files), Opening::Local(target)) => files.add(target),
            (Below::Server(server), Opening::Server(found)) => server.add(found),
            _ => unreachable!("an engine over a server has no other file"),
        }
    }

    /// Removes the file whose first sector is `start`, none of whose requests is in flight.
    pub(crate) fn remove(&mut self, start: u64) {
        match self {
            Below::Files(files) => files.remove(start),
            Below::Server(server) => server.remove(start),
        }
    }

    /// Who can look for the server's file again; none over files of this machine.
    pub(crate) fn finder(&self) -> Option<Arc<NfsShared>> {
        match self {
            Below::Files(_) => None,
            Below::Server(server) => Some(server.finder()),
        }
    }

    /// What carries the bytes of files of this machine.
    pub(crate) fn backend(&self) -> Option<BackendInUse> {
        match self {
            Below::Files(files) => Some(files.backend()),
            Below::Server(_) => None,
        }
    }

    /// Whether a thread that waits for a request may [carry](Below::progress) it by itself.
    pub(crate) fn lets_carry(&self) -> bool {
        match self {
            Below::Files(files) => files.lets_carry(),
            Below::Server(_) => false,
        }
    }

    /// A request at its begin, to be carried by the caller.
    ///
    /// # Panics
    /// The storage lets nobody carry.
    pub(crate) fn progress(&self, request: DeviceRequest, segments: Vec<iovec>) -> Progress {
        match self {
            Below::Files(files) => files.progress(request, segments),
            Below::Server(_) => unreachable!("a server's answers come to everybody"),
        }
    }

    /// As [`Storage::submit`].
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn submit(&mut self, request: DeviceRequest, memory: &[iovec]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Below::Files(files) => files.submit(request, memory),
                Below::Server(server) => server.submit(request, memory),
            }
        }
    }

    /// As [`Storage::collect`].
    ///
    /// # Errors
    /// As there.
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
