//! Execution of one raw transfer at a time: submits chunks and processes completions.
//!
//! A *call* is one read or write of the caller. It is split into *chunks*. The *ring* is a set of
//! buffers, one for each chunk in flight. An *edge* is the first or the last block of a call if the
//! call contains only a part of it. Each edge has a buffer of its own.
//!
//! If the caller's memory has the same offset in a block as the file range, whole blocks are moved
//! directly, and only the edges use buffers. Otherwise each chunk goes through its buffer in the
//! ring.
//!
//! A call returns, with success or not, only when none of its requests is in flight. The kernel
//! therefore accesses the caller's memory only during the borrow.

use std::ops::Range;
use std::os::fd::AsRawFd;

use readpath_core::chunking::{Chunk, ChunkingPolicy, RawTransfer, TransferEnd};
use readpath_core::request::{DeviceError, Op, Outcome, RequestId};

use super::batch_writes::BatchWrites;
use super::buffers::Buffers;
use super::error::write_error;
use super::layout::BlockLayout;
use super::{RawFault, RawOpenError, RawStats};
use crate::backend::aio::Aio;
use crate::backend::answer::{device_error, raw_result};
use crate::backend::thread_pool::ThreadPoolBackend;
use crate::backend::uring::UringBackend;
use crate::backend::{
    Backend, BackendError, BackendInUse, BackendKind, BuiltBackend, SHARED_ORDER, Sleep,
};
use crate::os::clock::Clock;
use crate::target::{Mode, Target};
use crate::transfers::{self, EndedTransfer, TransferStart, Transfers};

mod chunks_in_flight;
mod length;

use chunks_in_flight::ChunksInFlight;

/// Data that a sync makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncScope {
    /// The data, with the metadata needed to read it back: `fdatasync(2)`.
    Data,
    /// The data with all metadata of the file: `fsync(2)`.
    DataAndMetadata,
}

/// Smallest number of transfers: a write reads both of its edges at once.
const TRANSFERS_MIN: u32 = 2;

/// Caller's memory: `address` corresponds to the file offset `file_offset`.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallMemory {
    /// Address of the first byte of the call.
    pub(super) address: *mut u8,
    /// Offset in the file of the first byte of the call.
    pub(super) file_offset: u64,
}

impl CallMemory {
    /// Returns the memory address of a file offset within the bytes of the call, or at their end.
    fn address_of(&self, offset: u64) -> *mut u8 {
        self.address.wrapping_add((offset - self.file_offset) as usize)
    }
}

/// State of a chunk in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkState {
    /// Blocks of the file that the chunk moves.
    pub(super) chunk: Chunk,
    /// Index of its buffer in the ring.
    pub(super) buffer: u32,
}

/// Result of a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkOutcome {
    /// End of the chunk: done, short or failed.
    pub(super) outcome: Outcome,
    /// Number of bytes moved.
    pub(super) bytes: u64,
}

/// One open file with its ring of buffers and its transfers.
pub(super) struct Channel {
    // Dropped before the buffers, which the kernel may have registered.
    transfers: Transfers<ChunkState>,
    target: Target,
    /// The file as `Transfers` needs it, with its length at the start of the present call.
    file: transfers::TransferFile,
    /// Buffers of the ring, and the edges.
    buffers: Buffers,
    /// Indices of the ring's free buffers. Filled at the start of each call and stream.
    buffers_free: Vec<u32>,
    /// True if the kernel has the buffers registered.
    buffers_are_registered: bool,
    /// I/O backend at opening.
    in_use: BackendInUse,
    /// Size of the chunks, and their number in flight.
    policy: Box<dyn ChunkingPolicy + Send + Sync>,
    counters: RawStats,
}

// SAFETY: between calls no request is in flight, and the segment lists in the transfers, which hold
// addresses, are not read. During a call the channel is borrowed. Any thread may enter the ring and
// collect answers of the worker threads. The buffers belong to the channel alone.
unsafe impl Send for Channel {}

