//! `readpath emulate` end to end: a modelled device as a file, and how it goes away.
//!
//! Needs root and FUSE; says so and skips where they are not.

mod support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use support::disk::LoopDevice;
use support::serve::{Folder, Serve, can_mount};
use support::{READPATH, Scratch};

/// `O_DIRECT` of Linux on x86-64 and riscv64. On other architectures the test reads through the
/// cache.
const O_DIRECT: i32 =
    if cfg!(any(target_arch = "x86_64", target_arch = "riscv64")) { 0x4000 } else { 0 };

/// Reads 4 KiB with direct I/O, and returns them with the duration.
fn read_direct(path: &Path, offset: u64) -> (Vec<u8>, Duration) {
    let file = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(path).unwrap();
    let mut memory = vec![0; 8_192];
    let start = memory.as_ptr().align_offset(4_096);
    let page = &mut memory[start..start + 4_096];
    let begun = Instant::now();
    file.read_exact_at(page, offset).unwrap();
    (page.to_vec(), begun.elapsed())
}

#[test]
fn emulated_device_stores_data_and_reads_take_the_modelled_time() {
    if !can_mount("emulated_device_stores_data_and_reads_take_the_modelled_time") {
        return;
    }
    let folder = Folder::new("data");
    let device = "ssd,read_lsb=40ms,read_msb=40ms,buffer=2m";
    let serve = Serve::start(device, &folder, &["--size", "16MiB"]);
    assert_eq!(fs::metadata(folder.device()).unwrap().len(), 16 << 20);
    let pattern: Vec<u8> = (0..4u32 << 20).map(|index| (index / 4_096 * 7 + index) as u8).collect();
    let file = OpenOptions::new().read(true).write(true).open(folder.device()).unwrap();
    file.write_all_at(&pattern, 1 << 20).unwrap();
    file.sync_all().unwrap();
    // The first of the 4 MiB have left the model's buffer of 2 MiB by now.
    let (page, took) = read_direct(&folder.device(), 1 << 20);
    assert!(page == pattern[..4_096], "other data came back");
    assert!(took >= Duration::from_millis(40), "{took:?}");
    println!("a read of 40.1 ms took {took:?}");
    drop(file);
    let report = serve.end("-TERM");
    assert!(report.starts_with("served ") && report.contains("p99"), "{report}");
    assert!(!folder.is_mounted());
}

#[test]
fn emulated_device_writes_to_its_backing_file_and_returns_model_errors() {
    if !can_mount("emulated_device_writes_to_its_backing_file_and_returns_model_errors") {
        return;
    }
    let (folder, kept) = (Folder::new("backing"), Folder::new("kept"));
    let backing = kept.0.join("data");
    fs::write(&backing, vec![42; 1 << 20]).unwrap();
    let device = "faulty:nvme,bad_from=512k,bad_bytes=4k";
    let serve = Serve::start(device, &folder, &["--backing", backing.to_str().unwrap()]);
    let file = OpenOptions::new().read(true).write(true).open(folder.device()).unwrap();
    file.write_all_at(b"kept", 4_096).unwrap();
    file.sync_all().unwrap();
    let mut page = [0; 4_096];
    file.read_exact_at(&mut page, 256 << 10).unwrap();
    assert!(page.iter().all(|&byte| byte == 42));
    let direct =
        OpenOptions::new().read(true).custom_flags(O_DIRECT).open(folder.device()).unwrap();
    let mut memory = vec![0; 8_192];
    let start = memory.as_ptr().align_offset(4_096);
    let error = direct.read_exact_at(&mut memory[start..start + 4_096], 512 << 10).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "EIO, not {error}");
    assert_eq!(file.set_len(0).unwrap_err().raw_os_error(), Some(1), "a device has one size");
    drop((file, direct));
    serve.end("-INT");
    assert_eq!(&fs::read(&backing).unwrap()[4_096..4_100], b"kept");
    fs::remove_file(&backing).unwrap();
}

#[test]
fn emulated_device_unmounts_while_its_file_is_open() {
    if !can_mount("emulated_device_unmounts_while_its_file_is_open") {
        return;
    }
    let folder = Folder::new("busy");
    let serve = Serve::start("nvme", &folder, &["--size", "1MiB"]);
    let file = File::open(folder.device()).unwrap();
    serve.end("-TERM");
    assert!(!folder.is_mounted());
    drop(file);
}

/// The output names the reason: the user has ended neither the command nor the mount.
#[test]
fn emulated_device_unmounts_when_its_parent_dies() {
    if !can_mount("emulated_device_unmounts_when_its_parent_dies") {
        return;
    }
    let folder = Folder::new("orphan");
    let scratch = Scratch::new("emulate-orphan");
    let (at, log) = (folder.0.display(), scratch.path("log"));
    let script = format!(
        "'{READPATH}' serve nvme --at '{at}' --size 1MiB >/dev/null 2>'{}' & \
         while ! test -e '{at}/device'; do sleep 0.05; done",
        log.display()
    );
    assert!(Command::new("timeout").args(["20", "sh", "-c", &script]).status().unwrap().success());
    let says_why =
        || fs::read_to_string(&log).unwrap().contains("the process that started this command");
    // The shell is gone. Its child checks for that four times a second.
    for _ in 0..200 {
        if !folder.is_mounted() && says_why() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("still mounted, or without the reason, ten seconds after its parent's end");
}

/// The length of a block device is not in its metadata.
#[test]
fn block_device_is_served_with_its_whole_length() {
    let scratch = Scratch::new("backing");
    let folder = Folder::new("block");
    let file = scratch.data("file", 1 << 20);
    let Some(device) = LoopDevice::over(&file) else {
        return println!("skipped: loop devices need root");
    };
    if !can_mount("block_device_is_served_with_its_whole_length") {
        return;
    }
    let serve = Serve::start("nvme", &folder, &["--backing", &device.0]);
    assert_eq!(fs::metadata(folder.device()).unwrap().len(), 1 << 20);
    serve.end("-TERM");
}

#[test]
fn invalid_emulate_arguments_are_refused_with_the_reason() {
    let folder = Folder::new("refused");
    let refused = |arguments: &[&str]| -> String {
        let at = folder.0.to_str().unwrap();
        let output: Output =
            Command::new(READPATH).args(["emulate", "--at", at]).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&["floppy"]).contains("there is no device `floppy`"));
    assert!(refused(&["ssd,rpm=7"]).contains("no parameter `rpm`"));
    assert!(refused(&["ssd,size=1m", "--size", "2MiB"]).contains("less than the 2097152"));
    assert!(refused(&["ssd", "--size", "0"]).contains("--size 0: nothing to serve"));
    let huge = refused(&["ssd", "--size", "18446744073709551615"]);
    assert!(huge.contains("less than the 18446744073709551615 to be served"), "{huge}");
    assert!(refused(&["ssd", "--backing", "/nowhere/at/all"]).contains("/nowhere/at/all"));
    fs::write(folder.0.join("file"), "").unwrap();
    assert!(refused(&["ssd"]).contains("not an empty folder"));
    fs::remove_file(folder.0.join("file")).unwrap();
}
