//! Summary of the policy matrix, and the regret of each fixed default.
//!
//! A *cell* is one workload with a number of processes on one device. Its *baselines* are results
//! of classic policies, the best first. Its *ratio* is the throughput of the policies under test,
//! divided by the throughput of the best baseline.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{JudgedCell, P99_RATIO_MAX, REGRET_RATIO_MAX, WORKLOADS};

/// Summary of a set of cells.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MatrixSummary {
    /// Number of cells.
    pub cells: usize,
    /// Lowest ratio. Null without cells.
    pub minimum: Option<f64>,
    /// Geometric mean of the ratios. Null without cells.
    pub geometric_mean: Option<f64>,
    /// Geometric mean without the workloads that no classic policy prefetches: backward, strided,
    /// many streams on one handle, and phases of these. Null if no cell remains.
    pub geometric_mean_common: Option<f64>,
    /// Number of cells below 0.95.
    pub below_95_percent: usize,
    /// Number of cells below 0.80.
    pub below_80_percent: usize,
    /// Number of cells whose latency is worse under the policies under test: the best baseline's
    /// 99th percentile is below 0.80 of theirs. Both must be known.
    pub p99_below_80_percent: usize,
    /// Number of cells in which both are known.
    pub p99_cells: usize,
    /// Each workload over all its cells, the lowest mean first.
    pub workloads: Vec<WorkloadSummary>,
    /// The ten cells with the lowest ratios, as `device/workload/processes` and ratio.
    pub worst: Vec<(String, f64)>,
    /// Each pair of classic policies as a fixed default, the highest geometric mean first. The best
    /// baseline of a cell is one of them, so none exceeds 1. Memory loads are excluded because they
    /// have other policies.
    pub fixed: Vec<FixedPairResult>,
}

/// One workload over all its cells.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkloadSummary {
    /// Name of the workload in the matrix.
    pub workload: String,
    /// Geometric mean of the ratios.
    pub geometric_mean: f64,
    /// Lowest ratio.
    pub minimum: f64,
    /// Number of cells below 0.95.
    pub below_95_percent: usize,
}

/// Name prefixes of the workloads that no classic policy prefetches.
const UNCOMMON_PREFIXES: [&str; 4] = ["backward", "stride", "one-handle", "phases"];

/// One pair of classic policies in all cells, relative to each cell's best baseline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FixedPairResult {
    /// Names of the readahead policy and the scheduler.
    pub policies: String,
    /// Lowest ratio.
    pub minimum: f64,
    /// Geometric mean of the ratios.
    pub geometric_mean: f64,
    /// Number of cells below 0.95.
    pub below_95_percent: usize,
}

impl MatrixSummary {
    /// Summarizes the ratios of these cells: their minimum and means, the numbers of cells below
    /// limits, the ten worst cells, and the results by workload and by fixed pair.
    pub fn of(cells: &[JudgedCell]) -> MatrixSummary {
        let mut ratios: Vec<(String, f64)> =
            cells.iter().map(|cell| (cell.name(), cell.ratio)).collect();
        ratios.sort_by(|left, right| left.1.total_cmp(&right.1));
        let sorted_ratios: Vec<f64> = ratios.iter().map(|(_, ratio)| *ratio).collect();
        let is_common = |cell: &&JudgedCell| {
            // A file of the user may have any name.
            let is_of_matrix = WORKLOADS.iter().any(|(name, _)| *name == cell.workload);
            let is_uncommon = UNCOMMON_PREFIXES.iter().any(|name| cell.workload.starts_with(name));
            !(is_of_matrix && is_uncommon)
        };
        let common: Vec<f64> = cells.iter().filter(is_common).map(|cell| cell.ratio).collect();
        let p99_ratios = || cells.iter().filter_map(|cell| cell.p99_ratio);
        MatrixSummary {
            cells: cells.len(),
            minimum: sorted_ratios.first().copied(),
            geometric_mean: (!sorted_ratios.is_empty()).then(|| geometric_mean(&sorted_ratios)),
            geometric_mean_common: (!common.is_empty()).then(|| geometric_mean(&common)),
            below_95_percent: count_regrets(&sorted_ratios),
            below_80_percent: sorted_ratios.iter().filter(|&&ratio| ratio < 0.8).count(),
            p99_below_80_percent: p99_ratios().filter(|ratio| *ratio < P99_RATIO_MAX).count(),
            p99_cells: p99_ratios().count(),
            workloads: workload_summaries(cells),
            worst: ratios.into_iter().take(10).collect(),
            fixed: fixed_pair_results(cells),
        }
    }
}

/// Summarizes each workload over its cells on all devices, the lowest mean ratio first.
fn workload_summaries(cells: &[JudgedCell]) -> Vec<WorkloadSummary> {
    let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for cell in cells {
        ratios.entry(&cell.workload).or_default().push(cell.ratio);
    }
    let summary_of = |(workload, ratios): (&str, Vec<f64>)| WorkloadSummary {
        workload: workload.to_owned(),
        geometric_mean: geometric_mean(&ratios),
        minimum: ratios.iter().copied().fold(f64::INFINITY, f64::min),
        below_95_percent: count_regrets(&ratios),
    };
    let mut workloads: Vec<WorkloadSummary> = ratios.into_iter().map(summary_of).collect();
    workloads.sort_by(|left, right| left.geometric_mean.total_cmp(&right.geometric_mean));
    workloads
}

