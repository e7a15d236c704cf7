//! One job on one modelled device. The result is the row of the command's JSON.
//!
//! A run does not need Python, so Python's lock is released. From time to time Python handles
//! signals.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use readpath_core::policy::Spec;
use readpath_sim::job::JobFile;
use readpath_sim::observe::{Events, Observer};
use readpath_sim::run::{Progress, ProgressAnswer, RunObserver};
use readpath_sim::simulate::{
    ErrorSubject, Participants, SimulateError, SimulationSetup, check as check_setup, check_memory,
    simulate_with,
};

use crate::policy::{Raised, policy_maker};
use crate::spec::refused;

/// Flag that stops a run on another thread.
#[pyclass(frozen, module = "readpath")]
#[derive(Default)]
pub struct Stop(AtomicBool);

#[pymethods]
impl Stop {
    /// Creates a flag that is not set.
    #[new]
    fn new() -> Stop {
        Stop::default()
    }

    /// Stops the runs that use this flag soon, with partial results.
    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// True after `set` was called.
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A parsed job with its setup.
struct Point {
    /// Name of the job in the row.
    name: String,
    /// Name of the job in errors.
    source: String,
    job: JobFile,
    setup: SimulationSetup,
}

/// Fields of a point: name of the job, its name in errors, its text, device, readahead, scheduler,
/// memory in bytes, seed.
type NamedPoint = (String, String, String, String, String, String, u64, u64);

impl Point {
    /// Parses the job, the device and the policies. Raises ValueError for an invalid one, and for
    /// memory that is too small for the job.
    fn parse(named: NamedPoint) -> PyResult<Point> {
        let (name, source, text, device, readahead, scheduler, memory_bytes, seed) = named;
        let job = JobFile::parse(&text).map_err(|error| refused(format!("{source}: {error}")))?;
        check_memory(&job, memory_bytes)
            .map_err(|error| refused(format!("memory {memory_bytes}: {source}: {error}")))?;
        let setup = SimulationSetup {
            readahead: Spec::parse(&readahead).map_err(refused)?,
            scheduler: Spec::parse(&scheduler).map_err(refused)?,
            memory_bytes,
            seed,
            ..SimulationSetup::new(Spec::parse(&device).map_err(refused)?)
        };
        Ok(Point { name, source, job, setup })
    }

    /// Exception for an error of a run, with its subject in front: the job, the device, or nothing
    /// for policies, which the error names itself.
    fn exception(&self, error: &SimulateError) -> PyErr {
        match error.about() {
            ErrorSubject::Job => refused(format!("{}: {error}", self.source)),
            ErrorSubject::Policies => refused(error),
            ErrorSubject::Storage => refused(format!("{}: {error}", self.setup.device)),
        }
    }
}

/// Checks if a point can be run, without running it.
///
/// Raises ValueError with the command's message if it cannot.
#[pyfunction]
pub fn check(py: Python<'_>, point: NamedPoint) -> PyResult<()> {
    let point = Point::parse(point)?;
    py.detach(|| check_setup(&point.job, &point.setup)).map_err(|error| point.exception(&error))
}

/// Runs a point. Returns its row as JSON, and the observed events if `events_max` is given.
///
/// `policy` creates the readahead policy of each opened file from the device's limits, instead of
/// the named one. `tell(now_ns, bytes, bytes_total)` is called with the progress. Raises ValueError
/// for an impossible run, any exception of `policy` or `tell`, and KeyboardInterrupt. A run stopped
/// by `stop` returns the results up to then.
#[pyfunction]
#[pyo3(signature = (point, *, policy=None, tell=None, stop=None, events_max=None))]
pub fn simulate<'py>(
    py: Python<'py>,
    point: NamedPoint,
    policy: Option<Py<PyAny>>,
    tell: Option<Py<PyAny>>,
    stop: Option<Py<Stop>>,
    events_max: Option<usize>,
) -> PyResult<(String, Option<Bound<'py, PyDict>>)> {
    let point = Point::parse(point)?;
    let raised = Raised::default();
    let observer = events_max.map(Observer::new);
    let participants = Participants {
        policy_maker: policy.map(|policy| policy_maker(policy, raised.clone())),
        observer: observer.clone(),
    };
    let mut progress = |progress: Progress| {
        let must_stop = raised.is_any()
            || stop.as_ref().is_some_and(|stop| stop.get().is_set())
            || report_progress(&progress, tell.as_ref())
                .map_err(|error| raised.keep_first(error))
                .is_err();
        if must_stop { ProgressAnswer::Stop } else { ProgressAnswer::Continue }
    };
    let row = py.detach(|| {
        let run_observer = RunObserver::progress(&mut progress);
        simulate_with(&point.name, &point.job, &point.setup, participants, run_observer)
    });
    // An exception of Python code explains the error of the run, if both exist.
    raised.result()?;
    let row = row.map_err(|error| point.exception(&error))?;
    let row = serde_json::to_string(&row).expect("rows are plain data");
    let events = observer.map(|observer| columns(py, &observer.take())).transpose()?;
    Ok((row, events))
}

/// Lets Python handle signals, and reports the progress by a call of `tell`, if given. Raises the
/// exception of a signal handler or of `tell`.
fn report_progress(progress: &Progress, tell: Option<&Py<PyAny>>) -> PyResult<()> {
    Python::attach(|py| {
        py.check_signals()?;
        let Some(tell) = tell else { return Ok(()) };
        tell.call1(py, (progress.now.ns(), progress.bytes, progress.bytes_total)).map(drop)
    })
}

/// Returns the events as columns: for each kind a dictionary of lists, one list per field. Also the
/// number of events that were dropped because of their maximum number.
fn columns<'py>(py: Python<'py>, events: &Events) -> PyResult<Bound<'py, PyDict>> {
    macro_rules! table {
        ($list:expr, $($field:ident),*) => {{
            let table = PyDict::new(py);
            $(
                let column: Vec<_> = $list.iter().map(|event| event.$field).collect();
                table.set_item(stringify!($field), column)?;
            )*
            table
        }};
    }
    let all = PyDict::new(py);
    let reads = table!(events.reads, process, offset, bytes, issued_ns, done_ns);
    all.set_item("reads", reads)?;
    let requests = table!(events.requests, sector, sectors, is_write, issued_ns, done_ns);
    all.set_item("requests", requests)?;
    let windows = table!(events.windows, now_ns, handle, page, pages, demand_pages, ahead_pages);
    all.set_item("windows", windows)?;
    all.set_item("dropped", events.dropped)?;
    Ok(all)
}
