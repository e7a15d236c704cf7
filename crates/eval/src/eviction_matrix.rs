//! The matrix of eviction policies: `adaptive` compared with the best of the others, cell by cell.
//!
//! A *cell* is a load in a memory that is too small for it. There are three types of cells. Each
//! has a cost that is lower the better the policy keeps reused data:
//!
//! - `references/LOAD/SIZE`: references to blocks, generated or from a trace, in a memory for a
//!   part of the blocks. Only the eviction policies are simulated, and the cost is the number of
//!   misses. The optimum (Belady) is included for comparison.
//! - `reads/LOAD`: file reads through the whole simulation, with readahead policy and scheduler
//!   `adaptive`. The cost is the number of bytes read from the device.
//! - `touches/LOAD`: touches of more memory than is available, with swap-in policy and scheduler
//!   `adaptive`. The cost is the number of bytes transferred between memory and device, in both
//!   directions.
//!
//! The ratio of a cell is the cost under `adaptive`, divided by the lowest cost among the others,
//! chosen in hindsight. A ratio above 1 is a regret.
//!
//! The numeric properties of a generated load (size, skew, length of a phase) are drawn from the
//! seed. A policy can therefore be tuned with some seeds and evaluated with others.

use std::sync::Arc;

use readpath_core::eviction;
use readpath_core::policy::{Spec, SpecError};
use readpath_core::unit::PAGE_BYTES;
use serde::Serialize;

use crate::policy_matrix::has_parts;
use readpath_sim::load::{LoadSetup, simulate_load};
use readpath_sim::run::{ProgressAnswer, RunObserver};
use readpath_sim::simulate::{SimulateError, SimulationSetup, simulate_workload};
use readpath_trace::references::{BlockTrace, belady, misses};

mod reads;
mod references;
mod summary;
mod touches;

use reads::{READS, ReadLoad};
use references::{LOADS, ReferenceLoad};
pub use summary::{EvictionSummary, FixedPolicyResult};

/// Ratio to the best baseline's cost above which a cell counts as a regret. Smaller differences are
/// not counted. Chosen, not measured.
pub const REGRET_RATIO_MIN: f64 = 1.02;

/// Policy that is evaluated by default.
pub const DEFAULT_POLICY: &str = "adaptive";

/// Device of the loads that use the whole simulation.
const DEVICE: &str = "ssd";

/// A load in a memory.
#[derive(Clone, Debug)]
pub struct EvictionCell {
    /// Name of the cell: its type, its load and, for references, its memory size.
    name: String,
    /// Work to simulate.
    task: EvictionTask,
}

/// Work of a cell.
#[derive(Clone, Debug)]
enum EvictionTask {
    /// Block references in a memory of `pages` blocks.
    References { trace: Arc<BlockTrace>, pages: u32 },
    /// File reads, generated from `seed`, with the amount of work divided by `work_divisor`.
    Reads { reads: ReadLoad, seed: u64, work_divisor: u64 },
    /// Touches of memory. The work is divided already. The touches are drawn from `seed`.
    Touches { load: readpath_sim::load::MemoryLoad, seed: u64 },
}

/// Unit of a cell's cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CostUnit {
    /// References that miss.
    Misses,
    /// Bytes requested from the device.
    DeviceBytes,
}

/// Results of a cell under one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellResult {
    /// Eviction policy.
    pub eviction: String,
    /// Cost in the cell's [`CostUnit`].
    pub cost: u64,
    /// Cost divided by the cost without any memory: all references, or all bytes requested. The
    /// divisor is at least 1.
    pub cost_ratio: f64,
    /// Time from the start to the end of the last process. Null where no time is simulated.
    pub seconds: Option<f64>,
    /// Bytes prefetched and never used. Null without prefetching.
    pub waste_bytes: Option<u64>,
}

/// Results of a cell under all policies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgedEviction {
    /// Name of the cell.
    pub cell: String,
    /// Unit of its cost.
    pub measure: CostUnit,
    /// Cost under the evaluated policy, divided by the best baseline's cost. A cost of 0 counts as
    /// 1, so that the ratio is finite.
    pub ratio: f64,
    /// Results of the evaluated policy.
    pub judged: CellResult,
    /// Results of the other policies, the best first.
    pub baselines: Vec<CellResult>,
    /// Optimum. Null if it is not known.
    pub optimum: Option<CellResult>,
}

/// Seed and amount of work of the generated loads.
#[derive(Clone, Copy, Debug)]
pub struct LoadSize {
    /// Seed of all random numbers.
    pub seed: u64,
    /// Divisor of the work: 1 for all of it, 64 for a quick test.
    pub part: u64,
}

