//! Operations of a process: one call after the other, or a batch with many in flight.
//!
//! The module `content` fills the data of writes and verifies the data of reads, if the job says
//! so.

use std::time::Duration;

use readpath::File;
use readpath::raw::{RawBatch, RawError, RawFault, RawFile, RawMemory, RawMoved};
use readpath_core::request::Op;
use readpath_core::unit::Time;
use readpath_sim::workload::{NextAction, Process, ProcessOperation};

use super::content;
use super::processes::{ProcessFigures, ProcessesShared, sleep_until, sync};
use crate::exit::Failure;

/// Adds the device requests of a raw file, and their bytes, to the figures. A [`RawFile`] counts
/// its single calls and the transfers of its batches.
pub fn add_raw_counters(figures: &mut ProcessFigures, file: &RawFile) {
    let counters = file.stats();
    figures.counted.requests += counters.reads + counters.writes;
    figures.counted.bytes += counters.read_bytes + counters.written_bytes;
}

/// Runs a process with synchronous operations, after all processes of its phase are prepared.
/// `call` executes one, and returns at its end. It gets the offset in the storage that holds all
/// files of the job, and a buffer as long as the operation. Reads end before `end_bytes`, the end
/// of the file. An interrupt ends the loop at once, without
/// [`record_end`](ProcessFigures::record_end).
pub fn run_calls(
    mut process: Process,
    shared: &ProcessesShared<'_>,
    end_bytes: u64,
    figures: &mut ProcessFigures,
    mut call: impl FnMut(ProcessOperation, u64, &mut [u8]) -> Result<(), String>,
) -> Result<(), Failure> {
    let mut memory = RawMemory::new(process.block_bytes_max() as usize).map_err(Failure::usage)?;
    // Returns when all processes of the phase are prepared.
    shared.begin();
    sleep_until(process.start_delay(), shared);
    while !(shared.is_stopping)() {
        let now = shared.now();
        match process.next(now) {
            NextAction::Operation(operation) => {
                let offset = shared.offset(operation);
                let operation = cut_at_end(operation, offset, end_bytes);
                let memory = &mut memory[..operation.bytes as usize];
                content::fill_write(&process, operation, offset, memory);
                let result = call(operation, offset, memory)
                    .and_then(|()| content::verify_read(&process, operation, offset, memory));
                record_operation_end(&mut process, figures, shared, (operation, now), result);
            }
            NextAction::Sync { is_data_enough: is_fdatasync_enough } => {
                execute_sync(&mut process, figures, shared, is_fdatasync_enough)
            }
            NextAction::WaitUntil(time) => sleep_until(time, shared),
            NextAction::WaitForCompletion => {
                unreachable!("a system call has ended when it returns")
            }
            NextAction::Ended => {
                figures.record_end(&process, now);
                break;
            }
        }
    }
    Ok(())
}

/// Syncs the writes of a process to the medium: by `fdatasync(2)` if `is_fdatasync_enough`, else by
/// `fsync(2)`. Records the end or the error, and reports the sync to the process.
fn execute_sync(
    process: &mut Process,
    figures: &mut ProcessFigures,
    shared: &ProcessesShared<'_>,
    is_fdatasync_enough: bool,
) {
    let result = sync(shared.path, is_fdatasync_enough);
    let end_time = shared.now();
    figures.record_sync(end_time, result.map_err(|error| error.to_string()));
    process.synced(end_time);
}

/// Transfers all bytes of one operation directly, without the cache. `memory` is as long as the
/// operation. `offset` is its place in the storage that holds all files of the job.
pub fn transfer_raw(
    file: &RawFile,
    memory: &mut [u8],
    operation: ProcessOperation,
    offset: u64,
) -> Result<(), String> {
    let result = match operation.op {
        Op::Read => file.read_exact_at(memory, offset),
        Op::Write => file.write_all_at(memory, offset),
    };
    result.map_err(|RawError { fault, .. }: RawError| match fault {
        RawFault::EndOfFile { bytes_done, .. } => short_transfer_error(bytes_done, operation),
        fault => fault.to_string(),
    })
}

