//! The frames that hold nothing, and how many frames there may be.
//!
//! As many frames as the world has addresses for are numbered; those *in circulation* are the budget.
//! A frame comes into circulation for the first time in the order of the numbers, and when it is first used the world
//! has to find memory for it. So a large budget costs nothing until it is used, and is taken back most cheaply
//! where it wasn't.
//!
//! 1. A frame is free, or it holds something, or it is out of circulation: withdrawn, or never used and beyond the
//!    budget.
//! 2. What is free is given out in the order in which it was last put back, the last first; when there is none of
//!    these, one that was withdrawn before; and then the next that was never used. So a budget that grows costs
//!    memory only as it is used.

use alloc::vec::Vec;

use super::FrameId;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct FreeFrames {
    /// Free, and used before; given out from the end.
    used: Vec<FrameId>,
    /// The first that was never used, and how many from there on are in circulation.
    fresh: u32,
    never_used_free: u32,
    /// Without memory, and how many of them, from the end, are in circulation again.
    withdrawn: Vec<FrameId>,
    withdrawn_free: u32,
    /// Out of circulation, on their way to the world that takes their memory back.
    withdrawing: u32,
    frames_max: u32,
}

impl FreeFrames {
    /// `budget` of `frames_max` frames are in circulation, all free.
    pub(super) fn new(budget: u32, frames_max: u32) -> FreeFrames {
        FreeFrames {
            used: Vec::new(),
            fresh: 0,
            never_used_free: budget,
            withdrawn: Vec::new(),
            withdrawn_free: 0,
            withdrawing: 0,
            frames_max,
        }
    }

    /// How many frames are in circulation.
    pub(super) fn budget(&self) -> u32 {
        self.backed() + self.never_used_free + self.withdrawn_free
    }

    /// How many frames have memory: they were used, and it was not taken back since.
    pub(super) fn backed(&self) -> u32 {
        self.fresh - self.withdrawn.len() as u32 - self.withdrawing
    }

    /// How many frames are free.
    pub(super) fn free(&self) -> u32 {
        self.used.len() as u32 + self.never_used_free + self.withdrawn_free
    }

    /// Gives out a free frame.
    #[inline]
    pub(super) fn take(&mut self) -> Option<FrameId> {
        if let Some(id) = self.used.pop() {
            return Some(id);
        }
        if self.withdrawn_free > 0 {
            self.withdrawn_free -= 1;
            return self.withdrawn.pop();
        }
        self.never_used_free = self.never_used_free.checked_sub(1)?;
        self.fresh += 1;
        Some(FrameId(self.fresh - 1))
    }

    /// Takes a frame back that holds nothing any more.
    #[inline]
    pub(super) fn put(&mut self, id: FrameId) {
        self.used.push(id);
    }

    /// How many frames wait to be used again; see [`turn`](FreeFrames::turn).
    pub(super) fn mark(&self) -> usize {
        self.used.len()
    }

    /// What was put back since the mark is given out in the order in which it came.
    pub(super) fn turn(&mut self, mark: usize) {
        self.used[mark..].reverse();
    }

    /// Brings up to `frames` more into circulation.
    pub(super) fn grow(&mut self, frames: u32) {
        let again = (self.withdrawn.len() as u32 - self.withdrawn_free).min(frames);
        self.withdrawn_free += again;
        let left = self.frames_max - self.fresh - self.never_used_free;
        self.never_used_free += left.min(frames - again);
    }

    /// Takes up to `frames` free ones out of circulation, first those that were never used; gives the others, whose
    /// memory the world is to take back before they are [returned](FreeFrames::withdrawn).
    pub(super) fn shrink(&mut self, frames: u32) -> Vec<FrameId> {
        let fresh = self.never_used_free.min(frames);
        self.never_used_free -= fresh;
        let again = self.withdrawn_free.min(frames - fresh);
        self.withdrawn_free -= again;
        let kept = self.used.len().saturating_sub((frames - fresh - again) as usize);
        let withdrawing = self.used.split_off(kept);
        self.withdrawing += withdrawing.len() as u32;
        withdrawing
    }

    /// The memory of frames was taken back.
    pub(super) fn withdrawn(&mut self, frames: &[FrameId]) {
        self.withdrawing -= frames.len() as u32;
        // Before those that are in circulation again.
        let place = self.withdrawn.len() - self.withdrawn_free as usize;
        self.withdrawn.splice(place..place, frames.iter().copied());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(supply: &mut FreeFrames, count: usize) -> Vec<u32> {
        (0..count).map_while(|_| supply.take()).map(|id| id.0).collect()
    }

    #[test]
    fn frames_are_used_for_the_first_time_in_order_and_the_last_one_back_goes_first() {
        let mut supply = FreeFrames::new(3, 3);
        assert_eq!(take(&mut supply, 2), [0, 1]);
        supply.put(FrameId(0));
        assert_eq!(take(&mut supply, 9), [0, 2]);
        let mark = supply.mark();
        [1, 2].into_iter().for_each(|id| supply.put(FrameId(id)));
        supply.turn(mark);
        assert_eq!(take(&mut supply, 9), [1, 2]);
    }

    #[test]
    fn never_used_frames_leave_first_and_used_ones_return_first() {
        let mut supply = FreeFrames::new(4, 10);
        assert_eq!(take(&mut supply, 3), [0, 1, 2]);
        [0, 1].into_iter().for_each(|id| supply.put(FrameId(id)));
        assert_eq!((supply.budget(), supply.free()), (4, 3));
        let withdrawing = supply.shrink(2);
        assert_eq!(withdrawing, [FrameId(1)]);
        assert_eq!((supply.budget(), supply.free()), (2, 1));
        supply.withdrawn(&withdrawing);
        assert_eq!((supply.budget(), supply.free()), (2, 1));
        supply.grow(3);
        assert_eq!((supply.budget(), supply.free()), (5, 4));
        assert_eq!(supply.backed(), 2);
        assert_eq!(take(&mut supply, 9), [0, 1, 3, 4]);
        assert_eq!(supply.backed(), 5);
        // No further than there are numbers.
        supply.grow(100);
        assert_eq!(supply.budget(), 10);
        assert_eq!(take(&mut supply, 100), [5, 6, 7, 8, 9]);
    }
}
