//! The frames of a shared cache, and safe access to them.
//!
//! A *frame* is memory for one page. A *guard* of the program pins a page in its frame. The
//! *machine* is the state machine of the cache. A page is *shared* if readers may find it in the
//! index. A *marked* page has the readahead mark, and its reader must go to the machine. A *group*
//! is 16 consecutive pages (64 KiB). A reader *signs in* for a group before it copies: it writes
//! the group into a *slot*, a word that the reclaiming thread checks. No frame of that group then
//! gets another page.
//!
//! The machine decides the page of each frame. Readers on any thread copy shared pages directly
//! from the frame cache, without the machine. Two kinds of access are safe: through the
//! [index](super::page_index), found or pinned by a guard, or pinned by the machine (a completed
//! read that is not released). In both cases no thread writes to the frame: the storage fills only
//! frames in flight.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use readpath_core::cache::{FileId, FrameId, PageSharer, UseCount};
use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::atomics::{GROUP_LOG2, Std};
use super::copy_out::copy_out;
use super::page_index::{PageIndex, PinOutcome, page_key};
use super::read_counters::thread_number;
use super::reader_slots::{ActiveReaders, ReaderGuard};
use crate::os::frames::FrameMemory;
use crate::os::sync::{Mutex, preemption_point, processor_count};
use crate::read_error::PinLimitReached;

/// Number of pages that are copied together.
pub(super) const GROUP_PAGES: u64 = 1 << GROUP_LOG2;

/// Upper and lower limit of the number of simultaneous copies. Between them it is twice the number
/// of processors, rounded up. Powers of two.
const CONCURRENT_COPIES_UPPER_BOUND: usize = 64;
const CONCURRENT_COPIES_LOWER_BOUND: usize = 8;

/// Number of simultaneous copies in a new cache: a power of two.
pub(super) fn concurrent_copies_max() -> usize {
    (2 * processor_count())
        .next_power_of_two()
        .clamp(CONCURRENT_COPIES_LOWER_BOUND, CONCURRENT_COPIES_UPPER_BOUND)
}

/// The frames of a cache, shared by all its readers.
pub(crate) struct FrameCache {
    /// Memory of all frames.
    memory: FrameMemory,
    /// Finds the frame of a shared page.
    index: PageIndex<Std>,
    /// Number of pages that guards pin now, and its limit.
    pinned_pages: AtomicU32,
    pinned_pages_max: u32,
    /// True while no guard may pin a page: the machine then searches a second time for a page that
    /// it can evict.
    is_pinning_paused: AtomicBool,
    /// Frames on their way back to the machine.
    invalidated: Mutex<InvalidatedFrames>,
    /// True if `invalidated` has entries. Changed under its lock.
    has_invalidated: AtomicBool,
}

/// Frames whose page was invalidated.
#[derive(Default)]
struct InvalidatedFrames {
    /// Frames with copies in progress, each with the readers at the time of the invalidation.
    being_copied: Vec<(u32, ActiveReaders)>,
    /// Unused frames that the machine has not taken back yet.
    unused: Vec<FrameId>,
}

impl FrameCache {
    /// Creates an empty cache of the frames of `memory`. Guards may pin `pinned_pages_max` of them.
    pub(crate) fn new(memory: FrameMemory, pinned_pages_max: u32) -> FrameCache {
        FrameCache {
            index: PageIndex::new(memory.frame_count(), concurrent_copies_max()),
            memory,
            pinned_pages: AtomicU32::new(0),
            pinned_pages_max,
            is_pinning_paused: AtomicBool::new(false),
            invalidated: Mutex::default(),
            has_invalidated: AtomicBool::new(false),
        }
    }

    /// Maximum number of simultaneous copies. Each copy uses its own slot.
    pub(crate) fn copies_max(&self) -> usize {
        self.index.reader_slot_count()
    }

