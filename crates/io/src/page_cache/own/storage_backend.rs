//! The storage backend of an engine: any number of files of this machine, or one file of a server
//! or of a source. (A *source* is a file that the program itself provides.) Each file has a range
//! of sector numbers of its own, by which requests name it.

use std::sync::Arc;

use libc::iovec;
use readpath_core::request::{Completion, DeviceRequest};

use crate::backend::{BackendError, BackendInUse};
use crate::nfs::lookup::FoundFile;
use crate::nfs::storage::{NfsShared, NfsStorage};
use crate::source::direct::SourceFile;
use crate::source::storage::SourceStorage;
use crate::storage::{FileStorage, Storage};
use crate::target::{Mode, Target};
use crate::transfers::TransferProgress;

/// Executes the requests of an engine.
pub(crate) enum StorageBackend {
    /// Files and block devices of this machine.
    Files(Box<FileStorage>),
    /// A file of an NFS server.
    Server(Box<NfsStorage>),
    /// The file of a source.
    Source(Box<SourceStorage>),
}

/// A file to open in an engine. A clone is the same open file.
#[derive(Clone)]
pub(crate) enum StorageFile {
    /// A file of this machine.
    Local(Target),
    /// A file of the server.
    Server(FoundFile),
    /// The file of the source.
    Source(Arc<SourceFile>),
}

impl StorageFile {
    /// Length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            StorageFile::Local(target) => target.bytes(),
            StorageFile::Server(found) => found.attributes.bytes,
            StorageFile::Source(file) => file.bytes(),
        }
    }

    /// File of this machine; `None` for another one.
    pub(crate) fn local(&self) -> Option<&Target> {
        match self {
            StorageFile::Local(target) => Some(target),
            StorageFile::Server(_) | StorageFile::Source(_) => None,
        }
    }

    /// The file of a source, which has one version; `None` for another one.
    pub(crate) fn source(&self) -> Option<&SourceFile> {
        match self {
            StorageFile::Source(file) => Some(file),
            StorageFile::Local(_) | StorageFile::Server(_) => None,
        }
    }

    /// True for a source that has all its bytes in memory.
    pub(crate) fn has_all_bytes(&self) -> bool {
        self.source().is_some_and(|file| file.all_bytes().is_some())
    }

    /// I/O mode of the file. Only files of this machine can use its kernel page cache.
    pub(crate) fn mode(&self) -> Mode {
        match self {
            StorageFile::Local(target) => target.mode(),
            StorageFile::Server(_) | StorageFile::Source(_) => Mode::Direct,
        }
    }
}

impl StorageBackend {
    /// Adds a file and returns its first sector, by which requests address it: all files of a
    /// storage share one range of sector numbers.
    ///
    /// # Panics
    /// The file belongs to another kind of backend.
    pub(crate) fn add(&mut self, file: StorageFile) -> u64 {
        match (self, file) {
            (StorageBackend::Files(files), StorageFile::Local(target)) => files.add(target),
            (StorageBackend::Server(server), StorageFile::Server(found)) => server.add(found),
            // The only file of its engine begins at sector 0.
            (StorageBackend::Source(_), StorageFile::Source(_)) => 0,
            _ => unreachable!("an engine has only files of its own kind of backend"),
        }
    }

    /// Removes the file whose first sector is `start_sector`. No request of the file may be in
    /// flight.
    pub(crate) fn remove(&mut self, start_sector: u64) {
        match self {
            StorageBackend::Files(files) => files.remove(start_sector),
            StorageBackend::Server(server) => server.remove(start_sector),
            // The source ends with its engine.
            StorageBackend::Source(_) => {}
        }
    }

    /// Connection through which the server's file is looked up again; `None` for other files.
    pub(crate) fn nfs_lookup(&self) -> Option<Arc<NfsShared>> {
        match self {
            StorageBackend::Files(_) | StorageBackend::Source(_) => None,
            StorageBackend::Server(server) => Some(server.shared_state()),
        }
    }

    /// I/O backend of the files of this machine; `None` for other files.
    pub(crate) fn backend(&self) -> Option<BackendInUse> {
        match self {
            StorageBackend::Files(files) => Some(files.backend()),
            StorageBackend::Server(_) | StorageBackend::Source(_) => None,
        }
    }

    /// True if a waiting thread may [execute](StorageBackend::inline_transfer) its own request.
    pub(crate) fn can_execute_inline(&self) -> bool {
        match self {
            StorageBackend::Files(files) => files.can_execute_inline(),
            StorageBackend::Server(_) | StorageBackend::Source(_) => false,
        }
    }

    /// Prepares a request that the caller executes itself, without the lock. No completion comes
    /// from the storage for it. `segments` is its memory, in the order of the bytes.
    ///
    /// # Panics
    /// The storage does not permit this.
    pub(crate) fn inline_transfer(
        &self,
        request: DeviceRequest,
        segments: Vec<iovec>,
    ) -> TransferProgress {
        match self {
            StorageBackend::Files(files) => files.inline_transfer(request, segments),
            StorageBackend::Server(_) | StorageBackend::Source(_) => {
                // `can_execute_inline` is false for these.
                unreachable!("these answers arrive on any thread")
            }
        }
    }

    /// Accepts a request: see [`Storage::submit`]. It starts at the latest with the next sleep.
    ///
    /// # Safety
    /// `memory` has as many bytes as the request, in order. They are valid until its completion is
    /// collected or the storage is dropped. Until then no other code uses them.
    pub(crate) unsafe fn submit(&mut self, request: DeviceRequest, memory: &[iovec]) {
        // SAFETY: the caller guarantees the contract of `submit`.
        unsafe {
            match self {
                StorageBackend::Files(files) => files.submit(request, memory),
                StorageBackend::Server(server) => server.submit(request, memory),
                StorageBackend::Source(source) => source.submit(request, memory),
            }
        }
    }

    /// Adds the available completions to `completions` without sleeping: see [`Storage::collect`].
    /// Returns true if requests were queued again, which the caller must then submit.
    ///
    /// # Errors
    /// The storage has failed as a whole.
    pub(crate) fn collect(
        &mut self,
        completions: &mut Vec<Completion>,
    ) -> Result<bool, BackendError> {
        match self {
            StorageBackend::Files(files) => files.collect(completions),
            StorageBackend::Server(server) => server.collect(completions),
            StorageBackend::Source(source) => source.collect(completions),
        }
    }
}
