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
//! - *Programs that start.* A process that did without the device earns credit, an equal share of
//!   the device time meanwhile, and four rounds of time slices after a long pause
//!   (`adaptive/device_time.rs`). Until the credit is used up, the reads of the process go first.
//!   The device is reserved for them while they form a chain (`adaptive/reservation.rs`). All
//!   reservations together take at most a sixteenth of the time, and four rounds at once.
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
mod device_time;
mod favoured;
mod locality;
mod near_counts;
mod open;
mod probe;
mod queue_depth;
mod reservation;
mod slices;

use contention::Contention;
use device_time::{Credit, DeviceTime};
use locality::Locality;
use near_counts::NearCounts;
use open::ReadyRequests;
use probe::{Parameter, ProbeResult, ServedRead, ThroughputTuner};
use queue_depth::QueueDepth;
use reservation::Reservation;
use slices::TimeSlice;

/// Idle timeout: time for which the device is kept idle for an active process without requests.
/// From CFQ (slice_idle).
const IDLE_TIMEOUT: Time = Time::from_ms(8);

/// Time in which every waiting process gets a slice, approximately. From CFQ (target_latency).
const ROUND_TIME: Time = Time::from_ms(300);

/// Shortest time slice, as a multiple of the duration of its first request.
const SLICE_SEEK_FACTOR: u64 = 8;

/// The scheduler `adaptive`.
///
/// Under a limit on active processes, only a process with a *place*, or a favoured one, has its
/// reads dispatched. A read that must wait is *parked*; any other is *dispatchable*. A
/// read is *in progress* while it is dispatchable or in the device. It is *outstanding* while it is
/// parked or in progress. A process is *favoured* once it has enough credit for device time that it
/// did without, until that credit is used up: its reads go first.
///
/// Invariants:
///
/// 1. Reads are parked only while their process has no place under a limit, or beyond the useful
///    depth.
/// 2. `active_processes` is the number of processes that have a place, and `busy_processes` the
///    number with outstanding reads.
#[derive(Debug)]
pub struct AdaptiveScheduler {
    /// Dispatchable requests: the reads of active processes, and all writes.
    ready: ReadyRequests,
    /// The processes with requests, a place, or a useful history.
    processes: BTreeMap<ProcessId, ProcessHistory>,
    /// Largest request of the device, in sectors.
    sectors_max: u32,
    /// Number of processes that have a place.
    active_processes: usize,
    /// Number of processes with parked reads.
    parked_processes: usize,
    /// Search for the best number of active processes.
    active_tuner: ThroughputTuner,
    /// Search for the best number of requests in progress.
    depth_tuner: ThroughputTuner,
    /// True if some processes keep many requests queued and others few.
    is_uneven: bool,
    /// Shows if requests delay each other in the device.
    contention: Contention,
    /// Total number of completed reads.
    completions: u64,
    /// Dispatchable reads that are not in the device.
    dispatchable_reads: u32,
    /// Dispatch of each read in the device, by identifier.
    dispatches: Vec<DispatchedRead>,
    /// Number of processes with outstanding reads.
    busy_processes: usize,
    /// Device time of all processes, and their equal share of it.
    device_time: DeviceTime,
    /// Reservation of the device for reads of favoured processes.
    reservation: Reservation,
    /// Number of reads in the device.
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
    /// Reads that wait for a place of the process, or until the depth allows them.
    parked: QueuedRequests,
    /// Number of dispatchable reads.
    dispatchable_reads: u32,
    /// Number of reads in the device.
    in_device: u32,
    /// Place of the process; `None` without a place.
    slice: Option<TimeSlice>,
    /// Time since which the process waits for a place.
    parked_since: Time,
    /// Time of the last completed read.
    last_completion: Time,
    /// True if the process has ended: its outstanding requests still complete, but the device is
    /// not kept idle for it.
    has_ended: bool,
    /// Shows if the process reads on close to its last request.
    locality: Locality,
    /// Mean number of requests that the process keeps outstanding.
    queue_depth: QueueDepth,
    /// Device time that the process did without; it is favoured while it has enough.
    credit: Credit,
}

