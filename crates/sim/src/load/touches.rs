//! The pages that a process touches, one after the other.
//!
//! The order follows from the load, the process's number and the run's seed, so that the same
//! load touches the same pages in the modelled world, in ours and under the kernel:
//!
//! - *sequential*: pages 0, 1, 2, …, and 0 again after the last. Processes on one shared mapping
//!   start spread over it evenly, since in step they would fault each page but once;
//! - *random*: each touch draws a page, all alike;
//! - *zipf*: each touch draws a page, some far more often than others;
//! - *swept*: in turn a page is drawn of the first eighth, and the next of the others is touched, from
//!   the first of them on again after the last;
//! - whether a touch writes is drawn too, unless all or none do. It is drawn from a generator
//!   of its own: a load that writes touches the same pages as one that reads.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use readpath_core::request::ProcessId;

use super::{Load, Pattern, Share};
use crate::job::Distribution;
use crate::workload::{Skew, below, seed_of};

/// One touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The page, from the start of the mapping.
    pub page: u64,
    /// Whether it is written, rather than read.
    pub is_write: bool,
}

/// The touches of one process, in order.
#[derive(Clone, Debug)]
pub struct Touches {
    order: Order,
    pages: u64,
    left: u64,
    writes: Writes,
}

#[derive(Clone, Debug)]
enum Order {
    Sequential { next_page: u64 },
    Random { places: Xoshiro256PlusPlus },
    Zipf { skew: Skew },
    Swept { places: Xoshiro256PlusPlus, next_page: u64, is_sweep: bool },
}

/// Of so many pages one is hot where the others are swept.
const HOT_SHARE: u64 = 8;
/// The exponent of Zipf's law.
const ZIPF: Distribution = Distribution::Zipf { theta: 0.9, center: None };

#[derive(Clone, Debug)]
enum Writes {
    Never,
    Always,
    Some { percent: u32, draws: Xoshiro256PlusPlus },
}

impl Touches {
    pub(super) fn new(load: &Load, process: u32, run_seed: u64) -> Touches {
        let seed = seed_of(run_seed, load.seed, ProcessId(process));
        let pages = load.mapping_pages();
        let first_page = match load.share {
            Share::Private => 0,
            Share::Shared => pages * u64::from(process) / u64::from(load.processes),
        };
        let order = match load.pattern {
            Pattern::Sequential => Order::Sequential { next_page: first_page },
            Pattern::Random => Order::Random { places: Xoshiro256PlusPlus::seed_from_u64(seed) },
            Pattern::Zipf => {
                Order::Zipf { skew: Skew::new(&ZIPF, pages, seed).expect("Zipf's law is skewed") }
            }
            Pattern::Swept => Order::Swept {
                places: Xoshiro256PlusPlus::seed_from_u64(seed),
                next_page: hot_pages(pages),
                is_sweep: false,
            },
        };
        let writes = match load.writes_percent {
            0 => Writes::Never,
            100.. => Writes::Always,
            percent => Writes::Some { percent, draws: Xoshiro256PlusPlus::seed_from_u64(!seed) },
        };
        Touches { order, pages, left: load.touches, writes }
    }
}

impl Iterator for Touches {
    type Item = Touch;

    fn next(&mut self) -> Option<Touch> {
        self.left = self.left.checked_sub(1)?;
        let page = match &mut self.order {
            Order::Sequential { next_page } => {
                let page = *next_page;
                *next_page = if page + 1 == self.pages { 0 } else { page + 1 };
                page
            }
            Order::Random { places } => below(places, self.pages),
            Order::Zipf { skew } => skew.next().min(self.pages - 1),
            Order::Swept { places, next_page, is_sweep } => {
                *is_sweep = !*is_sweep;
                let hot = hot_pages(self.pages);
                if *is_sweep && hot < self.pages {
                    let page = *next_page;
                    *next_page = if page + 1 == self.pages { hot } else { page + 1 };
                    page
                } else {
                    below(places, hot)
                }
            }
        };
        let is_write = match &mut self.writes {
            Writes::Never => false,
            Writes::Always => true,
            Writes::Some { percent, draws } => below(draws, 100) < u64::from(*percent),
        };
        Some(Touch { page, is_write })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.left).ok();
        (left.unwrap_or(usize::MAX), left)
    }
}

/// How many pages of a mapping of one at least are hot where the others are swept: one at least.
fn hot_pages(pages: u64) -> u64 {
    pages.div_ceil(HOT_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 16 pages 2 are hot; the sweep begins with the third and goes on with it after the last.
    #[test]
    fn a_sweep_goes_by_beside_the_hot_pages() {
        let mut load = Load::new("swept", 16 * 4096, MIB);
        (load.pattern, load.touches) = (Pattern::Swept, 40);
        let touched = pages(&load, 0);
        let swept: Vec<u64> = touched.iter().copied().step_by(2).collect();
        let expected: Vec<u64> = (2..16).cycle().take(20).collect();
        assert_eq!(swept, expected);
        assert!(touched.iter().skip(1).step_by(2).all(|&page| page < 2));
    }

    const MIB: u64 = 1 << 20;

    fn pages(load: &Load, process: u32) -> Vec<u64> {
        load.touches_of(process, 1).map(|touch| touch.page).collect()
    }

    #[test]
    fn sweeps_go_round_and_sharers_start_apart() {
        let mut load = Load::new("sweep", 4 * 4096, MIB);
        load.touches = 6;
        assert_eq!(pages(&load, 0), [0, 1, 2, 3, 0, 1]);
        assert_eq!(pages(&load, 1), [0, 1, 2, 3, 0, 1]);
        load.share = Share::Shared;
        load.processes = 2;
        assert_eq!(pages(&load, 0), [0, 1, 2, 3, 0, 1]);
        assert_eq!(pages(&load, 1), [2, 3, 0, 1, 2, 3]);
    }

    /// Of 1,000 pages, 10,000 draws touch 1000 × (1 − 0.999^10000) = 999.95 on average.
    #[test]
    fn random_touches_reach_every_page_and_depend_on_each_seed() {
        let mut load = Load::new("random", 1_000 * 4096, MIB);
        load.pattern = Pattern::Random;
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
        let other_load = Load { seed: 1, ..load.clone() };
        assert_ne!(drawn, pages(&other_load, 0), "another load");
    }

    #[test]
    fn so_many_of_a_hundred_write_and_the_pages_stay_the_same() {
        let mut load = Load::new("writes", 1_000 * 4096, MIB);
        load.pattern = Pattern::Random;
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
