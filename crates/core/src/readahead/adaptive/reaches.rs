//! Which streams a request may continue, of many: the pages between which it lies then.

use alloc::vec::Vec;

use crate::unit::PageRange;

/// So many are looked at together, a few instructions for each four.
const AT_A_TIME: usize = 16;

/// The reaches of the streams of one handle, in the same order.
///
/// Page numbers are cut to 31 bits here, 8 TiB: what lies beyond is told apart by who asks.
#[derive(Clone, Debug, Default)]
pub(super) struct Reaches {
    firsts: Vec<i32>,
    ends: Vec<i32>,
}

impl Reaches {
    pub(super) fn push(&mut self, reach: PageRange) {
        let [first, end] = cut(reach);
        self.firsts.push(first);
        self.ends.push(end);
    }

    pub(super) fn remove(&mut self, at: usize) {
        self.firsts.remove(at);
        self.ends.remove(at);
    }

    /// The last that the request lies in or touches, of those for which `is_it` is true.
    pub(super) fn last(
        &self,
        request: PageRange,
        mut is_it: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let [first, end] = cut(request);
        let touches = |(&low, &high): (&i32, &i32)| (low <= end) & (first <= high);
        let (rest, firsts) = self.firsts.as_rchunks::<AT_A_TIME>();
        let (_, ends) = self.ends.as_rchunks::<AT_A_TIME>();
        let mut last_of = |from: usize, to: usize| {
            let mut all = from..to;
            all.rfind(|&at| touches((&self.firsts[at], &self.ends[at])) && is_it(at))
        };
        for (nth, (firsts, ends)) in firsts.iter().zip(ends).enumerate().rev() {
            // All of them, whatever the first says: so the compiler takes four at a time.
            let is_any = firsts.iter().zip(ends).fold(false, |any, one| any | touches(one));
            let from = rest.len() + nth * AT_A_TIME;
            if is_any && let Some(at) = last_of(from, from + AT_A_TIME) {
                return Some(at);
            }
        }
        last_of(0, rest.len())
    }
}

fn cut(range: PageRange) -> [i32; 2] {
    [range.first, range.end].map(|page| i32::try_from(page).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_is_found_that_is_touched_and_wanted_however_far_out_it_lies() {
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
