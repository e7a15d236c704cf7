//! Read path of one remote file: the core decides on the ranges to fetch, their time and the queue
//! depth. Python fetches them.
//!
//! The poll contract is the machine's: `start` reads, `poll` for the ranges to fetch and the ended
//! reads, `finish` or `fail` each range, `take` the bytes. No method waits. A read that would fill
//! half of the cache bypasses it, with its own buffer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use pyo3::exceptions::{PyBufferError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use readpath_core::machine::{
    Buffer, Config, Done, Driver, HandleId, IoBackend, Machine, ReadAccess, ReadError, ReadId,
    Transfer,
};
use readpath_core::policy::Spec;
use readpath_core::readahead::ReadaheadLimits;
use readpath_core::request::{
    Completion, DeviceCaps, DeviceError, DeviceRequest, Outcome, ProcessId, RequestId,
};
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange, SECTOR_BYTES, Time};

use crate::buffers::{BufferMemory, Writable, new_bytes, zeroed};
use crate::policy::advice_named;
use crate::spec::refused;

/// Read path of one file, without I/O of its own.
#[pyclass(frozen, module = "readpath")]
pub struct Planner(Mutex<FetchPlan>);

struct FetchPlan {
    machine: Machine,
    handle: HandleId,
    memory_bytes: u64,
    /// Frames of the cache, contiguous. The system allocates memory at their first use.
    pool: Vec<u8>,
    work: FetchWork,
    began: Instant,
}

/// Work for Python, and its results.
struct FetchWork {
    file_bytes: u64,
    /// Ranges to fetch and ended reads since the last poll.
    told: (Vec<Range>, Vec<u32>),
    /// Ranges in flight: first byte and end.
    fetching: BTreeMap<u32, (u64, u64)>,
    /// Fetched and failed ranges.
    fetched: VecDeque<Completion>,
    /// Buffers of reads that bypass the cache.
    direct: BTreeMap<u32, Direct>,
    /// Ended reads whose bytes have not been taken.
    ended: BTreeMap<u32, Result<u64, ReadError>>,
    /// Reads whose bytes will not be taken.
    abandoned: BTreeSet<u32>,
}

struct Direct {
    buffer: Vec<u8>,
    /// Bytes before the requested ones, because the read begins on a sector.
    skipped: u64,
    bytes: u64,
}

/// A range to fetch: its number, its first byte, and its end.
type Range = (u32, u64, u64);

impl IoBackend for FetchWork {
    fn submit(&mut self, _machine: &Machine, _now: Time, request: DeviceRequest) {
        let start = request.start * SECTOR_BYTES;
        let end = (request.end() * SECTOR_BYTES).min(self.file_bytes);
        self.fetching.insert(request.id.0, (start, end));
        self.told.0.push((request.id.0, start, end));
    }

    fn poll_completion(&mut self, _now: Time) -> Option<Completion> {
        self.fetched.pop_front()
    }
}

impl Driver for FetchWork {
    fn on_done(&mut self, machine: &mut Machine, now: Time, done: Done) {
        if self.abandoned.remove(&done.read.0) {
            self.direct.remove(&done.read.0);
            machine.release(now, done.read);
        } else {
            self.ended.insert(done.read.0, done.result);
            self.told.1.push(done.read.0);
        }
    }
}

impl FetchPlan {
    fn now(&self) -> Time {
        Time(self.began.elapsed().as_nanos() as u64)
    }

