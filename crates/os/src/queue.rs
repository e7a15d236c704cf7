//! Request queue of a block device, as `/sys/dev/block/*/queue` reports it.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

/// Limits of a device's request queue, as reported by the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Largest request of the kernel in bytes (`max_sectors_kb`).
    pub request_bytes_max: u64,
    /// Number of requests that the queue holds (`nr_requests`).
    pub requests_max: u32,
    /// Readahead window of the kernel in bytes (`read_ahead_kb`).
    pub read_ahead_bytes: u64,
    /// True for a device with a moving head (`rotational`).
    pub is_rotational: bool,
    /// Kernel's I/O scheduler of the device (`scheduler`, the entry in brackets). `None` if sysfs
    /// reports none.
    pub scheduler: Option<String>,
}

impl QueueLimits {
    /// Queue of the device below an open file, or of the device itself. `None` without a device, or
    /// as [`from_device_number`](QueueLimits::from_device_number).
    pub fn from_metadata(metadata: &Metadata) -> Option<QueueLimits> {
        QueueLimits::from_device_number(device_number(metadata))
    }

    /// Queue of the device with this number, as `stat(2)` reports it. `None` without an entry in
    /// sysfs, or if one of the entry's numbers cannot be read.
    pub fn from_device_number(number: u64) -> Option<QueueLimits> {
        let directory = queue_path(number)?;
        let number_in_file = |name: &str| -> Option<u64> {
            std::fs::read_to_string(directory.join(name)).ok()?.trim().parse().ok()
        };
        Some(QueueLimits {
            // Both sizes are in KiB.
            request_bytes_max: number_in_file("max_sectors_kb")? << 10,
            requests_max: u32::try_from(number_in_file("nr_requests")?).ok()?,
            read_ahead_bytes: number_in_file("read_ahead_kb")? << 10,
            is_rotational: number_in_file("rotational")? == 1,
            scheduler: std::fs::read_to_string(directory.join("scheduler"))
                .ok()
                .and_then(|line| bracketed_entry(&line).map(str::to_owned)),
        })
    }
}

/// Readahead window of the storage below a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadaheadSetting {
    /// Window in bytes.
    pub bytes: u64,
    /// File of sysfs that has the window in KiB, and sets it.
    pub path: PathBuf,
}

impl ReadaheadSetting {
    /// Setting of a block device, of the device below a file's file system, or of a file system
    /// without one, such as NFS. `None` if sysfs has no setting for it.
    pub fn from_metadata(metadata: &Metadata) -> Option<ReadaheadSetting> {
        ReadaheadSetting::from_device_number(device_number(metadata))
    }

    /// Setting of the device or file system with this number, as `stat(2)` reports it. `None` if
    /// sysfs has no setting for it.
    pub fn from_device_number(number: u64) -> Option<ReadaheadSetting> {
        let path = match queue_path(number) {
            // The folder of a disk has its name. A partition has no setting of its own, and takes
            // the disk's.
            Some(queue) => {
                let queue_of_disk = queue.canonicalize().ok()?;
                let disk_name = queue_of_disk.parent()?.file_name()?;
                Path::new("/sys/block").join(disk_name).join("queue/read_ahead_kb")
            }
            // No block device: the kernel lists the file system's own setting by its number.
            None => {
                let major_and_minor = format!("{}:{}", major(number), minor(number));
                Path::new("/sys/class/bdi").join(major_and_minor).join("read_ahead_kb")
            }
        };
        let kib: u64 = std::fs::read_to_string(&path).ok()?.trim().parse().ok()?;
        Some(ReadaheadSetting { bytes: kib << 10, path })
    }
}

/// Folder of a block device in sysfs, by its number as `stat(2)` reports it. A number without a
/// block device has none there.
pub fn device_folder(number: u64) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{}:{}", major(number), minor(number)))
}

/// Number of a block device, or of the device below a file's file system.
fn device_number(metadata: &Metadata) -> u64 {
    match metadata.file_type().is_block_device() {
        true => metadata.rdev(),
        false => metadata.dev(),
    }
}

/// Returns the entry in brackets of a line such as `none [mq-deadline] kyber`, or `None` if there
/// is none.
fn bracketed_entry(line: &str) -> Option<&str> {
    line.split_once('[')?.1.split_once(']').map(|(name, _)| name)
}

/// Directory of a device's queue in sysfs; a partition uses its disk's. `None` without a queue.
fn queue_path(number: u64) -> Option<PathBuf> {
    let folder = device_folder(number);
    [folder.join("queue"), folder.join("../queue")].into_iter().find(|path| path.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_scheduler_is_the_entry_in_brackets() {
        assert_eq!(bracketed_entry("none [mq-deadline] kyber\n"), Some("mq-deadline"));
        assert_eq!(bracketed_entry("none\n"), None);
    }

    /// The two readers of sysfs agree about the device of this source tree, where it has one.
    #[test]
    fn setting_is_the_window_of_the_queue() {
        let here = std::fs::metadata(env!("CARGO_MANIFEST_DIR")).unwrap();
        let queue_bytes = QueueLimits::from_metadata(&here).map(|queue| queue.read_ahead_bytes);
        match (ReadaheadSetting::from_metadata(&here), queue_bytes) {
            (Some(setting), Some(queue_bytes)) => assert_eq!(setting.bytes, queue_bytes),
            (setting, queue_bytes) => assert!(queue_bytes.is_none(), "{setting:?}"),
        }
    }

    /// Major number 0 belongs to file systems without a block device.
    #[test]
    fn number_without_a_block_device_has_no_queue() {
        assert_eq!(QueueLimits::from_device_number(rustix::fs::makedev(0, 1)), None);
    }
}
