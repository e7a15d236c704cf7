//! Paged memory as Python buffers: a file as memory, and memory larger than its budget.
//!
//! An `Own` holds a value of the process that created it. In a child of `fork` its `get` returns
//! none, `is_ours` false, and `inherited` the parent's value.

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::exceptions::{PyBufferError, PyIndexError, PyOSError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use readpath::MemoryError;
use readpath::pager::{LoadError, Mapping, MappingMode, Region};
use readpath_core::readahead::Advice;
use readpath_core::unit::PAGE_BYTES;

use crate::engine::backend_named;
use crate::failure::{ESTALE, pager_error};
use crate::interruptible::run_interruptible;
use crate::many::Ranges;
use crate::policy::advice_named;
use crate::process::Own;
use crate::spec::{Count, check_name};

/// Memory exported as Python buffers. It is released when it is closed and unused.
struct ExportedMemory<T: Send>(Mutex<ExportState<T>>);

/// Locked with Python's lock held, and only for a short check. A thread that waits for storage owns
/// a reference and neither lock, so no thread waits for one lock while it holds the other.
struct ExportState<T: Send> {
    /// The memory, or None once it is closed.
    memory: Option<Arc<Own<T>>>,
    /// Number of exported buffers that are not released yet.
    buffers: usize,
}

impl<T: Send> ExportState<T> {
    /// Returns the memory. Raises ValueError once it is closed.
    fn memory(&self) -> PyResult<&Arc<Own<T>>> {
        self.memory.as_ref().ok_or_else(|| PyValueError::new_err("the memory is closed"))
    }
}

/// Access rule of memory that only the process that created it may use. Raises ValueError in a
/// child of `fork`.
fn created_here<T: Send>(memory: &Own<T>) -> PyResult<&T> {
    memory.get().ok_or_else(|| {
        PyValueError::new_err(
            "the memory belongs to the process that created it before a fork; create it again in \
             this one",
        )
    })
}

/// Access rule of a mapping: children of `fork` have it too. Never fails.
fn inherited(memory: &Own<Mapping>) -> PyResult<&Mapping> {
    Ok(memory.inherited())
}

/// Access rule: returns the memory to the processes that may use it, and an exception to others.
type AccessRule<T> = fn(&Own<T>) -> PyResult<&T>;

impl<T: Send + Sync> ExportedMemory<T> {
    /// Takes memory of this process, without an exported buffer.
    fn new(memory: T) -> ExportedMemory<T> {
        let memory = Some(Arc::new(Own::new(memory)));
        ExportedMemory(Mutex::new(ExportState { memory, buffers: 0 }))
    }

    /// Locks the state for a short check, with Python's lock held.
    fn lock(&self) -> MutexGuard<'_, ExportState<T>> {
        self.0.lock().expect("no thread panics while holding it")
    }

    /// Returns a reference to the memory, which keeps it also after `close`. Raises ValueError once
    /// it is closed.
    fn memory(&self) -> PyResult<Arc<Own<T>>> {
        self.lock().memory().cloned()
    }

    fn is_closed(&self) -> bool {
        self.lock().memory.is_none()
    }

    /// Runs `work` with the memory, without Python's lock. Raises ValueError if the memory is
    /// closed, or if `access` refuses this process.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        access: AccessRule<T>,
        work: impl FnOnce(&T) -> R + Send,
    ) -> PyResult<R> {
        let memory = self.memory()?;
        py.detach(|| {
            let result = access(&memory).map(work);
            // If another thread has closed the memory, it is released here.
            drop(memory);
            result
        })
    }

    /// Length of the memory in bytes by `len`, without a wait.
    fn len(&self, access: AccessRule<T>, len: impl FnOnce(&T) -> usize) -> PyResult<usize> {
        access(self.lock().memory()?).map(len)
    }

    /// Exports one more buffer over all of the memory: fills Python's `view`, which has the
    /// properties `flags`. `bytes_of` returns the memory. Raises ValueError if it is closed or not
    /// accessible, BufferError for flags that do not fit.
    ///
    /// # Safety
    /// `view` is the argument of `owner`'s `__getbuffer__`, and `bytes_of` returns the memory's own
    /// address and length.
    unsafe fn export_buffer(
        &self,
        owner: *mut ffi::PyObject,
        (view, flags): (*mut ffi::Py_buffer, c_int),
        is_read_only: bool,
        access: AccessRule<T>,
        bytes_of: impl FnOnce(&T) -> &[u8],
    ) -> PyResult<()> {
        let mut state = self.lock();
        let memory = bytes_of(access(state.memory()?)?);
        let (start, bytes) = (memory.as_ptr().cast_mut().cast::<c_void>(), memory.len());
        // SAFETY: Python passed `view` to be filled. The memory stays while `buffers` is not 0.
        let status = unsafe {
            let bytes = bytes as ffi::Py_ssize_t;
            ffi::PyBuffer_FillInfo(view, owner, start, bytes, is_read_only.into(), flags)
        };
        if status != 0 {
            return Err(Python::attach(PyErr::fetch));
        }
        state.buffers += 1;
        Ok(())
    }

    /// Records that an exported buffer was released.
    fn release_buffer(&self) {
        self.lock().buffers -= 1;
    }

    /// Releases the memory. Raises BufferError while exported buffers use it. No effect if it is
    /// closed, or in a child of `fork`: the memory belongs to the parent process.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let released = {
            let mut state = self.lock();
            match state.buffers {
                // In a child the memory stays, with or without buffers.
                _ if state.memory.as_ref().is_some_and(|memory| !memory.is_ours()) => None,
                // None if the memory is closed already.
                0 => state.memory.take(),
                buffers => {
                    return Err(PyBufferError::new_err(format!(
                        "{buffers} buffers still look into the memory; let go of the arrays over it \
                         first"
                    )));
                }
            }
        };
        // Drop waits for the memory's threads.
        py.detach(|| drop(released));
        Ok(())
    }
}

