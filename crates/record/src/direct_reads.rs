//! Direct reads: opening a file for them, and their time with a number of requests in flight.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use readpath_os::page_buffer::PageBuffer;

use crate::schedstat::running_and_queued_ns;

/// Opens a file or a block device for direct reads. The caller has checked that it is one. A pipe
/// in its place is not waited for.
///
/// # Errors
/// The file cannot be opened, or its file system has no direct reads (`InvalidInput`).
pub fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_DIRECT | libc::O_NONBLOCK | libc::O_NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// One request, in whole pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Request {
    /// Index into the files of the caller.
    pub file: usize,
    /// Offset in bytes, a multiple of a page.
    pub offset: u64,
    /// Length in bytes, a multiple of a page.
    pub bytes: u64,
    /// Number of recorded reads that this request represents, also a fraction of one.
    pub reads: f64,
}

/// Performs the requests with `depth` of them in flight, and returns the seconds per read. `depth`
/// is at least 1 and less than the number of requests. `read` performs one request into
/// page-aligned memory of its length.
///
/// The time ends when the last request is taken: by then all but `depth` requests are complete, and
/// the queue was full all the time. The time in which a thread could run and waited for a processor
/// is left out, as it is in recorded waits.
///
/// # Errors
/// A read failed, or a thread could not be started.
pub(crate) fn seconds_per_read(
    read: impl Fn(&Request, &mut [u8]) -> io::Result<()> + Sync,
    requests: &[Request],
    depth: usize,
) -> io::Result<f64> {
    let bytes_max = requests.iter().map(|request| request.bytes).max().unwrap_or(0);
    let next_index = AtomicUsize::new(0);
    let end_time = Mutex::new(None);
    // Locked until all workers are started. False: one of them could not be started.
    let may_start_lock = RwLock::new(false);
    // Returns the time in which the worker waited for a processor, up to one of the last requests.
    let worker = || -> io::Result<Duration> {
        // A direct read needs aligned memory.
        let mut buffer = PageBuffer::new(bytes_max);
        if !*may_start_lock.read().unwrap_or_else(PoisonError::into_inner) {
            return Ok(Duration::ZERO);
        }
        let delay_before = processor_delay();
        let mut delay = None;
        loop {
            let index = next_index.fetch_add(1, Ordering::Relaxed);
            if index + depth >= requests.len() {
                delay.get_or_insert_with(|| processor_delay().saturating_sub(delay_before));
            }
            let Some(request) = requests.get(index) else { return Ok(delay.unwrap_or_default()) };
            if index + 1 == requests.len() {
                *end_time.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            }
            read(request, &mut buffer[..request.bytes as usize])?;
        }
    };
    let (start_time, delays) = thread::scope(|scope| -> io::Result<(Instant, Duration)> {
        let mut may_start = may_start_lock.write().unwrap_or_else(PoisonError::into_inner);
        let start_worker = |_| thread::Builder::new().spawn_scoped(scope, worker);
        let workers: Vec<_> = (0..depth).map(start_worker).collect::<io::Result<_>>()?;
        *may_start = true;
        drop(may_start);
        let start_time = Instant::now();
        let mut delays = Duration::ZERO;
        for worker in workers {
            delays += worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok((start_time, delays))
    })?;
    // Without requests there is no end, and no time has passed.
    let end_time =
        end_time.into_inner().unwrap_or_else(PoisonError::into_inner).unwrap_or(start_time);
    let read_count: f64 = requests.iter().map(|request| request.reads).sum();
    let completed_share =
        requests.len().saturating_sub(depth) as f64 / requests.len().max(1) as f64;
    let passed_time = end_time.saturating_duration_since(start_time);
    // The workers waited for processors at the same time, so their mean delay counts.
    let seconds = passed_time.saturating_sub(delays / depth.max(1) as u32).as_secs_f64();
    // The minimum avoids a division by 0.
    Ok(seconds / (read_count * completed_share).max(1e-9))
}

/// Returns the time that this thread has waited for a processor since its start. 0 on a kernel
/// without these statistics.
fn processor_delay() -> Duration {
    let queued_ns =
        running_and_queued_ns("/proc/thread-self").map_or(0, |[_, queued_ns]| queued_ns);
    Duration::from_nanos(queued_ns)
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Four readers wait for each other: the measurement ends only if four requests are in flight.
    #[test]
    fn requests_are_read_once_each_at_the_depth() {
        let requests: Vec<Request> = (0..32)
            .map(|number| Request { file: 0, offset: number * 4096, bytes: 4096, reads: 1.0 })
            .collect();
        let depth = 4;
        let (barrier, read_pages) = (Barrier::new(depth), Mutex::new(Vec::new()));
        let seconds = seconds_per_read(
            |request, memory| {
                assert_eq!((memory.len(), memory.as_ptr() as usize % 4096), (4096, 0));
                read_pages.lock().unwrap().push(request.offset / 4096);
                barrier.wait();
                Ok(())
            },
            &requests,
            depth,
        );
        assert!(seconds.unwrap() >= 0.0);
        let mut read_pages = read_pages.into_inner().unwrap();
        read_pages.sort_unstable();
        assert_eq!(read_pages, (0..32).collect::<Vec<u64>>());
    }

    #[test]
    fn failed_read_ends_the_measurement() {
        let requests = [Request { file: 0, offset: 0, bytes: 4096, reads: 1.0 }; 8];
        let fail = |_: &Request, _: &mut [u8]| Err(io::Error::other("gone"));
        assert_eq!(seconds_per_read(fail, &requests, 2).unwrap_err().to_string(), "gone");
    }

    /// Reads that only compute, on one processor with three busy threads: they run for a quarter of
    /// the time. The rest is no time of the reads.
    #[test]
    fn time_of_waiting_for_a_processor_is_left_out() {
        let bind_to_first_processor = || {
            let mut processors = rustix::thread::CpuSet::new();
            processors.set(0);
            rustix::thread::sched_setaffinity(None, &processors).unwrap();
        };
        let requests = [Request { file: 0, offset: 0, bytes: 4096, reads: 1.0 }; 40];
        let has_ended = AtomicBool::new(false);
        let (seconds, passed_seconds) = thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    bind_to_first_processor();
                    while !has_ended.load(Ordering::Relaxed) {
                        black_box(0);
                    }
                });
            }
            // The threads that read inherit it.
            bind_to_first_processor();
            let read = |_: &Request, _: &mut [u8]| {
                (0..2_000_000_u64).for_each(|number| _ = black_box(number));
                Ok(())
            };
            let start = Instant::now();
            let seconds = seconds_per_read(read, &requests, 1).unwrap();
            let passed_seconds = start.elapsed().as_secs_f64() / requests.len() as f64;
            has_ended.store(true, Ordering::Relaxed);
            (seconds, passed_seconds)
        });
        assert!(seconds < passed_seconds / 2.0, "{seconds} s of {passed_seconds} s");
    }
}
