//! `adaptive`: all processes at once, or the number of processes at a time that the device serves
//! best.
//!
//! A device with one head serves one reader at a time best: the next request is close, and keeping
//! the device idle for it pays. A device with many heads, or none, is fastest with all requests at
//! once. A policy can't know the type of its device, but it can measure it. How it works:
//!
//! - Requests are dispatched in sector order as in `deadline`, and wait at most its deadlines.
//!   Speculative prefetches go after all others, until a reader waits for them. They are cancelled
//!   if they were never due (`adaptive/open.rs`). Initially all processes are *active*.
//! - *Evidence first.* A limit on active processes can help only under two conditions. Most of the
//!   readers are *near*: they continue close to their last request, without a growing window
//!   (`adaptive/locality.rs`). And their requests delay each other (`adaptive/contention.rs`).
//!   Otherwise no limit is tried.
//! - *A few processes are tried* then, initially one. The limit is kept if its throughput is a
//!   quarter higher than with all processes (`adaptive/probe.rs`).
//! - An active process keeps its place until its *time slice* ends, or until it has sent no request
//!   for 8 ms, during which the device stays idle for it. Time slices are 300 ms divided by all
//!   waiting processes. They last at least one epoch of the probe, and at least eight times the
//!   first request of a slice, so that at most an eighth is spent on seeks. The process that has
//!   waited longest is next.
//! - *Depth.* This rule applies while all processes are active and some keep many requests queued
//!   and others few (`adaptive/queue_depth.rs`). The number of requests in progress is then limited
//!   to the lowest that gives seven eighths of the full throughput, beyond one for each process.
//!   The limit is found in the same way. The next request is from the process with the fewest in
//!   progress. A process with few requests then waits behind a few, and not behind all requests of
//!   the most demanding process. If all processes keep about the same number queued, such a limit
//!   could only cost throughput: there is none.
//!
//! Slice and idle time come from CFQ (`target_latency` and `slice_idle`, KERNEL.md section 4.1).
//! The order among the requests inside the device is the device's own: the limit counts processes,
//! not requests.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::request::{DeviceCaps, Op, ProcessId, RequestId, RequestTable};
use crate::unit::Time;

use super::requests::QueuedRequests;
use super::{Dispatch, Inserted, Scheduler};
use crate::decision::{Decision, DecisionLog};
use crate::observed::EWMA_WINDOW;

mod contention;
mod locality;
mod open;
mod probe;
mod queue_depth;

use contention::Contention;
use locality::Locality;
use open::ReadyRequests;
use probe::{EPOCH_TIME, Parameter, ProbeResult, ServedRead, ThroughputTuner};
use queue_depth::QueueDepth;

/// Idle timeout: time for which the device is kept idle for an active process without requests.
const IDLE_TIMEOUT: Time = Time::from_ms(8);

/// Time in which every waiting process gets a slice, approximately.
const ROUND_TIME: Time = Time::from_ms(300);

/// Shortest time slice, as a multiple of the duration of its first request.
const SLICE_SEEK_FACTOR: u64 = 8;

/// The scheduler `adaptive`.
///
/// 1. Reads are parked while their process has no place under a limit, or beyond the useful depth;
///    never otherwise.
/// 2. `active` is the number of processes that have a place.
#[derive(Debug)]
pub struct AdaptiveScheduler {
    /// Dispatchable requests: the reads of active processes, and all writes.
    open: ReadyRequests,
    processes: BTreeMap<ProcessId, ProcessHistory>,
    sectors_max: u32,
    /// Number of processes that have a place.
    active: usize,
    /// Number of processes with parked reads.
    parked: usize,
    /// Search for the best number of active processes.
    active_tuner: ThroughputTuner,
    /// Search for the best number of requests in progress.
    depth_tuner: ThroughputTuner,
    /// True if some processes keep many requests queued and others few.
    is_uneven: bool,
    contention: Contention,
    /// Total number of completed reads.
    completions: u64,
    /// Dispatchable reads that are not in the device.
    reads_open: u32,
    /// Dispatch time of each read in the device, by identifier.
    sent: Vec<Time>,
    reads_in_device: u32,
    /// Mean duration of the first request of a slice; 0 before the first.
    first_request_ns: u64,
    /// Log of the decisions and their reasons, for diagnosis. The caller enables and drains it.
    log: DecisionLog,
}

