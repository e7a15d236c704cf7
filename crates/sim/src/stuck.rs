//! Detection of a simulated run that makes no progress, with a report of its state.
//!
//! Virtual time advances after a few steps of a run, unless the run has ended. A faulty model or
//! policy may break this rule. For example, it requests the same page again and again, or asks to
//! be woken at the present time. A run with too many steps at one time stops with an error.

use std::fmt;

use readpath_core::machine::Machine;
use readpath_core::unit::Time;

/// Error: a run took too many steps without progress of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Virtual time at which the run is stuck.
    pub at: Time,
    /// Number of steps since the last progress of time.
    pub steps: u64,
    /// The repeating part of the run, and its state.
    pub state: String,
}

/// Maximum number of steps at one time: a million. A correct run takes a few per process.
const STEPS_AT_ONE_TIME_MAX: u64 = 1 << 20;

/// Counts the steps of a run at one virtual time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Steps {
    /// Time of the last step.
    time: Time,
    /// Number of steps at that time.
    steps_at_time: u64,
}

impl Steps {
    /// Counts a step at time `now`. `state` describes the run for the error.
    ///
    /// # Errors
    /// Fails if there were too many steps at this time.
    #[inline]
    pub(crate) fn count(&mut self, now: Time, state: impl FnOnce() -> String) -> Result<(), Stuck> {
        if self.time < now {
            *self = Steps { time: now, steps_at_time: 0 };
        }
        self.steps_at_time += 1;
        match self.steps_at_time > STEPS_AT_ONE_TIME_MAX {
            true => Err(Stuck { at: now, steps: self.steps_at_time, state: state() }),
            false => Ok(()),
        }
    }
}

/// Returns the state of a machine as text.
pub(crate) fn state_of(machine: &Machine) -> String {
    let (depth, wake) = (machine.meter().in_device(), machine.next_wake());
    let wake = wake.map_or_else(
        || "no wake".to_owned(),
        |wake_time| format!("a wake at {} ns", wake_time.ns()),
    );
    let idle = if machine.is_idle() { "idle" } else { "not idle" };
    format!("the machine is {idle}, with {depth} requests in the device and {wake}")
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stuck { at, steps, state } = self;
        write!(
            f,
            "the modelled run stands still at {} ns: {steps} steps without an end, {state}; this \
             is a fault of a model or of a policy: name other ones, and report it with the command",
            at.ns()
        )
    }
}

impl std::error::Error for Stuck {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The maximum number of steps is allowed at each of three times. One more at the last fails.
    #[test]
    fn step_limit_resets_with_time_and_its_error_reports_the_state() {
        let mut steps = Steps::default();
        let count = |steps: &mut Steps, at| steps.count(at, || "it turns".to_owned());
        for at in [Time::ZERO, Time(1), Time(2)] {
            for _ in 0..STEPS_AT_ONE_TIME_MAX {
                assert_eq!(count(&mut steps, at), Ok(()));
            }
        }
        let error = count(&mut steps, Time(2)).unwrap_err().to_string();
        assert!(error.contains("stands still at 2 ns") && error.contains("it turns"), "{error}");
        assert_eq!(count(&mut steps, Time(3)), Ok(()));
    }
}