/// Returns the cells with generated loads whose names, between slashes, contain each of `parts`, in
/// the order of the matrix.
pub fn cells(parts: &[&str], size: LoadSize) -> Vec<EvictionCell> {
    let mut cells = Vec::new();
    // A load of references has a cell for each memory size. Its trace is generated once, and only
    // if a cell is selected.
    for ReferenceLoad { name, generate, sizes_percent } in LOADS {
        let name_of = |percent: &u64| references_name(name, &format!("{percent}%"));
        let names = sizes_percent.iter().map(name_of);
        let named_sizes = sizes_percent.iter().copied().zip(names);
        let selected: Vec<(u64, String)> =
            named_sizes.filter(|(_, name)| has_parts(name, parts)).collect();
        if selected.is_empty() {
            continue;
        }
        let trace = Arc::new(references::trace(*generate, size));
        for (percent, name) in selected {
            // The part of the blocks that fits, rounded down, but at least one block.
            let pages = (u64::from(trace.blocks) * percent / 100).max(1) as u32;
            cells.push(EvictionCell {
                name,
                task: EvictionTask::References { trace: trace.clone(), pages },
            });
        }
    }
    for &(name, reads) in READS {
        let name = format!("reads/{name}");
        if has_parts(&name, parts) {
            let LoadSize { seed, part: work_divisor } = size;
            let task = EvictionTask::Reads { reads, seed, work_divisor };
            cells.push(EvictionCell { name, task });
        }
    }
    for load in touches::loads(size.part) {
        if has_parts(&load.name, parts) {
            let name = load.name.clone();
            let task = EvictionTask::Touches { load, seed: size.seed };
            cells.push(EvictionCell { name, task });
        }
    }
    cells
}

/// Returns the name of a cell of references.
fn references_name(load: &str, size: &str) -> String {
    format!("references/{load}/{size}")
}

impl EvictionCell {
    /// Creates the cell of a trace in a memory of `pages` blocks. `name` and the text `size` of the
    /// memory (such as "10%") form its name.
    pub fn from_trace(name: &str, size: &str, trace: Arc<BlockTrace>, pages: u32) -> EvictionCell {
        EvictionCell {
            name: references_name(name, size),
            task: EvictionTask::References { trace, pages },
        }
    }

    /// Name of the cell.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if the name between slashes, `/name/`, contains each of `parts`.
    pub fn matches_name(&self, parts: &[&str]) -> bool {
        has_parts(&self.name, parts)
    }

    /// Simulates the cell under `policy` and under all other policies, and compares them.
    /// `adaptive` is never among the others, also if another policy is judged. The others have
    /// their default parameters, and other names than `policy`.
    ///
    /// # Errors
    /// Fails if the policy is unknown or has an invalid parameter, or if a simulation fails.
    pub fn judge(&self, policy: &Spec) -> Result<JudgedEviction, SimulateError> {
        let judged = self.run(policy)?;
        // `adaptive` is no baseline: the matrix compares it with the best of the others.
        let other_policies = eviction::POLICIES
            .iter()
            .filter(|policy_entry| ![DEFAULT_POLICY, &policy.name].contains(&policy_entry.name));
        let baselines: Result<Vec<CellResult>, SimulateError> =
            other_policies.map(|policy_entry| self.run(&Spec::plain(policy_entry.name))).collect();
        let mut baselines = baselines?;
        // The best one is first.
        baselines.sort_by_key(|run| run.cost);
        Ok(JudgedEviction {
            cell: self.name.clone(),
            measure: match self.task {
                EvictionTask::References { .. } => CostUnit::Misses,
                EvictionTask::Reads { .. } | EvictionTask::Touches { .. } => CostUnit::DeviceBytes,
            },
            ratio: ratio_of_costs(judged.cost, baselines[0].cost),
            judged,
            baselines,
            optimum: self.optimum(),
        })
    }

    /// Simulates the cell under one policy. Returns its cost, also divided by the cost without any
    /// memory.
    ///
    /// # Errors
    /// The policy is unknown or has an invalid parameter, or the simulation fails.
    fn run(&self, policy: &Spec) -> Result<CellResult, SimulateError> {
        match &self.task {
            EvictionTask::References { trace, pages } => {
                let cost = misses(trace, policy, *pages).map_err(policy_error)?;
                Ok(CellResult::from_misses(trace, policy.to_string(), cost))
            }
            EvictionTask::Reads { reads, seed, work_divisor } => {
                let device = Spec::parse(DEVICE).map_err(SimulateError::Device)?;
                let adaptive = || Spec::plain("adaptive");
                let setup = SimulationSetup {
                    readahead: adaptive(),
                    scheduler: adaptive(),
                    eviction: policy.clone(),
                    memory_bytes: reads::MEMORY_BYTES,
                    seed: *seed,
                    ..SimulationSetup::new(device)
                };
                let workload = reads.workload(LoadSize { seed: *seed, part: *work_divisor });
                let mut never_stop = |_| ProgressAnswer::Continue;
                let observer = RunObserver::progress(&mut never_stop);
                // The workload has no job file, whose sections would be in the row.
                let no_job = None;
                let row = simulate_workload(no_job, workload, &setup, observer)?;
                let cost = row.device_bytes.expect("a modelled device counts its bytes");
                Ok(CellResult {
                    eviction: policy.to_string(),
                    cost,
                    cost_ratio: cost as f64 / row.bytes.max(1) as f64,
                    seconds: Some(row.seconds),
                    waste_bytes: row.waste_bytes,
                })
            }
            EvictionTask::Touches { load, seed } => {
                let device = Spec::parse(DEVICE).map_err(SimulateError::Device)?;
                let eviction = policy.clone();
                let setup = LoadSetup { eviction, seed: *seed, ..LoadSetup::new(device) };
                let mut never_stop = |_| ProgressAnswer::Continue;
                let row = simulate_load(load, &setup, RunObserver::progress(&mut never_stop))?;
                let cost = row.device_bytes.expect("a modelled device counts its bytes");
                let touched_bytes = load.touches * u64::from(load.processes) * PAGE_BYTES;
                Ok(CellResult {
                    eviction: policy.to_string(),
                    cost,
                    cost_ratio: cost as f64 / touched_bytes.max(1) as f64,
                    seconds: row.seconds,
                    waste_bytes: row.waste_bytes,
                })
            }
        }
    }

