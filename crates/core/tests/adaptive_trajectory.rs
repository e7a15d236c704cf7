//! The law `adaptive` for readahead, driven alone: what it reads on fixed
//! inputs, worked by hand from the law in words.
//!
//! Nothing was measured here, so the estimate is the one at first: a request
//! costs 1 ms, a page 8.192 µs, so a request as much as 122 pages. Nobody else reads: with
//! b pages behind it a stream wants √(2 × 122 × b) pages ahead of it. One that was
//! continued but once has four times what it has behind it, or 16 pages, at most. A window of from 2ⁿ
//! pages on ends at the nearest multiple of 2ⁿ⁻¹; a backward one at the multiple below.

use readpath_core::readahead::{Adaptive, Advice, Ask, PageTable, ReadaheadLaw};
use readpath_core::unit::{PAGE_BYTES, PageRange};

struct Alone {
    law: Adaptive,
    pages: PageTable,
    file_pages: u64,
}

impl Alone {
    /// In a memory of 65,536 pages: the share of one window is 8,192 pages at most.
    fn new() -> Alone {
        let mut pages = PageTable::default();
        pages.device_evidence().memory_pages = 1 << 16;
        Alone { law: Adaptive::default(), pages, file_pages: 1_000_000 }
    }

    /// What is read ahead of a read of `count` pages, and then the demand itself
    /// is there too, as the machine would have it.
    fn read(&mut self, first: u64, count: u64) -> Vec<(u64, u64)> {
        let ask = Ask {
            offset: first * PAGE_BYTES,
            bytes: count * PAGE_BYTES,
            file_bytes: self.file_pages * PAGE_BYTES,
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
            file_bytes: self.file_pages * PAGE_BYTES,
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
    // Two pages behind: √488 is 22, but it was continued once: 16, up to a multiple of 8.
    assert_eq!(alone.read(1001, 1), [(1002, 14)]);
    // The middle of 1002..1016 is marked: up to there nothing happens.
    for page in 1002..1009 {
        assert_eq!(alone.read(page, 1), [], "{page}");
    }
    // Ten behind: √2440 is 49, of which 6 are ahead: 43, up to 1059, and 1056 is a multiple of 16.
    assert_eq!(alone.read(1009, 1), [(1016, 40)]);
}

#[test]
fn a_files_first_page_is_the_begin_of_a_stream() {
    let mut alone = Alone::new();
    // One behind: √244 is 15.
    assert_eq!(alone.read(0, 1), [(1, 15)]);
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
    // 32 behind: √7808 is 88, down to 912, and 896 is the multiple of 32 below it.
    assert_eq!(alone.read(1000, 16), [(896, 104)]);
    // The window's last page was marked. 48 are behind: √11712 is 108, of which 88 are ahead: down
    // to 876, and 872 is the multiple of 8 below it.
    assert_eq!(alone.read(984, 16), [(872, 24)]);
}

#[test]
fn blocks_of_a_stride_are_read_alone_where_the_gap_is_larger_than_a_block() {
    let mut alone = Alone::new();
    assert_eq!(alone.read(1000, 16), []);
    assert_eq!(alone.read(1064, 16), []);
    // Three blocks are 48 behind: 108 pages, 6 blocks.
    let blocks = |first: u64, count: u64| -> Vec<(u64, u64)> {
        (0..count).map(|nth| (first + 64 * nth, 16)).collect()
    };
    assert_eq!(alone.read(1128, 16), blocks(1192, 6));
    // 64 behind: √15616 is 124, 7 blocks.
    assert_eq!(alone.read(1192, 16), blocks(1576, 7));
}

#[test]
fn two_streams_on_one_handle_have_a_window_each() {
    let mut alone = Alone::new();
    for first in [1000, 500_000] {
        assert_eq!(alone.read(first, 1), []);
    }
    assert_eq!(alone.read(1001, 1), [(1002, 14)]);
    assert_eq!(alone.read(500_001, 1), [(500_002, 14)]);
    (1002..1009).for_each(|page| assert_eq!(alone.read(page, 1), []));
    (500_002..500_009).for_each(|page| assert_eq!(alone.read(page, 1), []));
    assert_eq!(alone.read(1009, 1), [(1016, 40)]);
    // 43 pages from 500,016 on are up to 500,059, and 500,064 is a multiple of 16.
    assert_eq!(alone.read(500_009, 1), [(500_016, 48)]);
}

/// In a file of 1,000 pages 60 requests for one page each, all of them elsewhere, leave 60
/// streams that wait to be continued: of the places in the file 120, so by chance
/// 2 × (0 + 1 + … + 59) ÷ 1,000 = 3.5 would have gone on by then. One that does is
/// read alone once more.
#[test]
fn what_may_be_chance_is_read_alone_until_it_goes_on_again() {
    let mut alone = Alone { file_pages: 1_000, ..Alone::new() };
    let mut place = 1;
    for _ in 1..=60 {
        // The powers of 2 are all numbers below 61 in no order: 16 pages apart from each other.
        place = place * 2 % 61;
        assert_eq!(alone.read(place * 16, 1), []);
    }
    assert_eq!(alone.read(801, 1), []);
    // Three behind: √732 is 27, up to 830, and 832 is a multiple of 8. Page 816 is there.
    assert_eq!(alone.read(802, 1), [(803, 13), (817, 15)]);
}

/// Nine others wait for requests too: beyond 2 × 122 ÷ 9 = 27 pages their bytes come as late as
/// a request, and nothing measured says that a request occupies more than 2 pages.
#[test]
fn a_window_fills_the_device_that_many_wait_for_and_no_more() {
    let mut alone = Alone::new();
    alone.pages.device_evidence().reads_under_way = 10;
    let evidence = alone.pages.device_evidence();
    assert_eq!((evidence.window(100).pages, evidence.window(100).why), (27, "fills"));
    assert_eq!((evidence.window(2).pages, evidence.window(2).why), (22, "waits"));
    evidence.reads_under_way = 1000;
    // √(2 × 2 × 36) is 12.
    assert_eq!((evidence.window(36).pages, evidence.window(36).why), (12, "occupies"));
}

/// Of about 1,000 pages that were asked for since it began the stream had ten.
#[test]
fn no_more_is_read_ahead_than_lives_until_it_is_used() {
    let mut alone = Alone::new();
    alone.read(1000, 5);
    alone.pages.device_evidence().added_pages += 990;
    alone.pages.device_evidence().memory_pages = 1 << 10;
    // It is the only one, and that counts as 16 pages of 16: 1,024 × (10 + 16) ÷ (995 + 16) is 26,
    // up to 1036, and 1040 is a multiple of 8. The last one is marked.
    assert_eq!(alone.read(1005, 5), [(1010, 30)]);
    assert_eq!(alone.read(1010, 4), []);
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
    assert_eq!(alone.read(1000, 1), [(1001, 15)]);
}

#[test]
fn nothing_is_read_ahead_where_memory_has_no_room_for_it() {
    let mut alone = Alone::new();
    alone.pages.device_evidence().standing_pages = 1 << 16;
    alone.read(1000, 1);
    assert_eq!(alone.read(1001, 1), []);
}

/// A page of the window is gone when the reader comes to it: the rest may have holes too, and is read
/// anew with it, half as large a window and what of it is not there.
#[test]
fn a_window_of_which_a_page_is_gone_is_gone_through_anew() {
    let mut alone = Alone::new();
    alone.read(1000, 1);
    assert_eq!(alone.read(1001, 1), [(1002, 14)]);
    for page in [1003, 1004] {
        alone.pages.evict(page);
    }
    assert_eq!(alone.read(1002, 1), []);
    // Of the window of 16 half is left, 8: up to 1012, a multiple of 4. All but 1004 is there.
    assert_eq!(alone.read(1003, 1), [(1004, 1)]);
}

/// Each costs as much as 122 pages, and one: of 1,024 pages sixteen have cost 1,968 and seventeen
/// 2,091, which is twice as much as all of them would. The distances grow, so they are no stride.
#[test]
fn a_part_of_a_file_that_is_used_more_than_the_others_is_read_whole() {
    let place = |nth: u64| 20 + 7 * nth * (nth + 1) / 2;
    let mut alone = Alone::new();
    for nth in 0..16 {
        assert_eq!(alone.read(3 * 1024 + place(nth), 1), [], "{nth}");
    }
    let region = alone.read(3 * 1024 + place(16), 1);
    assert_eq!(region.iter().map(|(_, count)| count).sum::<u64>(), 1024 - 16, "{region:?}");
    assert_eq!(
        (region[0].0, region.last().map(|(first, count)| first + count)),
        (3072, Some(4096))
    );
    // As many in as many parts are no more than elsewhere.
    let mut alone = Alone::new();
    for nth in 0..40 {
        assert_eq!(alone.read(nth * 20 * 1024 + place(nth % 16), 1), [], "{nth}");
    }
}
