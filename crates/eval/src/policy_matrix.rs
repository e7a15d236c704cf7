//! The policy matrix: the `adaptive` policies compared with the best classic policy of each cell,
//! over devices, workloads and numbers of processes.
//!
//! A *cell* is one workload with a number of processes on one device. Its baselines are
//! combinations of classic policies, without hints:
//!
//! - for cached reads, the classic readahead policies under each classic scheduler;
//! - for direct reads, where readahead has no effect, the schedulers alone;
//! - for memory loads, the classic swap-in policies under each scheduler.
//!
//! The result of a cell is the throughput of all its processes. All policies do the same work, so
//! the throughput is the inverse of the time of the last process. It is given relative to the best
//! baseline of the cell. A value below 1 is the *regret* of having chosen `adaptive`.
//!
//! A single simulation of a device with heavy tails, or of readers in random order, has an
//! uncertainty of a few percent. A cell can therefore use several seeds. The time of each policy is
//! then the mean over all of them. The best baseline is chosen in hindsight, so it profits from
//! luck: for cached reads it is the luckiest of twelve combinations, four readahead policies under
//! three schedulers.
//!
//! Equal seeds give bit-identical results.

use std::sync::Arc;

use readpath_core::decision::LoggedDecision;
use readpath_core::policy::Spec;
use serde::{Deserialize, Serialize};

use readpath_models::array::TWELVE_DISKS;
use readpath_sim::load::{LoadRow, LoadSetup, simulate_load};
use readpath_sim::report::ResultRow;
use readpath_sim::run::{ProgressAnswer, RunObserver};
use readpath_sim::simulate::{SimulateError, SimulationSetup, simulate_workload};

#[cfg(test)]
mod bars;
mod cause;
#[cfg(test)]
mod gaps;
mod given;
mod held_out;
mod memory;
mod summary;
pub mod work;
mod workloads;

pub use cause::RegretCause;
pub use given::{GivenReads, GivenWorkload, cells_of_given};
pub use held_out::{CellSet, drawn_devices};
use memory::{LOADS, MatrixMemoryLoad, SWAPINS, setup_under, supports_swap};
pub use summary::{FixedPairResult, MatrixSummary, WorkloadSummary, geometric_mean};
use workloads::{ReadPattern, WORKLOADS};

/// Devices: name in the matrix, and device text. `array` is the controller with twelve disks of the
/// published table D (`reproduce D`).
pub const DEVICES: &[(&str, &str)] = &[
    ("hdd-1", "hdd,drive=sata2010"),
    ("hdd-2", "raid0:2xhdd,hdd.drive=sata2010"),
    ("hdd-3", "raid0:3xhdd,hdd.drive=sata2010"),
    ("hdd-4", "raid0:4xhdd,hdd.drive=sata2010"),
    ("hdd-6", "raid0:6xhdd,hdd.drive=sata2010"),
    ("hdd-12", "raid0:12xhdd,hdd.drive=sata2010"),
    ("array", TWELVE_DISKS),
    ("ssd", "ssd"),
    ("nvme", "nvme"),
    ("nfs-0.2ms", "nfs:ssd,rtt=200us"),
    ("nfs-1ms", "nfs:ssd,rtt=1ms"),
    ("nfs-5ms", "nfs:ssd,rtt=5ms"),
    ("nfs-20ms", "nfs:ssd,rtt=20ms"),
    ("object", "object"),
];

/// Numbers of processes that share the work.
pub const PROCESSES: &[u32] = &[1, 4, 16, 64];

/// Classic readahead policies.
const READAHEADS: [&str; 4] = ["none", "window", "window-fixed", "ondemand"];
/// Classic schedulers.
const SCHEDULERS: [&str; 3] = ["noop", "deadline", "cfq"];

/// Ratio to the best baseline's throughput below which a cell counts as a regret. A few percent are
/// within the uncertainty of a single simulation.
pub const REGRET_RATIO_MAX: f64 = 0.95;

/// Ratio of the 99th percentiles of the latency, the best baseline's divided by the one under test,
/// below which the latency counts as worse: more than 1.25 times the baseline's. Chosen, not
/// measured.
pub const P99_RATIO_MAX: f64 = 0.80;

/// A combination of policies under test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies {
    /// Readahead policy.
    pub readahead: Spec,
    /// Swap-in policy.
    pub swapin: Spec,
    /// Scheduler.
    pub scheduler: Spec,
}

impl Default for Policies {
    /// Returns the default policies: `adaptive` everywhere.
    fn default() -> Policies {
        let adaptive = || Spec::plain("adaptive");
        Policies { readahead: adaptive(), swapin: adaptive(), scheduler: adaptive() }
    }
}

