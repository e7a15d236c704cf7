//! Read path of one remote file: a planner decides on the ranges to fetch, their time and the queue
//! depth. Python fetches them.
//!
//! The planner is the one of `readpath-remote`, with one file. Here its calls have the types and
//! the errors of Python: `start` reads, `poll` for the ranges to fetch and the ended reads,
//! `finish` or `fail` each range, `take` the bytes. No method waits. A read that would fill half of
//! the cache bypasses it, with its own buffer.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use pyo3::exceptions::{PyBufferError, PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use readpath_core::unit::{PAGE_BYTES, Time};
use readpath_remote::planner::{
    self, Arrival, Event, FILE_BYTES_MAX, FetchId, HandleId, PlannerError, PlannerOptions,
    ReadFailure, ReadId,
};

use crate::buffers::{BufferMemory, Writable, new_bytes};
use crate::policy::advice_named;
use crate::spec::refused;

/// Read path of one file, without I/O of its own.
#[pyclass(frozen, module = "readpath")]
pub struct Planner(Mutex<FilePlan>);

/// A planner with one file.
struct FilePlan {
    planner: planner::Planner,
    handle: HandleId,
    /// Ranges in flight: first byte and end.
    fetching: BTreeMap<u64, (u64, u64)>,
    /// Size above which the bytes of a read are copied without a lock. Each larger read has a
    /// buffer of its own, because it would fill half of the cache.
    locked_copy_bytes_max: u64,
    began: Instant,
}

/// A range to fetch: its number, its first byte, and its end.
type Range = (u64, u64, u64);

impl FilePlan {
    /// Time since the creation, the planner's clock.
    fn now(&self) -> Time {
        Time(self.began.elapsed().as_nanos() as u64)
    }

    /// Takes all events of the planner. Returns the ranges to fetch, which count as in flight from
    /// now on, and the numbers of the reads that have ended.
    fn poll(&mut self) -> (Vec<Range>, Vec<u64>) {
        let now = self.now();
        let (mut ranges, mut ended) = (Vec::new(), Vec::new());
        while let Some(event) = self.planner.poll(now) {
            match event {
                Event::Fetch(fetch) => {
                    let (id, range) = (u64::from(fetch.id), fetch.range);
                    self.fetching.insert(id, (range.start, range.end));
                    ranges.push((id, range.start, range.end));
                }
                Event::Ended(read) => ended.push(read.into()),
            }
        }
        (ranges, ended)
    }

    /// Number of bytes of a successful read, which stays. A failed read is removed, and raises
    /// OSError. Raises ValueError for a read that has not ended or is unknown.
    fn bytes_or_remove(&mut self, read: u64) -> PyResult<u64> {
        let now = self.now();
        let result = self.planner.result(read.into()).ok_or_else(|| no_read(read))?;
        result.map_err(|failure| {
            self.planner.abandon(now, read.into());
            let errno = if let ReadFailure::Shrunk { .. } = failure { ESTALE } else { EIO };
            PyOSError::new_err((errno, failure.to_string()))
        })
    }

    /// Copies the bytes of a successful read, and removes the read. `destination` has at least as
    /// many bytes.
    fn copy(&mut self, read: u64, destination: &mut [u8]) {
        let now = self.now();
        let taken = self.planner.take_into(now, read.into(), destination);
        debug_assert!(matches!(taken, Some(Ok(_))), "the caller has seen the result");
    }

    /// Removes a read when it ends, or at once if it has ended.
    fn abandon(&mut self, read: u64) {
        let now = self.now();
        self.planner.abandon(now, read.into());
    }
}

/// Error number of a range that could not be fetched.
const EIO: i32 = 5;
/// Error number for too many open reads, from Linux.
const EAGAIN: i32 = 11;
/// Error number of a file that has become shorter, from Linux.
const ESTALE: i32 = 116;

/// Exception for a read that has not ended or is unknown.
fn no_read(read: u64) -> PyErr {
    refused(format!("read {read} has not ended, or was taken already"))
}

/// Exception for an error of the planner: MemoryError without memory, OSError for too many reads,
/// ValueError for an invalid argument.
fn exception(error: PlannerError) -> PyErr {
    let text = error.to_string();
    match error {
        PlannerError::OutOfMemory { .. } => PyMemoryError::new_err(text),
        PlannerError::TooManyReads { .. } => PyOSError::new_err((EAGAIN, text)),
        _ => refused(text),
    }
}

impl Planner {
    /// Locks the planner for one call. No call waits under the lock.
    fn plan(&self) -> MutexGuard<'_, FilePlan> {
        self.0.lock().expect("no thread panics while planning")
    }
}

