//! Workloads from outside, as cells of the matrix: job files, and recordings of programs.
//!
//! A *cell* is one workload on one device, simulated under the policies under test and under
//! combinations of classic policies, its *baselines*.

use std::path::Path;
use std::sync::Arc;

use readpath_sim::job::JobFile;
use readpath_sim::report::ResultRow;
use readpath_sim::run::RunObserver;
use readpath_sim::simulate::{SimulateError, SimulationSetup, simulate_with_callbacks};
use readpath_trace::replay::RecordedProgram;

use super::{DEVICES, MatrixCell, MatrixResult, MatrixTask, drawn_devices, has_parts};

/// Reads of a workload from outside.
#[derive(Clone, Debug)]
pub enum GivenReads {
    /// The sections of a job file.
    Job(JobFile),
    /// The threads of a recorded program, with the recorded think times and memory.
    Recording(Box<RecordedProgram>),
}

/// A workload from outside.
#[derive(Clone, Debug)]
pub struct GivenWorkload {
    /// Name in the matrix.
    pub name: String,
    /// Its reads.
    pub reads: GivenReads,
}

impl GivenWorkload {
    /// Names a workload by its file.
    pub fn new(path: &Path, reads: GivenReads) -> GivenWorkload {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // A slash separates the parts of a cell's name, and a comma separates parts in a filter.
        GivenWorkload { name: name.replace([',', '/'], "_"), reads }
    }

    /// Number of processes of a job, or of threads of a recorded program.
    fn processes(&self) -> u32 {
        match &self.reads {
            GivenReads::Job(job) => job.jobs.iter().map(|section| section.processes).sum(),
            GivenReads::Recording(recorded) => recorded.threads().len() as u32,
        }
    }

    /// True if readahead has no effect: all reads are direct. A recorded program always counts as
    /// one with cached reads, also if its threads read directly. Its baselines with different
    /// readahead policies are then equal.
    pub(super) fn is_direct(&self) -> bool {
        match &self.reads {
            GivenReads::Job(job) => job.jobs.iter().all(|section| section.is_direct),
            GivenReads::Recording(_) => false,
        }
    }

    /// Simulates the workload under `setup`. A recorded program has the memory and the readahead
    /// window of its recording in place of those in `setup`.
    ///
    /// # Errors
    /// Fails in the same cases as [`simulate_with_callbacks`], if no byte is read, and if an
    /// operation fails.
    pub(super) fn run(
        &self,
        setup: SimulationSetup,
        observer: RunObserver<'_>,
    ) -> Result<MatrixResult, SimulateError> {
        match &self.reads {
            GivenReads::Job(job) => {
                let row = simulate_with_callbacks(&self.name, job, &setup, observer)?;
                check_row(&row)?;
                Ok(MatrixResult::from_row(&row, self.is_direct()))
            }
            GivenReads::Recording(recorded) => {
                let setup = recorded.with_memory(setup, recorded.default_memory_bytes());
                let (row, duration) = recorded.simulate(&setup, observer)?;
                check_row(&row)?;
                // The duration of the program, with the recorded time after its last read.
                let seconds = duration.seconds();
                let mib_per_s = row.bytes as f64 / f64::from(1 << 20) / seconds;
                let result = MatrixResult::from_row(&row, self.is_direct());
                Ok(MatrixResult { seconds, mib_per_s, ..result })
            }
        }
    }
}

/// Returns an error for a workload that moves no byte, which has no throughput, and for one with
/// failed operations, which would be faster than the workload can be.
fn check_row(row: &ResultRow) -> Result<(), SimulateError> {
    if let Some(first) = row.first_error.clone() {
        return Err(SimulateError::FailedOperations { count: row.errors, first });
    }
    match row.mib_per_s {
        Some(mib_per_s) if mib_per_s > 0.0 => Ok(()),
        _ => Err(SimulateError::NoBytes),
    }
}

/// Returns the cells of these workloads on all devices, and on the devices that are drawn from
/// `seed`. Only cells whose names contain each of `parts`.
pub fn cells_of_given(
    workloads: &[Arc<GivenWorkload>],
    seed: u64,
    parts: &[&str],
) -> Vec<MatrixCell> {
    let fixed = DEVICES.iter().map(|&(name, text)| (name.to_owned(), text.to_owned()));
    let mut cells = Vec::new();
    // A device has a name and its text for the registry of models.
    for (device, device_text) in fixed.chain(drawn_devices(seed)) {
        for workload in workloads {
            let cell = MatrixCell {
                device: device.clone(),
                device_text: device_text.clone(),
                workload: workload.name.clone(),
                task: MatrixTask::Given(Arc::clone(workload)),
                processes: workload.processes(),
            };
            if has_parts(&cell.name(), parts) {
                cells.push(cell);
            }
        }
    }
    cells
}
