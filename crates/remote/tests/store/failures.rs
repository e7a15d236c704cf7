//! Failed requests, bounds of requests and memory, and writes of unknown outcome.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use readpath_remote::planner::PlannerOptions;
use readpath_remote::store::{ReadpathStore, StoreOptions, TokioRuntime};

use crate::support::{Faults, KIB, MIB, TestStore, cached, content, options};

/// Without an ETag, an error does not show whether the object has changed. It has not: its cached
/// page stays.
#[tokio::test]
async fn failed_fetch_without_a_tag_keeps_the_pages() {
    let (hides, age) = ([true, false], Duration::from_secs(3600));
    let test_store = TestStore { hides, age, ..TestStore::new(InMemory::new()) };
    let (store, path) = cached(test_store, options(), MIB).await;
    store.get_range(&path, 0..10).await.unwrap();
    store.inner().is_down.store(true, Ordering::Relaxed);
    let error = store.get_range(&path, 100 * KIB..101 * KIB).await.unwrap_err();
    assert!(error.to_string().contains("is down"), "{error}");
    assert_eq!(store.get_range(&path, 0..10).await.unwrap(), content(0, 0..10));
    assert_eq!(store.inner().heads(), 1);
}

/// The clients of the underlying store have retried already: one more try by default.
#[tokio::test]
async fn lasting_error_costs_two_requests() {
    let faults = Faults { errors: 1, ..Faults::default() };
    let test_store = TestStore { faults, ..TestStore::new(InMemory::new()) };
    let (store, path) = cached(test_store, options(), MIB).await;
    store.head(&path).await.unwrap();
    store.get_range(&path, 0..10).await.unwrap_err();
    assert_eq!(store.inner().gets(), 2);
}

/// 32 neighbouring ranges are one fetch, whose failure is the one of all of them: one more try. A
/// missing right has no second try without readahead.
#[tokio::test]
async fn lasting_error_of_joined_ranges_costs_two_requests() {
    for (is_denied, expected) in [(false, 2), (true, 1)] {
        let faults = Faults { errors: 1, ..Faults::default() };
        let test_store = TestStore { faults, is_denied, ..TestStore::new(InMemory::new()) };
        let (store, path) = cached(test_store, options(), MIB).await;
        store.head(&path).await.unwrap();
        let ranges: Vec<_> = (0..32).map(|page| page * 4 * KIB..(page + 1) * 4 * KIB).collect();
        store.get_ranges(&path, &ranges).await.unwrap_err();
        assert_eq!(store.inner().gets(), expected);
        // A range of a whole fetch, too.
        store.get_range(&path, 256 * KIB..512 * KIB).await.unwrap_err();
        assert_eq!(store.inner().gets(), 2 * expected);
    }
}

#[tokio::test]
async fn unknown_object_is_cached_without_repeats() {
    let options = StoreOptions { repeats_max: 0, ..options() };
    let (store, path) = cached(TestStore::new(InMemory::new()), options, MIB).await;
    for _ in 0..2 {
        assert_eq!(store.get_range(&path, 0..10).await.unwrap(), content(0, 0..10));
        assert_eq!((store.inner().gets(), store.counters().fetches), (1, 1));
    }
}

/// A store with an object of 160 MiB, of which five pieces are streamed.
async fn with_large_object(objects_max: usize) -> (ReadpathStore<TestStore<InMemory>>, Path) {
    let planner = PlannerOptions { memory_bytes: 400 * MIB, ..options().planner };
    let options = StoreOptions { planner, objects_max, ..StoreOptions::default() };
    let path = Path::from("large");
    let memory = InMemory::new();
    memory.put(&path, vec![7; 160 << 20].into()).await.unwrap();
    let store = TestStore::new(memory);
    (ReadpathStore::new(store, options, TokioRuntime::current()).unwrap(), path)
}

/// A consumer that does not go on holds the first two pieces of 32 MiB. Another object takes the
/// place of the streamed one among the known objects, and the stream goes on all the same.
#[tokio::test(start_paused = true)]
async fn slow_stream_holds_two_pieces() {
    let (store, path) = with_large_object(1).await;
    let mut stream = store.get(&path).await.unwrap().into_stream();
    let first = stream.next().await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((first.len() as u64, store.inner().body_bytes()), (32 * MIB, 64 * MIB));
    let other = Path::from("other");
    store.inner().store.put(&other, content(1, 0..100).into()).await.unwrap();
    store.get(&other).await.unwrap();
    let rest: Vec<_> = stream.try_collect().await.unwrap();
    assert_eq!(rest.iter().map(|piece| piece.len() as u64 / MIB).collect::<Vec<_>>(), [32; 4]);
    assert!(rest.iter().flatten().all(|byte| *byte == 7));
}

