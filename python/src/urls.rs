//! Files by URL: objects of HTTP servers and object stores, by the clients of `object_store`.

use std::borrow::Cow;
use std::error::Error as _;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, Error, ObjectMeta, ObjectStore, ObjectStoreScheme, Result, RetryConfig,
};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use readpath::{Builder, File, shown_url};
use readpath_core::unit::PAGE_BYTES;
use readpath_remote::disk::{DiskError, DiskOptions, DiskTier};
use readpath_remote::file::{
    FileOptions, OpenObjectError, SCHEMES, WhileWaiting, client_variables, open_url_by, shown_error,
};
use url::Url;

use crate::failure::{Failure, open_error};
use crate::spec::refused;

/// Name of the stores in the folder of a disk tier. The URL follows it.
const DISK_STORE_NAME: &str = "python";

/// Longest time for all tries of a request.
const RETRY_TIME_MAX: Duration = Duration::from_secs(60);

/// Longest pause before a retry. The pauses begin with 0.1 s, and double.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Options of files by URL.
#[derive(Clone)]
pub struct UrlOptions {
    /// Options of the client by the names of `object_store`, as `aws_region` or `timeout`. They
    /// replace the variables of the environment.
    pub client_options: Vec<(String, String)>,
    /// Maximum size of a request in bytes. None for the library's default.
    pub request_bytes: Option<u64>,
    /// Number of retries of a request that failed with a passing error.
    pub retries: usize,
    /// Folder of the disk tier and its budget in bytes. None for no disk tier.
    pub disk: Option<DiskOptions>,
}

/// Returns the schemes of URLs that are opened here: the ones of the library without `file`, which
/// local paths have. A name with another scheme is a local path.
#[pyfunction]
pub fn client_schemes() -> Vec<&'static str> {
    SCHEMES.into_iter().filter(|&scheme| scheme != "file").collect()
}

/// Returns a URL as its client requests it: without dot segments, with the slashes and the escapes
/// of the URL standard.
///
/// Raises ValueError for text that is no URL.
#[pyfunction]
pub fn parsed_url(url: &str) -> PyResult<String> {
    Url::parse(url).map(String::from).map_err(refused)
}

/// Returns true for a URL that is opened here.
pub fn is_meant(name: &str) -> bool {
    name.split_once("://").is_some_and(|(scheme, _)| scheme != "file" && SCHEMES.contains(&scheme))
}

/// Largest request in bytes.
const REQUEST_BYTES_MAX: u64 = 4 << 20;

/// Raises ValueError for a size of requests that is no number of whole pages, or too large.
pub fn check_request_bytes(bytes: u64) -> PyResult<()> {
    match bytes.is_multiple_of(PAGE_BYTES) && (PAGE_BYTES..=REQUEST_BYTES_MAX).contains(&bytes) {
        true => Ok(()),
        false => Err(refused(format!("request={bytes}: give whole pages of 4 KiB, at most 4 MiB"))),
    }
}

/// Raises ValueError for an option that no client has.
pub fn check_client_options(options: &[(String, String)]) -> PyResult<()> {
    for (key, _) in options {
        let key_lower = key.to_ascii_lowercase();
        let is_known = key_lower.parse::<object_store::aws::AmazonS3ConfigKey>().is_ok()
            || key_lower.parse::<object_store::gcp::GoogleConfigKey>().is_ok()
            || key_lower.parse::<object_store::azure::AzureConfigKey>().is_ok()
            || key_lower.parse::<object_store::ClientConfigKey>().is_ok();
        if !is_known {
            return Err(refused(format!(
                "storage_options: no client has the option `{key}`; the names are the ones of \
                 object_store, as aws_region, google_service_account, azure_storage_account_name \
                 or timeout"
            )));
        }
    }
    Ok(())
}

/// Reports about the object of an open file.
#[derive(Default)]
pub struct Reports {
    /// Last error of a request to the server. A read of the file reports its kind alone.
    last_error: Mutex<Option<String>>,
    /// Version at the last opening: ETag, time of modification and size.
    version: Mutex<String>,
}

impl Reports {
    /// The failure of a read from `url`, with the text of the last error if `failure` is of the
    /// read path. Another failure stays as it is.
    pub fn explain(&self, failure: Failure, url: &str) -> Failure {
        let Failure::Read(error) = failure else { return failure };
        let cause = self.last_error.lock().expect("no thread panics while holding it").clone();
        Failure::Url { error, cause, url: shown_name(url) }
    }

    /// The version at the last opening.
    pub fn version(&self) -> String {
        self.version.lock().expect("no thread panics while holding it").clone()
    }

    /// Stores the error of a request.
    fn on_error(&self, error: &Error) {
        let mut last_error = self.last_error.lock().expect("no thread panics while holding it");
        *last_error = Some(shown_error(error));
    }

