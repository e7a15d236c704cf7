//! A set of pages of a file: a bitmap in chunks that are allocated on demand.
//!
//! A completely filled chunk needs no bits. The memory of one range is therefore limited to the
//! bits of its two partial chunks, and one word per chunk between them.

use std::collections::BTreeMap;

/// Pages per chunk: 32 MiB of a file.
const CHUNK_PAGES: u64 = 1 << 13;
/// Words of 64 bits per chunk.
const WORDS: usize = CHUNK_PAGES as usize / 64;

/// Page size in this module, independent of the machine's page size.
pub const PAGE_BYTES: u64 = 4096;

/// Pages of one chunk.
#[derive(Clone, Debug)]
enum PagePiece {
    /// Bitmap of the first 64 pages. This suffices for small files, of which there can be millions.
    Few(u64),
    /// Bitmap up to the last non-zero word.
    Bits(Vec<u64>),
    /// All pages.
    Whole,
}

impl Default for PagePiece {
    /// Creates the empty set.
    fn default() -> Self {
        PagePiece::Few(0)
    }
}

impl PagePiece {
    /// Number of words that can be non-zero.
    fn word_count(&self) -> usize {
        match self {
            PagePiece::Few(_) => 1,
            PagePiece::Bits(words) => words.len(),
            PagePiece::Whole => WORDS,
        }
    }

    /// Returns a word of the bitmap by its index. Words beyond the bitmap are 0.
    fn word(&self, index: usize) -> u64 {
        match self {
            PagePiece::Few(word) if index == 0 => *word,
            PagePiece::Few(_) => 0,
            PagePiece::Bits(words) => words.get(index).copied().unwrap_or(0),
            PagePiece::Whole => u64::MAX,
        }
    }

    /// Adds the pages from `first` up to `end`, exclusive, counted from the start of the chunk.
    /// Returns the number of new pages.
    fn add(&mut self, first: u64, end: u64) -> u64 {
        let added =
            word_masks(first, end).map(|(index, mask)| (mask & !self.word(index)).count_ones());
        let added = u64::from(added.sum::<u32>());
        if added == 0 {
            return 0;
        }
        if end - first == CHUNK_PAGES {
            *self = PagePiece::Whole;
            return added;
        }
        // A page beyond the first 64 needs more words.
        match self {
            PagePiece::Few(word) if end > 64 => *self = PagePiece::Bits(vec![*word]),
            _ => {}
        }
        let words = match self {
            PagePiece::Few(word) => std::slice::from_mut(word),
            PagePiece::Bits(words) => {
                words.resize(words.len().max(end.div_ceil(64) as usize), 0);
                words
            }
            // Not reached: a whole chunk has no new page, for which the function returned above.
            PagePiece::Whole => return 0,
        };
        for (index, mask) in word_masks(first, end) {
            words[index] |= mask;
        }
        if words.len() == WORDS && words.iter().all(|&word| word == u64::MAX) {
            *self = PagePiece::Whole;
        }
        added
    }
}

/// Returns the index of each word with a page from `first` up to `end`, exclusive, and the bits of
/// these pages.
fn word_masks(first: u64, end: u64) -> impl Iterator<Item = (usize, u64)> {
    let words = if first < end { first / 64..end.div_ceil(64) } else { 0..0 };
    words.map(move |word| {
        let first_bit = first.max(word * 64) - word * 64;
        let bit_count = end.min(word * 64 + 64) - word * 64 - first_bit;
        (word as usize, (u64::MAX >> (64 - bit_count)) << first_bit)
    })
}

/// Splits a range of pages at the chunks. Returns the number of each chunk, and first page and end
/// of the part within the chunk.
fn chunk_parts(first: u64, end: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    let chunks = if first < end { first / CHUNK_PAGES..end.div_ceil(CHUNK_PAGES) } else { 0..0 };
    chunks.map(move |chunk| {
        let start = chunk * CHUNK_PAGES;
        (chunk, first.max(start) - start, end.min(start + CHUNK_PAGES) - start)
    })
}

/// A set of pages of one file. For a small file it needs no heap memory.
#[derive(Clone, Debug, Default)]
pub struct PageSet {
    /// Chunk 0.
    first_chunk: PagePiece,
    /// The other chunks, by number.
    other_chunks: BTreeMap<u64, PagePiece>,
}

impl PageSet {
    /// Returns the pages of a chunk, or `None` if it is not allocated.
    fn piece(&self, chunk: u64) -> Option<&PagePiece> {
        if chunk == 0 { Some(&self.first_chunk) } else { self.other_chunks.get(&chunk) }
    }

