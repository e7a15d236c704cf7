//! Failing servers: right bytes, or an error that names the object and the reason.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opendal::ErrorKind;
use readpath_remote::store::StoreOptions;

use crate::server::{Object, Request, Response, Server};
use crate::support::{KIB, MIB, content, options, over_http, plain_http};

fn object() -> Object {
    Object::tagged(content(0, 0..MIB), "v0")
}

/// A server with a fault in each answer to a GET whose number, from 1 on, `is_hit`.
fn faulty(
    is_hit: impl Fn(u64) -> bool + Send + Sync + 'static,
    fault: impl Fn(Response) -> Response + Send + Sync + 'static,
) -> Server {
    let count = AtomicU64::new(0);
    let object = object();
    Server::start(move |request: &Request| {
        let response = object.answer(request);
        let is_get = request.method == "GET";
        match is_get && is_hit(count.fetch_add(1, Ordering::Relaxed) + 1) {
            true => fault(response),
            false => response,
        }
    })
}

/// Changes an answer.
type Fault = fn(Response) -> Response;

/// Faults by name.
fn faults() -> Vec<(&'static str, Fault)> {
    vec![
        ("503", |_| Response::new(503, "busy").with("Retry-After", "0")),
        ("429", |_| Response::new(429, "slow down")),
        ("500", |_| Response::new(500, "broken")),
        ("reset at once", |response| response.cut(0)),
        ("reset in the body", |response| response.cut(1000)),
        ("short body", |response| Response { body: response.body[..1000].to_vec(), ..response }),
        ("long body", |response| Response {
            body: [&response.body[..], b"more"].concat(),
            ..response
        }),
        ("late", |response| Response { delay: Duration::from_millis(20), ..response }),
    ]
}

/// Each fault in every third answer is overcome by one more try.
#[tokio::test]
async fn bytes_are_right_with_each_fault() {
    for (name, fault) in faults() {
        let server = faulty(|number| number % 3 == 2, fault);
        let options = StoreOptions { retries_max: 1, ..options() };
        let (operator, _layer) = over_http(&server, options);
        for read in 0..12_u64 {
            let start = read * 70_001;
            let range = start..start + 50_000;
            let bytes = operator.read_with("a").range(range.clone()).await;
            let bytes = bytes.unwrap_or_else(|error| panic!("{name}, read {read}: {error}"));
            assert!(bytes.to_vec() == content(0, range), "{name}, read {read}");
        }
        assert!(server.lines().len() >= 12, "{name}");
    }
}

/// A lasting fault is an error for each of several readers, and the next read asks again.
#[tokio::test]
async fn lasting_fault_is_an_error_with_its_reason() {
    let expected = [
        ("503", ErrorKind::Unexpected, true, "busy"),
        ("429", ErrorKind::Unexpected, false, "slow down"),
        ("reset in the body", ErrorKind::Unexpected, true, ""),
        ("short body", ErrorKind::Unexpected, false, "too little"),
        // The layer asks for a single byte, and takes the server for one that ignores ranges.
        ("long body", ErrorKind::Unsupported, false, "ignores the ranges"),
    ];
    for (name, kind, is_temporary, text) in expected {
        let fault = faults().into_iter().find(|(other, _)| *other == name).unwrap().1;
        // The first answer is good: it brings the version.
        let server = faulty(|number| number > 1, fault);
        let (operator, _layer) = over_http(&server, options());
        operator.read_with("a").range(0..100).await.unwrap();
        let read = || async { operator.read_with("a").range(100_000..101_000).await };
        for result in futures_util::future::join_all([read(), read()]).await {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), kind, "{name}: {error}");
            assert!(error.is_temporary() || !is_temporary, "{name}: {error}");
            let shown = format!("{error:?}");
            assert!(shown.contains(text) && shown.contains("a"), "{name}: {shown}");
        }
        // One GET for both readers, after the first one.
        let count = if name == "long body" { 3 } else { 2 };
        assert_eq!(server.lines().len(), count, "{name}");
        // The good page stays.
        let read = operator.read_with("a").range(0..100).await.unwrap();
        assert!(read.to_vec() == content(0, 0..100));
        assert_eq!(server.lines(), [""; 0], "{name}");
    }
}

