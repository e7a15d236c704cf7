//! Signals that ask this process to stop (ctrl-C, SIGTERM, SIGHUP).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::exit::Failure;

/// Number of signals since [`count`].
static SIGNALS: AtomicU64 = AtomicU64::new(0);

/// Counts signals from now on, instead of ending at the first.
pub fn count() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        SIGNALS.fetch_add(1, Ordering::Relaxed);
    })
    .map_err(|error| Failure::Unavailable(format!("can't wait for signals: {error}")))
}

/// Returns the number of signals since [`count`].
pub fn number() -> u64 {
    SIGNALS.load(Ordering::Relaxed)
}

/// Returns true if there was a signal.
pub fn is_interrupted() -> bool {
    number() > 0
}
