//! Time slices of the processes that have a place, while the number of active processes is limited.
//!
//! The reads of a process with a *place* (an active one) are dispatchable, and new reads of a
//! *favoured* one, which go first. The reads of all others are *parked*, until their process gets a
//! place.

use super::probe::EPOCH_TIME;
use super::{AdaptiveScheduler, IDLE_TIMEOUT, ProcessHistory, ROUND_TIME, SLICE_SEEK_FACTOR};
use crate::request::{ProcessId, RequestTable};
use crate::unit::Time;

/// A place of a process, with its time slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeSlice {
    /// Start of the slice. Each completion restarts it until it has begun.
    pub since: Time,
    /// True once a request has completed while no process without a place had reads in progress.
    pub has_begun: bool,
}

impl AdaptiveScheduler {
    /// Takes places away, and gives free ones, up to the limit, to the processes that have waited
    /// longest. A place ends with its slice, with the idle timeout of a process without reads, or
    /// because there are more places than the limit. Reads that are dispatchable then stay so.
    pub(super) fn update_slices(&mut self, now: Time, limit: usize, requests: &RequestTable) {
        if self.parked_processes == 0 && self.active_processes <= limit {
            // No process waits for a place, so expired and unused places stay.
            return;
        }
        let slice_length = self.slice_length(limit);
        for process in self.processes.values_mut() {
            let Some(TimeSlice { since, .. }) = process.slice else { continue };
            let is_over = since + slice_length <= now;
            // Without reads, and after the time for which the device is kept idle for it.
            let is_unused = !process.has_outstanding_reads() && !process.is_device_idle_for_it(now);
            // More places than the limit are left from an earlier, higher limit. The processes with
            // the lowest numbers lose theirs: the choice does not matter.
            if is_over || is_unused || self.active_processes > limit {
                process.slice = None;
                self.active_processes -= 1;
            }
        }
        while self.active_processes < limit
            && let Some(process) = self.longest_parked()
        {
            self.grant_slice(now, process, requests);
        }
    }

    /// Length of a time slice with `limit` active processes: the round divided by the number of
    /// busy processes (those with outstanding reads), times the number that is served at once. In
    /// the round of 300 ms (`ROUND_TIME`), each process should get a slice. A slice is at least one
    /// epoch of the tuner (32 ms), the time over which it measures throughput. It is also at least
    /// eight times the mean latency of the first request of a slice, which bounds the share of
    /// seeks.
    fn slice_length(&self, limit: usize) -> Time {
        let busy_processes =
            self.processes.values().filter(|process| process.has_outstanding_reads()).count();
        let served_processes = limit.min(busy_processes) as u64;
        let share_ns = ROUND_TIME.ns() * served_processes / busy_processes.max(1) as u64;
        Time(share_ns.max(EPOCH_TIME.ns()).max(SLICE_SEEK_FACTOR * self.first_request_ns))
    }

    /// Returns the process that has waited longest for a place; `None` if no process waits.
    fn longest_parked(&self) -> Option<ProcessId> {
        let parked = self.processes.iter().filter(|(_, process)| !process.parked.is_empty());
        parked.min_by_key(|(_, process)| process.parked_since).map(|(&id, _)| id)
    }

    /// Gives the process a place and makes all its parked reads dispatchable. The slice counts
    /// from now on, until a completion restarts it.
    fn grant_slice(&mut self, now: Time, id: ProcessId, requests: &RequestTable) {
        let process = self.processes.get_mut(&id).expect("who is parked is known");
        process.slice = Some(TimeSlice { since: now, has_begun: false });
        self.active_processes += 1;
        while self.processes.get(&id).is_some_and(|process| !process.parked.is_empty()) {
            self.make_oldest_dispatchable(id, requests);
        }
    }

    /// The time at which the earliest idle timeout of an active process ends; `None` if the device
    /// is kept idle for none. The end of a slice needs no timer: an active process that is not idle
    /// has reads in the device, and the caller asks again at their completion.
    pub(super) fn first_idle_timeout_end(&self, now: Time) -> Option<Time> {
        let active_processes = self.processes.values().filter(|process| process.slice.is_some());
        let idled_for = active_processes.filter(|process| process.is_device_idle_for_it(now));
        idled_for.map(|process| process.last_completion + IDLE_TIMEOUT).min()
    }

    /// Number of reads in progress of processes without a place. Their process is favoured, or has
    /// lost its place since.
    pub(super) fn count_reads_without_place(&self) -> u32 {
        if self.active_tuner.allowed().is_none() {
            // Without a limit no process needs a place.
            return 0;
        }
        let without_place = self.processes.values().filter(|process| process.slice.is_none());
        without_place.map(ProcessHistory::reads_in_progress).sum()
    }
}
