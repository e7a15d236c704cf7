//! Large reads of a source past the page cache, straight into the caller's memory. A *source* is a
//! file that the program itself provides.
//!
//! A read through the cache costs a second copy of each byte, memory for its pages, and requests of
//! at most [`fetch_bytes_max`](Source::fetch_bytes_max). A *direct read* is divided into a few long
//! fetches in parallel. Its bytes are not cached.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use readpath_core::request::{Completion, Outcome, RequestId};
use readpath_core::unit::PAGE_BYTES;

use super::Source;
use super::completions::Completions;
use super::fetch::Fetch;
use super::request::Request;
use crate::os::clock::Clock;
use crate::os::process::ProcessOwned;
use crate::read_error::ReadError;
use crate::storage::Sleep;
use crate::target::TRANSFER_BYTES_MAX;

/// Smallest direct read in bytes. A smaller one gains less than a millisecond.
const DIRECT_BYTES_MIN: u64 = 4 << 20;

/// Largest number of fetches in flight of one direct read. A connection to an object store has
/// about 100 MB/s. Without such a limit, 256 MiB on two processors took 0.28, 0.24, 0.25 and 0.53 s
/// with 2, 4, 8 and 16 fetches. One GET of another client took 0.38 s.
const DIRECT_FETCHES_MAX: u32 = 8;

/// Longest wait before the caller is asked whether the read continues.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The file of a source, and the choice of its direct reads.
pub(crate) struct SourceFile {
    /// The source. A child made by `fork` never drops it: that would wake threads of the parent.
    source: ProcessOwned<Arc<dyn Source>>,
    /// Size that the page cache may reach, in bytes: `u64::MAX` if it grows with its use. `None`
    /// without a page cache.
    memory_bytes: Option<u64>,
    /// Largest number of fetches in flight.
    fetches_max: u32,
    /// True since a direct read of half of the file or more that fits the memory has begun. False
    /// again if that read fails or is ended by its caller.
    had_large_read: AtomicBool,
}

impl SourceFile {
    /// The file of a source. `memory_bytes` is the size that its page cache may reach, or `None`
    /// without one. `depth` is the largest number of fetches in flight of its path.
    pub(crate) fn new(
        source: Arc<dyn Source>,
        memory_bytes: Option<u64>,
        depth: u32,
    ) -> SourceFile {
        let fetches_max = depth.clamp(1, DIRECT_FETCHES_MAX);
        let had_large_read = AtomicBool::new(false);
        let source = ProcessOwned::new(source);
        SourceFile { source, memory_bytes, fetches_max, had_large_read }
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.source.get_in_any_process().bytes()
    }

    /// All bytes of the file, if they are in memory already.
    pub(crate) fn all_bytes(&self) -> Option<&[u8]> {
        self.source.get_in_any_process().all_bytes()
    }

    /// Decides if a read of `bytes` bytes bypasses the cache. A read of less than
    /// [`DIRECT_BYTES_MIN`] never does. A larger one does if there is no cache or if the memory
    /// cannot hold it. The first read of half of the file or more does too, and is recorded here.
    /// If the program reads as much again, it is through the cache. If the memory in use,
    /// `used_bytes`, exceeds an eighth of the read, many of its bytes may be cached or on their
    /// way, and the cache serves it too.
    ///
    /// Returns the reason of a direct read, and `None` for a read through the cache.
    pub(crate) fn decide_direct(
        &self,
        bytes: u64,
        used_bytes: impl FnOnce() -> u64,
    ) -> Option<DirectReason> {
        match self.memory_bytes {
            _ if bytes < DIRECT_BYTES_MIN => None,
            None => Some(DirectReason::ExceedsMemory),
            Some(memory_bytes) if bytes > memory_bytes => Some(DirectReason::ExceedsMemory),
            Some(_) => {
                let is_first = bytes >= self.bytes() / 2
                    && used_bytes() <= bytes / 8
                    && !self.had_large_read.swap(true, Ordering::Relaxed);
                is_first.then_some(DirectReason::FirstLarge)
            }
        }
    }

    /// Fills `buffer` with the bytes from `offset` on, all within the file, or ends early if
    /// `continues` returns false. This is called at least every 50 ms. The fetches are counted in
    /// `counters`. `reason` is the result of [`decide_direct`](SourceFile::decide_direct).
    ///
    /// # Errors
    /// A fetch has failed.
    pub(crate) fn read(
        &self,
        reason: DirectReason,
        buffer: &mut [u8],
        offset: u64,
        counters: &DirectCounters,
        continues: impl FnMut() -> bool,
    ) -> Result<DirectRead, ReadError> {
        let read = self.fetch_parts(buffer, offset, counters, continues);
        if reason == DirectReason::FirstLarge && !matches!(read, Ok(DirectRead::Done)) {
            // The caller has no bytes yet, so the next such read is the first one.
            self.had_large_read.store(false, Ordering::Relaxed);
        }
        read
    }

