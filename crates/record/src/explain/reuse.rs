//! Miss-ratio curve of a program's reads under the policy `lru`.
//!
//! With many pages, only a sample is tracked. It is selected by page number, so it contains all or
//! none of a page's references (Waldspurger et al., "Efficient MRC Construction with SHARDS", FAST
//! 2015). A cache of the same fraction of the size then misses the same fraction of the references.
//!
//! The sample is halved repeatedly. In each pair of adjacent pages (later, of adjacent groups) a
//! coin toss per pair selects the one that remains. The tracked pages of a range can thus be found
//! without a look at the others, and a read of gigabytes costs no more than its tracked pages.

use readpath_core::policy::Spec;
use readpath_core::splitmix;
use readpath_core::unit::PageRange;
use serde::Serialize;

use readpath_trace::page_set::PAGE_BYTES;
use readpath_trace::references::{self, BlockTrace};

/// Maximum number of stored references, chosen. Beyond it, half of the pages are dropped.
const REFERENCES_MAX: usize = 1 << 19;

/// Bit position of the file number in a page key. Files can have up to 4 PiB.
const FILE_SHIFT: u32 = 40;

/// Memory sizes of the curve, as fractions of all distinct pages. Chosen.
const MEMORY_SHARES: [f64; 8] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0];

/// A point of the curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReusePoint {
    /// Memory size in bytes.
    pub bytes: u64,
    /// Fraction of the page references that miss.
    pub miss_ratio: f64,
}

/// References to the pages of the sample.
#[derive(Debug, Default)]
pub(super) struct ReuseSample {
    /// Keys of the referenced pages in the sample, in order.
    stored_references: Vec<u64>,
    /// Number of halvings: one in 2^`halvings` adjacent pages is tracked.
    halvings: u32,
    /// Number of all references, also outside the sample.
    pub references: u64,
}

impl ReuseSample {
    /// Counts a reference to each of these pages of a file, in order. The sampled pages among them
    /// are stored: one page of each aligned group of 2^`halvings` pages.
    pub fn add_references(&mut self, file: u32, pages: PageRange) {
        self.references += pages.count();
        let mut next_page = pages.first;
        while next_page < pages.end {
            let group = next_page >> self.halvings;
            let sampled = sampled_page(file, group, self.halvings);
            let group_end = (group + 1) << self.halvings;
            // The range may contain only a part of its first and its last group.
            if (next_page..pages.end).contains(&sampled) {
                self.store_reference(page_key(file, sampled));
            }
            next_page = group_end;
        }
    }

    /// Stores a reference to a sampled page, and halves the sample if there are too many. The keys
    /// that leave it are the ones that `sampled_page` no longer selects.
    fn store_reference(&mut self, page_key: u64) {
        self.stored_references.push(page_key);
        if self.stored_references.len() >= REFERENCES_MAX {
            let level = self.halvings;
            self.stored_references.retain(|&key| is_retained(key, level));
            self.halvings += 1;
        }
    }

    /// Returns the miss-ratio curve over the sizes of `MEMORY_SHARES`. Empty without reads.
    pub fn curve(&self) -> Vec<ReusePoint> {
        // A trace without references is an error.
        let Ok(trace) = BlockTrace::of(self.stored_references.clone()) else { return Vec::new() };
        // Number of distinct pages in the sample.
        let pages = f64::from(trace.blocks);
        let mut points: Vec<ReusePoint> = Vec::new();
        for share in MEMORY_SHARES {
            let blocks = (pages * share).ceil() as u32;
            let policy = Spec::plain("lru");
            let misses =
                references::misses(&trace, &policy, blocks).expect("the policy lru is known");
            // The sampled pages stand for 2^`halvings` times as many.
            let point = ReusePoint {
                bytes: (u64::from(blocks) << self.halvings) * PAGE_BYTES,
                miss_ratio: misses as f64 / trace.references.len() as f64,
            };
            // Shares of few pages round up to the same size.
            if points.last().is_none_or(|last| last.bytes < point.bytes) {
                points.push(point);
            }
        }
        points
    }
}

/// Returns the number of a page of a file among the pages of all files.
fn page_key(file: u32, page: u64) -> u64 {
    u64::from(file) << FILE_SHIFT ^ page
}

