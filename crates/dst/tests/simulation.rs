//! Some hundred runs, the rules of a run, and the failures found by earlier runs. The lower bounds
//! of steps and pages show that the runs do work; they follow from no calculation.

use std::path::Path;

use readpath_dst::Region;
use readpath_dst::simulation::{
    Disk, Draw, Faults, Report, Scenario, ScheduleRates, World, check_against_current,
    decode_stream, draw_kinds, open_region, regressions, world,
};

/// Number of actions of a drawn scenario, in all threads together: a few milliseconds.
const READ_ACTIONS: u64 = 60;
const MEMORY_ACTIONS: u64 = 40;

/// Runs a scenario, and asserts that it does not fail.
fn run_checked(scenario: Scenario) -> Report {
    let report = scenario.run();
    assert_eq!(report.failure, None, "seed {}", scenario.seed);
    report
}

/// Reads of local files through all entry points, with random faults and changes of the files.
#[test]
fn simulated_reads_are_right_for_any_thread_order() {
    let steps = |seed| run_checked(Scenario::from_seed(seed, READ_ACTIONS)).steps;
    assert!((0..300).map(steps).sum::<u64>() > 300_000);
}

/// Reads through the NFS client, with a server that refuses connections, and that delays, drops,
/// cuts and garbles answers.
#[test]
fn simulated_nfs_reads_are_right_with_a_faulty_server() {
    let steps = |seed| run_checked(Scenario::from_seed_with_server(seed, READ_ACTIONS)).steps;
    assert!((0..300).map(steps).sum::<u64>() > 100_000);
}

/// Mappings and regions: each touched byte is right, for any order of threads and any failures.
#[test]
fn simulated_memory_touches_are_right_with_faults() {
    let steps = |seed| run_checked(Scenario::paged(seed, MEMORY_ACTIONS)).steps;
    assert!((0..120).map(steps).sum::<u64>() > 120_000);
}

/// Windows delegated to the kernel's own mapping show the bytes of the file, as do the pages that
/// are taken back. Windows are delegated and taken back in at least 20 of the 100 runs.
#[test]
fn simulated_touches_of_kernel_windows_are_right() {
    let run = |seed| run_checked(Scenario::with_delegation(seed, MEMORY_ACTIONS));
    let pages: Vec<(u64, u64)> = (0..100).map(|seed| run(seed).delegated_pages).collect();
    let delegating_runs =
        pages.iter().filter(|(delegated, taken_back)| *delegated > 0 && *taken_back > 0).count();
    let delegated: u64 = pages.iter().map(|(delegated, _)| delegated).sum();
    assert!(
        delegating_runs >= 20 && delegated > 3_000,
        "{delegated} pages were delegated, and in {delegating_runs} runs taken back"
    );
}

/// Each kind of scenario runs twice with the same seed: the reports, with their hashes, are equal.
#[test]
fn simulation_seed_reproduces_the_run_exactly() {
    for seed in 0..20 {
        let scenario = Scenario::from_seed(seed, READ_ACTIONS);
        assert_eq!(scenario.run(), scenario.run(), "seed {seed}");
        let served = Scenario::from_seed_with_server(seed, READ_ACTIONS);
        assert_eq!(served.run(), served.run(), "seed {seed}, of a server");
        let paged = Scenario::paged(seed, MEMORY_ACTIONS);
        assert_eq!(paged.run(), paged.run(), "seed {seed}, scenarios of served memory");
        let delegated = Scenario::with_delegation(seed, MEMORY_ACTIONS);
        assert_eq!(delegated.run(), delegated.run(), "seed {seed}, scenarios of delegated windows");
    }
    let hash_of_seed = |seed| Scenario::from_seed(seed, READ_ACTIONS).run().hash;
    assert_ne!(hash_of_seed(1), hash_of_seed(2));
}

/// Seeds near the one of the failure give the same actions in other orders of the threads.
#[test]
fn scenarios_of_earlier_failures_pass_under_other_schedules() {
    for (number, regression) in regressions().into_iter().enumerate() {
        for schedule in 0..30 {
            let scenario = Scenario { seed: regression.seed + schedule, ..regression.clone() };
            let failure = scenario.run().failure;
            assert!(failure.is_none(), "{number}, schedule {schedule}: {failure:?}\n{scenario}");
        }
    }
}

/// The first runs are the regressions, and the next two the seeds 7 and 8.
#[test]
fn regressions_run_before_the_first_seed_and_in_place_of_none() {
    let regressions = regressions();
    let runs = (regressions.len() + 2).to_string();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_simulate"));
    command.args(["--first", "7", "--seeds", &runs, "--actions", "1", "--show"]);
    let output = command.output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let shown = text.lines().filter_map(|line| line.strip_prefix("seed ")?.split(',').next());
    let expected = regressions.iter().map(|regression| regression.seed).chain([7, 8]);
    let expected: Vec<String> = expected.map(|seed| seed.to_string()).collect();
    assert_eq!(shown.collect::<Vec<&str>>(), expected);
}

/// Each kind is one bit of the two lowest ones. A run without any would never draw an action.
#[test]
fn each_drawn_run_has_a_kind_of_actions() {
    for seed in 0..1_000 {
        assert_ne!(draw_kinds(&mut Draw(seed), 2) & 0b11, 0, "seed {seed}");
    }
}

