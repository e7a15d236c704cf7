//! Search for the best value of one parameter: the number of processes at a time, or the number of
//! requests in progress.
//!
//! Both use the same method. Throughput is measured in *epochs* of at least 32 ms and sixteen
//! completions. The throughput of a setting is the mean of its newest four epochs. The reference is
//! the throughput of *all at once*. A setting is *enough* if it gives a certain part of the
//! reference. For processes this is five quarters, because the other processes have to wait. For
//! requests it is seven eighths, because requests only wait longer. How it works:
//!
//! - Without a setting all go at once, and the reference is measured.
//! - A *trial* uses another setting for two epochs, after the earlier requests have completed. A
//!   setting that is enough is kept. A trial ends early when it has fallen behind by the longest
//!   seek. A trial of all at once also ends when it gives less than four fifths of the throughput
//!   of a few processes.
//! - Some trials are of *all at once*: the reference is measured again, and a setting that is not
//!   enough any more is given up, or raised by a third. The other trials are of the *next* setting.
//!   For requests it is half of the current one, and three quarters after the first that was not
//!   enough. For processes it is one, and then twice the current number, which must give a quarter
//!   more. All at once follow a successful trial of processes and a failed trial of requests,
//!   because the initial throughput of a device may not last.
//! - After a trial without an improvement no trial starts for 64 times its duration.
//! - A rate that halves or doubles (for requests: that changes by half) indicates another device or
//!   another load: the setting is removed.
//!
//! Stability: a setting is replaced only by one that is enough, or removed if it isn't enough
//! itself. Both are measured against the same reference, which doesn't depend on the setting.

use crate::observed::{DECAY_WINDOW, EWMA_WINDOW, MIN_SAMPLES};
use crate::unit::Time;

/// Shortest epoch, and the longest time by which a trial may fall behind. It is the longest
/// positioning time of a head: a full stroke of 18 ms, a revolution of 8 ms, and a margin for an
/// old disk.
pub(super) const EPOCH_TIME: Time = Time::from_ms(32);

/// The parameter that is tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parameter {
    /// Number of processes that are served at a time.
    Processes,
    /// Number of requests in progress.
    Requests,
}

impl Parameter {
    /// Returns true if a rate is enough, compared with the rate of all at once: above five quarters
    /// of it for processes, at least seven eighths for requests.
    fn is_enough(self, kib_per_s: u64, all_kib_per_s: u64) -> bool {
        match self {
            Parameter::Processes => 4 * kib_per_s > 5 * all_kib_per_s,
            Parameter::Requests => 8 * kib_per_s >= 7 * all_kib_per_s,
        }
    }

    /// Returns true if the change from `kib_per_s_before` to `kib_per_s` indicates another device
    /// or load. The margin for processes is wider, because service in time slices varies.
    fn is_other_load(self, kib_per_s: u64, kib_per_s_before: u64) -> bool {
        match self {
            Parameter::Processes => {
                2 * kib_per_s < kib_per_s_before || kib_per_s > 2 * kib_per_s_before
            }
            Parameter::Requests => {
                3 * kib_per_s < 2 * kib_per_s_before || 2 * kib_per_s > 3 * kib_per_s_before
            }
        }
    }
}

/// A completed read.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServedRead {
    /// Number of bytes of the read.
    pub bytes: u64,
    /// Reads in the device or dispatchable, including this one.
    pub in_progress: u32,
    /// True if none of the reads in progress was dispatched under another setting.
    pub is_undisturbed: bool,
}

/// Result of a trial or a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeResult {
    /// The setting from now on; `None`: all at once.
    pub setting: Option<u32>,
    /// The reason, such as `another` device or load.
    pub why: &'static str,
    /// The mean rate of the trial, if it was enough. Otherwise the mean rate of the setting that is
    /// raised or removed.
    pub kib_per_s: u64,
    /// The rate of all at once.
    pub all_kib_per_s: u64,
}

/// A setting under trial, since the time `began`.
#[derive(Clone, Copy, Debug)]
struct SettingTrial {
    /// The tried number of processes or requests; `None`: all at once.
    setting: Option<u32>,
    began: Time,
    /// Rate of the first epoch of the trial, if that was not enough.
    first_kib_per_s: Option<u64>,
}