/// One workload with a number of processes on one device.
#[derive(Clone, Debug)]
pub struct MatrixCell {
    /// Name of the device in the matrix.
    pub device: String,
    /// Device text for [`readpath_models::registry`].
    pub device_text: String,
    /// Name of the workload in the matrix.
    pub workload: String,
    /// Work of its processes.
    task: MatrixTask,
    /// Number of processes.
    pub processes: u32,
}

/// Work of the processes of a cell.
#[derive(Clone, Debug)]
enum MatrixTask {
    /// File reads.
    Reads(ReadPattern),
    /// Accesses to more memory than is available.
    Touches(MatrixMemoryLoad),
    /// A workload from outside.
    Given(Arc<GivenWorkload>),
}

/// Seeds and amount of work of a cell.
#[derive(Clone, Copy, Debug)]
pub struct CellSize {
    /// First seed of all random numbers.
    pub seed: u64,
    /// Number of consecutive seeds over which the results are averaged, at least 1.
    pub seeds: u64,
    /// Divisor of the work: 1 for all of it, 64 for a quick test.
    pub part: u64,
}

/// Results of a cell under one readahead or swap-in policy and one scheduler. With several seeds,
/// their mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatrixResult {
    /// Readahead policy. Null where it has no effect.
    pub readahead: Option<String>,
    /// Swap-in policy. Null for file reads.
    pub swapin: Option<String>,
    /// Scheduler.
    pub scheduler: String,
    /// Throughput.
    pub mib_per_s: f64,
    /// Time from the start to the end of the last process.
    pub seconds: f64,
    /// Throughput per seed or round. Empty if there was only one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mib_per_s_by_seed: Vec<f64>,
    /// Number of device requests.
    pub device_requests: Option<f64>,
    /// Mean size of a device request.
    pub device_request_kib_mean: Option<f64>,
    /// Mean queue depth of the device over the time in which it was busy.
    pub device_depth_mean: Option<f64>,
    /// Bytes read from the device, divided by bytes requested.
    pub amplification: Option<f64>,
    /// Requested bytes that were cached in time, divided by requested bytes.
    pub coverage: Option<f64>,
    /// Bytes prefetched and never used.
    pub waste_bytes: Option<f64>,
    /// 99th percentile of the latency of a read in microseconds.
    #[serde(default)]
    pub latency_p99_us: Option<f64>,
}

/// Results of a cell under all policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JudgedCell {
    /// Name of the device in the matrix.
    pub device: String,
    /// Name of the workload in the matrix.
    pub workload: String,
    /// Number of processes.
    pub processes: u32,
    /// Throughput of the policies under test, divided by the best baseline's.
    pub ratio: f64,
    /// 99th percentile of the latency of a read under the best baseline, divided by the one under
    /// the policies under test. Null if one is unknown, as for memory loads, or the latter is 0.
    #[serde(default)]
    pub p99_ratio: Option<f64>,
    /// Cause of the loss. Null if the ratio is no regret, and on real storage.
    #[serde(default)]
    pub cause: Option<RegretCause>,
    /// Results of the policies under test: `adaptive`, unless others were named.
    pub adaptive: MatrixResult,
    /// Results of the baselines, the best first.
    pub baselines: Vec<MatrixResult>,
}

/// Returns true if the name between slashes, `/name/`, contains each of `parts`.
pub(crate) fn has_parts(name: &str, parts: &[&str]) -> bool {
    let name = format!("/{name}/");
    parts.iter().all(|part| name.contains(part))
}

/// Returns the cells whose name `device/workload/processes` contains each of `parts`, in the order
/// of the matrix.
pub fn cells(parts: &[&str]) -> Vec<MatrixCell> {
    cells_on(DEVICES.iter().copied(), parts)
}

/// Returns the same cells on randomly drawn devices, derived from `seed`.
pub fn cells_drawn(seed: u64, parts: &[&str]) -> Vec<MatrixCell> {
    let devices = drawn_devices(seed);
    cells_on(devices.iter().map(|(name, text)| (name.as_str(), text.as_str())), parts)
}

