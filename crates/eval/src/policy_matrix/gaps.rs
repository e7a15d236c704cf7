//! Ascending pages of which a random part is read: bitmap heap scans, sparse indices, header scans.
//!
//! Two equal gaps in a row are coincidence there, not a stride. The readahead policy `adaptive` may
//! lose at most a twentieth of the rate of the better of `none` and `ondemand`. It must still
//! detect true strides.

use readpath_core::policy::Spec;

use readpath_models::random::SeededRng;
use readpath_sim::job::JobEngine;
use readpath_sim::run::{ProgressAnswer, RunObserver};
use readpath_sim::simulate::{SimulationSetup, simulate_workload};
use readpath_sim::workload::{FileId, GivenRead, ReadList, Workload, WorkloadFile};

/// Size of a database page in bytes.
const PAGE_BYTES: u64 = 8 << 10;

/// Returns the rate in MiB/s of a process that reads `bytes` bytes at each of these offsets.
fn mib_per_s(device: &str, readahead: &str, bytes: u64, offsets: &[u64]) -> f64 {
    let read = |&offset: &u64| GivenRead { file: FileId(0), offset, bytes };
    let list = ReadList {
        engine: JobEngine::Psync,
        is_direct: false,
        depth: 1,
        reads: offsets.iter().map(read).collect(),
        think_times: Vec::new(),
    };
    // Readahead after the last read has pages to read, as within the file.
    let file_bytes = offsets.iter().max().unwrap() + (16 << 20);
    let workload = Workload::from_lists(
        vec![WorkloadFile { name: "file".to_owned(), bytes: file_bytes }],
        vec![list],
    );
    let setup = SimulationSetup {
        readahead: Spec::parse(readahead).unwrap(),
        ..SimulationSetup::new(Spec::parse(device).unwrap())
    };
    let no_job = None;
    let row = simulate_workload(
        no_job,
        workload,
        &setup,
        RunObserver::progress(&mut |_| ProgressAnswer::Continue),
    );
    row.unwrap().mib_per_s.unwrap()
}

/// Returns the offsets of ascending pages, each of which is read with a probability in percent.
fn random_pages(pages: u64, percent: u64, seed: u64) -> Vec<u64> {
    let mut rng = SeededRng::new(seed);
    (0..pages).filter(|_| rng.below(100) < percent).map(|page| page * PAGE_BYTES).collect()
}

/// Returns the offsets of ascending pages whose gaps have a lognormal distribution. `median` is in
/// pages, and `sigma` is the standard deviation of the gap's logarithm.
fn pages_with_lognormal_gaps(reads: u64, median: f64, sigma: f64, seed: u64) -> Vec<u64> {
    let mut rng = SeededRng::new(seed);
    let mut uniform = || (rng.below(1 << 30) as f64 + 0.5) / f64::from(1 << 30);
    let mut page = 0;
    let gaps = (0..reads).map(|_| {
        // A normally distributed number by the Box-Muller transform.
        let normal = (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
        page += 1 + (median * (sigma * normal).exp()) as u64;
        page * PAGE_BYTES
    });
    gaps.collect()
}

/// Returns the rate of `adaptive` relative to the best of two classic policies, and all three
/// rates in MiB/s.
fn ratio_to_best(device: &str, offsets: &[u64]) -> (f64, [f64; 3]) {
    let rates = ["adaptive", "none", "ondemand"]
        .map(|policy| mib_per_s(device, policy, PAGE_BYTES, offsets));
    (rates[0] / rates[1].max(rates[2]), rates)
}

/// A random fifth of 40,000 pages on a disk, with four seeds.
#[test]
fn a_random_fifth_of_rising_pages_is_no_stride() {
    for seed in 1..=4 {
        let (ratio, rates) = ratio_to_best("hdd,drive=sata", &random_pages(40_000, 20, seed));
        assert!(ratio >= 0.95, "seed {seed}: {ratio:.3} of the better, {rates:.1?}");
    }
}

/// Other shares of the pages, and gaps with other distributions.
#[test]
fn other_random_gaps_are_no_strides() {
    let device = "hdd,drive=sata";
    for percent in [1, 2, 5, 10, 15, 60, 70, 80, 90] {
        for seed in [1, 2] {
            let offsets = random_pages(4_000 * 100 / percent, percent, seed);
            let (ratio, rates) = ratio_to_best(device, &offsets);
            assert!(ratio >= 0.95, "{percent} %, seed {seed}: {ratio:.3}, {rates:.1?}");
        }
    }
    for (median, sigma) in [(4.0, 1.0), (8.0, 1.0), (30.0, 1.5), (100.0, 2.0)] {
        let (reads, seed) = (4_000, 3);
        let offsets = pages_with_lognormal_gaps(reads, median, sigma, seed);
        let (ratio, rates) = ratio_to_best(device, &offsets);
        assert!(ratio >= 0.95, "lognormal {median} {sigma}: {ratio:.3}, {rates:.1?}");
    }
}

/// If a quarter to a half of the pages is read, runs of neighbours are common. One guess in three
/// is right, and guesses cost more than they save on a disk with a cache of its own. Detecting a
/// stride there left a seventh of the rate.
#[test]
fn denser_random_pages_reach_65_percent_of_the_best_rate() {
    for percent in [25, 30, 40, 50] {
        let seed = 1;
        let offsets = random_pages(400_000 / percent, percent, seed);
        let (ratio, rates) = ratio_to_best("hdd,drive=sata", &offsets);
        assert!(ratio >= 0.65, "{percent} %: {ratio:.3}, {rates:.1?}");
    }
}

/// Strides larger than every gap that a disk reads through. If blocks are requested one by one,
/// prefetched ones are requested before their reader waits.
#[test]
fn true_strides_are_still_prefetched() {
    for device in ["ssd", "nvme", "nfs"] {
        for (bytes, distance) in [(PAGE_BYTES, 1 << 20), (64 << 10, 256 << 10), (10_000, 300_000)] {
            let offsets: Vec<u64> = (0..1_000).map(|nth| nth * distance).collect();
            let rates =
                ["adaptive", "none"].map(|policy| mib_per_s(device, policy, bytes, &offsets));
            assert!(rates[0] >= 1.05 * rates[1], "{device} {bytes} {distance}: {rates:.1?}");
        }
    }
}
