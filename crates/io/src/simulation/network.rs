//! Connections of a simulated run to its [server](super::server). They are refused, slow and cut,
//! accept few bytes at once, and deliver bytes in pieces.
//!
//! Bytes of one connection arrive in their sending order, as with TCP. Whole answers arrive in any
//! order.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use rustix::io::Errno;

use super::server::SimulatedServer;
use super::world::{World, world};
use crate::nfs::socket::{self, ConnectState, ConnectionLost, Ready};
use crate::os::event_fd::EventFd as RealBell;

/// An event on a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct NetworkEvent {
    connection: usize,
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
    /// A call has reached the server.
    Call(u64),
    /// The server sends an answer.
    Answer(u64),
    /// This number of bytes has arrived.
    Arrived(usize),
    /// The connection is cut, with an error number as in `errno(3)`; 0 if the server has closed it.
    Lost(i32),
}

/// One connection.
struct SimulatedConnection {
    connect_state: ConnectState,
    /// Sent part of a call.
    call: Vec<u8>,
    /// Bytes sent by the server.
    stream: VecDeque<u8>,
    /// Number of these that have arrived.
    arrived_bytes: usize,
    wake_bytes: usize,
    /// True while the connection accepts no bytes.
    is_full: bool,
    /// True if the server sends no more bytes.
    is_ending: bool,
    lost: Option<i32>,
    /// True if the client has closed the socket.
    is_closed: bool,
}

/// All connections of a run.
#[derive(Default)]
pub(super) struct Network {
    pub(super) server: SimulatedServer,
    connections: Vec<SimulatedConnection>,
    /// Calls and answers in transit, by their own numbers.
    in_transit: BTreeMap<u64, Vec<u8>>,
    sent: u64,
    /// Time until which the server is silent.
    silent_until: u64,
}

/// Wait key of threads that sleep for an event of a connection.
const SLEEP_KEY: usize = 0x800;

/// Bit of a record mark that marks the last fragment.
pub(super) const LAST: u32 = 1 << 31;

impl World {
    /// Schedules an event on a connection.
    fn schedule_event(&self, ns: u64, connection: usize, kind: NetworkEventKind) {
        self.schedule(ns, NetworkEvent { connection, kind });
    }

    /// Transit time in nanoseconds.
    fn transit_ns(&self) -> u64 {
        let faults = self.disk.borrow().faults().clone();
        self.latency(&faults)
    }

    /// Handles an event.
    pub(super) fn on_event(&self, NetworkEvent { connection, kind: what }: NetworkEvent) {
        let mut network = self.network.borrow_mut();
        let connection_state = &mut network.connections[connection];
        match what {
            _ if connection_state.is_closed || connection_state.lost.is_some() => {}
            NetworkEventKind::Connected => connection_state.connect_state = ConnectState::Done,
            NetworkEventKind::Refused => {
                connection_state.connect_state = ConnectState::Failed(libc::ECONNREFUSED)
            }
            NetworkEventKind::Sendable => connection_state.is_full = false,
            NetworkEventKind::Arrived(bytes) => connection_state.arrived_bytes += bytes,
            NetworkEventKind::Lost(errno) => {
                // Bytes sent before a close arrive. Bytes in transit at a reset are lost.
                connection_state.arrived_bytes =
                    if errno == 0 { connection_state.stream.len() } else { 0 };
                connection_state.lost = Some(errno);
            }
            NetworkEventKind::Call(number) => {
                let call = network.in_transit.remove(&number).expect("it is on its way");
                drop(network);
                self.on_call(connection, &call);
            }
            NetworkEventKind::Answer(number) => {
                let answer = network.in_transit.remove(&number).expect("it is on its way");
                drop(network);
                self.deliver_answer(connection, answer);
            }
        }
        self.wake_all(SLEEP_KEY);
    }

