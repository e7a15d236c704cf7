//! Standard output and standard error that refuse text, and arguments that are not UTF-8.

mod support;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use support::{RANDOM, Ran, Scratch};

/// Exit code of a Rust program that panicked.
const PANICKED: i32 = 101;

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

/// Device that accepts no byte.
fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

/// Pipe whose reader is gone.
fn without_reader() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    Stdio::from(writer)
}

/// Folder with a job, a recording, a truncated recording, and traces.
fn inputs(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    scratch.file("j.fio", RANDOM);
    let recording = fs::read(example("one-at-a-time.rec")).unwrap();
    scratch.file("reads.rec", &recording);
    scratch.file("cut.rec", &recording[..recording.len() * 3 / 4]);
    scratch.file("calls.txt", "1 1.0 pread64(3</a>, \"\", 4096, 0) = 4096 <0.001>\n");
    scratch.file("blocks.trace", "1\n2\n1\n3\n");
    scratch
}

/// Commands whose messages go to standard error, each with its exit code.
const MESSAGES: [(&str, i32); 9] = [
    ("run none.fio", 2),
    ("run j.fio --on file:none", 2),
    ("explain none.rec", 2),
    ("explain cut.rec", 0),
    ("recording show cut.rec", 0),
    ("recording import calls.txt -o calls.rec", 0),
    ("devices measure none", 2),
    ("no-such-command", 2),
    ("record --cgroup none -o none.rec", 2),
];

#[test]
fn full_or_closed_standard_error_leaves_exit_codes_unchanged() {
    let scratch = inputs("stderr-full");
    for (words, code) in MESSAGES {
        for stderr in [Stdio::from(full()), without_reader()] {
            let mut command = scratch.command(words.split(' '));
            let ran = Ran::of(command.stderr(stderr).output().unwrap());
            // A control group is checked only where programs can be recorded.
            if words.starts_with("watch") && ran.code == Some(3) {
                continue;
            }
            ran.has_ended(code, words);
        }
    }
}

/// Commands whose result goes to standard output.
const RESULTS: [&str; 14] = [
    "recording show reads.rec",
    "recording export reads.rec --as iolog",
    "recording export reads.rec --as chrome",
    "explain reads.rec",
    "explain reads.rec --json",
    "run j.fio --on ssd",
    "run j.fio --on ssd --json",
    "run j.fio --on ssd --output-format fio",
    "run --fio-options",
    "policies",
    "devices ssd",
    "cachesim blocks.trace --format lirs --sizes 50%",
    "completions bash",
    "replay reads.rec --on ssd",
];

#[test]
fn closed_output_pipe_ends_the_command_without_an_error() {
    let scratch = inputs("stdout-gone");
    for words in RESULTS {
        let mut command = scratch.command(words.split(' '));
        let ran = Ran::of(command.stdout(without_reader()).output().unwrap());
        ran.has_ended(0, words);
        assert_eq!(ran.stderr, "", "{words}");
    }
    // Both streams in one pipe, as by `2>&1 | head -1`.
    for (words, code) in MESSAGES.into_iter().chain(RESULTS.map(|words| (words, 0))) {
        let mut command = scratch.command(words.split(' '));
        let status = command.stdout(without_reader()).stderr(without_reader()).status().unwrap();
        assert!([Some(code), Some(3)].contains(&status.code()), "{words}: {status}");
    }
}

#[test]
fn full_standard_output_is_an_error_that_names_it() {
    let scratch = inputs("stdout-full");
    for words in RESULTS {
        let ran = Ran::of(scratch.command(words.split(' ')).stdout(full()).output().unwrap());
        ran.has_ended(1, words);
        ran.says(&["standard output", "No space left"], words);
    }
    // Both streams fail at once: only the exit code reports it.
    for words in RESULTS {
        let mut command = scratch.command(words.split(' '));
        let status = command.stdout(full()).stderr(full()).status().unwrap();
        assert_ne!(status.code(), Some(PANICKED), "{words}");
        assert_eq!(status.code(), Some(1), "{words}");
    }
}

/// Name that is not UTF-8.
fn odd(name: &str) -> OsString {
    let mut bytes = name.as_bytes().to_vec();
    bytes.extend([0xff, 0xe2, 0x82, b'!']);
    OsStr::from_bytes(&bytes).to_owned()
}

fn with(before: &str, name: &OsStr) -> OsString {
    let mut word = OsString::from(before);
    word.push(name);
    word
}

fn has_run(scratch: &Scratch, words: &[&OsStr], code: i32) -> String {
    let output = scratch.command(words).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = format!("{words:?}:\n{}{}", text(&output.stderr), text(&output.stdout));
    assert_eq!(output.status.code(), Some(code), "{printed}");
    printed
}

