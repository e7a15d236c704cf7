//! Readahead policies written in Python, and Rust policies for use in them.

use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::prelude::*;
use readpath_core::machine::PolicyMaker;
use readpath_core::policy::Spec;
use readpath_core::readahead::{self, Advice, NoReadahead, PageView, ReadRequest, ReadaheadPolicy};

use crate::ask::{PyAsk, PyLimits};
use crate::pages::PyPages;
use crate::spec::refused;

/// First exception of any policy in a run, kept until the run has ended, because a policy has no
/// error result.
#[derive(Clone, Default)]
pub struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    /// Stores the exception, unless there is one already.
    pub fn keep_first(&self, error: PyErr) {
        self.0.lock().expect("no thread panics while holding it").get_or_insert(error);
    }

    /// Returns true if there is an exception.
    pub fn is_any(&self) -> bool {
        self.0.lock().expect("no thread panics while holding it").is_some()
    }

    /// Returns the exception as the result of the run, and removes it. `Ok` without one.
    pub fn result(&self) -> PyResult<()> {
        self.0.lock().expect("no thread panics while holding it").take().map_or(Ok(()), Err)
    }
}

/// Returns a function that creates policies by a call of `make` with the device's limits. An
/// exception of `make` goes to `raised`, and the file has no readahead until the run ends.
pub fn policy_maker(make: Py<PyAny>, raised: Raised) -> PolicyMaker {
    Box::new(move |limits| {
        let policy = Python::attach(|py| make.call1(py, (PyLimits(*limits),)));
        match policy {
            Ok(policy) => Box::new(PythonPolicy { policy, raised: raised.clone() }),
            Err(error) => {
                raised.keep_first(error);
                Box::new(NoReadahead)
            }
        }
    })
}

/// A policy whose methods belong to a Python object.
struct PythonPolicy {
    policy: Py<PyAny>,
    raised: Raised,
}

impl PythonPolicy {
    /// Calls a method of the Python object by `call`, and keeps its exception. No effect after an
    /// exception of any policy of the run, which then ends soon.
    fn call(&self, call: impl FnOnce(Python<'_>) -> PyResult<()>) {
        if self.raised.is_any() {
            return;
        }
        if let Err(error) = Python::attach(call) {
            self.raised.keep_first(error);
        }
    }
}

impl ReadaheadPolicy for PythonPolicy {
    /// Calls the object's `read`, which may add pages to `pages` during the call.
    fn read(&mut self, request: &ReadRequest, pages: &mut dyn PageView) {
        self.call(|py| {
            PyPages::lend(py, pages, request.file_pages(), |pages| {
                self.policy.call_method1(py, "read", (PyAsk(*request), pages)).map(drop)
            })
        });
    }

    /// Calls the object's `fault` for an access to `page` of a mapping.
    fn fault(&mut self, page: u64, request: &ReadRequest, pages: &mut dyn PageView) {
        self.call(|py| {
            PyPages::lend(py, pages, request.file_pages(), |pages| {
                self.policy.call_method1(py, "fault", (page, PyAsk(*request), pages)).map(drop)
            })
        });
    }

    /// Calls the object's `advise` with the name of the advice.
    fn advise(&mut self, advice: Advice) {
        self.call(|py| self.policy.call_method1(py, "advise", (advice_name(advice),)).map(drop));
    }
}

/// A Rust policy for use in a policy written in Python.
#[pyclass(frozen, name = "NamedPolicy", module = "readpath")]
pub struct NamedPolicy(Mutex<Box<dyn ReadaheadPolicy>>);

impl NamedPolicy {
    /// Returns the locked policy. No Python code runs under the lock, so it is held only briefly.
    fn policy(&self) -> MutexGuard<'_, Box<dyn ReadaheadPolicy>> {
        self.0.lock().expect("no policy panics")
    }
}

#[pymethods]
impl NamedPolicy {
    /// Creates the policy named by `spec` for a device with these limits.
    ///
    /// Raises ValueError for a wrong name or parameter.
    #[new]
    fn new(spec: &str, limits: &PyLimits) -> PyResult<NamedPolicy> {
        let spec = Spec::parse(spec).map_err(refused)?;
        let policy = readahead::build(&spec, &limits.0).map_err(refused)?;
        // This policy returns `Demand::Page`, which Python policies do not support.
        if spec.name == "window" {
            return Err(refused(format!(
                "`{}` splits what was asked, which no policy in Python can; name it as `readahead=`",
                spec.name
            )));
        }
        Ok(NamedPolicy(Mutex::new(policy)))
    }

    /// Handles a read: adds the pages to read now to `pages`. Raises RuntimeError if `pages` is not
    /// valid any more.
    fn read(&self, ask: &PyAsk, pages: &PyPages) -> PyResult<()> {
        pages.with(|pages| self.policy().read(&ask.0, pages))
    }

    /// Handles a memory-mapped access to `page`.
    fn fault(&self, page: u64, ask: &PyAsk, pages: &PyPages) -> PyResult<()> {
        pages.with(|pages| self.policy().fault(page, &ask.0, pages))
    }

    /// Handles a hint of the program, by its name in `posix_fadvise`.
    fn advise(&self, advice: &str) -> PyResult<()> {
        let advice = advice_named(advice)?;
        self.policy().advise(advice);
        Ok(())
    }
}

/// Returns the advice of that name. Raises ValueError for an unknown one.
pub fn advice_named(name: &str) -> PyResult<Advice> {
    let all =
        [Advice::Normal, Advice::Sequential, Advice::Random, Advice::WillNeed, Advice::DontNeed];
    all.into_iter().find(|&known| advice_name(known) == name).ok_or_else(|| {
        let names = all.map(advice_name).join(", ");
        refused(format!("there is no advice `{name}`; there are: {names}"))
    })
}

/// Name of an advice in `posix_fadvise`, in lower case and without its prefix.
fn advice_name(advice: Advice) -> &'static str {
    match advice {
        Advice::Normal => "normal",
        Advice::Sequential => "sequential",
        Advice::Random => "random",
        Advice::WillNeed => "willneed",
        Advice::DontNeed => "dontneed",
    }
}
