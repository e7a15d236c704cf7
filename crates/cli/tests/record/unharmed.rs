//! Programs that work alone also work under a recording without root.
//!
//! Each is a part of `unharmed/program.c`. It must end as it does alone, and the command reports
//! the calls that it did not record.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::SlowFile;
use crate::preload::as_nobody;
use crate::support::{InMemory, READPATH, Ran, Scratch, has, is_root};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/record/unharmed/program.c");

/// Maximum number of bytes of a signal stack that a recording may use: `STACK_ROOM` in
/// `crates/record/preload/thread.rs`.
const STACK_ROOM: u64 = 1024;

/// Folder with the file `data` and the program, compiled with `flags`; `None` without a compiler.
pub(crate) fn scratch(name: &str, flags: &[&str]) -> Option<Scratch> {
    let scratch = Scratch::under(&std::env::temp_dir(), name);
    scratch.data("data", 256 << 10);
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-pthread", SOURCE, "-o"]).arg(scratch.path("program")).args(flags);
    match compiler.output() {
        Ok(output) if output.status.success() => Some(scratch),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            println!("skipped: cc {flags:?}: {}", said.lines().next().unwrap_or_default());
            None
        }
        Err(error) => {
            println!("skipped: no C compiler (cc): {error}");
            None
        }
    }
}

/// Runs a program under a recording, as a user without rights; `None` if that is impossible.
pub(crate) fn recorded(scratch: &Scratch, arguments: &[&str]) -> Option<Ran> {
    recorded_with(scratch, arguments, |_| ())
}

fn recorded_with(
    scratch: &Scratch,
    arguments: &[&str],
    prepare: impl FnOnce(&mut Command),
) -> Option<Ran> {
    let arguments = [&["record", "-o", "r.rec", "--", "./program"][..], arguments].concat();
    let Some(mut command) = as_nobody(scratch, &arguments) else {
        println!("skipped: no setpriv(1)");
        return None;
    };
    prepare(&mut command);
    let ran = Ran::of(command.output().unwrap());
    if ran.stderr.contains("ermission denied") && !ran.stderr.contains("not root") {
        println!("skipped: another user may not enter the build's folder");
        return None;
    }
    Some(ran)
}

/// The program ends as it does alone, and the recording holds `reads` reads of `data` of 100 bytes.
fn goes_on(name: &str, reads: usize, words: &[&str]) {
    let Some(scratch) = scratch(&format!("unharmed-{name}"), &[]) else { return };
    let alone = Command::new("./program").arg(name).current_dir(&scratch.0).output().unwrap();
    let alone = Ran::of(alone);
    if alone.code != Some(0) {
        return println!("skipped: {name} does not work alone here: {}", alone.stderr);
    }
    let Some(ran) = recorded(&scratch, &[name]) else { return };
    ran.has_ended(0, name);
    assert_eq!(ran.stdout, alone.stdout, "{name}");
    ran.says(words, name);
    assert_eq!(reads_of_data(&scratch), reads, "{name}");
}

fn reads_of_data(scratch: &Scratch) -> usize {
    let shown = scratch.run("recording show r.rec").stdout;
    let is_read = |line: &&str| line.contains("\"read\"") && line.contains("\"asked_bytes\":100");
    shown.lines().filter(is_read).count()
}

#[test]
fn seccomp_strict_mode_ends_the_recording_and_not_the_program() {
    // `no-clock` may not read the time stamp counter: prctl(2), PR_SET_TSC.
    for name in ["strict", "strict-by-number", "no-clock"] {
        goes_on(name, 2, &["1 of the programs entered a sandbox", ": 3 calls are not in it"]);
    }
}

#[test]
fn a_seccomp_filter_ends_the_recording_and_not_the_program() {
    goes_on("filter", 2, &["1 of the programs entered a sandbox", ": 3 calls are not in it"]);
}