/// A read in the device.
#[derive(Clone, Copy, Debug, Default)]
struct DispatchedRead {
    /// Time of the dispatch.
    at: Time,
    /// True if the read went first, because its process was favoured.
    went_first: bool,
}

impl ProcessHistory {
    /// Number of its dispatchable reads and of its reads in the device.
    fn reads_in_progress(&self) -> u32 {
        self.dispatchable_reads + self.in_device
    }

    /// Returns true if the process has any outstanding read.
    fn has_outstanding_reads(&self) -> bool {
        self.reads_in_progress() > 0 || !self.parked.is_empty()
    }

    /// Returns true while the device may be kept idle for the process: it has no read in progress,
    /// and its last completion is recent.
    fn is_device_idle_for_it(&self, now: Time) -> bool {
        self.reads_in_progress() == 0 && now < self.last_completion + IDLE_TIMEOUT
    }
}

impl AdaptiveScheduler {
    /// Creates the scheduler for a device with these properties.
    pub fn new(caps: &DeviceCaps) -> AdaptiveScheduler {
        AdaptiveScheduler {
            ready: ReadyRequests::new(caps),
            processes: BTreeMap::new(),
            sectors_max: caps.request_sectors_max,
            active_processes: 0,
            parked_processes: 0,
            active_tuner: ThroughputTuner::new(Parameter::Processes),
            depth_tuner: ThroughputTuner::new(Parameter::Requests),
            is_uneven: false,
            contention: Contention::default(),
            completions: 0,
            dispatchable_reads: 0,
            dispatches: Vec::new(),
            busy_processes: 0,
            device_time: DeviceTime::default(),
            reservation: Reservation::default(),
            reads_in_device: 0,
            first_request_ns: 0,
            log: DecisionLog::default(),
        }
    }

    /// Number of reads that are dispatchable or in the device.
    fn reads_in_progress(&self) -> u32 {
        self.dispatchable_reads + self.reads_in_device
    }

    /// Returns true if the depth allows one more read of a process with `own_reads` reads in
    /// progress. The first read of a process is always allowed: the limit protects processes with
    /// few reads. Without uneven queues there is no limit.
    fn may_dispatch(&self, own_reads: u32) -> bool {
        let depth = if self.is_uneven { self.depth_tuner.allowed() } else { None };
        own_reads == 0 || depth.is_none_or(|depth| self.reads_in_progress() < depth)
    }

    /// Makes parked reads dispatchable, as far as the limit or the depth allows. Under a limit on
    /// processes it ends and begins slices. Without one it takes all places away, and only the
    /// depth still parks reads.
    fn admit_parked_reads(&mut self, now: Time, requests: &RequestTable) {
        match self.active_tuner.allowed() {
            Some(limit) => self.update_slices(now, limit as usize, requests),
            None => {
                if self.active_processes > 0 {
                    self.processes.values_mut().for_each(|process| process.slice = None);
                    self.active_processes = 0;
                }
                while self.parked_processes > 0
                    && let Some(id) = self.parked_process_with_fewest_reads()
                    && self.may_dispatch(self.processes[&id].reads_in_progress())
                {
                    self.make_oldest_dispatchable(id, requests);
                }
            }
        }
    }

    /// The process with parked reads that has the fewest reads in progress; of equal ones, the one
    /// that has waited longest. `None` without one.
    fn parked_process_with_fewest_reads(&self) -> Option<ProcessId> {
        let parked = self.processes.iter().filter(|(_, process)| !process.parked.is_empty());
        let fewest =
            parked.min_by_key(|(_, process)| (process.reads_in_progress(), process.parked_since));
        fewest.map(|(&id, _)| id)
    }

    /// Moves the oldest parked read of the process, which must have one, to the dispatchable reads,
    /// with its time of arrival.
    fn make_oldest_dispatchable(&mut self, id: ProcessId, requests: &RequestTable) {
        let process = self.processes.get_mut(&id).expect("who is parked is known");
        let (key, _) = process.parked.oldest(requests).expect("it has parked reads");
        let waiting = process.parked.remove(key).expect("the oldest is there");
        self.parked_processes -= usize::from(process.parked.is_empty());
        process.dispatchable_reads += 1;
        self.dispatchable_reads += 1;
        self.ready.admit(waiting, requests);
    }

