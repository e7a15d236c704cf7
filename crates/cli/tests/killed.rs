//! Leftovers of a killed run, and their removal by the next run of any command.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::Scratch;

/// Starts the command and kills it once `is_begun` returns true. Returns the process id, or `None`
/// if that did not happen.
fn killed_once(mut command: Command, is_begun: impl Fn(u32) -> bool) -> Option<u32> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let process = child.id();
    let start = Instant::now();
    let mut has_begun = false;
    while !has_begun && child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(60) {
            break;
        }
        has_begun = is_begun(process);
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    has_begun.then_some(process)
}

/// Returns true if a process has a complete record for its cleanup, in a folder of this user.
fn has_record(process: u32) -> bool {
    has_record_below(process, &std::env::temp_dir())
}

/// As [`has_record`], for a process with this folder of temporary files.
fn has_record_below(process: u32, temporary: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    let beginning = format!("readpath-run-{user}");
    let mut folders = vec!["/run/readpath".into(), format!("/run/user/{user}/readpath").into()];
    let entries = std::fs::read_dir(temporary).unwrap();
    let names = entries.flatten().filter(|entry| {
        entry.file_name().to_str().is_some_and(|name| name.starts_with(&beginning))
    });
    folders.extend(names.map(|entry| entry.path()));
    folders.iter().any(|folder: &PathBuf| folder.join(format!("{process}-0")).exists())
}

/// Repeats `look` until it returns `expected`, for at most a minute. Another run of the command at
/// this moment may be the one that removes the leftovers. The kernel removes a tracefs instance
/// slowly while others trace.
fn becomes<T: PartialEq + std::fmt::Debug>(expected: &T, look: impl Fn() -> T) {
    let start = Instant::now();
    while look() != *expected && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(look(), *expected);
}

/// The run is killed while it fills a file of 4 GiB. A file that existed before must not be
/// removed.
#[test]
fn files_of_a_killed_run_are_removed_by_the_next_command() {
    let scratch = Scratch::new("killed-create");
    scratch.file("j.fio", "[j]\nrw=read\nbs=64k\nsize=4g\n");
    scratch.file("own", "own");
    let made = scratch.path("made");
    let arguments = "run j.fio --on file:made --create";
    let size = |path: &Path| path.metadata().map_or(0, |metadata| metadata.len());
    let killed = killed_once(scratch.command(arguments.split(' ')), |_| size(&made) > 0);
    assert!(killed.is_some(), "the run ended by itself");
    scratch.run("policies").has_ended(0, "policies");
    becomes(&vec!["j.fio".to_owned(), "own".to_owned()], || scratch.names());
}

/// The command waits for the other end of a pipe when its output has begun.
#[test]
fn incomplete_output_is_removed_at_a_signal_and_after_a_kill() {
    let scratch = Scratch::new("killed-output");
    scratch.file("out.rec", "old");
    let pipe = scratch.path("pipe");
    let (folder, kind, device) = (rustix::fs::CWD, rustix::fs::FileType::Fifo, 0);
    rustix::fs::mknodat(folder, &pipe, kind, rustix::fs::Mode::RWXU, device).unwrap();
    let names = scratch.names();
    let command = || scratch.command("recording cut pipe -o out.rec".split(' '));
    // The file comes before its record. A kill between the two leaves the file.
    let has_begun = |process| scratch.names().len() > names.len() && has_record(process);
    let killed = killed_once(command(), has_begun);
    assert!(killed.is_some(), "the run ended by itself");
    scratch.run("policies").has_ended(0, "policies");
    becomes(&names, || scratch.names());

    let mut child = command().stderr(Stdio::null()).spawn().unwrap();
    becomes(&true, || has_begun(child.id()));
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(scratch.names(), names);
    assert_eq!(std::fs::read_to_string(scratch.path("out.rec")).unwrap(), "old");
}

