//! What writes ask for beyond what reads do: whole units of the device, and syncs.

use readpath_core::machine::{Machine, Transfer};
use readpath_core::request::{Op, RequestId};
use readpath_core::unit::{SECTOR_BYTES, Time};

use super::RunningJob;

/// Names from here on are of flushes, one for each process; those below are of requests.
const FLUSHES: u32 = 1 << 31;

/// The name of a process's flush.
pub(super) fn flush_of(process: u32) -> RequestId {
    RequestId(FLUSHES + process)
}

/// The process whose flush has this name; `None` for a request's name.
pub(super) fn process_of_flush(id: RequestId) -> Option<u32> {
    id.0.checked_sub(FLUSHES)
}

impl RunningJob<'_> {
    /// What a process wrote is on the medium, as it asked.
    pub(super) fn flushed(&mut self, now: Time, process: u32) {
        self.flushes_under_way -= 1;
        let running = &mut self.processes[process as usize];
        running.process.synced(now);
        running.stream.record_sync(now);
        self.jobs[running.process.job()][Op::Write as usize].record_sync(now);
        self.ready.push(process);
    }

    /// The transfer of a write through the page cache, which takes any bytes: what the kernel
    /// writes of them is whole units of the device, as far as the file has them.
    pub(super) fn whole_units(machine: &Machine, transfer: Transfer) -> Transfer {
        let unit = u64::from(machine.caps().alignment_sectors) * SECTOR_BYTES;
        let file_end = machine.file_bytes(transfer.handle) / unit * unit;
        let offset = transfer.offset / unit * unit;
        let end = (transfer.offset + transfer.bytes).next_multiple_of(unit).min(file_end);
        // What lies in the file's last part of a unit takes the unit before it along.
        let offset = offset.min(file_end.saturating_sub(unit));
        Transfer { offset, bytes: end - offset, ..transfer }
    }
}
