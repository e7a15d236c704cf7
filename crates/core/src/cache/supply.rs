//! The free frames, and the number of frames.
//!
//! The *environment* is the code around the machine, which owns the memory of the frames. Frame
//! numbers cover all its addresses; the frames *in circulation* are the budget. Frames enter
//! circulation in ascending order, and the environment finds memory for a frame at its first use. A
//! large budget therefore costs no memory until it is used. Unused frames are also the cheapest to
//! take back.
//!
//! 1. A frame is free, in use, or out of circulation: withdrawn, or never used and beyond the
//!    budget.
//! 2. Free frames are handed out in the following order: the most recently freed one, then one that
//!    was withdrawn before, then the next that was never used. A growing budget thus costs memory
//!    only as it is used.

use alloc::vec::Vec;

use super::FrameId;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct FreeFrames {
    /// Free frames that were used before; handed out from the end.
    freed: Vec<FrameId>,
    /// The first frame that was never used.
    first_never_used: u32,
    /// Number of never-used frames in circulation.
    never_used_free: u32,
    /// Used frames whose memory was taken back.
    withdrawn: Vec<FrameId>,
    /// Number of withdrawn frames, from the end of the list, that are in circulation again.
    withdrawn_free: u32,
    /// Number of frames out of circulation whose memory the environment is taking back.
    withdrawing: u32,
    /// Number of frames that exist: the largest possible budget.
    frames_max: u32,
}

impl FreeFrames {
    /// Creates `frames_max` frames, with the first `budget` (at most all) in circulation and free.
    pub(super) fn new(budget: u32, frames_max: u32) -> FreeFrames {
        FreeFrames {
            freed: Vec::new(),
            first_never_used: 0,
            never_used_free: budget,
            withdrawn: Vec::new(),
            withdrawn_free: 0,
            withdrawing: 0,
            frames_max,
        }
    }

    /// Number of frames in circulation.
    pub(super) fn budget_frames(&self) -> u32 {
        self.backed_frames() + self.never_used_free + self.withdrawn_free
    }

    /// Number of frames with memory: they were used, and their memory was not taken back since.
    pub(super) fn backed_frames(&self) -> u32 {
        self.first_never_used - self.withdrawn.len() as u32 - self.withdrawing
    }

    /// Number of free frames in circulation.
    pub(super) fn free_frames(&self) -> u32 {
        self.freed.len() as u32 + self.never_used_free + self.withdrawn_free
    }

    /// Takes a free frame; `None` if there is none.
    #[inline]
    pub(super) fn take_frame(&mut self) -> Option<FrameId> {
        if let Some(id) = self.freed.pop() {
            return Some(id);
        }
        if self.withdrawn_free > 0 {
            // The frames at the end of the list are in circulation again.
            self.withdrawn_free -= 1;
            return self.withdrawn.pop();
        }
        self.never_used_free = self.never_used_free.checked_sub(1)?;
        self.first_never_used += 1;
        Some(FrameId(self.first_never_used - 1))
    }

    /// Frees a frame that holds no page; the next call of `take_frame` hands it out.
    #[inline]
    pub(super) fn put_back(&mut self, id: FrameId) {
        self.freed.push(id);
    }

    /// Number of freed frames at present, to be passed to
    /// [`reverse_freed_since`](FreeFrames::reverse_freed_since).
    pub(super) fn freed_count(&self) -> usize {
        self.freed.len()
    }

    /// Reverses the order of the frames freed since `freed_count` was `freed_before`, so that they
    /// are handed out in the order in which they were freed. Neighbouring pages thus get
    /// neighbouring frames again.
    pub(super) fn reverse_freed_since(&mut self, freed_before: usize) {
        self.freed[freed_before..].reverse();
    }

    /// Number of frames that exist, in circulation or out of it.
    pub(super) fn frames_max(&self) -> u32 {
        self.frames_max
    }

