//! A file by its name alone: of this machine, or of an NFS server.

use std::io;
use std::path::Path;
use std::sync::Arc;

use readpath_core::request::DeviceCaps;

use crate::backend::BackendError;
use crate::clock::Clock;
use crate::engine::below::{Below, Opening};
use crate::engine::{Handle, LazyEngine};
use crate::file::File;
use crate::identity::Identity;
use crate::kernel_pages::KernelCache;
use crate::nfs::error::NfsError;
use crate::nfs::lookup::RegularFile;
use crate::nfs::storage::NfsStorage;
use crate::nfs::target::NfsTarget;
use crate::nfs::url::NfsUrl;
use crate::nfs::{Attributes, Connection};
use crate::path::{BuildError, Builder, Coherence, ReadPath};
use crate::read_error::{Forked, kind_of};
use crate::target::OpenError;

impl File {
    /// Opens one file with a read path of its own, whose every knob has its
    /// default: a path of this machine, or `nfs://HOST[:PORT]/EXPORT/PATH`, which
    /// is read from the server, past this machine's kernel and without a mount.
    /// [`ReadPath::open`] has many files share one memory; [`Builder::open`] has knobs.
    ///
    /// ```no_run
    /// let file = readpath::File::open("nfs://server/export/weights.bin?rsize=1048576")?;
    /// let mut buffer = vec![0; 98_304];
    /// file.read_exact_at(&mut buffer, 1 << 30)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub fn open(name: impl AsRef<Path>) -> Result<File, OpenFileError> {
        ReadPath::builder().open(name)
    }

    /// How a server's file is read, and what went over the wire so far; `None` of a file of this
    /// machine, and in a child made by `fork`, which has no connection.
    pub fn connection(&self) -> Option<Connection> {
        let engine = &self.handle().engine;
        let finder = engine.built().and_then(|engine| engine.lock().in_flight.files.finder());
        finder.map(|finder| finder.connection())
    }
}

impl Builder {
    /// Opens one file with a read path like this of its own; a name that begins
    /// with `nfs://` is a file of a server.
    ///
    /// A server's file takes as many requests at once as its `slots`, and no more
    /// than [`depth`](Builder::depth); the backend is not used. Symbolic links are followed within
    /// its export.
    ///
    /// # Errors
    /// The path can't be built, or the file can't be opened.
    pub fn open(self, name: impl AsRef<Path>) -> Result<File, OpenFileError> {
        let name = name.as_ref();
        match name.to_str().filter(|name| NfsUrl::is_meant(name)) {
            Some(url) => self.open_nfs(name, url),
            None => self.build()?.open(name).map_err(OpenFileError::Open),
        }
    }

    fn open_nfs(self, name: &Path, url: &str) -> Result<File, OpenFileError> {
        let url = NfsUrl::parse(url).map_err(NfsError::Url)?;
        let clock = Clock::start();
        let target = NfsTarget::open(&url, clock)?;
        // A file that is found to have changed later has sectors of its own.
        let (found, caps) = (target.found, DeviceCaps { sectors: u64::MAX, ..target.caps() });
        let (storage, sleeper) = NfsStorage::shared(target).map_err(OpenFileError::Backend)?;
        let engine = self.build_over(Below::Server(Box::new(storage)), sleeper, caps, clock)?;
        let engine =
            Arc::new(LazyEngine::new(engine, Coherence::WhenOpened, KernelCache::Unused, None));
        let handle = Handle::open(&engine, Opening::Server(found), identity(&found));
        Ok(File::new(handle, name.into()))
    }
}

/// The server's file of a handle, looked for again by its name; `None` for a file of this machine.
/// Reads of other threads go on meanwhile.
///
/// # Errors
/// It can't be found any more; or this is a child, and the connection is its parent's.
pub(crate) fn find_again(handle: &Handle) -> Result<Option<Handle>, OpenFileError> {
    let Opening::Server(_) = handle.file.opening else { return Ok(None) };
    let engine = &handle.engine;
    if !engine.is_ours() {
        return Err(OpenFileError::Forked { why: Forked::Server });
    }
    let finder =
        engine.lock().in_flight.files.finder().expect("the engine of a server's file has one");
    let found = finder.find_again()?;
    Ok(Some(Handle::open(engine, Opening::Server(found), identity(&found))))
}

/// What must be the same for a server's file to be served from what is cached of it.
fn identity(found: &RegularFile) -> Identity {
    let Attributes { fsid, fileid, bytes, modified, changed, .. } = found.attributes;
    let time = |(seconds, nanoseconds): (u32, u32)| (seconds.into(), nanoseconds.into());
    Identity {
        device: fsid,
        inode: fileid,
        bytes,
        modified: time(modified),
        changed: time(changed),
        unsettled: 0,
    }
}

/// Why a file can't be opened by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenFileError {
    /// Its read path can't be built.
    Build(BuildError),
    /// It can't be opened on this machine.
    Open(OpenError),
    /// It can't be opened on its server.
    Nfs(NfsError),
    /// The kernel gives nothing to sleep on.
    Backend(BackendError),
    /// This is a child made by `fork`, and the file is its parent's.
    Forked {
        /// Why it does not go on here, and what to do.
        why: Forked,
    },
}

impl OpenFileError {
    /// The kind of error that it is to `std::io`: of a server's file as of one here.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            OpenFileError::Build(_) => io::ErrorKind::InvalidInput,
            OpenFileError::Open(OpenError::Missing { .. }) => io::ErrorKind::NotFound,
            OpenFileError::Open(OpenError::Refused { .. }) => io::ErrorKind::PermissionDenied,
            OpenFileError::Open(OpenError::Directory { .. }) => io::ErrorKind::IsADirectory,
            OpenFileError::Open(OpenError::Other { errno, .. }) => kind_of(*errno),
            OpenFileError::Open(_) => io::ErrorKind::InvalidInput,
            OpenFileError::Nfs(error) => kind_of(error.errno()),
            OpenFileError::Backend(_) | OpenFileError::Forked { .. } => io::ErrorKind::Other,
        }
    }
}

impl From<OpenFileError> for io::Error {
    fn from(error: OpenFileError) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}

impl From<BuildError> for OpenFileError {
    fn from(error: BuildError) -> OpenFileError {
        OpenFileError::Build(error)
    }
}

impl From<NfsError> for OpenFileError {
    fn from(error: NfsError) -> OpenFileError {
        OpenFileError::Nfs(error)
    }
}

impl std::fmt::Display for OpenFileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OpenFileError::Build(error) => error.fmt(f),
            OpenFileError::Open(error) => error.fmt(f),
            OpenFileError::Nfs(error) => error.fmt(f),
            OpenFileError::Backend(error) => error.fmt(f),
            OpenFileError::Forked { why } => why.fmt(f),
        }
    }
}

impl std::error::Error for OpenFileError {}