/// Completions of one epoch: their number, and their bytes together.
#[derive(Clone, Copy, Debug, Default)]
struct MeasuringEpoch {
    /// Start of the epoch; `None` while requests of the earlier setting are in progress.
    began: Option<Time>,
    /// Time of the newest counted completion. Several may complete at one instant: an epoch does
    /// not end between them.
    newest: Time,
    /// Completions under the current setting before the epoch began.
    skipped_completions: u32,
    completions: u32,
    bytes: u64,
    /// Sum, over the completions, of the requests in progress.
    requests_in_progress: u64,
}

impl MeasuringEpoch {
    /// Throughput from the begin of the epoch to `now`, in KiB/s: bytes ÷ 1,024 × 10^9 ÷ ns.
    fn kib_per_s(&self, now: Time) -> u64 {
        let span_ns = self.began.map_or(0, |began| now.since(began).ns());
        self.bytes * 1_000_000 / 1024 * 1000 / span_ns.max(1)
    }
}

/// The current setting of `parameter`, and the search for a better one. `epoch` is being measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThroughputTuner {
    parameter: Parameter,
    /// The kept number of processes or requests; `None`: all at once.
    setting: Option<u32>,
    /// The trial in progress.
    trial: Option<SettingTrial>,
    epoch: MeasuringEpoch,
    /// Rate of all at once.
    all_kib_per_s: u64,
    /// Mean rate of the current setting.
    mean_kib_per_s: u64,
    /// Mean rate of the first [`MIN_SAMPLES`] epochs of the current setting; 0 until it is known.
    initial_kib_per_s: u64,
    /// Number of epochs in the mean rate, up to [`MIN_SAMPLES`].
    epochs: u64,
    /// True if the next trial is of all at once.
    next_trial_is_all: bool,
    /// True if half of the setting was not enough: the next trials use three quarters.
    uses_fine_steps: bool,
    /// No trial starts before this time.
    quiet_until: Time,
}

impl ThroughputTuner {
    /// Creates a search without a setting.
    pub(super) fn new(parameter: Parameter) -> ThroughputTuner {
        ThroughputTuner {
            parameter,
            setting: None,
            trial: None,
            epoch: MeasuringEpoch::default(),
            all_kib_per_s: 0,
            mean_kib_per_s: 0,
            initial_kib_per_s: 0,
            epochs: 0,
            next_trial_is_all: false,
            uses_fine_steps: false,
            quiet_until: Time::ZERO,
        }
    }

    /// Allowed number of processes or requests, by the trial in progress if any; `None`: all.
    pub(super) fn allowed(&self) -> Option<u32> {
        self.trial.map_or(self.setting, |trial| trial.setting)
    }

    /// Records a completed read. The first one behind the end of an epoch evaluates it, and counts
    /// in none. An epoch ends after its time and 16 completions (`EWMA_WINDOW`), or more if a limit
    /// on requests is larger, and early if a trial is behind. `may_start_trial` is called only when
    /// a trial is due: true if one can gain. Returns a result if the setting has changed.
    pub(super) fn record_completion(
        &mut self,
        now: Time,
        served: ServedRead,
        may_start_trial: impl FnOnce() -> bool,
    ) -> Option<ProbeResult> {
        // A trial lasts two epochs.
        let needed_epochs = 1 + u32::from(self.trial.is_some());
        let allowed = self.allowed();
        let epoch = &mut self.epoch;
        let Some(began) = epoch.began else {
            // Skips requests that waited next to requests of the earlier setting, because they
            // complete sooner than later ones will. There are at most as many as are allowed.
            epoch.skipped_completions += u32::from(served.is_undisturbed);
            if epoch.skipped_completions > allowed.unwrap_or(served.in_progress) {
                *epoch =
                    MeasuringEpoch { began: Some(now), newest: now, ..MeasuringEpoch::default() };
            }
            return None;
        };
        // Completions of one instant belong to one epoch: at its begin, to the one before.
        let is_new_instant = now > epoch.newest;
        // A limit on processes says nothing about the number of their requests.
        let completions_min = (EWMA_WINDOW as u32).max(match self.parameter {
            Parameter::Processes => 0,
            Parameter::Requests => allowed.unwrap_or(served.in_progress),
        });
        let duration = epoch.newest.since(began);
        let is_whole = epoch.completions >= needed_epochs * completions_min
            && duration >= Time(u64::from(needed_epochs) * EPOCH_TIME.ns());
        if is_new_instant && (is_whole || self.is_behind(duration)) {
            let ended = self.epoch;
            self.begin_epoch(ended.newest);
            return self.evaluate_epoch(ended, may_start_trial);
        }
        if now > began {
            self.epoch.completions += 1;
            self.epoch.bytes += served.bytes;
            self.epoch.requests_in_progress += u64::from(served.in_progress);
        }
        self.epoch.newest = now;
        None
    }

