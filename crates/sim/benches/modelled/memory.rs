//! A memory load with 1,000 MiB of touches in 900 MiB of memory on a solid-state drive, as in table
//! B, under each swap-in policy.

use std::fmt::{self, Display};

use divan::Bencher;
use divan::counter::ItemsCount;
use readpath_core::policy::Spec;
use readpath_sim::load::{LoadSetup, MemoryHost, MemoryLoad, TouchPattern, simulate_load};
use readpath_sim::run::{ProgressAnswer, RunObserver};

use crate::sized;

/// A swap-in policy and an access pattern.
struct SwapinCase {
    policy: &'static str,
    pattern: TouchPattern,
}

impl Display for SwapinCase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pattern = if self.pattern == TouchPattern::Random { "random" } else { "in order" };
        write!(out, "{pattern}, {}", self.policy)
    }
}

fn cases() -> impl Iterator<Item = SwapinCase> {
    let policies = ["none", "cluster", "hits", "vma", "adaptive"];
    [TouchPattern::Random, TouchPattern::Sequential]
        .into_iter()
        .flat_map(move |pattern| policies.map(|policy| SwapinCase { policy, pattern }))
}

#[divan::bench(args = cases(), sample_count = 3)]
fn touches(bencher: Bencher, case: &SwapinCase) {
    let touches = sized(1_280_000);
    let load = MemoryLoad {
        swap_bytes: 1 << 30,
        pattern: case.pattern,
        touches,
        writes_percent: 100,
        ..MemoryLoad::new("speed", 1000 << 20, 900 << 20)
    };
    let setup = LoadSetup {
        swapin: Spec::plain(case.policy),
        scheduler: Spec::plain("cfq"),
        write_pages_max: Some(32),
        host: MemoryHost::OF_2012,
        ..LoadSetup::new(Spec::plain("ssd"))
    };
    bencher.counter(ItemsCount::new(touches)).bench_local(|| {
        let row =
            simulate_load(&load, &setup, RunObserver::progress(&mut |_| ProgressAnswer::Continue))
                .expect("it can be run");
        assert_eq!(row.touches, Some(touches));
    });
}
