//! Objects of a store as files of the crate `readpath`: with the `File`, `Reader`, `Batch` and
//! futures of local files.
//!
//! [`register`] makes `readpath::File::open` take the URLs of object stores:
//!
//! ```
//! # let name = std::env::temp_dir().join(format!("remote-doc-file-{}", std::process::id()));
//! # let mut created = std::fs::File::create_new(&name)?;
//! # std::io::Write::write_all(&mut created, &[7; 100_000])?;
//! readpath_remote::file::register();
//! let url = "s3://bucket/weights.bin"; // or gs://, az://, https://, file://, …
//! # let url = format!("file://{}", name.display());
//! let file = readpath::File::open(url)?;
//! let mut buffer = [0; 1000];
//! file.read_exact_at(&mut buffer, 50_000)?;
//! # assert_eq!(buffer, [7; 1000]);
//! # std::fs::remove_file(&name)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The clients come from the crate `object_store`. The program selects them by the features of that
//! crate in its own manifest: `object_store = { version = "0.14", features = ["aws"] }`, or
//! `gcp`, `azure`, `http`. [`open_url`] takes their options, such as credentials.
//! [`open_object`] takes any store.
//!
//! # Versions
//! A file is the version that the object had at its opening. Without a strong ETag, the version is
//! the time of modification with the size. Opening then waits once, until the object has not been
//! modified for two seconds by the clock of the system. If the object was modified again meanwhile,
//! or more than a second in the future, opening fails with [`OpenObjectError::Unsettled`]. If the
//! object changes later, fetches fail with `DeviceError::Stale`; bytes of two versions are never
//! mixed.
//!
//! # Threads
//! Opening and reading block their thread. The requests are tasks on a runtime of tokio: on the
//! given one, or on a thread that this module starts with the first file. A given runtime must have
//! a thread besides those that read. A child made by `fork` opens its own files.

use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStore};
use readpath::{Builder, File, OpenFileError, OpenUrlError, ReadPath, register_urls};
use tokio::runtime::Handle;

#[cfg(feature = "disk")]
mod disk_name;
mod object_source;
mod opening;
mod runtime;
mod shown;
mod url_check;

use object_source::{ObjectSource, Requests};
use shown::advice;
pub use shown::shown_error;

#[cfg(feature = "disk")]
use crate::disk::DiskStore;
use crate::store::Disk;

/// Called with the error of each fetch that has failed after its retries, for a reader or a
/// prefetch.
pub type OnError = Arc<dyn Fn(&Error) + Send + Sync>;

/// Called with the description of the version that was opened.
pub type OnOpen = Arc<dyn Fn(&ObjectMeta) + Send + Sync>;

/// Called while an opening waits. False ends it.
pub type WhileWaiting = Arc<dyn Fn() -> bool + Send + Sync>;

/// Interval at which a waiting opening calls [`WhileWaiting`].
const WAIT_INTERVAL: Duration = Duration::from_millis(50);

/// Options of a file.
#[derive(Clone)]
pub struct FileOptions {
    /// Memory, policies and depth of the file's read path.
    pub path: Builder,
    /// Maximum size of a request in bytes. Default 2 MiB; whole pages of 4 KiB, up to 4 MiB. Larger
    /// ranges are fetched in parallel.
    pub part_bytes: u64,
    /// Maximum size in bytes of a request of a read that bypasses the memory
    /// ([`File::read_direct_at`]). Default 64 MiB. A disk tier makes it `part_bytes`.
    pub direct_part_bytes: u64,
    /// Number of bytes from the start of the object that the request of the opening fetches, and
    /// that stay with the file. They are from its end if the name has the extension of a format
    /// with the index there: .parquet, .pq, .orc, .arrow, .feather, .zip or .jar. Default 64 KiB.
    /// They cost 3 % of a request that waits 20 ms at 100 MB/s, and an object of at most that size
    /// takes one request instead of two. With 0, or with a disk tier, the opening requests one
    /// byte. It requests the version alone if the disk tier has bytes of the object. The opening
    /// fails if the server has no byte ranges, unless the object is empty or in the disk tier.
    pub first_bytes: u64,
    /// Number of times that a request is continued after an error or a short body. Default 1. The
    /// clients of `object_store` wait and retry on their own before they return an error.
    pub retries_max: u32,
    /// Runtime of the requests. Default: a thread of this module.
    pub runtime: Option<Handle>,
    /// Called with the error of each fetch that has failed after its retries. A read reports only
    /// its kind. Default: none.
    pub on_error: Option<OnError>,
    /// Called with the description of the version that is opened: ETag, time and size. Default:
    /// none.
    pub on_open: Option<OnOpen>,
    /// Called every 50 ms while the opening waits for the store, on the thread of the caller. If it
    /// returns false, the opening fails with [`OpenObjectError::Ended`]. Default: none.
    pub while_waiting: Option<WhileWaiting>,
    /// Disk tier of the object. Default: none. A URL without its query, and the options that select
    /// its server, become parts of the name of the store.
    #[cfg(feature = "disk")]
    pub disk: Option<DiskStore>,
}

