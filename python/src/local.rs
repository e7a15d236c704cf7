//! Files and block devices through the real read path.
//!
//! Python's lock is let go of in every call that may come to the engine's: a thread
//! that holds Python's then never waits for one that wants it.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::{future::Future, pin::Pin};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use readpath::nfs::NfsError;
use readpath::nfs::NfsUrl;
use readpath::{
    Advice, BackendKind, Builder, File, OpenError, OpenFileError, ReadError, ReadFuture, ReadPath,
    UnknownBackend,
};
use readpath_core::request::DeviceError;
use readpath_core::unit::PAGE_BYTES;

use crate::buffers::{Place, new_bytes, writable};
use crate::law::advice_named;
use crate::process::Own;
use crate::spec::{Count, check_name, refused};

/// Signals are heard after so much at the latest: 8 ms at 1 GB/s.
const PIECE_BYTES_MAX: u64 = 8 << 20;

/// A read path: memory, laws and a ring, for any number of files.
#[pyclass(frozen, module = "readpath")]
pub struct Engine(Arc<Remade>);

/// A read path that is built anew in a child made by `fork`.
struct Remade {
    options: Builder,
    /// A larger read is made in pieces of so much.
    piece_bytes: u64,
    /// Locked with Python's lock held alone, so that no thread has it at a `fork`.
    path: Mutex<Own<ReadPath>>,
}

impl Remade {
    fn path(&self, _py: Python<'_>) -> PyResult<ReadPath> {
        let mut path = self.path.lock().expect("no build panics");
        if let Some(path) = path.get() {
            return Ok(path.clone());
        }
        let built = self.options.clone().build().map_err(refused)?;
        *path = Own::new(built.clone());
        Ok(built)
    }

    /// Opens a file of this machine through the path, or one of a server with a path like it.
    fn open(&self, py: Python<'_>, name: &Path) -> PyResult<Own<File>> {
        let is_remote = name.to_str().is_some_and(NfsUrl::is_meant);
        let path = self.path(py)?;
        let opened = py.detach(|| match is_remote {
            true => self.options.clone().open(name),
            false => path.open(name).map_err(OpenFileError::Open),
        });
        opened.map(Own::new).map_err(|error| not_opened(&error))
    }
}

#[pymethods]
impl Engine {
    /// Builds one. Raises ValueError where an option can't be used or had.
    #[new]
    fn new(
        memory_bytes: u64,
        readahead: &str,
        scheduler: &str,
        reclaim: &str,
        depth: Count,
        backend: &str,
    ) -> PyResult<Engine> {
        let kind = backend_named(backend)?;
        // More than a ring holds is refused by whoever builds it.
        let depth = u32::try_from(depth.0).unwrap_or(u32::MAX);
        let options = ReadPath::builder().memory(memory_bytes).readahead(readahead);
        let options = options.scheduler(scheduler).reclaim(reclaim).depth(depth).backend(kind);
        let path = options.clone().build().map_err(refused)?;
        let piece_bytes = (memory_bytes / 8).next_multiple_of(PAGE_BYTES).min(PIECE_BYTES_MAX);
        let path = Mutex::new(Own::new(path));
        Ok(Engine(Arc::new(Remade { options, piece_bytes, path })))
    }

    /// Opens a file or a block device, or a server's file by its `nfs://` URL. Raises the OSError
    /// of the answer, ValueError where a URL is none.
    fn open(&self, py: Python<'_>, name: PathBuf) -> PyResult<LocalFile> {
        check_name(&name)?;
        let file = self.0.open(py, &name)?;
        let is_remote = name.to_str().is_some_and(NfsUrl::is_meant);
        let name = if is_remote { name } else { std::path::absolute(name)? };
        let bytes = file.get().expect("it was just opened").len();
        Ok(LocalFile {
            state: Mutex::new(Some(Arc::new(file))),
            engine: Arc::clone(&self.0),
            name,
            bytes,
            position: AtomicU64::new(0),
        })
    }

    /// What was counted: requests and bytes of the storage, bytes read ahead, wasted, evicted;
    /// and what carries the bytes.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let path = self.0.path(py)?;
        counted(py, &path)
    }
}

fn counted<'py>(py: Python<'py>, path: &ReadPath) -> PyResult<Bound<'py, PyDict>> {
    let stats = py.detach(|| path.stats());
    let all = PyDict::new(py);
    all.set_item("device_reads", stats.device_reads)?;
    all.set_item("device_bytes", stats.device_bytes)?;
    all.set_item("in_flight", stats.in_flight)?;
    all.set_item("readahead_bytes", stats.readahead_bytes)?;
    all.set_item("waste_bytes", stats.waste_bytes)?;
    all.set_item("evicted_bytes", stats.evicted_bytes)?;
    all.set_item("backend", stats.backend.map(|backend| backend.to_string()))?;
    Ok(all)
}

