//! Cleaning of one band: its step, and the transfers of that step.

/// A band being cleaned.
#[derive(Clone, Debug)]
pub(super) struct Cleaning {
    pub(super) band: u64,
    /// Head of the log at the start. Later writes to the band are not part of its new content.
    pub(super) log_end: u64,
    /// The current step; `None` while the band and its newer data are read.
    step: Option<Step>,
    /// Transfers of the current step that are not done.
    parts: u64,
}

/// A step after the read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The new content is written to the reserve band, so that a loss of power destroys nothing.
    Reserve,
    /// The band is written in place.
    InPlace,
    /// The band is clean.
    Done,
}

impl Cleaning {
    /// Creates the cleaning of `band`. The caller then calls `begin` for the read.
    pub(super) const fn new(band: u64, log_end: u64) -> Cleaning {
        Cleaning { band, log_end, step: None, parts: 0 }
    }

    /// Begins a step of `parts` transfers.
    pub(super) const fn begin(&mut self, parts: u64) {
        self.parts = parts;
    }

    /// Counts a completed transfer. Returns true for the last one of the step.
    pub(super) const fn end_part(&mut self) -> bool {
        self.parts -= 1;
        self.parts == 0
    }

    /// Moves to the next step and returns it. The caller then calls `begin`, unless it is `Done`.
    pub(super) fn next_step(&mut self) -> Step {
        let step = match self.step {
            None => Step::Reserve,
            Some(Step::Reserve) => Step::InPlace,
            Some(Step::InPlace | Step::Done) => Step::Done,
        };
        self.step = Some(step);
        step
    }
}
