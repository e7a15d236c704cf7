//! Single properties of the store, with expected values worked by hand.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use readpath_remote::planner::PlannerOptions;
use readpath_remote::store::{ReadpathStore, StoreOptions, TokioRuntime};
use tokio::time::Instant;

use crate::support::{
    Faults, KIB, Link, MIB, TestStore, bytes_of, cached, content, options, ranged, slow,
};

/// Ten tasks read one page that was not known before: one request, which brings the version too.
#[tokio::test(start_paused = true)]
async fn concurrent_first_reads_cause_one_request() {
    let (store, path) = cached(slow(), options(), MIB).await;
    let start = Instant::now();
    let reads = (0..10).map(|index| store.get_range(&path, index * 100..index * 100 + 50));
    for (index, read) in join_all(reads).await.into_iter().enumerate() {
        let index = index as u64;
        assert_eq!(read.unwrap(), content(0, index * 100..index * 100 + 50));
    }
    assert_eq!((store.inner().gets(), store.inner().heads()), (1, 0));
    assert_eq!(start.elapsed(), Duration::from_millis(20));
    // The page of the first read has come whole, and no other.
    assert_eq!(store.inner().body_bytes(), 4 * KIB);
}

/// A suffix, the last page, and the whole of a small object: one request.
#[tokio::test]
async fn first_request_of_a_suffix_brings_its_pages() {
    let (store, path) = cached(TestStore::new(InMemory::new()), options(), 10_000).await;
    let suffix = GetOptions::new().with_range(Some(GetRange::Suffix(8)));
    let result = store.get_opts(&path, suffix).await.unwrap();
    assert_eq!((result.range.clone(), result.meta.size), (9_992..10_000, 10_000));
    assert_eq!(bytes_of(result).await.unwrap(), content(0, 9_992..10_000));
    assert_eq!(store.get_range(&path, 8_200..9_000).await.unwrap(), content(0, 8_200..9_000));
    assert_eq!(store.inner().gets(), 1);
    let meta = store.head(&path).await.unwrap();
    assert_eq!((meta.size, meta.location), (10_000, path));
    assert_eq!(store.inner().heads(), 0);
}

#[tokio::test]
async fn empty_object_and_ranges_past_the_end() {
    let (store, path) = cached(TestStore::new(InMemory::new()), options(), 0).await;
    let result = store.get(&path).await.unwrap();
    assert_eq!(result.range, 0..0);
    assert_eq!(bytes_of(result).await.unwrap(), b"");
    store.get_range(&path, 0..1).await.unwrap_err();
    // A change of another client: the object grows, and the range must be looked up again.
    store.inner().store.put(&path, content(1, 0..100).into()).await.unwrap();
    assert_eq!(store.get_range(&path, 50..200).await.unwrap(), content(1, 50..100));
    store.get_range(&path, 100..200).await.unwrap_err();
    #[expect(clippy::reversed_empty_ranges)]
    store.get_range(&path, 7..3).await.unwrap_err();
    let missing = store.get(&Path::from("missing")).await.unwrap_err();
    assert!(matches!(missing, Error::NotFound { .. }), "{missing}");
}

/// Another client writes the object. Cached bytes are of the known version for `max_age`; a fetch
/// finds the change before that, and the read has the new version alone.
#[tokio::test(start_paused = true)]
async fn change_by_another_client_never_mixes_versions() {
    let (store, path) = cached(slow(), options(), MIB).await;
    assert_eq!(store.get_range(&path, 0..10).await.unwrap(), content(0, 0..10));
    store.inner().store.put(&path, content(1, 0..MIB).into()).await.unwrap();
    assert_eq!(store.get_range(&path, 0..10).await.unwrap(), content(0, 0..10));
    let both = store.get_range(&path, 0..8 * KIB).await.unwrap();
    assert_eq!(both, content(1, 0..8 * KIB));
    store.inner().store.put(&path, content(2, 0..MIB).into()).await.unwrap();
    assert_eq!(store.get_range(&path, 0..10).await.unwrap(), content(1, 0..10));
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(store.get_range(&path, 0..10).await.unwrap(), content(2, 0..10));
    assert_eq!(store.inner().heads(), 1);
}

