//! The bell that wakes a pager's thread: commands ring it, and so do the
//! answers of its backend.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd(2): rung any number of times, heard once.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    /// A bell that is quiet.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(super) fn new() -> rustix::io::Result<Bell> {
        Ok(Bell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Rings it.
    pub(super) fn ring(&self) {
        // It refuses only after 2^64 rings that nobody heard, and is then ringing.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it quiet until it is rung again.
    pub(super) fn quieten(&self) {
        // It refuses only when it is quiet already.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
