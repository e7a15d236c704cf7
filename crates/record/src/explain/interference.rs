//! Waits concurrent with requests of others on the same device, and their extra duration. Others
//! are writes, or the reads of other programs.
//!
//! The kernel's scheduler or a full queue can delay a request before it reaches the device.
//! Therefore the reader's wait is used, not the device's time. A wait counts as delayed if a
//! request of others is in flight when it begins. If nearly all waits do, they show a delay only if
//! they grow with the load: the bytes of others in flight, or their rate where it is sampled.

use std::collections::{BTreeMap, VecDeque};

use readpath_trace::recording::RequestRecord;

use super::WAITS_MIN;

/// Maximum delay in ns of a request's record behind a wait. Sampled requests come up to
/// four intervals of 120 ms later. A request that ends later had no influence on the wait.
pub(super) const RECORD_DELAY_NS: u64 = 500_000_000;

/// Minimum number of waits for a comparison, chosen: of both kinds together, and of waits alone for
/// their mean.
const MIN_SAMPLES: u64 = 20;

/// Ratio of the mean wait next to others to the baseline above which they count as the cause.
/// Chosen.
const SLOWDOWN_MIN: f64 = 2.0;

/// Number of doublings of the load that separate the waits next to many bytes from the waits next
/// to the fewest. A wait grows in proportion to the load at most, so [`SLOWDOWN_MIN`] needs twice
/// the load. Loads in classes of one doubling differ by that much if the classes are two apart.
const LOAD_DOUBLINGS_MIN: u32 = 2;

/// Maximum number of requests that are searched for those in flight at the begin of a wait: the
/// default depth of a queue of Linux's NVMe driver. A device serves its requests roughly in order,
/// so those in flight at a time are among as many that end next.
const IN_FLIGHT_MAX: usize = 1 << 10;

/// Maximum number of requests that are kept for waits that are not yet recorded, chosen: 2 MiB of
/// memory. At 10,000 requests per second they span the last 6.5 s.
const ENDED_REQUESTS_MAX: usize = 1 << 16;

/// Waits of one size class on one device.
#[derive(Clone, Debug, Default)]
struct WaitHistogram {
    /// Numbers of waits alone, by logarithm: eight steps per doubling.
    alone: BTreeMap<u32, u64>,
    /// Numbers of waits next to requests of others.
    delayed: BTreeMap<u32, u64>,
    /// Sum of the waits alone in nanoseconds.
    alone_ns: u64,
    /// Sum of the waits next to requests of others in nanoseconds.
    delayed_ns: u64,
    /// Number and nanoseconds of the waits next to others, by the binary logarithm of the load.
    by_load: BTreeMap<u32, (u64, u64)>,
}

/// Comparison of the waits of one size class.
#[derive(Clone, Copy, Debug)]
struct Comparison {
    /// Number of delayed waits.
    delayed: u64,
    /// Their sum in nanoseconds.
    delayed_ns: u64,
    /// Wait in nanoseconds with which they are compared.
    baseline_ns: f64,
    /// True if the baseline is the wait next to the lowest load.
    are_loads_compared: bool,
}

impl Comparison {
    /// Returns the mean delayed wait in nanoseconds.
    fn mean_ns(&self) -> f64 {
        self.delayed_ns as f64 / self.delayed.max(1) as f64
    }
}

impl WaitHistogram {
    /// Returns the comparison of the delayed waits with the baseline, `None` without enough waits
    /// for one.
    fn compare(&self, baseline: Baseline) -> Option<Comparison> {
        let alone: u64 = self.alone.values().sum();
        let delayed: u64 = self.delayed.values().sum();
        // Too few for a comparison. `WAITS_MIN` is the minimum for any finding.
        if alone + delayed < MIN_SAMPLES || delayed < WAITS_MIN {
            return None;
        }
        let alone_mean_ns = self.alone_ns as f64 / alone as f64;
        let baseline_ns = match (alone, baseline) {
            (MIN_SAMPLES.., _) => alone_mean_ns,
            (_, Baseline::Alone) => return None,
            (0..WAITS_MIN, Baseline::AloneOrLoad) => return self.compare_loads(),
            // A few waits alone may be the fast ones by chance.
            (_, Baseline::AloneOrLoad) => alone_mean_ns.max(fastest_tenth_ns(self)),
        };
        let delayed_ns = self.delayed_ns;
        Some(Comparison { delayed, delayed_ns, baseline_ns, are_loads_compared: false })
    }