/// State of a process. It exists while the process has requests, a place, or a history that decides
/// if waiting for it pays.
#[derive(Debug, Default)]
struct ProcessHistory {
    /// Its reads that wait for a place.
    parked: QueuedRequests,
    /// Its dispatchable reads.
    open: u32,
    in_device: u32,
    turn: Option<TimeSlice>,
    /// Time since which it waits for a place.
    parked_since: Time,
    last_completion: Time,
    /// True if the process has ended: its outstanding requests still complete, but the device is
    /// not kept idle for it.
    has_ended: bool,
    locality: Locality,
    queue_depth: QueueDepth,
}

/// A place of a process, with its time slice.
#[derive(Clone, Copy, Debug)]
struct TimeSlice {
    /// Start of the slice; after its first completion, the time of that completion.
    since: Time,
    /// True once a first request has completed without requests of other processes in the device.
    has_begun: bool,
}

impl ProcessHistory {
    /// Number of its dispatchable reads and of its reads in the device.
    fn under_way(&self) -> u32 {
        self.open + self.in_device
    }

    /// Returns true if the process has any outstanding read.
    fn has_outstanding_reads(&self) -> bool {
        self.under_way() > 0 || !self.parked.is_empty()
    }

    /// Returns true while the device is kept idle for the process, which has no outstanding
    /// request.
    fn is_idled_for(&self, now: Time) -> bool {
        self.under_way() == 0 && now < self.last_completion + IDLE_TIMEOUT
    }
}

impl AdaptiveScheduler {
    /// Creates the scheduler for a device with these properties.
    pub fn new(caps: &DeviceCaps) -> AdaptiveScheduler {
        AdaptiveScheduler {
            open: ReadyRequests::new(caps),
            processes: BTreeMap::new(),
            sectors_max: caps.request_sectors_max,
            active: 0,
            parked: 0,
            active_tuner: ThroughputTuner::new(Parameter::Processes),
            depth_tuner: ThroughputTuner::new(Parameter::Requests),
            is_uneven: false,
            contention: Contention::default(),
            completions: 0,
            reads_open: 0,
            sent: Vec::new(),
            reads_in_device: 0,
            first_request_ns: 0,
            log: DecisionLog::default(),
        }
    }

    /// Number of reads that are dispatchable or in the device.
    fn under_way(&self) -> u32 {
        self.reads_open + self.reads_in_device
    }

    /// Returns true if the depth allows one more read of a process with `own_reads` reads in
    /// progress. The first read of a process is always allowed.
    fn may_dispatch(&self, own_reads: u32) -> bool {
        let depth = if self.is_uneven { self.depth_tuner.allowed() } else { None };
        own_reads == 0 || depth.is_none_or(|depth| self.under_way() < depth)
    }

    /// Makes parked reads dispatchable, as far as the limit or the depth allows.
    fn admit(&mut self, now: Time, requests: &RequestTable) {
        match self.active_tuner.allowed() {
            Some(limit) => self.update_slices(now, limit as usize, requests),
            None => {
                if self.active > 0 {
                    self.processes.values_mut().for_each(|process| process.turn = None);
                    self.active = 0;
                }
                while self.parked > 0
                    && let Some(id) = self.fewest_under_way()
                    && self.may_dispatch(self.processes[&id].under_way())
                {
                    self.open_oldest(id, requests);
                }
            }
        }
    }

    /// The process with parked reads that has the fewest reads in progress.
    fn fewest_under_way(&self) -> Option<ProcessId> {
        let parked = self.processes.iter().filter(|(_, process)| !process.parked.is_empty());
        parked.min_by_key(|(_, it)| (it.under_way(), it.parked_since)).map(|(&id, _)| id)
    }

    /// Moves the oldest parked read of the process to the dispatchable reads.
    fn open_oldest(&mut self, id: ProcessId, requests: &RequestTable) {
        let process = self.processes.get_mut(&id).expect("who is parked is known");
        let (key, _) = process.parked.oldest(requests).expect("it has parked reads");
        let waiting = process.parked.remove(key).expect("the oldest is there");
        self.parked -= usize::from(process.parked.is_empty());
        process.open += 1;
        self.reads_open += 1;
        self.open.admit(waiting, requests);
    }

    /// Records that a read of the process is no longer dispatchable. Returns the process.
    fn remove_dispatchable(&mut self, id: ProcessId) -> &mut ProcessHistory {
        self.reads_open -= 1;
        let process = self.processes.get_mut(&id).expect("who has open reads is known");
        process.open -= 1;
        process
    }

