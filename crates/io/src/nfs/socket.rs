//! System calls of a connection: a socket that never blocks, and a sleep on it. A simulation
//! replaces them.

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, ipproto, socket_with, sockopt,
};

use crate::os::event_fd::EventFd;

/// State of a connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectState {
    /// In progress.
    InProgress,
    /// Connected.
    Done,
    /// Failed, with an error number as in `errno(3)`.
    Failed(i32),
}

/// Events that ended a sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    /// Bytes, the end of the stream or an error can be received.
    pub(crate) is_readable: bool,
    /// Bytes can be sent, or a connection attempt has ended.
    pub(crate) is_writable: bool,
    /// The eventfd is signalled.
    pub(crate) is_event_fd_signalled: bool,
}

/// Lost connection, with an error number as in `errno(3)`; 0 if the server closed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionLost(pub(crate) i32);

/// A TCP socket.
pub(crate) struct Socket(TcpStream);

impl Socket {
    /// Starts to connect to `address`, from `port` of this machine if given. Does not wait. With a
    /// port, the error `EADDRINUSE` or `EADDRNOTAVAIL` means that it is not free. `EACCES` or
    /// `EPERM` means that this user may not use it, or that a firewall forbids the connection.
    pub(crate) fn connect(
        address: SocketAddr,
        port: Option<u16>,
    ) -> rustix::io::Result<(Socket, ConnectState)> {
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
        let connect_state = match connect(&socket, &address) {
            Ok(()) => ConnectState::Done,
            // After a signal too, the attempt goes on without a wait (connect(2)).
            Err(Errno::INPROGRESS | Errno::INTR) => ConnectState::InProgress,
            Err(errno) => return Err(errno),
        };
        Ok((Socket(socket.into()), connect_state))
    }

    /// Returns the state of the connection attempt, without waiting. A failure is returned only
    /// once: the caller then drops the socket, which would seem to be in progress afterwards.
    pub(crate) fn connect_state(&self) -> ConnectState {
        match sockopt::socket_error(&self.0) {
            // No error does not mean success yet. There is a peer only once the connection is made.
            Ok(Ok(())) if self.0.peer_addr().is_ok() => ConnectState::Done,
            Ok(Ok(())) => ConnectState::InProgress,
            Ok(Err(errno)) | Err(errno) => ConnectState::Failed(errno.raw_os_error()),
        }
    }

    /// Sends as many bytes as the socket accepts now, and returns their number, possibly 0.
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<usize, ConnectionLost> {
        transferred_bytes((&self.0).write(bytes))
    }

    /// Receives available bytes into the pieces in order. Returns their number, or `None` if there
    /// are none. Fails with error number 0 if the server has closed the connection.
    ///
    /// # Safety
    /// The pieces, at most 1,024, are valid for writes and not used by other code meanwhile.
    pub(crate) unsafe fn receive(
        &self,
        pieces: &[libc::iovec],
    ) -> Result<Option<usize>, ConnectionLost> {
        // SAFETY: the caller guarantees the contract of this function.
        let result =
            unsafe { libc::readv(self.0.as_raw_fd(), pieces.as_ptr(), pieces.len() as i32) };
        match usize::try_from(result) {
            // End of the stream: the server has closed the connection.
            Ok(0) => Err(ConnectionLost(0)),
            Ok(bytes) => Ok(Some(bytes)),
            // A call that would block counts as 0 bytes: none are available.
            Err(_) => transferred_bytes(Err(std::io::Error::last_os_error())).map(|_| None),
        }
    }

    /// Sets the number of received bytes that end a sleep (`SO_RCVLOWAT`). The end of the stream
    /// also ends it.
    pub(crate) fn set_wake_bytes(&self, bytes: usize) {
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
        debug_assert_eq!(result, 0, "every TCP socket has this option");
    }
}

/// Sleeps until the socket has bytes, accepts bytes if `until_writable` is true, the eventfd is
/// signalled, or `timeout` has passed. `None` for `timeout` is no limit. Returns the events that
/// ended the sleep. A signal may end it without an event.
pub(crate) fn sleep_on(
    socket: Option<&Socket>,
    until_writable: bool,
    event_fd: Option<&EventFd>,
    timeout: Option<Duration>,
) -> Ready {
    let timeout_spec = timeout.map(|timeout| Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let write_flag = if until_writable { PollFlags::OUT } else { PollFlags::empty() };
    let poll_flags = PollFlags::IN | write_flag;
    let socket = socket.map(|socket| PollFd::from_borrowed_fd(socket.0.as_fd(), poll_flags));
    let event_fd =
        event_fd.map(|event_fd| PollFd::from_borrowed_fd(event_fd.as_fd(), PollFlags::IN));
    let (has_socket, has_event_fd) = (socket.is_some(), event_fd.is_some());
    let mut fds: Vec<PollFd<'_>> = socket.into_iter().chain(event_fd).collect();
    // An error here is a signal, after which the caller checks again.
    let _ = poll(&mut fds, timeout_spec.as_ref());
    let mut ready = Ready::default();
    if has_socket {
        let flags = fds[0].revents();
        // A broken socket counts as ready for both, so that the next call reports the error.
        let is_broken = flags.intersects(PollFlags::ERR | PollFlags::HUP);
        ready.is_readable = flags.contains(PollFlags::IN) || is_broken;
        ready.is_writable = flags.contains(PollFlags::OUT) || is_broken;
    }
    ready.is_event_fd_signalled =
        has_event_fd && fds.last().is_some_and(|fd| !fd.revents().is_empty());
    ready
}

/// Returns the number of bytes that a system call on the socket moved, or 0 if it would have
/// blocked or a signal interrupted it. Any other error is a lost connection.
fn transferred_bytes(result: std::io::Result<usize>) -> Result<usize, ConnectionLost> {
    match result {
        Ok(bytes) => Ok(bytes),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(0)
        }
        Err(error) => Err(ConnectionLost(error.raw_os_error().unwrap_or(libc::EIO))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eventfd_ends_a_sleep_and_is_reported() {
        let event_fd = EventFd::new().unwrap();
        let (at_once, no_limit) = (Some(Duration::ZERO), None);
        let (until_writable, until_readable) = (true, false);
        let ready = sleep_on(None, until_readable, Some(&event_fd), at_once);
        assert!(!ready.is_event_fd_signalled);
        event_fd.signal();
        let ready = sleep_on(None, until_readable, Some(&event_fd), no_limit);
        assert!(ready.is_event_fd_signalled);
        event_fd.clear();
        assert_eq!(sleep_on(None, until_writable, Some(&event_fd), at_once), Ready::default());
        assert_eq!(sleep_on(None, until_writable, None, at_once), Ready::default());
    }
}