#[pymethods]
impl Planner {
    /// Creates the read path of a file of `file_bytes` bytes.
    ///
    /// `memory_bytes`: size of its cache, at least 16 pages. The bytes of ranges in flight, at most
    /// `depth` times `request_bytes`, take memory in Python too, until `finish` copies them.
    /// `readahead`: the policy. `request_bytes`: maximum size of a range, whole pages. `depth`:
    /// maximum number of ranges in flight.
    ///
    /// Raises ValueError for an unusable option.
    #[new]
    fn new(
        file_bytes: u64,
        memory_bytes: u64,
        readahead: &str,
        request_bytes: u64,
        depth: u32,
    ) -> PyResult<Planner> {
        // These are the planner's own limits. Here the messages have the names of Python's options.
        if file_bytes > FILE_BYTES_MAX {
            return Err(refused(format!("a file of {file_bytes} bytes: none has 2⁶³ or more")));
        }
        if memory_bytes < 16 * PAGE_BYTES {
            return Err(refused(format!("memory {memory_bytes}: give at least 64KiB")));
        }
        if request_bytes == 0
            || !request_bytes.is_multiple_of(PAGE_BYTES)
            || request_bytes > 1 << 30
        {
            let what = format!("request {request_bytes}: give a multiple of 4096, up to 1GiB");
            return Err(refused(what));
        }
        let options = PlannerOptions {
            memory_bytes,
            part_bytes: request_bytes,
            fetches_max: depth,
            readahead: readahead.to_owned(),
            ..PlannerOptions::default()
        };
        let mut planner = planner::Planner::new(&options).map_err(exception)?;
        // No version is needed: a changed file gets another planner, see `readpath.versions`.
        let file = planner.open_file(file_bytes, "").map_err(exception)?;
        let plan = FilePlan {
            handle: planner.open(file).map_err(exception)?,
            planner,
            fetching: BTreeMap::new(),
            locked_copy_bytes_max: memory_bytes / 2 - PAGE_BYTES,
            began: Instant::now(),
        };
        Ok(Planner(Mutex::new(plan)))
    }

    /// Starts reads, each an offset and a size. All start before `poll` returns a range for one of
    /// them. Returns a number for each.
    ///
    /// Raises OSError for too many open reads, MemoryError without memory for a large one.
    fn start(&self, ranges: Vec<(u64, u64)>) -> PyResult<Vec<u64>> {
        let mut plan = self.plan();
        let (now, handle) = (plan.now(), plan.handle);
        let mut reads: Vec<ReadId> = Vec::with_capacity(ranges.len());
        for &(offset, bytes) in &ranges {
            match plan.planner.start(now, handle, offset, bytes) {
                Ok(read) => {
                    // Reads get memory in the order in which they begin. The caller takes the bytes
                    // in this order.
                    plan.planner.begin_started(now);
                    reads.push(read);
                }
                Err(error) => {
                    reads.into_iter().for_each(|read| plan.planner.abandon(now, read));
                    return Err(exception(error));
                }
            }
        }
        if ranges.len() > 1 {
            let ends = |&(offset, bytes): &(u64, u64)| offset..offset.saturating_add(bytes);
            let ranges: Vec<_> = ranges.iter().map(ends).collect();
            plan.planner.read_gaps(handle, &ranges).map_err(exception)?;
        }
        Ok(reads.into_iter().map(u64::from).collect())
    }

    /// Returns the ranges to fetch, each `(number, first byte, end)`, and the ended reads.
    fn poll(&self) -> (Vec<Range>, Vec<u64>) {
        self.plan().poll()
    }

    /// Completes a range. Fewer bytes than requested mean the end of the file.
    ///
    /// Raises ValueError for more bytes than requested, and for a range that is not in flight.
    fn finish(&self, py: Python<'_>, id: u64, data: &Bound<'_, PyBytes>) -> PyResult<()> {
        let data = data.as_bytes();
        // Large pieces are copied without Python's lock.
        py.detach(|| {
            let mut plan = self.plan();
            let Some((start, end)) = plan.fetching.remove(&id) else {
                return Err(refused(format!("no range {id} is being fetched")));
            };
            let (now, fetch) = (plan.now(), FetchId::from(id));
            // With too many bytes, the planner has failed the range and its reads.
            if plan.planner.fill(now, fetch, data) == Arrival::WrongLength {
                let given = data.len();
                let what = format!("bytes {start} to {end} were asked for, and {given} bytes came");
                return Err(PyValueError::new_err(what));
            }
            plan.planner.finish_at_file_end(now, fetch);
            Ok(())
        })
    }

