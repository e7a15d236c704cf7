//! The sequence of pages that a process touches.
//!
//! The sequence is a function of the load, the number of the process and the seed. A load therefore
//! touches the same pages in the simulation, in the engine and on the kernel:
//!
//! - *sequential*: pages 0, 1, 2, …, repeatedly. Processes on one shared mapping start evenly
//!   spread over it. In step they would cause a single fault per page;
//! - *random*: uniformly random pages;
//! - *zipf*: random pages with a skewed distribution;
//! - *swept*: alternately a random page of the first eighth and the next of the other pages,
//!   repeatedly.
//!
//! The choice of reading or writing is random too, unless all or no touches write. It has a
//! separate generator, so a load that writes touches the same pages as one that reads.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use readpath_core::request::ProcessId;

use super::{MemoryLoad, MemorySharing, TouchPattern};
use crate::job::Distribution;
use crate::workload::{SkewedPositions, below, seed_of};

/// One touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Page number from the start of the mapping.
    pub page: u64,
    /// True for a write, false for a read.
    pub is_write: bool,
}

/// The touches of one process, in order.
#[derive(Clone, Debug)]
pub struct Touches {
    /// Access pattern, with its state.
    order: TouchSequence,
    /// Number of pages in the mapping.
    pages: u64,
    /// Number of touches that follow.
    touches_left: u64,
    /// Choice of the touches that write.
    writes: WriteSelector,
}

/// State of the access pattern.
#[derive(Clone, Debug)]
enum TouchSequence {
    /// Consecutive pages, from `next_page` on.
    Sequential { next_page: u64 },
    /// Uniformly random pages.
    Random { page_rng: Xoshiro256PlusPlus },
    /// Pages with a skewed distribution.
    Zipf { skew: SkewedPositions },
    /// Random hot pages, and `next_page` of the others. `is_sweep` is true if the last touch
    /// was one of the others, unless all pages are hot.
    Swept { page_rng: Xoshiro256PlusPlus, next_page: u64, is_sweep: bool },
}

/// In the pattern *swept*, one in this number of pages is hot. The hot pages are the first ones.
const PAGES_PER_HOT_PAGE: u64 = 8;
/// Distribution of the pattern *zipf*. Without a center the frequent pages are scattered.
const ZIPF_DISTRIBUTION: Distribution = Distribution::Zipf { theta: 0.9, center: None };

/// Rule that selects the touches that write.
#[derive(Clone, Debug)]
enum WriteSelector {
    /// No touch writes, and nothing is drawn.
    Never,
    /// All touches write, and nothing is drawn.
    Always,
    /// A touch writes if a number drawn from 0 to 99 is below `percent`.
    Some { percent: u32, write_rng: Xoshiro256PlusPlus },
}

impl Touches {
    /// Creates the touches of process number `process`, from 0. On shared memory, sequential
    /// touches of the processes start at equal distances.
    pub(super) fn new(load: &MemoryLoad, process: u32, run_seed: u64) -> Touches {
        let seed = seed_of(run_seed, load.seed, ProcessId(process));
        let pages = load.mapping_pages();
        let first_page = match load.share {
            MemorySharing::Private => 0,
            MemorySharing::Shared => pages * u64::from(process) / u64::from(load.processes),
        };
        let order = match load.pattern {
            TouchPattern::Sequential => TouchSequence::Sequential { next_page: first_page },
            TouchPattern::Random => {
                TouchSequence::Random { page_rng: Xoshiro256PlusPlus::seed_from_u64(seed) }
            }
            TouchPattern::Zipf => TouchSequence::Zipf {
                skew: SkewedPositions::new(&ZIPF_DISTRIBUTION, pages, seed)
                    .expect("Zipf's law is skewed"),
            },
            TouchPattern::Swept => TouchSequence::Swept {
                page_rng: Xoshiro256PlusPlus::seed_from_u64(seed),
                next_page: hot_pages(pages),
                is_sweep: false,
            },
        };
        let writes = match load.writes_percent {
            0 => WriteSelector::Never,
            100.. => WriteSelector::Always,
            percent => {
                // Another seed than the pages have, so that writes do not depend on the page.
                let write_rng = Xoshiro256PlusPlus::seed_from_u64(!seed);
                WriteSelector::Some { percent, write_rng }
            }
        };
        Touches { order, pages, touches_left: load.touches, writes }
    }
}

impl Iterator for Touches {
    type Item = Touch;