#[tokio::test]
async fn writes_through_the_store_take_effect_at_once() {
    let (store, path) = cached(TestStore::new(InMemory::new()), options(), 100).await;
    let (other, all) = (Path::from("other"), |version| content(version, 0..100));
    let read = async |path: &Path| store.get_range(path, 0..100).await;
    assert_eq!(read(&path).await.unwrap(), all(0));
    store.put(&path, all(1).into()).await.unwrap();
    assert_eq!(read(&path).await.unwrap(), all(1));
    store.inner().store.put(&other, all(2).into()).await.unwrap();
    assert_eq!(read(&other).await.unwrap(), all(2));
    store.copy(&other, &path).await.unwrap();
    assert_eq!(read(&path).await.unwrap(), all(2));
    let mut upload = store.put_multipart(&path).await.unwrap();
    upload.put_part(all(3).into()).await.unwrap();
    assert_eq!(read(&path).await.unwrap(), all(2));
    upload.complete().await.unwrap();
    assert_eq!(read(&path).await.unwrap(), all(3));
    store.rename(&path, &other).await.unwrap();
    assert_eq!(read(&other).await.unwrap(), all(3));
    assert!(matches!(read(&path).await.unwrap_err(), Error::NotFound { .. }));
    store.delete(&other).await.unwrap();
    assert!(matches!(read(&other).await.unwrap_err(), Error::NotFound { .. }));
    let create = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    store.put_opts(&path, all(4).into(), create).await.unwrap();
    assert_eq!(read(&path).await.unwrap(), all(4));
}

/// Without an ETag the version is the time of modification with the size; without both, no get is
/// cached.
#[tokio::test]
async fn object_without_a_version_is_not_cached() {
    for (hides, cached_gets) in [([true, false], 1), ([true, true], 3), ([false, true], 1)] {
        let age = Duration::from_secs(3600);
        let test_store = TestStore { hides, age, ..TestStore::new(InMemory::new()) };
        let (store, path) = cached(test_store, options(), MIB).await;
        for _ in 0..2 {
            assert_eq!(store.get_range(&path, 0..10).await.unwrap(), content(0, 0..10));
        }
        assert_eq!(store.inner().gets(), cached_gets, "{hides:?}");
        if cached_gets == 1 {
            // Another size is another version.
            store.inner().store.put(&path, content(1, 0..2 * MIB).into()).await.unwrap();
            let range = 0..8 * KIB;
            assert_eq!(store.get_range(&path, range.clone()).await.unwrap(), content(1, range));
            // The fetch of a page past the new end fails.
            store.inner().store.put(&path, content(2, 0..100).into()).await.unwrap();
            let read = store.get_range(&path, 0..20 * KIB).await.unwrap();
            assert_eq!(read, content(2, 0..100));
        }
    }
}

/// `if_match` of the known version is answered by the cache; every other condition by the store.
#[tokio::test]
async fn conditional_gets_are_answered_as_by_the_store() {
    let (store, path) = cached(TestStore::new(InMemory::new()), options(), MIB).await;
    let meta = store.head(&path).await.unwrap();
    store.get_range(&path, 0..10).await.unwrap();
    let gets = store.inner().gets();
    let matching = ranged(0..10).with_if_match(meta.e_tag.clone());
    store.get_opts(&path, matching.clone()).await.unwrap();
    assert_eq!(store.inner().gets(), gets);
    let error = store.get_opts(&path, ranged(0..10).with_if_match(Some("other"))).await;
    assert!(matches!(error.unwrap_err(), Error::Precondition { .. }));
    let error = store.get_opts(&path, ranged(0..10).with_if_none_match(meta.e_tag)).await;
    assert!(matches!(error.unwrap_err(), Error::NotModified { .. }));
    store.put(&path, content(1, 0..MIB).into()).await.unwrap();
    let error = store.get_opts(&path, matching).await.unwrap_err();
    assert!(matches!(error, Error::Precondition { .. }), "{error}");
}

