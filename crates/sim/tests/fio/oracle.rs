//! fio as the oracle: its version, a folder for its files, and its iologs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use readpath_core::request::Op;
use readpath_core::unit::Time;
use readpath_sim::workload::{NextAction, Process};

/// Returns true if fio 3.33 is installed.
pub fn has_fio() -> bool {
    let version = Command::new("fio").arg("--version").output();
    let is_there = version.is_ok_and(|output| output.stdout.starts_with(b"fio-3.33"));
    if !is_there {
        println!("skipped: fio 3.33 is not installed");
    }
    is_there
}

/// A private folder, removed on drop.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("readpath-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// One operation: write flag, offset and length.
pub type Step = (bool, u64, u64);

/// Operations of a simulated process, one at a time.
pub fn our_steps(process: Process) -> Vec<Step> {
    first_steps(process, usize::MAX)
}

/// The first `count` operations of a process of ours.
pub fn first_steps(mut process: Process, count: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut now = Time::ZERO;
    while steps.len() < count {
        match process.next(now) {
            NextAction::Operation(o) => {
                steps.push((o.op == Op::Write, o.offset, o.bytes));
                process.completed(now);
            }
            NextAction::WaitForCompletion => unreachable!("everything issued is complete"),
            NextAction::WaitUntil(time) => now = time,
            NextAction::Sync { .. } => process.synced(now),
            NextAction::Ended => break,
        }
    }
    steps
}

/// Operations in a fio iolog: `[time] file read|write offset length`.
pub fn steps_of_iolog(text: &str) -> Vec<Step> {
    let operation = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| ["read", "write"].contains(word))?;
        Some((words[at] == "write", words[at + 1].parse().ok()?, words[at + 2].parse().ok()?))
    };
    text.lines().filter_map(operation).collect()
}
