//! Files and block devices through the real read path.
//!
//! Python's lock is released in every call that may take a lock of the engine. A thread that holds
//! Python's lock then never waits for one that needs it.
//!
//! An `Own` holds a value of the process that created it. In a child of `fork` its `get` and
//! `into_inner` return none.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pyo3::exceptions::{PyBufferError, PyMemoryError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use pyo3::{PyTraverseError, PyVisit, intern};
use readpath::nfs::NfsUrl;
use readpath::{Advice, File, ReadError};
use readpath_core::unit::PAGE_BYTES;

use crate::awaited::Awaited;
use crate::buffers::{BufferMemory, Writable, equal_parts, new_bytes, zeroed};
use crate::engine::{Engine, ForkAwareReadPath, stats_dict};
use crate::failure::Failure;
use crate::interruptible::run_interruptible;
use crate::many::{Offsets, Ranges, ReadRange};
use crate::policy::advice_named;
use crate::process::Own;
use crate::spec::{Count, check_name, file_system_path, refused};
use crate::urls::{self, Reports};

mod fills;
mod versions;

/// Size of the first piece in which a newline is searched, in bytes.
const LINE_BYTES: usize = 256;
/// Maximum size of these pieces.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Size in bytes above which a hint is given on a separate thread, so that signals are handled.
const HINT_BYTES_MAX: u64 = 16 << 20;

/// An open file: positional reads, and a position of its own.
///
/// In a child of `fork` it is opened again by its name at the first use.
///
/// Python's file class derives from it. Methods written in Python would cost too much for programs
/// that open many small files or make small reads.
#[pyclass(frozen, subclass, module = "readpath")]
pub struct LocalFile {
    /// The file, or None once it is closed. Locked only with Python's lock held. A read owns a
    /// reference until it ends.
    state: Mutex<Option<Arc<Own<File>>>>,
    engine: Arc<ForkAwareReadPath>,
    /// Python's object of the class ReadPath, to which the engine belongs.
    within: Py<PyAny>,
    /// Name of the file, any object.
    name: Mutex<Py<PyAny>>,
    /// Absolute path, valid for any working directory, or a URL.
    path: PathBuf,
    /// Reports about the object, if the name is the URL of one.
    reports: Option<Arc<Reports>>,
    /// True for a server's file: an object, or a file by NFS. Its reads may wait for seconds.
    is_remote: bool,
    /// Length at open or at the last detected change.
    bytes: AtomicU64,
    /// Version of that length.
    version: versions::KnownVersion,
    position: AtomicU64,
    /// Last hint that applies to the handle and not to a range. A file that is opened again gets
    /// it. Locked only with Python's lock held.
    advice: Mutex<Advice>,
}

impl LocalFile {
    /// Runs `work` with the file, without Python's lock. Raises ValueError if the file is closed,
    /// and OSError if a child of `fork` cannot open the same file again. Also raises the failure of
    /// `work`.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&File) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let file = self.file(py)?;
        let result = py.detach(|| {
            let result = work(file.get().expect("this process has opened it"));
            // If another thread has closed the file, it is released here.
            drop(file);
            result
        });
        result.map_err(|failure| failure.of_file(self.name(py)))
    }

    /// Gives a hint about `bytes` bytes by a call of `hint`. The kernel takes long for more than
    /// [`HINT_BYTES_MAX`], so `hint` is then called on a separate thread while signals are handled.
    fn hint(
        &self,
        py: Python<'_>,
        bytes: u64,
        hint: impl FnOnce(&File) + Send + 'static,
    ) -> PyResult<()> {
        if bytes <= HINT_BYTES_MAX {
            return self.with(py, |file| {
                hint(file);
                Ok(())
            });
        }
        let file = self.file(py)?;
        run_interruptible(py, move || hint(file.get().expect("this process has opened it")))
    }

    /// Number of the `size` bytes at `offset` that lie within the file.
    fn bytes_within(&self, offset: u64, size: u64) -> u64 {
        size.min(self.size().saturating_sub(offset))
    }
}

