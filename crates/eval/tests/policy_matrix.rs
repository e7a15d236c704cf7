//! The policy matrix runs, is reproducible, and confirms the limits of `adaptive`.

use std::path::Path;
use std::sync::Arc;

use readpath_core::policy::Spec;
use readpath_eval::policy_matrix::{
    CellSize, GivenReads, GivenWorkload, MatrixCell, MatrixResult, Policies, cells, cells_of_given,
};
use readpath_trace::recording::{
    FileRecord, ReadMethod, ReadOutcome, ReadRecord, Record, RecordingEnd, RecordingStart,
    ThreadName,
};
use readpath_trace::replay::RecordingInput;

const WHOLE: CellSize = CellSize { seed: 1, seeds: 1, part: 1 };

fn cell(name: &str) -> MatrixCell {
    let parts: Vec<String> = name.split('/').map(|part| format!("/{part}/")).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let found = cells(&parts);
    assert_eq!(found.len(), 1, "{name}");
    found[0].clone()
}

fn adaptive(name: &str) -> MatrixResult {
    cell(name).run(&Policies::default(), WHOLE).unwrap()
}

#[test]
fn a_cell_repeats_from_its_seed_and_every_baseline_is_in_it() {
    let smoke = CellSize { seed: 7, seeds: 1, part: 64 };
    let judge = |name: &str| {
        let baselines = cell(name).baselines(smoke).unwrap();
        cell(name).judge(&Policies::default(), baselines, smoke).unwrap()
    };
    let one = judge("hdd-1/mixed/4");
    assert_eq!(one, judge("hdd-1/mixed/4"));
    assert_eq!(one.baselines.len(), 12, "four readahead policies under three schedulers");
    assert!(one.baselines.iter().all(|baseline| baseline.mib_per_s <= one.baselines[0].mib_per_s));
    let direct = judge("ssd/direct-seq-64k/4");
    assert_eq!(direct.baselines.len(), 3, "past the cache the schedulers alone");
}

#[test]
fn every_workload_runs_on_every_device() {
    for cell in cells(&["/4/"]) {
        let run = cell.run(&Policies::default(), CellSize { seed: 1, seeds: 1, part: 64 });
        assert!(run.unwrap().mib_per_s > 0.0, "{}", cell.name());
    }
}

#[test]
fn loads_on_memory_are_judged_by_the_swap_in_policies() {
    let smoke = CellSize { seed: 7, seeds: 1, part: 64 };
    let judge = || {
        let cell = cell("ssd/swap-seq-anon/4");
        cell.judge(&Policies::default(), cell.baselines(smoke).unwrap(), smoke).unwrap()
    };
    let one = judge();
    assert_eq!(one, judge());
    assert_eq!(one.baselines.len(), 12, "four swap-in policies under three schedulers");
    let named = |run: &MatrixResult| run.swapin.is_some() && run.readahead.is_none();
    assert!(one.baselines.iter().chain([&one.adaptive]).all(named), "{one:?}");
    assert!(cells(&["/object/", "/swap"]).is_empty(), "objects are written whole");
}

/// Three quarters of the touches miss. In random order no policy can predict the next page, so only
/// missing pages are read. In sweeps each page is read once, before its touch.
#[test]
fn random_touches_read_nothing_ahead_and_sweeps_nearly_all() {
    for device in ["hdd-1", "nvme", "nfs-1ms"] {
        let random = adaptive(&format!("{device}/swap-rand-anon/1"));
        let touches = 3.0 * 8192.0 * 4096.0;
        assert!(random.waste_bytes.unwrap() as f64 <= 0.01 * touches, "{device}: {random:?}");
        assert!((0.73..=0.77).contains(&random.amplification.unwrap()), "{device}: {random:?}");
        let sweep = adaptive(&format!("{device}/swap-seq-anon/1"));
        assert!(sweep.coverage.unwrap() >= 0.95, "{device}: {sweep:?}");
        assert!(sweep.amplification.unwrap() <= 1.1, "{device}: {sweep:?}");
    }
}

