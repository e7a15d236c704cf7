//! Where a law keeps its pages: lists through the frames.
//!
//! Every frame has one node, and is on one list at most. A law has two lists of its own; the cache
//! keeps pages that are none of the law's on others. So a page leaves whatever list it is on in one
//! way, whoever put it there, and the ages of pages on different lists can be held against each
//! other.

use alloc::vec::Vec;

use crate::cache::FrameId;

const NOBODY: u32 = u32::MAX;

/// A list of frames, from the newest to the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List(u8);

impl List {
    /// A law's list of pages that have yet to show that they are worth to be kept.
    pub const PROBATION: List = List(0);
    /// A law's list of pages that have.
    pub const KEPT: List = List(1);
    /// The two lists of a law, the first the one whose pages go first.
    pub const OF_POLICY: [List; 2] = [List::PROBATION, List::KEPT];

    /// One of the lists that are no law's: `nth` of them, 14 at the most.
    pub(crate) const fn beside(nth: u8) -> List {
        assert!((nth as usize) < LISTS - 2);
        List(nth + 2)
    }
}

const LISTS: usize = 16;
const NO_LIST: u8 = u8::MAX;

/// A frame's place on its list, and what its law has noted of its page.
#[derive(Clone, Copy, Debug)]
struct FrameNode {
    newer: u32,
    older: u32,
    /// When it came to its list: counts pushes, round and round.
    stamp: u32,
    note: u32,
    list: u8,
    uses: u8,
}

const ABSENT: FrameNode =
    FrameNode { newer: NOBODY, older: NOBODY, stamp: 0, note: 0, list: NO_LIST, uses: 0 };

#[derive(Clone, Copy, Debug)]
struct ListEnds {
    newest: u32,
    oldest: u32,
    pages: u32,
}

/// The lists of a cache: up to 20 bytes a frame.
#[derive(Clone, Debug)]
pub struct FrameLists {
    /// Of the frames that were ever on a list.
    nodes: Vec<FrameNode>,
    ends: [ListEnds; LISTS],
    pushes: u32,
}

impl FrameLists {
    /// Empty lists for so many frames.
    pub fn new(frames: u32) -> FrameLists {
        let empty = ListEnds { newest: NOBODY, oldest: NOBODY, pages: 0 };
        FrameLists { nodes: Vec::with_capacity(frames as usize), ends: [empty; LISTS], pushes: 0 }
    }

    /// Puts a frame that is on no list at the newest end of one.
    #[inline]
    pub fn push(&mut self, frame: FrameId, list: List) {
        let at = frame.0 as usize;
        if at >= self.nodes.len() {
            self.nodes.resize(at + 1, ABSENT);
        }
        debug_assert!(!self.is_listed(frame), "a frame is on one list at most");
        self.pushes = self.pushes.wrapping_add(1);
        let ends = &mut self.ends[usize::from(list.0)];
        let was_newest = core::mem::replace(&mut ends.newest, frame.0);
        ends.pages += 1;
        match was_newest {
            NOBODY => ends.oldest = frame.0,
            _ => self.nodes[was_newest as usize].newer = frame.0,
        }
        let node = &mut self.nodes[at];
        (node.newer, node.older) = (NOBODY, was_newest);
        (node.stamp, node.list) = (self.pushes, list.0);
    }

    /// Takes a frame off its list.
    #[inline]
    pub fn unlink(&mut self, frame: FrameId) {
        let node = &mut self.nodes[frame.0 as usize];
        let FrameNode { newer, older, list, .. } = *node;
        node.list = NO_LIST;
        let ends = &mut self.ends[usize::from(list)];
        ends.pages -= 1;
        match newer {
            NOBODY => ends.newest = older,
            _ => self.nodes[newer as usize].older = older,
        }
        match older {
            NOBODY => ends.oldest = newer,
            _ => self.nodes[older as usize].newer = newer,
        }
    }

    /// Takes the frame that has been on a list for longest off it.
    #[inline]
    pub fn pop(&mut self, list: List) -> Option<FrameId> {
        let oldest = self.oldest(list)?;
        self.unlink(oldest);
        Some(oldest)
    }

