//! The pages that a process touches, one after the other.
//!
//! The order follows from the load, the process's number and the run's seed, so that the same
//! load touches the same pages in the modelled world, in ours and under the kernel:
//!
//! - *sequential*: pages 0, 1, 2, …, and 0 again after the last. Processes on one shared mapping
//!   start spread over it evenly, since in step they would fault each page but once;
//! - *random*: each touch draws a page, all alike;
//! - whether a touch writes is drawn too, unless all or none do. It is drawn from a generator
//!   of its own: a load that writes touches the same pages as one that reads.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use readpath_core::request::ProcessId;

use super::{Load, Pattern, Share};
use crate::workload::{below, seed_of};

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
}

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

#[cfg(test)]
mod tests {
    use super::*;

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
