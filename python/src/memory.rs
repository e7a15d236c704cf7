//! Memory whose faults we serve, as Python buffers: a file as memory, and memory
//! larger than its budget.

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{RwLock, RwLockReadGuard};

use pyo3::exceptions::{PyBufferError, PyIndexError, PyOSError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use readpath::pager::PagerError;
use readpath::pager::Region;
use readpath::pager::{LoadError, Mapping};
use readpath_core::readahead::Advice;

use crate::law::advice_named;
use crate::local::{backend_named, not_opened_here};
use crate::process::Own;
use crate::spec::{Count, check_name, refused};

/// Memory that is lent to Python's buffers, and given back when the last of them is gone.
struct Lending<T: Send> {
    /// None once it is closed. Whoever waits for storage holds it for reading alone,
    /// and only to close it it is taken for writing: so nobody waits with Python's lock.
    memory: RwLock<Option<Own<T>>>,
    buffers: AtomicUsize,
}

/// The memory, where it is open.
fn open<T: Send>(memory: &Option<Own<T>>) -> PyResult<&Own<T>> {
    memory.as_ref().ok_or_else(|| PyValueError::new_err("the memory is closed"))
}

/// The memory, where it is open and this process made it.
fn own<T: Send>(memory: &Option<Own<T>>) -> PyResult<&T> {
    open(memory)?.get().ok_or_else(|| {
        PyValueError::new_err(
            "the memory belongs to the process that made it, before a fork; make it anew in this \
             one",
        )
    })
}

/// A mapping, which children made by `fork` have as well.
fn inherited(memory: &Option<Own<Mapping>>) -> PyResult<&Mapping> {
    open(memory).map(Own::inherited)
}

/// Which processes have the memory.
type Which<T> = fn(&Option<Own<T>>) -> PyResult<&T>;

impl<T: Send + Sync> Lending<T> {
    fn new(memory: T) -> Lending<T> {
        Lending { memory: RwLock::new(Some(Own::new(memory))), buffers: AtomicUsize::new(0) }
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<Own<T>>> {
        self.memory.read().expect("nobody panics while holding it")
    }

    /// Does something with the memory, without Python's lock.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        which: Which<T>,
        work: impl FnOnce(&T) -> R + Send,
    ) -> PyResult<R> {
        py.detach(|| which(&self.read()).map(work))
    }

    /// Fills in one more buffer over all of the memory.
    ///
    /// # Safety
    /// `view` is what `__getbuffer__` of `owner` was given, and `place` gives the memory's own
    /// address and length.
    unsafe fn lend(
        &self,
        owner: *mut ffi::PyObject,
        (view, flags): (*mut ffi::Py_buffer, c_int),
        is_read_only: bool,
        which: Which<T>,
        place: impl FnOnce(&T) -> &[u8],
    ) -> PyResult<()> {
        let memory = self.read();
        let place = place(which(&memory)?);
        let (start, bytes) = (place.as_ptr().cast_mut().cast::<c_void>(), place.len());
        // SAFETY: `view` is Python's to be filled in; the memory stays while `buffers` isn't 0.
        let filled = unsafe {
            let bytes = bytes as ffi::Py_ssize_t;
            ffi::PyBuffer_FillInfo(view, owner, start, bytes, is_read_only.into(), flags)
        };
        if filled != 0 {
            return Err(Python::attach(PyErr::fetch));
        }
        self.buffers.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn give_back(&self) {
        self.buffers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Gives the memory back, unless somebody looks into it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.read().as_ref().is_some_and(|memory| !memory.is_ours()) {
            return Ok(());
        }
        py.detach(|| {
            let mut memory = self.memory.write().expect("nobody panics while holding it");
            match self.buffers.load(Ordering::Relaxed) {
                0 => {
                    memory.take();
                    Ok(())
                }
                buffers => Err(buffers),
            }
        })
        .map_err(|buffers| {
            PyBufferError::new_err(format!(
                "{buffers} buffers still look into the memory; let go of the arrays over it first"
            ))
        })
    }
}

/// Signals are heard after so much is loaded at the latest.
const PIECE_BYTES: u64 = 16 << 20;

/// A file as read-only memory.
#[pyclass(frozen, module = "readpath")]
pub struct MappedFile(Lending<Mapping>);

#[pymethods]
impl MappedFile {
    /// Maps the whole file. Raises OSError where it can't be opened, or faults can't be served.
    #[new]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        memory_bytes: u64,
        readahead: &str,
        backend: &str,
    ) -> PyResult<MappedFile> {
        check_name(&path)?;
        let options = Mapping::builder()
            .memory(memory_bytes)
            .readahead(readahead)
            .backend(backend_named(backend)?);
        // SAFETY: Python's buffers make no promise that their bytes stay as they are; that the
        // file must not change is said to the caller.
        let mapping = py.detach(|| unsafe { options.open(&path) });
        mapping.map(|mapping| MappedFile(Lending::new(mapping))).map_err(no_memory)
    }

    fn __len__(&self) -> PyResult<usize> {
        inherited(&self.0.read()).map(Mapping::len)
    }

    /// A hint about a range, by its name in `posix_fadvise`.
    fn advise(&self, py: Python<'_>, advice: &str, offset: Count, size: Count) -> PyResult<()> {
        let advice = advice_named(advice)?;
        self.0.with(py, inherited, |mapping| mapping.advise(advice, offset.0, size.0))
    }

    /// Brings a range in, in the largest requests, and waits for it.
    fn load(&self, py: Python<'_>, offset: Count, size: Count) -> PyResult<()> {
        let (mut offset, mut size) = (offset.0, size.0);
        self.0.with(py, inherited, |mapping| mapping.advise(Advice::WillNeed, offset, size))?;
        loop {
            let (loaded, piece) = self.0.with(py, inherited, |mapping| {
                // A range that ends behind the file is refused as a whole.
                let is_inside = offset.saturating_add(size) <= mapping.len() as u64;
                let piece = if is_inside { size.min(PIECE_BYTES) } else { size };
                (mapping.load(offset, piece), piece)
            })?;
            loaded.map_err(|error| match error {
                LoadError::PastEnd { .. } => PyIndexError::new_err(error.to_string()),
                LoadError::Read(_) => PyOSError::new_err((5, error.to_string())),
            })?;
            (offset, size) = (offset + piece, size - piece);
            if size == 0 {
                return Ok(());
            }
            py.check_signals()?;
        }
    }

    /// What was counted since it was made.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counted = self.0.with(py, own, Mapping::statistics)?;
        let all = PyDict::new(py);
        all.set_item("faults", counted.faults)?;
        all.set_item("faults_read", counted.faults_read)?;
        all.set_item("resident_bytes", counted.resident_pages * 4096)?;
        all.set_item("evicted_bytes", counted.evicted_pages * 4096)?;
        all.set_item("device_reads", counted.device_reads)?;
        all.set_item("device_read_bytes", counted.device_read_bytes)?;
        Ok(all)
    }

    /// Gives the memory back. Raises BufferError while arrays look into it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py)
    }

    /// # Safety
    /// Called by Python alone.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: the view is Python's, and the address that of the mapping.
        unsafe { slf.get().0.lend(slf.as_ptr(), (view, flags), true, inherited, Mapping::as_slice) }
    }

    /// # Safety
    /// Called by Python alone, once for each buffer.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.0.give_back();
    }
}

