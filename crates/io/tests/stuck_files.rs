//! A file with stalled reads delays neither another file of its path nor completed reads of the
//! same file.

#[path = "support/stuck.rs"]
mod stuck;
mod support;

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use readpath::pager::LoadError;
use readpath::{Batch, File, Mapping, ReadPath};
use readpath_core::machine::ReadError;
use readpath_core::request::DeviceError;
use readpath_eval::mapping::PlainMapping;
use stuck::{BYTES, Stuck, UNMAPPED, byte};
use support::*;

/// Liveness limit, reached only by a fault. The stuck file is released after it.
const LIVENESS: Duration = Duration::from_secs(60);
const READ: usize = 9_000;

/// Runs `act` on its own thread while the file is stuck; fails if it does not end in time.
fn ends_while_stuck<T: Send + 'static>(
    stuck: &Stuck,
    act: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (ended, has_ended) = channel();
    let thread = std::thread::spawn(move || {
        let result = act();
        let _ = ended.send(());
        result
    });
    let is_ended = has_ended.recv_timeout(LIVENESS).is_ok();
    if !is_ended {
        stuck.release();
    }
    let result = thread.join().unwrap();
    assert!(is_ended, "it ends only when the stuck file is let go");
    result
}

type Read = Pin<Box<dyn Future<Output = (std::io::Result<usize>, Vec<u8>)> + Send>>;

/// Starts a read that stays pending.
fn waiting(file: &File, offset: u64) -> Read {
    let mut read: Read = Box::pin(file.read_at_async(vec![0; READ], offset));
    let mut context = Context::from_waker(Waker::noop());
    assert!(read.as_mut().poll(&mut context).is_pending());
    read
}

fn read_async(path: &ReadPath, name: &Path, offset: u64) -> Vec<u8> {
    let file = path.open(name).unwrap();
    let (bytes, buffer) = pollster::block_on(file.read_at_async(vec![0; READ], offset));
    assert_eq!(bytes.unwrap(), READ);
    buffer
}

fn is_right(bytes: &[u8], offset: u64) -> bool {
    bytes.iter().zip(offset..).all(|(&found, at)| found == byte(at))
}

/// Reads a cold file on a disk as futures, several times.
fn read_others(path: ReadPath) {
    let temp = TempFile::new(1 << 20);
    let content = std::fs::read(&temp.path).unwrap();
    for round in 0..10 {
        readpath_record::cold::drop_pages(&temp.path).unwrap();
        let at = round * 77_777;
        assert!(read_async(&path, &temp.path, at as u64) == content[at..at + READ]);
    }
}

#[test]
fn future_of_a_fast_file_ends_while_another_file_is_stuck() {
    let Some(stuck) = Stuck::mount("future") else { return };
    let path = ReadPath::builder().build().unwrap();
    let file = path.open(stuck.name(0)).unwrap();
    stuck.stick(0, 0);
    let read = waiting(&file, 100_000);
    let others = path.clone();
    ends_while_stuck(&stuck, move || read_others(others));
    // Also on the same mount, and after the stuck future was dropped or never polled again.
    drop(waiting(&file, 5 << 20));
    std::mem::forget(waiting(&file, 6 << 20));
    let (others, name) = (path.clone(), stuck.name(1));
    let bytes = ends_while_stuck(&stuck, move || {
        read_others(others.clone());
        read_async(&others, &name, 300_000)
    });
    assert!(is_right(&bytes, 300_000));
    assert!(stuck.waiting() > 0, "nothing was stuck");
    stuck.release();
    let (bytes, buffer) = pollster::block_on(read);
    assert_eq!(bytes.unwrap(), READ);
    assert!(is_right(&buffer, 100_000));
}

