//! Summary of the matrix, and the cost of one policy in all cells.
//!
//! The *cost* of a cell is its number of misses or of bytes that the device transfers. Its
//! *baselines* are results of the other policies, the best first. Its *ratio* is the cost of the
//! evaluated policy, divided by the cost of the best baseline.

use std::collections::BTreeSet;

use readpath_core::eviction;
use serde::Serialize;

use super::{JudgedEviction, REGRET_RATIO_MIN, ratio_of_costs};
use crate::policy_matrix::geometric_mean;

/// Summary of a set of cells.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvictionSummary {
    /// Number of cells.
    pub cells: usize,
    /// Highest ratio. Null without cells.
    pub maximum: Option<f64>,
    /// Geometric mean of the ratios. Null without cells.
    pub geometric_mean: Option<f64>,
    /// Number of cells above 1.02.
    pub above_102_percent: usize,
    /// Highest ratio to `two-lists`, the structure of Linux's file lists. Null if no cell has it.
    pub two_lists_maximum: Option<f64>,
    /// The ten cells with the highest ratios.
    pub worst: Vec<(String, f64)>,
    /// The evaluated policy and each other policy in all cells, the lowest geometric mean first.
    pub fixed: Vec<FixedPolicyResult>,
}

/// One policy in all cells, relative to the best baseline of each.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FixedPolicyResult {
    /// Name of the policy.
    pub eviction: String,
    /// Highest ratio.
    pub maximum: f64,
    /// Geometric mean of the ratios.
    pub geometric_mean: f64,
    /// Number of cells above 1.02.
    pub above_102_percent: usize,
    /// Mean difference in miss ratio from the optimum, over the cells with a known optimum. Null if
    /// there is none.
    pub distance_to_optimum: Option<f64>,
}

impl EvictionSummary {
    /// Summarizes the ratios of these cells: their maximum and mean, the number of cells above the
    /// limit, the ten worst cells, and the results of each policy over all cells.
    pub fn of(cells: &[JudgedEviction]) -> EvictionSummary {
        let mut ratios_by_cell: Vec<(String, f64)> =
            cells.iter().map(|cell| (cell.cell.clone(), cell.ratio)).collect();
        ratios_by_cell.sort_by(|left, right| right.1.total_cmp(&left.1));
        let ratios: Vec<f64> = ratios_by_cell.iter().map(|(_, ratio)| *ratio).collect();
        let to_two_lists = |cell: &JudgedEviction| {
            // A cost of 0 counts as 1, so that the ratio is finite.
            Some(ratio_of_costs(cell.judged.cost, cell.result_of("two-lists")?.cost))
        };
        EvictionSummary {
            cells: cells.len(),
            maximum: ratios.first().copied(),
            geometric_mean: (!ratios.is_empty()).then(|| geometric_mean(&ratios)),
            above_102_percent: count_regrets(&ratios),
            two_lists_maximum: cells.iter().filter_map(to_two_lists).reduce(f64::max),
            worst: ratios_by_cell.into_iter().take(10).collect(),
            fixed: fixed_policy_results(cells),
        }
    }
}

/// Returns the results of each policy over the cells that have a result of it, the lowest mean
/// ratio first. A policy without any is left out. Ratios compare with the first baseline of a cell,
/// its best one.
fn fixed_policy_results(cells: &[JudgedEviction]) -> Vec<FixedPolicyResult> {
    let judged = cells.iter().map(|cell| cell.judged.eviction.as_str());
    let policies: BTreeSet<&str> =
        judged.chain(eviction::POLICIES.iter().map(|policy| policy.name)).collect();
    let result_of = |policy: &str| {
        let runs: Vec<_> =
            cells.iter().filter_map(|cell| Some((cell, cell.result_of(policy)?))).collect();
        let ratios: Vec<f64> = runs
            .iter()
            .map(|(cell, run)| ratio_of_costs(run.cost, cell.baselines[0].cost))
            .collect();
        let distances: Vec<f64> = runs
            .iter()
            .filter_map(|(cell, run)| Some(run.cost_ratio - cell.optimum.as_ref()?.cost_ratio))
            .collect();
        (!ratios.is_empty()).then(|| FixedPolicyResult {
            eviction: policy.to_owned(),
            maximum: ratios.iter().copied().fold(0.0, f64::max),
            geometric_mean: geometric_mean(&ratios),
            above_102_percent: count_regrets(&ratios),
            distance_to_optimum: (!distances.is_empty())
                .then(|| distances.iter().sum::<f64>() / distances.len() as f64),
        })
    };
    let mut fixed: Vec<FixedPolicyResult> = policies.into_iter().filter_map(result_of).collect();
    fixed.sort_by(|left, right| left.geometric_mean.total_cmp(&right.geometric_mean));
    fixed
}

