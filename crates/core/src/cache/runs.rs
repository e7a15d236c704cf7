//! Runs of pages: neighbours that are added together.
//!
//! A stream adds and evicts hundreds of pages at a time. Common work is done once: frames are freed
//! for the whole run.

use super::table::FrameLink;
use super::{Cache, FileId, Frame, FrameId, FrameList, FrameState, memory};
use crate::eviction::{PageKey, PageOrigin};
use crate::readahead::Folio;
use crate::request::RequestId;
use crate::unit::PageRange;

/// The readahead mark of a page: its use starts the next window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The page carries the mark.
    Set,
    /// The page carries no mark.
    Clear,
}

/// Common properties of the pages of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunEntry {
    /// The order of their folios, which are aligned blocks of `1 << order` pages.
    pub order: u8,
    /// Number of pages, from the first on, with the readahead mark.
    pub marked: u64,
    /// True if no reader has requested them yet.
    pub is_ahead: bool,
    /// True if each gets one pin: a read's own pages, whose frames were
    /// [reserved](Cache::reserve_frames) for it.
    pub is_pinned: bool,
}

impl RunEntry {
    /// Returns the frame of a page in flight, without a mark. `is_memory` is true for pages of a
    /// mapping.
    #[inline]
    fn frame(self, file: FileId, page: u64, next_in_table: FrameLink, is_memory: bool) -> Frame {
        Frame {
            file,
            page,
            pins: u32::from(self.is_pinned),
            // A number that no request has, until `set_request` sets the real one.
            state: FrameState::InFlight(RequestId(u32::MAX)),
            next_in_table,
            order: self.order,
            is_marked: false,
            // A requested page is used once by the read that adds it. Uses of memory come with its
            // faults and touches.
            is_referenced: !self.is_ahead && !is_memory,
            is_stale: false,
            memory: memory::MemoryFlags::of(is_memory),
        }
    }
}

/// The frame before the first page of a run, whose frame is unknown. The search of a page tries the
/// frame behind this one first, which is frame 0: only a guess.
const NO_PREVIOUS_FRAME: FrameId = FrameId(u32::MAX);

impl Cache {
    /// Adds an absent page, in flight; `is_ahead` if no reader has requested it yet. Only the order
    /// of `folio` counts. Returns `None` if no frame is free and none can be freed.
    pub fn add(
        &mut self,
        file: FileId,
        page: u64,
        folio: Folio,
        mark: Mark,
        is_ahead: bool,
    ) -> Option<FrameId> {
        let marked = u64::from(mark == Mark::Set);
        let entry = RunEntry { order: folio.order, marked, is_ahead, is_pinned: false };
        let mut added = None;
        self.add_run(file, PageRange::new(page, 1), entry, |_, id| added = Some(id));
        added
    }

    /// Adds absent pages, in flight, as far as frames are available. Calls `on_added` with each
    /// page and its frame, in order. Returns the number of added pages, which is smaller than the
    /// range if too few frames are free or can be freed.
    pub fn add_run(
        &mut self,
        file: FileId,
        range: PageRange,
        entry: RunEntry,
        on_added: impl FnMut(u64, FrameId),
    ) -> u64 {
        let is_memory = false;
        self.add_file_or_memory_run(file, range, entry, is_memory, on_added)
    }

