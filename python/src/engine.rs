//! Read paths for Python, created again in a child of `fork`.
//!
//! An `Own` holds a value of the process that created it. In a child of `fork` its `get` returns
//! none, and `is_ours` false.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use readpath::nfs::NfsUrl;
use readpath::{BackendKind, Builder, File, OpenFileError, PageCache, ReadPath, UnknownBackend};
use readpath_core::unit::PAGE_BYTES;
use readpath_remote::disk::{DiskOptions, DiskTier};
use readpath_remote::file::WhileWaiting;

use crate::failure::{build_error, open_error};
use crate::interruptible::run_interruptible;
use crate::many::PIECE_BYTES_MAX;
use crate::process::Own;
use crate::spec::{Count, refused};
use crate::urls::{self, Reports, UrlOptions};

/// A read path for any number of files: memory, policies and an I/O backend.
#[pyclass(frozen, module = "readpath")]
pub struct Engine(pub Arc<ForkAwareReadPath>);

/// A read path that is created again in a child of `fork`, at its first use there.
pub struct ForkAwareReadPath {
    /// Options of the read path in every process.
    options: Builder,
    /// Options of files by URL.
    url_options: UrlOptions,
    /// Disk tier of files by URL, opened by the first one in each process. Locked like `path`.
    disk: Mutex<Option<Own<DiskTier>>>,
    /// Maximum size in bytes of a single read of a local file, and of each read of a server's file
    /// through the cache. A larger one is split. Reads past the cache, and polled ones, are not.
    pub piece_bytes: u64,
    /// Locked only with Python's lock held, so that no thread holds it at a `fork`.
    path: Mutex<Own<ReadPath>>,
    /// Number of files that stay open after their last handle is closed, with their cached pages.
    kept_max: usize,
    /// These files, the last opened one at the end. Locked like `path`.
    kept: Mutex<VecDeque<(PathBuf, Own<File>)>>,
}

impl ForkAwareReadPath {
    /// Returns the read path of this process. The first call in a forked child creates one.
    fn path(&self, _py: Python<'_>) -> PyResult<ReadPath> {
        let mut path = self.path.lock().expect("no build panics");
        // `None` for a path of the parent process.
        if let Some(path) = path.get() {
            return Ok(path.clone());
        }
        let built = self.options.clone().build().map_err(|error| build_error(&error))?;
        *path = Own::new(built.clone());
        Ok(built)
    }

    /// Returns the disk tier of this process, or None without one. Raises OSError if its folder is
    /// refused, ValueError if its budget is. A folder that cannot be read or written turns the tier
    /// off instead.
    fn disk(&self, py: Python<'_>) -> PyResult<Option<DiskTier>> {
        let Some(options) = &self.url_options.disk else { return Ok(None) };
        let locked = || self.disk.lock().expect("no thread panics while holding it");
        if let Some(tier) = locked().as_ref().and_then(Own::get) {
            return Ok(Some(tier.clone()));
        }
        // The wait for another process that has locked the folder, and the count of its entries,
        // may last. Signals are handled meanwhile.
        let options = options.clone();
        let opened = run_interruptible(py, move || DiskTier::open(&options))?;
        let tier = opened.map_err(|error| urls::disk_error(&error))?;
        let mut disk = locked();
        // Another thread may have opened it meanwhile: all files share the first one.
        if let Some(first) = disk.as_ref().and_then(Own::get) {
            return Ok(Some(first.clone()));
        }
        *disk = Some(Own::new(tier.clone()));
        Ok(Some(tier))
    }

    /// Opens the object of a URL through a separate path with the options of this one. Signals are
    /// handled during the wait for the server.
    fn open_url(&self, py: Python<'_>, url: &str, reports: Arc<Reports>) -> PyResult<Own<File>> {
        let (path, options, disk) =
            (self.options.clone(), self.url_options.clone(), self.disk(py)?);
        let variables = urls::variables(py);
        let signal = Arc::new(Mutex::new(Ok(())));
        let checked = Arc::clone(&signal);
        // Called again and again during the wait; false ends it.
        let while_waiting: WhileWaiting = Arc::new(move || {
            let result = Python::attach(|py| py.check_signals());
            let mut signal = checked.lock().expect("only this thread locks it");
            *signal = result;
            signal.is_ok()
        });
        let opened = py.detach(|| {
            urls::open(url, path, &options, disk.as_ref(), variables, reports, while_waiting)
        });
        // The exception of a signal handler precedes the error.
        std::mem::replace(&mut *signal.lock().expect("only this thread locks it"), Ok(()))?;
        opened.map(Own::new).map_err(|error| urls::url_error(url, &error))
    }

