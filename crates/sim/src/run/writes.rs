//! Special properties of writes: whole units of the device, and syncs. The length of a *unit* is
//! the alignment that the device demands.

use readpath_core::machine::{Machine, Transfer};
use readpath_core::request::{Op, Outcome, RequestId};
use readpath_core::unit::{SECTOR_BYTES, Time};

use super::RunningJob;

/// First identifier of flushes, one per process. Requests have smaller identifiers.
const FIRST_FLUSH_ID: u32 = 1 << 31;

/// All writes of a job count as synchronous for the schedulers.
pub(super) const IS_SYNC: bool = true;

/// Returns the identifier of a process's flush.
pub(super) fn flush_of(process: u32) -> RequestId {
    RequestId(FIRST_FLUSH_ID + process)
}

/// Returns the process of a flush, or `None` for the identifier of a request.
pub(super) fn process_of_flush(id: RequestId) -> Option<u32> {
    id.0.checked_sub(FIRST_FLUSH_ID)
}

impl RunningJob<'_> {
    /// Completes the sync of a process after the flush of the device, and lets the process
    /// continue. A failed flush counts as a failed operation, as the `EIO` of fsync(2). A
    /// flush moves no bytes, so it is never short.
    pub(super) fn end_sync(&mut self, now: Time, process: u32, outcome: Outcome) {
        self.flushes_in_flight -= 1;
        let running = &mut self.processes[process as usize];
        running.process.synced(now);
        running.share.record_sync(now);
        let write_counters = &mut self.jobs[running.process.job()][Op::Write as usize];
        write_counters.record_sync(now);
        if let Outcome::Failed(error) = outcome {
            write_counters.errors += 1;
            self.first_error.get_or_insert_with(|| format!("sync: {error}"));
        }
        self.ready.push(process);
    }

    /// Returns the transfer of a cached write, extended to whole units of the device within the
    /// file, because the kernel writes whole units. In a file shorter than a unit, the transfer has
    /// no bytes.
    pub(super) fn extend_to_units(machine: &Machine, transfer: Transfer) -> Transfer {
        let unit_bytes = u64::from(machine.caps().alignment_sectors) * SECTOR_BYTES;
        let file_end = machine.file_bytes(transfer.handle) / unit_bytes * unit_bytes;
        let offset = transfer.offset / unit_bytes * unit_bytes;
        let end = (transfer.offset + transfer.bytes).next_multiple_of(unit_bytes).min(file_end);
        // A write in the file's last partial unit becomes a write of the last whole unit.
        let offset = offset.min(file_end.saturating_sub(unit_bytes));
        Transfer { offset, bytes: end - offset, ..transfer }
    }
}
