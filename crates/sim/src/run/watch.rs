//! Observation of a run: progress reports, decisions, and early stop.

use readpath_core::decision::LoggedDecision;
use readpath_core::machine::Machine;
use readpath_core::unit::Time;

use crate::workload::Workload;

/// Progress of a run, reported while it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Simulated time.
    pub now: Time,
    /// Bytes moved so far.
    pub bytes: u64,
    /// Bytes that the workload will move, if known.
    pub bytes_total: Option<u64>,
}

/// Decision of the observer after a progress report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressAnswer {
    /// Continue the run.
    Continue,
    /// Stop issuing requests, wait for those in flight, and report.
    Stop,
}

/// Callbacks that observe a run in progress.
pub struct RunObserver<'a> {
    /// Receives progress reports and decides whether the run goes on.
    pub on_progress: &'a mut dyn FnMut(Progress) -> ProgressAnswer,
    /// Receives every decision of the policies that log them. `None`: the log stays off.
    pub on_decision: Option<&'a mut dyn FnMut(&LoggedDecision)>,
    /// Receives the workload before it runs, and may attach logs to its processes.
    pub on_workload: Option<&'a mut dyn FnMut(&mut Workload)>,
}

impl<'a> RunObserver<'a> {
    /// Creates an observer of the progress only.
    pub fn progress(on_progress: &'a mut dyn FnMut(Progress) -> ProgressAnswer) -> RunObserver<'a> {
        RunObserver { on_progress, on_decision: None, on_workload: None }
    }

    /// Enables the decision logs of the policies if an observer receives them.
    pub(crate) fn begin(&self, machine: &mut Machine) {
        if self.on_decision.is_none() {
            return;
        }
        machine.readahead_decisions().set_enabled(true);
        if let Some(log) = machine.scheduler_decisions() {
            log.set_enabled(true);
        }
    }

    /// Takes the decisions of the last step from the logs of the policies, and passes them to the
    /// callback in order of time.
    pub(crate) fn forward_decisions(&mut self, machine: &mut Machine) {
        let Some(callback) = &mut self.on_decision else { return };
        let mut decisions: Vec<LoggedDecision> = Vec::new();
        let readahead = machine.readahead_decisions();
        decisions.extend(std::iter::from_fn(|| readahead.poll()));
        if let Some(scheduler) = machine.scheduler_decisions() {
            decisions.extend(std::iter::from_fn(|| scheduler.poll()));
        }
        decisions.sort_by_key(|decision| decision.at);
        decisions.iter().for_each(callback);
    }
}
