//! Foreign code that panics inside the library: wakers, buffers, closures and sources. The path
//! stays usable and leaks no memory.

mod support;

use std::future::Future;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use readpath::source::{Fetch, Source};
use readpath::{DeviceError, File, ReadError, ReadPath};
use readpath_core::policy::{Policy, Spec, SpecError};
use readpath_core::request::{DeviceCaps, RequestId, RequestTable};
use readpath_core::scheduler::{self, Dispatch, Inserted, Scheduler};
use readpath_core::unit::Time;
use support::*;

const FILE_BYTES: usize = 8 << 20;
/// Liveness limit, reached only by a fault.
const LIVENESS: Duration = Duration::from_secs(120);

fn own() -> ReadPath {
    ReadPath::builder().memory(1 << 20).kernel_cache(false).readahead("none").build().unwrap()
}

fn kept() -> ReadPath {
    ReadPath::builder().build().unwrap()
}

/// Runs `act` on its own thread; fails if it does not end.
fn ends(act: impl FnOnce() + Send + 'static) {
    let (ended, has_ended) = channel();
    let thread = std::thread::spawn(move || {
        act();
        let _ = ended.send(());
    });
    match has_ended.recv_timeout(LIVENESS) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it does not end"),
        _ => thread.join().unwrap(),
    }
}

/// A waker whose methods panic as configured.
#[derive(Default)]
struct Panicking {
    wakes: AtomicU32,
    panics_in_drop: AtomicBool,
}

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        panic!("a waker that panics, as this test has it");
    }
}

impl Drop for Panicking {
    fn drop(&mut self) {
        if self.panics_in_drop.load(Ordering::Relaxed) && !std::thread::panicking() {
            panic!("a waker whose drop panics, as this test has it");
        }
    }
}

/// Reads a range of the file as a future on this thread, and checks its bytes.
fn read_right(file: &File, content: &[u8], at: usize) {
    let (bytes, buffer) = pollster::block_on(file.read_at_async(vec![0; 20_000], at as u64));
    assert_eq!(bytes.unwrap(), 20_000);
    assert!(buffer == content[at..at + 20_000]);
}

/// Polls reads with wakers that panic, and returns the number of pending ones.
fn poll_with_panics(file: &File, panics_in_drop: bool, keeps_futures: bool) -> u32 {
    let mut waiting = 0;
    let mut futures = Vec::new();
    for nth in 0..40u64 {
        let waker = Arc::new(Panicking::default());
        waker.panics_in_drop.store(panics_in_drop, Ordering::Relaxed);
        let wake = Waker::from(Arc::clone(&waker));
        let mut read = Box::pin(file.read_at_async(vec![0; 9_000], nth * 190_000));
        drop(waker);
        waiting += u32::from(read.as_mut().poll(&mut Context::from_waker(&wake)).is_pending());
        // Its drop may panic on this thread too.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(wake)));
        if keeps_futures {
            futures.push(read);
        } else {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(read)));
        }
    }
    std::thread::sleep(Duration::from_millis(50));
    for read in futures {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(read)));
    }
    waiting
}

#[test]
fn panicking_wakers_do_not_stop_other_futures_of_the_path() {
    for (path, panics_in_drop, keeps_futures) in [
        (kept(), false, true),
        (kept(), true, true),
        (kept(), false, false),
        (kept(), true, false),
        (own(), false, true),
        (own(), true, false),
    ] {
        ends(move || {
            let temp = TempFile::new(FILE_BYTES);
            let content = std::fs::read(&temp.path).unwrap();
            let file = path.open(&temp.path).unwrap();
            let mut waiting = 0;
            for _ in 0..20 {
                readpath_record::cold::drop_pages(&temp.path).unwrap();
                waiting += poll_with_panics(&file, panics_in_drop, keeps_futures);
                readpath_record::cold::drop_pages(&temp.path).unwrap();
                for at in (0..FILE_BYTES - 20_000).step_by(1_300_000) {
                    read_right(&file, &content, at);
                }
                if waiting > 40 {
                    return;
                }
            }
            eprintln!("skipped: {waiting} reads had to wait, the disk answers at once");
        });
    }
}

/// A buffer that becomes shorter, or panics, after a number of calls.
struct Shrinking {
    bytes: Vec<u8>,
    calls_left: u32,
    then: usize,
    panics: bool,
}

impl AsMut<[u8]> for Shrinking {
    fn as_mut(&mut self) -> &mut [u8] {
        if self.calls_left == 0 {
            assert!(!self.panics, "a buffer that panics, as this test has it");
            return &mut self.bytes[..self.then];
        }
        self.calls_left -= 1;
        &mut self.bytes
    }
}

