//! One raw transfer, cut into chunks and put together again.
//!
//! The bytes asked for may begin and end anywhere. The device is addressed in
//! blocks, so the transfer covers every block that one of its bytes falls in,
//! and its first and last chunk may move bytes that nobody asked for: of a
//! read they are dropped, of a write they must first be read. Cuts between
//! chunks fall on blocks, counted from the start of the transfer, so that there
//! are as few chunks as the law's size allows.
//!
//! A transfer has moved the bytes up to the first that was not: what later
//! chunks moved does not count. After a chunk that failed or came short no
//! further chunk is submitted.

use super::{ChunkingPolicy, TransferProgress};
use crate::request::{DeviceError, Outcome};

/// A piece of a transfer that is moved as one; whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its first byte on the device.
    pub offset: u64,
    /// How many bytes; at least one block.
    pub bytes: u64,
}

impl Chunk {
    /// The byte after the last: exclusive.
    pub const fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferEnd {
    /// Bytes moved of those that were asked for, from the first one on.
    pub bytes: u64,
    /// Why the byte after them was not moved: an error, or `None` when all were,
    /// or the device or file ends there.
    pub error: Option<DeviceError>,
}

/// The books of one transfer.
///
/// Order of calls: [`poll_chunk`](RawTransfer::poll_chunk) until it gives
/// nothing; when a chunk is complete [`handle`](RawTransfer::handle) it, and poll
/// again; at last, when it [is over](RawTransfer::is_over), its
/// [`end`](RawTransfer::end). Nothing is allocated.
#[derive(Clone, Copy, Debug)]
pub struct RawTransfer {
    offset: u64,
    end: u64,
    /// The first byte not yet submitted; a multiple of the alignment.
    next: u64,
    /// The byte after the last one that is to be submitted.
    covered_end: u64,
    alignment_bytes: u64,
    in_flight: u32,
    /// The lowest byte known not to have been moved, and why.
    stopped: Option<(u64, Option<DeviceError>)>,
}

impl RawTransfer {
    /// A transfer of `bytes` bytes from `offset` on, on a device whose blocks
    /// have `alignment_bytes` (1: it can be addressed anywhere).
    ///
    /// # Panics
    /// The alignment is 0, or the transfer reaches past the last 64-bit offset.
    pub fn new(offset: u64, bytes: u64, alignment_bytes: u64) -> RawTransfer {
        let end = offset.checked_add(bytes).expect("a transfer ends below 2^64");
        let covered_end = match bytes {
            0 => offset,
            _ => end.checked_next_multiple_of(alignment_bytes).expect("it ends below 2^64"),
        };
        RawTransfer {
            offset,
            end,
            next: if bytes == 0 { offset } else { offset - offset % alignment_bytes },
            covered_end,
            alignment_bytes,
            in_flight: 0,
            stopped: None,
        }
    }

    /// The first byte that it covers: a multiple of the alignment, at or below the first asked for.
    pub fn covered_start(&self) -> u64 {
        self.offset - self.offset % self.alignment_bytes
    }

    /// The byte after the last that it covers: a multiple of the alignment.
    pub fn covered_end(&self) -> u64 {
        self.covered_end
    }

    /// The next chunk to be submitted, if the law wants one now.
    pub fn poll_chunk(&mut self, policy: &dyn ChunkingPolicy) -> Option<Chunk> {
        let bytes_left = self.covered_end - self.next;
        if bytes_left == 0 || self.stopped.is_some() {
            return None;
        }
        let wanted = policy.next(&TransferProgress { bytes_left, in_flight: self.in_flight })?;
        let bytes = match wanted - wanted % self.alignment_bytes {
            0 => self.alignment_bytes,
            whole => whole,
        };
        let chunk = Chunk { offset: self.next, bytes: bytes.min(bytes_left) };
        self.next += chunk.bytes;
        self.in_flight += 1;
        Some(chunk)
    }

    /// A chunk is complete.
    ///
    /// # Panics
    /// Nothing is in flight.
    pub fn handle(&mut self, chunk: Chunk, outcome: Outcome) {
        assert!(self.in_flight > 0, "only what was polled is completed");
        self.in_flight -= 1;
        let stopped = match outcome {
            Outcome::Done => return,
            Outcome::Short { bytes } => (chunk.offset + bytes, None),
            Outcome::Failed(error) => (chunk.offset, Some(error)),
        };
        if self.stopped.is_none_or(|(lowest, _)| stopped.0 < lowest) {
            self.stopped = Some(stopped);
        }
    }

    /// Chunks submitted and not complete.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Whether nothing is in flight and nothing will be.
    pub fn is_over(&self) -> bool {
        self.in_flight == 0 && (self.stopped.is_some() || self.next == self.covered_end)
    }

    /// What came of it, once it is over.
    pub fn end(&self) -> TransferEnd {
        debug_assert!(self.is_over(), "the end is known at the end");
        match self.stopped {
            Some((stop, error)) if stop < self.end => {
                TransferEnd { bytes: stop.max(self.offset) - self.offset, error }
            }
            // All that was asked for, and perhaps not all of its last block.
            _ => TransferEnd { bytes: self.end - self.offset, error: None },
        }
    }
}
