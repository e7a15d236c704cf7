//! Queue depth of the devices, of the whole recording and during single waits.
//!
//! Waits of several threads at the same time share the time that passes. The share of a wait is its
//! *passed time*. The passed times of all waits sum to the time in which at least one thread
//! waited.

use std::collections::BTreeMap;

use super::super::WaitCause;
use super::super::cause::over_read;
use super::super::depth_sweep::{Depth, EndedWait};
use super::super::wait_sum::WaitSum;
use super::{FileData, RecordingData};
use readpath_trace::recording::Activity;

/// Waits with one charge, by the requests in flight during each.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct DepthCharge {
    /// Waits during which the queue depth was low.
    pub low: WaitSum,
    /// Requests in flight during these waits.
    pub depth: Depth,
    /// Requests in flight during all waits with this charge.
    pub all_depth: Depth,
    /// Passed time of the waits in `low`, in nanoseconds.
    low_passed_ns: f64,
    /// Passed time of all waits with this charge, in nanoseconds.
    passed_ns: f64,
    /// Sum of all waits with this charge, in nanoseconds.
    all_ns: u64,
}

impl DepthCharge {
    /// Adds a wait.
    fn add_wait(&mut self, ended: &EndedWait) {
        let EndedWait { wait, depth, passed_ns, .. } = ended;
        self.all_ns += wait.waited_ns;
        self.all_depth.add(*depth);
        self.passed_ns += passed_ns;
        if ended.is_depth_low() {
            self.low.add(wait.waited_ns, wait.fetched_bytes);
            self.depth.add(*depth);
            self.low_passed_ns += passed_ns;
        }
    }

    /// Adds the waits of another charge.
    pub fn add(&mut self, other: &DepthCharge) {
        self.low.add_all(&other.low);
        self.depth.add(other.depth);
        self.all_depth.add(other.all_depth);
        self.low_passed_ns += other.low_passed_ns;
        self.passed_ns += other.passed_ns;
        self.all_ns += other.all_ns;
    }

    /// Multiplies the passed times by a factor.
    fn scale_passed(&mut self, factor: f64) {
        self.passed_ns *= factor;
        self.low_passed_ns *= factor;
    }

    /// Returns the passed time as a fraction of the sum of the waits. 0 without waits.
    pub fn passed_share(&self) -> f64 {
        self.passed_ns / self.all_ns.max(1) as f64
    }

    /// Returns the passed time of the waits with a low queue depth, as a fraction of the passed
    /// time of all waits with this charge. 0 without waits.
    pub fn low_share(&self) -> f64 {
        if self.passed_ns > 0.0 { self.low_passed_ns / self.passed_ns } else { 0.0 }
    }
}

/// Number of waits, chosen, in which a low depth is compared with a high one. A later phase of the
/// program with one request at a time is then judged by itself.
const WINDOW_WAITS: u64 = 1024;

/// Number of threads reading in the same period from which on a low depth may be by chance: the
/// requests in flight of the remedy. Fewer threads cannot have as many.
const THREADS_MIN: usize = 16;

/// Inverse of the part by which a file's judged waits grow until its unused pages are counted
/// again. Chosen: ten million waits have about 120 counts.
const UNUSED_COUNT_DIVISOR: u64 = 8;

/// Waits for one cause, by their queue depth and by their threads.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct DepthSpread {
    /// Times of the begin of the first wait and the end of the last one in nanoseconds, by thread.
    threads: BTreeMap<u32, (u64, u64)>,
    /// Passed time of the waits with a low queue depth, in nanoseconds.
    low_passed_ns: f64,
    /// Sums of the windows that have ended, if a low depth took less than half of their time.
    mostly_deep: LowWaits,
    /// Number of waits in the window in progress.
    window_waits: u64,
    /// Passed time of these waits, in nanoseconds.
    window_passed_ns: f64,
    /// Sums of the window in progress.
    window: LowWaits,
}

/// Waits with a low queue depth.
#[derive(Clone, Debug, Default)]
struct LowWaits {
    /// Their passed time, in nanoseconds.
    passed_ns: f64,
    /// Their number, by thread.
    by_thread: BTreeMap<u32, u64>,
}

impl LowWaits {
    /// Adds other waits.
    fn add(&mut self, other: &LowWaits) {
        self.passed_ns += other.passed_ns;
        for (thread, waits) in &other.by_thread {
            *self.by_thread.entry(*thread).or_default() += waits;
        }
    }
}

