//! Large reads of a source past the cache: their fetches, their bytes, and their ends.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use readpath::source::{Fetch, Source};
use readpath::{Builder, DeviceError, File, ReadError, ReadPath};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Not a whole number of pages.
const FILE_BYTES: u64 = 20 * MIB + 5;
/// Largest fetch through the cache.
const FETCH_BYTES_MAX: u64 = 256 * KIB;

/// A byte of the file: no two neighbouring pages are equal.
fn byte(offset: u64) -> u8 {
    (offset ^ (offset >> 8) ^ (offset >> 16) ^ (offset >> 12).wrapping_mul(7)) as u8
}

fn content(range: Range<u64>) -> Vec<u8> {
    range.map(byte).collect()
}

/// Sends its fetches to the test.
struct Sent(Mutex<Sender<(Range<u64>, Fetch)>>);

impl Source for Sent {
    fn bytes(&self) -> u64 {
        FILE_BYTES
    }

    fn fetch(&self, range: Range<u64>, fetch: Fetch) {
        // At the end of a test nothing receives the last prefetches.
        drop(self.0.lock().unwrap().send((range, fetch)));
    }

    fn fetch_bytes_max(&self) -> u64 {
        FETCH_BYTES_MAX
    }

    fn direct_fetch_bytes_max(&self) -> u64 {
        MIB
    }
}

fn opened(path: Builder) -> (File, Receiver<(Range<u64>, Fetch)>) {
    let (sender, fetches) = channel();
    (path.open_source("object", Arc::new(Sent(Mutex::new(sender)))).unwrap(), fetches)
}

/// A thread that answers each fetch. Returns the ranges once the file is dropped.
fn answer(fetches: Receiver<(Range<u64>, Fetch)>) -> JoinHandle<Vec<Range<u64>>> {
    std::thread::spawn(move || {
        let answered = fetches.iter().map(|(range, mut fetch)| {
            content(range.clone()).chunks(10_000).for_each(|chunk| _ = fetch.fill(chunk));
            fetch.finish();
            range
        });
        answered.collect()
    })
}

/// Sizes of ranges in order of their starts, which must be adjacent.
fn sizes(mut ranges: Vec<Range<u64>>) -> Vec<u64> {
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{ranges:?}");
    ranges.iter().map(|range| range.end - range.start).collect()
}

/// 5 MiB by 8 fetches are 640 KiB each. 18 MiB by 8 would be more than 1 MiB each, the limit.
#[test]
fn read_larger_than_the_memory_has_long_fetches_and_takes_no_memory() {
    for (bytes, expected) in [(5 * MIB, vec![640 * KIB; 8]), (18 * MIB, vec![MIB; 18])] {
        let (file, fetches) = opened(ReadPath::builder().memory(4 * MIB));
        let answered = answer(fetches);
        let mut buffer = vec![0; bytes as usize];
        assert_eq!(file.read_at(&mut buffer, 3).unwrap(), buffer.len());
        assert!(buffer == content(3..3 + bytes));
        let stats = file.read_path().stats();
        assert_eq!((stats.used_memory_bytes, stats.device_bytes), (0, bytes));
        assert_eq!(stats.device_reads, expected.len() as u64);
        assert_eq!((file.stats().bytes, file.stats().cached_bytes), (bytes, 0));
        drop(file);
        assert_eq!(sizes(answered.join().unwrap()), expected);
    }
}

/// The prefetched bytes are fetched once, although the read is the first of the whole file.
#[test]
fn prefetched_file_is_read_through_the_cache() {
    let (file, fetches) = opened(ReadPath::builder().memory(64 * MIB));
    let answered = answer(fetches);
    file.prefetch(0, FILE_BYTES);
    let mut buffer = vec![0; FILE_BYTES as usize];
    assert_eq!(file.read_at(&mut buffer, 0).unwrap() as u64, FILE_BYTES);
    assert!(buffer == content(0..FILE_BYTES));
    // In whole pages.
    assert_eq!(file.read_path().stats().device_bytes, FILE_BYTES.next_multiple_of(4096));
    drop(file);
    assert_eq!(sizes(answered.join().unwrap()).iter().sum::<u64>(), FILE_BYTES);
}

#[test]
fn first_read_of_the_whole_file_is_direct_and_the_second_stays_in_memory() {
    let (file, fetches) = opened(ReadPath::builder().memory(64 * MIB));
    let answered = answer(fetches);
    let expected = content(0..FILE_BYTES);
    let mut buffer = vec![0; FILE_BYTES as usize + 10];
    let mut fetched = Vec::new();
    for _ in 0..3 {
        assert_eq!(file.read_at(&mut buffer, 0).unwrap() as u64, FILE_BYTES);
        assert!(buffer[..FILE_BYTES as usize] == expected);
        buffer.fill(0);
        fetched.push(file.read_path().stats().device_bytes / MIB);
    }
    // The third one finds all bytes in memory.
    assert_eq!(fetched, [20, 40, 40]);
    drop(file);
    let ranges = answered.join().unwrap();
    let (direct, cached) = ranges.split_at(20);
    // 20 MiB and 5 bytes: the last fetch is shorter than a page.
    assert!(sizes(direct.to_vec()).iter().all(|&size| size == MIB || size == 5), "{direct:?}");
    assert!(cached.iter().all(|range| range.end - range.start <= FETCH_BYTES_MAX));
}

