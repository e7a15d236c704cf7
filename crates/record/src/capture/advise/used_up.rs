//! Whole-file prefetch for a file that is used up in pieces of unknown order.
//!
//! Programs that load a model, restore an archive or join columns read a file in pieces, each piece
//! once, and jump between them. Within a piece the readahead policy is ahead of the program. The
//! target of a jump is unknown, but it lies in the part not yet read.
//!
//! A file is being used up after five pieces of 256 KiB on average, if at most an eighth of these
//! pages was read again. Then the rest is prefetched in order, if it fits into the budget. Seven
//! pages are prefetched per page that the program used. The whole rest is thus in flight once an
//! eighth has been used. If the program ends early, the waste is at most seven times the pages it
//! used.
//!
//! The rest is read in chunks. The next chunk follows when the middle of the last one has been
//! read, or must have been by the estimate where this is not known. The device is then never idle,
//! and the program never waits behind more than a chunk and a half. A chunk is long enough that the
//! fixed cost of a request is a sixteenth of its cost. Short parts that were read already are
//! included, because they are resident.
//!
//! The policy `adaptive` also requires an eighth before it prefetches a whole file with random
//! accesses. The limit on repeated pages separates such a program from one that rereads the same
//! pieces. The kernel page cache already serves the latter.

use readpath_core::estimate::DeviceEstimate;
use readpath_core::unit::PageRange;

/// Pages of the rest that may be prefetched per page used.
const REST_PER_PAGE: u64 = 7;

/// Inverse of the share of used pages that may have been read again.
const REREAD_SHARE_DIVISOR: u64 = 8;

/// Minimum number of pieces before a file counts as being used up. Chosen.
const PIECES_MIN: u64 = 5;

/// Minimum average length of these pieces in pages (256 KiB). Chosen.
const PIECE_PAGES_MIN: u64 = 64;

/// Transfer time of a chunk as a multiple of a request's fixed cost, within the limits below.
const CHUNK_COST_FACTOR: u64 = 16;

/// Minimum length of a chunk in pages: 1 MiB, or the rest of the file if that is less. At a used
/// part a chunk ends earlier.
const CHUNK_PAGES_MIN: u64 = 256;

/// Maximum length of a chunk in pages: 16 MiB.
const CHUNK_PAGES_MAX: u64 = 4096;

/// Maximum time in nanoseconds for which the next chunk waits for the middle of the last one. A
/// page may have been evicted, or its read may have failed.
const READ_NS_MAX: u64 = 1_000_000_000;

/// Length in pages (128 KiB), chosen, of a part already read before which a chunk ends.
const USED_RUN_PAGES: u64 = 32;

/// Maximum file size in pages (64 GiB). The bitmap of a larger file would exceed 2 MiB.
const FILE_PAGES_MAX: u64 = 1 << 24;

/// Limits of a chunk in pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkLimits {
    /// Number of pages that fit into the budget.
    pub room_pages: u64,
    /// Number of pages for which there is credit.
    pub credit_pages: u64,
}

/// Pages of a file that the program used.
#[derive(Clone, Debug)]
pub(super) struct FileUse {
    /// One bit per page. Empty when the file is too large.
    used_bitmap: Vec<u64>,
    /// Number of pages in the file.
    file_pages: u64,
    /// Number of pages that the program has used.
    used_pages: u64,
    /// Accesses to pages that were used before.
    reread_pages: u64,
    /// Number of pieces so far. A piece is a part that the program read in order.
    piece_count: u64,
    /// The last piece. Empty before the first.
    last_piece: PageRange,
    /// Start page of the next chunk, once the prefetch has begun.
    next_start: Option<u64>,
    /// Median of the absent pages of the last chunk.
    middle_page: u64,
    /// Time of the prefetch of the last chunk.
    prefetched_ns: u64,
    /// Time at which the device has read half of the last chunk by the estimate.
    next_chunk_ns: u64,
    /// Expected time when the device has read all chunks.
    device_done_ns: u64,
    /// Number of absent pages in all chunks so far. 0 before the first chunk.
    prefetched_pages: u64,
}

