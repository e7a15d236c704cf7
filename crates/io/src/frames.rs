//! The frames of the page cache: one anonymous mapping, cut into pages of 4 KiB.
//!
//! The core names a frame by its number and never sees an address. Here the
//! number becomes one. Neighbouring frames are neighbours in memory, so a
//! request over frames 7, 8, 9 needs one piece of memory, not three.
//!
//! The kernel is asked for huge pages. Then neighbours are neighbours in the
//! machine's memory too, and a request over them reaches the device as one
//! piece: random direct reads of 64 KiB at depth 32 ran at 2.1 times the speed
//! on a virtual disk (2,270 against 1,090 MiB/s, `examples/ring_speed.rs`, with
//! contiguous and with scattered frames). The price is that memory is taken
//! 2 MiB at a time.
//!
//! While a request is in flight the kernel reads or writes its frames behind
//! the compiler's back. Two rules keep that sound without a lock:
//!
//! 1. A frame that is being filled is lent to nobody, and a frame that is being
//!    written out is lent for reading only. The pool keeps one byte a frame for
//!    that and checks it whenever a frame is lent: to break the rule is a bug
//!    of the caller, and stops the program.
//! 2. Frames are handed to the kernel through `&mut` on whoever owns the pool.
//!    So no slice that was lent before can still be alive.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use readpath_core::request::Op;
use readpath_core::unit::PAGE_BYTES;
use rustix::mm;

/// The state of a frame that belongs to nobody but its pool.
const AT_REST: u8 = 0;
/// The state of a frame into which a request reads. Between the two: the
/// number of requests that write the frame out.
const FILLING: u8 = u8::MAX;

/// The size of a huge page on x86-64, and on 64-bit Arm with pages of 4 KiB.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes in consecutive frames: from the start of `frame` on, `bytes` of them,
/// at least 1. The last frame need not be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first frame.
    pub frame: u32,
    /// How many bytes.
    pub bytes: u32,
}

impl Piece {
    /// All bytes of one frame.
    pub const fn whole(frame: u32) -> Piece {
        Piece { frame, bytes: PAGE_BYTES as u32 }
    }
}

