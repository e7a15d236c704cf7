//! Numbers of file systems, as the kernel's events have them.
//!
//! `stat(2)` has another number than the events for files of btrfs: there each subvolume has its
//! own. The number in the events is in `/proc/self/mountinfo`, by the mount of the file.

use std::collections::{HashMap, HashSet};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, CWD, StatxFlags, major, minor, statx};

use super::event::Inode;

/// File systems whose files the kernel makes up.
const WITHOUT_STORAGE: [&str; 14] = [
    "proc",
    "sysfs",
    "cgroup",
    "cgroup2",
    "devpts",
    "mqueue",
    "debugfs",
    "tracefs",
    "securityfs",
    "configfs",
    "pstore",
    "bpf",
    "binfmt_misc",
    "efivarfs",
];

/// A mount, from a line of `mountinfo`, proc(5).
#[derive(Debug, PartialEq, Eq)]
struct Mount<'a> {
    number: u64,
    /// Major × 2²⁰ + minor.
    device: u64,
    file_system: &'a str,
    source: &'a str,
}

impl Mount<'_> {
    fn parse(line: &str) -> Option<Mount<'_>> {
        let (mount, rest) = line.split_once(" - ")?;
        let mut fields = mount.split(' ');
        let number = fields.next()?.parse().ok()?;
        let (major, minor) = fields.nth(1)?.split_once(':')?;
        let device = major.parse::<u64>().ok()? << 20 | minor.parse::<u64>().ok()?;
        let mut rest = rest.split(' ');
        Some(Mount { number, device, file_system: rest.next()?, source: rest.next()? })
    }
}

/// Numbers of the file systems without storage.
pub(super) fn without_storage(mounts: &str) -> HashSet<u64> {
    let mounts = mounts.lines().filter_map(Mount::parse);
    let made_up = mounts.filter(|mount| WITHOUT_STORAGE.contains(&mount.file_system));
    made_up.map(|mount| mount.device).collect()
}

/// File systems by the numbers of their mounts. Read again when a number is new.
static MOUNTS: Mutex<Option<HashMap<u64, u64>>> = Mutex::new(None);

/// Text of `/proc/self/mountinfo`; empty if it cannot be read.
pub(super) fn table() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()
}

/// Converts a device number of `stat(2)` to the kernel's form: major × 2²⁰ + minor.
fn kernel_device(device: u64) -> u64 {
    u64::from(major(device)) << 20 | u64::from(minor(device))
}

/// Returns the inode of the file at a path, with the device number of the kernel's events. `found`:
/// its attributes.
pub(super) fn inode_at(path: &Path, found: &Metadata) -> Inode {
    let own = Inode { device: kernel_device(found.dev()), number: found.ino() };
    if major(found.dev()) != 0 {
        return own;
    }
    let mount = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok();
    let device = mount.and_then(|mount| device_of_mount(mount.stx_mnt_id));
    Inode { device: device.unwrap_or(own.device), ..own }
}

fn device_of_mount(mount: u64) -> Option<u64> {
    let mut known = MOUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&device) = known.as_ref().and_then(|mounts| mounts.get(&mount)) {
        return Some(device);
    }
    let table = table();
    let mounts = table.lines().filter_map(Mount::parse);
    let mounts = known.insert(mounts.map(|mount| (mount.number, mount.device)).collect());
    mounts.get(&mount).copied()
}

/// Returns the number of the block device that holds a file system of btrfs. `None` for other file
/// systems, and for one on several devices.
pub(super) fn disk_of_btrfs(device: u64) -> Option<u64> {
    let table = table();
    let mut mounts = table.lines().filter_map(Mount::parse);
    let mount = mounts.find(|it| it.device == device && it.file_system == "btrfs")?;
    let disk = fs::metadata(mount.source).ok()?.rdev();
    // Each device of the file system has a folder `devinfo/N`.
    let all = fs::read_dir("/sys/fs/btrfs").ok()?.filter_map(Result::ok);
    let name = fs::canonicalize(mount.source).ok()?.file_name()?.to_owned();
    let own = all.map(|folder| folder.path().join("devices")).find(|it| it.join(&name).exists())?;
    let count = fs::read_dir(own).ok()?.count();
    (count == 1).then(|| kernel_device(disk))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as in proc(5): an optional field, and a disk.
    #[test]
    fn file_systems_without_storage_are_known_by_their_device() {
        let mounts = "22 28 0:20 / /sys rw,nosuid - sysfs sysfs rw\n\
                      23 28 0:21 / /proc rw shared:5 - proc proc rw\n\
                      28 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n\
                      30 28 0:25 / /memory rw - tmpfs tmpfs rw\n";
        assert_eq!(without_storage(mounts), HashSet::from([20, 21]));
    }
}