/// The backend of that name.
pub fn backend_named(name: &str) -> PyResult<BackendKind> {
    name.parse().map_err(|error: UnknownBackend| refused(error.to_string()))
}

/// A file that is open: positioned reads, and one position of its own.
///
/// In a child made by `fork` it is opened again by its name when it is first used.
#[pyclass(frozen, module = "readpath")]
pub struct LocalFile {
    /// None once it is closed. Locked with Python's lock held alone; whoever reads has
    /// the file until the read has ended.
    state: Mutex<Option<Arc<Own<File>>>>,
    engine: Arc<Remade>,
    /// By which it can be opened again, whatever the working directory is then.
    name: PathBuf,
    bytes: u64,
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
            state.as_ref().map(Arc::clone).ok_or(Failure::Closed.into())
        };
        let file = held()?;
        if file.is_ours() {
            return Ok(file);
        }
        let again = Arc::new(self.engine.open(py, &self.name)?);
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

    fn left(&self, offset: u64, size: u64) -> u64 {
        size.min(self.bytes.saturating_sub(offset))
    }

    fn fill(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let held = PyUntypedBuffer::get(buffer)?;
        let (place, room) = writable(&held)?;
        let place = Place(place);
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
        place: Place,
        room: usize,
    ) -> PyResult<usize> {
        let piece_bytes = self.engine.piece_bytes;
        let mut filled = 0;
        loop {
            let at = offset.saturating_add(filled as u64);
            let piece = (room - filled).min(piece_bytes as usize);
            let is_last = filled + piece == room;
            // SAFETY: within the room.
            let place = Place(unsafe { place.0.add(filled) });
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
    /// The length in bytes, when it was opened.
    #[getter]
    fn size(&self) -> u64 {
        self.bytes
    }

    /// By what it can be opened again, from any working directory.
    #[getter]
    fn path(&self) -> &OsStr {
        self.name.as_os_str()
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.state.lock().expect("nobody panics while holding it").is_none()
    }

    /// Closes it; reads under way on other threads end as if it were open.
    fn close(&self, py: Python<'_>) {
        let file = self.state.lock().expect("nobody panics while holding it").take();
        py.detach(|| drop(file));
    }

    /// The position.
    fn tell(&self) -> PyResult<u64> {
        if self.closed() { Err(Failure::Closed.into()) } else { Ok(self.position()) }
    }

    /// Sets the position.
    fn set(&self, position: u64) {
        self.position.store(position, Ordering::Relaxed);
    }

    /// The bytes at `offset`; fewer than `size` only at the end of the file.
    fn readat<'py>(
        &self,
        py: Python<'py>,
        offset: Count,
        size: Count,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (bytes, place) = new_bytes(py, self.left(offset.0, size.0) as usize)?;
        let room = bytes.as_bytes().len();
        // SAFETY: the object is new, and nobody else has it yet.
        let filled = unsafe { self.fill_place(py, offset.0, Place(place), room)? };
        if filled < room {
            return Err(
                Failure::Read(ReadError::Shrunk { offset: offset.0 + filled as u64 }).into()
            );
        }
        Ok(bytes)
    }

    /// Fills a writable buffer from `offset` on; gives how many bytes.
    fn readinto_at(
        &self,
        py: Python<'_>,
        offset: Count,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        self.fill(py, offset.0, buffer)
    }

    /// Fills a writable buffer from the position on; gives how many bytes.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let position = self.position();
        let filled = self.fill(py, position, buffer)?;
        self.set(position + filled as u64);
        Ok(filled)
    }

    /// Up to `size` bytes from the position on; all that is left where it is negative.
    #[pyo3(signature = (size=None))]
    fn read<'py>(&self, py: Python<'py>, size: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        let size = size.and_then(|size| u64::try_from(size).ok()).unwrap_or(u64::MAX);
        let position = self.position();
        let bytes = self.readat(py, Count(position), Count(size))?;
        self.set(position + bytes.as_bytes().len() as u64);
        Ok(bytes)
    }

    /// The bytes of each `(offset, size)`, all in one submission.
    fn readat_many<'py>(
        &self,
        py: Python<'py>,
        ranges: Vec<(Count, Count)>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let mut all = Vec::with_capacity(ranges.len());
        let mut places = Vec::with_capacity(ranges.len());
        for (Count(offset), Count(size)) in ranges {
            let (bytes, place) = new_bytes(py, self.left(offset, size) as usize)?;
            places.push((offset, Place(place), bytes.as_bytes().len()));
            all.push(bytes);
        }
        self.with(py, move |file| read_many(file, &places))?;
        Ok(all)
    }

    /// Begins a read that is to be polled.
    fn start(&self, py: Python<'_>, offset: Count, size: Count) -> PyResult<Awaited> {
        let (offset, size) = (offset.0, self.left(offset.0, size.0) as usize);
        let future = self.with(py, |file| Ok(file.read_at_async(vec![0; size], offset)))?;
        Ok(Awaited(Mutex::new(Some(Own::new(future)))))
    }

    /// Gives a hint on how this handle will read, by its name in `posix_fadvise`.
    fn advise(&self, py: Python<'_>, advice: &str) -> PyResult<()> {
        let advice: Advice = advice_named(advice)?;
        self.with(py, |file| {
            file.advise(advice);
            Ok(())
        })
    }

    /// Starts to read a range that will be needed, and doesn't wait for it.
    fn prefetch(&self, py: Python<'_>, offset: Count, size: Count) -> PyResult<()> {
        self.with(py, |file| {
            file.prefetch(offset.0, size.0);
            Ok(())
        })
    }

    /// What was read: `(bytes, cached_bytes)`.
    fn stats(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.with(py, |file| {
            let stats = file.stats();
            Ok((stats.bytes, stats.cached_bytes))
        })
    }

    /// What its read path has counted, for all the files that it has.
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

