//! The law `adaptive` for readahead, driven alone: what it reads on fixed
//! inputs, worked by hand from the law in words.
//!
//! Nothing was measured here, so the estimate is the one at first: a request
//! costs 1 ms, a page 8.192 µs, so a request as much as 122 pages; a quarter of
//! it is 30 pages, and four times what is behind is less at the begin. It occupies
//! 20 µs, 2 pages, so the least window is 32 pages. Pages
//! arrive at once, so no window is ever late, and none grows for that reason.

use readpath_core::readahead::{Adaptive, Advice, Ask, PageTable, ReadaheadLaw};
use readpath_core::unit::{PAGE_BYTES, PageRange};

struct Alone {
    law: Adaptive,
    pages: PageTable,
}

impl Alone {
    /// In a memory of 65,536 pages: the share of one window is 8,192 pages.
    fn new() -> Alone {
        let mut pages = PageTable::default();
        pages.device_evidence().memory_pages = 1 << 16;
        Alone { law: Adaptive::default(), pages }
    }

    /// What is read ahead of a read of `count` pages, and then the demand itself
    /// is there too, as the machine would have it.
    fn read(&mut self, first: u64, count: u64) -> Vec<(u64, u64)> {
        let ask = Ask {
            offset: first * PAGE_BYTES,
            bytes: count * PAGE_BYTES,
            file_bytes: 1_000_000 * PAGE_BYTES,
            is_congested: false,
        };
        self.law.read(&ask, &mut self.pages);
        let added = self.ranges();
        for page in PageRange::new(first, count).pages() {
            self.demand(page);
        }
        added
    }

    fn fault(&mut self, page: u64) -> Vec<(u64, u64)> {
        let ask = Ask {
            offset: page * PAGE_BYTES,
            bytes: 1,
            file_bytes: 1_000_000 * PAGE_BYTES,
            is_congested: false,
        };
        self.law.fault(page, &ask, &mut self.pages);
        let added = self.ranges();
        self.demand(page);
        added
    }

    fn demand(&mut self, page: u64) {
        use readpath_core::readahead::{Folio, Pages};
        if !self.pages.is_cached(page) {
            self.pages.add(Folio::holding(page, 0), false);
            self.pages.take_added();
        }
    }

    /// What was added since the last call: first page and count, neighbours joined.
    fn ranges(&mut self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut pages: Vec<u64> =
            self.pages.take_added().iter().map(|(folio, _)| folio.first).collect();
        pages.sort_unstable();
        for page in pages {
            match ranges.last_mut() {
                Some((first, count)) if *first + *count == page => *count += 1,
                _ => ranges.push((page, 1)),
            }
        }
        ranges
    }
}

#[test]
fn a_first_read_elsewhere_is_read_alone_and_the_next_one_proves_the_stream() {
    let mut alone = Alone::new();
    assert_eq!(alone.read(1000, 1), []);
    // Two pages behind: twice that, and 4 × 2 (less than 30) at first: 12 may be ahead.
    assert_eq!(alone.read(1001, 1), [(1002, 12)]);
    // The middle of 1002..1014 is marked: up to there nothing happens.
    for page in 1002..1008 {
        assert_eq!(alone.read(page, 1), [], "{page}");
    }
    // Nine behind: 18 + 30 may be ahead, 5 are; the window is the least, 32.
    assert_eq!(alone.read(1008, 1), [(1014, 32)]);
}

#[test]
fn a_files_first_page_is_the_begin_of_a_stream() {
    let mut alone = Alone::new();
    assert_eq!(alone.read(0, 1), [(1, 6)]);
}

#[test]
fn far_apart_reads_and_touches_stay_alone() {
    let mut alone = Alone::new();
    // 1,000 places of 1,950, 2 MiB apart from each other, in no order.
    for nth in 1..500 {
        assert_eq!(alone.read(nth * 769 % 1949 * 512, 1), []);
        assert_eq!(alone.fault((nth + 500) * 769 % 1949 * 512), []);
    }
}

#[test]
fn a_backward_reader_is_read_ahead_of_downwards() {
    let mut alone = Alone::new();
    assert_eq!(alone.read(1016, 16), []);
    // 32 behind: 32 + 30 may be ahead; the window is the least, 32.
    assert_eq!(alone.read(1000, 16), [(968, 32)]);
    // The window's last page was marked. It was there in time: the window stays. 48 are
    // behind, 32 + 30 may be ahead, 16 are.
    assert_eq!(alone.read(984, 16), [(936, 32)]);
}

#[test]
fn blocks_of_a_stride_are_read_alone_where_the_gap_is_larger_than_a_block() {
    let mut alone = Alone::new();
    assert_eq!(alone.read(1000, 16), []);
    assert_eq!(alone.read(1064, 16), []);
    // Three blocks are 48 behind; 32 + 30 may be ahead; the window is 32: two blocks of 16.
    assert_eq!(alone.read(1128, 16), [(1192, 16), (1256, 16)]);
    assert_eq!(alone.read(1192, 16), [(1320, 16), (1384, 16)]);
}

#[test]
fn two_streams_on_one_handle_have_a_window_each() {
    let mut alone = Alone::new();
    for first in [1000, 500_000] {
        assert_eq!(alone.read(first, 1), []);
    }
    assert_eq!(alone.read(1001, 1), [(1002, 12)]);
    assert_eq!(alone.read(500_001, 1), [(500_002, 12)]);
    (1002..1008).for_each(|page| assert_eq!(alone.read(page, 1), []));
    (500_002..500_008).for_each(|page| assert_eq!(alone.read(page, 1), []));
    assert_eq!(alone.read(1008, 1), [(1014, 32)]);
    assert_eq!(alone.read(500_008, 1), [(500_014, 32)]);
}

#[test]
fn after_random_a_stream_must_be_proven_three_times_and_after_sequential_not_at_all() {
    let mut alone = Alone::new();
    alone.law.advise(Advice::Random);
    for page in 1000..1003 {
        assert_eq!(alone.read(page, 1), [], "{page}");
    }
    assert_ne!(alone.read(1003, 1), [], "the evidence outweighs the hint");
    let mut alone = Alone::new();
    alone.law.advise(Advice::Sequential);
    assert_eq!(alone.read(1000, 1), [(1001, 6)]);
}

#[test]
fn nothing_is_read_ahead_where_memory_has_no_room_for_it() {
    let mut alone = Alone::new();
    alone.pages.device_evidence().standing_pages = 1 << 15;
    alone.read(1000, 1);
    assert_eq!(alone.read(1001, 1), []);
}