/// Returns the results of each pair of classic policies. For direct reads, where readahead has no
/// effect, a pair has the result of its scheduler. Memory loads have no pairs.
fn fixed_pair_results(cells: &[JudgedCell]) -> Vec<FixedPairResult> {
    // Pairs of readahead policy and scheduler, as the baselines of cached reads have them.
    let mut pairs: Vec<(String, String)> = Vec::new();
    for baseline in cells.iter().flat_map(|cell| &cell.baselines) {
        if let Some(readahead) = &baseline.readahead {
            let pair = (readahead.clone(), baseline.scheduler.clone());
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
    }
    let ratios_of = |(readahead, scheduler): &(String, String)| -> Vec<f64> {
        let is_pair = |run: &&super::MatrixResult| {
            run.swapin.is_none()
                && run.scheduler == *scheduler
                && run.readahead.as_ref().is_none_or(|policy| policy == readahead)
        };
        let ratio_in = |cell: &JudgedCell| {
            let run = cell.baselines.iter().find(is_pair)?;
            Some(run.mib_per_s / cell.baselines[0].mib_per_s)
        };
        cells.iter().filter_map(ratio_in).collect()
    };
    let mut fixed: Vec<FixedPairResult> = pairs
        .iter()
        .map(|pair| {
            let ratios = ratios_of(pair);
            FixedPairResult {
                policies: format!("{} {}", pair.0, pair.1),
                minimum: ratios.iter().copied().fold(f64::INFINITY, f64::min),
                geometric_mean: geometric_mean(&ratios),
                below_95_percent: count_regrets(&ratios),
            }
        })
        .collect();
    fixed.sort_by(|left, right| right.geometric_mean.total_cmp(&left.geometric_mean));
    fixed
}

/// Returns the geometric mean of at least one ratio.
pub fn geometric_mean(ratios: &[f64]) -> f64 {
    let logarithms: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    (logarithms / ratios.len() as f64).exp()
}

/// Returns the number of ratios that count as regrets: below 0.95.
fn count_regrets(ratios: &[f64]) -> usize {
    ratios.iter().filter(|&&ratio| ratio < REGRET_RATIO_MAX).count()
}

#[cfg(test)]
mod tests {
    use super::super::MatrixResult;
    use super::*;

    /// Result of these policies with this throughput.
    fn result(readahead: Option<&str>, scheduler: &str, mib_per_s: f64) -> MatrixResult {
        MatrixResult {
            readahead: readahead.map(str::to_owned),
            swapin: None,
            scheduler: scheduler.to_owned(),
            mib_per_s,
            seconds: 1.0,
            mib_per_s_by_seed: Vec::new(),
            device_requests: None,
            device_request_kib_mean: None,
            device_depth_mean: None,
            amplification: None,
            coverage: None,
            waste_bytes: None,
            latency_p99_us: None,
        }
    }

    /// Cell with this ratio and these baselines, the best first.
    fn judged(ratio: f64, baselines: Vec<MatrixResult>) -> JudgedCell {
        JudgedCell {
            device: "d".to_owned(),
            workload: "w".to_owned(),
            processes: 1,
            ratio,
            p99_ratio: None,
            cause: None,
            adaptive: result(None, "adaptive", ratio),
            baselines,
        }
    }

    /// The geometric mean of 4, 1/2 and 1/2 is 1.
    #[test]
    fn the_mean_is_geometric_and_the_worst_come_first() {
        let cells = [4.0, 0.5, 0.5].map(|ratio| judged(ratio, vec![result(None, "noop", 1.0)]));
        let summary = MatrixSummary::of(&cells);
        assert_eq!(summary.geometric_mean, Some(1.0));
        assert_eq!((summary.minimum, summary.below_95_percent), (Some(0.5), 2));
        assert_eq!(summary.worst[0].1, 0.5);
        assert_eq!((summary.below_80_percent, summary.geometric_mean_common), (2, Some(1.0)));
        let [workload] = &summary.workloads[..] else { panic!("one workload") };
        assert_eq!(workload.workload, "w");
        assert_eq!((workload.geometric_mean, workload.minimum), (1.0, 0.5));
        assert_eq!(MatrixSummary::of(&[]).minimum, None);
        assert_eq!((summary.p99_below_80_percent, summary.p99_cells), (0, 0), "no p99 is known");
    }

    /// Four cells: one has a p99 ratio below 0.80, and one has no p99.
    #[test]
    fn cells_with_worse_latency_are_counted_where_it_is_known() {
        let cells = [Some(0.79), Some(0.80), Some(3.0), None].map(|p99_ratio| JudgedCell {
            p99_ratio,
            ..judged(1.0, vec![result(None, "noop", 1.0)])
        });
        let summary = MatrixSummary::of(&cells);
        assert_eq!((summary.p99_below_80_percent, summary.p99_cells), (1, 3));
    }

    /// `a noop` has 1 and 1/4 of the best, and 1 for direct reads: the mean is the third root of a
    /// quarter. `b noop` has 1/2, 1 and 1.
    #[test]
    fn fixed_default_is_compared_with_the_best_of_each_cell() {
        let cells = [
            judged(1.0, vec![result(Some("a"), "noop", 8.0), result(Some("b"), "noop", 4.0)]),
            judged(1.0, vec![result(Some("b"), "noop", 4.0), result(Some("a"), "noop", 1.0)]),
            judged(1.0, vec![result(None, "noop", 3.0)]),
        ];
        let [b, a] = &MatrixSummary::of(&cells).fixed[..] else { panic!("two pairs") };
        assert_eq!((b.policies.as_str(), b.minimum, b.below_95_percent), ("b noop", 0.5, 1));
        assert_eq!((a.policies.as_str(), a.minimum, a.below_95_percent), ("a noop", 0.25, 1));
        assert!((a.geometric_mean - 0.25_f64.cbrt()).abs() < 1e-12);
    }
}
