//! Advice of processes with listed reads.

use readpath_core::machine::Machine;
use readpath_core::readahead::Advice;
use readpath_core::request::ProcessId;
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange, Time};

use super::{RunningJob, RunningProcess};
use crate::workload::{DueAdvice, NextAction};

impl RunningJob<'_> {
    /// Returns the next action of process number `id`, and the process. Advice that is due
    /// before that action is given here: it opens its file if the process has not done so, and
    /// closes it if no later read uses it. Advice takes no processor time.
    ///
    /// One `WillNeed` fetches at most the larger of the readahead window and the largest request of
    /// the device, as in the kernel (mm/readahead.c). The machine would fetch all of its
    /// range.
    pub(super) fn next_action(
        &mut self,
        machine: &mut Machine,
        now: Time,
        id: u32,
    ) -> (NextAction, &mut RunningProcess) {
        let next_action = self.processes[id as usize].process.next(now);
        while let Some(due) = self.processes[id as usize].process.take_due_advice() {
            let DueAdvice { given, closes } = due;
            let handle = self.open_once(machine, now, id, given.file);
            let mut range = PageRange::covering(given.offset, given.bytes);
            if given.advice == Advice::WillNeed {
                let window_bytes = self.processes[id as usize].process.advice_window_bytes();
                let request_pages_max =
                    u64::from(machine.caps().request_sectors_max) / PAGE_SECTORS;
                let pages_max = request_pages_max.max(window_bytes / PAGE_BYTES);
                range = range.clipped(range.first + pages_max);
            }
            machine.advise(now, handle, ProcessId(id), given.advice, range);
            if closes {
                self.close_if_unused(machine, id, given.file);
            }
        }
        (next_action, &mut self.processes[id as usize])
    }
}
