//! Memory loads in the simulation: their costs and their swapping.

use readpath_core::policy::Spec;
use readpath_sim::load::{
    LoadRow, LoadSetup, MemoryLoad, MemorySharing, TouchPattern, check_load, simulate_load,
};
use readpath_sim::run::{ProgressAnswer, RunObserver};

const MIB: u64 = 1 << 20;

/// Runs a load with the kernel's reclaim.
fn run(load: &MemoryLoad, swapin: &str) -> LoadRow {
    run_under(load, swapin, Some("two-lists"))
}

fn run_under(load: &MemoryLoad, swapin: &str, eviction: Option<&str>) -> LoadRow {
    let mut setup =
        LoadSetup { swapin: Spec::parse(swapin).unwrap(), ..LoadSetup::new(Spec::plain("ssd")) };
    setup.eviction = eviction.map_or(setup.eviction, Spec::plain);
    simulate_load(load, &setup, RunObserver::progress(&mut |_| ProgressAnswer::Continue)).unwrap()
}

/// 2,000 touches of 100 ns, all resident since the fill.
#[test]
fn load_that_fits_in_memory_costs_no_io() {
    let load = MemoryLoad { touches: 2_000, ..MemoryLoad::new("fits", 2 * MIB, 4 * MIB) };
    let row = run(&load, "hits");
    assert_eq!(row.seconds, Some(0.000_2));
    assert_eq!((row.major_faults, row.minor_faults), (Some(0), Some(0)));
    assert_eq!((row.pages_in, row.pages_out, row.device_requests), (Some(0), Some(0), Some(0)));
}

/// A sixteenth of the sizes measured on Linux 6.18 (mapping 563 MiB, limit 512 MiB, 720 thousand
/// read touches). The kernel read in 720 thousand pages in sweeps. In random order it read in 67.1
/// (private) and 68.7 thousand (shared), one by one.
#[test]
fn pages_read_in_match_the_running_kernel() {
    let sweeps =
        MemoryLoad { touches: 45_000, ..MemoryLoad::new("sweeps", 9_008 * 4096, 32 * MIB) };
    for policy in ["none", "cluster", "hits", "vma"] {
        let pages_in = run(&sweeps, policy).pages_in.unwrap() as f64;
        assert!((0.98..1.02).contains(&(pages_in / 45_000.0)), "{policy}: {pages_in}");
    }
    for (share, measured) in [(MemorySharing::Private, 67_100.0), (MemorySharing::Shared, 68_700.0)]
    {
        let random = MemoryLoad { pattern: TouchPattern::Random, share, ..sweeps.clone() };
        for policy in ["none", "hits"] {
            let pages_in = run(&random, policy).pages_in.unwrap() as f64 * 16.0;
            let ratio = pages_in / measured;
            assert!((0.9..1.1).contains(&ratio), "{policy}: {pages_in} for {measured}");
        }
    }
}

/// Pages that are only read are evicted without a write, because their slots are still valid.
#[test]
fn read_only_load_writes_nothing_after_its_fill() {
    let reads = MemoryLoad { touches: 20_000, ..MemoryLoad::new("reads", 16 * MIB, 12 * MIB) };
    let writes = MemoryLoad { writes_percent: 100, ..reads.clone() };
    let (reads, writes) = (run(&reads, "hits"), run(&writes, "hits"));
    // Pages not yet written at the end of the fill are written once: fewer than fit into memory.
    assert!(reads.pages_out.unwrap() <= 12 * MIB / 4096, "{:?}", reads.pages_out);
    assert!(writes.pages_out.unwrap() > 19_000, "{:?}", writes.pages_out);
}

/// In a loop of 4,096 pages with memory for 3,072, the oldest pages are always needed next: all of
/// 20,000 touches miss. A policy that keeps its pages misses 1,024 per round, a quarter.
#[test]
fn default_eviction_keeps_part_of_a_loop_larger_than_memory() {
    let sweeps = MemoryLoad { touches: 20_000, ..MemoryLoad::new("sweeps", 16 * MIB, 12 * MIB) };
    assert!(run(&sweeps, "none").pages_in.unwrap() >= 19_900);
    let pages_in = run_under(&sweeps, "none", None).pages_in.unwrap();
    assert!((5_000..8_000).contains(&pages_in), "{pages_in}");
}

#[test]
fn the_same_seed_decides_the_same_and_another_does_not() {
    let load = MemoryLoad {
        pattern: TouchPattern::Random,
        ..MemoryLoad::new("random", 16 * MIB, 12 * MIB)
    };
    assert_eq!(run(&load, "hits"), run(&load, "hits"));
    let other = MemoryLoad { seed: 1, ..load.clone() };
    assert_ne!(run(&load, "hits").decisions, run(&other, "hits").decisions);
}

#[test]
fn processes_share_memory_and_each_ends() {
    for share in [MemorySharing::Private, MemorySharing::Shared] {
        let load = MemoryLoad {
            processes: 3,
            share,
            pattern: TouchPattern::Random,
            writes_percent: 30,
            touches: 5_000,
            swap_bytes: 24 * MIB,
            ..MemoryLoad::new("three", 8 * MIB, 6 * MIB)
        };
        let row = run(&load, "vma");
        assert_eq!(row.touches, Some(15_000), "{share:?}");
        assert_eq!(row.note, None);
    }
}

#[test]
fn invalid_setups_are_refused_before_the_run() {
    let load = MemoryLoad::new("l", 16 * MIB, 12 * MIB);
    let error = |device: &str, swapin: &str| {
        let setup = LoadSetup {
            swapin: Spec::parse(swapin).unwrap(),
            ..LoadSetup::new(Spec::parse(device).unwrap())
        };
        check_load(&load, &setup).unwrap_err().to_string()
    };
    assert!(error("floppy", "hits").contains("there is no device `floppy`"));
    assert!(
        error("ssd", "lru").contains("there is no swap-in policy `lru`; there are: none, cluster")
    );
    assert!(error("ssd", "hits,page_cluster=99").contains("a whole number from 0 to 10"));
    assert!(error("ssd,size=8m", "hits").contains("the swap area would end at byte"));
}
