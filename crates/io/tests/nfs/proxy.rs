//! A proxy between client and server with its own parser. It counts the calls, and treats the
//! replies as networks do.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A call on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub xid: u32,
    pub program: u32,
    pub procedure: u32,
    /// Offset and size of a READ.
    pub read: Option<(u64, u32)>,
    /// Number of READs answered before it came.
    pub answered_before: usize,
}

/// Treatment of replies. The `every` fields count replies to READs; 0 means never.
#[derive(Clone, Debug, Default)]
pub struct Weather {
    /// Number of READs that must arrive before any is answered.
    pub hold_until: usize,
    /// Delay of each reply.
    pub delay: Duration,
    /// Number of replies that are collected and sent in reverse order.
    pub reverse: usize,
    /// A reply comes twice.
    pub double_every: usize,
    /// A reply is lost.
    pub drop_every: usize,
    /// A reply ends early, as a whole record.
    pub truncate_every: usize,
    /// A reply's results are noise.
    pub garble_every: usize,
    /// The connection breaks in the middle of a reply.
    pub cut_every: usize,
    /// Size of the fragments of a record in bytes.
    pub fragment_bytes: usize,
}

#[derive(Default)]
struct Wire {
    weather: Weather,
    calls: Vec<Call>,
    read_xids: HashSet<u32>,
    reads_seen: usize,
    reads_answered: usize,
    connections: usize,
}

#[derive(Default)]
struct Shared {
    wire: Mutex<Wire>,
    called: Condvar,
    is_over: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

/// The proxy. It ends when this is dropped.
pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy for a server on loopback.
    pub fn to(server_port: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let accepting = std::thread::spawn(move || {
            for client in listener.incoming() {
                if theirs.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let client = client.unwrap();
                // If the server is down, the connection breaks.
                let Ok(server) = TcpStream::connect(("127.0.0.1", server_port)) else { continue };
                carry(client, server, &theirs);
            }
        });
        Proxy { port, shared, accepting: Some(accepting) }
    }

    /// Changes the treatment of replies, and resets the records.
    pub fn weather(&self, weather: Weather) {
        let mut wire = self.shared.wire.lock().unwrap();
        *wire = Wire { weather, ..Wire::default() };
    }

    /// All calls since the last change of the weather.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.wire.lock().unwrap().calls.clone()
    }

    /// Offset and size of the READs among the calls.
    pub fn reads(&self) -> Vec<(u64, u32)> {
        self.calls().iter().filter_map(|call| call.read).collect()
    }

    /// Number of connections since the last change of the weather.
    pub fn connections(&self) -> usize {
        self.shared.wire.lock().unwrap().connections
    }

    /// Breaks every connection.
    pub fn cut(&self) {
        for stream in self.shared.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.shared.called.notify_all();
        self.cut();
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        self.cut();
    }
}

fn carry(client: TcpStream, server: TcpStream, shared: &Arc<Shared>) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    {
        let mut streams = shared.streams.lock().unwrap();
        streams.push(client.try_clone().unwrap());
        streams.push(server.try_clone().unwrap());
    }
    shared.wire.lock().unwrap().connections += 1;
    let (mut from_client, mut to_server) =
        (client.try_clone().unwrap(), server.try_clone().unwrap());
    let seen = Arc::clone(shared);
    std::thread::spawn(move || {
        while let Some(record) = record(&mut from_client) {
            note(&seen, &record);
            if to_server.write_all(&marked(&record, 0)).is_err() {
                break;
            }
        }
        let _ = to_server.shutdown(Shutdown::Both);
        let _ = from_client.shutdown(Shutdown::Both);
    });
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>, bool)>();
    let mut to_client = client;
    std::thread::spawn(move || {
        for (due, bytes, is_cut) in receiver {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to_client.write_all(&bytes).is_err() || is_cut {
                break;
            }
        }
        let _ = to_client.shutdown(Shutdown::Both);
    });
    let answered = Arc::clone(shared);
    std::thread::spawn(move || answer(server, &answered, &sender));
}

