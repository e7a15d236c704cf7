//! Programs that read through mappings: their reads in `explain`, `replay`, `recording export` and
//! `advise`.
//!
//! The expected bytes are the ones that each program touches. Linux 6.18 maps up to 2 MiB for one
//! touch of a file that is read in order, and reports one page of it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::programs::{DATA_BYTES, Program, data, random_access};
use crate::support::{Ran, Scratch};
use crate::{can_watch, run_advised, watch};

const PAGE: usize = 4096;
const MIB: f64 = 1_048_576.0;

/// Number of touches of the program that touches scattered pages.
const SCATTERED: u64 = 1000;

/// Programs, each with its part of the file.
pub const PROGRAMS: [Program; 9] = [
    Program { name: "mapping in order", run: in_order },
    Program { name: "mapping backward", run: backward },
    Program { name: "mapping with huge pages", run: huge },
    Program { name: "mapping populated", run: populated },
    Program { name: "mapping fetched by advice", run: willneed },
    Program { name: "mapping in two processes", run: two_processes },
    Program { name: "two mappings of one file", run: two_mappings },
    Program { name: "mapping of what is in memory", run: warm },
    Program { name: "mapping at scattered pages", run: at_scattered },
];

/// Maps the file `data` with these flags.
fn mapped(file: &File, first: u64, bytes: usize, flags: i32) -> &'static [u8] {
    let flags = libc::MAP_SHARED | flags;
    // SAFETY: a new mapping of a file that no process writes to or cuts.
    unsafe {
        let start = libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ,
            flags,
            file.as_raw_fd(),
            first as i64,
        );
        assert_ne!(start, libc::MAP_FAILED);
        std::slice::from_raw_parts(start.cast(), bytes)
    }
}

fn whole(folder: &Path, flags: i32) -> &'static [u8] {
    mapped(&data(folder, 0), 0, DATA_BYTES as usize, flags)
}

fn advise(memory: &[u8], advice: i32) -> bool {
    // SAFETY: the mapping exists, and advice does not change its bytes.
    unsafe { libc::madvise(memory.as_ptr().cast_mut().cast(), memory.len(), advice) == 0 }
}

fn sum(memory: &[u8]) {
    let sum: u64 = memory.chunks(512).map(|part| u64::from(part[0])).sum();
    std::hint::black_box(sum);
}

fn in_order(folder: &Path) {
    sum(whole(folder, 0));
}

fn backward(folder: &Path) {
    let memory = whole(folder, 0);
    memory.chunks(PAGE).rev().for_each(sum);
}

fn huge(folder: &Path) {
    let memory = whole(folder, 0);
    advise(memory, libc::MADV_HUGEPAGE);
    sum(memory);
}

fn populated(folder: &Path) {
    sum(whole(folder, libc::MAP_POPULATE));
}

fn willneed(folder: &Path) {
    let memory = whole(folder, 0);
    assert!(advise(memory, libc::MADV_WILLNEED));
    sum(memory);
}

fn two_processes(folder: &Path) {
    let memory = whole(folder, 0);
    let (one, other) = memory.split_at(memory.len() / 2);
    // SAFETY: the child only computes and ends; it uses no state of other threads.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        sum(one);
        // SAFETY: the call ends the process.
        unsafe { libc::_exit(0) };
    }
    sum(other);
    // SAFETY: the child's process id, and no pointer for its status.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
}

fn two_mappings(folder: &Path) {
    let file = data(folder, 0);
    let half = DATA_BYTES / 2;
    let [one, other] = [0, half].map(|first| mapped(&file, first, half as usize, 0));
    for (one, other) in one.chunks(64 * PAGE).zip(other.chunks(64 * PAGE)) {
        sum(one);
        sum(other);
    }
}

fn warm(folder: &Path) {
    let file = File::open(folder.join("data")).unwrap();
    sum(mapped(&file, 0, DATA_BYTES as usize, 0));
    // The page map has the sizes of folios that were in memory before. It ends with the process.
    std::thread::sleep(Duration::from_millis(100));
}

fn at_scattered(folder: &Path) {
    let memory = whole(folder, 0);
    for page in random_access(DATA_BYTES / PAGE as u64).take(SCATTERED as usize) {
        std::hint::black_box(memory[page as usize * PAGE]);
    }
}

/// Makes the file `data`. The cache drops only pages that have been written to the device.
fn make_data(scratch: &Scratch) {
    scratch.data("data", DATA_BYTES as usize);
    File::open(scratch.path("data")).unwrap().sync_all().unwrap();
}

fn json(ran: &Ran, what: &str) -> Value {
    ran.has_ended(0, what);
    serde_json::from_str(&ran.stdout).unwrap()
}

/// Number of runs until one has no lost event.
const RUNS_MAX: usize = 8;

/// Records a program; `None` where the kernel dropped events each time.
fn recorded(scratch: &Scratch, program: &Program) -> Option<Value> {
    for _ in 0..RUNS_MAX {
        watch(scratch, "-o reads.rec", program);
        let explained = json(&scratch.run("explain reads.rec --json"), program.name);
        if explained["lost"] == 0 {
            return Some(explained);
        }
    }
    println!("skipped: {}: the kernel dropped events in each run", program.name);
    None
}

