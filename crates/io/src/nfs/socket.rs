//! System calls of a connection: a socket that never blocks, and a sleep on it. A simulation
//! [replaces](crate::simulation::network) them.

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, ipproto, socket_with, sockopt,
};

use crate::event_fd::EventFd;

/// State of a connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Making {
    /// In progress.
    UnderWay,
    /// Connected.
    Done,
    /// Failed, with an error number as in `errno(3)`.
    Failed(i32),
}

/// Events that ended a sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) to_read: bool,
    pub(crate) to_write: bool,
    /// The eventfd is signalled.
    pub(crate) is_rung: bool,
}

/// Lost connection, with an error number as in `errno(3)`; 0 if the server closed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost(pub(crate) i32);

/// A TCP socket.
pub(crate) struct Socket(TcpStream);

impl Socket {
    /// Starts to connect to `address`, from `port` of this machine if given.
    pub(crate) fn connect(
        address: SocketAddr,
        port: Option<u16>,
    ) -> rustix::io::Result<(Socket, Making)> {
        let (family, any) = match address {
            SocketAddr::V4(_) => (AddressFamily::INET, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            SocketAddr::V6(_) => (AddressFamily::INET6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket: OwnedFd = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        // Calls are small and must not wait for each other.
        sockopt::set_tcp_nodelay(&socket, true)?;
        if let Some(port) = port {
            bind(&socket, &SocketAddr::new(any, port))?;
        }
        let making = match connect(&socket, &address) {
            Ok(()) => Making::Done,
            Err(Errno::INPROGRESS | Errno::INTR) => Making::UnderWay,
            Err(errno) => return Err(errno),
        };
        Ok((Socket(socket.into()), making))
    }

    /// State of the connection attempt.
    pub(crate) fn making(&self) -> Making {
        match sockopt::socket_error(&self.0) {
            Ok(Ok(())) if self.0.peer_addr().is_ok() => Making::Done,
            Ok(Ok(())) => Making::UnderWay,
            Ok(Err(errno)) | Err(errno) => Making::Failed(errno.raw_os_error()),
        }
    }

    /// Sends as many bytes as the socket accepts, and returns their number.
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<usize, Lost> {
        moved((&self.0).write(bytes))
    }

    /// Receives available bytes into the pieces in order. Returns their number, or `None` if there
    /// are none.
    ///
    /// # Safety
    /// The pieces, at most 1,024, are valid for writes and not used by other code meanwhile.
    pub(crate) unsafe fn receive(&self, pieces: &[libc::iovec]) -> Result<Option<usize>, Lost> {
        // SAFETY: the caller guarantees the contract of this function.
        let result =
            unsafe { libc::readv(self.0.as_raw_fd(), pieces.as_ptr(), pieces.len() as i32) };
        match usize::try_from(result) {
            Ok(0) => Err(Lost(0)),
            Ok(bytes) => Ok(Some(bytes)),
            Err(_) => moved(Err(std::io::Error::last_os_error())).map(|_| None),
        }
    }

    /// Sets the number of received bytes that end a sleep (`SO_RCVLOWAT`). The end of the stream
    /// also ends it.
    pub(crate) fn wake_at(&self, bytes: usize) {
        let value = bytes as libc::c_int;
        // SAFETY: the value is an integer of the given size.
        let result = unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVLOWAT,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        debug_assert_eq!(result, 0, "every TCP socket has it");
    }
}

/// Sleeps until the socket has bytes, accepts bytes if `to_write` is set, the eventfd is signalled,
/// or `at_most` has passed. Without a socket and an eventfd, sleeps for `at_most`.
pub(crate) fn sleep_on(
    socket: Option<&Socket>,
    to_write: bool,
    bell: Option<&EventFd>,
    at_most: Option<Duration>,
) -> Ready {
    let time = at_most.map(|span| Timespec {
        tv_sec: span.as_secs() as i64,
        tv_nsec: span.subsec_nanos().into(),
    });
    let wanted = PollFlags::IN | if to_write { PollFlags::OUT } else { PollFlags::empty() };
    let socket = socket.map(|socket| PollFd::from_borrowed_fd(socket.0.as_fd(), wanted));
    let bell = bell.map(|bell| PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN));
    let (has_socket, has_bell) = (socket.is_some(), bell.is_some());
    let mut fds: Vec<PollFd<'_>> = socket.into_iter().chain(bell).collect();
    // An error here is a signal, after which the caller checks again. Errors of the socket are
    // reported by the next read.
    let _ = poll(&mut fds, time.as_ref());
    let mut ready = Ready::default();
    if has_socket {
        let flags = fds[0].revents();
        let is_broken = flags.intersects(PollFlags::ERR | PollFlags::HUP);
        ready.to_read = flags.contains(PollFlags::IN) || is_broken;
        ready.to_write = flags.contains(PollFlags::OUT) || is_broken;
    }
    ready.is_rung = has_bell && fds.last().is_some_and(|fd| !fd.revents().is_empty());
    ready
}

/// Number of bytes of a system call; zero if the call would have blocked.
fn moved(result: std::io::Result<usize>) -> Result<usize, Lost> {
    match result {
        Ok(bytes) => Ok(bytes),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(0)
        }
        Err(error) => Err(Lost(error.raw_os_error().unwrap_or(libc::EIO))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_ends_by_the_bell_and_says_whether_it_did() {
        let bell = EventFd::new().unwrap();
        let at_once = Some(Duration::ZERO);
        assert!(!sleep_on(None, false, Some(&bell), at_once).is_rung);
        bell.ring();
        assert!(sleep_on(None, false, Some(&bell), None).is_rung);
        bell.quieten();
        assert_eq!(sleep_on(None, true, Some(&bell), at_once), Ready::default());
        assert_eq!(sleep_on(None, true, None, at_once), Ready::default());
    }
}