/// Receives the server's replies, and forwards them through the weather.
fn answer(mut server: TcpStream, shared: &Shared, out: &mpsc::Sender<(Instant, Vec<u8>, bool)>) {
    let mut turned: Vec<Vec<u8>> = Vec::new();
    while let Some(mut record) = record(&mut server) {
        let mut wire = shared.wire.lock().unwrap();
        while wire.reads_seen < wire.weather.hold_until && !shared.is_over.load(Ordering::SeqCst) {
            wire = shared.called.wait(wire).unwrap();
        }
        let weather = wire.weather.clone();
        let due = Instant::now() + weather.delay;
        if !wire.read_xids.contains(&word(&record, 0)) {
            drop(wire);
            let _ = out.send((due, marked(&record, weather.fragment_bytes), false));
            continue;
        }
        wire.reads_answered += 1;
        let number = wire.reads_answered;
        drop(wire);
        let is_turn = |every: usize| every > 0 && number.is_multiple_of(every);
        if is_turn(weather.drop_every) {
            continue;
        }
        if is_turn(weather.truncate_every) {
            // At varying offsets behind the transaction id.
            let left = 4 + number * 101 % (record.len() - 4);
            record.truncate(left / 4 * 4);
        }
        if is_turn(weather.garble_every) {
            let mut state = number as u64;
            for byte in record.iter_mut().skip(24) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (state >> 56) as u8;
            }
        }
        let mut bytes = marked(&record, weather.fragment_bytes);
        if is_turn(weather.cut_every) {
            bytes.truncate(bytes.len() / 2);
            let _ = out.send((due, bytes, true));
            return;
        }
        if is_turn(weather.double_every) {
            bytes.extend(bytes.clone());
        }
        if weather.reverse > 1 {
            turned.push(bytes);
            if turned.len() < weather.reverse {
                continue;
            }
            while let Some(bytes) = turned.pop() {
                let _ = out.send((due, bytes, false));
            }
            continue;
        }
        if out.send((due, bytes, false)).is_err() {
            return;
        }
    }
}

/// Records a call.
fn note(shared: &Shared, record: &[u8]) {
    let mut wire = shared.wire.lock().unwrap();
    assert_eq!((word(record, 4), word(record, 8)), (0, 2), "a call of RPC version 2");
    let (xid, program, procedure) = (word(record, 0), word(record, 12), word(record, 20));
    let padded = |bytes: u32| bytes.div_ceil(4) as usize * 4;
    let verifier = 32 + padded(word(record, 28));
    let arguments = verifier + 8 + padded(word(record, verifier + 4));
    let read = (program == 100_003 && procedure == 6).then(|| {
        let at = arguments + 4 + padded(word(record, arguments));
        let offset = u64::from(word(record, at)) << 32 | u64::from(word(record, at + 4));
        (offset, word(record, at + 8))
    });
    if read.is_some() {
        wire.read_xids.insert(xid);
        wire.reads_seen += 1;
    }
    let answered_before = wire.reads_answered;
    wire.calls.push(Call { xid, program, procedure, read, answered_before });
    drop(wire);
    shared.called.notify_all();
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// The next record with its fragments joined; `None` at the end of the stream.
fn record(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark).ok()?;
        let mark = u32::from_be_bytes(mark);
        let start = whole.len();
        whole.resize(start + (mark & 0x7fff_ffff) as usize, 0);
        stream.read_exact(&mut whole[start..]).ok()?;
        if mark >> 31 == 1 {
            return Some(whole);
        }
    }
}

/// A record in fragments of `fragment_bytes` bytes; 0 for one fragment.
fn marked(record: &[u8], fragment_bytes: usize) -> Vec<u8> {
    let size = if fragment_bytes == 0 { record.len().max(1) } else { fragment_bytes };
    let count = record.len().div_ceil(size).max(1);
    let mut bytes = Vec::new();
    for at in 0..count {
        let part = &record[at * size..record.len().min((at + 1) * size)];
        let last = if at + 1 == count { 1 << 31 } else { 0 };
        bytes.extend((part.len() as u32 | last).to_be_bytes());
        bytes.extend(part);
    }
    bytes
}