/// Returns the number of ratios that count as regrets: above 1.02.
fn count_regrets(ratios: &[f64]) -> usize {
    ratios.iter().filter(|&&ratio| ratio > REGRET_RATIO_MIN).count()
}

#[cfg(test)]
mod tests {
    use super::super::{CellResult, CostUnit};
    use super::*;

    /// Result of a policy with this number of misses among 100 references.
    fn result(policy: &str, cost: u64) -> CellResult {
        CellResult {
            eviction: policy.to_owned(),
            cost,
            cost_ratio: cost as f64 / 100.0,
            seconds: None,
            waste_bytes: None,
        }
    }

    /// Cell with these costs of `adaptive`, `two-lists` and `lru`. The optimum costs 10.
    fn judged(cost: u64, two_lists: u64, lru: u64) -> JudgedEviction {
        let mut baselines = vec![result("two-lists", two_lists), result("lru", lru)];
        baselines.sort_by_key(|run| run.cost);
        JudgedEviction {
            cell: "c".to_owned(),
            measure: CostUnit::Misses,
            ratio: ratio_of_costs(cost, baselines[0].cost),
            judged: result("adaptive", cost),
            baselines,
            optimum: Some(result("optimum", 10)),
        }
    }

    /// `adaptive` has 1, 2 and 1/2 of the best; `two-lists` has 2, 1 and 2; `lru` 1, 8 and 1.
    #[test]
    fn means_are_geometric_and_policies_compared_with_the_best_of_each_cell() {
        let cells = [judged(20, 40, 20), judged(40, 20, 160), judged(10, 40, 20)];
        let summary = EvictionSummary::of(&cells);
        assert_eq!((summary.maximum, summary.above_102_percent), (Some(2.0), 1));
        assert!((summary.geometric_mean.unwrap() - 1.0).abs() < 1e-12);
        assert_eq!(summary.two_lists_maximum, Some(2.0));
        let [adaptive, two_lists, lru] = &summary.fixed[..] else { panic!("three policies") };
        assert_eq!((adaptive.eviction.as_str(), adaptive.maximum), ("adaptive", 2.0));
        assert_eq!((two_lists.eviction.as_str(), two_lists.above_102_percent), ("two-lists", 2));
        assert_eq!((lru.eviction.as_str(), lru.maximum), ("lru", 8.0));
        // 10, 30 and 0 of a hundred more than the optimum.
        assert!((adaptive.distance_to_optimum.unwrap() - 0.4 / 3.0).abs() < 1e-12);
        assert_eq!(EvictionSummary::of(&[]).maximum, None);
    }

    /// The memory of a load can suffice under some policies, whose cost is then 0.
    #[test]
    fn ratios_to_a_cost_of_0_are_finite() {
        let cells = [judged(0, 0, 0), judged(3, 0, 0)];
        assert_eq!(cells.each_ref().map(|cell| cell.ratio), [1.0, 3.0]);
        let summary = EvictionSummary::of(&cells);
        assert_eq!((summary.maximum, summary.two_lists_maximum), (Some(3.0), Some(3.0)));
        assert_eq!(summary.above_102_percent, 1);
        // The square root of 1 times 3.
        assert!((summary.geometric_mean.unwrap() - 3.0_f64.sqrt()).abs() < 1e-12);
        let of_lru = summary.fixed.iter().find(|fixed| fixed.eviction == "lru").unwrap();
        assert_eq!((of_lru.maximum, of_lru.geometric_mean), (1.0, 1.0));
    }
}