    /// Adds the pages from `first` up to `end`, exclusive. Returns the number of new pages.
    pub fn add(&mut self, first: u64, end: u64) -> u64 {
        let mut added = 0;
        for (chunk, first, end) in chunk_parts(first, end) {
            let piece = match chunk {
                0 => &mut self.first_chunk,
                _ => self.other_chunks.entry(chunk).or_default(),
            };
            added += piece.add(first, end);
        }
        added
    }

    /// Returns true if the set contains the page.
    pub fn has(&self, page: u64) -> bool {
        self.has_any(page, page + 1)
    }

    /// Returns true if the set contains any page from `first` up to `end`, exclusive.
    pub fn has_any(&self, first: u64, end: u64) -> bool {
        chunk_parts(first, end).any(|(chunk, first, end)| {
            self.piece(chunk).is_some_and(|piece| {
                word_masks(first, end).any(|(index, mask)| piece.word(index) & mask != 0)
            })
        })
    }

    /// Returns the number of pages of this set that are not in `other`.
    pub fn count_without(&self, other: &PageSet) -> u64 {
        self.count_without_both(other, &PageSet::default())
    }

    /// Returns the number of pages of this set that are in neither of two other sets.
    pub fn count_without_both(&self, one: &PageSet, other: &PageSet) -> u64 {
        let pieces = std::iter::once((0, &self.first_chunk))
            .chain(self.other_chunks.iter().map(|(&chunk, piece)| (chunk, piece)));
        let counts = pieces.map(|(chunk, piece)| {
            let word_of =
                |pages: &PageSet, index| pages.piece(chunk).map_or(0, |piece| piece.word(index));
            let others_word = |index| word_of(one, index) | word_of(other, index);
            let words =
                (0..piece.word_count()).map(|index| piece.word(index) & !others_word(index));
            words.map(|word| u64::from(word.count_ones())).sum::<u64>()
        });
        counts.sum()
    }

    /// Returns the number of pages.
    pub fn count(&self) -> u64 {
        self.count_without(&PageSet::default())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// By hand: pages 0 to 69, and one page on either side of the first chunk's end.
    #[test]
    fn pages_are_counted_once() {
        let mut pages = PageSet::default();
        assert_eq!(pages.add(60, 70), 10);
        assert_eq!(pages.add(0, 64), 60);
        assert_eq!(pages.add(CHUNK_PAGES - 1, CHUNK_PAGES + 1), 2);
        assert_eq!(pages.add(3, 3), 0);
        assert_eq!(pages.count(), 72);
        let mut others = PageSet::default();
        others.add(0, 70);
        assert_eq!((pages.count_without(&others), others.count_without(&pages)), (2, 0));
        let present = [0, 63, 64, 69, CHUNK_PAGES - 1, CHUNK_PAGES].map(|page| pages.has(page));
        assert_eq!(present, [true; 6]);
        let absent = [70, 128, CHUNK_PAGES + 1, 9 * CHUNK_PAGES].map(|page| pages.has(page));
        assert_eq!(absent, [false; 4]);
    }

    #[test]
    fn a_small_file_takes_no_memory() {
        let mut pages = PageSet::default();
        pages.add(0, 64);
        assert!(pages.other_chunks.is_empty());
        assert!(matches!(pages.first_chunk, PagePiece::Few(u64::MAX)));
    }

    /// Compares with a set of single pages.
    #[test]
    fn ranges_match_a_set_of_single_pages() {
        let mut state = 7;
        let mut random_below = |end: u64| readpath_core::splitmix::next(&mut state) % end;
        for _ in 0..20 {
            let (mut pages, mut single) = (PageSet::default(), BTreeSet::new());
            for _ in 0..60 {
                let first = random_below(5 * CHUNK_PAGES);
                let lengths = [random_below(3), random_below(100), random_below(3 * CHUNK_PAGES)];
                let end = first + lengths[random_below(3) as usize];
                let is_there = single.range(first..end.max(first)).next().is_some();
                assert_eq!(pages.has_any(first, end), is_there, "{first}..{end}");
                let before = single.len();
                single.extend(first..end);
                assert_eq!(pages.add(first, end), (single.len() - before) as u64, "{first}..{end}");
            }
            assert_eq!(pages.count(), single.len() as u64);
        }
    }

    /// 2 GiB at each of many positions: one word per chunk, and no bits.
    #[test]
    fn whole_chunks_are_stored_without_bitmaps() {
        let mut pages = PageSet::default();
        assert_eq!(pages.add(0, 1 << 19), 1 << 19);
        assert!(matches!(pages.first_chunk, PagePiece::Whole));
        assert!(pages.other_chunks.values().all(|piece| matches!(piece, PagePiece::Whole)));
        assert_eq!(pages.other_chunks.len() as u64 + 1, (1 << 19) / CHUNK_PAGES);
    }
}
