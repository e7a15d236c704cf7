//! Connections of a simulated run to its [server](super::server). They are refused, slow and cut,
//! accept few bytes at once, and deliver bytes in pieces. A *call* is one request of the client,
//! and an *answer* one reply of the server.
//!
//! Bytes of one connection arrive in their sending order, as with TCP. Whole answers arrive in any
//! order. At a *preemption point* another thread may run.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use rustix::io::Errno;

use super::server::SimulatedServer;
use super::world::{World, world};
use crate::nfs::socket::{self, ConnectState, ConnectionLost, Ready};
use crate::os::event_fd::EventFd as RealEventFd;

/// An event on a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct NetworkEvent {
    /// Index of the connection.
    connection: usize,
    /// Effect of the event.
    kind: NetworkEventKind,
}

/// Kind of an event on a connection.
#[derive(Clone, Copy, Debug)]
enum NetworkEventKind {
    /// The server has accepted the connection.
    Connected,
    /// The server has refused the connection.
    Refused,
    /// Bytes can be sent again.
    Sendable,
    /// The call with this number in `in_transit` has reached the server.
    Call(u64),
    /// The server sends the answer with this number in `in_transit`.
    Answer(u64),
    /// This number of bytes has arrived.
    Arrived(usize),
    /// The connection is cut, with an error number as in `errno(3)`; 0 if the server has closed it.
    Lost(i32),
}

/// One connection.
struct SimulatedConnection {
    /// State of the connection attempt; it stays `Done` after a later loss.
    connect_state: ConnectState,
    /// Bytes sent by the client that form no complete call yet.
    partial_call: Vec<u8>,
    /// Bytes sent by the server and not received by the client yet.
    unreceived: VecDeque<u8>,
    /// Number of the first bytes of `unreceived` that have arrived.
    arrived_bytes: usize,
    /// Number of arrived bytes from which the client's sleep ends.
    wake_bytes: usize,
    /// True while the connection accepts no bytes.
    is_full: bool,
    /// True if the server sends no more bytes.
    is_ending: bool,
    /// Error number after the loss of the connection; 0 if the server has closed it.
    lost_errno: Option<i32>,
    /// True if the client has closed the socket.
    is_closed: bool,
}

/// All connections of a run.
#[derive(Default)]
pub(super) struct Network {
    /// Options and fault rates of the one server.
    pub(super) server: SimulatedServer,
    /// All connections, open and closed, in the order of their start.
    connections: Vec<SimulatedConnection>,
    /// Calls and answers in transit, by their own numbers.
    in_transit: BTreeMap<u64, Vec<u8>>,
    /// Number of calls and answers put in transit so far.
    messages_sent: u64,
    /// Virtual time until which the server is silent.
    silent_until_ns: u64,
}

/// Wait key of threads that sleep for an event of any connection. A wait key is the number by which
/// the world wakes sleeping tasks.
const SLEEP_KEY: usize = 0x800;

/// Bit of a record mark (RFC 5531) that marks the final fragment.
pub(super) const FINAL: u32 = 1 << 31;

impl World {
    /// Schedules an event on the connection with this index, in `ns` nanoseconds.
    fn schedule_event(&self, ns: u64, connection: usize, kind: NetworkEventKind) {
        self.schedule(ns, NetworkEvent { connection, kind });
    }

    /// Random transit time of a message in nanoseconds, as long as a transfer of the disk.
    fn transit_ns(&self) -> u64 {
        let faults = self.disk.borrow().faults().clone();
        self.random_latency_ns(&faults)
    }