    /// Excludes a time from the epoch, in which requests of the setting were held back.
    pub(super) fn exclude(&mut self, duration: Time) {
        if let Some(began) = &mut self.epoch.began {
            *began += duration;
            self.epoch.newest += duration;
        }
    }

    /// Returns true if the trial in progress, of this duration, has moved too few bytes and must
    /// end. At the expected rate, they would have taken over 32 ms less. For processes this is the
    /// lower rate of all at once and of the current setting, below the rate that is enough. False
    /// without a trial, or in one of all requests.
    fn is_behind(&self, trial_duration: Time) -> bool {
        let Some(trial) = self.trial else { return false };
        let lower_kib_per_s = self.all_kib_per_s.min(self.mean_kib_per_s);
        let expected_kib_per_s = match (self.parameter, trial.setting) {
            (Parameter::Processes, Some(_)) => lower_kib_per_s,
            (Parameter::Requests, Some(_)) => 7 * lower_kib_per_s / 8,
            // The rate below which the current setting is enough.
            (Parameter::Processes, None) => 4 * self.mean_kib_per_s / 5,
            // More requests only wait longer; the device loses no throughput.
            (Parameter::Requests, None) => return false,
        };
        let expected_duration_ns =
            self.epoch.bytes * 1_000_000 / 1024 * 1000 / expected_kib_per_s.max(1);
        trial_duration.ns().saturating_sub(expected_duration_ns) > EPOCH_TIME.ns()
    }

    /// Removes the setting and restarts the search. The pause between trials stays. Returns a
    /// result with the reason `why` if there was a setting, kept or under trial.
    pub(super) fn reset(&mut self, why: &'static str) -> Option<ProbeResult> {
        let was_set = self.allowed().is_some();
        let (kib_per_s, all_kib_per_s) = (self.mean_kib_per_s, self.all_kib_per_s);
        *self = ThroughputTuner {
            quiet_until: self.quiet_until,
            ..ThroughputTuner::new(self.parameter)
        };
        was_set.then_some(ProbeResult { setting: None, why, kib_per_s, all_kib_per_s })
    }

    /// Starts an empty epoch at the time `now`.
    fn begin_epoch(&mut self, now: Time) {
        self.epoch = MeasuringEpoch { began: Some(now), newest: now, ..MeasuringEpoch::default() };
    }

    /// Evaluates a complete epoch, of a trial or of the current setting. Returns a result if the
    /// setting was changed or removed.
    fn evaluate_epoch(
        &mut self,
        epoch: MeasuringEpoch,
        may_start_trial: impl FnOnce() -> bool,
    ) -> Option<ProbeResult> {
        let now = epoch.newest;
        let kib_per_s = epoch.kib_per_s(now);
        let mean_depth = (epoch.requests_in_progress / u64::from(epoch.completions.max(1))) as u32;
        // Three quarters of the allowed requests are in progress. Processes are always enough.
        let is_limit_reached =
            |setting: u32| self.parameter == Parameter::Processes || 4 * mean_depth >= 3 * setting;
        if self.allowed().is_some_and(|setting| !is_limit_reached(setting)) {
            // Programs with fewer requests than allowed give no information. A trial is cancelled.
            self.trial = None;
            return None;
        }
        match self.trial.take() {
            Some(trial) => self.evaluate_trial(now, trial, kib_per_s, mean_depth),
            None => self.evaluate_current(now, kib_per_s, mean_depth, may_start_trial),
        }
    }

