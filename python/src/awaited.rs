//! A read that an event loop waits for.
//!
//! An `Own` holds a value of the process that created it. In a child of `fork` its `get_mut`
//! returns none.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use readpath::ReadFuture;

use crate::failure::Failure;
use crate::process::Own;
use crate::urls::Reports;

/// A read that is polled. It is dropped after its bytes have been returned.
#[pyclass(frozen, module = "readpath")]
pub struct Awaited {
    /// The read, or None after its end.
    future: Mutex<Option<Own<ReadFuture<Vec<u8>>>>>,
    /// Name of the file that is read.
    name: Py<PyAny>,
    /// Reports about the object that is read, and its URL; None for other files.
    object: Option<(Arc<Reports>, String)>,
}

impl Awaited {
    /// Creates a read that has not been polled yet.
    pub fn new(
        future: ReadFuture<Vec<u8>>,
        name: Py<PyAny>,
        object: Option<(Arc<Reports>, String)>,
    ) -> Awaited {
        Awaited { future: Mutex::new(Some(Own::new(future))), name, object }
    }
}

#[pymethods]
impl Awaited {
    /// Returns the bytes, or None while the read is in flight. Then `wake` is called, on any
    /// thread, when the next poll is due. A poll after the end returns an empty object. Raises the
    /// error of the read, or an error in a forked child, which does not own the read.
    fn poll<'py>(&self, py: Python<'py>, wake: Py<PyAny>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let waker = Waker::from(Arc::new(WakeCall(wake)));
        let polled = py.detach(|| {
            let mut future = self.future.lock().expect("no poll panics");
            // The read has ended at an earlier poll.
            let Some(read) = &mut *future else { return Poll::Ready((Ok(0), Vec::new())) };
            // The read belongs to the parent of this process.
            let Some(read) = read.get_mut() else {
                return Poll::Ready((Err(io::ErrorKind::Interrupted.into()), Vec::new()));
            };
            let polled = Pin::new(read).poll(&mut Context::from_waker(&waker));
            if polled.is_ready() {
                *future = None;
            }
            polled
        });
        match polled {
            Poll::Pending => Ok(None),
            Poll::Ready((Ok(count), bytes)) => Ok(Some(PyBytes::new(py, &bytes[..count]))),
            Poll::Ready((Err(error), _)) => Err(match &self.object {
                Some((reports, url)) => reports.explain(error.into(), url).into(),
                None => Failure::from(error).of_file(self.name.clone_ref(py)),
            }),
        }
    }
}

/// Calls a Python function to wake a task.
struct WakeCall(Py<PyAny>);

impl Wake for WakeCall {
    /// Calls the function. An exception goes to Python's hook for unraisable exceptions.
    fn wake(self: Arc<Self>) {
        Python::attach(|py| {
            if let Err(error) = self.0.call0(py) {
                error.write_unraisable(py, None);
            }
        });
    }
}