    /// Applies an event to its connection, and wakes the threads that sleep for connections. An
    /// event of a closed or lost connection has no other effect.
    pub(super) fn on_connection_event(&self, NetworkEvent { connection, kind }: NetworkEvent) {
        let mut network = self.network.borrow_mut();
        let connection_state = &mut network.connections[connection];
        match kind {
            _ if connection_state.is_closed || connection_state.lost_errno.is_some() => {}
            NetworkEventKind::Connected => connection_state.connect_state = ConnectState::Done,
            NetworkEventKind::Refused => {
                connection_state.connect_state = ConnectState::Failed(libc::ECONNREFUSED)
            }
            NetworkEventKind::Sendable => connection_state.is_full = false,
            NetworkEventKind::Arrived(bytes) => connection_state.arrived_bytes += bytes,
            NetworkEventKind::Lost(errno) => {
                // At a close (0), all bytes sent before arrive. At a reset, all bytes that the
                // client has not received are lost.
                connection_state.arrived_bytes =
                    if errno == 0 { connection_state.unreceived.len() } else { 0 };
                connection_state.lost_errno = Some(errno);
            }
            NetworkEventKind::Call(message_id) => {
                let call =
                    network.in_transit.remove(&message_id).expect("the message is in transit");
                drop(network);
                self.on_call(connection, &call);
            }
            NetworkEventKind::Answer(message_id) => {
                let answer =
                    network.in_transit.remove(&message_id).expect("the message is in transit");
                drop(network);
                self.deliver_answer(connection, answer);
            }
        }
        self.wake_all(SLEEP_KEY);
    }

    /// Handles a call that has reached the server: sends an answer, several, or none. May start a
    /// time of up to three seconds in which the server is silent.
    fn on_call(&self, connection: usize, call: &[u8]) {
        let server = self.network.borrow().server.clone();
        if self.network.borrow().silent_until_ns > self.now_ns()
            || self.happens_one_in(server.no_answer_one_in)
        {
            return;
        }
        // The present call is still answered.
        if self.happens_one_in(server.hang_one_in) {
            self.network.borrow_mut().silent_until_ns =
                self.now_ns() + self.random_below(3_000_000_000);
        }
        let answer = self.answer_to_call(&server, call);
        if self.happens_one_in(server.noise_one_in) {
            let unrelated_bytes = self.unrelated_bytes(&answer);
            self.send_answer(connection, unrelated_bytes);
        }
        if self.happens_one_in(server.duplicate_one_in) {
            self.send_answer(connection, answer.clone());
        }
        self.send_answer(connection, answer);
    }

    /// Puts an answer of the server in transit. It reaches the connection later.
    fn send_answer(&self, connection: usize, answer: Vec<u8>) {
        let message_id = self.put_in_transit(answer);
        self.schedule_event(self.transit_ns(), connection, NetworkEventKind::Answer(message_id));
    }

    /// Puts a call or an answer in transit, and returns its id.
    fn put_in_transit(&self, bytes: Vec<u8>) -> u64 {
        let mut network = self.network.borrow_mut();
        network.messages_sent += 1;
        let message_id = network.messages_sent;
        network.in_transit.insert(message_id, bytes);
        message_id
    }

    /// Appends an answer to the received stream of the connection. A part may arrive later, or the
    /// connection may be cut within the answer. No effect on a connection that was cut before.
    fn deliver_answer(&self, connection: usize, mut answer: Vec<u8>) {
        let mut network = self.network.borrow_mut();
        let cut_one_in = network.server.cut_one_in;
        let connection_state = &mut network.connections[connection];
        // After a cut, nothing follows.
        if connection_state.is_ending {
            return;
        }
        if self.happens_one_in(cut_one_in) {
            answer.truncate(self.random_below(answer.len() as u64) as usize);
            connection_state.is_ending = true;
            let errno = [0, libc::ECONNRESET][self.random_below(2) as usize];
            drop(network);
            self.schedule_event(self.transit_ns(), connection, NetworkEventKind::Lost(errno));
            network = self.network.borrow_mut();
        }
        // In one of four cases, a part of the bytes arrives later.
        let connection_state = &mut network.connections[connection];
        let arrived_now = match self.random_below(4) {
            0 => self.random_below(answer.len() as u64 + 1) as usize,
            _ => answer.len(),
        };
        connection_state.arrived_bytes += arrived_now;
        let arriving_later = answer.len() - arrived_now;
        connection_state.unreceived.extend(answer);
        drop(network);
        if arriving_later > 0 {
            self.schedule_event(
                self.transit_ns(),
                connection,
                NetworkEventKind::Arrived(arriving_later),
            );
        }
    }