    /// Ends the slices that have expired, and begins slices of waiting processes up to the limit.
    fn update_slices(&mut self, now: Time, limit: usize, requests: &RequestTable) {
        if self.parked == 0 && self.active <= limit {
            return;
        }
        let turn = self.slice_length(limit);
        for process in self.processes.values_mut() {
            let Some(TimeSlice { since, .. }) = process.turn else { continue };
            let is_over = since + turn <= now;
            let has_left = !process.has_outstanding_reads() && !process.is_idled_for(now);
            if is_over || has_left || self.active > limit {
                process.turn = None;
                self.active -= 1;
            }
        }
        while self.active < limit
            && let Some(process) = self.longest_parked()
        {
            self.grant_slice(now, process, requests);
        }
    }

    /// Length of a time slice with `limit` active processes.
    fn slice_length(&self, limit: usize) -> Time {
        let wanting =
            self.processes.values().filter(|process| process.has_outstanding_reads()).count();
        let share_ns = ROUND_TIME.ns() * limit.min(wanting) as u64 / wanting.max(1) as u64;
        Time(share_ns.max(EPOCH_TIME.ns()).max(SLICE_SEEK_FACTOR * self.first_request_ns))
    }

    /// Returns the process that has waited longest for a place; `None` if no process waits.
    fn longest_parked(&self) -> Option<ProcessId> {
        let parked = self.processes.iter().filter(|(_, process)| !process.parked.is_empty());
        parked.min_by_key(|(_, process)| process.parked_since).map(|(&id, _)| id)
    }

    /// Gives the process a place and makes all its parked reads dispatchable.
    fn grant_slice(&mut self, now: Time, id: ProcessId, requests: &RequestTable) {
        let process = self.processes.get_mut(&id).expect("who is parked is known");
        process.turn = Some(TimeSlice { since: now, has_begun: false });
        self.active += 1;
        while self.processes.get(&id).is_some_and(|process| !process.parked.is_empty()) {
            self.open_oldest(id, requests);
        }
    }

    /// The time at which the earliest idle timeout of an active process ends; `None` if the device
    /// is kept idle for none.
    fn idle_timeout_ends(&self, now: Time) -> Option<Time> {
        let active = self.processes.values().filter(|process| process.turn.is_some());
        let idled_for = active.filter(|process| process.is_idled_for(now));
        idled_for.map(|process| process.last_completion + IDLE_TIMEOUT).min()
    }

    /// Number of reads in progress of processes without a place. They were dispatched under another
    /// limit.
    fn foreign_requests(&self) -> u32 {
        if self.active_tuner.allowed().is_none() {
            return 0;
        }
        let without_place = self.processes.values().filter(|process| process.turn.is_none());
        without_place.map(ProcessHistory::under_way).sum()
    }

    /// Records the dispatch of a read at time `now`, and counts it as in the device.
    fn record_dispatch(&mut self, now: Time, id: RequestId) {
        let index = id.0 as usize;
        if index >= self.sent.len() {
            self.sent.resize(index + 1, Time::ZERO);
        }
        self.sent[index] = now;
        self.reads_in_device += 1;
    }

