//! One setting, and whether another serves better: how many processes at a time, or how many
//! requests under way.
//!
//! Both are found in one way. What the device brings is measured in *epochs*, of 32 ms and sixteen completions at
//! least; what a setting brings is the mean of its newest four. What *all at once*
//! bring is what a setting is held against: it is *enough* where it brings a part of that, five
//! quarters for a few processes, who make the others wait, and seven eighths for a few requests, of which the
//! others only wait longer. The law in words:
//!
//! - While nothing is set all come at once, and that is measured.
//! - A *trial* sets another for two epochs, once what was sent before is gone. One that is enough is
//!   kept. It is given up as soon as it has fallen behind by the longest way of a head; that of all at once, too, once it
//!   brings less than four fifths of what a few processes do.
//! - Trials are of *all at once*, by which what is enough is measured anew, and what is set is given
//!   up, or raised by a third, if it isn't any more; or of the *next* setting. For requests that is half of what is
//!   set, and from the first that was not enough on three quarters; for processes one, and then twice as
//!   many, which must bring a quarter more. After a next setting of processes that was enough, and of requests that wasn't, all at
//!   once come next: what a device brings at first is not what it goes on to bring.
//! - After a trial that found nothing better nothing is tried for 64 times as long as it took.
//! - A rate that halves or doubles (of requests: changes by half) is another device's, or another load's:
//!   nothing is set then.
//!
//! Why it stays where it is: a setting is left only for one that is enough, or for none because it isn't
//! itself; both are measured against the same, and what is enough doesn't depend on what is set.

use crate::observed::{DECAY_WINDOW, EWMA_WINDOW, MIN_SAMPLES};
use crate::unit::Time;

/// No epoch is shorter, and no trial falls further behind: the longest that a head takes to get
/// anywhere, a full stroke of 18 ms, a revolution of 8, and some more for an old disk.
pub(super) const EPOCH_TIME: Time = Time::from_ms(32);

/// What is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parameter {
    /// How many processes are served at a time.
    Processes,
    /// How many requests are under way.
    Requests,
}

impl Parameter {
    /// Whether a rate is enough, where all at once bring that.
    fn is_enough(self, kib_per_s: u64, all_kib_per_s: u64) -> bool {
        match self {
            Parameter::Processes => 4 * kib_per_s > 5 * all_kib_per_s,
            Parameter::Requests => 8 * kib_per_s >= 7 * all_kib_per_s,
        }
    }

    /// Whether a rate that was `before` is that of another device, or of another load: who is served
    /// in turns brings now more and now less.
    fn is_other_load(self, kib_per_s: u64, before: u64) -> bool {
        match self {
            Parameter::Processes => 2 * kib_per_s < before || kib_per_s > 2 * before,
            Parameter::Requests => 3 * kib_per_s < 2 * before || 2 * kib_per_s > 3 * before,
        }
    }
}

/// A read that the device is done with.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServedRead {
    pub bytes: u64,
    /// How many are in the device or on their way there, this one included.
    pub under_way: u32,
    /// Whether none of them was sent under another setting.
    pub is_settled: bool,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeResult {
    /// The setting from now on; `None`: all at once.
    pub setting: Option<u32>,
    /// Why.
    pub why: &'static str,
    /// The rate that decided it.
    pub kib_per_s: u64,
    /// What all at once bring.
    pub all_kib_per_s: u64,
}

/// A setting that is tried.
#[derive(Clone, Copy, Debug)]
struct SettingTrial {
    setting: Option<u32>,
    began: Time,
    /// What it brought at first, where that was not enough.
    first_kib_per_s: Option<u64>,
}

/// What came back since the last change.
#[derive(Clone, Copy, Debug, Default)]
struct MeasuringEpoch {
    /// `None` while what was sent before is under way.
    began: Option<Time>,
    /// The newest of what is counted: many may end at one instant, and an epoch has all or none.
    newest: Time,
    passed: u32,
    completions: u32,
    bytes: u64,
    /// Sum over the completions of how many were under way.
    under_way: u64,
}