/// Reads ranges, each to its place, all handed over together. One that is too large
/// for a batch is read by itself after it.
fn read_many(file: &File, places: &[(u64, Place, usize)]) -> Result<(), Failure> {
    let mut batch = file.read_path().batch();
    let mut large = Vec::new();
    for (ticket, &(offset, _, bytes)) in places.iter().enumerate() {
        match batch.read(file, offset, bytes as u64, ticket as u64) {
            Ok(()) => {}
            Err(ReadError::TooLarge { .. }) => large.push(ticket),
            Err(error) => return Err(error.into()),
        }
    }
    batch.start();
    let mut unheard = 0;
    while let Some(read) = batch.wait()? {
        let (offset, place, bytes) = &places[read.ticket() as usize];
        // SAFETY: the object behind it is new, nobody else has it yet, and it has so many bytes.
        let copied = read.copy_to(unsafe { place.slice(*bytes) })?;
        if copied < *bytes {
            return Err(ReadError::Shrunk { offset: offset + copied as u64 }.into());
        }
        hear_signals(&mut unheard, copied)?;
    }
    drop(batch);
    for ticket in large {
        let (offset, place, bytes) = &places[ticket];
        // SAFETY: as above.
        let whole = unsafe { place.slice(*bytes) };
        for (at, piece) in whole.chunks_mut(PIECE_BYTES_MAX as usize).enumerate() {
            file.read_exact_at(piece, offset + at as u64 * PIECE_BYTES_MAX)?;
            hear_signals(&mut unheard, piece.len())?;
        }
    }
    Ok(())
}

/// Hears of signals when so much came since they were last heard of that it took a while.
fn hear_signals(unheard: &mut u64, bytes: usize) -> Result<(), Failure> {
    *unheard += bytes as u64;
    if *unheard < PIECE_BYTES_MAX {
        return Ok(());
    }
    *unheard = 0;
    Python::attach(|py| py.check_signals()).map_err(Failure::Signal)
}

/// A read that an event loop waits for.
#[pyclass(frozen, module = "readpath")]
pub struct Awaited(Mutex<Option<Own<ReadFuture<Vec<u8>>>>>);

#[pymethods]
impl Awaited {
    /// The bytes, or None while they are not there: `wake` is called, on any
    /// thread, when it is worth asking again.
    fn poll<'py>(&self, py: Python<'py>, wake: Py<PyAny>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let waker = Waker::from(Arc::new(Call(wake)));
        let polled = py.detach(|| {
            let mut future = self.0.lock().expect("no poll panics");
            let Some(read) = &mut *future else { return Poll::Ready((Ok(0), Vec::new())) };
            let Some(read) = read.get_mut() else {
                return Poll::Ready((Err(io::ErrorKind::Interrupted.into()), Vec::new()));
            };
            let polled = Pin::new(read).poll(&mut Context::from_waker(&waker));
            if polled.is_ready() {
                *future = None;
            }
            polled
        });
        match polled {
            Poll::Pending => Ok(None),
            Poll::Ready((Ok(count), bytes)) => Ok(Some(PyBytes::new(py, &bytes[..count]))),
            Poll::Ready((Err(error), _)) => Err(Failure::from(error).into()),
        }
    }
}

