//! Objects that change: over HTTP, where another client may write at any time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use opendal::ErrorKind;
use readpath_remote::store::StoreOptions;

use crate::server::{Object, Server};
use crate::support::{KIB, MIB, Watch, content, options, over_http, shared_memory};

/// An object of this version.
fn object(version: u64) -> Object {
    Object::tagged(content(version, 0..MIB), &format!("v{version}"))
}

/// A server of an object that the test can replace.
fn replaceable() -> (Server, Arc<Mutex<Object>>) {
    let current = Arc::new(Mutex::new(object(0)));
    let served = Arc::clone(&current);
    (Server::start(move |request| served.lock().unwrap().answer(request)), current)
}

/// The first fetch after a change fails (412), the version is asked for with the bytes, and pages
/// of the old version are not used.
#[tokio::test]
async fn change_repeats_the_read() {
    let (server, current) = replaceable();
    let (operator, _layer) = over_http(&server, options());
    operator.read_with("a").range(0..100).await.unwrap();
    *current.lock().unwrap() = object(1);
    let read = operator.read_with("a").range(4000..5000).await.unwrap();
    assert!(read.to_vec() == content(1, 4000..5000));
    assert_eq!(
        server.lines(),
        ["GET bytes=0-4095", "GET bytes=4096-8191 if-match", "GET bytes=0-8191"]
    );
}

/// With `max_age` zero, each read asks for the version. A `stat` that finds another one drops the
/// pages at once.
#[tokio::test]
async fn stat_finds_a_change() {
    let (server, current) = replaceable();
    let (operator, _layer) = over_http(&server, options());
    let read = async || operator.read_with("a").range(0..100).await.unwrap().to_vec();
    assert!(read().await == content(0, 0..100));
    *current.lock().unwrap() = object(1);
    // Known for ten seconds.
    assert!(read().await == content(0, 0..100));
    assert_eq!(operator.stat("a").await.unwrap().etag(), Some("\"v1\""));
    assert!(read().await == content(1, 0..100));
    assert_eq!(server.lines(), ["GET bytes=0-4095", "HEAD", "GET bytes=0-4095"]);
    let options = StoreOptions { max_age: Duration::ZERO, ..options() };
    let (operator, _layer) = over_http(&server, options);
    for version in [1, 2] {
        *current.lock().unwrap() = object(version);
        let read = operator.read_with("a").range(0..100).await.unwrap();
        assert!(read.to_vec() == content(version, 0..100));
    }
    assert_eq!(server.lines(), ["GET bytes=0-4095", "HEAD", "GET bytes=0-4095 if-match"]);
}

/// A server that changes the object at every third request, with and without `If-Match`, with a
/// strong ETag: each read is of one version, or an error.
#[tokio::test]
async fn bytes_of_two_versions_are_never_mixed() {
    for heeds_conditions in [true, false] {
        let count = AtomicU64::new(0);
        let server = Server::start(move |request| {
            let version = count.fetch_add(1, Ordering::Relaxed) / 3;
            let mut request = request.clone();
            if !heeds_conditions {
                request.headers.remove("if-match");
            }
            object(version).answer(&request)
        });
        let (operator, _layer) = over_http(&server, options());
        let mut right = 0;
        for read in 0..40_u64 {
            let start = read * 20_011 % (900 * KIB);
            let range = start..start + 100 * KIB;
            match operator.read_with("a").range(range.clone()).await {
                Ok(bytes) => {
                    let bytes = bytes.to_vec();
                    let is_version = |version| bytes == content(version, range.clone());
                    assert!((0..200).any(is_version), "read {read}, {heeds_conditions}");
                    right += 1;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}"),
            }
        }
        assert!(right > 20, "{right} reads");
    }
}

