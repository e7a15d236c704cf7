//! Waits that are far longer than most waits of their device and size.

use std::collections::BTreeMap;

use super::interference::duration_class;

/// Least wait of a stall in nanoseconds. A seek with a rotation of a disk is shorter.
const STALL_NS_MIN: f64 = 25e6;

/// Least ratio of a stall to the median, chosen.
const STALL_RATIO_MIN: f64 = 8.0;

/// Least number of waits of a size for a comparison, chosen.
const WAITS_MIN: u64 = 64;

/// Least number of stalls that are reported, chosen: fewer may be chance.
const STALLS_MIN: u64 = 4;

/// Largest fraction of stalls, chosen. More long waits are a second kind of request.
const STALLED_SHARE_MAX: f64 = 0.1;

/// Number of waits, and their sum in nanoseconds.
type CountAndSumNs = (u64, u64);

/// Waits of each device by size and duration.
#[derive(Debug, Default)]
pub(super) struct StallHistogram {
    /// By device and logarithm of the bytes: waits by logarithm of their duration.
    duration_histograms: BTreeMap<(u64, u32), BTreeMap<u32, CountAndSumNs>>,
}

/// Stalls of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stalls {
    /// Part of the device's waiting time that is lost to stalls: their time beyond the median.
    pub lost_share: f64,
    /// Number of stalls.
    pub count: u64,
    /// Number of all waits of the compared sizes.
    pub waits: u64,
    /// Mean of the medians of the compared sizes, weighted by their waits, in nanoseconds.
    pub median_ns: f64,
    /// Mean stall in nanoseconds.
    pub mean_ns: f64,
}

impl StallHistogram {
    /// Records a wait of `waited_ns` nanoseconds for `bytes` bytes of a device.
    pub fn record_wait(&mut self, device: u64, waited_ns: u64, bytes: u64) {
        let size_class = (device, bytes.max(1).ilog2());
        let durations = self.duration_histograms.entry(size_class).or_default();
        let (count, sum_ns) = durations.entry(duration_class(waited_ns)).or_default();
        *count += 1;
        *sum_ns += waited_ns;
    }

    /// Returns the stalls of a device: waits far above the median of their size. A size with fewer
    /// than `WAITS_MIN` waits, or with more than `STALLED_SHARE_MAX` of stalls, has none. Its waits
    /// still count in the whole. `None` if fewer than `STALLS_MIN` are left.
    pub fn stalls_of(&self, device: u64) -> Option<Stalls> {
        let (mut all_ns, mut stalled_ns, mut lost_ns, mut median_sum_ns) = (0.0, 0.0, 0.0, 0.0);
        let (mut count, mut waits) = (0, 0);
        for (_, durations) in self.duration_histograms.range((device, 0)..=(device, u32::MAX)) {
            all_ns += durations.values().map(|(_, ns)| *ns as f64).sum::<f64>();
            let size_waits: u64 = durations.values().map(|(count, _)| count).sum();
            if size_waits < WAITS_MIN {
                continue;
            }
            let median_ns = median_class_mean_ns(durations, size_waits);
            let least_ns = (STALL_RATIO_MIN * median_ns).max(STALL_NS_MIN);
            // Waits in the class of the limit itself may be shorter than the limit.
            let stalled = durations.range(duration_class(least_ns as u64) + 1..);
            let (stall_count, stall_ns) =
                stalled.fold((0, 0), |(sum, sum_ns), (_, (count, ns))| (sum + count, sum_ns + ns));
            waits += size_waits;
            median_sum_ns += median_ns * size_waits as f64;
            if stall_count as f64 > STALLED_SHARE_MAX * size_waits as f64 {
                continue;
            }
            count += stall_count;
            stalled_ns += stall_ns as f64;
            lost_ns += stall_ns as f64 - median_ns * stall_count as f64;
        }
        (count >= STALLS_MIN).then(|| Stalls {
            lost_share: lost_ns / all_ns,
            count,
            waits,
            median_ns: median_sum_ns / waits as f64,
            mean_ns: stalled_ns / count as f64,
        })
    }
}

/// Returns the mean of the waits in the class of the median, in nanoseconds. `waits`: number of all
/// waits, at least one.
fn median_class_mean_ns(durations: &BTreeMap<u32, CountAndSumNs>, waits: u64) -> f64 {
    let mut counted = 0;
    for &(count, ns) in durations.values() {
        counted += count;
        if 2 * counted >= waits {
            return ns as f64 / count as f64;
        }
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stalls of a device with waits for 4 KiB. `waits`: number and duration in µs of equal waits.
    fn stalls(waits: &[(u64, u64)]) -> Option<Stalls> {
        let mut histogram = StallHistogram::default();
        for &(count, duration_us) in waits {
            (0..count).for_each(|_| histogram.record_wait(3, duration_us * 1000, 4096));
        }
        histogram.stalls_of(3)
    }

    /// By hand: 95 waits of 1 ms and 5 of 100 ms take 595 ms, of which 5 times 99 ms are lost.
    #[test]
    fn few_long_waits_are_stalls() {
        let found = stalls(&[(95, 1000), (5, 100_000)]).unwrap();
        assert!((found.lost_share - 495.0 / 595.0).abs() < 1e-9, "{found:?}");
        assert_eq!((found.count, found.waits), (5, 100));
        assert_eq!((found.median_ns, found.mean_ns), (1e6, 100e6));
    }

    /// Three long waits are chance, waits of 20 ms are seeks, and seven times the median is no
    /// tail. A fifth of the waits is a second kind of request, and 60 waits are too few.
    #[test]
    fn other_long_waits_are_no_stalls() {
        assert_eq!(stalls(&[(97, 1000), (3, 100_000)]), None);
        assert_eq!(stalls(&[(95, 100), (5, 20_000)]), None);
        assert_eq!(stalls(&[(95, 10_000), (5, 70_000)]), None);
        assert_eq!(stalls(&[(80, 1000), (20, 100_000)]), None);
        assert_eq!(stalls(&[(55, 1000), (5, 100_000)]), None);
    }
}
