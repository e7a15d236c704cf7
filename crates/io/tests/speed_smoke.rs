//! The benchmark runs, at a size that takes no time.

mod support;

#[path = "../examples/file_speed.rs"]
mod file_speed;
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

#[test]
fn the_benchmark_of_files_measures_every_row() {
    let file = TempFile::new(2 << 20);
    let size = file_speed::Size {
        cached_bytes: 1 << 20,
        cached_reads: 200,
        cold_reads: 64,
        stream_bytes: 2 << 20,
    };
    let mut rows = file_speed::cached(&file.path, size, 65_536, 1);
    if takes_direct(&file.path) {
        rows.extend(file_speed::random(&file.path, size, 16_384, 1));
        rows.extend(file_speed::stream(&file.path, size, 1));
    }
    for (row, cost) in rows {
        match cost {
            Some(cost) => assert!(cost.ns > 0.0 && cost.cpu_ns >= 0.0, "{row}: {cost:?}"),
            None => assert!(row.starts_with("fio"), "{row} is not measured"),
        }
    }
}