/// A stream whose object changes after its first piece ends with an error.
#[tokio::test]
async fn stream_ends_at_a_change() {
    let (server, current) = replaceable();
    // Pieces of a megabyte: half of the memory, less a page.
    let mut options = options();
    options.planner.memory_bytes = 2 * MIB;
    *current.lock().unwrap() = Object::tagged(content(0, 0..600 * KIB), "v0");
    let (operator, _layer) = over_http(&server, options);
    let reader = operator.reader("a").await.unwrap();
    let mut stream = reader.into_stream(0..600 * KIB).await.unwrap();
    let first = stream.next().await.unwrap().unwrap().to_vec();
    *current.lock().unwrap() = Object::tagged(content(1, 0..600 * KIB), "v1");
    let mut bytes = first;
    while let Some(chunk) = stream.next().await {
        match chunk {
            Ok(chunk) => bytes.extend(chunk.to_vec()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConditionNotMatch, "{error}");
                break;
            }
        }
    }
    assert!(bytes == content(0, 0..bytes.len() as u64));
}

/// The version that a read names is answered from the cache, if it is the known one. Every other
/// condition is the server's.
#[tokio::test]
async fn conditions_are_answered() {
    let (server, _current) = replaceable();
    let (operator, _layer) = over_http(&server, options());
    operator.read_with("a").range(0..100).await.unwrap();
    server.lines();
    let read = operator.read_with("a").range(0..100).if_match("\"v0\"").await.unwrap();
    assert!(read.to_vec() == content(0, 0..100));
    assert_eq!(server.lines(), [""; 0]);
    let error = operator.read_with("a").range(0..100).if_match("\"v9\"").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConditionNotMatch);
    assert_eq!(server.lines(), ["GET bytes=0-99 if-match"]);
    let error = operator.read_with("a").range(0..100).if_none_match("\"v0\"").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConditionNotMatch);
    assert_eq!(server.lines(), ["GET bytes=0-99"]);
    let metadata = operator.reader("a").await.unwrap().into_stream(0..10).await;
    let metadata = metadata.unwrap().metadata().await.unwrap();
    assert_eq!((metadata.etag(), metadata.content_length()), (Some("\"v0\""), MIB));
    assert_eq!(server.lines(), [""; 0]);
}

/// The time of modification, or a weak ETag with it, is a version; an object without both is not
/// cached.
#[tokio::test]
async fn version_without_a_strong_tag() {
    let modified = object(0).modified;
    let weak = Some("W/\"1\"".to_owned());
    let cases = [(None, modified.clone(), 1), (weak.clone(), modified, 1), (weak, None, 2)];
    for (tag, modified, requests) in cases {
        let server = Server::of(Object { tag: tag.clone(), modified, ..object(0) });
        let (operator, _layer) = over_http(&server, options());
        for _ in 0..2 {
            let read = operator.read_with("a").range(0..100).await.unwrap();
            assert!(read.to_vec() == content(0, 0..100));
        }
        let lines = server.lines();
        let is_cached = lines.len() == 1;
        assert_eq!(is_cached, requests == 1, "{tag:?}: {lines:?}");
    }
}

/// A storage that keeps all versions answers reads that name an old one. A read of a new page every
/// five seconds is no proof that the old version is current: the new one is read after `max_age`.
#[tokio::test(start_paused = true)]
async fn reads_of_an_old_version_do_not_renew_its_age() {
    let watch = Watch { version: Arc::new(AtomicU64::new(1)), ..Watch::default() };
    let (operator, _layer, other) = shared_memory(&watch, options());
    for version in [1, 2] {
        other.write(&format!("a.{version}"), content(version, 0..MIB)).await.unwrap();
    }
    let read = async |page: u64| {
        let range = page * 8 * KIB..page * 8 * KIB + 10;
        let bytes = operator.read_with("a").range(range.clone()).await.unwrap().to_vec();
        [1, 2].into_iter().find(|&version| bytes == content(version, range.clone()))
    };
    assert_eq!(read(0).await, Some(1));
    watch.version.store(2, Ordering::Relaxed);
    for page in 1..12 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let version = read(page).await;
        assert!(version == Some(2) || page <= 2 && version == Some(1), "{page}: {version:?}");
    }
}