/// Writable memory larger than its budget.
#[pyclass(frozen, module = "readpath")]
pub struct PagedMemory(Lending<Region>);

#[pymethods]
impl PagedMemory {
    /// So many zero bytes over a file without a name in the folder `swap`, or over the
    /// block device `swap`. Raises OSError where there is no room, or faults can't be served.
    #[new]
    fn new(
        py: Python<'_>,
        bytes: u64,
        memory_bytes: u64,
        swap: PathBuf,
        swapin: &str,
        backend: &str,
    ) -> PyResult<PagedMemory> {
        let options =
            Region::builder().memory(memory_bytes).swapin(swapin).backend(backend_named(backend)?);
        let region = py.detach(|| match swap.is_dir() {
            true => options.in_folder(bytes, &swap),
            false => options.on_device(bytes, &swap),
        });
        region.map(|region| PagedMemory(Lending::new(region))).map_err(no_memory)
    }

    fn __len__(&self) -> PyResult<usize> {
        own(&self.0.read()).map(Region::len)
    }

    /// What was counted since it was made.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counted = self.0.with(py, own, Region::statistics)?;
        let all = PyDict::new(py);
        all.set_item("faults", counted.faults)?;
        all.set_item("faults_major", counted.faults_major)?;
        all.set_item("swap_in_bytes", counted.swap_in_pages * 4096)?;
        all.set_item("swap_out_bytes", counted.swap_out_pages * 4096)?;
        all.set_item("memory_bytes", counted.memory_pages * 4096)?;
        all.set_item("memory_bytes_max", counted.memory_pages_max * 4096)?;
        Ok(all)
    }

    /// Raises OSError if a touch of the memory has met an error.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let checked = self.0.with(py, own, Region::check)?;
        checked.map_err(|error| PyOSError::new_err((5, error.to_string())))
    }

    /// Gives memory and storage back. Raises BufferError while arrays look into it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py)
    }

    /// # Safety
    /// Called by Python alone.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: the view is Python's, and the address that of the region, which is writable
        // memory; no reference of Rust's into it is kept.
        unsafe { slf.get().0.lend(slf.as_ptr(), (view, flags), false, own, Region::as_slice) }
    }

    /// # Safety
    /// Called by Python alone, once for each buffer.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.0.give_back();
    }
}

/// Why there is no memory, as Python's own exceptions have it.
fn no_memory(error: PagerError) -> PyErr {
    let errno = match &error {
        PagerError::Open(error) => return not_opened_here(error),
        PagerError::Law(_) | PagerError::Config(_) | PagerError::Swap(_) => return refused(error),
        PagerError::Space { error: errno, path, .. } => {
            let text = error.to_string();
            let words =
                text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text).to_owned();
            let errno = errno.raw_os_error().unwrap_or(5);
            return PyOSError::new_err((errno, words, path.clone().into_os_string()));
        }
        PagerError::System(error) => error.raw_os_error(),
        PagerError::AddressSpace { errno, .. } => Some(*errno),
        PagerError::Small { .. } => Some(28),      // ENOSPC
        PagerError::NotADevice { .. } => Some(15), // ENOTBLK
        _ => Some(38),                             // ENOSYS: faults or a ring can't be had here
    };
    PyOSError::new_err((errno.unwrap_or(5), error.to_string()))
}
