//! A bell that wakes whoever sleeps on it beside other descriptors: a pager's thread, which its commands
//! and the answers of its backend wake, or who sleeps for a server's answers.

#[cfg(any(test, feature = "simulation"))]
use std::os::fd::AsRawFd;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd(2): rung any number of times, heard once.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    /// A bell that is quiet.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn new() -> rustix::io::Result<EventFd> {
        Ok(EventFd(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Rings it.
    pub(crate) fn ring(&self) {
        #[cfg(any(test, feature = "simulation"))]
        if crate::simulation::memory::ring(self.0.as_raw_fd()) {
            return;
        }
        // It refuses only after 2^64 rings that nobody heard, and is then ringing.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it quiet until it is rung again.
    pub(crate) fn quieten(&self) {
        #[cfg(any(test, feature = "simulation"))]
        if crate::simulation::memory::quieten(self.0.as_raw_fd()) {
            return;
        }
        // It refuses only when it is quiet already.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
