//! `readpath top`: reads of a program with a known rate, made by fio.

use std::fs;
use std::io::{BufRead, BufReader, copy, sink};
use std::process::{Child, Command, Stdio};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Ran, Scratch, has};
use crate::{can_watch, is_root};

/// Reads per second that fio makes at most.
const RATE: u64 = 200;

/// fio with random direct reads of 4 KiB, until it is dropped.
struct Reader(Child);

impl Reader {
    /// `None` without fio, or where the folder has no direct reads.
    fn start(scratch: &Scratch) -> Option<Reader> {
        if !has("fio") {
            println!("skipped: needs fio");
            return None;
        }
        fs::write(scratch.path("data"), vec![7; 8 << 20]).unwrap();
        let mut fio = Command::new("fio");
        fio.args(["--name=a", "--filename=data", "--size=8m", "--rw=randread", "--direct=1"]);
        fio.args(["--bs=4k", "--time_based", "--runtime=300", "--thread"]);
        fio.arg(format!("--rate_iops={RATE}")).current_dir(scratch.path(""));
        let mut reader = Reader(fio.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        sleep(Duration::from_millis(500));
        let ended = reader.0.try_wait().unwrap();
        if ended.is_some() {
            println!("skipped: fio cannot read here");
        }
        ended.is_none().then_some(reader)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Output of `top` once its first interval is printed. A thread reads on, so that the pipe
/// never fills.
fn started(top: &mut Child) -> JoinHandle<()> {
    let mut output = BufReader::new(top.stdout.take().unwrap());
    let mut first = String::new();
    assert!(output.read_line(&mut first).unwrap() > 0, "top ended without output");
    spawn(move || {
        let _ = copy(&mut output, &mut sink());
    })
}

/// Process of an interval.
fn process(interval: &Value, number: u32) -> Option<&Value> {
    interval["processes"].as_array().unwrap().iter().find(|it| it["process"] == number)
}

#[test]
fn programs_and_their_files_are_shown_while_they_read() {
    let scratch = Scratch::new("top");
    if !can_watch(&scratch) {
        return;
    }
    let Some(reader) = Reader::start(&scratch) else { return };
    let ran = scratch.run("top --json --count 2 --interval 1s");
    ran.has_ended(0, "top");
    let lines: Vec<Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{}", ran.stdout);
    // An interval that ended late leaves less to the next one.
    let seconds = |interval: &Value| interval["seconds"].as_f64().unwrap();
    assert!(lines.iter().map(seconds).sum::<f64>() >= 1.9, "{}", ran.stdout);
    for interval in &lines {
        let seconds = seconds(interval);
        let Some(fio) = process(interval, reader.0.id()) else {
            panic!("fio is missing in {interval}")
        };
        assert_eq!(fio["program"], "fio");
        let reads = fio["reads"].as_u64().unwrap();
        // fio makes up for reads that came late.
        let most = 2.0 * RATE as f64 * (seconds + 1.0);
        assert!(reads > 0 && (reads as f64) < most, "{reads} in {seconds}: {fio}");
        assert_eq!(fio["got_bytes"], 4096 * reads);
        assert_eq!(fio["fetched_bytes"], 4096 * reads);
        let path = fio["files"][0]["path"].as_str().unwrap();
        assert_eq!(path, scratch.path("data").to_str().unwrap());
    }

    let number = reader.0.id();
    let table = scratch.run(&format!("top --pid {number} --count 1 --interval 500ms"));
    table.has_ended(0, "top --pid");
    assert!(table.stdout.contains(": 1 programs read"), "{}", table.stdout);
    for part in ["process  program or file", "fio ", "/data "] {
        assert!(table.stdout.contains(part), "no {part} in {}", table.stdout);
    }

    // It ends with the process.
    let mut top = scratch.command(["top", "--interval", "200ms", "--pid", &number.to_string()]);
    let mut top = top.stdout(Stdio::piped()).spawn().unwrap();
    let _output = started(&mut top);
    drop(reader);
    assert!(top.wait().unwrap().success());
}

#[test]
fn top_ends_at_ctrl_c_and_when_its_output_is_closed() {
    let scratch = Scratch::new("top-ends");
    if !can_watch(&scratch) {
        return;
    }
    let mut top = scratch.command(["top", "--interval", "100ms"]);
    let mut top = top.stdout(Stdio::piped()).spawn().unwrap();
    let _output = started(&mut top);
    let number = i32::try_from(top.id()).unwrap();
    let pid = rustix::process::Pid::from_raw(number).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let began = Instant::now();
    assert_eq!(top.wait().unwrap().code(), Some(130));
    assert!(began.elapsed() < Duration::from_secs(30));

    let mut top = scratch.command(["top", "--interval", "100ms"]);
    let mut top = top.stdout(Stdio::piped()).spawn().unwrap();
    drop(top.stdout.take());
    assert_eq!(top.wait().unwrap().code(), Some(0));
}

#[test]
fn wrong_options_of_top_are_refused() {
    let scratch = Scratch::new("top-wrong");
    scratch.refused("top --interval 5ms", &["--interval 5ms", "100ms or more"]);
    scratch.refused("top --interval soon", &["--interval soon"]);
    scratch.refused("top --count 0", &["--count"]);
    if !is_root() || !can_watch(&scratch) {
        let ran: Ran = scratch.run("top --count 1");
        assert_eq!(ran.code, Some(3), "{}", ran.stderr);
        assert!(ran.stderr.contains("can't be followed"), "{}", ran.stderr);
        return;
    }
    scratch.refused("top --pid 999999999", &["process 999999999"]);
    scratch.refused("top --cgroup /proc", &["/proc", "cgroup.procs"]);
}
