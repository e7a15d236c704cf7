//! Waiting of a pager's thread. A *pager* is a mapping or a region. A thread of a simulation
//! (`cfg(simulation)`) sleeps in simulated time.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::uffd::Uffd;
use crate::os::event_fd::EventFd;

/// Events that ended a sleep; none after a timeout or a signal.
#[derive(Clone, Copy, Debug)]
pub(super) struct WakeReasons {
    /// Faults can be read.
    pub by_faults: bool,
    /// The eventfd is signalled.
    pub by_event_fd: bool,
}

/// Sleeps until a fault can be read, the eventfd is signalled, or `timeout` has passed. `None` is
/// no timeout. Returns the events that ended the sleep. A signal may end it without an event.
pub(super) fn sleep(uffd: &Uffd, event_fd: &EventFd, timeout: Option<Duration>) -> WakeReasons {
    // Faults that a call on the userfaultfd has read already do not end a poll(2).
    if uffd.has_buffered_faults() {
        // A signal of the eventfd stays for the next sleep.
        return WakeReasons { by_faults: true, by_event_fd: false };
    }
    #[cfg(simulation)]
    {
        use std::os::fd::AsFd;
        let woken =
            crate::simulation::memory::sleep_for_event(uffd.as_fd(), event_fd.as_fd(), timeout);
        if let Some((by_faults, by_event_fd)) = woken {
            return WakeReasons { by_faults, by_event_fd };
        }
    }
    let timeout_spec = timeout.map(timespec);
    let mut fds = [PollFd::new(uffd, PollFlags::IN), PollFd::new(event_fd, PollFlags::IN)];
    match poll(&mut fds, timeout_spec.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => panic!("poll(2) of two open descriptors failed: {errno}"),
    }
    let is_ready = |fd: &PollFd<'_>| fd.revents().contains(PollFlags::IN);
    WakeReasons { by_faults: is_ready(&fds[0]), by_event_fd: is_ready(&fds[1]) }
}

/// Sleeps until the userfaultfd is readable or `timeout` has passed. A signal or an error ends it
/// early, and the caller checks again.
pub(super) fn wait_until_readable(uffd: &Uffd, timeout: Duration) {
    #[cfg(simulation)]
    {
        use std::os::fd::AsFd;
        if crate::simulation::memory::wait_until_readable(uffd.as_fd(), timeout) {
            return;
        }
    }
    _ = poll(&mut [PollFd::new(uffd, PollFlags::IN)], Some(&timespec(timeout)));
}

/// Converts a duration to the struct of poll(2).
fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}
