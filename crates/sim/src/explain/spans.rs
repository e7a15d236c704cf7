//! How long at least one of many spans of time lasted.

/// Spans that still may be joined to later ones are kept; of more than these the earliest are
/// taken for over.
const KEPT: usize = 4096;

/// The union of spans, which come in the order of their ends.
#[derive(Clone, Debug, Default)]
pub(super) struct IntervalUnion {
    /// Apart from each other, in their order.
    spans: Vec<(u64, u64)>,
    /// The length of those that are not kept.
    closed_ns: u64,
    sum_ns: u64,
    count: u64,
}

impl IntervalUnion {
    /// Adds one.
    pub fn add(&mut self, begin: u64, end: u64) {
        self.sum_ns += end - begin;
        self.count += 1;
        let (mut begin, mut end) = (begin, end);
        while let Some(&(first, last)) = self.spans.last() {
            // One that ended later than this stands before it where times are not quite in order.
            if last < begin {
                break;
            }
            (begin, end) = (begin.min(first), end.max(last));
            self.spans.pop();
        }
        self.spans.push((begin, end));
        if self.spans.len() > 2 * KEPT {
            let over = self.spans.drain(..KEPT);
            self.closed_ns += over.map(|(begin, end)| end - begin).sum::<u64>();
        }
    }

    /// How long at least one lasted.
    pub fn union_ns(&self) -> u64 {
        self.closed_ns + self.spans.iter().map(|(begin, end)| end - begin).sum::<u64>()
    }

    /// How many lasted at a time on average, while any did; 0 where there is none.
    pub fn depth(&self) -> f64 {
        self.sum_ns as f64 / self.union_ns().max(1) as f64
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How long they were together.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_counts_once() {
        let mut spans = IntervalUnion::default();
        for (begin, end) in [(0, 10), (20, 30), (25, 40), (5, 41), (50, 60)] {
            spans.add(begin, end);
        }
        assert_eq!((spans.union_ns(), spans.sum_ns(), spans.count()), (51, 81, 5));
        assert!((spans.depth() - 81.0 / 51.0).abs() < 1e-9);
    }

    #[test]
    fn a_million_spans_are_few_in_memory() {
        let mut spans = IntervalUnion::default();
        (0..1_000_000).for_each(|at| spans.add(at * 10, at * 10 + 3));
        assert!(spans.spans.len() <= 2 * KEPT);
        assert_eq!(spans.union_ns(), 3_000_000);
    }
}
