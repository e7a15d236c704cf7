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
use crate::event_fd::EventFd as RealBell;
use crate::nfs::socket::{self, Lost, Making, Ready};

/// An event on a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct NetworkMove {
    wire: usize,
    what: What,
}

/// Kind of an event on a connection.
#[derive(Clone, Copy, Debug)]
enum What {
    /// The server has accepted the connection.
    Connected,
    /// The server has refused the connection.
    Refused,
    /// Bytes can be sent again.
    Room,
    /// A call has reached the server.
    Call(u64),
    /// The server sends an answer.
    Answer(u64),
    /// This number of bytes has arrived.
    Come(usize),
    /// The connection is cut, with an error number as in `errno(3)`; 0 if the server has closed it.
    Lost(i32),
}

/// One connection.
struct Wire {
    making: Making,
    /// Sent part of a call.
    call: Vec<u8>,
    /// Bytes sent by the server.
    stream: VecDeque<u8>,
    /// Number of these that have arrived.
    come: usize,
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
    wires: Vec<Wire>,
    /// Calls and answers in transit, by their own numbers.
    on_way: BTreeMap<u64, Vec<u8>>,
    sent: u64,
    /// Time until which the server is silent.
    silent_until: u64,
}

/// Wait key of threads that sleep for an event of a connection.
const SLEEPING: usize = 0x800;

/// Bit of a record mark that marks the last fragment.
pub(super) const LAST: u32 = 1 << 31;

impl World {
    /// Schedules an event on a connection.
    fn expect_moved(&self, ns: u64, wire: usize, what: What) {
        self.expect(ns, NetworkMove { wire, what });
    }

    /// Transit time in nanoseconds.
    fn way(&self) -> u64 {
        let faults = self.disk.borrow().faults().clone();
        self.latency(&faults)
    }

    /// Handles an event.
    pub(super) fn moved(&self, NetworkMove { wire, what }: NetworkMove) {
        let mut network = self.network.borrow_mut();
        let place = &mut network.wires[wire];
        match what {
            _ if place.is_closed || place.lost.is_some() => {}
            What::Connected => place.making = Making::Done,
            What::Refused => place.making = Making::Failed(libc::ECONNREFUSED),
            What::Room => place.is_full = false,
            What::Come(bytes) => place.come += bytes,
            What::Lost(errno) => {
                // Bytes sent before a close arrive. Bytes in transit at a reset are lost.
                place.come = if errno == 0 { place.stream.len() } else { 0 };
                place.lost = Some(errno);
            }
            What::Call(number) => {
                let call = network.on_way.remove(&number).expect("it is on its way");
                drop(network);
                self.called(wire, &call);
            }
            What::Answer(number) => {
                let answer = network.on_way.remove(&number).expect("it is on its way");
                drop(network);
                self.answered(wire, answer);
            }
        }
        self.wake_all(SLEEPING);
    }

    /// Handles a call on the server.
    fn called(&self, wire: usize, call: &[u8]) {
        let server = self.network.borrow().server.clone();
        if self.network.borrow().silent_until > self.now_ns() || self.one_of(server.silent) {
            return;
        }
        if self.one_of(server.hangs) {
            self.network.borrow_mut().silent_until = self.now_ns() + self.below(3_000_000_000);
        }
        let answer = self.answer(&server, call);
        if self.one_of(server.strange) {
            let strange = self.strange(&answer);
            self.send_answer(wire, strange);
        }
        if self.one_of(server.twice) {
            self.send_answer(wire, answer.clone());
        }
        self.send_answer(wire, answer);
    }

    fn send_answer(&self, wire: usize, answer: Vec<u8>) {
        let number = self.put_on_way(answer);
        self.expect_moved(self.way(), wire, What::Answer(number));
    }

    /// Puts a call or an answer in transit, and returns its number.
    fn put_on_way(&self, bytes: Vec<u8>) -> u64 {
        let mut network = self.network.borrow_mut();
        network.sent += 1;
        let number = network.sent;
        network.on_way.insert(number, bytes);
        number
    }

