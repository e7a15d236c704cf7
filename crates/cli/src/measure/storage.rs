//! Real storage under measurement: direct reads, many in flight.

use std::time::Instant;

use readpath::raw::{RawBatch, RawFile, RawMemory};
use readpath_models::measure::{MeasurementCell, RequestExecutor};

use crate::exit::Failure;
use crate::progress::Interrupt;

/// Measured file or block device, and the buffers of its reads.
pub struct RealStorage<'f> {
    /// The requests in flight.
    batch: RawBatch<'f>,
    /// Buffers by ticket, the number of a slot of the queue; `None` during a read.
    buffers: Vec<Option<RawMemory>>,
    /// Size of each request.
    bytes: usize,
    /// Bytes of all reads so far.
    requested_bytes: u64,
    /// Time of the preparation, from which times are counted.
    clock: Instant,
    /// Checked after each read.
    interrupt: &'f Interrupt,
}

impl<'f> RealStorage<'f> {
    /// Prepares the requests of `cell`: a batch of its queue depth, and a buffer for each request
    /// in flight.
    ///
    /// # Errors
    /// The batch or the memory is not available.
    pub fn new(
        file: &'f RawFile,
        cell: MeasurementCell,
        interrupt: &'f Interrupt,
    ) -> Result<RealStorage<'f>, Failure> {
        let bytes = cell.bytes as usize;
        let new_buffer = || RawMemory::new(bytes).map(Some).map_err(unavailable);
        Ok(RealStorage {
            batch: file.batch(cell.depth).map_err(unavailable)?,
            buffers: (0..cell.depth).map(|_| new_buffer()).collect::<Result<_, _>>()?,
            bytes,
            requested_bytes: 0,
            clock: Instant::now(),
            interrupt,
        })
    }
}

impl RealStorage<'_> {
    /// Returns the bytes of all reads so far, also of those in flight.
    pub fn requested_bytes(&self) -> u64 {
        self.requested_bytes
    }
}

impl RequestExecutor for RealStorage<'_> {
    type Error = Failure;

    /// Time since the preparation of the requests.
    fn now_ns(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    /// Starts a read of `bytes` bytes at `offset`, into the buffer of the ticket. All reads have
    /// the size of the cell's requests.
    fn start(&mut self, offset: u64, bytes: u64, ticket: usize) -> Result<(), Failure> {
        let buffer = self.buffers[ticket].take().expect("a ticket has one read under way");
        self.requested_bytes += bytes;
        let started = self.batch.read(buffer, bytes as usize, offset, ticket as u64);
        started.map_err(Failure::usage)
    }

    /// Waits for the end of a read, and returns its ticket. An interrupt, an error and a short read
    /// are failures. The ticket then stays without a buffer: the measurement ends.
    fn wait(&mut self) -> Result<usize, Failure> {
        let completed = self.batch.wait().map_err(unavailable)?.expect("a read is under way");
        if self.interrupt.is_signalled() {
            return Err(Failure::Interrupted);
        }
        let bytes_read = completed.result.map_err(|error| Failure::Run(error.to_string()))?;
        if bytes_read != self.bytes {
            let problem = "the file became shorter while it was measured";
            return Err(Failure::Run(problem.to_owned()));
        }
        let ticket = completed.ticket as usize;
        self.buffers[ticket] = Some(completed.memory);
        Ok(ticket)
    }
}

/// Creates the failure for a missing feature of the system.
fn unavailable(error: impl std::fmt::Display) -> Failure {
    Failure::Unavailable(error.to_string())
}
