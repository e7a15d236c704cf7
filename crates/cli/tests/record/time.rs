//! The time of programs that wait for one thing each, by activity.
//!
//! Each program waits for at least a known time, whatever the load of the machine: a lower bound of
//! its activity. The activities sum to the duration, each moment counted once.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::preload::as_nobody;
use crate::support::{READPATH, Scratch, has};
use crate::{PROGRAM, SlowFile, can_watch, of_kind, records_of};

/// Time that each program waits at least, and the part of it that must be seen. The rest passes
/// before its first event is recorded.
const WAIT: Duration = Duration::from_millis(400);
const SEEN_MIN: f64 = 0.3;

/// Runs of `explain` until none of the events is lost.
const RUNS_MAX: usize = 5;

/// Seconds of an activity, after the sum of all was checked.
pub fn seconds(explanation: &Value, activity: &str) -> f64 {
    let times = explanation["time"].as_array().unwrap();
    let of = |time: &Value| time["seconds"].as_f64().unwrap();
    let sum: f64 = times.iter().map(of).sum();
    let whole = explanation["seconds"].as_f64().unwrap();
    assert!((sum - whole).abs() <= 0.05 * whole, "{sum} of {whole}: {explanation:#}");
    times.iter().find(|time| time["activity"] == activity).map_or(0.0, of)
}

/// Explains a program that a shell runs. Once it has started, `act` works next to it and gets its
/// standard input.
fn explained(scratch: &Scratch, program: &str, act: impl Fn(std::process::ChildStdin)) -> Value {
    let started = scratch.path("started");
    let program = format!("> started; {program}");
    for _ in 0..RUNS_MAX {
        let mut explain = Command::new(READPATH);
        explain
            .args(["explain", "--json", "--", "sh", "-c", &program])
            .current_dir(scratch.path(""));
        explain.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = explain.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        while !started.exists() {
            assert!(child.try_wait().unwrap().is_none(), "the program was not started");
            sleep(Duration::from_millis(1));
        }
        std::fs::remove_file(&started).unwrap();
        act(input);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        // The program may write to the standard output before the document.
        let text = String::from_utf8(output.stdout).unwrap();
        let explanation: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
        if explanation["lost"] == 0 {
            return explanation;
        }
    }
    panic!("events were lost {RUNS_MAX} times");
}

#[test]
fn waits_of_a_program_are_named_by_what_they_wait_for() {
    let scratch = Scratch::new("explain-time");
    if !can_watch(&scratch) {
        return;
    }
    let sleeps = explained(&scratch, "sleep 0.4; :", |_| {});
    assert!(seconds(&sleeps, "sleep") >= SEEN_MIN, "{sleeps:#}");

    let reads_pipe = explained(&scratch, "read line; :", |mut input| {
        sleep(WAIT);
        input.write_all(b"line\n").unwrap();
    });
    assert!(seconds(&reads_pipe, "others") >= SEEN_MIN, "{reads_pipe:#}");

    if has("flock") {
        let lock = File::create(scratch.path("lock")).unwrap();
        lock.lock().unwrap();
        let waits = explained(&scratch, "flock lock true; :", |_| {
            sleep(2 * WAIT);
            lock.unlock().unwrap();
        });
        assert!(seconds(&waits, "lock") >= SEEN_MIN, "{waits:#}");
    } else {
        println!("skipped: there is no `flock`");
    }
}

/// A server waits for a request during the whole recording, and has no event. Its wait was unknown,
/// and next to a short work no diagnosis was given.
#[test]
fn a_running_program_that_sleeps_has_a_known_wait_from_the_start() {
    let scratch = Scratch::new("explain-time-running");
    if !can_watch(&scratch) {
        return;
    }
    let mut cat = Command::new("cat");
    let mut cat = cat.stdin(Stdio::piped()).spawn().unwrap();
    let mut explain = scratch.command(["explain", "--json", "--for", "0.5s", "--pid"]);
    let output = explain.arg(cat.id().to_string()).output().unwrap();
    drop(cat.stdin.take());
    cat.wait().unwrap();
    let explanation: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(seconds(&explanation, "others") >= SEEN_MIN, "{explanation:#}");
}

/// Runs `explain --pid` of a running program for half a second, and ends the program.
fn explained_running(scratch: &Scratch, mut program: Child) -> Value {
    let mut explain =
        scratch.command(["explain", "--json", "-o", "reads.rec", "--for", "0.5s", "--pid"]);
    let output = explain.arg(program.id().to_string()).output();
    program.kill().unwrap();
    program.wait().unwrap();
    serde_json::from_slice(&output.unwrap().stdout).unwrap()
}