    /// Takes all frames off a law's lists, for another law to take over: in the order in which they
    /// would go, each with whether it was on the list of those that are kept.
    pub fn take_policy(&mut self) -> Vec<(FrameId, bool)> {
        let mut order = Vec::new();
        for (list, is_kept) in List::OF_POLICY.into_iter().zip([false, true]) {
            while let Some(frame) = self.pop(list) {
                order.push((frame, is_kept));
            }
        }
        order
    }

    /// Puts a frame at the newest end of a list, on whatever list it was.
    #[inline]
    pub fn renew(&mut self, frame: FrameId, list: List) {
        self.unlink(frame);
        self.push(frame, list);
    }

    /// The frame that has been on a list for longest.
    #[inline]
    pub fn oldest(&self, list: List) -> Option<FrameId> {
        let oldest = self.ends[usize::from(list.0)].oldest;
        (oldest != NOBODY).then_some(FrameId(oldest))
    }

    /// Which of the lists' oldest frames has been there for longest.
    pub fn oldest_of(&self, lists: &[List]) -> Option<FrameId> {
        lists.iter().filter_map(|&list| self.oldest(list)).max_by_key(|&frame| self.age(frame))
    }

    /// How many frames have come to some list since this one came to its.
    pub fn age(&self, frame: FrameId) -> u32 {
        self.pushes.wrapping_sub(self.nodes[frame.0 as usize].stamp)
    }

    /// Frames with this number and above were never on a list.
    pub fn frames(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// How many frames are on a list.
    #[inline]
    pub fn pages(&self, list: List) -> u32 {
        self.ends[usize::from(list.0)].pages
    }

    /// The list that the frame is on.
    #[inline]
    pub fn list_of(&self, frame: FrameId) -> Option<List> {
        let node = self.nodes.get(frame.0 as usize)?;
        (node.list != NO_LIST).then_some(List(node.list))
    }

    /// Whether the frame is on a list.
    #[inline]
    pub fn is_listed(&self, frame: FrameId) -> bool {
        self.list_of(frame).is_some()
    }

    /// What the law has noted of the page: a number of its own meaning.
    pub fn note(&self, frame: FrameId) -> u32 {
        self.nodes[frame.0 as usize].note
    }

    /// Notes a number of the page; the frame has been on a list.
    pub fn set_note(&mut self, frame: FrameId, note: u32) {
        self.nodes[frame.0 as usize].note = note;
    }

    /// How many uses the law has counted.
    pub fn uses(&self, frame: FrameId) -> u8 {
        self.nodes[frame.0 as usize].uses
    }

    /// Sets how many uses the law has counted; the frame has been on a list.
    pub fn set_uses(&mut self, frame: FrameId, uses: u8) {
        self.nodes[frame.0 as usize].uses = uses;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_pop_in_insertion_order_after_removals() {
        let mut places = FrameLists::new(5);
        (0..5).for_each(|frame| places.push(FrameId(frame), List::PROBATION));
        for taken in [0, 2, 4] {
            places.unlink(FrameId(taken));
        }
        places.push(FrameId(2), List::PROBATION);
        assert_eq!((places.pages(List::PROBATION), places.age(FrameId(1))), (3, 4));
        let order: Vec<u32> =
            core::iter::from_fn(|| places.pop(List::PROBATION)).map(|id| id.0).collect();
        assert_eq!(order, [1, 3, 2]);
        assert!((0..5).all(|frame| !places.is_listed(FrameId(frame))));
    }

    #[test]
    fn the_oldest_of_several_lists_is_the_one_that_came_first() {
        let mut places = FrameLists::new(3);
        places.push(FrameId(1), List::KEPT);
        places.push(FrameId(0), List::PROBATION);
        assert_eq!(places.oldest_of(&List::OF_POLICY), Some(FrameId(1)));
        places.renew(FrameId(1), List::KEPT);
        assert_eq!(places.oldest_of(&List::OF_POLICY), Some(FrameId(0)));
    }
}
