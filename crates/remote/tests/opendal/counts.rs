//! Requests of reads, worked by hand.

use futures_util::future::try_join_all;

use crate::server::{Object, Server};
use crate::support::{KIB, MIB, Watch, content, options, over_http, over_memory};
use readpath_remote::planner::PlannerOptions;
use readpath_remote::store::StoreOptions;

fn server() -> Server {
    Server::of(Object::tagged(content(0, 0..MIB), "v0"))
}

/// The first read brings the version and its page. A read of a page in memory has no request, and
/// one of another page names the version.
#[tokio::test]
async fn each_page_is_requested_once_by_its_version() {
    let server = server();
    let (operator, layer) = over_http(&server, options());
    let read = async |range: std::ops::Range<u64>| {
        let bytes = operator.read_with("folder/a").range(range.clone()).await.unwrap();
        assert_eq!(bytes.to_vec(), content(0, range.clone()), "{range:?}");
        server.lines()
    };
    assert_eq!(read(10..20).await, ["GET bytes=0-4095"]);
    assert_eq!(read(4000..4096).await, [""; 0]);
    assert_eq!(read(4000..4100).await, ["GET bytes=4096-8191 if-match"]);
    assert_eq!(read(0..8192).await, [""; 0]);
    assert_eq!(layer.counters().fetches, 2);
}

/// Twenty readers of one page cause one request. Sixteen readers of neighbouring pages, together
/// one part, cause one request.
#[tokio::test]
async fn readers_at_once_share_requests() {
    let server = server();
    let (operator, _layer) = over_http(&server, options());
    let reads = (0..20).map(|_| async { operator.read_with("a").range(0..100).await });
    for bytes in try_join_all(reads).await.unwrap() {
        assert_eq!(bytes.to_vec(), content(0, 0..100));
    }
    assert_eq!(server.lines(), ["GET bytes=0-4095"]);
    let starts = (0..16).map(|page| 64 * KIB + page * 4096);
    let reads = starts.clone().map(|start| operator.read_with("a").range(start..start + 4096));
    let reads = reads.map(|read| async move { read.await });
    for (start, bytes) in starts.zip(try_join_all(reads).await.unwrap()) {
        assert_eq!(bytes.to_vec(), content(0, start..start + 4096));
    }
    assert_eq!(server.lines(), ["GET bytes=65536-131071 if-match"]);
}

/// 256 reads of a page each, one after the other. Without readahead they are 256 requests.
#[tokio::test]
async fn stream_has_few_requests_and_each_byte_once() {
    let server = server();
    let planner = PlannerOptions { readahead: "adaptive".to_owned(), ..options().planner };
    let (operator, layer) = over_http(&server, StoreOptions { planner, ..options() });
    let reader = operator.reader("a").await.unwrap();
    for start in (0..MIB).step_by(4096) {
        let bytes = reader.read(start..start + 4096).await.unwrap();
        assert_eq!(bytes.to_vec(), content(0, start..start + 4096));
    }
    let lines = server.lines();
    assert!((16..64).contains(&lines.len()), "{lines:?}");
    assert_eq!(layer.counters().fetched_bytes, MIB);
}

/// A storage whose reads have no version: the first read finds that out. The version is then
/// asked for before the first read of an object, and after each read.
#[tokio::test]
async fn version_is_asked_for_after_each_read_where_reads_have_none() {
    let watch = Watch::default();
    let (operator, _layer) = over_memory(&watch, options());
    for path in ["a", "b"] {
        operator.write(path, content(1, 0..MIB)).await.unwrap();
    }
    let read = async |path: &str, range: std::ops::Range<u64>| {
        let bytes = operator.read_with(path).range(range.clone()).await.unwrap();
        assert_eq!(bytes.to_vec(), content(1, range));
        watch.take()
    };
    watch.take();
    assert_eq!(read("a", 0..10).await, (2, 2));
    assert_eq!(read("a", 0..10).await, (0, 0));
    assert_eq!(read("a", 5000..5010).await, (1, 1));
    assert_eq!(read("b", 0..10).await, (1, 2));
}

/// Answers to reads with the version: one request for each fetch.
#[tokio::test]
async fn reads_with_a_version_need_no_stat() {
    let watch = Watch { tags_reads: true, ..Watch::default() };
    let (operator, _layer) = over_memory(&watch, options());
    operator.write("a", content(1, 0..MIB)).await.unwrap();
    watch.take();
    assert_eq!(operator.read("a").await.unwrap().to_vec(), content(1, 0..MIB));
    // The whole object first: its answer is the first part of 64 KiB, and the rest has 15 parts.
    assert_eq!(watch.take(), (16, 0));
    assert_eq!(operator.read("a").await.unwrap().to_vec(), content(1, 0..MIB));
    assert_eq!(watch.take(), (0, 0));
}