impl FileUse {
    /// Creates the state of a file of `file_pages` pages, none of them used. A file of more than
    /// `FILE_PAGES_MAX` pages is not followed.
    pub fn new(file_pages: u64) -> FileUse {
        let is_followed = file_pages <= FILE_PAGES_MAX;
        let words = if is_followed { file_pages.div_ceil(64) as usize } else { 0 };
        FileUse {
            used_bitmap: vec![0; words],
            file_pages,
            used_pages: 0,
            reread_pages: 0,
            piece_count: 0,
            last_piece: PageRange::default(),
            next_start: None,
            middle_page: 0,
            prefetched_ns: 0,
            next_chunk_ns: 0,
            device_done_ns: 0,
            prefetched_pages: 0,
        }
    }

    /// Records that the program accessed these pages. A range that starts within the last piece or
    /// at its end extends it. Other ranges begin a new piece.
    pub fn record_access(&mut self, range: PageRange) {
        let range = range.clipped(self.file_pages);
        if !self.is_followed() || range.is_empty() {
            return;
        }
        let last = self.last_piece;
        let continues_piece = !last.is_empty() && (last.first..=last.end).contains(&range.first);
        // Pages of the continued piece were counted with their first access.
        let known_end = if continues_piece { last.end } else { range.first };
        for page in known_end..range.end {
            let (word, bit) = (page as usize / 64, 1 << (page % 64));
            let was_used = self.used_bitmap[word] & bit != 0;
            self.used_bitmap[word] |= bit;
            *(if was_used { &mut self.reread_pages } else { &mut self.used_pages }) += 1;
        }
        if continues_piece {
            self.last_piece.end = self.last_piece.end.max(range.end);
        } else {
            self.piece_count += 1;
            self.last_piece = range;
        }
    }

    /// Returns false for a file with too many pages to record their use.
    pub fn is_followed(&self) -> bool {
        !self.used_bitmap.is_empty()
    }

    /// Number of pages that the program has not used.
    pub fn rest_pages(&self) -> u64 {
        self.file_pages.saturating_sub(self.used_pages)
    }

    /// Returns true once the prefetch of the rest has begun.
    pub fn has_prefetch_begun(&self) -> bool {
        self.next_start.is_some()
    }

    /// Returns true if a part of the file is left, and `credit_pages` is too little for a chunk of
    /// the minimum length. False before the prefetch has begun.
    pub fn lacks_credit(&self, credit_pages: u64) -> bool {
        self.next_start.is_some_and(|start| credit_pages < self.chunk_pages_min(start))
    }

    /// Minimum length in pages of a chunk from `first` on. 0 at the end of the file.
    fn chunk_pages_min(&self, first: u64) -> u64 {
        CHUNK_PAGES_MIN.min(self.file_pages - first)
    }

