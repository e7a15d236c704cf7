//! The regret matrix: the law `adaptive` against the best classic law of each
//! cell, over devices, workloads and numbers of processes.
//!
//! A *cell* is one workload of so many processes on one device. Its rivals are
//! the classic readahead laws under each classic scheduler, without hints; for
//! reads past the cache, where no readahead law has a say, the schedulers alone;
//! for loads on memory the classic swap-in laws under each of them.
//! The figure is the throughput of the whole cell: the work is the same for
//! all, so it is the time of the last to end, turned round. What the best rival
//! of the cell has is 1; below 1 `adaptive` is to be regretted there.
//!
//! One run of a device with heavy tails, or of readers whose order is drawn, says
//! little of a few percent: a cell may be run with several seeds, and every
//! law's time is then the mean over all of them. The rival is still the best of the
//! cell in hindsight, so luck is on its side: of twelve it is the one that had most.
//!
//! The same seeds give the same cells to the bit.

use readpath_core::decision::LoggedDecision;
use readpath_core::policy::Spec;
use serde::{Deserialize, Serialize};

use crate::device::array::TWELVE_DISKS;
use crate::load::{LoadRow, LoadSetup, simulate_load};
use crate::report::ResultRow;
use crate::run::{Go, Watch};
use crate::simulate::{SimulateError, SimulationSetup, simulate_workload};

#[cfg(test)]
mod bars;
mod cause;
#[cfg(test)]
mod gaps;
mod held_out;
mod memory;
mod summary;
pub mod work;
mod workloads;

pub use cause::RegretCause;
pub use held_out::{CellSet, drawn};
use memory::{LOADS, MatrixMemoryLoad, SWAPINS, setup_under, supports_swap};
pub(crate) use summary::geometric_mean;
pub use summary::{FixedPairResult, MatrixSummary, WorkloadSummary};
use workloads::{ReadPattern, WORKLOADS};

/// The devices: names in the matrix, and what they are.
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

/// How many processes share the work.
pub const PROCESSES: &[u32] = &[1, 4, 16, 64];

/// The classic readahead laws, and the classic schedulers.
const READAHEADS: [&str; 4] = ["none", "window", "window-fixed", "ondemand"];
const SCHEDULERS: [&str; 3] = ["noop", "deadline", "cfq"];

/// Below this share of the best rival's throughput a cell is a regret.
pub const REGRET: f64 = 0.95;

/// The laws that are judged together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies {
    /// The readahead law.
    pub readahead: Spec,
    /// The swap-in law.
    pub swapin: Spec,
    /// The scheduler.
    pub scheduler: Spec,
}

impl Default for Policies {
    /// As they ship: `adaptive` everywhere.
    fn default() -> Policies {
        let adaptive = || Spec::plain("adaptive");
        Policies { readahead: adaptive(), swapin: adaptive(), scheduler: adaptive() }
    }
}

/// One workload of so many processes on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixCell {
    /// The device's name in the matrix.
    pub device: String,
    /// What it is, as [`crate::device::registry`] reads it.
    pub device_text: String,
    /// The workload's name in the matrix.
    pub workload: &'static str,
    /// What its processes do.
    task: MatrixTask,
    /// How many processes.
    pub processes: u32,
}

/// What the processes of a cell do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MatrixTask {
    /// They read files.
    Reads(ReadPattern),
    /// They touch more memory than there is.
    Touches(MatrixMemoryLoad),
}

/// How a cell is run.
#[derive(Clone, Copy, Debug)]
pub struct CellSize {
    /// The first seed of everything that is random.
    pub seed: u64,
    /// How many seeds, one after the other, a run is the mean of; at least 1.
    pub seeds: u64,
    /// The part of the work that is done: 1 for all of it, 64 to show that it runs.
    pub part: u64,
}

/// A cell under two laws; where it was run with several seeds, the mean of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatrixResult {
    /// The readahead law; null where it has no say.
    pub readahead: Option<String>,
    /// The swap-in law; null where files are read.
    pub swapin: Option<String>,
    /// The scheduler.
    pub scheduler: String,
    /// The throughput.
    pub mib_per_s: f64,
    /// From the start to the end of the last process.
    pub seconds: f64,
    /// The throughput with each seed alone, or in each round; empty where there was one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mib_per_s_by_seed: Vec<f64>,
    /// Requests that the device was given.
    pub device_requests: Option<f64>,
    /// Their mean size.
    pub device_request_kib_mean: Option<f64>,
    /// How many were in the device, mean over the time in which it had any.
    pub device_depth_mean: Option<f64>,
    /// Bytes from the device ÷ bytes asked for.
    pub amplification: Option<f64>,
    /// Asked bytes that were there in time ÷ asked bytes.
    pub coverage: Option<f64>,
    /// Bytes read ahead and never used.
    pub waste_bytes: Option<f64>,
}

