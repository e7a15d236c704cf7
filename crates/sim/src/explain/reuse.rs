//! How much of what is read would have been in a memory of some size: the curve of the law `lru`.
//!
//! Of many pages a part is followed that is chosen by the pages' numbers, so that all references to
//! a page are in it or none (Waldspurger and others, "Efficient MRC Construction with SHARDS",
//! FAST 2015); a cache of that part of the size then misses that part of the references.

use readpath_core::law::Spec;
use serde::Serialize;

use crate::blocks::{self, Trace};
use crate::page_set::PAGE_BYTES;

/// References that are kept at most: then half of the pages are given up.
const REFERENCES_MAX: usize = 1 << 19;

/// The sizes of the curve, in parts of all different pages.
const PARTS: [f64; 8] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0];

/// A point of the curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReusePoint {
    /// The size of memory in bytes.
    pub bytes: u64,
    /// The part of the references to pages that would not be found in it.
    pub miss_ratio: f64,
}

/// References to pages, or to a part of them.
#[derive(Debug, Default)]
pub(super) struct Reuse {
    kept: Vec<u64>,
    /// Pages are kept whose hash has so many zeros at its end.
    halvings: u32,
    pub references: u64,
}

impl Reuse {
    /// Takes a reference to a page of a file.
    pub fn take(&mut self, file: u32, page: u64) {
        self.references += 1;
        let key = u64::from(file) << 40 ^ page;
        if hash(key).trailing_zeros() < self.halvings {
            return;
        }
        self.kept.push(key);
        if self.kept.len() >= REFERENCES_MAX {
            self.halvings += 1;
            let halvings = self.halvings;
            self.kept.retain(|key| hash(*key).trailing_zeros() >= halvings);
        }
    }

    /// The curve; empty where nothing was read.
    pub fn curve(&self) -> Vec<ReusePoint> {
        let Ok(trace) = Trace::of(self.kept.clone()) else { return Vec::new() };
        let pages = f64::from(trace.blocks);
        let mut points: Vec<ReusePoint> = Vec::new();
        for part in PARTS {
            let size = (pages * part).ceil() as u32;
            let law = Spec::plain("lru");
            let misses = blocks::misses(&trace, &law, size).expect("the law lru is known");
            let point = ReusePoint {
                bytes: (u64::from(size) << self.halvings) * PAGE_BYTES,
                miss_ratio: misses as f64 / trace.references.len() as f64,
            };
            if points.last().is_none_or(|last| last.bytes < point.bytes) {
                points.push(point);
            }
        }
        points
    }
}

/// The finaliser of MurmurHash3, whose low bits are as good as its high ones.
fn hash(key: u64) -> u64 {
    let key = (key ^ key >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let key = (key ^ key >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ key >> 33
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten rounds over a hundred pages: least recently used misses all in a memory that is smaller,
    /// and a tenth in one that holds them.
    #[test]
    fn a_loop_misses_all_until_it_fits() {
        let mut reuse = Reuse::default();
        (0..1000).for_each(|at| reuse.take(1, at % 100));
        let curve = reuse.curve();
        let last = curve.last().unwrap();
        assert_eq!((last.bytes, last.miss_ratio), (100 * PAGE_BYTES, 0.1));
        assert!(curve[..curve.len() - 1].iter().all(|point| point.miss_ratio == 1.0));
    }

    /// The same with so many pages that a part is followed.
    #[test]
    fn a_part_stands_for_all() {
        let mut reuse = Reuse::default();
        let pages = 200_000;
        (0..5 * pages).for_each(|at| reuse.take(1, at % pages));
        assert!(reuse.halvings > 0 && reuse.kept.len() < REFERENCES_MAX);
        let curve = reuse.curve();
        let last = curve.last().unwrap();
        assert!((last.miss_ratio - 0.2).abs() < 1e-9, "{last:?}");
        assert!((last.bytes as f64 / (pages * PAGE_BYTES) as f64 - 1.0).abs() < 0.02, "{last:?}");
    }
}
