//! A file that is being used up, piece by piece, in an order that nobody knows.
//!
//! Programs that load a model, restore an archive or join columns take a file in pieces, each of them once, and jump
//! between them. Within a piece the readahead law is ahead of them; what comes after a jump it can't foresee. But
//! nothing else is left than what was not taken yet.
//!
//! The law in words. When five pieces or more were come to that had 256 KiB on the average, and no more than an eighth
//! of that was come to again, the file is being used up. Then the rest of it is read, in order, if it fits into the
//! budget: seven pages for each that the program came to, so that all of it is under way once an eighth was come to, and
//! what is in vain where the program ends sooner is never more than seven times what it used. It is read a chunk at
//! a time, and the next one when the device must have had the time for half of the last, so that it is never idle, and
//! what the program waits for is never behind more than a chunk and a half. A chunk is so long that a request is a
//! sixteenth of what it costs; short parts in it that were come to are gone over, for they are there.
//!
//! An eighth is what the law `adaptive` asks for before it reads a file whole whose pages are used at random. That nothing
//! is taken twice tells such a program from one that uses the same pieces again and again, for which
//! the page cache does what can be done.

use readpath_core::estimate::DeviceEstimate;
use readpath_core::unit::PageRange;

/// So many pages of the rest are read for each that was come to.
const REST_PER_PAGE: u64 = 7;

/// The share of that which may have been come to again.
const AGAIN_SHARE: u64 = 8;

/// So many pieces, and so long on the average in pages: 256 KiB.
const PIECES: u64 = 5;
const CHUNK_PAGES: u64 = 64;

/// A chunk costs so many times what a request costs; it has 1 MiB at least and 16 MiB at most.
const WINDOW_COST_FACTOR: u64 = 16;
const CHUNK_PAGES_LEAST: u64 = 256;
const CHUNK_PAGES_MAX: u64 = 4096;

/// A chunk ends before a part of so many pages, 128 KiB, that was come to.
const SEEN_PAGES: u64 = 32;

/// Larger files, of 64 GiB, are not followed: a bit for each page would be more than 2 MiB.
const FILE_PAGES_MAX: u64 = 1 << 24;

/// What was come to of a file.
#[derive(Debug)]
pub(super) struct UsedUp {
    /// A bit for each page; empty where the file is too large.
    seen: Vec<u64>,
    file_pages: u64,
    seen_pages: u64,
    again_pages: u64,
    pieces: u64,
    piece: PageRange,
    /// From where on the rest is to be read, once it is; and when the next chunk is.
    next: Option<u64>,
    next_ns: u64,
    /// When the device must have had the time for all of it; and how much of the rest was brought in so far.
    done_ns: u64,
    brought_pages: u64,
}

impl UsedUp {
    /// Nothing of a file of so many pages.
    pub fn new(file_pages: u64) -> UsedUp {
        let is_followed = file_pages <= FILE_PAGES_MAX;
        let words = if is_followed { file_pages.div_ceil(64) as usize } else { 0 };
        UsedUp {
            seen: vec![0; words],
            file_pages,
            seen_pages: 0,
            again_pages: 0,
            pieces: 0,
            piece: PageRange::default(),
            next: None,
            next_ns: 0,
            done_ns: 0,
            brought_pages: 0,
        }
    }

    /// The program has come to these pages.
    pub fn came(&mut self, range: PageRange) {
        let range = range.clipped(self.file_pages);
        if self.seen.is_empty() || range.is_empty() {
            return;
        }
        let goes_on =
            !self.piece.is_empty() && (self.piece.first..=self.piece.end).contains(&range.first);
        let known_end = if goes_on { self.piece.end } else { range.first };
        for page in known_end.max(range.first)..range.end {
            let (word, bit) = (page as usize / 64, 1 << (page % 64));
            let is_again = self.seen[word] & bit != 0;
            self.seen[word] |= bit;
            *(if is_again { &mut self.again_pages } else { &mut self.seen_pages }) += 1;
        }
        if goes_on {
            self.piece.end = self.piece.end.max(range.end);
        } else {
            self.pieces += 1;
            self.piece = range;
        }
    }

    /// Whether the rest of the file is being read, or was.
    pub fn is_sweeping(&self) -> bool {
        self.next.is_some()
    }

    /// Whether more of the file would be read if there were more credit.
    pub fn is_held_back(&self, credit_pages: u64) -> bool {
        credit_pages < CHUNK_PAGES_LEAST && self.next.is_some_and(|from| from < self.file_pages)
    }

    /// The next part of the file to bring in now: the rest must fit into `room_pages`, and the part
    /// into `credit_pages`. [`brought`](UsedUp::brought) takes the number of its pages that were not there.
    pub fn chunk(
        &mut self,
        estimate: &DeviceEstimate,
        (room_pages, credit_pages): (u64, u64),
        at_ns: u64,
    ) -> Option<PageRange> {
        if self.next.is_none() {
            let rest_pages = self.file_pages - self.seen_pages;
            if !self.is_being_used_up() || rest_pages > room_pages {
                return None;
            }
            self.next = Some(0);
        }
        if at_ns < self.next_ns || credit_pages < CHUNK_PAGES_LEAST {
            return None;
        }
        let from = self.next.filter(|from| *from < self.file_pages)?;
        let first = (from..self.file_pages).find(|page| !self.is_seen(*page));
        let first = first.unwrap_or(self.file_pages);
        let chunk_pages = (WINDOW_COST_FACTOR * estimate.request_cost_pages())
            .clamp(CHUNK_PAGES_LEAST, CHUNK_PAGES_MAX)
            .min(room_pages)
            .min(credit_pages)
            .min((REST_PER_PAGE * self.seen_pages).saturating_sub(self.brought_pages));
        let chunk = self.up_to_seen(PageRange::new(first, chunk_pages).clipped(self.file_pages));
        self.next = Some(chunk.end);
        Some(chunk).filter(|chunk| !chunk.is_empty())
    }

