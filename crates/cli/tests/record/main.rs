//! `readpath record` and `readpath explain`, end to end: real programs with known faults.
//!
//! Needs root and tracefs; says so and skips where they are not.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

#[path = "../support/mod.rs"]
mod support;

mod advised;
mod asynchronous;
mod called;
mod causes;
mod gains;
mod lookups;
mod mappings;
mod modelled;
mod mounted;
mod preload;
mod programs;
mod sampled;
mod streams;
mod time;
mod top;
mod unharmed;
mod unprivileged;

use programs::{PIECES, PROGRAMS, Program};
use support::{READPATH, Ran, Scratch, is_root};

/// Environment variable with the name of the program that this process runs.
const PROGRAM: &str = "READPATH_TEST_PROGRAM";

/// Program for the tests below, started by them as the recorded process.
#[test]
#[ignore = "it is a program for the other tests"]
fn program() {
    let Some(name) = std::env::var_os(PROGRAM) else { return };
    let is_this = |program: &&Program| program.name == name.to_str().unwrap();
    let programs = PROGRAMS.iter().chain(&mappings::PROGRAMS);
    let program = { programs }.find(is_this).expect("a program is known by its name");
    (program.run)(Path::new("."));
}

/// Records of a recording in the folder, in their order.
fn records_of(scratch: &Scratch, recording: &str) -> Vec<Value> {
    let shown = scratch.run(&format!("recording show {recording}"));
    shown.has_ended(0, recording);
    shown.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Records of one kind, such as `read`, without the name of the kind.
fn of_kind<'a>(records: &'a [Value], kind: &str) -> Vec<&'a Value> {
    records.iter().filter_map(|record| record.get(kind)).collect()
}

/// Returns false where root cannot record, after the reason is printed.
fn can_watch(scratch: &Scratch) -> bool {
    let ran =
        Ran::of(scratch.command(["record", "-o", "probe.rec", "--", "true"]).output().unwrap());
    if ran.code == Some(3) {
        println!("skipped: {}", ran.stderr.trim());
        return false;
    }
    ran.has_ended(0, "record true");
    true
}

/// Modelled device behind a file, until it is dropped.
struct SlowFile(Child);

impl SlowFile {
    /// Serves a device below a new folder. `None` without FUSE.
    fn serve(folder: &Path, device: &str, size: &str) -> Option<SlowFile> {
        fs::create_dir(folder).unwrap();
        let mut serve = Command::new(READPATH);
        serve.args(["emulate", device, "--size", size, "--at"]).arg(folder);
        let mut child = serve.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (served, is_ready) = (SlowFile(child), line.starts_with("ready"));
        assert!(is_ready || !Path::new("/dev/fuse").exists(), "{device} is not served");
        is_ready.then_some(served)
    }
}

impl Drop for SlowFile {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

/// Runs `readpath record` on a program; `options` are separated by spaces.
fn watch(scratch: &Scratch, options: &str, program: &Program) -> Ran {
    follow(scratch, "record", options, program)
}

fn run_advised(scratch: &Scratch, options: &str, program: &Program) -> Ran {
    follow(scratch, "advise", options, program)
}

/// Runs the program under one of the commands that follow it.
fn follow(scratch: &Scratch, command: &str, options: &str, program: &Program) -> Ran {
    let mut watch = scratch.command([command]);
    watch.args(options.split(' ')).arg("--").arg(std::env::current_exe().unwrap());
    watch.args(["--exact", "program", "--ignored", "--nocapture"]).env(PROGRAM, program.name);
    let ran = Ran::of(watch.output().unwrap());
    ran.has_ended(0, program.name);
    ran
}

/// Number of advised runs, of which one must not rest because of other load.
const RUNS_MAX: usize = 3;

/// Numbers of MiB in a line, in order.
fn mib(line: &str) -> Vec<f64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let numbers = words.windows(2).filter(|pair| pair[1].starts_with("MiB"));
    numbers.map(|pair| pair[0].parse().unwrap()).collect()
}

