//! The benchmark runs, at a size that takes no time.

mod support;

#[path = "../examples/ring_speed.rs"]
mod ring_speed;

use ring_speed::{Layout, Load, fio, ours, peer};
use support::*;

#[test]
fn the_benchmark_measures_both_sides() {
    let file = TempFile::new(1 << 20);
    let load = Load { block_bytes: 16_384, depth: 4, reads: 40 };
    for backend in BACKENDS {
        for layout in [Layout::Contiguous, Layout::Scattered] {
            let speed = ours(&file.path, load, backend, layout);
            assert!(speed.mib_per_s > 0.0 && speed.cpu_us >= 0.0, "{speed:?}");
        }
    }
    if !takes_direct(&file.path) {
        return;
    }
    assert!(peer(&file.path, load).mib_per_s > 0.0);
    match fio(&file.path, load) {
        Some(speed) => assert!(speed.mib_per_s > 0.0, "{speed:?}"),
        None => eprintln!("skipped: fio is not there"),
    }
}
