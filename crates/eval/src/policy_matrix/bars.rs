//! Quality bounds of the readahead policy `adaptive` other than throughput. They are counts that
//! any machine reproduces, on patterns of the matrix and similar ones. 128 KiB, the bound of a
//! large request, is the kernel's default readahead window.

use readpath_core::policy::Spec;

use super::workloads::ReadPattern;
use super::{CellSize, DEVICES, MatrixCell, MatrixResult, Policies, cells};
use readpath_sim::report::ResultRow;
use readpath_sim::run::{ProgressAnswer, RunObserver};
use readpath_sim::simulate::{SimulationSetup, simulate_workload};

/// One seed, all the work.
const WHOLE: CellSize = CellSize { seed: 1, seeds: 1, part: 1 };

/// Simulates the named cell under the default policies.
fn run_by_defaults(name: &str) -> MatrixResult {
    cell_named(name).run(&Policies::default(), WHOLE).unwrap()
}

/// Returns the cell with the name `device/workload/processes`.
fn cell_named(name: &str) -> MatrixCell {
    let parts: Vec<String> = name.split('/').map(|part| format!("/{part}/")).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let mut found: Vec<MatrixCell> = cells(&parts);
    assert_eq!(found.len(), 1, "{name}");
    found.remove(0)
}

/// Simulates one process under the readahead policy `adaptive`, with the given memory.
fn run_one_process(device: &str, pattern: ReadPattern, memory_bytes: u64) -> ResultRow {
    let setup = SimulationSetup {
        readahead: Spec::plain("adaptive"),
        scheduler: Spec::plain("deadline"),
        memory_bytes,
        ..SimulationSetup::new(Spec::parse(device).unwrap())
    };
    let (processes, work_divisor, seed) = (1, 1, 1);
    let workload = pattern.workload(processes, work_divisor, seed);
    let no_job = None;
    simulate_workload(
        no_job,
        workload,
        &setup,
        RunObserver::progress(&mut |_| ProgressAnswer::Continue),
    )
    .unwrap()
}

/// Touches of single pages read at most a tenth more bytes than were requested. Random blocks of a
/// tenth of a file read at most a fifth more, with the limit that no file is read whole early.
/// Without the limit a file is read at most once, and costs at most a sixteenth of the time.
#[test]
fn random_reads_are_hardly_amplified_on_any_device() {
    for (device, _) in DEVICES {
        for processes in [1, 64] {
            let touches = run_by_defaults(&format!("{device}/mmap-touches/{processes}"));
            assert!(touches.amplification.unwrap() <= 1.1, "{device}/{processes}: {touches:?}");
        }
        for block in ["4k", "16k", "64k"] {
            let name = format!("{device}/rand-{block}-tenth/1");
            let limit = Spec::parse("adaptive,whole_file_mib=0").unwrap();
            let policies = Policies { readahead: limit, ..Policies::default() };
            let limited = cell_named(&name).run(&policies, WHOLE).unwrap();
            assert!(limited.amplification.unwrap() <= 1.2, "{name}: {limited:?}");
            let random = run_by_defaults(&name);
            assert!(random.amplification.unwrap() <= 10.0, "{name}: {random:?}");
            let least = limited.mib_per_s * 15.0 / 16.0;
            assert!(random.mib_per_s >= least, "{name}: {random:?} next to {limited:?}");
        }
    }
}

/// Requests of 128 KiB at least, and nine tenths of the bytes cached in time.
#[test]
fn streams_forwards_and_backwards_get_large_requests_in_time() {
    let backward = DEVICES.iter().map(|(device, _)| format!("{device}/backward-4k/1"));
    for name in backward.chain(["hdd-4/seq-4k/1".to_owned()]) {
        let run = run_by_defaults(&name);
        assert!(run.device_request_kib_mean.unwrap() >= 128.0, "{name}: {run:?}");
        assert!(run.coverage.unwrap() >= 0.9, "{name}: {run:?}");
    }
}

/// A disk's own read-ahead covers such gaps. Blocks in its cache need no early request, provided
/// that no other policy is faster by more than a tenth. A policy that also reads the gaps must
/// issue larger requests.
#[test]
fn strides_within_disk_readahead_reach_90_percent_of_every_baseline() {
    for name in ["hdd-1/stride-64k-128k/1", "hdd-2/stride-64k-128k/1"] {
        let found = cell_named(name);
        let run = found.run(&Policies::default(), WHOLE).unwrap();
        let amplification = run.amplification.unwrap();
        assert!(run.device_request_kib_mean.unwrap() >= 64.0 * amplification, "{name}: {run:?}");
        assert!(amplification <= 1.8, "{name}: {run:?}");
        for baseline in found.baselines(WHOLE).unwrap() {
            assert!(run.mib_per_s >= 0.9 * baseline.mib_per_s, "{name}: {run:?}, {baseline:?}");
        }
    }
}

/// Requests of 128 KiB at least, although the streams take turns in one file. The memory is the
/// default of the matrix. The devices are one disk, twelve disks, flash and a server.
#[test]
fn thirty_two_streams_on_one_handle_get_large_requests() {
    let pattern = ReadPattern::Interleaved { streams: 32, is_one_handle: true };
    let memory_bytes = 256 << 20;
    for device in
        ["hdd,drive=sata2010", "raid0:12xhdd,hdd.drive=sata2010", "nvme", "nfs:ssd,rtt=5ms"]
    {
        let row = run_one_process(device, pattern, memory_bytes);
        assert!(row.device_request_kib_mean.unwrap() >= 128.0, "{device}: {row:?}");
    }
}

/// A stream of 256 KiB on a disk whose requests cost 250 pages should prefetch √(2 × 250 × 32) =
/// 126 pages in its middle. 128 streams need 16,100 pages, and 32 MiB are half of that. With a
/// fifth, 12 MiB, 5 % are wasted. Each stream has its own file, because in a common file a window
/// at the end of one stream would extend into the next.
#[test]
fn more_streams_than_memory_can_buffer_waste_few_pages() {
    let pattern = ReadPattern::Interleaved { streams: 128, is_one_handle: false };
    let memory_bytes = 32 << 20;
    let row = run_one_process("hdd,drive=sata2010", pattern, memory_bytes);
    let ahead_bytes = row.coverage.unwrap() * row.bytes as f64;
    let waste_share = row.waste_bytes.unwrap() as f64 / ahead_bytes;
    assert!(waste_share <= 0.02, "{waste_share}: {row:?}");
    assert!(row.coverage.unwrap() >= 0.9, "{row:?}");
}

/// A file is read once in order, then eight times at random.
#[test]
fn cached_reads_cost_no_request() {
    for device in ["hdd-1", "ssd", "nfs-5ms"] {
        let run = run_by_defaults(&format!("{device}/cached/1"));
        // One of nine reads of each byte comes from the device.
        assert!(run.amplification.unwrap() <= 1.0 / 9.0 + 1e-9, "{device}: {run:?}");
    }
}