/// Returns 0 or 1: the half of a page group that remains when the groups of `level` are halved. A
/// hash decides. The level is in its highest bits, where file numbers are small.
fn remaining_half(file: u32, group: u64, level: u32) -> u64 {
    splitmix::mixed(page_key(file, group) ^ u64::from(level).rotate_right(8)) & 1
}

/// Returns the page of a group that remains after `halvings` halvings. The group has 2^`halvings`
/// pages.
fn sampled_page(file: u32, group: u64, halvings: u32) -> u64 {
    (0..halvings).rev().fold(group, |group, level| group << 1 | remaining_half(file, group, level))
}

/// Returns true if a page of the sample stays in it when the groups of `level` are halved.
fn is_retained(page_key: u64, level: u32) -> bool {
    let (file, page) = ((page_key >> FILE_SHIFT) as u32, page_key & ((1 << FILE_SHIFT) - 1));
    page >> level & 1 == remaining_half(file, page >> (level + 1), level)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten rounds over a hundred pages: LRU misses every reference in a smaller memory, and a tenth
    /// in one that holds all pages.
    #[test]
    fn a_loop_misses_all_until_it_fits() {
        let mut reuse = ReuseSample::default();
        (0..10).for_each(|_| reuse.add_references(1, PageRange::new(0, 100)));
        let curve = reuse.curve();
        let last = curve.last().unwrap();
        assert_eq!((last.bytes, last.miss_ratio), (100 * PAGE_BYTES, 0.1));
        assert!(curve[..curve.len() - 1].iter().all(|point| point.miss_ratio == 1.0));
    }

    /// Five rounds over 200,000 pages exceed the stored references, so pages are dropped. In memory
    /// for all pages, LRU misses a fifth of the references, as without a sample.
    #[test]
    fn sampled_pages_have_the_miss_curve_of_all_pages() {
        let mut reuse = ReuseSample::default();
        let pages = 200_000;
        (0..5).for_each(|_| reuse.add_references(1, PageRange::new(0, pages)));
        assert!(reuse.halvings > 0 && reuse.stored_references.len() < REFERENCES_MAX);
        let curve = reuse.curve();
        let last = curve.last().unwrap();
        assert!((last.miss_ratio - 0.2).abs() < 1e-9, "{last:?}");
        assert!((last.bytes as f64 / (pages * PAGE_BYTES) as f64 - 1.0).abs() < 0.02, "{last:?}");
    }

    /// Compares ranges with single pages, also for pages at a distance that are never in the same
    /// pair.
    #[test]
    fn ranges_are_sampled_like_their_single_pages() {
        let (mut ranges, mut pages) = (ReuseSample::default(), ReuseSample::default());
        let mut state = 3;
        let mut random_below = |end: u64| splitmix::next(&mut state) % end;
        for nth in 0..4000 {
            let range = PageRange::new(random_below(1 << 30), random_below(1000));
            ranges.add_references(nth % 3, range);
            (range.first..range.end)
                .for_each(|page| pages.add_references(nth % 3, PageRange::new(page, 1)));
        }
        assert!(ranges.halvings > 1 && !ranges.stored_references.is_empty());
        assert_eq!(ranges.stored_references, pages.stored_references);
        assert_eq!((ranges.references, ranges.halvings), (pages.references, pages.halvings));
    }

    /// Two million pages with 1, 2, 7 or 1023 other pages between them.
    #[test]
    fn sampling_rate_is_independent_of_the_page_distance() {
        for stride in [2, 3, 8, 1024] {
            let mut reuse = ReuseSample::default();
            let count = 1 << 21;
            (0..count).for_each(|nth| reuse.add_references(1, PageRange::new(nth * stride, 1)));
            let kept = (reuse.stored_references.len() << reuse.halvings) as f64;
            // Each of 2^18 or more pages is kept or not: four standard deviations are 0.8 percent.
            assert!((kept / count as f64 - 1.0).abs() < 0.01, "{stride}: {kept}");
        }
    }

    /// Repeated reads of petabytes: the number of stored references is limited, and so is the time.
    #[test]
    fn cost_of_a_read_is_bounded_by_its_sampled_references() {
        let mut reuse = ReuseSample::default();
        (0..1000).for_each(|first| reuse.add_references(1, PageRange::new(first, 1 << 39)));
        assert!(reuse.stored_references.len() < REFERENCES_MAX && reuse.references == 1000 << 39);
    }
}
