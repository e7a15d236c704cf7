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
    base: NonNull<u8>,
    bytes: usize,
    /// Keeps the mapping, which several buffers may share.
    _mapping: Arc<SharedMapping>,
}

/// One mapping, given back when its last buffer goes.
#[derive(Debug)]
struct SharedMapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a piece only unmaps its memory, which depends on no thread.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}
// SAFETY: the bytes belong to this value alone, and are borrowed as `&self` and
// `&mut self` allow; nothing in it depends on the thread.
unsafe impl Send for RawMemory {}
// SAFETY: as above.
unsafe impl Sync for RawMemory {}

/// Minimum length in bytes of a mapping that takes whole huge pages.
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
        let mut one = RawMemory::several(1, bytes)?;
        Ok(one.pop().expect("one was asked for"))
    }

    /// `count` buffers of `bytes` bytes each, all zero, each at the start of a page. Together they
    /// take the memory that they have, rounded up to pages: as many transfers can be in flight.
    /// The memory is given back with the last of them.
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
        let too_many =
            || FrameMemoryError::Memory { bytes: bytes.saturating_mul(count), errno: libc::ENOMEM };
        let stride = bytes.checked_next_multiple_of(PAGE_BYTES as usize).ok_or_else(too_many)?;
        let total_bytes = stride.checked_mul(count).ok_or_else(too_many)?;
        let mapped_bytes = match total_bytes < HUGE_PAGE_THRESHOLD_BYTES {
            true => total_bytes,
            false => total_bytes.checked_next_multiple_of(HUGE_PAGE_BYTES).ok_or_else(too_many)?,
        };
        let base = map_huge(mapped_bytes).map_err(|errno| FrameMemoryError::Memory {
            bytes: total_bytes,
            errno: errno.raw_os_error(),
        })?;
        let mapping = Arc::new(SharedMapping { base, bytes: mapped_bytes });
        let new_buffer = |buffer_index: usize| {
            // SAFETY: `buffer_index` is below `count`, so that this lies in the mapping.
            let base = unsafe { base.add(buffer_index * stride) };
            let mut memory = RawMemory { base, bytes, _mapping: Arc::clone(&mapping) };
            // Touch each page now, so that no transfer pays for the page faults.
            memory.iter_mut().step_by(PAGE_BYTES as usize).for_each(|byte| {
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
        let mut total_bytes = RawMemory::several(1024, 4096).unwrap();
        assert_eq!(total_bytes[0]._mapping.bytes, 4 << 20);
        for (buffer_index, one) in total_bytes.iter_mut().enumerate() {
            one.fill(buffer_index as u8);
        }
        assert!(
            total_bytes
                .iter()
                .enumerate()
                .all(|(buffer_index, one)| one.iter().all(|&b| b == buffer_index as u8))
        );
        let mut ends: Vec<usize> = total_bytes.iter().map(|one| one.as_ptr() as usize).collect();
        ends.sort_unstable();
        assert!(ends.windows(2).all(|pair| pair[1] - pair[0] == 4096));
        // The last buffer remains valid after the others are dropped.
        let last = total_bytes.pop().unwrap();
        drop(total_bytes);
        assert!(last.iter().all(|&byte| byte == 1023_u32 as u8));
    }

    #[test]
    fn raw_memory_uses_a_huge_page_from_an_eighth_of_its_size() {
        for (bytes, mapped) in
            [(1, 4096), (4097, 8192), (256 << 10, 2 << 20), ((2 << 20) + 1, 4 << 20)]
        {
            let one = RawMemory::new(bytes).unwrap();
            assert_eq!((one.len(), one._mapping.bytes), (bytes, mapped));
            assert!((one.as_ptr() as usize).is_multiple_of(4096));
        }
        assert_eq!(RawMemory::new(0).unwrap_err(), FrameMemoryError::Empty);
        assert_eq!(RawMemory::several(0, 1).unwrap_err(), FrameMemoryError::Empty);
        let huge = RawMemory::several(usize::MAX, 4096).unwrap_err();
        assert!(matches!(huge, FrameMemoryError::Memory { errno: libc::ENOMEM, .. }), "{huge}");
    }
}
