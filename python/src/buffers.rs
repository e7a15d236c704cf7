//! Writable buffers of Python objects, by the buffer protocol.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

/// The memory of a writable object of bytes: where it begins, and how long it is.
///
/// It stays where it is while `buffer` is held, but Python code on other threads may change its bytes at
/// any time: no Rust reference to it may be made, only copies into it.
///
/// Raises BufferError where it is read-only or not in one piece.
pub fn writable(buffer: &PyBuffer<u8>) -> PyResult<(*mut u8, usize)> {
    if buffer.readonly() {
        return Err(PyBufferError::new_err("the buffer is read-only; give a bytearray, say"));
    }
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the buffer is not in one piece; copy it first"));
    }
    Ok((buffer.buf_ptr().cast(), buffer.len_bytes()))
}
