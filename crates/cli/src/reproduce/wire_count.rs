//! `readpath reproduce C --server URL`: the first half of table C on a real connection. The reads
//! go through the cache, the library's only way to an NFS file. A *READ* is NFS's read call.
//!
//! A proxy between this program and the server forwards all bytes, parses the calls on its own, and
//! records each READ. It delays the answers, to count the READs sent before the first answer.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use readpath::ReadPath;
use readpath::nfs::NfsUrl;
use readpath_eval::reproduce::c::{READ_BYTES, READ_CASES, RSIZE_BYTES, ReadCase};
use serde::Serialize;

use crate::exit::Failure;
use crate::table::{Column, Table, number};

/// Delay of the answers. Chosen: a client that does not wait sends all READs of a case within it.
const ANSWER_DELAY: Duration = Duration::from_millis(20);

/// Row of the table, counted on the wire.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WireRow {
    /// Letter of the table.
    pub table: String,
    /// Name of the measured case.
    pub label: String,
    /// Readahead policy that represents the case.
    pub policies: String,
    /// URL of the server's file.
    pub server: String,
    /// Number of READs in the source.
    pub published_reads: u32,
    /// Number of READs on the wire.
    pub counted_reads: usize,
    /// Mean size of a READ in KiB.
    pub read_kib_mean: f64,
    /// Number of READs sent before the first answer.
    pub reads_before_answer: usize,
}

/// Runs each case that reads through the cache on the server's file, through a proxy, and counts
/// its READs. Refuses a URL without the server's port, to which the proxy connects.
pub fn count_reads(url_text: &str) -> Result<Vec<WireRow>, Failure> {
    let url = NfsUrl::parse(url_text).map_err(Failure::usage)?;
    let Some(port) = url.port else {
        return Err(Failure::Usage(format!(
            "{url}: to be counted it needs the server's port: nfs://HOST:PORT/…, and mountport=PORT \
             where MOUNT has another"
        )));
    };
    let mount_port = url.options.mount_port.unwrap_or(port);
    let proxy = CountingProxy::start(&url.host, port)?;
    // MOUNT on the port of NFS goes through the same proxy.
    let mount_proxy = match mount_port == port {
        true => None,
        false => Some(CountingProxy::start(&url.host, mount_port)?),
    };
    let mut proxy_url = url.clone();
    proxy_url.host = "127.0.0.1".to_owned();
    proxy_url.port = Some(proxy.port);
    let proxy_mount_port = mount_proxy.map_or(proxy.port, |proxy| proxy.port);
    // A URL prints without its options. The last value of an option applies.
    let (_, options) = url_text.split_once('?').unwrap_or_default();
    let proxy_url =
        format!("{proxy_url}?{options}&mountport={proxy_mount_port}&rsize={RSIZE_BYTES}");
    let cached_cases = READ_CASES.iter().filter(|case| !case.is_direct);
    cached_cases.map(|case| count_case(case, &url, &proxy_url, &proxy)).collect()
}

/// Formats the rows as a table. Each case has the published number of READs, the number that the
/// server received, their mean size, and the number sent before the first answer.
pub fn rows_text(rows: &[WireRow]) -> String {
    let columns: [Column<WireRow>; 6] = [
        ("", |row| row.label.clone()),
        ("policies", |row| row.policies.clone()),
        ("published", |row| row.published_reads.to_string()),
        ("on the wire", |row| row.counted_reads.to_string()),
        ("KiB mean", |row| number(Some(row.read_kib_mean), 1)),
        ("before an answer", |row| row.reads_before_answer.to_string()),
    ];
    let numbers_from = 2;
    let table = Table::of(rows, &columns, numbers_from);
    let server = rows.first().map_or("", |row| row.server.as_str());
    format!(
        "Table C: READs of one read of {READ_BYTES} bytes, counted on the wire to {server}\n\n{table}\n"
    )
}

/// Makes one case's read through the proxy at `proxy_url`, and counts its READ calls.
fn count_case(
    case: &ReadCase,
    url: &NfsUrl,
    proxy_url: &str,
    proxy: &CountingProxy,
) -> Result<WireRow, Failure> {
    let opened = ReadPath::builder().readahead(case.readahead).open(proxy_url);
    let file = opened.map_err(|error| Failure::usage_of(url, error))?;
    if file.len() < READ_BYTES {
        return Err(Failure::Usage(format!(
            "{url}: has {} bytes, and {READ_BYTES} are to be read; name a larger file",
            file.len()
        )));
    }
    // READs of the opening do not count.
    *proxy.reads.lock().expect("nothing panics under this lock") = Reads::default();
    let start_offset = 0;
    let read = file.read_exact_at(&mut [0; READ_BYTES as usize], start_offset);
    read.map_err(|error| Failure::Run(format!("{url}: {error}")))?;
    let reads = &proxy.reads.lock().expect("nothing panics under this lock").wire_reads;
    let bytes: u64 = reads.iter().map(|read| u64::from(read.bytes)).sum();
    Ok(WireRow {
        table: "C".to_owned(),
        label: case.label.to_owned(),
        policies: case.readahead.to_owned(),
        server: url.to_string(),
        published_reads: case.reads,
        counted_reads: reads.len(),
        read_kib_mean: bytes as f64 / 1024.0 / reads.len().max(1) as f64,
        reads_before_answer: reads.iter().filter(|read| !read.is_after_answer).count(),
    })
}

