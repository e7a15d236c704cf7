//! Writable buffers of Python objects, by the buffer protocol.

use std::alloc::{Layout, alloc_zeroed};

use pyo3::exceptions::{PyBufferError, PyMemoryError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The memory of a writable object, in one piece, which stays in place while this value lives.
///
/// The object is asked for bytes alone, without a shape: arrays of ctypes and of multiprocessing have no strides, and
/// arrays without dimensions have no shape.
pub struct Writable(Box<ffi::Py_buffer>);

impl Writable {
    /// Holds the memory of an object.
    ///
    /// Raises BufferError where it is read-only or not in one piece, TypeError where the object has no memory.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Writable> {
        let refused = match Writable::held(object, ffi::PyBUF_WRITABLE) {
            Ok(held) => return Ok(held),
            Err(refused) => refused,
        };
        // Each kind of object has its own words for the two reasons.
        let Ok(any) = Writable::held(object, ffi::PyBUF_FULL_RO) else { return Err(refused) };
        Err(PyBufferError::new_err(match any.0.readonly {
            0 => "the buffer is not in one piece; copy it first",
            _ => "the buffer is read-only; give a bytearray, say",
        }))
    }

    fn held(object: &Bound<'_, PyAny>, flags: std::ffi::c_int) -> PyResult<Writable> {
        let mut buffer = Box::new(ffi::Py_buffer::new());
        // SAFETY: the struct is empty and stays in its box, as its object may want.
        let answer = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *buffer, flags) };
        if answer != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Writable(buffer))
    }

    /// The first byte, and the number of bytes.
    pub fn place(&self) -> (*mut u8, usize) {
        (self.0.buf.cast(), self.0.len as usize)
    }
}

impl Drop for Writable {
    fn drop(&mut self) {
        // SAFETY: the struct was filled by `PyObject_GetBuffer`; the interpreter is held.
        Python::attach(|_| unsafe { ffi::PyBuffer_Release(&raw mut *self.0) });
    }
}

/// A new object of so many bytes that nobody has seen yet, and where they are to be written: all of them, before
/// anybody does. It isn't filled with zeros before, which for a large one takes as long as to read it.
pub fn new_bytes(py: Python<'_>, bytes: usize) -> PyResult<(Bound<'_, PyBytes>, *mut u8)> {
    let size = ffi::Py_ssize_t::try_from(bytes).map_err(|_| {
        PyMemoryError::new_err(format!("{bytes} bytes are more than an object has"))
    })?;
    // SAFETY: a new object or null, as the call says; its memory is where the second one says.
    unsafe {
        let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), size);
        let object = Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyBytes>();
        let place = ffi::PyBytes_AsString(object.as_ptr()).cast();
        Ok((object, place))
    }
}

/// So many zeros, which the system gives as they are first touched.
///
/// Raises MemoryError where there is no room.
pub fn zeroed(bytes: usize) -> PyResult<Vec<u8>> {
    let no_room = || PyMemoryError::new_err(format!("there is no memory for {bytes} bytes"));
    let layout = Layout::array::<u8>(bytes).map_err(|_| no_room())?;
    if bytes == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the layout has a byte at least.
    let place = unsafe { alloc_zeroed(layout) };
    if place.is_null() {
        return Err(no_room());
    }
    // SAFETY: from the allocator of every vector, with this layout; all its bytes are zeros.
    Ok(unsafe { Vec::from_raw_parts(place, bytes, bytes) })
}

/// Appends to a vector.
///
/// Raises MemoryError where there is no room.
pub fn push<T>(all: &mut Vec<T>, one: T) -> PyResult<()> {
    all.try_reserve(1).map_err(|error| PyMemoryError::new_err(error.to_string()))?;
    all.push(one);
    Ok(())
}

/// Memory that another thread may be given.
pub struct BufferMemory(pub *mut u8);

// SAFETY: whoever made it keeps the memory in place, and uses it from one thread at a time.
unsafe impl Send for BufferMemory {}

impl BufferMemory {
    /// # Safety
    /// So many bytes can be written there, and stay until the slice is dropped.
    pub unsafe fn slice<'a>(&self, bytes: usize) -> &'a mut [u8] {
        // SAFETY: the caller promises it.
        unsafe { std::slice::from_raw_parts_mut(self.0, bytes) }
    }
}
