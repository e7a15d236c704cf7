//! Frames of the page cache: one anonymous mapping in pages of 4 KiB.
//!
//! The core identifies a frame by its number, never by an address. Adjacent frames are adjacent in
//! memory, so a request over frames 7, 8, 9 needs one segment.
//!
//! From the first large request on, the mapping asks for huge pages. Adjacent frames are then also
//! adjacent in physical memory and reach the device as one segment. Random direct reads of 64 KiB
//! at depth 32 ran 2.1 times as fast on a virtual disk: 2,270 instead of 1,090 MiB/s. The cost:
//! memory is taken 2 MiB at a time, which small random reads do not need. On a virtual machine
//! whose host reclaims free memory, clearing huge pages took two fifths of the processor time of 4
//! KiB reads by eight threads. The reads took 24.6 us with huge pages and 15.7 us without.

use std::ptr::NonNull;

use readpath_core::unit::PAGE_BYTES;
use rustix::mm;

/// Size of a huge page on x86-64, and on 64-bit Arm with 4 KiB pages, in bytes.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Size of all tables of page metadata of a path, in bytes per page, with room for its first reads.
/// The tables of a path of 1 GiB took 22 MiB, 88 bytes per page (growth of `VmData` by its build).
const METADATA_BYTES_PER_PAGE: u64 = 128;

/// True if the system can provide the metadata of `pages` pages. A failure at its real allocation
/// would abort the process.
pub(crate) fn can_allocate_page_metadata(pages: u64) -> bool {
    can_allocate(page_metadata_bytes(pages))
}

/// Size of all tables of metadata of `pages` pages, in bytes.
pub(crate) fn page_metadata_bytes(pages: u64) -> u64 {
    pages.saturating_mul(METADATA_BYTES_PER_PAGE)
}

/// True if the system can provide `bytes` bytes of memory now. It does not keep them. The bytes are
/// a mapping: the allocator would reuse freed memory for the tables, and clear all of it.
pub(crate) fn can_allocate(bytes: u64) -> bool {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).max(1);
    let protection = mm::ProtFlags::READ | mm::ProtFlags::WRITE;
    let (address, flags) = (std::ptr::null_mut(), mm::MapFlags::PRIVATE);
    // SAFETY: a new private mapping at an address of the kernel's choice, which nothing uses.
    unsafe {
        let mapped = mm::mmap_anonymous(address, bytes, protection, flags);
        mapped.and_then(|start| mm::munmap(start, bytes)).is_ok()
    }
}

/// Memory of a fixed number of frames, contiguous and page-aligned. The owner decides on the use of
/// each frame.
///
/// The system provides memory at the first touch of a frame and takes it back on drop.
///
/// A child made by `fork` does not inherit the mapping. The device thus keeps writing to the
/// parent's pages, where copy-on-write could give the parent a copy (open(2), `O_DIRECT`), and
/// forks cost no more. A child must not drop it.
pub(crate) struct FrameMemory {
    /// Start of the mapping, the address of frame 0.
    base: NonNull<u8>,
    frame_count: u32,
}

// SAFETY: the mapping belongs to this value alone and does not depend on the thread. `&self` only
// computes addresses.
unsafe impl Send for FrameMemory {}
// SAFETY: as above.
unsafe impl Sync for FrameMemory {}

impl FrameMemory {
    /// Maps `frame_count` frames of [`PAGE_BYTES`] each, all zero.
    ///
    /// # Errors
    /// The system cannot provide the memory, or `frame_count` is 0.
    pub(crate) fn new(frame_count: u32) -> Result<FrameMemory, FrameMemoryError> {
        if frame_count == 0 {
            return Err(FrameMemoryError::Empty);
        }
        let bytes = frame_count as usize * PAGE_BYTES as usize;
        let base = map_zeroed(bytes)
            .map_err(|errno| FrameMemoryError::Memory { bytes, errno: errno.raw_os_error() })?;
        exclude_from_fork(base, bytes);
        Ok(FrameMemory { base, frame_count })
    }

