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
/// `MADV_POPULATE_READ` of `madvise(2)`. Returns false before Linux 5.14, and if the file has
/// become shorter or its device failed.
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
    let held = PyUntypedBuffer::get(mapping)?;
    let bytes = held.len_bytes();
    let place_of = |number: u64| usize::try_from(number).ok().filter(|&at| at <= bytes);
    let (Some(begin), Some(end)) = (place_of(offset.0), place_of(offset.0.saturating_add(size.0)))
    else {
        return Err(PyIndexError::new_err(format!(
            "bytes {} to {} of a mapping of {bytes}",
            offset.0,
            offset.0.saturating_add(size.0)
        )));
    };
    for at in (begin..end).step_by(PIECE_BYTES) {
        let piece = PIECE_BYTES.min(end - at);
        // SAFETY: within the mapping, which `held` pins.
        let place = BufferMemory(unsafe { held.buf_ptr().cast::<u8>().add(at) });
        let done = py.detach(move || {
            let place = place;
            // SAFETY: pages are brought in without a visible change of the memory.
            unsafe { madvise(place.0.cast(), piece, Advice::LinuxPopulateRead) }
        });
        match done {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::FAULT | Errno::IO | Errno::NOMEM) => return Ok(false),
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
        py.check_signals()?;
    }
    drop(held);
    Ok(true)
}
