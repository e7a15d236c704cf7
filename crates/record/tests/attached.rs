//! Recording of a program that runs before the recorder does.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use readpath_record::capture::Recorder;
use readpath_trace::recording::Record;
use rustix::process::{Pid, Signal, kill_process_group};

/// Time after which a test gives up.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A shell has started a process before it is attached. That process starts `cat` afterwards, whose
/// file must have its name: the process was found below the shell, and `cat` by its own start.
#[test]
fn children_started_before_the_attachment_are_recorded() {
    let mut recorder = match Recorder::start() {
        Ok(recorder) => recorder,
        Err(error) => return println!("skipped: {error}"),
    };
    let folder = std::env::temp_dir().join(format!("readpath-attached-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("data");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    // The inner process says that it runs, waits for a file, and then starts `cat`.
    let script = "(echo runs; until test -e go; do sleep 0.02; done; cat data; true) & wait";
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", script]).current_dir(&folder).stdout(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    let mut output = shell.stdout.take().unwrap();
    std::io::Read::read_exact(&mut output, &mut [0; 5]).unwrap();
    let reader = std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
    recorder.attach_program(shell.id()).unwrap();
    fs::write(folder.join("go"), "").unwrap();

    let mut paths = Vec::new();
    let begun = Instant::now();
    // The last events are passed on soon after the end.
    let mut rounds_left = 5;
    while rounds_left > 0 {
        rounds_left -= u32::from(shell.try_wait().unwrap().is_some());
        assert!(begun.elapsed() < TIMEOUT, "the shell did not end");
        recorder.wait(Duration::from_millis(10)).unwrap();
        let mut keep = |record| {
            paths.extend(match record {
                Record::File(file) => Some(file.path),
                _ => None,
            });
            Ok(())
        };
        recorder.take_records(&mut keep).unwrap();
    }
    assert!(shell.wait().unwrap().success());
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(reader.join().unwrap().unwrap(), 1 << 20);
    assert!(paths.iter().any(|found| path.to_str() == Some(found)), "{paths:?}");
}

/// Children of the shell in the test below.
const CHILDREN: u64 = 40;

/// Number of write calls of this thread, counted by the kernel.
fn write_calls() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/io").unwrap();
    let count = text.lines().find_map(|line| line.strip_prefix("syscw: ")).unwrap();
    count.parse().unwrap()
}

/// The kernel takes some 30 ms for each write of its list of tasks, and had one for each process.
#[test]
fn processes_found_together_are_listed_together() {
    let mut recorder = match Recorder::start() {
        Ok(recorder) => recorder,
        Err(error) => return println!("skipped: {error}"),
    };
    let script = format!("for i in $(seq {CHILDREN}); do sleep 60 & done; echo runs; wait");
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", &script]).stdout(Stdio::piped()).process_group(0);
    let mut shell = shell.spawn().unwrap();
    let mut output = shell.stdout.take().unwrap();
    std::io::Read::read_exact(&mut output, &mut [0; 5]).unwrap();
    let before = write_calls();
    let attached = recorder.attach_program(shell.id());
    let writes = write_calls() - before;
    let group = Pid::from_child(&shell);
    kill_process_group(group, Signal::KILL).unwrap();
    shell.wait().unwrap();
    attached.unwrap();
    assert!(writes < CHILDREN / 2, "{writes} writes");
}
