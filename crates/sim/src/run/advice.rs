//! Advice of processes with listed reads.

use readpath_core::machine::Machine;
use readpath_core::request::ProcessId;
use readpath_core::unit::{PageRange, Time};

use super::{RunningJob, RunningProcess};
use crate::workload::NextAction;

impl RunningJob<'_> {
    /// Returns the next action of process number `id`, and the process. Before it, gives the advice
    /// that is due, which opens its file if the process has not done so. Advice takes no processor
    /// time.
    pub(super) fn next_action(
        &mut self,
        machine: &mut Machine,
        now: Time,
        id: u32,
    ) -> (NextAction, &mut RunningProcess) {
        let next_action = self.processes[id as usize].process.next(now);
        while let Some(given) = self.processes[id as usize].process.take_due_advice() {
            let handle = self.open_once(machine, now, id, given.file);
            let range = PageRange::covering(given.offset, given.bytes);
            machine.advise(now, handle, ProcessId(id), given.advice, range);
        }
        (next_action, &mut self.processes[id as usize])
    }
}
