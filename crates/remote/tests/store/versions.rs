//! Versions of objects: conditions of gets, and versions that are hard to distinguish.

use std::time::Duration;

use futures_util::future::BoxFuture;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore, ObjectStoreExt};
use readpath_remote::store::{ReadpathStore, Runtime, TokioRuntime};

use crate::support::{KIB, MIB, TestStore, bytes_of, cached, content, options};

/// The object is larger than half of the memory, so that its first answer is returned as it came.
#[tokio::test]
async fn if_match_of_an_unknown_large_object_is_checked() {
    let (store, path) = cached(TestStore::new(InMemory::new()), options(), 3 * MIB).await;
    let other = GetOptions::new().with_if_match(Some("other"));
    let error = store.get_opts(&path, other).await.unwrap_err();
    assert!(matches!(error, Error::Precondition { .. }), "{error}");
    let tag = store.inner().store.head(&path).await.unwrap().e_tag;
    let known = GetOptions::new().with_if_match(tag);
    let result = store.get_opts(&path, known).await.unwrap();
    assert!(bytes_of(result).await.unwrap() == content(0, 0..3 * MIB));
}

/// Two versions of one size within a second have the same weak tag, or none, and the same time.
#[tokio::test]
async fn versions_of_one_second_are_never_mixed() {
    for is_weak in [false, true] {
        let test_store =
            TestStore { hides: [true, false], is_weak, ..TestStore::new(InMemory::new()) };
        let (store, path) = cached(test_store, options(), MIB).await;
        assert_eq!(store.get_range(&path, 0..10).await.unwrap(), content(0, 0..10));
        store.inner().store.put(&path, content(1, 0..MIB).into()).await.unwrap();
        let both = store.get_range(&path, 0..8 * KIB).await.unwrap();
        assert!(both == content(1, 0..8 * KIB), "{is_weak}");
    }
}

/// A weak tag alone does not distinguish two versions; the time of modification does.
#[tokio::test]
async fn weak_tag_counts_with_the_time_and_the_size() {
    let age = Duration::from_secs(3600);
    for (hides, cached_gets) in [([false, false], 1), ([false, true], 3)] {
        let test_store = TestStore { hides, is_weak: true, age, ..TestStore::new(InMemory::new()) };
        let (store, path) = cached(test_store, options(), MIB).await;
        for _ in 0..2 {
            assert_eq!(store.get_range(&path, 0..10).await.unwrap(), content(0, 0..10));
        }
        assert_eq!(store.inner().gets(), cached_gets);
        store.inner().store.put(&path, content(1, 0..MIB + 1).into()).await.unwrap();
        let both = store.get_range(&path, 0..8 * KIB).await.unwrap();
        assert!(both == content(1, 0..8 * KIB));
    }
}

/// Tasks and clock of tokio, and a clock of the system that goes with it.
#[derive(Debug)]
struct SteadyRuntime {
    tokio: TokioRuntime,
    unix_start: Duration,
}

impl Runtime for SteadyRuntime {
    fn now(&self) -> Duration {
        self.tokio.now()
    }

    fn unix_time(&self) -> Duration {
        self.unix_start + self.tokio.now()
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.tokio.spawn(task);
    }
}

/// The first get is half a second after the time of modification: two requests, for the version and
/// for the bytes. A get 1.4 s later is still too early, and another one 0.2 s after that is not.
#[tokio::test(start_paused = true)]
async fn young_object_without_a_tag_is_cached_after_two_seconds() {
    let test_store = TestStore { hides: [true, false], ..TestStore::new(InMemory::new()) };
    let path = Path::from("object");
    test_store.store.put(&path, content(0, 0..MIB).into()).await.unwrap();
    let modified = test_store.head(&path).await.unwrap().last_modified.timestamp();
    let unix_start = Duration::from_secs(modified as u64) + Duration::from_millis(500);
    let runtime = SteadyRuntime { tokio: TokioRuntime::current(), unix_start };
    let store = ReadpathStore::new(test_store, options(), runtime).unwrap();
    let expected = [(0, (2, 1)), (1400, (3, 1)), (200, (4, 2)), (0, (4, 2))];
    for (pause_ms, requests) in expected {
        tokio::time::advance(Duration::from_millis(pause_ms)).await;
        assert_eq!(store.get_range(&path, 0..10).await.unwrap(), content(0, 0..10));
        assert_eq!((store.inner().gets(), store.inner().heads()), requests, "{pause_ms}");
    }
}

/// Without a version, each `head` asks the store.
#[tokio::test]
async fn head_of_an_object_without_a_version_is_new() {
    let test_store = TestStore { hides: [true, true], ..TestStore::new(InMemory::new()) };
    let (store, path) = cached(test_store, options(), 100).await;
    for bytes in [100, 200, 300] {
        store.inner().store.put(&path, content(0, 0..bytes).into()).await.unwrap();
        assert_eq!(store.head(&path).await.unwrap().size, bytes);
    }
    assert_eq!(store.inner().heads(), 3);
}
