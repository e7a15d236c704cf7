//! Which limit serves best: trials, and what they found.

use crate::unit::Time;

/// Completions in an epoch: twice what a disk queues, so that one queue's worth doesn't rule it.
const EPOCH: u32 = 64;

/// Completions after which a trial is given up that is clearly worse.
const EPOCH_HOPELESS: u32 = 16;

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
    /// The limit in force is measured. Entered at the start, and after each trial.
    Keeping,
    /// Another one is tried. Entered when a pause is over.
    Trying { before: Option<usize> },
}

/// The limit in force, and the search for a better one.
#[derive(Debug)]
pub(super) struct Trials {
    limit: Option<usize>,
    stage: Stage,
    /// Completions that still belong to what was sent under the limit before.
    foreign: u32,
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
            stage: Stage::Keeping,
            foreign: 0,
            began: None,
            completions: 0,
            bytes: 0,
            kept_kib_per_s: 0,
            pause: 1,
            pause_last: 1,
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
    /// and read near to where they read before; `backlog` requests were sent
    /// under the limit in force, and are not back.
    pub(super) fn completed(
        &mut self,
        now: Time,
        bytes: u64,
        near: usize,
        backlog: u32,
    ) -> Option<Tried> {
        if near < 2 {
            return self.rest(now);
        }
        if self.foreign > 0 {
            self.foreign -= 1;
            return None;
        }
        let Some(began) = self.began else {
            self.began = Some(now);
            return None;
        };
        self.completions += 1;
        self.bytes += bytes;
        let kib_per_s = self.bytes * 1_000_000 / 1024 * 1000 / now.since(began).ns().max(1);
        match self.stage {
            Stage::Keeping if self.completions == EPOCH => self.keep(now, kib_per_s, near, backlog),
            Stage::Trying { before } => {
                let is_hopeless =
                    self.completions == EPOCH_HOPELESS && 4 * kib_per_s < 3 * self.kept_kib_per_s;
                let is_over = self.completions == EPOCH || is_hopeless;
                is_over.then(|| self.judge(kib_per_s, before, backlog))
            }
            Stage::Keeping => None,
        }
    }

    /// Nobody is worth waiting for: everybody is active.
    fn rest(&mut self, now: Time) -> Option<Tried> {
        self.began = Some(now);
        (self.completions, self.bytes) = (0, 0);
        self.stage = Stage::Keeping;
        let tried = self.limit.map(|_| Tried {
            limit: None,
            why: "far",
            kib_per_s: 0,
            before_kib_per_s: self.kept_kib_per_s,
        });
        self.limit = None;
        tried
    }

    fn keep(&mut self, now: Time, kib_per_s: u64, near: usize, backlog: u32) -> Option<Tried> {
        if 2 * kib_per_s < self.kept_kib_per_s {
            (self.pause, self.pause_last) = (1, 1);
        }
        self.kept_kib_per_s = kib_per_s;
        self.pause -= 1;
        if self.pause > 0 {
            self.begin_epoch(Some(now), 0);
            return None;
        }
        let before = self.limit;
        self.limit = self.candidate(near);
        self.stage = Stage::Trying { before };
        self.begin_epoch(None, backlog);
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

    fn judge(&mut self, kib_per_s: u64, before: Option<usize>, backlog: u32) -> Tried {
        let before_kib_per_s = self.kept_kib_per_s;
        let is_better = 20 * kib_per_s > 21 * before_kib_per_s;
        if is_better {
            self.kept_kib_per_s = kib_per_s;
            self.pause_last = 1;
        } else {
            self.limit = before;
            self.pause_last = (4 * self.pause_last).min(PAUSE_MAX);
        }
        self.pause = self.pause_last;
        self.stage = Stage::Keeping;
        self.begin_epoch(None, if is_better { 0 } else { backlog });
        let why = if is_better { "better" } else { "worse" };
        Tried { limit: self.limit, why, kib_per_s, before_kib_per_s }
    }

    fn begin_epoch(&mut self, began: Option<Time>, foreign: u32) {
        self.began = began;
        self.foreign = foreign;
        (self.completions, self.bytes) = (0, 0);
    }
}
