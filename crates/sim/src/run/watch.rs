//! A run while it goes on: its progress, and its end before its time.

use readpath_core::decision::LoggedDecision;
use readpath_core::machine::Machine;
use readpath_core::unit::Time;

use crate::workload::Workload;

/// Progress of a run, reported while it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The time of the world.
    pub now: Time,
    /// Bytes moved so far.
    pub bytes: u64,
    /// Bytes that the workload will move, where that is known.
    pub bytes_total: Option<u64>,
}

/// Decision of the observer after a progress report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressAnswer {
    /// It does.
    On,
    /// Stop issuing requests, wait for those in flight, and report.
    Stop,
}

/// Observer of a run in progress.
pub struct RunObserver<'a> {
    /// Receives the progress now and then.
    pub tell: &'a mut dyn FnMut(Progress) -> ProgressAnswer,
    /// Receives every decision of the policies that log them. `None`: the log stays off.
    pub decided: Option<&'a mut dyn FnMut(&LoggedDecision)>,
    /// Sees the workload before it runs, and may give its processes logs.
    pub prepare: Option<&'a mut dyn FnMut(&mut Workload)>,
}

impl<'a> RunObserver<'a> {
    /// Hears of the progress alone.
    pub fn progress(tell: &'a mut dyn FnMut(Progress) -> ProgressAnswer) -> RunObserver<'a> {
        RunObserver { tell, decided: None, prepare: None }
    }

    /// Enables the decision logs of the policies if an observer receives them.
    pub(crate) fn begin(&self, path: &mut Machine) {
        if self.decided.is_none() {
            return;
        }
        path.readahead_decisions().turn(true);
        if let Some(log) = path.scheduler_decisions() {
            log.turn(true);
        }
    }

    /// Takes the decisions of the last turn out of the laws' logs, in the order of time.
    pub(crate) fn forward_decisions(&mut self, path: &mut Machine) {
        let Some(decided) = &mut self.decided else { return };
        let mut all: Vec<LoggedDecision> = Vec::new();
        let readahead = path.readahead_decisions();
        all.extend(std::iter::from_fn(|| readahead.poll()));
        if let Some(scheduler) = path.scheduler_decisions() {
            all.extend(std::iter::from_fn(|| scheduler.poll()));
        }
        all.sort_by_key(|decision| decision.at);
        all.iter().for_each(decided);
    }
}
