//! Files and block devices through the real read path.
//!
//! Python's lock is let go of in every call that may come to the engine's: a thread
//! that holds Python's then never waits for one that wants it.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::task::{Context, Poll, Wake, Waker};
use std::{future::Future, pin::Pin};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use readpath::backend::BackendKind;
use readpath::target::OpenError;
use readpath::{Advice, File, ReadError, ReadFuture};
use readpath_core::request::DeviceError;

use crate::buffers::{new_bytes, writable};
use crate::law::advice_named;
use crate::spec::refused;

/// A read path: memory, laws and a ring, for any number of files.
#[pyclass(frozen, module = "readpath")]
pub struct Engine(readpath::ReadPath);

#[pymethods]
impl Engine {
    /// Builds one. Raises ValueError where an option can't be used or had.
    #[new]
    fn new(
        memory_bytes: u64,
        readahead: &str,
        scheduler: &str,
        depth: u32,
        backend: &str,
    ) -> PyResult<Engine> {
        let kind = backend_named(backend)?;
        let builder = readpath::ReadPath::builder().memory(memory_bytes).readahead(readahead);
        let path = builder.scheduler(scheduler).depth(depth).backend(kind).build();
        path.map(Engine).map_err(refused)
    }

    /// Opens a file or a block device. Raises the OSError of the kernel's answer.
    fn open(&self, py: Python<'_>, path: PathBuf) -> PyResult<LocalFile> {
        let file = py.detach(|| self.0.open(&path)).map_err(|error| not_opened(&error))?;
        let bytes = file.len();
        let state = State { file, path: self.0.clone() };
        Ok(LocalFile { state: RwLock::new(Some(state)), bytes, position: AtomicU64::new(0) })
    }

    /// What was counted: requests and bytes of the storage, bytes read ahead, wasted, evicted.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.0.stats());
        let all = PyDict::new(py);
        all.set_item("device_reads", stats.device_reads)?;
        all.set_item("device_bytes", stats.device_bytes)?;
        all.set_item("in_flight", stats.in_flight)?;
        all.set_item("readahead_bytes", stats.readahead_bytes)?;
        all.set_item("waste_bytes", stats.waste_bytes)?;
        all.set_item("evicted_bytes", stats.evicted_bytes)?;
        Ok(all)
    }
}

/// The backend of that name.
pub fn backend_named(name: &str) -> PyResult<BackendKind> {
    match name {
        "ring" => Ok(BackendKind::Ring),
        "threads" => Ok(BackendKind::Threads),
        _ => Err(refused(format!("no backend `{name}`; there are: ring, threads"))),
    }
}

/// A file that is open: positioned reads, and one position of its own.
#[pyclass(frozen, module = "readpath")]
pub struct LocalFile {
    /// None once it is closed.
    state: RwLock<Option<State>>,
    bytes: u64,
    position: AtomicU64,
}

struct State {
    file: File,
    path: readpath::ReadPath,
}

impl LocalFile {
    /// Does something with the file, without Python's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&File, &readpath::ReadPath) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| match &*self.state.read().expect("no reader panics") {
            None => Err(Failure::Closed),
            Some(State { file, path }) => work(file, path),
        });
        done.map_err(PyErr::from)
    }

    fn left(&self, offset: u64, size: u64) -> u64 {
        size.min(self.bytes.saturating_sub(offset))
    }

    fn fill(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let held = PyUntypedBuffer::get(buffer)?;
        let (place, room) = writable(&held)?;
        let place = Place(place);
        let filled = self.with(py, move |file, _| {
            // SAFETY: `held` keeps the memory where it is until we return. As with every
            // `readinto`, who uses it on another thread meanwhile finds some of the new bytes.
            let buffer = unsafe { place.slice(room) };
            Ok(file.read_at(buffer, offset)?)
        });
        drop(held);
        filled
    }
}

/// Memory that another thread may be given.
struct Place(*mut u8);

// SAFETY: whoever made it keeps the memory in place, and uses it from one thread at a time.
unsafe impl Send for Place {}

impl Place {
    /// # Safety
    /// So many bytes can be written there, and stay until the slice is dropped.
    unsafe fn slice<'a>(&self, bytes: usize) -> &'a mut [u8] {
        // SAFETY: the caller promises it.
        unsafe { std::slice::from_raw_parts_mut(self.0, bytes) }
    }
}

#[pymethods]
impl LocalFile {
    /// The length in bytes, when it was opened.
    #[getter]
    fn size(&self) -> u64 {
        self.bytes
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.state.read().expect("no reader panics").is_none()
    }

