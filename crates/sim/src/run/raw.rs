//! Raw operations: one large transfer in chunks.
//!
//! Before a chunk is submitted, its memory is pinned and described, which keeps the process busy
//! ([`SimulatedEnvironment::charge_pinning`]). The chunk is then a direct read or write of the
//! machine. The chunking policy decides its size, and whether the next chunk is pinned while it is
//! in flight. A process has one raw operation at a time.
//!
//! The *machine* ([`Machine`]) is the read path with its page cache, its policies and its
//! scheduler.

use readpath_core::chunking::{Chunk, RawTransfer};
use readpath_core::machine::{Done, ReadError};
use readpath_core::request::{DeviceError, Op, Outcome};
use readpath_core::unit::SECTOR_BYTES;

use super::*;

/// Bit that marks the tag of a chunk. The other bits are its index in `ChunksInFlight`.
const CHUNK_TAG: u64 = 1 << 63;

/// Raw operation of one process.
#[derive(Debug)]
pub(super) struct RawOperation {
    /// Its index among the operations in flight.
    tag: u32,
    /// Division of the operation into chunks.
    transfer: RawTransfer,
    /// A chunk whose memory is being pinned, and which is submitted at the end of pinning.
    pinning: Option<Chunk>,
    /// Offset in bytes and error of the lowest chunk that failed.
    lowest_error: Option<(u64, ReadError)>,
}

/// Chunks in flight with the numbers of their processes, by tag.
#[derive(Debug, Default)]
pub(super) struct ChunksInFlight(Slab<(u32, Chunk)>);

impl ChunksInFlight {
    /// Adds a chunk of process number `process`, and returns its tag.
    fn insert(&mut self, process: u32, chunk: Chunk) -> u64 {
        CHUNK_TAG | self.0.insert((process, chunk)) as u64
    }

    /// Removes the chunk with this tag. Returns the number of its process and the chunk.
    fn remove(&mut self, tag: u64) -> (u32, Chunk) {
        self.0.remove((tag & !CHUNK_TAG) as usize)
    }
}

/// Returns true if the completed transfer is a chunk of a raw operation.
pub(super) fn is_chunk(done: &Done) -> bool {
    done.tag & CHUNK_TAG != 0
}

impl RunningJob<'_> {
    /// Starts a raw operation: pins its first chunk.
    pub(super) fn start_raw(&mut self, machine: &mut Machine, now: Time, tag: u32) {
        let OperationInFlight { process, operation, .. } = self.operations_in_flight[tag as usize];
        // The read-modify-write of a misaligned write is not modelled. This write is passed to
        // the machine unchanged, which rejects it if the device requires alignment.
        let alignment_bytes = match operation.op {
            Op::Read => u64::from(machine.caps().alignment_sectors) * SECTOR_BYTES,
            Op::Write => 1,
        };
        let transfer = RawTransfer::new(operation.offset, operation.bytes, alignment_bytes);
        let raw = RawOperation { tag, transfer, pinning: None, lowest_error: None };
        let running = &mut self.processes[process as usize];
        assert!(running.raw.replace(raw).is_none(), "one raw operation at a time");
        self.pin_next(machine, now, process);
    }

    /// Pins the next chunk, if the policy demands one now and none is being pinned. The process is
    /// busy until the end of pinning, and submits the chunk then.
    fn pin_next(&mut self, machine: &mut Machine, now: Time, process: u32) {
        let running = &mut self.processes[process as usize];
        let Some(raw) = running.raw.as_mut().filter(|raw| raw.pinning.is_none()) else { return };
        let Some(chunk) = raw.transfer.poll_chunk(machine.chunking_policy()) else { return };
        raw.pinning = Some(chunk);
        let pin_time = self.world.charge_pinning(chunk.bytes);
        running.busy_until = running.busy_until.max(now) + pin_time;
        self.later.push(Reverse((running.busy_until, process)));
    }

    /// Submits the pinned chunk of a process and pins the next. `now` is not before the end of
    /// pinning. A chunk that the machine refuses ends with its error. No effect without a pinned
    /// chunk.
    pub(super) fn submit_pinned(&mut self, machine: &mut Machine, now: Time, process: u32) {
        let running = &mut self.processes[process as usize];
        let Some(raw) = &mut running.raw else { return };
        let Some(chunk) = raw.pinning.take() else { return };
        let operation = self.operations_in_flight[raw.tag as usize].operation;
        let handle = self.open_once(machine, now, process, operation.file);
        let transfer = Transfer {
            handle,
            process: ProcessId(process),
            offset: chunk.offset,
            bytes: chunk.bytes,
            tag: self.chunks.insert(process, chunk),
        };
        let started = match operation.op {
            Op::Read => machine.read(now, ReadAccess::Direct, transfer),
            // For the schedulers, a process waits for each of its writes (`IS_SYNC`).
            Op::Write => machine.write(now, transfer, IS_SYNC),
        };
        // The identifier of a started transfer is not needed: its end is reported with its tag.
        if let Err(error) = started {
            self.chunks.remove(transfer.tag);
            self.record_chunk_end(machine, now, process, chunk, Err(error));
        }
        self.pin_next(machine, now, process);
    }

    /// Handles the completion of a chunk, and pins the next chunk of the process.
    pub(super) fn on_chunk_completed(&mut self, machine: &mut Machine, now: Time, done: &Done) {
        let (process, chunk) = self.chunks.remove(done.tag);
        machine.release(now, done.read);
        self.record_chunk_end(machine, now, process, chunk, done.result);
        self.pin_next(machine, now, process);
    }

    /// Records the result of a chunk. The last chunk ends the operation, with the error of the
    /// lowest failed chunk or with the bytes before the first gap.
    fn record_chunk_end(
        &mut self,
        machine: &mut Machine,
        now: Time,
        process: u32,
        chunk: Chunk,
        result: Result<u64, ReadError>,
    ) {
        let running = &mut self.processes[process as usize];
        let raw = running.raw.as_mut().expect("its chunks keep a raw operation alive");
        let outcome = match result {
            Ok(bytes) if bytes == chunk.bytes => Outcome::Done,
            Ok(bytes) => Outcome::Short { bytes },
            Err(error) => {
                if raw.lowest_error.is_none_or(|(lowest, _)| chunk.offset < lowest) {
                    raw.lowest_error = Some((chunk.offset, error));
                }
                // The transfer only needs to know that the chunk failed. The error is stored
                // separately.
                Outcome::Failed(DeviceError::Medium)
            }
        };
        raw.transfer.handle(chunk, outcome);
        if !raw.transfer.is_over() {
            return;
        }
        let raw = running.raw.take().expect("it was here above");
        // The end has no error if a short chunk lies before the failed one.
        let end = raw.transfer.end();
        let result = match (end.error, raw.lowest_error) {
            (Some(_), Some((_, error))) => Err(error),
            _ => Ok(end.bytes),
        };
        self.complete_operation(machine, now, raw.tag, result);
    }
}
