//! Requests of callers to the machine, and their results.

use super::{HandleId, ReadError, ReadId};
use crate::cache::FrameId;
use crate::request::ProcessId;
use crate::unit::Time;

/// Route of a read: through the cache or past it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadAccess {
    /// Through the cache, as `read(2)` does.
    Buffered,
    /// Through the cache, one page, as a fault on a memory mapping does.
    Fault,
    /// Bypasses the cache, from the device into the caller's buffer, as `O_DIRECT` does.
    Direct,
}

/// A read or a write, as the caller requests it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The open file.
    pub handle: HandleId,
    /// The process on whose behalf it is made.
    pub process: ProcessId,
    /// The first byte, from the start of the file.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Returned with the result; the machine doesn't interpret it.
    pub tag: u64,
}

/// A piece of memory that a device request fills, or is written from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// A whole frame of the cache.
    Frame(FrameId),
    /// A piece of the buffer that the caller passed with a direct transfer.
    Caller {
        /// The transfer with this buffer.
        read: ReadId,
        /// The first byte of the piece.
        offset: u64,
        /// Number of bytes. The piece may end past the requested bytes by less than one alignment,
        /// if a file does not end on a sector.
        bytes: u64,
    },
}

/// A completed read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Its identifier; call [`release`](super::Machine::release) with it once its data was taken.
    pub read: ReadId,
    /// The caller's tag.
    pub tag: u64,
    /// The process on whose behalf it was made.
    pub process: ProcessId,
    /// Start time.
    pub started: Time,
    /// Number of bytes read or written: fewer than requested only at the end of the file.
    pub result: Result<u64, ReadError>,
}
