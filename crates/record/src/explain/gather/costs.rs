//! Service times of a device by request size, estimated from the waits of the recording.
//!
//! The model of a wait for `b` bytes is `fixed + b × per byte`. Waits of two sufficiently different
//! sizes give both terms. Only the faster quarter of each size counts: slower waits include
//! contention and readahead. Waits that began behind another request of the program are left out
//! where there are others: an unused readahead would make all requests after it look slow. A single
//! size, or sizes with few waits, give only the sum of both terms, the mean of all waits. Its
//! contention is also in the waits that the estimate is compared with, and cancels out there. The
//! faster quarter would count contention as a loss by readahead. The fixed
//! part is then assumed to be the transfer time of [`EQUAL_COST_BYTES`], or of
//! [`EQUAL_COST_BYTES_DISK`] if it takes as long as a disk seek. The kernel's own rotational flag
//! is wrong for many virtual disks.

use std::collections::{BTreeMap, VecDeque};

use super::super::SMALL_BYTES;
use readpath_trace::recording::{ReadRecord, RequestRecord};

/// Bytes whose transfer takes as long as the fixed part of a request, on a device without moving
/// parts: 1 GB/s and 60 µs per request.
const EQUAL_COST_BYTES: f64 = SMALL_BYTES as f64;

/// Bytes whose transfer takes as long as the fixed part of a request on a disk: 10 ms positioning
/// time, 150 MB/s.
const EQUAL_COST_BYTES_DISK: f64 = 1_500_000.0;

/// Transfer time of a byte on such a disk, in nanoseconds.
const DISK_BYTE_NS: f64 = 6.7;

/// Positioning time in nanoseconds above which the device is taken for a disk: half a rotation at
/// 10,000 per minute.
const DISK_POSITIONING_NS_MIN: f64 = 3_000_000.0;

/// Number of waits of one size before they are used, chosen.
const MIN_SAMPLES: u64 = 16;

/// Minimum ratio of two sizes before both terms are estimated from them. Chosen.
const SIZE_RATIO_MIN: f64 = 4.0;

/// Number of waits kept for one size, chosen. Beyond it, every second one is dropped, repeatedly.
const SAMPLES_KEPT_MAX: usize = 512;

/// Maximum number of requests, and of waits, that are kept of a device to see which request was in
/// progress during a wait. Chosen.
const RECENT_MAX: usize = 1 << 10;

/// Waits of one size class.
#[derive(Clone, Debug, Default)]
struct SizeClass {
    /// Number of waits.
    count: u64,
    /// Sum of the waits in nanoseconds.
    ns: u64,
    /// Sum of the fetched bytes.
    bytes: u64,
    /// Every 2^`halvings`-th of the waits in nanoseconds.
    sampled_waits_ns: Vec<u64>,
    /// Number of times that half of the samples were dropped.
    halvings: u32,
}

impl SizeClass {
    /// Adds a wait of `ns` nanoseconds for `bytes` bytes. The sums include every wait. The samples
    /// include every 2^`halvings`-th wait: when they are full, every second one is dropped and the
    /// distance between two samples doubles. They thus cover the whole recording evenly.
    fn add(&mut self, ns: u64, bytes: u64) {
        if self.count.is_multiple_of(1 << self.halvings) {
            if self.sampled_waits_ns.len() == SAMPLES_KEPT_MAX {
                let mut index = 0;
                self.sampled_waits_ns.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.halvings += 1;
            }
            self.sampled_waits_ns.push(ns);
        }
        self.count += 1;
        self.ns += ns;
        self.bytes += bytes;
    }

    /// Returns the mean size in bytes, and the lower quartile of the waits in nanoseconds. The
    /// class has at least one wait.
    fn mean_bytes_and_quartile_ns(&self) -> (f64, f64) {
        let mut waits_ns = self.sampled_waits_ns.clone();
        waits_ns.sort_unstable();
        (self.bytes as f64 / self.count as f64, waits_ns[waits_ns.len() / 4] as f64)
    }
}

/// Wait that is not in a size class yet. A request that was in progress during it may end later.
#[derive(Clone, Copy, Debug)]
struct RecentWait {
    /// Begin of the read in nanoseconds.
    begin_ns: u64,
    /// End of the first eighth of the read's duration. The eighth is chosen.
    eighth_ns: u64,
    /// End of the read.
    end_ns: u64,
    /// Wait in nanoseconds.
    ns: u64,
    /// Number of fetched bytes.
    bytes: u64,
    /// True if no recorded request was in progress both before the read and beyond the eighth.
    is_alone: bool,
}

