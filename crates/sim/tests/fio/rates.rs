//! Rates against fio itself: how many operations of each direction a job does in two seconds.
//!
//! All jobs run side by side in one fio without storage (`ioengine=null`).

use std::fs;
use std::process::Command;

use readpath_core::request::Op;
use readpath_core::unit::Time;
use readpath_sim::job::JobFile;
use readpath_sim::workload::{FileSource, NextAction, Process, Workload};

use super::oracle::{Scratch, has_fio, steps_of_iolog};

const JOBS: &[&str] = &[
    "rw=read rate_iops=100",
    "rw=read rate=1m",
    "rw=randrw rate_iops=90,10",
    "rw=randrw rate_iops=10,90",
    "rw=randrw rwmixread=90 rate_iops=100",
    "rw=randrw rwmixread=10 rate_iops=100",
    "rw=rw rate=1m,256k",
    "rw=randrw rwmixread=70 rate=512k,1m",
    "rw=randrw bs=4k,16k rate=400k",
    "rw=randrw bs=4k,16k rate_iops=100,50",
    "rw=read bssplit=4k/50:16k/50 rate_iops=100",
    "rw=read bssplit=4k/50:16k/50 rate_iops=300 rate_process=poisson",
    "rw=read bssplit=4k/10:64k/90 rate_iops=300 rate_process=poisson",
    "rw=write rate_iops=300 rate_process=poisson",
    "rw=randrw rate_iops=400,100 rate_process=poisson",
    "rw=read bs=8k rate=3m rate_process=poisson",
    "rw=read rate_iops=100 thinktime=20ms",
    "rw=read rate_iops=100 thinktime=20ms rate_ignore_thinktime=1",
    "rw=read rate_iops=20 thinktime=20ms rate_ignore_thinktime=1",
    "rw=read rate_iops=100 thinktime=50ms thinktime_blocks=4 rate_ignore_thinktime=1",
    "rw=randrw rate_iops=60,20 thinktime=30ms rate_ignore_thinktime=1",
    "rw=read rate_iops=100 thinktime=100ms thinktime_blocks=5 rate_process=poisson",
    "rw=read rate_iops=100 thinktime=50ms thinktime_iotime=30ms rate_ignore_thinktime=1",
    "rw=read rate_iops=100 thinktime=50ms thinktime_iotime=300ms rate_ignore_thinktime=1",
    "rw=read rate_iops=100 thinktime=50ms thinktime_iotime=300ms thinktime_blocks=10 \
     rate_ignore_thinktime=1",
    "rw=read rate_iops=100 thinktime=50ms thinktime_iotime=45ms thinktime_blocks=10 \
     rate_ignore_thinktime=1",
    "rw=read rate_iops=100 thinktime=50ms thinktime_iotime=300ms thinktime_blocks=1 \
     rate_ignore_thinktime=1",
    "rw=write rate_iops=200 size=256k verify=md5",
];

/// Seconds of one run.
const SECONDS: u64 = 2;
/// Runs of fio before a difference counts.
const ATTEMPTS: usize = 5;

/// Reads and writes that a process of ours begins, on storage that takes no time.
fn ours(mut process: Process) -> [u64; 2] {
    let mut counts = [0; 2];
    let mut now = Time::ZERO;
    loop {
        match process.next(now) {
            NextAction::Operation(operation) => {
                counts[usize::from(operation.op == Op::Write)] += 1;
                process.completed(now);
            }
            NextAction::WaitUntil(time) => now = time,
            NextAction::Ended => return counts,
            next => unreachable!("everything issued is complete: {next:?}"),
        }
    }
}

#[test]
fn operation_rates_match_fio() {
    if !has_fio() {
        return;
    }
    // On a busy machine fio loses operations. Jobs that differ run again, fewer at a time.
    let mut differing: Vec<(&str, String)> = JOBS.iter().map(|job| (*job, String::new())).collect();
    for _ in 0..ATTEMPTS {
        let jobs: Vec<&str> = differing.iter().map(|(job, _)| *job).collect();
        differing = different_rates(&jobs);
        if differing.is_empty() {
            return;
        }
    }
    panic!("{differing:#?}");
}

/// Runs the jobs by fio and by ours. Returns those with different rates.
fn different_rates<'a>(jobs: &[&'a str]) -> Vec<(&'a str, String)> {
    let scratch = Scratch::new("rates");
    let text = |engine: &str| {
        let section = |(at, job): (usize, &&str)| {
            let options = job.replace(' ', "\n");
            let log = if engine.is_empty() { String::new() } else { format!("{engine}{at}\n") };
            format!("[j{at}]\nsize=1g\ntime_based\nruntime={SECONDS}\n{options}\n{log}")
        };
        jobs.iter().enumerate().map(section).collect::<String>()
    };
    let path = scratch.write("job.fio", &text("ioengine=null\nwrite_iolog=log"));
    let mut fio = Command::new("fio");
    let ran = fio.current_dir(&scratch.0).arg("--output=out").arg(path).status().unwrap();
    assert!(ran.success(), "fio runs the table");
    let workload =
        Workload::new(&JobFile::parse(&text("")).unwrap(), FileSource::Modelled, 1).unwrap();
    let mut differing = Vec::new();
    for (at, (job, process)) in jobs.iter().zip(workload.processes).enumerate() {
        let log = fs::read_to_string(scratch.0.join(format!("log{at}"))).unwrap();
        let mut theirs = [0; 2];
        for (is_write, ..) in steps_of_iolog(&log) {
            theirs[usize::from(is_write)] += 1;
        }
        let ours = ours(process);
        // A tenth, and five operations: the clock of fio is of a machine with other work.
        let is_near = |(ours, theirs): (&u64, &u64)| ours.abs_diff(*theirs) <= theirs / 10 + 5;
        if !ours.iter().zip(&theirs).all(is_near) {
            differing.push((*job, format!("ours {ours:?}, fio {theirs:?}")));
        }
    }
    differing
}
