//! `readpath check-kernel` as a user runs it: its output, and that no traces or files stay behind.
//!
//! Needs root and tracefs; skips with a message without them. Other tests check the
//! policy's decisions with recorded traces.

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::{Ran, Scratch, is_root};

/// True if the kernel can be traced, determined without the command.
fn can_trace(test: &str) -> bool {
    let instances = ["/sys/kernel/tracing/instances", "/sys/kernel/debug/tracing/instances"];
    let can = is_root() && instances.into_iter().any(|folder| Path::new(folder).is_dir());
    if !can {
        println!("skipped: {test} needs root and tracefs");
    }
    can
}

fn instances() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/kernel/tracing/instances").into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn generated_reads_equal_the_kernels_read_by_read() {
    if !can_trace("generated_reads_equal_the_kernels_read_by_read") {
        return;
    }
    let scratch = Scratch::new("conform");
    let mut command = scratch.command(["check-kernel", "--generate", "50", "--seed", "3"]);
    let ran = Ran::of(command.env("TMPDIR", &scratch.0).output().unwrap());
    ran.has_ended(0, "conform");
    assert!(ran.stdout.contains("50 reads, 50 equal, 0 different"), "{}", ran.stdout);
    assert_eq!(ran.stderr, "");
    let mut command = scratch.command(["check-kernel", "--generate", "30", "--mapped", "--json"]);
    let ran = Ran::of(command.env("TMPDIR", &scratch.0).output().unwrap());
    ran.has_ended(0, "check-kernel --mapped");
    let result = &ran.results()[0];
    assert_eq!((&result["reads"], &result["different"]), (&30.into(), &0.into()));
    assert!(scratch.names().is_empty(), "the made file is left: {:?}", scratch.names());
}

#[test]
fn read_list_file_is_replayed() {
    if !can_trace("read_list_file_is_replayed") {
        return;
    }
    let scratch = Scratch::new("own-list");
    scratch.data("data", 1 << 20);
    scratch.file(
        "list",
        "# two reads and a fault\n0 4096\nadvice random\n65536 10\nreopen\ntouch 500000\n",
    );
    let ran = scratch.run("check-kernel --reads list --file data --json");
    ran.has_ended(0, "a list");
    let result = &ran.results()[0];
    assert_eq!((&result["reads"], &result["equal"]), (&3.into(), &3.into()));
}

#[test]
fn interrupted_check_kernel_leaves_no_files_or_trace_instances() {
    if !can_trace("interrupted_check_kernel_leaves_no_files_or_trace_instances") {
        return;
    }
    let scratch = Scratch::new("conform-signal");
    let mut command = scratch.command(["check-kernel", "--generate", "1000000"]);
    command.env("TMPDIR", &scratch.0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let (begun, pid) = (Instant::now(), child.id().to_string());
    while scratch.names().is_empty() && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(1500));
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let ran = Ran::of(child.wait_with_output().unwrap());
    ran.has_ended(130, "interrupted");
    assert_eq!(ran.stdout, "");
    assert!(scratch.names().is_empty(), "the made file is left: {:?}", scratch.names());
    let left = instances().into_iter().filter(|name| name.contains(&pid)).count();
    assert_eq!(left, 0, "a trace instance is left");
}