    /// Records the completion of a read of process `id`; its time slice may begin now. `foreign` is
    /// the number of reads in progress of processes without a place.
    fn on_read_completed(&mut self, now: Time, id: ProcessId, latency: Time, foreign: u32) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.in_device -= 1;
        process.last_completion = now;
        process.queue_depth.record_completion();
        let Some(turn) = process.turn.as_mut().filter(|turn| !turn.has_begun) else { return };
        *turn = TimeSlice { since: now, has_begun: foreign == 0 };
        if turn.has_begun {
            self.first_request_ns = match self.first_request_ns {
                0 => latency.ns(),
                mean => (7 * mean + latency.ns()) / 8,
            };
        }
    }

    /// Removes a process that has ended once its last request has completed: its place becomes
    /// free.
    fn forget_if_over(&mut self, id: ProcessId) {
        let is_over =
            |process: &ProcessHistory| process.has_ended && !process.has_outstanding_reads();
        if let Some(process) = self.processes.get(&id).filter(|process| is_over(process)) {
            self.active -= usize::from(process.turn.is_some());
            self.processes.remove(&id);
        }
    }

    /// Updates the limit on active processes after a completed read, if enough processes are near.
    fn tune_active(&mut self, now: Time, served: ServedRead) {
        let (contention, processes) = (&self.contention, &self.processes);
        let may_start_trial = || {
            let near = NearCounts::of(processes, now);
            near.near_total >= 2 && 2 * near.near_total >= near.all && contention.is_contended()
        };
        let is_set = self.active_tuner.allowed().is_some();
        let doubled_limit = self.active_tuner.allowed().map_or(0, |limit| 2 * limit as usize);
        let result = match is_set && self.completions.is_multiple_of(EWMA_WINDOW) {
            true if NearCounts::of(processes, now).near_or_unknown < 2 => {
                self.active_tuner.reset("far")
            }
            _ if is_set => self.active_tuner.completed(now, served, || {
                doubled_limit < NearCounts::of(processes, now).near_or_unknown
            }),
            _ => self.active_tuner.completed(now, served, may_start_trial),
        };
        if let Some(ProbeResult { setting, why, kib_per_s, all_kib_per_s }) = result {
            self.contention = Contention::default();
            self.log.log_with(now, || Decision::Limit {
                limit: setting,
                why,
                kib_per_s,
                before_kib_per_s: all_kib_per_s,
            });
        }
    }

    /// Updates the depth after a completed read while all processes are active, if some keep many
    /// requests queued and others few.
    fn tune_depth(&mut self, now: Time, served: ServedRead) {
        if self.completions.is_multiple_of(EWMA_WINDOW) {
            let present = self
                .processes
                .values()
                .filter(|process| process.has_outstanding_reads() || process.is_idled_for(now));
            self.is_uneven = QueueDepth::is_uneven(present.map(|process| process.queue_depth));
        }
        if !self.is_uneven {
            return;
        }
        let is_settled = self.depth_tuner.allowed().is_none_or(|depth| served.in_progress <= depth);
        let result = self.depth_tuner.completed(
            now,
            ServedRead { is_undisturbed: is_settled, ..served },
            || true,
        );
        if let Some(ProbeResult { setting: Some(depth), kib_per_s, all_kib_per_s, .. }) = result {
            let most_kib_per_s = all_kib_per_s;
            self.log.log_with(now, || Decision::Depth { depth, kib_per_s, most_kib_per_s });
        }
    }
}

/// Number of processes with outstanding requests, or whose last completion is recent, and of those
/// that are near.
#[derive(Clone, Copy, Debug)]
struct NearCounts {
    /// All such processes.
    all: usize,
    /// Near processes.
    near_total: usize,
    /// Near processes and those with too few requests for a decision.
    near_or_unknown: usize,
}

impl NearCounts {
    /// Counts the processes with outstanding reads or for which the device is kept idle, and among
    /// them the near ones, by their locality.
    fn of(processes: &BTreeMap<ProcessId, ProcessHistory>, now: Time) -> NearCounts {
        let mut near = NearCounts { all: 0, near_total: 0, near_or_unknown: 0 };
        for process in processes
            .values()
            .filter(|process| process.has_outstanding_reads() || process.is_idled_for(now))
        {
            near.all += 1;
            near.near_total += usize::from(process.locality.is_near());
            near.near_or_unknown += usize::from(process.locality.may_be_near());
        }
        near
    }
}

impl Scheduler for AdaptiveScheduler {
    /// Makes a read dispatchable if its process has a place, or the depth allows it, and parks it
    /// otherwise. Writes are always dispatchable.
    fn insert(&mut self, now: Time, id: RequestId, requests: &mut RequestTable) -> Inserted {
        let request = &requests[id];
        if request.op == Op::Write {
            return self.open.insert(now, id, requests);
        }
        let process = self.processes.entry(request.process).or_default();
        // Otherwise the number of the process was reused.
        process.has_ended = false;
        process.locality.observe(request);
        process
            .queue_depth
            .record_request(u64::from(process.under_way()) + process.parked.count() as u64);
        let reads_in_progress = process.under_way();
        let may_go = match self.active_tuner.allowed() {
            Some(_) => process.turn.is_some(),
            None => self.may_dispatch(reads_in_progress),
        };
        let process = self.processes.get_mut(&requests[id].process).expect("it was just seen");
        if may_go && process.parked.is_empty() {
            let inserted = self.open.insert(now, id, requests);
            match inserted {
                Inserted::Queued => {
                    process.open += 1;
                    self.reads_open += 1;
                }
                Inserted::Merged { with: None, .. } => {}
                // The merged request may belong to another process.
                Inserted::Merged { with: Some(absorbed), .. } => {
                    self.remove_dispatchable(requests[absorbed].process);
                }
            }
            return inserted;
        }
        if process.parked.is_empty() {
            process.parked_since = now;
            self.parked += 1;
        }
        process.parked.insert_or_merge(now, id, requests, self.sectors_max)
    }

