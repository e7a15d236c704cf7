//! Sets of pages of files: a bit for each page, in pieces that are there where pages are.

use std::collections::BTreeMap;

/// Pages of a piece: 128 MiB of a file.
const PIECE_PAGES: u64 = 1 << 15;

/// Bytes of a page here, whatever memory's pages are.
pub(super) const PAGE_BYTES: u64 = 4096;

/// A set of pages of one file. A small file's, of which there may be millions, takes no memory beside this.
#[derive(Clone, Debug, Default)]
pub(super) struct Pages {
    /// The first pages of the first piece.
    low: u64,
    /// The words of each piece, up to the last that is not zero; the very first stays zero.
    pieces: BTreeMap<u64, Vec<u64>>,
}

impl Pages {
    /// Adds the pages from `first` up to, without, `end`; says how many were not there.
    pub fn add(&mut self, first: u64, end: u64) -> u64 {
        let mut added = 0;
        let mut at = first;
        while at < end {
            let bit = at % 64;
            let count = (64 - bit).min(end - at);
            let mask = (u64::MAX >> (64 - count)) << bit;
            let word = self.word(at);
            added += u64::from((mask & !*word).count_ones());
            *word |= mask;
            at += count;
        }
        added
    }

    /// The word that a page lies in.
    fn word(&mut self, page: u64) -> &mut u64 {
        if page < 64 {
            return &mut self.low;
        }
        let piece = self.pieces.entry(page / PIECE_PAGES).or_default();
        let at = (page % PIECE_PAGES / 64) as usize;
        if piece.len() <= at {
            piece.resize(at + 1, 0);
        }
        &mut piece[at]
    }

    /// Whether a page is in it.
    pub fn has(&self, page: u64) -> bool {
        let word = match page {
            ..64 => Some(self.low),
            _ => {
                let piece = self.pieces.get(&(page / PIECE_PAGES));
                piece.and_then(|piece| piece.get((page % PIECE_PAGES / 64) as usize).copied())
            }
        };
        word.is_some_and(|word| word >> (page % 64) & 1 == 1)
    }

    /// How many are in it.
    pub fn count(&self) -> u64 {
        self.count_without(&Pages::default())
    }

    /// How many are in it that are not in `other`.
    pub fn count_without(&self, other: &Pages) -> u64 {
        let mut count = u64::from((self.low & !other.low).count_ones());
        for (number, piece) in &self.pieces {
            let theirs = other.pieces.get(number).map_or(&[][..], Vec::as_slice);
            let theirs = theirs.iter().copied().chain(std::iter::repeat(0));
            let words = piece.iter().zip(theirs);
            count +=
                words.map(|(word, theirs)| u64::from((word & !theirs).count_ones())).sum::<u64>();
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
        let there = [0, 63, 64, 69, PIECE_PAGES - 1, PIECE_PAGES].map(|page| pages.has(page));
        assert_eq!(there, [true; 6]);
        let others = [70, 128, PIECE_PAGES + 1, 9 * PIECE_PAGES].map(|page| pages.has(page));
        assert_eq!(others, [false; 4]);
    }

    /// There may be millions of files.
    #[test]
    fn a_small_file_takes_no_memory() {
        let mut pages = Pages::default();
        pages.add(0, 64);
        assert!(pages.pieces.is_empty());
    }
}
