//! Sets of pages of files: a bit for each page, in pieces that are there where pages are.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

/// Pages of a piece: 128 MiB of a file.
const PIECE_PAGES: u64 = 1 << 15;
const WORDS: usize = PIECE_PAGES as usize / 64;

/// Bytes of a page here, whatever memory's pages are.
pub(super) const PAGE_BYTES: u64 = 4096;

/// A set of pages of one file.
#[derive(Clone, Debug, Default)]
pub(super) struct Pages {
    pieces: HashMap<u64, Box<[u64; WORDS]>, BuildHasherDefault<std::hash::DefaultHasher>>,
}

impl Pages {
    /// Adds the pages from `first` up to, without, `end`; says how many were not there.
    pub fn add(&mut self, first: u64, end: u64) -> u64 {
        let mut added = 0;
        let mut at = first;
        while at < end {
            let piece = self.pieces.entry(at / PIECE_PAGES).or_insert_with(|| Box::new([0; WORDS]));
            let last = end.min((at / PIECE_PAGES + 1) * PIECE_PAGES);
            while at < last {
                let bit = at % 64;
                let count = (64 - bit).min(last - at);
                let mask = (u64::MAX >> (64 - count)) << bit;
                let word = &mut piece[(at % PIECE_PAGES / 64) as usize];
                added += u64::from((mask & !*word).count_ones());
                *word |= mask;
                at += count;
            }
        }
        added
    }

    /// How many are in it.
    pub fn count(&self) -> u64 {
        let words = self.pieces.values().flat_map(|piece| piece.iter());
        words.map(|word| u64::from(word.count_ones())).sum()
    }

    /// How many are in it that are not in `other`.
    pub fn count_without(&self, other: &Pages) -> u64 {
        let mut count = 0;
        for (number, piece) in &self.pieces {
            let theirs = other.pieces.get(number);
            for (at, word) in piece.iter().enumerate() {
                let theirs = theirs.map_or(0, |theirs| theirs[at]);
                count += u64::from((word & !theirs).count_ones());
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_once() {
        let mut pages = Pages::default();
        assert_eq!(pages.add(60, 70), 10);
        assert_eq!(pages.add(0, 64), 60);
        assert_eq!(pages.add(PIECE_PAGES - 1, PIECE_PAGES + 1), 2);
        assert_eq!(pages.add(3, 3), 0);
        assert_eq!(pages.count(), 72);
        let mut others = Pages::default();
        others.add(0, 70);
        assert_eq!((pages.count_without(&others), others.count_without(&pages)), (2, 0));
    }
}
