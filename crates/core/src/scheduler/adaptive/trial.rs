//! Which limit serves best: trials, and what they found.

use crate::unit::Time;

/// Completions in an epoch: twice what a disk queues, so that one queue's worth doesn't rule it.
const EPOCH: u32 = 64;

/// No epoch is shorter: what disks have in their buffers comes in bursts of some tens
/// of milliseconds.
const EPOCH_MIN: Time = Time::from_ms(50);

/// Completions in the first two epochs, which find out the coarse truth: one head or many.
const EPOCH_FIRST: u32 = 16;

/// A trial is given up after so many completions if it has less than half of the rate.
const COMPLETIONS_HOPELESS: u32 = 16;

/// A trial is given up after so many completions if it has less than three quarters.
const COMPLETIONS_POOR: u32 = 32;

/// Completions after which all are taken to have had one since they may be active again.
const PROCESSES_SETTLING: usize = 16;

/// The first pause between two trials, in epochs.
const PAUSE_FIRST: u32 = 4;

/// The longest pause between two trials, in epochs: a trial that costs half an
/// epoch costs less than a hundredth then.
const PAUSE_MAX: u32 = 64;

/// What a trial has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tried {
    /// The limit from now on; `None`: none.
    pub limit: Option<usize>,
    /// Why.
    pub why: &'static str,
    /// The rate that decided it.
    pub kib_per_s: u64,
    /// The rate that it was held against.
    pub before_kib_per_s: u64,
}

/// What goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nobody is worth waiting for. Entered at the start, and when that becomes so.
    Resting,
    /// All are served, and measured. Entered when somebody is worth waiting for.
    Beginning,
    /// The limit in force is measured. Entered after each trial.
    Keeping,
    /// Another one is tried, for so many completions. Entered when a pause is over.
    Trying { before: Option<usize>, epoch: u32 },
}

/// The limit in force, and the search for a better one.
#[derive(Debug)]
pub(super) struct Trials {
    limit: Option<usize>,
    stage: Stage,
    /// Completions until all who may be active now have had one.
    settling: usize,
    began: Option<Time>,
    completions: u32,
    bytes: u64,
    /// The rate under the limit that is kept.
    kept_kib_per_s: u64,
    /// Epochs until the next trial, and how many that were after the last.
    pause: u32,
    pause_last: u32,
    /// Which limit is tried next.
    turn: usize,
}

impl Default for Trials {
    fn default() -> Trials {
        Trials {
            limit: None,
            stage: Stage::Resting,
            settling: 0,
            began: None,
            completions: 0,
            bytes: 0,
            kept_kib_per_s: 0,
            pause: PAUSE_FIRST,
            pause_last: PAUSE_FIRST,
            turn: 0,
        }
    }
}

impl Trials {
    /// How many processes may be active; `None`: all.
    pub(super) fn limit(&self) -> Option<usize> {
        self.limit
    }

    /// The device is done with so many bytes. `near` processes want something
    /// and read near to where they read before; `is_clean`: nothing
    /// is on its way any more that was sent under another limit.
    pub(super) fn completed(
        &mut self,
        now: Time,
        bytes: u64,
        near: usize,
        is_clean: bool,
    ) -> Option<Tried> {
        if near < 2 {
            return self.rest(now);
        }
        if self.stage == Stage::Resting {
            self.stage = Stage::Beginning;
            self.begin_epoch(Some(now));
            return None;
        }
        if self.began.is_none() && (!is_clean || self.settling > 0) {
            self.settling = self.settling.saturating_sub(1);
            return None;
        }
        let Some(began) = self.began else {
            self.began = Some(now);
            return None;
        };
        self.completions += 1;
        self.bytes += bytes;
        let kib_per_s = self.bytes * 1_000_000 / 1024 * 1000 / now.since(began).ns().max(1);
        let is_long = now.since(began) >= EPOCH_MIN;
        match self.stage {
            Stage::Keeping if self.completions >= EPOCH && is_long => {
                self.keep(now, kib_per_s, near)
            }
            Stage::Beginning if self.completions >= EPOCH_FIRST && is_long => {
                self.kept_kib_per_s = kib_per_s;
                self.limit = Some(1);
                self.stage = Stage::Trying { before: None, epoch: EPOCH_FIRST };
                self.begin_epoch(None);
                Some(Tried { limit: Some(1), why: "try", kib_per_s, before_kib_per_s: kib_per_s })
            }
            Stage::Trying { before, epoch } => {
                let kept = self.kept_kib_per_s;
                let is_hopeless = self.completions >= COMPLETIONS_HOPELESS && 2 * kib_per_s < kept;
                let is_poor = self.completions >= COMPLETIONS_POOR && 4 * kib_per_s < 3 * kept;
                let is_over = self.completions >= epoch && is_long || is_hopeless || is_poor;
                is_over.then(|| self.judge(kib_per_s, before))
            }
            Stage::Resting | Stage::Beginning | Stage::Keeping => None,
        }
    }

