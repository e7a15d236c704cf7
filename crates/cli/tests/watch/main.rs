//! `readpath watch` and `readpath explain`, end to end: real programs with known faults.
//!
//! Needs root and tracefs; says so and skips where they are not.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

#[path = "../support/mod.rs"]
mod support;

mod programs;

use programs::{DATA_BYTES, FEW, FEW_BYTES, PROGRAMS, Program};
use support::{READPATH, Ran, Scratch, is_root};

/// Says which program this process is.
const PROGRAM: &str = "READPATH_TEST_PROGRAM";

/// Started by the test below, as a process to be watched.
#[test]
#[ignore = "it is a program for the other tests"]
fn program() {
    let Some(name) = std::env::var_os(PROGRAM) else { return };
    let is_this = |program: &&Program| program.name == name.to_str().unwrap();
    let program = PROGRAMS.iter().find(is_this).expect("a program is known by its name");
    (program.run)(Path::new("."));
}

fn can_watch(scratch: &Scratch) -> bool {
    let ran =
        Ran::of(scratch.command(["watch", "-o", "probe.rec", "--", "true"]).output().unwrap());
    if ran.code == Some(3) {
        println!("skipped: {}", ran.stderr.trim());
        return false;
    }
    ran.has_ended(0, "watch true");
    true
}

/// A modelled hard disk behind a file, until it is dropped.
struct SlowFile(Child);

impl SlowFile {
    fn serve(folder: &Path) -> Option<SlowFile> {
        fs::create_dir(folder).unwrap();
        let mut serve = Command::new(READPATH);
        serve.args(["serve", "hdd", "--size", "64M", "--at"]).arg(folder);
        let mut child = serve.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let served = SlowFile(child);
        line.starts_with("ready").then_some(served)
    }
}

impl Drop for SlowFile {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

fn watched(scratch: &Scratch, program: &Program) -> serde_json::Value {
    let mut watch = scratch.command(["watch", "-o", "reads.rec", "--"]);
    watch.arg(std::env::current_exe().unwrap());
    watch.args(["--exact", "program", "--ignored", "--nocapture"]).env(PROGRAM, program.name);
    let ran = Ran::of(watch.output().unwrap());
    ran.has_ended(0, program.name);
    let explained = scratch.run("explain reads.rec --json");
    explained.has_ended(0, program.name);
    serde_json::from_str(&explained.stdout).unwrap()
}

#[test]
fn the_cause_that_costs_most_is_named_and_no_other_where_there_is_none() {
    let scratch = Scratch::new("watch-programs");
    if !can_watch(&scratch) {
        return;
    }
    scratch.data("data", DATA_BYTES as usize);
    for number in 0..FEW {
        scratch.data(&format!("few-{number}"), FEW_BYTES as usize);
    }
    // What is still to be written to the device would stand in the way of the reads.
    assert!(Command::new("sync").status().unwrap().success());
    let slow = SlowFile::serve(&scratch.path("slow"));
    let mut wrong = Vec::new();
    for program in &PROGRAMS {
        if program.cause == Some("slow_file") && slow.is_none() {
            println!("skipped: {} needs FUSE", program.name);
            continue;
        }
        let explained = watched(&scratch, program);
        let found = explained["findings"][0]["cause"].as_str();
        let seconds = &explained["seconds"];
        println!("{}: {found:?} of {seconds} s, {}", program.name, explained["findings"]);
        std::fs::copy(scratch.path("reads.rec"), format!("/var/tmp/wp/{}.rec", program.name))
            .unwrap();
        if found != program.cause {
            wrong.push(format!("{}: {:?} and not {found:?}", program.name, program.cause));
        }
        if explained["lost"] != 0 {
            wrong.push(format!("{}: {} events lost", program.name, explained["lost"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn without_root_it_says_what_to_do() {
    let scratch = Scratch::new("watch-refused");
    let mut command = scratch.command(["watch", "-o", "refused.rec", "--", "true"]);
    if is_root() {
        use std::os::unix::process::CommandExt;
        command.uid(65_534);
    }
    let ran = Ran::of(match command.output() {
        Ok(output) => output,
        // Where nobody may enter the folder of the build.
        Err(error) => return println!("skipped: {error}"),
    });
    ran.has_ended(3, "watch");
    ran.says(&["root", "strace", "readpath trace import"], "watch");
    assert!(!scratch.path("refused.rec").exists());
}
