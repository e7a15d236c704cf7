//! Paged memory as Python buffers: a file as memory, and memory larger than its budget.

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::exceptions::{PyBufferError, PyIndexError, PyOSError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use readpath::pager::{LoadError, Mapping, MappingMode, Region};
use readpath_core::readahead::Advice;

use crate::beside::beside;
use crate::engine::backend_named;
use crate::failure::no_memory;
use crate::many::Ranges;
use crate::policy::advice_named;
use crate::process::Own;
use crate::spec::{Count, check_name};

/// Memory exported as Python buffers. It is released when it is closed and unused.
struct Lending<T: Send>(Mutex<PinnedMemory<T>>);

/// Locked with Python's lock held, and only for a short check. A thread that waits for storage owns
/// a reference and neither lock, so no thread waits for one lock while it holds the other.
struct PinnedMemory<T: Send> {
    /// The memory, or None once it is closed.
    memory: Option<Arc<Own<T>>>,
    /// Number of exported buffers.
    buffers: usize,
}

impl<T: Send> PinnedMemory<T> {
    fn memory(&self) -> PyResult<&Arc<Own<T>>> {
        self.memory.as_ref().ok_or_else(|| PyValueError::new_err("the memory is closed"))
    }
}

/// Returns the memory if this process created it.
fn own<T: Send>(memory: &Own<T>) -> PyResult<&T> {
    memory.get().ok_or_else(|| {
        PyValueError::new_err(
            "the memory belongs to the process that made it, before a fork; make it anew in this \
             one",
        )
    })
}

/// Returns a mapping, which children of `fork` have too.
fn inherited(memory: &Own<Mapping>) -> PyResult<&Mapping> {
    Ok(memory.inherited())
}

/// Access rule: which processes may use the memory.
type Which<T> = fn(&Own<T>) -> PyResult<&T>;

impl<T: Send + Sync> Lending<T> {
    fn new(memory: T) -> Lending<T> {
        Lending(Mutex::new(PinnedMemory { memory: Some(Arc::new(Own::new(memory))), buffers: 0 }))
    }

    fn lock(&self) -> MutexGuard<'_, PinnedMemory<T>> {
        self.0.lock().expect("no thread panics while holding it")
    }

    fn memory(&self) -> PyResult<Arc<Own<T>>> {
        self.lock().memory().cloned()
    }

    fn is_closed(&self) -> bool {
        self.lock().memory.is_none()
    }

    /// Runs `work` with the memory, without Python's lock.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        which: Which<T>,
        work: impl FnOnce(&T) -> R + Send,
    ) -> PyResult<R> {
        let memory = self.memory()?;
        py.detach(|| {
            let done = which(&memory).map(work);
            // If another thread has closed the memory, it is released here.
            drop(memory);
            done
        })
    }

    /// Length of the memory, without a wait.
    fn len(&self, which: Which<T>, len: impl FnOnce(&T) -> usize) -> PyResult<usize> {
        which(self.lock().memory()?).map(len)
    }

    /// Exports one more buffer over all of the memory.
    ///
    /// # Safety
    /// `view` is the argument of `owner`'s `__getbuffer__`, and `place` returns the memory's own
    /// address and length.
    unsafe fn lend(
        &self,
        owner: *mut ffi::PyObject,
        (view, flags): (*mut ffi::Py_buffer, c_int),
        is_read_only: bool,
        which: Which<T>,
        place: impl FnOnce(&T) -> &[u8],
    ) -> PyResult<()> {
        let mut state = self.lock();
        let place = place(which(state.memory()?)?);
        let (start, bytes) = (place.as_ptr().cast_mut().cast::<c_void>(), place.len());
        // SAFETY: Python passed `view` to be filled. The memory stays while `buffers` is not 0.
        let filled = unsafe {
            let bytes = bytes as ffi::Py_ssize_t;
            ffi::PyBuffer_FillInfo(view, owner, start, bytes, is_read_only.into(), flags)
        };
        if filled != 0 {
            return Err(Python::attach(PyErr::fetch));
        }
        state.buffers += 1;
        Ok(())
    }

    /// Records that an exported buffer was released.
    fn give_back(&self) {
        self.lock().buffers -= 1;
    }

    /// Releases the memory. Raises BufferError while exported buffers use it. No effect if it is
    /// closed, or in a child of `fork`: the memory belongs to the parent process.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = {
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
        py.detach(|| drop(closed));
        Ok(())
    }
}

/// Size of a load's pieces in bytes. The next piece is prefetched during the current one.
const PIECE_BYTES: u64 = 16 << 20;
/// Maximum size in bytes of a load without a separate thread, which would cost more than the load.
const PATIENT_BYTES: u64 = 256 << 10;

