//! Abandoned reads, handles dropped during reads, and pages pinned for long: none of them takes
//! memory or bytes from later readers.

mod support;

use readpath::{BackendKind, ReadPath};
use support::*;

const FILE_BYTES: usize = 1 << 20;
const MEMORY_BYTES: u64 = 256 << 10;

fn path() -> ReadPath {
    ReadPath::builder().kernel_cache(false).memory(MEMORY_BYTES).readahead("none").build().unwrap()
}

/// A dropped batch leaves reads in flight, which release their memory on completion. The next
/// batch, in the same slot, gets only its own reads.
#[test]
fn dropped_batch_delivers_nothing_to_the_next_batch() {
    let temp = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&temp.path).unwrap();
    let path = path();
    let file = path.open(&temp.path).unwrap();
    for round in 0..40u64 {
        let mut left = path.batch();
        for nth in 0..8 {
            left.read(&file, (round * 8 + nth) % 15 * 65_536, 16 << 10, 1000 + nth).unwrap();
        }
        drop(left);
        let mut batch = path.batch();
        let place = round * 7 % 100 * 4096 + 5;
        batch.read(&file, place, 5000, round).unwrap();
        let read = batch.wait().unwrap().expect("one is under way");
        assert_eq!(read.ticket(), round);
        let mut bytes = [0; 5000];
        assert_eq!(read.copy_to(&mut bytes).unwrap(), 5000);
        assert!(bytes[..] == content[place as usize..][..5000]);
        assert!(batch.wait().unwrap().is_none());
    }
    // All memory is available for reads of half of it each.
    let mut all = vec![0; FILE_BYTES];
    file.read_exact_at(&mut all, 0).unwrap();
    assert!(all == content);
}

/// Pages pinned by idle batches are bounded: a read of the largest size need not wait for them.
#[test]
fn idle_batch_pins_no_memory_needed_by_other_reads() {
    let temp = TempFile::new(FILE_BYTES);
    let path = path();
    let file = path.open(&temp.path).unwrap();
    for _ in 0..5 {
        let mut batch = path.batch();
        // Reads have 192 KiB of the memory; these ten pin 160 KiB on completion.
        for nth in 0..10u64 {
            batch.read(&file, nth * 16_384, 16_384, nth).unwrap();
        }
        batch.start();
        for nth in 0.. {
            if path.stats().in_flight == 0 {
                break;
            }
            file.read_exact_at(&mut [0], (512 << 10) + nth % 8 * 4096).unwrap();
        }
        assert_eq!(batch.wait().unwrap().expect("ten are under way").bytes().unwrap(), 16_384);
        file.read_exact_at(&mut vec![0; 96 << 10], 768 << 10).unwrap();
        let mut left = 9;
        while batch.wait().unwrap().is_some() {
            left -= 1;
        }
        assert_eq!(left, 0);
    }
}

/// Guards may pin a quarter, 64 KiB. A read takes half of the rest at a time: 96, 96 and 64 KiB.
#[test]
fn read_as_large_as_memory_is_split_into_several_requests() {
    let temp = TempFile::new(FILE_BYTES);
    readpath_record::cold::drop_pages(&temp.path).unwrap();
    let path = path();
    let file = path.open(&temp.path).unwrap();
    file.read_exact_at(&mut vec![0; MEMORY_BYTES as usize], 0).unwrap();
    assert_eq!(path.stats().device_reads, 3);
}

/// The file is closed when the last of its reads has ended, after its handles.
#[test]
fn handle_may_be_dropped_during_a_read() {
    let temp = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&temp.path).unwrap();
    let path = path();
    let is_open = || {
        let name = std::fs::canonicalize(&temp.path).unwrap();
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
        descriptors.flatten().any(|one| std::fs::read_link(one.path()).is_ok_and(|to| to == name))
    };
    for _ in 0..10 {
        let mut batch = path.batch();
        let file = path.open(&temp.path).unwrap();
        batch.read(&file, 70_000, 3000, 0).unwrap();
        batch.start();
        drop(file);
        let mut bytes = [0; 3000];
        batch.wait().unwrap().expect("one is under way").copy_to(&mut bytes).unwrap();
        assert!(bytes[..] == content[70_000..73_000]);
        assert!(is_open(), "until the read is given back");
        drop(batch);
        assert!(!is_open());
    }
}

/// The maximum number of abandoned reads blocks the next reader only until the device has answered
/// some of them.
#[test]
fn abandoned_reads_block_new_reads_only_briefly() {
    let temp = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&temp.path).unwrap();
    for backend in [BackendKind::Aio, BackendKind::Ring, BackendKind::Threads] {
        let path = ReadPath::builder().memory(MEMORY_BYTES).readahead("none").backend(backend);
        let path = path.build().unwrap();
        let file = path.open(&temp.path).unwrap();
        let mut left = path.batch();
        for nth in 0..70_000 {
            left.read(&file, nth % 200 * 4096, 10, nth).unwrap();
        }
        drop(left);
        let mut bytes = [0; 100];
        let is_read = (0..2_000).any(|_| match file.read_exact_at(&mut bytes, 1_000_000) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy);
                std::thread::sleep(std::time::Duration::from_millis(1));
                false
            }
        });
        assert!(is_read && bytes[..] == content[1_000_000..][..100], "{backend:?}");
    }
}