/// Polls a read into such a buffer until it completes or panics; true for a panic.
fn panics(file: &File, at: u64, buffer: Shrinking) -> bool {
    let mut read = Box::pin(file.read_at_async(buffer, at));
    let begun = Instant::now();
    loop {
        let mut context = Context::from_waker(Waker::noop());
        match catch_unwind(AssertUnwindSafe(|| read.as_mut().poll(&mut context).is_ready())) {
            Err(_) => {
                // Dropped after the panic, as by an executor.
                return true;
            }
            Ok(true) => return false,
            Ok(false) => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(begun.elapsed() < LIVENESS, "the read does not end");
    }
}

#[test]
fn shrinking_or_panicking_buffers_leak_no_memory_of_the_path() {
    for (path, bytes) in [(own(), 200_000), (own(), 20_000), (kept(), 200_000)] {
        ends(move || {
            let temp = TempFile::new(FILE_BYTES);
            let content = std::fs::read(&temp.path).unwrap();
            readpath_record::cold::drop_pages(&temp.path).unwrap();
            let file = path.open(&temp.path).unwrap();
            let mut count = 0;
            for nth in 0..160u32 {
                let (calls_left, then) = (nth % 8, [0, 1, 5_000, 19_999][nth as usize / 8 % 4]);
                let panics_too = nth % 3 == 0;
                let buffer =
                    Shrinking { bytes: vec![0; bytes], calls_left, then, panics: panics_too };
                count += u32::from(panics(&file, u64::from(nth) * 30_000 + 7, buffer));
            }
            assert!(count > 0, "no buffer has panicked: the test shows nothing");
            // Reads several times the path's memory at once.
            let mut all = vec![0; FILE_BYTES];
            file.read_exact_at(&mut all, 0).unwrap();
            assert!(all == content);
            for at in (0..FILE_BYTES - 20_000).step_by(1_300_000) {
                read_right(&file, &content, at);
            }
        });
    }
}

#[test]
fn panicking_destination_closures_leave_batch_and_path_usable() {
    for path in [own(), kept()] {
        ends(move || {
            let temp = TempFile::new(FILE_BYTES);
            let content = std::fs::read(&temp.path).unwrap();
            readpath_record::cold::drop_pages(&temp.path).unwrap();
            let file = path.open(&temp.path).unwrap();
            for _ in 0..8 {
                let mut batch = path.batch();
                for nth in 0..16 {
                    batch.read(&file, nth * 400_000, 60_000, nth).unwrap();
                }
                let (mut right, mut panics) = (0, 0);
                while !batch.is_empty() {
                    let mut room = vec![0; 60_000];
                    let put = catch_unwind(AssertUnwindSafe(|| {
                        batch
                            .wait_into(|ticket, _| {
                                assert!(
                                    ticket % 2 == 0,
                                    "a place that panics, as this test has it"
                                );
                                &mut room
                            })
                            .unwrap()
                            .map(|put| put.ticket)
                    }));
                    match put {
                        Ok(Some(ticket)) => {
                            assert!(room == content[ticket as usize * 400_000..][..60_000]);
                            right += 1;
                        }
                        Ok(None) => break,
                        Err(_) => panics += 1,
                    }
                }
                assert_eq!((right, panics), (8, 8));
            }
            let mut all = vec![0; FILE_BYTES];
            file.read_exact_at(&mut all, 0).unwrap();
            assert!(all == content);
        });
    }
}

/// A future whose buffer panics on drop releases its read anyway.
#[test]
fn buffers_that_panic_on_drop_leak_no_memory_of_the_path() {
    struct Bomb(Vec<u8>);
    impl AsMut<[u8]> for Bomb {
        fn as_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a buffer whose drop panics, as this test has it");
        }
    }
    for path in [own(), kept()] {
        ends(move || {
            let temp = TempFile::new(FILE_BYTES);
            let content = std::fs::read(&temp.path).unwrap();
            readpath_record::cold::drop_pages(&temp.path).unwrap();
            let file = path.open(&temp.path).unwrap();
            for nth in 0..100 {
                let mut read = Box::pin(file.read_at_async(Bomb(vec![0; 200_000]), nth * 70_000));
                let mut context = Context::from_waker(Waker::noop());
                let dropped = match catch_unwind(AssertUnwindSafe(|| {
                    read.as_mut().poll(&mut context).map(|(bytes, bomb)| {
                        std::mem::forget(bomb);
                        bytes.unwrap()
                    })
                })) {
                    Ok(Poll::Ready(_)) => continue,
                    _ => catch_unwind(AssertUnwindSafe(|| drop(read))),
                };
                assert!(dropped.is_err());
            }
            let mut all = vec![0; FILE_BYTES];
            file.read_exact_at(&mut all, 0).unwrap();
            assert!(all == content);
        });
    }
}