    /// Opens a file: the object of a URL if `reports` is given, otherwise a local or a server's
    /// file. `reports` receive the requests of the object. The caller gives them for the names that
    /// [`urls::is_meant`] accepts, which are all UTF-8.
    pub fn open_any(
        &self,
        py: Python<'_>,
        name: &Path,
        reports: Option<&Arc<Reports>>,
    ) -> PyResult<Own<File>> {
        match (reports, name.to_str()) {
            (Some(reports), Some(url)) => self.open_url(py, url, Arc::clone(reports)),
            _ => self.open(py, name),
        }
    }

    /// Opens a local file through the path, or a server's file through a separate path with equal
    /// options. Only a local file stays open after its last handle is closed.
    fn open(&self, py: Python<'_>, name: &Path) -> PyResult<Own<File>> {
        let is_remote = name.to_str().is_some_and(NfsUrl::is_meant);
        let path = self.path(py)?;
        let opened = match is_remote {
            // A server may not answer, and signals are handled during the wait.
            true => {
                let (options, name) = (self.options.clone(), name.to_path_buf());
                run_interruptible(py, move || options.open(name))?
            }
            false => py.detach(|| path.open(name).map_err(OpenFileError::Open)),
        };
        let file = opened.map_err(|error| open_error(&error, name))?;
        if self.kept_max > 0 && !is_remote {
            let released = self.keep(name, Own::new(file.clone()));
            py.detach(|| drop(released));
        }
        Ok(Own::new(file))
    }

    /// Keeps a file open. Returns the files that no longer stay open: an older one with this name,
    /// files of a parent process, and the oldest files beyond `kept_max`.
    fn keep(&self, name: &Path, file: Own<File>) -> Vec<(PathBuf, Own<File>)> {
        let mut kept = self.kept.lock().expect("no thread panics while holding it");
        let (mut released, still_kept): (Vec<_>, Vec<_>) =
            kept.drain(..).partition(|(path, file)| path == name || !file.is_ours());
        kept.extend(still_kept);
        kept.push_back((name.to_path_buf(), file));
        while kept.len() > self.kept_max {
            released.extend(kept.pop_front());
        }
        released
    }
}

#[pymethods]
impl Engine {
    /// Creates a read path. An option that is None keeps the default of `Builder`. Up to `kept_max`
    /// local files stay open after their last handle is closed. `whole_file_bytes` is the size of
    /// the largest file that may be read ahead whole. The others are for files by URL: the maximum
    /// size of a request, the number of retries, and the options of the client. `disk` has folder
    /// and size of a disk tier.
    ///
    /// Raises ValueError for an unusable option, OSError if the system lacks a resource that it
    /// names.
    #[new]
    #[allow(clippy::too_many_arguments, reason = "Python's side gives them all, by place")]
    fn new(
        page_cache: Option<&str>,
        memory_bytes: Option<u64>,
        readahead: Option<&str>,
        scheduler: Option<&str>,
        eviction: Option<&str>,
        depth: Option<Count>,
        backend: Option<&str>,
        kept_max: Count,
        kernel_cache: Option<bool>,
        whole_file_bytes: Option<u64>,
        request_bytes: Option<u64>,
        retries: Count,
        client_options: Vec<(String, String)>,
        disk: Option<(PathBuf, u64)>,
    ) -> PyResult<Engine> {
        let page_cache = page_cache.map(page_cache_named).transpose()?;
        let kind = backend.map(backend_named).transpose()?;
        // The builder refuses a depth beyond the ring's limit.
        let depth = depth.map(|depth| u32::try_from(depth.0).unwrap_or(u32::MAX));
        let mut options = ReadPath::builder();
        options = set_if_given(options, page_cache, Builder::page_cache);
        options = set_if_given(options, memory_bytes, Builder::memory);
        options = set_if_given(options, readahead, Builder::readahead);
        options = set_if_given(options, scheduler, Builder::scheduler);
        options = set_if_given(options, eviction, Builder::eviction);
        options = set_if_given(options, depth, Builder::depth);
        options = set_if_given(options, kind, Builder::backend);
        options = set_if_given(options, kernel_cache, Builder::kernel_cache);
        options = set_if_given(options, whole_file_bytes, Builder::whole_file_memory);
        let path = options.clone().build().map_err(|error| build_error(&error))?;
        // A reader holds a piece and prefetches the next one. With an eighth of the memory for
        // each, several readers have space. Without a memory size only the maximum applies.
        let eighth = |bytes: u64| (bytes / 8).next_multiple_of(PAGE_BYTES).min(PIECE_BYTES_MAX);
        let piece_bytes = memory_bytes.map_or(PIECE_BYTES_MAX, eighth);
        let path = Mutex::new(Own::new(path));
        // More files than a `usize` counts are no limit.
        let kept_max = usize::try_from(kept_max.0).unwrap_or(usize::MAX);
        let kept = Mutex::default();
        urls::check_client_options(&client_options)?;
        request_bytes.map(urls::check_request_bytes).transpose()?;
        let url_options = UrlOptions {
            client_options,
            request_bytes,
            retries: usize::try_from(retries.0).unwrap_or(usize::MAX),
            disk: disk.map(|(folder, bytes)| DiskOptions::new(folder, bytes)),
        };
        Ok(Engine(Arc::new(ForkAwareReadPath {
            options,
            url_options,
            disk: Mutex::default(),
            piece_bytes,
            path,
            kept_max,
            kept,
        })))
    }

