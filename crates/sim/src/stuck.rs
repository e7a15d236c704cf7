//! A run of the modelled world that does not go on is found, and reported with its state.
//!
//! Virtual time goes on between any two turns of a run, or the run has ended. A model or a policy
//! with a fault may break that: it names the same page over and over, or asks to be woken at the
//! time that it is. A run that takes too many steps at one time stops with an error.

use std::fmt;

use readpath_core::machine::Machine;
use readpath_core::unit::Time;

/// A run that took too many steps without an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The virtual time at which it stands.
    pub at: Time,
    /// The steps since time last went on.
    pub steps: u64,
    /// The part of the run that repeats, and its state.
    pub state: String,
}

/// Steps at one time, of which a run takes no more than a few for each of its processes: a million.
const STEPS_AT_ONE_TIME_MAX: u64 = 1 << 20;

/// Counts the steps of a run at one virtual time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Steps {
    at: Time,
    steps: u64,
}

impl Steps {
    /// One more step at `now`.
    ///
    /// # Errors
    /// There were too many at this time.
    #[inline]
    pub(crate) fn step(&mut self, now: Time, state: impl FnOnce() -> String) -> Result<(), Stuck> {
        if self.at < now {
            *self = Steps { at: now, steps: 0 };
        }
        self.steps += 1;
        match self.steps > STEPS_AT_ONE_TIME_MAX {
            true => Err(Stuck { at: now, steps: self.steps, state: state() }),
            false => Ok(()),
        }
    }
}

/// The state of a machine, in words.
pub(crate) fn state_of(machine: &Machine) -> String {
    let (depth, wake) = (machine.meter().in_device(), machine.next_wake());
    let wake = wake.map_or_else(|| "no wake".to_owned(), |at| format!("a wake at {} ns", at.ns()));
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

    #[test]
    fn steps_count_until_time_goes_on_and_too_many_are_an_error_with_the_state() {
        let mut steps = Steps::default();
        let step = |steps: &mut Steps, at| steps.step(at, || "it turns".to_owned());
        for at in [Time::ZERO, Time(1), Time(2)] {
            for _ in 0..STEPS_AT_ONE_TIME_MAX {
                assert_eq!(step(&mut steps, at), Ok(()));
            }
        }
        let error = step(&mut steps, Time(2)).unwrap_err().to_string();
        assert!(error.contains("stands still at 2 ns") && error.contains("it turns"), "{error}");
        assert_eq!(step(&mut steps, Time(3)), Ok(()));
    }
}
