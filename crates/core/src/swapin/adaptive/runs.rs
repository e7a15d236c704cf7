//! Runs of faults in one space: the addresses of a mapping, or the slots.

use alloc::vec::Vec;

use crate::length_distribution::LengthDistribution;
use crate::observed::{DECAY_WINDOW, MIN_SAMPLES};
use crate::readahead::STREAMS_MAX;
use crate::unit::PageRange;

/// Direction of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunDirection {
    /// Unknown: the run has one fault.
    Open,
    /// Towards higher positions.
    Forward,
    /// Towards lower positions.
    Backward,
}

/// A run of neighbouring faults. A *position* is an address in pages, or a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultRun {
    /// Direction of the faults of the run.
    direction: RunDirection,
    /// Position of the fault that is furthest along the direction.
    last: u64,
    /// True if the run counts as ended, because another has begun since.
    has_ended: bool,
    /// Number of faults of the run.
    pub(super) length: u64,
    /// The positions that the run is predicted to reach.
    pub(super) predicted: PageRange,
    /// Position at which the next readahead decision is due.
    decision_position: u64,
}

/// The tracked runs of one space, the most recently used at the end.
#[derive(Clone, Debug)]
pub(super) struct FaultRuns {
    /// The runs; the one at the front is forgotten first.
    runs: Vec<FaultRun>,
    /// Distribution of the lengths of runs of this space, in faults.
    lengths: LengthDistribution,
    /// True if the last fault that continued a run went downwards.
    is_backward: bool,
}

impl Default for FaultRuns {
    /// No run, and a distribution without observations. A first fault resembles a request that
    /// continues no other, so it is not expected to go on until some did. Half of the runs with two
    /// faults are expected to double their length.
    fn default() -> FaultRuns {
        FaultRuns {
            runs: Vec::new(),
            lengths: LengthDistribution::of_requests(),
            is_backward: false,
        }
    }
}

/// Bounds of a prediction.
#[derive(Clone, Copy, Debug)]
pub(super) struct PredictionBounds {
    /// End of the positions: number of pages of the mapping, or of slots.
    pub(super) space_end: u64,
    /// Lowest likelihood of a predicted position, of
    /// [`PROBABILITY_ONE`](crate::length_distribution::PROBABILITY_ONE).
    pub(super) likelihood_min: u64,
    /// Most predicted positions.
    pub(super) pages_max: u64,
}

impl FaultRuns {
    /// Records a fault at `position`: it continues a run, or begins one, which becomes the newest.
    /// The run before a new one counts as ended. Returns the run with its prediction.
    pub(super) fn record_fault(&mut self, position: u64, bounds: PredictionBounds) -> FaultRun {
        let index = self.runs.iter().rposition(|run| run.is_continued_at(position));
        let mut run = match index {
            Some(index) => {
                let mut run = self.runs.remove(index);
                let length_before = run.length;
                run.advance(position);
                // It went on after another run had begun: its recorded end is undone.
                if core::mem::take(&mut run.has_ended) {
                    self.lengths.undo_end(length_before);
                }
                self.lengths.record_growth(length_before, run.length);
                self.is_backward = run.direction == RunDirection::Backward;
                run
            }
            None => {
                // Limits the number of runs to one for 64 positions (`DECAY_WINDOW`), but at least
                // 4 (`MIN_SAMPLES`) and at most 128 (`STREAMS_MAX`). With a run next to most
                // positions, a random fault would continue one by chance.
                let runs_max =
                    (bounds.space_end / DECAY_WINDOW).clamp(MIN_SAMPLES, STREAMS_MAX as u64);
                // The least recently used run is forgotten.
                if self.runs.len() as u64 >= runs_max {
                    self.runs.remove(0);
                }
                if let Some(last) = self.runs.last_mut().filter(|last| !last.has_ended) {
                    last.has_ended = true;
                    self.lengths.record_end(last.length);
                }
                FaultRun::new(position)
            }
        };
        run.predicted = self.predicted_positions(&run, bounds);
        self.runs.push(run);
        run
    }

    /// The run of the last fault. Panics before the first fault.
    pub(super) fn newest_mut(&mut self) -> &mut FaultRun {
        self.runs.last_mut().expect("there was a fault")
    }

