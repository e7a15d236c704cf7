//! Files of a source: every interface returns the source's bytes, whatever the order and the size
//! of the arrivals; errors reach the readers; a dropped file uses no memory any more.

use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use readpath::raw::RawOpenError;
use readpath::source::{Fetch, Source};
use readpath::{DeviceError, File, PageCache, RawFile, ReadError, ReadPath};

use crate::support::TempFile;

/// Not a whole number of pages.
const FILE_BYTES: u64 = 3_000_001;
const FETCH_BYTES_MAX: u64 = 256 << 10;

/// A byte of the file: no two neighbouring pages are equal.
fn byte(offset: u64) -> u8 {
    (offset ^ (offset >> 8) ^ (offset >> 16) ^ (offset >> 12).wrapping_mul(7)) as u8
}

fn content(range: Range<u64>) -> Vec<u8> {
    range.map(byte).collect()
}

/// Sends its fetches to the test.
struct Sent {
    fetches: Mutex<Sender<(Range<u64>, Fetch)>>,
}

impl Source for Sent {
    fn bytes(&self) -> u64 {
        FILE_BYTES
    }

    fn fetch(&self, range: Range<u64>, fetch: Fetch) {
        let sender = self.fetches.lock().unwrap();
        // At the end of a test nothing receives the last prefetches.
        drop(sender.send((range, fetch)));
    }

    fn fetch_bytes_max(&self) -> u64 {
        FETCH_BYTES_MAX
    }
}

fn opened(memory: u64) -> (File, Receiver<(Range<u64>, Fetch)>) {
    let (sender, fetches) = channel();
    let source = Arc::new(Sent { fetches: Mutex::new(sender) });
    let path = ReadPath::builder().memory(memory);
    (path.open_source("object", source).unwrap(), fetches)
}

/// Counters of [`answer`].
#[derive(Default)]
struct Answered {
    fetches: AtomicU64,
    bytes: AtomicU64,
    /// The fetches fail while it is set.
    is_down: AtomicBool,
}

/// A thread that answers up to four waiting fetches at a time, the latest one first, in chunks.
fn answer(fetches: Receiver<(Range<u64>, Fetch)>) -> Arc<Answered> {
    let answered = Arc::new(Answered::default());
    let counters = Arc::clone(&answered);
    std::thread::spawn(move || {
        while let Ok(first) = fetches.recv() {
            let mut waiting = vec![first];
            waiting.extend(fetches.try_iter().take(3));
            for (range, mut fetch) in waiting.into_iter().rev() {
                assert!(range.start < range.end && range.end <= FILE_BYTES, "{range:?}");
                assert_eq!(fetch.missing_bytes(), range.end - range.start);
                assert!(fetch.missing_bytes() <= FETCH_BYTES_MAX);
                counters.fetches.fetch_add(1, Ordering::Relaxed);
                counters.bytes.fetch_add(fetch.missing_bytes(), Ordering::Relaxed);
                if counters.is_down.load(Ordering::Relaxed) {
                    fetch.fail(DeviceError::Refused);
                    continue;
                }
                // A transfer that begins again, as after a wrong answer.
                fetch.fill(&vec![0; (range.end - range.start) as usize / 2]);
                fetch.restart();
                for chunk in content(range).chunks(10_000) {
                    assert!(fetch.fill(chunk) || fetch.missing_bytes() < FETCH_BYTES_MAX);
                }
                fetch.finish();
            }
        }
    });
    answered
}

/// An access by one of the interfaces.
#[derive(Clone, Debug)]
enum Access {
    Read(u64, usize),
    Batch(Vec<(u64, u64)>),
    Future(u64, usize),
    Reader(u64, usize),
}

fn accesses() -> impl Strategy<Value = Vec<Access>> {
    let place = || 0..FILE_BYTES + 10;
    let bytes = || prop_oneof![1usize..5_000, 1usize..600_000];
    let in_batch = prop::collection::vec((place(), 0..20_000_u64), 1..20);
    let access = prop_oneof![
        (place(), bytes()).prop_map(|(offset, bytes)| Access::Read(offset, bytes)),
        in_batch.prop_map(Access::Batch),
        (place(), bytes()).prop_map(|(offset, bytes)| Access::Future(offset, bytes)),
        (place(), bytes()).prop_map(|(offset, bytes)| Access::Reader(offset, bytes)),
    ];
    prop::collection::vec(access, 1..20)
}