/// Calls a Python function to wake a task.
struct Call(Py<PyAny>);

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        Python::attach(|py| {
            if let Err(error) = self.0.call0(py) {
                error.write_unraisable(py, None);
            }
        });
    }
}

/// Why a read gave no bytes.
enum Failure {
    Closed,
    Read(ReadError),
    System(io::Error),
    Signal(PyErr),
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Failure {
        Failure::Read(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<ReadError>()) {
            Some(error) => Failure::Read(*error),
            None => Failure::System(error),
        }
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        let error = match failure {
            Failure::Closed => return PyValueError::new_err("I/O operation on closed file."),
            Failure::System(error) => return error.into(),
            Failure::Signal(error) => return error,
            Failure::Read(error) => error,
        };
        let errno = match error {
            ReadError::Device { error, .. } => match error {
                DeviceError::Gone => 19,       // ENODEV
                DeviceError::Full => 28,       // ENOSPC
                DeviceError::Cancelled => 125, // ECANCELED
                DeviceError::Refused => 13,    // EACCES
                DeviceError::Stale => 116,     // ESTALE
                DeviceError::TimedOut => 110,  // ETIMEDOUT
                DeviceError::Garbled => 74,    // EBADMSG
                DeviceError::Other(errno) => errno,
                _ => 5, // EIO
            },
            ReadError::Shrunk { .. } => 116,      // ESTALE
            ReadError::TooManyReads { .. } => 11, // EAGAIN
            ReadError::HeldMax { .. } => 16,      // EBUSY
            ReadError::TooLarge { .. } => 22,     // EINVAL
            _ => 5,                               // EIO
        };
        PyOSError::new_err((errno, error.to_string()))
    }
}

/// The built-in exception for what can't be opened by its name.
fn not_opened(error: &OpenFileError) -> PyErr {
    match error {
        OpenFileError::Open(error) => not_opened_here(error),
        OpenFileError::Nfs(error) => not_opened_there(error),
        // ENOSYS: there is nothing to sleep on.
        OpenFileError::Backend(error) => PyOSError::new_err((38, error.to_string())),
        other => refused(other),
    }
}

/// The built-in exception for what can't be opened on this machine: Python chooses it by the number.
pub fn not_opened_here(error: &OpenError) -> PyErr {
    let (errno, path) = match error {
        OpenError::Missing { path } => (2, path),    // ENOENT
        OpenError::Directory { path } => (21, path), // EISDIR
        OpenError::Refused { path } => (13, path),   // EACCES
        OpenError::Other { path, errno } => (*errno, path),
        OpenError::TooLarge { path, .. } => (27, path), // EFBIG
        // EINVAL: neither a file nor a block device, or not to be had in this way.
        OpenError::NotStorage { path }
        | OpenError::Empty { path }
        | OpenError::Generated { path }
        | OpenError::NoDirect { path, .. } => (22, path),
    };
    let text = error.to_string();
    let words = text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text);
    // Where Rust has a name for what this module's callers know by another.
    let words = words.replace("std::fs", "the built-in open");
    PyOSError::new_err((errno, words, path.clone().into_os_string()))
}

/// The same for a server's file.
fn not_opened_there(error: &NfsError) -> PyErr {
    let text = error.to_string();
    let (errno, url) = (
        error.errno(),
        match error {
            NfsError::Url(_) => return refused(text),
            NfsError::Missing { url }
            | NfsError::NoExport { url, .. }
            | NfsError::Refused { url }
            | NfsError::Directory { url }
            | NfsError::LinkLoop { url }
            | NfsError::Outside { url, .. }
            | NfsError::NotFile { url }
            | NfsError::TooLarge { url, .. }
            | NfsError::Other { url, .. } => url.clone(),
            NfsError::NotMounted { export, .. } => export.clone(),
            NfsError::Connect { address, .. } => address.to_string(),
            NfsError::NoHost { .. } | NfsError::NoService { .. } | NfsError::Call { .. } => {
                return PyOSError::new_err((error.errno(), text));
            }
        },
    );
    let words = text.strip_prefix(&format!("{url}: ")).unwrap_or(&text).to_owned();
    PyOSError::new_err((errno, words, url))
}
