//! Page view of a file, available to Python during one call of a policy.
//!
//! Python may keep the object, but the page view is removed when the call ends. Every later use is
//! a `RuntimeError`. Invalid additions (a folio that is misaligned, cached already, or past the end
//! of the file) are a `ValueError`. The machine thus sees only additions that it would accept from
//! a Rust policy.

use std::ptr::NonNull;
use std::sync::Mutex;
use std::thread::{self, ThreadId};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use readpath_core::readahead::{Folio, PageView};

/// Order of the largest folio: 2 MiB, as in the kernel on x86-64.
const FOLIO_ORDER_MAX: u8 = 9;

/// Pages of one file, which a policy examines and extends.
#[pyclass(frozen, name = "Pages", module = "readpath")]
pub struct PyPages {
    /// The page view, or None after the call has ended.
    shared: Mutex<Option<SharedPages>>,
    file_pages: u64,
}

/// The page view, and the thread on which it stays.
struct SharedPages {
    pages: NonNull<dyn PageView>,
    thread: ThreadId,
}

// SAFETY: the pointer is followed only on its own thread (see `PyPages::with`). Other threads may
// at most drop it, as the traceback of an exception does.
unsafe impl Send for SharedPages {}

impl PyPages {
    /// Calls `policy_call` with a Python object for `pages`, and invalidates the object afterwards.
    pub fn lend<T>(
        py: Python<'_>,
        pages: &mut dyn PageView,
        file_pages: u64,
        policy_call: impl FnOnce(&Bound<'_, PyPages>) -> PyResult<T>,
    ) -> PyResult<T> {
        let pages: NonNull<dyn PageView + '_> = NonNull::from(pages);
        // SAFETY: only the lifetime changes. Only `with` uses the pointer, under the lock. `Loan`
        // removes it under the same lock before the borrow of `pages` ends.
        let pages: NonNull<dyn PageView> = unsafe { std::mem::transmute(pages) };
        let shared = SharedPages { pages, thread: thread::current().id() };
        let loan = Loan(Bound::new(py, PyPages { shared: Mutex::new(Some(shared)), file_pages })?);
        policy_call(&loan.0)
    }

    /// Calls `work` with the page view while it is valid. `work` must not call Python, which could
    /// take the lock again. Raises RuntimeError after the call of the policy and on other threads.
    pub fn with<T>(&self, work: impl FnOnce(&mut dyn PageView) -> T) -> PyResult<T> {
        let mut shared = self.shared.lock().expect("no policy panics");
        match &mut *shared {
            Some(SharedPages { pages, thread }) if *thread == thread::current().id() => {
                // SAFETY: the view is valid (see `lend`), this is its thread, and the lock makes
                // this the only reference.
                Ok(work(unsafe { pages.as_mut() }))
            }
            Some(_) => Err(PyRuntimeError::new_err(
                "the pages stay on the thread that called the policy; use them there",
            )),
            None => Err(PyRuntimeError::new_err(
                "the pages are there only during the call of the policy that was given them",
            )),
        }
    }
}

/// Invalidates the object on drop, also after an error.
struct Loan<'py>(Bound<'py, PyPages>);

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        *self.0.get().shared.lock().expect("no policy panics") = None;
    }
}

#[pymethods]
impl PyPages {
    /// Number of pages in the file.
    #[getter]
    fn file_pages(&self) -> u64 {
        self.file_pages
    }

    /// True if the page is in the cache, or its read is in flight.
    fn is_cached(&self, page: u64) -> PyResult<bool> {
        self.with(|pages| pages.is_cached(page))
    }

    /// Folio of the page as `(first, order)`, or None if it is not cached.
    fn folio(&self, page: u64) -> PyResult<Option<(u64, u8)>> {
        let folio = self.with(|pages| pages.folio(page))?;
        Ok(folio.map(|folio| (folio.first, folio.order)))
    }

    /// Folio of the page as `(first, order)`, if it has the readahead mark; otherwise None.
    fn marked(&self, page: u64) -> PyResult<Option<(u64, u8)>> {
        let folio = self.with(|pages| pages.marked(page))?;
        Ok(folio.map(|folio| (folio.first, folio.order)))
    }

    /// Removes the readahead mark from the folio of the page. No effect without a mark.
    fn clear_mark(&self, page: u64) -> PyResult<()> {
        self.with(|pages| {
            if let Some(folio) = pages.marked(page) {
                pages.clear_mark(folio);
            }
        })
    }

    /// Adds a folio of `1 << order` pages from `first`, and reads it. Returns False without an
    /// addition when memory is short. The policy should stop then.
    ///
    /// Raises ValueError for an order that is too large, and if one of the pages is cached already.
    /// Also if `first` is not a multiple of the folio's size, or lies past the end of the file.
    #[pyo3(signature = (first, order=0, marked=false))]
    fn add(&self, first: u64, order: u8, marked: bool) -> PyResult<bool> {
        let refuse = |problem: String| Err(PyValueError::new_err(problem));
        if order > FOLIO_ORDER_MAX {
            return refuse(format!("a folio of order {order}; the largest is {FOLIO_ORDER_MAX}"));
        }
        if !first.is_multiple_of(1 << order) {
            return refuse(format!("page {first} does not begin a folio of {} pages", 1 << order));
        }
        if first >= self.file_pages {
            return refuse(format!("page {first} of a file of {} pages", self.file_pages));
        }
        let folio = Folio { first, order };
        let cached =
            self.with(|pages| folio.range().pages().find(|&page| pages.is_cached(page)))?;
        if let Some(page) = cached {
            return refuse(format!("page {page} is cached already; add only what is not"));
        }
        self.with(|pages| pages.add(folio, marked))
    }

    /// Adds the pages from `first` to `end` (exclusive) one by one, except cached pages and pages
    /// past the end of the file. The page `mark` gets the readahead mark. Returns False when memory
    /// is short; the pages before stay added.
    #[pyo3(signature = (first, end, mark=None))]
    fn add_range(&self, first: u64, end: u64, mark: Option<u64>) -> PyResult<bool> {
        let end = end.min(self.file_pages);
        self.with(|pages| {
            (first..end).all(|page| {
                pages.is_cached(page)
                    || pages.add(Folio { first: page, order: 0 }, mark == Some(page))
            })
        })
    }
}
