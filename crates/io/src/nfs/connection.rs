//! One connection to a server, from the port that servers ask for, over a [socket](super::socket) that never
//! blocks but in [`Connection::wait`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::options::SourcePort;
use super::socket::{Lost, Making, Ready};

#[cfg(any(test, feature = "simulation"))]
pub(super) use crate::simulation::network::{EventFd, Socket, sleep_on};

#[cfg(not(any(test, feature = "simulation")))]
pub(super) use super::socket::{Socket, sleep_on};
#[cfg(not(any(test, feature = "simulation")))]
pub(super) use crate::bell::EventFd;

/// The reserved ports that are tried, highest first: those that Linux's client uses.
const RESERVED_PORTS: std::ops::RangeInclusive<u16> = 665..=1023;

/// The socket to one address.
pub(crate) struct Connection {
    address: SocketAddr,
    source: SourcePort,
    /// Shared with who sleeps on it, so that its number stays its own as long.
    socket: Option<Arc<Socket>>,
    is_reserved: bool,
    /// At how many bytes a sleep on the socket ends.
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
                match Socket::connect(self.address, Some(port)) {
                    // In use, or so lately that it still names the last connection.
                    Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => {}
                    Err(Errno::ACCESS | Errno::PERM) => break,
                    begun => return self.begun(begun, true),
                }
            }
        }
        self.begun(Socket::connect(self.address, None), false)
    }

    /// How the connection that was begun stands.
    pub(crate) fn making(&mut self) -> Making {
        let Some(socket) = &self.socket else { return Making::Failed(libc::ENOTCONN) };
        let making = socket.making();
        if let Making::Failed(_) = making {
            self.close();
        }
        making
    }

    /// Lets go of the socket.
    pub(crate) fn close(&mut self) {
        self.socket = None;
    }

    /// Sends what goes; gives how many bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<usize, Lost> {
        let Some(socket) = &self.socket else { return Err(Lost(libc::ENOTCONN)) };
        socket.send(bytes)
    }

    /// Receives what is there into the pieces, one after the other; gives how many bytes, or
    /// `None` when there are none now.
    ///
    /// # Safety
    /// The pieces, 1,024 at most, are valid to be written to, and used by nobody else meanwhile.
    pub(crate) unsafe fn receive(&mut self, pieces: &[libc::iovec]) -> Result<Option<usize>, Lost> {
        let Some(socket) = &self.socket else { return Err(Lost(libc::ENOTCONN)) };
        // SAFETY: the caller's promise.
        unsafe { socket.receive(pieces) }
    }

    /// Has a sleep for bytes end when so many have come, or all have that will.
    pub(crate) fn wake_at(&mut self, bytes: usize) {
        if let Some(socket) = self.socket.as_ref().filter(|_| bytes != self.wake_bytes) {
            socket.wake_at(bytes);
            self.wake_bytes = bytes;
        }
    }

    /// Sleeps until bytes have come, or can go if `to_write`, or the time is up.
    pub(crate) fn wait(&self, to_write: bool, at_most: Option<Duration>) -> Ready {
        sleep_on(self.socket.as_deref(), to_write, None, at_most)
    }

    /// The socket, for somebody else's sleep.
    pub(crate) fn socket(&self) -> Option<Arc<Socket>> {
        self.socket.clone()
    }

    fn begun(&mut self, begun: rustix::io::Result<(Socket, Making)>, is_reserved: bool) -> Making {
        match begun {
            Ok((socket, making)) => {
                self.socket = Some(Arc::new(socket));
                self.wake_bytes = 1;
                self.is_reserved = is_reserved;
                making
            }
            Err(errno) => Making::Failed(errno.raw_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// As the other side sees it, which is given a port below 1024 by who may have one, and is asked to.
    #[test]
    fn the_port_is_told_to_be_a_reserved_one_when_the_server_sees_one() {
        for source in [SourcePort::Any, SourcePort::ReservedIfAllowed] {
            let server = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut connection = Connection::to(server.local_addr().unwrap(), source);
            assert!(!connection.is_reserved(), "nothing is connected");
            connection.begin();
            let (_socket, seen) = server.accept().unwrap();
            assert_eq!(connection.is_reserved(), seen.port() < 1024, "{source:?}: {seen}");
        }
    }
}
