//! `vm.page_cluster`: the kernel reads up to `1 << page_cluster` slots ahead in swap.
//!
//! The setting is global. While a run changes it, a locked file in `/run` stores the previous
//! value. After a kill, the next run of any command restores that value.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{CleanupEntry, SwapError, try_lock_path};
use readpath_record::notice;

/// Path of the setting.
const SETTING_PATH: &str = "/proc/sys/vm/page-cluster";
/// Path of the file with the previous value.
const RECORD_PATH: &str = "/run/readpath-page-cluster";
/// Maximum value accepted by the kernel (`page_cluster_max` in mm/swap.c).
pub const PAGE_CLUSTER_MAX: u32 = 31;

/// Advice for a refused system call.
const NEEDS_ROOT: &str = "setting page_cluster needs root; leave it as it is by naming none";

/// Returns the current value, or `None` when the kernel lacks the setting (built without swap).
pub fn current() -> Option<u32> {
    read_number(Path::new(SETTING_PATH))
}

/// Reads a number from a file. Returns `None` without a file or a number.
fn read_number(path: &Path) -> Option<u32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Restores the value after a killed run. Returns `None` without a record of one, while the run of
/// the record lives, and if the value cannot be set.
pub fn restore_abandoned() -> Option<CleanupEntry> {
    let (setting_path, record_path) = (Path::new(SETTING_PATH), Path::new(RECORD_PATH));
    let record = File::open(record_path).ok()?;
    if !try_lock_path(&record, record_path) {
        return None;
    }
    let cleanup_entry = restore(setting_path, record_path).ok()?;
    let _ = std::fs::remove_file(record_path);
    cleanup_entry
}

/// Restores the recorded value. Returns `None` if no value is recorded. The caller holds the lock.
fn restore(setting_path: &Path, record_path: &Path) -> Result<Option<CleanupEntry>, SwapError> {
    let Some(recorded_value) = read_number(record_path) else { return Ok(None) };
    write_setting(setting_path, recorded_value)?;
    let outcome = format!("page_cluster is {recorded_value} again, as it was before that run");
    Ok(Some(CleanupEntry { path: record_path.to_path_buf(), outcome }))
}

/// A value of `page_cluster` in force until drop.
#[derive(Debug)]
pub struct PageCluster {
    /// Open file that holds the lock.
    _record: File,
    /// Value to restore, which the file holds too.
    value_before: u32,
    /// Path of the kernel's setting.
    setting_path: PathBuf,
    /// Path of the file with the previous value.
    record_path: PathBuf,
}

impl PageCluster {
    /// Sets the value for the whole machine until the result is dropped. A value that a killed run
    /// has left is restored first. The entry reports that, and is `None` otherwise.
    ///
    /// # Errors
    /// The value cannot be set, or another live run has set it.
    pub fn set(value: u32) -> Result<(PageCluster, Option<CleanupEntry>), SwapError> {
        PageCluster::set_at(value, Path::new(SETTING_PATH), Path::new(RECORD_PATH))
    }

    /// Sets `setting_path` to `value`, and records the value before in `record_path`. Restores
    /// first the value of a killed run.
    fn set_at(
        value: u32,
        setting_path: &Path,
        record_path: &Path,
    ) -> Result<(PageCluster, Option<CleanupEntry>), SwapError> {
        let record = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            // The content may be the value that a killed run has recorded.
            .truncate(false)
            .open(record_path)
            .map_err(|error| SwapError::refused("write", record_path, error, NEEDS_ROOT))?;
        if !try_lock_path(&record, record_path) {
            return Err(SwapError::PageClusterInUse { path: record_path.to_path_buf() });
        }
        let cleanup_entry = restore(setting_path, record_path)?;
        let value_before = read_number(setting_path).ok_or_else(|| {
            let error = std::io::ErrorKind::NotFound;
            SwapError::refused("read", setting_path, error, "this kernel has no swap readahead")
        })?;
        // The value is recorded before the setting changes: a kill in between loses nothing.
        record
            .set_len(0)
            .and_then(|()| record.write_all_at(value_before.to_string().as_bytes(), 0))
            .map_err(|error| SwapError::refused("write", record_path, error, NEEDS_ROOT))?;
        let (setting_path, record_path) = (setting_path.to_path_buf(), record_path.to_path_buf());
        let page_cluster = PageCluster { _record: record, value_before, setting_path, record_path };
        // After an error, the drop of the value removes the record.
        write_setting(&page_cluster.setting_path, value)?;
        Ok((page_cluster, cleanup_entry))
    }
}

impl Drop for PageCluster {
    /// Restores the value before. If that fails, the record stays for the next run.
    fn drop(&mut self) {
        match write_setting(&self.setting_path, self.value_before) {
            // The file is removed before the lock is released.
            Ok(()) => {
                let _ = std::fs::remove_file(&self.record_path);
            }
            Err(error) => notice::print(error),
        }
    }
}

/// Writes a value to the kernel's setting `setting_path`.
fn write_setting(setting_path: &Path, value: u32) -> Result<(), SwapError> {
    std::fs::write(setting_path, value.to_string())
        .map_err(|error| SwapError::refused("set", setting_path, error, NEEDS_ROOT))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses files of the test, because the real setting is global.
    #[test]
    fn page_cluster_value_is_restored_even_after_a_killed_run() {
        let folder = std::env::temp_dir().join(format!("page-cluster-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (setting_path, record) = (folder.join("knob"), folder.join("record"));
        std::fs::write(&setting_path, "3\n").unwrap();
        let (set, cleanup_entry) = PageCluster::set_at(0, &setting_path, &record).unwrap();
        assert_eq!((read_number(&setting_path), cleanup_entry), (Some(0), None));
        let second = PageCluster::set_at(4, &setting_path, &record);
        assert!(matches!(second, Err(SwapError::PageClusterInUse { .. })));
        drop(set);
        assert_eq!((read_number(&setting_path), record.exists()), (Some(3), false));
        // A killed run leaves the file unlocked.
        std::fs::write(&record, "3").unwrap();
        std::fs::write(&setting_path, "0\n").unwrap();
        let (set, cleanup_entry) = PageCluster::set_at(5, &setting_path, &record).unwrap();
        assert!(cleanup_entry.unwrap().outcome.contains("3 again"));
        assert_eq!(read_number(&setting_path), Some(5));
        drop(set);
        assert_eq!(read_number(&setting_path), Some(3));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
