//! Wall clock as the core's [`Time`].
//!
//! The core counts nanoseconds from the start of the run, here from the creation of the clock. The
//! source is `CLOCK_MONOTONIC`: it never goes backwards and stops while the machine is suspended.

use std::time::{Duration, Instant};

use readpath_core::unit::Time;

/// Monotonic clock that starts at its creation. Copies share the start.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Time of the creation, the zero of this clock.
    start: Instant,
}

impl Clock {
    /// Creates a clock that starts at the current time.
    pub fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    /// Creates a clock that reads `time` now.
    pub fn starting_at(time: Time) -> Clock {
        Clock { start: Instant::now() - Duration::from_nanos(time.ns()) }
    }

    /// Returns the time since the start.
    pub fn now(&self) -> Time {
        // 2^64 ns are 584 years.
        Time(self.start.elapsed().as_nanos() as u64)
    }

    /// Returns the span until `deadline`, zero if the deadline has passed.
    pub fn until(&self, deadline: Time) -> Duration {
        Duration::from_nanos(deadline.since(self.now()).ns())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies share the start, a passed deadline leaves no time, and a clock that starts at 60 s is
    /// less than 30 s later when it is read.
    #[test]
    fn time_starts_near_zero_and_never_goes_backwards() {
        let clock = Clock::start();
        let first = clock.now();
        let copy = clock;
        assert!(copy.now() >= first);
        assert_eq!(clock.until(Time::ZERO), Duration::ZERO);
        let later = Clock::starting_at(Time::from_s(60)).now();
        assert!(later >= Time::from_s(60) && later < Time::from_s(90));
        assert!(clock.until(clock.now() + Time::from_s(60)) > Duration::from_secs(30));
    }
}
