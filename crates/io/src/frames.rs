//! The frames of the page cache: one anonymous mapping, cut into pages of 4 KiB.
//!
//! The core names a frame by its number and never sees an address. Here the
//! number becomes one. Neighbouring frames are neighbours in memory, so a
//! request over frames 7, 8, 9 needs one piece of memory, not three.
//!
//! From the first large request on the kernel is asked for huge pages. Then neighbours are neighbours in the
//! machine's memory too, and a request over them reaches the device as one
//! piece: random direct reads of 64 KiB at depth 32 ran at 2.1 times the speed
//! on a virtual disk (2,270 against 1,090 MiB/s, with
//! contiguous and with scattered frames). The price is that memory is taken
//! 2 MiB at a time, which small reads at random places don't gain by: on a virtual machine whose host takes free memory
//! back, to clear huge pages was two fifths of the processor time of 4 KiB reads by eight threads, and without them a
//! read took 15.7 us in place of 24.6.

use std::ptr::NonNull;

use readpath_core::unit::PAGE_BYTES;
use rustix::mm;

/// The size of a huge page on x86-64, and on 64-bit Arm with pages of 4 KiB.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Of each page books are kept, in tables of which none takes more than so many bytes a page.
const TABLE_BYTES: u64 = 128;

/// The tables of so many pages, 16 GiB, find room wherever a path does.
const PAGES_ASSURED: u64 = 1 << 22;

/// Whether the system has room for the tables of so many pages: they are asked for where a refusal ends the process.
pub(crate) fn has_room_for_tables(pages: u64) -> bool {
    let bytes = usize::try_from(pages.saturating_mul(TABLE_BYTES)).unwrap_or(usize::MAX);
    pages <= PAGES_ASSURED || Vec::<u8>::new().try_reserve_exact(bytes).is_ok()
}

/// The memory of a fixed number of frames, in one piece, aligned to a page; who
/// may use which frame when is its owner's affair.
///
/// Memory is taken from the system when a frame is first touched, and given
/// back on drop.
///
/// A child made by `fork` has nothing there: so its parent's pages stay what a device fills,
/// where the kernel would else give one of the two a copy (open(2), `O_DIRECT`), and a fork costs
/// no more for them. In a child it must not be dropped.
pub(crate) struct FrameMemory {
    base: NonNull<u8>,
    frames: u32,
}

// SAFETY: the mapping belongs to this value alone; nothing in it depends on the
// thread. Through `&self` it gives addresses only.
unsafe impl Send for FrameMemory {}
// SAFETY: as above.
unsafe impl Sync for FrameMemory {}

impl FrameMemory {
    /// Memory for `frames` frames of [`PAGE_BYTES`] each, all zero.
    ///
    /// # Errors
    /// The system has no room for that much memory, or `frames` is 0.
    pub(crate) fn new(frames: u32) -> Result<FrameMemory, FrameMemoryError> {
        if frames == 0 {
            return Err(FrameMemoryError::Empty);
        }
        let bytes = frames as usize * PAGE_BYTES as usize;
        let base = map(bytes)
            .map_err(|errno| FrameMemoryError::Memory { bytes, errno: errno.raw_os_error() })?;
        keep_from_children(base, bytes);
        Ok(FrameMemory { base, frames })
    }

    /// Where a frame starts. Frame after frame, the addresses follow each other.
    ///
    /// # Panics
    /// There is no such frame.
    pub(crate) fn address(&self, frame: u32) -> *mut u8 {
        assert!(frame < self.frames, "frame {frame} of {}", self.frames);
        // SAFETY: the frame lies in the mapping.
        unsafe { self.base.as_ptr().add(frame as usize * PAGE_BYTES as usize) }
    }
}

impl FrameMemory {
    /// Has memory that is touched from now on be taken in huge pages.
    pub(crate) fn use_huge_pages(&self) {
        advise_huge_pages(self.base, self.frames as usize * PAGE_BYTES as usize);
    }

    /// Gives the memory of `count` frames from `first` on, whose bytes nobody needs, back to the system.
    pub(crate) fn give_back(&self, first: u32, count: usize) {
        let (start, last) = (self.address(first), self.address(first + count as u32 - 1));
        debug_assert!(start <= last);
        let bytes = count * PAGE_BYTES as usize;
        // SAFETY: frames of the mapping, which hold nothing. Refused where the program has locked them: then they
        // stay, and are used again as they are.
        let _ = unsafe { mm::madvise(start.cast(), bytes, mm::Advice::LinuxDontNeed) };
    }
}

impl Drop for FrameMemory {
    fn drop(&mut self) {
        let bytes = self.frames as usize * PAGE_BYTES as usize;
        // SAFETY: the mapping was made by `new` with this size, and nothing
        // refers to it any more, by the owner's promise.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), bytes) };
    }
}