/// A get of more than half of the memory passes to the store, in one request and without a copy.
#[tokio::test]
async fn large_get_passes_straight_to_the_store() {
    let (store, path) = cached(TestStore::new(InMemory::new()), options(), 3 * MIB).await;
    for gets in 1..=2 {
        let result = store.get(&path).await.unwrap();
        assert!(bytes_of(result).await.unwrap() == content(0, 0..3 * MIB));
        assert_eq!(store.inner().gets(), gets);
    }
    assert_eq!(store.counters().fetches, 0);
    // Ranges of any size are read in parallel parts.
    let ranges = [0..3 * MIB, 5..6];
    let read = store.get_ranges(&path, &ranges).await.unwrap();
    assert!(ranges.iter().zip(read).all(|(range, bytes)| bytes == content(0, range.clone())));
}

/// Buffers of a get hold no more memory than their bytes, and no part of the cache.
#[tokio::test]
async fn returned_buffers_have_exactly_their_size() {
    let (store, path) = cached(TestStore::new(InMemory::new()), options(), MIB).await;
    let ranges: Vec<_> = (0..16).map(|index| index * 1000..index * 1000 + 10).collect();
    for bytes in store.get_ranges(&path, &ranges).await.unwrap() {
        // A unique buffer becomes mutable without a copy; its capacity is its whole memory.
        assert_eq!(bytes.try_into_mut().unwrap().capacity(), 10);
    }
}

/// Ranges of one call, and the store under them.
struct Apart {
    latency_ms: u64,
    /// Number of requests in flight.
    fetches_max: u32,
    /// Number of the ranges, their bytes, and the distance of their starts.
    ranges: [u64; 3],
}

/// Requests, bytes and milliseconds of a call whose ranges begin at 1 MiB. The network has 100
/// MB/s. The store has learned its costs from sixteen reads of different sizes.
async fn get_ranges_apart(apart: Apart) -> [u64; 3] {
    let Apart { latency_ms, fetches_max, ranges: [count, bytes, distance] } = apart;
    let test_store = TestStore {
        latency: Duration::from_millis(latency_ms),
        bandwidth: Some(100_000_000),
        link: Arc::new(Link::new(Some(100_000_000))),
        ..slow()
    };
    let mut options = options();
    options.planner.fetches_max = fetches_max;
    let (store, path) = cached(test_store, options, 8 * MIB).await;
    for index in 0..16 {
        let start = index * 64 * KIB;
        store.get_range(&path, start..start + (1 + index % 4 * 4) * 4 * KIB).await.unwrap();
    }
    let before = [store.inner().gets(), store.inner().body_bytes()];
    let started = Instant::now();
    let starts = (0..count).map(|index| MIB + index * distance);
    let ranges: Vec<_> = starts.map(|start| start..start + bytes).collect();
    let read = store.get_ranges(&path, &ranges).await.unwrap();
    let ms = started.elapsed().as_millis() as u64;
    assert!(ranges.iter().zip(read).all(|(range, bytes)| bytes == content(0, range.clone())));
    [store.inner().gets() - before[0], store.inner().body_bytes() - before[1], ms]
}

/// Ten ranges with gaps of 16 KiB leave in one request.
#[tokio::test(start_paused = true)]
async fn near_ranges_leave_in_one_request() {
    let ranges = [10, 9, 16 * KIB];
    let [gets, ..] = get_ranges_apart(Apart { latency_ms: 20, fetches_max: 64, ranges }).await;
    assert_eq!(gets, 1);
}