    /// Number of frames.
    pub(crate) fn frame_count(&self) -> u32 {
        self.frame_count
    }

    /// Address of a frame; consecutive frames are adjacent.
    ///
    /// # Panics
    /// There is no such frame.
    pub(crate) fn address(&self, frame: u32) -> *mut u8 {
        assert!(frame < self.frame_count, "frame {frame} of {}", self.frame_count);
        // SAFETY: the frame lies in the mapping.
        unsafe { self.base.as_ptr().add(frame as usize * PAGE_BYTES as usize) }
    }
}

impl FrameMemory {
    /// Requests huge pages for memory touched from now on.
    pub(crate) fn use_huge_pages(&self) {
        advise_huge_pages(self.base, self.frame_count as usize * PAGE_BYTES as usize);
    }

    /// Returns the memory of `count` unused frames, at least one, from `first_frame` on to the
    /// system.
    pub(crate) fn release_memory(&self, first_frame: u32, count: usize) {
        let last_frame = first_frame + count as u32 - 1;
        let (start, last) = (self.address(first_frame), self.address(last_frame));
        debug_assert!(start <= last);
        let bytes = count * PAGE_BYTES as usize;
        // SAFETY: frames of the mapping without content. The call fails if the program has locked
        // them; they then stay and are reused as they are.
        let _ = unsafe { mm::madvise(start.cast(), bytes, mm::Advice::LinuxDontNeed) };
    }
}

impl Drop for FrameMemory {
    /// Unmaps all frames.
    fn drop(&mut self) {
        let bytes = self.frame_count as usize * PAGE_BYTES as usize;
        // SAFETY: mapped by `new` with this size; by the owner's contract no reference is left.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), bytes) };
    }
}

/// Maps `bytes` bytes, all zero. A mapping of at least a huge page is aligned to one, so that huge
/// pages fit; a smaller one is aligned to a page.
fn map_zeroed(bytes: usize) -> rustix::io::Result<NonNull<u8>> {
    let page_bytes = PAGE_BYTES as usize;
    let alignment_bytes = if bytes < HUGE_PAGE_BYTES { page_bytes } else { HUGE_PAGE_BYTES };
    // The kernel aligns to a page. The excess contains an aligned part of the requested length.
    let alignment_slack = alignment_bytes - page_bytes;
    let protection = mm::ProtFlags::READ | mm::ProtFlags::WRITE;
    let null = std::ptr::null_mut();
    let flags = mm::MapFlags::PRIVATE | mm::MapFlags::NORESERVE;
    // SAFETY: a new private mapping at an address of the kernel's choice.
    let start = unsafe { mm::mmap_anonymous(null, bytes + alignment_slack, protection, flags)? };
    let leading_bytes = (start as usize).next_multiple_of(alignment_bytes) - start as usize;
    let base = start.wrapping_byte_add(leading_bytes);
    // SAFETY: the excess around the aligned part was just mapped and has no users.
    unsafe {
        if leading_bytes > 0 {
            mm::munmap(start, leading_bytes)?;
        }
        if leading_bytes < alignment_slack {
            mm::munmap(base.wrapping_byte_add(bytes), alignment_slack - leading_bytes)?;
        }
    }
    Ok(NonNull::new(base.cast()).expect("a mapping is never at address zero"))
}

/// Like `map_zeroed`, with huge pages.
pub(crate) fn map_huge(bytes: usize) -> rustix::io::Result<NonNull<u8>> {
    map_zeroed(bytes).inspect(|&base| advise_huge_pages(base, bytes))
}

/// Asks the kernel for huge pages in a mapping.
fn advise_huge_pages(base: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller's mapping; the advice changes no bytes. A kernel without huge pages
    // rejects it, and the memory still works.
    let _ = unsafe { mm::madvise(base.as_ptr().cast(), bytes, mm::Advice::LinuxHugepage) };
}

