//! Distance between two distributions, as in DiskSim's validation.

use super::QUANTILES;

/// Returns the mean of the values, of which there must be at least one.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the standard deviation of the values, of which there must be at least one.
pub(super) fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
}

/// Returns the root mean square horizontal distance between two cumulative distributions: the
/// difference of the values at 10,000 equal steps of probability. Each has at least one value.
pub(super) fn horizontal_distance(left: &[f64], right: &[f64]) -> f64 {
    let (left, right) = (sorted(left), sorted(right));
    let sum: f64 =
        (0..QUANTILES).map(|step| (quantile(&left, step) - quantile(&right, step)).powi(2)).sum();
    (sum / QUANTILES as f64).sqrt()
}

/// Returns a copy of the values in ascending order.
fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// Returns the value of the ascending `sorted` at the middle of probability step `step`.
fn quantile(sorted: &[f64], step: usize) -> f64 {
    let index = (2 * step + 1) * sorted.len() / (2 * QUANTILES);
    sorted[index.min(sorted.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_of_a_shifted_distribution_is_its_shift() {
        let left: Vec<f64> = (0..1000).map(f64::from).collect();
        let right: Vec<f64> = left.iter().rev().map(|value| value + 3.0).collect();
        assert!((horizontal_distance(&left, &right) - 3.0).abs() < 1e-12);
        assert_eq!(horizontal_distance(&left, &left), 0.0);
    }

    #[test]
    fn mean_and_deviation_match_hand_computed_values() {
        assert_eq!(mean(&[2.0, 4.0, 4.0, 6.0]), 4.0);
        assert_eq!(deviation(&[2.0, 4.0, 4.0, 6.0]), 2f64.sqrt());
    }
}
