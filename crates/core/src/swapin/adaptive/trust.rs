//! Distance at which prefetched pages stay in memory until their use.
//!
//! How it works: a page that left memory unused shortens the distance by a sixty-fourth. A used
//! page lengthens it by half of that, because a wasted page costs the saving of a used one plus its
//! transfer. The distance converges to the point where reading further would lose as much as it
//! gains. This holds for any number of programs, any speed and any size of memory.

use crate::observed::{DECAY_WINDOW, MIN_SAMPLES};

/// Units of the distance per page: small changes of a short distance count too.
const UNITS_PER_PAGE: u64 = 1024;

/// Distance learned from the outcome of prefetched pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefetchDistance {
    /// The distance in units of 1/[`UNITS_PER_PAGE`] page; initially unlimited.
    distance_units: u64,
    /// Total of wasted pages at the last call.
    wasted_pages: u64,
}

impl Default for PrefetchDistance {
    /// An unlimited distance: no page was wasted yet.
    fn default() -> PrefetchDistance {
        PrefetchDistance { distance_units: u64::MAX, wasted_pages: 0 }
    }
}

impl PrefetchDistance {
    /// Updates the distance at a fault. `is_used`: the fault used a prefetched page; otherwise its
    /// page was absent. `wasted_pages` is the total since the start. The distance does not fall
    /// below 4 pages (`MIN_SAMPLES`), so that a changed pattern is noticed. Returns the distance in
    /// pages, at most `pages_max`, which is the limit by all other rules.
    pub(super) fn update(&mut self, is_used: bool, wasted_pages: u64, pages_max: u64) -> u64 {
        let newly_wasted = wasted_pages - core::mem::replace(&mut self.wasted_pages, wasted_pages);
        // The unlimited initial distance starts to shrink from the other limits.
        if newly_wasted > 0 {
            self.distance_units = self.distance_units.min(pages_max * UNITS_PER_PAGE);
        }
        // Each wasted page takes a 64th (`DECAY_WINDOW`) of the distance. 512 steps, the maximum,
        // reduce it to less than a 3,000th: more would have no visible effect.
        for _ in 0..newly_wasted.min(DECAY_WINDOW * 8) {
            self.distance_units -= self.distance_units / DECAY_WINDOW;
        }
        if is_used {
            let gained_units = self.distance_units / (2 * DECAY_WINDOW);
            self.distance_units = self.distance_units.saturating_add(gained_units);
        }
        self.distance_units = self.distance_units.max(MIN_SAMPLES * UNITS_PER_PAGE);
        pages_max.min(self.distance_units / UNITS_PER_PAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Value of `is_used` for a used prefetched page.
    const IS_USED: bool = true;
    /// Value of `is_used` for an absent page.
    const IS_ABSENT: bool = false;

    /// 63/64 to the power of 44 is a half. Two used pages restore the reduction by one wasted page:
    /// 88 used pages double the distance again.
    #[test]
    fn waste_halves_the_distance_and_use_restores_it() {
        let mut distance = PrefetchDistance::default();
        assert_eq!(distance.update(IS_USED, 0, 1000), 1000);
        let halved = distance.update(IS_ABSENT, 44, 1000);
        assert!((495..=505).contains(&halved), "{halved}");
        let mut restored = 0;
        (0..88).for_each(|_| restored = distance.update(IS_USED, 44, 1000));
        assert!((980..=1000).contains(&restored), "{restored}");
        assert_eq!(distance.update(IS_ABSENT, 10_000, 1000), MIN_SAMPLES, "never none");
    }
}
