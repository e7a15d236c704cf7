//! A set of frames, one bit each.

use alloc::vec::Vec;

use super::FrameId;

/// Number of frames in one word.
const WORD_FRAMES: u32 = u64::BITS;

/// A subset of the frames of a cache.
#[derive(Debug)]
pub(super) struct FrameSet {
    /// The bitmap: the lowest bit of the first word stands for frame 0.
    words: Vec<u64>,
}

impl FrameSet {
    /// Creates an empty subset of `frames` frames.
    pub(super) fn new(frames: u32) -> FrameSet {
        FrameSet { words: alloc::vec![0; frames.div_ceil(WORD_FRAMES) as usize] }
    }

    /// Returns true if the frame is in the set.
    pub(super) fn contains(&self, id: FrameId) -> bool {
        self.words[FrameSet::word_index(id)] & FrameSet::bit_mask(id) != 0
    }

    /// Adds a frame; no effect if it is in the set.
    pub(super) fn insert(&mut self, id: FrameId) {
        self.words[FrameSet::word_index(id)] |= FrameSet::bit_mask(id);
    }

    /// Removes a frame. Returns true if it was in the set.
    pub(super) fn remove(&mut self, id: FrameId) -> bool {
        let (word, bit) = (&mut self.words[FrameSet::word_index(id)], FrameSet::bit_mask(id));
        let was_in = *word & bit != 0;
        *word &= !bit;
        was_in
    }

    /// Number of 64-bit words of the bitmap.
    pub(super) fn words(&self) -> u32 {
        self.words.len() as u32
    }

    /// The frames of one word: the first frame, and a bit for each frame in the set.
    pub(super) fn word_at(&self, word: u32) -> (FrameId, u64) {
        (FrameId(word * WORD_FRAMES), self.words[word as usize])
    }

    /// Index of the word with the frame's bit.
    fn word_index(id: FrameId) -> usize {
        (id.0 / WORD_FRAMES) as usize
    }

    /// Mask of the frame's bit in its word.
    fn bit_mask(id: FrameId) -> u64 {
        1 << (id.0 % WORD_FRAMES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 130 frames have three words: frames 0 to 63, 64 to 127, and 128 and 129.
    #[test]
    fn inserted_frames_are_found_by_word_until_removed() {
        let mut set = FrameSet::new(130);
        let ids = [0, 63, 64, 129].map(FrameId);
        ids.into_iter().for_each(|id| set.insert(id));
        assert!(ids.into_iter().all(|id| set.contains(id)) && !set.contains(FrameId(1)));
        let found: Vec<(u32, u64)> =
            (0..set.words()).map(|word| set.word_at(word)).map(|(id, bits)| (id.0, bits)).collect();
        assert_eq!(found, [(0, 1 | 1 << 63), (64, 1), (128, 2)]);
        assert!(set.remove(FrameId(63)) && !set.remove(FrameId(63)));
        assert_eq!(set.word_at(0), (FrameId(0), 1));
    }
}