    /// Handles a call on the server.
    fn on_call(&self, connection: usize, call: &[u8]) {
        let server = self.network.borrow().server.clone();
        if self.network.borrow().silent_until > self.now_ns()
            || self.happens_one_in(server.no_answer_rate)
        {
            return;
        }
        if self.happens_one_in(server.hang_rate) {
            self.network.borrow_mut().silent_until =
                self.now_ns() + self.random_below(3_000_000_000);
        }
        let answer = self.answer(&server, call);
        if self.happens_one_in(server.noise_rate) {
            let strange = self.unrelated_bytes(&answer);
            self.send_answer(connection, strange);
        }
        if self.happens_one_in(server.duplicate_rate) {
            self.send_answer(connection, answer.clone());
        }
        self.send_answer(connection, answer);
    }

    fn send_answer(&self, connection: usize, answer: Vec<u8>) {
        let number = self.put_in_transit(answer);
        self.schedule_event(self.transit_ns(), connection, NetworkEventKind::Answer(number));
    }

    /// Puts a call or an answer in transit, and returns its number.
    fn put_in_transit(&self, bytes: Vec<u8>) -> u64 {
        let mut network = self.network.borrow_mut();
        network.sent += 1;
        let number = network.sent;
        network.in_transit.insert(number, bytes);
        number
    }

    /// Puts an answer on the connection, behind the earlier ones.
    fn deliver_answer(&self, connection: usize, mut answer: Vec<u8>) {
        let mut network = self.network.borrow_mut();
        let cuts = network.server.cut_rate;
        let connection_state = &mut network.connections[connection];
        if connection_state.is_ending {
            return;
        }
        if self.happens_one_in(cuts) {
            answer.truncate(self.random_below(answer.len() as u64) as usize);
            connection_state.is_ending = true;
            let errno = [0, libc::ECONNRESET][self.random_below(2) as usize];
            drop(network);
            self.schedule_event(self.transit_ns(), connection, NetworkEventKind::Lost(errno));
            network = self.network.borrow_mut();
        }
        let connection_state = &mut network.connections[connection];
        let first = match self.random_below(4) {
            0 => self.random_below(answer.len() as u64 + 1) as usize,
            _ => answer.len(),
        };
        connection_state.arrived_bytes += first;
        let rest = answer.len() - first;
        connection_state.stream.extend(answer);
        drop(network);
        if rest > 0 {
            self.schedule_event(self.transit_ns(), connection, NetworkEventKind::Arrived(rest));
        }
    }

    /// Starts a connection.
    fn connect(&self, port: Option<u16>) -> rustix::io::Result<(usize, ConnectState)> {
        self.preemption_point();
        if port.is_some() && self.random_below(3) > 0 {
            return Err([Errno::ADDRINUSE, Errno::ACCESS][self.random_below(2) as usize]);
        }
        let refuses = self.network.borrow().server.refuse_rate;
        let is_refused = self.happens_one_in(refuses);
        let is_silent = self.network.borrow().silent_until > self.now_ns();
        let what = match self.random_below(3) {
            0 if is_refused => return Err(Errno::CONNREFUSED),
            1 if is_refused => Some(NetworkEventKind::Refused),
            _ if is_refused || is_silent => None,
            _ => Some(NetworkEventKind::Connected),
        };
        let making = match what {
            Some(NetworkEventKind::Connected) if self.random_below(4) == 0 => ConnectState::Done,
            _ => ConnectState::InProgress,
        };
        let connection = self.network.borrow().connections.len();
        self.network.borrow_mut().connections.push(SimulatedConnection {
            connect_state: making,
            call: Vec::new(),
            stream: VecDeque::new(),
            arrived_bytes: 0,
            wake_bytes: 1,
            is_full: false,
            is_ending: false,
            lost: None,
            is_closed: false,
        });
        if let (ConnectState::InProgress, Some(what)) = (making, what) {
            self.schedule_event(self.transit_ns(), connection, what);
        }
        Ok((connection, making))
    }