    /// Admits parked reads, and returns the next dispatchable request. With parked reads only,
    /// returns the end of the earliest idle timeout.
    fn dispatch(&mut self, now: Time, requests: &RequestTable) -> Dispatch {
        self.admit(now, requests);
        match self.open.dispatch(now, requests) {
            Dispatch::Request(id) => {
                let request = &requests[id];
                if request.op == Op::Read {
                    self.remove_dispatchable(request.process).in_device += 1;
                    self.record_dispatch(now, id);
                }
                Dispatch::Request(id)
            }
            Dispatch::Withdraw(id) => {
                self.remove_dispatchable(requests[id].process);
                self.forget_if_over(requests[id].process);
                Dispatch::Withdraw(id)
            }
            _ if self.parked == 0 => Dispatch::Nothing,
            _ => self.idle_timeout_ends(now).map_or(Dispatch::Nothing, Dispatch::WaitUntil),
        }
    }

    /// Records a completed read in the statistics of its process and of the device, and updates
    /// limit and depth.
    fn complete(&mut self, now: Time, id: RequestId, requests: &RequestTable) {
        let request = &requests[id];
        if request.op == Op::Write {
            return;
        }
        let foreign = self.foreign_requests();
        let latency = now.since(self.sent[id.0 as usize]);
        self.on_read_completed(now, request.process, latency, foreign);
        self.forget_if_over(request.process);
        self.completions += 1;
        let (under_way, is_settled) = (self.under_way(), foreign == 0);
        let served = ServedRead {
            bytes: request.bytes(),
            in_progress: under_way,
            is_undisturbed: is_settled,
        };
        if self.active_tuner.allowed().is_none() {
            self.contention.add(latency, self.reads_in_device);
        }
        self.reads_in_device -= 1;
        self.tune_active(now, served);
        if self.active_tuner.allowed().is_none() {
            self.tune_depth(now, served);
        }
    }

    /// Moves a speculative read that a reader now waits for to the needed reads.
    fn idled_for(&mut self, id: RequestId, requests: &RequestTable) {
        self.open.idled_for(id, requests);
    }

    /// Number of requests that are not in the device, parked or dispatchable.
    fn queued(&self) -> usize {
        if self.parked == 0 {
            return self.open.count();
        }
        let parked = self.processes.values().map(|process| process.parked.count());
        self.open.count() + parked.sum::<usize>()
    }

    /// Marks the process as ended. Its state is dropped once its last request has completed.
    fn process_ended(&mut self, _now: Time, process: ProcessId) {
        let Some(ended) = self.processes.get_mut(&process) else { return };
        ended.has_ended = true;
        self.forget_if_over(process);
    }

    /// Log of the decisions and their reasons.
    fn decisions(&mut self) -> Option<&mut DecisionLog> {
        Some(&mut self.log)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{caps, read};
    use super::*;
    use crate::request::Request;

    /// One place: its process ends while its prefetch is in progress. No reader waits for that, and
    /// no event after 8 ms would dispatch the next process.
    #[test]
    fn ended_process_frees_its_slot_at_its_last_completion() {
        let mut policy = AdaptiveScheduler::new(&caps());
        policy.active_tuner = ThroughputTuner::at(Parameter::Processes, 1);
        let mut table = RequestTable::default();
        let ids: Vec<RequestId> = [0, 1]
            .map(|process| Request { process: ProcessId(process), ..read(100, 8) })
            .into_iter()
            .map(|request| {
                let id = table.open(request);
                assert!(matches!(policy.insert(Time::ZERO, id, &mut table), Inserted::Queued));
                id
            })
            .collect();
        assert_eq!(policy.dispatch(Time::ZERO, &table), Dispatch::Request(ids[0]));
        assert_eq!(policy.dispatch(Time::ZERO, &table), Dispatch::Nothing, "the place is taken");
        policy.process_ended(Time::ZERO, ProcessId(0));
        let now = Time::from_ms(1);
        policy.complete(now, ids[0], &table);
        assert_eq!(policy.dispatch(now, &table), Dispatch::Request(ids[1]));
        policy.complete(now, ids[1], &table);
        policy.process_ended(now, ProcessId(1));
        assert!(policy.processes.is_empty() && policy.active == 0, "{policy:?}");
    }
}
