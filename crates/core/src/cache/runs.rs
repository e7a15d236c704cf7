//! Runs of pages: neighbours that come in together.
//!
//! A stream brings in hundreds of pages at a time, and drives out as many. What
//! is the same for all of them is done once: frames are freed for the whole run,
//! and its places in the table are found chunk by chunk.

use super::{Cache, FileId, Frame, FrameId, FrameState, Links, List, memory};
use crate::request::RequestId;
use crate::unit::PageRange;

/// How the pages of a run come in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The order of the folios that they belong to.
    pub order: u8,
    /// How many of them, from the first on, carry the readahead mark.
    pub marked: u64,
    /// Whether nobody has asked for them yet.
    pub is_ahead: bool,
    /// Whether they are pinned once.
    pub is_pinned: bool,
}

impl Cache {
    /// Adds absent pages, in flight, as many as there are frames for, and tells the frame of
    /// each in order; gives how many. Fewer when every other frame is pinned or in flight.
    pub fn add_run(
        &mut self,
        file: FileId,
        range: PageRange,
        entry: Entry,
        mut added: impl FnMut(u64, FrameId),
    ) -> u64 {
        let wanted = range.count().min(self.budget_pages().into()) as u32;
        self.settle_next(wanted);
        self.reserve(wanted);
        let count = wanted.min(self.free_pages());
        let Cache { frames, free, tables, lists, unused, .. } = self;
        let mut left = PageRange::new(range.first, count.into());
        while !left.is_empty() {
            let places = tables[file.0 as usize].places(left);
            for (page, place) in left.pages().zip(&mut *places) {
                let id = free.pop().expect("as many are free as are added");
                frames[id.0 as usize] = Frame {
                    file,
                    page,
                    pins: u32::from(entry.is_pinned),
                    state: FrameState::InFlight(RequestId(u32::MAX)),
                    links: Links::default(),
                    order: entry.order,
                    is_marked: page - range.first < entry.marked,
                    is_referenced: false,
                    is_stale: false,
                    memory: memory::Flags::default(),
                };
                if entry.is_ahead {
                    unused.insert(id);
                }
                *place = id.0;
                lists.push_front(frames, id, List::Inactive);
                added(page, id);
            }
            left.first += places.len() as u64;
        }
        self.counters.readahead_pages += if entry.is_ahead { u64::from(count) } else { 0 };
        count.into()
    }

    /// Says which request will deliver a page that is in flight.
    pub fn carry(&mut self, frame: FrameId, request: RequestId) {
        debug_assert!(matches!(self.state(frame), FrameState::InFlight(_)));
        self.frame_mut(frame).state = FrameState::InFlight(request);
    }

    /// The first run of pages of the range that are not cached, nor on their way into the cache.
    pub fn absent_run(&self, file: FileId, range: PageRange) -> Option<PageRange> {
        self.tables[file.0 as usize].absent_run(range)
    }

    /// Tells the frames of pages that are all cached, in order.
    pub fn each_frame(&self, file: FileId, range: PageRange, mut each: impl FnMut(FrameId)) {
        let frames = self.tables[file.0 as usize].frames(range);
        frames.flatten().for_each(|&frame| each(FrameId(frame)));
    }

    /// Says which request will deliver pages that are in flight.
    pub fn carry_run(&mut self, file: FileId, range: PageRange, request: RequestId) {
        for &id in self.tables[file.0 as usize].frames(range).flatten() {
            let state = &mut self.frames[id as usize].state;
            debug_assert!(matches!(state, FrameState::InFlight(_)));
            *state = FrameState::InFlight(request);
        }
    }
}
