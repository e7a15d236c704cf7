//! Ranges of one call that are close together: a run of them is read by one request, with the gaps.
//!
//! A gap is read if its bytes take less time than the requests that it saves. With places for `k`
//! requests in flight, `n` ranges wait for `n / k` turns. A turn takes the time of a request, and
//! passes for all requests in flight.
//!
//! - `n` at most `k`: one turn passes for all ranges, and a request fewer saves no latency. Only
//!   the processor's work for a request counts, as a gap of up to [`GAP_BYTES_MIN`].
//! - `n` over `k`: one request for all ranges saves each turn after the first, by `n - 1` gaps.
//!   Each gap may take its share of these turns, up to [`GAP_BYTES_MAX`].
//!
//! In both cases the gaps of a call together take no longer than the turns that are saved, or than
//! one request. At 20 ms and 100 MB/s, 5 ranges with 4 places have gaps of 500 KB. With 64 places
//! they have gaps of 32 KiB. At 1 ms, 64 ranges with 64 places have gaps of 1.6 KB: gaps of 32 KiB
//! would take 21 ms.
//!
//! Measured in virtual time, with a latency of 20 ms, 64 requests and 125 MB/s. There, 800 ranges
//! of 8 KiB take 275 ms without gaps, 176 ms with gaps of 16 KiB, and 274 ms with gaps of 32 KiB.
//! Only 200 of them take 84 ms without gaps, and 135 ms with gaps of 64 KiB.
//!
//! Rejected: the cost of a lone request. At 20 ms and 100 MB/s it reads gaps of 2 MB. Twenty ranges
//! of 8 KiB, 320 KiB apart, were 6.5 MB in place of 160 KB, and came later. Rejected, too: the
//! `k`-th part of a request for any number of ranges. At 100 ms and 100 MB/s with 64 places, twenty
//! ranges of 8 KiB, 150 KiB apart, were 2.9 MB in two requests in place of 160 KB in 20 parallel
//! ones. Rejected, too: the estimated service time of a request in full. One request at a time does
//! not separate it from the latency: after sixteen of 20 ms it is 3 ms, or 0.7 MB.

use alloc::vec::Vec;
use core::ops::Range;

use crate::unit::PAGE_BYTES;

/// Gap in bytes whose transfer costs less than the processor's work for a request, on storage with
/// 100 MB/s or more. It takes 0.3 ms there; a request of a client of HTTP took 0.5 ms of processor
/// time. The measured object of 64 KiB is in the log, with `python: prefetch columns at once`.
pub const GAP_BYTES_MIN: u64 = 32 << 10;

/// Longest gap in bytes. The get of several ranges of the crate object_store reads gaps of up to
/// this size, for any storage (`OBJECT_STORE_COALESCE_DEFAULT`). The planner never reads more than
/// that, since others may use the same network.
pub const GAP_BYTES_MAX: u64 = 1 << 20;

/// Transfer time of [`GAP_BYTES_MIN`] at 100 MB/s. Slower storage has shorter gaps.
const GAP_MIN_NS: u64 = 327_680;

/// Costs of the requests to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestCosts {
    /// Duration of a single request without its bytes, in nanoseconds.
    pub request_ns: u64,
    /// Time to transfer a page at the best rate, in picoseconds; at least 1.
    pub page_ps: u64,
}

impl RequestCosts {
    /// Longest gap in bytes that costs less than the requests that it saves. `ranges`: number of
    /// ranges of the call, as [`separate_ranges`] counts them. `in_flight_max`: number of requests
    /// that may be in flight, at least 1.
    pub fn gap_bytes_max(&self, ranges: usize, in_flight_max: u32) -> u64 {
        // At least 1, as a divisor.
        let gaps = u64::try_from(ranges).unwrap_or(u64::MAX).saturating_sub(1).max(1);
        // All `n / k` turns except the first.
        let saved_turns = gaps / u64::from(in_flight_max.max(1));
        let share_ns = u128::from(self.request_ns) * u128::from(saved_turns) / u128::from(gaps);
        let processor_ns = GAP_MIN_NS.min(self.request_ns / gaps);
        let share_bytes = self.bytes_in(share_ns).min(GAP_BYTES_MAX);
        share_bytes.max(self.bytes_in(processor_ns.into()).min(GAP_BYTES_MIN))
    }

