//! One connection to a server from a suitable source port, over a [socket](super::socket) that
//! blocks only in [`Connection::wait`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::options::SourcePort;
use super::socket::{ConnectState, ConnectionLost, Ready};

#[cfg(simulation)]
pub(super) use crate::simulation::network::{EventFd, Socket, sleep_on};

#[cfg(not(simulation))]
pub(super) use super::socket::{Socket, sleep_on};
#[cfg(not(simulation))]
pub(super) use crate::os::event_fd::EventFd;

/// Reserved ports to try, from the highest: the range of Linux's client.
const RESERVED_PORTS: std::ops::RangeInclusive<u16> = 665..=1023;

/// The socket to one address.
pub(crate) struct Connection {
    /// Address and port of the server.
    address: SocketAddr,
    /// Kind of local port that the options ask for.
    source_port: SourcePort,
    /// Shared with a sleeping thread, so that its descriptor is not reused during the sleep.
    socket: Option<Arc<Socket>>,
    /// True if the last socket has a reserved local port.
    is_from_reserved_port: bool,
    /// Number of received bytes that end a sleep on the socket.
    wake_bytes: usize,
}

impl Connection {
    /// Creates an unconnected connection to `address`.
    pub(crate) fn new(address: SocketAddr, source_port: SourcePort) -> Connection {
        Connection {
            address,
            source_port,
            socket: None,
            is_from_reserved_port: false,
            wake_bytes: 1,
        }
    }

    /// True if the last socket has a reserved local port. False before the first one.
    pub(crate) fn is_from_reserved_port(&self) -> bool {
        self.is_from_reserved_port
    }

    /// True if there is a socket, connected or connecting.
    pub(crate) fn is_open(&self) -> bool {
        self.socket.is_some()
    }

    /// Closes the socket and starts a new connection, from a reserved port if the options ask for
    /// one and the system permits it. Returns the state of the attempt.
    pub(crate) fn start_connecting(&mut self) -> ConnectState {
        self.close();
        if self.source_port == SourcePort::ReservedIfAllowed {
            for port in RESERVED_PORTS.rev() {
                match Socket::connect(self.address, Some(port)) {
                    // The port is in use, or still belongs to a recent connection: the next port is
                    // tried. After the last one, any port is taken.
                    Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => {}
                    // The system permits no reserved port, so any port is taken.
                    Err(Errno::ACCESS | Errno::PERM) => break,
                    // Done, in progress, or failed for another reason.
                    started => {
                        let is_from_reserved_port = true;
                        return self.store_started(started, is_from_reserved_port);
                    }
                }
            }
        }
        let is_from_reserved_port = false;
        self.store_started(Socket::connect(self.address, None), is_from_reserved_port)
    }

    /// Returns the state of the connection that was started. Closes the socket if the attempt has
    /// failed. Without a socket the state is a failure with `ENOTCONN`.
    pub(crate) fn connect_state(&mut self) -> ConnectState {
        let Some(socket) = &self.socket else { return ConnectState::Failed(libc::ENOTCONN) };
        let connect_state = socket.connect_state();
        if let ConnectState::Failed(_) = connect_state {
            self.close();
        }
        connect_state
    }

    /// Closes the socket, once no other thread sleeps on it. No effect without a socket.
    pub(crate) fn close(&mut self) {
        self.socket = None;
    }

    /// Sends as many bytes as the socket accepts now, and returns their number, possibly 0. Fails
    /// with `ENOTCONN` without a socket.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<usize, ConnectionLost> {
        let Some(socket) = &self.socket else { return Err(ConnectionLost(libc::ENOTCONN)) };
        socket.send(bytes)
    }

    /// Receives available bytes into the pieces in order. Returns their number, or `None` if there
    /// are none. Fails with `ENOTCONN` without a socket.
    ///
    /// # Safety
    /// The pieces, at most 1,024, are valid for writes and not used by other code meanwhile.
    pub(crate) unsafe fn receive(
        &mut self,
        pieces: &[libc::iovec],
    ) -> Result<Option<usize>, ConnectionLost> {
        let Some(socket) = &self.socket else { return Err(ConnectionLost(libc::ENOTCONN)) };
        // SAFETY: the caller guarantees the contract of this function.
        unsafe { socket.receive(pieces) }
    }

    /// Sets the number of received bytes that end a sleep. The end of the stream also ends it. No
    /// system call without a socket, or if the number is the present one.
    pub(crate) fn set_wake_bytes(&mut self, bytes: usize) {
        if let Some(socket) = self.socket.as_ref().filter(|_| bytes != self.wake_bytes) {
            socket.set_wake_bytes(bytes);
            self.wake_bytes = bytes;
        }
    }

    /// Sleeps until bytes are available, or can be sent if `until_writable` is true. `timeout`
    /// limits the sleep; `None` is no limit. Returns the events that ended the sleep.
    pub(crate) fn wait(&self, until_writable: bool, timeout: Option<Duration>) -> Ready {
        let no_event_fd = None;
        sleep_on(self.socket.as_deref(), until_writable, no_event_fd, timeout)
    }

    /// Returns the socket, connected or connecting, on which another thread may sleep. `None`
    /// without one.
    pub(crate) fn socket(&self) -> Option<Arc<Socket>> {
        self.socket.clone()
    }

    /// Stores the socket of a started connection and returns the state of the attempt.
    /// `is_from_reserved_port` is true if its local port is a reserved one.
    fn store_started(
        &mut self,
        started: rustix::io::Result<(Socket, ConnectState)>,
        is_from_reserved_port: bool,
    ) -> ConnectState {
        match started {
            Ok((socket, connect_state)) => {
                self.socket = Some(Arc::new(socket));
                // As in a new socket.
                self.wake_bytes = 1;
                self.is_from_reserved_port = is_from_reserved_port;
                connect_state
            }
            Err(errno) => ConnectState::Failed(errno.raw_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// The report agrees with the port that the server sees, for any user: only privileged users
    /// get a port below 1024.
    #[test]
    fn reserved_port_is_reported_if_and_only_if_the_server_sees_one() {
        for source in [SourcePort::Any, SourcePort::ReservedIfAllowed] {
            let server = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut connection = Connection::new(server.local_addr().unwrap(), source);
            assert!(!connection.is_from_reserved_port(), "the connection has no socket yet");
            connection.start_connecting();
            let (_socket, seen) = server.accept().unwrap();
            let is_reserved = seen.port() < 1024;
            assert_eq!(connection.is_from_reserved_port(), is_reserved, "{source:?}: {seen}");
        }
    }
}