    /// Copies shared pages of `file` from byte `offset` on into `buffer`, which is not empty. It
    /// uses slot `preferred_slot` if that is free, and otherwise any free one. If the first page is
    /// `last_used_page`, the copy continues an earlier use and does not count as another one.
    /// Returns the guard of the slot if all bytes were copied, so that the caller can count the
    /// read in that slot. Returns `None` if a page is not shared or is marked, or if no slot is
    /// free. The content of `buffer` is then undefined.
    #[inline]
    pub(crate) fn copy(
        &self,
        file: FileId,
        offset: u64,
        buffer: &mut [u8],
        preferred_slot: usize,
        last_used_page: u64,
    ) -> Option<ReaderGuard<'_, Std>> {
        let mut page = offset / PAGE_BYTES;
        let mut counts_use = page != last_used_page;
        let mut skip = (offset % PAGE_BYTES) as usize;
        let mut rest = buffer;
        let mut reader = self.index.sign_in(file, page, preferred_slot)?;
        loop {
            let pages = (skip + rest.len()).div_ceil(PAGE_BYTES as usize) as u64;
            let pages = pages.min(GROUP_PAGES - page % GROUP_PAGES);
            let bytes = ((pages * PAGE_BYTES) as usize - skip).min(rest.len());
            let (part, after) = rest.split_at_mut(bytes);
            self.copy_group(&reader, file, page, pages as usize, skip, part, counts_use)?;
            if after.is_empty() {
                return Some(reader);
            }
            counts_use = true;
            // Later groups are used in full, from the start of their first page.
            (rest, skip) = (after, 0);
            page += pages;
            reader.move_to_group(page_key(file, page));
        }
    }

    /// Fills `buffer` from `page_count` pages of one group, from page `first_page` on, without the
    /// first `skip` bytes of the first page. `reader` is signed in for that group, and `buffer`
    /// ends in the last of these pages. All pages are looked up before the first byte is copied,
    /// and adjacent frames are copied as one piece. Each page counts as used once more, the first
    /// one only if `counts_use` is true. Returns `None` if a page is not shared or is marked: the
    /// caller gives the copy up. The uses of the pages before it stay counted, a small excess.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "one place of a copy, on the way of each hit")]
    fn copy_group(
        &self,
        reader: &ReaderGuard<'_, Std>,
        file: FileId,
        first_page: u64,
        page_count: usize,
        skip: usize,
        buffer: &mut [u8],
        counts_use: bool,
    ) -> Option<()> {
        let mut frames = [0; GROUP_PAGES as usize];
        let frames = &mut frames[..page_count];
        for (page, frame) in (first_page..).zip(&mut *frames) {
            *frame = self.index.look_up(reader, file, page, counts_use || page != first_page)?;
        }
        // Only the first run begins inside a page.
        let (mut skip, mut unfilled_buffer) = (skip, buffer);
        for run in frames.chunk_by(|&frame, &next| next == frame + 1) {
            // SAFETY: all frames were found and are adjacent in memory. They keep their pages while
            // `reader` lives.
            let from = unsafe { self.frame_bytes(run[0], run.len()) };
            // The simulation may switch threads here, during a copy.
            preemption_point();
            let bytes = (from.len() - skip).min(unfilled_buffer.len());
            let (part, rest) = unfilled_buffer.split_at_mut(bytes);
            copy_out(&from[skip..skip + bytes], part);
            (skip, unfilled_buffer) = (0, rest);
        }
        Some(())
    }

    /// Protects pinned pages, `first_page` and the following ones, in their `frames` while the
    /// returned guard lives, even if the machine unpins them. Returns `None` if the pages span
    /// several groups or are not shared, or if no slot is free. The caller then copies them before
    /// the machine unpins them.
    pub(super) fn protect_pinned(
        &self,
        file: FileId,
        first_page: u64,
        frames: &[FrameId],
    ) -> Option<ReaderGuard<'_, Std>> {
        let last_page = first_page + (frames.len() as u64).saturating_sub(1);
        if first_page / GROUP_PAGES != last_page / GROUP_PAGES {
            return None;
        }
        let reader = self.index.sign_in(file, first_page, thread_number())?;
        let mut pages = (first_page..).zip(frames);
        pages
            .all(|(page, frame)| self.index.is_shared_in_frame(&reader, file, page, frame.0))
            .then_some(reader)
    }

    /// True if all pages of the range are shared and none is marked. Other threads may change this
    /// at any time.
    pub(crate) fn are_all_shared(&self, file: FileId, range: PageRange) -> bool {
        range.pages().all(|page| self.index.is_shared(file, page))
    }

    /// True if a page of the range is shared, marked or not. Other threads may change this at any
    /// time.
    pub(crate) fn is_any_shared(&self, file: FileId, range: PageRange) -> bool {
        range.pages().any(|page| self.index.is_shared_or_marked(file, page))
    }

    /// Pins a shared page and counts a use of it. With `ignores_mark`, a page whose readahead mark
    /// the policy has processed is pinned too. Returns `None` if the page is not shared, or while
    /// pinning is paused.
    ///
    /// # Errors
    /// The limit of pinned pages is reached.
    #[inline]
    pub(crate) fn pin(
        self: &Arc<FrameCache>,
        file: FileId,
        page: u64,
        ignores_mark: bool,
    ) -> Result<Option<PinnedPage>, PinLimitReached> {
        // Counted first, so that the limit is never exceeded. An attempt that fails below is
        // counted for a moment, and may make another thread's attempt fail.
        if self.pinned_pages.fetch_add(1, Ordering::SeqCst) >= self.pinned_pages_max {
            self.pinned_pages.fetch_sub(1, Ordering::SeqCst);
            return Err(PinLimitReached {
                pinned_bytes_max: u64::from(self.pinned_pages_max) * PAGE_BYTES,
            });
        }
        // Checked after counting: an attempt that finds pinning allowed is already in the count.
        if self.is_pinning_paused.load(Ordering::SeqCst) {
            self.pinned_pages.fetch_sub(1, Ordering::SeqCst);
            return Ok(None);
        }
        match self.index.pin(file, page, ignores_mark) {
            PinOutcome::Pinned(frame) => {
                return Ok(Some(PinnedPage { frame_cache: Arc::clone(self), frame }));
            }
            PinOutcome::Absent => {}
            // The frame's page was invalidated while this attempt had it pinned for a moment.
            PinOutcome::AbsentReturnFrame(frame) => self.push_unused(frame),
        }
        self.pinned_pages.fetch_sub(1, Ordering::SeqCst);
        Ok(None)
    }

    /// Number of pages that guards pin.
    #[cfg(simulation)]
    pub(super) fn pinned_page_count(&self) -> u32 {
        self.pinned_pages.load(Ordering::SeqCst)
    }

    /// Returns the bytes of `count` frames from `first_frame` on.
    ///
    /// # Safety
    /// The frames exist. While the bytes are in use, the frames are found or pinned through the
    /// index, or pinned by the machine.
    #[inline]
    pub(crate) unsafe fn frame_bytes(&self, first_frame: u32, count: usize) -> &[u8] {
        let bytes = count * PAGE_BYTES as usize;
        // SAFETY: the memory is mapped and initialised while the frame cache lives. No thread
        // writes to such a frame.
        unsafe { std::slice::from_raw_parts(self.memory.address(first_frame), bytes) }
    }

    /// Places frames that are first used from now on in huge pages.
    pub(super) fn use_huge_pages(&self) {
        self.memory.use_huge_pages();
    }

    /// Gives the memory of frames without pages back to the system. Sorts `frames`, so that
    /// adjacent ones need one call.
    pub(super) fn release_memory(&self, frames: &mut [FrameId]) {
        frames.sort_unstable();
        for run in frames.chunk_by(|frame, next| next.0 == frame.0 + 1) {
            self.memory.release_memory(run[0].0, run.len());
        }
    }

    /// Start address of a frame, for the storage that fills it.
    pub(crate) fn address(&self, frame: u32) -> *mut u8 {
        self.memory.address(frame)
    }

    /// Removes and returns the invalidated frames that became unused since the last call. They
    /// belong to the machine again. A frame that a guard pins follows after its last unpin. After
    /// an invalidation, only this function checks whether copies in progress have ended.
    fn take_unused_frames(&self) -> Vec<FrameId> {
        if !self.has_invalidated.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut invalidated = self.invalidated.lock().expect("nothing panics under this lock");
        let InvalidatedFrames { being_copied, unused } = &mut *invalidated;
        being_copied.retain_mut(|(frame, copies)| {
            let is_unread = self.index.have_all_readers_left(copies);
            // `mark_invalidated` returns false if a guard pins the page. The guard's drop then
            // reports the frame.
            if is_unread && self.index.mark_invalidated(*frame) {
                unused.push(FrameId(*frame));
            }
            !is_unread
        });
        self.has_invalidated.store(!being_copied.is_empty(), Ordering::Release);
        std::mem::take(unused)
    }

    /// Ends the sharing of the page in `frame`. The frame becomes unused when no reader copies from
    /// it and no guard pins it: now, at a later `take_unused_frames`, or at the guard's drop.
    fn invalidate(&self, frame: u32) {
        let mut copies = self.index.invalidate(frame);
        if !self.index.have_all_readers_left(&mut copies) {
            self.add_invalidated(|invalidated| invalidated.being_copied.push((frame, copies)));
        } else if self.index.mark_invalidated(frame) {
            self.push_unused(frame);
        }
    }

    /// Adds a frame that the machine can take back.
    fn push_unused(&self, frame: u32) {
        self.add_invalidated(|invalidated| invalidated.unused.push(FrameId(frame)));
    }

    /// Adds to the invalidated frames by `add`, and sets `has_invalidated`.
    fn add_invalidated(&self, add: impl FnOnce(&mut InvalidatedFrames)) {
        let mut invalidated = self.invalidated.lock().expect("nothing panics under this lock");
        add(&mut invalidated);
        self.has_invalidated.store(true, Ordering::Release);
    }
}