    /// Name of the page cache: `kernel`, `own` or `none`.
    #[getter]
    fn page_cache(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.0.path(py)?.page_cache().name())
    }

    /// Counters of requests, of bytes from storage, of prefetched, wasted and evicted bytes, and
    /// the backend.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let path = self.0.path(py)?;
        stats_dict(py, &path)
    }

    /// The counters as numbers in Prometheus' text format, each with these labels. Raises
    /// ValueError for an invalid label name.
    fn prometheus(&self, py: Python<'_>, labels: Vec<(String, String)>) -> PyResult<String> {
        let path = self.0.path(py)?;
        let labels: Vec<(&str, &str)> =
            labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let stats = py.detach(|| path.stats());
        stats.prometheus(&labels).map_err(|error| refused(error.to_string()))
    }
}

/// Returns the counters of a read path as a dictionary.
pub fn stats_dict<'py>(py: Python<'py>, path: &ReadPath) -> PyResult<Bound<'py, PyDict>> {
    let stats = py.detach(|| path.stats());
    let dict = PyDict::new(py);
    dict.set_item("device_reads", stats.device_reads)?;
    dict.set_item("device_bytes", stats.device_bytes)?;
    dict.set_item("in_flight", stats.in_flight)?;
    dict.set_item("readahead_bytes", stats.readahead_bytes)?;
    dict.set_item("waste_bytes", stats.waste_bytes)?;
    dict.set_item("evicted_bytes", stats.evicted_bytes)?;
    dict.set_item("memory_bytes", stats.memory_bytes)?;
    dict.set_item("used_memory_bytes", stats.used_memory_bytes)?;
    dict.set_item("kernel_waits", stats.kernel_waits)?;
    dict.set_item("kernel_read_bytes", stats.kernel_read_bytes)?;
    dict.set_item("kernel_advised_bytes", stats.kernel_advised_bytes)?;
    dict.set_item("kernel_whole_file_bytes", stats.kernel_whole_file_bytes)?;
    dict.set_item("backend", stats.backend.map(|backend| backend.to_string()))?;
    Ok(dict)
}

/// Sets an option by `set` if it is given. None keeps the builder's default.
fn set_if_given<T>(
    options: Builder,
    value: Option<T>,
    set: impl Fn(Builder, T) -> Builder,
) -> Builder {
    match value {
        Some(value) => set(options, value),
        None => options,
    }
}

/// Returns the page cache of that name. Raises ValueError for an unknown one.
fn page_cache_named(name: &str) -> PyResult<PageCache> {
    match name {
        "kernel" => Ok(PageCache::Kernel),
        // The option `memory_bytes` has the size.
        "own" => Ok(PageCache::Own { bytes: None }),
        "none" => Ok(PageCache::None),
        other => {
            Err(refused(format!("page_cache={other:?}: the page cache is kernel, own or none")))
        }
    }
}

/// Raises ValueError for a name that no backend has.
#[pyfunction]
pub fn check_backend(name: &str) -> PyResult<()> {
    backend_named(name).map(drop)
}

/// Returns the backend of that name. Raises ValueError for an unknown one.
pub fn backend_named(name: &str) -> PyResult<BackendKind> {
    name.parse().map_err(|error: UnknownBackend| refused(error.to_string()))
}