    /// Starts a connection, from the local port `port` if given. Returns its index in `connections`
    /// and its state. Two of three attempts from a given port fail, since the port may be in use or
    /// reserved. One in `refuse_one_in` of the others is refused, also while the server is silent:
    /// at once, later, or without any event. A silent server gives the rest no event.
    fn connect(&self, port: Option<u16>) -> rustix::io::Result<(usize, ConnectState)> {
        self.preemption_point();
        if port.is_some() && self.random_below(3) > 0 {
            return Err([Errno::ADDRINUSE, Errno::ACCESS][self.random_below(2) as usize]);
        }
        let refuse_one_in = self.network.borrow().server.refuse_one_in;
        let is_refused = self.happens_one_in(refuse_one_in);
        let is_silent = self.network.borrow().silent_until_ns > self.now_ns();
        // Event that ends the attempt; `None` if the attempt never ends.
        let outcome = match self.random_below(3) {
            0 if is_refused => return Err(Errno::CONNREFUSED),
            1 if is_refused => Some(NetworkEventKind::Refused),
            _ if is_refused || is_silent => None,
            _ => Some(NetworkEventKind::Connected),
        };
        // One of four connections is made at once, without an event.
        let connect_state = match outcome {
            Some(NetworkEventKind::Connected) if self.random_below(4) == 0 => ConnectState::Done,
            _ => ConnectState::InProgress,
        };
        let connection = self.network.borrow().connections.len();
        self.network.borrow_mut().connections.push(SimulatedConnection {
            connect_state,
            partial_call: Vec::new(),
            unreceived: VecDeque::new(),
            arrived_bytes: 0,
            wake_bytes: 1,
            is_full: false,
            is_ending: false,
            lost_errno: None,
            is_closed: false,
        });
        if let (ConnectState::InProgress, Some(outcome)) = (connect_state, outcome) {
            self.schedule_event(self.transit_ns(), connection, outcome);
        }
        Ok((connection, connect_state))
    }

    /// Sends the first of the bytes to the server, and returns their number: 0 while the connection
    /// accepts none. Complete calls are put in transit. Fails once the connection is lost.
    fn send(&self, connection: usize, bytes: &[u8]) -> Result<usize, ConnectionLost> {
        self.preemption_point();
        let short_one_in = self.disk.borrow().faults().short_one_in;
        let mut network = self.network.borrow_mut();
        let connection_state = &mut network.connections[connection];
        if connection_state.lost_errno.is_some() {
            return Err(ConnectionLost(libc::EPIPE));
        }
        if connection_state.is_full {
            return Ok(0);
        }
        // By a fault, half of the bytes are accepted, and no more until `Sendable`.
        let mut accepted_bytes = bytes.len();
        if self.happens_one_in(short_one_in) {
            connection_state.is_full = true;
            accepted_bytes = accepted_bytes.div_ceil(2);
        }
        connection_state.partial_call.extend(&bytes[..accepted_bytes]);
        // Each call follows its record mark, a word of four bytes with the call's length.
        let mut calls = Vec::new();
        while let Some(mark) = connection_state.partial_call.first_chunk() {
            let end = 4 + (u32::from_be_bytes(*mark) & !FINAL) as usize;
            if connection_state.partial_call.len() < end {
                break;
            }
            calls.push(connection_state.partial_call.drain(..end).skip(4).collect::<Vec<u8>>());
        }
        let is_full = connection_state.is_full;
        drop(network);
        if is_full {
            self.schedule_event(self.transit_ns(), connection, NetworkEventKind::Sendable);
        }
        for call in calls {
            let message_id = self.put_in_transit(call);
            self.schedule_event(self.transit_ns(), connection, NetworkEventKind::Call(message_id));
        }
        Ok(accepted_bytes)
    }

    /// Removes and returns up to `bytes_max` bytes that have arrived, or `None` if there are none.
    /// Fails if there are none and the connection is lost. By the fault `short_one_in`, only a part
    /// of the available bytes is returned.
    fn take_received(
        &self,
        connection: usize,
        bytes_max: usize,
    ) -> Result<Option<Vec<u8>>, ConnectionLost> {
        self.preemption_point();
        let short_one_in = self.disk.borrow().faults().short_one_in;
        let mut network = self.network.borrow_mut();
        let connection_state = &mut network.connections[connection];
        let mut count = connection_state.arrived_bytes.min(bytes_max);
        if count == 0 {
            return connection_state
                .lost_errno
                .map_or(Ok(None), |errno| Err(ConnectionLost(errno)));
        }
        if self.happens_one_in(short_one_in) {
            count = 1 + self.random_below(count as u64) as usize;
        }
        connection_state.arrived_bytes -= count;
        Ok(Some(connection_state.unreceived.drain(..count).collect()))
    }

