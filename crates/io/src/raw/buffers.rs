//! Memory of a raw file: the ring's buffers and two edge blocks, in one mapping. The *ring* is a
//! set of buffers, one for each chunk in flight. An *edge* is a block that is requested in part.

use std::ptr::NonNull;

use readpath_core::unit::PAGE_BYTES;
use rustix::mm;

use super::RawOpenError;
use crate::os::frames::{FrameMemoryError, HUGE_PAGE_BYTES, exclude_from_fork, map_huge};

/// `count` buffers of `chunk_bytes`, then two edge blocks of a page each. The system provides the
/// memory at first touch, or at registration with the kernel.
///
/// The buffers lie in huge pages if available, so a chunk is one segment for the device. Repeated
/// reads into four buffers of 64 KiB ran 1.5 times as fast as with pages of 4 KiB
/// (`crates/eval/benches/raw_speed.rs`).
#[derive(Debug)]
pub(super) struct Buffers {
    /// Start of the mapping, the address of buffer 0.
    base: NonNull<u8>,
    /// Size of a buffer, in whole pages.
    chunk_bytes: usize,
    /// Number of buffers.
    count: usize,
}

/// Size of both edge blocks in bytes. An edge is a device block, at most a page.
const EDGE_BLOCKS_BYTES: usize = 2 * PAGE_BYTES as usize;

/// Smallest ring in bytes that takes a whole huge page. With a smaller ring more than seven eighths
/// of a huge page would stay unused.
const HUGE_PAGE_THRESHOLD_BYTES: usize = HUGE_PAGE_BYTES / 8;

impl Buffers {
    /// Maps `count` buffers; `chunk_bytes` is a multiple of the page size.
    pub(super) fn new(chunk_bytes: u64, count: u32) -> Result<Buffers, RawOpenError> {
        let (chunk_bytes, count) = (chunk_bytes as usize, count as usize);
        let bytes = mapped_bytes(chunk_bytes * count);
        let base = map_huge(bytes).map_err(|errno| {
            let error = FrameMemoryError::Memory { bytes, errno: errno.raw_os_error() };
            RawOpenError::Memory { bytes, error }
        })?;
        // A child builds buffers of its own.
        exclude_from_fork(base, bytes);
        Ok(Buffers { base, chunk_bytes, count })
    }

    /// Address of an edge block: 0 the head, 1 the tail.
    pub(super) fn edge(&self, index: usize) -> *mut u8 {
        debug_assert!(index < 2);
        let edges = self.base.as_ptr().wrapping_add(self.chunk_bytes * self.count);
        edges.wrapping_add(index * PAGE_BYTES as usize)
    }

    /// Address of a buffer of the ring.
    pub(super) fn chunk(&self, index: u32) -> *mut u8 {
        debug_assert!((index as usize) < self.count);
        self.base.as_ptr().wrapping_add(index as usize * self.chunk_bytes)
    }

    /// Address and size in bytes of buffers and edges together.
    pub(super) fn address_range(&self) -> (*mut u8, usize) {
        (self.base.as_ptr(), EDGE_BLOCKS_BYTES + self.chunk_bytes * self.count)
    }
}

impl Drop for Buffers {
    /// Unmaps the buffers.
    fn drop(&mut self) {
        let bytes = mapped_bytes(self.chunk_bytes * self.count);
        // SAFETY: the mapping made by `new`, of this size. The backend that may have registered it
        // with the kernel is dropped before.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), bytes) };
    }
}

/// Size of the mapping in bytes for buffers of `buffers_bytes` bytes in total. A large mapping has
/// at least one huge page.
fn mapped_bytes(buffers_bytes: usize) -> usize {
    let bytes_min = if buffers_bytes < HUGE_PAGE_THRESHOLD_BYTES { 0 } else { HUGE_PAGE_BYTES };
    (buffers_bytes + EDGE_BLOCKS_BYTES).max(bytes_min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_buffers_are_huge_page_aligned_and_edges_follow_them() {
        // Bytes of a chunk, number of chunks, and expected bytes of the mapping.
        for (chunk_bytes, count, expected_bytes) in [
            (4096, 1, 12 << 10),
            (65_536, 3, 200 << 10),
            (65_536, 4, 2 << 20),
            (524_288, 4, (2 << 20) + (8 << 10)),
        ] {
            let ring_bytes = chunk_bytes * count as usize;
            assert_eq!(mapped_bytes(ring_bytes), expected_bytes);
            let buffers = Buffers::new(chunk_bytes as u64, count).unwrap();
            let base = buffers.chunk(0) as usize;
            assert!(expected_bytes < 2 << 20 || base.is_multiple_of(2 << 20));
            assert_eq!(buffers.chunk(count - 1) as usize - base, ring_bytes - chunk_bytes);
            let end = base + ring_bytes;
            let edges = [0, 1].map(|index| buffers.edge(index) as usize);
            assert_eq!(edges, [end, end + 4096]);
            assert_eq!(buffers.address_range().1, ring_bytes + 8192);
        }
    }
}
