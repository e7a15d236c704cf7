//! Readahead laws written in Python, and ours for use in them.

use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::prelude::*;
use readpath_core::policy::Spec;
use readpath_core::machine::PolicyMaker;
use readpath_core::readahead::{self, Advice, ReadRequest, NoReadahead, PageView, ReadaheadPolicy};

use crate::ask::{PyAsk, PyLimits};
use crate::pages::PyPages;
use crate::spec::refused;

/// Where the first exception of any law of a run is kept until the run has
/// ended: a law has no way to fail.
#[derive(Clone, Default)]
pub struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    /// Keeps the exception, unless there was one before.
    pub fn keep(&self, error: PyErr) {
        self.0.lock().expect("nobody panics while holding it").get_or_insert(error);
    }

    /// Whether there was one.
    pub fn is_any(&self) -> bool {
        self.0.lock().expect("nobody panics while holding it").is_some()
    }

    /// The exception, as the result of the run.
    pub fn result(&self) -> PyResult<()> {
        self.0.lock().expect("nobody panics while holding it").take().map_or(Ok(()), Err)
    }
}

/// Makes laws by calling `make` with the device's limits. After an exception
/// nothing is read ahead any more, until the run stops.
pub fn policy_maker(make: Py<PyAny>, raised: Raised) -> PolicyMaker {
    Box::new(move |limits| {
        let policy = Python::attach(|py| make.call1(py, (PyLimits(*limits),)));
        match policy {
            Ok(policy) => Box::new(PythonPolicy { policy, raised: raised.clone() }),
            Err(error) => {
                raised.keep(error);
                Box::new(NoReadahead)
            }
        }
    })
}

/// A law whose methods are a Python object's.
struct PythonPolicy {
    policy: Py<PyAny>,
    raised: Raised,
}

impl PythonPolicy {
    fn call(&self, call: impl FnOnce(Python<'_>) -> PyResult<()>) {
        if self.raised.is_any() {
            return;
        }
        if let Err(error) = Python::attach(call) {
            self.raised.keep(error);
        }
    }
}

impl ReadaheadPolicy for PythonPolicy {
    fn read(&mut self, ask: &ReadRequest, pages: &mut dyn PageView) {
        self.call(|py| {
            PyPages::lend(py, pages, ask.file_pages(), |pages| {
                self.policy.call_method1(py, "read", (PyAsk(*ask), pages)).map(drop)
            })
        });
    }

    fn fault(&mut self, page: u64, ask: &ReadRequest, pages: &mut dyn PageView) {
        self.call(|py| {
            PyPages::lend(py, pages, ask.file_pages(), |pages| {
                self.policy.call_method1(py, "fault", (page, PyAsk(*ask), pages)).map(drop)
            })
        });
    }

    fn advise(&mut self, advice: Advice) {
        self.call(|py| self.policy.call_method1(py, "advise", (advice_name(advice),)).map(drop));
    }
}

/// One of our own laws, to be asked from a law written in Python.
#[pyclass(frozen, name = "NamedPolicy", module = "readpath")]
pub struct NamedPolicy(Mutex<Box<dyn ReadaheadPolicy>>);

impl NamedPolicy {
    /// The law, locked. Nothing of Python's runs inside, so that nobody waits for the lock long.
    fn policy(&self) -> MutexGuard<'_, Box<dyn ReadaheadPolicy>> {
        self.0.lock().expect("no policy panics")
    }
}

#[pymethods]
impl NamedPolicy {
    /// The law that `spec` names, on a device with these limits.
    ///
    /// Raises ValueError where the name or a parameter is wrong.
    #[new]
    fn new(spec: &str, limits: &PyLimits) -> PyResult<NamedPolicy> {
        let spec = Spec::parse(spec).map_err(refused)?;
        let policy = readahead::build(&spec, &limits.0).map_err(refused)?;
        // It answers `Demand::Page`, which laws in Python aren't asked for.
        if spec.name == "window" {
            return Err(refused(format!(
                "`{}` splits what was asked, which no policy in Python can; name it as `readahead=`",
                spec.name
            )));
        }
        Ok(NamedPolicy(Mutex::new(policy)))
    }

    /// A read came: adds to `pages` what should be read now.
    fn read(&self, ask: &PyAsk, pages: &PyPages) -> PyResult<()> {
        pages.with(|pages| self.policy().read(&ask.0, pages))
    }

    /// A memory-mapped access touched `page`.
    fn fault(&self, page: u64, ask: &PyAsk, pages: &PyPages) -> PyResult<()> {
        pages.with(|pages| self.policy().fault(page, &ask.0, pages))
    }

    /// The program gave a hint, by its name in `posix_fadvise`.
    fn advise(&self, advice: &str) -> PyResult<()> {
        let advice = advice_named(advice)?;
        self.policy().advise(advice);
        Ok(())
    }
}

/// The advice of that name.
pub fn advice_named(name: &str) -> PyResult<Advice> {
    let all =
        [Advice::Normal, Advice::Sequential, Advice::Random, Advice::WillNeed, Advice::DontNeed];
    all.into_iter().find(|&known| advice_name(known) == name).ok_or_else(|| {
        let names = all.map(advice_name).join(", ");
        refused(format!("there is no advice `{name}`; there are: {names}"))
    })
}

fn advice_name(advice: Advice) -> &'static str {
    match advice {
        Advice::Normal => "normal",
        Advice::Sequential => "sequential",
        Advice::Random => "random",
        Advice::WillNeed => "willneed",
        Advice::DontNeed => "dontneed",
    }
}