/// Test of the model: unexpected errors are found, and few actions reproduce them.
#[test]
fn simulation_detects_unexpected_errors_and_shrinks_the_scenario() {
    let failing_scenario = (0..50).find_map(|seed| {
        let mut scenario = Scenario::from_seed(seed, READ_ACTIONS);
        // Unreadable pages that the model does not know.
        scenario.faults.error_one_in = 0;
        scenario.faults.bad_pages.clear();
        scenario.faults.unexpected_error_one_in = 3;
        scenario.run().failure.is_some().then_some(scenario)
    });
    let failing_scenario = failing_scenario.expect("a run of one of these seeds reads a bad page");
    let (shorter, report) = failing_scenario.shrunk();
    let actions: usize = shorter.threads.iter().map(Vec::len).sum();
    assert!(report.failure.is_some() && actions <= 3, "{shorter}");
}

/// Failure of a run whose only task executes `main`, in a world without files.
fn failure_of_task(main: impl FnOnce() + 'static) -> String {
    let rates = ScheduleRates { switch_one_in: 4, freeze_one_in: 0, refuse_thread_one_in: 0 };
    let disk = Disk::new(&[], Faults::default());
    let seed = 1;
    World::run(seed, rates, disk, Box::new(main)).failure.expect("the run fails")
}

/// Three runs with one task each: the task sleeps without a wake-up, makes steps without an end, or
/// sleeps for 1,000 s again and again, beyond the limit of 3,600 s.
#[test]
fn simulation_detects_deadlock_spinning_and_endless_sleep() {
    let sleep_forever = || {
        let unused_key = 0x7770;
        let until_ns = None;
        world().expect("a task is in its world").block(unused_key, until_ns);
    };
    assert!(failure_of_task(sleep_forever).starts_with("no task can go on: 0 waits"));
    let spin = || loop {
        world().expect("a task is in its world").preemption_point();
    };
    let failure = failure_of_task(spin);
    assert!(failure.starts_with("it hasn't come to an end in 2000000 steps: 0 is ready"));
    let sleep_repeatedly = || loop {
        let pause_ns = 1_000_000_000_000;
        world().expect("a task is in its world").pause(pause_ns);
    };
    assert!(failure_of_task(sleep_repeatedly).starts_with("it doesn't come to an end: 0 waits"));
}

/// By hand: 20 pages of 4 KiB are 81,920 bytes, and the device has half of that.
#[test]
fn region_error_states_the_required_device_size() {
    let create_region = || {
        let region_bytes = 20 * 4096;
        panic!("{}", open_region(Region::builder(), region_bytes).unwrap_err());
    };
    let rates = ScheduleRates { switch_one_in: 4, freeze_one_in: 0, refuse_thread_one_in: 0 };
    let device_bytes = 40_960;
    let disk = Disk::new(&[device_bytes], Faults::default());
    let seed = 1;
    let report = World::run(seed, rates, disk, Box::new(create_region));
    let failure = report.failure.expect("the run fails in too small a memory");
    assert!(failure.contains("40960") && failure.contains("81920"), "{failure}");
}

/// Test of the model: a file of 4,097 bytes has a last page of one byte, which is not 0 and 255 at
/// once.
#[test]
fn wrong_byte_in_a_short_last_page_is_described() {
    let check_bytes = || {
        let world = world().expect("a task is in its world");
        let check = |byte| check_against_current(&world, 4096, &[byte]).err();
        panic!("{:?}", [0, 255].into_iter().filter_map(check).collect::<Vec<_>>());
    };
    let rates = ScheduleRates { switch_one_in: 4, freeze_one_in: 0, refuse_thread_one_in: 0 };
    let disk = Disk::new(&[4097], Faults::default());
    let seed = 1;
    let report = World::run(seed, rates, disk, Box::new(check_bytes));
    let failure = report.failure.expect("the task ends in a panic");
    assert!(failure.contains("a window shows other bytes at 4096: [ff]"), "{failure}");
}

/// Seeds that found a failure with the scenarios of that time.
///
/// - 2,008,107: a batch waited for its own lock, because it held the last handle of a file.
/// - 10,261: a reader asked again for the bytes before an error, and the file had become shorter.
/// - The last two, among a million: a file stayed open. The scheduler kept the device for a process
///   that had ended before its last request returned.
#[test]
fn seeds_of_earlier_failures_pass() {
    for (seed, actions) in [
        (438, 150),
        (725, 150),
        (1_400, 150),
        (1_000_255, 40),
        (2_959, 150),
        (2_008_107, 60),
        (10_261, 150),
    ]
    .into_iter()
    .chain([(100_653_694, 30), (300_758_575, 20)])
    {
        let failure = Scenario::from_seed(seed, actions).run().failure;
        assert!(failure.is_none(), "seed {seed}: {failure:?}");
    }
    let seeds = [10, 17, 24, 179, 239, 864, 3_577, 8_045, 12_238, 14_301, 14_709];
    let short = seeds.map(|seed| (seed, MEMORY_ACTIONS));
    for (seed, actions) in short.into_iter().chain([(9_630, 150)]) {
        let failure = Scenario::paged(seed, actions).run().failure;
        assert!(failure.is_none(), "seed {seed}, of memory: {failure:?}");
    }
}

#[test]
fn fuzz_corpus_seeds_do_not_panic() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/nfs_reply");
    let mut count = 0;
    for seed in std::fs::read_dir(corpus).unwrap() {
        decode_stream(&std::fs::read(seed.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 0, "there are seeds");
}
