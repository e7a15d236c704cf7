//! Frames in a binary heap: the frame with the oldest use number is at its root.
//!
//! Each frame has at most one entry. The heap therefore has at most as many entries as there are
//! frames, and a change moves one entry by the logarithm of that number.

use alloc::vec::Vec;

use crate::page::FrameId;

/// Index of a frame that has no entry.
const NO_INDEX: u32 = u32::MAX;

/// Data of a frame: its use number, and the index of its entry.
#[derive(Clone, Copy, Debug)]
struct HeapNode {
    /// Use number that orders the frame. It remains after the entry has been removed.
    use_number: u32,
    /// Index of the frame's entry, or `NO_INDEX`.
    index: u32,
}

/// Node of a frame that never had an entry.
const ABSENT: HeapNode = HeapNode { use_number: 0, index: NO_INDEX };

/// Frames by use number, up to 12 bytes a frame. Use numbers wrap: the older of two numbers is the
/// one from which less than 2^31 steps lead to the other.
#[derive(Debug, Default)]
pub(super) struct FrameHeap {
    /// Frames of the entries. The parent of an entry has half its index, rounded, and is not newer.
    entries: Vec<FrameId>,
    /// Nodes of the frames that ever had an entry.
    nodes: Vec<HeapNode>,
}

impl FrameHeap {
    /// The frame with the oldest use number; `None` if the heap is empty.
    pub(super) fn first(&self) -> Option<FrameId> {
        self.entries.first().copied()
    }

    /// The last use number of a frame, which may have left the heap. For a frame that never had an
    /// entry the result is `None`, or 0 if a frame of a higher number had one.
    pub(super) fn use_number(&self, frame: FrameId) -> Option<u32> {
        self.nodes.get(frame.0 as usize).map(|node| node.use_number)
    }

    /// Adds a frame with its use number. The entry of a frame that has one moves.
    pub(super) fn insert(&mut self, frame: FrameId, use_number: u32) {
        self.remove(frame);
        if frame.0 as usize >= self.nodes.len() {
            self.nodes.resize(frame.0 as usize + 1, ABSENT);
        }
        self.nodes[frame.0 as usize].use_number = use_number;
        self.entries.push(frame);
        self.rise(self.entries.len() - 1);
    }

    /// Removes the entry of a frame, if it has one.
    pub(super) fn remove(&mut self, frame: FrameId) {
        let Some(node) = self.nodes.get_mut(frame.0 as usize) else { return };
        if node.index == NO_INDEX {
            return;
        }
        let index = core::mem::replace(&mut node.index, NO_INDEX) as usize;
        self.entries.swap_remove(index);
        if index < self.entries.len() {
            // The last entry has moved to `index`, and may belong nearer to the root or farther
            // from it.
            let moved_to = self.rise(index);
            self.sink(moved_to);
        }
    }

    /// Returns true if the use number at index `a` is older than the one at index `b`. The
    /// difference is signed, because numbers wrap.
    fn is_older(&self, a: usize, b: usize) -> bool {
        let [a, b] = [a, b].map(|index| self.nodes[self.entries[index].0 as usize].use_number);
        (a.wrapping_sub(b) as i32) < 0
    }

    /// Stores the index of the entry in the node of its frame.
    fn link(&mut self, index: usize) {
        self.nodes[self.entries[index].0 as usize].index = index as u32;
    }

    /// Moves an entry towards the root past newer ones. Returns its index.
    fn rise(&mut self, mut index: usize) -> usize {
        while index > 0 && self.is_older(index, (index - 1) / 2) {
            let parent = (index - 1) / 2;
            self.entries.swap(index, parent);
            self.link(index);
            index = parent;
        }
        self.link(index);
        index
    }

    /// Moves an entry away from the root past older ones: it changes places with the older of its
    /// two children.
    fn sink(&mut self, mut index: usize) {
        loop {
            let mut oldest = index;
            for child in [2 * index + 1, 2 * index + 2] {
                if child < self.entries.len() && self.is_older(child, oldest) {
                    oldest = child;
                }
            }
            if oldest == index {
                return self.link(index);
            }
            self.entries.swap(index, oldest);
            self.link(index);
            index = oldest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splitmix;

    /// Frames 0 to 3 have the numbers 9, 2, 7 and 4. Frame 1 moves to 8, and frame 3 leaves.
    #[test]
    fn frames_leave_in_the_order_of_their_use_numbers() {
        let mut heap = FrameHeap::default();
        for (frame, use_number) in [(0, 9), (1, 2), (2, 7), (3, 4)] {
            heap.insert(FrameId(frame), use_number);
        }
        assert_eq!((heap.first(), heap.use_number(FrameId(4))), (Some(FrameId(1)), None));
        heap.insert(FrameId(1), 8);
        heap.remove(FrameId(3));
        let mut order = Vec::new();
        while let Some(frame) = heap.first() {
            heap.remove(frame);
            order.push(frame.0);
        }
        assert_eq!((order, heap.use_number(FrameId(3))), ([2, 1, 0].to_vec(), Some(4)));
    }

    /// Random insertions and removals give the same first frame as a vector. The numbers pass the
    /// end of their range.
    #[test]
    fn the_first_frame_matches_a_vector_model() {
        let mut heap = FrameHeap::default();
        let mut model: Vec<(u64, u32)> = Vec::new();
        let start = u64::from(u32::MAX) - 5000;
        let mut state = 1;
        for step in 0..10_000 {
            let frame = (splitmix::next(&mut state) % 60) as u32;
            model.retain(|&(_, other)| other != frame);
            if splitmix::next(&mut state).is_multiple_of(3) {
                heap.remove(FrameId(frame));
            } else {
                // Distinct numbers, not in ascending order.
                let use_number = start + (step ^ 37);
                model.push((use_number, frame));
                heap.insert(FrameId(frame), use_number as u32);
            }
            let oldest = model.iter().min().map(|&(_, frame)| FrameId(frame));
            assert_eq!((heap.first(), heap.entries.len()), (oldest, model.len()));
        }
    }
}
