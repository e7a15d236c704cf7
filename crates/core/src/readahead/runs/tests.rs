//! The policy `runs`, checked against its description: expected values worked by hand.

use std::collections::BTreeSet;
use std::vec::Vec;

use super::*;
use crate::readahead::PageTable;

/// A program with a mapped file. Cached, unmarked pages around a fault are mapped with it, and a
/// touch of a mapped page causes no fault.
struct Program {
    policy: RunsPolicy,
    pages: PageTable,
    /// Pages whose touch causes no fault.
    mapped: BTreeSet<u64>,
    /// First page and page count of each request.
    requests: Vec<(u64, u64)>,
    /// Number of touches of pages that were not mapped.
    faults: u32,
}

const FILE_PAGES: u64 = 1 << 20;

/// An empty cache of 1 GiB.
fn memory() -> PageTable {
    let mut pages = PageTable::default();
    pages.device_evidence().memory_pages = 1 << 18;
    pages
}

/// Touches the pages in order. Returns for each window the touched page, the window's lowest page
/// and its size.
fn windows(
    mut policy: RunsPolicy,
    touched: impl Iterator<Item = u64>,
    pages: &mut PageTable,
) -> Vec<(u64, u64, u64)> {
    let mut windows = Vec::new();
    for page in touched {
        let request =
            ReadRequest { offset: page * 4096, bytes: 1, file_bytes: 1 << 32, is_congested: false };
        policy.fault(page, &request, pages);
        let added = pages.take_added();
        let lowest = added.iter().map(|(folio, _)| folio.first).min();
        windows.extend(lowest.map(|lowest| (page, lowest, added.len() as u64)));
    }
    windows
}

impl Program {
    /// A program without mapped pages, under the policy with windows of up to 1,024 pages.
    fn new(advice: Advice) -> Program {
        let mut policy = RunsPolicy::new(1024);
        policy.advise(advice);
        let (pages, mapped) = (memory(), BTreeSet::new());
        Program { policy, pages, mapped, requests: Vec::new(), faults: 0 }
    }

    /// Touches a page. Without a mapping the policy handles the fault, and the machine reads the
    /// page if it is still absent. The cached pages around it are then mapped, up to a mark on each
    /// side.
    fn touch(&mut self, page: u64) {
        if self.mapped.contains(&page) {
            return;
        }
        self.faults += 1;
        let request = ReadRequest {
            offset: page * 4096,
            bytes: 1,
            file_bytes: FILE_PAGES * 4096,
            is_congested: false,
        };
        self.policy.fault(page, &request, &mut self.pages);
        if !self.pages.is_cached(page) {
            let is_marked = false;
            self.pages.add(Folio::holding(page, 0), is_marked);
        }
        for (folio, _) in self.pages.take_added() {
            match self.requests.last_mut() {
                Some((first, count)) if *first + *count == folio.first => *count += 1,
                Some((first, count)) if folio.first + 1 == *first => {
                    (*first, *count) = (folio.first, *count + 1);
                }
                _ => self.requests.push((folio.first, 1)),
            }
        }
        self.mapped.insert(page);
        let is_mappable = |page: &u64| {
            let is_unmarked = self.pages.marked(*page).is_none();
            self.pages.is_cached(*page) && is_unmarked
        };
        self.mapped.extend((page + 1..).take_while(is_mappable));
        self.mapped.extend((0..page).rev().take_while(is_mappable));
    }

    /// Touches `count` pages upwards from `first`.
    fn touch_upwards(&mut self, first: u64, count: u64) {
        (first..first + count).for_each(|page| self.touch(page));
    }

    /// Touches `count` pages downwards, the last of them at `first`.
    fn touch_downwards(&mut self, first: u64, count: u64) {
        (first..first + count).rev().for_each(|page| self.touch(page));
    }
}

/// Slices of 16 pages at arbitrary pages. The length of the first slice is found window by window,
/// doubling each time; its adjacent windows count as one request. From the second on a slice takes
/// one request.
#[test]
fn slices_cost_one_request_each_from_the_second_on() {
    let mut program = Program::new(Advice::Normal);
    let slice_starts = [1000, 77_000, 5_000, 333, 90_100, 40_016, 12_345, 60_000];
    slice_starts.into_iter().for_each(|first| program.touch_upwards(first, 16));
    assert_eq!(
        program.requests,
        [
            (1000, 16),
            (77_000, 16),
            (5_000, 16),
            (333, 16),
            (90_100, 16),
            (40_016, 16),
            (12_345, 16),
            (60_000, 16)
        ]
    );
    // 4 slices with a fault for each page; then one fault at the start and one at the end.
    assert_eq!(program.faults, 4 * 16 + 4 * 2);
}

/// Without known lengths the first window has 4 pages, and each later one as many pages as the run
/// has so far.
#[test]
fn the_first_slice_takes_windows_of_4_4_and_8() {
    let windows = windows(RunsPolicy::new(32), 1000..1016, &mut memory());
    assert_eq!(windows, [(1000, 1000, 4), (1004, 1004, 4), (1008, 1008, 8)]);
}