/// Cuts a read at the end of the file. The last read of a trace, widened to whole blocks, can end
/// behind it.
fn cut_at_end(operation: ProcessOperation, offset: u64, end_bytes: u64) -> ProcessOperation {
    match operation.op {
        Op::Read if offset < end_bytes => {
            let bytes = operation.bytes.min(end_bytes - offset);
            ProcessOperation { bytes, ..operation }
        }
        _ => operation,
    }
}

/// Error message of a transfer that ended early. It names the offset in the job's own file.
fn short_transfer_error(bytes_done: u64, operation: ProcessOperation) -> String {
    format!(
        "{bytes_done} of {} bytes at {}: the file ends there",
        operation.bytes, operation.offset
    )
}

/// Operation with its time of issue.
type Issued = (ProcessOperation, Time);

/// Operations in flight, by ticket.
type IssuedOperations = slab::Slab<Issued>;

/// Returns the next action of a process with a batch. After an interrupt it issues no more
/// operations, and ends when none is in flight. Unlike in [`run_calls`], this end is recorded.
fn next_action(
    process: &mut Process,
    shared: &ProcessesShared<'_>,
    in_flight: &IssuedOperations,
    now: Time,
) -> NextAction {
    if !(shared.is_stopping)() {
        return process.next(now);
    }
    match in_flight.is_empty() {
        true => NextAction::Ended,
        false => NextAction::WaitForCompletion,
    }
}

/// Returns the result of an operation: a transfer of fewer bytes than requested is an error.
fn check_complete(
    operation: ProcessOperation,
    transferred: Result<usize, String>,
) -> Result<(), String> {
    match transferred? as u64 {
        bytes if bytes < operation.bytes => Err(short_transfer_error(bytes, operation)),
        _ => Ok(()),
    }
}

/// Records the end of an operation in the figures, and reports it to the process. The process
/// continues also after an error.
fn record_operation_end(
    process: &mut Process,
    figures: &mut ProcessFigures,
    shared: &ProcessesShared<'_>,
    (operation, issue_time): Issued,
    result: Result<(), String>,
) {
    let end_time = shared.now();
    figures.record_if_measured(process, (operation, issue_time), end_time, result, shared);
    process.completed(end_time);
}

/// Runs a process with many cached reads in flight, after all processes of its phase are prepared.
/// Each write is a synchronous call on `raw_file`, which is `None` if the process does not write.
pub fn run_batch(
    mut process: Process,
    shared: &ProcessesShared<'_>,
    figures: &mut ProcessFigures,
    file: &File,
    raw_file: Option<&RawFile>,
) -> Result<(), Failure> {
    let mut memory = RawMemory::new(process.block_bytes_max() as usize).map_err(Failure::usage)?;
    let mut batch = file.read_path().batch();
    let mut in_flight = IssuedOperations::new();
    shared.begin();
    sleep_until(process.start_delay(), shared);
    loop {
        let now = shared.now();
        let action = next_action(&mut process, shared, &in_flight, now);
        match (action, raw_file) {
            (
                NextAction::Operation(operation @ ProcessOperation { op: Op::Write, .. }),
                Some(raw_file),
            ) => {
                let memory = &mut memory[..operation.bytes as usize];
                let offset = shared.offset(operation);
                content::fill_write(&process, operation, offset, memory);
                let result = transfer_raw(raw_file, memory, operation, offset);
                record_operation_end(&mut process, figures, shared, (operation, now), result);
            }
            // A read: a process that writes has a `raw_file`.
            (NextAction::Operation(operation), _) => {
                let offset = shared.offset(operation);
                let ticket = in_flight.insert((operation, now)) as u64;
                batch.read(file, offset, operation.bytes, ticket).map_err(Failure::usage)?;
                if operation.is_batch_end {
                    // Submits the reads that were added since the last batch. `wait` would submit
                    // them too, but later.
                    batch.start();
                }
            }
            (NextAction::Sync { is_data_enough: is_fdatasync_enough }, _) => {
                execute_sync(&mut process, figures, shared, is_fdatasync_enough);
            }
            // Reads in flight continue meanwhile. Their ends are recorded after the sleep.
            (NextAction::WaitUntil(time), _) => sleep_until(time, shared),
            // Takes one completed read, copies its bytes, verifies and records it.
            (NextAction::WaitForCompletion, _) => {
                let read = batch.wait().map_err(|error| Failure::Run(error.to_string()))?;
                let read = read.expect("the process waits only while a read is in flight");
                let issued = in_flight.remove(read.ticket() as usize);
                let copied = read.copy_to(&mut memory);
                std::hint::black_box(&memory);
                let (operation, _issue_time) = issued;
                let result = check_complete(operation, copied.map_err(|error| error.to_string()));
                let offset = shared.offset(operation);
                let result = result
                    .and_then(|()| content::verify_read(&process, operation, offset, &memory));
                record_operation_end(&mut process, figures, shared, issued, result);
            }
            (NextAction::Ended, _) => {
                figures.record_end(&process, now);
                return Ok(());
            }
        }
    }
}

