//! Files and block devices through the real read path.
//!
//! Python's lock is let go of in every call that may come to the engine's: a thread
//! that holds Python's then never waits for one that wants it.

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
use crate::policy::advice_named;
use crate::many::{Offsets, ReadRange, Ranges, read_many};
use crate::process::Own;
use crate::spec::{Count, check_name, refused};

/// A line is looked for in pieces from so much on.
const LINE_BYTES: usize = 256;
/// And up to so much.
const LINE_BYTES_MAX: usize = 64 << 10;

/// A hint about more than this is given beside, so that signals are heard meanwhile.
const HINT_BYTES_MAX: u64 = 16 << 20;

/// A file that is open: positioned reads, and one position of its own.
///
/// In a child made by `fork` it is opened again by its name when it is first used.
///
/// Python's own class of files is derived from it: who opens many small files, or reads little at a time, pays for each call that
/// goes through a method written in Python.
#[pyclass(frozen, subclass, module = "readpath")]
pub struct LocalFile {
    /// None once it is closed. Locked with Python's lock held alone; whoever reads has
    /// the file until the read has ended.
    state: Mutex<Option<Arc<Own<File>>>>,
    engine: Arc<Remade>,
    /// The `ReadPath` of that engine.
    within: Py<PyAny>,
    /// What it is called, which may be anything.
    name: Mutex<Py<PyAny>>,
    /// By which it can be opened again, whatever the working directory is then.
    path: PathBuf,
    /// The length, when it was opened or last seen to have changed.
    bytes: AtomicU64,
    position: AtomicU64,
}

