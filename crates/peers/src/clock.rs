//! The wall clock, as the core's [`Time`].
//!
//! The core counts nanoseconds from the start of the run. Here that start is
//! the moment when the clock was made, and the count is `CLOCK_MONOTONIC`: it
//! never goes backwards, and does not run while the machine is suspended.

use std::time::{Duration, Instant};

use readpath_core::unit::Time;

/// A monotonic clock whose zero is the moment it was made. Copies share that zero.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    /// A clock that reads `time` now.
    pub fn that_reads(time: Time) -> Clock {
        Clock { start: Instant::now() - Duration::from_nanos(time.ns()) }
    }

    /// The time since the start.
    pub fn now(&self) -> Time {
        // 2^64 ns are 584 years.
        Time(self.start.elapsed().as_nanos() as u64)
    }

    /// How long it is until `deadline`; zero when that has passed.
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
        let later = Clock::that_reads(Time::from_s(60)).now();
        assert!(later >= Time::from_s(60) && later < Time::from_s(90));
        assert!(clock.until(clock.now() + Time::from_s(60)) > Duration::from_secs(30));
    }
}
