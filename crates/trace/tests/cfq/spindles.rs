//! The two halves of source D: memory-mapped random reads of 64 KiB (15 pages near, one far) by
//! several processes, on an array and on one spindle.

use readpath_core::unit::Time;

use super::rig::*;

/// Twelve disks, striped; each keeps the last four streams in its cache.
const ARRAY: SpindleDevice = SpindleDevice { spindles: 12, streams: 4, ..SPINDLE };

/// KiB/s of `processes` processes, each over its own 8 GiB.
fn rate(spec: &str, device: SpindleDevice, processes: u64, record_pages: u64) -> u64 {
    const SECONDS: u64 = 20;
    let programs = (0..processes)
        .map(|process| RigProcess::reading(random_records(process << 24, record_pages)))
        .collect();
    run(spec, device, programs, Time::from_s(SECONDS)).requests() * 4 / SECONDS
}

/// Idling reduces the depth to 1 and wastes the other disks: the old detection is faster, and its
/// lead grows with the number of processes. Published: 0.998 with 1 process, 1.14, 1.38, 1.66,
/// 1.85, 1.94, and 2.52 with 64.
#[test]
fn lead_of_the_old_detection_on_an_array_grows_with_processes() {
    let rates: Vec<(u64, u64)> = [1, 2, 4, 8, 32]
        .into_iter()
        .map(|processes| {
            let rate = |spec| rate(spec, ARRAY, processes, 16);
            (rate("cfq,seeky=mean"), rate("cfq,seeky=history"))
        })
        .collect();
    // 16 pages in 15 × 1 + 8 ms: 2,782 KiB/s, for a single process.
    assert!(rates[0].0.abs_diff(2_782) <= 2 && rates[0].1.abs_diff(2_782) <= 2, "{rates:?}");
    let percent: Vec<u64> = rates.iter().map(|(mean, history)| 100 * mean / history).collect();
    assert!(percent.is_sorted(), "old ÷ new in percent: {percent:?}");
    assert!((150..=220).contains(&percent[3]), "with 8 processes: {percent:?}");
    let history: Vec<u64> = rates.iter().map(|rates| rates.1).collect();
    assert!(history.is_sorted_by(|earlier, later| earlier >= later), "new falls: {history:?}");
}

/// On one spindle idling is faster, because the head stays in position.
#[test]
fn new_detection_is_at_least_as_fast_on_one_spindle() {
    for processes in [1, 2, 8, 32] {
        let rate = |spec| rate(spec, SPINDLE, processes, 16);
        let (mean, history) = (rate("cfq,seeky=mean"), rate("cfq,seeky=history"));
        assert!(history >= mean, "{processes} processes: new {history}, old {mean} KiB/s");
    }
    let with_8 = rate("cfq,seeky=history", SPINDLE, 8, 16);
    let without_idling = rate("cfq,slice_idle=0", SPINDLE, 8, 16);
    // Without idling every page is far: 4 KiB in 8 ms = 500 KiB/s.
    assert!((490..=515).contains(&without_idling), "{without_idling}");
    assert!(with_8 > 4 * without_idling, "{with_8} against {without_idling}");
}

/// Purely random and purely sequential reads: both detections agree, and so do the rates.
#[test]
fn random_and_sequential_reads_get_equal_rates_from_both_detections() {
    for spec in ["cfq,seeky=mean", "cfq,seeky=history"] {
        let random = rate(spec, SPINDLE, 4, 1);
        assert!((495..=520).contains(&random), "{spec}: 4 KiB in 8 ms are 500 KiB/s, got {random}");
        let programs = (0..4u64).map(|it| RigProcess::reading(sequential(it << 24))).collect();
        let sequential = run(spec, SPINDLE, programs, Time::from_s(20)).requests() * 4 / 20;
        // 4,000 KiB/s less 7 ms in each slice of 75 to 100 ms.
        assert!((3_600..=3_800).contains(&sequential), "{spec}: {sequential}");
    }
}
