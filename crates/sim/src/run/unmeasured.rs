//! Operations before the measured time of their process: of its ramp time, and of its search for a
//! queue depth.
//!
//! They are dropped when the first measured operation of the process ends, and so are any that end
//! later. If none does, as in a job that is shorter than its ramp time, they are the results of the
//! process, as in fio.

use readpath_core::unit::Time;

use super::RunningJob;
use crate::report::ProcessShare;
use crate::workload::ProcessOperation;

impl RunningJob<'_> {
    /// Adds the unmeasured operations of each process without measured ones to the results of its
    /// job.
    pub(super) fn add_unmeasured(&mut self) {
        for running in &mut self.processes {
            // The first measured operation has dropped the counters of its process.
            let Some(unmeasured) = running.unmeasured.take() else { continue };
            let job = &mut self.jobs[running.process.job()];
            job.iter_mut().zip(unmeasured.iter()).for_each(|(own, other)| own.add(other));
        }
    }

    /// Reports a successful operation to its process and counts it in the results of its job and of
    /// the process. Before the measured time its results are kept in reserve, or dropped.
    pub(super) fn record_success(
        &mut self,
        process: u32,
        operation: &ProcessOperation,
        (issued, ended): (Time, Time),
        bytes: u64,
    ) {
        let running = &mut self.processes[process as usize];
        let job = running.process.job();
        running.process.record_latency(ended, issued, operation, bytes);
        let op = operation.op as usize;
        if running.process.is_measured(issued) {
            if !std::mem::replace(&mut running.is_measured, true) {
                let dropped_from = running.unmeasured.take().and(running.share.first);
                let share = ProcessShare::new(&running.process);
                running.share = ProcessShare { dropped_from, ..share };
            }
            self.jobs[job][op].record(issued, ended, bytes);
            running.share.record(issued, ended, bytes);
        } else if !running.is_measured {
            running.share.record(issued, ended, bytes);
            running.unmeasured.get_or_insert_default()[op].record(issued, ended, bytes);
        }
        self.bytes_moved += bytes;
    }
}