/// Hundreds of reads of one file, and tens of stuck files.
#[test]
fn future_of_a_fast_file_ends_while_many_reads_are_stuck() {
    let Some(stuck) = Stuck::mount("many") else { return };
    let path = ReadPath::builder().build().unwrap();
    let one = path.open(stuck.name(0)).unwrap();
    stuck.stick(0, 0);
    let mut reads: Vec<Read> = (0..300).map(|nth| waiting(&one, nth * 50_000)).collect();
    for number in 1..40 {
        let file = path.open(stuck.name(number)).unwrap();
        stuck.stick(number, 0);
        reads.extend((0..4).map(|nth| waiting(&file, nth << 20)));
    }
    let (others, name) = (path.clone(), stuck.name(50));
    let bytes = ends_while_stuck(&stuck, move || {
        read_others(others.clone());
        read_async(&others, &name, 300_000)
    });
    assert!(is_right(&bytes, 300_000));
    stuck.release();
    reads.truncate(200);
    for (nth, read) in reads.into_iter().enumerate() {
        let (bytes, buffer) = pollster::block_on(read);
        assert_eq!(bytes.unwrap(), READ);
        assert!(is_right(&buffer, nth as u64 * 50_000), "read {nth}");
    }
}

struct CountedWaker;

impl Wake for CountedWaker {
    fn wake(self: Arc<CountedWaker>) {}
}

/// Reads that time out again and again behind a stuck file. Eight threads hold a waker each at
/// most, and a queue of fewer than 64 reads the others.
#[test]
fn dropped_futures_of_a_stuck_file_leave_the_queue() {
    let Some(stuck) = Stuck::mount("abandoned") else { return };
    let path = ReadPath::builder().build().unwrap();
    let file = path.open(stuck.name(0)).unwrap();
    stuck.stick(0, 0);
    // A read that is not dropped stays in the queue, among the others.
    let patient: Vec<Read> = (0..12).map(|nth| waiting(&file, nth * 1_000_000)).collect();
    let counted = Arc::new(CountedWaker);
    let waker = Waker::from(Arc::clone(&counted));
    let mut context = Context::from_waker(&waker);
    for nth in 0..10_000 {
        let mut read = Box::pin(file.read_at_async(vec![0; READ], nth * 1_000));
        assert!(read.as_mut().poll(&mut context).is_pending());
    }
    // Two references are `counted` and `waker`.
    let count = Arc::strong_count(&counted) - 2;
    assert!(count < 64 + 8, "{count} wakers of dropped futures");
    stuck.release();
    for (nth, read) in patient.into_iter().enumerate() {
        let (bytes, buffer) = pollster::block_on(read);
        assert_eq!(bytes.unwrap(), READ);
        assert!(is_right(&buffer, nth as u64 * 1_000_000), "read {nth}");
    }
}

/// The first half of a file is readable while its second half is stuck.
#[test]
fn future_ends_while_another_part_of_its_file_is_stuck() {
    let Some(stuck) = Stuck::mount("part") else { return };
    let path = ReadPath::builder().build().unwrap();
    let file = path.open(stuck.name(0)).unwrap();
    stuck.stick(0, BYTES / 2);
    let reads: Vec<Read> = (1..4).map(|nth| waiting(&file, BYTES - nth * 500_000)).collect();
    let again = file.clone();
    let (bytes, buffer) = ends_while_stuck(&stuck, move || {
        pollster::block_on(again.read_at_async(vec![0; READ], 300_000))
    });
    assert_eq!(bytes.unwrap(), READ);
    assert!(is_right(&buffer, 300_000));
    drop(reads);
}

/// Waker that reports the end of a waiter thread's read.
struct Ended(std::sync::mpsc::Sender<()>);

impl Wake for Ended {
    fn wake(self: Arc<Ended>) {
        let _ = self.0.send(());
    }
}

