//! Opening a file by name: local, of an NFS server, or by the opener of a URL's scheme.
//!
//! The *engine* of a path is its own cache with its requests. A file of a server always has one.
//! The *identity* of a file is its version: device, inode, length and times.

use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use readpath_core::request::DeviceCaps;

use crate::backend::BackendError;
use crate::file::File;
use crate::nfs::error::NfsError;
use crate::nfs::lookup::FoundFile;
use crate::nfs::storage::NfsStorage;
use crate::nfs::target::NfsTarget;
use crate::nfs::url::NfsUrl;
use crate::nfs::{Attributes, Connection};
use crate::os::clock::Clock;
use crate::page_cache::own::storage_backend::{StorageBackend, StorageFile};
use crate::page_cache::own::{Handle, LazyEngine};
use crate::path::ReadPath;
use crate::path::builder::{BuildError, Builder};
use crate::read_error::{Forked, io_error_kind};
use crate::target::Coherence;
use crate::target::OpenError;
use crate::target::identity::Identity;

impl File {
    /// True if both handles read the same file, in any version: device and inode were equal when
    /// each was opened or last [revalidated](File::revalidate). For sources true if both are
    /// sources.
    ///
    /// `other` may belong to the parent of this process, whose file this one has opened again.
    pub fn is_same_file(&self, other: &File) -> bool {
        self.handle().file.identity.is_same_file(&other.handle().file.identity)
    }

    /// True if both handles read the same version of a file, by the comparison of
    /// [`revalidate`](File::revalidate). For sources true if their lengths are equal.
    ///
    /// `other` may belong to the parent of this process, as for
    /// [`is_same_file`](File::is_same_file).
    pub fn is_same_version(&self, other: &File) -> bool {
        self.handle().file.identity.is_same_version(&other.handle().file.identity)
    }

    /// Opens one file with a read path of its own and default options. The name is a local path, or
    /// `nfs://HOST[:PORT]/EXPORT/PATH`, which is read from the server without a mount and without
    /// this machine's kernel cache, or another URL whose scheme is
    /// [registered](register_urls). [`ReadPath::open`] shares one cache among many files;
    /// [`Builder::open`] has options.
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

    /// Parameters and traffic of the NFS connection. `None` for a local file and for a source, and
    /// in a child made by `fork`, which has no connection.
    pub fn connection(&self) -> Option<Connection> {
        let engine = &self.handle().engine;
        let nfs_lookup = engine
            .existing_engine()
            .and_then(|engine| engine.lock().in_flight.storage.nfs_lookup());
        nfs_lookup.map(|nfs_lookup| nfs_lookup.connection())
    }
}

impl Builder {
    /// Opens one file with a read path of its own that has these options. A name that begins with
    /// `nfs://` is a file of an NFS server. A URL whose scheme is
    /// [registered](register_urls) is opened by its opener.
    ///
    /// The queue depth of an NFS file is the smaller of the URL option `slots` and
    /// [`depth`](Builder::depth). The backend option is not used. Symbolic links are followed
    /// within the export.
    ///
    /// # Errors
    /// The path cannot be built, or the file cannot be opened.
    pub fn open(self, name: impl AsRef<Path>) -> Result<File, OpenFileError> {
        let name = name.as_ref();
        if let Some(url) = name.to_str() {
            if NfsUrl::is_meant(url) {
                return self.open_nfs(name, url);
            }
            if let Some(open) = opener(url) {
                return open(url, self).map_err(|error| match error {
                    OpenUrlError::Open(error) => error,
                    OpenUrlError::Other(why) => OpenFileError::Url { url: shown_url(url), why },
                });
            }
        }
        self.build()?.open(name).map_err(|error| {
            let error = OpenFileError::Open(error);
            // A missing file whose name looks like a URL was probably meant as one.
            match name.to_str().filter(|_| error.kind() == io::ErrorKind::NotFound) {
                Some(name) => without_opener(name).unwrap_or(error),
                None => error,
            }
        })
    }