/// Longest sleep of a process between two checks of the interrupt. Chosen, not measured.
const INTERRUPT_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Runs a process with up to its queue depth of direct transfers in flight, after all processes of
/// its phase are prepared. Reads end at `end_bytes`, the end of the file, at the latest.
pub fn run_raw_batch(
    mut process: Process,
    shared: &ProcessesShared<'_>,
    end_bytes: u64,
    figures: &mut ProcessFigures,
    batch: &mut RawBatch<'_>,
) -> Result<(), Failure> {
    let buffer_bytes = process.block_bytes_max() as usize;
    let free_memory = RawMemory::several(process.depth() as usize, buffer_bytes);
    let mut free_memory = free_memory.map_err(Failure::usage)?;
    let mut in_flight = IssuedOperations::new();
    shared.begin();
    sleep_until(process.start_delay(), shared);
    loop {
        let now = shared.now();
        let action = next_action(&mut process, shared, &in_flight, now);
        match action {
            NextAction::Operation(operation) => {
                let offset = shared.offset(operation);
                // The transfer itself stays in whole blocks.
                let issued = (cut_at_end(operation, offset, end_bytes), now);
                let ticket = in_flight.insert(issued) as u64;
                let mut memory = free_memory
                    .pop()
                    .expect("a buffer is free: at most `depth` operations are in flight");
                content::fill_write(&process, operation, offset, &mut memory);
                let bytes = operation.bytes as usize;
                let started = match operation.op {
                    Op::Read => batch.read(memory, bytes, offset, ticket),
                    Op::Write => batch.write(memory, bytes, offset, ticket),
                };
                started.map_err(Failure::usage)?;
            }
            NextAction::Sync { is_data_enough: is_fdatasync_enough } => {
                execute_sync(&mut process, figures, shared, is_fdatasync_enough)
            }
            // Without transfers in flight there is no completion to take while it waits.
            NextAction::WaitUntil(time) if in_flight.is_empty() => sleep_until(time, shared),
            // Takes one completed transfer, verifies and records it, and frees its buffer.
            NextAction::WaitUntil(_) | NextAction::WaitForCompletion => {
                let completion = match action {
                    NextAction::WaitUntil(time) => {
                        let time_left = Duration::from_nanos(time.since(now).ns());
                        batch.wait_for(time_left.min(INTERRUPT_CHECK_INTERVAL))
                    }
                    // Only a completion can change the next action, and each transfer ends.
                    _ => batch.wait(),
                };
                let result = completion.map_err(|error| Failure::Run(error.to_string()))?;
                // `None`: no transfer has ended in this time.
                let Some(RawMoved { ticket, memory, result }) = result else { continue };
                let issued @ (operation, _) = in_flight.remove(ticket as usize);
                let result =
                    check_complete(operation, result.map_err(|error| error.fault.to_string()));
                let offset = shared.offset(operation);
                let result = result
                    .and_then(|()| content::verify_read(&process, operation, offset, &memory));
                free_memory.push(memory);
                record_operation_end(&mut process, figures, shared, issued, result);
            }
            NextAction::Ended => {
                figures.record_end(&process, now);
                return Ok(());
            }
        }
    }
}
