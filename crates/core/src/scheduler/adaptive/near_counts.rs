//! Number of processes that a limit on active processes could serve better.
//!
//! A process is *near* if it reads on close to its last request (`locality.rs`): the head then need
//! not move far while one process at a time is served.

use alloc::collections::BTreeMap;

use super::ProcessHistory;
use crate::request::ProcessId;
use crate::unit::Time;

/// Numbers of processes with outstanding reads, or whose last completion is recent. Two of the
/// counts have only the near ones among them.
#[derive(Clone, Copy, Debug)]
pub(super) struct NearCounts {
    /// All such processes.
    pub all: usize,
    /// Near processes.
    pub near_total: usize,
    /// Near processes and those with too few requests for a decision.
    pub near_or_unknown: usize,
}

impl NearCounts {
    /// Counts the processes with outstanding reads or for which the device is kept idle, and among
    /// them the near ones, by their locality. All other processes do not read now, and a limit does
    /// not concern them.
    pub(super) fn of(processes: &BTreeMap<ProcessId, ProcessHistory>, now: Time) -> NearCounts {
        let mut counts = NearCounts { all: 0, near_total: 0, near_or_unknown: 0 };
        for process in processes
            .values()
            .filter(|process| process.has_outstanding_reads() || process.is_device_idle_for_it(now))
        {
            counts.all += 1;
            counts.near_total += usize::from(process.locality.is_near());
            counts.near_or_unknown += usize::from(process.locality.may_be_near());
        }
        counts
    }
}
