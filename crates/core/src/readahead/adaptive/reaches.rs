//! Fast search for the stream that a request continues, by the page range that each stream covers.

use alloc::vec::Vec;

use crate::unit::PageRange;

/// Number of ranges compared in one block. The compiler vectorizes a block, four ranges at a time.
const AT_A_TIME: usize = 16;

/// Page ranges of the streams of one file handle, in the order of the streams.
///
/// Page numbers are clamped to 31 bits (8 TiB). Beyond that every range matches, and the caller's
/// predicate distinguishes the streams.
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
        let [first, end] = cut(reach);
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
    pub(super) fn last(
        &self,
        request: PageRange,
        mut is_match: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let [first, end] = cut(request);
        let touches = |(&low, &high): (&i32, &i32)| (low <= end) & (first <= high);
        let (rest, firsts) = self.firsts.as_rchunks::<AT_A_TIME>();
        let (_, ends) = self.ends.as_rchunks::<AT_A_TIME>();
        let mut last_of = |begin: usize, end: usize| {
            let mut indices = begin..end;
            indices.rfind(|&index| {
                touches((&self.firsts[index], &self.ends[index])) && is_match(index)
            })
        };
        for (block, (firsts, ends)) in firsts.iter().zip(ends).enumerate().rev() {
            // Compares all ranges of the block without an early exit, so that the compiler
            // vectorizes the loop.
            let is_any = firsts.iter().zip(ends).fold(false, |any, one| any | touches(one));
            let begin = rest.len() + block * AT_A_TIME;
            if is_any && let Some(index) = last_of(begin, begin + AT_A_TIME) {
                return Some(index);
            }
        }
        last_of(0, rest.len())
    }
}

/// First page and end of a range, clamped to 31 bits.
fn cut(range: PageRange) -> [i32; 2] {
    [range.first, range.end].map(|page| i32::try_from(page).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_finds_the_newest_touching_range_that_satisfies_the_predicate() {
        let mut reaches = Reaches::default();
        for at in 0..70 {
            reaches.push(PageRange::new(at * 100, 10));
        }
        let found = |reaches: &Reaches, page, is_it: fn(usize) -> bool| {
            reaches.last(PageRange::new(page, 1), is_it)
        };
        for at in 0..70 {
            let page = at as u64 * 100;
            assert_eq!(found(&reaches, page + 10, |_| true), Some(at));
            assert_eq!(found(&reaches, page + 11, |_| true), None);
            assert_eq!(found(&reaches, page, |_| false), None);
        }
        reaches.push(PageRange::new(300, 50));
        assert_eq!(found(&reaches, 305, |_| true), Some(70));
        assert_eq!(found(&reaches, 305, |at| at < 70), Some(3));
        reaches.remove(3);
        assert_eq!(found(&reaches, 305, |_| true), Some(69));
        assert_eq!(found(&reaches, 305, |at| at < 69), None);
        reaches.push(PageRange::new(1 << 40, 4));
        assert_eq!(found(&reaches, 1 << 41, |_| true), Some(70), "who asks tells them apart");
    }
}