impl Channel {
    /// Builds a channel with its buffers and a backend of the named kind. `Auto` is the first
    /// available of AIO and threads, and threads for buffered I/O.
    ///
    /// # Errors
    /// The system lacks memory for the buffers, or a backend is not available.
    pub(super) fn new(
        target: Target,
        policy: Box<dyn ChunkingPolicy + Send + Sync>,
        backend_kind: BackendKind,
        clock: Clock,
    ) -> Result<Channel, RawOpenError> {
        let buffers = Buffers::new(policy.chunk_bytes(), policy.depth())?;
        let depth = policy.depth().max(TRANSFERS_MIN);
        let mut buffers_are_registered = false;
        // A call waits for buffered I/O in any case, so with the backend of threads the calling
        // thread executes it itself.
        let order = match target.mode() {
            Mode::Direct => &SHARED_ORDER[..],
            Mode::Buffered(_) => &[BackendKind::Threads],
        };
        let built = backend_kind.first_available(depth, order, |kind| {
            Ok::<Box<dyn Backend>, _>(match kind {
                BackendKind::Ring => {
                    let mut ring = UringBackend::for_any_thread(depth)?;
                    let (address, bytes) = buffers.address_range();
                    // SAFETY: the buffers are dropped after the ring.
                    buffers_are_registered = unsafe { ring.register(address, bytes) };
                    Box::new(ring)
                }
                BackendKind::Aio => Box::new(Aio::new(depth)?),
                // Threads: the kind is never `Auto`. They and their lists are made now, so that
                // later calls allocate no memory.
                _ => Box::new(ThreadPoolBackend::with_threads(depth)),
            })
        });
        let (backend, in_use) = built.map_err(RawOpenError::Backend)?;
        let channel = Channel::with_backend(target, policy, buffers, (backend, in_use), clock);
        Ok(Channel { buffers_are_registered, ..channel })
    }

    /// Builds a channel over the given backend, which any thread may use. `buffers` has one chunk
    /// for each transfer of the policy's depth, and is not registered.
    pub(super) fn with_backend(
        target: Target,
        policy: Box<dyn ChunkingPolicy + Send + Sync>,
        buffers: Buffers,
        (backend, in_use): BuiltBackend,
        clock: Clock,
    ) -> Channel {
        let depth = policy.depth().max(TRANSFERS_MIN);
        Channel {
            transfers: Transfers::with_backend(backend, depth, clock),
            file: transfers::TransferFile::from_target(&target),
            target,
            buffers_free: Vec::with_capacity(policy.depth() as usize),
            buffers,
            buffers_are_registered: false,
            in_use,
            policy,
            counters: RawStats::default(),
        }
    }

    /// The open file.
    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// Chunking policy: the size of the chunks, and their number in flight.
    pub(super) fn policy(&self) -> &dyn ChunkingPolicy {
        &*self.policy
    }

    /// True if the kernel has the buffers registered.
    pub(super) fn buffers_are_registered(&self) -> bool {
        self.buffers_are_registered
    }

    /// I/O backend at present.
    pub(super) fn backend(&self) -> BackendInUse {
        self.in_use.or_threads_if_replaced(self.transfers.replacement_reason())
    }

    /// Counters since the channel was built.
    pub(super) fn counters(&self) -> RawStats {
        self.counters
    }

    /// Present length of the file in bytes; for a block device, its length at opening.
    pub(super) fn bytes(&self) -> Result<u64, RawFault> {
        let target = self.target();
        if target.is_block_device() {
            return Ok(target.bytes());
        }
        let stat = rustix::fs::fstat(target)
            .map_err(|errno| RawFault::Length { errno: errno.raw_os_error() })?;
        Ok(stat.st_size as u64)
    }

    /// Cancels or awaits requests that a dropped reader left in flight, and discards their results.
    pub(super) fn drain_earlier_call(&mut self) {
        self.transfers.drain();
        while self.transfers.next_ended().is_some() {}
    }