    /// Puts an answer on the connection, behind the earlier ones.
    fn answered(&self, wire: usize, mut answer: Vec<u8>) {
        let mut network = self.network.borrow_mut();
        let cuts = network.server.cuts;
        let place = &mut network.wires[wire];
        if place.is_ending {
            return;
        }
        if self.one_of(cuts) {
            answer.truncate(self.below(answer.len() as u64) as usize);
            place.is_ending = true;
            let errno = [0, libc::ECONNRESET][self.below(2) as usize];
            drop(network);
            self.expect_moved(self.way(), wire, What::Lost(errno));
            network = self.network.borrow_mut();
        }
        let place = &mut network.wires[wire];
        let first = match self.below(4) {
            0 => self.below(answer.len() as u64 + 1) as usize,
            _ => answer.len(),
        };
        place.come += first;
        let rest = answer.len() - first;
        place.stream.extend(answer);
        drop(network);
        if rest > 0 {
            self.expect_moved(self.way(), wire, What::Come(rest));
        }
    }

    /// Starts a connection.
    fn connect(&self, port: Option<u16>) -> rustix::io::Result<(usize, Making)> {
        self.point();
        if port.is_some() && self.below(3) > 0 {
            return Err([Errno::ADDRINUSE, Errno::ACCESS][self.below(2) as usize]);
        }
        let refuses = self.network.borrow().server.refuses;
        let is_refused = self.one_of(refuses);
        let is_silent = self.network.borrow().silent_until > self.now_ns();
        let what = match self.below(3) {
            0 if is_refused => return Err(Errno::CONNREFUSED),
            1 if is_refused => Some(What::Refused),
            _ if is_refused || is_silent => None,
            _ => Some(What::Connected),
        };
        let making = match what {
            Some(What::Connected) if self.below(4) == 0 => Making::Done,
            _ => Making::UnderWay,
        };
        let wire = self.network.borrow().wires.len();
        self.network.borrow_mut().wires.push(Wire {
            making,
            call: Vec::new(),
            stream: VecDeque::new(),
            come: 0,
            wake_bytes: 1,
            is_full: false,
            is_ending: false,
            lost: None,
            is_closed: false,
        });
        if let (Making::UnderWay, Some(what)) = (making, what) {
            self.expect_moved(self.way(), wire, what);
        }
        Ok((wire, making))
    }

    /// Sends some of the bytes to the server, and returns their number.
    fn send(&self, wire: usize, bytes: &[u8]) -> Result<usize, Lost> {
        self.point();
        let stops = self.disk.borrow().faults().stops;
        let mut network = self.network.borrow_mut();
        let place = &mut network.wires[wire];
        if place.lost.is_some() {
            return Err(Lost(libc::EPIPE));
        }
        if place.is_full {
            return Ok(0);
        }
        let mut count = bytes.len();
        if self.one_of(stops) {
            place.is_full = true;
            count = count.div_ceil(2);
        }
        place.call.extend(&bytes[..count]);
        let mut calls = Vec::new();
        while let Some(mark) = place.call.first_chunk() {
            let end = 4 + (u32::from_be_bytes(*mark) & !LAST) as usize;
            if place.call.len() < end {
                break;
            }
            calls.push(place.call.drain(..end).skip(4).collect::<Vec<u8>>());
        }
        let is_full = place.is_full;
        drop(network);
        if is_full {
            self.expect_moved(self.way(), wire, What::Room);
        }
        for call in calls {
            let number = self.put_on_way(call);
            self.expect_moved(self.way(), wire, What::Call(number));
        }
        Ok(count)
    }

    /// Returns up to `room` bytes that have arrived.
    fn received(&self, wire: usize, room: usize) -> Result<Option<Vec<u8>>, Lost> {
        self.point();
        let stops = self.disk.borrow().faults().stops;
        let mut network = self.network.borrow_mut();
        let place = &mut network.wires[wire];
        let mut count = place.come.min(room);
        if count == 0 {
            return place.lost.map_or(Ok(None), |errno| Err(Lost(errno)));
        }
        if self.one_of(stops) {
            count = 1 + self.below(count as u64) as usize;
        }
        place.come -= count;
        Ok(Some(place.stream.drain(..count).collect()))
    }