/// A file as read-only memory.
#[pyclass(frozen, subclass, module = "readpath")]
pub struct MappedFile(Lending<Mapping>);

#[pymethods]
impl MappedFile {
    /// Maps the whole file. Raises OSError if it cannot be opened, or faults cannot be served.
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
        mapping.map(|mapping| MappedFile(Lending::new(mapping))).map_err(|error| no_memory(&error))
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

    /// Loads a range with requests of the largest size, and waits for it.
    fn load(&self, py: Python<'_>, offset: Count, size: Count) -> PyResult<()> {
        let (mut offset, mut size) = (offset.0, size.0);
        let memory = self.0.memory()?;
        let bytes = inherited(&memory)?.len() as u64;
        if offset.saturating_add(size) > bytes {
            return Err(not_loaded(&LoadError::PastEnd { bytes }));
        }
        let all = (offset, size);
        py.detach(|| memory.inherited().advise(Advice::WillNeed, all.0, all.1));
        while size > 0 {
            let piece = size.min(PIECE_BYTES);
            let behind = (offset + piece, (size - piece).min(PIECE_BYTES));
            // The last piece has no next one.
            if behind.1 > 0 {
                // Pages beyond the first allocation of memory.
                py.detach(|| memory.inherited().advise(Advice::WillNeed, behind.0, behind.1));
            }
            let loaded = match piece <= PATIENT_BYTES {
                true => py.detach(|| memory.inherited().load(offset, piece)),
                false => {
                    let theirs = Arc::clone(&memory);
                    beside(py, move || {
                        let loaded = theirs.inherited().load(offset, piece);
                        // The waiting thread drops the last reference, except after a signal.
                        drop(theirs);
                        loaded
                    })?
                }
            };
            loaded.map_err(|error| not_loaded(&error))?;
            (offset, size) = (offset + piece, size - piece);
        }
        Ok(())
    }

    /// Counters since the creation.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counted = self.0.with(py, own, Mapping::stats)?;
        let all = PyDict::new(py);
        all.set_item("faults", counted.faults)?;
        all.set_item("faults_read", counted.faults_read)?;
        all.set_item("resident_bytes", counted.resident_pages * 4096)?;
        all.set_item("evicted_bytes", counted.evicted_pages * 4096)?;
        all.set_item("device_reads", counted.device_reads)?;
        all.set_item("device_read_bytes", counted.device_read_bytes)?;
        Ok(all)
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
        // SAFETY: the view is Python's, and the address is the mapping's.
        unsafe { slf.get().0.lend(slf.as_ptr(), (view, flags), true, inherited, Mapping::as_slice) }
    }

    /// Releases an exported buffer.
    ///
    /// # Safety
    /// Called only by Python, once per buffer.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.0.give_back();
    }
}

fn not_loaded(error: &LoadError) -> PyErr {
    match error {
        LoadError::PastEnd { .. } => PyIndexError::new_err(error.to_string()),
        LoadError::Read(_) => PyOSError::new_err((5, error.to_string())),
    }
}

/// Writable memory larger than its budget.
#[pyclass(frozen, subclass, module = "readpath")]
pub struct PagedMemory(Lending<Region>);

#[pymethods]
impl PagedMemory {
    /// Creates zeroed memory over an unnamed file in the folder `swap`, or over the block device
    /// `swap`. Raises OSError without enough space, or if faults cannot be served.
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
        region.map(|region| PagedMemory(Lending::new(region))).map_err(|error| no_memory(&error))
    }

    fn __len__(&self) -> PyResult<usize> {
        self.0.len(own, Region::len)
    }

    /// True if it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Counters since the creation.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counted = self.0.with(py, own, Region::stats)?;
        let all = PyDict::new(py);
        all.set_item("faults", counted.faults)?;
        all.set_item("faults_major", counted.faults_major)?;
        all.set_item("swap_in_bytes", counted.swap_in_pages * 4096)?;
        all.set_item("swap_out_bytes", counted.swap_out_pages * 4096)?;
        all.set_item("memory_bytes", counted.memory_pages * 4096)?;
        all.set_item("memory_bytes_max", counted.memory_pages_max * 4096)?;
        Ok(all)
    }

    /// Raises OSError if an access to the memory has met an error.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let checked = self.0.with(py, own, Region::check)?;
        checked.map_err(|error| PyOSError::new_err((5, error.to_string())))
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
        // SAFETY: the view is Python's, and the address is the region's, which is writable. No Rust
        // reference into it is kept.
        unsafe { slf.get().0.lend(slf.as_ptr(), (view, flags), false, own, Region::as_slice) }
    }

    /// Releases an exported buffer.
    ///
    /// # Safety
    /// Called only by Python, once per buffer.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.0.give_back();
    }
}
