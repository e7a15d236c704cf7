//! Allocations of a path depend on its memory size, not on file lengths or offsets. Counted by the
//! test's own allocator.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use readpath::raw::RawFile;
use readpath::{Advice, BuildError, Mapping, OpenError, PagerError, ReadPath};
use support::TempFile;

/// Bytes allocated now, and their maximum since `MOST` was last reset.
static NOW: AtomicI64 = AtomicI64::new(0);
static MOST: AtomicI64 = AtomicI64::new(0);

struct Counting;

fn count(bytes: i64) {
    let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
    MOST.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: passes all calls to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Held by the running test, since concurrent allocations would be counted too.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

const PAGE: u64 = 4096;
const MEMORY: u64 = 16 << 20;

/// A sparse file in a memory file system, which allows large lengths.
fn sparse(bytes: u64) -> Option<TempFile> {
    let directory = Path::new("/dev/shm");
    let temp = directory.is_dir().then(|| TempFile::in_directory(directory, 0))?;
    match File::options().write(true).open(&temp.path).unwrap().set_len(bytes) {
        Ok(()) => Some(temp),
        Err(error) => {
            eprintln!("skipped: no file of {bytes} bytes here: {error}");
            None
        }
    }
}

/// Largest allocation while a path of 16 MiB reads a page at each of `offsets`, then gets hints for
/// the whole file and is closed.
fn allocated(temp: &TempFile, offsets: impl Iterator<Item = u64>) -> i64 {
    let mut page = vec![1; PAGE as usize];
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let path = ReadPath::builder().memory(MEMORY).build().unwrap();
    let file = path.open(&temp.path).unwrap();
    for offset in offsets {
        file.read_exact_at(&mut page, offset).unwrap();
        assert!(page.iter().all(|&byte| byte == 0));
    }
    file.advise(Advice::WillNeed);
    file.advise(Advice::DontNeed);
    file.invalidate(0, u64::MAX);
    drop((file, path));
    MOST.load(Ordering::Relaxed) - before
}

#[test]
fn metadata_is_bounded_by_the_memory_and_not_by_offsets() {
    let _turn = turn();
    let bytes = 512u64 << 40;
    let (Some(temp), Some(small)) = (sparse(bytes), sparse(64 << 20)) else { return };
    const READS: u64 = 6_000;
    let dense = allocated(&small, (0..READS).map(|at| at * PAGE));
    let near = allocated(&temp, (0..READS).map(|at| at * (2 << 20)));
    let far =
        allocated(&temp, (0..READS).map(|at| bytes - PAGE - at * (bytes / READS) / PAGE * PAGE));
    println!("{dense} bytes dense, {near} 2 MiB apart, {far} over 512 TiB");
    // Limit documented by `Builder::memory`: 160 bytes per page and 1.3 MiB.
    let promised = (MEMORY / PAGE * 160 + (1 << 20) + (310 << 10)) as i64;
    assert!(dense <= promised && near <= promised && far <= promised, "{promised} promised");
}

#[test]
fn files_beyond_4_pib_are_refused_by_name() {
    let _turn = turn();
    let most = 1u64 << 52;
    let Some(temp) = sparse(1 << 60) else { return };
    let too_large = |error: &OpenError| {
        matches!(error, OpenError::TooLarge { bytes, bytes_max, .. }
            if (*bytes, *bytes_max) == (1 << 60, most))
    };
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let path = ReadPath::builder().memory(MEMORY).build().unwrap();
    let error = path.open(&temp.path).err().unwrap();
    assert!(too_large(&error), "{error}");
    assert!(error.to_string().contains("4 PiB"), "{error}");
    let error = RawFile::open(&temp.path).err().unwrap().to_string();
    assert!(error.contains("4 PiB"), "{error}");
    // SAFETY: it is never opened.
    let error = unsafe { Mapping::builder().open(&temp.path) }.err().unwrap().to_string();
    assert!(error.contains("4 PiB"), "{error}");
    drop(path);
    assert!(MOST.load(Ordering::Relaxed) - before < 8 << 20);

    // The largest supported file is read at both ends, next to another file: each returns its own
    // bytes.
    File::options().write(true).open(&temp.path).unwrap().set_len(most).unwrap();
    let other = TempFile::new(1 << 20);
    let path = ReadPath::builder().memory(MEMORY).build().unwrap();
    let files = [&temp, &other].map(|temp| path.open(&temp.path).unwrap());
    let (mut last, mut first) = (vec![1; PAGE as usize], vec![1; PAGE as usize]);
    files[0].read_exact_at(&mut last, most - PAGE).unwrap();
    files[1].read_exact_at(&mut first, 0).unwrap();
    assert!(last.iter().all(|&byte| byte == 0) && first == support::content(PAGE as usize));
}

/// The tables of that much memory take hundreds of GiB; without room for them the result is an
/// error.
#[test]
fn memory_size_beyond_the_machine_is_an_error() {
    let _turn = turn();
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = meminfo.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok());
    if total.is_none_or(|kib| kib > 256 << 20) {
        return eprintln!("skipped: this machine might have it");
    }
    let no_path = ReadPath::builder().kernel_cache(false).memory(15 << 40).build().err().unwrap();
    assert!(matches!(no_path, BuildError::Memory(_)), "{no_path}");
    assert!(no_path.to_string().contains("ask for less memory"), "{no_path}");
    let file = TempFile::new(0);
    let long = 8 << 40;
    if File::options().write(true).open(&file.path).unwrap().set_len(long).is_err() {
        return eprintln!("skipped: the file system has no files of 8 TiB");
    }
    let builder = Mapping::builder().kernel_cache(false).memory(long);
    // SAFETY: the file does not change.
    if let Err(no_mapping) = unsafe { builder.open(&file.path) } {
        assert!(matches!(no_mapping, PagerError::Metadata { .. }), "{no_mapping}");
    }
}
