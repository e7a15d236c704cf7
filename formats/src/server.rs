//! A local HTTP server of objects, with delay, jitter, bandwidth, and faults.
//!
//! Answers `GET` and `HEAD`, one range a request, with a strong ETag for each version of an object,
//! and `If-Match` (RFC 9110). Each connection has a thread.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;

/// Time and speed of the answers. The default answers at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Network {
    /// Time before an answer.
    pub delay: Duration,
    /// Random further time, from zero to this time.
    pub jitter: Duration,
    /// Bytes a second of a connection; `None` for no limit.
    pub bandwidth: Option<u64>,
}

/// Faults of `GET` requests. Each number n means every n-th `GET` of the server; 0 means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Status 503 with `Retry-After: 1`.
    pub busy: u64,
    /// The connection is reset before the answer.
    pub resets: u64,
    /// The connection is reset after half of the body.
    pub breaks: u64,
    /// The body of a range is shorter than that by a half, and the answer's `Content-Length` with
    /// it. The answer for a whole object has its size in this header alone: no client could see
    /// the fault.
    pub truncations: u64,
    /// The object is replaced by its next version before the answer. The last version stays.
    pub changes: u64,
}

/// An object: the bytes of all its versions, and the number of the present one.
#[derive(Clone, Debug)]
struct Object {
    versions: Vec<Bytes>,
    present: usize,
}

/// A server on a free port of the loopback address. It ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

/// State of the server and its connections.
#[derive(Debug)]
struct Shared {
    network: Network,
    state: Mutex<State>,
    requests: AtomicU64,
    body_bytes: AtomicU64,
    /// Number of requests for which a fault other than a change was due.
    faults: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Object>,
    faults: Faults,
    /// Number of requests other than `HEAD` so far.
    gets: u64,
    /// Open connections, to shut them down.
    connections: Vec<TcpStream>,
    has_ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Starts a server without objects.
    ///
    /// # Errors
    /// No port is free.
    pub fn start(network: Network) -> Result<Server> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            network,
            state: Mutex::default(),
            requests: AtomicU64::new(0),
            body_bytes: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        });
        let of_thread = Arc::clone(&shared);
        let acceptor = std::thread::spawn(move || accept(&listener, &of_thread));
        Ok(Server { address, shared, acceptor: Some(acceptor) })
    }

    /// URL of the folder of all objects.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Adds an object with all its versions; the first one is the present one.
    pub fn add(&self, name: &str, versions: Vec<Bytes>) {
        assert!(!versions.is_empty(), "an object has a version");
        let object = Object { versions, present: 0 };
        self.shared.lock().objects.insert(name.to_owned(), object);
    }

    /// Sets the faults of later requests.
    pub fn set_faults(&self, faults: Faults) {
        self.shared.lock().faults = faults;
    }

    /// Number of requests so far.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Number of requests so far for which a fault was due, without changes of objects.
    pub fn faults(&self) -> u64 {
        self.shared.faults.load(Ordering::Relaxed)
    }

    /// Bytes of all bodies so far.
    pub fn body_bytes(&self) -> u64 {
        self.shared.body_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    /// Ends all connections and threads, and waits for them.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.has_ended = true;
        for connection in state.connections.drain(..) {
            // The client may have closed it.
            let _ = connection.shutdown(Shutdown::Both);
        }
        drop(state);
        // Wakes the acceptor.
        drop(TcpStream::connect(self.address));
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().expect("the acceptor has not panicked");
        }
    }
}

/// Serves connections until the end of the server.
fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut threads = Vec::new();
    for connection in listener.incoming() {
        // The lock is held until the connection is listed, for the end of the server to find it.
        let mut state = shared.lock();
        if state.has_ended {
            break;
        }
        let Ok(connection) = connection else { continue };
        let Ok(kept) = connection.try_clone() else { continue };
        state.connections.push(kept);
        drop(state);
        let shared = Arc::clone(shared);
        // An error is the end of the connection.
        threads.push(std::thread::spawn(move || drop(serve(&connection, &shared))));
    }
    for thread in threads {
        thread.join().expect("a connection's thread has not panicked");
    }
}

/// A request without the headers that the server ignores.
#[derive(Debug, Default)]
struct Request {
    is_head: bool,
    name: String,
    /// First byte, and last byte if it is given. Without a first byte, the second number is the
    /// number of bytes at the end of the object.
    range: Option<(Option<u64>, Option<u64>)>,
    if_match: Option<String>,
}

/// Answers the requests of a connection until its end.
fn serve(connection: &TcpStream, shared: &Shared) -> Result<()> {
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection);
    // Each connection has a jitter of its own.
    let mut seed = connection.peer_addr()?.port().into();
    while let Some(request) = read_request(&mut reader)? {
        shared.requests.fetch_add(1, Ordering::Relaxed);
        let nanos = shared.network.jitter.as_nanos() as u64;
        let jitter = Duration::from_nanos(random(&mut seed) % (nanos + 1));
        std::thread::sleep(shared.network.delay + jitter);
        if !answer(connection, shared, &request)? {
            // With a linger time of zero, the close is a reset.
            socket2::SockRef::from(connection).set_linger(Some(Duration::ZERO))?;
            connection.shutdown(Shutdown::Both)?;
            break;
        }
    }
    Ok(())
}