#[test]
fn a_program_started_under_a_filter_is_not_recorded() {
    goes_on("filter-and-start", 0, &["2 of the programs entered a sandbox"]);
}

#[test]
fn memory_can_be_locked_within_8_mib() {
    goes_on("locked", 5, &[]);
}

#[test]
fn a_thread_can_be_cancelled_in_a_read() {
    goes_on("cancelled", 5, &[]);
}

#[test]
fn a_handler_on_a_small_signal_stack_does_not_overrun_it() {
    let Some(scratch) = scratch("unharmed-stack", &[]) else { return };
    let used_alone = |bytes: u64| {
        let mut program = Command::new("./program");
        let ran = program.args(["stack", &bytes.to_string()]).current_dir(&scratch.0).output();
        let ran = Ran::of(ran.unwrap());
        (ran.code == Some(0)).then(|| used(&ran))
    };
    // The kernel's own frame is 1 to 3.5 KiB long, depending on the processor's registers.
    let least = (2048..).step_by(64).find(|&bytes| used_alone(bytes).is_some()).unwrap();
    for bytes in [least, least + 64, least + 256, least + 512, 2 * least] {
        let Some(ran) = recorded(&scratch, &["stack", &bytes.to_string()]) else { return };
        ran.has_ended(0, &format!("a stack of {bytes} bytes"));
        assert!(ran.stdout.contains("finished"), "{}", ran.stdout);
    }
    let Some(ran) = recorded(&scratch, &["stack", &least.to_string()]) else { return };
    ran.says(&[": 1 calls are not in it", "signal stack"], "the smallest stack");
    let Some(ran) = recorded(&scratch, &["stack", "65536"]) else { return };
    assert_eq!(reads_of_data(&scratch), 1);
    let more = used(&ran).saturating_sub(used_alone(65536).unwrap());
    println!("a recorded read uses {more} bytes more of the stack; the least is {least}");
    assert!(more <= STACK_ROOM, "{more} bytes more of the stack than alone");
}

fn used(ran: &Ran) -> u64 {
    let line = ran.stdout.lines().find_map(|line| line.strip_prefix("used "));
    line.unwrap_or_else(|| panic!("{}", ran.stdout)).parse().unwrap()
}

#[test]
fn a_program_of_address_sanitizer_starts() {
    let Some(scratch) = scratch("unharmed-asan", &["-fsanitize=address"]) else { return };
    let alone = Command::new("./program").arg("reader").current_dir(&scratch.0).output().unwrap();
    if !alone.status.success() {
        return println!("skipped: AddressSanitizer does not work here");
    }
    for options in [None, Some("detect_leaks=0:verbosity=0")] {
        let prepare = |command: &mut Command| {
            options.map(|options| command.env("ASAN_OPTIONS", options));
        };
        let Some(ran) = recorded_with(&scratch, &["reader"], prepare) else { return };
        ran.has_ended(0, "a program of AddressSanitizer");
        assert_eq!(ran.stdout, "finished\n");
        assert_eq!(reads_of_data(&scratch), 5);
    }
}

/// tmpfs that any user may write to.
fn in_memory(scratch: &Scratch, size: &str) -> Option<InMemory> {
    let mounted = is_root().then(|| InMemory::mount(&scratch.path("full"), size)).flatten();
    if mounted.is_none() {
        println!("skipped: needs root, to mount a file system in memory");
    }
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(&mounted.as_ref()?.0, open).unwrap();
    mounted
}