/// As many ranges as may be in flight leave at the same time: one latency passes for all. The gaps,
/// less than the bytes of a lone request, would only add their bytes. At 1 ms 64 gaps of 32 KiB
/// would take 21 ms.
#[tokio::test(start_paused = true)]
async fn distant_ranges_leave_in_parallel_without_their_gaps() {
    let cases = [
        (20, 64, [20, 8 * KIB, 320 * KIB]),
        (100, 64, [20, 8 * KIB, 150 * KIB]),
        (20, 4, [2, 8 * KIB, 408 * KIB]),
        (1, 64, [64, 8 * KIB, 40 * KIB]),
    ];
    for (latency_ms, fetches_max, ranges) in cases {
        let [gets, bytes, ms] = get_ranges_apart(Apart { latency_ms, fetches_max, ranges }).await;
        assert_eq!(gets, ranges[0]);
        // A range may touch two more pages.
        assert!(bytes <= gets * (8 + 2 * 4) * KIB, "{bytes} bytes");
        // 64 ranges of 8 KiB take 5 ms at 100 MB/s.
        assert!(ms <= latency_ms + 10, "{ms} ms");
    }
}

/// Nine ranges with places for four wait three times, at least 60 ms. Gaps of 100 KiB take 8 ms,
/// and save two waits of 20 ms.
#[tokio::test(start_paused = true)]
async fn gaps_are_read_where_they_save_a_wait() {
    let ranges = [9, 8 * KIB, 108 * KIB];
    let [gets, bytes, ms] =
        get_ranges_apart(Apart { latency_ms: 20, fetches_max: 4, ranges }).await;
    assert_eq!((gets, bytes), (1, 8 * 108 * KIB + 8 * KIB));
    assert!(ms <= 40, "{ms} ms");
}

/// An object without ETag and time passes to the store: without its gaps, and in parallel.
#[tokio::test(start_paused = true)]
async fn distant_ranges_of_uncached_objects_leave_in_parallel_without_their_gaps() {
    let (store, path) = cached(TestStore { hides: [true; 2], ..slow() }, options(), 8 * MIB).await;
    let ranges: Vec<_> = (0..20)
        .map(|index| index * 320 * KIB..index * 320 * KIB + 8 * KIB)
        .chain([8 * KIB + 100..8 * KIB + 200, 0..10, 5..5])
        .collect();
    // The first get learns that the object has no version.
    store.get_range(&path, 0..1).await.unwrap();
    let before = [store.inner().gets(), store.inner().body_bytes()];
    let started = Instant::now();
    let read = store.get_ranges(&path, &ranges).await.unwrap();
    assert!(ranges.iter().zip(read).all(|(range, bytes)| bytes == content(0, range.clone())));
    // The near range comes with its gap of 100 bytes. One request finds the version.
    assert!(store.inner().gets() - before[0] <= 21);
    assert!(store.inner().body_bytes() - before[1] <= 20 * 8 * KIB + 8 * KIB + 200);
    assert!(started.elapsed() <= Duration::from_millis(41));
}

/// The first of two readers of a page is dropped, with the fetch in flight. The other one gets the
/// page from the same fetch; and a later reader finds it in memory.
#[tokio::test(start_paused = true)]
async fn dropped_reader_ends_no_fetch_of_others() {
    let (store, path) = cached(slow(), options(), MIB).await;
    store.head(&path).await.unwrap();
    let first = tokio::spawn({
        let (store, path) = (store.clone(), path.clone());
        async move { store.get_range(&path, 0..10).await }
    });
    let second = tokio::spawn({
        let (store, path) = (store.clone(), path.clone());
        async move { store.get_range(&path, 100..110).await }
    });
    tokio::time::sleep(Duration::from_millis(10)).await;
    first.abort();
    assert_eq!(second.await.unwrap().unwrap(), content(0, 100..110));
    assert_eq!(store.get_range(&path, 0..10).await.unwrap(), content(0, 0..10));
    assert_eq!(store.inner().gets(), 1);
}