impl LocalFile {
    /// Does something with the file, without Python's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&File) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let file = self.file(py)?;
        let done = py.detach(|| {
            let done = work(file.get().expect("this process has opened it"));
            // Closed by another thread meanwhile, it goes here.
            drop(file);
            done
        });
        done.map_err(PyErr::from)
    }

    /// The file, as this process has it.
    fn file(&self, py: Python<'_>) -> PyResult<Arc<Own<File>>> {
        let held = || -> PyResult<Arc<Own<File>>> {
            let state = self.state.lock().expect("nobody panics while holding it");
            state.as_ref().map(Arc::clone).ok_or_else(|| Failure::Closed.into())
        };
        let file = held()?;
        if file.is_ours() {
            return Ok(file);
        }
        let again = Arc::new(self.engine.open(py, &self.path)?);
        let mut state = self.state.lock().expect("nobody panics while holding it");
        match &mut *state {
            None => Err(Failure::Closed.into()),
            Some(other) if other.is_ours() => Ok(Arc::clone(other)),
            stale => {
                *stale = Some(Arc::clone(&again));
                Ok(again)
            }
        }
    }

    /// Gives a hint about so many bytes. The kernel takes its time for what is long.
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
        // SAFETY: `held` keeps the memory where it is until we return. As with every
        // `readinto`, who uses it on another thread meanwhile finds some of the new bytes.
        let filled = unsafe { self.fill_place(py, offset, place, room) };
        drop(held);
        filled
    }

    /// Fills `room` bytes at `place`; gives how many there were. A long read is made in pieces, each of
    /// which is on its way while the one before it comes, so that signals are heard between.
    ///
    /// # Safety
    /// So many bytes can be written there, and stay until this returns.
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
            // SAFETY: within the room.
            let place = BufferMemory(unsafe { place.0.add(filled) });
            let came = self.with(py, move |file| {
                if !is_last && !file.is_cached(at.saturating_add(piece as u64), piece_bytes) {
                    file.prefetch(at.saturating_add(piece as u64), piece_bytes);
                }
                // SAFETY: the caller's promise.
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
    /// Opens a file or a block device, or a server's file by its `nfs://` URL, through a `ReadPath`. Raises the OSError
    /// of the answer, ValueError where a URL is none.
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
            // What can't be opened is told of by the name that was given.
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

    /// What it was opened by, unless it was called otherwise since.
    #[getter]
    fn name(&self, py: Python<'_>) -> Py<PyAny> {
        self.name.lock().expect("nobody panics while holding it").clone_ref(py)
    }

    #[setter]
    fn set_name(&self, name: Py<PyAny>) {
        let before = {
            let mut held = self.name.lock().expect("nobody panics while holding it");
            std::mem::replace(&mut *held, name)
        };
        drop(before);
    }

    /// The read path that it was opened by.
    #[getter]
    fn _within(&self, py: Python<'_>) -> Py<PyAny> {
        self.within.clone_ref(py)
    }

    /// The length in bytes: when it was opened, or last seen to have changed.
    #[getter]
    fn size(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// By what it can be opened again, from any working directory.
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

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.state.lock().expect("nobody panics while holding it").is_none()
    }

    /// Closes it; reads under way on other threads end as if it were open.
    fn close(&self, py: Python<'_>) {
        let file = self.state.lock().expect("nobody panics while holding it").take();
        // Who still reads has it, and closes it.
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

    /// The bytes at `offset`; the position stays. Fewer than `size` only at the end of the file.
    ///
    /// Raises ValueError for negative numbers, OSError where the storage fails on bytes that are needed.
    fn readat<'py>(
        &self,
        py: Python<'py>,
        offset: Count,
        size: Count,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (bytes, place) = new_bytes(py, self.left(offset.0, size.0) as usize)?;
        let room = bytes.as_bytes().len();
        // SAFETY: the object is new, and nobody else has it yet.
        let filled = unsafe { self.fill_place(py, offset.0, BufferMemory(place), room)? };
        if filled < room {
            return Err(
                Failure::Read(ReadError::Shrunk { offset: offset.0 + filled as u64 }).into()
            );
        }
        Ok(bytes)
    }

    /// Fills a writable buffer from `offset` on; gives how many bytes. The position stays.
    fn readinto_at(
        &self,
        py: Python<'_>,
        offset: Count,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        self.fill(py, offset.0, buffer)
    }

    /// Fills a writable buffer from the position on; gives how many bytes: fewer only at the end.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let position = self.position();
        let filled = self.fill(py, position, buffer)?;
        self._set(position + filled as u64);
        Ok(filled)
    }

    /// Up to `size` bytes from the position on, and fewer only at the end; all that is left without one.
    #[pyo3(signature = (size=None))]
    fn read<'py>(&self, py: Python<'py>, size: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        let size = size.and_then(|size| u64::try_from(size).ok()).unwrap_or(u64::MAX);
        let position = self.position();
        let bytes = self.readat(py, Count(position), Count(size))?;
        self._set(position + bytes.as_bytes().len() as u64);
        Ok(bytes)
    }

    /// The bytes from the position up to the next newline and with it, or to the end; no more than `size`, if given.
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

    /// The bytes of each `(offset, size)`, handed over together.
    ///
    /// `ranges`: pairs, or an array of 64-bit integers with two columns; of any number.
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
        // SAFETY: the objects are new and have so many bytes; nobody else has them yet.
        self.with(py, move |file| unsafe { read_many(file, &parts) })?;
        Ok(all)
    }

    /// Fills a buffer from each offset on, handed over together; gives how many bytes each.
    ///
    /// `buffers`: as many writable buffers, or one that is cut into as many parts of one size, as an array of
    /// rows is. Fewer bytes than there is room for only at the end of the file.
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
        // SAFETY: `held` keeps the memory where it is until we return. As with every
        // `readinto`, who uses it on another thread meanwhile finds some of the new bytes.
        self.with(py, move |file| unsafe { read_many(file, &parts) })?;
        drop(held);
        Ok(counts)
    }

    /// Looks whether the file of that name has changed since it was opened, or was last looked at.
    ///
    /// If so it is read afresh from now on, with the length that it has now. Raises the OSError of the answer
    /// where it isn't there any more; the file that was open goes on then.
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
            let mut state = self.state.lock().expect("nobody panics while holding it");
            match &*state {
                None => return Err(Failure::Closed.into()),
                Some(_) => state.replace(again),
            }
        };
        py.detach(|| drop((stale, held)));
        Ok(true)
    }

    /// Begins a read that is to be polled.
    fn _start(&self, py: Python<'_>, offset: Count, size: Count) -> PyResult<Awaited> {
        let (offset, size) = (offset.0, self.left(offset.0, size.0) as usize);
        let buffer = zeroed(size)?;
        let future = self.with(py, |file| Ok(file.read_at_async(buffer, offset)))?;
        Ok(Awaited::new(future))
    }

    /// Gives a hint on how this handle will read, by its name in `posix_fadvise`.
    fn advise(&self, py: Python<'_>, advice: &str) -> PyResult<()> {
        let advice: Advice = advice_named(advice)?;
        let bytes = if let Advice::WillNeed = advice { self.size() } else { 0 };
        self.hint(py, bytes, move |file| file.advise(advice))
    }

    /// Starts to read a range that will be needed, and doesn't wait for it.
    fn prefetch(&self, py: Python<'_>, offset: Count, size: Count) -> PyResult<()> {
        let bytes = self.left(offset.0, size.0);
        self.hint(py, bytes, move |file| file.prefetch(offset.0, size.0))
    }

    /// As `prefetch`, of each `(offset, size)`.
    fn prefetch_many(&self, py: Python<'_>, ranges: Ranges) -> PyResult<()> {
        // Each takes as long as a page, at least.
        let each = |&(offset, size): &(u64, u64)| self.left(offset, size).max(PAGE_BYTES);
        let bytes = ranges.0.iter().map(each).fold(0, u64::saturating_add);
        self.hint(py, bytes, move |file| {
            ranges.0.into_iter().for_each(|(offset, size)| file.prefetch(offset, size));
        })
    }

    /// What was read through this file, how much of it was there when the read came, and of that in the kernel's
    /// cache; and how much the kernel read into its cache for reads that waited.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.with(py, |file| Ok(file.stats()))?;
        let all = PyDict::new(py);
        all.set_item("bytes", stats.bytes)?;
        all.set_item("cached_bytes", stats.cached_bytes)?;
        all.set_item("kernel_cached_bytes", stats.kernel_cached_bytes)?;
        all.set_item("kernel_read_bytes", stats.kernel_read_bytes)?;
        Ok(all)
    }

    /// What the readahead law believes of the file, in a line: price, chance, newest window and why.
    ///
    /// `None` in a child of `fork` that can't have a path of its own.
    fn readahead_state(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |file| Ok(file.stats().readahead_state.map(|readahead_state| readahead_state.to_string())))
    }

    /// What its read path has counted: for all the files that it has, as `ReadPath.stats`.
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

/// What `os.fspath` gives: text, or bytes.
fn file_system_path(path: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    if path.is_exact_instance_of::<PyString>() {
        return Ok(path);
    }
    // SAFETY: a new reference or null, as the call says.
    unsafe { Bound::from_owned_ptr_or_err(path.py(), PyOS_FSPath(path.as_ptr())) }
}

/// Cuts a writable buffer into `count` parts of one size.
fn parts_of(whole: &Writable, count: usize) -> PyResult<Vec<(*mut u8, usize)>> {
    let (place, bytes) = whole.place();
    if count == 0 || bytes % count != 0 {
        return Err(refused(format!("a buffer of {bytes} bytes can't be cut into {count} parts")));
    }
    let part = bytes / count;
    // SAFETY: within the buffer.
    Ok((0..count).map(|at| (unsafe { place.add(at * part) }, part)).collect())
}
