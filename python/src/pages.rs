//! The pages of a file, lent to Python for the length of one call of a law.
//!
//! Python may keep the object; the pages behind it are taken away when the call
//! ends, and every use after that is a `RuntimeError`. What a law may get wrong
//! (a folio that is not aligned, cached already, or past the end of the file)
//! is a `ValueError` here, so that nothing reaches the machine that it would not
//! accept from a law of its own.

use std::ptr::NonNull;
use std::sync::Mutex;
use std::thread::{self, ThreadId};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use readpath_core::readahead::{Folio, PageView};

/// The largest folio, as an order: 2 MiB, as in the kernel on x86-64.
const FOLIO_ORDER_MAX: u8 = 9;

/// The pages of one file, as a law sees and extends them.
#[pyclass(frozen, name = "Pages", module = "readpath")]
pub struct PyPages {
    /// None once the call that lent it has ended.
    lent: Mutex<Option<SharedPages>>,
    file_pages: u64,
}

/// A loan: the pages, and the thread that they stay on.
struct SharedPages {
    pages: NonNull<dyn PageView>,
    thread: ThreadId,
}

// SAFETY: the pointer is followed on the thread that lent it alone (see `PyPages::with`); other
// threads may at most drop it, as the traceback of an exception does.
unsafe impl Send for SharedPages {}

impl PyPages {
    /// Lends `pages` to `user` in a Python object, and takes them back.
    pub fn lend<T>(
        py: Python<'_>,
        pages: &mut dyn PageView,
        file_pages: u64,
        user: impl FnOnce(&Bound<'_, PyPages>) -> PyResult<T>,
    ) -> PyResult<T> {
        let pages: NonNull<dyn PageView + '_> = NonNull::from(pages);
        // SAFETY: only the lifetime changes. The pointer is used by `with` alone, under the lock,
        // and `Loan` takes it out under the same lock before `pages`, borrowed until we return, ends.
        let pages: NonNull<dyn PageView> = unsafe { std::mem::transmute(pages) };
        let lent = SharedPages { pages, thread: thread::current().id() };
        let loan = Loan(Bound::new(py, PyPages { lent: Mutex::new(Some(lent)), file_pages })?);
        user(&loan.0)
    }

    /// Lets `user` work with the pages, while the loan lasts. Nothing of Python's may
    /// run in `user`: it would find the lock taken.
    pub fn with<T>(&self, user: impl FnOnce(&mut dyn PageView) -> T) -> PyResult<T> {
        let mut lent = self.lent.lock().expect("no policy panics");
        match &mut *lent {
            Some(SharedPages { pages, thread }) if *thread == thread::current().id() => {
                // SAFETY: the loan lasts (see `lend`), we are on its thread, and the lock makes this
                // the one reference.
                Ok(user(unsafe { pages.as_mut() }))
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

/// Ends the loan when it goes, also when the borrower has failed.
struct Loan<'py>(Bound<'py, PyPages>);

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        *self.0.get().lent.lock().expect("no policy panics") = None;
    }
}

#[pymethods]
impl PyPages {
    /// How many pages the file has.
    #[getter]
    fn file_pages(&self) -> u64 {
        self.file_pages
    }

    /// Whether the page is in the cache, or on its way into it.
    fn is_cached(&self, page: u64) -> PyResult<bool> {
        self.with(|pages| pages.is_cached(page))
    }

    /// The block that the page came in as, `(first, order)`; None when it is not cached.
    fn folio(&self, page: u64) -> PyResult<Option<(u64, u8)>> {
        let folio = self.with(|pages| pages.folio(page))?;
        Ok(folio.map(|folio| (folio.first, folio.order)))
    }

    /// The folio of the page, `(first, order)`, if it carries the readahead mark.
    fn marked(&self, page: u64) -> PyResult<Option<(u64, u8)>> {
        let folio = self.with(|pages| pages.marked(page))?;
        Ok(folio.map(|folio| (folio.first, folio.order)))
    }

    /// Takes the readahead mark off the folio that holds the page, if it carries it.
    fn clear_mark(&self, page: u64) -> PyResult<()> {
        self.with(|pages| {
            if let Some(folio) = pages.marked(page) {
                pages.clear_mark(folio);
            }
        })
    }

    /// Adds a folio of `1 << order` pages from `first` on, and has it read.
    /// False when memory is short: nothing was added, and the law had better stop.
    ///
    /// Raises ValueError where `first` is not a multiple of the folio's size or
    /// lies past the end of the file, or one of the pages is cached already.
    #[pyo3(signature = (first, order=0, marked=false))]
    fn add(&self, first: u64, order: u8, marked: bool) -> PyResult<bool> {
        let wrong = |what: String| Err(PyValueError::new_err(what));
        if order > FOLIO_ORDER_MAX {
            return wrong(format!("a folio of order {order}; the largest is {FOLIO_ORDER_MAX}"));
        }
        if !first.is_multiple_of(1 << order) {
            return wrong(format!("page {first} does not begin a folio of {} pages", 1 << order));
        }
        if first >= self.file_pages {
            return wrong(format!("page {first} of a file of {} pages", self.file_pages));
        }
        let folio = Folio { first, order };
        let cached =
            self.with(|pages| folio.range().pages().find(|&page| pages.is_cached(page)))?;
        if let Some(page) = cached {
            return wrong(format!("page {page} is cached already; add only what is not"));
        }
        self.with(|pages| pages.add(folio, marked))
    }

    /// Adds the pages from `first` up to, and without, `end` one by one, but
    /// for those that are cached and those past the end of the file; the page
    /// `mark` is marked. False when memory is short.
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
