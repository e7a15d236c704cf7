//! Pages of a mapping that the kernel brings in and maps before they are touched.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use crate::buffers::BufferMemory;
use crate::spec::Count;

/// Signals are heard after so much at the latest.
const PIECE_BYTES: usize = 4 << 20;

/// Has the kernel read what it lacks of `size` bytes from `offset` on, a page's border, of a mapping and map
/// it, and waits for it: `MADV_POPULATE_READ` of `madvise(2)`. Gives whether it did so: not before Linux 5.14,
/// and not where the file has become shorter or its device failed.
///
/// Raises IndexError where the range is not in the mapping, what the handler of a signal raises, OSError where
/// the system refuses otherwise.
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
        // SAFETY: within the mapping, which `held` keeps where it is.
        let place = BufferMemory(unsafe { held.buf_ptr().cast::<u8>().add(at) });
        let done = py.detach(move || {
            let place = place;
            // SAFETY: pages are brought in; nothing that can be seen of the memory is changed.
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
