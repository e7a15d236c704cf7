//! Transfers in flight whose owner was forgotten (`std::mem::forget`) access neither files opened
//! later nor memory allocated later.

mod support;

use std::future::Future;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use readpath::raw::RawMemory;
use readpath::{BackendKind, RawFile, ReadPath};
use support::*;

const BLOCK: usize = 128 << 10;
const BLOCKS: u64 = 1024;
/// Liveness limit, reached only by a fault.
const LIVENESS: Duration = Duration::from_secs(120);

/// Opens the file for writing under all free descriptor numbers below the highest one in use, and
/// some more.
fn fill_free_descriptors(path: &Path) -> Vec<std::fs::File> {
    (0..32).map(|_| std::fs::File::options().read(true).write(true).open(path).unwrap()).collect()
}

/// Reads the file until `is_right` holds for its bytes; false on timeout.
fn comes_about(path: &Path, is_right: impl Fn(&[u8]) -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if is_right(&std::fs::read(path).unwrap()) {
            return true;
        }
        if begun.elapsed() > LIVENESS {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts writes of a batch, forgets it, drops the file, and opens another file under the same
/// descriptor number.
fn forget_writes(backend: BackendKind) {
    let (ours, theirs) = (TempFile::new(0), TempFile::new(BLOCK * 8));
    std::fs::File::create(&ours.path).unwrap().set_len(BLOCKS * BLOCK as u64).unwrap();
    let content = std::fs::read(&theirs.path).unwrap();
    let file = RawFile::builder().write(true).backend(backend).open(&ours.path).unwrap();
    let mut batch = file.batch(BLOCKS as u32).unwrap();
    for nth in 0..BLOCKS {
        let mut memory = RawMemory::new(BLOCK).unwrap();
        memory.fill(0xa5);
        batch.write(memory, BLOCK, nth * BLOCK as u64, nth).unwrap();
    }
    let _ = batch.wait_for(Duration::ZERO).unwrap();
    std::mem::forget(batch);
    drop(file);
    let mut strangers = fill_free_descriptors(&theirs.path);
    // Each submitted write completes, in its own file.
    let is_whole = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0xa5);
    let is_written = comes_about(&ours.path, is_whole);
    let mut now = Vec::new();
    strangers[0].seek(SeekFrom::Start(0)).unwrap();
    strangers[0].read_to_end(&mut now).unwrap();
    assert!(now == content, "{backend}: {} bytes of another file changed", {
        let changed = now.iter().zip(&content).filter(|(now, before)| now != before).count();
        changed + now.len().abs_diff(content.len())
    });
    // Requests in a queue that only the forgotten owner would enter never start.
    assert!(is_written || backend != BackendKind::Threads, "{backend}: the writes do not end");
}

#[test]
fn forgotten_batch_of_writes_touches_no_file_but_its_own() {
    forget_writes(BackendKind::Threads);
}

/// The kernel's queues keep the file of each submitted request open; threads execute the rest.
#[test]
fn forgotten_batch_over_a_kernel_queue_touches_no_file_but_its_own() {
    for backend in [BackendKind::Ring, BackendKind::Aio] {
        let (ours, theirs) = (TempFile::new(BLOCK * 64), TempFile::new(BLOCK * 64));
        let content = std::fs::read(&theirs.path).unwrap();
        let Ok(file) = RawFile::builder().write(true).backend(backend).open(&ours.path) else {
            eprintln!("skipped: there is no {backend} here");
            continue;
        };
        let mut batch = file.batch(64).unwrap();
        for nth in 0..64 {
            let mut memory = RawMemory::new(BLOCK).unwrap();
            memory.fill(0xa5);
            batch.write(memory, BLOCK, nth * BLOCK as u64, nth).unwrap();
        }
        let _ = batch.wait_for(Duration::ZERO).unwrap();
        std::mem::forget(batch);
        drop(file);
        let strangers = fill_free_descriptors(&theirs.path);
        std::thread::sleep(Duration::from_millis(200));
        let mut now = vec![0; content.len()];
        strangers[0].read_exact_at(&mut now, 0).unwrap();
        assert!(now == content, "{backend}");
    }
}

#[test]
fn forgotten_batch_of_reads_fills_no_memory_but_its_own() {
    for backend in BACKENDS {
        let temp = TempFile::new(BLOCK * 64);
        let file = RawFile::builder().backend(backend).open(&temp.path).unwrap();
        let mut batch = file.batch(64).unwrap();
        for nth in 0..64 {
            let memory = RawMemory::new(BLOCK).unwrap();
            batch.read(memory, BLOCK, nth * BLOCK as u64, nth).unwrap();
        }
        let _ = batch.wait_for(Duration::ZERO).unwrap();
        std::mem::forget(batch);
        drop(file);
        // As large as the forgotten memory, whose addresses it would reuse.
        let fresh: Vec<RawMemory> = (0..64).map(|_| RawMemory::new(BLOCK).unwrap()).collect();
        std::thread::sleep(Duration::from_millis(200));
        assert!(fresh.iter().all(|memory| memory.iter().all(|&byte| byte == 0)), "{backend}");
    }
}

#[test]
fn forgotten_reader_leaves_the_file_usable_and_closes_its_descriptor() {
    for backend in BACKENDS {
        let temp = TempFile::new(BLOCK * 64);
        let content = std::fs::read(&temp.path).unwrap();
        let mut file = RawFile::builder().backend(backend).open(&temp.path).unwrap();
        let mut reader = file.reader(0, u64::MAX).unwrap();
        assert!(reader.next_chunk().unwrap().is_some());
        std::mem::forget(reader);
        let mut all = vec![0; content.len()];
        file.read_exact_at(&mut all, 0).unwrap();
        assert!(all == content, "{backend}");
        let mut reader = file.reader(0, u64::MAX).unwrap();
        assert!(reader.next_chunk().unwrap().is_some());
        std::mem::forget(reader);
        drop(file);
        assert_eq!(descriptors_of(&temp.path), 0, "{backend}");
    }
}

/// Number of this process's descriptors of the file.
fn descriptors_of(path: &Path) -> usize {
    let name = std::fs::canonicalize(path).unwrap();
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter(|one| std::fs::read_link(one.path()).is_ok_and(|to| to == name)).count()
}

/// A leaked guard keeps its bytes after its file and path are dropped, whatever is read meanwhile.
#[test]
fn forgotten_guard_keeps_its_bytes() {
    let temp = TempFile::new(8 << 20);
    let content = std::fs::read(&temp.path).unwrap();
    let path = ReadPath::builder().memory(1 << 20).kernel_cache(false).build().unwrap();
    let file = path.open(&temp.path).unwrap();
    let guard = Box::leak(Box::new(file.page(5 * 4096).unwrap()));
    file.read_exact_at(&mut vec![0; 8 << 20], 0).unwrap();
    assert!(guard[..] == content[5 * 4096..6 * 4096]);
    drop(file);
    drop(path);
    let other = ReadPath::builder().memory(1 << 20).kernel_cache(false).build().unwrap();
    other.open(&temp.path).unwrap().read_exact_at(&mut vec![0; 8 << 20], 0).unwrap();
    assert!(guard[..] == content[5 * 4096..6 * 4096]);
}

/// Batches and futures forgotten with reads in flight: the path continues, in both cache modes.
#[test]
fn forgotten_reads_keep_their_file_open_and_the_path_usable() {
    let own = || ReadPath::builder().memory(4 << 20).kernel_cache(false).build().unwrap();
    let kept = || ReadPath::builder().build().unwrap();
    for path in [own(), kept()] {
        let temp = TempFile::new(8 << 20);
        let content = std::fs::read(&temp.path).unwrap();
        readpath_record::cold::drop_pages(&temp.path).unwrap();
        let file = path.open(&temp.path).unwrap();
        let mut batch = path.batch();
        for nth in 0..8 {
            batch.read(&file, nth * 300_000, 9_000, nth).unwrap();
        }
        batch.start();
        let _ = batch.wait().unwrap().unwrap().bytes().unwrap();
        std::mem::forget(batch);
        let mut context = Context::from_waker(Waker::noop());
        let mut read = Box::pin(file.read_at_async(vec![0; 9_000], 7 << 20));
        let _ = read.as_mut().poll(&mut context);
        std::mem::forget(read);
        drop(file);
        let _strangers = fill_free_descriptors(&temp.path);
        let again = path.open(&temp.path).unwrap();
        let mut all = vec![0; 8 << 20];
        again.read_exact_at(&mut all, 0).unwrap();
        assert!(all == content);
    }
}
