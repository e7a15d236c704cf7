//! One raw transfer, split into chunks and reassembled.
//!
//! The requested bytes may begin and end at any offset. The device is addressed in blocks, so the
//! transfer covers every block with a requested byte. Its first and last chunk may move unrequested
//! bytes: a read drops them, a write must first read them. Splits between chunks fall on blocks,
//! counted from the start of the transfer, so that the number of chunks is minimal for the policy's
//! size.
//!
//! A transfer has moved the bytes up to the first unmoved one; bytes of later chunks don't count.
//! After a failed or short chunk no further chunk is submitted.

use super::{ChunkingPolicy, TransferProgress};
use crate::request::{DeviceError, Outcome};

/// A part of a transfer that is moved as one; whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its first byte on the device.
    pub offset: u64,
    /// Number of bytes; at least one block.
    pub bytes: u64,
}

impl Chunk {
    /// The byte after the last: exclusive.
    pub const fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// Result of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferEnd {
    /// Number of requested bytes moved, from the first one on.
    pub bytes: u64,
    /// Error at the first unmoved byte. `None` if all bytes were moved, or the device or file ends
    /// there.
    pub error: Option<DeviceError>,
}

/// State of one transfer.
///
/// Order of calls: [`poll_chunk`](RawTransfer::poll_chunk) until it returns none. Call
/// [`handle`](RawTransfer::handle) for a completed chunk, and poll again. Call
/// [`end`](RawTransfer::end) once the transfer [is over](RawTransfer::is_over). No memory is
/// allocated.
#[derive(Clone, Copy, Debug)]
pub struct RawTransfer {
    /// The first requested byte.
    offset: u64,
    /// The byte after the last requested one.
    end: u64,
    /// The first byte not yet submitted; a multiple of the alignment, unless the transfer is empty.
    next: u64,
    /// The byte after the last one to be submitted.
    covered_end: u64,
    /// Size of a block of the device.
    alignment_bytes: u64,
    /// Number of submitted chunks that have not completed.
    in_flight: u32,
    /// The lowest byte known not to have been moved, and its error; no error at the end of the
    /// device or file. `None` while all completed chunks were moved whole.
    stopped: Option<(u64, Option<DeviceError>)>,
}

impl RawTransfer {
    /// Creates a transfer of `bytes` bytes from `offset` on. The blocks of the device have
    /// `alignment_bytes` (1: any offset is addressable).
    ///
    /// # Panics
    /// The alignment is 0 and `bytes` is not, or the transfer reaches past the last 64-bit offset.
    pub fn new(offset: u64, bytes: u64, alignment_bytes: u64) -> RawTransfer {
        let end = offset.checked_add(bytes).expect("a transfer ends below 2^64");
        let covered_end = match bytes {
            0 => offset,
            _ => end.checked_next_multiple_of(alignment_bytes).expect("it ends below 2^64"),
        };
        RawTransfer {
            offset,
            end,
            // A transfer without bytes covers no block.
            next: if bytes == 0 { offset } else { offset - offset % alignment_bytes },
            covered_end,
            alignment_bytes,
            in_flight: 0,
            stopped: None,
        }
    }

    /// The byte after the last covered one: a multiple of the alignment. An empty transfer covers
    /// no block and returns its offset.
    pub fn covered_end(&self) -> u64 {
        self.covered_end
    }

    /// Returns the next chunk to submit, and counts it as in flight. Returns `None` if the policy
    /// allows none now, no bytes are left, or the transfer was stopped. After each completion it
    /// must be polled again.
    pub fn poll_chunk(&mut self, policy: &dyn ChunkingPolicy) -> Option<Chunk> {
        let bytes_left = self.covered_end - self.next;
        if bytes_left == 0 || self.stopped.is_some() {
            // All bytes are submitted, or a chunk has failed or was short.
            return None;
        }
        let allowed_bytes =
            policy.next(&TransferProgress { bytes_left, in_flight: self.in_flight })?;
        let bytes = match allowed_bytes - allowed_bytes % self.alignment_bytes {
            // The policy allows less than a block: one block is the least that the device
            // transfers.
            0 => self.alignment_bytes,
            aligned => aligned,
        };
        let chunk = Chunk { offset: self.next, bytes: bytes.min(bytes_left) };
        self.next += chunk.bytes;
        self.in_flight += 1;
        Some(chunk)
    }

    /// Records the completion of a chunk with its outcome. A failed or short chunk ends the
    /// transfer at its position; the lowest such position counts.
    ///
    /// # Panics
    /// No chunk is in flight.
    pub fn handle(&mut self, chunk: Chunk, outcome: Outcome) {
        assert!(self.in_flight > 0, "only what was polled is completed");
        self.in_flight -= 1;
        let stopped = match outcome {
            Outcome::Done => return,
            Outcome::Short { bytes } => (chunk.offset + bytes, None),
            Outcome::Failed(error) => (chunk.offset, Some(error)),
        };
        // Chunks complete in any order, so a lower stop replaces a higher one.
        let (stop, _) = stopped;
        if self.stopped.is_none_or(|(lowest_stop, _)| stop < lowest_stop) {
            self.stopped = Some(stopped);
        }
    }

    /// Submitted chunks that have not completed.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns true if no chunk is in flight and none will be submitted.
    pub fn is_over(&self) -> bool {
        self.in_flight == 0 && (self.stopped.is_some() || self.next == self.covered_end)
    }

    /// Returns the result of the transfer: the requested bytes before the first unmoved byte, and
    /// the error there. Valid once the transfer is over.
    pub fn end(&self) -> TransferEnd {
        debug_assert!(self.is_over(), "the end is known at the end");
        match self.stopped {
            // `stop` may lie before the first requested byte: chunks begin at a block.
            Some((stop, error)) if stop < self.end => {
                TransferEnd { bytes: stop.max(self.offset) - self.offset, error }
            }
            // All requested bytes were moved. The transfer may have stopped behind them, in the
            // last block, whose rest was not requested.
            _ => TransferEnd { bytes: self.end - self.offset, error: None },
        }
    }
}