/// Size of a load's pieces in bytes. The next piece is prefetched during the current one.
const PIECE_BYTES: u64 = 16 << 20;
/// Maximum size in bytes of a load without a separate thread, which would cost more than the load.
const SAME_THREAD_BYTES_MAX: u64 = 256 << 10;

/// Error number of a failed read of the storage.
const EIO: i32 = 5;

/// A file as read-only memory.
#[pyclass(frozen, subclass, module = "readpath")]
pub struct MappedFile(ExportedMemory<Mapping>);

#[pymethods]
impl MappedFile {
    /// Maps the whole file. Raises OSError if it cannot be opened or mapped, ValueError for an
    /// unusable name, policy or backend.
    #[new]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        memory_bytes: u64,
        readahead: &str,
        backend: &str,
        kernel_cache: bool,
    ) -> PyResult<MappedFile> {
        check_name(&path)?;
        let options = Mapping::builder()
            .memory(memory_bytes)
            .readahead(readahead)
            .kernel_cache(kernel_cache)
            .backend(backend_named(backend)?);
        // SAFETY: Python's buffers do not guarantee constant bytes. The documentation forbids
        // changes of the file.
        let mapping = py.detach(|| unsafe { options.open(&path) });
        mapping
            .map(|mapping| MappedFile(ExportedMemory::new(mapping)))
            .map_err(|error| pager_error(&error))
    }

    fn __len__(&self) -> PyResult<usize> {
        self.0.len(inherited, Mapping::len)
    }

    /// True if it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Source of its pages: `served` by this library, or `kernel`.
    #[getter]
    fn mode(&self) -> PyResult<&'static str> {
        Ok(match self.0.memory()?.inherited().mode() {
            MappingMode::Served => "served",
            MappingMode::Kernel { .. } => "kernel",
        })
    }

    /// Reason why the kernel brings in its pages, or None if they are served.
    #[getter]
    fn fallback(&self) -> PyResult<Option<String>> {
        Ok(match self.0.memory()?.inherited().mode() {
            MappingMode::Served => None,
            MappingMode::Kernel { because } => Some(because.to_string()),
        })
    }

    /// A hint about a range, by its name in `posix_fadvise`.
    fn advise(&self, py: Python<'_>, advice: &str, offset: Count, size: Count) -> PyResult<()> {
        let advice = advice_named(advice)?;
        self.0.with(py, inherited, |mapping| mapping.advise(advice, offset.0, size.0))
    }

    /// Like `advise`, for many ranges.
    fn advise_many(&self, py: Python<'_>, advice: &str, ranges: Ranges) -> PyResult<()> {
        let advice = advice_named(advice)?;
        self.0.with(py, inherited, move |mapping| {
            ranges.0.into_iter().for_each(|(offset, size)| mapping.advise(advice, offset, size));
        })
    }

    /// Loads a range with requests of the largest size, and waits for it. Raises IndexError for a
    /// range past the end, OSError for a storage error.
    fn load(&self, py: Python<'_>, offset: Count, size: Count) -> PyResult<()> {
        let (mut offset, mut bytes_left) = (offset.0, size.0);
        let memory = self.0.memory()?;
        let bytes = inherited(&memory)?.len() as u64;
        if offset.saturating_add(bytes_left) > bytes {
            return Err(load_error(&LoadError::PastEnd { bytes }));
        }
        let will_need = |offset: u64, bytes: u64| {
            py.detach(|| memory.inherited().advise(Advice::WillNeed, offset, bytes));
        };
        will_need(offset, bytes_left);
        while bytes_left > 0 {
            let piece_bytes = bytes_left.min(PIECE_BYTES);
            let next_bytes = (bytes_left - piece_bytes).min(PIECE_BYTES);
            // The last piece has no next one.
            if next_bytes > 0 {
                // The first hint covers only the pages for which memory was free.
                will_need(offset + piece_bytes, next_bytes);
            }
            let loaded = match piece_bytes <= SAME_THREAD_BYTES_MAX {
                true => py.detach(|| memory.inherited().load(offset, piece_bytes)),
                false => {
                    let thread_memory = Arc::clone(&memory);
                    run_interruptible(py, move || {
                        let loaded = thread_memory.inherited().load(offset, piece_bytes);
                        // The waiting thread drops the last reference, except after a signal.
                        drop(thread_memory);
                        loaded
                    })?
                }
            };
            loaded.map_err(|error| load_error(&error))?;
            (offset, bytes_left) = (offset + piece_bytes, bytes_left - piece_bytes);
        }
        Ok(())
    }

    /// Counters since the creation. Raises ValueError in a child of `fork`.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.0.with(py, created_here, Mapping::stats)?;
        let dict = PyDict::new(py);
        dict.set_item("faults", stats.faults)?;
        dict.set_item("faults_read", stats.faults_read)?;
        dict.set_item("resident_bytes", stats.resident_pages * PAGE_BYTES)?;
        dict.set_item("evicted_bytes", stats.evicted_pages * PAGE_BYTES)?;
        dict.set_item("device_reads", stats.device_reads)?;
        dict.set_item("device_read_bytes", stats.device_read_bytes)?;
        Ok(dict)
    }

    /// Releases the memory. Raises BufferError while arrays use it. No effect in a child of `fork`.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py)
    }

    /// Exports a read-only buffer.
    ///
    /// # Safety
    /// Called only by Python.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let is_read_only = true;
        let (memory, owner) = (&slf.get().0, slf.as_ptr());
        // SAFETY: the view is Python's, and the address is the mapping's.
        unsafe {
            memory.export_buffer(owner, (view, flags), is_read_only, inherited, Mapping::as_slice)
        }
    }

    /// Releases an exported buffer.
    ///
    /// # Safety
    /// Called only by Python, once per buffer.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.0.release_buffer();
    }
}

