//! Fast search for the stream that a request continues, by the *reach* of each stream: the page
//! range that any continuing request overlaps or touches.

use alloc::vec::Vec;

use crate::unit::PageRange;

/// Number of ranges compared in one block. The compiler vectorizes a block, four ranges at a time.
const BLOCK_RANGES: usize = 16;

/// Reaches of the streams of one file handle, in the order of the streams.
///
/// Page numbers are clamped to 31 bits (8 TiB), which are compared four at a time. Beyond that
/// every range matches, and the caller's predicate distinguishes the streams.
#[derive(Clone, Debug, Default)]
pub(super) struct Reaches {
    /// First page of each range.
    firsts: Vec<i32>,
    /// End of each range.
    ends: Vec<i32>,
}

impl Reaches {
    /// Adds the range of the stream that becomes the last.
    pub(super) fn push(&mut self, reach: PageRange) {
        let [first, end] = clamped_bounds(reach);
        self.firsts.push(first);
        self.ends.push(end);
    }

    /// Removes the range of the stream at `index`; later streams move down by one.
    pub(super) fn remove(&mut self, index: usize) {
        self.firsts.remove(index);
        self.ends.remove(index);
    }

    /// Returns the index of the last range that the request overlaps or touches and for which
    /// `is_match` returns true. Each range belongs to the stream at the same index.
    pub(super) fn find_last(
        &self,
        request: PageRange,
        mut is_match: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let [first, end] = clamped_bounds(request);
        let touches = |(&low, &high): (&i32, &i32)| (low <= end) & (first <= high);
        // Full blocks are counted from the end: the ranges that remain lie at the begin. Both lists
        // have one length, and so one remainder.
        let (remainder, firsts) = self.firsts.as_rchunks::<BLOCK_RANGES>();
        let (_, ends) = self.ends.as_rchunks::<BLOCK_RANGES>();
        let mut find_last_between = |begin_index: usize, end_index: usize| {
            let mut indices = begin_index..end_index;
            indices.rfind(|&index| {
                touches((&self.firsts[index], &self.ends[index])) && is_match(index)
            })
        };
        for (block, (firsts, ends)) in firsts.iter().zip(ends).enumerate().rev() {
            // Compares all ranges of the block without an early exit, so that the compiler
            // vectorizes the loop.
            let touches_any =
                firsts.iter().zip(ends).fold(false, |any, range| any | touches(range));
            let begin = remainder.len() + block * BLOCK_RANGES;
            if touches_any && let Some(index) = find_last_between(begin, begin + BLOCK_RANGES) {
                return Some(index);
            }
        }
        find_last_between(0, remainder.len())
    }
}

/// First page and end of a range, clamped to 31 bits.
fn clamped_bounds(range: PageRange) -> [i32; 2] {
    [range.first, range.end].map(|page| i32::try_from(page).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stream `n` has the 10 pages from `100 n`: 70 ranges, four blocks of 16 and 6 others. A
    /// request touches a range up to its end, page `100 n + 10`.
    #[test]
    fn find_last_returns_the_newest_touching_range_that_satisfies_the_predicate() {
        let mut reaches = Reaches::default();
        for stream in 0..70 {
            reaches.push(PageRange::new(stream * 100, 10));
        }
        let all: fn(usize) -> bool = |_| true;
        let none: fn(usize) -> bool = |_| false;
        let find_touching = |reaches: &Reaches, page, is_match: fn(usize) -> bool| {
            reaches.find_last(PageRange::new(page, 1), is_match)
        };
        for stream in 0..70 {
            let page = stream as u64 * 100;
            assert_eq!(find_touching(&reaches, page + 10, all), Some(stream));
            assert_eq!(find_touching(&reaches, page + 11, all), None);
            assert_eq!(find_touching(&reaches, page, none), None);
        }
        // Page 305 lies in the ranges of stream 3 and of the new stream 70.
        reaches.push(PageRange::new(300, 50));
        assert_eq!(find_touching(&reaches, 305, all), Some(70));
        assert_eq!(find_touching(&reaches, 305, |stream| stream < 70), Some(3));
        reaches.remove(3);
        assert_eq!(find_touching(&reaches, 305, all), Some(69));
        assert_eq!(find_touching(&reaches, 305, |stream| stream < 69), None);
        reaches.push(PageRange::new(1 << 40, 4));
        assert_eq!(find_touching(&reaches, 1 << 41, all), Some(70), "both exceed 31 bits");
    }
}
