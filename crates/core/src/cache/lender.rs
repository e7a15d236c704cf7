//! Lending: readers that the machine doesn't see.
//!
//! Many threads read pages that are cached, and the machine is one. So the
//! world may lend filled pages to readers by itself, without asking each time:
//! the cache tells it which pages are filled, asks it how they were used when it
//! decides what goes, and recalls a page before it gives the frame away.
//!
//! A reader that only copies uses a page for a moment, one that holds it for as long
//! as it likes. While a page is in use its recall is refused; nobody waits for anybody.
//! How many pages may be held is limited by the world, to what it told the machine when
//! that was built.

use alloc::vec::Vec;
use core::fmt;

use super::{FileId, FrameId};

/// How a page was used since that was last asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UseCount {
    /// Not at all.
    None,
    /// Once.
    Once,
    /// More than once.
    Again,
}

/// Lends filled pages to readers beside the machine.
pub trait PageSharer: Send + fmt::Debug {
    /// Pages from `first` on, 64 at the most, are filled, in these frames: they may be lent. One that
    /// carries the mark (its bit is set in `marked`, the lowest for the first) is not: its
    /// reader comes to the machine, so that the law hears of it.
    fn lend(&mut self, file: FileId, first: u64, frames: &[FrameId], marked: u64);

    /// The page in the frame carries the mark no more.
    fn unmark(&mut self, frame: FrameId);

    /// How the page in the frame was used since this was last asked.
    fn uses(&mut self, frame: FrameId) -> UseCount;

    /// How pages in the frames from `first` on were used whose bit is set in `wanted`: a bit for each
    /// that was, and one for each that was more than once.
    fn uses_of(&mut self, first: FrameId, wanted: u64) -> [u64; 2] {
        let mut used = [0; 2];
        for nth in (0..u64::BITS).filter(|nth| wanted >> nth & 1 != 0) {
            let uses = self.uses(FrameId(first.0 + nth));
            used[0] |= u64::from(uses != UseCount::None) << nth;
            used[1] |= u64::from(uses == UseCount::Again) << nth;
        }
        used
    }

    /// Whether [`uses`](PageSharer::uses) would tell of a use.
    fn is_used(&self, frame: FrameId) -> bool;

    /// Lends the page in the frame no more. False, and nothing has changed, if somebody
    /// holds it, or copies from it now. Doesn't wait.
    fn recall(&mut self, frame: FrameId) -> bool;

    /// Recalls several, 64 at the most; gives a bit, the lowest for the first of them, for each
    /// that was refused.
    fn recall_all(&mut self, frames: &[FrameId]) -> u64 {
        let refused = |(nth, &frame): (usize, &FrameId)| u64::from(!self.recall(frame)) << nth;
        frames.iter().enumerate().map(refused).sum()
    }

    /// Lends the page in the frame no more, though it is in use: its bytes are out of date.
    /// Once it isn't, [`take_returned`](PageSharer::take_returned) names it.
    fn forget(&mut self, frame: FrameId);

    /// The frames whose page was to be forgotten and is not in use any more: each once.
    fn take_returned(&mut self) -> Vec<FrameId>;

    /// Whether readers may begin to hold pages, as they may at first. From the call with false on
    /// none does that had not counted itself before.
    fn let_hold(&mut self, may_hold: bool);
}
