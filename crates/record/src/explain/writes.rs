//! Waits concurrent with writes on the same device, and their extra duration.
//!
//! The kernel's scheduler or a full queue can delay a request before it reaches the device.
//! Therefore the reader's wait is used, not the device's time.

use std::collections::{BTreeMap, VecDeque};

use readpath_trace::recording::{DeviceOperation, RequestRecord};

/// Maximum delay in ns of a write's record behind a read. A write that ends later had no influence
/// on the read.
const WRITE_RECORD_DELAY_NS: u64 = 100_000_000;

/// Minimum number of waits for a comparison.
const MIN_SAMPLES: u64 = 20;

/// Ratio of the mean wait with writes to the baseline above which writes count as the cause.
const SLOWDOWN_MIN: f64 = 2.0;

/// Waits of one size class on one device.
#[derive(Clone, Debug, Default)]
struct WaitHistogram {
    /// Numbers of waits without concurrent writes, by logarithm: eight steps per doubling.
    without_writes: BTreeMap<u32, u64>,
    /// Numbers of waits with concurrent writes.
    with_writes: BTreeMap<u32, u64>,
    without_writes_ns: u64,
    with_writes_ns: u64,
}

/// Effect of writes on reads, per device.
#[derive(Debug, Default)]
pub(super) struct WriteInterference {
    writes: VecDeque<(u64, u64, u64)>,
    /// Reads whose concurrent writes may still follow: device, start, end, bytes.
    reads: VecDeque<(u64, u64, u64, u64)>,
    classes: BTreeMap<(u64, u32), WaitHistogram>,
    pub bytes: BTreeMap<u64, u64>,
    /// Written bytes by device and by the watched thread, if it is one.
    by_thread: BTreeMap<(u64, Option<u64>), u64>,
}

impl WriteInterference {
    /// Processes a device request.
    pub fn take(&mut self, request: &RequestRecord) {
        let now = request.end_ns;
        match request.work {
            DeviceOperation::Write => {
                self.writes.push_back((request.device, request.begin_ns, request.end_ns));
                *self.bytes.entry(request.device).or_default() += request.bytes;
                let writer = (request.device, request.thread);
                *self.by_thread.entry(writer).or_default() += request.bytes;
            }
            DeviceOperation::Read | DeviceOperation::Other => {}
        }
        self.classify_until(now.saturating_sub(WRITE_RECORD_DELAY_NS));
        let first = self.reads.front().map_or(now, |(_, begin, ..)| *begin);
        while self.writes.front().is_some_and(|(_, _, end)| *end < first) {
            self.writes.pop_front();
        }
    }

    /// Written bytes of a device by thread; without one where no watched thread made the request.
    pub fn by_thread(&self, device: u64) -> Vec<(Option<u64>, u64)> {
        let range = self.by_thread.range((device, None)..=(device, Some(u64::MAX)));
        range.map(|((_, thread), bytes)| (*thread, *bytes)).collect()
    }

    /// Records a wait for `bytes` of a device.
    pub fn wait(&mut self, device: u64, (begin_ns, end_ns): (u64, u64), bytes: u64) {
        self.reads.push_back((device, begin_ns, end_ns, bytes));
        self.classify_until(end_ns.saturating_sub(WRITE_RECORD_DELAY_NS));
    }

    /// Classifies the reads that ended before `until_ns`.
    pub fn classify_until(&mut self, until_ns: u64) {
        while let Some(&(device, begin, end, bytes)) = self.reads.front() {
            if end > until_ns {
                break;
            }
            self.reads.pop_front();
            let late = self.writes.partition_point(|&(_, _, to)| to <= begin);
            let has_met =
                self.writes.range(late..).any(|&(on, from, _)| on == device && from < end);
            let class = self.classes.entry((device, bytes.max(1).ilog2())).or_default();
            let (latencies, sum) = match has_met {
                true => (&mut class.with_writes, &mut class.with_writes_ns),
                false => (&mut class.without_writes, &mut class.without_writes_ns),
            };
            *latencies.entry(logarithm(end - begin)).or_default() += 1;
            *sum += end - begin;
        }
    }

    /// Returns the fraction of the waits for a device that is lost to writes, and the mean waits in
    /// ns with and without concurrent writes.
    pub fn lost_share(&self, device: u64) -> Option<(f64, f64, f64)> {
        let (mut lost, mut all, mut met_ns, mut met, mut base_ns) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for ((on, _), class) in &self.classes {
            if *on != device {
                continue;
            }
            all += (class.without_writes_ns + class.with_writes_ns) as f64;
            let clear_count: u64 = class.without_writes.values().sum();
            let met_count: u64 = class.with_writes.values().sum();
            if clear_count + met_count < MIN_SAMPLES || met_count == 0 {
                continue;
            }
            let base = match clear_count {
                MIN_SAMPLES.. => class.without_writes_ns as f64 / clear_count as f64,
                _ => fastest_tenth(class),
            };
            let mean = class.with_writes_ns as f64 / met_count as f64;
            if mean >= SLOWDOWN_MIN * base {
                lost += (mean - base) * met_count as f64;
            }
            met_ns += class.with_writes_ns as f64;
            base_ns += base * met_count as f64;
            met += met_count as f64;
        }
        (lost > 0.0).then(|| (lost / all, met_ns / met, base_ns / met))
    }
}

/// Returns the class of a duration: eight steps per doubling.
fn logarithm(ns: u64) -> u32 {
    (f64::log2(ns.max(1) as f64) * 8.0) as u32
}

/// Returns the longest wait of the fastest tenth.
fn fastest_tenth(class: &WaitHistogram) -> f64 {
    let mut all = class.without_writes.clone();
    for (logarithm, count) in &class.with_writes {
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
        RequestRecord {
            begin_ns,
            end_ns,
            work: DeviceOperation::Write,
            bytes: 4096,
            ..RequestRecord::default()
        }
    }

    /// Fifty waits of 100 µs, then fifty of 300 µs, each within one long write: 10 of 20 ms are
    /// lost.
    #[test]
    fn reads_during_writes_are_compared_with_reads_without_writes() {
        let mut writes = WriteInterference::default();
        for at in 0..50 {
            writes.wait(0, (at * 1_000_000, at * 1_000_000 + 100_000), 4096);
        }
        for at in 50..100 {
            let begin = at * 1_000_000;
            writes.wait(0, (begin, begin + 300_000), 4096);
            writes.take(&write(begin, begin + 400_000));
        }
        writes.classify_until(u64::MAX);
        let (part, met, clear) = writes.lost_share(0).unwrap();
        assert!((part - 0.5).abs() < 1e-9, "{part}");
        assert_eq!((met, clear), (300_000.0, 100_000.0));
    }

    #[test]
    fn reads_without_writes_lose_no_time_to_writes() {
        let mut writes = WriteInterference::default();
        (0..100).for_each(|at| writes.wait(0, (at * 1000, at * 1000 + at), 4096));
        writes.classify_until(u64::MAX);
        assert_eq!(writes.lost_share(0), None);
    }
}
