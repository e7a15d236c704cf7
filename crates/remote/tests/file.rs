//! Objects as files: the bytes of one version, by the interfaces of local files, next to faults.

use std::io::{ErrorKind, Read};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use readpath::{DeviceError, File, ReadError, ReadPath};
use readpath_remote::file::{
    FileOptions, OpenObjectError, WhileWaiting, open_object, open_url, register,
};
use readpath_remote::store::ReadpathStore;

#[path = "store/support.rs"]
#[allow(dead_code)]
mod support;

use support::{Faults, KIB, MIB, TestStore, content};

/// Not a whole number of pages.
const OBJECT_BYTES: u64 = 3 * MIB + 5;

fn path() -> Path {
    Path::from("folder/object")
}

/// Writes a version of the object.
fn put(store: &TestStore<InMemory>, version: u64) {
    let (path, bytes) = (path(), content(version, 0..OBJECT_BYTES).into());
    let write = store.store.put(&path, bytes);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(write).unwrap();
}

/// A store with version 0 of the object.
fn with_object(store: TestStore<InMemory>) -> Arc<TestStore<InMemory>> {
    put(&store, 0);
    Arc::new(store)
}

/// A file with 1 MiB of memory.
fn options() -> FileOptions {
    FileOptions { path: ReadPath::builder().memory(MIB), ..FileOptions::default() }
}

fn opened(store: &Arc<TestStore<InMemory>>, options: FileOptions) -> File {
    open_object(Arc::clone(store) as Arc<dyn ObjectStore>, &path(), options).unwrap()
}

/// Error of the storage in a failed read.
fn reason(error: &std::io::Error) -> DeviceError {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<ReadError>());
    match error {
        Some(ReadError::Device { error, .. }) => *error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_interface_returns_the_bytes_of_the_object() {
    let store = with_object(TestStore::new(InMemory::new()));
    let file = opened(&store, options());
    assert_eq!(file.len(), OBJECT_BYTES);
    let mut read = Vec::new();
    file.reader().read_to_end(&mut read).unwrap();
    assert!(read == content(0, 0..OBJECT_BYTES));
    let mut batch = file.read_path().batch();
    for ticket in 0..100 {
        batch.read(&file, ticket * 31_000, 500, ticket).unwrap();
    }
    while let Some(read) = batch.wait().unwrap() {
        let offset = read.ticket() * 31_000;
        assert!(read.slices().unwrap().flatten().eq(&content(0, offset..offset + 500)));
    }
    let (count, buffer) = pollster::block_on(file.read_at_async(vec![0; 1000], OBJECT_BYTES - 10));
    assert_eq!(count.unwrap(), 10);
    assert!(buffer[..10] == content(0, OBJECT_BYTES - 10..OBJECT_BYTES));
}

/// 3 MiB in parts of 256 KiB are 13 requests at least. Without readahead there would be 769, one
/// for each read.
#[test]
fn stream_has_few_requests_and_each_byte_once() {
    let latency = Duration::from_millis(5);
    let store = with_object(TestStore { latency, ..TestStore::new(InMemory::new()) });
    let file = opened(&store, FileOptions { part_bytes: 256 * KIB, ..options() });
    let mut buffer = [0; 4096];
    for offset in (0..OBJECT_BYTES).step_by(4096) {
        file.read_at(&mut buffer, offset).unwrap();
    }
    assert_eq!(store.body_bytes(), OBJECT_BYTES);
    // The first part came with the opening.
    assert_eq!(store.heads(), 0);
    assert!((13..=150).contains(&store.gets()), "{} gets", store.gets());
}

/// An object that is not larger than the first bytes takes one request, and an empty one two: it
/// has no range. Without first bytes, the opening is a request of its own, for one byte.
#[test]
fn small_object_takes_one_request() {
    for (object_bytes, first_bytes, expected) in
        [(64 * KIB, 64 * KIB, [0, 1]), (1, 64 * KIB, [0, 1]), (0, 64 * KIB, [1, 1]), (1, 0, [0, 2])]
    {
        let store = TestStore::new(InMemory::new());
        let location = path();
        let write = store.store.put(&location, content(0, 0..object_bytes).into());
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(write).unwrap();
        let store = Arc::new(store);
        let described = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&described);
        let on_open: Arc<dyn Fn(&object_store::ObjectMeta) + Send + Sync> =
            Arc::new(move |meta| seen.lock().unwrap().push((meta.location.clone(), meta.size)));
        let file = opened(&store, FileOptions { first_bytes, on_open: Some(on_open), ..options() });
        assert_eq!(*described.lock().unwrap(), [(path(), object_bytes)]);
        let mut read = Vec::new();
        file.reader().read_to_end(&mut read).unwrap();
        assert!(read == content(0, 0..object_bytes));
        assert_eq!([store.heads(), store.gets()], expected, "{object_bytes} {first_bytes}");
        // The bytes that came with the opening need no memory. Without an option, the memory is
        // not the default of a whole machine, but 1 MiB.
        let file = opened(&store, FileOptions::default());
        let mut buffer = vec![0; 100 << 10];
        let count = file.read_at(&mut buffer, 0).unwrap();
        assert!(buffer[..count] == content(0, 0..object_bytes));
        assert_eq!(file.read_at(&mut buffer, object_bytes + 5).unwrap(), 0);
        assert_eq!(file.stats().cached_bytes, object_bytes);
        file.prefetch(0, 10);
        assert_eq!(file.read_path().stats().memory_bytes, MIB);
    }
}

