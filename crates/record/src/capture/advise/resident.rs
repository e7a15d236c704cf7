//! Count of the prefetched and unused pages that are resident, by the kernel.

use readpath_core::unit::PAGE_BYTES;

use super::Advisor;

/// Maximum number of unused ranges whose resident pages are counted, chosen.
const COUNTED_RANGES_MAX: usize = 1024;

impl Advisor {
    /// Updates the maximum of the unused pages that are resident. At most `COUNTED_RANGES_MAX`
    /// ranges are counted. Without an unused range there is no count. A file without a count of the
    /// kernel ends the counting, because a maximum of the other files alone would be too small.
    pub(super) fn update_resident_max(&mut self) {
        if self.is_count_refused || self.ledger.oldest_range().is_none() {
            return;
        }
        let counts = self.ledger.unused_ranges().take(COUNTED_RANGES_MAX).map(|unused| {
            let file = self.files.get(self.inodes.get(&unused.file)?)?;
            file.advice_target.cached_pages(unused.range)
        });
        let pages: Option<u64> = counts.sum();
        self.is_count_refused = pages.is_none();
        let bytes_max = self.result.resident_bytes_max.unwrap_or(0);
        self.result.resident_bytes_max = pages.map(|pages| bytes_max.max(pages * PAGE_BYTES));
    }
}

#[cfg(test)]
mod tests {
    use readpath_core::unit::PageRange;

    use super::super::CHECK_INTERVAL_NS;
    use super::*;

    /// The first program has no unused pages. The second has 4 of a file that is not known, so the
    /// kernel counts none. They have been used before the end.
    #[test]
    fn advice_without_a_counted_range_has_no_count_of_the_kernel() {
        assert_eq!(Advisor::new(1 << 20).finish().resident_bytes_max, None);
        let (unknown_file, range) = (99, PageRange::new(0, 4));
        let mut advisor = Advisor::new(1 << 20);
        advisor.judge_periodically(CHECK_INTERVAL_NS);
        advisor.ledger.add(unknown_file, range, 1);
        advisor.judge_periodically(2 * CHECK_INTERVAL_NS);
        advisor.ledger.remove_range(unknown_file, range);
        assert_eq!(advisor.finish().resident_bytes_max, None);
    }
}