    /// Evaluates an epoch under the current setting, and starts a trial if one is due. `kib_per_s`
    /// is the throughput of the epoch, `mean_depth` the mean number of requests in progress in it.
    /// `may_start_trial` is called only if a trial is otherwise due. A changed load resets the
    /// search. Returns a result only if that removed a setting.
    fn evaluate_current(
        &mut self,
        now: Time,
        kib_per_s: u64,
        mean_depth: u32,
        may_start_trial: impl FnOnce() -> bool,
    ) -> Option<ProbeResult> {
        let mean_before = self.mean_kib_per_s;
        self.epochs = (self.epochs + 1).min(MIN_SAMPLES);
        self.mean_kib_per_s = (mean_before * (self.epochs - 1) + kib_per_s) / self.epochs;
        let (current_kib_per_s, initial_kib_per_s) = (self.mean_kib_per_s, self.initial_kib_per_s);
        // An initial rate of 0 is not known yet: there is nothing to compare with.
        if self.epochs == MIN_SAMPLES
            && initial_kib_per_s > 0
            && self.parameter.is_other_load(current_kib_per_s, initial_kib_per_s)
        {
            // `reset` keeps the pause, which belongs to the earlier load: it is ended here.
            self.quiet_until = now;
            let result = self.reset("another");
            self.begin_epoch(now);
            return result;
        }
        if self.setting.is_none() {
            self.all_kib_per_s = current_kib_per_s;
        }
        if self.epochs == MIN_SAMPLES && initial_kib_per_s == 0 {
            self.initial_kib_per_s = current_kib_per_s;
        }
        // The mean needs two epochs: the first of all at once includes the initial requests.
        if now < self.quiet_until || self.epochs < 2 || !may_start_trial() {
            return None;
        }
        let next_setting = match self.next_trial_is_all {
            true => None,
            false => self.next_setting_to_try(mean_depth),
        };
        self.next_trial_is_all = false;
        // Without another value to try, such as all at once under no setting, no trial starts.
        if next_setting != self.setting {
            self.trial =
                Some(SettingTrial { setting: next_setting, began: now, first_kib_per_s: None });
            self.epoch = MeasuringEpoch::default();
        }
        None
    }

    /// Returns the next setting to try, or the present one if the next would be 0. `None` stands
    /// for all at once. `mean_depth` is the mean number of requests in progress.
    fn next_setting_to_try(&self, mean_depth: u32) -> Option<u32> {
        match (self.parameter, self.setting) {
            (Parameter::Processes, None) => Some(1),
            (Parameter::Processes, Some(few)) => Some(2 * few),
            (Parameter::Requests, setting) => {
                let current = setting.unwrap_or(mean_depth);
                let next = if self.uses_fine_steps { 3 * current / 4 } else { current / 2 };
                if next == 0 { setting } else { Some(next) }
            }
        }
    }

    /// Evaluates the epoch of a trial, with the rate `kib_per_s`: keeps the tried setting, drops
    /// it, or repeats the trial. After a trial of all at once, the current setting is kept, raised
    /// or removed. Returns the new setting with the reason, or `None` if the setting stays.
    fn evaluate_trial(
        &mut self,
        now: Time,
        trial: SettingTrial,
        kib_per_s: u64,
        mean_depth: u32,
    ) -> Option<ProbeResult> {
        self.epoch = MeasuringEpoch::default();
        let trial_duration = now.since(trial.began);
        let setting_before = self.setting;
        let why = match trial.setting {
            None => {
                self.all_kib_per_s = kib_per_s;
                if self.parameter.is_enough(self.mean_kib_per_s, kib_per_s) {
                    return self.pause_trials(now, trial_duration);
                }
                // A limit raised to the depth that all at once reach would limit nothing.
                self.setting = match self.parameter {
                    Parameter::Processes => None,
                    Parameter::Requests => setting_before
                        .map(|limit| (4 * limit).div_ceil(3))
                        .filter(|&limit| limit < mean_depth),
                };
                // The setting was not enough: later steps are finer, and its mean begins again.
                (self.uses_fine_steps, self.epochs) = (true, 0);
                "less"
            }
            Some(_) => {
                let trial_kib_per_s =
                    trial.first_kib_per_s.map_or(kib_per_s, |first| (first + kib_per_s) / 2);
                // More processes at a time must also give a quarter more than the current number.
                let is_more = self.parameter == Parameter::Requests
                    || setting_before.is_none()
                    || 4 * trial_kib_per_s > 5 * self.mean_kib_per_s;
                if !(is_more && self.parameter.is_enough(trial_kib_per_s, self.all_kib_per_s)) {
                    // With a few dozen requests on a few disks the rate varies by a tenth: the
                    // trial is repeated once. `None`: the setting stays.
                    if self.parameter == Parameter::Requests && trial.first_kib_per_s.is_none() {
                        let first_kib_per_s = Some(kib_per_s);
                        self.trial = Some(SettingTrial { first_kib_per_s, ..trial });
                        self.begin_epoch(now);
                        return None;
                    }
                    // The finer step is tried without a pause. `None`: the setting stays.
                    if self.parameter == Parameter::Requests && !self.uses_fine_steps {
                        self.uses_fine_steps = true;
                        return None;
                    }
                    self.next_trial_is_all = self.setting.is_some();
                    return self.pause_trials(now, trial_duration);
                }
                self.setting = trial.setting;
                (self.mean_kib_per_s, self.epochs) = (trial_kib_per_s, 1);
                "enough"
            }
        };
        self.initial_kib_per_s = 0;
        // The rate of all at once may be only the initial rate of the device.
        self.next_trial_is_all = self.parameter == Parameter::Processes && self.setting.is_some();
        self.quiet_until = now;
        // After "enough" the mean is the rate of the trial, after "less" the rate before it.
        let (kib_per_s, all_kib_per_s) = (self.mean_kib_per_s, self.all_kib_per_s);
        Some(ProbeResult { setting: self.setting, why, kib_per_s, all_kib_per_s })
    }