/// READ call seen on the wire.
#[derive(Clone, Copy)]
struct WireRead {
    /// Requested size.
    bytes: u32,
    /// True if an answer had been forwarded before.
    is_after_answer: bool,
}

/// Proxy that forwards connections to a server and records the READs. Its threads end with the
/// program.
struct CountingProxy {
    /// Local port of the listener.
    port: u16,
    /// READs since the start of the present case.
    reads: Arc<Mutex<Reads>>,
}

/// READs of one case, as the proxy's threads record them.
#[derive(Default)]
struct Reads {
    /// READs in the order in which their calls came.
    wire_reads: Vec<WireRead>,
    /// True once an answer has been forwarded.
    is_answered: bool,
}

impl CountingProxy {
    /// Starts a proxy for the port of a server, on a free port of this machine. Its threads run
    /// until the process ends.
    fn start(host: &str, port: u16) -> Result<CountingProxy, Failure> {
        let listen_failure =
            |error: std::io::Error| Failure::Unavailable(format!("127.0.0.1: {error}"));
        let listener = TcpListener::bind("127.0.0.1:0").map_err(listen_failure)?;
        let proxy_port = listener.local_addr().map_err(listen_failure)?.port();
        let reads = Arc::<Mutex<Reads>>::default();
        let (host, thread_reads) = (host.to_owned(), Arc::clone(&reads));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // If the server refuses the connection, the client's connection is closed too.
                if let Ok(server) = TcpStream::connect((host.as_str(), port)) {
                    // Both ends detect a broken connection themselves.
                    let _ = forward(&client, &server, &thread_reads);
                }
            }
        });
        Ok(CountingProxy { port: proxy_port, reads })
    }
}

/// Starts two threads that forward one connection in both directions. Each received piece of the
/// answers is delayed by `ANSWER_DELAY`.
fn forward(
    client: &TcpStream,
    server: &TcpStream,
    reads: &Arc<Mutex<Reads>>,
) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    let (mut from_server, mut to_client) = (server.try_clone()?, client.try_clone()?);
    let calls = Arc::clone(reads);
    std::thread::spawn(move || {
        let _ = forward_calls(&mut from_client, &mut to_server, &calls);
        let _ = to_server.shutdown(Shutdown::Both);
    });
    let answers = Arc::clone(reads);
    std::thread::spawn(move || {
        // The size of the buffer is chosen.
        let mut bytes = vec![0; 256 << 10];
        while let Ok(count @ 1..) = from_server.read(&mut bytes) {
            std::thread::sleep(ANSWER_DELAY);
            answers.lock().expect("nothing panics under this lock").is_answered = true;
            if to_client.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to_client.shutdown(Shutdown::Both);
    });
    Ok(())
}

/// Forwards the calls one by one, and records each READ. Ends with the error of a closed
/// connection. readpath sends each call as one record of one fragment.
fn forward_calls(
    from: &mut TcpStream,
    to: &mut TcpStream,
    reads: &Mutex<Reads>,
) -> std::io::Result<()> {
    loop {
        // A record mark of RPC over TCP: the length, and the highest bit in the last fragment.
        let mut record_mark = [0; 4];
        from.read_exact(&mut record_mark)?;
        let mut call = vec![0; (u32::from_be_bytes(record_mark) & 0x7fff_ffff) as usize];
        from.read_exact(&mut call)?;
        if let Some(bytes) = read_size(&call) {
            let mut reads = reads.lock().expect("nothing panics under this lock");
            let is_after_answer = reads.is_answered;
            reads.wire_reads.push(WireRead { bytes, is_after_answer });
        }
        to.write_all(&record_mark)?;
        to.write_all(&call)?;
    }
}

/// Returns the size in bytes of a READ call of NFS version 3; `None` for any other call.
fn read_size(call: &[u8]) -> Option<u32> {
    let word =
        |offset: usize| Some(u32::from_be_bytes(*call.get(offset..offset + 4)?.first_chunk()?));
    // Program 100003 is NFS; version 3; procedure 6 is READ.
    if (word(12)?, word(16)?, word(20)?) != (100_003, 3, 6) {
        return None;
    }
    let padded = |bytes: u32| bytes.next_multiple_of(4) as usize;
    // The header is followed by the credentials at byte 24 and by the verifier, each with a flavor,
    // a length and a body. Then come the handle (a length and its bytes), the offset of eight bytes
    // and the size. `verifier` and `handle` are positions in the call.
    let verifier = 32 + padded(word(28)?);
    let handle = verifier + 8 + padded(word(verifier + 4)?);
    word(handle + 4 + padded(word(handle)?) + 8)
}
