//! Whole runs in virtual time.

use readpath_core::policy::Spec;
use readpath_sim::job::JobFile;
use readpath_sim::report::ResultRow;
use readpath_sim::run::ProgressAnswer;
use readpath_sim::simulate::{SimulationSetup, simulate};

fn run(job: &str, setup: &SimulationSetup) -> ResultRow {
    simulate("test", &JobFile::parse(job).unwrap(), setup, &mut |_| ProgressAnswer::Continue)
        .unwrap()
}

fn setup(device: &str) -> SimulationSetup {
    SimulationSetup::new(Spec::parse(device).unwrap())
}

const RANDOM: &str = "[r]\nrw=randread\nbs=16k\nsize=64m\nioengine=libaio\niodepth=16\n";

#[test]
fn the_same_seed_gives_the_same_decisions_and_another_seed_gives_others() {
    let first = run(RANDOM, &setup("ssd"));
    assert_eq!(first, run(RANDOM, &setup("ssd")));
    let other = run(RANDOM, &SimulationSetup { seed: 2, ..setup("ssd") });
    assert_ne!(first.decisions, other.decisions);
    assert_eq!(first.bytes, other.bytes);
}

/// With `none`, a direct reader and a buffered reader of distinct blocks make the same requests,
/// one per block.
#[test]
fn each_block_is_one_request_without_readahead() {
    for direct in [0, 1] {
        let none = SimulationSetup { readahead: Spec::plain("none"), ..setup("ssd") };
        let row = run(&format!("{RANDOM}direct={direct}\n"), &none);
        assert_eq!(row.bytes, 64 << 20);
        assert_eq!(row.device_requests, Some(4096));
        assert_eq!(row.amplification, Some(1.0));
        assert_eq!(row.waste_bytes, Some(0));
    }
}

/// A sequential reader of 4 KiB with readahead of 128 KiB: the kernel makes
/// 262 requests for the first 32 MiB of a larger file (KERNEL.md, section 2).
#[test]
fn a_sequential_reader_is_read_ahead_in_large_requests() {
    let row = run("[s]\nrw=read\nbs=4k\nsize=32m\nfilesize=1g\nfadvise_hint=0\n", &setup("ssd"));
    assert_eq!(row.device_requests, Some(262));
    assert!(row.amplification.unwrap() < 1.005);
    assert!(row.coverage.unwrap() > 0.6, "{:?}", row.coverage);
}

#[test]
fn stonewall_and_startdelay_delay_later_jobs() {
    let job = "[global]\nrw=read\nbs=64k\nsize=1m\n[a]\n[b]\nstonewall\n[c]\nstartdelay=2\n";
    let row = run(job, &setup("ssd"));
    assert_eq!(row.sections.len(), 3);
    assert_eq!(row.bytes, 3 << 20);
    assert!(row.seconds > 2.0 && row.seconds < 2.1, "{}", row.seconds);
}

#[test]
fn a_mapped_job_faults_page_by_page_and_counts_whole_blocks() {
    let none = SimulationSetup { readahead: Spec::plain("none"), ..setup("ssd") };
    let row = run("[m]\nrw=randread\nbs=64k\nsize=4m\nioengine=mmap\n", &none);
    assert_eq!(row.bytes, 4 << 20);
    assert_eq!(row.device_requests, Some(1024));
    assert_eq!(row.sections[0].iops, Some(64.0 / row.seconds));
}

/// fio 3.33 writes 10 blocks of 7,000 bytes. With `direct=1` it cannot, and reports it.
/// Slices of 256 pages at random places of a mapping: a slice costs few requests on any device. A
/// page by page reader would make 256.
#[test]
fn slices_of_a_mapping_cost_at_most_four_requests_each() {
    const SLICES: u64 = 32;
    let job = "[s]\nrw=randread\nrandom_generator=permutation\nbs=1m\nsize=32m\nioengine=mmap\n";
    for device in ["ssd", "nvme", "hdd", "nfs"] {
        let adaptive = SimulationSetup { readahead: Spec::plain("adaptive"), ..setup(device) };
        let row = run(job, &adaptive);
        assert!(row.device_requests.unwrap() <= 4 * SLICES, "{device}: {:?}", row.device_requests);
        assert_eq!(row.device_bytes, Some(SLICES << 20), "{device}");
    }
}