    /// Returns the next part of the file to prefetch at `at_ns`, or `None` if no prefetch is due.
    /// The rest of the file must fit into the room at first, and each part into room and credit.
    /// `is_read` returns true if the data of a page are in the kernel page cache, and `None` if
    /// that is unknown. The part is not returned again. Pass the number of absent pages in it to
    /// [`record_prefetched`](FileUse::record_prefetched), unless it is 0.
    pub fn next_chunk(
        &mut self,
        estimate: &DeviceEstimate,
        ChunkLimits { room_pages, credit_pages }: ChunkLimits,
        at_ns: u64,
        is_read: impl Fn(u64) -> Option<bool>,
    ) -> Option<PageRange> {
        if self.next_start.is_none() {
            if !self.is_being_used_up() || self.rest_pages() > room_pages {
                return None;
            }
            self.next_start = Some(0);
        }
        let start = self.next_start.filter(|start| *start < self.file_pages)?;
        let first = (start..self.file_pages).find(|page| !self.is_used(*page));
        // Without an unused page the chunk below is empty.
        let first = first.unwrap_or(self.file_pages);
        self.next_start = Some(first);
        // Credit first: `must_wait` may look the page up in the kernel page cache.
        if credit_pages < self.chunk_pages_min(first) || self.must_wait(at_ns, is_read) {
            return None;
        }
        let allowed_pages = room_pages
            .min(credit_pages)
            .min((REST_PER_PAGE * self.used_pages).saturating_sub(self.prefetched_pages));
        // Many small chunks would cost more than their pages.
        if allowed_pages < self.chunk_pages_min(first) {
            return None;
        }
        // The fixed cost of a request, as the number of pages that the device reads in that time.
        let chunk_pages = (CHUNK_COST_FACTOR * estimate.request_cost_pages())
            .clamp(CHUNK_PAGES_MIN, CHUNK_PAGES_MAX)
            .min(allowed_pages);
        let chunk = self.cut_at_used(PageRange::new(first, chunk_pages).clipped(self.file_pages));
        self.next_start = Some(chunk.end);
        Some(chunk).filter(|chunk| !chunk.is_empty())
    }

    /// Records that `pages` absent pages of a chunk are in flight from `at_ns` on. `middle_page` is
    /// the median of these pages. The next chunk waits until it has been read, or for half of their
    /// expected device time if that is unknown.
    pub fn record_prefetched(
        &mut self,
        pages: u64,
        middle_page: u64,
        estimate: &DeviceEstimate,
        at_ns: u64,
    ) {
        self.middle_page = middle_page;
        // A nanosecond has 1,000 picoseconds.
        let duration_ns = pages * estimate.page_ps() / 1_000;
        self.prefetched_pages += pages;
        self.prefetched_ns = at_ns;
        self.device_done_ns = self.device_done_ns.max(at_ns) + duration_ns;
        self.next_chunk_ns = self.device_done_ns - duration_ns / 2;
    }

    /// Returns true while the device has not read half of the last chunk. `is_read` returns true if
    /// a page is in the kernel page cache, and `None` if that is unknown. Without this answer, or
    /// after a long wait, the time `at_ns` decides.
    fn must_wait(&self, at_ns: u64, is_read: impl Fn(u64) -> Option<bool>) -> bool {
        if self.prefetched_pages == 0 {
            return false;
        }
        match is_read(self.middle_page) {
            Some(is_read) if at_ns < self.prefetched_ns + READ_NS_MAX => !is_read,
            _ => at_ns < self.next_chunk_ns,
        }
    }

    /// Shortens a range so that it ends before the first part of at least `USED_RUN_PAGES` used
    /// pages, and with an unused page.
    fn cut_at_used(&self, range: PageRange) -> PageRange {
        // Behind the last unused page so far.
        let mut end = range.first;
        for page in range.pages() {
            if !self.is_used(page) {
                end = page + 1;
            } else if page + 1 - end >= USED_RUN_PAGES {
                break;
            }
        }
        PageRange { end, ..range }
    }

    /// Returns true if the program has used a page.
    fn is_used(&self, page: u64) -> bool {
        self.used_bitmap[page as usize / 64] >> (page % 64) & 1 == 1
    }

