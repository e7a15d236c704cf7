//! `advise` as root: the process that waits for the program, and the one that advises it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{READPATH, Ran, Scratch, is_root};

/// Folder of the trace instances.
const INSTANCES: &str = "/sys/kernel/tracing/instances";

/// Time after which a condition counts as missed.
const DEADLINE: Duration = Duration::from_secs(30);

/// Number of trace instances of the process with this number.
fn instances(process: u32) -> usize {
    let prefix = format!("readpath-{process}-");
    let names = fs::read_dir(INSTANCES).into_iter().flatten().flatten().map(|it| it.file_name());
    names.filter(|name| name.to_string_lossy().starts_with(&prefix)).count()
}

/// Waits until a condition is true.
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < DEADLINE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns true if this process may trace.
fn can_trace() -> bool {
    let can = is_root() && Path::new(INSTANCES).is_dir();
    if !can {
        println!("skipped: needs root and tracefs");
    }
    can
}

/// The advising process ends by itself when the waiting one is killed. Its instance had stayed
/// until the next run of the command.
#[test]
fn killed_advise_leaves_no_trace_instance() {
    if !can_trace() {
        return;
    }
    let mut command = Command::new(READPATH).args(["advise", "--", "sleep", "60"]).spawn().unwrap();
    let process = command.id();
    wait_until("an instance", || instances(process) > 0);
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
    command.kill().unwrap();
    command.wait().unwrap();
    wait_until("no instance", || instances(process) == 0);
    // The program runs on, and is ended here.
    for child in children.split_whitespace() {
        let comm = fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
        if comm == "sleep\n" {
            assert!(Command::new("kill").arg(child).status().unwrap().success());
        }
    }
}

/// The program ends before the preparation: the command has its status and says so.
#[test]
fn program_that_ends_before_the_preparation_keeps_its_status() {
    if !can_trace() {
        return;
    }
    let scratch = Scratch::under(&std::env::temp_dir(), "advise-short");
    let arguments = ["advise", "--", "sh", "-c", "echo out; exit 3"];
    let ran = Ran::of(scratch.command(arguments).output().unwrap());
    ran.has_ended(1, "advise");
    assert_eq!(ran.stdout, "out\n");
    let line = "readpath: no page was prefetched: sh ended before the tracing was prepared\n";
    assert!(ran.stderr.starts_with(line), "{}", ran.stderr);
    ran.says(&["sh ended with exit status: 3"], "advise");
}

/// The time is over before the preparation begins, 50 ms after the start of the program, which runs
/// on until its last line.
#[test]
fn time_that_ends_before_the_preparation_is_named_and_no_end_of_the_program() {
    if !can_trace() {
        return;
    }
    let scratch = Scratch::under(&std::env::temp_dir(), "advise-span");
    let arguments = ["advise", "--for", "10ms", "--", "sh", "-c", "sleep 1; echo runs"];
    let ran = Ran::of(scratch.command(arguments).output().unwrap());
    ran.has_ended(0, "advise");
    assert_eq!(ran.stdout, "runs\n");
    let lines = "readpath: no page was prefetched: the time of --for was over before the tracing \
         was prepared\nreadpath: the program runs on\n";
    assert_eq!(ran.stderr, lines);
}

/// Switches of the two trace instances of the process with this number: its own, and the one of its
/// child that advises.
fn switches(process: u32) -> Vec<String> {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
    let owners = children.split_whitespace().map(str::to_owned).chain([process.to_string()]);
    let instance = |owner: String| PathBuf::from(format!("{INSTANCES}/readpath-{owner}-0"));
    let switch = |folder: PathBuf| fs::read_to_string(folder.join("tracing_on")).ok();
    owners.map(instance).filter_map(switch).collect()
}

/// The kernel reports no events of a program that opens short files only, and holds a long one open
/// without reads. It does from the time at which the program has opened another long file. No page
/// of the two is in memory.
#[test]
fn tracing_rests_until_a_long_file_is_open() {
    if !can_trace() {
        return;
    }
    let scratch = Scratch::under(&std::env::temp_dir(), "advise-rest");
    // More files than opens until a rest. The kernel reports two opens of one file as one.
    fs::create_dir(scratch.path("short")).unwrap();
    (0..2_100).for_each(|file| fs::write(scratch.path(&format!("short/{file}")), "x\n").unwrap());
    for name in ["long", "held"] {
        let long = fs::File::open(scratch.data(name, 8 << 20)).unwrap();
        long.sync_all().unwrap();
        rustix::fs::fadvise(&long, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
    // The numbers of rounds end the program if the test fails. In its pauses a debug build catches
    // up with the events.
    let script = "exec 3< held; i=0; while [ ! -e go ] && [ $i -lt 100 ]; do \
         for f in short/*; do read x < $f; done; sleep 0.5; i=$((i+1)); done; \
         exec < long; while [ ! -e end ] && [ $i -lt 400 ]; do sleep 0.1; i=$((i+1)); done";
    let mut command = scratch.command(["advise", "--", "sh", "-c", script]).spawn().unwrap();
    let process = command.id();
    wait_until("a rest", || switches(process) == ["0\n", "0\n"]);
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(switches(process), ["0\n", "0\n"], "the held file ends no rest");
    }
    fs::write(scratch.path("go"), "").unwrap();
    wait_until("events", || switches(process) == ["1\n", "1\n"]);
    fs::write(scratch.path("end"), "").unwrap();
    command.wait().unwrap();
    wait_until("no instance", || instances(process) == 0);
}