    /// Records that a read of the process is no longer dispatchable. Returns the process.
    fn remove_dispatchable(&mut self, id: ProcessId) -> &mut ProcessHistory {
        self.dispatchable_reads -= 1;
        let process = self.processes.get_mut(&id).expect("who has open reads is known");
        process.dispatchable_reads -= 1;
        process
    }

    /// Updates the number of busy processes after a counted read of the process ended or was
    /// merged. The process was busy until then. Without outstanding reads it earns credit from now
    /// on, or is removed if it has ended. No effect on an unknown process.
    fn update_busy(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        if !process.has_outstanding_reads() {
            self.busy_processes -= 1;
            process.credit.begin_idle_time(&self.device_time);
            self.remove_if_ended(id);
        }
    }

    /// Records the dispatch of a read at time `now`, and counts it as in the device.
    fn record_dispatch(&mut self, now: Time, id: RequestId, process: ProcessId, went_first: bool) {
        self.remove_dispatchable(process).in_device += 1;
        let index = id.0 as usize;
        if index >= self.dispatches.len() {
            self.dispatches.resize(index + 1, DispatchedRead::default());
        }
        self.dispatches[index] = DispatchedRead { at: now, went_first };
        self.reads_in_device += 1;
    }

    /// Records the completion of a read of process `id`. `reads_without_place` is the number of
    /// reads in progress of processes without a place. While there are some, they delay the reads
    /// of the process, and each completion restarts its time slice. The slice begins with the first
    /// completion without them. The latency of that read, which includes the seek to the process,
    /// then enters the mean of first requests. A process is known while it has reads in the device.
    fn on_read_completed(
        &mut self,
        now: Time,
        id: ProcessId,
        latency: Time,
        reads_without_place: u32,
    ) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.in_device -= 1;
        process.last_completion = now;
        process.queue_depth.record_completion();
        let Some(slice) = process.slice.as_mut().filter(|slice| !slice.has_begun) else { return };
        *slice = TimeSlice { since: now, has_begun: reads_without_place == 0 };
        if slice.has_begun {
            // The first sample sets the mean; each later one weighs an eighth.
            self.first_request_ns = match self.first_request_ns {
                0 => latency.ns(),
                mean => (7 * mean + latency.ns()) / 8,
            };
        }
    }

    /// Removes a process that has ended once its last request has completed: its place becomes
    /// free.
    fn remove_if_ended(&mut self, id: ProcessId) {
        let is_over =
            |process: &ProcessHistory| process.has_ended && !process.has_outstanding_reads();
        if let Some(process) = self.processes.get(&id).filter(|process| is_over(process)) {
            self.active_processes -= usize::from(process.slice.is_some());
            self.processes.remove(&id);
        }
    }

    /// Updates the limit on active processes after a completed read. A trial may start if at least
    /// two processes are near, these are half of all or more, and their requests delay each other.
    /// An existing limit is checked at every 16th completion (`EWMA_WINDOW`), since the check walks
    /// over all processes.
    fn tune_active(&mut self, now: Time, served: ServedRead) {
        let (contention, processes) = (&self.contention, &self.processes);
        let may_start_trial = || {
            let near = NearCounts::of(processes, now);
            near.near_total >= 2 && 2 * near.near_total >= near.all && contention.is_contended()
        };
        let limit = self.active_tuner.allowed();
        let is_limit_checked = limit.is_some() && self.completions.is_multiple_of(EWMA_WINDOW);
        let result = if is_limit_checked && NearCounts::of(processes, now).near_or_unknown < 2 {
            // A limit gains nothing if fewer than two processes may be near: it is removed.
            self.active_tuner.reset("far")
        } else if let Some(limit) = limit {
            // Twice the limit is tried only while more processes than that may be near.
            self.active_tuner.record_completion(now, served, || {
                NearCounts::of(processes, now).near_or_unknown > 2 * limit as usize
            })
        } else {
            self.active_tuner.record_completion(now, served, may_start_trial)
        };
        if let Some(ProbeResult { setting, why, kib_per_s, all_kib_per_s }) = result {
            // The latencies so far belong to the earlier setting.
            self.contention = Contention::default();
            self.log.log_with(now, || Decision::Limit {
                limit: setting,
                why,
                kib_per_s,
                before_kib_per_s: all_kib_per_s,
            });
        }
    }

    /// Updates the depth after a completed read while all processes are active. No effect unless
    /// some keep many requests queued and others few. Every 16th completion (`EWMA_WINDOW`) checks
    /// that.
    fn tune_depth(&mut self, now: Time, served: ServedRead) {
        if self.completions.is_multiple_of(EWMA_WINDOW) {
            let is_present = |process: &&ProcessHistory| {
                process.has_outstanding_reads() || process.is_device_idle_for_it(now)
            };
            let present = self.processes.values().filter(is_present);
            self.is_uneven = QueueDepth::is_uneven(present.map(|process| process.queue_depth));
        }
        if !self.is_uneven {
            return;
        }
        // Reads beyond the depth were admitted under a higher one, or are first reads.
        let is_undisturbed =
            self.depth_tuner.allowed().is_none_or(|depth| served.in_progress <= depth);
        // The uneven queues are the evidence that a limit can help.
        let may_start_trial = || true;
        let served = ServedRead { is_undisturbed, ..served };
        let result = self.depth_tuner.record_completion(now, served, may_start_trial);
        // The removal of a limit is not logged.
        if let Some(ProbeResult { setting: Some(depth), kib_per_s, all_kib_per_s, .. }) = result {
            let most_kib_per_s = all_kib_per_s;
            self.log.log_with(now, || Decision::Depth { depth, kib_per_s, most_kib_per_s });
        }
    }
}