    fn start(&mut self, offset: u64, bytes: u64) -> PyResult<u32> {
        let now = self.now();
        let refused = |error: ReadError| PyOSError::new_err((EAGAIN, error.to_string()));
        let bytes = bytes.min(self.work.file_bytes.saturating_sub(offset));
        let transfer =
            Transfer { handle: self.handle, process: ProcessId(0), offset, bytes, tag: 0 };
        if bytes <= self.memory_bytes / 2 - PAGE_BYTES {
            return Ok(self.machine.read(now, ReadAccess::Buffered, transfer).map_err(refused)?.0);
        }
        let skipped = offset % SECTOR_BYTES;
        let whole = (skipped + bytes).next_multiple_of(SECTOR_BYTES);
        let aligned = Transfer { offset: offset - skipped, bytes: whole, ..transfer };
        let buffer = zeroed(whole as usize)?;
        let read = self.machine.read(now, ReadAccess::Direct, aligned).map_err(refused)?.0;
        self.work.direct.insert(read, Direct { buffer, skipped, bytes });
        Ok(read)
    }

    fn poll(&mut self) -> (Vec<Range>, Vec<u32>) {
        let now = self.now();
        while self.machine.step(now, &mut self.work) {}
        std::mem::take(&mut self.work.told)
    }

    /// Copies the bytes of a range to the machine's buffers.
    fn fill(&mut self, id: u32, data: &[u8]) {
        let FetchPlan { machine, pool, work, .. } = self;
        let mut left = data;
        machine.request_buffers(RequestId(id), |buffer| {
            let place = match buffer {
                Buffer::Frame(frame) => {
                    let at = frame.0 as usize * PAGE_BYTES as usize;
                    &mut pool[at..at + PAGE_BYTES as usize]
                }
                Buffer::Caller { read, offset, bytes } => {
                    let buffer =
                        &mut work.direct.get_mut(&read.0).expect("it reads directly").buffer;
                    let end = buffer.len().min((offset + bytes) as usize);
                    &mut buffer[offset as usize..end]
                }
            };
            let (now, later) = left.split_at(place.len().min(left.len()));
            place[..now.len()].copy_from_slice(now);
            left = later;
        });
    }

    fn end(&mut self, id: u32, outcome: Outcome) {
        self.work.fetching.remove(&id);
        self.work.fetched.push_back(Completion::at(self.now(), RequestId(id), outcome));
    }

    /// Calls `each` with the pieces of a successful read, in order.
    fn pieces(&self, read: u32, bytes: u64, mut each: impl FnMut(&[u8])) {
        if let Some(direct) = self.work.direct.get(&read) {
            return each(&direct.buffer[direct.skipped as usize..][..bytes as usize]);
        }
        let mut skipped = self.machine.offset(ReadId(read)) % PAGE_BYTES;
        let mut left = bytes;
        for frame in self.machine.read_frames(ReadId(read)) {
            let part = left.min(PAGE_BYTES - skipped);
            let at = u64::from(frame.0) * PAGE_BYTES + skipped;
            each(&self.pool[at as usize..][..part as usize]);
            (left, skipped) = (left - part, 0);
        }
    }

    fn release(&mut self, read: u32) {
        self.work.direct.remove(&read);
        let now = self.now();
        self.machine.release(now, ReadId(read));
    }

    /// Result of an ended read: its number of bytes, or its error.
    fn outcome(&mut self, read: u32) -> PyResult<u64> {
        let result = self.work.ended.remove(&read).ok_or_else(|| refused(no_read(read)))?;
        let direct = self.work.direct.get(&read);
        // Bytes beyond the request do not belong to the caller.
        let bytes = |given: u64| {
            direct.map_or(given, |direct| given.saturating_sub(direct.skipped).min(direct.bytes))
        };
        match result {
            Ok(given) => Ok(bytes(given)),
            Err(error) => {
                self.release(read);
                let errno = if let ReadError::Device { .. } = error { EIO } else { ESTALE };
                Err(PyOSError::new_err((errno, error.to_string())))
            }
        }
    }
}

/// Maximum size of a file on any system.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Error number of a range that could not be fetched.
const EIO: i32 = 5;
/// Error number for too many open reads, from Linux.
const EAGAIN: i32 = 11;
/// Error number of a file that has become shorter, from Linux.
const ESTALE: i32 = 116;

fn no_read(read: u32) -> String {
    format!("read {read} has not ended, or was taken already")
}