/// The next request; `None` at the end of the connection, also within the headers. A method other
/// than `HEAD` counts as `GET`. A line without a colon ends the headers. A number of a range that
/// is none counts as missing.
fn read_request(reader: &mut impl BufRead) -> Result<Option<Request>> {
    let mut request = Request::default();
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_ascii_whitespace();
    request.is_head = words.next() == Some("HEAD");
    let path = words.next().ok_or(ErrorKind::InvalidData)?;
    request.name = path.trim_start_matches('/').to_owned();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let Some((header, value)) = line.trim_end().split_once(':') else {
            return Ok(Some(request));
        };
        match header.to_ascii_lowercase().as_str() {
            "range" => {
                let bytes = value.trim().strip_prefix("bytes=").ok_or(ErrorKind::InvalidData)?;
                let (first, last) = bytes.split_once('-').ok_or(ErrorKind::InvalidData)?;
                request.range = Some((first.parse().ok(), last.parse().ok()));
            }
            "if-match" => request.if_match = Some(value.trim().to_owned()),
            _ => {}
        }
    }
}

/// The next random number (SplitMix64).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Answers a request. Returns false if the connection must be reset: before the answer, or after
/// half of its body. If several faults are due, the reset comes first, then the status 503. A
/// change of the object is made in any case.
fn answer(connection: &TcpStream, shared: &Shared, request: &Request) -> Result<bool> {
    let mut state = shared.lock();
    let faults = state.faults;
    state.gets += u64::from(!request.is_head);
    let gets = state.gets;
    let is_due = |every: u64| !request.is_head && every > 0 && gets.is_multiple_of(every);
    if let Some(object) = state.objects.get_mut(&request.name)
        && is_due(faults.changes)
    {
        object.present = (object.present + 1).min(object.versions.len() - 1);
    }
    let object = state.objects.get(&request.name).cloned();
    drop(state);
    let Faults { busy, resets, breaks, truncations, changes: _ } = faults;
    let is_cut = request.range.is_some() && is_due(truncations);
    if is_cut || [busy, resets, breaks].into_iter().any(is_due) {
        shared.faults.fetch_add(1, Ordering::Relaxed);
    }
    if is_due(resets) {
        return Ok(false);
    }
    if is_due(busy) {
        return status(connection, "503 Service Unavailable\r\nRetry-After: 1");
    }
    let Some(object) = object else { return status(connection, "404 Not Found") };
    let tag = format!("\"v{}\"", object.present);
    if request.if_match.as_ref().is_some_and(|wanted| *wanted != tag) {
        return status(connection, "412 Precondition Failed");
    }
    let bytes = &object.versions[object.present];
    let size = bytes.len() as u64;
    let Some(range) = range_of(request, size) else {
        return status(connection, "416 Range Not Satisfiable");
    };
    let mut body = bytes.slice(range.start as usize..range.end as usize);
    if is_cut {
        body.truncate(body.len() / 2);
    }
    let (line, content_range) = match request.range {
        None => ("200 OK", String::new()),
        Some(_) => {
            let (first, last) = (range.start, range.end - 1);
            ("206 Partial Content", format!("Content-Range: bytes {first}-{last}/{size}\r\n"))
        }
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {line}\r\nContent-Length: {length}\r\nETag: {tag}\r\n\
         Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n{content_range}\r\n"
    );
    let mut connection = connection;
    connection.write_all(head.as_bytes())?;
    if request.is_head {
        return Ok(true);
    }
    let is_broken = is_due(breaks);
    if is_broken {
        body.truncate(body.len() / 2);
    }
    send(connection, shared, &body)?;
    Ok(!is_broken)
}

/// Sends an answer without a body.
fn status(mut connection: &TcpStream, line: &str) -> Result<bool> {
    let head = format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n");
    connection.write_all(head.as_bytes())?;
    Ok(true)
}

/// The bytes that a request is for; `None` if the object has none of them, and for a range without
/// numbers.
fn range_of(request: &Request, size: u64) -> Option<Range<u64>> {
    let range = match request.range {
        None => return Some(0..size),
        Some((Some(first), last)) => {
            first..last.map_or(size, |last| size.min(last.saturating_add(1)))
        }
        Some((None, count)) => size.saturating_sub(count?)..size,
    };
    (range.start < range.end).then_some(range)
}

/// Bytes of a part of a body, sent at the time that the bandwidth allows.
const CHUNK_BYTES: usize = 64 << 10;

/// Sends a body at the bandwidth of the connection: after each chunk it sleeps until the time at
/// which the bytes so far may have been sent.
fn send(mut connection: &TcpStream, shared: &Shared, body: &[u8]) -> Result<()> {
    let (start, mut sent) = (Instant::now(), 0);
    for chunk in body.chunks(CHUNK_BYTES) {
        connection.write_all(chunk)?;
        shared.body_bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        sent += chunk.len() as u64;
        if let Some(bandwidth) = shared.network.bandwidth {
            let due = Duration::from_nanos(sent * 1_000_000_000 / bandwidth);
            std::thread::sleep(due.saturating_sub(start.elapsed()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A last byte behind the end stands for the end (RFC 9110, section 14.1.2), also the largest
    /// number. The object has 10 bytes.
    #[test]
    fn range_with_a_last_byte_behind_the_end_has_the_rest() {
        let range_of = |first, last| {
            let request = Request { range: Some((first, last)), ..Request::default() };
            range_of(&request, 10)
        };
        assert_eq!(range_of(Some(4), Some(6)), Some(4..7));
        assert_eq!(range_of(Some(4), Some(u64::MAX)), Some(4..10));
        assert_eq!(range_of(None, Some(u64::MAX)), Some(0..10));
    }
}
