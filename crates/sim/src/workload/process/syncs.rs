//! Syncs of a process (`fsync`, `fdatasync`, `end_fsync`).

use readpath_core::unit::Time;

use super::{AfterDrain, AfterSync, Process, ProcessState};
use crate::workload::FileId;

impl Process {
    /// Returns the number of syncs that fio counts: option fsync, without fdatasync and end_fsync.
    pub const fn fsyncs(&self) -> u64 {
        self.fsyncs
    }

    /// Records the end of the requested sync, successful or not. The process continues with its
    /// work, with the next pass, or ends.
    pub fn synced(&mut self, now: Time) {
        let ProcessState::Syncing(then) = self.state else {
            panic!("only what was asked for is done")
        };
        self.is_synced = true;
        self.state = match then {
            AfterSync::Issue => ProcessState::Issuing,
            AfterSync::NextPass => self.state_after_drain(AfterDrain::NextPass, now),
            AfterSync::End => self.state_after_drain(AfterDrain::End, now),
        };
    }

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