    /// Starts a pause of 64 times `trial_duration`, after a trial without an improvement.
    /// Returns `None`: the setting stays.
    fn pause_trials(&mut self, now: Time, trial_duration: Time) -> Option<ProbeResult> {
        self.quiet_until = now + Time(DECAY_WINDOW * trial_duration.ns());
        None
    }
}

#[cfg(test)]
mod result_tests;
#[cfg(test)]
mod tests {
    use super::*;
    use crate::splitmix;
    use alloc::vec::Vec;

    /// A device with several processes, each reading one request of 64 KiB after another. Processes
    /// from `first_process` on are served, as many as the tuner allows.
    struct ProbeBench {
        process_limit: ThroughputTuner,
        now: Time,
        /// Completion time, dispatch time and process of each request.
        requests_in_progress: Vec<(Time, Time, usize)>,
        /// Number of processes.
        processes: usize,
        first_process: usize,
        /// State of the random numbers.
        seed: u64,
        /// Results of the tuner, with their times.
        log: Vec<(Time, ProbeResult)>,
    }

    /// Size of each request.
    const BYTES: u64 = 65_536;

    impl ProbeBench {
        fn new(processes: usize, seed: u64) -> ProbeBench {
            ProbeBench {
                process_limit: ThroughputTuner::new(Parameter::Processes),
                now: Time::ZERO,
                requests_in_progress: Vec::new(),
                processes,
                first_process: 0,
                seed,
                log: Vec::new(),
            }
        }

        /// Runs until `completions` more requests complete. `latency` returns their latency in ns,
        /// from the number in progress, this one included, and true after one of the same process.
        fn run(&mut self, completions: u32, latency: impl Fn(&mut ProbeBench, u64, bool) -> u64) {
            let mut last = usize::MAX;
            for _ in 0..completions {
                let limit = self.process_limit.allowed().map_or(self.processes, |few| few as usize);
                // Each served process without a request sends one.
                for nth in 0..limit.min(self.processes) {
                    let process = (self.first_process + nth) % self.processes;
                    let has_none = |&(.., other): &(Time, Time, usize)| other != process;
                    if self.requests_in_progress.iter().all(has_none) {
                        let count = self.requests_in_progress.len() as u64 + 1;
                        let latency_ns = latency(self, count, last == process);
                        let completion_time = self.now + Time(latency_ns);
                        self.requests_in_progress.push((completion_time, self.now, process));
                    }
                }
                self.requests_in_progress.sort_unstable();
                let (completion_time, _, process) = self.requests_in_progress[0];
                self.now = completion_time;
                let in_device = self.requests_in_progress.len() as u32;
                self.requests_in_progress.remove(0);
                last = process;
                let is_within_limit = |process: usize| {
                    (process + self.processes - self.first_process) % self.processes < limit
                };
                let is_undisturbed =
                    self.requests_in_progress.iter().all(|&(.., other)| is_within_limit(other));
                let served = ServedRead { bytes: BYTES, in_progress: in_device, is_undisturbed };
                let processes = self.processes as u32;
                let may_gain = self.process_limit.allowed().is_none_or(|few| 2 * few < processes);
                let result =
                    self.process_limit.record_completion(completion_time, served, || may_gain);
                self.log.extend(result.map(|result| (completion_time, result)));
                // Other processes are served after about a hundred requests.
                if splitmix::next(&mut self.seed).is_multiple_of(100) {
                    self.first_process = (self.first_process + limit) % self.processes;
                }
            }
        }