impl MeasuringEpoch {
    fn kib_per_s(&self, until: Time) -> u64 {
        let span_ns = self.began.map_or(0, |began| until.since(began).ns());
        self.bytes * 1_000_000 / 1024 * 1000 / span_ns.max(1)
    }
}

/// The setting in force, and the search for a better one.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThroughputTuner {
    parameter: Parameter,
    setting: Option<u32>,
    trial: Option<SettingTrial>,
    epoch: MeasuringEpoch,
    /// What all at once bring, and what the setting does.
    all_kib_per_s: u64,
    kept_kib_per_s: u64,
    /// What it brought when it was new; 0 before that is known.
    reference_kib_per_s: u64,
    /// Of how many epochs what it brings is the mean, up to [`MIN_SAMPLES`].
    epochs: u64,
    /// Whether the next trial is of all at once.
    next_trial_is_all: bool,
    /// Whether a half was not enough.
    uses_fine_steps: bool,
    quiet_until: Time,
}

impl ThroughputTuner {
    pub(super) fn new(parameter: Parameter) -> ThroughputTuner {
        ThroughputTuner {
            parameter,
            setting: None,
            trial: None,
            epoch: MeasuringEpoch::default(),
            all_kib_per_s: 0,
            kept_kib_per_s: 0,
            reference_kib_per_s: 0,
            epochs: 0,
            next_trial_is_all: false,
            uses_fine_steps: false,
            quiet_until: Time::ZERO,
        }
    }

    /// One that allows so many.
    #[cfg(test)]
    pub(super) fn at(parameter: Parameter, setting: u32) -> ThroughputTuner {
        ThroughputTuner { setting: Some(setting), ..ThroughputTuner::new(parameter) }
    }

    /// How many are allowed; `None`: all.
    pub(super) fn allowed(&self) -> Option<u32> {
        self.trial.map_or(self.setting, |trial| trial.setting)
    }

    /// The device is done with a read. `may_try` is asked before a trial: whether one can gain.
    pub(super) fn completed(
        &mut self,
        now: Time,
        served: ServedRead,
        may_try: impl FnOnce() -> bool,
    ) -> Option<ProbeResult> {
        let epochs = 1 + u32::from(self.trial.is_some());
        let allowed = self.allowed();
        let epoch = &mut self.epoch;
        let Some(began) = epoch.began else {
            // Those that waited beside what was sent before come sooner than others will.
            epoch.passed += u32::from(served.is_settled);
            if epoch.passed > allowed.unwrap_or(served.under_way) {
                *epoch =
                    MeasuringEpoch { began: Some(now), newest: now, ..MeasuringEpoch::default() };
            }
            return None;
        };
        let is_late = now > epoch.newest;
        let round = (EWMA_WINDOW as u32).max(match self.parameter {
            Parameter::Processes => 0,
            Parameter::Requests => allowed.unwrap_or(served.under_way),
        });
        let took = epoch.newest.since(began);
        let is_whole = epoch.completions >= epochs * round
            && took >= Time(u64::from(epochs) * EPOCH_TIME.ns());
        if is_late && (is_whole || self.is_behind(took)) {
            let ended = self.epoch;
            self.begin_epoch(ended.newest);
            return self.judge(ended, may_try);
        }
        if now > began {
            self.epoch.completions += 1;
            self.epoch.bytes += served.bytes;
            self.epoch.under_way += u64::from(served.under_way);
        }
        self.epoch.newest = now;
        None
    }

    /// Whether a trial has taken too long for what it brought.
    fn is_behind(&self, took: Time) -> bool {
        let Some(trial) = self.trial else { return false };
        let usual = self.all_kib_per_s.min(self.kept_kib_per_s);
        let enough = match (self.parameter, trial.setting) {
            (Parameter::Processes, Some(_)) => usual,
            (Parameter::Requests, Some(_)) => 7 * usual / 8,
            // As much as makes what is set not enough.
            (Parameter::Processes, None) => 4 * self.kept_kib_per_s / 5,
            // All at once cost nothing but time.
            (Parameter::Requests, None) => return false,
        };
        let would_take_ns = self.epoch.bytes * 1_000_000 / 1024 * 1000 / enough.max(1);
        took.ns().saturating_sub(would_take_ns) > EPOCH_TIME.ns()
    }