/// Objects of formats with an index at their end are opened by that end. The first read of a
/// library is the last 64 KiB, from any byte of a page on.
#[test]
fn object_with_its_index_at_the_end_is_opened_by_the_end() {
    for (name, object_bytes) in
        [("a.parquet", OBJECT_BYTES), ("b.ZIP", OBJECT_BYTES), ("c.jar", 5), ("d.orc", 0)]
    {
        let store = Arc::new(TestStore::new(InMemory::new()));
        let location = Path::from(name);
        let write = store.store.put(&location, content(0, 0..object_bytes).into());
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(write).unwrap();
        let options = FileOptions { path: ReadPath::builder().readahead("none"), ..options() };
        let file = open_object(Arc::clone(&store) as Arc<dyn ObjectStore>, &location, options);
        let file = file.unwrap();
        let opening = store.gets();
        let start = object_bytes.saturating_sub(64 * KIB);
        let mut end = vec![0; (object_bytes - start) as usize];
        file.read_exact_at(&mut end, start).unwrap();
        assert!(end == content(0, start..object_bytes));
        assert_eq!(store.gets(), opening, "{name}: the end came with the opening");
        let mut read = Vec::new();
        file.reader().read_to_end(&mut read).unwrap();
        assert!(read == content(0, 0..object_bytes));
    }
}

/// 40 MiB past the cache are 8 requests of 5 MiB, after the one of the opening. The first of
/// them is shorter: its first 64 KiB came with the opening.
#[test]
fn whole_object_is_read_by_a_few_long_requests() {
    let object_bytes = 40 * MIB;
    let store = TestStore::new(InMemory::new());
    let location = path();
    let write = store.store.put(&location, content(3, 0..object_bytes).into());
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(write).unwrap();
    let store = Arc::new(store);
    let file = opened(&store, FileOptions::default());
    let mut buffer = vec![0; object_bytes as usize];
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert!(buffer == content(3, 0..object_bytes));
    assert_eq!((store.gets(), store.body_bytes()), (9, object_bytes));
}

/// Each request breaks off after a half. A fetch of 6 MiB goes on as long as the requests of 64 KiB
/// in its place would. Two tries alone would bring 4.5 MiB.
#[test]
fn long_fetch_is_continued_after_each_break() {
    let store = TestStore::new(InMemory::new());
    let location = path();
    let write = store.store.put(&location, content(3, 0..6 * MIB).into());
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(write).unwrap();
    let faults = Faults { breaks: 1, ..Faults::default() };
    let store = Arc::new(TestStore { faults, ..store });
    let options = FileOptions {
        path: ReadPath::builder().memory(MIB).depth(1),
        part_bytes: 64 * KIB,
        first_bytes: 0,
        ..options()
    };
    let file = opened(&store, options);
    let error = file.read_exact_at(&mut vec![0; 6 * MIB as usize], 0).unwrap_err();
    assert_eq!(reason(&error), DeviceError::Medium);
    assert!(store.body_bytes() >= 6 * MIB - 64 * KIB, "{}", store.body_bytes());
}

#[test]
fn caller_ends_an_opening_that_waits() {
    let latency = Duration::from_secs(60);
    let store = with_object(TestStore { latency, ..TestStore::new(InMemory::new()) });
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    let while_waiting: WhileWaiting = Arc::new(move || {
        *counted.lock().unwrap() += 1;
        *counted.lock().unwrap() < 3
    });
    let options = FileOptions { while_waiting: Some(while_waiting), ..options() };
    let error = open_object(store as Arc<dyn ObjectStore>, &path(), options).map(drop).unwrap_err();
    assert!(matches!(error, OpenObjectError::Ended), "{error}");
    assert_eq!(*calls.lock().unwrap(), 3);
}