/// Returns the cells on the given devices whose names contain each of `parts`. Devices that cannot
/// hold swap have no memory loads.
fn cells_on<'a>(
    devices: impl Iterator<Item = (&'a str, &'a str)>,
    parts: &[&str],
) -> Vec<MatrixCell> {
    let mut cells = Vec::new();
    for (device, device_text) in devices {
        let reads = WORKLOADS.iter().map(|&(name, pattern)| (name, MatrixTask::Reads(pattern)));
        let touches = LOADS.iter().map(|&(name, load)| (name, MatrixTask::Touches(load)));
        for (workload, task) in reads.chain(touches.filter(|_| supports_swap(device))) {
            for &processes in PROCESSES {
                let cell = MatrixCell {
                    device: device.to_owned(),
                    device_text: device_text.to_owned(),
                    workload: workload.to_owned(),
                    task: task.clone(),
                    processes,
                };
                if has_parts(&cell.name(), parts) {
                    cells.push(cell);
                }
            }
        }
    }
    cells
}

impl MatrixCell {
    /// Returns `device/workload/processes`.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.device, self.workload, self.processes)
    }

    /// Simulates the baselines and returns their results, the best first.
    ///
    /// # Errors
    /// Fails if a policy or a device is invalid, which is a bug of the matrix.
    pub fn baselines(&self, size: CellSize) -> Result<Vec<MatrixResult>, SimulateError> {
        let names: &[&str] = match &self.task {
            MatrixTask::Reads(pattern) if pattern.is_direct() => &["none"],
            MatrixTask::Given(workload) if workload.is_direct() => &["none"],
            MatrixTask::Reads(_) | MatrixTask::Given(_) => &READAHEADS,
            MatrixTask::Touches(_) => &SWAPINS,
        };
        let mut baselines = Vec::new();
        for name in names {
            for scheduler in SCHEDULERS {
                let policies =
                    Policies { scheduler: Spec::plain(scheduler), ..Policies::default() };
                baselines.push(self.run(&self.with_policy(&policies, Spec::plain(name)), size)?);
            }
        }
        baselines.sort_by(|left, right| right.mib_per_s.total_cmp(&left.mib_per_s));
        Ok(baselines)
    }

    /// Simulates `policies` and compares them with `baselines`, the best first. If the result is a
    /// regret, finds the policy that causes it.
    ///
    /// # Errors
    /// Fails in the same cases as [`run`](MatrixCell::run).
    pub fn judge(
        &self,
        policies: &Policies,
        baselines: Vec<MatrixResult>,
        size: CellSize,
    ) -> Result<JudgedCell, SimulateError> {
        let adaptive = self.run(policies, size)?;
        // No baseline list of a cell is empty.
        let ratio = adaptive.mib_per_s / baselines[0].mib_per_s;
        let is_regret = ratio < REGRET_RATIO_MAX;
        let cause = is_regret.then(|| {
            RegretCause::by_exchanging_policies(self, policies, &adaptive, &baselines[0], size)
        });
        Ok(JudgedCell {
            device: self.device.clone(),
            workload: self.workload.clone(),
            processes: self.processes,
            ratio,
            p99_ratio: adaptive.p99_ratio(&baselines[0]),
            cause: cause.transpose()?,
            adaptive,
            baselines,
        })
    }

    /// Simulates the cell under these policies, with each seed. The largest seed is followed by 0.
    ///
    /// # Errors
    /// Fails if a policy is unknown or has an invalid parameter.
    pub fn run(&self, policies: &Policies, size: CellSize) -> Result<MatrixResult, SimulateError> {
        let seeds = (0..size.seeds.max(1)).map(|index| size.seed.wrapping_add(index));
        let runs: Result<Vec<MatrixResult>, SimulateError> =
            seeds.map(|seed| self.run_once(policies, seed, size.part)).collect();
        Ok(MatrixResult::mean(runs?))
    }

    /// Simulates the cell under these policies with the first seed, and passes every logged
    /// decision to `on_decision`. Memory loads are not simulated and return false, because swap-in
    /// policies keep no log.
    ///
    /// # Errors
    /// Fails in the same cases as [`run`](MatrixCell::run).
    pub fn explain(
        &self,
        policies: &Policies,
        size: CellSize,
        on_decision: &mut dyn FnMut(&LoggedDecision),
    ) -> Result<bool, SimulateError> {
        let observer = RunObserver {
            on_progress: &mut |_| ProgressAnswer::Continue,
            on_decision: Some(on_decision),
            // The workload runs as it is. This callback could change it.
            on_workload: None,
        };
        match &self.task {
            MatrixTask::Reads(pattern) => {
                self.run_reads(*pattern, policies, size.seed, size.part, observer)?;
            }
            MatrixTask::Given(workload) => {
                workload.run(self.setup(policies, size.seed)?, observer)?;
            }
            MatrixTask::Touches(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Simulates the cell with one seed. `work_divisor` divides the work; a given workload stays
    /// as it is.
    fn run_once(
        &self,
        policies: &Policies,
        seed: u64,
        work_divisor: u64,
    ) -> Result<MatrixResult, SimulateError> {
        match &self.task {
            MatrixTask::Reads(pattern) => self.run_reads(
                *pattern,
                policies,
                seed,
                work_divisor,
                RunObserver::progress(&mut |_| ProgressAnswer::Continue),
            ),
            MatrixTask::Given(workload) => {
                let mut on_progress = |_| ProgressAnswer::Continue;
                workload.run(self.setup(policies, seed)?, RunObserver::progress(&mut on_progress))
            }
            MatrixTask::Touches(memory_load) => {
                let load = memory_load.load(self.processes, work_divisor);
                let setup = LoadSetup {
                    scheduler: policies.scheduler.clone(),
                    seed,
                    ..setup_under(&policies.swapin, self.device()?)
                };
                let mut on_progress = |_| ProgressAnswer::Continue;
                let row = simulate_load(&load, &setup, RunObserver::progress(&mut on_progress))?;
                Ok(MatrixResult::from_load(&row))
            }
        }
    }

    /// Parses the device text.
    fn device(&self) -> Result<Spec, SimulateError> {
        Spec::parse(&self.device_text).map_err(SimulateError::Device)
    }

    /// Returns the setup of file reads under these policies.
    fn setup(&self, policies: &Policies, seed: u64) -> Result<SimulationSetup, SimulateError> {
        Ok(SimulationSetup {
            readahead: policies.readahead.clone(),
            scheduler: policies.scheduler.clone(),
            seed,
            ..SimulationSetup::new(self.device()?)
        })
    }

    /// Simulates a cell of file reads with one seed. `work_divisor` divides the work.
    fn run_reads(
        &self,
        pattern: ReadPattern,
        policies: &Policies,
        seed: u64,
        work_divisor: u64,
        observer: RunObserver<'_>,
    ) -> Result<MatrixResult, SimulateError> {
        let setup = self.setup(policies, seed)?;
        let workload = pattern.workload(self.processes.into(), work_divisor, seed);
        // The workload has no job file, whose sections would be in the row.
        let no_job = None;
        let row = simulate_workload(no_job, workload, &setup, observer)?;
        Ok(MatrixResult::from_row(&row, pattern.is_direct()))
    }

    /// Returns `policies` with `policy` as the readahead policy, or as the swap-in policy of a
    /// memory load.
    fn with_policy(&self, policies: &Policies, policy: Spec) -> Policies {
        match self.task {
            MatrixTask::Reads(_) | MatrixTask::Given(_) => {
                Policies { readahead: policy, ..policies.clone() }
            }
            MatrixTask::Touches(_) => Policies { swapin: policy, ..policies.clone() },
        }
    }
}

impl MatrixResult {
    /// Extracts the results of file reads. For direct reads (`is_direct`) the readahead policy is
    /// left out.
    fn from_row(row: &ResultRow, is_direct: bool) -> MatrixResult {
        let count = |value: Option<u64>| value.map(|value| value as f64);
        let readahead = row.readahead.clone().filter(|_| !is_direct);
        MatrixResult {
            readahead,
            swapin: None,
            scheduler: row.scheduler.clone().unwrap_or_default(),
            mib_per_s: row.mib_per_s.expect("a cell moves bytes, and that takes time"),
            seconds: row.seconds,
            mib_per_s_by_seed: Vec::new(),
            device_requests: count(row.device_requests),
            device_request_kib_mean: row.device_request_kib_mean,
            device_depth_mean: row.device_depth_mean,
            amplification: row.amplification,
            coverage: row.coverage,
            waste_bytes: count(row.waste_bytes),
            latency_p99_us: row.latency_us.p99,
        }
    }

    /// Extracts the results of a memory load.
    fn from_load(row: &LoadRow) -> MatrixResult {
        let count = |value: Option<u64>| value.map(|value| value as f64);
        MatrixResult {
            readahead: None,
            swapin: row.swapin.clone(),
            scheduler: row.scheduler.clone().unwrap_or_default(),
            mib_per_s: row.mib_per_s.expect("a cell touches pages, and that takes time"),
            seconds: row.seconds.expect("a modelled load is measured"),
            mib_per_s_by_seed: Vec::new(),
            device_requests: count(row.device_requests),
            device_request_kib_mean: row.device_request_kib_mean,
            device_depth_mean: row.device_depth_mean,
            amplification: row.amplification,
            coverage: row.coverage,
            waste_bytes: count(row.waste_bytes),
            // The latency of a touch is not measured.
            latency_p99_us: None,
        }
    }

    /// Averages results of the same work with several seeds. The throughput is computed from the
    /// mean time. A value that is unknown for one seed is unknown in the mean.
    fn mean(mut runs: Vec<MatrixResult>) -> MatrixResult {
        if runs.len() == 1 {
            return runs.remove(0);
        }
        let count = runs.len() as f64;
        let mean_of =
            |value: &dyn Fn(&MatrixResult) -> f64| runs.iter().map(value).sum::<f64>() / count;
        let mean_if_known = |value: &dyn Fn(&MatrixResult) -> Option<f64>| {
            let values: Option<Vec<f64>> = runs.iter().map(value).collect();
            values.map(|values| values.iter().sum::<f64>() / count)
        };
        let seconds = mean_of(&|run| run.seconds);
        MatrixResult {
            readahead: runs[0].readahead.clone(),
            swapin: runs[0].swapin.clone(),
            scheduler: runs[0].scheduler.clone(),
            mib_per_s: mean_of(&|run| run.mib_per_s * run.seconds) / seconds,
            seconds,
            mib_per_s_by_seed: runs.iter().map(|run| run.mib_per_s).collect(),
            device_requests: mean_if_known(&|run| run.device_requests),
            device_request_kib_mean: mean_if_known(&|run| run.device_request_kib_mean),
            device_depth_mean: mean_if_known(&|run| run.device_depth_mean),
            amplification: mean_if_known(&|run| run.amplification),
            coverage: mean_if_known(&|run| run.coverage),
            waste_bytes: mean_if_known(&|run| run.waste_bytes),
            latency_p99_us: mean_if_known(&|run| run.latency_p99_us),
        }
    }

    /// Returns the 99th percentile of the latency of `baseline`, divided by this one. `None` if one
    /// is unknown, as for memory loads, or if this one is 0.
    fn p99_ratio(&self, baseline: &MatrixResult) -> Option<f64> {
        let (baseline_us, own_us) = (baseline.latency_p99_us?, self.latency_p99_us?);
        (own_us > 0.0).then_some(baseline_us / own_us)
    }

    /// Returns the names of the policies.
    pub fn policies(&self) -> String {
        match self.readahead.as_ref().or(self.swapin.as_ref()) {
            Some(policy) => format!("{policy} {}", self.scheduler),
            None => self.scheduler.clone(),
        }
    }
}

impl JudgedCell {
    /// Returns `device/workload/processes`.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.device, self.workload, self.processes)
    }

    /// Returns true if the cell is in the held-out set, which is not used for tuning.
    pub fn is_held_out(&self) -> bool {
        held_out::is_held_out(&self.device, &self.workload, self.processes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 MiB in 1 s and in 4 s are 200 MiB in 5 s: 40 MiB/s, not the mean of 100 and 25.
    #[test]
    fn results_of_several_seeds_are_averaged_by_time() {
        let run = |mib_per_s: f64, coverage| MatrixResult {
            readahead: None,
            swapin: None,
            scheduler: "noop".to_owned(),
            mib_per_s,
            seconds: 100.0 / mib_per_s,
            mib_per_s_by_seed: Vec::new(),
            device_requests: Some(3.0),
            device_request_kib_mean: None,
            device_depth_mean: None,
            amplification: None,
            coverage,
            waste_bytes: None,
            latency_p99_us: None,
        };
        let mean = MatrixResult::mean(vec![run(100.0, Some(0.5)), run(25.0, Some(1.0))]);
        assert_eq!((mean.mib_per_s, mean.seconds, mean.coverage), (40.0, 2.5, Some(0.75)));
        assert_eq!(mean.mib_per_s_by_seed, [100.0, 25.0]);
        assert_eq!(MatrixResult::mean(vec![run(100.0, Some(0.5)), run(25.0, None)]).coverage, None);
    }

    /// Every device but the object store has memory loads.
    #[test]
    fn cells_are_selected_by_parts_of_their_names() {
        let reads = DEVICES.len() * WORKLOADS.len();
        let touches = (DEVICES.len() - 1) * LOADS.len();
        assert_eq!(
            cells(&[]).len(),
            (reads + touches) * PROCESSES.len(),
            "the object store has no swap cells"
        );
        let selected = cells(&["/hdd-1/", "/seq-4k/", "/64/"]);
        assert_eq!(selected.iter().map(MatrixCell::name).collect::<Vec<_>>(), ["hdd-1/seq-4k/64"]);
    }
}