/// The bytes of the file from an offset on.
fn expected(offset: u64, bytes: u64) -> Vec<u8> {
    content(offset.min(FILE_BYTES)..(offset + bytes).min(FILE_BYTES))
}

fn check(file: &File, access: Access) {
    match access {
        Access::Read(offset, bytes) => {
            let mut buffer = vec![0; bytes];
            let count = file.read_at(&mut buffer, offset).unwrap();
            assert!(buffer[..count] == expected(offset, bytes as u64));
        }
        Access::Batch(reads) => {
            let mut batch = file.read_path().batch();
            for (ticket, &(offset, bytes)) in reads.iter().enumerate() {
                batch.read(file, offset, bytes, ticket as u64).unwrap();
            }
            let mut count = 0;
            while let Some(read) = batch.wait().unwrap() {
                let (offset, bytes) = reads[read.ticket() as usize];
                assert!(read.slices().unwrap().flatten().eq(&expected(offset, bytes)));
                count += 1;
            }
            assert_eq!(count, reads.len());
        }
        Access::Future(offset, bytes) => {
            let future = file.read_at_async(vec![0; bytes], offset);
            let (count, buffer) = pollster::block_on(future);
            assert!(buffer[..count.unwrap()] == expected(offset, bytes as u64));
        }
        Access::Reader(offset, bytes) => {
            let mut reader = file.reader();
            reader.seek(SeekFrom::Start(offset)).unwrap();
            let mut read = Vec::new();
            reader.take(bytes as u64).read_to_end(&mut read).unwrap();
            assert!(read == expected(offset, bytes as u64));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    /// Memory for a third of the file.
    #[test]
    fn every_interface_returns_the_bytes_of_the_source(accesses in accesses()) {
        let (file, fetches) = opened(1 << 20);
        answer(fetches);
        for access in accesses {
            check(&file, access);
        }
    }
}

/// The file has 2,930 KiB, so 12 fetches of up to 256 KiB are the least. The first ones are small.
#[test]
fn sequential_reads_are_prefetched_and_then_cached() {
    let (file, fetches) = opened(8 << 20);
    let answered = answer(fetches);
    let mut buffer = vec![0; 10_000];
    for _ in 0..2 {
        for offset in (0..FILE_BYTES).step_by(10_000) {
            let count = file.read_at(&mut buffer, offset).unwrap();
            assert!(buffer[..count] == expected(offset, 10_000));
        }
    }
    let count = answered.fetches.load(Ordering::Relaxed);
    assert!((12..=20).contains(&count), "{count} fetches of 301 reads");
    assert_eq!(answered.bytes.load(Ordering::Relaxed), FILE_BYTES);
}

#[test]
fn failed_fetch_is_an_error_of_the_read_and_the_next_read_tries_again() {
    let (file, fetches) = opened(1 << 20);
    let answered = answer(fetches);
    answered.is_down.store(true, Ordering::Relaxed);
    let mut buffer = [0; 100];
    let error = file.read_exact_at(&mut buffer, 10_000).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
    answered.is_down.store(false, Ordering::Relaxed);
    file.read_exact_at(&mut buffer, 10_000).unwrap();
    assert_eq!(buffer[..], expected(10_000, 100));
}

/// Each wrong end of a fetch, with the error of the read.
#[test]
fn fetch_without_all_bytes_is_an_error() {
    type End = fn(Fetch);
    let ends: [(End, DeviceError); 2] = [
        (drop, DeviceError::Gone),
        (
            |mut fetch| {
                fetch.fill(&[1; 100]);
                fetch.finish();
            },
            DeviceError::Garbled,
        ),
    ];
    for (end, expected) in ends {
        let (file, fetches) = opened(1 << 20);
        let reader = std::thread::spawn(move || file.read_exact_at(&mut [0; 4096], 0).unwrap_err());
        // The read is tried again. The reader's file then closes the channel.
        fetches.iter().for_each(|(_, fetch)| end(fetch));
        let error = reader.join().unwrap();
        let error = error.get_ref().and_then(|error| error.downcast_ref::<ReadError>());
        assert!(
            matches!(error, Some(ReadError::Device { error, .. }) if *error == expected),
            "{error:?}"
        );
    }
}

/// The fetch of an abandoned read fills the frames of the file until the file is dropped. After
/// that its bytes go nowhere.
#[test]
fn fetch_of_a_dropped_file_has_no_effect() {
    let (file, fetches) = opened(1 << 20);
    let mut batch = file.read_path().batch();
    batch.read(&file, 0, 4096, 0).unwrap();
    batch.start();
    let (_, mut fetch) = fetches.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(fetch.fill(&[7; 10]), "the file is open");
    drop(batch);
    drop(file);
    assert!(!fetch.fill(&[7; 10]), "the file is closed");
    fetch.finish();
}

#[test]
fn kernel_page_cache_is_an_error_of_the_options() {
    let (sender, _) = channel();
    let source = Arc::new(Sent { fetches: Mutex::new(sender) });
    let path = ReadPath::builder().page_cache(PageCache::Kernel);
    let error = path.open_source("object", source).map(drop).unwrap_err();
    assert!(error.to_string().contains("no files of a source"), "{error}");
}

/// A local file of the same name is another file.
#[test]
fn source_has_no_raw_file() {
    let (sender, _) = channel();
    let source = Arc::new(Sent { fetches: Mutex::new(sender) });
    let temp = TempFile::new(4096);
    let file = ReadPath::builder().open_source(&temp.path, source).unwrap();
    let error = file.raw(RawFile::builder()).map(drop).unwrap_err();
    assert!(matches!(error, RawOpenError::Remote { .. }), "{error}");
}

#[test]
fn source_never_changes() {
    let (mut file, _) = opened(1 << 20);
    assert!(!file.revalidate().unwrap());
}

/// A source with these limits, which records its longest fetch.
struct Limited {
    fetch_bytes_max: u64,
    direct_fetch_bytes_max: u64,
    content: Arc<Vec<u8>>,
    /// Length of the longest fetch.
    longest_bytes: AtomicU64,
}

impl Source for Limited {
    fn bytes(&self) -> u64 {
        self.content.len() as u64
    }

    fn fetch(&self, range: Range<u64>, mut fetch: Fetch) {
        self.longest_bytes.fetch_max(range.end - range.start, Ordering::Relaxed);
        fetch.fill(&self.content[range.start as usize..range.end as usize]);
        fetch.finish();
    }

    fn fetch_bytes_max(&self) -> u64 {
        self.fetch_bytes_max
    }

    fn direct_fetch_bytes_max(&self) -> u64 {
        self.direct_fetch_bytes_max
    }
}

/// A read of the whole file bypasses the cache, in 8 fetches or more. An eighth of the file is
/// 7,500,001 bytes, which are 1,832 pages. 5,000,000 bytes have 1,220 whole pages.
#[test]
fn direct_fetches_stay_within_the_limits_of_the_source() {
    let cases = [
        (u64::MAX, u64::MAX, 1_832 * 4096),
        (u64::MAX, 5_000_000, 1_220 * 4096),
        (FETCH_BYTES_MAX, 5_000_000, 1_220 * 4096),
        (FETCH_BYTES_MAX, u64::MAX - 1, 1_832 * 4096),
        (1, 1_000_000, 244 * 4096),
        (0, 0, 4096),
    ];
    let content = Arc::new(crate::support::content(60_000_001));
    for (fetch_bytes_max, direct_fetch_bytes_max, longest_bytes) in cases {
        let source = Arc::new(Limited {
            fetch_bytes_max,
            direct_fetch_bytes_max,
            content: Arc::clone(&content),
            longest_bytes: AtomicU64::new(0),
        });
        let path = ReadPath::builder().memory(1 << 20);
        let file = path.open_source("object", Arc::clone(&source) as Arc<dyn Source>).unwrap();
        let mut buffer = vec![0; content.len()];
        let count = file.read_direct_at(&mut buffer, 0, || true).unwrap();
        assert_eq!(count, Some(buffer.len()));
        assert!(buffer == *content);
        let longest = source.longest_bytes.load(Ordering::Relaxed);
        assert_eq!(longest, longest_bytes, "{fetch_bytes_max}, {direct_fetch_bytes_max}");
    }
}