    /// Operations that are possible on a connection now. A failed connection counts as ready, so
    /// that the next call returns its error. Sending is reported only if `wants_write` is true.
    fn ready_events(&self, connection: usize, wants_write: bool) -> Ready {
        let network = self.network.borrow();
        let connection_state = &network.connections[connection];
        let has_failed = connection_state.lost_errno.is_some()
            || matches!(connection_state.connect_state, ConnectState::Failed(_));
        let is_connected = connection_state.connect_state == ConnectState::Done;
        Ready {
            is_readable: has_failed
                || is_connected && connection_state.arrived_bytes >= connection_state.wake_bytes,
            is_writable: wants_write && (has_failed || is_connected && !connection_state.is_full),
            is_event_fd_signalled: false,
        }
    }
}

/// Reason for which a simulated object finds its world.
const IN_WORLD: &str = "what a simulation made is used in it";

/// A socket of the system, or of the running simulation.
pub(crate) enum Socket {
    /// A socket of the system.
    Real(socket::Socket),
    /// Index of a simulated connection.
    Simulated(usize),
}

impl Socket {
    /// Starts to connect to `address`, from `port` of this machine if given.
    pub(crate) fn connect(
        address: SocketAddr,
        port: Option<u16>,
    ) -> rustix::io::Result<(Socket, ConnectState)> {
        match world() {
            Some(world) => {
                let (connection, connect_state) = world.connect(port)?;
                Ok((Socket::Simulated(connection), connect_state))
            }
            None => {
                let (socket, connect_state) = socket::Socket::connect(address, port)?;
                Ok((Socket::Real(socket), connect_state))
            }
        }
    }

    /// Returns the state of the connection attempt, or the later loss of the connection.
    pub(crate) fn connect_state(&self) -> ConnectState {
        match self {
            Socket::Real(socket) => socket.connect_state(),
            Socket::Simulated(connection) => {
                let world = world().expect(IN_WORLD);
                let network = world.network.borrow();
                let SimulatedConnection { connect_state, lost_errno, .. } =
                    network.connections[*connection];
                lost_errno.map_or(connect_state, ConnectState::Failed)
            }
        }
    }

    /// Sends as many bytes as the socket accepts now, and returns their number, possibly 0.
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<usize, ConnectionLost> {
        match self {
            Socket::Real(socket) => socket.send(bytes),
            Socket::Simulated(connection) => world().expect(IN_WORLD).send(*connection, bytes),
        }
    }

    /// Receives available bytes into `pieces` in order. Returns their number, or `None` if there
    /// are none.
    ///
    /// # Safety
    /// As for [the real socket](socket::Socket::receive).
    pub(crate) unsafe fn receive(
        &self,
        pieces: &[libc::iovec],
    ) -> Result<Option<usize>, ConnectionLost> {
        let connection = match self {
            // SAFETY: the caller guarantees the contract of this function.
            Socket::Real(socket) => return unsafe { socket.receive(pieces) },
            Socket::Simulated(connection) => *connection,
        };
        let bytes_max = pieces.iter().map(|piece| piece.iov_len).sum();
        let Some(bytes) = world().expect(IN_WORLD).take_received(connection, bytes_max)? else {
            return Ok(None);
        };
        let mut uncopied = &bytes[..];
        for piece in pieces {
            let (part, after) = uncopied.split_at(piece.iov_len.min(uncopied.len()));
            // SAFETY: the caller guarantees valid pieces. The received bytes do not overlap them.
            unsafe {
                std::ptr::copy_nonoverlapping(part.as_ptr(), piece.iov_base.cast(), part.len());
            }
            uncopied = after;
        }
        Ok(Some(bytes.len()))
    }