impl Scheduler for AdaptiveScheduler {
    /// Makes a read dispatchable if its process is favoured, has a place under a limit, or has the
    /// depth for it without one. Parks it otherwise, and also behind earlier parked reads of its
    /// process. Writes are always dispatchable.
    fn insert(&mut self, now: Time, id: RequestId, requests: &mut RequestTable) -> Inserted {
        let request = &requests[id];
        if request.op == Op::Write {
            let is_favoured = false;
            return self.ready.insert(now, id, is_favoured, requests);
        }
        let idle_time = self.idle_time();
        let process = self.processes.entry(request.process).or_default();
        // The number of an ended process may be in use again.
        process.has_ended = false;
        let was_busy = process.has_outstanding_reads();
        if !was_busy {
            // Time zero: no read of the process has completed yet.
            let has_completed = process.last_completion > Time::ZERO;
            let think_time = has_completed.then(|| now.since(process.last_completion));
            process.credit.record_think_time(think_time, idle_time);
            process.credit.end_idle_time(&self.device_time);
        }
        let is_favoured = process.credit.is_favoured();
        process.locality.record_request(request);
        process
            .queue_depth
            .record_request(u64::from(process.reads_in_progress()) + process.parked.count() as u64);
        let reads_in_progress = process.reads_in_progress();
        let is_admitted = match self.active_tuner.allowed() {
            Some(_) => process.slice.is_some(),
            None => self.may_dispatch(reads_in_progress),
        };
        let process = self.processes.get_mut(&requests[id].process).expect("it was just seen");
        if (is_admitted || is_favoured) && process.parked.is_empty() {
            let inserted = self.ready.insert(now, id, is_favoured, requests);
            match inserted {
                Inserted::Queued => {
                    process.dispatchable_reads += 1;
                    self.dispatchable_reads += 1;
                    self.busy_processes += usize::from(!was_busy);
                }
                // The read is part of a queued one now, perhaps of another process. It does not
                // count by itself, and does not make its process busy.
                Inserted::Merged { with: None, .. } => {}
                // A second queued read was merged as well, and does not count any more. It may
                // belong to another process.
                Inserted::Merged { with: Some(absorbed), .. } => {
                    let absorbed_process = requests[absorbed].process;
                    self.remove_dispatchable(absorbed_process);
                    self.update_busy(absorbed_process);
                }
            }
            return inserted;
        }
        self.busy_processes += usize::from(!was_busy);
        if process.parked.is_empty() {
            process.parked_since = now;
            self.parked_processes += 1;
        }
        process.parked.insert_or_merge(now, id, requests, self.sectors_max)
    }

