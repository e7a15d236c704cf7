//! The page lists of a policy: linked lists through the frames.
//!
//! Every frame has one node, and is on at most one list. A policy has three lists. The cache keeps
//! the pages that don't belong to the policy on other lists. A page therefore leaves every list in
//! the same way, and the ages of pages on different lists can be compared.

use alloc::vec::Vec;

use crate::page::FrameId;

/// End of a list.
const NO_FRAME: u32 = u32::MAX;

/// A list of frames, from the newest to the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List(u8);

impl List {
    /// A policy's list of pages that have not been reused yet.
    pub const PROBATION: List = List(0);
    /// A policy's list of pages that were reused.
    pub const REUSED: List = List(1);
    /// A policy's list of the newest pages, for policies that keep these apart from the others.
    pub const WINDOW: List = List(2);
    /// The lists of a policy; the pages of the first leave first.
    pub const OF_POLICY: [List; 3] = [List::PROBATION, List::WINDOW, List::REUSED];

    /// The `nth` list that belongs to no policy; there are 13.
    pub(crate) const fn outside_policy(nth: u8) -> List {
        let policy_lists = List::OF_POLICY.len();
        assert!((nth as usize) < LISTS - policy_lists);
        List(nth + policy_lists as u8)
    }
}

/// Number of lists: three of the policy, 13 of the cache.
const LISTS: usize = 16;
/// List index of a frame on no list.
const NO_LIST: u8 = u8::MAX;

/// A frame's links on its list, and the policy's data of its page.
#[derive(Clone, Copy, Debug)]
struct FrameNode {
    /// Next newer frame of the list.
    newer: u32,
    /// Next older frame of the list.
    older: u32,
    /// Value of the wrapping push counter when it entered its list.
    stamp: u32,
    /// Number with a meaning defined by the policy.
    note: u32,
    /// Index of its list, or `NO_LIST`.
    list: u8,
    /// Use count, kept by the policy.
    uses: u8,
}

/// Node of a frame on no list.
const ABSENT: FrameNode =
    FrameNode { newer: NO_FRAME, older: NO_FRAME, stamp: 0, note: 0, list: NO_LIST, uses: 0 };

/// Both ends of a list, and its length.
#[derive(Clone, Copy, Debug)]
struct ListEnds {
    /// Number of the newest frame, or `NO_FRAME`.
    newest: u32,
    /// Number of the oldest frame, or `NO_FRAME`.
    oldest: u32,
    /// Number of frames on the list.
    pages: u32,
}

/// The lists of a cache: up to 20 bytes a frame.
#[derive(Clone, Debug)]
pub struct FrameLists {
    /// Nodes of the frames that were ever on a list.
    nodes: Vec<FrameNode>,
    /// Ends of each list, by its number.
    ends: [ListEnds; LISTS],
    /// Wrapping count of pushes, which is the clock of ages.
    pushes: u32,
}

impl FrameLists {
    /// Creates empty lists for `frames` frames.
    pub fn new(frames: u32) -> FrameLists {
        let empty = ListEnds { newest: NO_FRAME, oldest: NO_FRAME, pages: 0 };
        FrameLists { nodes: Vec::with_capacity(frames as usize), ends: [empty; LISTS], pushes: 0 }
    }

    /// Puts a frame that is on no list at the newest end of one.
    #[inline]
    pub fn push(&mut self, frame: FrameId, list: List) {
        let index = frame.0 as usize;
        if index >= self.nodes.len() {
            self.nodes.resize(index + 1, ABSENT);
        }
        debug_assert!(!self.is_listed(frame), "a frame is on one list at most");
        self.pushes = self.pushes.wrapping_add(1);
        let ends = &mut self.ends[usize::from(list.0)];
        let former_newest = core::mem::replace(&mut ends.newest, frame.0);
        ends.pages += 1;
        match former_newest {
            NO_FRAME => ends.oldest = frame.0,
            _ => self.nodes[former_newest as usize].newer = frame.0,
        }
        let node = &mut self.nodes[index];
        (node.newer, node.older) = (NO_FRAME, former_newest);
        (node.stamp, node.list) = (self.pushes, list.0);
    }

    /// Removes a frame, which must be on a list, from its list.
    #[inline]
    pub fn unlink(&mut self, frame: FrameId) {
        let node = &mut self.nodes[frame.0 as usize];
        let FrameNode { newer, older, list, .. } = *node;
        node.list = NO_LIST;
        let ends = &mut self.ends[usize::from(list)];
        ends.pages -= 1;
        match newer {
            NO_FRAME => ends.newest = older,
            _ => self.nodes[newer as usize].older = older,
        }
        match older {
            NO_FRAME => ends.oldest = newer,
            _ => self.nodes[older as usize].newer = newer,
        }
    }

