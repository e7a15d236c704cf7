//! Touches of 1,000 MiB in 900 MiB of memory on a solid-state drive, as in table B, under each swap-in law.

use std::fmt::{self, Display};

use divan::Bencher;
use divan::counter::ItemsCount;
use readpath_core::law::Spec;
use readpath_sim::load::{Load, LoadSetup, MemoryHost, Pattern, simulate_load};
use readpath_sim::run::{Go, Watch};

use crate::sized;

struct Case {
    law: &'static str,
    pattern: Pattern,
}

impl Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pattern = if self.pattern == Pattern::Random { "random" } else { "in order" };
        write!(out, "{pattern}, {}", self.law)
    }
}

fn cases() -> impl Iterator<Item = Case> {
    let laws = ["none", "cluster", "hits", "vma", "adaptive"];
    [Pattern::Random, Pattern::Sequential]
        .into_iter()
        .flat_map(move |pattern| laws.map(|law| Case { law, pattern }))
}

#[divan::bench(args = cases(), sample_count = 3)]
fn touches(bencher: Bencher, case: &Case) {
    let touches = sized(1_280_000);
    let load = Load {
        swap_bytes: 1 << 30,
        pattern: case.pattern,
        touches,
        writes_percent: 100,
        ..Load::new("speed", 1000 << 20, 900 << 20)
    };
    let setup = LoadSetup {
        swapin: Spec::plain(case.law),
        scheduler: Spec::plain("cfq"),
        write_pages_max: Some(32),
        host: MemoryHost::OF_2012,
        ..LoadSetup::new(Spec::plain("ssd"))
    };
    bencher.counter(ItemsCount::new(touches)).bench_local(|| {
        let row =
            simulate_load(&load, &setup, Watch::progress(&mut |_| Go::On)).expect("it can be run");
        assert_eq!(row.touches, Some(touches));
    });
}