    /// Returns the next touch: its page by the sequence, and a write by its share. `None` at the
    /// end.
    fn next(&mut self) -> Option<Touch> {
        self.touches_left = self.touches_left.checked_sub(1)?;
        let page = match &mut self.order {
            TouchSequence::Sequential { next_page } => {
                let page = *next_page;
                *next_page = if page + 1 == self.pages { 0 } else { page + 1 };
                page
            }
            TouchSequence::Random { page_rng } => below(page_rng, self.pages),
            // A drawn position is below the count; the limit only guards the mapping.
            TouchSequence::Zipf { skew } => skew.draw().min(self.pages - 1),
            TouchSequence::Swept { page_rng, next_page, is_sweep } => {
                *is_sweep = !*is_sweep;
                let hot_count = hot_pages(self.pages);
                if *is_sweep && hot_count < self.pages {
                    let page = *next_page;
                    *next_page = if page + 1 == self.pages { hot_count } else { page + 1 };
                    page
                } else {
                    below(page_rng, hot_count)
                }
            }
        };
        let is_write = match &mut self.writes {
            WriteSelector::Never => false,
            WriteSelector::Always => true,
            WriteSelector::Some { percent, write_rng } => {
                below(write_rng, 100) < u64::from(*percent)
            }
        };
        Some(Touch { page, is_write })
    }

    /// Returns the exact number of touches that follow.
    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = usize::try_from(self.touches_left).ok();
        (count.unwrap_or(usize::MAX), count)
    }
}

/// Returns the number of hot pages of a mapping in the pattern *swept*, at least one.
fn hot_pages(mapping_pages: u64) -> u64 {
    mapping_pages.div_ceil(PAGES_PER_HOT_PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two of 16 pages (an eighth) are hot. The sweep over the others starts at page 2 and returns
    /// to it after page 15.
    #[test]
    fn sweep_alternates_with_touches_of_the_hot_pages() {
        let mut load = MemoryLoad::new("swept", 16 * 4096, MIB);
        (load.pattern, load.touches) = (TouchPattern::Swept, 40);
        let touched = pages(&load, 0);
        let swept: Vec<u64> = touched.iter().copied().step_by(2).collect();
        let expected: Vec<u64> = (2..16).cycle().take(20).collect();
        assert_eq!(swept, expected);
        assert!(touched.iter().skip(1).step_by(2).all(|&page| page < 2));
    }

    const MIB: u64 = 1 << 20;

    /// Returns the pages that a process touches, in order, with the run seed 1.
    fn pages(load: &MemoryLoad, process: u32) -> Vec<u64> {
        load.touches_of(process, 1).map(|touch| touch.page).collect()
    }

    /// Mappings of four pages with six touches. Two processes on one shared mapping start half of
    /// it apart, at the pages 0 and 2.
    #[test]
    fn sweeps_wrap_around_and_sharing_processes_start_apart() {
        let mut load = MemoryLoad::new("sweep", 4 * 4096, MIB);
        load.touches = 6;
        assert_eq!(pages(&load, 0), [0, 1, 2, 3, 0, 1]);
        assert_eq!(pages(&load, 1), [0, 1, 2, 3, 0, 1]);
        load.share = MemorySharing::Shared;
        load.processes = 2;
        assert_eq!(pages(&load, 0), [0, 1, 2, 3, 0, 1]);
        assert_eq!(pages(&load, 1), [2, 3, 0, 1, 2, 3]);
    }

    /// In 1,000 pages, 10,000 draws touch 1000 × (1 − 0.999^10000) = 999.95 on average.
    #[test]
    fn random_touches_reach_every_page_and_depend_on_each_seed() {
        let mut load = MemoryLoad::new("random", 1_000 * 4096, MIB);
        load.pattern = TouchPattern::Random;
        load.touches = 10_000;
        let drawn = pages(&load, 0);
        let mut distinct = drawn.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!((995..=1_000).contains(&distinct.len()), "{}", distinct.len());
        assert_eq!(distinct.last().map(|page| *page < 1_000), Some(true));
        assert_eq!(drawn, pages(&load, 0), "the same seed, the same pages");
        assert_ne!(drawn, pages(&load, 1), "another process");
        let other_run: Vec<u64> = load.touches_of(0, 2).map(|touch| touch.page).collect();
        assert_ne!(drawn, other_run, "another run");
        let other_load = MemoryLoad { seed: 1, ..load.clone() };
        assert_ne!(drawn, pages(&other_load, 0), "another load");
    }

    /// 30 % of 10,000 touches are 3,000, with a standard deviation of 46. The bounds are four
    /// deviations away.
    #[test]
    fn writes_percent_sets_the_share_of_writes_and_not_the_pages() {
        let mut load = MemoryLoad::new("writes", 1_000 * 4096, MIB);
        load.pattern = TouchPattern::Random;
        load.touches = 10_000;
        let reads = pages(&load, 0);
        for (percent, expected) in [(0, 0..=0), (30, 2_800..=3_200), (100, 10_000..=10_000)] {
            load.writes_percent = percent;
            let writes = load.touches_of(0, 1).filter(|touch| touch.is_write).count();
            assert!(expected.contains(&writes), "{percent} %: {writes}");
            assert_eq!(pages(&load, 0), reads);
        }
    }
}