    /// Connects to the server of `url`, looks the file up, and builds an engine over the
    /// connection. `name` is the name given by the caller, which the file reports.
    fn open_nfs(self, name: &Path, url: &str) -> Result<File, OpenFileError> {
        let url = NfsUrl::parse(url).map_err(NfsError::Url)?;
        let clock = Clock::start();
        let target = NfsTarget::open(&url, clock)?;
        // A later version of the file gets sectors of its own, so the device has no size limit.
        let (file, caps) = (target.file, DeviceCaps { sectors: u64::MAX, ..target.caps() });
        let (storage, sleeper) =
            NfsStorage::for_several_threads(target).map_err(OpenFileError::Backend)?;
        // The backend adds the file at the opening of its first handle.
        let storage = StorageBackend::Server(Box::new(storage));
        let (engine, pages) = self.build_server_engine(storage, sleeper, caps, clock)?;
        // A child cannot build another engine, because the connection belongs to the parent.
        let builder_for_child = None;
        // Files of a server are not checked for changes: `build_server_engine` has refused other
        // values.
        let coherence = Coherence::WhenOpened;
        let engine = Arc::new(LazyEngine::new(engine, coherence, pages, builder_for_child));
        let handle = Handle::open(&engine, StorageFile::Server(file), nfs_identity(&file));
        Ok(File::new(handle, name.into()))
    }
}

/// Looks up the NFS file of a handle again by name, while other threads continue to read. Returns a
/// handle of its present version, changed or not. Returns `None` for a local file and for a source.
///
/// # Errors
/// The file is not found, or this is a child and the connection belongs to the parent.
pub(crate) fn look_up_nfs_again(handle: &Handle) -> Result<Option<Handle>, OpenFileError> {
    let StorageFile::Server(_) = handle.file.storage_file else { return Ok(None) };
    let engine = &handle.engine;
    if !engine.is_of_this_process() {
        return Err(OpenFileError::Forked { why: Forked::Server });
    }
    let nfs_lookup = engine
        .lock()
        .in_flight
        .storage
        .nfs_lookup()
        .expect("the engine of a server's file has one");
    let file = nfs_lookup.look_up_again()?;
    Ok(Some(Handle::open(engine, StorageFile::Server(file), nfs_identity(&file))))
}

/// Identity of an NFS file's version, from its attributes. It has no unstable id, because files of
/// a server are not checked at each read. (Such an id marks a version whose next change may leave
/// its times as they are.)
fn nfs_identity(file: &FoundFile) -> Identity {
    let Attributes { fsid, fileid, bytes, modified, changed, .. } = file.attributes;
    let time = |(seconds, nanoseconds): (u32, u32)| (seconds.into(), nanoseconds.into());
    Identity {
        device: fsid,
        inode: fileid,
        bytes,
        modified: time(modified),
        changed: time(changed),
        unstable_id: 0,
    }
}

/// Opens a URL with the options of a read path.
pub type OpenUrl = fn(&str, Builder) -> Result<File, OpenUrlError>;

/// Error of an opener.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenUrlError {
    /// The file of the URL cannot be opened.
    Open(OpenFileError),
    /// Any other error, in one sentence.
    Other(String),
}

/// The openers of this process, each with its scheme, the latest one last.
static OPENERS: RwLock<Vec<(&str, OpenUrl)>> = RwLock::new(Vec::new());

