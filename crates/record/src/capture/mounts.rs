//! Mounted file systems, and their numbers in the kernel's events.
//!
//! `stat(2)` has another number than the events for files of btrfs: there each subvolume has its
//! own. The number in the events is in `/proc/self/mountinfo`, by the mount of the file.

use std::collections::{HashMap, HashSet};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use readpath_os::mounts::{Mount, parse_mounts};
use rustix::fs::{AtFlags, CWD, MemfdFlags, StatxFlags, major, memfd_create, minor, statx};

use super::device_number;
use super::event::Inode;
use crate::escaped_path::unescaped;

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

/// File systems with files and without a block device of their own.
const WITHOUT_BLOCK_DEVICE: [&str; 11] =
    ["9p", "btrfs", "ceph", "cifs", "nfs", "nfs4", "overlay", "smb3", "tmpfs", "virtiofs", "zfs"];

/// File systems whose files a server keeps, next to the ones of FUSE.
const WITH_SERVER: [&str; 7] = ["9p", "ceph", "cifs", "nfs", "nfs4", "smb3", "virtiofs"];

/// Returns true if a server keeps the files, which may never answer.
pub(super) fn has_server(mount: &Mount<'_>) -> bool {
    is_of_fuse(mount) || WITH_SERVER.contains(&mount.file_system)
}

/// Folder of the mount.
pub(super) fn mount_path(mount: &Mount<'_>) -> PathBuf {
    unescaped(mount.mount_point).into()
}

/// Returns true for FUSE itself, and for its servers such as `fuse.sshfs`.
fn is_of_fuse(mount: &Mount<'_>) -> bool {
    mount.file_system == "fuse" || mount.file_system.starts_with("fuse.")
}

/// Returns true if the file system has files of programs.
fn has_files(mount: &Mount<'_>) -> bool {
    let has_block_device = !device_number::is_without_block_device(mount.device);
    has_block_device || is_of_fuse(mount) || WITHOUT_BLOCK_DEVICE.contains(&mount.file_system)
}

/// Returns the mounts of file systems with files of programs. `mountinfo`: the text of that file.
pub(super) fn mounts_with_files(mountinfo: &str) -> impl Iterator<Item = Mount<'_>> {
    parse_mounts(mountinfo).filter(has_files)
}

/// Returns the device numbers of the file systems without storage. `mountinfo`: the text of that
/// file.
pub(super) fn without_storage(mountinfo: &str) -> HashSet<u64> {
    let mounted =
        parse_mounts(mountinfo).filter(|mount| WITHOUT_STORAGE.contains(&mount.file_system));
    mounted.map(|mount| mount.device).collect()
}

/// Returns the device numbers of file systems in memory: `tmpfs`, and the kernel's own one, which
/// has shared memory and no mount point. `mountinfo`: the text of that file.
pub(super) fn in_memory(mountinfo: &str) -> HashSet<u64> {
    let mounted = parse_mounts(mountinfo).filter(|mount| mount.file_system == "tmpfs");
    let shared = memfd_create("device", MemfdFlags::CLOEXEC).and_then(rustix::fs::fstat);
    let shared = shared.map(|found| kernel_device(found.st_dev));
    mounted.map(|mount| mount.device).chain(shared.ok()).collect()
}

/// Returns the device numbers of overlays. `mountinfo`: the text of that file.
pub(super) fn overlays(mountinfo: &str) -> HashSet<u64> {
    let overlays = parse_mounts(mountinfo).filter(|mount| mount.file_system == "overlay");
    overlays.map(|mount| mount.device).collect()
}

/// Device number of the file system of each mount, by the number of the mount. Read again when a
/// number is new.
static MOUNTS: Mutex<Option<HashMap<u64, u64>>> = Mutex::new(None);

/// Returns the text of `/proc/self/mountinfo`. It is empty if the file cannot be read.
pub(super) fn mountinfo() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()
}

/// Converts a device number of `stat(2)` to the kernel's form.
fn kernel_device(device: u64) -> u64 {
    device_number::from_parts(u64::from(major(device)), u64::from(minor(device)))
}

/// Returns the inode of the file at a path, with the device number of the kernel's events. Without
/// a known mount it is the number of `stat(2)`. `metadata` are the attributes of that file.
pub(super) fn inode_at(path: &Path, metadata: &Metadata) -> Inode {
    let from_stat = Inode { device: kernel_device(metadata.dev()), number: metadata.ino() };
    // A file system on a block device has one number only. Otherwise the mount decides, as for
    // btrfs.
    if major(metadata.dev()) != 0 {
        return from_stat;
    }
    let mount = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok();
    let device = mount.and_then(|mount| device_of_mount(mount.stx_mnt_id));
    Inode { device: device.unwrap_or(from_stat.device), ..from_stat }
}

/// Returns the device number of a mount in the kernel's form. `None` if the mount does not exist.
/// The table of mounts is read again for an unknown number.
fn device_of_mount(mount_number: u64) -> Option<u64> {
    let mut mount_devices = MOUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&device) = mount_devices.as_ref().and_then(|mounts| mounts.get(&mount_number)) {
        return Some(device);
    }
    let table = mountinfo();
    let mounts = parse_mounts(&table).map(|mount| (mount.number, mount.device));
    let mounts = mount_devices.insert(mounts.collect());
    mounts.get(&mount_number).copied()
}

/// Returns the number of the block device that holds a file system of btrfs. `device` is the number
/// of the file system. `None` for other file systems, and for one on several devices.
pub(super) fn disk_of_btrfs(device: u64) -> Option<u64> {
    let table = mountinfo();
    let mount = parse_mounts(&table)
        .find(|mount| mount.device == device && mount.file_system == "btrfs")?;
    let disk = fs::metadata(mount.source).ok()?.rdev();
    // Each file system has a folder, with a link for each of its devices in `devices`.
    let folders = fs::read_dir("/sys/fs/btrfs").ok()?.filter_map(Result::ok);
    let name = fs::canonicalize(mount.source).ok()?.file_name()?.to_owned();
    let devices_folder = folders
        .map(|folder| folder.path().join("devices"))
        .find(|devices| devices.join(&name).exists())?;
    let count = fs::read_dir(devices_folder).ok()?.count();
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

    /// Lines of a machine with a server of FUSE, in a folder with a space.
    #[test]
    fn mounts_with_files_have_their_folder_and_whether_a_server_keeps_them() {
        let mounts = "23 28 0:21 / /proc rw shared:5 - proc proc rw\n\
                      28 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n\
                      31 28 0:40 / /far\\040away rw - fuse.sshfs host: rw\n\
                      32 28 0:41 / /control rw - fusectl none rw\n\
                      33 28 0:42 / /shared rw - virtiofs tag rw\n";
        let found: Vec<(PathBuf, bool)> = mounts_with_files(mounts)
            .map(|mount| (mount_path(&mount), has_server(&mount)))
            .collect();
        let expected = [("/", false), ("/far away", true), ("/shared", true)];
        assert_eq!(found, expected.map(|(path, has_server)| (path.into(), has_server)));
    }
}
