//! A modelled device as a file (`readpath emulate`), which needs root and FUSE.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use super::READPATH;

/// True if a device can be served here. Otherwise prints the reason.
pub fn can_mount(test: &str) -> bool {
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    let has_fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    if !is_root || !has_fuse {
        println!("skipped: {test} needs root and /dev/fuse");
    }
    is_root && has_fuse
}

/// Empty folder, unmounted and removed at the end in any case.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("readpath-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub fn device(&self) -> PathBuf {
        self.0.join("device")
    }

    pub fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts.contains(self.0.to_str().unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// A running `readpath emulate`, which does not outlive the test.
pub struct Serve {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Serve {
    pub fn start(device: &str, folder: &Folder, arguments: &[&str]) -> Serve {
        let mut child = Command::new(READPATH)
            .args(["emulate", device, "--at"])
            .arg(&folder.0)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert!(line.starts_with("ready: "), "{line}");
        Serve { child, output }
    }

    /// Sends it a signal, waits for its end, and returns the rest of its output.
    pub fn end(mut self, signal: &str) -> String {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success());
        rest
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
