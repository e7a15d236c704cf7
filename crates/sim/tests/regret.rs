//! The regret matrix runs, repeats, and holds what `adaptive` promises of what it reads.

use readpath_sim::regret::{Cell, Laws, Run, Size, cells};

const WHOLE: Size = Size { seed: 1, seeds: 1, part: 1 };

fn cell(name: &str) -> Cell {
    let parts: Vec<String> = name.split('/').map(|part| format!("/{part}/")).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let found = cells(&parts);
    assert_eq!(found.len(), 1, "{name}");
    found[0]
}

fn adaptive(name: &str) -> Run {
    cell(name).run(&Laws::default(), WHOLE).unwrap()
}

#[test]
fn a_cell_repeats_from_its_seed_and_every_rival_is_in_it() {
    let smoke = Size { seed: 7, seeds: 1, part: 64 };
    let judge = |name: &str| {
        let rivals = cell(name).rivals(smoke).unwrap();
        cell(name).judge(&Laws::default(), rivals, smoke).unwrap()
    };
    let one = judge("hdd-1/mixed/4");
    assert_eq!(one, judge("hdd-1/mixed/4"));
    assert_eq!(one.rivals.len(), 12, "four readahead laws under three schedulers");
    assert!(one.rivals.iter().all(|rival| rival.mib_per_s <= one.rivals[0].mib_per_s));
    let direct = judge("ssd/direct-seq-64k/4");
    assert_eq!(direct.rivals.len(), 3, "past the cache the schedulers alone");
}

#[test]
fn every_workload_runs_on_every_device() {
    for cell in cells(&["/4/"]) {
        let run = cell.run(&Laws::default(), Size { seed: 1, seeds: 1, part: 64 });
        assert!(run.unwrap().mib_per_s > 0.0, "{}", cell.name());
    }
}

#[test]
fn pieces_of_a_mapping_are_learned_and_read_in_one() {
    let slices = adaptive("ssd/mmap-slices/1");
    assert!(slices.amplification.unwrap() <= 1.1, "{slices:?}");
    assert!(slices.device_request_kib_mean.unwrap() >= 56.0, "of pieces of 64 KiB: {slices:?}");
}

#[test]
fn backward_and_interleaved_readers_get_large_requests_in_time() {
    for name in ["hdd-1/backward-4k/1", "ssd/backward-64k/1", "hdd-1/one-handle-8/1"] {
        let run = adaptive(name);
        assert!(run.device_request_kib_mean.unwrap() >= 128.0, "{name}: {run:?}");
        assert!(run.coverage.unwrap() >= 0.9, "{name}: {run:?}");
    }
}