    /// Fails a range, and with it the reads that need it. If it has more bytes than these need,
    /// `poll` first returns the needed ones once more. No effect if it is not in flight.
    fn fail(&self, id: u64) {
        let mut plan = self.plan();
        if plan.fetching.remove(&id).is_some() {
            let now = plan.now();
            plan.planner.fail(now, id.into(), EIO);
        }
    }

    /// Returns the bytes of an ended read, and removes the read.
    ///
    /// Raises OSError if the read failed (`EIO`: a range could not be fetched; `ESTALE`: the file
    /// has become shorter), ValueError if it has not ended.
    fn take<'py>(&self, py: Python<'py>, read: u64) -> PyResult<Bound<'py, PyBytes>> {
        let mut plan = self.plan();
        let bytes = plan.bytes_or_remove(read)?;
        if bytes <= plan.locked_copy_bytes_max {
            let (taken, address) =
                new_bytes(py, bytes as usize).inspect_err(|_| plan.abandon(read))?;
            // SAFETY: the object is new, has this size, and has no other user.
            plan.copy(read, unsafe { BufferMemory(address).slice(bytes as usize) });
            return Ok(taken);
        }
        drop(plan);
        // Large bytes are moved and copied without Python's lock. The read has a buffer of its own,
        // which moves here. Another thread may take or abandon the read before.
        let data = py.detach(|| {
            let mut plan = self.plan();
            let now = plan.now();
            plan.planner.take(now, read.into()).and_then(Result::ok)
        });
        let data = data.ok_or_else(|| no_read(read))?;
        let (taken, address) = new_bytes(py, data.len())?;
        let memory = BufferMemory(address);
        py.detach(move || {
            // SAFETY: the object is new, has this size, and has no other user.
            unsafe { memory.slice(data.len()) }.copy_from_slice(&data);
        });
        Ok(taken)
    }

    /// Like `take`, into a writable buffer of sufficient size. Returns the number of bytes. An
    /// unusable or short buffer is a BufferError or TypeError, and removes the read too.
    fn take_into(&self, py: Python<'_>, read: u64, buffer: &Bound<'_, PyAny>) -> PyResult<u64> {
        // An object's own code may run here and at the drop, and call this planner. Both are
        // without the lock.
        let buffer = Writable::of(buffer);
        let mut plan = self.plan();
        let bytes = plan.bytes_or_remove(read)?;
        let memory = match buffer.as_ref().map(Writable::memory) {
            Ok((_, length)) if (length as u64) < bytes => {
                Err(PyBufferError::new_err(format!("a buffer of {length} for {bytes} bytes")))
            }
            Ok((address, _)) => Ok(BufferMemory(address)),
            Err(error) => Err(error.clone_ref(py)),
        };
        let memory = memory.inspect_err(|_| plan.abandon(read))?;
        let destination = match bytes {
            // An empty buffer may have no address.
            0 => &mut [][..],
            // SAFETY: the bytes fit. `buffer` pins the buffer, which is not part of this memory.
            _ => unsafe { memory.slice(bytes as usize) },
        };
        plan.copy(read, destination);
        Ok(bytes)
    }

    /// Hint about a range, or on the use of the whole file, by its name in `posix_fadvise`.
    ///
    /// Raises ValueError for an unknown hint.
    fn advise(&self, advice: &str, offset: u64, size: u64) -> PyResult<()> {
        let advice = advice_named(advice)?;
        let mut plan = self.plan();
        let (now, handle) = (plan.now(), plan.handle);
        let range = offset..offset.saturating_add(size);
        plan.planner.advise(now, handle, advice, range).map_err(exception)
    }

    /// Abandons these reads: they are removed when they end.
    fn abandon(&self, reads: Vec<u64>) {
        let mut plan = self.plan();
        reads.into_iter().for_each(|read| plan.abandon(read));
    }

    /// Counters: `asked_bytes`, `hit_bytes`, `fetches`, `fetched_bytes`, `depth_max`.
    fn counters(&self) -> BTreeMap<&'static str, u64> {
        let counters = self.plan().planner.counters();
        BTreeMap::from([
            ("asked_bytes", counters.requested_bytes),
            ("hit_bytes", counters.hit_bytes),
            ("fetches", counters.fetches),
            ("fetched_bytes", counters.fetched_bytes),
            ("depth_max", u64::from(counters.fetches_in_flight_max)),
        ])
    }
}