    /// Adds the pages of `range`, all absent, as pages in flight, and evicts others for them. Calls
    /// `on_added` with each page and its frame. Returns the number of added pages, which is smaller
    /// than the range if too few frames can be freed. `is_memory` is true for pages of a mapping
    /// (swap), false for pages of a file.
    ///
    /// Requested pages of files enter the eviction policy at once. Prefetched ones do so only if
    /// the policy takes unused pages; otherwise they are listed apart until their first use.
    /// Prefetched pages also count in the file's credit, which limits its further prefetch.
    pub(super) fn add_file_or_memory_run(
        &mut self,
        file: FileId,
        range: PageRange,
        entry: RunEntry,
        is_memory: bool,
        mut on_added: impl FnMut(u64, FrameId),
    ) -> u64 {
        // Frames for the run: others may be evicted for them (by `claim_frames`). The frames of a
        // read's own pages (`is_pinned`) were reserved for it.
        let pages_wanted = range.count().min(self.budget_pages().into()) as u32;
        // Collects the uses by outside readers, a few frames for each addition.
        self.collect_next_uses(pages_wanted);
        let count = self.claim_frames(pages_wanted, entry.is_pinned);
        let enters_policy = !entry.is_ahead || self.policy.enters_unused();
        let origin = if entry.is_ahead { PageOrigin::Prefetch } else { PageOrigin::Demand };
        self.waits.record_additions(count, self.budget_pages());
        let Cache {
            frames,
            supply,
            table,
            frame_lists: lists,
            policy,
            unused,
            refaults,
            waits,
            ..
        } = self;
        let run = PageRange::new(range.first, count.into());
        // `table_home` is the index of the hash chain that the page belongs to.
        for (page, table_home) in table.homes(file, run) {
            let id = supply.take_frame().expect("as many are free as are added");
            // Counts the page if it was evicted recently.
            if let Some(refaults) = refaults {
                refaults.record_entry(PageKey::of(file, page));
            }
            let frame = Frame {
                is_marked: page - range.first < entry.marked,
                ..entry.frame(file, page, table.insert(file, table_home, id), is_memory)
            };
            match frames.get_mut(id.0 as usize) {
                Some(slot) => *slot = frame,
                // Frames are used for the first time in ascending order.
                None => frames.push(frame),
            }
            if is_memory {
                // A page of memory is listed once it has arrived. The push only sets the stamp from
                // which its age counts; the page stays off the lists.
                lists.push(id, FrameList::MEMORY_CLEAN);
                lists.unlink(id);
                // The note, the present count of added pages, is the time of the addition.
                lists.set_note(id, waits.added_pages());
            } else if enters_policy {
                policy.enter(lists, id, PageKey::of(file, page), origin);
            } else {
                lists.push(id, FrameList::PREFETCHED);
                lists.set_note(id, waits.added_pages());
            }
            if entry.is_ahead {
                unused.insert(id);
            }
            on_added(page, id);
        }
        if entry.is_ahead {
            self.counters.readahead_pages += u64::from(count);
            let (added_pages, memory_pages) = (self.waits.added_pages(), self.budget_pages());
            self.credits[file.0 as usize].record_prefetch(count, added_pages, memory_pages);
        }
        count.into()
    }

    /// Number of pins of a frame.
    pub fn pins(&self, frame: FrameId) -> u32 {
        self.frame(frame).pins
    }

    /// Sets the request that will deliver a page in flight.
    pub fn set_request(&mut self, frame: FrameId, request: RequestId) {
        debug_assert!(matches!(self.state(frame), FrameState::InFlight(_)));
        self.frame_mut(frame).state = FrameState::InFlight(request);
    }

    /// The first run of pages of the range that are neither cached nor in flight; `None` without
    /// such a page.
    pub fn absent_run(&self, file: FileId, range: PageRange) -> Option<PageRange> {
        self.table.absent_run(&self.frames, file, range)
    }

    /// Calls `visit` with the frames of the pages of `range` in ascending order. Absent pages are
    /// skipped.
    pub fn for_each_frame(&self, file: FileId, range: PageRange, mut visit: impl FnMut(FrameId)) {
        let mut previous = NO_PREVIOUS_FRAME;
        for page in range.pages() {
            if let Some(id) = self.table.find_after(&self.frames, previous, file, page) {
                visit(id);
                previous = id;
            }
        }
    }

    /// Sets the request that will deliver the pages of `range`, all of which must be in flight.
    pub fn set_run_request(&mut self, file: FileId, range: PageRange, request: RequestId) {
        let mut id = NO_PREVIOUS_FRAME;
        for page in range.pages() {
            id = self.in_flight_after(id, file, page);
            self.set_request(id, request);
        }
    }

