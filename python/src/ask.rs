//! Arguments of a policy written in Python: a read, and the limits of the device.

use pyo3::prelude::*;
use readpath_core::readahead::{ReadRequest, ReadaheadLimits};

/// One read, as shown to a policy.
#[pyclass(frozen, name = "Ask", module = "readpath")]
pub struct PyAsk(pub ReadRequest);

#[pymethods]
impl PyAsk {
    /// Offset of the first requested byte.
    #[getter]
    fn offset(&self) -> u64 {
        self.0.offset
    }

    /// Number of requested bytes. The request may reach past the end of the file.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// The length of the file in bytes.
    #[getter]
    fn file_bytes(&self) -> u64 {
        self.0.file_bytes
    }

    /// True when the device's queue is so full that readahead would only add to the wait.
    #[getter]
    fn is_congested(&self) -> bool {
        self.0.is_congested
    }

    /// First requested page.
    #[getter]
    fn first_page(&self) -> u64 {
        self.0.request().first
    }

    /// End (exclusive) of the requested pages. It may lie past the end of the file.
    #[getter]
    fn end_page(&self) -> u64 {
        self.0.request().end
    }

    /// Number of pages in the file.
    #[getter]
    fn file_pages(&self) -> u64 {
        self.0.file_pages()
    }

    fn __repr__(&self) -> String {
        let ReadRequest { offset, bytes, file_bytes, .. } = self.0;
        format!("Ask(offset={offset}, bytes={bytes}, file_bytes={file_bytes})")
    }
}

/// Limits of the device, for a policy.
#[pyclass(frozen, name = "Limits", module = "readpath")]
pub struct PyLimits(pub ReadaheadLimits);

#[pymethods]
impl PyLimits {
    /// Creates the limits of a device. The defaults are the kernel's: 128 KiB of readahead, and
    /// requests of up to 1280 KiB.
    #[new]
    #[pyo3(signature = (window_pages_max=32, request_pages_max=320))]
    fn new(window_pages_max: u64, request_pages_max: u64) -> PyLimits {
        PyLimits(ReadaheadLimits { window_pages_max, request_pages_max })
    }

    /// Maximum number of pages to read ahead (the kernel's `read_ahead_kb` / 4).
    #[getter]
    fn window_pages_max(&self) -> u64 {
        self.0.window_pages_max
    }

    /// Maximum request size of the device in pages.
    #[getter]
    fn request_pages_max(&self) -> u64 {
        self.0.request_pages_max
    }

    fn __repr__(&self) -> String {
        let ReadaheadLimits { window_pages_max, request_pages_max } = self.0;
        format!(
            "Limits(window_pages_max={window_pages_max}, request_pages_max={request_pages_max})"
        )
    }
}