    /// Possible operations on a connection now.
    fn ready(&self, wire: usize, to_write: bool) -> Ready {
        let network = self.network.borrow();
        let place = &network.wires[wire];
        let is_over = place.lost.is_some() || matches!(place.making, Making::Failed(_));
        let is_made = place.making == Making::Done;
        Ready {
            to_read: is_over || is_made && place.come >= place.wake_bytes,
            to_write: to_write && (is_over || is_made && !place.is_full),
            is_rung: false,
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
    ) -> rustix::io::Result<(Socket, Making)> {
        match world() {
            Some(world) => {
                let (wire, making) = world.connect(port)?;
                Ok((Socket::Simulated(wire), making))
            }
            None => {
                let (socket, making) = socket::Socket::connect(address, port)?;
                Ok((Socket::Real(socket), making))
            }
        }
    }

    pub(crate) fn making(&self) -> Making {
        match self {
            Socket::Real(socket) => socket.making(),
            Socket::Simulated(wire) => {
                let world = world().expect(OUTSIDE);
                let network = world.network.borrow();
                let Wire { making, lost, .. } = network.wires[*wire];
                lost.map_or(making, Making::Failed)
            }
        }
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> Result<usize, Lost> {
        match self {
            Socket::Real(socket) => socket.send(bytes),
            Socket::Simulated(wire) => world().expect(OUTSIDE).send(*wire, bytes),
        }
    }

    /// Receives into `pieces`.
    ///
    /// # Safety
    /// As for [the real socket](socket::Socket::receive).
    pub(crate) unsafe fn receive(&self, pieces: &[libc::iovec]) -> Result<Option<usize>, Lost> {
        let wire = match self {
            // SAFETY: the caller guarantees the contract of this function.
            Socket::Real(socket) => return unsafe { socket.receive(pieces) },
            Socket::Simulated(wire) => *wire,
        };
        let room = pieces.iter().map(|piece| piece.iov_len).sum();
        let Some(bytes) = world().expect(OUTSIDE).received(wire, room)? else { return Ok(None) };
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

    pub(crate) fn wake_at(&self, bytes: usize) {
        match self {
            Socket::Real(socket) => socket.wake_at(bytes),
            Socket::Simulated(wire) => {
                let world = world().expect(OUTSIDE);
                world.network.borrow_mut().wires[*wire].wake_bytes = bytes;
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Socket::Simulated(wire) = self
            && let Some(world) = world()
        {
            let place = &mut world.network.borrow_mut().wires[*wire];
            place.is_closed = true;
            (place.stream, place.call) = Default::default();
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
            Some(world) if world.refuses_thread() => Err(Errno::MFILE),
            Some(_) => Ok(EventFd::Simulated(false.into())),
            None => RealBell::new().map(EventFd::Real),
        }
    }

    pub(crate) fn ring(&self) {
        match self {
            EventFd::Real(bell) => bell.ring(),
            EventFd::Simulated(is_rung) => {
                is_rung.store(true, std::sync::atomic::Ordering::Relaxed);
                if let Some(world) = world() {
                    world.wake_all(SLEEPING);
                }
            }
        }
    }

    pub(crate) fn quieten(&self) {
        match self {
            EventFd::Real(bell) => bell.quieten(),
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
    bell: Option<&EventFd>,
    at_most: Option<Duration>,
) -> Ready {
    let Some(world) = world() else {
        let socket = socket.map(|socket| match socket {
            Socket::Real(socket) => socket,
            Socket::Simulated(_) => unreachable!("{OUTSIDE}"),
        });
        let bell = bell.map(|bell| match bell {
            EventFd::Real(bell) => bell,
            EventFd::Simulated(_) => unreachable!("{OUTSIDE}"),
        });
        return socket::sleep_on(socket, to_write, bell, at_most);
    };
    let until = at_most.map(|span| world.now_ns() + span.as_nanos() as u64);
    let wakes = world.disk.borrow().faults().wakes;
    world.point();
    loop {
        let mut ready = match socket {
            Some(Socket::Simulated(wire)) => world.ready(*wire, to_write),
            _ => Ready::default(),
        };
        if let Some(EventFd::Simulated(is_rung)) = bell {
            ready.is_rung = is_rung.load(std::sync::atomic::Ordering::Relaxed);
        }
        let is_late = until.is_some_and(|until| until <= world.now_ns());
        if ready != Ready::default() || is_late || world.one_of(wakes) {
            world.point();
            return ready;
        }
        world.block(SLEEPING, until);
    }
}
