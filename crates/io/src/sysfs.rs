//! What the kernel says of a block device in `/sys/dev/block/*/queue`.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use rustix::fs::{major, minor};

/// The limits of a device's request queue, as the kernel states them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// The largest request that the kernel makes, in bytes (`max_sectors_kb`).
    pub request_bytes_max: u64,
    /// How many requests can be in it at once (`nr_requests`).
    pub requests_max: u32,
    /// How far the kernel reads ahead on it, in bytes (`read_ahead_kb`).
    pub read_ahead_bytes: u64,
    /// Whether it has a head that must travel (`rotational`).
    pub is_rotational: bool,
    /// The kernel's scheduler on it (`scheduler`, the one in brackets).
    pub scheduler: Option<String>,
}

impl QueueLimits {
    /// The queue below an open file: of the device that it is, or that holds
    /// its file system. `None` where there is no such device, or sysfs doesn't show it.
    pub fn of(metadata: &Metadata) -> Option<QueueLimits> {
        let device = match metadata.file_type().is_block_device() {
            true => metadata.rdev(),
            false => metadata.dev(),
        };
        QueueLimits::of_device(device)
    }

    /// The queue of a device, by its number.
    pub(crate) fn of_device(device: u64) -> Option<QueueLimits> {
        let directory = queue_directory(device)?;
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
                .and_then(|line| chosen(&line).map(str::to_owned)),
        })
    }
}

/// The word in brackets of a line such as `none [mq-deadline] kyber`.
fn chosen(line: &str) -> Option<&str> {
    line.split_once('[')?.1.split_once(']').map(|(name, _)| name)
}

/// Where the queue of a device is described; a partition shares its disk's.
fn queue_directory(device: u64) -> Option<PathBuf> {
    let node = PathBuf::from(format!("/sys/dev/block/{}:{}", major(device), minor(device)));
    [node.join("queue"), node.join("../queue")].into_iter().find(|path| path.is_dir())
}