    /// Returns true if some run is predicted to reach the position. All runs of this space count,
    /// not only the run of the present fault.
    pub(super) fn is_predicted(&self, position: u64) -> bool {
        self.runs.iter().rev().any(|run| run.predicted.contains(position))
    }

    /// The positions that the run is predicted to reach. Empty if even the next position is less
    /// likely than `likelihood_min`.
    fn predicted_positions(&self, run: &FaultRun, bounds: PredictionBounds) -> PageRange {
        let PredictionBounds { likelihood_min, pages_max, .. } = bounds;
        let pages = self.lengths.pages_ahead(run.length, likelihood_min, pages_max);
        let is_backward = match run.direction {
            // With one fault, the direction of the last fault that continued a run is assumed.
            RunDirection::Open => self.is_backward,
            direction => direction == RunDirection::Backward,
        };
        match is_backward {
            true => PageRange { first: run.last.saturating_sub(pages), end: run.last },
            false => PageRange::new(run.last + 1, pages).clipped(bounds.space_end),
        }
    }
}

impl FaultRun {
    /// Creates a run with one fault, at `position`.
    fn new(position: u64) -> FaultRun {
        FaultRun {
            direction: RunDirection::Open,
            last: position,
            has_ended: false,
            length: 1,
            predicted: PageRange::default(),
            decision_position: position,
        }
    }

    /// Returns true if the predicted positions lie below the run. An empty prediction has a place
    /// too: directly below the run, or directly above it.
    pub(super) fn is_backward(&self) -> bool {
        self.predicted.end <= self.last
    }

    /// Positions of `range` in the order in which the run reaches them.
    pub(super) fn in_run_order(&self, range: PageRange) -> impl Iterator<Item = u64> + use<> {
        let PageRange { first, end } = range;
        let is_backward = self.is_backward();
        (first..end)
            .map(move |position| if is_backward { first + (end - 1 - position) } else { position })
    }

    /// Returns the part of `range` that contains the nearest `count` positions (at least 1) for
    /// which `is_match` returns true. Returns the whole range if there are fewer.
    pub(super) fn nearest_part(
        &self,
        range: PageRange,
        count: u64,
        is_match: impl Fn(u64) -> bool,
    ) -> PageRange {
        let mut matching = self.in_run_order(range).filter(|&position| is_match(position));
        match (matching.nth(count as usize - 1), self.is_backward()) {
            (None, _) => range,
            (Some(position), true) => PageRange { first: position, ..range },
            (Some(position), false) => PageRange { end: position + 1, ..range },
        }
    }

    /// Returns true if a readahead decision is due: always for a run with one fault, and otherwise
    /// once the run has reached `decision_position`.
    pub(super) fn is_decision_due(&self) -> bool {
        match self.direction {
            RunDirection::Open => true,
            RunDirection::Forward => self.last >= self.decision_position,
            RunDirection::Backward => self.last <= self.decision_position,
        }
    }

    /// Defers the next decision until half of the next `positions` positions are used. They are in
    /// memory or being read.
    pub(super) fn defer_decision(&mut self, positions: u64) {
        // At least one position, so that the next fault alone may decide again.
        let half = positions.div_ceil(2).max(1);
        let is_backward = self.is_backward();
        self.decision_position = match is_backward {
            true => self.last.saturating_sub(half),
            false => self.last + half,
        };
    }

    /// Returns true if a fault at `position` is next to the last one, or at the same position.
    /// Interleaved runs are thus distinguished by position.
    fn is_continued_at(&self, position: u64) -> bool {
        position.abs_diff(self.last) <= 1
    }

    /// Adds a fault at `position`. A fault against the direction counts, because the program only
    /// turned back by one page, but does not move the run. No effect at the position of the last
    /// fault.
    fn advance(&mut self, position: u64) {
        if position == self.last {
            return;
        }
        let direction =
            if position > self.last { RunDirection::Forward } else { RunDirection::Backward };
        self.length += 1;
        if self.direction == RunDirection::Open || self.direction == direction {
            (self.direction, self.last) = (direction, position);
        }
    }
}