/// Service times of one device.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Costs {
    /// Start and end of the last read requests in nanoseconds, in the order of their ends.
    recent_requests: VecDeque<(u64, u64)>,
    /// Last waits, in the order of their ends.
    recent_waits: VecDeque<RecentWait>,
    /// All waits.
    all: SizeClasses,
    /// Waits that began behind no other request.
    alone: SizeClasses,
}

impl Costs {
    /// Records a read request of the program. A recent wait is not alone if the request began
    /// before its read and ended after the first eighth of that read.
    pub fn record_request(&mut self, request: &RequestRecord) {
        let &RequestRecord { begin_ns, end_ns, .. } = request;
        // Waits are kept in the order of their ends, so the rest has ended before the request.
        let overlapping =
            self.recent_waits.iter_mut().rev().take_while(|wait| wait.end_ns > begin_ns);
        for wait in overlapping {
            wait.is_alone &= begin_ns >= wait.begin_ns || end_ns <= wait.eighth_ns;
        }
        if self.recent_requests.len() == RECENT_MAX {
            self.recent_requests.pop_front();
        }
        self.recent_requests.push_back((begin_ns, end_ns));
    }

    /// Records a read that waited `ns` nanoseconds, in which `bytes` bytes were fetched. The wait
    /// counts once [`RECENT_MAX`] later ones are recorded, or at [`finish`](Costs::finish).
    pub fn record_wait(&mut self, read: &ReadRecord, ns: u64, bytes: u64) {
        let (begin_ns, end_ns) = (read.begin_ns, read.end_ns);
        let eighth_ns = begin_ns + read.duration_ns() / 8;
        // Requests are kept in the order of their ends, so the rest has ended earlier.
        let mut overlapping =
            self.recent_requests.iter().rev().take_while(|(_, end_ns)| *end_ns > eighth_ns);
        let is_alone = !overlapping.any(|(request_begin_ns, _)| *request_begin_ns < begin_ns);
        if self.recent_waits.len() == RECENT_MAX {
            self.add_oldest_wait();
        }
        let wait = RecentWait { begin_ns, eighth_ns, end_ns, ns, bytes, is_alone };
        self.recent_waits.push_back(wait);
    }

    /// Adds the recent waits to their size classes, at the end of the recording.
    pub fn finish(&mut self) {
        while self.add_oldest_wait() {}
    }

    /// Adds the oldest recent wait to its size class. Returns false if there is none.
    fn add_oldest_wait(&mut self) -> bool {
        let oldest = self.recent_waits.pop_front();
        if let Some(RecentWait { ns, bytes, is_alone, .. }) = oldest {
            self.add(ns, bytes, is_alone);
        }
        oldest.is_some()
    }

    /// Adds a wait of `ns` nanoseconds, in which `bytes` bytes were fetched. `is_alone`: no earlier
    /// request of the program was in progress beyond the first eighth of it.
    fn add(&mut self, ns: u64, bytes: u64, is_alone: bool) {
        self.all.add(ns, bytes);
        if is_alone {
            self.alone.add(ns, bytes);
        }
    }

    /// Returns the service times, or `None` without waits. Waits behind other requests are used
    /// only if there are too few others.
    pub fn estimate(&self) -> Option<Cost> {
        let has_alone_waits = self.alone.well_sampled_classes().next().is_some();
        if has_alone_waits { self.alone.estimate() } else { self.all.estimate() }
    }
}

/// Waits by size.
#[derive(Clone, Debug, Default)]
struct SizeClasses {
    /// Size classes by the binary logarithm of the size.
    classes: BTreeMap<u32, SizeClass>,
}

/// Service time of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct Cost {
    /// Fixed part in nanoseconds.
    fixed_ns: f64,
    /// Part for each byte in nanoseconds.
    byte_ns: f64,
    /// True if only the sum of both parts is known, and their ratio is assumed.
    pub is_assumed: bool,
}

impl Cost {
    /// Returns the service time of a request of this size.
    pub fn request_ns(&self, bytes: f64) -> f64 {
        self.fixed_ns + self.byte_ns * bytes
    }
}

impl SizeClasses {
    /// Adds a wait of `ns` nanoseconds for `bytes` bytes to its size class.
    fn add(&mut self, ns: u64, bytes: u64) {
        self.classes.entry(bytes.max(1).ilog2()).or_default().add(ns, bytes);
    }

    /// Returns the classes with at least [`MIN_SAMPLES`] waits, the smallest size first.
    fn well_sampled_classes(&self) -> impl DoubleEndedIterator<Item = &SizeClass> {
        self.classes.values().filter(|class| class.count >= MIN_SAMPLES)
    }

