//! Each tunable changes the result. (`seeky` and `slice_idle`: see `spindles`; `fifo_expire_sync`:
//! see `starvation`.)

use readpath_core::request::Op;
use readpath_core::unit::Time;

use super::rig::*;

fn readers(count: u64) -> Vec<RigProcess> {
    (0..count).map(|index| RigProcess::reading(sequential(index << 24))).collect()
}

/// A process with many asynchronous writes at once, at random offsets.
fn writer() -> RigProcess {
    RigProcess {
        op: Op::Write,
        is_sync: false,
        depth: 64,
        ..RigProcess::reading(random_records(1 << 30, 1))
    }
}

/// The last slice in ms, with eight sequential readers.
fn last_slice(spec: &str) -> i64 {
    let report = run(spec, SPINDLE, readers(8), Time::from_s(3));
    report.values("slice_set", "slice_ms").last().unwrap().parse().unwrap()
}

#[test]
fn slices_follow_slice_sync_low_latency_and_target_latency() {
    assert_eq!(last_slice("cfq"), 37, "100 × 300 / (8 × 100)");
    assert_eq!(last_slice("cfq,low_latency=0"), 100);
    assert_eq!(last_slice("cfq,low_latency=0,slice_sync=50"), 50);
    assert_eq!(last_slice("cfq,target_latency=600"), 75, "100 × 600 / (8 × 100)");
    assert_eq!(last_slice("cfq,target_latency=100"), 16, "12, but at least two idle times");
}

/// The start of the waiting request that is served after one that ended at sector 100,000.
fn chosen(spec: &str, starts: [u64; 2]) -> String {
    let arrive = |request: usize, start| {
        format!("at_ms=0 event=arrive request={request} process=1 op=read start={start} sectors=8")
    };
    let events = [
        arrive(0, 100_000 - 8),
        arrive(1, starts[0]),
        arrive(2, starts[1]),
        "at_ms=5 event=complete request=0".to_owned(),
    ];
    let lines = decided(spec, 1, &events.join("\n"));
    values(&lines, "dispatch", "start")[1].to_owned()
}

#[test]
fn backward_seeks_follow_back_seek_penalty_and_back_seek_max() {
    // 1,000 behind counts 2,000 with the default penalty of 2.
    assert_eq!(chosen("cfq", [99_000, 101_500]), "101500");
    assert_eq!(chosen("cfq,back_seek_penalty=1", [99_000, 101_500]), "99000");
    // 1 KiB is 2 sectors, the default 16,384 KiB 32,768.
    assert_eq!(chosen("cfq", [99_000, 1_000_000]), "99000");
    assert_eq!(chosen("cfq,back_seek_max=499", [99_000, 1_000_000]), "1000000");
    assert_eq!(chosen("cfq,back_seek_max=500", [99_000, 1_000_000]), "99000");
}

#[test]
fn a_queue_has_at_most_the_quantum_in_the_device_while_others_wait() {
    let deepest = |spec| {
        let deep = |index: u64| RigProcess {
            depth: 32,
            ..RigProcess::reading(random_records(index << 24, 1))
        };
        let report = run(spec, SPINDLE, vec![deep(0), deep(1)], Time::from_s(2));
        report.largest("dispatch", "in_device")
    };
    // The whole quantum early in a slice; or half of it, plus the same number from the slice
    // before.
    assert_eq!(deepest("cfq"), 8);
    assert_eq!(deepest("cfq,quantum=4"), 4);
}

#[test]
fn async_slices_follow_slice_async_and_slice_async_rq() {
    let report = |spec| run(spec, SPINDLE, vec![writer(), writer().of_level(5)], Time::from_s(4));
    let in_a_turn = |spec| report(spec).largest("slice_end", "dispatched");
    // Level 4 may send 2 × (2 + 2 × 3) requests in a slice, or half of that.
    assert_eq!(in_a_turn("cfq,slice_async=2000"), 16);
    assert_eq!(in_a_turn("cfq,slice_async=2000,slice_async_rq=1"), 8);
    let slices = report("cfq,low_latency=0,slice_async=60");
    assert_eq!(slices.largest("slice_set", "slice_ms"), 60);
}

#[test]
fn old_writes_are_served_out_of_order_after_fifo_expire_async() {
    let by_age = |spec| {
        let report = run(spec, SPINDLE, vec![writer()], Time::from_s(4));
        report.values("dispatch", "why").iter().filter(|why| **why == "waited_too_long").count()
    };
    // 64 writes of 8 ms each: all wait longer than 250 ms, none four seconds.
    assert!(by_age("cfq") > 0);
    assert_eq!(by_age("cfq,fifo_expire_async=4000"), 0);
}