        /// The kept setting, without a trial.
        fn kept_setting(&self) -> Option<u32> {
            self.process_limit.setting
        }
    }

    /// Latency of one head in ns: 0.6 ms for the next request of the same process, 12 ms for any
    /// other, one request at a time.
    fn one_head_ns(_: &mut ProbeBench, requests_in_progress: u64, is_next: bool) -> u64 {
        if requests_in_progress == 1 && is_next {
            600_000
        } else {
            12_000_000 * requests_in_progress
        }
    }

    /// One process at a time is 20 times as fast as 16 processes at once.
    #[test]
    fn one_head_is_found_within_two_hundred_completions() {
        let mut bench = ProbeBench::new(16, 1);
        bench.run(200, one_head_ns);
        assert_eq!(bench.kept_setting(), Some(1), "{:?}", bench.log);
        bench.run(5_000, one_head_ns);
        assert_eq!(bench.kept_setting(), Some(1), "{:?}", bench.log);
        assert_eq!(bench.log.len(), 1, "it is found once: {:?}", bench.log);
    }

    /// Each request takes 0.2 ms, independent of the others.
    #[test]
    fn parallel_device_gets_no_process_limit() {
        let mut bench = ProbeBench::new(16, 1);
        let latency_ns = 200_000;
        bench.run(10_000, |_, _, _| latency_ns);
        assert_eq!(bench.log, []);
    }

    /// A request takes 0.1 ms alone, and one in 16 by chance. All others share 0.5 GB/s: 0.131 ms
    /// for each 64 KiB in progress.
    #[test]
    fn a_saturated_link_is_not_taken_for_a_head() {
        let mut bench = ProbeBench::new(16, 1);
        bench.run(10_000, |bench, requests_in_progress, _| {
            let is_lucky = splitmix::next(&mut bench.seed).is_multiple_of(16);
            if is_lucky { 100_000 } else { (131_000 * requests_in_progress).max(100_000) }
        });
        assert_eq!(bench.kept_setting(), None, "{:?}", bench.log);
        assert_eq!(bench.log, []);
    }

    /// Random latencies of 10 to 2,000 ms, as an object store's: no draw may lead to a limit.
    #[test]
    fn noise_is_never_taken_for_a_head() {
        for seed in 0..50 {
            let mut bench = ProbeBench::new([4, 16, 64][seed as usize % 3], seed);
            bench.run(5_000, |bench, _, _| {
                let slow_ms = [20, 20, 30, 30, 40, 60, 100, 150]
                    [splitmix::next(&mut bench.seed) as usize % 8];
                let outlier_ms =
                    if splitmix::next(&mut bench.seed).is_multiple_of(500) { 2_000 } else { 0 };
                (10 + splitmix::next(&mut bench.seed) % slow_ms + outlier_ms) * 1_000_000
            });
            assert!(
                bench.log.iter().all(|(_, tried)| tried.setting.is_none()),
                "seed {seed}: {:?}",
                bench.log
            );
        }
    }

    /// Four heads instead of one, each close to another process: each request takes 0.25 ms.
    #[test]
    fn added_members_are_detected_within_two_seconds() {
        let mut bench = ProbeBench::new(4, 1);
        bench.run(5_000, one_head_ns);
        assert_eq!(bench.kept_setting(), Some(1));
        let change_time = bench.now;
        let trials = bench.log.len();
        bench.run(20_000, |_, _, _| 250_000);
        let (removal_time, _) =
            bench.log[trials..].iter().find(|(_, result)| result.setting.is_none()).unwrap();
        let delay = removal_time.since(change_time);
        assert!(delay < Time::from_s(2), "{delay:?}");
        assert_eq!(bench.kept_setting(), None, "{:?}", bench.log);
    }
}