/// A file of 32 MiB behind a hard disk. It is used up, and its rest fits into 32 MiB, where nearly
/// all prefetched pages are used. It does not fit into 4 MiB: there the readahead policy alone
/// prefetches, and a loaded machine decides how far it is ahead of the program. The bound on waste
/// holds on any machine: twice the start of 2 MiB, and twice the pages that were used.
#[test]
fn advice_prefetches_used_pages_within_the_budget() {
    let scratch = Scratch::new("watch-advise");
    if !can_watch(&scratch) {
        return;
    }
    for budget in [32.0, 4.0] {
        // Advice rests while others use the processor or the device, which is correct.
        let before = ProcessorTimes::now();
        let report: Vec<String> = (0..RUNS_MAX)
            .map_while(|_| advised(&scratch, budget))
            .take_while(|report| proves_nothing(report, budget))
            .collect();
        let busy = ProcessorTimes::now().busy_since(&before);
        if report.len() == RUNS_MAX && busy >= BUSY_MIN {
            println!("skipped: {:.0} % of the processors were busy", busy * 100.0);
            continue;
        }
        assert!(report.len() < RUNS_MAX, "{busy}\n{}", report.join("\n"));
    }
}

/// Busy fraction of the processors that shows other load. The test's own processes mostly wait.
const BUSY_MIN: f64 = 0.8;

/// Times of all processors since the start of the system, in clock ticks.
struct ProcessorTimes {
    idle: u64,
    all: u64,
}

impl ProcessorTimes {
    fn now() -> ProcessorTimes {
        let text = fs::read_to_string("/proc/stat").unwrap();
        let words = text.lines().next().unwrap().split_whitespace().skip(1);
        // The first eight are: user, nice, system, idle, iowait, irq, softirq, steal.
        let times: Vec<u64> = words.take(8).map(|word| word.parse().unwrap()).collect();
        ProcessorTimes { idle: times[3] + times[4], all: times.iter().sum() }
    }

    fn busy_since(&self, before: &ProcessorTimes) -> f64 {
        1.0 - (self.idle - before.idle) as f64 / (self.all - before.all).max(1) as f64
    }
}

fn rests(report: &str) -> bool {
    report.contains("did not pay")
}

/// True if the advice rested, where little memory is no reason for it, or did not begin.
fn proves_nothing(report: &str, budget: f64) -> bool {
    report.contains("no page was prefetched") || budget >= 32.0 && rests(report)
}

/// Advises the program within `budget` MiB. Returns the report, or `None` without FUSE.
fn advised(scratch: &Scratch, budget: f64) -> Option<String> {
    // A new file each time: none of it is resident.
    let Some(slow) = SlowFile::serve(&scratch.path("slow"), "hdd", "32M") else {
        println!("skipped: it needs FUSE");
        return None;
    };
    // With a recording the program starts last, and all of its reads are seen.
    let ran = run_advised(scratch, &format!("--memory {budget}MiB -o whole.rec"), &PIECES);
    println!("{}", ran.stderr);
    let brought = ran.stderr.lines().find(|line| line.contains("brought in"));
    let Some(brought) = brought else {
        ran.says(&["no page was prefetched"], "advise");
        drop(slow);
        fs::remove_dir(scratch.path("slow")).unwrap();
        return Some(ran.stderr);
    };
    let [brought, used, standing, counted] = mib(brought)[..] else {
        panic!("{}", ran.stderr);
    };
    assert!(standing <= budget && counted <= budget, "{}", ran.stderr);
    if budget < 32.0 {
        assert!(brought >= 1.0 && brought <= 4.1 + 2.0 * used, "{}", ran.stderr);
    } else if !rests(&ran.stderr) {
        assert!(brought >= 16.0 && used >= 0.8 * brought, "{}", ran.stderr);
    }
    ran.says(&["without advice it waited", "with advice it waited"], "advise");
    assert!(!scratch.path("readpath.rec").exists(), "none was asked for");
    drop(slow);
    fs::remove_dir(scratch.path("slow")).unwrap();
    Some(ran.stderr)
}

