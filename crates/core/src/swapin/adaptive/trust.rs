//! How far ahead pages may be read that memory keeps until they are used.
//!
//! The law in words: a page that left memory unused shortens the distance by a
//! sixty-fourth, one that was used lengthens it by half of that. For one that left
//! has cost what the use of another saves, and its bytes. So it settles where
//! reading further would lose as much as it gains, whatever the number of
//! programs, their speeds and the memory are.

use crate::observed::{DECAY_WINDOW, MIN_SAMPLES};

/// The distance is counted in these parts of a page.
const PARTS: u64 = 1024;

/// What became of pages that were read ahead.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefetchDistance {
    /// The distance; at first as far as all else allows.
    parts: u64,
    wasted_pages: u64,
}

impl Default for PrefetchDistance {
    fn default() -> PrefetchDistance {
        PrefetchDistance { parts: u64::MAX, wasted_pages: 0 }
    }
}

impl PrefetchDistance {
    /// A page that was read ahead has been used, or a fault has found none; so many
    /// were wasted since the start. Gives how far ahead pages may be read, if it
    /// were `pages_max` for all else.
    pub(super) fn learn(&mut self, is_used: bool, wasted_pages: u64, pages_max: u64) -> u64 {
        let wasted = wasted_pages - core::mem::replace(&mut self.wasted_pages, wasted_pages);
        if wasted > 0 {
            self.parts = self.parts.min(pages_max * PARTS);
        }
        for _ in 0..wasted.min(DECAY_WINDOW * 8) {
            self.parts -= self.parts / DECAY_WINDOW;
        }
        if is_used {
            self.parts = self.parts.saturating_add(self.parts / (2 * DECAY_WINDOW));
        }
        self.parts = self.parts.max(MIN_SAMPLES * PARTS);
        pages_max.min(self.parts / PARTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 63/64 to the power of 44 is a half; two used pages give back what one took.
    #[test]
    fn waste_halves_the_distance_and_use_restores_it() {
        let mut trust = PrefetchDistance::default();
        assert_eq!(trust.learn(true, 0, 1000), 1000);
        let halved = trust.learn(false, 44, 1000);
        assert!((495..=505).contains(&halved), "{halved}");
        let mut restored = 0;
        (0..88).for_each(|_| restored = trust.learn(true, 44, 1000));
        assert!((980..=1000).contains(&restored), "{restored}");
        assert_eq!(trust.learn(false, 10_000, 1000), MIN_SAMPLES, "never none");
    }
}
