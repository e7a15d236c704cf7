//! Memory for raw transfers: aligned, in huge pages, and there before the first of them.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use readpath_core::unit::PAGE_BYTES;
use rustix::mm;

use crate::frames::{FrameMemoryError, HUGE_PAGE_BYTES, map_huge};

/// Bytes that a device moves directly, and as fast as it can.
///
/// Memory of the usual allocator lies in pages of 4 KiB that are anywhere in the
/// machine: a chunk of 512 KiB is pinned page by page, and reaches the device as
/// 128 pieces. In huge pages it is one or two. On a virtual disk that is worth
/// more than anything else: the same reads ran 1.6 to 2.6 times as fast as fio's,
/// whose memory lies in small pages, for 0.23 to 0.69 of the processor time
/// (`bench/raw.py`).
/// Where the system has no huge pages to give it is memory like any other.
///
/// All of it is taken from the system at once, in whole huge pages of 2 MiB.
/// The smaller it is, and the more often it is used again, the better: what lies
/// in the processor's cache costs less to fill.
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
///     // … what is to be done with `memory[..bytes]`
///     offset += bytes as u64;
/// }
/// assert_eq!(offset, file.bytes()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RawMemory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, and is lent as `&self` and
// `&mut self` allow; nothing in it depends on the thread.
unsafe impl Send for RawMemory {}
// SAFETY: as above.
unsafe impl Sync for RawMemory {}

impl RawMemory {
    /// `bytes` bytes, all zero.
    ///
    /// ```
    /// let memory = readpath::raw::RawMemory::new(100)?;
    /// assert_eq!(memory[..], [0; 100]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The system has no room for that much, or `bytes` is 0.
    pub fn new(bytes: usize) -> Result<RawMemory, FrameMemoryError> {
        if bytes == 0 {
            return Err(FrameMemoryError::Empty);
        }
        let refused = |errno| FrameMemoryError::Memory { bytes, errno };
        let whole =
            bytes.checked_next_multiple_of(HUGE_PAGE_BYTES).ok_or_else(|| refused(libc::ENOMEM))?;
        let base = map_huge(whole).map_err(|errno| refused(errno.raw_os_error()))?;
        let mut memory = RawMemory { base, bytes };
        // Taken now, by writing to it, so that no transfer pays for it.
        memory.iter_mut().step_by(PAGE_BYTES as usize).for_each(|byte| {
            // SAFETY: a byte of the slice.
            unsafe { std::ptr::write_volatile(byte, 0) }
        });
        Ok(memory)
    }
}

impl Deref for RawMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped by `new`, initialised by the system, and ours alone.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.bytes) }
    }
}

impl DerefMut for RawMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }
}

impl Drop for RawMemory {
    fn drop(&mut self) {
        let whole = self.bytes.next_multiple_of(HUGE_PAGE_BYTES);
        // SAFETY: the mapping made by `new`, of this size, which nobody borrows any more.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), whole) };
    }
}