    /// Nobody is worth waiting for: everybody is active.
    fn rest(&mut self, now: Time) -> Option<Tried> {
        self.began = Some(now);
        (self.completions, self.bytes) = (0, 0);
        self.stage = Stage::Resting;
        let tried = self.limit.map(|_| Tried {
            limit: None,
            why: "far",
            kib_per_s: 0,
            before_kib_per_s: self.kept_kib_per_s,
        });
        self.limit = None;
        tried
    }

    fn keep(&mut self, now: Time, kib_per_s: u64, near: usize) -> Option<Tried> {
        if 2 * kib_per_s < self.kept_kib_per_s {
            (self.pause, self.pause_last) = (1, PAUSE_FIRST);
        }
        self.kept_kib_per_s = kib_per_s;
        self.pause -= 1;
        if self.pause > 0 {
            self.begin_epoch(Some(now));
            return None;
        }
        let before = self.limit;
        self.limit = self.candidate(near);
        self.stage = Stage::Trying { before, epoch: EPOCH };
        self.begin_epoch(None);
        Some(Tried { limit: self.limit, why: "try", kib_per_s, before_kib_per_s: kib_per_s })
    }

    /// The next limit to try, other than the one in force.
    fn candidate(&mut self, near: usize) -> Option<usize> {
        let all = [Some(1), Some(4), Some(2), Some(8), Some(16), None];
        let is_one =
            |limit: Option<usize>| limit.is_none_or(|limit| limit < near) && limit != self.limit;
        for _ in 0..all.len() {
            let limit = all[self.turn % all.len()];
            self.turn += 1;
            if is_one(limit) {
                return limit;
            }
        }
        None
    }

    fn judge(&mut self, kib_per_s: u64, before: Option<usize>) -> Tried {
        let before_kib_per_s = self.kept_kib_per_s;
        let is_better = 20 * kib_per_s > 21 * before_kib_per_s;
        if is_better {
            self.kept_kib_per_s = kib_per_s;
            self.pause_last = PAUSE_FIRST;
        } else {
            self.limit = before;
            self.pause_last = (4 * self.pause_last).min(PAUSE_MAX);
        }
        self.pause = self.pause_last;
        self.stage = Stage::Keeping;
        self.begin_epoch(None);
        let why = if is_better { "better" } else { "worse" };
        Tried { limit: self.limit, why, kib_per_s, before_kib_per_s }
    }

    fn begin_epoch(&mut self, began: Option<Time>) {
        self.began = began;
        self.settling = if self.limit.is_none() { PROCESSES_SETTLING } else { 0 };
        (self.completions, self.bytes) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Completions of 64 KiB on a device that takes `ns(limit)` for each; gives the
    /// limit in force after them.
    fn limits(
        trials: &mut Trials,
        now: &mut Time,
        completions: u32,
        near: usize,
        ns: impl Fn(Option<usize>) -> u64,
    ) -> Option<usize> {
        for _ in 0..completions {
            *now += Time(ns(trials.limit()));
            trials.completed(*now, 65_536, near, true);
        }
        trials.limit()
    }

    #[test]
    fn one_head_is_found_within_a_hundred_completions_and_many_are_too() {
        // 8 ms with a seek each, 0.6 ms without: one disk.
        let disk = |limit| if limit == Some(1) { 600_000 } else { 8_000_000 };
        let (mut trials, mut now) = (Trials::default(), Time::ZERO);
        assert_eq!(limits(&mut trials, &mut now, 100, 4, disk), Some(1));
        // The work of one is 0.2 ms, of all together 0.05 ms each: a drive without a head.
        let drive = |limit| if limit == Some(1) { 200_000 } else { 50_000 };
        let (mut trials, mut now) = (Trials::default(), Time::ZERO);
        let completions = 50 * 1_000_000 / 50_000 + 100;
        assert_eq!(limits(&mut trials, &mut now, completions, 4, drive), None);
    }

    #[test]
    fn a_change_of_the_device_is_found_within_five_hundred_completions() {
        let disk = |limit| if limit == Some(1) { 600_000 } else { 8_000_000 };
        let (mut trials, mut now) = (Trials::default(), Time::ZERO);
        assert_eq!(limits(&mut trials, &mut now, 100, 4, disk), Some(1));
        // Members were added: one alone gets what it got, all together four times as much.
        let array = |limit: Option<usize>| match limit {
            Some(limit) => 600_000 / limit.min(4) as u64,
            None => 150_000,
        };
        limits(&mut trials, &mut now, 500, 4, array);
        assert_ne!(trials.limit(), Some(1));
    }

    #[test]
    fn where_nobody_is_near_nothing_is_tried() {
        let (mut trials, mut now) = (Trials::default(), Time::ZERO);
        for _ in 0..1000 {
            now += Time::from_ms(8);
            assert_eq!(trials.completed(now, 4096, 1, true), None);
        }
        assert_eq!(trials.limit(), None);
    }
}
