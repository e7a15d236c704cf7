//! `advise` as root: the process that waits for the program, and the one that advises it.

use std::fs;
use std::path::Path;
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
