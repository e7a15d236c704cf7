//! What a law written in Python is told: a read, and what the device allows.

use pyo3::prelude::*;
use readpath_core::readahead::{ReadRequest, ReadaheadLimits};

/// One read, as a law sees it.
#[pyclass(frozen, name = "Ask", module = "readpath")]
pub struct PyAsk(pub ReadRequest);

#[pymethods]
impl PyAsk {
    /// The first byte asked for.
    #[getter]
    fn offset(&self) -> u64 {
        self.0.offset
    }

    /// How many bytes are asked for; may reach past the end of the file.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// The length of the file in bytes.
    #[getter]
    fn file_bytes(&self) -> u64 {
        self.0.file_bytes
    }

    /// Whether the device's queue is so full that reading ahead would only add to the wait.
    #[getter]
    fn is_congested(&self) -> bool {
        self.0.is_congested
    }

    /// The first page asked for.
    #[getter]
    fn first_page(&self) -> u64 {
        self.0.request().first
    }

    /// The page after the last one asked for: exclusive; may lie past the end of the file.
    #[getter]
    fn end_page(&self) -> u64 {
        self.0.request().end
    }

    /// How many pages the file has.
    #[getter]
    fn file_pages(&self) -> u64 {
        self.0.file_pages()
    }

    fn __repr__(&self) -> String {
        let ReadRequest { offset, bytes, file_bytes, .. } = self.0;
        format!("Ask(offset={offset}, bytes={bytes}, file_bytes={file_bytes})")
    }
}

/// What a law may know of the device that it reads ahead from.
#[pyclass(frozen, name = "Limits", module = "readpath")]
pub struct PyLimits(pub ReadaheadLimits);

#[pymethods]
impl PyLimits {
    /// The limits of a device; the defaults are the kernel's: 128 KiB of
    /// readahead, and requests of up to 1280 KiB.
    #[new]
    #[pyo3(signature = (window_pages_max=32, request_pages_max=320))]
    fn new(window_pages_max: u64, request_pages_max: u64) -> PyLimits {
        PyLimits(ReadaheadLimits { window_pages_max, request_pages_max })
    }

    /// The most pages to read ahead (the kernel's `read_ahead_kb` / 4).
    #[getter]
    fn window_pages_max(&self) -> u64 {
        self.0.window_pages_max
    }

    /// The device's largest request in pages.
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