fn ends_at(segment: &libc::iovec, address: *mut u8) -> bool {
    segment.iov_base.cast::<u8>().wrapping_add(segment.iov_len) == address
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
    pub(crate) fn new(frames: u32) -> Result<FrameMemory, FramePoolError> {
        if frames == 0 {
            return Err(FramePoolError::Empty);
        }
        let bytes = frames as usize * PAGE_BYTES as usize;
        let base = map(bytes)
            .map_err(|errno| FramePoolError::Memory { bytes, errno: errno.raw_os_error() })?;
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

impl Drop for FrameMemory {
    fn drop(&mut self) {
        let bytes = self.frames as usize * PAGE_BYTES as usize;
        // SAFETY: the mapping was made by `new` with this size, and nothing
        // refers to it any more, by the owner's promise.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), bytes) };
    }
}

/// A fixed number of page frames, of which one thread keeps account.
pub struct FramePool {
    memory: ManuallyDrop<FrameMemory>,
    states: Vec<u8>,
    in_flight: u32,
}

impl FramePool {
    /// A pool of `frames` frames of [`PAGE_BYTES`] each, all zero.
    ///
    /// # Errors
    /// The system has no room for that much memory, or `frames` is 0.
    pub fn new(frames: u32) -> Result<FramePool, FramePoolError> {
        let memory = ManuallyDrop::new(FrameMemory::new(frames)?);
        Ok(FramePool { memory, states: vec![AT_REST; frames as usize], in_flight: 0 })
    }

    /// How many frames there are; their numbers are 0 up to, and without, this.
    pub fn frames(&self) -> u32 {
        self.states.len() as u32
    }

    /// How many frames belong to requests in flight now; a frame that several
    /// requests write out counts once for each.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The bytes of a frame.
    ///
    /// # Panics
    /// There is no such frame, or a request in flight is filling it.
    pub fn bytes(&self, frame: u32) -> &[u8] {
        assert!(self.states[frame as usize] != FILLING, "frame {frame} is read while it is filled");
        // SAFETY: the frame lies in the mapping (the index above), which is
        // initialised and lives as long as `self`; nobody writes to it: the
        // kernel doesn't, by its state, and no `&mut` exists beside this `&self`.
        unsafe { std::slice::from_raw_parts(self.address(frame), PAGE_BYTES as usize) }
    }

    /// The bytes of a frame, to be changed.
    ///
    /// # Panics
    /// There is no such frame, or it belongs to a request in flight.
    pub fn bytes_mut(&mut self, frame: u32) -> &mut [u8] {
        assert!(self.states[frame as usize] == AT_REST, "frame {frame} is changed while in flight");
        // SAFETY: as in `bytes`; that the frame is at rest, and `&mut self`,
        // make this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.address(frame), PAGE_BYTES as usize) }
    }

    /// Marks the frames of `pieces` as in flight, adds their numbers to
    /// `departed`, and describes their memory, in order, with as few segments
    /// as it has gaps.
    ///
    /// # Panics
    /// A frame doesn't exist, or is in flight in a way that excludes `op`.
    pub(crate) fn depart(
        &mut self,
        op: Op,
        pieces: impl Iterator<Item = Piece>,
        departed: &mut Vec<u32>,
        segments: &mut Vec<libc::iovec>,
    ) {
        let departed_before = departed.len();
        for piece in pieces {
            let frames = piece.bytes.div_ceil(PAGE_BYTES as u32);
            for frame in piece.frame..piece.frame + frames {
                self.mark(op, frame);
                departed.push(frame);
            }
            let (address, length) = (self.address(piece.frame), piece.bytes as usize);
            match segments.last_mut() {
                Some(last) if ends_at(last, address) => last.iov_len += length,
                _ => segments.push(libc::iovec { iov_base: address.cast(), iov_len: length }),
            }
        }
        self.in_flight += (departed.len() - departed_before) as u32;
    }

    fn mark(&mut self, op: Op, frame: u32) {
        let state = &mut self.states[frame as usize];
        match op {
            Op::Read => {
                assert!(*state == AT_REST, "frame {frame} is filled while in flight");
                *state = FILLING;
            }
            Op::Write => {
                assert!(*state < FILLING - 1, "frame {frame} is written while it is filled");
                *state += 1;
            }
        }
    }

    /// Marks `frames`, which departed for `op`, as back.
    pub(crate) fn arrive(&mut self, op: Op, frames: &[u32]) {
        for &frame in frames {
            let state = &mut self.states[frame as usize];
            match op {
                Op::Read => *state = AT_REST,
                Op::Write => *state -= 1,
            }
        }
        self.in_flight -= frames.len() as u32;
    }

    fn address(&self, frame: u32) -> *mut u8 {
        self.memory.address(frame)
    }
}

impl Drop for FramePool {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            // The kernel may still write there. Memory that is lost is better
            // than memory that somebody else gets while it is written to.
            return;
        }
        // SAFETY: dropped here, once, and not used after it.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

/// Maps `bytes` bytes of empty memory that starts, if it is large enough to
/// gain by it, where a huge page can.
pub(crate) fn map(bytes: usize) -> rustix::io::Result<NonNull<u8>> {
    let alignment = if bytes < HUGE_PAGE_BYTES { PAGE_BYTES as usize } else { HUGE_PAGE_BYTES };
    let more = alignment - PAGE_BYTES as usize;
    let protection = mm::ProtFlags::READ | mm::ProtFlags::WRITE;
    let null = std::ptr::null_mut();
    // SAFETY: a new private mapping at an address that the kernel chooses.
    let start =
        unsafe { mm::mmap_anonymous(null, bytes + more, protection, mm::MapFlags::PRIVATE)? };
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
    // SAFETY: the mapping made above; the advice changes no bytes. A kernel
    // without huge pages refuses it, and the pool works all the same.
    let _ = unsafe { mm::madvise(base, bytes, mm::Advice::LinuxHugepage) };
    Ok(NonNull::new(base.cast()).expect("a mapping is never at address zero"))
}

/// Has children made by `fork` not inherit a mapping.
pub(crate) fn keep_from_children(base: NonNull<u8>, bytes: usize) {
    // SAFETY: the advice changes no bytes, and in a child nobody looks at a mapping of ours. Refused
    // by no kernel that has O_DIRECT; if it is, a child has a copy that it doesn't use.
    let _ = unsafe { mm::madvise(base.as_ptr().cast(), bytes, mm::Advice::LinuxDontFork) };
}

/// Why there is no pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramePoolError {
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

impl std::fmt::Display for FramePoolError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FramePoolError::Empty => {
                f.write_str("a page cache of 0 frames can hold nothing; give it at least 4 KiB")
            }
            FramePoolError::Memory { bytes, errno } => write!(
                f,
                "the system has no room for a page cache of {} MiB ({}); ask for less memory",
                bytes >> 20,
                std::io::Error::from_raw_os_error(*errno)
            ),
        }
    }
}

