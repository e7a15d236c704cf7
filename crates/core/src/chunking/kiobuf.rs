//! `kiobuf`: one chunk at a time, as raw devices were read in 2001.
//!
//! How it works: pin the memory of one chunk, submit it, and wait until it has completed; only then
//! pin the next. The device is idle while a chunk is pinned and described. A chunk that fits on one
//! disk of an array leaves the others idle. `chunk=64KiB` is the kernel before source E,
//! `chunk=512KiB` (the default) the repaired one. A transfer smaller than a chunk is one chunk.
//! Source: SOURCES.md, E.

use super::{ChunkingPolicy, TransferProgress, chunk_bytes};
use crate::policy::{Spec, SpecError};

/// The policy `kiobuf`.
#[derive(Clone, Copy, Debug)]
pub struct Kiobuf {
    /// Size of a chunk in bytes.
    chunk_bytes: u64,
}

impl Kiobuf {
    /// Parses `kiobuf,chunk=SIZE`.
    ///
    /// # Errors
    /// A parameter is unknown, or a value is out of range.
    pub fn from_spec(spec: &Spec) -> Result<Kiobuf, SpecError> {
        spec.only(&["chunk"])?;
        Ok(Kiobuf { chunk_bytes: chunk_bytes(spec)? })
    }
}

impl ChunkingPolicy for Kiobuf {
    /// One chunk at a time: returns `None` while one is in flight.
    fn next(&self, progress: &TransferProgress) -> Option<u64> {
        (progress.in_flight == 0).then_some(self.chunk_bytes.min(progress.bytes_left))
    }

    /// The size of a chunk in bytes.
    fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// One chunk in flight.
    fn depth(&self) -> u32 {
        1
    }
}
