//! Sampling of the user's own running process without root.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::PROGRAM;
use crate::preload::as_nobody;
use crate::support::{Ran, Scratch, is_root};

/// Length of the file that the program below creates, and of the part it reads sequentially.
const FILE_BYTES: usize = 4 << 20;
const READ_BYTES: usize = 3 << 20;

/// Program for the test below: creates a file, and reads a part of it on request.
#[test]
#[ignore = "it is a program for the other tests"]
fn waiting_reader() {
    if std::env::var_os(PROGRAM).is_none() {
        return;
    }
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create_new(true).open("own").unwrap();
    file.write_all(&vec![7; FILE_BYTES]).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut file = fs::File::open("own").unwrap();
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    file.read_exact(&mut vec![0; READ_BYTES]).unwrap();
    println!("done");
    std::io::stdin().read_line(&mut line).unwrap();
}

/// Child process that does not outlive the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn say_on(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"on\n").unwrap();
    }
}

fn wait_for(lines: &mut impl BufRead, what: &str) -> bool {
    let mut line = String::new();
    while lines.read_line(&mut line).unwrap() > 0 {
        if line.contains(what) {
            return true;
        }
        line.clear();
    }
    false
}

#[test]
fn own_running_process_is_sampled_without_root() {
    let scratch = Scratch::under(&std::env::temp_dir(), "sampled");
    let own = std::env::current_exe().unwrap();
    let mut program = Command::new(own);
    program
        .args([
            "--exact",
            "sampled::waiting_reader",
            "--ignored",
            "--test-threads=1",
            "--nocapture",
        ])
        .env(PROGRAM, "waiting_reader")
        .current_dir(&scratch.0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    if is_root() {
        program.uid(65_534).gid(65_534);
    }
    let arguments = ["record", "--pid"];
    let Some(mut watch) = as_nobody(&scratch, &arguments) else {
        return println!("skipped: no setpriv(1)");
    };
    let mut program = match program.spawn() {
        Ok(program) => Running(program),
        Err(error) => return println!("skipped: {error}"),
    };
    let mut said = BufReader::new(program.0.stdout.take().unwrap());
    assert!(wait_for(&mut said, "ready"));
    let number = program.0.id().to_string();
    watch.arg(&number).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut watch = Running(watch.spawn().unwrap());
    let mut errors = BufReader::new(watch.0.stderr.take().unwrap());
    if !wait_for(&mut errors, "not root") {
        return println!("skipped: another user may not enter the build's folder");
    }
    program.say_on();
    assert!(wait_for(&mut said, "done"));
    // Long enough for a sample before the program ends.
    std::thread::sleep(Duration::from_secs(2));
    program.say_on();
    program.0.wait().unwrap();
    let mut report = String::new();
    watch.0.stdout.take().unwrap().read_to_string(&mut report).unwrap();
    assert!(watch.0.wait().unwrap().success(), "{report}");
    let row =
        report.lines().find(|line| line.contains("/own ")).unwrap_or_else(|| panic!("{report}"));
    let cells: Vec<&str> = row.split_whitespace().collect();
    // Path, how, size, moved, and the pages cached first: none, if the file system lets its pages
    // be dropped.
    assert_eq!(cells[1..4], ["open", "4.0", "3.0"], "{report}");
    if cells[4] == "0.0" {
        let came: f64 = cells[6].parse().unwrap();
        assert!((3.0..=4.0).contains(&came), "{report}");
    }
    assert!(
        report.contains("is not known") && report.contains("Counted by the kernel"),
        "{report}"
    );
}

#[test]
fn sampled_process_with_output_option_is_refused() {
    let scratch = Scratch::under(&std::env::temp_dir(), "sampled-output");
    let mut sleep = Command::new("sleep");
    sleep.arg("60");
    if is_root() {
        sleep.uid(65_534).gid(65_534);
    }
    let sleep = Running(sleep.spawn().unwrap());
    let number = sleep.0.id().to_string();
    let Some(mut watch) = as_nobody(&scratch, &["record", "-o", "r.rec", "--pid", &number]) else {
        return println!("skipped: no setpriv(1)");
    };
    let ran = Ran::of(watch.output().unwrap());
    if ran.stderr.contains("ermission denied") {
        return println!("skipped: another user may not enter the build's folder");
    }
    ran.has_ended(2, "watch");
    ran.says(&["-o r.rec", "leave it out"], "watch");
    assert!(!scratch.path("r.rec").exists());
}