/// The scheduler `noop`, which panics at the first completion.
struct PanickingScheduler(Box<dyn Scheduler>);

impl Scheduler for PanickingScheduler {
    fn insert(&mut self, now: Time, id: RequestId, requests: &mut RequestTable) -> Inserted {
        self.0.insert(now, id, requests)
    }

    fn dispatch(&mut self, now: Time, requests: &RequestTable) -> Dispatch {
        self.0.dispatch(now, requests)
    }

    fn complete(&mut self, _: Time, _: RequestId, _: &RequestTable) {
        panic!("a policy that panics, as this test has it");
    }

    fn queued(&self) -> usize {
        self.0.queued()
    }
}

/// The panic is in the reading thread, whose caller catches it, in the path's thread for futures,
/// or in one of several readers. No reader waits for ever: the process ends by SIGABRT, which is 6
/// in signal(7).
#[test]
fn panicking_policy_ends_the_program_whichever_thread_calls_it() {
    let policy = Policy::new("panicking", "panics at a completion", "//! `panicking`");
    let build = |_: &Spec, caps: &DeviceCaps| -> Result<Box<dyn Scheduler>, SpecError> {
        let noop = scheduler::build(&Spec::plain("noop"), caps)?;
        Ok(Box::new(PanickingScheduler(noop)))
    };
    scheduler::register(policy, build).unwrap();
    let temp = TempFile::new(FILE_BYTES);
    let read_caught = |file: &File| {
        let read = AssertUnwindSafe(|| file.read_exact_at(&mut [0; 9_000], 70_000));
        let _ = catch_unwind(read);
    };
    let read_future = |file: &File| {
        let _ = pollster::block_on(file.read_at_async(vec![0; 9_000], 70_000));
    };
    let read_in_threads = |file: &File| {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| read_caught(file));
            }
        });
    };
    let read_with: [&dyn Fn(&File); 3] = [&read_caught, &read_future, &read_in_threads];
    for (way, read) in read_with.into_iter().enumerate() {
        let status = status_of_child(|| {
            let path = ReadPath::builder().memory(1 << 20).kernel_cache(false);
            let path = path.scheduler("panicking").build().unwrap();
            read(&path.open(&temp.path).unwrap());
            true
        });
        assert_eq!(status & 0x7f, 6, "{way}");
    }
}

/// A source of zeros whose fetches panic if they have an odd first megabyte.
struct PanickingSource;

impl Source for PanickingSource {
    fn bytes(&self) -> u64 {
        FILE_BYTES as u64
    }

    fn fetch_bytes_max(&self) -> u64 {
        1 << 20
    }

    fn fetch(&self, range: Range<u64>, mut fetch: Fetch) {
        assert!((range.start >> 20).is_multiple_of(2), "a source that panics, as this test has it");
        fetch.fill(&vec![0; (range.end - range.start) as usize]);
        fetch.finish();
    }
}

/// A fetch that panics fails its own readers. The fetches that leave with it have their bytes.
#[test]
fn panicking_source_fails_only_its_own_reads() {
    ends(|| {
        let path = ReadPath::builder().memory(4 << 20).readahead("none");
        let file = path.open_source("zeros", Arc::new(PanickingSource)).unwrap();
        let mut batch = file.read_path().batch();
        for ticket in 0..8 {
            batch.read(&file, ticket << 20, 10_000, ticket).unwrap();
        }
        let mut results = Vec::new();
        while let Some(read) = batch.wait().unwrap() {
            results.push((read.ticket(), read.bytes()));
        }
        results.sort_by_key(|(ticket, _)| *ticket);
        assert_eq!(results.len(), 8);
        for (ticket, (found, result)) in results.into_iter().enumerate() {
            assert_eq!(found, ticket as u64);
            match (ticket % 2, result) {
                (0, Ok(10_000)) | (1, Err(ReadError::Device { error: DeviceError::Gone, .. })) => {}
                (_, result) => panic!("{ticket}: {result:?}"),
            }
        }
        assert!(batch.is_empty());
        // A read past the cache has fetches of both kinds.
        let error = file.read_exact_at(&mut vec![0; FILE_BYTES], 0).unwrap_err();
        assert!(error.get_ref().is_some_and(|error| error.is::<ReadError>()), "{error}");
        file.read_exact_at(&mut [0; 10_000], 2 << 20).unwrap();
        assert_eq!(file.read_path().stats().in_flight, 0);
    });
}