/// Answers of a wrong length are errors when they do not stop.
#[tokio::test]
async fn lasting_faults_are_errors() {
    let none = Faults::default();
    for faults in [
        Faults { errors: 1, ..none },
        Faults { truncations: 1, ..none },
        Faults { extra_bytes: 1, ..none },
        Faults { breaks: 1, ..none },
    ] {
        // A body that breaks after a half is continued from there, and so ends after some tries.
        let retries_max = if faults.breaks > 0 { 1 } else { 3 };
        let test_store = TestStore { faults, ..TestStore::new(InMemory::new()) };
        let options = StoreOptions { retries_max, ..options() };
        let (store, path) = cached(test_store, options, MIB).await;
        let error = store.get_range(&path, 0..64 * KIB).await.unwrap_err();
        assert!(matches!(error, Error::Generic { .. }), "{faults:?}: {error}");
        let error = store.get_ranges(&path, &[0..64 * KIB, 0..1]).await.unwrap_err();
        assert!(matches!(error, Error::Generic { .. }), "{faults:?}: {error}");
    }
}

/// Twenty objects with space for five: the pages of the others are dropped.
#[tokio::test]
async fn least_recently_used_objects_are_forgotten() {
    let test_store = TestStore::new(InMemory::new());
    let paths: Vec<Path> = (0..20).map(|index| Path::from(format!("object-{index}"))).collect();
    for path in &paths {
        test_store.store.put(path, content(0, 0..100).into()).await.unwrap();
    }
    let options = StoreOptions { objects_max: 5, ..options() };
    let store = ReadpathStore::new(test_store, options, TokioRuntime::current()).unwrap();
    for round in 0..2 {
        for path in paths.iter().chain(&paths[15..]) {
            assert_eq!(store.get_range(path, 0..100).await.unwrap(), content(0, 0..100));
        }
        assert_eq!(store.inner().gets(), 20 * (round + 1));
    }
}

/// Eight tasks on four threads read through a memory of 16 pages in real time: every read
/// ends, with its bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn threads_share_a_small_memory() {
    let readahead = "adaptive".to_owned();
    let (memory_bytes, part_bytes) = (64 * KIB, 16 * KIB);
    let planner = PlannerOptions { readahead, memory_bytes, part_bytes, ..Default::default() };
    let options = StoreOptions { planner, ..StoreOptions::default() };
    let (store, path) = cached(TestStore::new(InMemory::new()), options, MIB).await;
    let tasks: Vec<_> = (0..8u64)
        .map(|task| {
            let (store, path) = (store.clone(), path.clone());
            tokio::spawn(async move {
                for read in 0..400 {
                    let start = (task * 131_072 + read * 7_000) % (MIB - 24 * KIB);
                    let range = start..start + 1 + read * 61 % (24 * KIB);
                    let bytes = store.get_range(&path, range.clone()).await.unwrap();
                    assert!(bytes == content(0, range));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// A store that outlives its runtime fails its reads, and does not wait for ever.
#[test]
fn reads_after_the_end_of_the_runtime_are_errors() {
    let build = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (first, second) = (build(), build());
    let (store, path) = first.block_on(cached(slow(), options(), MIB));
    first.block_on(store.get_range(&path, 0..10)).unwrap();
    drop(first);
    let error = second.block_on(store.get_range(&path, 100 * KIB..101 * KIB)).unwrap_err();
    assert!(error.to_string().contains("has shut down"), "{error}");
    let error = second.block_on(store.get_range(&Path::from("other"), 0..10)).unwrap_err();
    assert!(error.to_string().contains("has shut down"), "{error}");
}

#[tokio::test]
async fn store_is_an_object() {
    let (store, path) = cached(TestStore::new(InMemory::new()), options(), 100).await;
    let store: Arc<dyn ObjectStore> = Arc::new(store);
    assert_eq!(store.to_string(), "Readpath(Test(InMemory))");
    assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), content(0, 0..100));
}