impl Default for FileOptions {
    /// The defaults that the fields state.
    fn default() -> FileOptions {
        FileOptions {
            path: ReadPath::builder(),
            part_bytes: 2 << 20,
            direct_part_bytes: 64 << 20,
            first_bytes: 64 << 10,
            retries_max: 1,
            runtime: None,
            on_error: None,
            on_open: None,
            while_waiting: None,
            #[cfg(feature = "disk")]
            disk: None,
        }
    }
}

/// URL schemes that [`register`] adds.
pub const SCHEMES: [&str; 11] =
    ["s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https", "file"];

/// Options of the files of registered schemes.
static URL_OPTIONS: Mutex<Option<FileOptions>> = Mutex::new(None);

/// Beginnings of the variables of the environment that configure clients.
const CLIENT_VARIABLES: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];

/// Makes `readpath::File::open`, and `Builder::open`, take URLs of these [schemes](SCHEMES). The
/// options of the client come from the environment: see [`client_variables`].
pub fn register() {
    register_with(FileOptions::default());
}

/// As [`register`], with these options for each file, such as a disk tier. The builder that opens
/// the file replaces [`FileOptions::path`]. A later call replaces the options.
pub fn register_with(options: FileOptions) {
    *URL_OPTIONS.lock().unwrap_or_else(PoisonError::into_inner) = Some(options);
    register_urls(&SCHEMES, |url, path| {
        let options = URL_OPTIONS.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let options = FileOptions { path, ..options.unwrap_or_default() };
        open_url(url, client_variables(), options).map_err(|error| match error {
            OpenObjectError::Open(error) => OpenUrlError::Open(error),
            error => OpenUrlError::Other(error.to_string()),
        })
    });
}

/// Returns the variables of the environment that configure clients: the ones whose names begin with
/// `AWS_`, `AZURE_` or `GOOGLE_`, as `AWS_ACCESS_KEY_ID` and `GOOGLE_SERVICE_ACCOUNT`.
///
/// A client also has options without such a beginning: an endpoint, a region, a token, a timeout.
/// Variables with these names are usually meant for other programs, so they are left
/// out, as are names and values that are not UTF-8.
pub fn client_variables() -> Vec<(String, String)> {
    let variables = std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
    variables
        .filter(|(key, _)| CLIENT_VARIABLES.iter().any(|beginning| key.starts_with(beginning)))
        .collect()
}

/// Opens the object of a URL. `client_options` are keys and values for the client, by the names of
/// the crate `object_store`, in upper or lower case; unknown ones are ignored. A URL of the scheme
/// `http` allows connections without encryption.
///
/// The parts of the URL name the object, and nothing else. A query, a fragment, or a slash at the
/// end is an error: the clients of `object_store` do not send it. The escape of a slash (`%2F`) is
/// an error too, since they send a slash in its place. A user before the host, as in
/// `https://user@host/object`, is an error too. The exceptions are `http` and `https`, which send
/// it, and Azure's schemes, where it names the container.
///
/// # Errors
/// The text is no URL of an object, the program has no client for its scheme, or the object cannot
/// be opened.
pub fn open_url<K: AsRef<str>, V: Into<String>>(
    url: &str,
    client_options: impl IntoIterator<Item = (K, V)>,
    options: FileOptions,
) -> Result<File, OpenObjectError> {
    url_check::check_no_escaped_slash(url)?;
    open_url_by(url, client_options, options, |url, client_options| {
        object_store::parse_url_opts(url, client_options)
    })
}

/// As [`open_url`], with a client that the caller makes: `make_client` gets the checked URL and the
/// options, and returns the store with the object's name in it. `make_client` decides about the
/// escape of a slash.
///
/// # Errors
/// The text is no URL of an object, `make_client` fails, or the object cannot be opened.
pub fn open_url_by<K: AsRef<str>, V: Into<String>>(
    url: &str,
    client_options: impl IntoIterator<Item = (K, V)>,
    options: FileOptions,
    make_client: impl FnOnce(
        &url::Url,
        Vec<(String, String)>,
    ) -> object_store::Result<(Box<dyn ObjectStore>, Path)>,
) -> Result<File, OpenObjectError> {
    let url = url_check::parsed(url)?;
    let client_options =
        client_options.into_iter().map(|(key, value)| (key.as_ref().to_owned(), value.into()));
    // Without this option `object_store` refuses plain HTTP.
    let of_scheme = (url.scheme() == "http").then(|| ("allow_http".to_owned(), "true".to_owned()));
    let client_options: Vec<(String, String)> = client_options.chain(of_scheme).collect();
    #[cfg(feature = "disk")]
    let options = FileOptions {
        disk: options.disk.map(|disk| disk_name::of_url(&disk, &url, &client_options)),
        ..options
    };
    let (store, location) = make_client(&url, client_options).map_err(OpenObjectError::Store)?;
    open_object(store.into(), &location, options)
}