#[test]
fn non_utf8_paths_are_accepted() {
    let scratch = inputs("bytes");
    let w = OsStr::new;
    for name in ["reads.rec", "j.fio", "calls.txt", "blocks.trace"] {
        fs::rename(scratch.path(name), scratch.0.join(odd(name))).unwrap();
    }
    let (rec, job) = (odd("reads.rec"), odd("j.fio"));
    has_run(&scratch, &[w("explain"), &rec, w("--html"), &odd("page.html")], 0);
    has_run(&scratch, &[w("trace"), w("show"), &rec], 0);
    has_run(&scratch, &[w("trace"), w("cut"), &rec, w("-o"), &odd("cut.rec")], 0);
    has_run(&scratch, &[w("trace"), w("merge"), &rec, &rec, w("-o"), &odd("merged.rec")], 0);
    let import = [w("trace"), w("import"), &odd("calls.txt"), w("-o"), &odd("calls.rec")];
    has_run(&scratch, &import, 0);
    let cache = [w("cache"), &odd("blocks.trace"), w("--format"), w("lirs")];
    has_run(&scratch, &cache, 0);

    let (file, kernel) = (with("file:", &odd("data")), with("kernel:", &odd("data")));
    let on = [w("run"), &job, w("--on"), &file, w("--on"), &kernel, w("--create")];
    has_run(&scratch, &on, 0);
    assert!(!scratch.0.join(odd("data")).exists(), "it is removed");
    let folder = scratch.0.join(odd("folder"));
    fs::create_dir(&folder).unwrap();
    let folders = [with("file:", folder.as_os_str()), with("kernel:", folder.as_os_str())];
    for storage in &folders {
        has_run(&scratch, &[w("replay"), &rec, w("--on"), storage], 0);
    }
    let words = ["--rows", "stream/4MiB", "--states", "cold", "--small", "--runs", "1"].map(w);
    has_run(&scratch, &[&[w("everyday"), folder.as_os_str()][..], &words].concat(), 0);
    has_run(&scratch, &[w("man"), &odd("man")], 0);
}

/// Path within the name of a modelled device.
#[test]
fn device_description_path_may_be_non_utf8() {
    let scratch = inputs("bytes-device");
    let w = OsStr::new;
    let described = "../models/src/measured/virtual_disk.toml";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(described);
    fs::copy(path, scratch.0.join(odd("disk.toml"))).unwrap();
    let device = with("measured,toml=", &odd("disk.toml"));
    has_run(&scratch, &[w("devices"), &device], 0);
    has_run(&scratch, &[w("run"), w("j.fio"), w("--on"), &device], 0);
    has_run(&scratch, &[w("replay"), w("reads.rec"), w("--on"), &device], 0);
    let missing = with("measured,toml=", &odd("missing"));
    let printed = has_run(&scratch, &[w("run"), w("j.fio"), w("--on"), &missing], 2);
    assert!(printed.contains("No such file"), "{printed}");
    let disk = with("hdd,disksim=", &odd("missing"));
    fs::write(scratch.path("t"), "").unwrap();
    let printed = has_run(&scratch, &[w("validate"), w("t"), w("--on"), &disk], 2);
    assert!(printed.contains("No such file"), "{printed}");
}

/// The recorded program gets its arguments unchanged.
#[test]
fn recorded_program_receives_non_utf8_arguments() {
    let scratch = Scratch::new("bytes-watch");
    let w = OsStr::new;
    fs::write(scratch.0.join(odd("data")), "content\n").unwrap();
    let command = [w("watch"), w("-o"), &odd("reads.rec"), w("--"), w("cat"), &odd("data")];
    let output = scratch.command(command).output().unwrap();
    if output.status.code() == Some(3) {
        return println!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout, b"content\n");
    assert!(scratch.0.join(odd("reads.rec")).exists());
}

/// The drive of the models' tests has 160 KiB. Reads of sectors that are still being read ahead
/// (sneaky hits) are not modelled.
#[test]
fn ignored_property_of_a_drive_is_reported_once() {
    let scratch = Scratch::new("notices");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/src/hdd");
    let text_of = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let sneaky = "Max queue length = 4, Allow sneaky partial read hits = 1,";
    let drive = text_of("tiny.diskspecs").replace("Max queue length = 4,", sneaky);
    scratch.file("tiny.diskspecs", drive);
    scratch.file("tiny.model", text_of("tiny.model"));
    scratch.file("tiny.seek", text_of("tiny.seek"));
    scratch.file("j.fio", "[j]\nrw=read\nbs=4k\nsize=64k\n");
    let ran = scratch.run("run j.fio --on hdd,disksim=tiny.diskspecs");
    ran.has_ended(0, "a job on the drive");
    assert_eq!(ran.stderr.matches("is not modelled").count(), 1, "{}", ran.stderr);
}