/// The pages of a large read are evicted after the waiter thread has read them, and the file is
/// stuck. The next poll has all bytes all the same.
#[test]
fn poll_after_the_waiter_does_not_wait_for_a_stuck_file() {
    let Some(stuck) = Stuck::mount("evicted") else { return };
    let path = ReadPath::builder().build().unwrap();
    let file = path.open(stuck.name(0)).unwrap();
    let (sender, has_ended) = channel();
    let waker = Waker::from(Arc::new(Ended(sender)));
    let mut read = Box::pin(file.read_at_async(vec![0; 200_000], 100_000));
    assert!(read.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    has_ended.recv_timeout(LIVENESS).unwrap();
    readpath_record::cold::drop_pages(&stuck.name(0)).unwrap();
    stuck.stick(0, 0);
    let (bytes, buffer) = ends_while_stuck(&stuck, move || pollster::block_on(read));
    assert_eq!(bytes.unwrap(), 200_000);
    assert!(is_right(&buffer, 100_000));
}

/// The read of the waiter thread fails, and the file is stuck afterwards. The next poll reports the
/// error, and reads nothing itself. ESTALE is 116 in errno(3).
#[test]
fn poll_after_a_failed_read_does_not_wait_for_a_stuck_file() {
    let Some(stuck) = Stuck::mount("failed") else { return };
    let path = ReadPath::builder().build().unwrap();
    let file = path.open(stuck.name(0)).unwrap();
    for bytes in [READ, 200_000] {
        stuck.fail(0, 116);
        let (sender, has_ended) = channel();
        let waker = Waker::from(Arc::new(Ended(sender)));
        let mut read = Box::pin(file.read_at_async(vec![0; bytes], 100_000));
        assert!(read.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        has_ended.recv_timeout(LIVENESS).unwrap();
        stuck.stick(0, 0);
        let (count, _) = ends_while_stuck(&stuck, move || pollster::block_on(read));
        let error = count.unwrap_err();
        let read_error = error.get_ref().and_then(|error| error.downcast_ref()).copied();
        let error = DeviceError::Stale;
        assert_eq!(read_error, Some(readpath::ReadError::Device { offset: 100_000, error }));
        stuck.release();
    }
}

/// A read of a batch fails on its helper thread. The batch returns the error, and reads nothing
/// itself: the file could be stuck by now.
#[test]
fn batch_returns_a_failed_read_without_another_attempt() {
    for (into, bytes) in [(false, READ), (true, READ), (false, 300_000), (true, 300_000)] {
        let Some(stuck) = Stuck::mount(&format!("batch-failed-{into}-{bytes}")) else { return };
        let path = ReadPath::builder().build().unwrap();
        let file = path.open(stuck.name(0)).unwrap();
        stuck.fail(0, 116);
        let mut batch = path.batch();
        batch.read(&file, 100_000, bytes as u64, 7).unwrap();
        let (ticket, result) = if into {
            let mut room = vec![0; bytes];
            let read = batch.wait_into(|_, _| &mut room).unwrap().unwrap();
            (read.ticket, read.bytes.map(drop))
        } else {
            let read = batch.wait().unwrap().unwrap();
            (read.ticket(), read.slices().map(drop))
        };
        let error = DeviceError::Stale;
        assert_eq!(
            (ticket, result),
            (7, Err(readpath::ReadError::Device { offset: 100_000, error }))
        );
        let own_thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let threads = stuck.failed_threads();
        assert!(!threads.is_empty() && !threads.contains(&own_thread), "{threads:?}, {own_thread}");
    }
}

/// Dropping a path does not wait for its stalled reads.
#[test]
fn path_can_be_dropped_while_a_file_is_stuck() {
    let Some(stuck) = Stuck::mount("dropped") else { return };
    let path = ReadPath::builder().build().unwrap();
    let file = path.open(stuck.name(0)).unwrap();
    stuck.stick(0, 0);
    drop(waiting(&file, 100_000));
    ends_while_stuck(&stuck, move || {
        drop(file);
        drop(path);
    });
}

/// Takes `count` completed reads of the batch, with their bytes.
fn take(batch: &mut Batch, count: usize, into: bool) -> Vec<(u64, Vec<u8>)> {
    let mut all = Vec::new();
    for _ in 0..count {
        if into {
            let mut room = vec![0; READ];
            let put = batch.wait_into(|_, _| &mut room).unwrap().expect("more are under way");
            assert_eq!(put.bytes.unwrap(), READ);
            all.push((put.ticket, room));
        } else {
            let read = batch.wait().unwrap().expect("more are under way");
            let bytes = read.slices().unwrap().collect::<Vec<_>>().concat();
            all.push((read.ticket(), bytes));
        }
    }
    all
}

#[test]
fn batch_returns_finished_reads_while_another_file_is_stuck() {
    for into in [false, true] {
        let Some(stuck) = Stuck::mount(&format!("batch-{into}")) else { return };
        let path = ReadPath::builder().build().unwrap();
        let temp = TempFile::new(1 << 20);
        let content = std::fs::read(&temp.path).unwrap();
        readpath_record::cold::drop_pages(&temp.path).unwrap();
        let held_up = path.open(stuck.name(0)).unwrap();
        stuck.stick(0, 0);
        let fast = path.open(&temp.path).unwrap();
        let mut batch = path.batch();
        for ticket in 0..3 {
            batch.read(&held_up, ticket << 20, READ as u64, ticket).unwrap();
        }
        for ticket in 3..11 {
            batch.read(&fast, ticket * 70_001, READ as u64, ticket).unwrap();
        }
        let (mut batch, finished) = ends_while_stuck(&stuck, move || {
            let finished = take(&mut batch, 8, into);
            (batch, finished)
        });
        let mut seen = Vec::new();
        for (ticket, bytes) in finished {
            assert!(bytes == content[ticket as usize * 70_001..][..READ], "{ticket}");
            seen.push(ticket);
        }
        seen.sort_unstable();
        assert_eq!(seen, (3..11).collect::<Vec<u64>>());
        assert_eq!(batch.len(), 3);
        stuck.release();
        let mut rest = take(&mut batch, 3, into);
        rest.sort_unstable();
        for (nth, (ticket, bytes)) in rest.into_iter().enumerate() {
            assert_eq!(ticket, nth as u64);
            assert!(is_right(&bytes, ticket << 20));
        }
        assert!(batch.wait().unwrap().is_none());
    }
}

#[test]
fn batch_returns_finished_reads_while_part_of_the_file_is_stuck() {
    let Some(stuck) = Stuck::mount("batch-part") else { return };
    let path = ReadPath::builder().build().unwrap();
    let file = path.open(stuck.name(0)).unwrap();
    stuck.stick(0, BYTES / 2);
    let mut batch = path.batch();
    for ticket in 0..3 {
        batch.read(&file, BYTES - (ticket + 1) * 500_000, READ as u64, ticket).unwrap();
    }
    for ticket in 3..11 {
        batch.read(&file, ticket * 300_000, READ as u64, ticket).unwrap();
    }
    let (batch, finished) = ends_while_stuck(&stuck, move || {
        let finished = take(&mut batch, 8, false);
        (batch, finished)
    });
    for (ticket, bytes) in finished {
        assert!(ticket >= 3 && is_right(&bytes, ticket * 300_000), "{ticket}");
    }
    // Dropping a batch does not wait for its stalled reads.
    ends_while_stuck(&stuck, move || drop(batch));
}

/// FUSE refuses to map a file of direct I/O that others may share: ENODEV, which is 19 in errno(3).
/// No server maps it, because the process may not have twice 16 MiB of writable memory.
#[test]
fn mapping_that_the_kernel_refuses_names_the_file_and_no_thread() {
    let Some(stuck) = Stuck::mount("unmapped") else { return };
    let name = stuck.name(UNMAPPED);
    let is_mapped = std::fs::File::open(&name).is_ok_and(|file| PlainMapping::of(&file).is_ok());
    if is_mapped {
        return eprintln!("skipped: this kernel maps files of direct I/O on FUSE");
    }
    assert!(in_child(|| {
        limit_further_data(BYTES * 3 / 2);
        // SAFETY: the file does not change.
        let error = unsafe { Mapping::builder().kernel_cache(false).open(&name) }.unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(&format!("{}: ", name.display())), "{text}");
        assert!(text.contains("os error 19") && !text.contains("thread"), "{text}");
        true
    }));
}

/// The kernel serves the mapping, because it may not have twice 16 MiB of writable memory. The
/// file system answers reads with ESTALE, which is 116 in errno(3).
#[test]
fn read_error_of_a_kernel_mapping_has_the_kernels_error_number() {
    let Some(stuck) = Stuck::mount("mapping") else { return };
    stuck.fail(0, 116);
    assert!(in_child(|| {
        limit_further_data(BYTES * 3 / 2);
        // SAFETY: the file does not change.
        let mapping = unsafe { Mapping::builder().kernel_cache(false).open(stuck.name(0)) };
        let mapping = mapping.unwrap();
        assert!(mapping.mode().to_string().contains("own mapping"), "{}", mapping.mode());
        let failed = |error| Err(LoadError::Read(ReadError::Device { offset: 1 << 20, error }));
        let result = mapping.read_exact_at(&mut [0; READ], 1 << 20);
        assert_eq!(result, failed(DeviceError::Stale));
        // A touch would be a bus error, of which the kernel reports no number (madvise(2)).
        assert_eq!(mapping.load(1 << 20, 4_096), failed(DeviceError::Medium));
        true
    }));
}
