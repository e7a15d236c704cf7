//! Steps of a trace that a process performs instead of a pattern.

use std::fmt;
use std::iter::Peekable;

use readpath_core::request::Op;
use readpath_core::unit::Time;

/// One step: an operation and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptStep {
    /// Time relative to the start of the process. `None` means as soon as possible.
    pub at: Option<Time>,
    /// Read or write.
    pub op: Op,
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub bytes: u64,
}

/// The steps of a process.
pub struct TraceSteps(Peekable<Box<dyn Iterator<Item = ScriptStep> + Send>>);

/// Delays of operations behind their times, because the queue was full or the machine was busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Number of operations that were late by more than 1 ms.
    pub operations: u64,
    /// Maximum delay.
    pub longest_delay: Time,
}

impl Lateness {
    /// Records the delay of an operation behind its time. Every delay counts for the maximum,
    /// and one above 1 ms as late.
    pub fn add(&mut self, delay: Time) {
        self.operations += u64::from(delay > Time::from_ms(1));
        self.longest_delay = self.longest_delay.max(delay);
    }

    /// Adds the delays of another process.
    pub fn join(&mut self, other: Lateness) {
        self.operations += other.operations;
        self.longest_delay = self.longest_delay.max(other.longest_delay);
    }
}

/// State of a trace at a time.
pub enum TraceState {
    /// This step is due.
    Due(ScriptStep),
    /// The next step is due at this time since the start of the process.
    NotBefore(Time),
    /// The trace has ended.
    Over,
}

impl TraceSteps {
    /// Creates a script of these steps.
    pub fn new(steps: Box<dyn Iterator<Item = ScriptStep> + Send>) -> TraceSteps {
        TraceSteps(steps.peekable())
    }

    /// Returns the state at `run_time` since the start of the process. Removes a step that is due.
    pub fn take_state_at(&mut self, run_time: Time) -> TraceState {
        match self.0.peek() {
            None => TraceState::Over,
            Some(ScriptStep { at: Some(at), .. }) if *at > run_time => TraceState::NotBefore(*at),
            Some(step) => {
                let step = *step;
                self.0.next();
                TraceState::Due(step)
            }
        }
    }
}

impl fmt::Debug for TraceSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Script")
    }
}