#[pymethods]
impl LocalFile {
    /// Opens a file or block device, a server's file by its `nfs://` URL, or an object by its URL.
    /// `within` is the `ReadPath` of Python. Raises the OSError of the system, ValueError for an
    /// invalid URL.
    #[new]
    fn new(
        py: Python<'_>,
        path: Bound<'_, PyAny>,
        within: Bound<'_, PyAny>,
    ) -> PyResult<LocalFile> {
        let engine_object = within.getattr(intern!(py, "_engine"))?;
        let engine = &engine_object.cast::<Engine>()?.get().0;
        let name = file_system_path(path)?;
        let given_path = match name.cast::<PyBytes>() {
            Ok(name) => PathBuf::from(OsStr::from_bytes(name.as_bytes())),
            Err(_) => name.extract()?,
        };
        check_name(&given_path)?;
        let reports = given_path.to_str().filter(|name| urls::is_meant(name));
        let reports = reports.map(|_| Arc::new(Reports::default()));
        let is_remote = reports.is_some() || given_path.to_str().is_some_and(NfsUrl::is_meant);
        let (path, relative_path) = match is_remote || given_path.is_absolute() {
            true => (given_path, None),
            false => (std::path::absolute(&given_path)?, Some(given_path)),
        };
        let file = match (engine.open_any(py, &path, reports.as_ref()), relative_path) {
            // A second attempt, whose error names the file by the given name.
            (Err(_), Some(relative_path)) => engine.open_any(py, &relative_path, None)?,
            (opened, _) => opened?,
        };
        let bytes = file.get().expect("it was just opened").len();
        let version = versions::KnownVersion::new(reports.as_deref());
        Ok(LocalFile {
            state: Mutex::new(Some(Arc::new(file))),
            engine: Arc::clone(engine),
            within: within.unbind(),
            name: Mutex::new(name.unbind()),
            path,
            reports,
            is_remote,
            bytes: AtomicU64::new(bytes),
            version,
            position: AtomicU64::new(0),
            advice: Mutex::default(),
        })
    }

