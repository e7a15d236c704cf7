//! Published tables, reproduced in simulation.
//!
//! Each table is simulated with one description of the machine, and no cell is fitted individually.
//! Values that the source omits are shown without a published value.

use readpath_core::policy::Spec;
use serde::Serialize;

use readpath_sim::job::JobFile;
use readpath_sim::report::ResultRow;
use readpath_sim::run::{Progress, ProgressAnswer};
use readpath_sim::simulate::{SimulateError, SimulationSetup, simulate};

mod a;
mod b;
pub mod c;
mod d;
mod e;
mod f;

/// A table that can be reproduced.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// Letter of the table, as in the sources.
    pub name: &'static str,
    /// One-line title.
    pub title: &'static str,
    /// Simulates the tables with a seed and a divisor of the work.
    run: fn(u64, u32, &mut ProgressCallback<'_>) -> Result<Vec<ReproducedTable>, SimulateError>,
}

/// Callback for the progress of a simulation.
pub type ProgressCallback<'a> = dyn FnMut(Progress) -> ProgressAnswer + 'a;

/// All reproducible tables.
pub const EXPERIMENTS: &[Experiment] =
    &[a::EXPERIMENT, b::EXPERIMENT, c::EXPERIMENT, d::EXPERIMENT, e::EXPERIMENT, f::EXPERIMENT];

impl Experiment {
    /// Simulates every row of the experiment's tables, in output order. `divisor` divides the work
    /// of each simulation: 1 for the full results, more for a quick look.
    ///
    /// # Errors
    /// Fails if a job or a device is described wrongly, which is a bug of the experiment.
    pub fn run(
        &self,
        seed: u64,
        divisor: u32,
        on_progress: &mut ProgressCallback<'_>,
    ) -> Result<Vec<ReproducedTable>, SimulateError> {
        (self.run)(seed, divisor.max(1), on_progress)
    }
}

/// A table with published and simulated values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReproducedTable {
    /// Letter of the table.
    pub table: String,
    /// Title.
    pub title: String,
    /// Description of the simulated machine.
    pub machine: String,
    /// Unit of the values.
    pub unit: String,
    /// Rows of the table. Ratios refer to the first row. Empty for a table with a grid.
    pub rows: Vec<TableRow>,
    /// Values over a parameter, such as the number of processes.
    pub grid: Option<Grid>,
}

/// Values over a parameter: one row per policy, one column per parameter value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Grid {
    /// Name of the parameter.
    pub over: String,
    /// Parameter value of each column.
    pub columns: Vec<u32>,
    /// Rows of the grid.
    pub rows: Vec<GridRow>,
}

/// One row of a grid. Each list has one entry per column.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GridRow {
    /// Label of the row.
    pub label: String,
    /// True if the published values are inputs of the model: parameters, or figures to which one
    /// was fitted. They are no predictions.
    pub is_input: bool,
    /// Policies that represent the row.
    pub policies: String,
    /// Published values. Null where the source omits them.
    pub published: Vec<Option<f64>>,
    /// Simulated values.
    pub modelled: Vec<f64>,
}

/// One row of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableRow {
    /// Label of the row.
    pub label: String,
    /// Policies that represent the row.
    pub policies: String,
    /// Published value. Null if the source omits it.
    pub published: Option<f64>,
    /// Published value, divided by the first row's.
    pub published_ratio: Option<f64>,
    /// Simulated value.
    pub modelled: f64,
    /// Simulated value, divided by the first row's. 1 for the first row.
    pub modelled_ratio: f64,
    /// Number of device requests.
    pub device_requests: Option<u64>,
    /// Mean size of a device request, in KiB.
    pub device_request_kib_mean: Option<f64>,
    /// Pages read from swap. Null without swap.
    pub pages_in: Option<u64>,
    /// Pages written to swap. Null without swap.
    pub pages_out: Option<u64>,
}

/// A row to simulate: label, text of the job and setup that represent it, and published value.
struct SimulationCase {
    /// Label of the row, as in the source.
    label: &'static str,
    /// Text of the job file.
    job: String,
    /// Device, policies and host of the simulation.
    setup: SimulationSetup,
    /// Published rate in MB/s. `None` if the source omits it.
    published: Option<f64>,
}

/// Simulates the cases. Returns a row for each, in MB/s (10⁶ bytes) and as a ratio to the first.
fn simulate_rows(
    cases: Vec<SimulationCase>,
    on_progress: &mut ProgressCallback<'_>,
) -> Result<Vec<TableRow>, SimulateError> {
    let published_first = cases.first().and_then(|case| case.published);
    let mut rows: Vec<TableRow> = Vec::new();
    for case in cases {
        let job = JobFile::parse(&case.job).expect("the experiment's job is well formed");
        let row: ResultRow = simulate(case.label, &job, &case.setup, on_progress)?;
        let modelled = row.bytes as f64 / 1e6 / row.seconds;
        rows.push(TableRow {
            label: case.label.to_owned(),
            policies: format!("{} {}", case.setup.readahead, case.setup.scheduler),
            published: case.published,
            published_ratio: case.published.zip(published_first).map(|(own, first)| own / first),
            modelled,
            modelled_ratio: modelled / rows.first().map_or(modelled, |first| first.modelled),
            device_requests: row.device_requests,
            device_request_kib_mean: row.device_request_kib_mean,
            // File reads do not swap.
            pages_in: None,
            pages_out: None,
        });
    }
    Ok(rows)
}

/// Parses the text of a policy or a device.
fn spec_of(text: &str) -> Spec {
    Spec::parse(text).expect("the experiment's policy is well formed")
}