impl Planner {
    fn plan(&self) -> MutexGuard<'_, FetchPlan> {
        self.0.lock().expect("no thread panics while planning")
    }
}

#[pymethods]
impl Planner {
    /// Creates the read path of a file of `file_bytes` bytes.
    ///
    /// `memory_bytes`: size of its cache, and the same again at most for ranges in flight; at least
    /// 16 pages. `readahead`: the policy. `request_bytes`: maximum size of a range, whole pages.
    /// `depth`: maximum number of ranges in flight.
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
        let caps = DeviceCaps {
            sectors: file_bytes.div_ceil(PAGE_BYTES) * PAGE_SECTORS,
            request_sectors_max: (request_bytes / SECTOR_BYTES) as u32,
            depth_max: depth,
            is_rotational: false,
            alignment_sectors: 1,
        };
        let config = Config {
            memory_bytes,
            readahead: Spec::parse(readahead).map_err(refused)?,
            limits: ReadaheadLimits {
                request_pages_max: request_bytes / PAGE_BYTES,
                ..ReadaheadLimits::default()
            },
            ..Config::new(caps)
        };
        let mut machine = Machine::new(config).map_err(refused)?;
        let file = machine.add_file(file_bytes, 0).map_err(refused)?;
        let handle = machine.open(file);
        let plan = FetchPlan {
            machine,
            handle,
            memory_bytes,
            pool: zeroed((memory_bytes / PAGE_BYTES * PAGE_BYTES) as usize)?,
            work: FetchWork {
                file_bytes,
                told: Default::default(),
                fetching: BTreeMap::new(),
                fetched: VecDeque::new(),
                direct: BTreeMap::new(),
                ended: BTreeMap::new(),
                abandoned: BTreeSet::new(),
            },
            began: Instant::now(),
        };
        Ok(Planner(Mutex::new(plan)))
    }

    /// Starts reads before the first range is returned. Returns a number for each.
    ///
    /// Raises OSError for too many open reads, MemoryError without memory for a large one.
    fn start(&self, ranges: Vec<(u64, u64)>) -> PyResult<Vec<u32>> {
        let mut plan = self.plan();
        let mut reads = Vec::with_capacity(ranges.len());
        for (offset, bytes) in ranges {
            match plan.start(offset, bytes) {
                Ok(read) => reads.push(read),
                Err(error) => {
                    plan.work.abandoned.extend(reads);
                    return Err(error);
                }
            }
        }
        Ok(reads)
    }

    /// Returns the ranges to fetch, each `(number, first byte, end)`, and the ended reads.
    fn poll(&self) -> (Vec<Range>, Vec<u32>) {
        self.plan().poll()
    }

    /// Completes a range. Fewer bytes than requested mean the end of the file.
    ///
    /// Raises ValueError for more bytes than requested.
    fn finish(&self, py: Python<'_>, id: u32, data: &Bound<'_, PyBytes>) -> PyResult<()> {
        let data = data.as_bytes();
        // Large pieces are copied without Python's lock.
        py.detach(|| {
            let mut plan = self.plan();
            let Some(&(start, end)) = plan.work.fetching.get(&id) else {
                return Err(refused(format!("no range {id} is being fetched")));
            };
            let given = data.len() as u64;
            if given > end - start {
                plan.end(id, Outcome::Failed(DeviceError::Medium));
                let what = format!("bytes {start} to {end} were asked for, and {given} bytes came");
                return Err(PyValueError::new_err(what));
            }
            plan.fill(id, data);
            let is_whole = given == end - start;
            plan.end(id, if is_whole { Outcome::Done } else { Outcome::Short { bytes: given } });
            Ok(())
        })
    }

    /// Fails a range.
    fn fail(&self, id: u32) {
        let mut plan = self.plan();
        if plan.work.fetching.contains_key(&id) {
            plan.end(id, Outcome::Failed(DeviceError::Medium));
        }
    }

    /// Returns the bytes of an ended read, and removes the read.
    ///
    /// Raises OSError if the read failed (`EIO`: a range could not be fetched; `ESTALE`: the file
    /// has become shorter), ValueError if it has not ended.
    fn take<'py>(&self, py: Python<'py>, read: u32) -> PyResult<Bound<'py, PyBytes>> {
        let mut plan = self.plan();
        let bytes = plan.outcome(read)?;
        if let Some(direct) = plan.work.direct.remove(&read) {
            plan.release(read);
            drop(plan);
            let (taken, place) = new_bytes(py, bytes as usize)?;
            let place = BufferMemory(place);
            // The copy is large, so it holds neither the plan's lock nor Python's.
            py.detach(move || {
                let from = &direct.buffer[direct.skipped as usize..][..bytes as usize];
                // SAFETY: the object is new, has this size, and has no other user.
                unsafe { place.slice(from.len()) }.copy_from_slice(from);
            });
            return Ok(taken);
        }
        let (taken, place) = new_bytes(py, bytes as usize)?;
        // SAFETY: the object is new, has this size, and has no other user.
        let mut place = unsafe { BufferMemory(place).slice(bytes as usize) };
        plan.pieces(read, bytes, |piece| {
            let (now, later) = std::mem::take(&mut place).split_at_mut(piece.len());
            now.copy_from_slice(piece);
            place = later;
        });
        plan.release(read);
        Ok(taken)
    }

    /// Like `take`, into a writable buffer of sufficient size. Returns the number of bytes.
    fn take_into(&self, py: Python<'_>, read: u32, buffer: &Bound<'_, PyAny>) -> PyResult<u64> {
        let mut plan = self.plan();
        let bytes = plan.outcome(read)?;
        let buffer = Writable::of(buffer);
        let place = buffer.as_ref().map(Writable::place);
        let place = match place {
            Ok((_, room)) if (room as u64) < bytes => {
                Err(PyBufferError::new_err(format!("a buffer of {room} for {bytes} bytes")))
            }
            Ok((place, _)) => Ok(place),
            Err(error) => Err(error.clone_ref(py)),
        };
        let copied = place.map(|mut place| {
            plan.pieces(read, bytes, |piece| {
                // SAFETY: the pieces have `bytes` bytes together, which fit. `buffer` pins the
                // buffer, which is not part of this memory.
                place = unsafe {
                    std::ptr::copy_nonoverlapping(piece.as_ptr(), place, piece.len());
                    place.add(piece.len())
                };
            });
            bytes
        });
        plan.release(read);
        copied
    }

    /// Hint about a range, or on the use of the whole file, by its name in `posix_fadvise`.
    ///
    /// Raises ValueError for an unknown hint.
    fn advise(&self, advice: &str, offset: u64, size: u64) -> PyResult<()> {
        let advice = advice_named(advice)?;
        let mut plan = self.plan();
        let (now, handle) = (plan.now(), plan.handle);
        let size = size.min(plan.work.file_bytes.saturating_sub(offset));
        let range = PageRange::covering(offset, size);
        plan.machine.advise(now, handle, ProcessId(0), advice, range);
        Ok(())
    }

    /// Abandons these reads: they are removed when they end.
    fn abandon(&self, reads: Vec<u32>) {
        let mut plan = self.plan();
        for read in reads {
            if plan.work.ended.remove(&read).is_some() {
                plan.release(read);
            } else {
                plan.work.abandoned.insert(read);
            }
        }
    }

    /// Counters: `asked_bytes`, `hit_bytes`, `fetches`, `fetched_bytes`, `depth_max`.
    fn counters(&self) -> BTreeMap<&'static str, u64> {
        let plan = self.plan();
        let meter = plan.machine.meter();
        BTreeMap::from([
            ("asked_bytes", meter.requested_bytes),
            ("hit_bytes", meter.hit_bytes),
            ("fetches", meter.device_reads),
            ("fetched_bytes", meter.device_read_bytes),
            ("depth_max", u64::from(meter.depth_max)),
        ])
    }
}
