//! Wall clock with the core's [`Time`].
//!
//! The core counts nanoseconds from the start of the run. Here zero is the creation of the clock,
//! and the count is `CLOCK_MONOTONIC`: it never goes backwards and stops while the machine is
//! suspended.

use std::time::{Duration, Instant};

use readpath_core::unit::Time;

use crate::os::sync::now;

/// Monotonic clock whose zero is its creation. Copies share the zero.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts a clock.
    pub fn start() -> Clock {
        Clock { start: now() }
    }

    /// Time since the start of this clock, in nanoseconds as a [`Time`].
    pub fn now(&self) -> Time {
        // 2^64 ns are 584 years.
        Time(now().duration_since(self.start).as_nanos() as u64)
    }

    /// Time left until `deadline`; zero once it has passed.
    pub fn until(&self, deadline: Time) -> Duration {
        Duration::from_nanos(deadline.since(self.now()).ns())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_starts_near_zero_and_never_goes_backwards() {
        let clock = Clock::start();
        let first = clock.now();
        let copy = clock;
        assert!(copy.now() >= first);
        assert_eq!(clock.until(Time::ZERO), Duration::ZERO);
        assert!(clock.until(clock.now() + Time::from_s(60)) > Duration::from_secs(30));
    }
}
