//! The sources' tables: published beside modelled.
//!
//! Each table is run on one description of one machine, with nothing fitted per
//! cell. What the sources left out is given as modelled, without a published
//! figure beside it.

use readpath_core::policy::Spec;
use serde::Serialize;

use crate::job::JobFile;
use crate::report::ResultRow;
use crate::run::{Go, Progress};
use crate::simulate::{SimulateError, SimulationSetup, simulate};

mod a;
mod b;
pub mod c;
mod d;
mod e;

/// A table that can be reproduced.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// Its letter, as in the sources.
    pub name: &'static str,
    /// What it shows, in one line.
    pub title: &'static str,
    run: fn(u64, u32, &mut ProgressCallback<'_>) -> Result<Vec<ReproducedTable>, SimulateError>,
}

/// Hears of the progress of a run.
pub type ProgressCallback<'a> = dyn FnMut(Progress) -> Go + 'a;

/// The tables that there are.
pub const EXPERIMENTS: &[Experiment] =
    &[a::EXPERIMENT, b::EXPERIMENT, c::EXPERIMENT, d::EXPERIMENT, e::EXPERIMENT];

impl Experiment {
    /// Runs every row of the experiment's tables, in the order in which they are printed,
    /// each for a `shortened`-th of its length: 1 for the figures, more for a quick look.
    ///
    /// # Errors
    /// A job or a device is described wrongly: a fault of the experiment.
    pub fn run(
        &self,
        seed: u64,
        shortened: u32,
        tell: &mut ProgressCallback<'_>,
    ) -> Result<Vec<ReproducedTable>, SimulateError> {
        (self.run)(seed, shortened.max(1), tell)
    }
}

/// A table: published beside modelled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReproducedTable {
    /// Its letter.
    pub table: String,
    /// What it shows.
    pub title: String,
    /// The modelled machine, in words.
    pub machine: String,
    /// The unit of the figures.
    pub unit: String,
    /// The rows, the first of which is the one that ratios refer to; none in a
    /// table with a grid.
    pub rows: Vec<TableRow>,
    /// The figures of a table over a number, such as that of the processes.
    pub grid: Option<Grid>,
}

/// Figures over a number: one row for each policy, one column for each number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Grid {
    /// What the columns count.
    pub over: String,
    /// The number of each column.
    pub columns: Vec<u32>,
    /// The rows.
    pub rows: Vec<GridRow>,
}

/// One row of a grid; each of its lists has one entry for each column.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GridRow {
    /// What was measured.
    pub label: String,
    /// The laws that stand for it.
    pub policies: String,
    /// The source's figures; null where the source leaves them out.
    pub published: Vec<Option<f64>>,
    /// Our figures.
    pub modelled: Vec<f64>,
}

/// One row of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableRow {
    /// What was measured.
    pub label: String,
    /// The laws that stand for it.
    pub policies: String,
    /// The source's figure; null where the source leaves it out.
    pub published: Option<f64>,
    /// The source's figure ÷ that of the first row.
    pub published_ratio: Option<f64>,
    /// Our figure.
    pub modelled: f64,
    /// Our figure ÷ that of the first row.
    pub modelled_ratio: f64,
    /// Requests that the device was given.
    pub device_requests: Option<u64>,
    /// Their mean size in KiB.
    pub device_request_kib_mean: Option<f64>,
    /// Pages read back from swap; null where nothing is swapped.
    pub pages_in: Option<u64>,
    /// Pages written to swap; null where nothing is swapped.
    pub pages_out: Option<u64>,
}

/// A row to be run: what it is called, what stands for it, and the source's figure.
struct SimulatedRow {
    label: &'static str,
    job: String,
    setup: SimulationSetup,
    published: Option<f64>,
}

/// Runs the cases in MB/s (10⁶ bytes), ratios to the first.
fn megabytes_per_second(
    cases: Vec<SimulatedRow>,
    tell: &mut ProgressCallback<'_>,
) -> Result<Vec<TableRow>, SimulateError> {
    let published_first = cases.first().and_then(|case| case.published);
    let mut rows: Vec<TableRow> = Vec::new();
    for case in cases {
        let job = JobFile::parse(&case.job).expect("the experiment's job is well formed");
        let row: ResultRow = simulate(case.label, &job, &case.setup, tell)?;
        let modelled = row.bytes as f64 / 1e6 / row.seconds;
        rows.push(TableRow {
            label: case.label.to_owned(),
            policies: format!("{} {}", case.setup.readahead, case.setup.scheduler),
            published: case.published,
            published_ratio: case.published.zip(published_first).map(|(this, first)| this / first),
            modelled,
            modelled_ratio: modelled / rows.first().map_or(modelled, |first| first.modelled),
            device_requests: row.device_requests,
            device_request_kib_mean: row.device_request_kib_mean,
            pages_in: None,
            pages_out: None,
        });
    }
    Ok(rows)
}

fn policy(text: &str) -> Spec {
    Spec::parse(text).expect("the experiment's policy is well formed")
}