#[test]
fn slices_of_a_mapping_are_learned_and_read_in_one_request() {
    let slices = adaptive("ssd/mmap-slices/1");
    assert!(slices.amplification.unwrap() <= 1.1, "{slices:?}");
    assert!(slices.device_request_kib_mean.unwrap() >= 56.0, "of pieces of 64 KiB: {slices:?}");
}

/// A tenth of a file is read by 4 KiB at random, with memory for the whole file. Reading all of it
/// takes less time than the waits of one reader. Next to other readers, only missing pages are
/// read.
#[test]
fn lone_random_readers_with_long_waits_have_files_read_into_free_memory() {
    for device in ["hdd-1", "nfs-5ms", "array"] {
        let name = format!("{device}/rand-4k-tenth/1");
        let nothing_ahead = Policies { readahead: Spec::plain("none"), ..Policies::default() };
        let alone = cell(&name).run(&nothing_ahead, WHOLE).unwrap();
        assert_eq!(alone.amplification, Some(1.0), "{name}: {alone:?}");
        let run = adaptive(&name);
        assert!(run.mib_per_s >= 2.0 * alone.mib_per_s, "{name}: {run:?} next to {alone:?}");
    }
    for name in ["array/rand-4k-tenth/4", "hdd-1/rand-4k-tenth/4"] {
        let run = adaptive(name);
        assert!(run.amplification.unwrap() <= 1.1, "{name}: {run:?}");
    }
}

#[test]
fn backward_and_interleaved_readers_get_large_requests_in_time() {
    for name in ["hdd-1/backward-4k/1", "ssd/backward-64k/1", "hdd-1/one-handle-8/1"] {
        let run = adaptive(name);
        assert!(run.device_request_kib_mean.unwrap() >= 128.0, "{name}: {run:?}");
        let is_in_time = match name.starts_with("ssd") {
            // The link carries 550 MB/s, 524.5 MiB/s. One request of 64 KiB at a time reaches 272.
            true => run.mib_per_s >= 0.9 * 524.5,
            false => run.coverage.unwrap() >= 0.9,
        };
        assert!(is_in_time, "{name}: {run:?}");
    }
}

/// A buffered read needs a cache of its size: one of 8 MiB fails in 4 MiB, and the small reads
/// before it succeed.
#[test]
fn failed_reads_of_a_recording_fail_the_cell() {
    let mib = 1 << 20;
    let start = RecordingStart { page_bytes: 4096, memory_bytes: 4 * mib, ..Default::default() };
    let file = FileRecord { bytes: Some(8 * mib), ..FileRecord::default() };
    let mut input = RecordingInput::default();
    input.take(&Record::Start(start));
    input.take(&Record::File(file));
    input.take(&Record::Thread(ThreadName::default()));
    for (begin_ms, bytes) in [(0, 4096), (2, 8 * mib)] {
        let begin_ns = begin_ms * 1_000_000;
        input.take(&Record::Read(ReadRecord {
            begin_ns,
            end_ns: begin_ns + 1_000_000,
            waited_ns: 1_000_000,
            way: ReadMethod::Pread,
            descriptor: Some(3),
            asked_bytes: bytes,
            outcome: ReadOutcome::Bytes(bytes),
            ..ReadRecord::default()
        }));
    }
    input.take(&Record::End(RecordingEnd { at_ns: 9_000_000, ..RecordingEnd::default() }));
    let reads = GivenReads::Recording(Box::new(input.finish().unwrap()));
    let workload = GivenWorkload::new(Path::new("r.rec"), reads);
    let cells = cells_of_given(&[Arc::new(workload)], 1, &["nvme/"]);
    let error = cells[0].run(&Policies::default(), WHOLE).unwrap_err().to_string();
    assert!(error.contains("1 operations failed") && error.contains("8388608"), "{error}");
}