    /// Returns the comparison of the waits next to many bytes of others with the waits next to the
    /// fewest. The latter are delayed as well, so it shows a part of the delay. `None` if the loads
    /// differ too little, or if one of the two groups has too few waits.
    fn compare_loads(&self) -> Option<Comparison> {
        let (mut light, mut light_ns, mut light_load) = (0, 0, 0);
        let mut loads = self.by_load.iter().peekable();
        while let Some((load, (count, ns))) = loads.next_if(|_| light < MIN_SAMPLES) {
            (light, light_ns, light_load) = (light + count, light_ns + ns, *load);
        }
        let heavy = loads.filter(|(load, _)| **load >= light_load + LOAD_DOUBLINGS_MIN);
        let (delayed, delayed_ns) =
            heavy.fold((0, 0), |sum, (_, (count, ns))| (sum.0 + count, sum.1 + ns));
        let baseline_ns = light_ns as f64 / light.max(1) as f64;
        (light >= MIN_SAMPLES && delayed >= WAITS_MIN).then_some(Comparison {
            delayed,
            delayed_ns,
            baseline_ns,
            are_loads_compared: true,
        })
    }
}

/// Wait with which the waits next to others are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Baseline {
    /// Mean of the waits alone. Without enough of them nothing is lost.
    Alone,
    /// Mean of the waits alone. With fewer than [`MIN_SAMPLES`] of them, it is raised to the
    /// longest wait of the fastest tenth of all waits. With fewer than [`WAITS_MIN`], it is the
    /// mean of the waits next to the lowest load.
    AloneOrLoad,
}

/// Part of the waits for a device that is lost to requests of others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LostWaits {
    /// Lost fraction of all waits.
    pub share: f64,
    /// Mean wait next to requests of others, in nanoseconds.
    pub delayed_ns: f64,
    /// Mean baseline of the same waits, in nanoseconds.
    pub baseline_ns: f64,
    /// True if the baseline is the wait next to the lowest load of others in all compared sizes.
    pub are_loads_compared: bool,
}

/// Request of others to a device.
#[derive(Clone, Copy, Debug)]
struct OtherRequest {
    /// Kernel number of the device.
    device: u64,
    /// Start in nanoseconds.
    begin_ns: u64,
    /// End in nanoseconds.
    end_ns: u64,
    /// Transferred bytes, or bytes in a second if it stands for the requests of a sample. A
    /// recording has one of the two.
    load: u64,
}

/// Wait of the program for bytes of a device.
#[derive(Clone, Copy, Debug)]
struct DeviceWait {
    /// Kernel number of the device.
    device: u64,
    /// Start in nanoseconds.
    begin_ns: u64,
    /// End in nanoseconds.
    end_ns: u64,
    /// Number of fetched bytes.
    bytes: u64,
}

/// Effect of others' requests on the program's waits, per device.
#[derive(Debug, Default)]
pub(super) struct Interference {
    /// Others' requests, in the order of their ends.
    other_requests: VecDeque<OtherRequest>,
    /// Waits whose concurrent requests may still follow.
    unclassified_waits: VecDeque<DeviceWait>,
    /// Waits by device and binary logarithm of their bytes.
    classes: BTreeMap<(u64, u32), WaitHistogram>,
    /// Transferred bytes of others by device.
    pub bytes: BTreeMap<u64, u64>,
    /// Transferred bytes by device and recorded thread. `None`: by another program or the kernel.
    by_thread: BTreeMap<(u64, Option<u64>), u64>,
}

impl Interference {
    /// Adds a request of others.
    pub fn add_request(&mut self, request: &RequestRecord) {
        self.add(request, request.bytes);
    }

    /// Adds the requests of others between two samples, as one of that time. The length of this
    /// time is the sampler's, so its load is the rate.
    pub fn add_sampled(&mut self, request: &RequestRecord) {
        let length_ns = request.end_ns.saturating_sub(request.begin_ns).max(1);
        let bytes_per_second = u128::from(request.bytes) * 1_000_000_000 / u128::from(length_ns);
        self.add(request, u64::try_from(bytes_per_second).unwrap_or(u64::MAX));
    }

    /// Adds a request with its load. Classifies the waits that no later request can affect, and
    /// drops the requests that no remaining wait needs.
    fn add(&mut self, request: &RequestRecord, load: u64) {
        let &RequestRecord { device, begin_ns, end_ns, .. } = request;
        self.other_requests.push_back(OtherRequest { device, begin_ns, end_ns, load });
        *self.bytes.entry(device).or_default() += request.bytes;
        *self.by_thread.entry((device, request.thread)).or_default() += request.bytes;
        self.classify_until(end_ns.saturating_sub(RECORD_DELAY_NS));
        // Requests that ended before the oldest kept wait began are dropped, except the last ones:
        // a wait is recorded at its end, and may have begun before them.
        let first_wait_ns = self.unclassified_waits.front().map_or(end_ns, |wait| wait.begin_ns);
        while self.other_requests.len() > ENDED_REQUESTS_MAX
            && self.other_requests.front().is_some_and(|other| other.end_ns < first_wait_ns)
        {
            self.other_requests.pop_front();
        }
    }

