//! The readahead policy `adaptive`, driven alone: its reads on fixed inputs, worked by hand from
//! its description.
//!
//! Without measurements, the initial estimate applies: a request costs 1 ms, a page 8.192 µs, so a
//! request costs as much as 122 pages. There are no other readers. A window is the largest `w` with
//! `U ÷ S ≤ 122 + 1 + w`. `S` is the probability that the run reaches its `w`-th page, and `U` the
//! sum of these from the present page on. Both come from a table in fractions of the runs observed
//! by then (`crates/core/src/length_distribution.rs`). A window of at least 2ⁿ pages ends at the
//! nearest multiple of 2ⁿ⁻¹; a backward one at the multiple below.

use readpath_core::readahead::{
    AdaptiveReadahead, Advice, DeviceEvidence, KernelCachedPages, KernelPageView, PageTable,
    PageView, ReadRequest, ReadaheadPolicy, RunBegin, WindowTarget,
};
use readpath_core::unit::{PAGE_BYTES, PageRange, Time};

/// The policy with a page table instead of a machine.
pub struct PolicyDriver {
    policy: AdaptiveReadahead,
    pub pages: PageTable,
    file_pages: u64,
}

impl PolicyDriver {
    /// A memory of 65,536 pages: the share of one window is at most 8,192 pages.
    pub fn new() -> PolicyDriver {
        let mut pages = PageTable::default();
        pages.device_evidence().memory_pages = 1 << 16;
        PolicyDriver { policy: AdaptiveReadahead::default(), pages, file_pages: 1_000_000 }
    }

    /// Ranges prefetched by a read of `count` pages. Afterwards the requested pages are cached too,
    /// as with a machine.
    pub fn read(&mut self, first: u64, count: u64) -> Vec<(u64, u64)> {
        self.read_bytes(first * PAGE_BYTES, count * PAGE_BYTES)
    }

    pub fn read_bytes(&mut self, offset: u64, bytes: u64) -> Vec<(u64, u64)> {
        let file_bytes = self.file_pages * PAGE_BYTES;
        let ask = ReadRequest { offset, bytes, file_bytes, is_congested: false };
        self.policy.read(&ask, &mut self.pages);
        let added = self.ranges();
        for page in PageRange::covering(offset, bytes).pages() {
            self.demand(page);
        }
        added
    }

    fn fault(&mut self, page: u64) -> Vec<(u64, u64)> {
        let ask = ReadRequest {
            offset: page * PAGE_BYTES,
            bytes: 1,
            file_bytes: self.file_pages * PAGE_BYTES,
            is_congested: false,
        };
        self.policy.fault(page, &ask, &mut self.pages);
        let added = self.ranges();
        self.demand(page);
        added
    }

    /// Adds a requested page if it is absent, and records its use.
    fn demand(&mut self, page: u64) {
        use readpath_core::readahead::Folio;
        if !self.pages.is_cached(page) {
            self.pages.add(Folio::holding(page, 0), false);
            self.pages.take_added();
        }
        self.pages.use_page(page);
    }