/// True if the program has all new mappings locked in memory: `MCL_FUTURE` of mlockall(2). A page
/// that was mapped and not touched is then in memory, which mincore(2) shows. False if no page can
/// be mapped, or if the call fails.
pub(crate) fn locks_future_mappings() -> bool {
    let Ok(base) = map_zeroed(PAGE_BYTES as usize) else { return false };
    let mut is_in_core = 0u8;
    // SAFETY: the page was just mapped and has no users; the answer is one byte.
    unsafe {
        let mincore_result =
            libc::mincore(base.as_ptr().cast(), PAGE_BYTES as usize, &mut is_in_core);
        let _ = mm::munmap(base.as_ptr().cast(), PAGE_BYTES as usize);
        mincore_result == 0 && is_in_core & 1 != 0
    }
}

/// Excludes the mapping of `bytes` bytes at `base` from children made by `fork`.
pub(crate) fn exclude_from_fork(base: NonNull<u8>, bytes: usize) {
    // SAFETY: the advice changes no bytes, and a child never uses our mappings. Every kernel with
    // O_DIRECT accepts it; otherwise a child has an unused copy.
    let _ = unsafe { mm::madvise(base.as_ptr().cast(), bytes, mm::Advice::LinuxDontFork) };
}

/// Error of allocating frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameMemoryError {
    /// A cache of 0 frames holds no page.
    Empty,
    /// The system rejected the mapping.
    Memory {
        /// Requested bytes.
        bytes: usize,
        /// Error of the system, as in `errno(3)`.
        errno: i32,
    },
}

impl std::fmt::Display for FrameMemoryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FrameMemoryError::Empty => {
                f.write_str("a memory of 0 pages can hold nothing; ask for more")
            }
            FrameMemoryError::Memory { bytes, errno } => write!(
                f,
                "the system has no room for {} MiB of memory ({}); ask for less memory, or raise \
                 the process's limit if it has one (`ulimit -d`, `ulimit -v`)",
                bytes >> 20,
                std::io::Error::from_raw_os_error(*errno)
            ),
        }
    }
}

impl std::error::Error for FrameMemoryError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_memory_is_huge_page_aligned_only_when_large() {
        // Number of frames, and alignment in bytes. A huge page has 512 frames.
        for (frames, alignment) in [(1, 4096), (511, 4096), (512, 2 << 20), (1_000, 2 << 20)] {
            let memory = FrameMemory::new(frames).unwrap();
            let (first, last) = (memory.address(0), memory.address(frames - 1));
            assert_eq!(first as usize % alignment, 0, "{frames} frames");
            assert_eq!(last as usize - first as usize, (frames as usize - 1) * 4096);
            // Both ends are mapped and zero.
            let last_byte = last.wrapping_add(4095);
            // SAFETY: bytes of the mapping, without other users.
            unsafe {
                assert_eq!((first.read(), last_byte.read()), (0, 0));
                last_byte.write(2);
                assert_eq!(last_byte.read(), 2);
            }
        }
    }

    #[test]
    fn unavailable_frame_memory_is_an_error_with_a_remedy() {
        assert_eq!(FrameMemory::new(0).err(), Some(FrameMemoryError::Empty));
        // The memory of a raw transfer is no cache, and one byte of it is a page.
        assert!(!FrameMemoryError::Empty.to_string().contains("cache"));
        // 4,294,967,295 frames are 16 TiB: more than this machine has, under any overcommit setting
        // except "always".
        if let Err(error) = FrameMemory::new(u32::MAX) {
            assert!(error.to_string().contains("ask for less memory"), "{error}");
            assert!(!error.to_string().contains("cache"), "{error}");
            assert!(error.to_string().contains("16777215 MiB"), "{error}");
        }
    }
}