    /// Nothing is set any more.
    pub(super) fn reset(&mut self, why: &'static str) -> Option<ProbeResult> {
        let was_set = self.allowed().is_some();
        let (kib_per_s, all_kib_per_s) = (self.kept_kib_per_s, self.all_kib_per_s);
        *self = ThroughputTuner {
            quiet_until: self.quiet_until,
            ..ThroughputTuner::new(self.parameter)
        };
        was_set.then_some(ProbeResult { setting: None, why, kib_per_s, all_kib_per_s })
    }

    fn begin_epoch(&mut self, now: Time) {
        self.epoch = MeasuringEpoch { began: Some(now), newest: now, ..MeasuringEpoch::default() };
    }

    fn judge(
        &mut self,
        epoch: MeasuringEpoch,
        may_try: impl FnOnce() -> bool,
    ) -> Option<ProbeResult> {
        let now = epoch.newest;
        let kib_per_s = epoch.kib_per_s(now);
        let mean = (epoch.under_way / u64::from(epoch.completions.max(1))) as u32;
        let is_asked =
            |setting: u32| self.parameter == Parameter::Processes || 4 * mean >= 3 * setting;
        if self.allowed().is_some_and(|setting| !is_asked(setting)) {
            // Programs that ask for less than they may tell nothing.
            self.trial = None;
            return None;
        }
        match self.trial.take() {
            Some(trial) => self.tried(now, trial, kib_per_s, mean),
            None => self.went_on(now, kib_per_s, mean, may_try),
        }
    }

    /// An epoch under the setting that is kept.
    fn went_on(
        &mut self,
        now: Time,
        kib_per_s: u64,
        mean: u32,
        may_try: impl FnOnce() -> bool,
    ) -> Option<ProbeResult> {
        let before = self.kept_kib_per_s;
        self.epochs = (self.epochs + 1).min(MIN_SAMPLES);
        self.kept_kib_per_s = (before * (self.epochs - 1) + kib_per_s) / self.epochs;
        let (kept, usual) = (self.kept_kib_per_s, self.reference_kib_per_s);
        if self.epochs == MIN_SAMPLES && usual > 0 && self.parameter.is_other_load(kept, usual) {
            self.quiet_until = now;
            let was_set = self.reset("another");
            self.begin_epoch(now);
            return was_set;
        }
        if self.setting.is_none() {
            self.all_kib_per_s = kept;
        }
        if self.epochs == MIN_SAMPLES && usual == 0 {
            self.reference_kib_per_s = kept;
        }
        // The first epoch of all has what came first.
        if now < self.quiet_until || self.epochs < 2 || !may_try() {
            return None;
        }
        let next = if self.next_trial_is_all { None } else { self.next(mean) };
        self.next_trial_is_all = false;
        if next != self.setting {
            self.trial = Some(SettingTrial { setting: next, began: now, first_kib_per_s: None });
            self.epoch = MeasuringEpoch::default();
        }
        None
    }

    /// The setting that is tried next.
    fn next(&self, mean: u32) -> Option<u32> {
        match (self.parameter, self.setting) {
            (Parameter::Processes, None) => Some(1),
            (Parameter::Processes, Some(few)) => Some(2 * few),
            (Parameter::Requests, setting) => {
                let now = setting.unwrap_or(mean);
                let next = if self.uses_fine_steps { 3 * now / 4 } else { now / 2 };
                if next == 0 { setting } else { Some(next) }
            }
        }
    }

