//! What a connection asks the system for: a socket that never blocks, and a sleep on it. In a simulation
//! [others](crate::simulation::network) take their places.

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, ipproto, socket_with, sockopt,
};

use crate::bell::EventFd;

/// How the making of a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Making {
    /// Not yet known.
    UnderWay,
    /// It is there.
    Done,
    /// It failed, as in `errno(3)`.
    Failed(i32),
}

/// What a socket can do now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) to_read: bool,
    pub(crate) to_write: bool,
    /// The bell.
    pub(crate) is_rung: bool,
}

/// A connection that is lost, and why, as in `errno(3)`; 0: the server closed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost(pub(crate) i32);

/// A TCP socket.
pub(crate) struct Socket(TcpStream);

impl Socket {
    /// Begins to connect to `address`, from that port of this machine if one is named.
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

    /// How the connection that was begun stands.
    pub(crate) fn making(&self) -> Making {
        match sockopt::socket_error(&self.0) {
            Ok(Ok(())) if self.0.peer_addr().is_ok() => Making::Done,
            Ok(Ok(())) => Making::UnderWay,
            Ok(Err(errno)) | Err(errno) => Making::Failed(errno.raw_os_error()),
        }
    }

    /// Sends what goes; gives how many bytes.
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<usize, Lost> {
        moved((&self.0).write(bytes))
    }

    /// Receives what is there into the pieces, one after the other; gives how many bytes, or
    /// `None` when there are none now.
    ///
    /// # Safety
    /// The pieces, 1,024 at most, are valid to be written to, and used by nobody else meanwhile.
    pub(crate) unsafe fn receive(&self, pieces: &[libc::iovec]) -> Result<Option<usize>, Lost> {
        // SAFETY: the caller's promise.
        let result =
            unsafe { libc::readv(self.0.as_raw_fd(), pieces.as_ptr(), pieces.len() as i32) };
        match usize::try_from(result) {
            Ok(0) => Err(Lost(0)),
            Ok(bytes) => Ok(Some(bytes)),
            Err(_) => moved(Err(std::io::Error::last_os_error())).map(|_| None),
        }
    }

    /// Has a sleep for bytes end when so many have come (`SO_RCVLOWAT`), or all have that will.
    pub(crate) fn wake_at(&self, bytes: usize) {
        let value = bytes as libc::c_int;
        // SAFETY: the value is an integer of the size that is told.
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

/// Sleeps until the socket has bytes, or takes some if `to_write`, or the bell
/// rings, or the time is up; without a socket and a bell, for the time.
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
    // An error here is a signal (the caller looks again); an error of the socket
    // is told by reading from it.
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

/// The bytes that a system call has moved: none, when it would have had to wait.
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
