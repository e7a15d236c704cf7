//! The matrix of what to keep: the reclaim law `adaptive` against the best of the others, cell by
//! cell.
//!
//! A *cell* is a load in a memory that is too small for it. There are three kinds, and each has a
//! cost of its own, which is less the better the law keeps what comes back:
//!
//! - `references/LOAD/SIZE`: references to blocks, made here or given as a trace, in a memory of so
//!   many parts of its blocks. The laws alone are asked, and the cost is what they miss. Beside
//!   them stands the least that is possible (Belady).
//! - `reads/LOAD`: reads of files through the whole modelled path, with the readahead law and the
//!   scheduler `adaptive`. The cost is the bytes that the device is asked for.
//!
//! - `touches/LOAD`: touches of memory larger than memory, with the swap-in law and the scheduler
//!   `adaptive`. The cost is the bytes that move between memory and the device, either way.
//!
//! The ratio of a cell is the cost under `adaptive` divided by that under the best of the others,
//! which is the best in hindsight: above 1 `adaptive` is to be regretted there.
//!
//! What a load made here is like in numbers (how large, how skewed, how long a phase is) is drawn
//! from the seed. So a law can be tuned with some seeds, and judged with others.

use std::sync::Arc;

use readpath_core::eviction;
use readpath_core::policy::{Spec, SpecError};
use readpath_core::unit::PAGE_BYTES;
use serde::Serialize;

use crate::blocks::{BlockTrace, belady, misses};
use crate::load::{LoadSetup, simulate_load};
use crate::regret::has_parts;
use crate::run::{Go, Watch};
use crate::simulate::{SimulateError, SimulationSetup, simulate_workload};

mod reads;
mod references;
mod summary;
mod touches;

use reads::{READS, ReadLoad};
use references::{LOADS, ReferenceLoad};
pub use summary::{EvictionSummary, FixedPolicyResult};

/// Above this share of the best rival's cost a cell is a regret.
pub const REGRET: f64 = 1.02;

/// What is judged unless another law is named.
pub const DEFAULT_POLICY: &str = "adaptive";

/// The device below the loads that go through the whole path.
const DEVICE: &str = "ssd";

/// A load in a memory.
#[derive(Clone, Debug)]
pub struct EvictionCell {
    name: String,
    task: EvictionTask,
}

#[derive(Clone, Debug)]
enum EvictionTask {
    References { trace: Arc<BlockTrace>, pages: u32 },
    Reads { reads: ReadLoad, seed: u64, part: u64 },
    Touches { load: crate::load::MemoryLoad, seed: u64 },
}

/// What the cost of a cell counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CostUnit {
    /// References that find nothing.
    Misses,
    /// Bytes that the device is asked for.
    DeviceBytes,
}

/// A cell under one law.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellResult {
    /// The law.
    pub eviction: String,
    /// What it costs, in the cell's [`CostUnit`].
    pub cost: u64,
    /// The cost divided by what it would be with no memory at all: references, bytes asked for.
    pub cost_ratio: f64,
    /// From the start to the end of the last process; null where no time passes.
    pub seconds: Option<f64>,
    /// Bytes read ahead and never used; null where nothing is read ahead.
    pub waste_bytes: Option<u64>,
}

/// A cell of the matrix, run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgedEviction {
    /// The cell's name.
    pub cell: String,
    /// What its cost counts.
    pub measure: CostUnit,
    /// The cost under the law that is judged ÷ that under the best rival.
    pub ratio: f64,
    /// The law that is judged.
    pub judged: CellResult,
    /// The other laws, the best one first.
    pub baselines: Vec<CellResult>,
    /// The least that is possible; null where that is not known.
    pub optimum: Option<CellResult>,
}

/// Of the loads made here: what is drawn, and how much is done.
#[derive(Clone, Copy, Debug)]
pub struct LoadSize {
    /// The seed of what is drawn.
    pub seed: u64,
    /// The part of the work that is done: 1 for all of it, 64 to show that it runs.
    pub part: u64,
}

/// The cells made here whose names contain each of `parts`, in the matrix's order.
pub fn cells(parts: &[&str], size: LoadSize) -> Vec<EvictionCell> {
    let mut cells = Vec::new();
    for ReferenceLoad { name, make, sizes } in LOADS {
        let names = sizes.iter().map(|percent| references_name(name, &format!("{percent}%")));
        let wanted: Vec<(u64, String)> =
            sizes.iter().copied().zip(names).filter(|(_, name)| has_parts(name, parts)).collect();
        if wanted.is_empty() {
            continue;
        }
        let trace = Arc::new(references::trace(*make, size));
        for (percent, name) in wanted {
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
            let LoadSize { seed, part } = size;
            cells.push(EvictionCell { name, task: EvictionTask::Reads { reads, seed, part } });
        }
    }
    for load in touches::loads(size.part) {
        if has_parts(&load.name, parts) {
            let name = load.name.clone();
            cells
                .push(EvictionCell { name, task: EvictionTask::Touches { load, seed: size.seed } });
        }
    }
    cells
}

fn references_name(load: &str, size: &str) -> String {
    format!("references/{load}/{size}")
}