impl DepthSpread {
    /// Adds a wait. A full window ends, and its low waits are kept if a low depth took less than
    /// half of its time.
    fn add_wait(&mut self, ended: &EndedWait) {
        let begin_ns = ended.end_ns.saturating_sub(ended.wait.waited_ns);
        let period = self.threads.entry(ended.wait.thread).or_insert((begin_ns, ended.end_ns));
        *period = (period.0.min(begin_ns), period.1.max(ended.end_ns));
        self.window_waits += 1;
        self.window_passed_ns += ended.passed_ns;
        if ended.is_depth_low() {
            self.low_passed_ns += ended.passed_ns;
            self.window.passed_ns += ended.passed_ns;
            *self.window.by_thread.entry(ended.wait.thread).or_default() += 1;
        }
        if self.window_waits == WINDOW_WAITS {
            if self.is_window_deep() {
                self.mostly_deep.add(&self.window);
            }
            (self.window_waits, self.window_passed_ns) = (0, 0.0);
            self.window = LowWaits::default();
        }
    }

    /// Returns true if a low depth took less than half of the window in progress.
    fn is_window_deep(&self) -> bool {
        self.window.passed_ns * 2.0 < self.window_passed_ns
    }

    /// Returns the largest number of threads that are between their first and last wait at one
    /// time.
    fn most_threads_at_once(&self) -> usize {
        let mut changes: Vec<(u64, i64)> = Vec::with_capacity(2 * self.threads.len());
        for &(begin_ns, end_ns) in self.threads.values() {
            changes.extend([(begin_ns, 1), (end_ns, -1)]);
        }
        // An end comes before a begin at the same time.
        changes.sort_unstable();
        let counts = changes.into_iter().scan(0, |count: &mut i64, (_, change)| {
            *count += change;
            Some(*count)
        });
        counts.max().unwrap_or(0).max(0) as usize
    }

    /// Returns the part of the time with a low depth in which it was low by chance. In windows with
    /// a low depth for less than half of their time, it is by chance. The part is 0 if fewer than
    /// [`THREADS_MIN`] threads read in the same period. Many short processes of which four run at a
    /// time are too few. The part is also 0 if one thread had half of the low waits. A single long
    /// wait does not make a thread the only reader, so waits are counted.
    ///
    /// A program of many readers keeps several reads in flight. Its depth is low while the other
    /// threads wait for a processor, and more threads gain nothing then. A single thread that reads
    /// alone has a low depth all the time, or has most of the waits with one. A lock around the
    /// reads has the same effect.
    fn chance_part(&self) -> f64 {
        let mut by_chance = self.mostly_deep.clone();
        if self.is_window_deep() {
            by_chance.add(&self.window);
        }
        let waits: u64 = by_chance.by_thread.values().sum();
        let most_waits = by_chance.by_thread.values().copied().max().unwrap_or(0);
        let is_of_many = most_waits * 2 < waits && self.most_threads_at_once() >= THREADS_MIN;
        if is_of_many { by_chance.passed_ns / self.low_passed_ns.max(1.0) } else { 0.0 }
    }
}

/// Estimate of whether most fetched pages of a file are unused, from the recording so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnusedEstimate {
    /// Number of judged waits for the file.
    waits: u64,
    /// Number of waits at which the pages are counted next.
    next_count_waits: u64,
    /// True if at least half of the pages were unused at the last count.
    is_most: bool,
}

impl FileData {
    /// Counts a wait that `OverRead` judges. Returns true if unused pages of the file could be
    /// charged to that cause at the last count. A count of all pages at each wait would take too
    /// long.
    fn count_judged_wait(&mut self) -> bool {
        let waits = self.unused_estimate.waits + 1;
        self.unused_estimate.waits = waits;
        if waits >= self.unused_estimate.next_count_waits {
            self.unused_estimate.next_count_waits = waits + waits / UNUSED_COUNT_DIVISOR + 1;
            self.unused_estimate.is_most = over_read::may_be_charged(self);
        }
        self.unused_estimate.is_most
    }

    /// Returns the number of fetched pages that cannot have been used: neither requested nor
    /// mapped.
    pub fn unused_pages(&self) -> u64 {
        self.fetched.count_without_both(&self.requested, &self.mapped)
    }

    /// Returns the waits charged to a cause (`None`: to no cause) by queue depth. `None` without
    /// such waits.
    pub fn depth_charge(&self, cause: Option<WaitCause>) -> Option<DepthCharge> {
        self.depth_charges.get(&cause).copied()
    }

    /// Returns all waits by queue depth.
    pub fn all_depth_charges(&self) -> DepthCharge {
        let mut sum = DepthCharge::default();
        self.depth_charges.values().for_each(|charge| sum.add(charge));
        sum
    }
}

