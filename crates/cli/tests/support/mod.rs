//! Shared support of the command's tests: a scratch folder, and runs of the command.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod disk;
pub mod serve;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use readpath_trace::recording::{Record, RecordingEnd, RecordingStart, RecordingWriter};

pub const READPATH: &str = env!("CARGO_BIN_EXE_readpath");

/// Job of 64 random reads of 64 KiB.
pub const RANDOM: &str = "[j]\nrw=randread\nbs=64k\nsize=4m\n";

/// Folder of one test, removed with its content.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Creates the folder in the build directory: on a disk, while the temporary folder may be a
    /// tmpfs.
    pub fn new(name: &str) -> Scratch {
        Scratch::under(Path::new(env!("CARGO_TARGET_TMPDIR")), name)
    }

    pub fn under(folder: &Path, name: &str) -> Scratch {
        let path = folder.join(format!("cli-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Creates a file with this content.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        fs::write(self.path(name), content).unwrap();
        self.path(name)
    }

    /// Creates a file of `bytes` bytes without holes.
    pub fn data(&self, name: &str, bytes: usize) -> PathBuf {
        let ramp: Vec<u8> = (0..4096 + 256).map(|at| at as u8).collect();
        let mut content = Vec::with_capacity(bytes.next_multiple_of(4096));
        for page in 0..bytes.div_ceil(4096) {
            // Many tests make large files: a debug build copies slices fast, and iterates slowly.
            content.extend_from_slice(&ramp[page * 31 % 256..][..4096]);
        }
        content.truncate(bytes);
        self.file(name, content)
    }

    /// Sorted names of the folder's entries.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The command with the folder as its current directory.
    pub fn command(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new(READPATH);
        command.args(arguments).current_dir(&self.0).stdin(Stdio::null());
        command
    }

    /// Runs the command with arguments separated by spaces.
    pub fn run(&self, arguments: &str) -> Ran {
        Ran::of(self.command(arguments.split_whitespace()).output().unwrap())
    }

    /// Runs a command that must be refused: exit code 2, empty standard output, and a message that
    /// contains each of `words`.
    pub fn refused(&self, arguments: &str, words: &[&str]) {
        let ran = self.run(arguments);
        ran.has_ended(2, arguments);
        assert_eq!(ran.stdout, "", "{arguments}: nothing was run");
        ran.says(words, arguments);
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Result of a run of the command.
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn of(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    pub fn has_ended(&self, code: i32, what: &str) {
        assert_eq!(self.code, Some(code), "{what}:\n{}{}", self.stderr, self.stdout);
    }

    /// Checks that the message contains all of `words` and is no panic.
    pub fn says(&self, words: &[&str], what: &str) {
        for word in words {
            assert!(self.stderr.contains(word), "{what}: no `{word}` in\n{}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{what}:\n{}", self.stderr);
    }

    /// Results of the JSON document.
    pub fn results(&self) -> Vec<serde_json::Value> {
        let document: serde_json::Value = serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error} in\n{}\n{}", self.stdout, self.stderr));
        document["results"].as_array().unwrap().clone()
    }
}

/// tmpfs of the given size, unmounted at the end.
pub struct InMemory(pub PathBuf);

impl InMemory {
    pub fn mount(folder: &Path, size: &str) -> Option<InMemory> {
        fs::create_dir(folder).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(folder);
        let is_mounted = mount.status().is_ok_and(|status| status.success());
        is_mounted.then(|| InMemory(folder.to_owned()))
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// True if this process runs as root.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// True if a program can be run here.
pub fn has(program: &str) -> bool {
    let tried = Command::new(program).arg("--version").output();
    tried.is_ok_and(|output| output.status.success())
}

/// Begins a recording in memory, with pages of 4 KiB.
pub fn begin_recording() -> RecordingWriter<Vec<u8>> {
    begin_recording_of(RecordingStart::default())
}

/// Begins a recording in memory, of `start` with pages of 4 KiB.
pub fn begin_recording_of(start: RecordingStart) -> RecordingWriter<Vec<u8>> {
    let mut writer = RecordingWriter::new(Vec::new()).unwrap();
    writer.put(Record::Start(RecordingStart { page_bytes: 4096, ..start })).unwrap();
    writer
}

/// Ends a recording at `at_ns` nanoseconds, and returns its bytes.
pub fn end_recording(mut writer: RecordingWriter<Vec<u8>>, at_ns: u64) -> Vec<u8> {
    writer.put(Record::End(RecordingEnd { at_ns, ..RecordingEnd::default() })).unwrap();
    writer.finish().unwrap()
}
