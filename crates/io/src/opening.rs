//! A file by its name alone: of this machine, or of an NFS server.

use std::path::Path;
use std::sync::Arc;

use readpath_core::unit::PAGE_BYTES;

use crate::backend::BackendError;
use crate::clock::Clock;
use crate::engine::below::{Below, Opening};
use crate::engine::{Handle, Owner};
use crate::file::File;
use crate::identity::Identity;
use crate::nfs::error::NfsError;
use crate::nfs::storage::NfsStorage;
use crate::nfs::target::NfsTarget;
use crate::nfs::url::NfsUrl;
use crate::path::{BuildError, Builder, Coherence, ReadPath};
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
}

impl Builder {
    /// Opens one file with a read path like this of its own; a name that begins
    /// with `nfs://` is a file of a server.
    ///
    /// A server's file takes as many requests at once as its `slots`, and no more
    /// than [`depth`](Builder::depth); the backend is not used. It can't be
    /// [revalidated](File::revalidate): open it again.
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
        let (bytes, caps, modified) = (target.bytes(), target.caps(), target.modified());
        let (storage, sleeper) = NfsStorage::shared(target).map_err(OpenFileError::Backend)?;
        let engine = self.build_over(Below::Server(Box::new(storage)), sleeper, caps, clock)?;
        let engine = Arc::new(Owner::new(engine, Coherence::WhenOpened, None));
        let identity =
            Identity { device: 0, inode: 0, bytes, modified, changed: modified, unsettled: 0 };
        debug_assert!(bytes <= caps.sectors.div_ceil(8) * PAGE_BYTES, "its pages have sectors");
        Ok(File::new(Handle::open(&engine, Opening::Server { bytes }, identity), name))
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
        }
    }
}

impl std::error::Error for OpenFileError {}
