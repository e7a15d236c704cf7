//! Raw operations in the runner: one large transfer, chunk by chunk.
//!
//! Before a chunk goes out its memory is pinned and described, which keeps the
//! process busy ([`SimulatedEnvironment::pin`]); then it is a direct read or write of the
//! machine. How large it is, and whether the next is pinned while it is in
//! flight, is the raw law's decision. A process has one raw operation at a time.

use readpath_core::machine::{Done, ReadError};
use readpath_core::raw::{Chunk, RawTransfer};
use readpath_core::request::{DeviceError, Op, Outcome};
use readpath_core::unit::SECTOR_BYTES;

use super::*;

/// Marks the tags of chunks; the rest of such a tag is the place in `ChunksInFlight`.
const CHUNK_TAG: u64 = 1 << 63;

/// The raw operation of one process.
#[derive(Debug)]
pub(super) struct RawOperation {
    /// Its place among the operations under way.
    tag: u32,
    transfer: RawTransfer,
    /// A chunk that is being pinned; it goes out when the process is free again.
    pinned: Option<Chunk>,
    /// What the machine said of the lowest chunk that failed.
    error: Option<(u64, ReadError)>,
}

/// The chunks in flight, by their tags.
#[derive(Debug, Default)]
pub(super) struct ChunksInFlight(Slab<(u32, Chunk)>);

impl ChunksInFlight {
    fn open(&mut self, process: u32, chunk: Chunk) -> u64 {
        CHUNK_TAG | self.0.insert((process, chunk)) as u64
    }

    fn close(&mut self, tag: u64) -> (u32, Chunk) {
        self.0.remove((tag & !CHUNK_TAG) as usize)
    }
}

/// Whether what is done is a chunk of a raw operation.
pub(super) fn is_chunk(done: &Done) -> bool {
    done.tag & CHUNK_TAG != 0
}

impl RunningJob<'_> {
    /// Starts a raw operation: pins its first chunk.
    pub(super) fn start_raw(&mut self, machine: &mut Machine, now: Time, tag: u32) {
        let OperationInFlight { process, operation, .. } = self.under[tag as usize];
        // What a misaligned write would have to read first is not modelled: such a
        // write reaches the machine as it is, which refuses it where a device must.
        let alignment_bytes = match operation.op {
            Op::Read => u64::from(machine.caps().alignment_sectors) * SECTOR_BYTES,
            Op::Write => 1,
        };
        let transfer = RawTransfer::new(operation.offset, operation.bytes, alignment_bytes);
        let raw = RawOperation { tag, transfer, pinned: None, error: None };
        let running = &mut self.processes[process as usize];
        assert!(running.raw.replace(raw).is_none(), "one raw operation at a time");
        self.pin_next(machine, now, process);
    }

    /// Pins the next chunk, if the law wants one now and none is being pinned.
    fn pin_next(&mut self, machine: &mut Machine, now: Time, process: u32) {
        let running = &mut self.processes[process as usize];
        let Some(raw) = running.raw.as_mut().filter(|raw| raw.pinned.is_none()) else { return };
        let Some(chunk) = raw.transfer.poll_chunk(machine.raw_policy()) else { return };
        raw.pinned = Some(chunk);
        let span = self.world.pin(chunk.bytes);
        running.busy_until = running.busy_until.max(now) + span;
        self.later.push(Reverse((running.busy_until, process)));
    }

    /// Submits what a process has pinned by now, and pins on. `now` is not
    /// before the process is free.
    pub(super) fn submit_pinned(&mut self, machine: &mut Machine, now: Time, process: u32) {
        let running = &mut self.processes[process as usize];
        let Some(raw) = &mut running.raw else { return };
        let Some(chunk) = raw.pinned.take() else { return };
        let operation = self.under[raw.tag as usize].operation;
        let handle = self.handle_of(machine, now, process, operation.file);
        let transfer = Transfer {
            handle,
            process: ProcessId(process),
            offset: chunk.offset,
            bytes: chunk.bytes,
            tag: self.chunks.open(process, chunk),
        };
        let started = match operation.op {
            Op::Read => machine.read(now, ReadAccess::Direct, transfer),
            Op::Write => machine.write(now, transfer, true),
        };
        if let Err(error) = started {
            self.chunks.close(transfer.tag);
            self.chunk_ended(machine, now, process, chunk, Err(error));
        }
        self.pin_next(machine, now, process);
    }

    /// A chunk is done: its place is free for the next.
    pub(super) fn take_chunk(&mut self, machine: &mut Machine, now: Time, done: &Done) {
        let (process, chunk) = self.chunks.close(done.tag);
        machine.release(now, done.read);
        self.chunk_ended(machine, now, process, chunk, done.result);
        self.pin_next(machine, now, process);
    }

    fn chunk_ended(
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
                if raw.error.is_none_or(|(lowest, _)| chunk.offset < lowest) {
                    raw.error = Some((chunk.offset, error));
                }
                // The books need to know that it failed; how, stands beside them.
                Outcome::Failed(DeviceError::Medium)
            }
        };
        raw.transfer.handle(chunk, outcome);
        if !raw.transfer.is_over() {
            return;
        }
        let raw = running.raw.take().expect("it was here above");
        let end = raw.transfer.end();
        let result = match (end.error, raw.error) {
            (Some(_), Some((_, error))) => Err(error),
            _ => Ok(end.bytes),
        };
        self.end(machine, now, raw.tag, result);
    }
}