    /// Returns the result of Belady's optimum for a cell of references. `None` for cells of reads
    /// or touches.
    fn optimum(&self) -> Option<CellResult> {
        let EvictionTask::References { trace, pages } = &self.task else { return None };
        let name = readpath_trace::references::OPTIMUM.to_owned();
        Some(CellResult::from_misses(trace, name, belady(trace, *pages)))
    }
}

/// Returns the ratio of two costs. A cost of 0 counts as 1, the smallest other cost, so that the
/// ratio is finite.
fn ratio_of_costs(cost: u64, baseline_cost: u64) -> f64 {
    cost.max(1) as f64 / baseline_cost.max(1) as f64
}

/// Converts the error of a policy to an error of the simulation.
fn policy_error(error: SpecError) -> SimulateError {
    SimulateError::Config(readpath_core::machine::ConfigError::Policy(error))
}

impl CellResult {
    /// Builds the result of a cell of references. `cost` is the number of misses under the policy
    /// `eviction`.
    fn from_misses(trace: &BlockTrace, eviction: String, cost: u64) -> CellResult {
        let cost_ratio = cost as f64 / trace.references.len().max(1) as f64;
        CellResult { eviction, cost, cost_ratio, seconds: None, waste_bytes: None }
    }
}

impl JudgedEviction {
    /// Returns the result of a policy, if the cell was simulated under it.
    pub fn result_of(&self, policy: &str) -> Option<&CellResult> {
        self.baselines.iter().chain([&self.judged]).find(|run| run.eviction == policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMOKE: LoadSize = LoadSize { seed: 1, part: 64 };

    /// In a loop of ten blocks with a memory of five, `lru` misses all hundred references. The
    /// optimum misses ten, and then five of every nine references, which are one round over the
    /// missing blocks (Belady keeps four of ten for the next round).
    #[test]
    fn policy_is_compared_with_the_best_of_the_others() {
        let references: Vec<u32> = (0..10).cycle().take(100).collect();
        let trace = Arc::new(BlockTrace { references, blocks: 10, note: None });
        let judged =
            EvictionCell::from_trace("ten", "50%", trace, 5).judge(&Spec::plain("lru")).unwrap();
        assert_eq!((judged.cell.as_str(), judged.judged.cost), ("references/ten/50%", 100));
        let best = &judged.baselines[0];
        assert!(best.cost < 100 && judged.ratio == 100.0 / best.cost as f64, "{best:?}");
        assert_eq!(
            judged.baselines.len(),
            eviction::POLICIES.len() - 2,
            "the baselines include neither the judged policy nor `adaptive`"
        );
        assert_eq!(judged.optimum.map(|run| run.cost), Some(10 + 90 * 5 / 9));
    }

    /// No policy misses in a trace without references. All are then as good as the best.
    #[test]
    fn results_of_an_empty_trace_are_finite() {
        let trace = Arc::new(BlockTrace { references: Vec::new(), blocks: 1, note: None });
        let judged =
            EvictionCell::from_trace("none", "1", trace, 1).judge(&Spec::plain("lru")).unwrap();
        assert_eq!((judged.ratio, judged.judged.cost_ratio), (1.0, 0.0));
    }

    /// Equal seeds give equal results, another seed other ones.
    #[test]
    fn cells_are_selected_by_name_parts_and_repeat_from_their_seed() {
        let names = |parts: &[&str]| -> Vec<String> {
            cells(parts, SMOKE).iter().map(|cell| cell.name().to_owned()).collect()
        };
        assert_eq!(names(&["/zipf/", "/5%"]), ["references/zipf/5%"]);
        assert!(names(&["reads/"]).contains(&"reads/scan-1k".to_owned()));
        let judge = |size| cells(&["/phases/"], size)[0].judge(&Spec::plain("lru")).unwrap();
        assert_eq!(judge(SMOKE), judge(SMOKE));
        assert_ne!(judge(SMOKE), judge(LoadSize { seed: 2, ..SMOKE }));
    }
}