/// Bytes of an eighth of the file may be in memory. A header is less.
#[test]
fn read_of_bytes_in_memory_is_not_direct() {
    let (file, fetches) = opened(ReadPath::builder().memory(64 * MIB));
    let answered = answer(fetches);
    let mut buffer = vec![0; FILE_BYTES as usize];
    for chunk in 0..320 {
        file.read_exact_at(&mut buffer[..64 << 10], chunk * 64 * KIB).unwrap();
    }
    assert_eq!(file.read_direct_at(&mut buffer, 0, || true).unwrap(), None);
    // Nor is a small read, of any memory.
    assert_eq!(file.read_direct_at(&mut buffer[..1000], 0, || true).unwrap(), None);
    file.read_exact_at(&mut buffer, 0).unwrap();
    drop(file);
    let fetched: u64 = answered.join().unwrap().iter().map(|range| range.end - range.start).sum();
    assert_eq!(fetched, FILE_BYTES);

    let (file, fetches) = opened(ReadPath::builder().memory(64 * MIB));
    answer(fetches);
    file.read_exact_at(&mut buffer[..8], 0).unwrap();
    let direct = file.read_direct_at(&mut buffer[..FILE_BYTES as usize - 8], 8, || true).unwrap();
    assert_eq!(direct, Some(FILE_BYTES as usize - 8));
}

#[test]
fn depth_limits_the_fetches_in_flight() {
    let (file, fetches) = opened(ReadPath::builder().memory(MIB).depth(2));
    let path = file.read_path().clone();
    let reader = std::thread::spawn(move || {
        let mut buffer = vec![0; 6 * MIB as usize];
        file.read_exact_at(&mut buffer, 0).map(|()| buffer)
    });
    for _ in 0..3 {
        let two: Vec<_> = fetches.iter().take(2).collect();
        assert!(fetches.recv_timeout(Duration::from_millis(20)).is_err(), "a third one");
        assert_eq!(path.stats().in_flight, 2);
        for (range, mut fetch) in two {
            fetch.fill(&content(range));
            fetch.finish();
        }
    }
    assert!(reader.join().unwrap().unwrap() == content(0..6 * MIB));
    assert_eq!((path.stats().in_flight, path.stats().device_bytes), (0, 6 * MIB));
}

/// The fetches that have not ended have no effect on the caller's memory any more.
#[test]
fn error_ends_the_read_and_the_other_fetches() {
    let (file, fetches) = opened(ReadPath::builder().memory(MIB));
    let path = file.read_path().clone();
    let reader = std::thread::spawn(move || {
        let mut buffer = vec![0; 16 * MIB as usize];
        file.read_exact_at(&mut buffer, MIB).unwrap_err()
    });
    let mut all: Vec<_> = fetches.iter().take(8).collect();
    let (range, fetch) = all.remove(7);
    fetch.fail(DeviceError::Refused);
    let error = reader.join().unwrap();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    let error = error.get_ref().and_then(|error| error.downcast_ref::<ReadError>());
    let expected = ReadError::Device { offset: range.start, error: DeviceError::Refused };
    assert_eq!(error, Some(&expected));
    for (_, mut fetch) in all {
        assert!(!fetch.fill(&[1; 100]), "the read has ended");
    }
    assert_eq!(path.stats().in_flight, 0);
}

#[test]
fn caller_ends_a_read_that_waits() {
    let (file, fetches) = opened(ReadPath::builder().memory(MIB));
    let mut buffer = vec![7; 16 * MIB as usize];
    let mut calls = 0;
    let end = file.read_direct_at(&mut buffer, 0, || {
        calls += 1;
        calls < 3
    });
    assert_eq!(end.unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!(file.stats().bytes, 0);
    for (_, mut fetch) in fetches.iter().take(8) {
        assert!(!fetch.fill(&[1; 100]), "the read has ended");
    }
    assert!(buffer.iter().all(|&byte| byte == 7));
}

/// After the first direct read of 17 MiB, a read larger than the memory fails. The next read of
/// 17 MiB goes through the cache all the same: its fetches are short.
#[test]
fn failed_direct_read_leaves_the_first_large_read_counted() {
    let (file, fetches) = opened(ReadPath::builder().memory(18 * MIB));
    let read = |bytes: u64| {
        let file = file.reopen();
        std::thread::spawn(move || file.read_at(&mut vec![0; bytes as usize], 0))
    };
    let first = read(17 * MIB);
    for (range, mut fetch) in fetches.iter().take(17) {
        assert_eq!(range.end - range.start, MIB);
        content(range).chunks(10_000).for_each(|chunk| _ = fetch.fill(chunk));
        fetch.finish();
    }
    assert_eq!(first.join().unwrap().unwrap() as u64, 17 * MIB);
    let larger = read(20 * MIB);
    fetches.recv().unwrap().1.fail(DeviceError::Refused);
    larger.join().unwrap().unwrap_err();
    let second = read(17 * MIB);
    // Fetches of the failed read may come first: it started eight, of which one has failed.
    let range = fetches.iter().nth(7).unwrap().0;
    assert!(range.end - range.start <= FETCH_BYTES_MAX, "{range:?}");
    drop(fetches);
    drop(second.join().unwrap());
}
