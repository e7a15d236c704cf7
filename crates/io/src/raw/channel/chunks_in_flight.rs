//! Chunks of one call: their way between the file, the buffers and the caller's memory.
//!
//! An *edge* is the first block of a call (the *head*) or the last one (the *tail*), if the call
//! contains only a part of it. Each edge has a buffer of its own. If the caller's memory is aligned
//! like the file, only the edges use buffers, and all other blocks are moved *directly*. Otherwise
//! each chunk goes through its buffer in the *ring*, which has one for each chunk in flight.

use readpath_core::chunking::Chunk;
use readpath_core::request::Op;

use super::super::RawStats;
use super::super::buffers::Buffers;
use super::super::layout::{BlockLayout, PieceMemory, intersection};
use super::{CallMemory, ChunkState, TransfersInFlight, copy_range, io_segment, range_bytes};

/// Chunks of one call, with the memory that they use.
pub(super) struct ChunksInFlight<'l> {
    /// Transfers of the call. Their drop waits for all of them.
    pub(super) in_flight: TransfersInFlight<'l>,
    pub(super) buffers: &'l Buffers,
    /// Indices of the ring's free buffers.
    pub(super) buffers_free: &'l mut Vec<u32>,
    pub(super) counters: &'l mut RawStats,
    /// Direction.
    pub(super) op: Op,
    /// The caller's memory.
    pub(super) memory: CallMemory,
    /// Blocks of the call.
    pub(super) layout: BlockLayout,
    /// Alignment of direct I/O; 1 without it.
    pub(super) block_bytes: u64,
    /// True if whole blocks are moved without a buffer.
    pub(super) is_direct: bool,
}

impl ChunksInFlight<'_> {
    /// Starts to move a chunk of whole blocks. A buffer of the ring must be free. The index of the
    /// buffer identifies the transfer, so a chunk that is moved directly takes one too.
    ///
    /// # Safety
    /// The caller's memory is valid until the chunk has ended. Other code does not access it (for a
    /// write: does not change it).
    pub(super) unsafe fn start(&mut self, chunk: Chunk) {
        let buffer = self.buffers_free.pop().expect("the ring is as deep as the policy");
        let chunk_state = ChunkState { chunk, buffer };
        let pieces = self.layout.pieces(chunk.offset..chunk.end());
        let (memory, buffers) = (self.memory, self.buffers);
        let address = |part: PieceMemory, offset: u64| match part {
            PieceMemory::Caller => memory.address_of(offset),
            PieceMemory::Head => buffers.edge(0),
            PieceMemory::Tail => buffers.edge(1),
        };
        self.counters.count_chunk(self.op, chunk.bytes);
        if self.is_direct {
            // The device moves the pieces where they are: edges in their buffers, the rest with the
            // caller.
            let segments = pieces
                .map(|(part, piece)| io_segment(address(part, piece.start), range_bytes(&piece)));
            // SAFETY: the caller's contract for its memory; the edges belong to the channel.
            unsafe { self.in_flight.start(self.op, chunk_state, segments) };
            return;
        }
        // The chunk goes through its buffer. A write fills it first.
        let start = buffers.chunk(buffer);
        if self.op == Op::Write {
            for (part, piece) in pieces {
                let to = start.wrapping_add((piece.start - chunk.offset) as usize);
                // SAFETY: a buffer holds a chunk, and this one has no other user.
                unsafe { copy_range(address(part, piece.start), to, &piece) };
            }
            self.counters.copied_bytes += chunk.bytes;
        }
        // SAFETY: the buffer belongs to this chunk until it has ended.
        unsafe { self.in_flight.start(self.op, chunk_state, [io_segment(start, chunk.bytes)]) };
    }

    /// Ends a chunk of which the first `bytes` bytes were moved: copies the bytes that a read has
    /// in buffers to the caller, and frees the buffer.
    ///
    /// # Safety
    /// The caller's memory is valid, and other code does not access it.
    pub(super) unsafe fn finish(&mut self, chunk_state: ChunkState, bytes: u64) {
        let ChunkState { chunk, buffer } = chunk_state;
        let moved_range = chunk.offset..chunk.offset + bytes;
        if self.op == Op::Read {
            // The kernel has filled the edges (head and tail, by index), or the whole chunk.
            let buffered_parts = if self.is_direct {
                [self.layout.head_offset(), self.layout.tail_offset()]
                    .map(|block| block.map(|block| block..block + self.block_bytes))
            } else {
                [Some(moved_range.clone()), None]
            };
            for (index, piece) in buffered_parts.into_iter().enumerate() {
                let Some(piece) = piece else { continue };
                let from = match self.is_direct {
                    true => self.buffers.edge(index),
                    false => self.buffers.chunk(buffer),
                };
                // Empty for an edge outside of this chunk.
                let part = intersection(&self.layout.requested_in(&piece), &moved_range);
                let from = from.wrapping_add((part.start - piece.start) as usize);
                self.counters.copied_bytes += range_bytes(&part);
                // SAFETY: the kernel has filled these bytes and has finished with them.
                unsafe { copy_range(from, self.memory.address_of(part.start), &part) };
            }
        }
        self.buffers_free.push(buffer);
    }
}
