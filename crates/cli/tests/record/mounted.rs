//! Recordings of reads on file systems other than the machine's own.

use std::fs::{self, File};
use std::process::Command;

use serde_json::Value;

use crate::support::disk::{LoopDevice, Mounted};
use crate::support::{Scratch, has};
use crate::{can_watch, is_root, of_kind, records_of};

/// A file system on a new loop device, with the file `data` of 16 MiB in the folder `sub`.
fn mounted(scratch: &Scratch, make: &[&str], options: &str, sub: &str) -> Option<Mounted> {
    if !can_watch(scratch) || !is_root() {
        return None;
    }
    if !has("fio") || !has("losetup") || !has("mount") {
        println!("skipped: needs fio, losetup and mount");
        return None;
    }
    let backing = scratch.path("backing");
    File::create(&backing).unwrap().set_len(512 << 20).unwrap();
    let device = LoopDevice::direct_over(&backing).or_else(|| LoopDevice::over(&backing));
    let device = device.expect("a free loop device");
    let Some(mounted) = Mounted::new(device, scratch.path("mounted"), make, options) else {
        println!("skipped: needs {}, and its file system in the kernel", make[0]);
        return None;
    };
    let folder = mounted.folder.join(sub);
    if !sub.is_empty() {
        let mut volume = Command::new("btrfs");
        let output = volume.args(["subvolume", "create"]).arg(&folder).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    fs::copy(scratch.data("made", 16 << 20), folder.join("data")).unwrap();
    rustix::fs::sync();
    Some(mounted)
}

/// Output of a command about random reads of `data` by fio, with cold pages.
fn ran(scratch: &Scratch, command: &str, file: &str, options: &str) -> String {
    let cold = File::open(file).unwrap();
    rustix::fs::fadvise(&cold, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let fio = "fio --name=a --rw=randread --bs=4k --number_ios=1024 --output=fio.txt";
    let ran = scratch.run(&format!("{command} -- {fio} --filename={file} --size=16m {options}"));
    ran.has_ended(0, options);
    ran.stdout
}

/// In a subvolume of btrfs, `stat(2)` and the kernel's events have different device numbers.
#[test]
fn files_of_btrfs_have_their_names_and_their_disk() {
    let scratch = Scratch::new("record-btrfs");
    let make = ["mkfs.btrfs", "-q"];
    let Some(mounted) = mounted(&scratch, &make, "defaults", "volume") else { return };
    let file = mounted.folder.join("volume/data");
    let file = file.to_str().unwrap();
    ran(&scratch, "record -o reads.rec", file, "--ioengine=psync --direct=1");
    let records = records_of(&scratch, "reads.rec");
    let of = |kind: &str| of_kind(&records, kind);
    let found = of("file").into_iter().find(|it| it["path"] == file);
    let found = found.unwrap_or_else(|| panic!("no {file}: {:#?}", of("file")));
    let reads = of("read").into_iter().filter(|it| it["file"] == found["file"]).count();
    assert_eq!(reads, 1024);
    let disk = of("device").into_iter().find(|it| it["device"] == found["device"]);
    let disk = disk.unwrap_or_else(|| panic!("{found}: {:#?}", of("device")));
    assert_eq!(Some(disk["name"].as_str().unwrap()), mounted.device.0.strip_prefix("/dev/"));
}

/// With `data=journal`, ext4 serves direct reads from the page cache: a submission of AIO waits.
#[test]
fn direct_reads_through_the_page_cache_are_named() {
    let scratch = Scratch::new("record-direct");
    let make = ["mkfs.ext4", "-q"];
    let Some(mounted) = mounted(&scratch, &make, "data=journal", "") else { return };
    let file = mounted.folder.join("data");
    let options = "--ioengine=libaio --direct=1 --iodepth=16";
    let file = file.to_str().unwrap();
    let explanation = ran(&scratch, "explain --json --gains never", file, options);
    let explanation: Value = serde_json::from_str(&explanation).unwrap();
    let causes = &explanation["findings"];
    let finding = causes.as_array().unwrap().iter().find(|it| it["cause"] == "direct");
    let finding = finding.unwrap_or_else(|| panic!("{explanation:#}"));
    let evidence = finding["evidence"].as_str().unwrap();
    assert!(evidence.contains("of 1024 direct reads"), "{evidence}");
}

/// Overlay over two layers of one file system, unmounted at the end.
struct Overlay(std::path::PathBuf);

impl Overlay {
    fn over(folder: &std::path::Path) -> Option<Overlay> {
        let [low, up, work, merged] = ["low", "up", "work", "merged"].map(|name| folder.join(name));
        for layer in [&up, &work, &merged] {
            fs::create_dir(layer).unwrap();
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            low.display(),
            up.display(),
            work.display()
        );
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "overlay", "-o", &options]).arg(&merged);
        mount.status().unwrap().success().then_some(Overlay(merged))
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// A container has the files of an overlay. The kernel reads the files of its layers, whose
/// paths begin at the layer: `/sub/data`. No file had that path.
#[test]
fn files_of_an_overlay_have_their_paths() {
    let scratch = Scratch::new("record-overlay");
    let Some(mounted) = mounted(&scratch, &["mkfs.ext4", "-q"], "defaults", "") else { return };
    let folder = mounted.folder.join("low/sub");
    fs::create_dir_all(&folder).unwrap();
    fs::rename(mounted.folder.join("data"), folder.join("data")).unwrap();
    let Some(overlay) = Overlay::over(&mounted.folder) else {
        return println!("skipped: no overlay can be mounted");
    };
    let file = overlay.0.join("sub/data");
    let file = file.to_str().unwrap();
    let explanation = ran(&scratch, "explain --json --gains never", file, "--ioengine=psync");
    let explanation: Value = serde_json::from_str(&explanation).unwrap();
    let files = explanation["shape"]["files"].as_array().unwrap();
    let found = files.iter().find(|it| it["path"] == file);
    let found = found.unwrap_or_else(|| panic!("no {file}: {files:#?}"));
    assert_eq!(found["reads"], 1024);
}