    /// Stores the version that was opened.
    fn on_open(&self, meta: &ObjectMeta) {
        let text = format!("{:?} {} {}", meta.e_tag, meta.last_modified, meta.size);
        *self.version.lock().expect("no thread panics while holding it") = text;
    }
}

/// Opens the object of a URL, with a read path of its own. Waits for the server, until
/// `while_waiting` returns false. `reports` gets its version, and the errors of its requests.
pub fn open(
    url: &str,
    path: Builder,
    options: &UrlOptions,
    disk: Option<&DiskTier>,
    variables: Vec<(String, String)>,
    reports: Arc<Reports>,
    while_waiting: WhileWaiting,
) -> std::result::Result<File, OpenObjectError> {
    let reports_of_open = Arc::clone(&reports);
    let defaults = FileOptions { path, ..FileOptions::default() };
    let file_options = FileOptions {
        part_bytes: options.request_bytes.unwrap_or(defaults.part_bytes),
        direct_part_bytes: options.request_bytes.unwrap_or(defaults.direct_part_bytes),
        on_error: Some(Arc::new(move |error| reports.on_error(error))),
        on_open: Some(Arc::new(move |meta| reports_of_open.on_open(meta))),
        while_waiting: Some(while_waiting),
        disk: disk.map(|tier| tier.store(DISK_STORE_NAME)),
        ..defaults
    };
    // The client takes the last value of a name: options replace variables.
    let client_options = variables.into_iter().chain(options.client_options.iter().cloned());
    let key = key_of(url);
    // The key is the end of the URL.
    let escaped_url = match key {
        Some(key) => Cow::Owned(url[..url.len() - key.len()].to_owned() + &escaped(key)),
        None => Cow::Borrowed(url),
    };
    open_url_by(&escaped_url, client_options, file_options, |url, client_options| {
        shared_client(url, key, client_options, options.retries)
    })
}

/// The key of an object in a store, as it stands in the text of its URL. `None` for URLs of
/// HTTP, whose escapes are decoded by the server.
fn key_of(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once("://")?;
    match scheme {
        "http" | "https" => None,
        _ => rest.split_once('/').map(|(_, key)| key),
    }
}

/// Escapes the characters of a key that the parser of URLs takes for an escape, a query or a
/// fragment.
fn escaped(key: &str) -> String {
    key.replace('%', "%25").replace('?', "%3F").replace('#', "%23")
}

/// Maximum number of clients that stay open. Each has the idle connections to one server.
const CLIENTS_MAX: usize = 32;

/// The clients of this process, the last used one at the end.
static CLIENTS: Mutex<Vec<SharedClient>> = Mutex::new(Vec::new());

/// A client, for all objects of one server or bucket that are opened with equal options.
struct SharedClient {
    /// Process that has created it. The connections belong to this process's threads.
    process: u32,
    /// Scheme, user, host and port of the URL, container, retries, and the options. Not the key of
    /// an object.
    client_key: String,
    store: Arc<dyn ObjectStore>,
}

/// Returns the client of a URL, which files of the same server share with its connections, and the
/// name of the object in its store. `key`: see [`key_of`].
fn shared_client(
    url: &Url,
    key: Option<&str>,
    options: Vec<(String, String)>,
    retries: usize,
) -> Result<(Box<dyn ObjectStore>, Path)> {
    let location = location_of(url, key)?;
    let process = std::process::id();
    let server = &url[..url::Position::BeforePath];
    // The container of some URLs of Azure is a part of the path.
    let container = match url.scheme() {
        "http" | "https" => "",
        _ => url.path_segments().and_then(|mut parts| parts.next()).unwrap_or_default(),
    };
    // In their order: the last value of a name is valid, and a name may have several spellings.
    let client_key = format!("{server} {container} {retries} {options:?}");
    if let Some(store) = known_client(process, &client_key) {
        return Ok((Box::new(store), location));
    }
    let made = make_client(url, options.clone(), retries);
    let store: Arc<dyn ObjectStore> =
        made.map_err(|error| naming_option(error, url, options, retries))?.into();
    // A child of `fork` may find the list locked for ever. It then opens without the list.
    if let Ok(mut clients) = CLIENTS.try_lock() {
        // A parent's client is never dropped: its threads do not exist here.
        let (own, inherited): (Vec<_>, Vec<_>) =
            clients.drain(..).partition(|client| client.process == process);
        inherited.into_iter().for_each(std::mem::forget);
        clients.extend(own);
        clients.push(SharedClient { process, client_key, store: Arc::clone(&store) });
        if clients.len() > CLIENTS_MAX {
            clients.remove(0);
        }
    }
    Ok((Box::new(store), location))
}

