//! Waits concurrent with requests of others on the same device, and their extra duration. Others
//! are writes, or the reads of other programs.
//!
//! The kernel's scheduler or a full queue can delay a request before it reaches the device.
//! Therefore the reader's wait is used, not the device's time. A wait counts as delayed if a
//! request of others is in flight when it begins.

use std::collections::{BTreeMap, VecDeque};

use readpath_trace::recording::RequestRecord;

use super::WAITS_MIN;

/// Maximum delay in ns of a request's record behind a read. A request that ends later had no
/// influence on the read.
const RECORD_DELAY_NS: u64 = 100_000_000;

/// Minimum number of waits for a comparison.
const MIN_SAMPLES: u64 = 20;

/// Ratio of the mean wait next to others to the baseline above which they count as the cause.
const SLOWDOWN_MIN: f64 = 2.0;

/// Waits of one size class on one device.
#[derive(Clone, Debug, Default)]
struct WaitHistogram {
    /// Numbers of waits alone, by logarithm: eight steps per doubling.
    alone: BTreeMap<u32, u64>,
    /// Numbers of waits next to requests of others.
    delayed: BTreeMap<u32, u64>,
    alone_ns: u64,
    delayed_ns: u64,
}

/// Wait with which the waits next to others are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Baseline {
    /// Mean of the waits alone. Without enough of them nothing is lost.
    Alone,
    /// Mean of the waits alone. If they are too few, the longest wait of the fastest tenth.
    AloneOrFastest,
}

/// Effect of others' requests on reads, per device.
#[derive(Debug, Default)]
pub(super) struct Interference {
    /// Others' requests: device, start, end.
    others: VecDeque<(u64, u64, u64)>,
    /// Reads whose concurrent requests may still follow: device, start, end, bytes.
    reads: VecDeque<(u64, u64, u64, u64)>,
    classes: BTreeMap<(u64, u32), WaitHistogram>,
    /// Transferred bytes of others by device.
    pub bytes: BTreeMap<u64, u64>,
    /// Transferred bytes by device and recorded thread. `None`: by another program or the kernel.
    by_thread: BTreeMap<(u64, Option<u64>), u64>,
}

impl Interference {
    /// Processes a request of others.
    pub fn take(&mut self, request: &RequestRecord) {
        let now = request.end_ns;
        self.others.push_back((request.device, request.begin_ns, request.end_ns));
        *self.bytes.entry(request.device).or_default() += request.bytes;
        *self.by_thread.entry((request.device, request.thread)).or_default() += request.bytes;
        self.classify_until(now.saturating_sub(RECORD_DELAY_NS));
        let first = self.reads.front().map_or(now, |(_, begin, ..)| *begin);
        while self.others.front().is_some_and(|(_, _, end)| *end < first) {
            self.others.pop_front();
        }
    }

    /// Transferred bytes of a device by recorded thread. `None`: by another program or the kernel.
    pub fn by_thread(&self, device: u64) -> Vec<(Option<u64>, u64)> {
        let range = self.by_thread.range((device, None)..=(device, Some(u64::MAX)));
        range.map(|((_, thread), bytes)| (*thread, *bytes)).collect()
    }

    /// Records a wait for `bytes` of a device.
    pub fn wait(&mut self, device: u64, (begin_ns, end_ns): (u64, u64), bytes: u64) {
        self.reads.push_back((device, begin_ns, end_ns, bytes));
        self.classify_until(end_ns.saturating_sub(RECORD_DELAY_NS));
    }

    /// Classifies the reads that ended before `until_ns`.
    pub fn classify_until(&mut self, until_ns: u64) {
        while let Some(&(device, begin, end, bytes)) = self.reads.front() {
            if end > until_ns {
                break;
            }
            self.reads.pop_front();
            // A long wait overlaps more requests, whatever its cause. Only its begin is unbiased.
            let late = self.others.partition_point(|&(_, _, to)| to <= begin);
            let has_met =
                self.others.range(late..).any(|&(on, from, _)| on == device && from <= begin);
            let class = self.classes.entry((device, bytes.max(1).ilog2())).or_default();
            let (latencies, sum) = match has_met {
                true => (&mut class.delayed, &mut class.delayed_ns),
                false => (&mut class.alone, &mut class.alone_ns),
            };
            *latencies.entry(logarithm(end - begin)).or_default() += 1;
            *sum += end - begin;
        }
    }

