//! Writable buffers of Python objects, by the buffer protocol.

use std::alloc::{Layout, alloc_zeroed};

use pyo3::exceptions::{PyBufferError, PyMemoryError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustix::mm::{Advice, madvise};

use crate::spec::refused;

/// Contiguous memory of a writable object, which stays in place while this value lives.
///
/// The object is asked for plain bytes without a shape: arrays of ctypes and of multiprocessing
/// have no strides, and arrays without dimensions have no shape.
pub struct Writable(Box<ffi::Py_buffer>);

impl Writable {
    /// Pins the memory of an object until the value is dropped.
    ///
    /// Raises BufferError for read-only or non-contiguous memory, TypeError for an object without
    /// memory.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Writable> {
        let writable_error = match Writable::pin(object, ffi::PyBUF_WRITABLE) {
            Ok(pinned) => return Ok(pinned),
            Err(error) => error,
        };
        // The messages of Python's objects for the two reasons differ. A buffer with any layout
        // shows which one it is. An object without one keeps its own error.
        let Ok(any_layout) = Writable::pin(object, ffi::PyBUF_FULL_RO) else {
            return Err(writable_error);
        };
        Err(PyBufferError::new_err(match any_layout.0.readonly {
            0 => "the buffer is not in one piece; copy it first",
            _ => "the buffer is read-only; give a bytearray, say",
        }))
    }

    /// Pins the memory of an object that has the properties `flags`, `PyBUF_…` of the buffer
    /// protocol. Raises the error of the object.
    fn pin(object: &Bound<'_, PyAny>, flags: std::ffi::c_int) -> PyResult<Writable> {
        let mut buffer = Box::new(ffi::Py_buffer::new());
        // SAFETY: the struct is empty and stays in its box, as required by some objects.
        let status = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *buffer, flags) };
        if status != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Writable(buffer))
    }

    /// Address of the memory, and its number of bytes.
    pub fn memory(&self) -> (*mut u8, usize) {
        (self.0.buf.cast(), self.0.len as usize)
    }
}

impl Drop for Writable {
    fn drop(&mut self) {
        // SAFETY: `PyObject_GetBuffer` filled the struct, and the interpreter is held.
        Python::attach(|_| unsafe { ffi::PyBuffer_Release(&raw mut *self.0) });
    }
}

/// Creates a bytes object of the given size, and returns it with the address of its memory. The
/// caller must write all bytes before the object is used. The memory is not cleared, which would
/// take as long as a read of a large object.
///
/// Raises MemoryError without enough memory.
pub fn new_bytes(py: Python<'_>, bytes: usize) -> PyResult<(Bound<'_, PyBytes>, *mut u8)> {
    let size = ffi::Py_ssize_t::try_from(bytes).map_err(|_| {
        PyMemoryError::new_err(format!("{bytes} bytes are more than an object has"))
    })?;
    // SAFETY: a new object or null, as documented. The second call returns its memory.
    unsafe {
        let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), size);
        let object = Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyBytes>();
        let address: *mut u8 = ffi::PyBytes_AsString(object.as_ptr()).cast();
        advise_huge_pages(address, bytes);
        Ok((object, address))
    }
}

/// Size of a huge page on most machines, in bytes. On others the hint covers less or more.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Smallest memory in bytes that gets the hint. The C library maps such memory for itself, and
/// unmaps it with the object, so that the hint ends there.
const HINTED_BYTES_MIN: usize = 32 << 20;

/// Hints that memory without an access so far should have huge pages, if it is large. 256 MiB then
/// take 128 page faults instead of 65,536. A system without huge pages ignores the hint.
fn advise_huge_pages(address: *mut u8, bytes: usize) {
    if bytes < HINTED_BYTES_MIN {
        return;
    }
    let skipped = address.align_offset(HUGE_PAGE_BYTES);
    let whole_bytes = bytes.saturating_sub(skipped) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if whole_bytes == 0 {
        return;
    }
    // SAFETY: within the memory. The hint changes no byte.
    _ = unsafe { madvise(address.add(skipped).cast(), whole_bytes, Advice::LinuxHugepage) };
}

/// Returns `bytes` zeros. The system allocates each page at its first use.
///
/// Raises MemoryError without enough memory.
pub fn zeroed(bytes: usize) -> PyResult<Vec<u8>> {
    let memory_error = || PyMemoryError::new_err(format!("there is no memory for {bytes} bytes"));
    let layout = Layout::array::<u8>(bytes).map_err(|_| memory_error())?;
    if bytes == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the layout has at least one byte.
    let address = unsafe { alloc_zeroed(layout) };
    if address.is_null() {
        return Err(memory_error());
    }
    // SAFETY: from the global allocator, with this layout, and all bytes are zero.
    Ok(unsafe { Vec::from_raw_parts(address, bytes, bytes) })
}

/// Appends an item to a vector.
///
/// Raises MemoryError without enough memory.
pub fn push<T>(items: &mut Vec<T>, item: T) -> PyResult<()> {
    items.try_reserve(1).map_err(|error| PyMemoryError::new_err(error.to_string()))?;
    items.push(item);
    Ok(())
}

/// Address of memory that may be passed to another thread.
pub struct BufferMemory(pub *mut u8);

// SAFETY: the creator keeps the memory in place, and uses it from one thread at a time.
unsafe impl Send for BufferMemory {}

impl BufferMemory {
    /// Returns the memory as a slice.
    ///
    /// # Safety
    /// `bytes` bytes are writable there, and stay until the slice is dropped.
    pub unsafe fn slice<'a>(&self, bytes: usize) -> &'a mut [u8] {
        // SAFETY: guaranteed by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.0, bytes) }
    }
}

/// Splits a writable buffer into `count` equal parts. Returns the address and the length of each.
/// Raises ValueError if the parts would not be equal. Only an empty buffer has no parts.
pub fn equal_parts(whole: &Writable, count: usize) -> PyResult<Vec<(*mut u8, usize)>> {
    let (address, bytes) = whole.memory();
    if (count, bytes) == (0, 0) {
        return Ok(Vec::new());
    }
    if count == 0 || bytes % count != 0 {
        return Err(refused(format!("a buffer of {bytes} bytes can't be cut into {count} parts")));
    }
    let part_bytes = bytes / count;
    // SAFETY: within the buffer.
    let part = |index: usize| (unsafe { address.add(index * part_bytes) }, part_bytes);
    Ok((0..count).map(part).collect())
}
