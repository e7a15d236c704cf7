//! The disk model, compared with DiskSim's validation traces of five real drives, if they are
//! present.

use std::path::{Path, PathBuf};

use readpath_core::policy::Spec;
use readpath_models::hdd::drive::DriveDescription;
use readpath_models::hdd::{Hdd, drive_of};
use readpath_models::validate::{GapMeaning, ValidationReport, ablate, read_trace, validate};

/// Folder of the traces. Returns `None` after printing the reason if it is absent.
fn traces() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let beside = root.join("../shared/traces/disksim");
    if beside.is_dir() {
        return Some(beside);
    }
    println!("skipped: no traces at {}", beside.display());
    None
}

fn drive(directory: &Path, name: &str, more: &str) -> DriveDescription {
    let file = directory.join(name).with_extension("diskspecs");
    let spec = Spec::parse(&format!("hdd,disksim={}{more}", file.display())).expect("a spec");
    drive_of(&spec).unwrap_or_else(|error| panic!("{error}"))
}

fn report(directory: &Path, name: &str, more: &str, seed: u64) -> ValidationReport {
    let trace = directory.join(name).with_extension("trace");
    validate(&trace, &drive(directory, name, more), seed).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn drives_loaded_from_files_meet_their_measured_distributions() {
    let Some(directory) = traces() else { return };
    // DiskSim's root mean square horizontal distances in ms. The Cheetah 9LP's 0.107 is missed: the
    // drive reads on into the next track after any read, but its file says only in streams.
    // (Without `settles_on_return` it is 0.109.)
    let published =
        [("atlas10k", 0.268), ("barracuda", 0.349), ("cheetah9LP", 0.161), ("ibm18es", 0.135)];
    for (name, disksim_ms) in published {
        for seed in 1..=5 {
            let free = report(&directory, name, "", seed).free;
            assert_eq!(free.requests, 10_000);
            assert!(free.distance_ms <= disksim_ms, "{name}, seed {seed}: {}", free.distance_ms);
        }
    }
}

#[test]
fn drives_without_settling_have_the_errors_of_disksim() {
    let Some(directory) = traces() else { return };
    // In DiskSim a head returns to its own track in no time, with results of 0.349, 0.107 and
    // 0.135. The Atlas has 0.268 there: as in DiskSim's manual, but not in its source, sectors that
    // pass before a read's first sector are cached here for any landing position.
    for (name, disksim_ms) in [("barracuda", 0.349), ("cheetah9LP", 0.107), ("ibm18es", 0.135)] {
        let mut drive = drive(&directory, name, "");
        drive.mechanics.settles_on_return = false;
        let trace = directory.join(name).with_extension("trace");
        for seed in [1, 5] {
            let free_ms = validate(&trace, &drive, seed).expect("a trace").free.distance_ms;
            assert!((free_ms / disksim_ms - 1.0).abs() < 0.025, "{name}, seed {seed}: {free_ms}");
        }
    }
}

#[test]
fn hp_c2247a_needs_a_bus_rate_that_its_files_omit() {
    let Some(directory) = traces() else { return };
    // Read hits of n sectors take 1.04 + 0.172 n ms in the trace: a bus of 2.98 MB/s.
    let without = report(&directory, "hp_c2247a", "", 1);
    let with = report(&directory, "hp_c2247a", ",bus_read_ns=170100,bus_write_ns=186860", 1);
    assert!(without.free.distance_ms > 1.0);
    // DiskSim has 0.090.
    assert!(with.free.distance_ms < 0.098, "{}", with.free.distance_ms);
    // The trace carries the phase. A model that is right for one request therefore meets the next
    // in phase: nine in ten within half a millisecond. This confirms each parameter of the bus.
    assert!(with.free.within_half_ms > 0.9 && without.free.within_half_ms < 0.5);
    assert!(with.observed.within_half_ms > 0.85);
}

#[test]
fn gap_column_meaning_is_inferred_from_the_phase() {
    let Some(directory) = traces() else { return };
    for name in ["atlas10k", "barracuda", "cheetah9LP", "ibm18es"] {
        let coherence = report(&directory, name, "", 1).coherence;
        assert_eq!(coherence.gap(), GapMeaning::Before, "{name}: {coherence:?}");
        assert!(coherence.after < 2.5 * coherence.noise(), "{name}: {coherence:?}");
    }
    assert_eq!(report(&directory, "hp_c2247a", "", 1).coherence.gap(), GapMeaning::After);
}

#[test]
fn sector_angles_of_four_drives_hold_over_a_few_cylinders_only() {
    let Some(directory) = traces() else { return };
    for name in ["atlas10k", "barracuda", "cheetah9LP", "ibm18es"] {
        let [near, .., far] = report(&directory, name, "", 1).by_distance;
        assert!(near.length > 0.45, "{name}: {near:?}");
        assert!(far.length < 0.1, "{name}: {far:?}");
    }
    // The HP's zones state their offsets, so its angles hold over the whole disk.
    let [.., far] = report(&directory, "hp_c2247a", "", 1).by_distance;
    assert!(far.length > 0.25, "{far:?}");
}

#[test]
fn drives_have_the_size_that_their_zones_hold() {
    let Some(directory) = traces() else { return };
    // `Block count` of the models. The zones hold more or less, the HP's exactly this number.
    for (name, sectors) in [
        ("atlas10k", 17_938_986),
        ("barracuda", 4_110_000),
        ("cheetah9LP", 17_783_240),
        ("hp_c2247a", 2_054_864),
        ("ibm18es", 17_916_240),
    ] {
        let held = Hdd::new(&drive(&directory, name, ""), 1).sectors();
        let off = held.abs_diff(sectors) as f64 / sectors as f64;
        assert!(off < if name == "hp_c2247a" { 1e-9 } else { 0.03 }, "{name}: {held}");
    }
}

#[test]
fn model_features_improve_accuracy_or_throughput() {
    let Some(directory) = traces() else { return };
    let drive = drive(&directory, "cheetah9LP", "");
    let trace = directory.join("cheetah9LP.trace");
    let requests = read_trace(&trace, Hdd::new(&drive, 1).sectors()).expect("a trace");
    let rows = ablate(&requests[..3000], &drive, 1);
    let features: Vec<_> = rows.iter().map(|row| row.feature).collect();
    let expected =
        ["constant time", "seek curve", "rotation", "zones and skew", "cache", "queueing"];
    assert_eq!(features, expected);
    let distances: Vec<_> = rows.iter().map(|row| row.validation.distance_ms).collect();
    assert!(distances[0] > 1.5 * distances[1] && distances[3] > 10.0 * distances[4]);
    // Cache and queue each gain, together a third. (An earlier model served reads beyond the
    // readahead as if the head had never stopped. There the cache cost a twelfth.)
    let rates: Vec<_> = rows.iter().map(|row| row.requests_per_s_at_16).collect();
    let [.., plain, cached, queued] = rates[..] else { panic!("{rates:?}") };
    assert!(cached > 1.1 * plain && queued > 1.15 * cached && queued > 1.3 * plain, "{rates:?}");
}

#[test]
fn a_trace_beyond_the_last_sector_is_refused_with_its_line() {
    let Some(directory) = traces() else { return };
    let trace = directory.join("atlas10k.trace");
    let error = read_trace(&trace, 4_583_184).expect_err("the third request lies far behind");
    let text = error.to_string();
    assert!(text.contains("lie beyond the drive's last sector, 4583183"), "{text}");
    assert!(error.line > 2, "{text}");
}