/// Opens an object of a store.
///
/// # Errors
/// The object cannot be found or has no version, or the read path cannot be built. Without a strong
/// ETag, its time of modification may not show its version: [`OpenObjectError::Unsettled`]. The
/// server has no byte ranges, and the object is neither empty nor in the disk tier.
pub fn open_object(
    store: Arc<dyn ObjectStore>,
    location: &Path,
    options: FileOptions,
) -> Result<File, OpenObjectError> {
    // With a disk tier, bytes that the folder has are not requested.
    #[cfg(feature = "disk")]
    let first_bytes = if options.disk.is_some() { 0 } else { options.first_bytes };
    #[cfg(not(feature = "disk"))]
    let first_bytes = options.first_bytes;
    // The limits of a disk tier: see `FileOptions::direct_part_bytes`.
    #[cfg(feature = "disk")]
    let direct_part_bytes = match options.disk {
        Some(_) => options.part_bytes,
        None => options.direct_part_bytes,
    };
    #[cfg(not(feature = "disk"))]
    let direct_part_bytes = options.direct_part_bytes;
    let disk = Disk {
        #[cfg(feature = "disk")]
        store: options.disk,
    };
    let FileOptions { path, part_bytes, retries_max, runtime, on_error, on_open, .. } = options;
    let while_waiting = options.while_waiting;
    let runtime = match runtime {
        Some(runtime) => runtime,
        None => runtime::background().map_err(|error| OpenObjectError::NoThread(error.kind()))?,
    };
    let requests = Requests {
        store,
        runtime: runtime.clone(),
        part_bytes,
        direct_part_bytes,
        retries_max,
        on_error,
        disk,
    };
    let (sender, opened) = channel();
    let name = location.clone();
    let opening = runtime.spawn(async move {
        let source = ObjectSource::open(requests, name, first_bytes).await;
        // The caller waits for it. The send fails if the caller has ended the opening.
        drop(sender.send(source));
    });
    let source = loop {
        match opened.recv_timeout(WAIT_INTERVAL) {
            Ok(source) => break source?,
            // The runtime has dropped the task before its end.
            Err(RecvTimeoutError::Disconnected) => {
                return Err(OpenObjectError::Store(crate::store::dropped_error()));
            }
            Err(RecvTimeoutError::Timeout)
                if while_waiting.as_ref().is_some_and(|call| !call()) =>
            {
                opening.abort();
                return Err(OpenObjectError::Ended);
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    };
    // The read path of the file is built after that, and may still fail.
    if let Some(on_open) = on_open {
        on_open(source.meta());
    }
    let name = location.to_string();
    path.open_source(name, Arc::new(source)).map_err(OpenObjectError::Open)
}

/// Error of opening an object.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenObjectError {
    /// The text is no URL of an object.
    Url {
        /// The text, without the user and the query of a URL.
        url: String,
        /// Reason.
        why: String,
    },
    /// The store has failed: the object is missing, say, or the program has no client for it.
    Store(Error),
    /// The object has neither a strong ETag nor a time of modification.
    NoVersion {
        /// The object.
        location: Path,
    },
    /// The object has no strong ETag, and its time of modification does not show its version. It
    /// was modified again while the opening waited, or that time is more than a second ahead.
    Unsettled {
        /// The object.
        location: Path,
        /// Time of modification in the last answer, in the form of RFC 3339.
        modified: String,
    },
    /// The read path cannot be built.
    Open(OpenFileError),
    /// The system provides no thread for the requests.
    NoThread(std::io::ErrorKind),
    /// The caller has ended the opening: [`FileOptions::while_waiting`].
    Ended,
}

impl fmt::Display for OpenObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenObjectError::Url { url, why } => write!(f, "`{url}` is no URL of an object: {why}"),
            OpenObjectError::Store(error) => {
                let text = shown_error(error);
                match advice(error) {
                    Some(advice) => write!(f, "{}; {advice}", text.trim_end_matches([':', ' '])),
                    None => f.write_str(&text),
                }
            }
            OpenObjectError::NoVersion { location } => write!(
                f,
                "{location} has neither a strong ETag nor a time of modification; read it by \
                 another client, which may mix its versions"
            ),
            OpenObjectError::Unsettled { location, modified } => write!(
                f,
                "{location} was modified at {modified} by the clock of its server, in the last two \
                 seconds or in the future, and has no strong ETag; open it when its writes have \
                 ended, and compare the clocks, or let the server send a strong ETag"
            ),
            OpenObjectError::Open(error) => error.fmt(f),
            OpenObjectError::Ended => f.write_str("the opening was ended by its caller"),
            OpenObjectError::NoThread(kind) => {
                write!(f, "no thread for requests: {kind}; give a runtime in the options")
            }
        }
    }
}

impl std::error::Error for OpenObjectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenObjectError::Store(error) => Some(error),
            OpenObjectError::Open(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Debug for FileOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileOptions { part_bytes, retries_max, runtime, .. } = self;
        let mut parts = f.debug_struct("FileOptions");
        parts.field("part_bytes", part_bytes).field("retries_max", retries_max);
        parts.field("runtime", runtime).finish_non_exhaustive()
    }
}
