//! The runs of faults in one space: the addresses of a mapping, or the slots.

use alloc::vec::Vec;

use crate::length_distribution::LengthDistribution;
use crate::observed::{DECAY_WINDOW, MIN_SAMPLES};
use crate::readahead::STREAMS_MAX;
use crate::unit::PageRange;

/// Where a run goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunDirection {
    /// One fault was seen.
    Open,
    /// Upwards.
    Forward,
    /// Downwards.
    Backward,
}

/// Faults, one next to the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultRun {
    way: RunDirection,
    /// The place of its fault that went furthest.
    last: u64,
    /// Whether it is taken to have ended, as another has begun since.
    has_ended: bool,
    /// How many faults it has.
    pub(super) length: u64,
    /// The places that it is likely enough to come to.
    pub(super) ahead: PageRange,
    /// The place from which on it is to be seen whether more is to be read.
    due: u64,
}

/// All that are followed, the one that was seen last at the end.
#[derive(Clone, Debug)]
pub(super) struct FaultRuns {
    runs: Vec<FaultRun>,
    lengths: LengthDistribution,
    /// Whether the last fault that continued a run did so downwards.
    is_backward: bool,
}

impl Default for FaultRuns {
    fn default() -> FaultRuns {
        FaultRuns {
            runs: Vec::new(),
            lengths: LengthDistribution::of_requests(),
            is_backward: false,
        }
    }
}

/// What is foreseen of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct PredictionBounds {
    /// The end of the space.
    pub(super) places: u64,
    /// How likely a place must be, of [`CERTAIN`](crate::length_distribution::CERTAIN).
    pub(super) likelihood_min: u64,
    /// How many places, at most.
    pub(super) pages_max: u64,
}

impl FaultRuns {
    /// A fault at `place`: it continues a run, or begins one, which is the newest from now on.
    pub(super) fn fault(&mut self, place: u64, horizon: PredictionBounds) -> FaultRun {
        let at = self.runs.iter().rposition(|run| run.is_continued_at(place));
        let mut run = match at {
            Some(at) => {
                let mut run = self.runs.remove(at);
                let before = run.length;
                run.advance(place);
                if core::mem::take(&mut run.has_ended) {
                    self.lengths.undo_end(before);
                }
                self.lengths.grew(before, run.length);
                self.is_backward = run.way == RunDirection::Backward;
                run
            }
            None => {
                // Where most places are next to the last of some run, a random fault continues one by chance.
                let runs_max =
                    (horizon.places / DECAY_WINDOW).clamp(MIN_SAMPLES, STREAMS_MAX as u64);
                if self.runs.len() as u64 >= runs_max {
                    self.runs.remove(0);
                }
                if let Some(last) = self.runs.last_mut().filter(|last| !last.has_ended) {
                    last.has_ended = true;
                    self.lengths.ended(last.length);
                }
                FaultRun::begun(place)
            }
        };
        run.ahead = self.predicted_places(&run, horizon);
        self.runs.push(run);
        run
    }

    /// The run of the last fault.
    pub(super) fn newest_mut(&mut self) -> &mut FaultRun {
        self.runs.last_mut().expect("there was a fault")
    }

    /// Whether some run is likely to come to the place.
    pub(super) fn is_predicted(&self, place: u64) -> bool {
        self.runs.iter().rev().any(|run| run.ahead.contains(place))
    }

    fn predicted_places(&self, run: &FaultRun, horizon: PredictionBounds) -> PageRange {
        let PredictionBounds { likelihood_min, pages_max, .. } = horizon;
        let pages = self.lengths.pages_ahead(run.length, likelihood_min, pages_max);
        let is_backward = match run.way {
            RunDirection::Open => self.is_backward,
            way => way == RunDirection::Backward,
        };
        match is_backward {
            true => PageRange { first: run.last.saturating_sub(pages), end: run.last },
            false => PageRange::new(run.last + 1, pages).clipped(horizon.places),
        }
    }
}

impl FaultRun {
    fn begun(place: u64) -> FaultRun {
        FaultRun {
            way: RunDirection::Open,
            last: place,
            has_ended: false,
            length: 1,
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
            RunDirection::Open => true,
            RunDirection::Forward => self.last >= self.due,
            RunDirection::Backward => self.last <= self.due,
        }
    }

    /// So many of the places ahead, the next ones, are there or on their way:
    /// half of them may be used before it is to be seen again.
    pub(super) fn defer_decision(&mut self, places: u64) {
        let half = places.div_ceil(2).max(1);
        let is_backward = self.is_backward();
        self.due = if is_backward { self.last.saturating_sub(half) } else { self.last + half };
    }

    /// Whether the fault is next to the last one.
    fn is_continued_at(&self, place: u64) -> bool {
        place.abs_diff(self.last) <= 1
    }

    fn advance(&mut self, place: u64) {
        let way = if place > self.last { RunDirection::Forward } else { RunDirection::Backward };
        if place == self.last {
            return;
        }
        self.length += 1;
        if self.way == RunDirection::Open || self.way == way {
            (self.way, self.last) = (way, place);
        }
    }
}
