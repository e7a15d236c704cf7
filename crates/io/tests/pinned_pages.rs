//! Guards near their limit, with concurrent users of memory on other threads: reads, prefetch,
//! batches and invalidation. A read always finds frames, a guard is granted or refused with a named
//! error, and every byte is the file's.

mod support;

use std::collections::VecDeque;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use readpath::{File, PageGuard, ReadError, ReadPath};
use support::TempFile;

const PAGE: u64 = 4096;
/// Number of consecutive pages in a run.
const RUN: u64 = 64;
/// Distance of stamped pages.
const STAMPED: u64 = 61;

/// Duration per memory size: a second, or `READPATH_SECONDS`.
fn time_each() -> Duration {
    let seconds = std::env::var("READPATH_SECONDS").map_or(1, |text| text.parse().unwrap());
    Duration::from_secs(seconds)
}

/// A sparse file of `pages` pages, whose stamped pages begin with their number.
fn stamped(pages: u64) -> TempFile {
    let temp = TempFile::in_directory(Path::new(env!("CARGO_TARGET_TMPDIR")), 0);
    let file = std::fs::File::create(&temp.path).unwrap();
    file.set_len(pages * PAGE).unwrap();
    // The others are holes and read as zeros.
    for page in (0..pages).step_by(STAMPED as usize) {
        file.write_all_at(&(page + 1).to_le_bytes(), page * PAGE).unwrap();
    }
    temp
}

fn check(bytes: &[u8], page: u64) {
    let stamp = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(stamp, if page.is_multiple_of(STAMPED) { page + 1 } else { 0 }, "page {page}");
}

fn next(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    (*state >> 33) % below
}

/// Pins as many pages as allowed and reads pinned pages again, so that other memory is reused
/// meanwhile. Returns the number of refusals.
fn hold(file: &File, pages: u64, end: Instant, mut state: u64) -> u64 {
    let mut guards: VecDeque<(u64, PageGuard)> = VecDeque::new();
    let mut refused = 0;
    let mut page = 0;
    while Instant::now() < end {
        page += 1;
        if page % RUN == 0 || page >= pages {
            page = next(&mut state, pages / RUN) * RUN;
            file.prefetch(page * PAGE, RUN * PAGE);
        }
        match file.page(page * PAGE) {
            Ok(guard) => {
                check(&guard, page);
                guards.push_back((page, guard));
            }
            Err(error) => {
                let inner = error.get_ref().unwrap().downcast_ref::<ReadError>().unwrap();
                assert!(matches!(inner, ReadError::TooManyPinned { .. }), "{inner}");
                refused += 1;
                guards.pop_front();
            }
        }
        if let Some((page, guard)) = guards.get(next(&mut state, pages) as usize) {
            check(guard, *page);
        }
        // Reaches the limit, and sometimes releases most guards.
        if next(&mut state, 4 * pages) == 0 {
            let keep = next(&mut state, 1 + guards.len() as u64) as usize;
            guards.truncate(keep);
        }
    }
    refused
}

fn read(path: &ReadPath, file: &File, pages: u64, end: Instant, mut state: u64) {
    let mut buffer = vec![0; 64 * PAGE as usize];
    let mut batch = path.batch();
    while Instant::now() < end {
        let count = 1 + next(&mut state, 16);
        let page = next(&mut state, pages - count);
        match next(&mut state, 8) {
            0 => file.prefetch(page * PAGE, count * PAGE),
            // More than the memory holds.
            1 => file.prefetch(page * PAGE, pages * PAGE),
            2 => file.invalidate(page * PAGE, PAGE),
            3 => {
                batch.read(file, page * PAGE, PAGE, page).unwrap();
                while batch.len() > 4 {
                    let read = batch.wait().unwrap().unwrap();
                    check(read.slices().unwrap().next().unwrap(), read.ticket());
                }
            }
            _ => {
                // Twice, so that the pages become active.
                for _ in 0..2 {
                    let buffer = &mut buffer[..(count * PAGE) as usize];
                    file.read_exact_at(buffer, page * PAGE).unwrap();
                    for (at, bytes) in buffer.chunks(PAGE as usize).enumerate() {
                        check(bytes, page + at as u64);
                    }
                }
            }
        }
    }
}

fn stress(memory: u64, holders: u64, readers: u64) {
    let pages = 2 * memory / PAGE;
    let temp = stamped(pages);
    let path = ReadPath::builder().kernel_cache(false).memory(memory).build().unwrap();
    let file = path.open(&temp.path).unwrap();
    let end = Instant::now() + time_each();
    std::thread::scope(|scope| {
        for seed in 0..holders {
            let file = file.clone();
            scope.spawn(move || hold(&file, pages, end, seed + 1));
        }
        for seed in 0..readers {
            let (path, file) = (path.clone(), file.clone());
            scope.spawn(move || read(&path, &file, pages, end, seed + 100));
        }
    });
    // All guards are dropped: as many pages can be pinned as at the start.
    let held: Vec<PageGuard> =
        (0..memory / PAGE / 4).map(|page| file.page(page * PAGE).unwrap()).collect();
    assert!(file.page(0).is_err());
    drop(held);
}

#[test]
fn guards_near_their_limit_leave_reads_their_memory() {
    for memory in [1 << 20, 2 << 20, 8 << 20] {
        stress(memory, 1, 1);
        stress(memory, 2, 3);
    }
}

#[test]
fn guards_near_their_limit_leave_reads_their_memory_in_256_mib() {
    stress(256 << 20, 3, 3);
}