    /// Visits the read path, for Python's garbage collector. The name, behind a lock, is left out.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.within)
    }

    /// Name given at open, or assigned later.
    #[getter]
    fn name(&self, py: Python<'_>) -> Py<PyAny> {
        self.name.lock().expect("no thread panics while holding it").clone_ref(py)
    }

    /// Assigns another name. The file stays the same.
    #[setter]
    fn set_name(&self, name: Py<PyAny>) {
        let previous_name = {
            let mut current_name = self.name.lock().expect("no thread panics while holding it");
            std::mem::replace(&mut *current_name, name)
        };
        // Dropping an object may run Python code, so the lock is released before.
        drop(previous_name);
    }

    /// Read path of the file.
    #[getter]
    fn _within(&self, py: Python<'_>) -> Py<PyAny> {
        self.within.clone_ref(py)
    }

    /// Length in bytes at open or at the last detected change.
    #[getter]
    fn size(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Absolute path, valid for any working directory.
    #[getter]
    fn _path(&self) -> &OsStr {
        self.path.as_os_str()
    }

    /// Version of the object of a URL, or None for other files.
    #[getter]
    fn _version(&self) -> Option<String> {
        self.reports.as_ref().map(|_| self.version.of_object())
    }

    /// Returns the file itself. Raises ValueError if it is closed.
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        slf.get().tell()?;
        Ok(slf.clone())
    }

    /// Closes the file, by the method `close` of the derived class.
    fn __exit__(
        slf: &Bound<'_, Self>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        slf.call_method0(intern!(slf.py(), "close")).map(drop)
    }

    /// Returns the file itself as the iterator over its lines.
    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        LocalFile::__enter__(slf)
    }

    /// Returns the next line, by the method `readline` of the derived class. None, the end of the
    /// iteration, for an empty line: only the end of the file has one.
    fn __next__<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let line = slf.call_method0(intern!(slf.py(), "readline"))?;
        Ok(line.is_truthy()?.then_some(line))
    }

    /// True if the file is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.state.lock().expect("no thread panics while holding it").is_none()
    }

    /// Closes the file. Reads in flight on other threads end normally. No effect if it is closed.
    fn close(&self, py: Python<'_>) {
        let file = self.state.lock().expect("no thread panics while holding it").take();
        // `None` while another thread reads it: the last reader then closes the file. `None` too in
        // a child of `fork` that has not opened it again: the file belongs to the parent.
        let file = file.and_then(Arc::into_inner).and_then(Own::into_inner);
        py.detach(|| drop(file));
    }

    /// The position. Raises ValueError if the file is closed.
    fn tell(&self) -> PyResult<u64> {
        if self.closed() { Err(Failure::Closed.into()) } else { Ok(self.position()) }
    }

    /// Sets the position.
    fn _set(&self, position: u64) {
        self.position.store(position, Ordering::Relaxed);
    }

    /// Returns the bytes at `offset`, fewer than `size` only at the end of the file. The position
    /// stays.
    ///
    /// Raises ValueError for negative numbers, OSError for a storage error on requested bytes.
    fn readat<'py>(
        &self,
        py: Python<'py>,
        offset: Count,
        size: Count,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (bytes, address) = new_bytes(py, self.bytes_within(offset.0, size.0) as usize)?;
        let byte_count = bytes.as_bytes().len();
        // SAFETY: the object is new and has no other user.
        let filled = unsafe { self.fill_memory(py, offset.0, BufferMemory(address), byte_count)? };
        // The object has no other length, so a file that became shorter is an error.
        if filled < byte_count {
            let error = ReadError::Shrunk { offset: offset.0 + filled as u64 };
            return Err(Failure::Read(error).of_file(self.name(py)));
        }
        Ok(bytes)
    }

    /// Fills a writable buffer from `offset` and returns the number of bytes. The position stays.
    fn readinto_at(
        &self,
        py: Python<'_>,
        offset: Count,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        self.fill_buffer(py, offset.0, buffer)
    }

    /// Fills a writable buffer from the position and returns the number of bytes, fewer only at the
    /// end. Moves the position behind them.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let position = self.position();
        let filled = self.fill_buffer(py, position, buffer)?;
        self._set(position + filled as u64);
        Ok(filled)
    }

    /// Returns up to `size` bytes from the position, fewer only at the end, and moves the position
    /// behind them. Without a size, or with a negative one, it returns all remaining bytes.
    ///
    /// Threads share the position: concurrent reads from it may return the same bytes. Several
    /// threads use `readat`.
    #[pyo3(signature = (size=None))]
    fn read<'py>(&self, py: Python<'py>, size: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        let size = size.and_then(|size| u64::try_from(size).ok()).unwrap_or(u64::MAX);
        let position = self.position();
        let bytes = self.readat(py, Count(position), Count(size))?;
        self._set(position + bytes.as_bytes().len() as u64);
        Ok(bytes)
    }

    /// Returns the bytes from the position to the next newline, inclusive, or to the end; at most
    /// `size` if given and not negative. Moves the position behind them; after an exception it is
    /// unchanged.
    #[pyo3(signature = (size=None))]
    fn readline<'py>(&self, py: Python<'py>, size: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes_max = size.and_then(|size| usize::try_from(size).ok()).unwrap_or(usize::MAX);
        let (position, mut line, mut piece_bytes) = (self.position(), Vec::new(), LINE_BYTES);
        loop {
            // The line so far has no newline. The next piece is read behind it.
            let searched = line.len();
            let piece_offset = position + searched as u64;
            let reserved = line.try_reserve(piece_bytes);
            reserved.map_err(|error| PyMemoryError::new_err(error.to_string()))?;
            line.resize(searched + piece_bytes.min(bytes_max - searched), 0);
            let piece = &mut line[searched..];
            let memory = BufferMemory(piece.as_mut_ptr());
            // SAFETY: `line` stays in place until the return.
            let bytes_read = unsafe { self.fill_memory(py, piece_offset, memory, piece.len())? };
            let piece = &line[searched..searched + bytes_read];
            let newline_index = piece.iter().position(|&byte| byte == b'\n');
            // A short read has met the end of the file.
            let is_last = searched + bytes_read < line.len() || line.len() == bytes_max;
            line.truncate(searched + newline_index.map_or(bytes_read, |index| index + 1));
            if newline_index.is_some() || is_last {
                self._set(position + line.len() as u64);
                return Ok(PyBytes::new(py, &line));
            }
            piece_bytes = (2 * piece_bytes).min(LINE_BYTES_MAX);
            py.check_signals()?;
        }
    }

    /// Returns the bytes of each `(offset, size)`, submitted together. A range has fewer bytes only
    /// at the end of the file.
    ///
    /// `ranges`: any number of pairs, or an array of integers with two columns.
    fn readat_many<'py>(
        &self,
        py: Python<'py>,
        ranges: Ranges,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let mut objects = Vec::with_capacity(ranges.0.len());
        let mut reads = Vec::with_capacity(ranges.0.len());
        for (offset, size) in ranges.0 {
            let (object, address) = new_bytes(py, self.bytes_within(offset, size) as usize)?;
            let bytes = object.as_bytes().len();
            reads.push(ReadRange { offset, memory: BufferMemory(address), bytes });
            objects.push(object);
        }
        // SAFETY: the objects are new, have these sizes, and have no other user.
        unsafe { self.fill_ranges(py, reads)? };
        Ok(objects)
    }

    /// Fills a buffer from each offset, submitted together. Returns the number of bytes of each.
    ///
    /// `buffers`: one writable buffer per offset, or one buffer that is split into equal parts,
    /// like an array of rows. A part is filled partially only at the end of the file.
    ///
    /// Raises ValueError unless there is a buffer for each offset, BufferError for one that is
    /// read-only or in several pieces.
    fn readinto_many<'py>(
        &self,
        py: Python<'py>,
        offsets: Offsets,
        buffers: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let offsets = offsets.0;
        // Address and length of the memory for each offset.
        let (pinned, memories) = match Writable::of(buffers) {
            Ok(whole) => {
                let memories = equal_parts(&whole, offsets.len())?;
                (vec![whole], memories)
            }
            // One buffer, which is read-only or in several pieces.
            Err(error) if error.is_instance_of::<PyBufferError>(py) => return Err(error),
            // No buffer: a sequence of buffers.
            Err(_) => {
                let each = buffers.try_iter()?.map(|buffer| Writable::of(&buffer?));
                let pinned = each.collect::<PyResult<Vec<Writable>>>()?;
                let memories = pinned.iter().map(Writable::memory).collect();
                (pinned, memories)
            }
        };
        if memories.len() != offsets.len() {
            let (buffers, offsets) = (memories.len(), offsets.len());
            return Err(refused(format!("{buffers} buffers for {offsets} offsets")));
        }
        let read = |(offset, (address, length)): (u64, (*mut u8, usize))| {
            let bytes = self.bytes_within(offset, length as u64) as usize;
            ReadRange { offset, memory: BufferMemory(address), bytes }
        };
        let reads: Vec<ReadRange> = offsets.into_iter().zip(memories).map(read).collect();
        // All of these bytes are filled below, or an exception is raised.
        let counts = PyList::new(py, reads.iter().map(|read| read.bytes))?;
        // SAFETY: `pinned` keeps the memory in place until the return. As with every `readinto`,
        // another thread that uses the memory sees some of the new bytes.
        unsafe { self.fill_ranges(py, reads)? };
        drop(pinned);
        Ok(counts)
    }

    /// Checks for a change of the file since it was opened or last checked. Returns true after a
    /// change.
    ///
    /// After a change it is read again with its new length. Raises the OSError of the system if the
    /// file is gone. The open file stays usable then.
    fn revalidate(&self, py: Python<'_>) -> PyResult<bool> {
        match &self.reports {
            Some(reports) => self.revalidate_object(py, reports),
            None => self.revalidate_file(py),
        }
    }

    /// Starts a read that is polled. Its bytes are fewer than `size` only at the end of the file.
    fn _start(&self, py: Python<'_>, offset: Count, size: Count) -> PyResult<Awaited> {
        let (offset, size) = (offset.0, self.bytes_within(offset.0, size.0) as usize);
        let buffer = zeroed(size)?;
        let future = self.with(py, |file| Ok(file.read_at_async(buffer, offset)))?;
        let url = self.path.to_str().unwrap_or_default();
        let object = self.reports.clone().map(|reports| (reports, url.to_owned()));
        Ok(Awaited::new(future, self.name(py), object))
    }

    /// Gives a hint on this handle's reads, by its name in `posix_fadvise`.
    fn advise(&self, py: Python<'_>, advice: &str) -> PyResult<()> {
        let advice: Advice = advice_named(advice)?;
        if let Advice::Normal | Advice::Sequential | Advice::Random = advice {
            *self.advice.lock().expect("no thread panics while holding it") = advice;
        }
        // Only `WillNeed` starts reads, of the whole file.
        let bytes = if let Advice::WillNeed = advice { self.size() } else { 0 };
        self.hint(py, bytes, move |file| file.advise(advice))
    }

    /// Starts to read a range that will be needed, without a wait.
    fn prefetch(&self, py: Python<'_>, offset: Count, size: Count) -> PyResult<()> {
        let bytes = self.bytes_within(offset.0, size.0);
        self.hint(py, bytes, move |file| file.prefetch(offset.0, size.0))
    }

    /// Like `prefetch`, for each `(offset, size)`.
    fn prefetch_many(&self, py: Python<'_>, ranges: Ranges) -> PyResult<()> {
        // Each range takes at least as long as a page.
        let each = |&(offset, size): &(u64, u64)| self.bytes_within(offset, size).max(PAGE_BYTES);
        let bytes = ranges.0.iter().map(each).fold(0, u64::saturating_add);
        self.hint(py, bytes, move |file| {
            ranges.0.into_iter().for_each(|(offset, size)| file.prefetch(offset, size));
        })
    }

    /// Counters of this file: bytes read, bytes found cached, bytes found in the kernel page cache,
    /// and bytes that the kernel read for reads that waited.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.with(py, |file| Ok(file.stats()))?;
        let dict = PyDict::new(py);
        dict.set_item("bytes", stats.bytes)?;
        dict.set_item("cached_bytes", stats.cached_bytes)?;
        dict.set_item("kernel_cached_bytes", stats.kernel_cached_bytes)?;
        dict.set_item("kernel_read_bytes", stats.kernel_read_bytes)?;
        Ok(dict)
    }

    /// State of the readahead policy for the file in one line: cost, probability, last window and
    /// reason.
    ///
    /// `None` in a child of `fork` that cannot have its own path.
    fn readahead_state(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |file| {
            Ok(file.stats().readahead_state.map(|readahead_state| readahead_state.to_string()))
        })
    }

    /// Counters of its read path for all files, as `ReadPath.stats`.
    fn path_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let path = self.with(py, |file| Ok(file.read_path()))?;
        stats_dict(py, &path)
    }
}

impl LocalFile {
    /// Offset at which the next read without an offset begins.
    fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }
}
