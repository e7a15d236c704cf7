//! Files and block devices through the real read path.
//!
//! Python's lock is released in every call that may take a lock of the engine. A thread that holds
//! Python's lock then never waits for one that needs it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pyo3::exceptions::{PyBufferError, PyMemoryError};
use pyo3::ffi::PyOS_FSPath;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};
use pyo3::{PyTraverseError, PyVisit, intern};
use readpath::nfs::NfsUrl;
use readpath::{Advice, File, ReadError};
use readpath_core::unit::PAGE_BYTES;

use crate::awaited::Awaited;
use crate::beside::beside;
use crate::buffers::{BufferMemory, Writable, new_bytes, zeroed};
use crate::engine::{Engine, Remade, counted};
use crate::failure::{Failure, not_opened};
use crate::many::{Offsets, Ranges, ReadRange, read_many};
use crate::policy::advice_named;
use crate::process::Own;
use crate::spec::{Count, check_name, refused};

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
    engine: Arc<Remade>,
    /// The engine's `ReadPath` object.
    within: Py<PyAny>,
    /// Name of the file, any object.
    name: Mutex<Py<PyAny>>,
    /// Absolute path, valid for any working directory.
    path: PathBuf,
    /// Length at open or at the last detected change.
    bytes: AtomicU64,
    position: AtomicU64,
}

impl LocalFile {
    /// Runs `work` with the file, without Python's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&File) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let file = self.file(py)?;
        let done = py.detach(|| {
            let done = work(file.get().expect("this process has opened it"));
            // If another thread has closed the file, it is released here.
            drop(file);
            done
        });
        done.map_err(PyErr::from)
    }

    /// Returns the file as opened by this process.
    fn file(&self, py: Python<'_>) -> PyResult<Arc<Own<File>>> {
        let held = || -> PyResult<Arc<Own<File>>> {
            let state = self.state.lock().expect("no thread panics while holding it");
            state.as_ref().map(Arc::clone).ok_or_else(|| Failure::Closed.into())
        };
        let file = held()?;
        if file.is_ours() {
            return Ok(file);
        }
        let again = Arc::new(self.engine.open(py, &self.path)?);
        let mut state = self.state.lock().expect("no thread panics while holding it");
        match &mut *state {
            None => Err(Failure::Closed.into()),
            Some(other) if other.is_ours() => Ok(Arc::clone(other)),
            stale => {
                *stale = Some(Arc::clone(&again));
                Ok(again)
            }
        }
    }

    /// Gives a hint about `bytes` bytes. The kernel takes long for a large range.
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
        beside(py, move || hint(file.get().expect("this process has opened it")))
    }

    fn left(&self, offset: u64, size: u64) -> u64 {
        size.min(self.size().saturating_sub(offset))
    }

    fn fill(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let held = Writable::of(buffer)?;
        let (place, room) = held.place();
        let place = BufferMemory(place);
        // SAFETY: `held` keeps the memory in place until the return. As with every `readinto`,
        // another thread that uses the memory sees some of the new bytes.
        let filled = unsafe { self.fill_place(py, offset, place, room) };
        drop(held);
        filled
    }

    /// Fills `room` bytes at `place` and returns their number. A long read is split, and the next
    /// piece is prefetched during the current one. Signals are handled in between.
    ///
    /// # Safety
    /// `room` bytes are writable there until the return.
    unsafe fn fill_place(
        &self,
        py: Python<'_>,
        offset: u64,
        place: BufferMemory,
        room: usize,
    ) -> PyResult<usize> {
        let piece_bytes = self.engine.piece_bytes;
        let mut filled = 0;
        loop {
            let at = offset.saturating_add(filled as u64);
            let piece = (room - filled).min(piece_bytes as usize);
            let is_last = filled + piece == room;
            // SAFETY: within the buffer.
            let place = BufferMemory(unsafe { place.0.add(filled) });
            let came = self.with(py, move |file| {
                if !is_last && !file.is_cached(at.saturating_add(piece as u64), piece_bytes) {
                    file.prefetch(at.saturating_add(piece as u64), piece_bytes);
                }
                // SAFETY: guaranteed by the caller.
                let buffer = unsafe { place.slice(piece) };
                Ok(file.read_at(buffer, at)?)
            })?;
            filled += came;
            if is_last || came < piece {
                return Ok(filled);
            }
            py.check_signals()?;
        }
    }
}