impl RecordingData {
    /// Counts the waits whose requests are all known, and adds them to the samples of their causes:
    /// the first cause, and `ManyFiles` if it may take the charge. `OverRead` has the waits that
    /// it judges, of files with mostly unused pages so far.
    pub(super) fn count_ended_waits(&mut self) {
        for ended in self.depth_sweep.take_ended() {
            let EndedWait { wait, depth, .. } = ended;
            let file = self.files.entry(wait.file).or_default();
            file.depth_charges.entry(wait.cause).or_default().add_wait(&ended);
            if wait.is_announced {
                self.announced_waits.add_wait(&ended);
            }
            // Only such files may have a finding, and the sample is small.
            if over_read::is_judged_cause(wait.cause) && file.count_judged_wait() {
                let sample = self.samples.entry(WaitCause::OverRead).or_default();
                sample.add_read(wait.file, wait.offset, wait.bytes, wait.waited_ns);
            }
            // A read that waits for the request of another adds none to a repetition.
            let causes = [wait.cause, wait.many_files].into_iter().flatten();
            for cause in causes.filter(|_| !ended.is_following) {
                // More requests in flight are no remedy for waits that had them.
                let needs_low_depth = matches!(cause, WaitCause::Depth | WaitCause::ManyFiles);
                if needs_low_depth {
                    self.depth_spreads.entry(cause).or_default().add_wait(&ended);
                }
                if !needs_low_depth || ended.is_depth_low() {
                    let sample = self.samples.entry(cause).or_default();
                    sample.add_read(wait.file, wait.offset, wait.bytes, wait.waited_ns);
                    sample.depth.add(depth);
                }
            }
        }
    }

    /// Returns the part of the waits for a cause with a low queue depth that lacks depth. In the
    /// rest the depth was low by chance: several threads of the program had reads in flight most of
    /// the time.
    pub fn lacking_depth_part(&self, cause: WaitCause) -> f64 {
        1.0 - self.depth_spreads.get(&cause).map_or(0.0, DepthSpread::chance_part)
    }

    /// Scales the passed times of the waits, so that their sum over all files does not exceed the
    /// time in which a thread waited. Parts of long waits that were not seen would make it longer.
    pub(super) fn limit_passed_time(&mut self) {
        let charges = self.files.values().flat_map(|file| file.depth_charges.values());
        let passed_ns: f64 = charges.map(|charge| charge.passed_ns).sum();
        let waited_ns = self.waits.union_ns() as f64;
        if passed_ns > waited_ns {
            let charges = self.files.values_mut().flat_map(|file| file.depth_charges.values_mut());
            charges.for_each(|charge| charge.scale_passed(waited_ns / passed_ns));
        }
    }

    /// Returns the recorded part of [`Activity::Read`] in nanoseconds: waits of calls that read,
    /// and of AIO and io_uring in their submission. The rest is [`Activity::AsyncIo`].
    pub fn recorded_call_waits_ns(&self) -> f64 {
        let submission_ns = self.async_waits.union_ns() as f64 - self.spent_ns(Activity::AsyncIo);
        self.call_waits.union_ns() as f64 + submission_ns.max(0.0)
    }

    /// Returns the mean queue depth of the devices while busy. Without recorded requests, returns
    /// the mean number of concurrent waits. Several waits for pages that one of them fetches are
    /// one.
    pub fn mean_depth(&self) -> f64 {
        let count: u64 = self.devices.values().map(|device| device.reads.count()).sum();
        if count == 0 {
            return if self.waits.count() == 0 { 0.0 } else { self.depth_sweep.mean_waits() };
        }
        let sum: u64 = self.devices.values().map(|device| device.reads.sum_ns()).sum();
        let union: u64 = self.devices.values().map(|device| device.reads.union_ns()).sum();
        sum as f64 / union.max(1) as f64
    }

    /// Returns the sum of all charges to a cause, and the file with the greatest charge. Without a
    /// charge, the sum is 0 and the file is `None`.
    pub fn charged_waits(&self, cause: WaitCause) -> (WaitSum, Option<&FileData>) {
        self.sum_by_file(|file| file.charge(Some(cause)))
    }

    /// Returns the waits charged to a cause during which the queue depth was low, and the file with
    /// the longest of them. Without such waits, the sum is 0 and the file is `None`.
    pub fn low_depth_waits(&self, cause: WaitCause) -> (DepthCharge, Option<&FileData>) {
        let charge_of = |file: &FileData| file.depth_charge(Some(cause)).unwrap_or_default();
        let (_, file) = self.sum_by_file(|file| charge_of(file).low);
        let mut sum = DepthCharge::default();
        self.files.values().for_each(|file| sum.add(&charge_of(file)));
        (sum, file)
    }

    /// Returns the sum of some waits of each file, and the first file with the longest of them.
    fn sum_by_file(&self, waits: impl Fn(&FileData) -> WaitSum) -> (WaitSum, Option<&FileData>) {
        let mut sum = WaitSum::default();
        let mut largest: Option<(&FileData, u64)> = None;
        for file in self.files.values() {
            let charge = waits(file);
            sum.add_all(&charge);
            if charge.waits > 0 && largest.is_none_or(|(_, ns)| charge.ns > ns) {
                largest = Some((file, charge.ns));
            }
        }
        (sum, largest.map(|(file, _)| file))
    }
}