    /// So many pages of a chunk were not there, and are on their way now.
    pub fn brought(&mut self, pages: u64, estimate: &DeviceEstimate, at_ns: u64) {
        let duration_ns = pages * estimate.page_ps() / 1_000;
        self.brought_pages += pages;
        self.done_ns = self.done_ns.max(at_ns) + duration_ns;
        self.next_ns = self.done_ns - duration_ns / 2;
    }

    /// A range that ends where a longer part begins that was come to.
    fn up_to_seen(&self, range: PageRange) -> PageRange {
        let mut end = range.first;
        for page in range.pages() {
            if !self.is_seen(page) {
                end = page + 1;
            } else if page + 1 - end >= SEEN_PAGES {
                break;
            }
        }
        PageRange { end, ..range }
    }

    fn is_seen(&self, page: u64) -> bool {
        self.seen[page as usize / 64] >> (page % 64) & 1 == 1
    }

    fn is_being_used_up(&self) -> bool {
        AGAIN_SHARE * self.again_pages <= self.seen_pages
            && self.pieces >= PIECES
            && self.seen_pages >= CHUNK_PAGES * self.pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of 6,400 pages; the estimate of a device of which nothing is known: 122 pages a request.
    fn after(pieces: &[(u64, u64)]) -> Option<PageRange> {
        let mut used_up = UsedUp::new(6400);
        for &(first, count) in pieces {
            // A piece comes in parts, each of which may be told of again.
            for part in (first..first + count).step_by(16) {
                used_up.came(PageRange::new(part, 16));
                used_up.came(PageRange::new(part, 16));
            }
        }
        used_up.chunk(&DeviceEstimate::default(), (6400, 1 << 20), 5)
    }

    /// Of pieces of 160 pages, five are an eighth of the file: all of the rest is read.
    #[test]
    fn after_five_long_pieces_the_rest_is_read() {
        let five = [(1600, 160), (3200, 160), (480, 160), (4800, 160), (0, 160)];
        assert_eq!(after(&five[..4]), None);
        assert_eq!(after(&five), Some(PageRange::new(160, 320)));
        // One of them twice: a fifth.
        assert_eq!(after(&[five[0], five[1], five[2], five[3], five[4], five[2]]), None);
        // A sixth piece taken makes the rest no longer.
        let six = [&five[..], &[(160, 160)]].concat();
        assert_eq!(after(&six), Some(PageRange::new(320, 160)));
    }

    #[test]
    fn short_pieces_and_few_are_something_else() {
        let short: Vec<(u64, u64)> = (0..60).map(|nth| (nth * 100, 16)).collect();
        assert_eq!(after(&short), None);
        assert_eq!(after(&[(1600, 400), (3200, 400), (0, 400)]), None);
    }

    /// Of every 32 pages the first 16 were come to, as where mappings tell of half of them: one chunk goes over them.
    #[test]
    fn a_chunk_goes_over_short_parts_that_were_come_to() {
        let mut used_up = UsedUp::new(6400);
        (0..5).for_each(|nth| used_up.came(PageRange::new(nth * 1000 + 1000, 160)));
        (0..20).for_each(|nth| used_up.came(PageRange::new(nth * 32, 16)));
        used_up.pieces = PIECES;
        let chunk = used_up.chunk(&DeviceEstimate::default(), (6400, 1 << 20), 5);
        assert_eq!(chunk, Some(PageRange { first: 16, end: 1000 }));
    }

    /// All that `used_up` has brought in until it wants no more, a chunk at a time as the device gives them, and when.
    fn swept(used_up: &mut UsedUp) -> (u64, u64) {
        let estimate = DeviceEstimate::default();
        let (mut at_ns, mut pages) = (used_up.next_ns, 0);
        while let Some(chunk) = used_up.chunk(&estimate, (1 << 20, 1 << 20), at_ns) {
            used_up.brought(chunk.count(), &estimate, at_ns);
            assert_eq!(
                used_up.chunk(&estimate, (1 << 20, 1 << 20), at_ns),
                None,
                "the device is not there yet"
            );
            pages += chunk.count();
            at_ns = used_up.next_ns;
        }
        (pages, at_ns)
    }

    /// Five pieces of 200 pages let 7,000 pages be read of a file of 64,000, and a sixth 1,400 more.
    #[test]
    fn seven_pages_are_read_for_each_that_was_come_to() {
        let mut used_up = UsedUp::new(64_000);
        (1..6).for_each(|nth| used_up.came(PageRange::new(nth * 10_000, 200)));
        assert_eq!(swept(&mut used_up).0, 7000);
        used_up.came(PageRange::new(63_000, 200));
        assert_eq!(swept(&mut used_up).0, 1400);
    }

    /// The next chunk waits for half of what the device takes for the last, and nothing comes after the end: a page takes
    /// the device 8,192 ns, so that 5,400 of them take 44 ms, and the last chunk is asked for before they are over.
    #[test]
    fn chunks_come_no_faster_than_the_device_gives_them() {
        let mut used_up = UsedUp::new(6400);
        (0..5).for_each(|nth| used_up.came(PageRange::new(nth * 1000, 200)));
        let estimate = DeviceEstimate::default();
        assert_eq!(used_up.chunk(&estimate, (5000, 1 << 20), 0), None, "it does not fit");
        let (pages, at_ns) = swept(&mut used_up);
        assert_eq!(pages, 6400 - 5 * 200);
        let most_ns = 5400 * 8192;
        assert!((most_ns / 2..most_ns).contains(&at_ns), "{at_ns}");
    }
}