#[pymethods]
impl LocalFile {
    /// Opens a file or block device, or a server's file by its `nfs://` URL, through a `ReadPath`.
    /// Raises the OSError of the system, ValueError for an invalid URL.
    #[new]
    fn new(
        py: Python<'_>,
        path: Bound<'_, PyAny>,
        within: Bound<'_, PyAny>,
    ) -> PyResult<LocalFile> {
        let held = within.getattr(intern!(py, "_engine"))?;
        let engine = &held.cast::<Engine>()?.get().0;
        let name = file_system_path(path)?;
        let given = match name.cast::<PyBytes>() {
            Ok(name) => PathBuf::from(OsStr::from_bytes(name.as_bytes())),
            Err(_) => name.extract()?,
        };
        check_name(&given)?;
        let is_remote = given.to_str().is_some_and(NfsUrl::is_meant);
        let (path, relative) = match is_remote || given.is_absolute() {
            true => (given, None),
            false => (std::path::absolute(&given)?, Some(given)),
        };
        let file = match (engine.open(py, &path), relative) {
            // The error names the file by the given name.
            (Err(_), Some(given)) => engine.open(py, &given)?,
            (opened, _) => opened?,
        };
        let bytes = file.get().expect("it was just opened").len();
        Ok(LocalFile {
            state: Mutex::new(Some(Arc::new(file))),
            engine: Arc::clone(engine),
            within: within.unbind(),
            name: Mutex::new(name.unbind()),
            path,
            bytes: AtomicU64::new(bytes),
            position: AtomicU64::new(0),
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.within)
    }

    /// Name given at open, or assigned later.
    #[getter]
    fn name(&self, py: Python<'_>) -> Py<PyAny> {
        self.name.lock().expect("no thread panics while holding it").clone_ref(py)
    }

    #[setter]
    fn set_name(&self, name: Py<PyAny>) {
        let before = {
            let mut held = self.name.lock().expect("no thread panics while holding it");
            std::mem::replace(&mut *held, name)
        };
        drop(before);
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

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        slf.get().tell()?;
        Ok(slf.clone())
    }

    fn __exit__(
        slf: &Bound<'_, Self>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        slf.call_method0(intern!(slf.py(), "close")).map(drop)
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        LocalFile::__enter__(slf)
    }

    fn __next__<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let line = slf.call_method0(intern!(slf.py(), "readline"))?;
        Ok(line.is_truthy()?.then_some(line))
    }