/// The error of a client that could not be made. If a value of an option is the reason, the text
/// has the option's name: it is the one that alone has the same error.
fn naming_option(error: Error, url: &Url, options: Vec<(String, String)>, retries: usize) -> Error {
    let Error::Generic { store: WRONG_VALUE, source } = error else { return error };
    let text = source.to_string();
    let is_reason =
        |option: &(String, String)| match make_client(url, vec![option.clone()], retries) {
            Err(Error::Generic { store: WRONG_VALUE, source }) => source.to_string() == text,
            _ => false,
        };
    let source = match options.iter().find(|option| is_reason(option)) {
        Some((name, _)) => format!("option `{name}`: {text}").into(),
        None => source,
    };
    Error::Generic { store: WRONG_VALUE, source }
}

/// Returns the client of this process with this key, which becomes the last used one. `None`
/// without one, and while another thread uses the list.
fn known_client(process: u32, client_key: &str) -> Option<Arc<dyn ObjectStore>> {
    let mut clients = CLIENTS.try_lock().ok()?;
    let is_same =
        |client: &SharedClient| client.process == process && client.client_key == client_key;
    let index = clients.iter().position(is_same)?;
    let client = clients.remove(index);
    let store = Arc::clone(&client.store);
    clients.push(client);
    Some(store)
}

/// The name of a URL's object in the store of its client. `key`: see [`key_of`].
///
/// # Errors
/// `NotSupported` if the client would request another object, or cannot request it: `object_store`
/// decodes the path of a URL and encodes it in its own way, so that the escape of a slash becomes a
/// slash. It refuses empty segments, dot segments, control characters and bytes that are no UTF-8.
fn location_of(url: &Url, key: Option<&str>) -> Result<Path> {
    let not_supported = |sent: &str| {
        let source = format!("the client would request `{sent}` in its place").into();
        Error::NotSupported { source }
    };
    let Some(key) = key else {
        let location = Path::from_url_path(url.path()).map_err(not_sendable)?;
        let mut sent = url.clone();
        sent.set_path("");
        if let Ok(mut segments) = sent.path_segments_mut() {
            segments.extend(location.parts());
        }
        return match with_upper_escapes(sent.path()) == with_upper_escapes(url.path()) {
            true => Ok(location),
            false => Err(not_supported(sent.path())),
        };
    };
    let (_scheme, location) = ObjectStoreScheme::parse(url).map_err(not_sendable)?;
    let location = Path::parse(location).map_err(not_sendable)?;
    // The parser of URLs removes `..`, and spaces at the end.
    match location.as_ref() == key {
        true => Ok(location),
        false => Err(not_supported(location.as_ref())),
    }
}

/// The error of a path that the client cannot have.
fn not_sendable(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::NotSupported { source: Box::new(error) }
}

/// A path with the hexadecimal digits of its escapes in upper case.
fn with_upper_escapes(path: &str) -> String {
    // Number of digits of the current escape that are still to come; 0 outside of an escape.
    let mut digits_left = 0_u32;
    let upper = |character: char| {
        let is_digit = digits_left > 0;
        digits_left = if character == '%' { 2 } else { digits_left.saturating_sub(1) };
        if is_digit { character.to_ascii_uppercase() } else { character }
    };
    path.chars().map(upper).collect()
}

/// Returns the variables of the environment for clients. They must be read with Python's lock held,
/// since `os.environ` changes them with it held.
pub fn variables(_py: Python<'_>) -> Vec<(String, String)> {
    client_variables()
}

/// Makes the client of a URL.
fn make_client(
    url: &Url,
    options: Vec<(String, String)>,
    retries: usize,
) -> Result<Box<dyn ObjectStore>> {
    // TLS needs one library of cryptography per process. An error means that it is chosen.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let retry = RetryConfig {
        backoff: BackoffConfig { max_backoff: PAUSE_MAX, ..BackoffConfig::default() },
        max_retries: retries,
        retry_timeout: RETRY_TIME_MAX,
    };
    macro_rules! client {
        ($builder:ty, $url:expr) => {{
            let mut builder = <$builder>::new().with_url($url);
            for (key, value) in options {
                // A variable or option of another client.
                if let Ok(key) = key.to_ascii_lowercase().parse() {
                    builder = builder.with_config(key, value);
                }
            }
            Box::new(builder.with_retry(retry).build()?) as Box<dyn ObjectStore>
        }};
    }
    // A URL with `https` is read as it stands, also if its host is an object store's.
    if let "http" | "https" = url.scheme() {
        return Ok(client!(HttpBuilder, &url[..url::Position::BeforePath]));
    }
    let (scheme, _) = ObjectStoreScheme::parse(url)?;
    let store = match scheme {
        ObjectStoreScheme::AmazonS3 => client!(AmazonS3Builder, url.as_str()),
        ObjectStoreScheme::GoogleCloudStorage => client!(GoogleCloudStorageBuilder, url.as_str()),
        ObjectStoreScheme::MicrosoftAzure => client!(MicrosoftAzureBuilder, url.as_str()),
        other => {
            let source = format!("no client for {other:?}").into();
            return Err(Error::Generic { store: "url", source });
        }
    };
    Ok(store)
}