    /// Records that the device has delivered the pages of `range`, all of which must be in flight.
    /// They become filled. Successive pages that may be shared are shared together.
    pub fn fill_run(&mut self, file: FileId, range: PageRange) {
        // The batch of pages to be shared, from page `first` on. Only the first `count` elements
        // are valid.
        let mut filled = [FrameId(0); SHARE_BATCH_MAX];
        let (mut first, mut count, mut marked_bits) = (range.first, 0, 0);
        let mut id = NO_PREVIOUS_FRAME;
        for page in range.pages() {
            id = self.in_flight_after(id, file, page);
            let is_shareable = self.set_filled(id);
            if is_shareable {
                filled[count] = id;
                marked_bits |= u64::from(self.frame(id).is_marked) << count;
                count += 1;
            }
            // A batch ends before a page that cannot be shared. An empty batch has no effect.
            if !is_shareable || count == SHARE_BATCH_MAX {
                self.share(file, first, &filled[..count], marked_bits);
                (first, count, marked_bits) = (page + 1, 0, 0);
            }
        }
        self.share(file, first, &filled[..count], marked_bits);
    }

    /// Returns the frame of a page in flight. Checks first the frame directly behind `previous`,
    /// because neighbouring pages often have neighbouring frames.
    #[inline]
    fn in_flight_after(&self, previous: FrameId, file: FileId, page: u64) -> FrameId {
        let frame = self.table.find_after(&self.frames, previous, file, page);
        frame.expect("a page in flight is in the table")
    }
}

/// Most pages that are shared with readers in one call. The sharer accepts up to 64; a smaller
/// batch keeps the array of frames small.
const SHARE_BATCH_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;
    use alloc::vec::Vec;

    use super::*;
    use crate::eviction::TwoLists;

    const PREFETCHED: RunEntry = RunEntry { order: 0, marked: 0, is_ahead: true, is_pinned: false };

    /// Adds prefetched pages, which the device delivers at once. Returns their frames.
    fn add_filled(cache: &mut Cache, file: FileId, range: PageRange) -> Vec<u32> {
        let mut frames = Vec::new();
        cache.add_run(file, range, PREFETCHED, |_, id| frames.push(id.0));
        frames.iter().for_each(|&id| cache.fill(FrameId(id)));
        frames
    }

    /// In a memory of 300 pages, 2,000 pages pass in 20 runs of 100. Each run gets the frames of an
    /// evicted run, in order.
    #[test]
    fn a_stream_gets_consecutive_frames_after_many_rounds() {
        let mut cache = Cache::new(300, Box::new(TwoLists));
        let file = cache.add_file();
        for round in 0..20 {
            let frames = add_filled(&mut cache, file, PageRange::new(round * 100, 100));
            let first = frames[0];
            assert!(frames.iter().copied().eq(first..first + 100), "round {round}: {frames:?}");
        }
    }

    /// A run of three pages is added to a memory of four, with two marks; the next run of three has
    /// only one frame left.
    #[test]
    fn added_run_ends_with_the_free_frames_and_marks_its_first_pages() {
        let mut cache = Cache::new(4, Box::new(TwoLists));
        let file = cache.add_file();
        let entry = RunEntry { marked: 2, is_pinned: true, ..PREFETCHED };
        assert_eq!(cache.add_run(file, PageRange::new(510, 3), entry, |_, _| {}), 3);
        let marked = [510, 511, 512].map(|page| cache.marked(file, page).is_some());
        assert_eq!(marked, [true, true, false]);
        // Three are in flight and pinned.
        assert_eq!(cache.add_run(file, PageRange::new(0, 3), PREFETCHED, |_, _| {}), 1);
        assert_eq!((cache.find(file, 0).is_some(), cache.find(file, 1)), (true, None));
        assert_eq!(cache.counters().readahead_pages, 4);
        assert_eq!(cache.absent_run(file, PageRange::new(0, 9)), Some(PageRange::new(1, 8)));
    }
}