    /// Returns the next read of a favoured process, or waits while the device is reserved.
    /// Otherwise admits parked reads, and returns the next dispatchable request. With parked reads
    /// only, returns the end of the earliest idle timeout. If no process is idled for, it returns
    /// `Nothing`: a completion is due, which calls again.
    fn dispatch(&mut self, now: Time, requests: &RequestTable) -> Dispatch {
        if let Some(id) = self.dispatch_favoured(now, requests) {
            return Dispatch::Request(id);
        }
        if let Some(waiting) = self.dispatch_reserved(now) {
            return waiting;
        }
        self.admit_parked_reads(now, requests);
        match self.ready.dispatch(now, requests) {
            Dispatch::Request(id) => {
                let request = &requests[id];
                if request.op == Op::Read {
                    let went_first = false;
                    self.record_dispatch(now, id, request.process, went_first);
                }
                Dispatch::Request(id)
            }
            Dispatch::Withdraw(id) => {
                self.remove_dispatchable(requests[id].process);
                self.update_busy(requests[id].process);
                Dispatch::Withdraw(id)
            }
            _ if self.parked_processes == 0 => Dispatch::Nothing,
            _ => self.first_idle_timeout_end(now).map_or(Dispatch::Nothing, Dispatch::WaitUntil),
        }
    }

    /// Records a completed read in the statistics of its process and of the device, and updates
    /// limit and depth. Writes are not counted, and have no effect.
    fn complete(&mut self, now: Time, id: RequestId, requests: &RequestTable) {
        let request = &requests[id];
        if request.op == Op::Write {
            return;
        }
        // Before the counts change: the read itself may be of a process without a place.
        let reads_without_place = self.count_reads_without_place();
        let dispatch = self.dispatches[id.0 as usize];
        let latency = now.since(dispatch.at);
        self.charge_device_time(now, request.process, dispatch);
        self.on_read_completed(now, request.process, latency, reads_without_place);
        self.update_busy(request.process);
        self.completions += 1;
        let is_undisturbed = reads_without_place == 0;
        // The completed read still counts as in the device, here and for the contention.
        let served = ServedRead {
            bytes: request.bytes(),
            in_progress: self.reads_in_progress(),
            is_undisturbed,
        };
        if self.active_tuner.allowed().is_none() && !self.reservation.is_active() {
            // The device accepts no more: otherwise no dispatchable read would wait.
            let is_full = self.dispatchable_reads > 0;
            self.contention.record_completion(latency, self.reads_in_device, is_full);
        }
        self.reads_in_device -= 1;
        if self.reservation.is_active() {
            // Other reads are held back: this throughput shows nothing about a setting.
            return;
        }
        self.tune_active(now, served);
        if self.active_tuner.allowed().is_none() {
            self.tune_depth(now, served);
        }
    }

    /// Moves a speculative read that a reader now waits for to the needed reads, or to the reads
    /// that go first if its process is favoured. Parked reads and all others stay where they are.
    fn idled_for(&mut self, id: RequestId, requests: &RequestTable) {
        let process = self.processes.get(&requests[id].process);
        let is_favoured = process.is_some_and(|process| process.credit.is_favoured());
        self.ready.record_waiting_reader(id, is_favoured, requests);
    }

    /// Number of requests that are not in the device, parked or dispatchable.
    fn queued(&self) -> usize {
        // Without parked reads, no walk over all processes.
        if self.parked_processes == 0 {
            return self.ready.count();
        }
        let parked = self.processes.values().map(|process| process.parked.count());
        self.ready.count() + parked.sum::<usize>()
    }

    /// Marks the process as ended. Its state is dropped once its last request has completed.
    fn process_ended(&mut self, now: Time, process: ProcessId) {
        self.end_idle_time_of(now, process);
        let Some(ended) = self.processes.get_mut(&process) else { return };
        ended.has_ended = true;
        self.remove_if_ended(process);
    }

    /// Log of the decisions and their reasons.
    fn decisions(&mut self) -> Option<&mut DecisionLog> {
        Some(&mut self.log)
    }
}

#[cfg(test)]
mod ended_tests;
