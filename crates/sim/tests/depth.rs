//! Purpose of the queue depth of `adaptive`: a process with few requests next to a process with
//! many.
//!
//! One process reads 4 KiB at random, one read after the other. Another keeps 128 such reads in
//! flight. Without a depth limit the first waits behind all requests of the second in the device,
//! and behind the queued ones too.

use readpath_core::decision::{Decision, LoggedDecision};
use readpath_core::policy::Spec;
use readpath_core::unit::Time;
use readpath_sim::job::JobFile;
use readpath_sim::report::ResultRow;
use readpath_sim::run::{ProgressAnswer, RunObserver};
use readpath_sim::simulate::{SimulationSetup, simulate, simulate_with_callbacks};

const READS: &str = "[global]\nioengine=io_uring\ndirect=1\nrw=randread\nrandom_generator=permutation\nbs=4k\nfilename=f\n\
    size=16g\ntime_based\nruntime=4s\n";

fn run(sections: &str, device: &str, scheduler: &str) -> ResultRow {
    let setup = SimulationSetup {
        scheduler: Spec::parse(scheduler).unwrap(),
        ..SimulationSetup::new(Spec::parse(device).unwrap())
    };
    let job = JobFile::parse(&format!("{READS}{sections}")).unwrap();
    simulate("reads", &job, &setup, &mut |_| ProgressAnswer::Continue).unwrap()
}

/// A drive that serves a request in 100 µs and 50,000 a second needs about five requests in flight
/// for seven eighths of that rate. A mount with a round trip of 1 ms and some ten threads needs as
/// many. Four disks need some tens, because each gains from a choice.
#[test]
fn shallow_process_does_not_wait_behind_a_deep_one() {
    let uneven = "[foreground]\niodepth=1\n[background]\niodepth=128\n";
    for (device, times) in
        [("ssd", 8.0), ("nfs:ssd,rtt=1ms", 4.0), ("raid0:4xhdd,hdd.drive=sata2010", 1.4)]
    {
        let [deadline, adaptive] =
            ["deadline", "adaptive"].map(|scheduler| run(uneven, device, scheduler));
        let [before, after] = [&deadline, &adaptive].map(|row| row.sections[0].latency_us.p50);
        let (before, after) = (before.unwrap(), after.unwrap());
        assert!(before > times * after, "{device}: {before} µs, then {after} µs");
        let [most, less] = [&deadline, &adaptive].map(|row| row.sections[1].iops.unwrap());
        // Seven eighths, less a fiftieth for the accuracy of an epoch of some tens of completions.
        assert!(less > (0.875 - 0.02) * most, "{device}: {most} a second, then {less}");
    }
}

/// With equal requests a depth limit would help no process, so no request is held back.
#[test]
fn equal_depths_cause_no_depth_limit() {
    let even = "[one]\niodepth=64\n[other]\niodepth=64\n";
    for device in ["ssd", "nfs:ssd,rtt=1ms"] {
        let [deadline, adaptive] =
            ["deadline", "adaptive"].map(|scheduler| run(even, device, scheduler));
        assert_eq!(deadline.device_depth_mean, adaptive.device_depth_mean, "{device}");
        assert_eq!(deadline.bytes, adaptive.bytes, "{device}");
    }
}

/// Minimum number of reads in flight that reach seven eighths of the rate of 120, without other
/// requests and under `deadline`, which holds nothing back.
fn knee(device: &str, milliseconds: u64) -> u32 {
    let rate = |depth: u32| {
        let alone = format!("runtime={milliseconds}ms\n[alone]\niodepth={depth}\n");
        run(&alone, device, "deadline").iops.unwrap()
    };
    let enough = 0.875 * rate(120);
    // The rate never falls with more reads in flight.
    let (mut few, mut many) = (0, 120);
    while many - few > 1 {
        let depth = (few + many) / 2;
        if rate(depth) < enough { few = depth } else { many = depth }
    }
    many
}

/// Depths allowed by `adaptive` next to a foreground reader: start time and depth.
fn depths(device: &str, seconds: u64) -> Vec<(Time, u32)> {
    let setup = SimulationSetup {
        scheduler: Spec::parse("adaptive").unwrap(),
        ..SimulationSetup::new(Spec::parse(device).unwrap())
    };
    let sections =
        format!("runtime={seconds}s\n[foreground]\niodepth=1\n[background]\niodepth=128\n");
    let job = JobFile::parse(&format!("{READS}{sections}")).unwrap();
    let mut depths = Vec::new();
    let mut decided = |decided: &LoggedDecision| {
        if let Decision::Depth { depth, .. } = decided.decision {
            depths.push((decided.at, depth));
        }
    };
    let watch = RunObserver {
        on_progress: &mut |_| ProgressAnswer::Continue,
        on_decision: Some(&mut decided),
        on_workload: None,
    };
    simulate_with_callbacks("reads", &job, &setup, watch).unwrap();
    depths
}

