//! Sharing of cached pages with readers outside the machine.
//!
//! Many threads read cached pages, and the machine is a single object. The *environment*, the code
//! around the machine, may therefore share filled pages with readers directly, without a call per
//! read. The cache reports the filled pages to it, queries their uses before an eviction, and
//! recalls a page before its frame is reused.
//!
//! A reader that copies uses a page for a moment; a reader with a guard may keep it pinned for any
//! time. While a page is in use its recall is refused; no side waits for the other. The environment
//! limits the number of pinned pages, to the number given to the machine at its construction.

use alloc::vec::Vec;
use core::fmt;

use super::{FileId, FrameId};

/// Uses of a page since the last query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UseCount {
    /// No use.
    None,
    /// One use.
    Once,
    /// More than one use.
    Again,
}

/// Shares filled pages with readers outside the machine.
pub trait PageSharer: Send + fmt::Debug {
    /// Shares filled pages from page `first` on, at most 64, in these frames. A page with the
    /// readahead mark is not shared: its reader calls the machine, so that the policy sees the
    /// read. The lowest bit of `marked` stands for the first page.
    fn share(&mut self, file: FileId, first: u64, frames: &[FrameId], marked: u64);

    /// Records that the page in the frame carries the mark, so that it is no longer shared. No
    /// effect by default: uses of the page are then not reported to the policy.
    fn mark(&mut self, _frame: FrameId) {}

    /// Records that the page in the frame no longer carries the mark.
    fn unmark(&mut self, frame: FrameId);

    /// Returns and resets the uses of the page in the frame.
    fn take_uses(&mut self, frame: FrameId) -> UseCount;

    /// Returns and resets the uses of the pages in up to 64 frames from `first` on, selected by the
    /// bits of `frame_bits`. The first result has a bit for each used page, the second for each
    /// page used more than once.
    fn take_uses_of(&mut self, first: FrameId, frame_bits: u64) -> [u64; 2] {
        let [mut used_bits, mut used_again_bits] = [0; 2];
        for bit in (0..u64::BITS).filter(|bit| frame_bits >> bit & 1 != 0) {
            let uses = self.take_uses(FrameId(first.0 + bit));
            used_bits |= u64::from(uses != UseCount::None) << bit;
            used_again_bits |= u64::from(uses == UseCount::Again) << bit;
        }
        [used_bits, used_again_bits]
    }

    /// Returns true if [`take_uses`](PageSharer::take_uses) would report a use. Does not reset it.
    fn is_used(&self, frame: FrameId) -> bool;

    /// Ends the sharing of the page in the frame. Returns false, without a change, if a reader has
    /// it pinned or copies from it now. Doesn't wait.
    fn recall(&mut self, frame: FrameId) -> bool;

    /// Recalls several pages, at most 64. Returns a bit for each refusal, the lowest for the first
    /// frame.
    fn recall_all(&mut self, frames: &[FrameId]) -> u64 {
        let refused_bit =
            |(index, &frame): (usize, &FrameId)| u64::from(!self.recall(frame)) << index;
        frames.iter().enumerate().map(refused_bit).sum()
    }

    /// Ends the sharing of a page that is in use, because its data is out of date. Once it is no
    /// longer in use, [`take_returned`](PageSharer::take_returned) returns its frame.
    fn forget(&mut self, frame: FrameId);

    /// The frames whose forgotten page is no longer in use; each is returned once.
    fn take_returned(&mut self) -> Vec<FrameId>;

    /// Allows or forbids readers to begin to pin pages; initially allowed. After a call with false,
    /// a pin may still begin if it counts in the number of pinned pages already.
    fn allow_pins(&mut self, may_pin: bool);
}
