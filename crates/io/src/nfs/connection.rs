//! One connection to a server: a socket that never blocks but in [`Connection::wait`].

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, ipproto, socket_with, sockopt,
};

use super::options::SourcePort;

/// The reserved ports that are tried, highest first: those that Linux's client uses.
const RESERVED_PORTS: std::ops::RangeInclusive<u16> = 665..=1023;

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

/// The socket to one address.
pub(crate) struct Connection {
    address: SocketAddr,
    source: SourcePort,
    /// Shared with who sleeps on it, so that its number stays its own as long.
    socket: Option<Arc<TcpStream>>,
    is_reserved: bool,
    /// `SO_RCVLOWAT` of the socket.
    wake_bytes: usize,
}

impl Connection {
    /// To this address; nothing is connected yet.
    pub(crate) fn to(address: SocketAddr, source: SourcePort) -> Connection {
        Connection { address, source, socket: None, is_reserved: false, wake_bytes: 1 }
    }

    /// Whether the port here is a reserved one.
    pub(crate) fn is_reserved(&self) -> bool {
        self.is_reserved
    }

    /// Whether there is a socket, connected or not yet.
    pub(crate) fn is_open(&self) -> bool {
        self.socket.is_some()
    }

    /// Begins to connect anew.
    pub(crate) fn begin(&mut self) -> Making {
        self.close();
        if self.source == SourcePort::ReservedIfAllowed {
            for port in RESERVED_PORTS.rev() {
                match self.begin_from(Some(port)) {
                    // In use, or so lately that it still names the last connection.
                    Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => {}
                    Err(Errno::ACCESS | Errno::PERM) => break,
                    begun => return self.begun(begun, true),
                }
            }
        }
        let begun = self.begin_from(None);
        self.begun(begun, false)
    }

    /// How the connection that was begun stands.
    pub(crate) fn making(&mut self) -> Making {
        let Some(socket) = &self.socket else { return Making::Failed(libc::ENOTCONN) };
        match sockopt::socket_error(socket) {
            Ok(Ok(())) if socket.peer_addr().is_ok() => Making::Done,
            Ok(Ok(())) => Making::UnderWay,
            Ok(Err(errno)) | Err(errno) => self.failed(errno),
        }
    }

    /// Lets go of the socket.
    pub(crate) fn close(&mut self) {
        self.socket = None;
    }

    /// Sends what goes; gives how many bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<usize, Lost> {
        let Some(socket) = &self.socket else { return Err(Lost(libc::ENOTCONN)) };
        moved(socket.as_ref().write(bytes))
    }

    /// Receives what is there into the pieces, one after the other; gives how many bytes, or
    /// `None` when there are none now.
    ///
    /// # Safety
    /// The pieces, 1,024 at most, are valid to be written to, and used by nobody else meanwhile.
    pub(crate) unsafe fn receive(&mut self, pieces: &[libc::iovec]) -> Result<Option<usize>, Lost> {
        let Some(socket) = &self.socket else { return Err(Lost(libc::ENOTCONN)) };
        // SAFETY: the caller's promise.
        let result =
            unsafe { libc::readv(socket.as_raw_fd(), pieces.as_ptr(), pieces.len() as i32) };
        match usize::try_from(result) {
            Ok(0) => Err(Lost(0)),
            Ok(bytes) => Ok(Some(bytes)),
            Err(_) => moved(Err(std::io::Error::last_os_error())).map(|_| None),
        }
    }

    /// Has a sleep for bytes end when so many have come (`SO_RCVLOWAT`), or all have that will.
    pub(crate) fn wake_at(&mut self, bytes: usize) {
        let Some(socket) = self.socket.as_ref().filter(|_| bytes != self.wake_bytes) else {
            return;
        };
        let value = bytes as libc::c_int;
        // SAFETY: the value is an integer of the size that is told.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVLOWAT,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        debug_assert_eq!(result, 0, "every TCP socket has it");
        self.wake_bytes = bytes;
    }

    /// Sleeps until bytes have come, or can go if `to_write`, or the time is up.
    pub(crate) fn wait(&self, to_write: bool, at_most: Option<Duration>) -> Ready {
        let socket = self.socket.as_ref().map(|socket| socket.as_fd());
        sleep_on(socket, to_write, None, at_most)
    }

    /// The socket, for somebody else's poll.
    pub(crate) fn socket(&self) -> Option<Arc<TcpStream>> {
        self.socket.clone()
    }

    fn begin_from(&mut self, port: Option<u16>) -> rustix::io::Result<(OwnedFd, Making)> {
        let (family, any) = match self.address {
            SocketAddr::V4(_) => (AddressFamily::INET, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            SocketAddr::V6(_) => (AddressFamily::INET6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        // Calls are small and must not wait for each other.
        sockopt::set_tcp_nodelay(&socket, true)?;
        if let Some(port) = port {
            bind(&socket, &SocketAddr::new(any, port))?;
        }
        match connect(&socket, &self.address) {
            Ok(()) => Ok((socket, Making::Done)),
            Err(Errno::INPROGRESS | Errno::INTR) => Ok((socket, Making::UnderWay)),
            Err(errno) => Err(errno),
        }
    }

    fn begun(&mut self, begun: rustix::io::Result<(OwnedFd, Making)>, is_reserved: bool) -> Making {
        match begun {
            Ok((socket, making)) => {
                self.socket = Some(Arc::new(socket.into()));
                self.wake_bytes = 1;
                self.is_reserved = is_reserved;
                making
            }
            Err(errno) => self.failed(errno),
        }
    }

    fn failed(&mut self, errno: Errno) -> Making {
        self.close();
        Making::Failed(errno.raw_os_error())
    }
}

/// Sleeps until the socket has bytes, or takes some if `to_write`, or the bell
/// rings, or the time is up; without a socket and a bell, for the time.
pub(crate) fn sleep_on(
    socket: Option<BorrowedFd<'_>>,
    to_write: bool,
    bell: Option<BorrowedFd<'_>>,
    at_most: Option<Duration>,
) -> Ready {
    let time = at_most.map(|span| Timespec {
        tv_sec: span.as_secs() as i64,
        tv_nsec: span.subsec_nanos().into(),
    });
    let wanted = PollFlags::IN | if to_write { PollFlags::OUT } else { PollFlags::empty() };
    let socket = socket.map(|fd| PollFd::from_borrowed_fd(fd, wanted));
    let bell = bell.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
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