    /// Adds up to `frames` frames to circulation: first withdrawn frames, then frames that were
    /// never used, as far as they exist.
    pub(super) fn grow(&mut self, frames: u32) {
        // The withdrawn frames that are still out of circulation.
        let returned = (self.withdrawn.len() as u32 - self.withdrawn_free).min(frames);
        self.withdrawn_free += returned;
        // The never-used frames that are out of circulation.
        let never_used = self.frames_max - self.first_never_used - self.never_used_free;
        self.never_used_free += never_used.min(frames - returned);
    }

    /// Removes up to `frames` free frames from circulation, first the frames without memory.
    /// Returns the others. The environment takes back their memory, and then
    /// [reports](FreeFrames::record_withdrawn) them. They are out of circulation at once, but count
    /// as withdrawing until then.
    pub(super) fn shrink(&mut self, frames: u32) -> Vec<FrameId> {
        // Frames without memory, never used or withdrawn before, leave circulation at once.
        let never_used = self.never_used_free.min(frames);
        self.never_used_free -= never_used;
        let withdrawn = self.withdrawn_free.min(frames - never_used);
        self.withdrawn_free -= withdrawn;
        // The rest come from the end of `freed`, the most recently freed ones. If they are too few,
        // all are taken.
        let kept = self.freed.len().saturating_sub((frames - never_used - withdrawn) as usize);
        let withdrawing = self.freed.split_off(kept);
        self.withdrawing += withdrawing.len() as u32;
        withdrawing
    }

    /// Records that the environment has taken back the memory of these frames.
    pub(super) fn record_withdrawn(&mut self, frames: &[FrameId]) {
        self.withdrawing -= frames.len() as u32;
        // Inserts them before the frames that are in circulation again.
        let index = self.withdrawn.len() - self.withdrawn_free as usize;
        self.withdrawn.splice(index..index, frames.iter().copied());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes up to `count` frames, and returns their numbers.
    fn take_frames(supply: &mut FreeFrames, count: usize) -> Vec<u32> {
        (0..count).map_while(|_| supply.take_frame()).map(|id| id.0).collect()
    }

    #[test]
    fn freed_frames_are_taken_last_in_first_out_and_new_ones_in_order() {
        let mut supply = FreeFrames::new(3, 3);
        assert_eq!(take_frames(&mut supply, 2), [0, 1]);
        supply.put_back(FrameId(0));
        assert_eq!(take_frames(&mut supply, 9), [0, 2]);
        let freed_before = supply.freed_count();
        [1, 2].into_iter().for_each(|id| supply.put_back(FrameId(id)));
        supply.reverse_freed_since(freed_before);
        assert_eq!(take_frames(&mut supply, 9), [1, 2]);
    }

    /// A budget of 4 of 10 frames: frames 0 and 1 are freed, 2 is in use, 3 was never used. The
    /// budget shrinks by 3 and 1, grows by 3, and then to all 10.
    #[test]
    fn shrink_removes_never_used_frames_first_and_grow_restores_used_ones() {
        let mut supply = FreeFrames::new(4, 10);
        assert_eq!(take_frames(&mut supply, 3), [0, 1, 2]);
        [0, 1].into_iter().for_each(|id| supply.put_back(FrameId(id)));
        assert_eq!((supply.budget_frames(), supply.free_frames()), (4, 3));
        let withdrawing = supply.shrink(2);
        assert_eq!(withdrawing, [FrameId(1)]);
        assert_eq!((supply.budget_frames(), supply.free_frames()), (2, 1));
        supply.record_withdrawn(&withdrawing);
        assert_eq!((supply.budget_frames(), supply.free_frames()), (2, 1));
        supply.grow(3);
        assert_eq!((supply.budget_frames(), supply.free_frames()), (5, 4));
        assert_eq!(supply.backed_frames(), 2);
        assert_eq!(take_frames(&mut supply, 9), [0, 1, 3, 4]);
        assert_eq!(supply.backed_frames(), 5);
        // At most the existing frames.
        supply.grow(100);
        assert_eq!(supply.budget_frames(), 10);
        assert_eq!(take_frames(&mut supply, 100), [5, 6, 7, 8, 9]);
    }
}