    /// Does the work of [`read`](SourceFile::read), without its correction of `had_large_read`. At
    /// most `fetches_max` fetches are in flight. After an error or an early end, the rest of them
    /// are cancelled by the drop of `in_flight`.
    fn fetch_parts(
        &self,
        buffer: &mut [u8],
        offset: u64,
        counters: &DirectCounters,
        mut continues: impl FnMut() -> bool,
    ) -> Result<DirectRead, ReadError> {
        let source = &**self.source.get_in_any_process();
        let fetch_bytes = self.fetch_bytes(buffer.len() as u64);
        let mut parts = buffer.chunks_mut(fetch_bytes as usize).enumerate();
        let completions = Arc::new(Completions::new(Clock::start()));
        let mut in_flight = InFlight { completions, counters, uncollected: 0 };
        loop {
            while in_flight.uncollected < self.fetches_max
                && let Some((index, part)) = parts.next()
            {
                let start = offset + index as u64 * fetch_bytes;
                // SAFETY: the buffer is borrowed until the return, and `in_flight` is dropped
                // before. No other part has these bytes.
                unsafe { in_flight.start(source, index as u32, part, start) };
            }
            if in_flight.uncollected == 0 {
                return Ok(DirectRead::Done);
            }
            for Completion { id, outcome, .. } in in_flight.wait() {
                if let Outcome::Failed(error) = outcome {
                    let part_start = offset + u64::from(id.0) * fetch_bytes;
                    return Err(ReadError::Device { offset: part_start, error });
                }
            }
            if !continues() {
                return Ok(DirectRead::Ended);
            }
        }
    }

    /// Length of the fetches of a direct read of `bytes` bytes, in whole pages: equal parts for all
    /// fetches. It is within the source's limit, unless that is less than a page. The lower limit
    /// is the fetch length of cached reads.
    fn fetch_bytes(&self, bytes: u64) -> u64 {
        let source = self.source.get_in_any_process();
        let in_pages = |bytes: u64| bytes.max(PAGE_BYTES) / PAGE_BYTES * PAGE_BYTES;
        let bytes_max = in_pages(source.direct_fetch_bytes_max());
        let cached_bytes_max = source.fetch_bytes_max().min(TRANSFER_BYTES_MAX);
        let bytes_min = in_pages(cached_bytes_max).min(bytes_max);
        let even_bytes = bytes.div_ceil(u64::from(self.fetches_max));
        even_bytes.clamp(bytes_min, bytes_max).next_multiple_of(PAGE_BYTES)
    }
}

/// Reason of a direct read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectReason {
    /// There is no cache, or the memory cannot hold the bytes.
    ExceedsMemory,
    /// The first read of half of the file or more.
    FirstLarge,
}

/// End of a direct read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectRead {
    /// All bytes are there.
    Done,
    /// The caller has ended the read.
    Ended,
}

/// Counters of the direct reads of an engine.
#[derive(Debug, Default)]
pub(crate) struct DirectCounters {
    /// Number of fetches that were started.
    pub(crate) fetches: AtomicU64,
    /// Bytes of these fetches.
    pub(crate) bytes: AtomicU64,
    /// Number of fetches in flight.
    pub(crate) in_flight: AtomicU32,
}

/// Fetches in flight of a direct read. The drop ends their use of the memory.
struct InFlight<'a> {
    completions: Arc<Completions>,
    counters: &'a DirectCounters,
    /// Number of started fetches whose completions were not collected.
    uncollected: u32,
}

impl InFlight<'_> {
    /// Starts the fetch of one part. `start` is its offset in the file, and `index` its number in
    /// the read, by which its completion is recognized.
    ///
    /// # Safety
    /// The memory of `part` is valid, and has no other user, until `self` is dropped.
    unsafe fn start(&mut self, source: &dyn Source, index: u32, part: &mut [u8], start: u64) {
        let bytes = part.len() as u64;
        let memory = libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
        // SAFETY: guaranteed by the caller. The request ends with its completion, or by the drop.
        let request = Arc::new(unsafe { Request::new(RequestId(index), bytes, &[memory]) });
        self.completions.lock().in_flight.insert(request.id, Arc::clone(&request));
        self.uncollected += 1;
        self.counters.fetches.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.counters.in_flight.fetch_add(1, Ordering::Relaxed);
        let fetch = Fetch::new(Arc::clone(&self.completions), request, bytes);
        fetch.start(source, start..start + bytes);
    }

    /// Waits for completions, at most [`CHECK_INTERVAL`], and returns them; none after that time.
    /// Their fetches are no longer counted.
    fn wait(&mut self) -> Vec<Completion> {
        let mut state = self.completions.sleep(Sleep::AtMost(CHECK_INTERVAL), |_| false);
        let completed = std::mem::take(&mut state.completed);
        drop(state);
        self.subtract(completed.len() as u32);
        completed
    }

    /// Subtracts fetches that have ended.
    fn subtract(&mut self, count: u32) {
        self.uncollected -= count;
        self.counters.in_flight.fetch_sub(count, Ordering::Relaxed);
    }
}

impl Drop for InFlight<'_> {
    /// Ends the requests. Later bytes have no effect.
    fn drop(&mut self) {
        self.subtract(self.uncollected);
        let in_flight = std::mem::take(&mut self.completions.lock().in_flight);
        in_flight.values().for_each(|request| _ = request.end());
    }
}
