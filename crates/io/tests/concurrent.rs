//! Concurrent readers of one path: threads, tasks and both; dropped futures, and shutdown with
//! reads in flight.

mod support;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use readpath::{BackendKind, File, ReadPath};
use support::*;

const FILE_BYTES: usize = 3 * (1 << 20) + 1234;

fn path(memory: u64, policy: &str, scheduler: &str, backend: BackendKind) -> ReadPath {
    let builder = ReadPath::builder()
        .kernel_cache(false)
        .memory(memory)
        .readahead(policy)
        .scheduler(scheduler);
    builder.backend(backend).depth(16).build().unwrap()
}

fn next(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    (*state >> 33) % below
}

fn expected(content: &[u8], offset: u64, bytes: usize) -> &[u8] {
    let start = (offset as usize).min(content.len());
    &content[start..(start + bytes).min(content.len())]
}

/// Threads read, pin, invalidate, batch and await the same file, with little and with enough
/// memory.
#[test]
fn concurrent_readers_return_the_bytes_of_the_file() {
    let temp = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&temp.path).unwrap();
    let rounds = std::env::var("READPATH_ROUNDS").map_or(150, |text| text.parse().unwrap());
    for backend in BACKENDS {
        for (policy, scheduler) in [("none", "noop"), ("ondemand", "cfq"), ("window", "deadline")] {
            for memory in [40 * 4096, 1 << 20, 8 << 20] {
                let path = path(memory, policy, scheduler, backend);
                let file = path.open(&temp.path).unwrap();
                std::thread::scope(|scope| {
                    for thread in 0..4 {
                        let (file, path, content) = (file.clone(), path.clone(), &content);
                        scope.spawn(move || reader(&path, &file, content, rounds, thread));
                    }
                });
            }
        }
    }
}

fn reader(path: &ReadPath, file: &File, content: &[u8], rounds: u32, thread: u64) {
    let mut state = thread + 1;
    let mut batch = path.batch();
    for round in 0..rounds {
        let offset = next(&mut state, FILE_BYTES as u64 + 99);
        let bytes = next(&mut state, 20_000) as usize;
        match next(&mut state, 8) {
            0 => file.invalidate(offset, bytes as u64),
            1 => file.prefetch(offset, bytes as u64),
            2 => match file.page(offset) {
                Ok(guard) => assert!(*guard == *expected(content, offset, guard.len())),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy),
            },
            3 => {
                let (count, buffer) =
                    pollster::block_on(file.read_at_async(vec![0; bytes], offset));
                assert!(buffer[..count.unwrap()] == *expected(content, offset, bytes));
            }
            4 => {
                let (asked, ticket) =
                    (bytes.min(8192) as u64, offset << 16 | bytes.min(8192) as u64);
                batch.read(file, offset, asked, ticket).unwrap();
            }
            5 if !batch.is_empty() => {
                let read = batch.wait().unwrap().unwrap();
                let (offset, bytes) = (read.ticket() >> 16, read.ticket() as u16 as usize);
                let mut buffer = vec![0; bytes];
                let count = read.copy_to(&mut buffer).unwrap();
                assert!(buffer[..count] == *expected(content, offset, bytes), "round {round}");
            }
            _ => {
                let mut buffer = vec![0; bytes];
                let count = file.read_at(&mut buffer, offset).unwrap();
                assert!(buffer[..count] == *expected(content, offset, bytes));
            }
        }
    }
}

/// Minimal executor: a woken task is polled again.
struct Bell(AtomicU32);

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn futures_are_woken_when_ready_and_may_be_dropped_at_any_time() {
    let temp = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&temp.path).unwrap();
    for backend in BACKENDS {
        let path = path(1 << 20, "none", "noop", backend);
        let file = path.open(&temp.path).unwrap();
        let bells: Vec<Arc<Bell>> = (0..24).map(|_| Arc::new(Bell(AtomicU32::new(0)))).collect();
        let mut buffers = vec![vec![0; 10_000]; 24];
        {
            let mut futures: Vec<_> = buffers
                .iter_mut()
                .enumerate()
                .map(|(at, buffer)| {
                    Box::pin(file.read_at_async(&mut buffer[..], at as u64 * 100_000))
                })
                .map(Some)
                .collect();
            let mut left = futures.len();
            for (future, bell) in futures.iter_mut().zip(&bells) {
                let waker = Waker::from(Arc::clone(bell));
                let first =
                    future.as_mut().unwrap().as_mut().poll(&mut Context::from_waker(&waker));
                assert!(first.is_pending());
            }
            // Every third future is dropped in flight.
            for future in futures.iter_mut().step_by(3) {
                *future = None;
                left -= 1;
            }
            while left > 0 {
                for (future, bell) in futures.iter_mut().zip(&bells) {
                    let Some(running) = future else { continue };
                    if bell.0.swap(0, Ordering::SeqCst) == 0 {
                        continue;
                    }
                    let waker = Waker::from(Arc::clone(bell));
                    if let Poll::Ready((count, _)) =
                        running.as_mut().poll(&mut Context::from_waker(&waker))
                    {
                        assert_eq!(count.unwrap(), 10_000);
                        *future = None;
                        left -= 1;
                    }
                }
                std::thread::yield_now();
            }
        }
        for (at, buffer) in buffers.iter().enumerate() {
            match at % 3 {
                0 => assert!(buffer.iter().all(|&byte| byte == 0), "nothing comes after the drop"),
                _ => assert!(*buffer == content[at * 100_000..at * 100_000 + 10_000]),
            }
        }
    }
}

#[test]
fn path_shuts_down_with_reads_in_flight() {
    let temp = TempFile::new(FILE_BYTES);
    for backend in BACKENDS {
        for is_demand in [false, true] {
            let path = path(4 << 20, "ondemand", "noop", backend);
            let file = path.open(&temp.path).unwrap();
            let mut batch = path.batch();
            for ticket in 0..16 {
                batch.read(&file, ticket * 200_000, 20_000, ticket).unwrap();
            }
            batch.start();
            file.prefetch(0, 1 << 20);
            let mut future = pin!(file.read_at_async(vec![0; 5000], 2_900_000));
            if is_demand {
                assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            }
            drop((file.clone(), batch, path, file));
        }
    }
    // The driver threads end.
    let is_driver = |task: std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm"))
            .is_ok_and(|name| name.trim() == "readpath-react")
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while std::fs::read_dir("/proc/self/task").unwrap().flatten().any(is_driver) {
        assert!(std::time::Instant::now() < deadline, "a driver goes on after the end");
        std::thread::yield_now();
    }
}

/// Reads started by a thread complete after that thread has exited.
#[test]
fn reads_started_by_a_thread_complete_after_it_exits() {
    let temp = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&temp.path).unwrap();
    for backend in BACKENDS {
        for _ in 0..20 {
            let path = path(8 << 20, "none", "noop", backend);
            let file = path.open(&temp.path).unwrap();
            let other = file.clone();
            std::thread::spawn(move || other.prefetch(0, 2 << 20)).join().unwrap();
            let mut buffer = vec![0; 2 << 20];
            file.read_exact_at(&mut buffer, 0).unwrap();
            assert!(buffer[..] == content[..2 << 20]);
        }
    }
}
