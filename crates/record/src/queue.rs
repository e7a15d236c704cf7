//! Kernel settings of a block device, from `/sys/dev/block/*/queue`.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use rustix::fs::{major, minor};

/// Kernel settings of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelQueue {
    /// Readahead window in bytes (`read_ahead_kb`).
    pub read_ahead_bytes: u64,
    /// Maximum request size in bytes (`max_sectors_kb`).
    pub request_bytes_max: u64,
    /// I/O scheduler (the bracketed name in `scheduler`).
    pub scheduler: Option<String>,
}

impl KernelQueue {
    /// Reads the settings of a block device, or of the device below a file's file system. Returns
    /// `None` without such a device or without its sysfs folder.
    pub fn of(metadata: &Metadata) -> Option<KernelQueue> {
        let device = match metadata.file_type().is_block_device() {
            true => metadata.rdev(),
            false => metadata.dev(),
        };
        let node = PathBuf::from(format!("/sys/dev/block/{}:{}", major(device), minor(device)));
        // A partition uses the queue of its disk.
        let folder = [node.join("queue"), node.join("../queue")];
        let folder = folder.into_iter().find(|path| path.is_dir())?;
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
        let bytes = |name: &str| Some(text(name)?.trim().parse::<u64>().ok()? << 10);
        let scheduler = text("scheduler").and_then(|line| bracketed_word(&line).map(str::to_owned));
        Some(KernelQueue {
            read_ahead_bytes: bytes("read_ahead_kb")?,
            request_bytes_max: bytes("max_sectors_kb")?,
            scheduler,
        })
    }
}

/// Returns the word in brackets of a line such as `none [mq-deadline] kyber`.
fn bracketed_word(line: &str) -> Option<&str> {
    line.split_once('[')?.1.split_once(']').map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_scheduler_is_the_word_in_brackets() {
        assert_eq!(bracketed_word("none [mq-deadline] kyber\n"), Some("mq-deadline"));
        assert_eq!(bracketed_word("none\n"), None);
    }
}
