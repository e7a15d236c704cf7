//! The frames of a shared cache, and who may look at them.
//!
//! The machine decides what lies where; readers on any thread take from the
//! shelf what is lent, past the machine. Two ways to look at a frame are sound:
//! pinned through the [index](super::index), or pinned by the machine (a read
//! that is done and not released). In both nobody writes to it: the storage
//! fills only frames in flight, which are neither.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use readpath_core::cache::{FileId, FrameId, Lender, Mark, Uses};
use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::index::{Hold, PageIndex, Std};
use crate::frames::{FrameMemory, FramePoolError};

/// How many pages are pinned together for a copy: 64 KiB.
const TOGETHER: usize = 16;

/// The frames of a cache, shared by all who read through it.
pub(crate) struct Shelf {
    memory: FrameMemory,
    index: PageIndex<Std>,
    /// Pages held now, and how many may be.
    held: AtomicU32,
    held_max: u32,
    /// Frames whose page was forgotten and is held no more; the machine is still to be told.
    returned: Mutex<Vec<FrameId>>,
}

impl Shelf {
    /// An empty shelf of `frames` frames, of which readers may hold `held_max`.
    ///
    /// # Errors
    /// The system has no room for that much memory.
    pub(crate) fn new(frames: u32, held_max: u32) -> Result<Shelf, FramePoolError> {
        Ok(Shelf {
            memory: FrameMemory::new(frames)?,
            index: PageIndex::new(frames),
            held: AtomicU32::new(0),
            held_max,
            returned: Mutex::default(),
        })
    }

    /// Copies what is lent of `file`, from byte `offset` on, into `buffer`. True
    /// if all of it was; otherwise the content of `buffer` is undefined.
    #[inline]
    pub(crate) fn copy(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> bool {
        let mut page = offset / PAGE_BYTES;
        let mut skip = (offset % PAGE_BYTES) as usize;
        let mut rest = buffer;
        while !rest.is_empty() {
            let pages = (skip + rest.len()).div_ceil(PAGE_BYTES as usize).min(TOGETHER);
            let bytes = (pages * PAGE_BYTES as usize - skip).min(rest.len());
            let (part, after) = rest.split_at_mut(bytes);
            if !self.copy_together(file, page, pages, skip, part) {
                return false;
            }
            rest = after;
            page += pages as u64;
            skip = 0;
        }
        true
    }

    /// Copies from `count` pages at once, at most [`TOGETHER`]: all are pinned before the
    /// first byte moves, and neighbours in memory are copied as one piece.
    #[inline]
    fn copy_together(
        &self,
        file: FileId,
        first: u64,
        count: usize,
        skip: usize,
        buffer: &mut [u8],
    ) -> bool {
        let mut frames = [0; TOGETHER];
        let mut pinned = 0;
        while pinned < count
            && let Some(frame) = self.index.pin(file, first + pinned as u64)
        {
            frames[pinned] = frame;
            pinned += 1;
        }
        let frames = &frames[..pinned];
        if pinned == count {
            let (mut skip, mut rest) = (skip, buffer);
            for run in frames.chunk_by(|&one, &next| next == one + 1) {
                // SAFETY: pinned, all of them, and one after the other in memory.
                let from = unsafe { self.run(run[0], run.len()) };
                let bytes = (from.len() - skip).min(rest.len());
                let (part, after) = rest.split_at_mut(bytes);
                part.copy_from_slice(&from[skip..skip + bytes]);
                (skip, rest) = (0, after);
            }
        }
        frames.iter().for_each(|&frame| self.index.unpin(frame));
        pinned == count
    }

    /// Whether all pages of the range are lent, as far as one can tell now.
    pub(crate) fn has(&self, file: FileId, range: PageRange) -> bool {
        range.pages().all(|page| self.index.is_lent(file, page))
    }

    /// Holds a page that is lent; with `is_seen` also one that carries a mark which
    /// the law has been shown.
    ///
    /// # Errors
    /// As many pages are held as may be.
    #[inline]
    pub(crate) fn hold(
        self: &Arc<Shelf>,
        file: FileId,
        page: u64,
        is_seen: bool,
    ) -> Result<Option<Held>, HeldMax> {
        // Counted first, so that there are never more.
        if self.held.fetch_add(1, Ordering::Relaxed) >= self.held_max {
            self.held.fetch_sub(1, Ordering::Relaxed);
            return Err(HeldMax { held_bytes_max: u64::from(self.held_max) * PAGE_BYTES });
        }
        match self.index.hold(file, page, is_seen) {
            Hold::Held(frame) => return Ok(Some(Held { shelf: Arc::clone(self), frame })),
            Hold::Absent => {}
            Hold::AbsentAndReturned(frame) => self.push_returned(frame),
        }
        self.held.fetch_sub(1, Ordering::Relaxed);
        Ok(None)
    }

    /// The bytes of a frame.
    ///
    /// # Safety
    /// The frame is pinned, by the index or by the machine, as long as they are used.
    #[inline]
    pub(crate) unsafe fn bytes(&self, frame: u32) -> &[u8] {
        // SAFETY: the caller's promise.
        unsafe { self.run(frame, 1) }
    }

    /// The bytes of `count` frames from `first` on.
    ///
    /// # Safety
    /// They are there, and pinned as long as the bytes are used.
    #[inline]
    unsafe fn run(&self, first: u32, count: usize) -> &[u8] {
        let bytes = count * PAGE_BYTES as usize;
        // SAFETY: the memory is mapped and initialised as long as the shelf
        // lives; nobody writes to a frame that is pinned.
        unsafe { std::slice::from_raw_parts(self.memory.address(first), bytes) }
    }

    /// Where a frame starts, for the storage that fills it.
    pub(crate) fn address(&self, frame: u32) -> *mut u8 {
        self.memory.address(frame)
    }

    /// Frames that the machine is to be told of as returned.
    pub(crate) fn take_returned(&self) -> Vec<FrameId> {
        std::mem::take(&mut self.returned.lock().expect("nothing panics under this lock"))
    }

    fn push_returned(&self, frame: u32) {
        self.returned.lock().expect("nothing panics under this lock").push(FrameId(frame));
    }
}

/// As many pages are held as may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldMax {
    /// How many bytes that is.
    pub(crate) held_bytes_max: u64,
}

/// A page that stays where it is as long as this lives.
pub(crate) struct Held {
    shelf: Arc<Shelf>,
    frame: u32,
}

impl Deref for Held {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: held.
        unsafe { self.shelf.bytes(self.frame) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.shelf.index.release(self.frame) {
            self.shelf.push_returned(self.frame);
        }
        self.shelf.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The shelf, as the machine's cache knows it.
#[derive(Clone)]
pub(crate) struct Clerk(pub(crate) Arc<Shelf>);

impl Lender for Clerk {
    fn lend(&mut self, file: FileId, page: u64, frame: FrameId, mark: Mark) {
        self.0.index.lend(file, page, frame.0, mark == Mark::Set);
    }

    fn unmark(&mut self, frame: FrameId) {
        self.0.index.unmark(frame.0);
    }

    fn uses(&mut self, frame: FrameId) -> Uses {
        self.0.index.uses(frame.0)
    }

    fn is_used(&self, frame: FrameId) -> bool {
        self.0.index.is_used(frame.0)
    }

    fn recall(&mut self, frame: FrameId) -> bool {
        self.0.index.recall(frame.0)
    }

    fn forget(&mut self, frame: FrameId) {
        if self.0.index.forget(frame.0) {
            self.0.push_returned(frame.0);
        }
    }
}

impl std::fmt::Debug for Clerk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clerk").finish_non_exhaustive()
    }
}
