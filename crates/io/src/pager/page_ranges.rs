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
    /// Adds pages. Ranges that overlap or touch the new one are merged with it.
    pub(super) fn insert(&mut self, range: PageRange) {
        if range.is_empty() {
            return;
        }
        let PageRange { mut first, mut end } = range;
        // From the last range to the first, each range that overlaps or touches the new one.
        while let Some((&range_start, &range_end)) = self.ends.range(..=end).next_back() {
            if range_end < first {
                break;
            }
            self.ends.remove(&range_start);
            (first, end) = (first.min(range_start), end.max(range_end));
        }
        self.ends.insert(first, end);
    }

    /// Removes pages. A range that contains them is cut or split.
    pub(super) fn remove(&mut self, range: PageRange) {
        if range.is_empty() {
            return;
        }
        // From the last range that begins before the end of `range`, each one that overlaps it.
        while let Some((&range_start, &range_end)) = self.ends.range(..range.end).next_back() {
            if range_end <= range.first {
                break;
            }
            self.ends.remove(&range_start);
            if range_end > range.end {
                self.ends.insert(range.end, range_end);
            }
            if range_start < range.first {
                self.ends.insert(range_start, range.first);
            }
        }
    }

    /// Returns the last range that begins before a page, or `None`. It may contain the page.
    pub(super) fn last_starting_before(&self, page: u64) -> Option<PageRange> {
        let (&first, &end) = self.ends.range(..page).next_back()?;
        Some(PageRange { first, end })
    }

    /// Returns the first range that begins after a page, or `None`.
    pub(super) fn first_starting_after(&self, page: u64) -> Option<PageRange> {
        let (&first, &end) = self.ends.range(page + 1..).next()?;
        Some(PageRange { first, end })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use readpath_core::splitmix;

    use super::*;

    /// Runs of a set of pages, each with its first page and its end, counted page by page.
    fn runs_of(pages: &BTreeSet<u64>) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for &page in pages {
            match runs.last_mut() {
                Some((_, end)) if *end == page => *end += 1,
                _ => runs.push((page, page + 1)),
            }
        }
        runs
    }

    /// 20,000 random insertions and removals of up to 11 pages below page 110.
    #[test]
    fn page_ranges_equal_a_page_set_under_random_changes() {
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
            let actual: Vec<(u64, u64)> =
                runs.ends.iter().map(|(&first, &end)| (first, end)).collect();
            assert_eq!(actual, runs_of(&pages));
        }
    }

    /// Two runs: the pages 3 to 6, and page 20.
    #[test]
    fn run_below_may_contain_the_page_and_run_above_begins_after_it() {
        let mut runs = PageRanges::default();
        runs.insert(PageRange::new(3, 4));
        runs.insert(PageRange::new(20, 1));
        assert_eq!(runs.last_starting_before(3), None);
        assert_eq!(runs.last_starting_before(5), Some(PageRange::new(3, 4)));
        assert_eq!(runs.last_starting_before(15), Some(PageRange::new(3, 4)));
        assert_eq!(runs.first_starting_after(3), Some(PageRange::new(20, 1)));
        assert_eq!(runs.first_starting_after(20), None);
    }
}