    /// Estimates the service times from these waits: from the smallest and the largest size with
    /// enough waits, or from the mean of all waits. Returns `None` without waits. A negative term
    /// becomes 0.
    fn estimate(&self) -> Option<Cost> {
        if let (Some(small), Some(large)) =
            (self.well_sampled_classes().next(), self.well_sampled_classes().next_back())
        {
            // Two sizes give a line: time = fixed + bytes × time per byte.
            let ((small_bytes, small_ns), (large_bytes, large_ns)) =
                (small.mean_bytes_and_quartile_ns(), large.mean_bytes_and_quartile_ns());
            if large_bytes >= SIZE_RATIO_MIN * small_bytes {
                let byte_ns = ((large_ns - small_ns) / (large_bytes - small_bytes)).max(0.0);
                let fixed_ns = (small_ns - byte_ns * small_bytes).max(0.0);
                return Some(Cost { fixed_ns, byte_ns, is_assumed: false });
            }
        }
        let sum =
            |value: fn(&SizeClass) -> u64| self.classes.values().map(value).sum::<u64>() as f64;
        // Without waits the means are no numbers, and the result is `None`.
        let count = sum(|class| class.count);
        let (bytes, ns) = (sum(|class| class.bytes) / count, sum(|class| class.ns) / count);
        let is_disk = ns - bytes * DISK_BYTE_NS >= DISK_POSITIONING_NS_MIN;
        let equal_cost_bytes = if is_disk { EQUAL_COST_BYTES_DISK } else { EQUAL_COST_BYTES };
        let byte_ns = ns / (bytes + equal_cost_bytes);
        let fixed_ns = byte_ns * equal_cost_bytes;
        (count > 0.0).then_some(Cost { fixed_ns, byte_ns, is_assumed: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The device takes 60 µs a request and 1 ns a byte: 1.06 ms for a million bytes. Half of the
    /// waits of each size include another delay, which grows from 0 to 5 ms.
    #[test]
    fn two_request_sizes_separate_fixed_and_per_byte_cost() {
        let is_alone = true;
        let mut costs = Costs::default();
        assert_eq!(costs.estimate(), None);
        for bytes in [4096, 131_072] {
            (0..5000).for_each(|_| costs.add(60_000 + bytes, bytes, is_alone));
            (0..5000).for_each(|us| costs.add(60_000 + bytes + us * 1000, bytes, is_alone));
        }
        let cost = costs.estimate().unwrap();
        assert!((cost.request_ns(1e6) - 1_060_000.0).abs() < 1.0, "{cost:?}");
        assert!(
            costs
                .all
                .classes
                .values()
                .all(|class| class.sampled_waits_ns.len() <= SAMPLES_KEPT_MAX)
        );
    }

    /// Waits of 400 µs behind other requests count if there are no others. Sixteen waits of 100 µs,
    /// each without a request before it, replace them.
    #[test]
    fn waits_behind_other_requests_count_only_without_others() {
        let mut costs = Costs::default();
        let request_ns = |costs: &Costs| costs.estimate().unwrap().request_ns(65_536.0);
        let is_alone = true;
        (0..1000).for_each(|_| costs.add(400_000, 65_536, !is_alone));
        assert!((request_ns(&costs) - 400_000.0).abs() < 1.0);
        (0..16).for_each(|_| costs.add(100_000, 65_536, is_alone));
        assert!((request_ns(&costs) - 100_000.0).abs() < 1.0);
    }

    /// By hand: half of the waits for 64 KiB take 100 µs and the others 300 µs, so 200 µs in the
    /// mean. A request of 16 KiB takes (16 + 64) / (64 + 64) of each.
    #[test]
    fn cost_of_one_size_includes_the_contention_of_its_waits() {
        let mut costs = Costs::default();
        for wait_ns in [100_000, 300_000] {
            (0..16).for_each(|_| costs.add(wait_ns, 65_536, true));
        }
        let cost = costs.estimate().unwrap();
        assert!((cost.request_ns(65_536.0) - 200_000.0).abs() < 1.0, "{cost:?}");
        assert!((cost.request_ns(16_384.0) - 125_000.0).abs() < 1.0, "{cost:?}");
    }

    /// A wait of 200 µs for 64 KiB is split in half. A wait of 10 ms is almost all positioning
    /// time.
    #[test]
    fn cost_of_one_size_is_split_by_typical_device_ratios() {
        let is_alone = true;
        let fixed_ns = |wait_ns| {
            let mut costs = Costs::default();
            costs.add(wait_ns, 65_536, is_alone);
            costs.estimate().unwrap().request_ns(0.0)
        };
        assert!((fixed_ns(200_000) - 100_000.0).abs() < 1.0);
        assert!(fixed_ns(10_000_000) > 9_500_000.0);
    }
}