    /// Ends an earlier call, and frees all buffers for a new stream. Returns the file's length.
    pub(super) fn begin_stream(&mut self) -> Result<u64, RawFault> {
        self.drain_earlier_call();
        let file_bytes = self.bytes()?;
        self.file.set_bytes(file_bytes);
        self.free_all_buffers();
        Ok(file_bytes)
    }

    /// Address of a buffer of the ring, by its index.
    pub(super) fn chunk_address(&self, buffer: u32) -> *const u8 {
        self.buffers.chunk(buffer)
    }

    /// Returns a buffer of the ring, by its index, to the free list. The reader has finished with
    /// it.
    pub(super) fn free_buffer(&mut self, buffer: u32) {
        self.buffers_free.push(buffer);
    }

    /// Starts to read the next chunk of a [begun](Channel::begin_stream) stream into a free buffer
    /// and returns it. `next_chunk` returns the chunk for the policy. Returns `None` if no buffer
    /// is free or no chunk may start now. The next `exchange` submits the read.
    pub(super) fn start_into_buffer(
        &mut self,
        next_chunk: impl FnOnce(&dyn ChunkingPolicy) -> Option<Chunk>,
    ) -> Option<ChunkState> {
        let &buffer = self.buffers_free.last()?;
        // Without a chunk the buffer stays free.
        let chunk = next_chunk(&*self.policy)?;
        self.buffers_free.pop();
        self.counters.count_chunk(Op::Read, chunk.bytes);
        let chunk_state = ChunkState { chunk, buffer };
        let Chunk { offset, bytes } = chunk;
        // A buffer has one chunk in flight, so its index identifies the transfer.
        let (id, op) = (RequestId(buffer), Op::Read);
        let start = TransferStart { id, file: self.file.clone(), op, offset, bytes };
        let segment = io_segment(self.buffers.chunk(buffer), bytes);
        // SAFETY: the buffers outlive the transfers. This one has no other user until the chunk has
        // come out of `next_completed`, or the channel is drained.
        unsafe { self.transfers.start(start, chunk_state, |_, list| list.push(segment)) };
        Some(chunk_state)
    }

    /// Submits started transfers and sleeps for completions as long as `sleep` allows.
    pub(super) fn exchange(&mut self, sleep: Sleep) -> Result<(), BackendError> {
        self.transfers.exchange(sleep)
    }

    /// Removes and returns the next completed chunk with its result, or `None` if there is none.
    /// Its buffer stays in use until `free_buffer`.
    pub(super) fn next_completed(&mut self) -> Option<(ChunkState, ChunkOutcome)> {
        let EndedTransfer { completion, bytes, context: chunk_state, .. } =
            self.transfers.next_ended()?;
        Some((chunk_state, ChunkOutcome { outcome: completion.outcome, bytes }))
    }

    /// Returns all buffers to the free list.
    fn free_all_buffers(&mut self) {
        self.buffers_free.clear();
        self.buffers_free.extend((0..self.policy.depth()).rev());
    }

    /// Reads bytes of the file from `offset` on into `memory` and returns their number, which is
    /// less only at the end of the file. The caller has checked that the range ends at or below the
    /// largest offset. A device error contains the number of bytes read before it.
    pub(super) fn read(&mut self, memory: &mut [u8], offset: u64) -> Result<u64, RawFault> {
        self.drain_earlier_call();
        let file_bytes = self.bytes()?;
        let end_offset = file_bytes.min(offset + memory.len() as u64);
        if end_offset <= offset {
            return Ok(0);
        }
        self.file.set_bytes(file_bytes);
        let memory = CallMemory { address: memory.as_mut_ptr(), file_offset: offset };
        // SAFETY: the slice is borrowed exclusively for the call.
        let result = unsafe { self.transfer_chunks(Op::Read, memory, offset..end_offset)? };
        match result.error {
            None => Ok(result.bytes),
            Some(error) => Err(device_fault(Op::Read, offset, result.bytes, error)),
        }
    }

