//! Pages of a mapping that the kernel reads and maps before they are touched.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use crate::buffers::BufferMemory;
use crate::spec::Count;

/// Number of bytes after which signals are handled.
const PIECE_BYTES: usize = 4 << 20;

/// Reads and maps `size` bytes of a mapping from `offset`, a page boundary, and waits:
/// `MADV_POPULATE_READ` of `madvise(2)`. Returns false before Linux 5.14, if the file has become
/// shorter, if its device failed, and without enough memory.
///
/// Raises IndexError for a range outside the mapping, the exception of a signal handler, OSError
/// for other refusals of the system.
#[pyfunction]
pub fn populate(
    py: Python<'_>,
    mapping: &Bound<'_, PyAny>,
    offset: Count,
    size: Count,
) -> PyResult<bool> {
    let pinned = PyUntypedBuffer::get(mapping)?;
    let bytes = pinned.len_bytes();
    let end_offset = offset.0.saturating_add(size.0);
    // `None` for an offset behind the end of the mapping.
    let index_of = |offset: u64| usize::try_from(offset).ok().filter(|&index| index <= bytes);
    let (Some(begin), Some(end)) = (index_of(offset.0), index_of(end_offset)) else {
        return Err(PyIndexError::new_err(format!(
            "bytes {} to {end_offset} of a mapping of {bytes}",
            offset.0
        )));
    };
    for index in (begin..end).step_by(PIECE_BYTES) {
        let piece_bytes = PIECE_BYTES.min(end - index);
        // SAFETY: within the mapping, which `pinned` pins.
        let memory = BufferMemory(unsafe { pinned.buf_ptr().cast::<u8>().add(index) });
        let populated = py.detach(move || {
            // The closure takes the whole value, which may go to other threads, not its pointer.
            let memory = memory;
            // SAFETY: pages are brought in without a visible change of the memory.
            unsafe { madvise(memory.0.cast(), piece_bytes, Advice::LinuxPopulateRead) }
        });
        match populated {
            Ok(()) => {}
            // An old kernel, a file that became shorter, a failed device, or too little memory. The
            // pages are then read at their first access.
            Err(Errno::INVAL | Errno::FAULT | Errno::IO | Errno::NOMEM) => return Ok(false),
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
        py.check_signals()?;
    }
    drop(pinned);
    Ok(true)
}
