//! Raw jobs in virtual time.

use readpath_core::policy::Spec;
use readpath_sim::job::JobFile;
use readpath_sim::report::ResultRow;
use readpath_sim::run::ProgressAnswer;
use readpath_sim::simulate::{SimulateError, SimulationSetup, simulate};

fn try_run(job: &str, raw: &str, device: &str) -> Result<ResultRow, SimulateError> {
    let setup = SimulationSetup {
        chunking: Spec::parse(raw).unwrap(),
        ..SimulationSetup::new(Spec::parse(device).unwrap())
    };
    simulate("test", &JobFile::parse(job).unwrap(), &setup, &mut |_| ProgressAnswer::Continue)
}

fn run(job: &str, raw: &str, device: &str) -> ResultRow {
    try_run(job, raw, device).unwrap()
}

const READ: &str = "[r]\nrw=read\nbs=4m\nsize=8m\nioengine=raw\n";

/// 8 MiB are 128 chunks of 64 KiB or 16 of 512 KiB, each one request. The policy sets the queue
/// depth.
#[test]
fn each_chunk_is_one_request_and_the_policy_sets_the_depth() {
    for (raw, requests, depth) in [
        ("kiobuf,chunk=64KiB", 128, 1),
        ("kiobuf", 16, 1),
        ("ring", 16, 4),
        ("ring,chunk=64KiB,depth=8", 128, 8),
    ] {
        for job in [READ.to_owned(), READ.replace("=read", "=write")] {
            let row = run(&job, raw, "ssd");
            assert_eq!((row.bytes, row.errors), (8 << 20, 0), "{raw}");
            assert_eq!((row.device_requests, row.device_depth_max), (Some(requests), Some(depth)));
            assert_eq!(row.raw.as_deref(), Some(raw));
            assert_eq!(row.engine.as_deref(), Some("raw direct"));
        }
    }
}

/// 16 chunks of 128 pages: 16 × 740 ns + 2,048 × 57 ns. The policy changes the time of this work,
/// not its amount.
#[test]
fn pinning_is_charged_by_the_chunk_and_the_page() {
    for raw in ["kiobuf", "ring"] {
        assert_eq!(run(READ, raw, "ssd").host_seconds, Some(0.000_128_576), "{raw}");
    }
    assert!(run(READ, "ring", "ssd").seconds < run(READ, "kiobuf", "ssd").seconds);
}

/// The second operation of a process begins after the first. Two processes do not wait for each
/// other.
#[test]
fn processes_transfer_in_parallel() {
    let one = run(READ, "kiobuf", "raid0:2xssd,stripe=512k");
    let two = run(&format!("{READ}numjobs=2\n"), "kiobuf", "raid0:2xssd,stripe=512k");
    assert_eq!((two.bytes, two.device_depth_max), (16 << 20, Some(2)));
    assert!(two.seconds < 1.9 * one.seconds, "{} and {}", two.seconds, one.seconds);
}

#[test]
fn unaligned_transfers_are_covered_by_whole_blocks() {
    let row = run(
        "[r]\nrw=read\nbs=1000000\nsize=1000000\noffset=100\nfilesize=2m\nioengine=raw\n",
        "ring",
        "ssd",
    );
    assert_eq!((row.bytes, row.errors), (1_000_000, 0));
    // From block 0 to block 1954 of 512 bytes.
    assert_eq!(row.device_bytes, Some(1954 * 512));
    let row = run("[w]\nrw=write\nbs=1000\nsize=1000\nioengine=raw\n", "ring", "ssd");
    assert!(row.first_error.unwrap().contains("1000"), "a block device takes no part of a block");
}

/// Every third request fails. Exactly the operations that needed it fail, and report their bytes.
#[test]
fn a_device_error_fails_the_operation_that_needed_the_chunk() {
    let job = "[r]\nrw=read\nbs=1m\nsize=6m\nioengine=raw\n";
    for raw in ["kiobuf", "ring"] {
        let row = run(job, raw, "faulty:ssd,fail_every=7");
        // The 7th of 12 chunks fails (at 3 MiB). Its retry is another request.
        assert!(row.errors >= 1 && row.errors < 6, "{raw}: {}", row.errors);
        assert_eq!(row.bytes, (6 - row.errors) << 20);
        assert!(row.first_error.unwrap().contains("EIO"));
    }
}

#[test]
fn a_bad_policy_is_refused_before_the_run() {
    let error = try_run(READ, "rings", "ssd").unwrap_err().to_string();
    assert!(error.contains("there is no raw I/O policy `rings`"), "{error}");
}

#[test]
fn the_same_run_twice_decides_the_same() {
    assert_eq!(run(READ, "ring", "hdd"), run(READ, "ring", "hdd"));
}