/// Exception for a failed load.
fn load_error(error: &LoadError) -> PyErr {
    match error {
        LoadError::PastEnd { .. } => PyIndexError::new_err(error.to_string()),
        LoadError::Read(MemoryError::Shrunk { .. }) => {
            PyOSError::new_err((ESTALE, error.to_string()))
        }
        LoadError::Read(_) => PyOSError::new_err((EIO, error.to_string())),
    }
}

/// Writable memory larger than its budget.
#[pyclass(frozen, subclass, module = "readpath")]
pub struct PagedMemory(ExportedMemory<Region>);

#[pymethods]
impl PagedMemory {
    /// Creates zeroed memory over an unnamed file in the folder `swap`, or over the block device
    /// `swap`. Raises OSError without enough space, or if faults cannot be served; ValueError for
    /// options or a size that the machine refuses.
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
        region
            .map(|region| PagedMemory(ExportedMemory::new(region)))
            .map_err(|error| pager_error(&error))
    }

    fn __len__(&self) -> PyResult<usize> {
        self.0.len(created_here, Region::len)
    }

    /// True if it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Counters since the creation. Raises ValueError in a child of `fork`.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.0.with(py, created_here, Region::stats)?;
        let dict = PyDict::new(py);
        dict.set_item("faults", stats.faults)?;
        dict.set_item("faults_major", stats.faults_major)?;
        dict.set_item("swap_in_bytes", stats.swap_in_pages * PAGE_BYTES)?;
        dict.set_item("swap_out_bytes", stats.swap_out_pages * PAGE_BYTES)?;
        dict.set_item("memory_bytes", stats.memory_pages * PAGE_BYTES)?;
        dict.set_item("memory_bytes_max", stats.memory_pages_max * PAGE_BYTES)?;
        Ok(dict)
    }

    /// Raises OSError if an access to the memory has met an error.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let checked = self.0.with(py, created_here, Region::check)?;
        checked.map_err(|error| PyOSError::new_err((EIO, error.to_string())))
    }

    /// Releases memory and storage. Raises BufferError while arrays use it. No effect in a child of
    /// `fork`.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py)
    }

    /// Exports a writable buffer.
    ///
    /// # Safety
    /// Called only by Python.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let is_read_only = false;
        let (memory, owner) = (&slf.get().0, slf.as_ptr());
        // SAFETY: the view is Python's, and the address is the region's, which is writable. No Rust
        // reference into it is kept.
        unsafe {
            memory.export_buffer(owner, (view, flags), is_read_only, created_here, Region::as_slice)
        }
    }

    /// Releases an exported buffer.
    ///
    /// # Safety
    /// Called only by Python, once per buffer.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.0.release_buffer();
    }
}
