//! A local HTTP server: each answer comes from a function of the test, each request is logged.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A request. Names of headers are in lower case.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// Path and query, as sent.
    pub target: String,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Method, range and condition in one line, as `GET bytes=0-4095 if-match`.
    pub fn line(&self) -> String {
        let mut line = self.method.clone();
        if let Some(range) = self.header("range") {
            line += &format!(" {range}");
        }
        if self.headers.contains_key("if-match") {
            line += " if-match";
        }
        line
    }
}

/// An answer. Its `Content-Length` is the length of the body, unless the fields say otherwise.
#[derive(Clone, Debug, Default)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// Declared length of the body; none is declared with `is_chunked`.
    pub declared: Option<usize>,
    pub is_chunked: bool,
    /// Time before the answer.
    pub delay: Duration,
}

impl Response {
    pub fn new(status: u16, text: &str) -> Response {
        Response { status, body: text.as_bytes().to_vec(), ..Response::default() }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Response {
        self.headers.push((name, value.into()));
        self
    }

    /// The answer with a body that breaks after this number of bytes.
    pub fn cut(mut self, bytes: usize) -> Response {
        self.declared = Some(self.body.len());
        self.body.truncate(bytes);
        self
    }
}

/// An object of a server.
#[derive(Clone, Debug)]
pub struct Object {
    pub bytes: Vec<u8>,
    pub tag: Option<String>,
    /// Time of modification, as HTTP writes it.
    pub modified: Option<String>,
}

impl Object {
    /// An object with a strong ETag.
    pub fn tagged(bytes: Vec<u8>, tag: &str) -> Object {
        let modified = Some("Sun, 06 Nov 1994 08:49:37 GMT".to_owned());
        Object { bytes, tag: Some(format!("\"{tag}\"")), modified }
    }

    /// The answer to a GET or HEAD, by RFC 9110: ranges, `If-Match` and `If-None-Match`.
    pub fn answer(&self, request: &Request) -> Response {
        let has_tag = |header: &str| {
            let wanted = request.header(header);
            wanted.map(|wanted| self.tag.as_deref() == Some(wanted))
        };
        let mut response = Response { status: 200, ..Response::default() };
        if let Some(tag) = &self.tag {
            response = response.with("ETag", tag);
        }
        if let Some(modified) = &self.modified {
            response = response.with("Last-Modified", modified);
        }
        if has_tag("if-match") == Some(false) {
            return Response::new(412, "");
        }
        if has_tag("if-none-match") == Some(true) {
            return Response::new(304, "");
        }
        let length = self.bytes.len();
        match request.header("range").map(|range| bounds(range, length)) {
            None => Response { body: self.bytes.clone(), ..response },
            Some(None) => Response::new(416, "").with("Content-Range", format!("bytes */{length}")),
            Some(Some(range)) => {
                let (start, last) = (range.start, range.end - 1);
                let shown = format!("bytes {start}-{last}/{length}");
                let response = response.with("Content-Range", shown);
                Response { status: 206, body: self.bytes[range].to_vec(), ..response }
            }
        }
    }
}

/// The bytes of a `Range` header; `None` if the object has none of them.
fn bounds(range: &str, length: usize) -> Option<Range<usize>> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let range = match (first.parse::<usize>(), last.parse::<usize>()) {
        (Ok(first), Ok(last)) => first..length.min(last + 1),
        (Ok(first), Err(_)) => first..length,
        (Err(_), Ok(suffix)) => length.saturating_sub(suffix)..length,
        _ => return None,
    };
    (range.start < range.end).then_some(range)
}

type Handler = dyn Fn(&Request) -> Response + Send + Sync;

/// A server on a free port of this machine, until it is dropped.
pub struct Server {
    pub address: SocketAddr,
    log: Arc<Mutex<Vec<Request>>>,
    has_ended: Arc<AtomicBool>,
}

impl Server {
    #[expect(clippy::disallowed_methods, reason = "a server of tests has threads")]
    pub fn start(handler: impl Fn(&Request) -> Response + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (log, has_ended): (Arc<Mutex<Vec<Request>>>, Arc<AtomicBool>) = Default::default();
        let handler: Arc<Handler> = Arc::new(handler);
        let (requests, end) = (Arc::clone(&log), Arc::clone(&has_ended));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                let (handler, requests) = (Arc::clone(&handler), Arc::clone(&requests));
                std::thread::spawn(move || serve(&stream.unwrap(), &*handler, &requests));
            }
        });
        Server { address, log, has_ended }
    }

    /// A server of one object at every path.
    pub fn of(object: Object) -> Server {
        Server::start(move |request| object.answer(request))
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.log.lock().unwrap().clone()
    }

    /// The lines of all requests since the last call.
    pub fn lines(&self) -> Vec<String> {
        let requests = std::mem::take(&mut *self.log.lock().unwrap());
        requests.iter().map(Request::line).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
        // Wakes the thread that waits for a connection.
        drop(TcpStream::connect(self.address));
    }
}

/// Answers the requests of a connection.
#[expect(clippy::disallowed_methods, reason = "a server of tests waits")]
fn serve(stream: &TcpStream, handler: &Handler, log: &Mutex<Vec<Request>>) {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader) {
        let is_head = request.method == "HEAD";
        log.lock().unwrap().push(request.clone());
        let response = handler(&request);
        std::thread::sleep(response.delay);
        let is_whole = response.declared.is_none_or(|declared| declared == response.body.len());
        let sent = send(stream, &response, is_head);
        if sent.is_err() || !is_whole && !is_head {
            return;
        }
    }
}

/// Reads a request; `None` at the end of the connection.
fn read_request(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|&count| count > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next()?, words.next()?);
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some(Request { method, target, headers, body })
}

/// Sends a response, without the body for a HEAD.
fn send(mut stream: &TcpStream, response: &Response, is_head: bool) -> std::io::Result<()> {
    let Response { status, headers, body, declared, is_chunked, .. } = response;
    let mut text = format!("HTTP/1.1 {status} Status\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    match (is_chunked, status) {
        (_, 304) => {}
        (true, _) => text += "Transfer-Encoding: chunked\r\n",
        (false, _) => text += &format!("Content-Length: {}\r\n", declared.unwrap_or(body.len())),
    }
    text += "\r\n";
    let mut bytes = text.into_bytes();
    if !is_head && *is_chunked {
        bytes.extend(format!("{:x}\r\n", body.len()).into_bytes());
        bytes.extend(body);
        bytes.extend(b"\r\n0\r\n\r\n");
    } else if !is_head {
        bytes.extend(body);
    }
    stream.write_all(&bytes)
}
