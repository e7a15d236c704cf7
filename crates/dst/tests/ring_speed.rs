//! The benchmark of the ring runs at a small size.

extern crate readpath_dst as readpath;

#[path = "../benches/ring_speed.rs"]
mod ring_speed;
#[path = "../../io/tests/support/mod.rs"]
mod support;

use readpath::BackendKind;
use ring_speed::{Layout, Load, fio, ours, peer};
use support::*;

#[test]
fn ring_benchmark_measures_library_and_baselines() {
    let file = TempFile::new(1 << 20);
    let load = Load { block_bytes: 16_384, depth: 4, reads: 40 };
    for backend in [BackendKind::Aio, BackendKind::Ring, BackendKind::Threads] {
        for layout in [Layout::Contiguous, Layout::RandomAccess] {
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