#[test]
fn a_full_temporary_folder_ends_no_program() {
    let Some(scratch) = scratch("unharmed-full", &[]) else { return };
    // No space at the start; and a program that takes all the rest.
    let fill = "cat /dev/zero > full/zero 2> /dev/null; true";
    for (size, arguments) in [("16k", &["reader"][..]), ("8m", &["sleeper", fill])] {
        let Some(mounted) = in_memory(&scratch, size) else { return };
        let prepare = |command: &mut Command| _ = command.env("TMPDIR", &mounted.0);
        let Some(ran) = recorded_with(&scratch, arguments, prepare) else { return };
        ran.has_ended(0, size);
        assert_eq!(ran.stdout, "finished\n", "{size}");
        let reads = if arguments.len() == 1 { 5 } else { 200 };
        assert_eq!(reads_of_data(&scratch), reads, "{size}");
        drop(mounted);
        fs::remove_dir(scratch.path("full")).unwrap();
    }
}

/// Runs a program under a recording, with a limit on the size of files, in blocks of 512 bytes.
fn limited(scratch: &Scratch, blocks: u32, arguments: &[&str]) -> Option<Ran> {
    let arguments = [&["record", "-o", "r.rec", "--", "./program"][..], arguments].concat();
    let Some(command) = as_nobody(scratch, &arguments) else {
        println!("skipped: no setpriv(1)");
        return None;
    };
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("ulimit -f {blocks}; exec \"$@\"")).arg("sh");
    shell.arg(command.get_program()).args(command.get_args());
    shell.current_dir(&scratch.0).env("TMPDIR", &scratch.0);
    Some(Ran::of(shell.output().unwrap()))
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_no_signal() {
    let Some(scratch) = scratch("unharmed-limit", &[]) else { return };
    let Some(ran) = limited(&scratch, 100, &["reader"]) else { return };
    ran.has_ended(2, "a limit of 50 KiB");
    ran.says(&["KiB are needed", "ulimit -f"], "a limit of 50 KiB");
    // The shared memory fits the limit, but the recording of 3,200 reads does not.
    let Some(ran) = limited(&scratch, 3400, &["reader"]) else { return };
    ran.has_ended(0, "a limit of 1.7 MiB");
    assert_eq!(reads_of_data(&scratch), 5);
}

#[test]
fn a_full_disk_ends_the_recording_and_says_so_and_not_the_program() {
    let Some(scratch) = scratch("unharmed-disk", &[]) else { return };
    let is_ended = |ran: &Ran, what: &str| {
        ran.has_ended(1, what);
        assert_eq!(ran.stdout, "finished\n", "{what}");
        ran.says(&["No space left", "the recording ended after", "the program runs on"], what);
    };
    let arguments = ["record", "-o", "/dev/full", "--", "./program", "sleeper"];
    if let Some(mut command) = as_nobody(&scratch, &arguments) {
        is_ended(&Ran::of(command.output().unwrap()), "without root");
    }
    let ran = scratch.run(&arguments.join(" "));
    if ran.code == Some(3) {
        return println!("skipped: {}", ran.stderr.trim());
    }
    is_ended(&ran, "as root");
}

/// User id without rights, as used by `as_nobody`.
const NOBODY: u32 = 65_534;

#[test]
fn another_users_folder_of_this_name_blocks_no_recording() {
    if !is_root() {
        return println!("skipped: needs root, to be another user");
    }
    let Some(scratch) = scratch("unharmed-stranger", &[]) else { return };
    fs::create_dir(scratch.path(&format!("readpath-run-{NOBODY}"))).unwrap();
    let Some(ran) = recorded(&scratch, &["reader"]) else { return };
    ran.has_ended(0, "one folder is taken");
    assert!(!ran.stderr.contains("stays behind"), "{}", ran.stderr);
    // All names are taken.
    for nth in 1..8 {
        let taken = scratch.path(&format!("readpath-run-{NOBODY}-{nth}"));
        // The previous recording has created the first of them.
        _ = fs::remove_dir_all(&taken);
        fs::create_dir(taken).unwrap();
    }
    fs::remove_file(scratch.path("r.rec")).unwrap();
    let Some(ran) = recorded(&scratch, &["reader"]) else { return };
    ran.has_ended(0, "all folders are taken");
    ran.says(&["stays behind if this command is killed", "others may write there"], "all");
    assert_eq!(reads_of_data(&scratch), 5);
}

