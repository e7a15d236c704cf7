//! Union of time intervals.

/// Number of intervals, chosen, that can still be merged with later ones. Beyond twice this number
/// the earliest are closed.
const OPEN_INTERVALS_MAX: usize = 4096;

/// Union of intervals that arrive in order of their ends.
#[derive(Clone, Debug, Default)]
pub(super) struct IntervalUnion {
    /// Disjoint intervals in order: begin and end in nanoseconds.
    spans: Vec<(u64, u64)>,
    /// Total length of the closed intervals. They have left `spans`.
    closed_ns: u64,
    /// Sum of the lengths of all intervals.
    sum_ns: u64,
    /// Number of intervals.
    count: u64,
}

impl IntervalUnion {
    /// Adds the interval from `begin_ns` to `end_ns`, which is not before it, in nanoseconds. The
    /// interval is merged with the open intervals that it overlaps. The earliest open intervals are
    /// closed if there are too many, which bounds the memory. Time that is also in a closed
    /// interval counts twice.
    pub fn add(&mut self, begin_ns: u64, end_ns: u64) {
        self.sum_ns += end_ns - begin_ns;
        self.count += 1;
        let (mut begin, mut end) = (begin_ns, end_ns);
        while let Some(&(last_begin, last_end)) = self.spans.last() {
            // If times are not exactly in order, an interval with a later end can precede it.
            if last_end < begin {
                break;
            }
            (begin, end) = (begin.min(last_begin), end.max(last_end));
            self.spans.pop();
        }
        self.spans.push((begin, end));
        if self.spans.len() > 2 * OPEN_INTERVALS_MAX {
            let closed = self.spans.drain(..OPEN_INTERVALS_MAX);
            self.closed_ns += closed.map(|(begin, end)| end - begin).sum::<u64>();
        }
    }

    /// Returns the total time covered by at least one interval, in nanoseconds.
    pub fn union_ns(&self) -> u64 {
        self.closed_ns + self.spans.iter().map(|(begin, end)| end - begin).sum::<u64>()
    }

    /// Returns the mean number of concurrent intervals over the covered time. 0 if there is none.
    pub fn mean_depth(&self) -> f64 {
        self.sum_ns as f64 / self.union_ns().max(1) as f64
    }

    /// Returns the number of intervals.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of the lengths of all intervals in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: the union is 0 to 41 and 50 to 60. The lengths are 10 + 10 + 15 + 36 + 10.
    #[test]
    fn overlapping_intervals_count_once_in_the_union() {
        let mut spans = IntervalUnion::default();
        for (begin, end) in [(0, 10), (20, 30), (25, 40), (5, 41), (50, 60)] {
            spans.add(begin, end);
        }
        assert_eq!((spans.union_ns(), spans.sum_ns(), spans.count()), (51, 81, 5));
        assert!((spans.mean_depth() - 81.0 / 51.0).abs() < 1e-9);
    }

    /// Intervals of 3 ns, each 10 ns after the last one, so none can be merged.
    #[test]
    fn million_intervals_take_bounded_memory() {
        let mut spans = IntervalUnion::default();
        (0..1_000_000).for_each(|nth| spans.add(nth * 10, nth * 10 + 3));
        assert!(spans.spans.len() <= 2 * OPEN_INTERVALS_MAX);
        assert_eq!(spans.union_ns(), 3_000_000);
    }
}