/// A loop on a processor of its own has no event of the scheduler until something else runs there.
/// 86 % of its time was unknown.
#[test]
fn a_running_program_that_computes_has_processor_time_from_the_start() {
    let scratch = Scratch::new("explain-time-busy");
    if !can_watch(&scratch) || !has("chrt") || !has("taskset") {
        return;
    }
    let mut shell = Command::new("chrt");
    shell.args(["-f", "1", "taskset", "-c", "0", "sh", "-c", "while :; do :; done"]);
    let explanation = explained_running(&scratch, shell.spawn().unwrap());
    let whole = explanation["seconds"].as_f64().unwrap();
    assert!(seconds(&explanation, "unknown") <= 0.05 * whole, "{explanation:#}");
    assert!(seconds(&explanation, "processor") >= 0.5 * whole, "{explanation:#}");
}

/// Four threads that sleep 3 ms each, read a page, start a successor and end.
#[test]
#[ignore = "it is a program for the other tests"]
fn short_threads() {
    fn sleep_and_start_next() {
        sleep(Duration::from_millis(3));
        File::open("data").unwrap().read_exact(&mut [0; 4096]).unwrap();
        std::thread::spawn(sleep_and_start_next);
    }
    if std::env::var_os(PROGRAM).is_some() {
        (0..4).for_each(|_| drop(std::thread::spawn(sleep_and_start_next)));
        sleep(Duration::from_secs(20));
    }
}

/// The attachment takes some 30 ms, in which all threads but one begin or end. The successors of
/// the threads that began in them are recorded. A thread that has ended is not unknown to the end.
/// On a busy machine an attachment may take longer: the best of three counts.
#[test]
fn threads_that_begin_and_end_during_the_attachment_are_known() {
    let scratch = Scratch::new("explain-time-threads");
    if !can_watch(&scratch) {
        return;
    }
    scratch.data("data", 4096);
    let are_known = || {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.current_dir(scratch.path(""));
        program.args(["--exact", "time::short_threads", "--ignored"]).env(PROGRAM, "threads");
        let program = program.stdout(Stdio::null()).spawn().unwrap();
        // The threads begin.
        sleep(WAIT);
        let explanation = explained_running(&scratch, program);
        // Each of the four has time for some 100 reads.
        let read_count = of_kind(&records_of(&scratch, "reads.rec"), "read").len();
        eprintln!("{read_count} reads: {explanation:#}");
        let whole = explanation["seconds"].as_f64().unwrap();
        read_count >= 40 && seconds(&explanation, "unknown") <= 0.1 * whole
    };
    assert!(std::iter::repeat_with(are_known).take(3).any(|are_known| are_known));
}

/// A modelled device answers each of eight reads after 100 ms.
#[test]
fn waits_for_reads_of_a_slow_device_are_named_as_such() {
    const DEVICE: &str = "object,first_byte_min=100ms,first_byte_p50=100ms,first_byte_p90=100ms,\
                          first_byte_p99=100ms,first_byte_max=100ms";
    let scratch = Scratch::new("explain-time-reads");
    if !can_watch(&scratch) {
        return;
    }
    let Some(_served) = SlowFile::serve(&scratch.path("slow"), DEVICE, "64MiB") else {
        println!("skipped: no FUSE file system can be mounted");
        return;
    };
    let program = "for at in 1 9 17 25 33 41 49 57; do \
                   dd if=slow/device of=/dev/null bs=4096 count=1 skip=$((at * 256)) 2>/dev/null; done";
    let explanation = explained(&scratch, program, |_| {});
    assert!(seconds(&explanation, "read") >= 0.7, "{explanation:#}");
}

/// `cat` opens a named pipe whose writer comes after three seconds. The writer has started before
/// the program: it is none of its children.
#[test]
fn open_of_a_named_pipe_waits_for_its_other_end() {
    let scratch = Scratch::under(&std::env::temp_dir(), "explain-named-pipe");
    let pipe = scratch.path("pipe");
    assert!(Command::new("mkfifo").args(["-m", "666"]).arg(&pipe).status().unwrap().success());
    let arguments = ["explain", "--json", "--", "cat", "pipe"];
    let as_root = can_watch(&scratch).then(|| scratch.command(arguments));
    let commands = [as_root, as_nobody(&scratch, &arguments)];
    for mut command in commands.into_iter().flatten() {
        let mut writer = Command::new("sh");
        writer.args(["-c", "sleep 3; echo x > pipe"]).current_dir(&scratch.0);
        let mut writer = writer.spawn().unwrap();
        let output = command.output().unwrap();
        writer.wait().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        let explanation: Value = serde_json::from_str(&text[text.find("{\n").unwrap()..]).unwrap();
        let of = |activity: &str| seconds(&explanation, activity);
        // The recorder takes some of the three seconds to start.
        assert!(of("others") >= 2.0 && of("metadata") <= 0.2, "{explanation:#}");
        let findings = explanation["findings"].as_array().unwrap();
        assert!(!findings.iter().any(|finding| finding["cause"] == "metadata"), "{explanation:#}");
    }
}
