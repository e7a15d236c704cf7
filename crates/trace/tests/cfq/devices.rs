//! Influence of the device: with or without a head, and with or without internal queueing.

use readpath_core::request::Op;
use readpath_core::unit::Time;

use super::rig::*;

/// A device without a head: every request takes 1 ms, eight at once.
const FLASH: SpindleDevice = SpindleDevice {
    spindles: 8,
    stripe_sectors: 8,
    near: Time::from_ms(1),
    far: Time::from_ms(1),
    is_rotational: false,
    ..SPINDLE
};

fn readers(count: u64, sectors: u32) -> Vec<RigProcess> {
    let reader = |index: u64| RigProcess {
        sectors,
        ..RigProcess::reading(move |number| Some((index << 24) + number * u64::from(sectors)))
    };
    (0..count).map(reader).collect()
}

#[test]
fn a_device_without_a_head_that_queues_is_never_idled_for() {
    let report = run("cfq", FLASH, readers(8, 64), Time::from_s(2));
    assert!(report.values("idle_start", "queue").is_empty());
    let disk = SpindleDevice { is_rotational: true, ..FLASH };
    let report = run("cfq", disk, readers(8, 64), Time::from_s(2));
    assert!(!report.values("idle_start", "queue").is_empty());
}

/// A device that takes only one request at a time is detected after 51 completions under load, and
/// idled for like a disk. Load means more than five waiting requests, and at least five of the
/// active queue if that is idled for.
#[test]
fn a_device_without_a_head_that_does_not_queue_is_idled_for() {
    let card = SpindleDevice { spindles: 1, depth_max: 1, ..FLASH };
    let programs = (0..2u64)
        .map(|index| RigProcess {
            depth: 8,
            sectors: 64,
            ..RigProcess::reading(random_records(index << 24, 1))
        })
        .chain(readers(1, 64));
    let report = run("cfq", card, programs.collect(), Time::from_s(4));
    assert_eq!(report.values("queueing_device", "answer"), ["no"]);
    assert!(!report.values("idle_start", "queue").is_empty());
}

#[test]
fn a_device_with_five_requests_at_once_queues_internally() {
    let report = run("cfq,slice_idle=0", FLASH, readers(16, 64), Time::from_s(2));
    assert_eq!(report.values("queueing_device", "answer"), ["yes"]);
}

/// Without a head, the size makes a queue seeky: 31.5 KiB do, 32 KiB don't.
#[test]
fn small_requests_are_seeky_on_devices_without_a_head() {
    let card = SpindleDevice { spindles: 1, depth_max: 1, ..FLASH };
    let seeky = |sectors| {
        let report = run("cfq", card, readers(2, sectors), Time::from_s(1));
        report.values("window", "why").contains(&"seeky")
    };
    assert!(seeky(63));
    assert!(!seeky(64));
}

/// A deep queue keeps its idle window although it is seeky.
#[test]
fn a_deep_queue_gets_slices_of_its_own() {
    let kinds = |depth| {
        let seeky = RigProcess { depth, ..RigProcess::reading(random_records(0, 1)) };
        let other = RigProcess::reading(random_records(1 << 30, 1));
        let report = run("cfq", SPINDLE, vec![seeky, other], Time::from_s(4));
        let mut turns = report
            .lines
            .iter()
            .filter(|line| line.contains("event=slice_begin") && line.contains(" process=0 "));
        let last = turns.next_back().unwrap().clone();
        last.split(' ').find_map(|word| word.strip_prefix("kind=")).unwrap().to_owned()
    };
    assert_eq!(kinds(1), "sync_noidle");
    assert_eq!(kinds(16), "sync");
}

/// The device does not idle for a process that thinks longer than the idle time.
#[test]
fn processes_with_long_think_time_are_not_idled_for() {
    let reasons = |think_ms| {
        let thinker =
            RigProcess { think: Time::from_ms(think_ms), ..RigProcess::reading(sequential(0)) };
        let other = RigProcess::reading(sequential(1 << 30));
        let report = run("cfq", SPINDLE, vec![thinker, other], Time::from_s(4));
        report.values("window", "why").contains(&"thinks_too_long")
    };
    assert!(!reasons(6));
    assert!(reasons(12));
}

/// Many writes are sent at once if no read was late for a long time. After a late read, one write
/// is sent at a time, and one more for each 100 ms, up to half the quantum. Beyond that, the ramp
/// is the only limit of a single queue.
#[test]
fn the_depth_of_writes_ramps_up_after_a_late_read() {
    let limits = |spec| {
        // 20 reads at once, 8 ms each: the last is done at 160 ms, and late.
        let mut random = random_records(0, 1);
        let places = move |number| if number < 20 { random(number) } else { None };
        let reads = RigProcess { depth: 20, ..RigProcess::reading(places) };
        let writes = RigProcess {
            op: Op::Write,
            is_sync: false,
            depth: 64,
            begins: Time::from_ms(10),
            ..RigProcess::reading(random_records(1 << 30, 1))
        };
        let report = run(spec, SPINDLE, vec![reads, writes], Time::from_s(3));
        let limit_of_write = |line: &String| {
            let is_write = line.contains("event=dispatch") && line.contains(" process=1 ");
            let limit = line.split(" limit=").nth(1)?.to_owned();
            is_write.then_some(limit)
        };
        let mut limits: Vec<String> = report.lines.iter().filter_map(limit_of_write).collect();
        limits.dedup();
        limits.truncate(4);
        limits.join(" ")
    };
    assert_eq!(limits("cfq"), "1 2 3 4");
    // Without the ramp the only queue has no limit once half the quantum is in the device.
    assert_eq!(limits("cfq,low_latency=0"), "4 -");
}
