//! Operations before the measured time of their job: of its ramp time, and of its search for a
//! queue depth.
//!
//! They are dropped when the first measured operation of the job ends. If none does, as in a job
//! that is shorter than its ramp time, they are the results of the job, as in fio.

use readpath_core::unit::Time;

use super::RunningJob;
use crate::report::{ProcessShare, ReadCounters};
use crate::workload::ProcessOperation;

/// Counters of the reads and writes of each job before its measured time. `None` without any, and
/// once they are dropped.
#[derive(Debug, Default)]
pub struct UnmeasuredCounters(Vec<Option<Box<[ReadCounters; 2]>>>);

impl UnmeasuredCounters {
    /// Creates the counters of `job_count` jobs.
    pub fn new(job_count: usize) -> UnmeasuredCounters {
        UnmeasuredCounters(vec![None; job_count])
    }

    /// Adds the counters to the jobs without measured operations.
    pub fn add_to(&self, jobs: &mut [[ReadCounters; 2]]) {
        for (job, unmeasured) in jobs.iter_mut().zip(&self.0) {
            let Some(unmeasured) = unmeasured else { continue };
            if job.iter().all(|read_counters| read_counters.operations == 0) {
                job.iter_mut().zip(unmeasured.iter()).for_each(|(own, other)| own.add(other));
            }
        }
    }
}

impl RunningJob<'_> {
    /// Reports a successful operation to its process and counts it in the results of its job and of
    /// the process.
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
                running.share = ProcessShare::new(&running.process);
                self.unmeasured.0[job] = None;
            }
            self.jobs[job][op].record(issued, ended, bytes);
            running.share.record(issued, ended, bytes);
        } else if !running.is_measured {
            running.share.record(issued, ended, bytes);
            // The first measured operation of any process of the job ends this time.
            if self.jobs[job].iter().all(|read_counters| read_counters.operations == 0) {
                self.unmeasured.0[job].get_or_insert_default()[op].record(issued, ended, bytes);
            }
        }
        self.bytes_moved += bytes;
    }
}