/// The stream ends with an error at the first piece that may be of the new version.
#[tokio::test(start_paused = true)]
async fn stream_ends_at_a_change() {
    let (store, path) = with_large_object(100).await;
    let mut stream = store.get(&path).await.unwrap().into_stream();
    stream.next().await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    store.inner().store.put(&path, vec![8; 160 << 20].into()).await.unwrap();
    let mut ends = Vec::new();
    while let Some(piece) = stream.next().await {
        ends.push(piece.map(|bytes| bytes.iter().all(|byte| *byte == 7)));
    }
    assert!(matches!(ends.pop(), Some(Err(Error::Precondition { .. }))));
    assert!(ends.iter().all(|end| matches!(end, Ok(true))) && ends.len() < 4, "{ends:?}");
}

/// A refused write changes nothing, but shows that another client may have written: the version is
/// asked for, and the cached page stays.
#[tokio::test]
async fn refused_write_keeps_the_pages_and_asks_for_the_version() {
    let (store, path) = cached(TestStore::new(InMemory::new()), options(), 100).await;
    let create = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    let read = async || store.get_range(&path, 0..100).await.unwrap();
    assert_eq!(read().await, content(0, 0..100));
    store.put_opts(&path, content(2, 0..100).into(), create.clone()).await.unwrap_err();
    for _ in 0..2 {
        assert_eq!(read().await, content(0, 0..100));
        assert_eq!((store.inner().gets(), store.inner().heads()), (1, 1));
    }
    store.inner().store.put(&path, content(1, 0..100).into()).await.unwrap();
    assert_eq!(read().await, content(0, 0..100));
    store.put_opts(&path, content(2, 0..100).into(), create).await.unwrap_err();
    assert_eq!(read().await, content(1, 0..100));
}

/// A reported delete has no effect on later gets. A delete without a report has
/// it at the end of the stream, although the stream is not dropped.
#[tokio::test]
async fn deletes_are_forgotten_at_their_report_or_at_the_end() {
    let (store, path) = cached(TestStore::new(InMemory::new()), options(), 100).await;
    let other = Path::from("other");
    store.put(&other, content(0, 0..100).into()).await.unwrap();
    let locations = stream::iter([Ok(path.clone()), Ok(other.clone())]).boxed();
    let mut deleted = store.delete_stream(locations);
    assert_eq!(deleted.next().await.unwrap().unwrap(), path);
    store.get_range(&path, 0..10).await.unwrap_err();
    store.inner().store.put(&path, content(1, 0..100).into()).await.unwrap();
    store.get_range(&path, 0..10).await.unwrap();
    assert_eq!(deleted.next().await.unwrap().unwrap(), other);
    assert!(deleted.next().await.is_none());
    let gets = store.inner().gets();
    assert_eq!(store.get_range(&path, 0..10).await.unwrap(), content(1, 0..10));
    drop(deleted);
    assert_eq!(store.get_range(&path, 0..10).await.unwrap(), content(1, 0..10));
    assert_eq!(store.inner().gets(), gets);
}

/// Of twenty gets at once, one has a place in the planner. The others are as by the store.
#[tokio::test]
async fn get_without_a_place_passes_straight_to_the_store() {
    let planner = PlannerOptions { reads_max: 1, ..options().planner };
    let options = StoreOptions { planner, ..options() };
    let (store, path) = cached(TestStore::new(InMemory::new()), options, MIB).await;
    let starts = (0..20).map(|index| index * 40 * KIB);
    let reads = starts.clone().map(|start| store.get_range(&path, start..start + 10));
    for (start, read) in starts.zip(join_all(reads).await) {
        assert_eq!(read.unwrap(), content(0, start..start + 10));
    }
    let ranges = [0..10, 50 * KIB..51 * KIB];
    let read = store.get_ranges(&path, &ranges).await.unwrap();
    assert!(ranges.iter().zip(read).all(|(range, bytes)| bytes == content(0, range.clone())));
}
