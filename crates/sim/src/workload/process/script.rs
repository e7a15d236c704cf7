//! Steps that a process goes through in place of a pattern: a trace.

use std::fmt;
use std::iter::Peekable;

use readpath_core::request::Op;
use readpath_core::unit::Time;

/// One step: an operation, and when it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptStep {
    /// Counted from the start of the process; `None`: as soon as there is room.
    pub at: Option<Time>,
    /// Read or write.
    pub op: Op,
    /// The first byte in the file.
    pub offset: u64,
    /// How many bytes; at least 1.
    pub bytes: u64,
}

/// The steps of a process, of which the next is known.
pub struct TraceSteps(Peekable<Box<dyn Iterator<Item = ScriptStep> + Send>>);

/// How many operations went out after their time, because as many as may be were under way, or the
/// machine was busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// How many did by more than a millisecond.
    pub operations: u64,
    /// By how much at most.
    pub longest: Time,
}

impl Lateness {
    /// An operation went out so late.
    pub fn add(&mut self, late: Time) {
        self.operations += u64::from(late > Time::from_ms(1));
        self.longest = self.longest.max(late);
    }

    /// Takes another's in.
    pub fn join(&mut self, other: Lateness) {
        self.operations += other.operations;
        self.longest = self.longest.max(other.longest);
    }
}

/// What a script says at a time.
pub enum ScriptTurn {
    /// This is due.
    Due(ScriptStep),
    /// The next is due then.
    At(Time),
    /// There is no more.
    Over,
}

impl TraceSteps {
    /// The script of these steps.
    pub fn new(steps: Box<dyn Iterator<Item = ScriptStep> + Send>) -> TraceSteps {
        TraceSteps(steps.peekable())
    }

    /// What is due when the process has run for so long.
    pub fn turn(&mut self, run: Time) -> ScriptTurn {
        match self.0.peek() {
            None => ScriptTurn::Over,
            Some(ScriptStep { at: Some(at), .. }) if *at > run => ScriptTurn::At(*at),
            Some(step) => {
                let step = *step;
                self.0.next();
                ScriptTurn::Due(step)
            }
        }
    }
}

impl fmt::Debug for TraceSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Script")
    }
}
