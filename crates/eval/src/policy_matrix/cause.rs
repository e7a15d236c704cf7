//! Cause of a regret: the responsible policy, and the differences in the device load.
//!
//! A *regret* is a loss of more than 5 % of throughput against the best baseline: the classic
//! policies with the highest throughput in the cell. A *cell* is one workload with a number of
//! processes on one device.
//!
//! Each of the two policies is simulated together with the best baseline's other policy. If the
//! loss vanishes when one policy is exchanged, that policy is the cause. The differences compare
//! the device requests, the greatest first. If all differ by less than a tenth, only the order or
//! the timing of the requests can be the cause.

use serde::{Deserialize, Serialize};

use super::{CellSize, MatrixCell, MatrixResult, Policies, REGRET_RATIO_MAX};
use readpath_core::policy::Spec;
use readpath_sim::simulate::SimulateError;

/// Minimum ratio of two values at which a difference is reported. Chosen, not measured.
const DIFFERENCE_RATIO_MIN: f64 = 1.1;

/// Cause of a regret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegretCause {
    /// Throughput relative to the best baseline, with its scheduler and the readahead or swap-in
    /// policy under test. Null where such policies have no effect.
    pub under_best_scheduler: Option<f64>,
    /// Throughput relative to the best baseline, with its readahead or swap-in policy and the
    /// scheduler under test. Null in the same cases.
    pub with_best_readahead: Option<f64>,
    /// The cause as text.
    pub line: String,
}

impl RegretCause {
    /// Simulates the cell, which is a regret, twice more, each time with one of `policies` replaced
    /// by the best baseline's policy, and derives the cause from the two throughputs. `run` and
    /// `best` are the results of `policies` and of the best baseline. If that baseline has only a
    /// scheduler (direct reads), nothing is simulated, and the scheduler is the cause.
    ///
    /// # Errors
    /// A policy of `best` cannot be parsed, or a simulation fails.
    pub(super) fn by_exchanging_policies(
        cell: &MatrixCell,
        policies: &Policies,
        run: &MatrixResult,
        best: &MatrixResult,
        size: CellSize,
    ) -> Result<RegretCause, SimulateError> {
        // The names are texts of valid policies, so the type of the error does not matter.
        let named = |name: &str| Spec::parse(name).map_err(SimulateError::Device);
        let ratio = |policies: &Policies| Ok(cell.run(policies, size)?.mib_per_s / best.mib_per_s);
        let (mut under_best_scheduler, mut with_best_readahead) = (None, None);
        if let Some(policy) = best.readahead.as_ref().or(best.swapin.as_ref()) {
            let scheduler = named(&best.scheduler)?;
            under_best_scheduler = Some(ratio(&Policies { scheduler, ..policies.clone() })?);
            with_best_readahead = Some(ratio(&cell.with_policy(policies, named(policy)?))?);
        }
        let kind = if best.swapin.is_some() { "swap-in" } else { "readahead" };
        let policy = responsible_policy(kind, under_best_scheduler, with_best_readahead);
        let line = format!("{policy}: {}", differences(run, best).join(", "));
        Ok(RegretCause { under_best_scheduler, with_best_readahead, line })
    }
}

/// Returns the name of the policy that causes the loss: `kind` (readahead or swap-in), the
/// scheduler, or both. The two ratios are the fields of [`RegretCause`]. In each, one policy under
/// test runs with the best baseline's other policy. A loss that remains there is caused by the
/// policy under test. If no loss remains in either, only both policies together cause it. Without
/// the ratios only the scheduler can be the cause.
fn responsible_policy(
    kind: &'static str,
    under_best_scheduler: Option<f64>,
    with_best_readahead: Option<f64>,
) -> &'static str {
    let (Some(under_best_scheduler), Some(with_best_readahead)) =
        (under_best_scheduler, with_best_readahead)
    else {
        return "scheduler";
    };
    let readahead_loses = under_best_scheduler < REGRET_RATIO_MAX;
    let scheduler_loses = with_best_readahead < REGRET_RATIO_MAX;
    match (readahead_loses, scheduler_loses) {
        (true, false) => kind,
        (false, true) => "scheduler",
        (true, true) => "both policies",
        (false, false) => "the two policies together",
    }
}