/// Each fault of every third get is overcome by a further try.
#[test]
fn bytes_are_right_with_each_fault() {
    let faults = [
        Faults { errors: 3, ..Faults::default() },
        Faults { truncations: 3, ..Faults::default() },
        Faults { extra_bytes: 3, ..Faults::default() },
        Faults { breaks: 3, ..Faults::default() },
    ];
    for faults in faults {
        let store = with_object(TestStore { faults, ..TestStore::new(InMemory::new()) });
        let file = opened(&store, FileOptions { part_bytes: 64 * KIB, ..options() });
        let mut read = Vec::new();
        file.reader().read_to_end(&mut read).unwrap_or_else(|error| panic!("{faults:?}: {error}"));
        assert!(read == content(0, 0..OBJECT_BYTES), "{faults:?}");
        assert!(store.gets() >= 3, "{faults:?} has happened");
    }
}

/// Without retries, the reader gets the kind of the error, and the caller its text.
#[test]
fn error_has_a_kind_and_its_text_is_reported() {
    let faults = [
        (Faults { errors: 1, ..Faults::default() }, DeviceError::Medium, "busy"),
        (Faults { truncations: 1, ..Faults::default() }, DeviceError::Garbled, "ended at byte"),
        (Faults { extra_bytes: 1, ..Faults::default() }, DeviceError::Garbled, "longer"),
    ];
    for (faults, expected, text) in faults {
        let store = with_object(TestStore { faults, ..TestStore::new(InMemory::new()) });
        let texts = Arc::new(Mutex::new(Vec::new()));
        let reported = Arc::clone(&texts);
        let on_error: Arc<dyn Fn(&object_store::Error) + Send + Sync> =
            Arc::new(move |error| reported.lock().unwrap().push(error.to_string()));
        let options =
            FileOptions { first_bytes: 0, retries_max: 0, on_error: Some(on_error), ..options() };
        store.is_faulty.store(false, Ordering::Relaxed);
        let file = opened(&store, options);
        store.is_faulty.store(true, Ordering::Relaxed);
        let error = file.read_exact_at(&mut [0; 100], 5000).unwrap_err();
        assert_eq!(reason(&error), expected);
        assert!(texts.lock().unwrap()[0].contains(text), "{texts:?}");
    }
}

/// A request of 16 pages fails: no page of an object is a bad sector that a search could find. The
/// field `retries_max` counts further requests, of which there are none here.
#[test]
fn failed_request_of_many_pages_is_sent_once() {
    let faults = Faults { errors: 1, ..Faults::default() };
    let store = with_object(TestStore { faults, ..TestStore::new(InMemory::new()) });
    let errors = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&errors);
    let on_error: Arc<dyn Fn(&object_store::Error) + Send + Sync> =
        Arc::new(move |_| *counted.lock().unwrap() += 1);
    let options = FileOptions {
        path: ReadPath::builder().memory(MIB).readahead("none"),
        first_bytes: 0,
        part_bytes: 64 * KIB,
        retries_max: 0,
        on_error: Some(on_error),
        ..FileOptions::default()
    };
    store.is_faulty.store(false, Ordering::Relaxed);
    let file = opened(&store, options);
    store.is_faulty.store(true, Ordering::Relaxed);
    let gets = store.gets();
    let error = file.read_exact_at(&mut vec![0; 64 << 10], 64 * KIB).unwrap_err();
    assert_eq!(reason(&error), DeviceError::Medium);
    assert_eq!((store.gets() - gets, *errors.lock().unwrap()), (1, 1));
}

/// A server sends the whole object for a range. The second chunk at the latest shows that.
#[test]
fn longer_answer_to_the_opening_is_not_collected() {
    let store = with_object(TestStore { is_long: true, ..TestStore::new(InMemory::new()) });
    let file = opened(&store, options());
    assert_eq!(file.len(), OBJECT_BYTES);
    assert!(store.body_bytes() <= 2 * MIB, "{} bytes", store.body_bytes());
}