/// Makes [`File::open`] and [`Builder::open`] open the URLs of these schemes, in place of
/// local files of these names. The scheme is the part of a URL before its colon. A later call for
/// a scheme replaces its opener. NFS URLs have no other opener than this crate's.
pub fn register_urls(schemes: &[&'static str], open: OpenUrl) {
    let mut openers = OPENERS.write().unwrap_or_else(PoisonError::into_inner);
    openers.retain(|(scheme, _)| !schemes.contains(scheme));
    openers.extend(schemes.iter().map(|&scheme| (scheme, open)));
}

/// Returns a URL for a message: without the parts that may have credentials, which are its user,
/// its query and its fragment. A text whose port is no number has a password with a `/`, `?` or `#`
/// in it: its user ends at the last `@`.
pub fn shown_url(url: &str) -> String {
    let without_query = |url: &str| url.split(['?', '#']).next().unwrap_or_default().to_owned();
    let Some((scheme, rest)) = url.split_once("://") else { return without_query(url) };
    let host_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let host = &rest[..host_end];
    let user_end = match has_bad_port(host) {
        true => rest.rfind('@'),
        false => host.rfind('@'),
    };
    let shown = &rest[user_end.map_or(0, |at| at + 1)..];
    format!("{scheme}://{}", without_query(shown))
}

/// Returns true if the port of a host, with or without a user, is no number. An address of IPv6 has
/// colons within its brackets.
fn has_bad_port(host: &str) -> bool {
    let host = host.rsplit('@').next().unwrap_or(host);
    let address = host.strip_prefix('[').and_then(|address| address.split_once(']'));
    let after_brackets = address.map_or(host, |(_, after)| after);
    let port = after_brackets.split_once(':').map(|(_, port)| port);
    port.is_some_and(|port| port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The error for a missing file whose name looks like a URL: its scheme has no opener. `None` for
/// other names.
fn without_opener(name: &str) -> Option<OpenFileError> {
    let (scheme, _) = name.split_once("://")?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.chars().all(|other| other.is_ascii_alphanumeric() || "+-.".contains(other));
    let why = format!(
        "no file has this name, and the scheme `{scheme}` has no opener; register one by \
         `register_urls`, or those of `readpath-remote` by its `file::register`"
    );
    is_scheme.then(|| OpenFileError::Url { url: shown_url(name), why })
}

/// The opener for a name. `None` for the name of a local file, and for a URL whose scheme has no
/// opener.
fn opener(name: &str) -> Option<OpenUrl> {
    let (scheme, _) = name.split_once("://")?;
    let openers = OPENERS.read().unwrap_or_else(PoisonError::into_inner);
    let opener = openers.iter().find(|(other, _)| other.eq_ignore_ascii_case(scheme));
    opener.map(|&(_, open)| open)
}

/// Error of opening a file by name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenFileError {
    /// The read path cannot be built.
    Build(BuildError),
    /// The local file cannot be opened.
    Open(OpenError),
    /// The NFS file cannot be opened.
    Nfs(NfsError),
    /// The opener of the URL's scheme has failed, or the scheme has none.
    Url {
        /// The URL, without its user and its query.
        url: String,
        /// Its error.
        why: String,
    },
    /// The kernel provides no event file descriptor to sleep on.
    Backend(BackendError),
    /// This is a child made by `fork`, and the file belongs to the parent.
    Forked {
        /// Reason, and remedy.
        why: Forked,
    },
}

impl OpenFileError {
    /// Kind of the error for `std::io`, the same for local and NFS files.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            OpenFileError::Build(BuildError::Memory(_)) => io::ErrorKind::OutOfMemory,
            OpenFileError::Build(BuildError::Backend(_)) => io::ErrorKind::Other,
            OpenFileError::Build(_) => io::ErrorKind::InvalidInput,
            OpenFileError::Open(OpenError::Missing { .. }) => io::ErrorKind::NotFound,
            OpenFileError::Open(OpenError::Refused { .. }) => io::ErrorKind::PermissionDenied,
            OpenFileError::Open(OpenError::Directory { .. }) => io::ErrorKind::IsADirectory,
            OpenFileError::Open(OpenError::Other { errno, .. }) => io_error_kind(*errno),
            OpenFileError::Open(_) => io::ErrorKind::InvalidInput,
            OpenFileError::Nfs(error) => io_error_kind(error.errno()),
            OpenFileError::Url { .. } => io::ErrorKind::Other,
            OpenFileError::Backend(_) | OpenFileError::Forked { .. } => io::ErrorKind::Other,
        }
    }
}

impl From<OpenFileError> for io::Error {
    /// Wraps the error, with its [`kind`](OpenFileError::kind).
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
            OpenFileError::Url { url, why } => write!(f, "cannot open {url}: {why}"),
            OpenFileError::Backend(error) => error.fmt(f),
            OpenFileError::Forked { why } => why.fmt(f),
        }
    }
}

impl std::error::Error for OpenFileError {}