    /// Sends some of the bytes to the server, and returns their number.
    fn send(&self, connection: usize, bytes: &[u8]) -> Result<usize, ConnectionLost> {
        self.preemption_point();
        let stops = self.disk.borrow().faults().short_rate;
        let mut network = self.network.borrow_mut();
        let connection_state = &mut network.connections[connection];
        if connection_state.lost.is_some() {
            return Err(ConnectionLost(libc::EPIPE));
        }
        if connection_state.is_full {
            return Ok(0);
        }
        let mut count = bytes.len();
        if self.happens_one_in(stops) {
            connection_state.is_full = true;
            count = count.div_ceil(2);
        }
        connection_state.call.extend(&bytes[..count]);
        let mut calls = Vec::new();
        while let Some(mark) = connection_state.call.first_chunk() {
            let end = 4 + (u32::from_be_bytes(*mark) & !LAST) as usize;
            if connection_state.call.len() < end {
                break;
            }
            calls.push(connection_state.call.drain(..end).skip(4).collect::<Vec<u8>>());
        }
        let is_full = connection_state.is_full;
        drop(network);
        if is_full {
            self.schedule_event(self.transit_ns(), connection, NetworkEventKind::Sendable);
        }
        for call in calls {
            let number = self.put_in_transit(call);
            self.schedule_event(self.transit_ns(), connection, NetworkEventKind::Call(number));
        }
        Ok(count)
    }

    /// Returns up to `room` bytes that have arrived.
    fn take_received(
        &self,
        connection: usize,
        room: usize,
    ) -> Result<Option<Vec<u8>>, ConnectionLost> {
        self.preemption_point();
        let stops = self.disk.borrow().faults().short_rate;
        let mut network = self.network.borrow_mut();
        let connection_state = &mut network.connections[connection];
        let mut count = connection_state.arrived_bytes.min(room);
        if count == 0 {
            return connection_state.lost.map_or(Ok(None), |errno| Err(ConnectionLost(errno)));
        }
        if self.happens_one_in(stops) {
            count = 1 + self.random_below(count as u64) as usize;
        }
        connection_state.arrived_bytes -= count;
        Ok(Some(connection_state.stream.drain(..count).collect()))
    }

    /// Possible operations on a connection now.
    fn readiness(&self, connection: usize, to_write: bool) -> Ready {
        let network = self.network.borrow();
        let connection_state = &network.connections[connection];
        let is_over = connection_state.lost.is_some()
            || matches!(connection_state.connect_state, ConnectState::Failed(_));
        let is_made = connection_state.connect_state == ConnectState::Done;
        Ready {
            is_readable: is_over
                || is_made && connection_state.arrived_bytes >= connection_state.wake_bytes,
            is_writable: to_write && (is_over || is_made && !connection_state.is_full),
            is_event_fd_signalled: false,
        }
    }
}

const OUTSIDE: &str = "what a simulation made is used in it";

/// A socket of the system, or of the running simulation.
pub(crate) enum Socket {
    Real(socket::Socket),
    Simulated(usize),
}

impl Socket {
    pub(crate) fn connect(
        address: SocketAddr,
        port: Option<u16>,
    ) -> rustix::io::Result<(Socket, ConnectState)> {
        match world() {
            Some(world) => {
                let (connection, making) = world.connect(port)?;
                Ok((Socket::Simulated(connection), making))
            }
            None => {
                let (socket, making) = socket::Socket::connect(address, port)?;
                Ok((Socket::Real(socket), making))
            }
        }
    }

