//! Failed requests, bounds of requests and memory, and writes of unknown outcome.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt};
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
/// place of the streamed one among the known objects meanwhile, and the stream goes on all the same.
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
