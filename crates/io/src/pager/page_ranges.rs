//! Runs of consecutive mapped pages.

use std::collections::BTreeMap;

use readpath_core::unit::PageRange;

/// Ranges of pages that neither overlap nor touch each other.
#[derive(Debug, Default)]
pub(super) struct PageRanges {
    /// End of each range by its first page.
    ends: BTreeMap<u64, u64>,
}

impl PageRanges {
    /// Adds pages.
    pub(super) fn insert(&mut self, range: PageRange) {
        if range.is_empty() {
            return;
        }
        let PageRange { mut first, mut end } = range;
        // From the last range to the first, each range that overlaps or touches the new one.
        while let Some((&begun, &ended)) = self.ends.range(..=end).next_back() {
            if ended < first {
                break;
            }
            self.ends.remove(&begun);
            (first, end) = (first.min(begun), end.max(ended));
        }
        self.ends.insert(first, end);
    }

    /// Removes pages.
    pub(super) fn remove(&mut self, range: PageRange) {
        if range.is_empty() {
            return;
        }
        while let Some((&begun, &ended)) = self.ends.range(..range.end).next_back() {
            if ended <= range.first {
                break;
            }
            self.ends.remove(&begun);
            if ended > range.end {
                self.ends.insert(range.end, ended);
            }
            if begun < range.first {
                self.ends.insert(begun, range.first);
            }
        }
    }

    /// Returns the last range that begins before a page. It may contain the page.
    pub(super) fn below(&self, page: u64) -> Option<PageRange> {
        let (&first, &end) = self.ends.range(..page).next_back()?;
        Some(PageRange { first, end })
    }

    /// Returns the first range that begins after a page.
    pub(super) fn above(&self, page: u64) -> Option<PageRange> {
        let (&first, &end) = self.ends.range(page + 1..).next()?;
        Some(PageRange { first, end })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use readpath_core::splitmix;

    use super::*;

    /// Runs of a set of pages, counted page by page.
    fn runs_of(pages: &BTreeSet<u64>) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for &page in pages {
            match runs.last_mut() {
                Some(run) if run.1 == page => run.1 += 1,
                _ => runs.push((page, page + 1)),
            }
        }
        runs
    }

    #[test]
    fn they_are_those_of_the_set_of_pages_whatever_comes_and_goes() {
        let (mut runs, mut pages, mut state) = (PageRanges::default(), BTreeSet::new(), 7);
        for _ in 0..20_000 {
            let drawn = splitmix::next(&mut state);
            let range = PageRange::new(drawn % 100, (drawn >> 16) % 12);
            match (drawn >> 32) % 2 {
                0 => {
                    runs.insert(range);
                    pages.extend(range.pages());
                }
                _ => {
                    runs.remove(range);
                    pages.retain(|&page| !range.contains(page));
                }
            }
            let told: Vec<(u64, u64)> =
                runs.ends.iter().map(|(&first, &end)| (first, end)).collect();
            assert_eq!(told, runs_of(&pages));
        }
    }

    #[test]
    fn the_run_below_a_page_may_reach_over_it_and_the_one_above_begins_behind_it() {
        let mut runs = PageRanges::default();
        runs.insert(PageRange::new(3, 4));
        runs.insert(PageRange::new(20, 1));
        assert_eq!(runs.below(3), None);
        assert_eq!(runs.below(5), Some(PageRange::new(3, 4)));
        assert_eq!(runs.below(15), Some(PageRange::new(3, 4)));
        assert_eq!(runs.above(3), Some(PageRange::new(20, 1)));
        assert_eq!(runs.above(20), None);
    }
}
