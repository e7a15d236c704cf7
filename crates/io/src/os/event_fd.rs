//! eventfd(2) that wakes a thread in poll(2): a pager's thread (for its commands and its backend's
//! answers), or a thread that waits for an NFS server.
//!
//! In a simulation (`cfg(simulation)`) a simulated descriptor is signalled and cleared instead. On
//! a thread outside a simulation the system call follows.

#[cfg(simulation)]
use std::os::fd::AsRawFd;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// eventfd(2): any number of signals cause one wake-up.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    /// Creates an eventfd without a signal.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn new() -> rustix::io::Result<EventFd> {
        Ok(EventFd(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Signals the eventfd: it is readable until it is cleared, and a poll(2) of it ends. Does not
    /// wait.
    pub(crate) fn signal(&self) {
        #[cfg(simulation)]
        if crate::simulation::memory::signal_event_fd(self.0.as_raw_fd()) {
            return;
        }
        // Fails only after 2^64 unread signals, and is then readable anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Clears all signals so far. Does nothing without a signal, and does not wait.
    pub(crate) fn clear(&self) {
        #[cfg(simulation)]
        if crate::simulation::memory::clear_event_fd(self.0.as_raw_fd()) {
            return;
        }
        // Fails only if no signal is pending.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