/// Control group, removed at the end.
struct Group(PathBuf);

impl Group {
    /// Creates a group of version 2, or of the first available controller of version 1.
    fn new(name: &str) -> Option<Group> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids"];
        let root = roots.iter().map(Path::new).find(|root| root.join("cgroup.procs").exists())?;
        let path = root.join(format!("readpath-test-{name}-{}", std::process::id()));
        fs::create_dir(&path).ok().map(|()| Group(path))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// One process is in the group from the start, another joins later. Each reads its own file.
#[test]
fn control_group_processes_are_all_recorded() {
    let scratch = Scratch::new("watch-group");
    if !can_watch(&scratch) {
        return;
    }
    let Some(group) = Group::new("watch") else { return println!("skipped: no control groups") };
    let begin = |name: &str, seconds: &str| {
        scratch.data(name, 1 << 20);
        let script = format!(
            "echo $$ > {0}/cgroup.procs; sleep {seconds}; cat {name} > /dev/null; sleep 1",
            group.0.display()
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).current_dir(&scratch.0).spawn().unwrap()
    };
    let mut first = begin("first", "2");
    while fs::read_to_string(group.0.join("cgroup.procs")).unwrap().is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let mut watch = scratch.command(["record", "-o", "group.rec", "--cgroup"]);
    let watch = watch.arg(&group.0).stderr(Stdio::piped()).spawn().unwrap();
    let mut second = begin("second", "1.5");
    let ran = Ran::of(watch.wait_with_output().unwrap());
    let _ = (first.wait(), second.wait());
    ran.has_ended(0, "record --cgroup");
    let shown = scratch.run("recording show group.rec").stdout;
    for name in ["first", "second"] {
        let path = scratch.path(name);
        let is_of =
            |line: &&str| line.starts_with("{\"file\"") && line.contains(path.to_str().unwrap());
        assert_eq!(shown.lines().filter(is_of).count(), 1, "{name} in\n{shown}");
    }
    drop(group);
    scratch.refused("record --cgroup . -o x.rec", &["cgroup.procs", "control group"]);
    // A folder for data with a file of that name is no control group.
    fs::write(scratch.path("cgroup.procs"), format!("{}\n", std::process::id())).unwrap();
    scratch.refused("record --cgroup . -o x.rec", &["not a control group"]);
}

/// A container's shell starts the recorder within the recorded group. Each of its reads of the
/// kernel's buffers added events to them, so that they were never empty.
#[test]
fn recorder_in_its_control_group_does_not_record_itself() {
    let scratch = Scratch::new("watch-own-group");
    if !can_watch(&scratch) {
        return;
    }
    let Some(group) = Group::new("own") else { return println!("skipped: no control groups") };
    scratch.data("read", 1 << 20);
    let path = group.0.display();
    let run = |command: &str| {
        // `timeout` and a reader are the other processes of the group.
        let script = format!(
            "echo $$ > {path}/cgroup.procs; (sleep 0.5; exec timeout -s KILL 5 sh -c 'while :; do \
             cat read; sleep 0.1; done' > /dev/null) & exec timeout -s KILL 20 {READPATH} {command}"
        );
        let mut shell = Command::new("sh");
        Ran::of(shell.args(["-c", &script]).current_dir(&scratch.0).output().unwrap())
    };
    run(&format!("record -o own.rec --for 2 --cgroup {path}")).has_ended(0, "record --cgroup");
    let records = records_of(&scratch, "own.rec");
    let files: Vec<&str> =
        of_kind(&records, "file").iter().filter_map(|file| file["path"].as_str()).collect();
    assert!(files.iter().any(|path| Path::new(path) == scratch.path("read")), "{files:?}");
    assert!(!files.iter().any(|path| path.ends_with("trace_pipe_raw")), "{files:?}");
    run(&format!("advise --for 1 --cgroup {path}")).has_ended(0, "advise --cgroup");
    // A group without another process, and the recorder's own process.
    for program in [format!("--cgroup {path}"), "--pid $$".to_owned()] {
        let script = format!(
            "echo $$ > {path}/cgroup.procs; exec {READPATH} record -o x.rec --for 1 {program}"
        );
        while !fs::read_to_string(group.0.join("cgroup.procs")).unwrap().is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let mut shell = Command::new("sh");
        let ran = Ran::of(shell.args(["-c", &script]).current_dir(&scratch.0).output().unwrap());
        ran.has_ended(2, &program);
        let reason = if program.contains("pid") { "its own process" } else { "it has no process" };
        ran.says(&[reason], &program);
    }
}

#[test]
fn invalid_advise_memory_options_are_refused() {
    let scratch = Scratch::new("watch-advise-refused");
    scratch.refused("record --memory 1GiB -- true", &["--memory"]);
    scratch.refused("advise --memory much -- true", &["--memory much", "size"]);
    scratch.refused("advise --memory 64KiB -- true", &["--memory 64KiB", "1MiB or more"]);
}

#[test]
fn recording_a_foreign_process_without_root_is_refused_with_a_remedy() {
    let scratch = Scratch::new("watch-refused");
    let mut command = scratch.command(["record", "-o", "refused.rec", "--pid", "1"]);
    if is_root() {
        use std::os::unix::process::CommandExt;
        command.uid(65_534);
    }
    let ran = Ran::of(match command.output() {
        Ok(output) => output,
        // The other user may not enter the build folder.
        Err(error) => return println!("skipped: {error}"),
    });
    ran.has_ended(3, "watch");
    ran.says(&["root", "`readpath record -- COMMAND`"], "watch");
    assert!(!scratch.path("refused.rec").exists());
}

/// Without a program, an earlier recording keeps its content, and no new file stays.
#[test]
fn a_program_that_cannot_be_started_costs_no_recording() {
    let scratch = Scratch::new("watch-unstarted");
    if !can_watch(&scratch) {
        return;
    }
    let target = scratch.file("old.rec", "old");
    std::os::unix::fs::symlink("old.rec", scratch.path("link.rec")).unwrap();
    let names = scratch.names();
    let cases = [
        "-o old.rec -- ./absent",
        "-o link.rec -- ./absent",
        "-o new.rec -- ./absent",
        "-o link.rec --pid 4194305",
        "-o link.rec --cgroup ./absent",
        "-o link.rec -- ./old.rec",
    ];
    for case in cases {
        for command in ["record", "advise", "explain"] {
            scratch.refused(&format!("{command} {case}"), &[]);
            assert_eq!(fs::read_to_string(&target).unwrap(), "old", "{command} {case}");
            assert_eq!(scratch.names(), names, "{command} {case}");
        }
    }
    scratch.run("record -o link.rec -- true").has_ended(0, "a program that can be started");
    assert!(scratch.path("link.rec").is_symlink());
    assert!(!records_of(&scratch, "old.rec").is_empty());
}

/// Thread that executes a shell in place of its process.
#[test]
#[ignore = "it is a program for the other tests"]
fn exec_in_a_thread() {
    use std::os::unix::process::CommandExt;
    if std::env::var_os(PROGRAM).is_some() {
        let script = "cat data > /dev/null; sleep 0.5; cat data > /dev/null";
        let exec = || Command::new("sh").args(["-c", script]).exec();
        std::thread::spawn(exec).join().unwrap();
    }
}

/// The thread gets the number of the main thread. Its reads of the first 10 ms after that were not
/// recorded, and the sleep of its child counted as processor time.
#[test]
fn program_that_a_thread_executes_is_recorded() {
    let scratch = Scratch::new("watch-exec-thread");
    if !can_watch(&scratch) {
        return;
    }
    scratch.data("data", 1 << 20);
    let own = std::env::current_exe().unwrap();
    let program = [own.to_str().unwrap(), "--exact", "exec_in_a_thread", "--ignored"];
    let arguments = [&["explain", "--json", "-o", "reads.rec", "--"], &program[..]].concat();
    let ran = Ran::of(scratch.command(arguments).env(PROGRAM, "exec").output().unwrap());
    ran.has_ended(0, "exec in a thread");
    assert!(!ran.stderr.contains("run on"), "{}", ran.stderr);
    let text = &ran.stdout[ran.stdout.find("{\n").unwrap()..];
    let explanation: Value = serde_json::from_str(text).unwrap();
    assert!(time::seconds(&explanation, "sleep") >= 0.4, "{explanation:#}");
    let path = scratch.path("data");
    let records = records_of(&scratch, "reads.rec");
    let files = of_kind(&records, "file");
    let data = files.iter().find(|file| file["path"] == path.to_str().unwrap());
    let number = &data.unwrap_or_else(|| panic!("no {path:?} in {files:#?}"))["file"];
    let reads = of_kind(&records, "read").into_iter().filter(|read| read["file"] == *number);
    let got = |read: &Value| read["outcome"]["bytes"].as_u64().unwrap_or(0);
    assert_eq!(reads.map(got).sum::<u64>(), 2 << 20);
}

/// The program has no open event of its own after `exec`, so that its name came without a length.
#[test]
fn executed_program_has_its_length() {
    let scratch = Scratch::new("watch-executed");
    if !can_watch(&scratch) {
        return;
    }
    let program = Path::new("/bin/sh").canonicalize().unwrap();
    let arguments = ["record", "-o", "reads.rec", "--", "/bin/sh", "-c", "sleep 0.5; :"];
    let ran = Ran::of(scratch.command(arguments).output().unwrap());
    ran.has_ended(0, "record sh");
    let records = records_of(&scratch, "reads.rec");
    let mapped = of_kind(&records, "executable").into_iter().map(|mapped| &mapped["file"]);
    let mapped: Vec<&Value> = mapped.collect();
    let files = of_kind(&records, "file").into_iter();
    let files: Vec<&Value> = files.filter(|file| mapped.contains(&&file["file"])).collect();
    let own = files.iter().find(|file| file["path"] == program.to_str().unwrap());
    let own = own.unwrap_or_else(|| panic!("no {program:?} in {files:#?}"));
    assert_eq!(own["bytes"], program.metadata().unwrap().len());
    assert!(files.iter().all(|file| file["bytes"].is_u64()), "{files:#?}");
}

/// The children of a program that has ended are no longer recorded.
#[test]
fn processes_that_run_on_are_reported() {
    let scratch = Scratch::new("watch-daemon");
    if !can_watch(&scratch) {
        return;
    }
    for (script, runs_on) in [("sleep 3 >/dev/null 2>&1 &", true), ("sleep 0.1 & wait", false)] {
        let arguments = ["record", "-o", "reads.rec", "--", "sh", "-c", script];
        let ran = Ran::of(scratch.command(arguments).output().unwrap());
        ran.has_ended(0, script);
        let is_reported = ran.stderr.contains("processes that sh started run on");
        assert_eq!(is_reported, runs_on, "{script}: {}", ran.stderr);
    }
}

/// The folder for temporary files is empty once the command has ended: its user may remove it. The
/// kernel still removes the instances of tracefs then.
#[test]
fn folder_for_temporary_files_is_empty_at_the_end() {
    let scratch = Scratch::new("temporary-files");
    if !can_watch(&scratch) {
        return;
    }
    let folder = scratch.path("temporary");
    fs::create_dir(&folder).unwrap();
    for arguments in [&["explain", "--gains", "never", "--", "true"][..], &["record", "--", "true"]]
    {
        let mut command = scratch.command(arguments);
        Ran::of(command.env("TMPDIR", &folder).output().unwrap()).has_ended(0, arguments[0]);
        let left: Vec<_> = fs::read_dir(&folder).unwrap().flatten().map(|it| it.path()).collect();
        assert!(left.is_empty(), "{}: {left:?}", arguments[0]);
    }
}
