//! `bench/loop_schedulers.py` in small form: our schedulers next to the kernel's.
//!
//! Needs root, FUSE, a loop device with schedulers, and Python; says so and skips where one of them
//! is missing.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::disk::LoopDevice;
use support::serve::can_mount;
use support::{READPATH, Scratch};

/// Schedulers of the kernel that are compared, besides `none`.
const SCHEDULERS: [&str; 3] = ["mq-deadline", "kyber", "bfq"];

/// True if the measurement can run here. Otherwise prints the reason.
fn can_run(test: &str) -> bool {
    if !can_mount(test) {
        return false;
    }
    let scratch = Scratch::new(&format!("{test}-probe"));
    let has_schedulers = LoopDevice::over(&scratch.data("file", 1 << 20)).is_some_and(|device| {
        let setting = device.readahead_setting().with_file_name("scheduler");
        let names = fs::read_to_string(setting).unwrap_or_default();
        SCHEDULERS.iter().all(|name| names.contains(name))
    });
    let has_python = Command::new("python3").arg("--version").output().is_ok();
    if !has_schedulers || !has_python {
        println!("skipped: {test} needs Python, and loop devices with {}", SCHEDULERS.join(", "));
    }
    has_schedulers && has_python
}

/// Runs the script in small form with this command. Its temporary files are in `scratch`.
fn measure(scratch: &Scratch, command: &Path) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/loop_schedulers.py");
    let mut python = Command::new("python3");
    python.arg(script).args(["--small", "--command"]).arg(command).env("TMPDIR", &scratch.0);
    python.output().unwrap()
}

/// Asserts that no mount and no loop device of the script is left.
fn assert_cleaned_up(scratch: &Scratch) {
    let folder = scratch.0.to_str().unwrap();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(folder), "a mount is left in {folder}");
    for entry in fs::read_dir("/sys/block").unwrap() {
        let backing: PathBuf = entry.unwrap().path().join("loop/backing_file");
        let file = fs::read_to_string(&backing).unwrap_or_default();
        assert!(!file.contains(folder), "{} is left: {file}", backing.display());
    }
    assert_eq!(scratch.names(), [""; 0], "files are left");
}

/// The program needs all its 16 reads under every scheduler, the kernel's and ours. In virtual time
/// it is ready first under `bfq`, as it is published for the kernel's.
#[test]
fn start_of_a_program_is_measured_under_the_schedulers_of_the_kernel_and_ours() {
    if !can_run("start-of-a-program") {
        return;
    }
    let scratch = Scratch::new("loop-schedulers");
    let output = measure(&scratch, Path::new(READPATH));
    let [stdout, stderr] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    assert!(output.status.success(), "{stderr}");
    let figures = |name: &str| -> Vec<f64> {
        let line = stdout.lines().find(|line| line.split_whitespace().next() == Some(name));
        let words = line.unwrap_or_else(|| panic!("no {name} in {stdout}")).split_whitespace();
        words.skip(1).filter_map(|word| word.parse().ok()).collect()
    };
    let (none, bfq) = (figures("none"), figures("bfq"));
    assert!(none.len() == 3 && none.iter().all(|&seconds| seconds > 0.0), "{stdout}");
    assert!(bfq.len() == 3 && 2.0 * bfq[2] < none[2], "{stdout}");
    assert_eq!([figures("mq-deadline").len(), figures("kyber").len()], [2, 2], "{stdout}");
    assert!(stdout.contains("order, modelled: "), "{stdout}");
    assert_cleaned_up(&scratch);
}

/// A command that emulates the disk and fails at each job.
#[test]
fn failed_measurement_leaves_neither_loop_device_nor_mount() {
    if !can_run("failed-measurement") {
        return;
    }
    let (scratch, commands) = (Scratch::new("loop-failed"), Scratch::new("loop-command"));
    let script = format!("#!/bin/sh\n[ \"$1\" = emulate ] && exec {READPATH} \"$@\"\nexit 7\n");
    let command = commands.file("failing", script);
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&command, executable).unwrap();
    let output = measure(&scratch, &command);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("exit status 7"), "{output:?}");
    assert_cleaned_up(&scratch);
}
