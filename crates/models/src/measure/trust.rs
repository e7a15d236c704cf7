//! Plausibility checks of a profile: rounds that disagree, and response times that no storage has.
//!
//! Other work on the storage or the machine slows requests for a while. If it slows some rounds of
//! a cell, these rounds disagree. If it slows all rounds, the cell contradicts its neighbours. For
//! random reads, the response time never decreases with queue depth or request size. (It may for
//! sequential ones: read-ahead needs a second request.)

use super::{MeasurementCell, ProfileAccess, ProfileSample};

/// Ratio of the slowest round of a cell to its fastest above which the rounds disagree.
pub const ROUND_RATIO_MAX: f64 = 1.5;

/// Fraction by which a mean may be below the mean of a cheaper cell, because of noise.
pub const DECREASE_MAX: f64 = 0.2;

/// A cell with a shorter response time than a cell with less load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contradiction {
    /// The cell with less load, and the mean response time of its requests in ns.
    pub lighter: (MeasurementCell, f64),
    /// The cell with more or larger requests, which took less time.
    pub heavier: (MeasurementCell, f64),
}

/// Reliability of a profile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProfileReliability {
    /// Median over all cells of the ratio of slowest to fastest round. `None` if no cell was
    /// measured twice.
    pub median_spread: Option<f64>,
    /// Cells whose rounds disagree, the worst first.
    pub disagreeing_cells: Vec<MeasurementCell>,
    /// Pairs of cells that contradict each other.
    pub contradictions: Vec<Contradiction>,
}

impl ProfileReliability {
    /// Checks the samples of a profile, one for each cell.
    pub fn of(samples: &[ProfileSample]) -> ProfileReliability {
        let mut spreads: Vec<(f64, MeasurementCell)> =
            samples.iter().filter_map(|sample| Some((sample.spread()?, sample.cell))).collect();
        spreads.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        let median_spread = spreads.get(spreads.len() / 2).map(|(spread, _)| *spread);
        let apart = spreads.iter().take_while(|(spread, _)| *spread >= ROUND_RATIO_MAX);
        let apart = apart.map(|(_, cell)| *cell).collect();
        ProfileReliability {
            median_spread,
            disagreeing_cells: apart,
            contradictions: contradictions(samples),
        }
    }

    /// Returns the cells that should be measured again: contradicting or disagreeing ones, each
    /// once.
    pub fn doubtful(&self) -> Vec<MeasurementCell> {
        let pairs = self
            .contradictions
            .iter()
            .flat_map(|contradiction| [contradiction.lighter.0, contradiction.heavier.0]);
        let mut cells: Vec<MeasurementCell> = Vec::new();
        for cell in pairs.chain(self.disagreeing_cells.iter().copied()) {
            if !cells.contains(&cell) {
                cells.push(cell);
            }
        }
        cells
    }
}

/// Returns pairs of neighbouring random cells whose response times decrease with load.
fn contradictions(samples: &[ProfileSample]) -> Vec<Contradiction> {
    let random = || samples.iter().filter(|sample| sample.cell.access == ProfileAccess::Random);
    let mut found = Vec::new();
    for more in random() {
        let MeasurementCell { bytes, depth, .. } = more.cell;
        let same_size = random().filter(|less| less.cell.bytes == bytes && less.cell.depth < depth);
        let same_depth =
            random().filter(|less| less.cell.depth == depth && less.cell.bytes < bytes);
        // Among the cells with less load, the slowest is the strictest bound.
        for rest in [same_size.collect::<Vec<_>>(), same_depth.collect()] {
            let slowest = rest.into_iter().max_by(|a, b| a.mean_ns.total_cmp(&b.mean_ns));
            if let Some(less) =
                slowest.filter(|less| more.mean_ns < less.mean_ns * (1.0 - DECREASE_MAX))
            {
                let pair = |sample: &ProfileSample| (sample.cell, sample.mean_ns);
                found.push(Contradiction { lighter: pair(less), heavier: pair(more) });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(bytes: u64, depth: u32, means_us: &[f64]) -> ProfileSample {
        let cell = MeasurementCell { access: ProfileAccess::Random, bytes, depth };
        let one = |us: &f64| {
            let mean_ns = us * 1e3;
            ProfileSample {
                cell,
                requests: 100,
                mean_ns,
                rounds_ns: vec![mean_ns],
                latencies_ns: vec![1],
            }
        };
        ProfileSample::middle(means_us.iter().map(one).collect()).unwrap()
    }

    #[test]
    fn plausible_measurements_are_trusted() {
        let samples = [
            sample(4096, 1, &[100.0, 104.0, 98.0]),
            sample(4096, 16, &[101.0, 95.0, 99.0]),
            sample(4096, 64, &[400.0, 390.0, 420.0]),
            sample(65_536, 1, &[160.0, 150.0, 170.0]),
        ];
        let trust = ProfileReliability::of(&samples);
        assert_eq!((trust.disagreeing_cells.len(), trust.contradictions.len()), (0, 0));
        let spread = trust.median_spread.unwrap();
        assert!((1.0..1.14).contains(&spread), "{spread}");
    }

    /// Queue depth 64 has 154 times the throughput of depth 1, so its response time is 64 / 154 of
    /// a single request. At depth 16 the response time is longer than at 64.
    #[test]
    fn shorter_response_times_at_greater_depth_are_contradictions() {
        let alone_us = 6_000.0;
        let samples = [
            sample(4096, 1, &[alone_us]),
            sample(4096, 16, &[9_000.0]),
            sample(4096, 64, &[alone_us * 64.0 / 154.0]),
            sample(65_536, 1, &[1_000.0]),
        ];
        let trust = ProfileReliability::of(&samples);
        let pairs: Vec<_> =
            trust.contradictions.iter().map(|it| (it.lighter.0, it.heavier.0)).collect();
        let [one, sixteen, all, large] = [0, 1, 2, 3].map(|at: usize| samples[at].cell);
        assert_eq!(pairs, [(sixteen, all), (one, large)]);
        assert_eq!(trust.doubtful(), [sixteen, all, one, large]);
        assert_eq!(trust.median_spread, None, "one round says nothing of a spread");
    }

    #[test]
    fn rounds_that_disagree_are_reported_worst_first() {
        let samples = [
            sample(4096, 1, &[100.0, 149.0, 120.0]),
            sample(4096, 2, &[120.0, 200.0, 400.0]),
            sample(4096, 4, &[200.0, 320.0, 310.0]),
        ];
        let trust = ProfileReliability::of(&samples);
        assert_eq!(trust.disagreeing_cells, [samples[1].cell, samples[2].cell]);
    }
}
