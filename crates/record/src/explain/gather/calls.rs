//! Small reads by system calls: the call, not the number of bytes, dominates their processor time.

use super::super::spans::IntervalUnion;
use readpath_trace::recording::{ReadMethod, ReadRecord, RecordingMethod};

/// Maximum size of a small read in bytes. A call costs as much as copying 2 to 5 KiB, so below this
/// size the call dominates.
const CALL_BYTES_MAX: u64 = 1024;

/// Time to copy a byte out of memory, in nanoseconds: 10 GB/s.
const COPY_NS: f64 = 0.1;

/// Size in bytes of the buffer for which the saving is computed.
pub(in super::super) const BUFFER_BYTES: u64 = 64 << 10;

/// Small reads that did not wait for a device.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Calls {
    /// Time in which at least one thread was in such a call.
    spans: IntervalUnion,
    /// Number of calls.
    pub count: u64,
    /// Bytes that the calls returned.
    pub bytes: u64,
    /// Processor time of the program in nanoseconds. `None` if unknown. A call that another thread
    /// displaced from its processor has taken less of it than its duration.
    pub processor_ns: Option<u64>,
    /// Number of calls that began in the last page of a recent read, or in the next page.
    pub sequential_calls: u64,
}

/// Offsets of the small reads of a file, in bytes. All 0 without a read.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct CallOffsets {
    /// Number of the reads.
    pub count: u64,
    /// Offset of the last read.
    pub last: u64,
    /// Smallest offset.
    pub smallest: u64,
    /// Largest offset.
    pub largest: u64,
}

impl CallOffsets {
    /// Adds a read at this offset.
    pub fn add(&mut self, offset: u64) {
        self.smallest = if self.count == 0 { offset } else { self.smallest.min(offset) };
        self.largest = self.largest.max(offset);
        (self.count, self.last) = (self.count + 1, offset);
    }
}

impl Calls {
    /// Adds a read if it is a small system call without a wait that returned bytes and has a known
    /// duration. Returns true if it was added. `is_adjacent`: the read begins in the last page of a
    /// recent read, or in the next page.
    ///
    /// `strace` stops a program at each call, and a trace of requests has no calls. Their times are
    /// no measure of the cost of a call.
    pub fn add_if_small(
        &mut self,
        source: RecordingMethod,
        read: &ReadRecord,
        waited_ns: u64,
        is_adjacent: bool,
    ) -> bool {
        let is_timed = matches!(source, RecordingMethod::Tracepoints | RecordingMethod::Preload);
        let is_call = matches!(
            read.way,
            ReadMethod::Read | ReadMethod::Pread | ReadMethod::Readv | ReadMethod::Preadv
        );
        let got_bytes = read.bytes_read();
        let is_small = got_bytes > 0 && read.asked_bytes <= CALL_BYTES_MAX;
        if !(is_timed && is_call && is_small && waited_ns == 0) {
            return false;
        }
        self.spans.add(read.begin_ns, read.end_ns);
        self.count += 1;
        self.bytes += got_bytes;
        self.sequential_calls += u64::from(is_adjacent);
        true
    }

    /// Returns the time in nanoseconds in which a thread was in such a call, less the time to copy
    /// all bytes. At most the processor time of the program.
    pub fn total_ns(&self) -> f64 {
        let copies_ns = self.bytes as f64 * COPY_NS;
        let limit_ns = self.processor_ns.map_or(f64::INFINITY, |processor_ns| processor_ns as f64);
        (self.spans.union_ns() as f64 - copies_ns).clamp(0.0, limit_ns)
    }

    /// Returns the mean duration of a call in nanoseconds, including its copy. At most its part of
    /// the processor time of the program.
    pub fn mean_ns(&self) -> f64 {
        let total_ns = self.processor_ns.unwrap_or(u64::MAX).min(self.spans.sum_ns());
        total_ns as f64 / self.count.max(1) as f64
    }

    /// Returns the number of calls that remain with a buffer.
    pub fn calls_with_buffer(&self) -> u64 {
        self.bytes.div_ceil(BUFFER_BYTES)
    }

    /// Returns the time in nanoseconds that a buffer of [`BUFFER_BYTES`] saves. If the reads are
    /// not sequential, it is the time that a mapping saves at most.
    pub fn saved_ns(&self) -> f64 {
        self.total_ns()
            * (1.0 - self.calls_with_buffer() as f64 / self.count.max(1) as f64).max(0.0)
    }
}