impl EvictionCell {
    /// The cell of a trace in a memory of so many blocks; `name` and `size` name it.
    pub fn of_trace(name: &str, size: &str, trace: Arc<BlockTrace>, pages: u32) -> EvictionCell {
        EvictionCell {
            name: references_name(name, size),
            task: EvictionTask::References { trace, pages },
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether its name contains each of `parts`.
    pub fn is_called(&self, parts: &[&str]) -> bool {
        has_parts(&self.name, parts)
    }

    /// Runs the cell under `policy` and under all others, and holds the one against these.
    ///
    /// # Errors
    /// The law is unknown, or one of its parameters is wrong.
    pub fn judge(&self, policy: &Spec) -> Result<JudgedEviction, SimulateError> {
        let judged = self.run(policy)?;
        let others = eviction::POLICIES
            .iter()
            .filter(|other| ![DEFAULT_POLICY, &policy.name].contains(&other.name));
        let baselines: Result<Vec<CellResult>, SimulateError> =
            others.map(|other| self.run(&Spec::plain(other.name))).collect();
        let mut baselines = baselines?;
        baselines.sort_by_key(|run| run.cost);
        Ok(JudgedEviction {
            cell: self.name.clone(),
            measure: match self.task {
                EvictionTask::References { .. } => CostUnit::Misses,
                EvictionTask::Reads { .. } | EvictionTask::Touches { .. } => CostUnit::DeviceBytes,
            },
            ratio: judged.cost as f64 / baselines[0].cost as f64,
            judged,
            baselines,
            optimum: self.optimum(),
        })
    }

    fn run(&self, policy: &Spec) -> Result<CellResult, SimulateError> {
        match &self.task {
            EvictionTask::References { trace, pages } => {
                let cost = misses(trace, policy, *pages).map_err(refused)?;
                Ok(CellResult::of_misses(trace, policy.to_string(), cost))
            }
            EvictionTask::Reads { reads, seed, part } => {
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
                let workload = reads.workload(LoadSize { seed: *seed, part: *part });
                let mut go_on = |_| Go::On;
                let row = simulate_workload(None, workload, &setup, Watch::progress(&mut go_on))?;
                let cost = row.device_bytes.expect("a modelled device counts its bytes");
                Ok(CellResult {
                    eviction: policy.to_string(),
                    cost,
                    cost_ratio: cost as f64 / row.bytes as f64,
                    seconds: Some(row.seconds),
                    waste_bytes: row.waste_bytes,
                })
            }
            EvictionTask::Touches { load, seed } => {
                let device = Spec::parse(DEVICE).map_err(SimulateError::Device)?;
                let eviction = policy.clone();
                let setup = LoadSetup { eviction, seed: *seed, ..LoadSetup::new(device) };
                let mut go_on = |_| Go::On;
                let row = simulate_load(load, &setup, Watch::progress(&mut go_on))?;
                let cost = row.device_bytes.expect("a modelled device counts its bytes");
                let touched_bytes = load.touches * u64::from(load.processes) * PAGE_BYTES;
                Ok(CellResult {
                    eviction: policy.to_string(),
                    cost,
                    cost_ratio: cost as f64 / touched_bytes as f64,
                    seconds: row.seconds,
                    waste_bytes: row.waste_bytes,
                })
            }
        }
    }

    fn optimum(&self) -> Option<CellResult> {
        let EvictionTask::References { trace, pages } = &self.task else { return None };
        let name = crate::blocks::OPTIMUM.to_owned();
        Some(CellResult::of_misses(trace, name, belady(trace, *pages)))
    }
}

fn refused(error: SpecError) -> SimulateError {
    SimulateError::Config(readpath_core::machine::ConfigError::Policy(error))
}

impl CellResult {
    fn of_misses(trace: &BlockTrace, eviction: String, cost: u64) -> CellResult {
        let cost_ratio = cost as f64 / trace.references.len() as f64;
        CellResult { eviction, cost, cost_ratio, seconds: None, waste_bytes: None }
    }
}

impl JudgedEviction {
    /// The run of a law, if the cell was run under it.
    pub fn under(&self, policy: &str) -> Option<&CellResult> {
        self.baselines.iter().chain([&self.judged]).find(|run| run.eviction == policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMOKE: LoadSize = LoadSize { seed: 1, part: 64 };

    /// In a loop of ten blocks with a memory of five `lru` misses all hundred references; the
    /// optimum misses ten, and then of each nine references that follow, which are one round of
    /// those that it doesn't have, five (Belady keeps four of ten for the next round).
    #[test]
    fn a_policy_is_held_against_the_best_of_the_others() {
        let references: Vec<u32> = (0..10).cycle().take(100).collect();
        let trace = Arc::new(BlockTrace { references, blocks: 10, note: None });
        let judged =
            EvictionCell::of_trace("ten", "50%", trace, 5).judge(&Spec::plain("lru")).unwrap();
        assert_eq!((judged.cell.as_str(), judged.judged.cost), ("references/ten/50%", 100));
        let best = &judged.baselines[0];
        assert!(best.cost < 100 && judged.ratio == 100.0 / best.cost as f64, "{best:?}");
        assert_eq!(
            judged.baselines.len(),
            eviction::POLICIES.len() - 2,
            "neither itself nor adaptive"
        );
        assert_eq!(judged.optimum.map(|run| run.cost), Some(10 + 90 * 5 / 9));
    }

    #[test]
    fn cells_are_chosen_by_parts_of_their_names_and_the_same_seed_makes_the_same() {
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