/// Returns the differences of at least a tenth to the disadvantage of `run` against `best` as
/// texts, the greatest first. Differences in favour of `run` and unknown values are left out.
/// Without a difference the text names order and timing. The last text counts the seeds with which
/// `run` is at least as good as `best`, if there are any.
fn differences(run: &MatrixResult, best: &MatrixResult) -> Vec<String> {
    let bytes = |run: &MatrixResult| Some(run.device_requests? * run.device_request_kib_mean?);
    // The share of the bytes that were not cached in time, which is 1 minus the coverage. A
    // hundredth is added, so that the ratio is finite for a full coverage.
    let late_share = |run: &MatrixResult| run.coverage.map(|coverage| 1.01 - coverage);
    let ratio = |own: Option<f64>, best: Option<f64>| Some(own? / best?);
    // For values that are worse if they are smaller.
    let inverse = |ratio: Option<f64>| ratio.map(|ratio| 1.0 / ratio);
    let requests = ratio(run.device_requests, best.device_requests);
    let depth = ratio(run.device_depth_mean, best.device_depth_mean);
    let mut worse = vec![
        (ratio(bytes(run), bytes(best)), "more bytes"),
        (requests, "more requests"),
        (inverse(depth), "less depth"),
        (ratio(late_share(run), late_share(best)), "more waited for"),
    ];
    // A ratio above 1 means that `run` is worse. It is not finite if the divisor is 0.
    worse.retain(|(ratio, _)| {
        ratio.is_some_and(|ratio| ratio.is_finite() && ratio >= DIFFERENCE_RATIO_MIN)
    });
    worse.sort_by(|left, right| right.0.partial_cmp(&left.0).expect("finite"));
    // All ratios that are left are known.
    let mut causes: Vec<String> = worse
        .iter()
        .map(|(ratio, difference)| format!("{difference} (×{:.2})", ratio.unwrap_or(1.0)))
        .collect();
    if causes.is_empty() {
        causes.push("the order of the requests, or when they came".to_owned());
    }
    let pairs = run.mib_per_s_by_seed.iter().zip(&best.mib_per_s_by_seed);
    let seeds_won = pairs.filter(|(own, best)| *own >= *best).count();
    if seeds_won > 0 {
        causes.push(format!("seeds disagree: {seeds_won} of {} won", run.mib_per_s_by_seed.len()));
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Result with this number, mean size and mean depth of device requests, and these throughputs
    /// of the seeds.
    fn result(device_requests: f64, kib: f64, depth: f64, by_seed: Vec<f64>) -> MatrixResult {
        MatrixResult {
            readahead: Some("x".to_owned()),
            swapin: None,
            scheduler: "y".to_owned(),
            mib_per_s: 1.0,
            seconds: 1.0,
            mib_per_s_by_seed: by_seed,
            device_requests: Some(device_requests),
            device_request_kib_mean: Some(kib),
            device_depth_mean: Some(depth),
            amplification: None,
            coverage: None,
            waste_bytes: None,
            latency_p99_us: None,
        }
    }

    /// The first ratio is with the best scheduler, the second with the best readahead. A ratio
    /// below 0.95 is a loss, which the policy that was kept has caused.
    #[test]
    fn cause_is_the_policy_whose_replacement_ends_the_loss() {
        assert_eq!(responsible_policy("readahead", Some(0.8), Some(1.0)), "readahead");
        assert_eq!(responsible_policy("readahead", Some(1.0), Some(0.5)), "scheduler");
        assert_eq!(responsible_policy("readahead", Some(0.9), Some(0.9)), "both policies");
        assert_eq!(responsible_policy("readahead", None, None), "scheduler");
    }

    /// Twice the requests at three quarters of the size are 1.5 times the bytes. Depths of 4.0 and
    /// 4.2 differ by less than a tenth. With equal requests, the second of two seeds has a better
    /// result.
    #[test]
    fn largest_difference_is_reported_first() {
        let (run, best) = (result(200.0, 48.0, 4.0, vec![]), result(100.0, 64.0, 4.2, vec![]));
        let reported = differences(&run, &best);
        assert_eq!(reported, ["more requests (×2.00)", "more bytes (×1.50)"]);
        let (run, best) =
            (result(10.0, 64.0, 4.0, vec![1.0, 3.0]), result(10.0, 64.0, 4.0, vec![2.0; 2]));
        let alike = differences(&run, &best);
        assert_eq!(alike.len(), 2);
        assert!(alike[1].contains("1 of 2"), "{alike:?}");
    }
}
