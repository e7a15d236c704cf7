//! Ledger of pages prefetched into the kernel page cache and not yet used.
//!
//! The ledger holds the prefetched ranges of each file with their times. Used pages and evicted
//! pages are taken out. The budget limits the pages in the ledger.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use readpath_core::unit::PageRange;

/// Unused prefetched pages of all files.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// By file and first page: the end (exclusive) and the time of the prefetch.
    unused_ranges: BTreeMap<(u32, u64), (u64, u64)>,
    /// Ranges by age: time, file, first page.
    by_age: BTreeSet<(u64, u32, u64)>,
    /// Number of pages in all ranges.
    pages: u64,
    /// Maximum of `pages` so far.
    pages_max: u64,
    /// Number of pages in the ranges of each file. A file without pages has no entry.
    pages_by_file: HashMap<u32, u64>,
}

/// A prefetched and unused range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnusedRange {
    /// Number of the file, which the advisor assigns.
    pub file: u32,
    /// Its pages.
    pub range: PageRange,
    /// Time of the prefetch.
    pub since_ns: u64,
}

impl Ledger {
    /// Number of unused prefetched pages.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Number of unused prefetched pages of a file.
    pub fn pages_of_file(&self, file: u32) -> u64 {
        self.pages_by_file.get(&file).copied().unwrap_or(0)
    }

    /// Maximum of [`pages`](Ledger::pages).
    pub fn pages_max(&self) -> u64 {
        self.pages_max
    }

    /// Adds a prefetched range. Pages already in the ledger get the new time.
    pub fn add(&mut self, file: u32, range: PageRange, at_ns: u64) {
        self.remove_range(file, range);
        if !range.is_empty() {
            self.insert(UnusedRange { file, range, since_ns: at_ns });
            self.pages_max = self.pages_max.max(self.pages);
        }
    }

    /// Removes a range and returns the number of its pages that were in the ledger. Parts of a
    /// prefetched range outside of it stay, with their time.
    pub fn remove_range(&mut self, file: u32, range: PageRange) -> u64 {
        let pages_before = self.pages;
        // The parts that are inserted again share no page with `range`, so the loop ends.
        while let Some(overlapping) = self.last_overlapping(file, range) {
            self.remove(overlapping);
            let UnusedRange { range: whole_range, since_ns, .. } = overlapping;
            let below = whole_range.clipped(range.first);
            let above = PageRange { first: whole_range.first.max(range.end), end: whole_range.end };
            for rest in [below, above] {
                if !rest.is_empty() {
                    self.insert(UnusedRange { file, range: rest, since_ns });
                }
            }
        }
        pages_before - self.pages
    }

    /// Returns the range that was prefetched first. `None` if the ledger is empty.
    pub fn oldest_range(&self) -> Option<UnusedRange> {
        let &(since_ns, file, first) = self.by_age.first()?;
        let &(end, _) = self.unused_ranges.get(&(file, first))?;
        Some(UnusedRange { file, range: PageRange { first, end }, since_ns })
    }

    /// Returns all ranges, by file and page.
    pub fn unused_ranges(&self) -> impl Iterator<Item = UnusedRange> + '_ {
        self.unused_ranges.iter().map(|(&(file, first), &(end, since_ns))| UnusedRange {
            file,
            range: PageRange { first, end },
            since_ns,
        })
    }

    /// Returns the file's last range that shares a page with `range`, or `None`.
    fn last_overlapping(&self, file: u32, range: PageRange) -> Option<UnusedRange> {
        if range.is_empty() {
            return None;
        }
        let last_before_end = self.unused_ranges.range((file, 0)..(file, range.end)).next_back();
        let (&(_, first), &(end, since_ns)) = last_before_end?;
        (end > range.first).then_some(UnusedRange {
            file,
            range: PageRange { first, end },
            since_ns,
        })
    }

    /// Adds a range that overlaps no other one to the ledger and its sums.
    fn insert(&mut self, UnusedRange { file, range, since_ns }: UnusedRange) {
        self.unused_ranges.insert((file, range.first), (range.end, since_ns));
        self.by_age.insert((since_ns, file, range.first));
        self.pages += range.count();
        *self.pages_by_file.entry(file).or_default() += range.count();
    }

    /// Removes a range from the ledger and its sums. It is one of the ledger's ranges as a whole.
    fn remove(&mut self, UnusedRange { file, range, since_ns }: UnusedRange) {
        self.unused_ranges.remove(&(file, range.first));
        self.by_age.remove(&(since_ns, file, range.first));
        self.pages -= range.count();
        let of_file = self.pages_by_file.entry(file).or_default();
        *of_file -= range.count();
        if *of_file == 0 {
            self.pages_by_file.remove(&file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plain set of page numbers goes through the same random changes as the ledger. Every third
    /// change adds a range, the others remove one.
    #[test]
    fn ledger_equals_a_page_set_under_random_changes() {
        let mut ledger = Ledger::default();
        let mut pages = BTreeSet::<(u32, u64)>::new();
        let (mut state, mut largest_count) = (1_u64, 0);
        for step in 0..2000_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step * 2 + 1);
            let file = (state >> 60) as u32 & 1;
            let range = PageRange::new(state >> 40 & 255, state >> 50 & 31);
            let key = |page| (file, page);
            if step % 3 == 0 {
                ledger.add(file, range, step);
                pages.extend(range.pages().map(key));
            } else {
                let removed = range.pages().filter(|&page| pages.remove(&key(page)));
                let removed_count = removed.count() as u64;
                assert_eq!(ledger.remove_range(file, range), removed_count, "at step {step}");
            }
            largest_count = largest_count.max(pages.len() as u64);
            let actual: BTreeSet<_> = ledger
                .unused_ranges()
                .flat_map(|unused| unused.range.pages().map(move |page| (unused.file, page)))
                .collect();
            assert_eq!(actual, pages, "after step {step}");
            assert_eq!(ledger.pages(), pages.len() as u64, "after step {step}");
        }
        assert_eq!(ledger.pages_max(), largest_count);
        assert!(largest_count > 100);
    }

    /// By hand: pages 10 to 19 of file 3 are prefetched at time 5. Pages 12 to 17 are removed, then
    /// all up to 14, so the range from page 18 is left. Without it, file 4 is the oldest.
    #[test]
    fn oldest_ledger_range_keeps_its_time_when_cut() {
        let mut ledger = Ledger::default();
        ledger.add(3, PageRange::new(10, 10), 5);
        ledger.add(4, PageRange::new(0, 4), 6);
        assert_eq!(ledger.remove_range(3, PageRange::new(12, 6)), 6);
        let oldest = |ledger: &Ledger| {
            ledger.oldest_range().map(|unused| (unused.file, unused.range.first, unused.since_ns))
        };
        assert_eq!(oldest(&ledger), Some((3, 10, 5)));
        ledger.remove_range(3, PageRange::new(0, 15));
        assert_eq!(oldest(&ledger), Some((3, 18, 5)));
        ledger.remove_range(3, PageRange::new(0, 99));
        assert_eq!(oldest(&ledger), Some((4, 0, 6)));
    }
}
