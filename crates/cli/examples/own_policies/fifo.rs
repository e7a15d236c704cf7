//! `fifo`: evicts the page that entered the cache first.
//!
//! New pages enter at the front of one list, and the victim is the page at its back.
//! Uses do not move pages.

use readpath_core::cache::FrameId;
use readpath_core::eviction::{AccessBits, EvictionPolicy, FrameLists, List, PageKey, PageOrigin};

/// The eviction policy `fifo`.
#[derive(Debug)]
pub struct Fifo;

impl EvictionPolicy for Fifo {
    fn enter(&mut self, lists: &mut FrameLists, frame: FrameId, _: PageKey, _: PageOrigin) {
        lists.push(frame, List::PROBATION);
    }

    fn used(&mut self, _lists: &mut FrameLists, _frame: FrameId, _page: PageKey) {}

    fn victim(&mut self, lists: &mut FrameLists, _: &mut dyn AccessBits) -> Option<FrameId> {
        lists.pop(List::PROBATION)
    }

    fn oldest(&mut self, lists: &mut FrameLists) -> Option<FrameId> {
        lists.oldest(List::PROBATION)
    }
}
