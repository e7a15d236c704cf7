//! Some hundred runs, the rules of a run, and the failures found by earlier runs.

use super::world::{ScheduleRates, World};
use super::*;

/// Runs a scenario for a few milliseconds, and asserts that it does not fail.
fn run(scenario: Scenario) -> Report {
    let report = scenario.run();
    assert_eq!(report.failure, None, "seed {}", scenario.seed);
    report
}

#[test]
fn simulated_reads_are_right_for_any_thread_order() {
    let steps = |seed| run(Scenario::from_seed(seed, 60)).steps;
    assert!((0..300).map(steps).sum::<u64>() > 300_000);
}

/// Through the NFS client, with a server that refuses, delays, drops, cuts and lies.
#[test]
fn simulated_nfs_reads_are_right_with_a_faulty_server() {
    let steps = |seed| run(Scenario::from_seed_with_server(seed, 60)).steps;
    assert!((0..300).map(steps).sum::<u64>() > 100_000);
}

/// Mappings and regions: each touched byte is right, for any order of threads and any failures.
#[test]
fn simulated_memory_touches_are_right_with_faults() {
    let steps = |seed| run(Scenario::paged(seed, 40)).steps;
    assert!((0..120).map(steps).sum::<u64>() > 120_000);
}

/// Windows delegated to the kernel's own mapping show the file, as do the pages after their return.
/// Enough windows are delegated.
#[test]
fn simulated_touches_of_kernel_windows_are_right() {
    let pages = |seed| run(Scenario::with_delegation(seed, 40)).delegated_pages;
    let pages: Vec<(u64, u64)> = (0..100).map(pages).collect();
    let runs =
        pages.iter().filter(|(delegated, taken_back)| *delegated > 0 && *taken_back > 0).count();
    let delegated: u64 = pages.iter().map(|(delegated, _)| delegated).sum();
    assert!(
        runs >= 20 && delegated > 3_000,
        "{delegated} pages were delegated, and in {runs} runs taken back"
    );
}

#[test]
fn simulation_seed_reproduces_the_run_exactly() {
    for seed in 0..20 {
        let scenario = Scenario::from_seed(seed, 60);
        assert_eq!(scenario.run(), scenario.run(), "seed {seed}");
        let served = Scenario::from_seed_with_server(seed, 60);
        assert_eq!(served.run(), served.run(), "seed {seed}, of a server");
        let paged = Scenario::paged(seed, 40);
        assert_eq!(paged.run(), paged.run(), "seed {seed}, of memory");
        let delegated = Scenario::with_delegation(seed, 40);
        assert_eq!(delegated.run(), delegated.run(), "seed {seed}, of what is delegated");
    }
    assert_ne!(Scenario::from_seed(1, 60).run().hash, Scenario::from_seed(2, 60).run().hash);
}

#[test]
fn scenarios_of_earlier_failures_pass_under_other_schedules() {
    for (number, regression) in regressions().into_iter().enumerate() {
        for more in 0..30 {
            let scenario = Scenario { seed: regression.seed + more, ..regression.clone() };
            let failure = scenario.run().failure;
            assert!(failure.is_none(), "{number}, schedule {more}: {failure:?}\n{scenario}");
        }
    }
}

/// Test of the model: unexpected errors are found, and few actions reproduce them.
#[test]
fn simulation_detects_unexpected_errors_and_shrinks_the_scenario() {
    let seen = (0..50).find_map(|seed| {
        let mut scenario = Scenario::from_seed(seed, 60);
        // Unreadable pages that the model does not know.
        scenario.faults.error_one_in = 0;
        scenario.faults.bad_pages.clear();
        scenario.faults.unexpected_error_one_in = 3;
        scenario.run().failure.is_some().then_some(scenario)
    });
    let (shorter, report) = seen.expect("one of some seeds reads one of these pages").shrunk();
    let actions: usize = shorter.threads.iter().map(Vec::len).sum();
    assert!(report.failure.is_some() && actions <= 3, "{shorter}");
}

/// Failure of a task in a world without files.
fn failure_of(main: impl FnOnce() + 'static) -> String {
    let turns = ScheduleRates { switch_one_in: 4, freeze_one_in: 0, refuse_thread_one_in: 0 };
    let disk = disk::Disk::new(&[], Faults::default());
    World::run(1, turns, disk, Box::new(main)).failure.expect("it doesn't come to an end")
}

#[test]
fn simulation_detects_deadlock_spinning_and_endless_sleep() {
    let sleeps_for_good = || {
        world().expect("a task is in its world").block(0x7770, None);
    };
    assert!(failure_of(sleeps_for_good).starts_with("no task can go on: 0 waits"));
    let spins = || loop {
        world().expect("a task is in its world").preemption_point();
    };
    assert!(failure_of(spins).starts_with("it hasn't come to an end in 2000000 steps: 0 is ready"));
    let dozes = || loop {
        world().expect("a task is in its world").pause(1_000_000_000_000);
    };
    assert!(failure_of(dozes).starts_with("it doesn't come to an end: 0 waits"));
}

/// By hand: 20 pages of 4 KiB are 81,920 bytes, and the device has half of that.
#[test]
fn region_error_states_the_required_device_size() {
    let made = || {
        let unused = std::fs::File::open("/dev/null").unwrap();
        let region = crate::Region::builder().open_storage(81_920, Path::new("0"), unused);
        panic!("{}", region.unwrap_err());
    };
    let turns = ScheduleRates { switch_one_in: 4, freeze_one_in: 0, refuse_thread_one_in: 0 };
    let disk = disk::Disk::new(&[40_960], Faults::default());
    let failure = World::run(1, turns, disk, Box::new(made)).failure.expect("it is too small");
    assert!(failure.contains("40960") && failure.contains("81920"), "{failure}");
}

/// Seeds that found a failure with the scenarios of that time. 2,008,107: a batch waited for its
/// own lock, because it held the last handle of a file. The last two, among a million: a file
/// stayed open, because the scheduler kept the device for a process that had ended before its last
/// request returned.
#[test]
fn seeds_of_earlier_failures_pass() {
    for (seed, actions) in
        [(438, 150), (725, 150), (1_400, 150), (1_000_255, 40), (2_959, 150), (2_008_107, 60)]
            .into_iter()
            .chain([(100_653_694, 30), (300_758_575, 20)])
    {
        let failure = Scenario::from_seed(seed, actions).run().failure;
        assert!(failure.is_none(), "seed {seed}: {failure:?}");
    }
    for seed in [10, 17, 24, 179, 239, 864, 3_577, 8_045, 12_238, 14_301, 14_709] {
        let failure = Scenario::paged(seed, 40).run().failure;
        assert!(failure.is_none(), "seed {seed}, of memory: {failure:?}");
    }
}