/// Exception for a refused disk tier: OSError for its folder, ValueError for its budget.
pub fn disk_error(error: &DiskError) -> PyErr {
    let errno = match error {
        DiskError::NoFolder { .. } => ENOTDIR,
        DiskError::OtherOwner { .. } => EPERM,
        DiskError::OpenMode { .. } => EACCES,
        DiskError::SmallBudget { .. } => return refused(error),
        _ => EIO,
    };
    PyOSError::new_err((errno, error.to_string()))
}

/// Name of the store in the client's error about the value of an option.
const WRONG_VALUE: &str = "Config";

/// Name of the function that the crate advises for objects which its own clients do not read.
const OWN_STORE: &str = "`open_object`";

/// Exception for a URL that cannot be opened. The URL, without credentials, becomes the filename.
pub fn url_error(url: &str, error: &OpenObjectError) -> PyErr {
    let errno = match error {
        OpenObjectError::Open(error) => return open_error(error, shown_name(url).as_ref()),
        // The remedy is a store of the program, which Python has not; fsspec reads such an object.
        OpenObjectError::Url { url, why } if why.contains(OWN_STORE) => {
            // The part before the remedy.
            let reason = why.split([',', ';']).next().unwrap_or_default();
            let text = format!("{reason}; open it with client='fsspec'");
            return match reason.contains("query") {
                // A URL with a query gets here only if the caller has excluded fsspec.
                true => refused(format!("{url}: {text}")),
                false => PyOSError::new_err((EOPNOTSUPP, text, url.clone())),
            };
        }
        OpenObjectError::Url { .. } => return refused(error),
        OpenObjectError::Store(Error::Generic { store: WRONG_VALUE, source }) => {
            return refused(source);
        }
        OpenObjectError::Store(error) => store_errno(error),
        // Another try may have the same end, and fsspec opens the object.
        OpenObjectError::NoVersion { .. } | OpenObjectError::Unsettled { .. } => EOPNOTSUPP,
        OpenObjectError::NoThread(_) => EAGAIN,
        // Also an opening that a signal has ended: its caller raises the signal's exception.
        _ => EIO,
    };
    let cure = match errno {
        EOPNOTSUPP => "; or open it with client='fsspec', which checks no version",
        _ => "",
    };
    PyOSError::new_err((errno, format!("{error}{cure}"), shown_name(url)))
}

/// Returns the URL of an object for a message, without its credentials. A `?` and a `#` belong to a
/// key of an object store, and are not cut there.
pub fn shown_name(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    if scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https") {
        return shown_url(url);
    }
    let (host, key) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let has_user = host.contains('@');
    let host = host.rsplit('@').next().unwrap_or(host);
    let start = format!("{scheme}://{host}");
    // Another host: the password has a slash, and the key here begins within it.
    match shown_url(url) {
        shown if !has_user && !shown.starts_with(&start) => shown,
        _ => start + key,
    }
}

/// Returns true for the text of an error about an answer without a length: of the answer itself, or
/// of the object. An unknown length of the object is an asterisk at the end of its range.
fn has_no_length(text: &str) -> bool {
    let is_range = text.contains("Failed to parse value for CONTENT_RANGE header");
    text.contains("Content-Length Header missing") || is_range && text.contains("/*\"")
}

/// Error number for an error of a store: the number of the system if it has one.
fn store_errno(error: &Error) -> i32 {
    match error {
        Error::NotFound { .. } => ENOENT,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => EACCES,
        Error::Precondition { .. } => ESTALE,
        Error::NotSupported { .. } | Error::NotImplemented { .. } => EOPNOTSUPP,
        // Legal answers to a range: without its length, or without the length of the object. The
        // client refuses them by private types, so that the text is all there is.
        Error::Generic { source, .. } if has_no_length(&source.to_string()) => EOPNOTSUPP,
        _ => {
            let mut cause = error.source();
            while let Some(error) = cause {
                if let Some(error) = error.downcast_ref::<io::Error>()
                    && let Some(errno) = error.raw_os_error()
                {
                    return errno;
                }
                cause = error.source();
            }
            EIO
        }
    }
}

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const EACCES: i32 = 13;
const ENOTDIR: i32 = 20;
const EOPNOTSUPP: i32 = 95;
const ESTALE: i32 = 116;