/// Worked by hand. The first page reads 4 upwards, as no length is known. The second, before it,
/// reverses the run, which then doubles each time.
#[test]
fn first_downward_slice_reverses_the_run_and_doubles_its_window() {
    let windows = windows(RunsPolicy::new(32), (1000..1016).rev(), &mut memory());
    let expected =
        [(1015, 1015, 4), (1014, 1014, 1), (1013, 1012, 2), (1011, 1008, 4), (1007, 1000, 8)];
    assert_eq!(windows, expected);
}

/// Slices of 16 pages, touched downwards: one request for each slice from the second on.
#[test]
fn slices_downwards_cost_one_request_each_from_the_second_on() {
    let mut program = Program::new(Advice::Normal);
    let slice_starts = [1000, 77_000, 5_000, 333, 90_100, 40_016, 12_345, 60_000];
    slice_starts.into_iter().for_each(|first| program.touch_downwards(first, 16));
    // Pages 1016 to 1018 were read before the first run was reversed.
    assert_eq!(program.requests[0], (1000, 19));
    let expected: Vec<_> = slice_starts[1..].iter().map(|&first| (first, 16)).collect();
    assert_eq!(program.requests[1..], expected);
}

/// A stream down to page 0. The first window lies upwards: 3 pages of it are not used. After the
/// run is reversed, the windows mirror the upward stream.
#[test]
fn a_stream_downwards_ends_at_the_first_page() {
    let windows = windows(RunsPolicy::new(32), (0..100).rev(), &mut memory());
    let expected = [
        (99, 99, 4),
        (98, 98, 1),
        (97, 96, 2),
        (95, 92, 4),
        (91, 84, 8),
        // The reader waited at 91. Windows follow from the middle, 88.
        (83, 68, 16),
    ];
    assert_eq!(windows[..6], expected);
    assert_eq!(windows.iter().map(|&(_, lowest, _)| lowest).min(), Some(0));
    assert_eq!(windows.iter().map(|&(.., pages)| pages).sum::<u64>(), 100 + 3);
    assert!(windows.len() < 16, "{windows:?}");
}

/// Pages at the end of a window that were cached before count as touched with the last page that
/// was read.
#[test]
fn a_run_into_cached_pages_has_a_known_length() {
    // Bounds: two requests for each of 40 slices, and 40 pages for each slice of 16.
    for order in [TouchOrder::Up, TouchOrder::Down] {
        let mut program = Program::new(Advice::Normal);
        for slice in 1..40 {
            // One end of the slice first, as `memcpy` does, and then the rest from the other end.
            let pages = PageRange::new(5_000 * slice, 16);
            let (first, last) = (pages.first, pages.end - 1);
            program.touch(if order == TouchOrder::Down { first } else { last });
            match order {
                TouchOrder::Up => program.touch_upwards(first, 15),
                TouchOrder::Down => program.touch_downwards(first + 1, 15),
            }
        }
        let requests = program.requests.len();
        let pages: u64 = program.requests.iter().map(|&(_, count)| count).sum();
        assert!(requests < 2 * 40, "{order:?}: {requests} requests");
        assert!(pages < 40 * 40, "{order:?}: {pages} pages");
    }
}

/// The assumed direction follows the majority of the 16 remembered runs: 8 downward ones and then
/// 20 upward ones make it upward, 20 downward ones make it downward again.
#[test]
fn new_run_is_assumed_to_follow_the_direction_of_most_runs() {
    let mut program = Program::new(Advice::Normal);
    (0..8).for_each(|nth| program.touch_downwards(5_000 * nth + 100, 16));
    (20..40).for_each(|nth| program.touch_upwards(5_000 * nth, 16));
    assert_eq!(program.requests.last(), Some(&(5_000 * 39, 16)));
    program.requests.clear();
    (40..60).for_each(|nth| program.touch_downwards(5_000 * nth, 16));
    assert_eq!(program.requests.last(), Some(&(5_000 * 59, 16)));
}

/// Runs of one page: the first window has 4 pages, because no length is known. From then on the
/// known length is one page.
#[test]
fn single_page_runs_are_read_alone_from_the_second_on() {
    let mut program = Program::new(Advice::Normal);
    (0..20).for_each(|nth| program.touch(5_000 * nth + 7));
    assert_eq!(program.requests[0], (7, 4), "nothing is known");
    assert!(program.requests[1..].iter().all(|&(_, count)| count == 1));
}

/// Half of the runs have 1 page, half 16. Always 16 wastes 15 pages for a short run, always 1 costs
/// another request for a long one. Without measurements a request takes 1 ms at 500 MB/s, or 122
/// pages.
#[test]
fn window_weighs_the_request_cost_against_wasted_pages() {
    let mut program = Program::new(Advice::Normal);
    for nth in 0..32 {
        program.touch_upwards(5_000 * nth + 7, if nth % 2 == 0 { 1 } else { 16 });
    }
    assert_eq!(program.requests.last(), Some(&(5_000 * 31 + 7, 16)));
    // With 200 pages instead of 16 the waste would be 199: another request is cheaper.
    let mut program = Program::new(Advice::Normal);
    for nth in 0..32 {
        program.touch_upwards(5_000 * nth + 7, if nth % 2 == 0 { 1 } else { 200 });
    }
    assert!(program.requests.contains(&(5_000 * 30 + 7, 1)), "{:?}", program.requests);
}

