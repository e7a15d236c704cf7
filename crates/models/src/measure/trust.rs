//! Plausibility checks of a profile: rounds that disagree, and response times that no storage has.
//!
//! Other work on the storage or the machine slows requests for a while. If it slows some rounds of
//! a cell, these rounds disagree. If it slows all rounds, the cell contradicts its neighbours. For
//! random reads, the response time never decreases with queue depth or request size. (It may for
//! sequential ones: read-ahead needs a second request.)

use super::{MeasurementCell, ProfileAccess, ProfileSample};

/// Ratio, chosen, of the slowest round of a cell to its fastest from which on the rounds disagree.
pub const ROUND_RATIO_MAX: f64 = 1.5;

/// Fraction, chosen, by which a mean may be below the mean of a cheaper cell, because of noise.
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
    /// Median of the cells' ratios of slowest to fastest round. `None` without repeated cells.
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
        spreads.sort_unstable_by(|(left, _), (right, _)| right.total_cmp(left));
        // With an even number, the lower one of the two in the middle.
        let median_spread = spreads.get(spreads.len() / 2).map(|(spread, _)| *spread);
        let disagreeing = spreads.iter().take_while(|(spread, _)| *spread >= ROUND_RATIO_MAX);
        let disagreeing_cells = disagreeing.map(|(_, cell)| *cell).collect();
        ProfileReliability {
            median_spread,
            disagreeing_cells,
            contradictions: contradictions(samples),
        }
    }

    /// Returns the cells to measure again: contradicting or disagreeing ones, each once.
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

/// Returns pairs of random cells that contradict each other: with more requests in flight, or with
/// larger ones, the mean response time is shorter by more than [`DECREASE_MAX`]. Each cell is
/// compared with the slowest cell of equal size and less depth, and with the slowest one of equal
/// depth and smaller size.
fn contradictions(samples: &[ProfileSample]) -> Vec<Contradiction> {
    let random = || samples.iter().filter(|sample| sample.cell.access == ProfileAccess::Random);
    let mut found = Vec::new();
    for heavier in random() {
        let MeasurementCell { bytes, depth, .. } = heavier.cell;
        let same_size =
            random().filter(|other| other.cell.bytes == bytes && other.cell.depth < depth);
        let same_depth =
            random().filter(|other| other.cell.depth == depth && other.cell.bytes < bytes);
        // Among the cells with less load, the slowest is the strictest bound.
        for lighter_cells in [same_size.collect::<Vec<_>>(), same_depth.collect()] {
            let by_mean = |left: &&ProfileSample, right: &&ProfileSample| {
                left.mean_ns.total_cmp(&right.mean_ns)
            };
            let slowest = lighter_cells.into_iter().max_by(by_mean);
            let is_contradicted =
                |lighter: &&ProfileSample| heavier.mean_ns < lighter.mean_ns * (1.0 - DECREASE_MAX);
            if let Some(lighter) = slowest.filter(is_contradicted) {
                let pair = |sample: &ProfileSample| (sample.cell, sample.mean_ns);
                found.push(Contradiction { lighter: pair(lighter), heavier: pair(heavier) });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sample of a cell of random reads, with one round for each mean response time.
    fn sample(bytes: u64, depth: u32, means_us: &[f64]) -> ProfileSample {
        let cell = MeasurementCell { access: ProfileAccess::Random, bytes, depth };
        let round = |us: &f64| {
            let mean_ns = us * 1e3;
            ProfileSample {
                cell,
                requests: 100,
                mean_ns,
                rounds_ns: vec![mean_ns],
                latencies_ns: vec![1],
            }
        };
        ProfileSample::middle(means_us.iter().map(round).collect()).unwrap()
    }

    /// Response times rise with depth and size, except for the 1 % between depths 1 and 16. The
    /// rounds differ by at most 170 / 150 = 1.13.
    #[test]
    fn plausible_measurements_are_trusted() {
        let samples = [
            sample(4096, 1, &[100.0, 104.0, 98.0]),
            sample(4096, 16, &[101.0, 95.0, 99.0]),
            sample(4096, 64, &[400.0, 390.0, 420.0]),
            sample(65_536, 1, &[160.0, 150.0, 170.0]),
        ];
        let reliability = ProfileReliability::of(&samples);
        assert_eq!((reliability.disagreeing_cells.len(), reliability.contradictions.len()), (0, 0));
        let spread = reliability.median_spread.unwrap();
        assert!((1.0..1.14).contains(&spread), "{spread}");
    }

    /// Queue depth 64 has 154 times the throughput of depth 1, so its response time is 64 / 154 of
    /// a single request. At depth 16 the response time is longer than at 64. A single request of
    /// 64 KiB takes less time than one of 4 KiB.
    #[test]
    fn shorter_response_times_at_greater_depth_are_contradictions() {
        let alone_us = 6_000.0;
        let samples = [
            sample(4096, 1, &[alone_us]),
            sample(4096, 16, &[9_000.0]),
            sample(4096, 64, &[alone_us * 64.0 / 154.0]),
            sample(65_536, 1, &[1_000.0]),
        ];
        let reliability = ProfileReliability::of(&samples);
        let contradictions = reliability.contradictions.iter();
        let pairs: Vec<_> = contradictions.map(|pair| (pair.lighter.0, pair.heavier.0)).collect();
        let [depth_1, depth_16, depth_64, large] =
            [0, 1, 2, 3].map(|index: usize| samples[index].cell);
        assert_eq!(pairs, [(depth_16, depth_64), (depth_1, large)]);
        assert_eq!(reliability.doubtful(), [depth_16, depth_64, depth_1, large]);
        assert_eq!(reliability.median_spread, None, "one round has no spread");
    }

    /// The ratios of slowest to fastest round are 1.49, 3.33 and 1.6; the limit is 1.5.
    #[test]
    fn rounds_that_disagree_are_reported_worst_first() {
        let samples = [
            sample(4096, 1, &[100.0, 149.0, 120.0]),
            sample(4096, 2, &[120.0, 200.0, 400.0]),
            sample(4096, 4, &[200.0, 320.0, 310.0]),
        ];
        let reliability = ProfileReliability::of(&samples);
        assert_eq!(reliability.disagreeing_cells, [samples[1].cell, samples[2].cell]);
    }
}
