//! Syncs of a process (`fsync`, `fdatasync`, `end_fsync`).

use super::{AfterSync, Process, ProcessState};
use crate::workload::FileId;

impl Process {
    /// Returns `Some` if a sync is due before the next operation, with true if the files' data
    /// suffices. `fsync` precedes `fdatasync`, as in fio. No sync follows another one directly.
    pub(super) fn due_sync(&self) -> Option<bool> {
        let (full_sync, data_sync) = (Some(false), Some(true));
        let is_due = |interval_writes: u32| {
            interval_writes > 0 && self.writes_issued.is_multiple_of(interval_writes.into())
        };
        match self.rules.sync {
            _ if self.is_synced || self.writes_issued == 0 => None,
            sync if is_due(sync.writes) => full_sync,
            sync if is_due(sync.data_writes) => data_sync,
            _ => None,
        }
    }

    /// Returns the file of the present sync in the trace log: as in fio, the file whose turn it is.
    /// `None` for a sync at the end of the pass or the process, which is one of all files.
    pub(super) fn synced_file(&self) -> Option<FileId> {
        let is_in_pass = self.state == ProcessState::Syncing(AfterSync::Issue);
        let current = self.file_selection.current.filter(|_| is_in_pass)?;
        Some(self.areas[current].area.file)
    }
}