/// As many first bytes as possible are all bytes, from either end: one request.
#[test]
fn largest_number_of_first_bytes_is_the_whole_object() {
    for name in ["a.bin", "a.parquet"] {
        let (store, location) = (Arc::new(TestStore::new(InMemory::new())), Path::from(name));
        let write = store.store.put(&location, content(0, 0..100_000).into());
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(write).unwrap();
        let options = FileOptions { first_bytes: u64::MAX, ..options() };
        let file = open_object(Arc::clone(&store) as Arc<dyn ObjectStore>, &location, options);
        let mut read = vec![0; 100_000];
        file.unwrap().read_exact_at(&mut read, 0).unwrap();
        assert!(read == content(0, 0..100_000));
        assert_eq!((store.gets(), store.heads()), (1, 0), "{name}");
    }
}

/// Bytes in memory stay readable; a fetch of the new version is an error.
#[test]
fn changed_object_is_stale_and_its_versions_are_not_mixed() {
    for hides_tag in [false, true] {
        let store = TestStore { hides: [hides_tag, false], ..TestStore::new(InMemory::new()) };
        // An hour old, as a version without an ETag must be settled.
        let age = Duration::from_secs(3600);
        let store = with_object(TestStore { age, ..store });
        let file = opened(&store, options());
        let mut buffer = vec![0; 1000];
        file.read_exact_at(&mut buffer, 0).unwrap();
        // The times of two versions differ by a second at least.
        #[expect(clippy::disallowed_methods, reason = "the times of modification are real")]
        std::thread::sleep(Duration::from_millis(1100));
        put(&store, 1);
        file.read_exact_at(&mut buffer, 0).unwrap();
        assert!(buffer == content(0, 0..1000));
        let error = file.read_exact_at(&mut buffer, 2 * MIB).unwrap_err();
        assert_eq!(reason(&error), DeviceError::Stale, "{error}");
        let again = opened(&store, options());
        again.read_exact_at(&mut buffer, 2 * MIB).unwrap();
        assert!(buffer == content(1, 2 * MIB..2 * MIB + 1000));
    }
}

#[test]
fn object_without_a_version_or_without_bytes_is_an_error() {
    let store = with_object(TestStore { hides: [true; 2], ..TestStore::new(InMemory::new()) });
    let error = open_object(store.clone(), &path(), options()).map(drop).unwrap_err();
    assert!(matches!(error, OpenObjectError::NoVersion { .. }), "{error}");
    let missing = Path::from("missing");
    let error = open_object(store, &missing, options()).map(drop).unwrap_err();
    let is_missing = matches!(error, OpenObjectError::Store(object_store::Error::NotFound { .. }));
    assert!(is_missing, "{error}");
}

/// A file over the planned store works too: the requests pass both caches.
#[test]
fn file_over_a_planned_store_returns_the_bytes() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let store = TestStore::new(InMemory::new());
    put(&store, 0);
    let of_runtime = readpath_remote::store::TokioRuntime::new(runtime.handle().clone());
    let planned = ReadpathStore::new(store, support::options(), of_runtime).unwrap();
    let options = FileOptions { runtime: Some(runtime.handle().clone()), ..options() };
    let file = open_object(Arc::new(planned), &path(), options).unwrap();
    let mut read = Vec::new();
    file.reader().read_to_end(&mut read).unwrap();
    assert!(read == content(0, 0..OBJECT_BYTES));
}

/// `File::open` takes a URL once the schemes are registered. A local object stands for all stores:
/// the others need a server.
#[test]
fn file_opens_urls_of_registered_schemes() {
    let name = format!("remote-url-{}", std::process::id());
    let local = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    #[expect(clippy::disallowed_methods, reason = "the object is a local file")]
    std::fs::write(&local, content(3, 0..100_000)).unwrap();
    let url = format!("file://{}", local.display());
    assert!(File::open(&url).is_err(), "no scheme is registered");
    register();
    let mut buffer = [0; 500];
    File::open(&url).unwrap().read_exact_at(&mut buffer, 70_000).unwrap();
    assert!(buffer[..] == content(3, 70_000..70_500));
    std::fs::remove_file(&local).unwrap();
    let error = File::open(&url).map(drop).unwrap_err();
    assert!(error.to_string().contains("not found"), "{error}");
    // The client for S3 of this program has no connection.
    let error = File::open("s3://bucket/key").map(drop).unwrap_err();
    assert!(error.to_string().contains("s3://bucket/key: "), "{error}");
    assert!(error.to_string().contains("HttpConnector"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Other);
    let no_options: [(&str, &str); 0] = [];
    let error = open_url("weights.bin", no_options, options()).map(drop).unwrap_err();
    assert!(matches!(error, OpenObjectError::Url { .. }), "{error}");
}