#[test]
fn a_buffered_write_of_any_size_is_written() {
    for device in ["ssd", "hdd", "nfs"] {
        for (bs, size) in [(7_000, 70_000), (512, 4_096), (100, 1_000), (5_000, 25_000)] {
            let job = format!("[w]\nrw=write\nbs={bs}\nsize={size}\n");
            let row = run(&job, &setup(device));
            assert_eq!((row.bytes, row.errors), (size, 0), "{device}, {bs}: {:?}", row.first_error);
        }
        let direct = run("[w]\nrw=write\nbs=7000\nsize=70000\ndirect=1\n", &setup(device));
        assert_eq!((direct.bytes, direct.errors), (0, 10), "{device}");
    }
}

#[test]
fn rest_of_a_short_transfer_is_requested_again() {
    for rw in ["read", "randread", "write"] {
        for direct in [0, 1] {
            let job = format!("[j]\nrw={rw}\nbs=64k\nsize=4m\ndirect={direct}\n");
            let row = run(&job, &setup("faulty:ssd,short_every=3"));
            assert_eq!((row.bytes, row.errors), (4 << 20, 0), "{job}: {:?}", row.first_error);
        }
    }
    // A sector has no half: after six failed attempts the read fails, as on a disk in Linux.
    let job = "[j]\nrw=read\nbs=512\nsize=1k\ndirect=1\n";
    assert_eq!(run(job, &setup("faulty:ssd,short_every=1")).errors, 2);
}

#[test]
fn sync_waits_for_the_write_cache_of_the_drive() {
    let seconds = |sync: &str| {
        let job = format!("[w]\nrw=randwrite\nbs=4k\nsize=1g\nio_size=256k\ndirect=1\n{sync}");
        run(&job, &setup("hdd,drive=sata")).seconds
    };
    // 64 writes fit into the cache. A single flushed one waits for half a revolution (4.2 ms) and
    // more.
    let (never, once, each) = (seconds(""), seconds("end_fsync=1"), seconds("fsync=1"));
    assert!(never < 0.02 && once > 0.1, "{never}, {once}, {each}");
    assert!(each > 64.0 * 0.0042, "{each}");
}

/// Every write to the medium fails. A pause of 1 s follows each of the 32 writes, and a sync
/// follows the pause of each but the last. RFC 1813 has `COMMIT` fail with `NFS3ERR_IO`, and
/// fsync(2) with `EIO`. The memory of an array survives a loss of power, so its syncs do not wait.
/// The write-back has ended in the pause, and each of the 31 syncs reports it. A member with memory
/// of its own reports the error to the flush that follows a sync, so all but the first sync report
/// one.
#[test]
fn sync_after_a_lost_write_fails() {
    let job = "[w]\nrw=write\nbs=64k\nsize=2m\ndirect=1\nfsync=1\nthinktime=1s\n";
    for (device, errors) in [
        ("smr:faulty:hdd,faulty:hdd.fail_every=1", 31),
        ("nfs:faulty:hdd,faulty:hdd.fail_every=1", 31),
        ("array:1xfaulty:hdd,faulty:hdd.fail_every=1", 31),
        ("array:1xsmr:faulty:hdd,faulty.fail_every=1", 30),
        ("array:1xsmr:faulty:hdd,faulty.fail_every=1,write_cache=0", 31),
    ] {
        let row = run(job, &setup(device));
        assert_eq!(row.errors, errors, "{device}");
        let error = "sync: the storage could not read or write this range (EIO)";
        assert_eq!(row.first_error.as_deref(), Some(error), "{device}");
    }
}

/// Returns the rate and the longest latency of the section `other` next to 64 random readers, for a
/// run of `seconds`.
fn next_to_readers(device: &str, other: &str, seconds: u32) -> (f64, f64) {
    let job = format!(
        "[global]\ndirect=1\nsize=4g\ntime_based=1\nruntime={seconds}s\n\
         [readers]\nrw=randread\nbs=4k\nnumjobs=64\n[other]\nbs=64k\n{other}\n"
    );
    let setup = SimulationSetup {
        scheduler: Spec::plain("noop"),
        readahead: Spec::plain("none"),
        ..setup(device)
    };
    let row = run(&job, &setup);
    let other = row.sections.iter().find(|section| section.name == "other").unwrap();
    (other.iops.unwrap(), other.latency_us.max.unwrap() / 1e6)
}

