//! Signals that ask this process to stop (ctrl-C, SIGTERM, SIGHUP).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::exit::Failure;

/// Number of signals since [`start_counting`].
static SIGNALS: AtomicU64 = AtomicU64::new(0);

/// Replaces the end of the process at a signal by a count of the signals.
pub fn start_counting() -> Result<(), Failure> {
    ctrlc::set_handler(count_as_signal)
        .map_err(|error| Failure::Unavailable(format!("can't wait for signals: {error}")))
}

/// Counts an event as a signal: this process is to stop.
pub fn count_as_signal() {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of signals since [`start_counting`].
pub fn signal_count() -> u64 {
    SIGNALS.load(Ordering::Relaxed)
}

/// Returns true if there was a signal.
pub fn is_interrupted() -> bool {
    signal_count() > 0
}