    /// Writes `memory` to the file at `offset` and returns the number of bytes written, less only
    /// if the kernel stops without an error. An error contains that number. A regular file that
    /// direct I/O has extended to a whole block is truncated again.
    pub(super) fn write(
        &mut self,
        memory: &[u8],
        offset: u64,
        batch_writes: &BatchWrites,
    ) -> Result<u64, RawFault> {
        let end = offset + memory.len() as u64;
        if memory.is_empty() {
            return Ok(0);
        }
        self.drain_earlier_call();
        let requested = offset..end;
        let layout = BlockLayout::new(&requested, self.block_bytes());
        // Until the end of the call, batches' writes of these blocks wait.
        let _call = batch_writes.begin_call(layout.partial_blocks())?;
        // A batch's write of a partial block has ended, and so is part of the length.
        let file_bytes = self.bytes()?;
        if self.target().is_block_device() && end > file_bytes {
            return Err(RawFault::PastEnd { device_bytes: file_bytes });
        }
        self.file.set_bytes(file_bytes);
        // The cast to `*mut` is sound: the kernel only reads the memory of a write.
        let memory = CallMemory { address: memory.as_ptr().cast_mut(), file_offset: offset };
        // SAFETY: the slice is borrowed for the call and not changed.
        let result = unsafe {
            self.read_edges(memory, &requested, file_bytes)?;
            self.transfer_chunks(Op::Write, memory, requested.clone())
        };
        // Also after an error: whole blocks may have extended the file. After a backend error no
        // byte counts as written. The write's own error comes before one of this step.
        let bytes_done = result.as_ref().map_or(0, |transfer_end| transfer_end.bytes);
        let restored = self.restore_length(file_bytes, &requested, bytes_done, batch_writes);
        match result? {
            TransferEnd { bytes, error: Some(error) } => {
                // `write_error` recognizes an exceeded limit on file sizes, which applies to the
                // end of the last block.
                let blocks_end = requested.end.next_multiple_of(self.block_bytes());
                let error = write_error(error, blocks_end, self.target());
                Err(device_fault(Op::Write, offset, bytes, error))
            }
            TransferEnd { bytes, error: None } => restored.map(|()| bytes),
        }
    }

    /// Alignment of direct I/O on the file, in bytes.
    pub(super) fn block_bytes(&self) -> u64 {
        u64::from(self.target().alignment_bytes())
    }

    /// Fills the edge buffers of a write of the bytes `requested` in a file of `file_bytes` bytes:
    /// first the blocks' present content, then the new bytes over it. After a fault nothing may be
    /// written.
    ///
    /// # Safety
    /// As [`transfer_chunks`](Channel::transfer_chunks).
    unsafe fn read_edges(
        &mut self,
        memory: CallMemory,
        requested: &Range<u64>,
        file_bytes: u64,
    ) -> Result<(), RawFault> {
        let block_bytes = self.block_bytes();
        let layout = BlockLayout::new(requested, block_bytes);
        let edge_offsets = [layout.head_offset(), layout.tail_offset()];
        let mut in_flight = TransfersInFlight { transfers: &mut self.transfers, file: &self.file };
        for (index, block_start) in edge_offsets.into_iter().enumerate() {
            let Some(block_start) = block_start else { continue };
            // Bytes behind the end of the file are zeros.
            let address = self.buffers.edge(index);
            // SAFETY: an edge is a page and a block is at most a page; no request is in flight on
            // it.
            unsafe { address.write_bytes(0, block_bytes as usize) };
            if block_start < file_bytes {
                let chunk = Chunk { offset: block_start, bytes: block_bytes };
                // The index only identifies the transfer: an edge uses no buffer of the ring.
                let chunk_state = ChunkState { chunk, buffer: index as u32 };
                self.counters.count_chunk(Op::Read, block_bytes);
                // SAFETY: the edge belongs to the channel, which is borrowed until all requests
                // have ended.
                unsafe {
                    in_flight.start(Op::Read, chunk_state, [io_segment(address, block_bytes)])
                };
            }
        }
        // Wait for all of them, also after a fault. A short read ends with the file: the rest of
        // the block stays zero.
        let mut fault = None;
        while in_flight.transfers.in_flight() > 0 {
            let no_deadline = None;
            in_flight.transfers.wait(no_deadline).map_err(RawFault::Backend)?;
            while let Some(ended) = in_flight.transfers.next_ended() {
                if let Outcome::Failed(error) = ended.completion.outcome {
                    // No byte of the call was written yet.
                    let bytes_done = 0;
                    let start = ended.context.chunk.offset;
                    fault = Some(device_fault(Op::Read, start, bytes_done, error));
                }
            }
        }
        drop(in_flight);
        // Copy the new bytes over the content. After a fault this has no use: the result below ends
        // the write.
        for (index, block_start) in edge_offsets.into_iter().enumerate() {
            let Some(block_start) = block_start else { continue };
            let part = layout.requested_in(&(block_start..block_start + block_bytes));
            let edge_part =
                self.buffers.edge(index).wrapping_add((part.start - block_start) as usize);
            // SAFETY: both sides hold these bytes, and no request is in flight.
            unsafe { copy_range(memory.address_of(part.start), edge_part, &part) };
        }
        fault.map_or(Ok(()), Err)
    }

