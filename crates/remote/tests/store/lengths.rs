//! Lengths of answers: a body that ends early, or is too long, is an error of every call.

use std::sync::atomic::Ordering;
use std::time::Duration;

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt};
use readpath_remote::store::StoreOptions;

use crate::support::{Faults, KIB, MIB, TestStore, bytes_of, cached, content, options};

/// Faults of every body, each with a part of its error message.
const WRONG_LENGTHS: [(Faults, &str); 2] = [
    (Faults { truncations: 1, ..NONE }, "ended at byte"),
    (Faults { extra_bytes: 1, ..NONE }, "longer"),
];

const NONE: Faults = Faults { errors: 0, truncations: 0, extra_bytes: 0, breaks: 0, changes: 0 };

/// A store with these faults in every get, conditional ones included.
fn faulty(faults: Faults) -> TestStore<InMemory> {
    TestStore { faults, spares_conditions: false, ..TestStore::new(InMemory::new()) }
}

/// A get with a condition that the object meets, and that only the store can answer.
fn conditional(range: Option<GetRange>) -> GetOptions {
    GetOptions::new().with_if_none_match(Some("\"other\"")).with_range(range)
}

/// Checks that an error names the object, the fault, and the remedy.
fn check_error(error: &Error, path: &Path, fault: &str) {
    let text = error.to_string();
    assert!(matches!(error, Error::Generic { .. }), "{text}");
    assert!([path.as_ref(), fault, "again"].iter().all(|part| text.contains(part)), "{text}");
}

/// A get of 3 MiB is too large for the memory of 4 MiB. The first one is the request that opens the
/// object; the second one knows the object.
#[tokio::test]
async fn wrong_length_of_a_large_get_is_an_error() {
    for (faults, fault) in WRONG_LENGTHS {
        let (store, path) = cached(faulty(faults), options(), 3 * MIB).await;
        for _ in 0..2 {
            let result = store.get(&path).await.unwrap();
            check_error(&bytes_of(result).await.unwrap_err(), &path, fault);
            let error = store.get(&path).await.unwrap().bytes().await.unwrap_err();
            check_error(&error, &path, fault);
        }
        assert_eq!(store.counters().fetches, 0);
    }
}

/// The request that opens the object fails, and its size is known by a `head`, which has no body.
#[tokio::test]
async fn large_get_after_a_failed_request_has_its_body() {
    let (store, path) = cached(faulty(Faults { errors: 2, ..NONE }), options(), 3 * MIB).await;
    store.inner().get(&path).await.unwrap();
    let read = store.get(&path).await.unwrap();
    assert_eq!((store.inner().gets(), store.inner().heads()), (3, 1));
    assert!(bytes_of(read).await.unwrap() == content(0, 0..3 * MIB));
}

#[tokio::test]
async fn wrong_length_of_a_conditional_get_is_an_error() {
    let ranges = [
        None,
        Some(GetRange::Bounded(10..100_000)),
        Some(GetRange::Offset(1000)),
        Some(GetRange::Suffix(5000)),
    ];
    for (faults, fault) in WRONG_LENGTHS {
        let (store, path) = cached(faulty(faults), options(), MIB).await;
        for range in &ranges {
            let result = store.get_opts(&path, conditional(range.clone())).await.unwrap();
            check_error(&bytes_of(result).await.unwrap_err(), &path, fault);
        }
    }
}

/// An object without a version is not cached: its ranges are requested from the store.
#[tokio::test]
async fn wrong_length_of_an_uncached_range_is_an_error() {
    for (faults, fault) in WRONG_LENGTHS {
        let test_store = TestStore { hides: [true, true], ..faulty(faults) };
        let (store, path) = cached(test_store, options(), MIB).await;
        let error = store.get_range(&path, 5..1000).await.unwrap_err();
        check_error(&error, &path, fault);
        let error = store.get_ranges(&path, &[0..64 * KIB, 0..1000]).await.unwrap_err();
        check_error(&error, &path, fault);
    }
}

/// Every second answer is cut, and every answer may be tried again once.
#[tokio::test]
async fn ranges_of_an_uncached_object_are_tried_again() {
    let faults = Faults { truncations: 2, ..NONE };
    let test_store = TestStore { hides: [true, true], ..faulty(faults) };
    let options = StoreOptions { retries_max: 3, ..options() };
    let (store, path) = cached(test_store, options, MIB).await;
    let ranges = [MIB - 1000..MIB + 5, 0..500];
    for _ in 0..3 {
        let read = store.get_ranges(&path, &ranges).await.unwrap();
        // A range ends at the end of the object, at the latest.
        let right = [content(0, MIB - 1000..MIB), content(0, 0..500)];
        assert!(read == right);
    }
    let past = [MIB - 1000..MIB, MIB + 5..MIB + 10];
    let text = store.get_ranges(&path, &past).await.unwrap_err().to_string();
    assert!(text.contains("past the end"), "{text}");
}

/// After fetches with a wrong length, good ones bring the bytes: no page of the first is used.
#[tokio::test(start_paused = true)]
async fn wrong_length_of_a_fetch_is_an_error_and_is_not_cached() {
    for (faults, fault) in WRONG_LENGTHS {
        let (store, path) = cached(faulty(faults), options(), MIB).await;
        let suffix = || GetOptions::new().with_range(Some(GetRange::Suffix(100_000)));
        let error = store.get_range(&path, 0..50_000).await.unwrap_err();
        check_error(&error, &path, fault);
        let error = store.get_ranges(&path, &[0..50_000, 1..2]).await.unwrap_err();
        check_error(&error, &path, fault);
        check_error(&store.get(&path).await.unwrap_err(), &path, fault);
        check_error(&store.get_opts(&path, suffix()).await.unwrap_err(), &path, fault);
        store.inner().is_faulty.store(false, Ordering::Relaxed);
        // Later tries for abandoned reads end meanwhile.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let read = store.get_opts(&path, suffix()).await.unwrap();
        assert!(bytes_of(read).await.unwrap() == content(0, MIB - 100_000..MIB));
        let read = store.get(&path).await.unwrap();
        assert!(bytes_of(read).await.unwrap() == content(0, 0..MIB));
    }
}

/// The store answers another range than the requested one.
#[tokio::test]
async fn answer_for_another_range_is_an_error() {
    let test_store = TestStore { is_shifted: true, ..TestStore::new(InMemory::new()) };
    let (store, path) = cached(test_store, options(), MIB).await;
    for range in [GetRange::Bounded(10..5000), GetRange::Offset(9000), GetRange::Suffix(77)] {
        let error = store.get_opts(&path, conditional(Some(range))).await.unwrap_err();
        check_error(&error, &path, "returned");
    }
}

/// A get without a body needs none.
#[tokio::test]
async fn head_of_a_faulty_store_has_the_size() {
    for (faults, _) in WRONG_LENGTHS {
        let (store, path) = cached(faulty(faults), options(), MIB).await;
        let options = GetOptions { head: true, ..conditional(None) };
        let result = store.get_opts(&path, options).await.unwrap();
        assert_eq!(result.meta.size, MIB);
        assert!(bytes_of(result).await.unwrap().is_empty());
        assert_eq!(store.head(&path).await.unwrap().size, MIB);
    }
}
