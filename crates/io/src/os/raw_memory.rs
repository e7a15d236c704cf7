//! Memory for raw transfers: aligned, in huge pages, and allocated up front.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use readpath_core::unit::PAGE_BYTES;
use rustix::mm;

use crate::os::frames::{FrameMemoryError, HUGE_PAGE_BYTES, map_huge};

/// Page-aligned memory for direct I/O, in huge pages if the system provides them.
///
/// Memory of the usual allocator consists of pages of 4 KiB at scattered physical addresses. A
/// chunk of 512 KiB is then pinned page by page and reaches the device as 128 segments. In huge
/// pages it is one or two segments. On a virtual disk this matters most: the same reads ran 1.6 to
/// 2.6 times as fast as fio's with small pages. They took 0.23 to 0.69 of the processor time
/// (`bench/raw.py`). If the system has no huge pages left, the memory is ordinary memory.
///
/// All memory is allocated at once. A buffer of 256 KiB or more takes whole huge pages of 2 MiB, a
/// smaller one pages of 4 KiB. [`RawMemory::several`] splits one allocation into many small
/// buffers, so that these are in huge pages as well. Small buffers that are reused often are best:
/// memory in the processor's cache is cheaper to fill.
///
/// ```
/// use readpath::RawFile;
/// use readpath::raw::RawMemory;
///
/// # let path = std::env::current_exe()?;
/// let file = RawFile::open(&path)?;
/// let mut memory = RawMemory::new(2 << 20)?;
/// let mut offset = 0;
/// loop {
///     let bytes = file.read_at(&mut memory, offset)?;
///     if bytes == 0 {
///         break;
///     }
///     // Process `memory[..bytes]` here.
///     offset += bytes as u64;
/// }
/// assert_eq!(offset, file.bytes()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RawMemory {
    /// First byte of this buffer, within the mapping.
    base: NonNull<u8>,
    /// Length of this buffer.
    bytes: usize,
    /// Keeps the mapping, which several buffers may share.
    _mapping: Arc<SharedMapping>,
}

/// One mapping, unmapped on drop of its last buffer.
#[derive(Debug)]
struct SharedMapping {
    /// Start of the mapping.
    base: NonNull<u8>,
    /// Length of the mapping.
    bytes: usize,
}

// SAFETY: a mapping is only unmapped, which depends on no thread.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}
// SAFETY: the bytes belong to this value alone, and are borrowed as `&self` and
// `&mut self` allow; nothing in it depends on the thread.
unsafe impl Send for RawMemory {}
// SAFETY: as above.
unsafe impl Sync for RawMemory {}

/// Minimum length in bytes of a mapping that takes whole huge pages. In a smaller mapping more than
/// seven eighths of a huge page would stay unused.
const HUGE_PAGE_THRESHOLD_BYTES: usize = HUGE_PAGE_BYTES / 8;

impl RawMemory {
    /// Allocates `bytes` bytes, all zero.
    ///
    /// ```
    /// let memory = readpath::raw::RawMemory::new(100)?;
    /// assert_eq!(memory[..], [0; 100]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The system is short of memory, or `bytes` is 0.
    pub fn new(bytes: usize) -> Result<RawMemory, FrameMemoryError> {
        let mut buffers = RawMemory::several(1, bytes)?;
        Ok(buffers.pop().expect("one buffer was allocated"))
    }