    /// Returns the fraction of the waits for a device that is lost to others, and the mean waits in
    /// ns next to them and without them.
    pub fn lost_share(&self, device: u64, baseline: Baseline) -> Option<(f64, f64, f64)> {
        let (mut lost, mut all, mut met_ns, mut met, mut base_ns) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for ((on, _), class) in &self.classes {
            if *on != device {
                continue;
            }
            all += (class.alone_ns + class.delayed_ns) as f64;
            let alone_count: u64 = class.alone.values().sum();
            let met_count: u64 = class.delayed.values().sum();
            if alone_count + met_count < MIN_SAMPLES || met_count < WAITS_MIN {
                continue;
            }
            let base = match (alone_count, baseline) {
                (MIN_SAMPLES.., _) => class.alone_ns as f64 / alone_count as f64,
                (_, Baseline::AloneOrFastest) => fastest_tenth(class),
                (_, Baseline::Alone) => continue,
            };
            let mean = class.delayed_ns as f64 / met_count as f64;
            if mean >= SLOWDOWN_MIN * base {
                lost += (mean - base) * met_count as f64;
            }
            met_ns += class.delayed_ns as f64;
            base_ns += base * met_count as f64;
            met += met_count as f64;
        }
        (lost > 0.0).then(|| (lost / all, met_ns / met, base_ns / met))
    }
}

/// Returns the class of a duration: eight steps per doubling.
pub(super) fn logarithm(ns: u64) -> u32 {
    (f64::log2(ns.max(1) as f64) * 8.0) as u32
}

/// Returns the longest wait of the fastest tenth.
fn fastest_tenth(class: &WaitHistogram) -> f64 {
    let mut all = class.alone.clone();
    for (logarithm, count) in &class.delayed {
        *all.entry(*logarithm).or_default() += count;
    }
    let count: u64 = all.values().sum();
    let mut seen = 0;
    for (logarithm, here) in all {
        seen += here;
        if seen * 10 >= count {
            return f64::exp2(f64::from(logarithm) / 8.0);
        }
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(begin_ns: u64, end_ns: u64) -> RequestRecord {
        RequestRecord { begin_ns, end_ns, bytes: 4096, ..RequestRecord::default() }
    }

    /// Fifty waits of 100 µs, then fifty of 300 µs, each within one long write: 10 of 20 ms are
    /// lost.
    #[test]
    fn reads_during_writes_are_compared_with_reads_without_writes() {
        let mut writes = Interference::default();
        for at in 0..50 {
            writes.wait(0, (at * 1_000_000, at * 1_000_000 + 100_000), 4096);
        }
        for at in 50..100 {
            let begin = at * 1_000_000;
            writes.wait(0, (begin, begin + 300_000), 4096);
            writes.take(&write(begin, begin + 400_000));
        }
        writes.classify_until(u64::MAX);
        let (part, met, clear) = writes.lost_share(0, Baseline::Alone).unwrap();
        assert!((part - 0.5).abs() < 1e-9, "{part}");
        assert_eq!((met, clear), (300_000.0, 100_000.0));
    }

    /// Fifty waits, each next to a write: 5 of 100 µs, 45 of 300 µs. There are
    /// no waits alone. Compared with the fastest tenth, 9 of 14 ms are lost.
    #[test]
    fn waits_that_all_met_others_are_compared_with_the_fastest_if_at_all() {
        let mut writes = Interference::default();
        for at in 0..50 {
            let begin = at * 1_000_000;
            let wait_ns = if at < 5 { 100_000 } else { 300_000 };
            writes.wait(0, (begin, begin + wait_ns), 4096);
            writes.take(&write(begin, begin + 400_000));
        }
        writes.classify_until(u64::MAX);
        assert_eq!(writes.lost_share(0, Baseline::Alone), None);
        let (part, _, fastest) = writes.lost_share(0, Baseline::AloneOrFastest).unwrap();
        assert!((part - 9.0 / 14.0).abs() < 0.03, "{part}");
        assert!((fastest - 100_000.0).abs() < 9_000.0, "{fastest}");
    }

    /// Rare waits of 100 ms overlap a write that begins within them. They do not count as delayed.
    #[test]
    fn write_within_a_long_wait_does_not_explain_it() {
        let mut writes = Interference::default();
        for at in 0..100 {
            let begin = at * 200_000_000;
            let wait_ns = if at % 5 == 0 { 100_000_000 } else { 1_000_000 };
            writes.wait(0, (begin, begin + wait_ns), 4096);
            writes.take(&write(begin + 50_000_000, begin + 51_000_000));
        }
        writes.classify_until(u64::MAX);
        assert_eq!(writes.lost_share(0, Baseline::AloneOrFastest), None);
    }

    #[test]
    fn reads_without_writes_lose_no_time_to_writes() {
        let mut writes = Interference::default();
        (0..100).for_each(|at| writes.wait(0, (at * 1000, at * 1000 + at), 4096));
        writes.classify_until(u64::MAX);
        assert_eq!(writes.lost_share(0, Baseline::AloneOrFastest), None);
    }
}