    /// Returns the bytes that others transferred on a device, by recorded thread. `None` stands for
    /// other programs and the kernel.
    pub fn bytes_by_thread(&self, device: u64) -> Vec<(Option<u64>, u64)> {
        let range = self.by_thread.range((device, None)..=(device, Some(u64::MAX)));
        range.map(|((_, thread), bytes)| (*thread, *bytes)).collect()
    }

    /// Records a wait of the program for `bytes` bytes of a device, and classifies older waits.
    pub fn record_wait(&mut self, device: u64, (begin_ns, end_ns): (u64, u64), bytes: u64) {
        self.unclassified_waits.push_back(DeviceWait { device, begin_ns, end_ns, bytes });
        self.classify_until(end_ns.saturating_sub(RECORD_DELAY_NS));
    }

    /// Classifies the waits that ended up to `until_ns` as delayed or alone. A wait is delayed if a
    /// request of others was in flight at its begin.
    pub fn classify_until(&mut self, until_ns: u64) {
        while let Some(&wait) = self.unclassified_waits.front() {
            let DeviceWait { device, begin_ns, end_ns, bytes } = wait;
            if end_ns > until_ns {
                break;
            }
            self.unclassified_waits.pop_front();
            // A long wait overlaps more requests, whatever its cause. Only its begin is unbiased.
            let others = candidates(&self.other_requests, begin_ns)
                .filter(|other| other.device == device && other.begin_ns <= begin_ns);
            let load = others.map(|other| other.load).reduce(u64::saturating_add);
            let class = self.classes.entry((device, bytes.max(1).ilog2())).or_default();
            let (histogram, sum_ns) = match load {
                Some(_) => (&mut class.delayed, &mut class.delayed_ns),
                None => (&mut class.alone, &mut class.alone_ns),
            };
            if let Some(load) = load {
                let (count, ns) = class.by_load.entry(load.max(1).ilog2()).or_default();
                (*count, *ns) = (*count + 1, *ns + (end_ns - begin_ns));
            }
            *histogram.entry(duration_class(end_ns - begin_ns)).or_default() += 1;
            *sum_ns += end_ns - begin_ns;
        }
    }

    /// Returns the part of the waits for a device that is lost to others: in each size class, the
    /// excess of the delayed waits over the baseline. A class with too few waits, or with a mean of
    /// less than twice the baseline, loses nothing. The lost share is one of all waits for the
    /// device, also in classes that lose nothing. `None` if nothing is lost.
    pub fn lost_waits(&self, device: u64, baseline: Baseline) -> Option<LostWaits> {
        let (mut lost_ns, mut all_ns, mut delayed_ns, mut delayed, mut baseline_ns) =
            (0.0, 0.0, 0.0, 0.0, 0.0);
        let mut are_loads_compared = true;
        for ((class_device, _), class) in &self.classes {
            if *class_device != device {
                continue;
            }
            all_ns += (class.alone_ns + class.delayed_ns) as f64;
            let Some(compared) = class.compare(baseline) else { continue };
            let (mean_ns, count) = (compared.mean_ns(), compared.delayed as f64);
            if mean_ns >= SLOWDOWN_MIN * compared.baseline_ns {
                lost_ns += (mean_ns - compared.baseline_ns) * count;
            }
            delayed_ns += compared.delayed_ns as f64;
            baseline_ns += compared.baseline_ns * count;
            delayed += count;
            are_loads_compared &= compared.are_loads_compared;
        }
        (lost_ns > 0.0).then(|| LostWaits {
            share: lost_ns / all_ns,
            delayed_ns: delayed_ns / delayed,
            baseline_ns: baseline_ns / delayed,
            are_loads_compared,
        })
    }
}

/// Returns the requests that may be in flight at a time: the first that end after it, at most
/// [`IN_FLIGHT_MAX`]. `requests`: in the order of their ends.
fn candidates(
    requests: &VecDeque<OtherRequest>,
    at_ns: u64,
) -> impl Iterator<Item = &OtherRequest> {
    let first = requests.partition_point(|other| other.end_ns <= at_ns);
    requests.range(first..).take(IN_FLIGHT_MAX)
}

