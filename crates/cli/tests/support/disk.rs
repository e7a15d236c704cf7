//! Loop devices, and file systems on them. Both are gone when they are dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop device over a file.
pub struct LoopDevice(pub String);

impl LoopDevice {
    /// Attaches a device. `None` where `losetup` cannot.
    pub fn over(file: &Path) -> Option<LoopDevice> {
        LoopDevice::attach(file, &[])
    }

    /// Attaches a device that reads the file past the page cache.
    pub fn direct_over(file: &Path) -> Option<LoopDevice> {
        LoopDevice::attach(file, &["--direct-io=on"])
    }

    fn attach(file: &Path, options: &[&str]) -> Option<LoopDevice> {
        let mut losetup = Command::new("losetup");
        let output = losetup.args(options).args(["--find", "--show"]).arg(file).output().ok()?;
        let name = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        output.status.success().then_some(LoopDevice(name))
    }

    /// File of sysfs with the readahead window.
    pub fn readahead_setting(&self) -> PathBuf {
        let name = Path::new(&self.0).file_name().unwrap();
        Path::new("/sys/block").join(name).join("queue/read_ahead_kb")
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// A mounted file system on a loop device.
pub struct Mounted {
    pub folder: PathBuf,
    pub device: LoopDevice,
}

impl Mounted {
    /// Makes a file system with this command and mounts it at a new folder. `None` where a tool is
    /// missing, or where the kernel does not know the file system.
    pub fn new(
        device: LoopDevice,
        folder: PathBuf,
        make: &[&str],
        options: &str,
    ) -> Option<Mounted> {
        let [program, arguments @ ..] = make else { return None };
        let is_done =
            |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
        fs::create_dir(&folder).unwrap();
        if !is_done(Command::new(program).args(arguments).arg(&device.0)) {
            return None;
        }
        let mut mount = Command::new("mount");
        is_done(mount.args(["-o", options, &device.0]).arg(&folder))
            .then_some(Mounted { folder, device })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.folder).status();
    }
}