    /// Sets the number of received bytes that end a sleep.
    pub(crate) fn set_wake_bytes(&self, bytes: usize) {
        match self {
            Socket::Real(socket) => socket.set_wake_bytes(bytes),
            Socket::Simulated(connection) => {
                let world = world().expect(IN_WORLD);
                world.network.borrow_mut().connections[*connection].wake_bytes = bytes;
            }
        }
    }
}

impl Drop for Socket {
    /// Closes a simulated connection: bytes in transit to it are lost.
    fn drop(&mut self) {
        if let Socket::Simulated(connection) = self
            && let Some(world) = world()
        {
            let connection_state = &mut world.network.borrow_mut().connections[*connection];
            connection_state.is_closed = true;
            (connection_state.unreceived, connection_state.partial_call) = Default::default();
        }
    }
}

/// An eventfd of the system, or of the running simulation.
pub(crate) enum EventFd {
    /// An eventfd of the system.
    Real(RealEventFd),
    /// True while the simulated eventfd is signalled.
    Simulated(std::sync::atomic::AtomicBool),
}

impl EventFd {
    /// Creates an eventfd without a signal. In a simulation it fails as often as a thread start.
    pub(crate) fn new() -> rustix::io::Result<EventFd> {
        match world() {
            Some(world) if world.does_thread_start_fail() => Err(Errno::MFILE),
            Some(_) => Ok(EventFd::Simulated(false.into())),
            None => RealEventFd::new().map(EventFd::Real),
        }
    }

    /// Signals the eventfd, and wakes its sleepers.
    pub(crate) fn signal(&self) {
        match self {
            EventFd::Real(event_fd) => event_fd.signal(),
            EventFd::Simulated(is_signalled) => {
                is_signalled.store(true, std::sync::atomic::Ordering::Relaxed);
                if let Some(world) = world() {
                    world.wake_all(SLEEP_KEY);
                }
            }
        }
    }

    /// Clears the signal.
    pub(crate) fn clear(&self) {
        match self {
            EventFd::Real(event_fd) => event_fd.clear(),
            EventFd::Simulated(is_signalled) => {
                is_signalled.store(false, std::sync::atomic::Ordering::Relaxed)
            }
        }
    }
}

/// Sleeps until one of the given objects is ready, or until `timeout` has passed, as [the system's
/// version](socket::sleep_on). `None` is no limit. With `wants_write`, the sleep also ends when the
/// socket accepts bytes. Returns the events that ended the sleep, none after a timeout.
pub(crate) fn sleep_on(
    socket: Option<&Socket>,
    wants_write: bool,
    event_fd: Option<&EventFd>,
    timeout: Option<Duration>,
) -> Ready {
    let Some(world) = world() else {
        let socket = socket.map(|socket| match socket {
            Socket::Real(socket) => socket,
            Socket::Simulated(_) => unreachable!("{IN_WORLD}"),
        });
        let event_fd = event_fd.map(|event_fd| match event_fd {
            EventFd::Real(event_fd) => event_fd,
            EventFd::Simulated(_) => unreachable!("{IN_WORLD}"),
        });
        return socket::sleep_on(socket, wants_write, event_fd, timeout);
    };
    let until_ns = timeout.map(|span| world.now_ns() + span.as_nanos() as u64);
    let spurious_wake_one_in = world.disk.borrow().faults().spurious_wake_one_in;
    world.preemption_point();
    // Each event wakes the task, which checks if one of its objects is ready.
    loop {
        let mut ready = match socket {
            Some(Socket::Simulated(connection)) => world.ready_events(*connection, wants_write),
            _ => Ready::default(),
        };
        if let Some(EventFd::Simulated(is_signalled)) = event_fd {
            ready.is_event_fd_signalled = is_signalled.load(std::sync::atomic::Ordering::Relaxed);
        }
        let is_timed_out = until_ns.is_some_and(|until_ns| until_ns <= world.now_ns());
        if ready != Ready::default() || is_timed_out || world.happens_one_in(spurious_wake_one_in) {
            world.preemption_point();
            return ready;
        }
        world.block(SLEEP_KEY, until_ns);
    }
}