    fn tried(
        &mut self,
        now: Time,
        trial: SettingTrial,
        kib_per_s: u64,
        mean: u32,
    ) -> Option<ProbeResult> {
        self.epoch = MeasuringEpoch::default();
        let took = now.since(trial.began);
        let before = self.setting;
        let why = match trial.setting {
            None => {
                self.all_kib_per_s = kib_per_s;
                if self.parameter.is_enough(self.kept_kib_per_s, kib_per_s) {
                    return self.rest(now, took);
                }
                self.setting = match self.parameter {
                    Parameter::Processes => None,
                    Parameter::Requests => {
                        before.map(|few| (4 * few).div_ceil(3)).filter(|&it| it < mean)
                    }
                };
                self.uses_fine_steps = true;
                self.epochs = 0;
                "less"
            }
            Some(_) => {
                let kib_per_s =
                    trial.first_kib_per_s.map_or(kib_per_s, |first| (first + kib_per_s) / 2);
                let is_more = self.parameter == Parameter::Requests
                    || before.is_none()
                    || 4 * kib_per_s > 5 * self.kept_kib_per_s;
                if !(is_more && self.parameter.is_enough(kib_per_s, self.all_kib_per_s)) {
                    // Some tens of requests to a few disks vary by a tenth: they say it twice.
                    if self.parameter == Parameter::Requests && trial.first_kib_per_s.is_none() {
                        self.trial =
                            Some(SettingTrial { first_kib_per_s: Some(kib_per_s), ..trial });
                        self.begin_epoch(now);
                        return None;
                    }
                    // What is finer is tried at once.
                    if self.parameter == Parameter::Requests && !self.uses_fine_steps {
                        self.uses_fine_steps = true;
                        return None;
                    }
                    self.next_trial_is_all = self.setting.is_some();
                    return self.rest(now, took);
                }
                self.setting = trial.setting;
                (self.kept_kib_per_s, self.epochs) = (kib_per_s, 1);
                "enough"
            }
        };
        self.reference_kib_per_s = 0;
        // What all at once brought before may be what the device brings at first.
        self.next_trial_is_all = self.parameter == Parameter::Processes && self.setting.is_some();
        self.quiet_until = now;
        let all_kib_per_s = self.all_kib_per_s;
        Some(ProbeResult { setting: self.setting, why, kib_per_s, all_kib_per_s })
    }