#[test]
fn root_writes_no_recording_through_another_users_link() {
    if !is_root() {
        return println!("skipped: needs root");
    }
    let scratch = Scratch::new("unharmed-link");
    let victim = scratch.file("victim", "precious");
    let put = |name: &str| {
        std::os::unix::fs::lchown(scratch.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
    };
    symlink(&victim, scratch.path("by-link")).unwrap();
    symlink("by-link", scratch.path("by-own")).unwrap();
    symlink(scratch.path("absent"), scratch.path("by-absent")).unwrap();
    put("by-link");
    put("by-absent");
    fs::hard_link(&victim, scratch.path("hard")).unwrap();
    let run = |output: &str| scratch.run(&format!("record -o {output} -- true"));
    if run("plain.rec").code == Some(3) {
        return println!("skipped: {}", run("plain.rec").stderr.trim());
    }
    for name in ["by-link", "by-own", "by-absent"] {
        let ran = run(name);
        ran.has_ended(2, name);
        ran.says(&["symbolic link of user 65534", "name its target"], name);
    }
    assert!(!scratch.path("absent").exists());
    // An existing file is replaced instead of written to: another user may have made this link.
    run("hard").has_ended(0, "a hard link");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    // A link of the same user is followed, like /dev/stdout.
    symlink("target.rec", scratch.path("own")).unwrap();
    run("own").has_ended(0, "a link of one's own");
    assert!(fs::metadata(scratch.path("target.rec")).unwrap().len() > 0);
    let ran = scratch.command(["record", "-o", "/dev/stdout", "--", "true"]).output().unwrap();
    assert!(ran.status.success() && !ran.stdout.is_empty(), "{ran:?}");
}

#[test]
fn the_shared_memory_is_far_below_what_may_be_locked() {
    // The shared file of a running recording: 1.6 MiB, where Linux lets a user lock 8 MiB.
    if !has("setpriv") && is_root() {
        return println!("skipped: no setpriv(1)");
    }
    let scratch = Scratch::under(&std::env::temp_dir(), "unharmed-size");
    let list = "ls -l readpath-watch-*/ring";
    let arguments = ["record", "-o", "r.rec", "--", "sh", "-c", list];
    let Some(mut command) = as_nobody(&scratch, &arguments) else { return };
    let ran = Ran::of(command.output().unwrap());
    if ran.stderr.contains("ermission denied") {
        return println!("skipped: another user may not enter {READPATH}");
    }
    let bytes: u64 = ran.stdout.split_whitespace().nth(4).unwrap().parse().unwrap();
    assert!(bytes < 2 << 20, "{bytes}");
    assert!(Path::new(&scratch.0).exists());
}

/// Mount whose server does not answer, until it is dropped.
struct Silent(SlowFile);

impl Drop for Silent {
    fn drop(&mut self) {
        signal("-CONT", &self.0);
    }
}

fn signal(name: &str, served: &SlowFile) {
    let sent = Command::new("kill").args([name, &served.0.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn a_mount_whose_server_does_not_answer_holds_up_no_recording() {
    if !is_root() {
        return println!("skipped: needs root, to mount");
    }
    let scratch = Scratch::new("unharmed-silent");
    let Some(served) = SlowFile::serve(&scratch.path("silent"), "hdd", "1m") else {
        return println!("skipped: no FUSE");
    };
    signal("-STOP", &served);
    let silent = Silent(served);
    let mut child = scratch.command(["record", "-o", "r.rec", "--", "true"]);
    let mut child = child.stderr(std::process::Stdio::piped()).spawn().unwrap();
    // Liveness limit: a command that waits for the server would never end.
    let has_ended = (0..300).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        child.try_wait().unwrap().is_some()
    });
    drop(silent);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(3) {
        return println!("skipped: {said}");
    }
    assert!(has_ended && output.status.success(), "{said}");
}