    /// Allocates `count` buffers of `bytes` bytes each, all zero, each at the start of a page. They
    /// share one mapping, which is unmapped on drop of the last buffer. Each may be in use by a
    /// transfer at the same time.
    ///
    /// ```
    /// let spare = readpath::raw::RawMemory::several(256, 4096)?;
    /// assert_eq!(spare.len(), 256);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The system has no room for that much, or `count` or `bytes` is 0.
    pub fn several(count: usize, bytes: usize) -> Result<Vec<RawMemory>, FrameMemoryError> {
        if bytes == 0 || count == 0 {
            return Err(FrameMemoryError::Empty);
        }
        let no_memory =
            || FrameMemoryError::Memory { bytes: bytes.saturating_mul(count), errno: libc::ENOMEM };
        let page_bytes = PAGE_BYTES as usize;
        let stride_bytes = bytes.checked_next_multiple_of(page_bytes).ok_or_else(no_memory)?;
        let total_bytes = stride_bytes.checked_mul(count).ok_or_else(no_memory)?;
        // Large memory is mapped in whole huge pages.
        let mapped_bytes = match total_bytes < HUGE_PAGE_THRESHOLD_BYTES {
            true => total_bytes,
            false => total_bytes.checked_next_multiple_of(HUGE_PAGE_BYTES).ok_or_else(no_memory)?,
        };
        let base = map_huge(mapped_bytes).map_err(|errno| FrameMemoryError::Memory {
            bytes: total_bytes,
            errno: errno.raw_os_error(),
        })?;
        let mapping = Arc::new(SharedMapping { base, bytes: mapped_bytes });
        let new_buffer = |buffer_index: usize| {
            // SAFETY: `buffer_index` is below `count`, so that this lies in the mapping.
            let base = unsafe { base.add(buffer_index * stride_bytes) };
            let mut memory = RawMemory { base, bytes, _mapping: Arc::clone(&mapping) };
            // Touch each page now, so that no transfer pays for the page faults.
            memory.iter_mut().step_by(page_bytes).for_each(|byte| {
                // SAFETY: a byte of the slice.
                unsafe { std::ptr::write_volatile(byte, 0) }
            });
            memory
        };
        Ok((0..count).map(new_buffer).collect())
    }
}

impl Deref for RawMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: this part of the mapping is initialised by the system, and ours alone.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.bytes) }
    }
}

impl DerefMut for RawMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }
}

impl Drop for SharedMapping {
    /// Unmaps the memory of all its buffers.
    fn drop(&mut self) {
        // SAFETY: the mapping made by `several`, of this size, of which no buffer is left.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1,024 buffers of a page are 4 MiB, and no two of them share a byte.
    #[test]
    fn small_buffers_share_one_mapping_without_overlap() {
        let mut buffers = RawMemory::several(1024, 4096).unwrap();
        assert_eq!(buffers[0]._mapping.bytes, 4 << 20);
        for (buffer_index, buffer) in buffers.iter_mut().enumerate() {
            buffer.fill(buffer_index as u8);
        }
        assert!(
            buffers.iter().enumerate().all(|(buffer_index, buffer)| buffer
                .iter()
                .all(|&byte| byte == buffer_index as u8))
        );
        let mut starts: Vec<usize> =
            buffers.iter().map(|buffer| buffer.as_ptr() as usize).collect();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] == 4096));
        // The last buffer remains valid after the others are dropped.
        let last = buffers.pop().unwrap();
        drop(buffers);
        // The last buffer was filled with the low byte of its index, 1,023.
        assert!(last.iter().all(|&byte| byte == 0xff));
    }

    #[test]
    fn raw_memory_uses_a_huge_page_from_an_eighth_of_its_size() {
        // Bytes of a buffer, and expected bytes of its mapping.
        for (bytes, mapped_bytes) in
            [(1, 4096), (4097, 8192), (256 << 10, 2 << 20), ((2 << 20) + 1, 4 << 20)]
        {
            let buffer = RawMemory::new(bytes).unwrap();
            assert_eq!((buffer.len(), buffer._mapping.bytes), (bytes, mapped_bytes));
            assert!((buffer.as_ptr() as usize).is_multiple_of(4096));
        }
        assert_eq!(RawMemory::new(0).unwrap_err(), FrameMemoryError::Empty);
        assert_eq!(RawMemory::several(0, 1).unwrap_err(), FrameMemoryError::Empty);
        let huge = RawMemory::several(usize::MAX, 4096).unwrap_err();
        assert!(matches!(huge, FrameMemoryError::Memory { errno: libc::ENOMEM, .. }), "{huge}");
    }
}