    /// Number of bytes that are transferred in a time.
    fn bytes_in(&self, time_ns: u128) -> u64 {
        let page_ps = u128::from(self.page_ps.max(1));
        let bytes = time_ns * 1_000 * u128::from(PAGE_BYTES) / page_ps;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// Ranges that one request reads, with the gaps between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Indices of the ranges, by their first byte.
    pub members: Vec<usize>,
    /// Bytes from the first range to the last one.
    pub extent: Range<u64>,
    /// Bytes between the ranges, in ascending order.
    pub gaps: Vec<Range<u64>>,
}

/// Number of ranges with bytes. Ranges that overlap, or are less than a page apart, count as one.
pub fn separate_ranges(ranges: &[Range<u64>]) -> usize {
    let mut in_order: Vec<_> = ranges.iter().filter(|range| !range.is_empty()).collect();
    in_order.sort_unstable_by_key(|range| range.start);
    let (mut count, mut end) = (0, 0);
    for range in in_order {
        count += usize::from(count == 0 || range.start.saturating_sub(end) >= PAGE_BYTES);
        end = end.max(range.end);
    }
    count
}

/// The runs of at least two of these ranges, in ascending order. Each gap has at most
/// `gap_bytes_max` bytes. A range joins a run if the run covers it, or if both together take fewer
/// requests than apart. A request has at most `request_bytes_max` bytes, in whole pages. Empty
/// ranges are in no run.
pub fn runs(ranges: &[Range<u64>], gap_bytes_max: u64, request_bytes_max: u64) -> Vec<Run> {
    let requests = |bytes: Range<u64>| {
        let pages = bytes.end.div_ceil(PAGE_BYTES) - bytes.start / PAGE_BYTES;
        pages.div_ceil((request_bytes_max / PAGE_BYTES).max(1))
    };
    let mut order: Vec<usize> = (0..ranges.len()).filter(|&at| !ranges[at].is_empty()).collect();
    order.sort_unstable_by_key(|&index| ranges[index].start);
    let mut runs: Vec<Run> = Vec::new();
    for index in order {
        let Range { start, end } = ranges[index];
        if let Some(Run { members, extent, gaps }) = runs.last_mut()
            && start.saturating_sub(extent.end) <= gap_bytes_max
            && (end <= extent.end
                || requests(extent.start..end) < requests(extent.clone()) + requests(start..end))
        {
            members.push(index);
            if extent.end < start {
                gaps.push(extent.end..start);
            }
            extent.end = extent.end.max(end);
            continue;
        }
        runs.push(Run { members: [index].into(), extent: start..end, gaps: Vec::new() });
    }
    runs.retain(|run| run.members.len() > 1);
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splitmix;

    const KIB: u64 = 1 << 10;
    /// Time of a page at 100 MB/s: 40.96 us.
    const PAGE_PS: u64 = 40_960_000;

    /// 20 ms are 2 MB at 100 MB/s. With one request at a time each gap saves one, up to 1 MiB. With
    /// 4 in flight 5 ranges need a second turn: 4 gaps of 500 KB cost as much. 9 ranges need two
    /// turns more, and 8 gaps cost as much. 800 ranges among 64 save 12 turns by 799 gaps. A gap is
    /// worth 12 / 799 of 2 MB, and of 10 MB at 100 ms.
    #[test]
    fn gap_costs_its_share_of_the_saved_turns() {
        let costs = RequestCosts { request_ns: 20_000_000, page_ps: PAGE_PS };
        let cases = [(2, 1), (5, 4), (8, 4), (9, 4), (800, 64)];
        let gaps = cases.map(|(ranges, in_flight)| costs.gap_bytes_max(ranges, in_flight));
        assert_eq!(gaps, [1024 * KIB, 500_000, 285_714, 500_000, 30_037]);
        let far = RequestCosts { request_ns: 100_000_000, ..costs };
        assert_eq!(far.gap_bytes_max(800, 64), 150_187);
    }

    /// As many ranges as places: all leave at once, and only the processor's work is saved.
    #[test]
    fn ranges_that_leave_at_once_have_gaps_of_the_processor() {
        let costs = RequestCosts { request_ns: 100_000_000, page_ps: PAGE_PS };
        let gaps = [(2, 4), (4, 4), (20, 64), (64, 64)]
            .map(|(ranges, in_flight)| costs.gap_bytes_max(ranges, in_flight));
        assert_eq!(gaps, [32 * KIB; 4]);
    }

    /// In 1 ms come 100 KB: 63 gaps of 1,587 bytes, and a single gap of the processor.
    #[test]
    fn gaps_together_take_no_longer_than_a_short_request() {
        let costs = RequestCosts { request_ns: 1_000_000, page_ps: PAGE_PS };
        assert_eq!([2, 64].map(|ranges| costs.gap_bytes_max(ranges, 64)), [32 * KIB, 1_587]);
    }

    /// At 1 MB/s a gap of 32 KiB takes 33 ms; in 0.33 ms come 327 bytes. At 1 GB/s it is 32 KiB.
    #[test]
    fn slow_storage_has_shorter_gaps() {
        let slow = RequestCosts { request_ns: 20_000_000, page_ps: 100 * PAGE_PS };
        let fast = RequestCosts { page_ps: PAGE_PS / 10, ..slow };
        assert_eq!([slow, fast].map(|costs| costs.gap_bytes_max(20, 64)), [327, 32 * KIB]);
    }

    /// The first two have one page, the third one begins at the next page, and the last one is
    /// apart by a page.
    #[test]
    fn neighbouring_pages_are_one_range() {
        let ranges = [0..10, 20..30, 4096..5000, 50..50, 12_288..12_289];
        assert_eq!(separate_ranges(&ranges), 2);
        assert_eq!(separate_ranges(&[]), 0);
    }

    /// Counted by hand in a table of all bytes: a range apart begins behind a page of bytes that no
    /// range has.
    #[test]
    fn separate_ranges_have_a_page_of_other_bytes_between_them() {
        let mut state = 7;
        for ranges_max in 0..100 {
            let ranges: Vec<_> = (0..ranges_max % 12)
                .map(|_| splitmix::next(&mut state) % 40_000)
                .map(|start| start..start + start * 31 % 3_000)
                .collect();
            let (mut count, mut bytes_without) = (0, PAGE_BYTES);
            for byte in 0..43_000 {
                if !ranges.iter().any(|range| range.contains(&byte)) {
                    bytes_without += 1;
                    continue;
                }
                count += usize::from(bytes_without >= PAGE_BYTES);
                bytes_without = 0;
            }
            assert_eq!(separate_ranges(&ranges), count, "{ranges:?}");
        }
    }

    /// In KiB: 10..20 touches 0..10; the gap 20..24 is short, 40..60 long. An empty range and a
    /// range inside of another one change nothing.
    #[test]
    fn runs_join_ranges_in_any_order() {
        let kib = |start: u64, end: u64| start * KIB..end * KIB;
        let ranges = [kib(24, 40), kib(10, 20), kib(50, 50), kib(0, 10), kib(60, 61), kib(2, 3)];
        let run =
            Run { members: [3, 5, 1, 0].into(), extent: kib(0, 40), gaps: [kib(20, 24)].into() };
        assert_eq!(runs(&ranges, 4 * KIB, 1 << 20), [run]);
        assert_eq!(runs(&ranges[..1], u64::MAX, u64::MAX), []);
    }

    /// Four ranges of 3 KiB, 4 KiB apart: the largest request of 8 KiB has two of them.
    #[test]
    fn run_of_small_ranges_is_one_request() {
        let ranges: Vec<_> = (0..4).map(|index| index * 4 * KIB..(index * 4 + 3) * KIB).collect();
        let extents: Vec<_> =
            runs(&ranges, 2 * KIB, 8 * KIB).into_iter().map(|run| run.extent).collect();
        assert_eq!(extents, [0..7 * KIB, 8 * KIB..15 * KIB]);
    }

    /// The largest request has 2 MiB. In KiB: the second range fits into the last request of the
    /// first one, 0..2560. A range of 514 pages with its neighbour would still be two requests.
    #[test]
    fn run_has_fewer_requests_than_its_ranges() {
        let kib = |start: u64, end: u64| start * KIB..end * KIB;
        let extents = |ranges: &[Range<u64>]| -> Vec<Range<u64>> {
            runs(ranges, 32 * KIB, 2048 * KIB).into_iter().map(|run| run.extent).collect()
        };
        assert_eq!(extents(&[kib(0, 2560), kib(2564, 3072)]), [kib(0, 3072)]);
        // 2 MiB of bytes, but the pages 0 to 512.
        assert_eq!(extents(&[4095..8192, 12_288..4095 + 2048 * KIB]), []);
        assert_eq!(extents(&[kib(0, 4), kib(8, 2048)]), [kib(0, 2048)]);
        assert_eq!(extents(&[kib(0, 4), kib(8, 2052)]), []);
    }

    /// A range inside of a longer one than a request: the bytes after it are no gap.
    #[test]
    fn covered_range_does_not_end_its_run() {
        let kib = |start: u64, end: u64| start * KIB..end * KIB;
        let ranges = [kib(0, 5000), kib(100, 200), kib(210, 220), kib(5010, 5020)];
        let run = Run {
            members: [0, 1, 2, 3].into(),
            extent: kib(0, 5020),
            gaps: [kib(5000, 5010)].into(),
        };
        assert_eq!(runs(&ranges, 32 * KIB, 2048 * KIB), [run]);
        // The end of the numbers is no page.
        let all = [0..u64::MAX, u64::MAX - 1..u64::MAX];
        assert_eq!(runs(&all, 0, u64::MAX)[0].extent, 0..u64::MAX);
    }
}
