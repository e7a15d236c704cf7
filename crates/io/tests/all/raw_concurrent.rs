//! A raw file and a read path over the same file: a read that begins after a raw write has returned
//! sees no older bytes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::*;
use readpath::raw::{RawMemory, RawOpenError};
use readpath::{File, RawFile, ReadPath};

const PAGE: usize = 4096;

fn byte_at(file: &File, offset: u64) -> u8 {
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    byte[0]
}

#[test]
fn overwritten_pages_are_not_served_from_the_cache() {
    for backend in BACKENDS {
        let temp = TempFile::new(0);
        std::fs::write(&temp.path, vec![1; 10 * PAGE]).unwrap();
        let path = own_cache().kernel_cache(false).backend(backend).build().unwrap();
        let file = path.open(&temp.path).unwrap();
        assert_eq!([byte_at(&file, 100), byte_at(&file, 9 * PAGE as u64)], [1, 1]);
        // The page is cached: writes by others are not seen.
        std::fs::write(&temp.path, vec![2; 10 * PAGE]).unwrap();
        assert_eq!(byte_at(&file, 100), 1);
        // A later handle has the new version, with pages of its own.
        let later = path.open(&temp.path).unwrap();
        assert_eq!(byte_at(&later, 100), 2);

        let raw = file.raw(RawFile::builder().write(true).backend(backend)).unwrap();
        raw.write_all_at(&[3; 200], 50).unwrap();
        for handle in [&file, &file.reopen(), &later] {
            assert_eq!([byte_at(handle, 49), byte_at(handle, 250)], [2, 2]);
            assert_eq!([byte_at(handle, 50), byte_at(handle, 249)], [3, 3]);
        }
        // A page that was not overwritten stays cached.
        assert_eq!(byte_at(&file, 9 * PAGE as u64), 1);
    }
}

/// A writer overwrites a range with rising versions while readers read, cache and evict it. A
/// reader never sees a version older than the last one written when it began.
#[test]
fn reads_never_return_bytes_older_than_a_completed_write() {
    const PAGES: usize = 64;
    let versions = std::env::var("READPATH_ROUNDS").map_or(200, |text| text.parse().unwrap());
    for backend in BACKENDS {
        let temp = TempFile::new(0);
        std::fs::write(&temp.path, vec![0; PAGES * PAGE]).unwrap();
        let path = ReadPath::builder()
            .kernel_cache(false)
            .memory(24 * PAGE as u64)
            .backend(backend)
            .build()
            .unwrap();
        let file = path.open(&temp.path).unwrap();
        let raw = file.raw(RawFile::builder().write(true).chunk_bytes(16 << 10)).unwrap();
        let (written, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for reader in 0..3u64 {
                let file = file.reopen();
                let (written, is_over) = (&written, &is_over);
                scope.spawn(move || {
                    let mut state = reader;
                    while !is_over.load(Ordering::Relaxed) {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let page = (state >> 33) % PAGES as u64;
                        let known = written.load(Ordering::Acquire);
                        let mut found = [0; 8];
                        file.read_exact_at(&mut found, page * PAGE as u64).unwrap();
                        let found = u64::from_ne_bytes(found);
                        assert!(found >= known, "page {page}: {found}, {known} was written");
                    }
                });
            }
            let mut memory = RawMemory::new(PAGES * PAGE).unwrap();
            for version in 1..=versions {
                for page in memory.chunks_exact_mut(PAGE) {
                    page[..8].copy_from_slice(&u64::to_ne_bytes(version));
                }
                raw.write_all_at(&memory, 0).unwrap();
                written.store(version, Ordering::Release);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        // Prefetched pages may still be in flight; later readers process them.
        let begun = Instant::now();
        for page in (0..PAGES as u64).cycle() {
            if path.stats().in_flight == 0 {
                break;
            }
            byte_at(&file, page * PAGE as u64);
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", path.stats());
        }
    }
}

#[test]
fn replaced_file_of_the_same_name_is_refused() {
    let temp = TempFile::new(PAGE);
    let file = own_cache().kernel_cache(false).build().unwrap().open(&temp.path).unwrap();
    let other = TempFile::new(PAGE);
    std::fs::rename(&other.path, &temp.path).unwrap();
    let error = file.raw(RawFile::builder()).err().unwrap();
    assert_eq!(error, RawOpenError::Replaced { path: temp.path.clone() });
    assert!(error.to_string().ends_with("open or revalidate the cached one first"), "{error}");
}