/// Bytes of the file `data` that an iolog reads.
fn exported(scratch: &Scratch) -> f64 {
    let log = scratch.run("recording export reads.rec --as iolog");
    log.has_ended(0, "export");
    let reads = log.stdout.lines().filter_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        (words.get(2) == Some(&"read") && words[1].ends_with("/data")).then(|| words[4])
    });
    reads.map(|bytes| bytes.parse::<f64>().unwrap()).sum()
}

fn causes(explained: &Value) -> Vec<&str> {
    let findings = explained["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["cause"].as_str().unwrap()).collect()
}

/// Nearly all of the file is read by each program but the last one. No pages count as fetched and
/// unused.
#[test]
fn fully_read_mapping_is_recorded_in_full() {
    let scratch = Scratch::new("watch-mappings");
    if !can_watch(&scratch) {
        return;
    }
    make_data(&scratch);
    for program in &PROGRAMS[..8] {
        let Some(explained) = recorded(&scratch, program) else { continue };
        let name = program.name;
        let shape = &explained["shape"];
        println!("{name}: {:?} {}", causes(&explained), shape["got_bytes"]);
        let of_file = |bytes: f64| bytes / DATA_BYTES as f64;
        assert!(!causes(&explained).contains(&"over_read"), "{name}: {explained}");
        assert!(!explained.to_string().contains("MADV_RANDOM"), "{name}: {explained}");
        assert!(of_file(shape["unused_bytes"].as_f64().unwrap()) < 0.02, "{name}: {shape}");
        // A populated range is used without a fault: its use is not known, and reported so.
        let known = shape["got_bytes"].as_f64().unwrap();
        let possible = known + shape["mapped_bytes"].as_f64().unwrap();
        assert!((0.98..1.1).contains(&of_file(possible)), "{name}: {shape}");
        if name != "mapping populated" {
            assert!((0.97..1.1).contains(&of_file(known)), "{name}: {shape}");
            let exported = of_file(exported(&scratch));
            assert!((0.97..1.1).contains(&exported), "{name}: {exported} exported");
        }
    }
}

/// A replay reads as much as the program did.
#[test]
fn sequential_mapping_replay_reads_the_whole_file() {
    let scratch = Scratch::new("watch-mappings-replay");
    if !can_watch(&scratch) {
        return;
    }
    make_data(&scratch);
    if recorded(&scratch, &PROGRAMS[0]).is_none() {
        return;
    }
    let ran = scratch.run("replay reads.rec --on nvme --json");
    ran.has_ended(0, "replay");
    let rows = ran.results();
    let bytes = rows[1]["device_bytes"].as_f64().unwrap();
    assert!((0.97..1.1).contains(&(bytes / DATA_BYTES as f64)), "{rows:?}");
}

/// A thousand touches: 4 KiB each is requested, at most 64 KiB is mapped, and megabytes are
/// fetched.
#[test]
fn scattered_touches_count_at_most_the_mapped_bytes_as_used() {
    let scratch = Scratch::new("watch-mappings-scattered");
    if !can_watch(&scratch) {
        return;
    }
    make_data(&scratch);
    let Some(explained) = recorded(&scratch, &PROGRAMS[8]) else { return };
    let shape = &explained["shape"];
    let [got, fetched, mapped, unused] =
        ["got_bytes", "fetched_bytes", "mapped_bytes", "unused_bytes"]
            .map(|name| shape[name].as_f64().unwrap() / MIB);
    // The libraries of the test program are partly read too.
    assert!((3.5..16.0).contains(&got), "{shape}");
    let touched = SCATTERED as f64 * 65_536.0 / MIB;
    assert!(got + mapped <= touched + 16.0, "{shape}");
    assert!((fetched - unused) <= touched + 16.0, "{shape}");
    // How the waits are divided between the two causes depends on the device. Other programs may
    // write to it meanwhile.
    let causes = causes(&explained);
    let is_right = |cause: &&str| ["over_read", "depth", "writers"].contains(cause);
    assert!(causes.iter().all(is_right), "{explained}");
    let [waited, seconds] = ["waited_seconds", "seconds"].map(|it| explained[it].as_f64().unwrap());
    assert!(waited < 0.2 * seconds || !causes.is_empty(), "{explained}");
}

/// Pages that are brought in for a mapping that is read in order are used.
#[test]
fn advice_for_a_sequential_mapping_counts_prefetched_pages_as_used() {
    let scratch = Scratch::new("watch-mappings-advise");
    if !can_watch(&scratch) {
        return;
    }
    make_data(&scratch);
    let ran = run_advised(&scratch, "--memory 64MiB", &PROGRAMS[0]);
    println!("{}", ran.stderr);
    let Some(line) = ran.stderr.lines().find(|line| line.contains("brought in ")) else { return };
    let [brought, used, ..] = crate::mib(line)[..] else { panic!("{}", ran.stderr) };
    assert!(used >= 0.8 * brought || brought < 8.0, "{}", ran.stderr);
}