/// The recording that only `explain` reads.
#[test]
fn recording_of_a_killed_explain_is_removed_by_the_next_command() {
    let scratch = Scratch::new("killed-explain");
    let mut command = scratch.command("explain -- sleep 1".split(' '));
    command.env("TMPDIR", scratch.path(""));
    let is_recording = |name: &String| name.ends_with(".rec");
    let has_begun =
        |process| scratch.names().iter().any(is_recording) && has_record_below(process, &scratch.0);
    assert!(killed_once(command, has_begun).is_some(), "the run ended by itself");
    let mut next = scratch.command(["policies"]);
    next.env("TMPDIR", scratch.path("")).stdout(Stdio::null()).status().unwrap();
    becomes(&false, || scratch.names().iter().any(is_recording));
}

/// The file of 1 GiB, the tracefs instance, and the mount of tracefs if the command made it.
#[test]
fn leftovers_of_a_killed_check_kernel_are_removed_by_the_next_command() {
    if !support::is_root() {
        return println!("skipped: watching the kernel needs root");
    }
    let scratch = Scratch::new("killed-conform");
    let instances = |process: u32| {
        let own = scratch.path(&format!("readpath-tracefs-{process}-0"));
        let usual = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"].map(PathBuf::from);
        let places = usual.into_iter().chain([own]);
        let instance = format!("instances/readpath-{process}-0");
        places.filter(|place| place.join(&instance).exists()).count()
    };
    let mut command = scratch.command("check-kernel --generate 200000".split(' '));
    command.env("TMPDIR", scratch.path(""));
    let killed = killed_once(command, |process| instances(process) > 0);
    scratch.run("policies").has_ended(0, "policies");
    let Some(process) = killed else {
        return println!("skipped: this system's tracefs can't be used");
    };
    becomes(&(0, vec![]), || (instances(process), scratch.names()));
}

/// A tracefs mount, undone on drop.
struct TracefsMount(PathBuf);

impl TracefsMount {
    /// Mounts tracefs on a new folder. `None` where the system refuses it.
    fn mount(folder: PathBuf) -> Option<TracefsMount> {
        std::fs::create_dir(&folder).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("nodev", &folder, "tracefs", flags, None).ok()?;
        Some(TracefsMount(folder))
    }
}

impl Drop for TracefsMount {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

/// The instances are removed after the end of the command, which does not wait for the kernel. Its
/// output ends with it all the same: `output` returns.
#[test]
fn tracefs_instances_of_an_ended_recorder_are_removed() {
    if !support::is_root() {
        return println!("skipped: tracing needs root");
    }
    let scratch = Scratch::new("ended-recorder");
    let Some(tracefs) = TracefsMount::mount(scratch.path("tracefs")) else {
        return println!("skipped: this system's tracefs can't be mounted");
    };
    let instances = |process: u32| {
        let names = std::fs::read_dir(tracefs.0.join("instances")).unwrap().flatten();
        let prefix = format!("readpath-{process}-");
        names.filter(|entry| entry.file_name().to_str().unwrap().starts_with(&prefix)).count()
    };
    let mut command = scratch.command("record -o a.rec -- sh -c".split(' '));
    command.arg("while [ ! -e end ]; do sleep 0.01; done");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let process = child.id();
    becomes(&2, || instances(process));
    scratch.file("end", "");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    becomes(&0, || instances(process));
}

/// Each recording begins while the instances of the one before are being removed.
#[test]
fn recordings_during_the_removal_of_others_are_complete() {
    if !support::is_root() {
        return println!("skipped: tracing needs root");
    }
    const BYTES: usize = 1 << 20;
    let scratch = Scratch::new("recordings-in-a-row");
    scratch.file("data", "x".repeat(BYTES));
    for number in 0..12 {
        let record = format!("record -o {number}.rec -- cat data");
        scratch.run(&record).has_ended(0, &record);
    }
    for number in 0..12 {
        let explained = scratch.run(&format!("explain {number}.rec --json"));
        explained.has_ended(0, "explain");
        let explained: serde_json::Value = serde_json::from_str(&explained.stdout).unwrap();
        let bytes = explained["shape"]["got_bytes"].as_u64().unwrap();
        assert!(bytes >= BYTES as u64, "recording {number}: {bytes} bytes");
    }
}