/// Time between two points for which the depth was above `most`.
fn above(depths: &[(Time, u32)], most: u32, from: Time, to: Time) -> Time {
    let ends = depths.iter().skip(1).map(|next| next.0).chain([to]);
    let spans = depths.iter().zip(ends).filter(|((_, depth), _)| *depth > most);
    let within = |since: Time, end: Time| end.min(to).since(since.max(from)).ns();
    Time(spans.map(|((since, _), end)| within(*since, end)).sum())
}

/// An array gains or loses members, or a drive throttles. From two seconds after the start or the
/// change, the depth is at most 1.5 times the knee of the current device, except for a twentieth of
/// the time. On disks the bound is twice the knee, except for half of the time. Their rates vary by
/// a tenth between groups of one hundred requests, and by as much between half and twice the knee.
/// The first requests are served fastest.
#[test]
fn depth_adapts_within_two_seconds_of_a_device_change() {
    for (first, second, each_s, halves, part) in [
        ("nvme", "ssd", 3, 3, 20),
        ("raid0:4xssd", "raid0:2xssd", 3, 3, 20),
        ("raid0:2xssd", "raid0:4xssd", 3, 3, 20),
        ("raid0:4xhdd", "raid0:8xhdd", 24, 4, 2),
        ("raid0:8xhdd", "raid0:4xhdd", 24, 4, 2),
    ] {
        let device = |at: u64| format!("changing:{first}+{second},at={at}s");
        let depths = depths(&device(each_s), 2 * each_s);
        for (name, alone, begun_s) in [(first, device(1_000), 0), (second, device(0), each_s)] {
            let knee = knee(&alone, each_s * 100);
            let (from, to) = (Time::from_s(begun_s + 2), Time::from_s(begun_s + each_s));
            let above = above(&depths, halves * knee / 2, from, to);
            assert!(part * above.ns() < to.since(from).ns(), "{name}, knee {knee}: {above:?}");
        }
    }
}

/// At fixed depths of this job on `hdd`, 90 % of the reads take at most 6.6 ms at depth 1 and 10.9
/// ms at depth 2, and 50 ms at 17 and 59.9 ms at 25. The search lasts about 14 of the 300 seconds.
#[test]
fn latency_target_finds_the_deepest_queue_that_meets_it() {
    let mean_depth = |target: &str| {
        let text = format!(
            "[r]\nrw=randread\nbs=4k\nsize=1g\nioengine=libaio\ndirect=1\niodepth=64\n\
             latency_target={target}\nlatency_window=2s\nlatency_percentile=90\n\
             latency_run=1\nruntime=300\ntime_based\n"
        );
        let setup = SimulationSetup::new(Spec::parse("hdd").unwrap());
        let job = JobFile::parse(&text).unwrap();
        let row = simulate("reads", &job, &setup, &mut |_| ProgressAnswer::Continue).unwrap();
        row.device_depth_mean.unwrap()
    };
    let (short, long) = (mean_depth("10ms"), mean_depth("60ms"));
    assert!(short <= 2.0, "10 ms: {short} in flight");
    assert!((17.0..=26.0).contains(&long), "60 ms: {long} in flight");
}

/// A window of 3 s is not over after 5 s for the second depth. No disk answers within 1 µs.
#[test]
fn depth_that_was_not_found_is_not_reported_as_found() {
    for (options, reason) in [
        ("latency_target=10ms\nlatency_window=3s\nruntime=5", "the search had not ended (at depth"),
        ("latency_target=1us\nlatency_window=100ms\nruntime=60", "no depth meets the target"),
    ] {
        let text = format!(
            "[r]\nrw=randread\nbs=4k\nsize=1g\nioengine=libaio\ndirect=1\niodepth=64\n\
             latency_percentile=90\ntime_based\n{options}\n"
        );
        let setup = SimulationSetup::new(Spec::parse("hdd").unwrap());
        let job = JobFile::parse(&text).unwrap();
        let row = simulate("reads", &job, &setup, &mut |_| ProgressAnswer::Continue).unwrap();
        assert_eq!(row.sections[0].latency_depth, None, "{options}");
        let note = row.note.unwrap_or_default();
        assert!(note.contains(&format!("latency_target of `r`: {reason}")), "{note}");
    }
}