impl std::error::Error for FramePoolError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_frames_share_a_segment() {
        let mut pool = FramePool::new(16).unwrap();
        let mut segments = Vec::new();
        let frames = [3, 4, 5, 9, 8, 10];
        let mut departed = Vec::new();
        pool.depart(Op::Read, frames.map(Piece::whole).into_iter(), &mut departed, &mut segments);
        assert_eq!(departed, frames);
        let lengths: Vec<usize> = segments.iter().map(|segment| segment.iov_len).collect();
        assert_eq!(lengths, [3 * 4096, 4096, 4096, 4096]);
        let first = segments[0].iov_base as usize;
        assert_eq!(segments[1].iov_base as usize, first + 6 * 4096);
        assert_eq!(segments[2].iov_base as usize, first + 5 * 4096);
        assert_eq!(first % 4096, 0);
        assert_eq!(pool.in_flight(), 6);
        pool.arrive(Op::Read, &[3, 4, 5, 9, 8, 10]);
        assert_eq!(pool.in_flight(), 0);
    }

    #[test]
    fn a_large_pool_starts_where_a_huge_page_can_and_a_small_one_at_a_page() {
        for (frames, alignment) in [(1, 4096), (511, 4096), (512, 2 << 20), (1_000, 2 << 20)] {
            let mut pool = FramePool::new(frames).unwrap();
            assert_eq!(pool.bytes(0).as_ptr() as usize % alignment, 0, "{frames} frames");
            // Both ends are there.
            pool.bytes_mut(0)[0] = 1;
            pool.bytes_mut(frames - 1)[4095] = 2;
            assert_eq!((pool.bytes(0)[0], pool.bytes(frames - 1)[4095]), (1, 2));
        }
    }

    #[test]
    fn a_frame_keeps_what_was_put_into_it() {
        let mut pool = FramePool::new(2).unwrap();
        assert!(pool.bytes(1).iter().all(|&byte| byte == 0));
        pool.bytes_mut(1).fill(7);
        assert!(pool.bytes(1).iter().all(|&byte| byte == 7));
        assert!(pool.bytes(0).iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_frame_that_is_written_out_can_be_read_and_written_out_again() {
        let mut pool = FramePool::new(1).unwrap();
        pool.depart(Op::Write, [Piece::whole(0)].into_iter(), &mut Vec::new(), &mut Vec::new());
        pool.depart(Op::Write, [Piece::whole(0)].into_iter(), &mut Vec::new(), &mut Vec::new());
        assert_eq!(pool.bytes(0)[0], 0);
        pool.arrive(Op::Write, &[0]);
        pool.arrive(Op::Write, &[0]);
        pool.bytes_mut(0)[0] = 1;
    }

    #[test]
    #[should_panic(expected = "read while it is filled")]
    fn a_frame_that_is_filled_is_lent_to_nobody() {
        let mut pool = FramePool::new(1).unwrap();
        pool.depart(Op::Read, [Piece::whole(0)].into_iter(), &mut Vec::new(), &mut Vec::new());
        pool.bytes(0);
    }

    #[test]
    #[should_panic(expected = "filled while in flight")]
    fn a_frame_is_filled_by_one_request_at_a_time() {
        let mut pool = FramePool::new(1).unwrap();
        pool.depart(Op::Read, [Piece::whole(0)].into_iter(), &mut Vec::new(), &mut Vec::new());
        pool.depart(Op::Read, [Piece::whole(0)].into_iter(), &mut Vec::new(), &mut Vec::new());
    }

    #[test]
    #[should_panic(expected = "changed while in flight")]
    fn a_frame_that_is_written_out_is_not_changed() {
        let mut pool = FramePool::new(1).unwrap();
        pool.depart(Op::Write, [Piece::whole(0)].into_iter(), &mut Vec::new(), &mut Vec::new());
        pool.bytes_mut(0);
    }

    #[test]
    fn memory_that_is_not_there_is_an_error_with_a_next_step() {
        assert_eq!(FramePool::new(0).err(), Some(FramePoolError::Empty));
        // 16 TiB: more than this machine, under any setting of overcommit but "always".
        if let Err(error) = FramePool::new(u32::MAX) {
            assert!(error.to_string().contains("ask for less memory"), "{error}");
            assert!(error.to_string().contains("16777215 MiB"), "{error}");
        }
    }
}
