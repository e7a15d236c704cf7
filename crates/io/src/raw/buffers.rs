//! The memory of a raw file: the ring's buffers and those of the two edges, in
//! one mapping, made once.

use std::ptr::NonNull;

use readpath_core::unit::PAGE_BYTES;
use rustix::mm;

use super::RawOpenError;
use crate::frames::{FramePoolError, map};

/// Two edges of a page each, then `count` buffers of `chunk_bytes`. Taken from
/// the system when it is first touched, or when the kernel is to hold it.
#[derive(Debug)]
pub(super) struct Buffers {
    base: NonNull<u8>,
    chunk_bytes: usize,
    count: usize,
}

/// Bytes before the first buffer: an edge is a block, at most a page.
const EDGES_BYTES: usize = 2 * PAGE_BYTES as usize;

impl Buffers {
    /// Buffers of whole pages.
    pub(super) fn new(chunk_bytes: u64, count: u32) -> Result<Buffers, RawOpenError> {
        let (chunk_bytes, count) = (chunk_bytes as usize, count as usize);
        let bytes = EDGES_BYTES + chunk_bytes * count;
        let base = map(bytes).map_err(|errno| {
            let error = FramePoolError::Memory { bytes, errno: errno.raw_os_error() };
            RawOpenError::Memory { bytes, error }
        })?;
        Ok(Buffers { base, chunk_bytes, count })
    }

    /// The block of an edge, 0 the head and 1 the tail.
    pub(super) fn edge(&self, index: usize) -> *mut u8 {
        debug_assert!(index < 2);
        self.base.as_ptr().wrapping_add(index * PAGE_BYTES as usize)
    }

    /// A buffer of the ring.
    pub(super) fn chunk(&self, index: u32) -> *mut u8 {
        debug_assert!((index as usize) < self.count);
        self.base.as_ptr().wrapping_add(EDGES_BYTES + index as usize * self.chunk_bytes)
    }

    /// All of it: where it starts, and how many bytes it has.
    pub(super) fn whole(&self) -> (*mut u8, usize) {
        (self.base.as_ptr(), EDGES_BYTES + self.chunk_bytes * self.count)
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        let (base, bytes) = self.whole();
        // SAFETY: the mapping made by `new`, of this size; whoever had the kernel
        // use it is dropped before.
        let _ = unsafe { mm::munmap(base.cast(), bytes) };
    }
}