    /// Moves the bytes `requested` between the file and `memory`, chunk by chunk. The edge buffers
    /// of a write must be filled before. Returns the number of bytes moved from the first one on,
    /// with the device's error if any. Without an error it is less than requested only where the
    /// file ends or the kernel accepts no more.
    ///
    /// # Safety
    /// `memory` is valid for all of these bytes. Other code does not access it (for a write: does
    /// not change it) until this returns.
    unsafe fn transfer_chunks(
        &mut self,
        op: Op,
        memory: CallMemory,
        requested: Range<u64>,
    ) -> Result<TransferEnd, RawFault> {
        let block_bytes = self.block_bytes();
        let layout = BlockLayout::new(&requested, block_bytes);
        let whole_blocks = layout.whole_blocks();
        // Direct transfer needs the caller's whole blocks to be aligned. Edges alone do not.
        let is_direct = whole_blocks.is_empty()
            || (memory.address_of(whole_blocks.start) as usize)
                .is_multiple_of(block_bytes as usize);
        // However the last call ended, none of its requests is in flight.
        self.free_all_buffers();
        let mut transfer =
            RawTransfer::new(requested.start, requested.end - requested.start, block_bytes);
        let mut chunks = ChunksInFlight {
            in_flight: TransfersInFlight { transfers: &mut self.transfers, file: &self.file },
            buffers: &self.buffers,
            buffers_free: &mut self.buffers_free,
            counters: &mut self.counters,
            op,
            memory,
            layout,
            block_bytes,
            is_direct,
        };
        loop {
            // All chunks that the policy permits in flight now.
            while let Some(chunk) = transfer.poll_chunk(&*self.policy) {
                // SAFETY: the caller's contract for its memory.
                unsafe { chunks.start(chunk) };
            }
            if transfer.is_over() {
                return Ok(transfer.end());
            }
            let no_deadline = None;
            chunks.in_flight.transfers.wait(no_deadline).map_err(RawFault::Backend)?;
            while let Some(ended) = chunks.in_flight.transfers.next_ended() {
                // SAFETY: the caller's contract for its memory.
                unsafe { chunks.finish(ended.context, ended.bytes) };
                transfer.handle(ended.context.chunk, ended.completion.outcome);
            }
        }
    }

    /// Makes written data durable, and the metadata that `scope` names.
    pub(super) fn sync(&self, scope: SyncScope) -> Result<(), RawFault> {
        let fd = self.target().as_raw_fd();
        // SAFETY: the file is open.
        let result = unsafe {
            match scope {
                SyncScope::Data => libc::fdatasync(fd),
                SyncScope::DataAndMetadata => libc::fsync(fd),
            }
        };
        match raw_result(result as isize) {
            0.. => Ok(()),
            errno => Err(RawFault::Sync { error: device_error(-errno) }),
        }
    }
}

impl RawStats {
    /// Counts a chunk of `bytes` bytes as read or written, by `op`.
    fn count_chunk(&mut self, op: Op, bytes: u64) {
        match op {
            Op::Read => {
                self.reads += 1;
                self.read_bytes += bytes;
            }
            Op::Write => {
                self.writes += 1;
                self.written_bytes += bytes;
            }
        }
    }
}