/// A cell of the matrix, run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JudgedCell {
    /// The device's name in the matrix.
    pub device: String,
    /// The workload's.
    pub workload: String,
    /// How many processes.
    pub processes: u32,
    /// Throughput of the laws under test ÷ that of the best rival.
    pub ratio: f64,
    /// Where the loss comes from; null where the ratio is no regret.
    #[serde(default)]
    pub cause: Option<RegretCause>,
    /// The laws under test: `adaptive`, unless others were named.
    pub adaptive: MatrixResult,
    /// The rivals, the best one first.
    pub baselines: Vec<MatrixResult>,
}

/// Whether a name, between slashes, contains each of `parts`.
pub(crate) fn has_parts(name: &str, parts: &[&str]) -> bool {
    let name = format!("/{name}/");
    parts.iter().all(|part| name.contains(part))
}

/// The cells whose name `device/workload/processes` contains each of `parts`, in the matrix's order.
pub fn cells(parts: &[&str]) -> Vec<MatrixCell> {
    cells_on(DEVICES.iter().copied(), parts)
}

/// The same on the devices that `seed` draws.
pub fn cells_drawn(seed: u64, parts: &[&str]) -> Vec<MatrixCell> {
    let devices = drawn(seed);
    cells_on(devices.iter().map(|(name, text)| (name.as_str(), text.as_str())), parts)
}