/// A page that stays in its frame while this guard lives.
pub(crate) struct PinnedPage {
    frame_cache: Arc<FrameCache>,
    /// Frame that has the page.
    frame: u32,
}

impl Deref for PinnedPage {
    type Target = [u8];

    /// Returns the bytes of the page.
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the page is pinned.
        unsafe { self.frame_cache.frame_bytes(self.frame, 1) }
    }
}

impl Drop for PinnedPage {
    /// Unpins the page. A frame that was invalidated meanwhile goes back to the machine.
    fn drop(&mut self) {
        if self.frame_cache.index.unpin(self.frame) {
            self.frame_cache.push_unused(self.frame);
        }
        self.frame_cache.pinned_pages.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The frame cache, as the machine's cache uses it.
#[derive(Clone)]
pub(crate) struct FrameSharer(pub(crate) Arc<FrameCache>);

impl PageSharer for FrameSharer {
    /// Shares pages from `first` on in `frames`. The bits of `marked`, the lowest one for `first`,
    /// select pages with the readahead mark.
    fn share(&mut self, file: FileId, first: u64, frames: &[FrameId], marked: u64) {
        self.0.index.share(file, first, frames, marked);
    }

    /// Puts a readahead mark on the page in `frame`.
    fn mark(&mut self, frame: FrameId) {
        self.0.index.mark(frame.0);
    }

    /// Removes the readahead mark of the page in `frame`.
    fn unmark(&mut self, frame: FrameId) {
        self.0.index.unmark(frame.0);
    }

    /// Returns and resets the uses of the page in `frame`.
    fn take_uses(&mut self, frame: FrameId) -> UseCount {
        self.0.index.take_uses(frame.0)
    }

    /// Like `take_uses`, for the frames from `first` on whose bits are set, the lowest bit for
    /// `first`. Returns two bit sets: the used frames, and the frames used more than once.
    fn take_uses_of(&mut self, first: FrameId, selected_frames: u64) -> [u64; 2] {
        self.0.index.take_uses_of(first.0, selected_frames)
    }

    /// True if the page in `frame` was used since its uses were taken.
    fn is_used(&self, frame: FrameId) -> bool {
        self.0.index.is_used(frame.0)
    }

    /// Ends the sharing of the page in `frame`. Returns false, without effect, if it is in use.
    fn recall(&mut self, frame: FrameId) -> bool {
        self.0.index.recall(frame.0)
    }

    /// Ends the sharing of the pages in up to 64 `frames`. Returns the bits of the pages that stay
    /// shared because they are in use.
    fn recall_all(&mut self, frames: &[FrameId]) -> u64 {
        self.0.index.recall_all(frames)
    }

    /// Ends the sharing of the page in `frame`, even if readers use it.
    fn forget(&mut self, frame: FrameId) {
        self.0.invalidate(frame.0);
    }

    /// Removes and returns the invalidated frames that readers have left since the last call.
    fn take_returned(&mut self) -> Vec<FrameId> {
        self.0.take_unused_frames()
    }

    /// Permits guards to pin pages, or pauses pinning if `may_pin` is false.
    fn allow_pins(&mut self, may_pin: bool) {
        self.0.is_pinning_paused.store(!may_pin, Ordering::SeqCst);
    }
}

impl std::fmt::Debug for FrameSharer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameSharer").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sharer of a cache of four frames, of which guards may pin one.
    fn new_frame_sharer() -> FrameSharer {
        let (frames, pinned_pages_max) = (4, 1);
        let memory = FrameMemory::new(frames).unwrap();
        FrameSharer(Arc::new(FrameCache::new(memory, pinned_pages_max)))
    }

    /// Pages 8 and 9 are in frames 0 and 1. Frame 1 is returned at once, and frame 0 once its
    /// reader is gone: otherwise the storage would fill the frame during a copy.
    #[test]
    fn invalidated_frame_is_returned_after_its_last_reader() {
        let mut sharer = new_frame_sharer();
        let (file, frames) = (FileId(0), [0, 1].map(FrameId));
        let marked_pages = 0;
        sharer.share(file, 8, &frames, marked_pages);
        let cache = Arc::clone(&sharer.0);
        sharer.forget(frames[1]);
        assert_eq!(sharer.take_returned(), [frames[1]]);
        let reader = cache.protect_pinned(file, 8, &frames[..1]).expect("the page is shared");
        sharer.forget(frames[0]);
        assert!(
            cache.protect_pinned(file, 8, &frames[..1]).is_none(),
            "the page is not shared any more"
        );
        assert_eq!(sharer.take_returned(), []);
        drop(reader);
        assert_eq!(sharer.take_returned(), [frames[0]]);
    }

    #[test]
    fn debug_output_of_the_frame_sharer_omits_the_frames() {
        assert_eq!(format!("{:?}", new_frame_sharer()), "FrameSharer { .. }");
    }
}
