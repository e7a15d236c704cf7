//! Whole runs in virtual time.

use readpath_core::law::Spec;
use readpath_sim::job::JobFile;
use readpath_sim::report::Row;
use readpath_sim::run::Go;
use readpath_sim::simulate::{Setup, simulate};

fn run(job: &str, setup: &Setup) -> Row {
    simulate("test", &JobFile::parse(job).unwrap(), setup, &mut |_| Go::On).unwrap()
}

fn setup(device: &str) -> Setup {
    Setup::new(Spec::parse(device).unwrap())
}

const RANDOM: &str = "[r]\nrw=randread\nbs=16k\nsize=64m\nioengine=libaio\niodepth=16\n";

#[test]
fn the_same_seed_gives_the_same_decisions_and_another_seed_gives_others() {
    let first = run(RANDOM, &setup("ssd"));
    assert_eq!(first, run(RANDOM, &setup("ssd")));
    let other = run(RANDOM, &Setup { seed: 2, ..setup("ssd") });
    assert_ne!(first.decisions, other.decisions);
    assert_eq!(first.bytes, other.bytes);
}

/// With `none`, a direct reader and a buffered reader of distinct blocks make
/// the same requests: one each.
#[test]
fn without_readahead_each_block_is_one_request() {
    for direct in [0, 1] {
        let none = Setup { readahead: Spec::plain("none"), ..setup("ssd") };
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
fn a_barrier_and_a_delay_hold_jobs_back() {
    let job = "[global]\nrw=read\nbs=64k\nsize=1m\n[a]\n[b]\nstonewall\n[c]\nstartdelay=2\n";
    let row = run(job, &setup("ssd"));
    assert_eq!(row.sections.len(), 3);
    assert_eq!(row.bytes, 3 << 20);
    assert!(row.seconds > 2.0 && row.seconds < 2.1, "{}", row.seconds);
}

#[test]
fn a_mapped_job_faults_page_by_page_and_counts_whole_blocks() {
    let none = Setup { readahead: Spec::plain("none"), ..setup("ssd") };
    let row = run("[m]\nrw=randread\nbs=64k\nsize=4m\nioengine=mmap\n", &none);
    assert_eq!(row.bytes, 4 << 20);
    assert_eq!(row.device_requests, Some(1024));
    assert_eq!(row.sections[0].iops, Some(64.0 / row.seconds));
}

#[test]
fn a_stopped_run_says_so() {
    let job = JobFile::parse("[r]\nrw=randread\nbs=4k\nsize=1g\ndirect=1\n").unwrap();
    let row = simulate("test", &job, &setup("ssd"), &mut |_| Go::Stop).unwrap();
    assert!(row.bytes < 1 << 30);
    assert_eq!(row.note.as_deref(), Some("interrupted before its end"));
}

/// Ended at the first look, with one job under way and one held back.
#[test]
fn a_run_that_is_told_to_stop_waits_for_what_is_under_way_and_begins_nothing() {
    let job = "[global]\nrw=randread\nbs=4k\nsize=64m\nioengine=libaio\niodepth=8\n\
               [a]\n[b]\nstonewall\n";
    let job = JobFile::parse(job).unwrap();
    let row = simulate("test", &job, &setup("ssd"), &mut |_| Go::Stop).unwrap();
    assert_eq!(row.note.as_deref(), Some("interrupted before its end"));
    assert!(row.sections[0].bytes > 0 && row.sections[0].bytes < 64 << 20);
    assert_eq!((row.sections[1].bytes, row.errors), (0, 0));
}
