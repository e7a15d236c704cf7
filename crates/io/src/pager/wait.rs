//! Waiting of a pager's thread.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::uffd::Uffd;
use crate::event_fd::EventFd;

/// Events that ended a sleep; none after a timeout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Woken {
    /// Faults can be read.
    pub by_faults: bool,
    /// The eventfd is signalled.
    pub by_bell: bool,
}

/// Sleeps until a fault comes, the eventfd is signalled, or `most` has passed.
pub(super) fn sleep(uffd: &Uffd, bell: &EventFd, most: Option<Duration>) -> Woken {
    if uffd.has_told() {
        return Woken { by_faults: true, by_bell: false };
    }
    #[cfg(any(test, feature = "simulation"))]
    {
        use std::os::fd::AsFd;
        let woken = crate::simulation::memory::sleep(uffd.as_fd(), bell.as_fd(), most);
        if let Some((by_faults, by_bell)) = woken {
            return Woken { by_faults, by_bell };
        }
    }
    let span = most.map(timespec);
    let mut fds = [PollFd::new(uffd, PollFlags::IN), PollFd::new(bell, PollFlags::IN)];
    match poll(&mut fds, span.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => panic!("poll(2) of two open descriptors failed: {errno}"),
    }
    let is_ready = |fd: &PollFd<'_>| fd.revents().contains(PollFlags::IN);
    Woken { by_faults: is_ready(&fds[0]), by_bell: is_ready(&fds[1]) }
}

/// Sleeps until the userfaultfd is readable or `most` has passed. A signal shortens the sleep.
pub(super) fn look(uffd: &Uffd, most: Duration) {
    #[cfg(any(test, feature = "simulation"))]
    {
        use std::os::fd::AsFd;
        if crate::simulation::memory::look(uffd.as_fd(), most) {
            return;
        }
    }
    _ = poll(&mut [PollFd::new(uffd, PollFlags::IN)], Some(&timespec(most)));
}

fn timespec(span: Duration) -> Timespec {
    Timespec { tv_sec: span.as_secs() as i64, tv_nsec: span.subsec_nanos().into() }
}