/// Maps `bytes` bytes of empty memory that starts, if it is large enough to
/// gain by it, where a huge page can.
pub(crate) fn map(bytes: usize) -> rustix::io::Result<NonNull<u8>> {
    let alignment = if bytes < HUGE_PAGE_BYTES { PAGE_BYTES as usize } else { HUGE_PAGE_BYTES };
    let more = alignment - PAGE_BYTES as usize;
    let protection = mm::ProtFlags::READ | mm::ProtFlags::WRITE;
    let null = std::ptr::null_mut();
    let flags = mm::MapFlags::PRIVATE | mm::MapFlags::NORESERVE;
    // SAFETY: a new private mapping at an address that the kernel chooses.
    let start = unsafe { mm::mmap_anonymous(null, bytes + more, protection, flags)? };
    let before = (start as usize).next_multiple_of(alignment) - start as usize;
    let base = start.wrapping_byte_add(before);
    // SAFETY: what lies around the aligned part was just mapped, and nobody knows of it.
    unsafe {
        if before > 0 {
            mm::munmap(start, before)?;
        }
        if before < more {
            mm::munmap(base.wrapping_byte_add(bytes), more - before)?;
        }
    }
    Ok(NonNull::new(base.cast()).expect("a mapping is never at address zero"))
}

/// As [`map`], in huge pages.
pub(crate) fn map_huge(bytes: usize) -> rustix::io::Result<NonNull<u8>> {
    map(bytes).inspect(|&base| advise_huge_pages(base, bytes))
}

fn advise_huge_pages(base: NonNull<u8>, bytes: usize) {
    // SAFETY: a mapping of the caller's; the advice changes no bytes. A kernel
    // without huge pages refuses it, and it is memory all the same.
    let _ = unsafe { mm::madvise(base.as_ptr().cast(), bytes, mm::Advice::LinuxHugepage) };
}

/// Whether what a program maps is brought into memory at once, all of it: `MCL_FUTURE` of mlockall(2).
pub(crate) fn locks_what_is_mapped() -> bool {
    let Ok(base) = map(PAGE_BYTES as usize) else { return false };
    let mut is_there = 0u8;
    // SAFETY: the page was mapped just now, and nobody else knows of it; the answer is one byte.
    unsafe {
        let asked = libc::mincore(base.as_ptr().cast(), PAGE_BYTES as usize, &mut is_there);
        let _ = mm::munmap(base.as_ptr().cast(), PAGE_BYTES as usize);
        asked == 0 && is_there & 1 != 0
    }
}

/// Has children made by `fork` not inherit a mapping.
pub(crate) fn keep_from_children(base: NonNull<u8>, bytes: usize) {
    // SAFETY: the advice changes no bytes, and in a child nobody looks at a mapping of ours. Refused
    // by no kernel that has O_DIRECT; if it is, a child has a copy that it doesn't use.
    let _ = unsafe { mm::madvise(base.as_ptr().cast(), bytes, mm::Advice::LinuxDontFork) };
}

/// Why there is no pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameMemoryError {
    /// A pool of no frames holds no page.
    Empty,
    /// The system refused the memory.
    Memory {
        /// How much was asked for.
        bytes: usize,
        /// Its answer, as in `errno(3)`.
        errno: i32,
    },
}

impl std::fmt::Display for FrameMemoryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FrameMemoryError::Empty => {
                f.write_str("a page cache of 0 frames can hold nothing; give it at least 4 KiB")
            }
            FrameMemoryError::Memory { bytes, errno } => write!(
                f,
                "the system has no room for a page cache of {} MiB ({}); ask for less memory",
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
    fn large_memory_starts_where_a_huge_page_can_and_small_memory_at_a_page() {
        for (frames, alignment) in [(1, 4096), (511, 4096), (512, 2 << 20), (1_000, 2 << 20)] {
            let memory = FrameMemory::new(frames).unwrap();
            let (first, last) = (memory.address(0), memory.address(frames - 1));
            assert_eq!(first as usize % alignment, 0, "{frames} frames");
            assert_eq!(last as usize - first as usize, (frames as usize - 1) * 4096);
            // Both ends are there, and empty.
            let last_byte = last.wrapping_add(4095);
            // SAFETY: bytes of the mapping, which nobody else knows of.
            unsafe {
                assert_eq!((first.read(), last_byte.read()), (0, 0));
                last_byte.write(2);
                assert_eq!(last_byte.read(), 2);
            }
        }
    }

    #[test]
    fn memory_that_is_not_there_is_an_error_with_a_next_step() {
        assert_eq!(FrameMemory::new(0).err(), Some(FrameMemoryError::Empty));
        // 16 TiB: more than this machine, under any setting of overcommit but "always".
        if let Err(error) = FrameMemory::new(u32::MAX) {
            assert!(error.to_string().contains("ask for less memory"), "{error}");
            assert!(error.to_string().contains("16777215 MiB"), "{error}");
        }
    }
}
