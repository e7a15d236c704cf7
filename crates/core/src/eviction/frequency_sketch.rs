//! Approximate counts of the recent uses of pages, in a fixed number of bytes.
//!
//! It is a count-min sketch (Cormode and Muthukrishnan, Journal of Algorithms 55, 2005) with four
//! rows of 4-bit counters. A use of a page increments one counter of each row. The estimate is the
//! smallest of the four: other pages can only make it too large. Counters stop at 15.
//!
//! Aging (TinyLFU: Einziger, Friedman and Manes, ACM TOS 13(4), 2017): all counters are halved when
//! the number of counted uses reaches a limit. Old uses lose their weight, and the count of uses
//! is halved as well.

use alloc::vec::Vec;

use super::PageKey;

/// Number of rows, each with a hash function of its own.
const ROWS: usize = 4;
/// Counters of a row per page of the cache, whose number is rounded up to a power of two as in
/// Caffeine.
const ROW_COUNTERS_PER_PAGE: u32 = 4;
/// Minimum number of pages that the rows are sized for: tiny caches would confuse their pages.
const SIZE_PAGES_MIN: u32 = 16;
/// Counted uses per page of the cache before all counters are halved, as in Caffeine.
const USES_PER_PAGE_MAX: u64 = 10;

/// Bits of a counter, and its largest value.
const COUNTER_BITS: u32 = 4;
const COUNTER_MAX: u64 = 15;
/// Number of counters in a word.
const WORD_COUNTERS: u32 = u64::BITS / COUNTER_BITS;

/// The lowest bit of each counter of a word.
const LOWEST_BITS: u64 = 0x1111_1111_1111_1111;
/// All bits but the highest of each counter of a word.
const HALVED_BITS: u64 = 0x7777_7777_7777_7777;

/// The sketch: 8 to 16 bytes per page of the cache.
#[derive(Debug)]
pub(super) struct FrequencySketch {
    /// Counters, 16 a word: first all counters of the first row.
    words: Vec<u64>,
    /// Number of counters in a row.
    row_counters: u32,
    /// Number of counted uses since the sketch was empty, halved with the counters.
    uses: u64,
    /// Number of counted uses at which all counters are halved.
    uses_max: u64,
}

impl FrequencySketch {
    /// Creates an empty sketch for a cache of `pages` pages.
    pub(super) fn new(pages: u32) -> FrequencySketch {
        let size_pages = pages.max(SIZE_PAGES_MIN);
        // Beyond the largest power of two the size stays as it is.
        let size_pages = size_pages.checked_next_power_of_two().unwrap_or(size_pages);
        FrequencySketch::with_limit(size_pages, u64::from(pages.max(1)) * USES_PER_PAGE_MAX)
    }

    /// Creates an empty sketch with counters for `size_pages` pages, halved at `uses_max` uses. The
    /// two are separate for tests.
    pub(super) fn with_limit(size_pages: u32, uses_max: u64) -> FrequencySketch {
        let row_counters = size_pages.saturating_mul(ROW_COUNTERS_PER_PAGE);
        let counters = u64::from(row_counters) * ROWS as u64;
        FrequencySketch {
            words: alloc::vec![0; counters.div_ceil(WORD_COUNTERS.into()) as usize],
            row_counters,
            uses: 0,
            uses_max,
        }
    }

    /// Estimated number of recent uses of a page, up to 15.
    pub(super) fn estimate(&self, page: PageKey) -> u64 {
        let counts = self.counters(page).map(|counter| self.count(counter));
        counts.into_iter().min().expect("there are rows")
    }

    /// Counts a use of a page, unless all its counters are at their largest value: such a use would
    /// change no estimate. Halves all counters if the number of counted uses reaches its limit.
    pub(super) fn record_use(&mut self, page: PageKey) {
        let mut is_counted = false;
        for counter in self.counters(page) {
            if self.count(counter) < COUNTER_MAX {
                let (word, shift) = position(counter);
                self.words[word] += 1 << shift;
                is_counted = true;
            }
        }
        if is_counted {
            self.uses += 1;
            if self.uses >= self.uses_max {
                self.halve();
            }
        }
    }

    /// Changes the size for a cache of `pages` pages. Each new counter gets the largest old counter
    /// that it replaces, which lowers no estimate. If the counted uses reach the new limit, all
    /// counters are then halved until they do not.
    pub(super) fn resize(&mut self, pages: u32) {
        let old = core::mem::replace(self, FrequencySketch::new(pages));
        let [old_width, width] = [old.row_counters, self.row_counters].map(u64::from);
        for row in 0..ROWS as u64 {
            for index in 0..width {
                // The old counters of the hash values that this counter has.
                let first = index * old_width / width;
                let last = ((index + 1) * old_width - 1) / width;
                let counts = (first..=last).map(|counter| old.count(row * old_width + counter));
                let (word, shift) = position(row * width + index);
                self.words[word] |= counts.max().unwrap_or(0) << shift;
            }
        }
        self.uses = old.uses;
        while self.uses >= self.uses_max {
            self.halve();
        }
    }

