//! Request queue of a block device, as `/sys/dev/block/*/queue` reports it.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

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
    /// Kernel's I/O scheduler of the device (`scheduler`, the entry in brackets).
    pub scheduler: Option<String>,
}

impl QueueLimits {
    /// Queue of the device below an open file, or of the device itself. `None` without a device or
    /// an entry in sysfs.
    pub fn from_metadata(metadata: &Metadata) -> Option<QueueLimits> {
        let device = match metadata.file_type().is_block_device() {
            true => metadata.rdev(),
            false => metadata.dev(),
        };
        QueueLimits::from_device_number(device)
    }

    /// Queue of the device with this number, as `stat(2)` reports it.
    pub fn from_device_number(device: u64) -> Option<QueueLimits> {
        let directory = queue_path(device)?;
        let number = |name: &str| -> Option<u64> {
            std::fs::read_to_string(directory.join(name)).ok()?.trim().parse().ok()
        };
        Some(QueueLimits {
            request_bytes_max: number("max_sectors_kb")? << 10,
            requests_max: u32::try_from(number("nr_requests")?).ok()?,
            read_ahead_bytes: number("read_ahead_kb")? << 10,
            is_rotational: number("rotational")? == 1,
            scheduler: std::fs::read_to_string(directory.join("scheduler"))
                .ok()
                .and_then(|line| bracketed_entry(&line).map(str::to_owned)),
        })
    }
}

/// Returns the entry in brackets of a line such as `none [mq-deadline] kyber`.
fn bracketed_entry(line: &str) -> Option<&str> {
    line.split_once('[')?.1.split_once(']').map(|(name, _)| name)
}

/// Directory of a device's queue; a partition uses its disk's.
fn queue_path(device: u64) -> Option<PathBuf> {
    let node = PathBuf::from(format!("/sys/dev/block/{}:{}", major(device), minor(device)));
    [node.join("queue"), node.join("../queue")].into_iter().find(|path| path.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_scheduler_is_the_entry_in_brackets() {
        assert_eq!(bracketed_entry("none [mq-deadline] kyber\n"), Some("mq-deadline"));
        assert_eq!(bracketed_entry("none\n"), None);
    }

    /// Major number 0 belongs to file systems without a block device.
    #[test]
    fn number_without_a_block_device_has_no_queue() {
        assert_eq!(QueueLimits::from_device_number(rustix::fs::makedev(0, 1)), None);
    }
}