    pub(crate) fn connect_state(&self) -> ConnectState {
        match self {
            Socket::Real(socket) => socket.connect_state(),
            Socket::Simulated(connection) => {
                let world = world().expect(OUTSIDE);
                let network = world.network.borrow();
                let SimulatedConnection { connect_state: making, lost, .. } =
                    network.connections[*connection];
                lost.map_or(making, ConnectState::Failed)
            }
        }
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> Result<usize, ConnectionLost> {
        match self {
            Socket::Real(socket) => socket.send(bytes),
            Socket::Simulated(connection) => world().expect(OUTSIDE).send(*connection, bytes),
        }
    }

    /// Receives into `pieces`.
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
        let room = pieces.iter().map(|piece| piece.iov_len).sum();
        let Some(bytes) = world().expect(OUTSIDE).take_received(connection, room)? else {
            return Ok(None);
        };
        let mut rest = &bytes[..];
        for piece in pieces {
            let (part, more) = rest.split_at(piece.iov_len.min(rest.len()));
            // SAFETY: the caller guarantees valid pieces. The received bytes do not overlap them.
            unsafe {
                std::ptr::copy_nonoverlapping(part.as_ptr(), piece.iov_base.cast(), part.len());
            }
            rest = more;
        }
        Ok(Some(bytes.len()))
    }

    pub(crate) fn set_wake_bytes(&self, bytes: usize) {
        match self {
            Socket::Real(socket) => socket.set_wake_bytes(bytes),
            Socket::Simulated(connection) => {
                let world = world().expect(OUTSIDE);
                world.network.borrow_mut().connections[*connection].wake_bytes = bytes;
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Socket::Simulated(connection) = self
            && let Some(world) = world()
        {
            let connection_state = &mut world.network.borrow_mut().connections[*connection];
            connection_state.is_closed = true;
            (connection_state.stream, connection_state.call) = Default::default();
        }
    }
}

/// An eventfd of the system, or of the running simulation.
pub(crate) enum EventFd {
    Real(RealBell),
    Simulated(std::sync::atomic::AtomicBool),
}

impl EventFd {
    pub(crate) fn new() -> rustix::io::Result<EventFd> {
        match world() {
            Some(world) if world.does_thread_start_fail() => Err(Errno::MFILE),
            Some(_) => Ok(EventFd::Simulated(false.into())),
            None => RealBell::new().map(EventFd::Real),
        }
    }

    pub(crate) fn signal(&self) {
        match self {
            EventFd::Real(event_fd) => event_fd.signal(),
            EventFd::Simulated(is_rung) => {
                is_rung.store(true, std::sync::atomic::Ordering::Relaxed);
                if let Some(world) = world() {
                    world.wake_all(SLEEP_KEY);
                }
            }
        }
    }

    pub(crate) fn clear(&self) {
        match self {
            EventFd::Real(event_fd) => event_fd.clear(),
            EventFd::Simulated(is_rung) => {
                is_rung.store(false, std::sync::atomic::Ordering::Relaxed)
            }
        }
    }
}

/// See [the system's version](socket::sleep_on).
pub(crate) fn sleep_on(
    socket: Option<&Socket>,
    to_write: bool,
    event_fd: Option<&EventFd>,
    at_most: Option<Duration>,
) -> Ready {
    let Some(world) = world() else {
        let socket = socket.map(|socket| match socket {
            Socket::Real(socket) => socket,
            Socket::Simulated(_) => unreachable!("{OUTSIDE}"),
        });
        let event_fd = event_fd.map(|event_fd| match event_fd {
            EventFd::Real(event_fd) => event_fd,
            EventFd::Simulated(_) => unreachable!("{OUTSIDE}"),
        });
        return socket::sleep_on(socket, to_write, event_fd, at_most);
    };
    let until = at_most.map(|span| world.now_ns() + span.as_nanos() as u64);
    let wakes = world.disk.borrow().faults().spurious_wake_rate;
    world.preemption_point();
    loop {
        let mut ready = match socket {
            Some(Socket::Simulated(connection)) => world.readiness(*connection, to_write),
            _ => Ready::default(),
        };
        if let Some(EventFd::Simulated(is_rung)) = event_fd {
            ready.is_event_fd_signalled = is_rung.load(std::sync::atomic::Ordering::Relaxed);
        }
        let is_late = until.is_some_and(|until| until <= world.now_ns());
        if ready != Ready::default() || is_late || world.happens_one_in(wakes) {
            world.preemption_point();
            return ready;
        }
        world.block(SLEEP_KEY, until);
    }
}