/// Three of four runs have 16 pages, one has 512. Always 512 wastes 3 × 496, always 16 costs 122.
/// The rest of 496 comes in one request.
#[test]
fn a_long_run_among_short_ones_takes_two_requests() {
    let mut program = Program::new(Advice::Normal);
    for nth in 0..32 {
        program.touch_upwards(5_000 * nth, if nth % 4 == 3 { 512 } else { 16 });
    }
    program.requests.clear();
    program.faults = 0;
    program.touch_upwards(200_000, 16);
    program.touch_upwards(300_000, 512);
    assert_eq!(program.requests, [(200_000, 16), (300_000, 512)]);
    // The short one faults at its first page, at the middle, where a longer run may be predicted,
    // and at its last page. The long one also faults at the page behind these 16 and at its last.
    assert_eq!(program.faults, 3 + 5);
}

/// By the rule: 16 marks up to page 16, then one in two up to 32, in four up to 64, …
#[test]
fn length_marks_are_eight_per_doubling_of_the_run() {
    let marks: Vec<u64> = (0..300).filter(|&distance| is_length_mark(distance)).collect();
    assert_eq!(marks[..16], (0..16).collect::<Vec<u64>>());
    assert_eq!(marks[16..24], [16, 18, 20, 22, 24, 26, 28, 30]);
    assert_eq!(marks[40..48], [128, 144, 160, 176, 192, 208, 224, 240]);
}

/// The reader never waits after page 16, so the window keeps its size.
#[test]
fn a_stream_whose_reader_never_waits_keeps_its_window() {
    let windows = windows(RunsPolicy::new(32), 0..100, &mut memory());
    let expected = [
        (0, 0, 4),
        (4, 4, 4),
        (8, 8, 8),
        (16, 16, 16),
        // In the middle: the target is 32, since the reader waited at 16. 25 pages are behind, 7
        // still ahead.
        (24, 32, 18),
        (41, 50, 18),
        (59, 68, 18),
        (77, 86, 18),
        (95, 104, 18),
    ];
    assert_eq!(windows, expected);
}

/// The pages of this stream never arrive in time.
#[test]
fn a_stream_whose_reader_waits_doubles_its_window_up_to_the_largest() {
    let mut pages = memory();
    pages.set_filled(false);
    let windows = windows(RunsPolicy::new(64), 0..250, &mut pages);
    let expected = [
        (0, 0, 4),
        (4, 4, 4),
        (8, 8, 8),
        (16, 16, 16),
        (24, 32, 18),
        // The target is 36; 42 are behind, 8 ahead.
        (41, 50, 34),
        // The target is 68, the maximum 64; 68 are behind, 16 ahead.
        (67, 84, 52),
        // 111 are behind, 25 ahead: the maximum.
        (110, 136, 64),
        (168, 200, 64),
        (232, 264, 64),
    ];
    assert_eq!(windows, expected);
}

/// Without measurements a request costs 122 pages, and a window may have 16 times that, or an
/// eighth of the memory if that is less.
#[test]
fn windows_are_bounded_by_the_cost_of_a_request_and_by_memory() {
    for (memory_pages, window_pages) in [(1 << 18, 122 * 16), (1 << 12, 1 << 9)] {
        let mut pages = memory();
        pages.device_evidence().memory_pages = memory_pages;
        let mut policy = RunsPolicy::new(1 << 20);
        policy.advise(Advice::Sequential);
        assert_eq!(windows(policy, 100..101, &mut pages), [(100, 100, window_pages)]);
    }
}

/// 20 runs of 16 pages, then 40 of 2 pages. The 16 remembered runs have 2 pages long before the
/// last of them.
#[test]
fn window_shrinks_after_runs_become_shorter() {
    let mut program = Program::new(Advice::Normal);
    (0..20).for_each(|nth| program.touch_upwards(5_000 * nth, 16));
    program.requests.clear();
    (20..60).for_each(|nth| program.touch_upwards(5_000 * nth, 2));
    let pages_of = |(_, count): (u64, u64)| count;
    assert_eq!(pages_of(program.requests[0]), 16);
    assert_eq!(pages_of(program.requests[39]), 2);
}

/// With random advice the first window has one page. The lengths of later runs are still learned:
/// the third slice of 16 pages is read by one request.
#[test]
fn random_advice_begins_with_a_page_and_still_learns_slices() {
    let mut program = Program::new(Advice::Random);
    program.touch(9);
    program.touch_upwards(5_000, 16);
    program.touch_upwards(15_000, 16);
    program.touch_upwards(25_000, 16);
    assert_eq!(program.requests[0], (9, 1));
    assert_eq!(program.requests.last(), Some(&(25_000, 16)));
}

/// The largest allowed window has 1,024 pages.
#[test]
fn sequential_advice_starts_with_the_largest_window() {
    let mut program = Program::new(Advice::Sequential);
    program.touch(100);
    assert_eq!(program.requests, [(100, 1024)]);
}