    /// Removes and returns the oldest frame of a list; `None` if the list is empty.
    #[inline]
    pub fn pop(&mut self, list: List) -> Option<FrameId> {
        let oldest = self.oldest(list)?;
        self.unlink(oldest);
        Some(oldest)
    }

    /// Removes all frames from the policy's lists, for another policy to take over. They are in the
    /// order of eviction, with a flag that is true for [`List::REUSED`].
    pub fn take_policy(&mut self) -> Vec<(FrameId, bool)> {
        let mut order = Vec::new();
        for list in List::OF_POLICY {
            while let Some(frame) = self.pop(list) {
                order.push((frame, list == List::REUSED));
            }
        }
        order
    }

    /// Moves a frame from its present list to the newest end of `list`.
    #[inline]
    pub fn renew(&mut self, frame: FrameId, list: List) {
        self.unlink(frame);
        self.push(frame, list);
    }

    /// The oldest frame of a list; `None` if the list is empty.
    #[inline]
    pub fn oldest(&self, list: List) -> Option<FrameId> {
        let oldest = self.ends[usize::from(list.0)].oldest;
        (oldest != NO_FRAME).then_some(FrameId(oldest))
    }

    /// The frame of greatest age on several lists; `None` if all are empty.
    pub fn oldest_of(&self, lists: &[List]) -> Option<FrameId> {
        lists.iter().filter_map(|&list| self.oldest(list)).max_by_key(|&frame| self.age(frame))
    }

    /// Age of a frame, which must have been on a list: the number of pushes to any list since its
    /// own.
    pub fn age(&self, frame: FrameId) -> u32 {
        self.pushes.wrapping_sub(self.nodes[frame.0 as usize].stamp)
    }

    /// Frames with this number and above were never on a list.
    pub fn frames(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Number of frames on a list.
    #[inline]
    pub fn pages(&self, list: List) -> u32 {
        self.ends[usize::from(list.0)].pages
    }

    /// The list that the frame is on; `None` if it is on no list.
    #[inline]
    pub fn list_of(&self, frame: FrameId) -> Option<List> {
        let node = self.nodes.get(frame.0 as usize)?;
        (node.list != NO_LIST).then_some(List(node.list))
    }

    /// Returns true if the frame is on a list.
    #[inline]
    pub fn is_listed(&self, frame: FrameId) -> bool {
        self.list_of(frame).is_some()
    }

    /// The policy's note of the page: a number with a meaning defined by the policy. The frame must
    /// have been on a list; it keeps its note when it leaves the list.
    pub fn note(&self, frame: FrameId) -> u32 {
        self.nodes[frame.0 as usize].note
    }

    /// Sets the note of a page; the frame must have been on a list.
    pub fn set_note(&mut self, frame: FrameId, note: u32) {
        self.nodes[frame.0 as usize].note = note;
    }

    /// The policy's use count of the page; the frame must have been on a list.
    pub fn uses(&self, frame: FrameId) -> u8 {
        self.nodes[frame.0 as usize].uses
    }

    /// Sets the use count of a page; the frame must have been on a list.
    pub fn set_uses(&mut self, frame: FrameId, uses: u8) {
        self.nodes[frame.0 as usize].uses = uses;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of frames 0 to 4, 0, 2 and 4 are removed, and 2 is pushed again: four pushes after frame 1.
    #[test]
    fn frames_pop_in_insertion_order_after_removals() {
        let mut lists = FrameLists::new(5);
        (0..5).for_each(|frame| lists.push(FrameId(frame), List::PROBATION));
        for taken in [0, 2, 4] {
            lists.unlink(FrameId(taken));
        }
        lists.push(FrameId(2), List::PROBATION);
        assert_eq!((lists.pages(List::PROBATION), lists.age(FrameId(1))), (3, 4));
        let order: Vec<u32> =
            core::iter::from_fn(|| lists.pop(List::PROBATION)).map(|id| id.0).collect();
        assert_eq!(order, [1, 3, 2]);
        assert!((0..5).all(|frame| !lists.is_listed(FrameId(frame))));
    }

    /// Frame 1 is pushed to one list before frame 0 to the other, and then moved to the front.
    #[test]
    fn oldest_frame_of_several_lists_is_the_first_inserted() {
        let mut lists = FrameLists::new(3);
        lists.push(FrameId(1), List::REUSED);
        lists.push(FrameId(0), List::PROBATION);
        assert_eq!(lists.oldest_of(&List::OF_POLICY), Some(FrameId(1)));
        lists.renew(FrameId(1), List::REUSED);
        assert_eq!(lists.oldest_of(&List::OF_POLICY), Some(FrameId(0)));
    }
}