fn cells_on<'a>(
    devices: impl Iterator<Item = (&'a str, &'a str)>,
    parts: &[&str],
) -> Vec<MatrixCell> {
    let mut cells = Vec::new();
    for (device, device_text) in devices {
        let reads = WORKLOADS.iter().map(|&(name, pattern)| (name, MatrixTask::Reads(pattern)));
        let touches = LOADS.iter().map(|&(name, touching)| (name, MatrixTask::Touches(touching)));
        for (workload, task) in reads.chain(touches.filter(|_| supports_swap(device))) {
            for &processes in PROCESSES {
                let cell = MatrixCell {
                    device: device.to_owned(),
                    device_text: device_text.to_owned(),
                    workload,
                    task,
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
    /// `device/workload/processes`.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.device, self.workload, self.processes)
    }

    /// Runs the rivals: the best one first.
    ///
    /// # Errors
    /// A law or a device is refused: a fault of the matrix itself.
    pub fn baselines(&self, size: CellSize) -> Result<Vec<MatrixResult>, SimulateError> {
        let names: &[&str] = match self.task {
            MatrixTask::Reads(pattern) if pattern.is_direct() => &["none"],
            MatrixTask::Reads(_) => &READAHEADS,
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
        baselines.sort_by(|one, two| two.mib_per_s.total_cmp(&one.mib_per_s));
        Ok(baselines)
    }

    /// Runs `policies` and holds them against `baselines`, the best one first; where that is a
    /// regret, finds out which of the two laws it comes from.
    ///
    /// # Errors
    /// As [`run`](MatrixCell::run).
    pub fn judge(
        &self,
        policies: &Policies,
        baselines: Vec<MatrixResult>,
        size: CellSize,
    ) -> Result<JudgedCell, SimulateError> {
        let adaptive = self.run(policies, size)?;
        let ratio = adaptive.mib_per_s / baselines[0].mib_per_s;
        let is_regret = ratio < REGRET;
        let cause =
            is_regret.then(|| RegretCause::find(self, policies, &adaptive, &baselines[0], size));
        Ok(JudgedCell {
            device: self.device.clone(),
            workload: self.workload.to_owned(),
            processes: self.processes,
            ratio,
            cause: cause.transpose()?,
            adaptive,
            baselines,
        })
    }

    /// The cell under these laws, with each seed.
    ///
    /// # Errors
    /// A law is unknown, or one of its parameters is wrong.
    pub fn run(&self, policies: &Policies, size: CellSize) -> Result<MatrixResult, SimulateError> {
        let seeds = size.seed..size.seed + size.seeds.max(1);
        let runs: Result<Vec<MatrixResult>, SimulateError> =
            seeds.map(|seed| self.run_once(policies, seed, size.part)).collect();
        Ok(MatrixResult::mean(runs?))
    }

    /// The cell under these laws, with the first seed alone; `decided` hears of every decision of
    /// those that keep a log. False where none does: the laws of swap-in have none.
    ///
    /// # Errors
    /// As [`run`](MatrixCell::run).
    pub fn explain(
        &self,
        policies: &Policies,
        size: CellSize,
        decided: &mut dyn FnMut(&LoggedDecision),
    ) -> Result<bool, SimulateError> {
        let MatrixTask::Reads(pattern) = self.task else { return Ok(false) };
        let watch = Watch { tell: &mut |_| Go::On, decided: Some(decided), prepare: None };
        self.read(pattern, policies, size.seed, size.part, watch)?;
        Ok(true)
    }

    fn run_once(
        &self,
        policies: &Policies,
        seed: u64,
        part: u64,
    ) -> Result<MatrixResult, SimulateError> {
        match self.task {
            MatrixTask::Reads(pattern) => {
                self.read(pattern, policies, seed, part, Watch::progress(&mut |_| Go::On))
            }
            MatrixTask::Touches(touching) => {
                let load = touching.load(self.processes, part);
                let setup = LoadSetup {
                    scheduler: policies.scheduler.clone(),
                    seed,
                    ..setup_under(&policies.swapin, self.device()?)
                };
                let mut go_on = |_| Go::On;
                let row = simulate_load(&load, &setup, Watch::progress(&mut go_on))?;
                Ok(MatrixResult::of_load(&row))
            }
        }
    }

    fn device(&self) -> Result<Spec, SimulateError> {
        Spec::parse(&self.device_text).map_err(SimulateError::Device)
    }

    fn read(
        &self,
        pattern: ReadPattern,
        policies: &Policies,
        seed: u64,
        part: u64,
        watch: Watch<'_>,
    ) -> Result<MatrixResult, SimulateError> {
        let setup = SimulationSetup {
            readahead: policies.readahead.clone(),
            scheduler: policies.scheduler.clone(),
            seed,
            ..SimulationSetup::new(self.device()?)
        };
        let workload = pattern.workload(self.processes.into(), part, seed);
        let row = simulate_workload(None, workload, &setup, watch)?;
        Ok(MatrixResult::of_row(&row, pattern.is_direct()))
    }

    /// These laws with another readahead law or, where memory is touched, another swap-in law.
    fn with_policy(&self, policies: &Policies, policy: Spec) -> Policies {
        match self.task {
            MatrixTask::Reads(_) => Policies { readahead: policy, ..policies.clone() },
            MatrixTask::Touches(_) => Policies { swapin: policy, ..policies.clone() },
        }
    }
}

impl MatrixResult {
    fn of_row(row: &ResultRow, is_direct: bool) -> MatrixResult {
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
        }
    }

    fn of_load(row: &LoadRow) -> MatrixResult {
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
        }
    }

    /// Several runs of the same work as one: what stands in each is averaged. The
    /// throughput is that of the mean time.
    fn mean(mut runs: Vec<MatrixResult>) -> MatrixResult {
        if runs.len() == 1 {
            return runs.remove(0);
        }
        let count = runs.len() as f64;
        let over =
            |value: &dyn Fn(&MatrixResult) -> f64| runs.iter().map(value).sum::<f64>() / count;
        let of = |value: &dyn Fn(&MatrixResult) -> Option<f64>| {
            let values: Option<Vec<f64>> = runs.iter().map(value).collect();
            values.map(|values| values.iter().sum::<f64>() / count)
        };
        let seconds = over(&|run| run.seconds);
        MatrixResult {
            readahead: runs[0].readahead.clone(),
            swapin: runs[0].swapin.clone(),
            scheduler: runs[0].scheduler.clone(),
            mib_per_s: over(&|run| run.mib_per_s * run.seconds) / seconds,
            seconds,
            mib_per_s_by_seed: runs.iter().map(|run| run.mib_per_s).collect(),
            device_requests: of(&|run| run.device_requests),
            device_request_kib_mean: of(&|run| run.device_request_kib_mean),
            device_depth_mean: of(&|run| run.device_depth_mean),
            amplification: of(&|run| run.amplification),
            coverage: of(&|run| run.coverage),
            waste_bytes: of(&|run| run.waste_bytes),
        }
    }

    /// The laws by name.
    pub fn policies(&self) -> String {
        match self.readahead.as_ref().or(self.swapin.as_ref()) {
            Some(policy) => format!("{policy} {}", self.scheduler),
            None => self.scheduler.clone(),
        }
    }
}

impl JudgedCell {
    /// `device/workload/processes`.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.device, self.workload, self.processes)
    }

    /// Whether the cell is one by which laws are judged, and on which none is worked on.
    pub fn is_held_out(&self) -> bool {
        held_out::is_held_out(&self.device, &self.workload, self.processes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 MiB in 1 s and in 4 s are 200 MiB in 5 s: 40 MiB/s, not the mean of 100 and 25.
    #[test]
    fn several_seeds_are_one_run_of_the_mean_time() {
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
        };
        let mean = MatrixResult::mean(vec![run(100.0, Some(0.5)), run(25.0, Some(1.0))]);
        assert_eq!((mean.mib_per_s, mean.seconds, mean.coverage), (40.0, 2.5, Some(0.75)));
        assert_eq!(mean.mib_per_s_by_seed, [100.0, 25.0]);
        assert_eq!(MatrixResult::mean(vec![run(100.0, Some(0.5)), run(25.0, None)]).coverage, None);
    }

    #[test]
    fn cells_are_named_and_chosen_by_parts_of_their_names() {
        let reads = DEVICES.len() * WORKLOADS.len();
        let touches = (DEVICES.len() - 1) * LOADS.len();
        assert_eq!(cells(&[]).len(), (reads + touches) * PROCESSES.len(), "no swap on objects");
        let one = cells(&["/hdd-1/", "/seq-4k/", "/64/"]);
        assert_eq!(one.iter().map(MatrixCell::name).collect::<Vec<_>>(), ["hdd-1/seq-4k/64"]);
    }
}