    /// Closes it, when reads under way on other threads have ended.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.state.write().expect("no reader panics").take());
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
        offset: u64,
        size: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (bytes, place) = new_bytes(py, self.left(offset, size) as usize)?;
        let place = Place(place);
        let room = bytes.as_bytes().len();
        self.with(py, move |file, _| {
            // SAFETY: the object is new, and nobody else has it yet.
            let buffer = unsafe { place.slice(room) };
            Ok(file.read_exact_at(buffer, offset)?)
        })?;
        Ok(bytes)
    }

    /// Fills a writable buffer from `offset` on; gives how many bytes.
    fn readinto_at(
        &self,
        py: Python<'_>,
        offset: u64,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        self.fill(py, offset, buffer)
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
        let bytes = self.readat(py, position, size)?;
        self.set(position + bytes.as_bytes().len() as u64);
        Ok(bytes)
    }

    /// The bytes of each `(offset, size)`, all in one submission.
    fn readat_many<'py>(
        &self,
        py: Python<'py>,
        ranges: Vec<(u64, u64)>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let mut all = Vec::with_capacity(ranges.len());
        let mut places = Vec::with_capacity(ranges.len());
        for (offset, size) in ranges {
            let (bytes, place) = new_bytes(py, self.left(offset, size) as usize)?;
            places.push((offset, Place(place), bytes.as_bytes().len()));
            all.push(bytes);
        }
        self.with(py, move |file, path| read_many(file, path, &places))?;
        Ok(all)
    }

    /// Begins a read that is to be polled.
    fn start(&self, py: Python<'_>, offset: u64, size: u64) -> PyResult<Awaited> {
        let size = self.left(offset, size) as usize;
        let future = self.with(py, |file, _| Ok(file.read_at_async(vec![0; size], offset)))?;
        Ok(Awaited(Mutex::new(Some(future))))
    }

    /// Gives a hint on how this handle will read, by its name in `posix_fadvise`.
    fn advise(&self, py: Python<'_>, advice: &str) -> PyResult<()> {
        let advice: Advice = advice_named(advice)?;
        self.with(py, |file, _| {
            file.advise(advice);
            Ok(())
        })
    }

    /// Starts to read a range that will be needed, and doesn't wait for it.
    fn prefetch(&self, py: Python<'_>, offset: u64, size: u64) -> PyResult<()> {
        self.with(py, |file, _| {
            file.prefetch(offset, size);
            Ok(())
        })
    }

    /// What was read: `(bytes, cached_bytes)`.
    fn stats(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.with(py, |file, _| {
            let stats = file.stats();
            Ok((stats.bytes, stats.cached_bytes))
        })
    }
}

impl LocalFile {
    fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }
}

/// Reads ranges, each to its place, all handed over together. One that is too large
/// for a batch is read by itself after it.
fn read_many(
    file: &File,
    path: &readpath::ReadPath,
    places: &[(u64, Place, usize)],
) -> Result<(), Failure> {
    let mut batch = path.batch();
    let mut large = Vec::new();
    for (ticket, &(offset, _, bytes)) in places.iter().enumerate() {
        match batch.read(file, offset, bytes as u64, ticket as u64) {
            Ok(()) => {}
            Err(ReadError::TooLarge { .. }) => large.push(ticket),
            Err(error) => return Err(error.into()),
        }
    }
    batch.start();
    while let Some(read) = batch.wait()? {
        let (offset, place, bytes) = &places[read.ticket() as usize];
        // SAFETY: the object behind it is new, nobody else has it yet, and it has so many bytes.
        let copied = read.copy_to(unsafe { place.slice(*bytes) })?;
        if copied < *bytes {
            return Err(ReadError::Shrunk { offset: offset + copied as u64 }.into());
        }
    }
    drop(batch);
    for ticket in large {
        let (offset, place, bytes) = &places[ticket];
        // SAFETY: as above.
        file.read_exact_at(unsafe { place.slice(*bytes) }, *offset)?;
    }
    Ok(())
}

/// A read that an event loop waits for.
#[pyclass(frozen, module = "readpath")]
pub struct Awaited(Mutex<Option<ReadFuture<Vec<u8>>>>);

#[pymethods]
impl Awaited {
    /// The bytes, or None while they are not there: `wake` is called, on any
    /// thread, when it is worth asking again.
    fn poll<'py>(&self, py: Python<'py>, wake: Py<PyAny>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let waker = Waker::from(Arc::new(Call(wake)));
        let polled = py.detach(|| {
            let mut future = self.0.lock().expect("no poll panics");
            let Some(read) = &mut *future else { return Poll::Ready((Ok(0), Vec::new())) };
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
            Failure::Read(error) => error,
        };
        let errno = match error {
            ReadError::Device { error, .. } => match error {
                DeviceError::Gone => 19,       // ENODEV
                DeviceError::Full => 28,       // ENOSPC
                DeviceError::Cancelled => 125, // ECANCELED
                DeviceError::Refused => 13,    // EACCES
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

/// The built-in exception for what can't be opened: Python chooses it by the number.
pub fn not_opened(error: &OpenError) -> PyErr {
    let (errno, path) = match error {
        OpenError::Missing { path } => (2, path),    // ENOENT
        OpenError::Directory { path } => (21, path), // EISDIR
        OpenError::Refused { path } => (13, path),   // EACCES
        OpenError::Other { path, errno } => (*errno, path),
        // EINVAL: neither a file nor a block device, or not to be had in this way.
        OpenError::NotStorage { path }
        | OpenError::Empty { path }
        | OpenError::Generated { path }
        | OpenError::NoDirect { path, .. } => (22, path),
    };
    let text = error.to_string();
    let words = text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text).to_owned();
    PyOSError::new_err((errno, words, path.clone().into_os_string()))
}
