//! Summary of the figures of several runs.

/// Smallest, median and largest figure of several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunSummary {
    /// Smallest figure.
    pub least: f64,
    /// Middle figure, always one of a run: the lower of the two middle ones of an even number.
    pub median: f64,
    /// Largest figure.
    pub most: f64,
}

impl RunSummary {
    /// Summarizes figures. `None` without a figure.
    pub fn of(figures: &[f64]) -> Option<RunSummary> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let [least, .., most] = sorted[..] else {
            return sorted.first().map(|&one| RunSummary { least: one, median: one, most: one });
        };
        Some(RunSummary { least, median: sorted[(sorted.len() - 1) / 2], most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_has_the_smallest_median_and_largest_figure() {
        let summary = |figures: &[f64]| {
            RunSummary::of(figures).map(|RunSummary { least, median, most }| [least, median, most])
        };
        assert_eq!(summary(&[3.0, 1.0, 2.0]), Some([1.0, 2.0, 3.0]));
        assert_eq!(summary(&[4.0, 1.0, 3.0, 2.0]), Some([1.0, 2.0, 4.0]));
        assert_eq!(summary(&[5.0]), Some([5.0; 3]));
        assert_eq!(summary(&[]), None);
    }
}
