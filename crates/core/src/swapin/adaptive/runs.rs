//! The runs of faults in one space: the addresses of a mapping, or the slots.

use alloc::vec::Vec;

use crate::survival::Survival;
use crate::unit::PageRange;

/// How many runs of one space are followed: 64 processes on one mapping, and as
/// many faults that may turn out to begin one. Beyond it the one that was not
/// seen longest has ended.
const RUNS_MAX: u64 = 128;

/// Nor is more than one place of so many the last of a run: where most places
/// are next to one, a random fault continues some run by chance.
const PLACES_PER_RUN: u64 = 64;
const RUNS_MAX_LEAST: u64 = 4;

/// How far a fault may be from the last one of its run: a quarter of the faults
/// that the run has, and so many places. Programs touch pages that are in memory
/// without a fault, and in the slots one of several may lag behind the others.
const GAP_PER_LENGTH: u64 = 4;
const GAP_PLACES_MAX: u64 = 64;

/// Of so many places that a run has come by the newer half counts for as much as all before.
const PLACES_REMEMBERED: u64 = 64;

/// Where a run goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One fault was seen.
    Open,
    /// Upwards.
    Forward,
    /// Downwards.
    Backward,
}

/// Faults, one next to the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    way: Way,
    /// The place of its fault that went furthest.
    last: u64,
    /// Whether it is taken to have ended, as another has begun since.
    has_ended: bool,
    /// How many faults it has.
    pub(super) length: u64,
    /// Of the places that it has come by, those that it had a fault on, and
    /// those that were absent and that it passed over.
    used: u64,
    passed_over: u64,
    /// The places that it is likely enough to come to.
    pub(super) ahead: PageRange,
    /// The place from which on it is to be seen whether more is to be read.
    due: u64,
}

/// All that are followed, the one that was seen last at the end.
#[derive(Clone, Debug)]
pub(super) struct Runs {
    runs: Vec<Run>,
    lengths: Survival,
    /// Whether the last fault that continued a run did so downwards.
    is_backward: bool,
}

impl Default for Runs {
    fn default() -> Runs {
        Runs { runs: Vec::new(), lengths: Survival::of_requests(), is_backward: false }
    }
}

/// What is foreseen of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Horizon {
    /// The end of the space.
    pub(super) places: u64,
    /// How likely a place must be, of [`CERTAIN`](crate::survival::CERTAIN).
    pub(super) likelihood_min: u64,
    /// How many places, at most.
    pub(super) pages_max: u64,
}

impl Runs {
    /// A fault at `place`: it continues a run, or begins one, which is the newest from now on.
    pub(super) fn fault(
        &mut self,
        place: u64,
        horizon: Horizon,
        is_absent: impl Fn(u64) -> bool,
    ) -> Run {
        let at = self.runs.iter().rposition(|run| run.is_continued_at(place));
        let mut run = match at {
            Some(at) => {
                let mut run = self.runs.remove(at);
                let before = run.length;
                run.advance(place, is_absent);
                if core::mem::take(&mut run.has_ended) {
                    self.lengths.goes_on_after_all(before);
                }
                self.lengths.grew(before, run.length);
                self.is_backward = run.way == Way::Backward;
                run
            }
            None => {
                let runs_max = (horizon.places / PLACES_PER_RUN).clamp(RUNS_MAX_LEAST, RUNS_MAX);
                if self.runs.len() as u64 >= runs_max {
                    self.runs.remove(0);
                }
                if let Some(last) = self.runs.last_mut().filter(|last| !last.has_ended) {
                    last.has_ended = true;
                    self.lengths.ended(last.length);
                }
                Run::begun(place)
            }
        };
        run.ahead = self.foreseen(&run, horizon);
        self.runs.push(run);
        run
    }

    /// The run of the last fault.
    pub(super) fn newest_mut(&mut self) -> &mut Run {
        self.runs.last_mut().expect("there was a fault")
    }

    /// Whether some run is likely to come to the place.
    pub(super) fn foresee(&self, place: u64) -> bool {
        self.runs.iter().rev().any(|run| run.ahead.contains(place))
    }

    fn foreseen(&self, run: &Run, horizon: Horizon) -> PageRange {
        // Of the places that the run comes to it uses as many as of those before.
        let likelihood_min = horizon.likelihood_min * (run.used + run.passed_over) / run.used;
        let pages = self.lengths.pages_ahead(run.length, likelihood_min, horizon.pages_max);
        let is_backward = match run.way {
            Way::Open => self.is_backward,
            way => way == Way::Backward,
        };
        match is_backward {
            true => PageRange { first: run.last.saturating_sub(pages), end: run.last },
            false => PageRange::new(run.last + 1, pages).clipped(horizon.places),
        }
    }
}

impl Run {
    fn begun(place: u64) -> Run {
        Run {
            way: Way::Open,
            last: place,
            has_ended: false,
            length: 1,
            used: 1,
            passed_over: 0,
            ahead: PageRange::default(),
            due: place,
        }
    }

    /// Whether what is ahead lies below.
    pub(super) fn is_backward(&self) -> bool {
        self.ahead.end <= self.last
    }

    /// Places in the order in which the run comes to them.
    pub(super) fn outward(&self, range: PageRange) -> impl Iterator<Item = u64> + use<> {
        let PageRange { first, end } = range;
        let is_backward = self.is_backward();
        (first..end).map(move |at| if is_backward { first + (end - 1 - at) } else { at })
    }

    /// The part of `range` that holds the nearest `count` places, at least 1, of which `is_wanted`.
    pub(super) fn nearest(
        &self,
        range: PageRange,
        count: u64,
        is_wanted: impl Fn(u64) -> bool,
    ) -> PageRange {
        let mut wanted = self.outward(range).filter(|&place| is_wanted(place));
        match (wanted.nth(count as usize - 1), self.is_backward()) {
            (None, _) => range,
            (Some(place), true) => PageRange { first: place, ..range },
            (Some(place), false) => PageRange { end: place + 1, ..range },
        }
    }

    /// Whether it is to be seen now whether more is to be read ahead.
    pub(super) fn is_due(&self) -> bool {
        match self.way {
            Way::Open => true,
            Way::Forward => self.last >= self.due,
            Way::Backward => self.last <= self.due,
        }
    }

    /// So many of the places ahead, the next ones, are there or on their way:
    /// half of them may be used before it is to be seen again.
    pub(super) fn put_off(&mut self, places: u64) {
        let half = places.div_ceil(2).max(1);
        let is_backward = self.is_backward();
        self.due = if is_backward { self.last.saturating_sub(half) } else { self.last + half };
    }

    /// Whether the fault goes on from the last one, or is a straggler of the run.
    fn is_continued_at(&self, place: u64) -> bool {
        let distance_max = (self.length / GAP_PER_LENGTH).clamp(1, GAP_PLACES_MAX);
        place.abs_diff(self.last) <= distance_max
    }

    fn advance(&mut self, place: u64, is_absent: impl Fn(u64) -> bool) {
        let way = if place > self.last { Way::Forward } else { Way::Backward };
        if place == self.last {
            return;
        }
        self.length += 1;
        self.used += 1;
        if self.way != Way::Open && self.way != way {
            self.passed_over = self.passed_over.saturating_sub(1);
            return;
        }
        let between = place.min(self.last) + 1..place.max(self.last);
        self.passed_over += between.filter(|&place| is_absent(place)).count() as u64;
        if self.used + self.passed_over >= PLACES_REMEMBERED {
            self.used = self.used.div_ceil(2);
            self.passed_over /= 2;
        }
        self.way = way;
        self.last = place;
    }
}