    /// True if the file is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.state.lock().expect("no thread panics while holding it").is_none()
    }

    /// Closes the file. Reads in flight on other threads end normally.
    fn close(&self, py: Python<'_>) {
        let file = self.state.lock().expect("no thread panics while holding it").take();
        // The last reader of the file closes it.
        let file = file.and_then(Arc::into_inner).and_then(Own::into_inner);
        py.detach(|| drop(file));
    }

    /// The position.
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
        let (bytes, place) = new_bytes(py, self.left(offset.0, size.0) as usize)?;
        let room = bytes.as_bytes().len();
        // SAFETY: the object is new and has no other user.
        let filled = unsafe { self.fill_place(py, offset.0, BufferMemory(place), room)? };
        if filled < room {
            return Err(
                Failure::Read(ReadError::Shrunk { offset: offset.0 + filled as u64 }).into()
            );
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
        self.fill(py, offset.0, buffer)
    }

    /// Fills a writable buffer from the position and returns the number of bytes, fewer only at the
    /// end.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let position = self.position();
        let filled = self.fill(py, position, buffer)?;
        self._set(position + filled as u64);
        Ok(filled)
    }

    /// Returns up to `size` bytes from the position, fewer only at the end. Without a size it
    /// returns all remaining bytes.
    #[pyo3(signature = (size=None))]
    fn read<'py>(&self, py: Python<'py>, size: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        let size = size.and_then(|size| u64::try_from(size).ok()).unwrap_or(u64::MAX);
        let position = self.position();
        let bytes = self.readat(py, Count(position), Count(size))?;
        self._set(position + bytes.as_bytes().len() as u64);
        Ok(bytes)
    }

    /// Returns the bytes from the position to the next newline, inclusive, or to the end; at most
    /// `size` if given.
    #[pyo3(signature = (size=None))]
    fn readline<'py>(&self, py: Python<'py>, size: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        let most = size.and_then(|size| usize::try_from(size).ok()).unwrap_or(usize::MAX);
        let (position, mut line, mut piece_bytes) = (self.position(), Vec::new(), LINE_BYTES);
        loop {
            let known = line.len();
            let at = position + known as u64;
            let room = line.try_reserve(piece_bytes);
            room.map_err(|error| PyMemoryError::new_err(error.to_string()))?;
            line.resize(known + piece_bytes.min(most - known), 0);
            let piece = &mut line[known..];
            let came = self.with(py, move |file| Ok(file.read_at(piece, at)?))?;
            let newline = line[known..known + came].iter().position(|&byte| byte == b'\n');
            let is_last = known + came < line.len() || line.len() == most;
            line.truncate(known + newline.map_or(came, |at| at + 1));
            if newline.is_some() || is_last {
                self._set(position + line.len() as u64);
                return Ok(PyBytes::new(py, &line));
            }
            piece_bytes = (2 * piece_bytes).min(LINE_BYTES_MAX);
            py.check_signals()?;
        }
    }

    /// Returns the bytes of each `(offset, size)`, submitted together.
    ///
    /// `ranges`: any number of pairs, or an array of 64-bit integers with two columns.
    fn readat_many<'py>(
        &self,
        py: Python<'py>,
        ranges: Ranges,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let mut all = Vec::with_capacity(ranges.0.len());
        let mut parts = Vec::with_capacity(ranges.0.len());
        for (offset, size) in ranges.0 {
            let (object, place) = new_bytes(py, self.left(offset, size) as usize)?;
            let bytes = object.as_bytes().len();
            parts.push(ReadRange { offset, place: BufferMemory(place), bytes });
            all.push(object);
        }
        // SAFETY: the objects are new, have these sizes, and have no other user.
        self.with(py, move |file| unsafe { read_many(file, &parts) })?;
        Ok(all)
    }

    /// Fills a buffer from each offset, submitted together. Returns the number of bytes of each.
    ///
    /// `buffers`: one writable buffer per offset, or one buffer that is split into equal parts,
    /// like an array of rows. A part is filled partially only at the end of the file.
    fn readinto_many<'py>(
        &self,
        py: Python<'py>,
        offsets: Offsets,
        buffers: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let offsets = offsets.0;
        let (held, places) = match Writable::of(buffers) {
            Ok(whole) => {
                let places = parts_of(&whole, offsets.len())?;
                (vec![whole], places)
            }
            Err(error) if error.is_instance_of::<PyBufferError>(py) => return Err(error),
            Err(_) => {
                let each = buffers.try_iter()?.map(|one| Writable::of(&one?));
                let held = each.collect::<PyResult<Vec<Writable>>>()?;
                let places = held.iter().map(Writable::place).collect();
                (held, places)
            }
        };
        if places.len() != offsets.len() {
            let (places, offsets) = (places.len(), offsets.len());
            return Err(refused(format!("{places} buffers for {offsets} offsets")));
        }
        let part = |(offset, (place, room)): (u64, (*mut u8, usize))| {
            let bytes = self.left(offset, room as u64) as usize;
            ReadRange { offset, place: BufferMemory(place), bytes }
        };
        let parts: Vec<ReadRange> = offsets.into_iter().zip(places).map(part).collect();
        let counts = PyList::new(py, parts.iter().map(|part| part.bytes))?;
        // SAFETY: `held` keeps the memory in place until the return. As with every `readinto`,
        // another thread that uses the memory sees some of the new bytes.
        self.with(py, move |file| unsafe { read_many(file, &parts) })?;
        drop(held);
        Ok(counts)
    }

    /// Checks for a change of the file since it was opened or last checked.
    ///
    /// After a change it is read again with its new length. Raises the OSError of the system if the
    /// file is gone. The open file stays usable then.
    fn revalidate(&self, py: Python<'_>) -> PyResult<bool> {
        let held = self.file(py)?;
        let again = py.detach(|| {
            let mut file = held.get().expect("this process has opened it").clone();
            file.revalidate().map(|has_changed| has_changed.then(|| Own::new(file)))
        });
        let Some(again) = again.map_err(|error| not_opened(&error))? else { return Ok(false) };
        self.bytes.store(again.get().expect("it was just opened").len(), Ordering::Relaxed);
        let again = Arc::new(again);
        let stale = {
            let mut state = self.state.lock().expect("no thread panics while holding it");
            match &*state {
                None => return Err(Failure::Closed.into()),
                Some(_) => state.replace(again),
            }
        };
        py.detach(|| drop((stale, held)));
        Ok(true)
    }

    /// Starts a read that is polled.
    fn _start(&self, py: Python<'_>, offset: Count, size: Count) -> PyResult<Awaited> {
        let (offset, size) = (offset.0, self.left(offset.0, size.0) as usize);
        let buffer = zeroed(size)?;
        let future = self.with(py, |file| Ok(file.read_at_async(buffer, offset)))?;
        Ok(Awaited::new(future))
    }

    /// Gives a hint on this handle's reads, by its name in `posix_fadvise`.
    fn advise(&self, py: Python<'_>, advice: &str) -> PyResult<()> {
        let advice: Advice = advice_named(advice)?;
        let bytes = if let Advice::WillNeed = advice { self.size() } else { 0 };
        self.hint(py, bytes, move |file| file.advise(advice))
    }

    /// Starts to read a range that will be needed, without a wait.
    fn prefetch(&self, py: Python<'_>, offset: Count, size: Count) -> PyResult<()> {
        let bytes = self.left(offset.0, size.0);
        self.hint(py, bytes, move |file| file.prefetch(offset.0, size.0))
    }

    /// Like `prefetch`, for each `(offset, size)`.
    fn prefetch_many(&self, py: Python<'_>, ranges: Ranges) -> PyResult<()> {
        // Each range takes at least as long as a page.
        let each = |&(offset, size): &(u64, u64)| self.left(offset, size).max(PAGE_BYTES);
        let bytes = ranges.0.iter().map(each).fold(0, u64::saturating_add);
        self.hint(py, bytes, move |file| {
            ranges.0.into_iter().for_each(|(offset, size)| file.prefetch(offset, size));
        })
    }

    /// Counters of this file: bytes read, bytes found cached, bytes found in the kernel page cache,
    /// and bytes that the kernel read for reads that waited.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.with(py, |file| Ok(file.stats()))?;
        let all = PyDict::new(py);
        all.set_item("bytes", stats.bytes)?;
        all.set_item("cached_bytes", stats.cached_bytes)?;
        all.set_item("kernel_cached_bytes", stats.kernel_cached_bytes)?;
        all.set_item("kernel_read_bytes", stats.kernel_read_bytes)?;
        Ok(all)
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
        counted(py, &path)
    }
}

impl LocalFile {
    fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }
}

/// Returns the result of `os.fspath`: text or bytes.
fn file_system_path(path: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    if path.is_exact_instance_of::<PyString>() {
        return Ok(path);
    }
    // SAFETY: a new reference or null, as documented.
    unsafe { Bound::from_owned_ptr_or_err(path.py(), PyOS_FSPath(path.as_ptr())) }
}

/// Splits a writable buffer into `count` equal parts.
fn parts_of(whole: &Writable, count: usize) -> PyResult<Vec<(*mut u8, usize)>> {
    let (place, bytes) = whole.place();
    if count == 0 || bytes % count != 0 {
        return Err(refused(format!("a buffer of {bytes} bytes can't be cut into {count} parts")));
    }
    let part = bytes / count;
    // SAFETY: within the buffer.
    Ok((0..count).map(|at| (unsafe { place.add(at * part) }, part)).collect())
}
