//! Memory layout of a raw transfer, by file offset.
//!
//! Direct I/O moves whole blocks. The first and the last block of a transfer may be requested in
//! part. These two *edges* go through a buffer of one block each. All blocks between them are the
//! caller's own memory.

use std::ops::Range;

/// Memory that holds a piece of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceMemory {
    /// Buffer of the first block.
    Head,
    /// The caller's memory.
    Caller,
    /// Buffer of the last block.
    Tail,
}

/// A requested byte range, split into blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockLayout {
    /// Offset of the first byte.
    start: u64,
    /// End of the range, exclusive.
    end: u64,
    /// Size of a block, the unit of direct I/O; 1 without it.
    block_bytes: u64,
}

impl BlockLayout {
    /// Creates the layout of the byte range `requested`, at least one byte, in blocks of
    /// `block_bytes` bytes.
    pub(super) fn new(requested: &Range<u64>, block_bytes: u64) -> BlockLayout {
        BlockLayout { start: requested.start, end: requested.end, block_bytes }
    }

    /// Offset of the first block if it is requested in part.
    pub(super) fn head_offset(&self) -> Option<u64> {
        let block = self.start - self.start % self.block_bytes;
        let is_whole = block == self.start && self.end - block >= self.block_bytes;
        (!is_whole).then_some(block)
    }

    /// Offset of the last block if it is requested in part and is not the head.
    pub(super) fn tail_offset(&self) -> Option<u64> {
        let block = self.end - self.end % self.block_bytes;
        (block != self.end && self.head_offset() != Some(block)).then_some(block)
    }

    /// Range of the blocks that are requested completely; may be empty.
    pub(super) fn whole_blocks(&self) -> Range<u64> {
        let start = self.head_offset().map_or(self.start, |head| head + self.block_bytes);
        start..(self.end - self.end % self.block_bytes).max(start)
    }

    /// Ranges of the blocks that are requested in part; empty without one.
    pub(super) fn partial_blocks(&self) -> [Range<u64>; 2] {
        [self.head_offset(), self.tail_offset()]
            .map(|start| start.map_or(0..0, |start| start..start + self.block_bytes))
    }

    /// Returns the requested bytes within `range`.
    pub(super) fn requested_in(&self, range: &Range<u64>) -> Range<u64> {
        intersection(&(self.start..self.end), range)
    }

    /// Returns the pieces of `range`, which consists of whole blocks, in order and with their
    /// memory.
    pub(super) fn pieces(
        &self,
        range: Range<u64>,
    ) -> impl Iterator<Item = (PieceMemory, Range<u64>)> {
        // An edge that does not exist is an empty range, which the filter removes.
        let edge = |block: Option<u64>| {
            block.map_or(range.start..range.start, |block| block..block + self.block_bytes)
        };
        [
            (PieceMemory::Head, edge(self.head_offset())),
            (PieceMemory::Caller, self.whole_blocks()),
            (PieceMemory::Tail, edge(self.tail_offset())),
        ]
        .map(|(memory, piece)| (memory, intersection(&piece, &range)))
        .into_iter()
        .filter(|(_, piece)| !piece.is_empty())
    }
}

/// Intersection of two ranges; empty if there is none.
pub(super) fn intersection(range: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    let start = range.start.max(other.start);
    start..range.end.min(other.end).max(start)
}

#[cfg(test)]
mod tests {
    use super::PieceMemory::{Caller, Head, Tail};
    use super::*;

    /// Pieces of `range` for a block size of 10 bytes.
    fn pieces(requested: Range<u64>, range: Range<u64>) -> Vec<(PieceMemory, Range<u64>)> {
        BlockLayout::new(&requested, 10).pieces(range).collect()
    }

    #[test]
    fn partially_requested_blocks_are_the_only_edges() {
        assert_eq!(pieces(20..50, 20..50), [(Caller, 20..50)]);
        assert_eq!(pieces(20..30, 20..30), [(Caller, 20..30)]);
        assert_eq!(pieces(21..50, 20..50), [(Head, 20..30), (Caller, 30..50)]);
        assert_eq!(pieces(20..49, 20..50), [(Caller, 20..40), (Tail, 40..50)]);
        assert_eq!(pieces(29..41, 20..50), [(Head, 20..30), (Caller, 30..40), (Tail, 40..50)]);
        assert_eq!(pieces(29..31, 20..40), [(Head, 20..30), (Tail, 30..40)]);
        assert_eq!(pieces(23..27, 20..30), [(Head, 20..30)]);
        assert_eq!(pieces(20..27, 20..30), [(Head, 20..30)]);
        assert_eq!(pieces(23..30, 20..30), [(Head, 20..30)]);
    }

    #[test]
    fn partial_blocks_are_the_head_and_the_tail() {
        assert_eq!(BlockLayout::new(&(25..78), 10).partial_blocks(), [20..30, 70..80]);
        assert_eq!(BlockLayout::new(&(20..40), 10).partial_blocks(), [0..0, 0..0]);
    }

    /// Bytes 25 to 77 are requested, in chunks of two blocks and of one.
    #[test]
    fn chunk_pieces_are_the_parts_within_the_chunk() {
        let requested = 25..78;
        assert_eq!(pieces(requested.clone(), 20..40), [(Head, 20..30), (Caller, 30..40)]);
        assert_eq!(pieces(requested.clone(), 40..60), [(Caller, 40..60)]);
        assert_eq!(pieces(requested.clone(), 60..80), [(Caller, 60..70), (Tail, 70..80)]);
        assert_eq!(pieces(requested, 70..80), [(Tail, 70..80)]);
    }

    #[test]
    fn block_size_of_one_byte_uses_only_the_callers_memory() {
        let layout = BlockLayout::new(&(7..9), 1);
        assert_eq!(layout.pieces(7..9).collect::<Vec<_>>(), [(Caller, 7..9)]);
        assert_eq!((layout.head_offset(), layout.tail_offset()), (None, None));
    }
}