/// Returns the class of a duration: its binary logarithm in steps of an eighth.
pub(super) fn duration_class(ns: u64) -> u32 {
    (f64::log2(ns.max(1) as f64) * 8.0) as u32
}

/// Returns the longest wait of the fastest tenth of all waits of a size class, in nanoseconds: the
/// lower bound of its duration class. 0 without waits.
fn fastest_tenth_ns(histogram: &WaitHistogram) -> f64 {
    let mut counts = histogram.alone.clone();
    for (class, count) in &histogram.delayed {
        *counts.entry(*class).or_default() += count;
    }
    let count: u64 = counts.values().sum();
    let mut counted = 0;
    for (class, class_count) in counts {
        counted += class_count;
        if counted * 10 >= count {
            return f64::exp2(f64::from(class) / 8.0);
        }
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write of 4 KiB by an unknown thread to device 0.
    fn write(begin_ns: u64, end_ns: u64) -> RequestRecord {
        RequestRecord { begin_ns, end_ns, bytes: 4096, ..RequestRecord::default() }
    }

    /// By hand: fifty waits of 100 µs take 5 ms, and fifty of 300 µs, each within one long write,
    /// take 15 ms. The loss is 50 × 200 µs = 10 ms of 20 ms.
    #[test]
    fn reads_during_writes_are_compared_with_reads_without_writes() {
        let mut writes = Interference::default();
        for ms in 0..50 {
            writes.record_wait(0, (ms * 1_000_000, ms * 1_000_000 + 100_000), 4096);
        }
        for ms in 50..100 {
            let begin_ns = ms * 1_000_000;
            writes.record_wait(0, (begin_ns, begin_ns + 300_000), 4096);
            writes.add_request(&write(begin_ns, begin_ns + 400_000));
        }
        writes.classify_until(u64::MAX);
        let lost = writes.lost_waits(0, Baseline::Alone).unwrap();
        assert!((lost.share - 0.5).abs() < 1e-9, "{lost:?}");
        assert_eq!((lost.delayed_ns, lost.baseline_ns), (300_000.0, 100_000.0));
    }

    /// Waits that are all next to a write: 25 of 100 µs and 25 of 300 µs. `bytes`: length of the
    /// write next to a wait.
    fn all_next_to_writes(bytes: fn(u64) -> u64) -> Interference {
        let mut writes = Interference::default();
        for ms in 0..50 {
            let begin_ns = ms * 1_000_000;
            let wait_ns = if ms < 25 { 100_000 } else { 300_000 };
            writes.record_wait(0, (begin_ns, begin_ns + wait_ns), 4096);
            let bytes = bytes(wait_ns);
            writes.add_request(&RequestRecord { bytes, ..write(begin_ns, begin_ns + 400_000) });
        }
        writes.classify_until(u64::MAX);
        writes
    }

    /// By hand: 25 waits next to 1 MiB are 200 µs longer each than next to 4 KiB, so 5 of 10 ms are
    /// lost. Equal writes explain no difference.
    #[test]
    fn waits_that_all_met_others_are_compared_by_the_bytes_in_flight_if_at_all() {
        let writes = all_next_to_writes(|wait_ns| if wait_ns > 200_000 { 1 << 20 } else { 4096 });
        assert_eq!(writes.lost_waits(0, Baseline::Alone), None);
        let lost = writes.lost_waits(0, Baseline::AloneOrLoad).unwrap();
        assert!((lost.share - 0.5).abs() < 1e-9, "{lost:?}");
        assert_eq!((lost.delayed_ns, lost.baseline_ns), (300_000.0, 100_000.0));
        let writes = all_next_to_writes(|_| 4096);
        assert_eq!(writes.lost_waits(0, Baseline::AloneOrLoad), None);
    }

    /// A wait of 20 µs alone, and 50 waits next to equal writes.
    #[test]
    fn one_wait_alone_is_no_baseline() {
        let mut writes = all_next_to_writes(|_| 4096);
        writes.record_wait(0, (1_000_000_000, 1_000_020_000), 4096);
        writes.classify_until(u64::MAX);
        assert_eq!(writes.lost_waits(0, Baseline::AloneOrLoad), None);
        // A wait alone does not hide the comparison by the bytes in flight.
        let mut writes =
            all_next_to_writes(|wait_ns| if wait_ns > 200_000 { 1 << 20 } else { 4096 });
        writes.record_wait(0, (1_000_000_000, 1_000_100_000), 4096);
        writes.classify_until(u64::MAX);
        let lost = writes.lost_waits(0, Baseline::AloneOrLoad).unwrap();
        assert!(lost.are_loads_compared, "{lost:?}");
        assert_eq!((lost.delayed_ns, lost.baseline_ns), (300_000.0, 100_000.0));
    }

    /// Waits of 100 and 300 µs in turn, within samples of 10 and 120 ms. `bytes`: those written
    /// in a sample.
    fn within_samples(bytes: fn(u64) -> u64) -> Option<LostWaits> {
        let mut writes = Interference::default();
        let mut begin_ns = 0;
        for at in 0..60 {
            let length_ns = if at % 2 == 0 { 10_000_000 } else { 120_000_000 };
            let (wait_begin_ns, wait_ns) = (begin_ns + 1_000_000, 100_000 + at % 2 * 200_000);
            writes.record_wait(0, (wait_begin_ns, wait_begin_ns + wait_ns), 4096);
            let request = write(begin_ns, begin_ns + length_ns);
            let bytes = bytes(length_ns);
            writes.add_sampled(&RequestRecord { bytes, ..request });
            begin_ns += length_ns;
        }
        writes.classify_until(u64::MAX);
        writes.lost_waits(0, Baseline::AloneOrLoad)
    }

    /// 100 MB/s in samples of all lengths is one load. 100 and 800 MB/s differ: by hand, half of
    /// the waits lose 200 of 300 µs each.
    #[test]
    fn sampled_writes_are_compared_by_their_rate() {
        assert_eq!(within_samples(|length_ns| length_ns / 10), None);
        let rate = |length_ns| if length_ns > 20_000_000 { 8 } else { 1 } * length_ns / 10;
        let lost = within_samples(rate).unwrap();
        assert_eq!((lost.delayed_ns, lost.baseline_ns), (300_000.0, 100_000.0));
    }

    /// A wait of 300 µs each second, begun during a write of 100 µs. A second write begins and ends
    /// within the wait, whose record comes last. By hand: all 50 waits are delayed. The 50 waits of
    /// 100 µs before are alone.
    #[test]
    fn write_at_the_begin_of_a_wait_counts_though_others_ended_since() {
        let mut writes = Interference::default();
        for second in 0..100 {
            let begin_ns = second * 1_000_000_000;
            let wait_ns = if second < 50 { 100_000 } else { 300_000 };
            if second >= 50 {
                writes.add_request(&write(begin_ns - 50_000, begin_ns + 50_000));
                writes.add_request(&write(begin_ns + 100_000, begin_ns + 200_000));
            }
            writes.record_wait(0, (begin_ns, begin_ns + wait_ns), 4096);
        }
        writes.classify_until(u64::MAX);
        let lost = writes.lost_waits(0, Baseline::Alone).unwrap();
        assert_eq!((lost.delayed_ns, lost.baseline_ns), (300_000.0, 100_000.0));
    }

    /// A second of writes of 1 µs that follow each other. The search ends after a fixed number.
    #[test]
    fn search_for_requests_in_flight_is_bounded() {
        let requests: VecDeque<OtherRequest> = (0..1_000_000)
            .map(|us| OtherRequest {
                device: 0,
                begin_ns: us * 1000,
                end_ns: us * 1000 + 1000,
                load: 4096,
            })
            .collect();
        let searched = candidates(&requests, 500_000_500).collect::<Vec<_>>();
        assert_eq!(searched.len(), IN_FLIGHT_MAX);
        assert_eq!(searched[0].begin_ns, 500_000_000);
    }

    /// Rare waits of 100 ms overlap a write that begins within them. They do not count as delayed.
    #[test]
    fn write_within_a_long_wait_does_not_explain_it() {
        let mut writes = Interference::default();
        for number in 0..100 {
            let begin_ns = number * 200_000_000;
            let wait_ns = if number % 5 == 0 { 100_000_000 } else { 1_000_000 };
            writes.record_wait(0, (begin_ns, begin_ns + wait_ns), 4096);
            writes.add_request(&write(begin_ns + 50_000_000, begin_ns + 51_000_000));
        }
        writes.classify_until(u64::MAX);
        assert_eq!(writes.lost_waits(0, Baseline::AloneOrLoad), None);
    }

    /// Waits of 0 to 99 µs, without any write.
    #[test]
    fn reads_without_writes_lose_no_time_to_writes() {
        let mut writes = Interference::default();
        (0..100).for_each(|us| writes.record_wait(0, (us * 1000, us * 1000 + us), 4096));
        writes.classify_until(u64::MAX);
        assert_eq!(writes.lost_waits(0, Baseline::AloneOrLoad), None);
    }
}