#[tokio::test]
async fn missing_and_forbidden_objects_have_their_kind() {
    for (status, kind) in [(404, ErrorKind::NotFound), (403, ErrorKind::PermissionDenied)] {
        let server = Server::start(move |_| Response::new(status, "no"));
        let (operator, _layer) = over_http(&server, options());
        for error in [
            operator.read("a").await.unwrap_err(),
            operator.read_with("a").range(5..9).await.unwrap_err(),
            operator.stat("a").await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), kind, "{error}");
        }
    }
}

/// A server that sends the whole object for each range. Its ranges are found to be wrong by the
/// length, and whole objects are right. The plain operator returns the bytes from the beginning.
#[tokio::test]
async fn server_without_ranges_has_whole_objects_and_errors() {
    let object = object();
    let server = Server::start(move |request| {
        let mut request = request.clone();
        request.headers.remove("range");
        object.answer(&request)
    });
    let wrong = plain_http(&server).read_with("a").range(MIB - 10..).await.unwrap();
    assert!(wrong.to_vec() != content(0, MIB - 10..MIB));
    let (operator, _layer) = over_http(&server, options());
    for _ in 0..2 {
        assert!(operator.read("a").await.unwrap().to_vec() == content(0, 0..MIB));
    }
    let error = operator.read_with("a").range(MIB - 10..).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("ignores the ranges"), "{error}");
    operator.read_with("a").range(500_000..500_100).await.unwrap_err();
    // The first part of the whole object was right, and is in memory.
    let read = operator.read_with("a").range(5000..6000).await.unwrap();
    assert!(read.to_vec() == content(0, 5000..6000));
    // A new operator, whose first read is of a range.
    let (operator, _layer) = over_http(&server, options());
    operator.read_with("a").range(5000..6000).await.unwrap_err();
    assert!(operator.read("a").await.unwrap().to_vec() == content(0, 0..MIB));
    // Further ones, whose first read begins with byte 0: the answers begin there, too.
    for end in [1, 100, 5000, MIB - 1, MIB] {
        let (operator, _layer) = over_http(&server, options());
        for _ in 0..3 {
            let read = operator.read_with("a").range(0..end).await.unwrap();
            assert!(read.to_vec() == content(0, 0..end), "{end}");
        }
        let error = operator.read_with("a").range(0..MIB + 1).await.unwrap_err();
        assert!(!error.is_temporary(), "{error}");
    }
}

/// Without a length in the answer the object is read straight from the server. OpenDAL takes the
/// length for zero.
#[tokio::test]
async fn object_of_unknown_length_is_read_from_the_server() {
    let object = object();
    let server = Server::start(move |request| {
        let mut request = request.clone();
        request.headers.remove("range");
        Response { is_chunked: true, ..object.answer(&request) }
    });
    let (operator, layer) = over_http(&server, options());
    for _ in 0..2 {
        assert!(operator.read("a").await.unwrap().to_vec() == content(0, 0..MIB));
    }
    assert_eq!(layer.counters().fetches, 0);
    operator.read_with("a").range(5000..6000).await.unwrap_err();
}

/// Chunks of OpenDAL's own reader, in parallel, over the pages.
#[tokio::test]
async fn chunks_in_parallel_have_the_bytes_in_order() {
    let server = Server::of(object());
    let (operator, _layer) = over_http(&server, options());
    let reader = operator.reader_with("a").concurrent(4).chunk(100_000).await.unwrap();
    let bytes = reader.read(5..900 * KIB).await.unwrap();
    assert!(bytes.to_vec() == content(0, 5..900 * KIB));
}
