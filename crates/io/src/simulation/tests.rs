//! Some hundred runs, the rules that a run keeps, and what runs have found.

use super::*;

/// Runs a seed twice as long as it takes a few milliseconds.
fn run(seed: u64) -> Report {
    let report = Scenario::of(seed, 60).run();
    if let Some(failure) = &report.failure {
        panic!("seed {seed}: {failure}");
    }
    report
}

#[test]
fn every_read_is_right_whoever_comes_in_between() {
    let reports: Vec<Report> = (0..300).map(run).collect();
    assert!(reports.iter().map(|report| report.steps).sum::<u64>() > 300_000);
}

#[test]
fn a_seed_is_a_run_bit_by_bit() {
    for seed in 0..20 {
        let scenario = Scenario::of(seed, 60);
        assert_eq!(scenario.run(), scenario.run(), "seed {seed}");
    }
    assert_ne!(Scenario::of(1, 60).run().hash, Scenario::of(2, 60).run().hash);
}