    /// The indices of the counters of a page, one in each row, among all counters. Key bits are
    /// pseudo-random: two halves of the key give the hash functions of all rows (Kirsch and
    /// Mitzenmacher, ESA 2006).
    fn counters(&self, page: PageKey) -> [u64; ROWS] {
        // An odd step is never 0, so that the rows have different hash functions.
        let (hash, step) = (page.0 as u32, (page.0 >> 32) as u32 | 1);
        let width = u64::from(self.row_counters);
        core::array::from_fn(|row| {
            let row_hash = hash.wrapping_add(step.wrapping_mul(row as u32));
            row as u64 * width + ((u64::from(row_hash) * width) >> 32)
        })
    }

    /// Value of a counter.
    fn count(&self, counter: u64) -> u64 {
        let (word, shift) = position(counter);
        self.words[word] >> shift & COUNTER_MAX
    }

    /// Halves all counters, and the count of uses. Uses that rounding drops are subtracted before.
    fn halve(&mut self) {
        let mut odd_counters = 0;
        for word in &mut self.words {
            odd_counters += u64::from((*word & LOWEST_BITS).count_ones());
            *word = *word >> 1 & HALVED_BITS;
        }
        // Rounding drops half a use of each odd counter, and a use is counted in each of the
        // `ROWS`.
        self.uses = self.uses.saturating_sub(odd_counters / ROWS as u64) / 2;
    }
}

/// Word of a counter, and the position of its lowest bit.
fn position(counter: u64) -> (usize, u64) {
    let word_counters = u64::from(WORD_COUNTERS);
    ((counter / word_counters) as usize, counter % word_counters * u64::from(COUNTER_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(page: u64) -> PageKey {
        PageKey::from_number(page)
    }

    /// Page `n` of 0 to 15 is used `n` times, and page 15 five times more. These are 120 counted
    /// uses.
    fn filled(pages: u32) -> FrequencySketch {
        let mut sketch = FrequencySketch::new(pages);
        for page in 0..16 {
            (0..page).for_each(|_| sketch.record_use(key(page)));
        }
        (0..5).for_each(|_| sketch.record_use(key(15)));
        sketch
    }

    /// A page without a use has an estimate of zero. A counter that is full counts no more.
    #[test]
    fn estimates_are_the_counts_up_to_fifteen() {
        let sketch = filled(1000);
        assert!((0..16).all(|page| sketch.estimate(key(page)) == page));
        assert_eq!((sketch.estimate(key(16)), sketch.uses, sketch.words.len()), (0, 120, 1024));
    }

    /// At 130 counted uses all counters are halved. Eight of the pages 0 to 15 have odd counts, and
    /// page 16 with ten uses has an even one: 130 less 8, halved, are 61.
    #[test]
    fn all_counters_are_halved_at_the_limit_of_counted_uses() {
        let mut sketch = filled(1000);
        sketch.uses_max = 130;
        (0..10).for_each(|_| sketch.record_use(key(16)));
        assert!((0..16).all(|page| sketch.estimate(key(page)) == page / 2));
        assert_eq!((sketch.estimate(key(16)), sketch.uses), (5, 61));
    }

    /// A larger and a smaller sketch have the same counts. With room for one page the 120 uses
    /// exceed the limit, which is ten.
    #[test]
    fn a_resized_sketch_keeps_the_counts() {
        for pages in [5000, 2000, 1000, 500, 200] {
            let mut sketch = filled(1000);
            sketch.resize(pages);
            assert!((0..16).all(|page| sketch.estimate(key(page)) == page), "{pages} pages");
            assert_eq!((sketch.uses, sketch.uses_max), (120, 10 * u64::from(pages)));
        }
        let mut sketch = filled(1000);
        sketch.resize(1);
        assert!(sketch.uses < 10, "{} uses", sketch.uses);
    }

    /// 2000 pages with one use in the counters of 100 pages: no estimate is too small.
    #[test]
    fn a_crowded_sketch_never_underestimates() {
        let mut sketch = FrequencySketch::new(100);
        sketch.uses_max = u64::MAX;
        (0..2000).for_each(|page| sketch.record_use(key(page)));
        assert!((0..2000).all(|page| sketch.estimate(key(page)) >= 1));
    }
}