/// Transfers of one call. Drop waits for all of them, so the call cannot end before.
struct TransfersInFlight<'l> {
    transfers: &'l mut Transfers<ChunkState>,
    file: &'l transfers::TransferFile,
}

impl TransfersInFlight<'_> {
    /// Starts the transfer of a chunk between the file and the memory of `segments`.
    ///
    /// # Safety
    /// The segments are valid until the chunk has ended. Other code does not access them (for a
    /// write: does not change them).
    unsafe fn start(
        &mut self,
        op: Op,
        chunk_state: ChunkState,
        segments: impl IntoIterator<Item = libc::iovec>,
    ) {
        let Chunk { offset, bytes } = chunk_state.chunk;
        let id = RequestId(chunk_state.buffer);
        let start = TransferStart { id, file: self.file.clone(), op, offset, bytes };
        // SAFETY: the caller's contract, and `drop` below.
        unsafe { self.transfers.start(start, chunk_state, |_, list| list.extend(segments)) };
    }
}

impl Drop for TransfersInFlight<'_> {
    /// Cancels the transfers and waits until they have ended.
    fn drop(&mut self) {
        self.transfers.drain();
        while self.transfers.next_ended().is_some() {}
        if self.transfers.in_flight() > 0 {
            // Unreachable in practice: the kernel would keep writing to memory that its owner is
            // about to reuse.
            std::process::abort();
        }
    }
}

/// Fault of a transfer from the file offset `start` on that failed after `bytes_done` bytes.
fn device_fault(op: Op, start: u64, bytes_done: u64, error: DeviceError) -> RawFault {
    RawFault::Device { op, offset: start + bytes_done, bytes_done, error }
}

/// Memory segment of `bytes` bytes at `address`.
fn io_segment(address: *mut u8, bytes: u64) -> libc::iovec {
    libc::iovec { iov_base: address.cast(), iov_len: bytes as usize }
}

/// Length of a range in bytes.
fn range_bytes(range: &Range<u64>) -> u64 {
    range.end - range.start
}

/// Copies as many bytes as `range` has from one address to another.
///
/// # Safety
/// Both addresses are valid for them and do not overlap.
unsafe fn copy_range(from: *const u8, to: *mut u8, range: &Range<u64>) {
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(from, to, range_bytes(range) as usize) };
}

#[cfg(test)]
mod tests {
    use readpath_core::chunking::RingChunking;

    use super::*;
    use crate::target::OpenOptions;

    /// Four transfers are dropped, as by a panic: none stays in flight, and the channel is usable.
    #[test]
    fn dropped_transfer_leaves_no_request_in_flight() {
        for backend in [BackendKind::Aio, BackendKind::Ring, BackendKind::Threads] {
            let path = std::env::current_exe().expect("this program has a file");
            let target = Target::open(&path, OpenOptions::default()).unwrap();
            let policy = Box::new(RingChunking::default());
            let mut channel = Channel::new(target, policy, backend, Clock::start()).unwrap();
            let bytes = channel.block_bytes().max(4096);
            let mut in_flight =
                TransfersInFlight { transfers: &mut channel.transfers, file: &channel.file };
            for buffer in 0..4 {
                let chunk = Chunk { offset: u64::from(buffer) * bytes, bytes };
                let segments = [io_segment(channel.buffers.chunk(buffer), bytes)];
                // SAFETY: the buffers belong to the channel.
                unsafe { in_flight.start(Op::Read, ChunkState { chunk, buffer }, segments) };
            }
            assert_eq!(in_flight.transfers.in_flight(), 4);
            drop(in_flight);
            assert_eq!(channel.transfers.in_flight(), 0);
            let mut memory = vec![0; 10_000];
            assert_eq!(channel.read(&mut memory, 1).unwrap(), 10_000);
            assert!(memory[..] == std::fs::read(&path).unwrap()[1..10_001]);
        }
    }
}