    /// Nothing better was found: nothing is tried for a while.
    fn rest(&mut self, now: Time, took: Time) -> Option<ProbeResult> {
        self.quiet_until = now + Time(DECAY_WINDOW * took.ns());
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splitmix;

    /// A device in front of which so many processes read one request of 64 KiB after the other.
    struct ProbeBench {
        places: ThroughputTuner,
        now: Time,
        /// When the request of each is back, and when it was sent.
        under_way: Vec<(Time, Time, usize)>,
        processes: usize,
        turn: usize,
        seed: u64,
        log: Vec<(Time, ProbeResult)>,
    }

    use alloc::vec::Vec;

    const BYTES: u64 = 65_536;

    impl ProbeBench {
        fn new(processes: usize, seed: u64) -> ProbeBench {
            ProbeBench {
                places: ThroughputTuner::new(Parameter::Processes),
                now: Time::ZERO,
                under_way: Vec::new(),
                processes,
                turn: 0,
                seed,
                log: Vec::new(),
            }
        }

        /// Until so many completions more. `latency` knows the number of requests that
        /// are under way, this one included, and whether its process was served last.
        fn run(&mut self, completions: u32, latency: impl Fn(&mut ProbeBench, u64, bool) -> u64) {
            let mut last = usize::MAX;
            for _ in 0..completions {
                let limit = self.places.allowed().map_or(self.processes, |few| few as usize);
                for nth in 0..limit.min(self.processes) {
                    let process = (self.turn + nth) % self.processes;
                    if self.under_way.iter().all(|&(.., of)| of != process) {
                        let count = self.under_way.len() as u64 + 1;
                        let back = self.now + Time(latency(self, count, last == process));
                        self.under_way.push((back, self.now, process));
                    }
                }
                self.under_way.sort_unstable();
                let (back, _, process) = self.under_way[0];
                self.now = back;
                let in_device = self.under_way.len() as u32;
                self.under_way.remove(0);
                last = process;
                let own = |process: usize| {
                    (process + self.processes - self.turn) % self.processes < limit
                };
                let foreign = self.under_way.iter().filter(|&&(.., of)| !own(of)).count() as u32;
                let served =
                    ServedRead { bytes: BYTES, under_way: in_device, is_settled: foreign == 0 };
                let processes = self.processes as u32;
                let may_gain = self.places.allowed().is_none_or(|few| 2 * few < processes);
                let found = self.places.completed(back, served, || may_gain);
                self.log.extend(found.map(|found| (back, found)));
                // A turn of a hundred requests.
                if splitmix::next(&mut self.seed).is_multiple_of(100) {
                    self.turn = (self.turn + limit) % self.processes;
                }
            }
        }

        /// What is kept; a trial isn't.
        fn kept(&self) -> Option<u32> {
            self.places.setting
        }
    }

    /// 12 ms to anywhere, 0.6 ms to what lies next; one after the other.
    fn one_head(_: &mut ProbeBench, under_way: u64, is_next: bool) -> u64 {
        if under_way == 1 && is_next { 600_000 } else { 12_000_000 * under_way }
    }

    #[test]
    fn one_head_is_found_within_two_hundred_completions() {
        let mut bench = ProbeBench::new(16, 1);
        bench.run(200, one_head);
        assert_eq!(bench.kept(), Some(1), "{:?}", bench.log);
        bench.run(5_000, one_head);
        assert_eq!(bench.kept(), Some(1), "{:?}", bench.log);
        assert_eq!(bench.log.len(), 1, "it is found once: {:?}", bench.log);
    }

    #[test]
    fn a_parallel_device_keeps_no_limit() {
        let mut bench = ProbeBench::new(16, 1);
        bench.run(10_000, |_, _, _| 200_000);
        assert_eq!(bench.log, []);
    }

    #[test]
    fn a_saturated_link_is_not_taken_for_a_head() {
        // 0.1 ms alone, and for some that are lucky; 0.5 GB/s for all.
        let mut bench = ProbeBench::new(16, 1);
        bench.run(10_000, |bench, under_way, _| {
            let is_lucky = splitmix::next(&mut bench.seed).is_multiple_of(16);
            if is_lucky { 100_000 } else { (131_000 * under_way).max(100_000) }
        });
        assert_eq!(bench.kept(), None, "{:?}", bench.log);
        assert_eq!(bench.log, []);
    }

    /// Latencies of 10 to 2,000 ms that tell nothing, as an object store's: whatever is drawn, a
    /// limit is never kept.
    #[test]
    fn noise_is_never_taken_for_a_head() {
        for seed in 0..50 {
            let mut bench = ProbeBench::new([4, 16, 64][seed as usize % 3], seed);
            bench.run(5_000, |bench, _, _| {
                let slow = [20, 20, 30, 30, 40, 60, 100, 150]
                    [splitmix::next(&mut bench.seed) as usize % 8];
                let outlier =
                    if splitmix::next(&mut bench.seed).is_multiple_of(500) { 2_000 } else { 0 };
                (10 + splitmix::next(&mut bench.seed) % slow + outlier) * 1_000_000
            });
            assert!(
                bench.log.iter().all(|(_, tried)| tried.setting.is_none()),
                "seed {seed}: {:?}",
                bench.log
            );
        }
    }

    /// Four heads in place of one, each at hand for another process.
    #[test]
    fn members_that_are_added_are_found_within_two_seconds() {
        let mut bench = ProbeBench::new(4, 1);
        bench.run(5_000, one_head);
        assert_eq!(bench.kept(), Some(1));
        let changed = bench.now;
        let trials = bench.log.len();
        bench.run(20_000, |_, _, _| 250_000);
        let (found, _) =
            bench.log[trials..].iter().find(|(_, found)| found.setting.is_none()).unwrap();
        assert!(found.since(changed) < Time::from_s(2), "{:?}", found.since(changed));
        assert_eq!(bench.kept(), None, "{:?}", bench.log);
    }
}