    /// Returns true if the file is read in enough long pieces with few repeated pages.
    fn is_being_used_up(&self) -> bool {
        REREAD_SHARE_DIVISOR * self.reread_pages <= self.used_pages
            && self.piece_count >= PIECES_MIN
            && self.used_pages >= PIECE_PAGES_MIN * self.piece_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limits that any prefetch of the tests meets.
    const AMPLE: ChunkLimits = ChunkLimits { room_pages: 1 << 20, credit_pages: 1 << 20 };

    /// Chunk of a file of 6,400 pages after these pieces, with the default estimate: a request
    /// costs as much as 122 pages.
    fn chunk_after(pieces: &[(u64, u64)]) -> Option<PageRange> {
        let mut file_use = FileUse::new(6400);
        for &(first, count) in pieces {
            // A piece is read in parts. Each part may be reported twice.
            for part in (first..first + count).step_by(16) {
                file_use.record_access(PageRange::new(part, 16));
                file_use.record_access(PageRange::new(part, 16));
            }
        }
        let (limits, at_ns) = (ChunkLimits { room_pages: 6400, ..AMPLE }, 5);
        file_use.next_chunk(&DeviceEstimate::default(), limits, at_ns, |_| None)
    }

    /// Five pieces of 160 pages are an eighth of the file, and start the prefetch. The first chunk
    /// goes from page 160 to the used piece at page 480.
    #[test]
    fn whole_file_prefetch_starts_after_five_long_pieces() {
        let five = [(1600, 160), (3200, 160), (480, 160), (4800, 160), (0, 160)];
        assert_eq!(chunk_after(&five[..4]), None);
        assert_eq!(chunk_after(&five), Some(PageRange::new(160, 320)));
        // A piece was read again: a fifth of the used pages, and at most an eighth is allowed.
        assert_eq!(chunk_after(&[five[0], five[1], five[2], five[3], five[4], five[2]]), None);
        // A sixth piece at page 160 shortens the chunk.
        let six = [&five[..], &[(160, 160)]].concat();
        assert_eq!(chunk_after(&six), Some(PageRange::new(320, 160)));
    }

    /// A fault reports a folio of 64 pages, and later faults report it again.
    #[test]
    fn page_that_is_reported_again_is_used_once() {
        let mut file_use = FileUse::new(6400);
        for _ in 0..3 {
            file_use.record_access(PageRange::new(128, 64));
            file_use.record_access(PageRange::new(640, 64));
        }
        assert!(file_use.is_followed());
        assert_eq!(file_use.rest_pages(), 6400 - 128);
        assert!(!FileUse::new(FILE_PAGES_MAX + 1).is_followed());
    }

    /// Sixty pieces of 16 pages are too short, and three pieces are too few.
    #[test]
    fn short_or_few_pieces_start_no_whole_file_prefetch() {
        let short: Vec<(u64, u64)> = (0..60).map(|nth| (nth * 100, 16)).collect();
        assert_eq!(chunk_after(&short), None);
        assert_eq!(chunk_after(&[(1600, 400), (3200, 400), (0, 400)]), None);
    }

    /// The program used the first 16 of every 32 pages, as mappings report half of them. One chunk
    /// covers the gaps.
    #[test]
    fn prefetch_chunk_spans_short_used_parts() {
        let mut file_use = FileUse::new(6400);
        (0..5).for_each(|nth| file_use.record_access(PageRange::new(nth * 1000 + 1000, 160)));
        (0..20).for_each(|nth| file_use.record_access(PageRange::new(nth * 32, 16)));
        file_use.piece_count = PIECES_MIN;
        let limits = ChunkLimits { room_pages: 6400, ..AMPLE };
        let chunk = file_use.next_chunk(&DeviceEstimate::default(), limits, 5, |_| None);
        assert_eq!(chunk, Some(PageRange { first: 16, end: 1000 }));
    }

    /// Prefetches all chunks at the pace of the device. Returns the number of their pages, and the
    /// time of the last chunk in nanoseconds.
    fn prefetch_all(file_use: &mut FileUse) -> (u64, u64) {
        let estimate = DeviceEstimate::default();
        let (mut at_ns, mut pages) = (file_use.next_chunk_ns, 0);
        while let Some(chunk) = file_use.next_chunk(&estimate, AMPLE, at_ns, |_| None) {
            let middle = chunk.first + chunk.count() / 2;
            file_use.record_prefetched(chunk.count(), middle, &estimate, at_ns);
            assert_eq!(
                file_use.next_chunk(&estimate, AMPLE, at_ns, |_| None),
                None,
                "the device has not read half of the chunk yet"
            );
            pages += chunk.count();
            at_ns = file_use.next_chunk_ns;
        }
        (pages, at_ns)
    }

    /// Five pieces of 200 pages allow 7,000 pages of a file of 64,000, and a sixth piece allows
    /// 1,400 more.
    #[test]
    fn whole_file_prefetch_reads_seven_pages_per_used_page() {
        let mut file_use = FileUse::new(64_000);
        (1..6).for_each(|nth| file_use.record_access(PageRange::new(nth * 10_000, 200)));
        let (pages, _) = prefetch_all(&mut file_use);
        assert_eq!(pages, 7000);
        file_use.record_access(PageRange::new(63_000, 200));
        let (pages, _) = prefetch_all(&mut file_use);
        assert_eq!(pages, 1400);
    }

    /// The next chunk waits for half of the device time of the last one, and no chunk follows the
    /// end. A page takes 8,192 ns, so 5,400 pages take 44 ms. The last chunk starts before that.
    #[test]
    fn prefetch_chunks_are_paced_by_device_time() {
        let mut file_use = FileUse::new(6400);
        (0..5).for_each(|nth| file_use.record_access(PageRange::new(nth * 1000, 200)));
        let estimate = DeviceEstimate::default();
        let limits = ChunkLimits { room_pages: 5000, ..AMPLE };
        assert_eq!(
            file_use.next_chunk(&estimate, limits, 0, |_| None),
            None,
            "the rest does not fit into the room"
        );
        let (pages, at_ns) = prefetch_all(&mut file_use);
        assert_eq!(pages, 6400 - 5 * 200);
        let most_ns = 5400 * 8192;
        assert!((most_ns / 2..most_ns).contains(&at_ns), "{at_ns}");
    }

    /// The first chunk has 1,952 pages from page 200 on. The next one follows once page 1,176 has
    /// been read, however early or late that is, but a second later at the latest.
    #[test]
    fn next_chunk_waits_until_the_middle_of_the_last_one_has_been_read() {
        let estimate = DeviceEstimate::default();
        let mut file_use = FileUse::new(64_000);
        (0..10).for_each(|nth| file_use.record_access(PageRange::new(nth * 4000, 200)));
        let first = file_use.next_chunk(&estimate, AMPLE, 0, |_| None);
        assert_eq!(first, Some(PageRange::new(200, 1952)));
        file_use.record_prefetched(1952, 1176, &estimate, 0);
        let next = |at_ns, read_end| {
            file_use.clone().next_chunk(&estimate, AMPLE, at_ns, |page| Some(page < read_end))
        };
        assert_eq!(next(500_000_000, 1176), None, "the estimate is a few milliseconds");
        let second = Some(PageRange { first: 2152, end: 4000 });
        assert_eq!(next(1, 1177), second);
        assert_eq!(next(1_000_000_000, 0), second);
    }

    /// All but the last 100 pages of a file are used. Credit for 100 pages suffices for them,
    /// although a chunk has at least 256 pages elsewhere.
    #[test]
    fn credit_for_the_rest_of_a_file_is_enough() {
        let mut file_use = FileUse::new(6400);
        (0..5).rev().for_each(|nth| file_use.record_access(PageRange::new(nth * 1260, 1260)));
        let chunk = |credit_pages| {
            let limits = ChunkLimits { credit_pages, ..AMPLE };
            let mut file_use = file_use.clone();
            let chunk = file_use.next_chunk(&DeviceEstimate::default(), limits, 5, |_| None);
            (chunk, file_use.lacks_credit(credit_pages))
        };
        assert_eq!(chunk(99), (None, true));
        assert_eq!(chunk(100), (Some(PageRange::new(6300, 100)), false));
    }
}