    /// Ranges added since the last call: first page and count, adjacent ones joined.
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
fn first_random_read_is_not_extended_and_the_next_one_starts_a_stream() {
    let mut alone = PolicyDriver::new();
    assert_eq!(alone.read(1000, 1), []);
    // The one observed run went on, where one of two is expected to end: half of the prior ends.
    // 139 pages are best, up to 1141, and 1152 is the nearest multiple of 64.
    assert_eq!(alone.read(1001, 1), [(1002, 150)]);
    // The middle of 1002..1152 is marked: up to there no page is added.
    for page in 1002..1077 {
        assert_eq!(alone.read(page, 1), [], "{page}");
    }
    // 78 pages are behind, and one run has gone that far. 321 pages are best, of which 74 are
    // ahead: 247, up to 1399, and 1408 is a multiple of 64.
    assert_eq!(alone.read(1077, 1), [(1152, 256)]);
}

#[test]
fn read_of_the_first_page_of_a_file_starts_a_stream() {
    let mut alone = PolicyDriver::new();
    // It reaches 1 + w with 1 ÷ (1 + w): 36 pages are best, up to 37, and 32 is the nearest
    // multiple of 16.
    assert_eq!(alone.read(0, 1), [(1, 31)]);
}

#[test]
fn distant_reads_and_faults_prefetch_nothing() {
    let mut alone = PolicyDriver::new();
    // 1,000 of 1,950 positions, 2 MiB apart from each other, in random order.
    for nth in 1..500 {
        assert_eq!(alone.read(nth * 769 % 1949 * 512, 1), []);
        assert_eq!(alone.fault((nth + 500) * 769 % 1949 * 512), []);
    }
}

#[test]
fn backward_reader_gets_windows_below_its_position() {
    let mut alone = PolicyDriver::new();
    assert_eq!(alone.read(1016, 16), []);
    // In requests of 16 pages, 7.6 of which cost as much as a request: 13, down to 792, and 768 is
    // the multiple of 64 below it.
    assert_eq!(alone.read(1000, 16), [(768, 232)]);
    // The window's last page was marked. 18 requests are best, 288 pages, of which 216 are ahead:
    // down to 696, and 672 is the multiple of 32 below it.
    assert_eq!(alone.read(984, 16), [(672, 96)]);
}

/// Blocks of 16 pages, 64 pages apart, up to the last one before either end of the file. The third
/// request makes a stream of them. The second block that it prefetches is marked, and so its use
/// reported. The stream counts as active until no block follows.
#[test]
fn stride_is_no_active_stream_at_either_end_of_the_file() {
    let up = [999_686, 999_750, 999_814, 999_878, 999_942];
    let down = [264, 200, 136, 72, 8];
    for firsts in [up, down] {
        let mut alone = PolicyDriver::new();
        let active_streams = firsts.map(|first| {
            alone.read(first, 16);
            alone.pages.device_evidence().streams.count()
        });
        assert_eq!(active_streams, [0, 0, 1, 1, 0], "{firsts:?}");
    }
}

#[test]
fn stride_prefetch_skips_gaps_larger_than_a_block() {
    let mut alone = PolicyDriver::new();
    assert_eq!(alone.read(1000, 16), []);
    assert_eq!(alone.read(1064, 16), []);
    // Three blocks are a run that reaches 3 + w with 3 ÷ (3 + w): 7 blocks.
    let blocks = |first: u64, count: u64| -> Vec<(u64, u64)> {
        (0..count).map(|nth| (first + 64 * nth, 16)).collect()
    };
    assert_eq!(alone.read(1128, 16), blocks(1192, 7));
    // The second of them is marked. Five blocks are behind it by then, and five ahead.
    assert_eq!(alone.read(1192, 16), []);
    // One run has gone from three to five: twenty blocks are best. Half of that number in addition
    // to those five exceeds one window.
    assert_eq!(alone.read(1256, 16), blocks(1640, 20));
}

/// Blocks of 4 MiB less a kilobyte, twice as far apart, upwards and downwards: their first pages
/// are 2,047 or 2,048 apart. Every prefetch is such a block, whole and without other pages.
#[test]
fn stride_with_unequal_page_distances_is_followed_in_bytes() {
    let (begin, bytes, distance, count) = (65_544, 4_193_279, 8_386_558, 40);
    for goes_down in [false, true] {
        let mut alone = PolicyDriver::new();
        let offset = |nth: u64| begin + if goes_down { count - 1 - nth } else { nth } * distance;
        let last = if goes_down { count } else { 2 * count };
        let mut ahead = 0;
        for nth in 0..count {
            for (first, pages) in alone.read_bytes(offset(nth), bytes) {
                let mut blocks = (nth + 1..last).map(|at| PageRange::covering(offset(at), bytes));
                assert!(blocks.any(|block| block == PageRange::new(first, pages)), "at {nth}");
                ahead += 1;
            }
        }
        assert!(ahead >= count - 3, "{ahead} blocks of {count}");
    }
}

/// A mapping copied in blocks of 1 MiB, each from its far end, as `memcpy` does for some addresses:
/// the last page of each block is touched first. From the third block on, whole blocks are
/// prefetched, next to each other, and no page is awaited but at the begin of a block.
#[test]
fn blocks_touched_from_their_far_ends_are_read_as_one_stream() {
    const BLOCK: u64 = 256;
    for is_mirrored in [false, true] {
        let mut alone = PolicyDriver::new();
        // Mirrored: blocks in descending order, each of them ascending.
        let mirror = |page: u64| if is_mirrored { 64 * BLOCK - 1 - page } else { page };
        let (mut pages_ahead, mut ranges) = (0, 0);
        for block in 0..32 {
            for page in (block * BLOCK..(block + 1) * BLOCK).rev() {
                let is_absent = !alone.pages.is_cached(mirror(page));
                assert!(!is_absent || block < 2 || page % BLOCK == BLOCK - 1, "{page}");
                let added = alone.fault(mirror(page));
                if block < 2 {
                    continue;
                }
                ranges += added.len();
                pages_ahead += added.iter().map(|&(_, count)| count).sum::<u64>();
                for (first, count) in added {
                    let (first, end) = (mirror(first), mirror(first + count - 1));
                    let (first, end) = (first.min(end), first.max(end) + 1);
                    assert!(first >= 2 * BLOCK && end - first >= BLOCK - 1, "{first}..{end}");
                }
            }
        }
        // Thirty blocks were read, most of them with others.
        assert!(pages_ahead >= 30 * BLOCK - 1, "{pages_ahead}");
        assert!(ranges <= 15, "{ranges} ranges");
    }
}

/// Records of different lengths, each of which begins at a page of one stride.
#[test]
fn stride_with_unequal_block_lengths_is_followed_in_pages() {
    let mut alone = PolicyDriver::new();
    let mut read = |nth: u64| alone.read_bytes((1000 + 64 * nth) * PAGE_BYTES, 100 + nth * 37);
    assert_eq!([read(0), read(1)], [[], []]);
    assert_eq!(read(2)[..2], [(1000 + 3 * 64, 1), (1000 + 4 * 64, 1)]);
}

/// A header of a page at random offsets, and the piece that it describes behind it. The policy
/// learns that a piece follows a header, and that no more follows the piece. After the first piece,
/// its own number of pages more is as likely as not. Then one has ended, three of four are expected
/// to, and less than half is no reason for prefetch.
#[test]
fn pages_behind_headers_are_prefetched_and_pages_behind_pieces_are_not() {
    let mut device = DeviceEvidence { memory_pages: 1 << 16, ..DeviceEvidence::default() };
    let (mut policy, mut advised) = (AdaptiveReadahead::default(), KernelCachedPages::new(0));
    let mut read = |first: u64, count: u64| {
        let file_pages = 1_000_000;
        let file_bytes = file_pages * PAGE_BYTES;
        let (offset, bytes) = (first * PAGE_BYTES, count * PAGE_BYTES);
        let ask = ReadRequest { offset, bytes, file_bytes, is_congested: false };
        let (advised, device, runs) = (&mut advised, &mut device, &mut Vec::new());
        policy
            .read(&ask, &mut KernelPageView { advised, device, file_pages, advised_ranges: runs });
        advised.read(ask.request(), device);
        runs.iter().map(|run| (run.first - first, run.count())).collect::<Vec<_>>()
    };
    let mut behind_headers = Vec::new();
    for nth in 1..40 {
        let header = nth * nth * 769 % 1949 * 512;
        behind_headers.push(read(header, 1));
        let pages = 12 + nth * 7 % 20;
        let behind = read(header + 1, pages);
        match nth {
            1 => assert_eq!(behind, [(19, 20)], "19 more, to a multiple of 8"),
            _ => assert_eq!(behind, [], "behind piece {nth}"),
        }
    }
    assert_eq!(behind_headers[0], []);
    let is_a_piece = |ahead: &[(u64, u64)]| matches!(ahead, [(1, 7..=23)]);
    assert!(behind_headers[1..].iter().all(|ahead| is_a_piece(ahead)), "{behind_headers:?}");
}

#[test]
fn two_streams_on_one_handle_have_a_window_each() {
    let mut alone = PolicyDriver::new();
    for first in [1000, 500_000] {
        assert_eq!(alone.read(first, 1), []);
    }
    assert_eq!(alone.read(1001, 1), [(1002, 150)]);
    // Two of two have gone on. This affects lengths of three and more: a quarter of the prior ends.
    // 352 pages are best, up to 500,354, and 500,352 is the nearest multiple of 128.
    assert_eq!(alone.read(500_001, 1), [(500_002, 350)]);
    (1002..1077).for_each(|page| assert_eq!(alone.read(page, 1), []));
    (500_002..500_177).for_each(|page| assert_eq!(alone.read(page, 1), []));
    assert_ne!(alone.read(1077, 1), []);
    assert_ne!(alone.read(500_177, 1), []);
}

/// There are 60 requests for one page each, and 58 are known to have ended there. One that goes on
/// may be coincidence: at two pages, four times the prior is expected to end, so six pages are
/// worth it. Once it has reached their middle it counts as an ordinary run.
#[test]
fn a_possible_coincidence_gets_a_small_window() {
    let mut alone = PolicyDriver::new();
    let mut place = 1;
    for _ in 1..=60 {
        // The powers of 2 modulo 61 are all numbers below 61 in a mixed order: 8 MiB apart from
        // each other.
        place = place * 2 % 61;
        assert_eq!(alone.read(place * 2048, 1), []);
    }
    assert_eq!(alone.read(102_401, 1), [(102_402, 6)]);
    (102_402..102_405).for_each(|page| assert_eq!(alone.read(page, 1), []));
    let ahead = alone.read(102_405, 1);
    assert!(ahead[0].0 == 102_408 && ahead[0].1 > 122, "{ahead:?}");
}

/// Ten readers wait for a page each: a request costs a tenth of 122 pages, and its service time is
/// unknown. The other nine leave the device idle for most of the time, so that this doesn't reduce
/// the cost. A run of 100 reaches 100 + w with 100 ÷ (100 + w). With a request cost of 12 pages, 52
/// are best: 1 + 100 × (1/101 + … + 1/152) = 42.7, times 1.52 is 64.9, of 65. With the
/// minimum cost of one page, 13 are best.
#[test]
fn the_request_cost_falls_with_waiting_readers() {
    let mut alone = PolicyDriver::new();
    let evidence = alone.pages.device_evidence();
    let window = |evidence: &DeviceEvidence| evidence.window(RunBegin::Sequential, 100, 1);
    evidence.open_reads = 10;
    assert_eq!(window(evidence), WindowTarget { pages: 52, why: "waits" });
    evidence.open_reads = 1000;
    assert_eq!(window(evidence), WindowTarget { pages: 13, why: "waits" });
}

/// The window is read by a lone reader. At its mark seven others wait, and its other half is
/// larger than the new window. The next window is read before the reader has used up this one.
#[test]
fn a_reader_with_too_large_a_window_does_not_wait_after_it() {
    let mut alone = PolicyDriver::new();
    (0..8).for_each(|nth| drop(alone.read(32 * nth, 32)));
    let end = (0..).find(|&page| !alone.pages.is_cached(page)).unwrap();
    alone.pages.device_evidence().open_reads = 8;
    let mut added = Vec::new();
    for first in (256..2 * end).step_by(32) {
        let range = PageRange::new(first, 32);
        assert!(range.pages().all(|page| alone.pages.is_cached(page)), "{first} of {end}");
        added.extend(alone.read(first, 32));
    }
    assert!(added[0].0 == end, "{added:?}: the window was not too large");
}

/// Since the stream began, about 1,000 pages were requested; ten of them by the stream.
#[test]
fn windows_are_bounded_by_the_lifetime_of_pages() {
    let mut alone = PolicyDriver::new();
    alone.read(1000, 5);
    alone.pages.device_evidence().added_pages += 990;
    alone.pages.device_evidence().memory_pages = 1 << 10;
    // It is the only stream, and that counts as 16 of 16 pages: 1,024 × (10 + 16) ÷ (995 + 16) is
    // 26, up to 1036, and 1040 is a multiple of 8. The last one is marked.
    assert_eq!(alone.read(1005, 5), [(1010, 30)]);
    assert_eq!(alone.read(1010, 4), []);
}

#[test]
fn random_advice_delays_readahead_and_sequential_advice_starts_it() {
    let mut alone = PolicyDriver::new();
    alone.policy.advise(Advice::Random);
    // Requests on other files of the device have gone on; here none has.
    alone
        .pages
        .device_evidence()
        .lengths
        .of_mut(RunBegin::Request { pages: 1 })
        .record_growth(1, 100);
    assert_eq!(alone.read(0, 1), []);
    assert_eq!(alone.read(1000, 1), []);
    assert_ne!(alone.read(1001, 1), [], "the evidence outweighs the hint");
    assert_ne!(alone.read(5000, 1), [], "from then on");
    let mut alone = PolicyDriver::new();
    alone.policy.advise(Advice::Sequential);
    // 36 pages end at 1037, and 1040 is the nearest multiple of 16.
    assert_eq!(alone.read(1000, 1), [(1001, 39)]);
}

#[test]
fn prefetch_stops_while_unused_pages_fill_the_memory() {
    let mut alone = PolicyDriver::new();
    alone.pages.device_evidence().standing_pages = 1 << 16;
    alone.read(1000, 1);
    assert_eq!(alone.read(1001, 1), []);
}

/// Unused pages fill half of the memory. A request that may begin a run gets no window then, as
/// runs of up to three requests do. A longer run still gets its share of the rest.
#[test]
fn runs_without_evidence_leave_a_part_of_the_memory_to_streams() {
    let mut alone = PolicyDriver::new();
    let lengths = &mut alone.pages.device_evidence().lengths;
    lengths.of_mut(RunBegin::Request { pages: 1 }).record_growth(1, 100);
    assert_ne!(alone.read(1000, 1), []);
    alone.pages.device_evidence().standing_pages = 1 << 15;
    assert_eq!(alone.read(5000, 1), [], "a run of one request");
    assert_eq!(alone.read(5001, 2), [], "a run of three requests");
    assert_ne!(alone.read(5003, 1), [], "a run of four requests");
}

/// A page of the window was evicted before the reader reached it. The rest may have holes too, and
/// is read again with it: the absent pages of half the window.
#[test]
fn a_window_with_an_evicted_page_is_read_again() {
    let mut alone = PolicyDriver::new();
    alone.read(1000, 1);
    assert_eq!(alone.read(1001, 1), [(1002, 150)]);
    for page in [1003, 1004] {
        alone.pages.evict(page);
    }
    assert_eq!(alone.read(1002, 1), []);
    // Half of the window of 139 is left, 69: up to 1073, and 1088 is a multiple of 32. All pages
    // except 1004 are cached.
    assert_eq!(alone.read(1003, 1), [(1004, 1)]);
}

/// Each request costs as much as 122 pages: eight have cost 976, and nine 1,098, more than the
/// 1,024 pages themselves. The distances grow, so they are not a stride.
#[test]
fn region_used_more_than_others_is_prefetched_whole() {
    let place = |nth: u64| 20 + 7 * nth * (nth + 1) / 2;
    let mut alone = PolicyDriver::new();
    for nth in 0..8 {
        assert_eq!(alone.read(3 * 1024 + place(nth), 1), [], "{nth}");
    }
    let region = alone.read(3 * 1024 + place(8), 1);
    assert_eq!(region.iter().map(|(_, count)| count).sum::<u64>(), 1024 - 8, "{region:?}");
    assert_eq!(
        (region[0].0, region.last().map(|(first, count)| first + count)),
        (3072, Some(4096))
    );
    // An equal number in as many regions is no more than elsewhere.
    let mut alone = PolicyDriver::new();
    for nth in 0..40 {
        assert_eq!(alone.read(nth * 20 * 1024 + place(nth % 16), 1), [], "{nth}");
    }
}

/// With 32 requests a 64th of 2,000 pages was requested. They have cost 3,904 pages, a sixteenth of
/// which, 244, is worth a request of its own. A request that finds its page cached has avoided 122;
/// twice that may be read next. A file of more than a quarter of the memory is never prefetched
/// whole.
#[test]
fn whole_file_prefetch_is_paid_by_avoided_costs() {
    // In no order: a reader that passes over the file in one direction does not use it up.
    let place = |nth: u64| {
        let nth = if nth < 31 { nth * 12 % 31 } else { nth };
        600 + nth * (nth + 10)
    };
    let mut alone = PolicyDriver { file_pages: 2_000, ..PolicyDriver::new() };
    for nth in 0..31 {
        assert_eq!(alone.read(place(nth), 1), [], "{nth}");
    }
    assert_eq!(alone.read(place(31), 1), [(0, 244)]);
    assert_eq!(alone.read(1_900, 1), [], "all that was earned is spent");
    assert_eq!(alone.read(50, 1), [(244, 7 + 2 * 122)], "with a sixteenth of the rent since");
    let mut alone = PolicyDriver { file_pages: 16_385, ..PolicyDriver::new() };
    let place = |nth: u64| 1 + (nth * 23 % 60) * (200 + nth * 23 % 60);
    (0..60).for_each(|nth| assert_eq!(alone.read(place(nth), 1), [], "{nth}"));
}

/// Columns of a row group have one distance, and none follows the last one. After `Random` advice,
/// equally spaced requests are coincidence. Without advice, three of them are a stride.
#[test]
fn random_advice_disables_stride_prefetch() {
    for advice in [Advice::Random, Advice::Normal] {
        let mut alone = PolicyDriver::new();
        alone.policy.advise(advice);
        let ahead: Vec<_> = (0..8).flat_map(|nth| alone.read(1_000 + nth * 400, 24)).collect();
        assert_eq!(ahead.is_empty(), advice == Advice::Random, "{advice:?}: {ahead:?}");
    }
}

/// With 122 readers waiting, a request costs one page in addition to its own. All 250 requests for
/// half of 2,000 pages have cost 250, a quarter of the cost of half of the file. Prefetching the
/// whole file has no benefit.
#[test]
fn cheap_requests_cause_no_whole_file_prefetch() {
    let mut alone = PolicyDriver { file_pages: 2_000, ..PolicyDriver::new() };
    alone.pages.device_evidence().open_reads = 122;
    // Every other block of four, in an order without neighbours.
    for nth in 0..250 {
        assert_eq!(alone.read(nth * 107 % 250 * 8, 4), [], "{nth}");
    }
}

/// A file was closed after five pages, the last four of which the policy did not see. It learns
/// that runs end there: ten pages are best instead of 36. A file that was read to its end shows no
/// end of a run.
#[test]
fn an_early_close_records_the_run_length() {
    let after = |file_pages: u64, last_page: u64| {
        let mut alone = PolicyDriver { file_pages, ..PolicyDriver::new() };
        alone.read(0, 1);
        let PolicyDriver { mut policy, mut pages, .. } = alone;
        policy.on_close(Some(last_page), file_pages, pages.device_evidence());
        pages.device_evidence().window(RunBegin::Sequential, 1, 1).pages
    };
    assert_eq!(after(1_000, 4), 10);
    assert_eq!(after(5, 4), 36);
}

/// One stream goes down, and another begins. It is assumed to go in the same direction, and
/// reversed if it goes up.
#[test]
fn a_stream_is_assumed_to_go_in_the_last_direction() {
    let mut alone = PolicyDriver::new();
    for first in [1016, 1000, 984] {
        alone.read(first, 16);
    }
    let down = alone.read(50_000, 16);
    assert!(down.iter().all(|&(first, count)| first + count == 50_000), "{down:?}");
    assert_ne!(down, []);
    let up = alone.read(50_016, 16);
    assert!(up.iter().all(|&(first, _)| first == 50_032), "{up:?}");
    assert_ne!(up, []);
    let next = alone.read(90_000, 16);
    assert!(next.iter().all(|&(first, _)| first == 90_016), "{next:?}");
    assert_ne!(next, []);
}

/// A file of three regions, so that none receives far more requests than the others. The uses of
/// pages are tracked.
fn small_file() -> PolicyDriver {
    let mut driver = PolicyDriver { file_pages: 3000, ..PolicyDriver::new() };
    driver.pages.track_uses();
    driver
}

/// Reads single pages behind gaps of 3 and 5 pages in turn, from page 200 on. Each read takes
/// `page_ms` milliseconds. Returns the prefetched pages.
fn read_gaps(
    alone: &mut PolicyDriver,
    next: &mut u64,
    count: u64,
    page_ms: u64,
) -> Vec<(u64, u64)> {
    let mut added = Vec::new();
    for _ in 0..count {
        alone.pages.device_evidence().now += Time(page_ms * 1_000_000);
        added.extend(alone.read(*next, 1));
        // Unequal distances form no stride.
        let gap = if next.is_multiple_of(10) { 3 } else { 5 };
        *next += 1 + gap;
    }
    added
}

#[test]
fn random_gaps_are_read_along_after_sixteen_of_them() {
    let mut alone = small_file();
    let mut next = 200;
    assert_eq!(read_gaps(&mut alone, &mut next, 16, 1), []);
    // The 17th read lies behind the 16th gap: 64 pages were skipped, 4 a gap, and 17 used, one a
    // piece. A gap of 4 pages costs less than a request. The reader has shown 16 times 1 + 4 pages.
    assert_eq!(next, 280);
    assert_eq!(read_gaps(&mut alone, &mut next, 1, 1), [(281, 80)]);
    // The second half of the window is marked, from page 321 on. Reads before it are not
    // reported: 284, 290, 294, 300, 304, 310, 314 and 320.
    assert_eq!(read_gaps(&mut alone, &mut next, 8, 1), []);
    assert_eq!(next, 324);
    // It is 44 pages behind the begin, so 124 pages are read ahead, of which 36 are there.
    assert_eq!(read_gaps(&mut alone, &mut next, 1, 1), [(361, 88)]);
}

/// With an eighth of the pages used, or a gap that costs more than a request, nothing is read.
#[test]
fn large_gaps_are_not_read_along() {
    let mut alone = small_file();
    for nth in 0..200u64 {
        assert_eq!(alone.read(200 + nth * 10 + nth % 2, 1), [], "a tenth of the pages");
    }
    let mut alone = PolicyDriver::new();
    for nth in 0..200u64 {
        assert_eq!(alone.read(200 + nth * 150 + nth % 2, 20), [], "gaps of 130 pages");
    }
}

/// A page took 1 ms without the gaps. With them it takes 2 ms. The marked page 410 reports that, 18
/// gaps on: the gaps are not read along until 32 further gaps have passed, at page 564.
#[test]
fn gaps_that_make_the_reader_slower_are_not_read_along() {
    let mut alone = small_file();
    let mut next = 200;
    let mut read = |count, page_ms| read_gaps(&mut alone, &mut next, count, page_ms);
    assert_eq!(read(17, 1), [(281, 80)]);
    assert_eq!(read(9, 2), [(361, 88)]);
    // The reads of 330 to 560.
    assert_eq!(read(47, 2), []);
    assert_eq!(read(1, 2).first().map(|it| it.0), Some(565), "a second attempt");
}
