//! Ranges of one call that are close together: a run of them is read by one request, with the gaps.
//!
//! How it works: a gap is read if its bytes take less time than the request that they avoid. The
//! ranges of a call wait together, and the time of a request passes for all requests in flight.
//! With places for `k` requests in flight, `n` ranges thus wait `n / k` times for it, and one
//! request fewer saves the `k`-th part. The gaps of up to `k` ranges together take no longer than
//! one request.
//!
//! Measured in virtual time, with 20 ms, 64 requests and a network of 125 MB/s: 800 ranges of 8 KiB
//! take 275 ms without gaps, and 176 or 274 ms with gaps of 16 or 32 KiB. 200 of them take 84 ms
//! without gaps, and 135 ms with gaps of 64 KiB.
//!
//! Rejected: the cost of a lone request. At 20 ms and 100 MB/s it reads gaps of 2 MB. Twenty ranges
//! of 8 KiB, 320 KiB apart, were 6.5 MB in place of 160 KB, and came later. Rejected, too: the
//! estimated service time of a request in full. One request at a time does not separate it from
//! the latency: after sixteen of 20 ms it is 3 ms, or 0.7 MB.

use alloc::vec::Vec;
use core::ops::Range;

use crate::unit::PAGE_BYTES;

/// Gap in bytes whose transfer costs less than the processor's work for a request, on storage with
/// 100 MB/s or more. It takes 0.3 ms there; a request of a client of HTTP took 0.5 ms of processor
/// time. The measured object of 64 KiB is in the log, with `python: prefetch columns at once`.
pub const GAP_BYTES_MIN: u64 = 32 << 10;

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
    /// Longest gap in bytes that costs less than one more request, next to others of one call.
    /// `in_flight_max`: number of requests that may be in flight, at least 1.
    pub fn gap_bytes_max(&self, in_flight_max: u32) -> u64 {
        let share_ns = self.request_ns / u64::from(in_flight_max.max(1));
        self.bytes_in(share_ns).max(self.bytes_in(GAP_MIN_NS).min(GAP_BYTES_MIN))
    }

    /// Number of bytes that are transferred in a time.
    fn bytes_in(&self, time_ns: u64) -> u64 {
        let page_ps = u128::from(self.page_ps.max(1));
        let bytes = u128::from(time_ns) * 1_000 * u128::from(PAGE_BYTES) / page_ps;
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

/// The runs of at least two of these ranges, in ascending order. Each gap has at most
/// `gap_bytes_max` bytes, and each run at most `request_bytes_max`: a larger one would save no
/// request. Empty ranges are in no run.
pub fn runs(ranges: &[Range<u64>], gap_bytes_max: u64, request_bytes_max: u64) -> Vec<Run> {
    let mut order: Vec<usize> = (0..ranges.len()).filter(|&at| !ranges[at].is_empty()).collect();
    order.sort_unstable_by_key(|&index| ranges[index].start);
    let mut runs: Vec<Run> = Vec::new();
    for index in order {
        let Range { start, end } = ranges[index];
        if let Some(Run { members, extent, gaps }) = runs.last_mut()
            && start.saturating_sub(extent.end) <= gap_bytes_max
            && end.max(extent.end) - extent.start <= request_bytes_max
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

    const KIB: u64 = 1 << 10;
    /// Time of a page at 100 MB/s: 40.96 us.
    const PAGE_PS: u64 = 40_960_000;

    /// 20 ms are 2 MB at 100 MB/s: the cost of one request at a time. Each of 64 in flight costs
    /// 31,250 bytes of it, less than the 32 KiB of the processor.
    #[test]
    fn gap_is_shorter_the_more_requests_wait_together() {
        let costs = RequestCosts { request_ns: 20_000_000, page_ps: PAGE_PS };
        let gaps = [1, 4, 64, 1000].map(|in_flight_max| costs.gap_bytes_max(in_flight_max));
        assert_eq!(gaps, [2_000_000, 500_000, 32 * KIB, 32 * KIB]);
    }

    /// At 1 MB/s a gap of 32 KiB takes 33 ms; in 0.33 ms come 327 bytes. At 1 GB/s it is 32 KiB.
    #[test]
    fn slow_storage_has_shorter_gaps() {
        let slow = RequestCosts { request_ns: 0, page_ps: 100 * PAGE_PS };
        let fast = RequestCosts { page_ps: PAGE_PS / 10, ..slow };
        assert_eq!([slow, fast].map(|costs| costs.gap_bytes_max(64)), [327, 32 * KIB]);
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
    fn run_is_at_most_one_request() {
        let ranges: Vec<_> = (0..4).map(|index| index * 4 * KIB..(index * 4 + 3) * KIB).collect();
        let extents: Vec<_> =
            runs(&ranges, 2 * KIB, 8 * KIB).into_iter().map(|run| run.extent).collect();
        assert_eq!(extents, [0..7 * KIB, 8 * KIB..15 * KIB]);
    }
}
