//! What is asked of the machine, and what it answers.

use super::{HandleId, ReadError, ReadId};
use crate::cache::FrameId;
use crate::request::ProcessId;
use crate::unit::Time;

/// How a read goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadAccess {
    /// Through the cache, as `read(2)` does.
    Buffered,
    /// Through the cache, one page, as a fault on a memory mapping does.
    Fault,
    /// Past the cache, from the device into the caller's buffer, as `O_DIRECT` does.
    Direct,
}

/// A read or a write, as the caller gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Which open file.
    pub handle: HandleId,
    /// On whose behalf.
    pub process: ProcessId,
    /// The first byte, from the start of the file.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Comes back with the result; the machine doesn't look at it.
    pub tag: u64,
}

/// A piece of memory that a request of the device fills, or takes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// A whole frame of the cache.
    Frame(FrameId),
    /// A piece of the buffer that the caller gave with a direct transfer.
    Caller {
        /// Whose buffer.
        read: ReadId,
        /// The first byte of it.
        offset: u64,
        /// How many bytes; may reach up to one alignment past what was asked,
        /// where a file does not end on a sector.
        bytes: u64,
    },
}

/// A read or a write that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Its name; call [`release`](super::Machine::release) with it once its bytes were taken.
    pub read: ReadId,
    /// The caller's tag.
    pub tag: u64,
    /// On whose behalf it was.
    pub process: ProcessId,
    /// When it was started.
    pub started: Time,
    /// How many bytes were read or written: fewer than asked only at the end of the file.
    pub result: Result<u64, ReadError>,
}
