//! The policy `ondemand` against the running kernel, read by read.
//!
//! Needs root and tracefs. The second test also needs loop devices and `mkfs.ext4`. Without them a
//! test prints the reason and is skipped.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use readpath_core::readahead::{HandleStep, Recording};
use readpath_eval::check_kernel;
use readpath_eval::oracle::{self, OracleError};

/// File size in bytes, not a multiple of the page size.
const FILE_BYTES: u64 = (48 << 20) + 1234;

#[test]
fn ondemand_equals_the_kernel_on_the_local_disk() {
    let Some(room) = Room::new("disk") else { return };
    let file = room.make_file(&room.path);
    for seed in [1, 2, 3] {
        hold_against_the_kernel(&file, seed);
    }
}

#[test]
fn ondemand_equals_the_kernel_on_a_loop_device() {
    let Some(room) = Room::new("loop") else { return };
    let Some(device) = LoopDevice::mount(&room.path) else { return };
    let file = room.make_file(&device.mount_point);
    for window_kib in [128, 128, 100, 4, 0, 8192] {
        device.set_read_ahead_kb(window_kib);
        hold_against_the_kernel(&file, 1000 + window_kib);
    }
}

#[test]
fn unrecordable_files_are_refused() {
    let missing = oracle::record(Path::new("/nonexistent/file"), &[]).unwrap_err();
    assert!(missing.to_string().starts_with("cannot open /nonexistent/file: "), "{missing}");
    assert!(!missing.is_unavailable());
    let Some(room) = Room::new("refused") else { return };
    let file = room.make_file(&room.path);
    match oracle::record(&file, &[HandleStep::Touch { offset: FILE_BYTES }]) {
        Err(error @ OracleError::TouchPastEnd { .. }) => {
            assert!(error.to_string().ends_with("it lies past the end of the file"), "{error}");
        }
        Err(error @ OracleError::NoQueue { .. }) => println!("skipped: {error}"),
        Err(error) if error.is_unavailable() => println!("skipped: {error}"),
        other => panic!("{other:?}"),
    }
    let directory = oracle::record(Path::new("/"), &[]).unwrap_err();
    assert!(matches!(directory, OracleError::NotRegular { .. }), "{directory}");
}

/// Records generated lists and compares. Fails at the first difference.
fn hold_against_the_kernel(file: &Path, seed: u64) {
    hold_list_against_the_kernel(file, seed, &check_kernel::generate(1000, seed, FILE_BYTES));
    hold_list_against_the_kernel(
        file,
        seed,
        &check_kernel::generate_mapped(1000, seed, FILE_BYTES),
    );
}

fn hold_list_against_the_kernel(file: &Path, seed: u64, steps: &[HandleStep]) {
    let Some(kernel) = record(file, steps) else { return };
    let policy =
        check_kernel::run_policy(&check_kernel::kernel_policy(&kernel), steps, &kernel).unwrap();
    let report = check_kernel::compare(steps, &kernel, &policy);
    let window = kernel.limits.window_pages_max;
    println!("window {window} pages, seed {seed}: {} of {} equal", report.equal, report.reads);
    assert_eq!(report.reads, 1000);
    if let Some(first) = report.differences.first() {
        panic!("window {window} pages, seed {seed}: {} equal; first: {first}", report.equal);
    }
}

fn record(file: &Path, steps: &[HandleStep]) -> Option<Recording> {
    match oracle::record(file, steps) {
        Ok(recording) => Some(recording),
        Err(error @ OracleError::NoQueue { .. }) => skip(&error.to_string()),
        Err(error) if error.is_unavailable() => skip(&error.to_string()),
        Err(error) => panic!("{error}"),
    }
}

fn skip<T>(reason: &str) -> Option<T> {
    println!("skipped: {reason}");
    None
}

/// A private folder, removed on drop.
struct Room {
    path: PathBuf,
}

impl Room {
    fn new(name: &str) -> Option<Room> {
        let path = std::env::temp_dir().join(format!("readpath-{name}-{}", std::process::id()));
        match fs::create_dir_all(&path) {
            Ok(()) => Some(Room { path }),
            Err(error) => skip(&format!("no folder {}: {error}", path.display())),
        }
    }

    fn make_file(&self, folder: &Path) -> PathBuf {
        let path = folder.join("file");
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(&vec![7; FILE_BYTES as usize]).unwrap();
        file.sync_all().unwrap();
        path
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// An ext4 file system on a loop device, unmounted on drop.
struct LoopDevice {
    name: String,
    mount_point: PathBuf,
}

impl LoopDevice {
    fn mount(room: &Path) -> Option<LoopDevice> {
        let image = room.join("image");
        fs::File::create(&image).and_then(|file| file.set_len(128 << 20)).unwrap();
        let image = image.to_str().expect("the temporary folder has a plain name");
        run("mkfs.ext4", &["-q", "-F", image])?;
        let name = run("losetup", &["--find", "--show", image])?.trim().to_owned();
        let device = LoopDevice { name, mount_point: room.join("mounted") };
        fs::create_dir(&device.mount_point).unwrap();
        let mount_point = device.mount_point.to_str().expect("as above");
        run("mount", &[&device.name, mount_point])?;
        Some(device)
    }

    /// Sets the readahead window of files opened later to `kib` KiB.
    fn set_read_ahead_kb(&self, kib: u64) {
        let name = self.name.trim_start_matches("/dev/");
        let knob = format!("/sys/block/{name}/queue/read_ahead_kb");
        fs::write(&knob, kib.to_string()).unwrap_or_else(|error| panic!("{knob}: {error}"));
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        self.set_read_ahead_kb(128);
        let _ = Command::new("umount").arg("-l").arg(&self.mount_point).output();
        let _ = Command::new("losetup").args(["--detach", &self.name]).output();
    }
}

/// Runs a system tool. Returns its output, or `None` after printing the reason.
fn run(tool: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(tool).args(arguments).output() {
        Ok(output) if output.status.success() => {
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => skip(&format!("{tool}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => skip(&format!("{tool}: {error}")),
    }
}