/// 64 readers keep reads queued at all times. A write to a full cache, and a stream that waits for
/// its read-ahead, wait as long in a run of 2 s as in one of 6 s. A cache makes writes no slower.
#[test]
fn array_bounds_the_wait_for_write_back_and_read_ahead() {
    let array = "array:12xhdd,write_cache=1m";
    for other in ["rw=randwrite", "rw=read"] {
        for seconds in [2, 6] {
            let (rate, longest) = next_to_readers(array, other, seconds);
            assert!(longest < 0.2, "{other}: {longest} s of {seconds} s, {rate}/s");
        }
    }
    let rate = |device| next_to_readers(device, "rw=randwrite", 2).0;
    let (cached, direct) = (rate(array), rate("array:12xhdd,write_cache=0"));
    assert!(cached >= direct, "{cached} writes/s with a cache, {direct} without");
}

#[test]
fn stopped_run_is_reported_as_interrupted() {
    let job = JobFile::parse("[r]\nrw=randread\nbs=4k\nsize=1g\ndirect=1\n").unwrap();
    let row = simulate("test", &job, &setup("ssd"), &mut |_| ProgressAnswer::Stop).unwrap();
    assert!(row.bytes < 1 << 30);
    assert_eq!(row.note.as_deref(), Some("interrupted before its end"));
}

/// Stopped at the first check, with one job running and one not started.
#[test]
fn stopped_run_finishes_requests_in_flight_and_starts_no_more_jobs() {
    let job = "[global]\nrw=randread\nbs=4k\nsize=64m\nioengine=libaio\niodepth=8\n\
               [a]\n[b]\nstonewall\n";
    let job = JobFile::parse(job).unwrap();
    let row = simulate("test", &job, &setup("ssd"), &mut |_| ProgressAnswer::Stop).unwrap();
    assert_eq!(row.note.as_deref(), Some("interrupted before its end"));
    assert!(row.sections[0].bytes > 0 && row.sections[0].bytes < 64 << 20);
    assert_eq!((row.sections[1].bytes, row.errors), (0, 0));
}

/// A process with only cache hits never waits. Another one, with device reads, must still receive
/// its completions.
#[test]
fn process_that_never_waits_does_not_delay_other_completions() {
    let job = "[global]\nruntime=20ms\ntime_based=1\nbs=4k\n\
               [cached]\nrw=read\nsize=64k\n[direct]\nrw=randread\nsize=1m\ndirect=1\n";
    let row = run(job, &setup("ssd"));
    let [cached, direct] = &row.sections[..] else { panic!("two jobs") };
    // About 100 µs each, independent of the other: some 200 reads in 20 ms.
    assert!(direct.bytes > 150 * 4096, "{} bytes past the cache", direct.bytes);
    assert!(cached.bytes > 10 * direct.bytes);
}

/// Two processes read 1 MiB each. The ramp time ends 3 ms before the slower one. fio counts each
/// process by itself: all reads of the one without measured reads, and the other's last two.
#[test]
fn process_that_ends_in_its_ramp_time_counts_in_full() {
    let job = "[j]\nrw=randread\nbs=4k\nsize=1m\nnumjobs=2\nioengine=psync\ndirect=1\n";
    let whole = run(job, &setup("hdd"));
    let ramp_us = (whole.seconds * 1e6) as u64 - 3_000;
    let row = run(&format!("{job}ramp_time={ramp_us}us\n"), &setup("hdd"));
    let mut of_processes: Vec<u64> = row.streams.iter().map(|stream| stream.bytes).collect();
    of_processes.sort_unstable();
    assert_eq!(of_processes, [2 * 4096, 1 << 20]);
    assert_eq!((row.bytes, row.sections[0].bytes), (1_056_768, 1_056_768));
}
