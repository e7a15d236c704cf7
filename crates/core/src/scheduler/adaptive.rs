//! `adaptive`: everybody at once, or as many processes at a time as the device serves best.
//!
//! One head serves a reader best who has it to himself: the next request lies
//! close, and it is worth to keep the head idle for it. Many heads, or none,
//! serve best whoever comes. No law can know which it drives, but it can see
//! it. The law in words:
//!
//! - Requests go in the order of their sectors, as in `deadline`, and never wait
//!   there longer than its deadlines; but what was read ahead in doubt goes after all others, until somebody comes to
//!   wait for it, and is withdrawn where its turn never comes (`adaptive/open.rs`). At first everybody is *active*.
//! - *Evidence first.* A limit on how many are active can gain only where most
//!   of those who read are *near*, reading on request by request with no window that
//!   grows (`adaptive/locality.rs`), and where their requests are in each other's way
//!   (`adaptive/contention.rs`). Elsewhere nothing is tried, ever.
//! - *A few are tried* then, one at first, and kept if they bring a quarter more than all together
//!   (`adaptive/probe.rs`).
//! - An active process keeps its place until its *turn* is over, or until it has
//!   asked for nothing for 8 ms: so long the device is kept for it. A turn is 300 ms
//!   shared by all who want one, at least an epoch of the probe, and at least eight times what the first
//!   request of a turn takes, so that no more than an eighth is spent on the way.
//!   Then comes who has waited longest.
//! - *Depth.* While all are active and some ask for many requests at a time and others for few (`adaptive/queue_depth.rs`),
//!   no more are under way than bring seven eighths of what all would, found in the same way, beyond one of each process;
//!   and of those that wait, one of the
//!   process goes first that has fewest under way. So who asks for little waits behind a few
//!   and not behind all that the greediest would send. Where all ask for about as many, such a
//!   limit would spare nobody anything and could only cost: there is none.
//!
//! Round and wait are CFQ's (`target_latency` and `slice_idle`,
//! KERNEL.md section 4.1). Which part of what the device was given it serves
//! first is the device's own business: the limit is one of processes, not of requests.

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

/// How long the device is kept for an active process that asks for nothing.
const IDLE_TIMEOUT: Time = Time::from_ms(8);

/// All who want a turn have had one after about so long.
const ROUND: Time = Time::from_ms(300);

/// No turn is shorter than an epoch, nor than so many times what its first request takes.
const SLICE_SEEK_FACTOR: u64 = 8;

/// The scheduler `adaptive`.
///
/// 1. Reads are parked while their process has no place under a limit, or beyond the depth that is
///    worth having; never otherwise.
/// 2. `active` is the number of processes that have a place.
#[derive(Debug)]
pub struct AdaptiveScheduler {
    /// Requests that may go: those of active processes, and all writes.
    open: ReadyRequests,
    processes: BTreeMap<ProcessId, ProcessHistory>,
    sectors_max: u32,
    active: usize,
    /// How many processes have parked reads.
    parked: usize,
    /// How many processes have a place; and how many requests are under way.
    places: ThroughputTuner,
    depth: ThroughputTuner,
    /// Whether some ask for much and others for little.
    is_uneven: bool,
    contention: Contention,
    completions: u64,
    /// Reads that may go, and are not in the device.
    reads_open: u32,
    /// When each read in the device went there, by name.
    sent: Vec<Time>,
    reads_in_device: u32,
    /// What the first request of a turn takes, mean; 0 before the first.
    first_request_ns: u64,
    log: DecisionLog,
}

/// A process, as the scheduler sees it. It is there while it has requests, a
/// place, or a history that says whether it is worth waiting for.
#[derive(Debug, Default)]
struct ProcessHistory {
    /// Its reads that wait for a place.
    parked: QueuedRequests,
    /// Its reads that may go.
    open: u32,
    in_device: u32,
    turn: Option<ProcessTurn>,
    /// Since when it waits for a place.
    parked_since: Time,
    last_completion: Time,
    /// What it has asked for still comes, and it is waited for no longer.
    has_ended: bool,
    locality: Locality,
    queue_depth: QueueDepth,
}

/// A process has a place.
#[derive(Clone, Copy, Debug)]
struct ProcessTurn {
    /// Since when; once its first request is back, since then.
    since: Time,
    /// Whether it is, and nobody else's request was in the device any more.
    has_begun: bool,
}

impl ProcessHistory {
    fn under_way(&self) -> u32 {
        self.open + self.in_device
    }

    fn has_outstanding_reads(&self) -> bool {
        self.under_way() > 0 || !self.parked.is_empty()
    }

    /// Whether the device is still kept for it though it asks for nothing.
    fn is_demand(&self, now: Time) -> bool {
        self.under_way() == 0 && now < self.last_completion + IDLE_TIMEOUT
    }
}

impl AdaptiveScheduler {
    /// For a device with these abilities.
    pub fn new(caps: &DeviceCaps) -> AdaptiveScheduler {
        AdaptiveScheduler {
            open: ReadyRequests::new(caps),
            processes: BTreeMap::new(),
            sectors_max: caps.request_sectors_max,
            active: 0,
            parked: 0,
            places: ThroughputTuner::new(Parameter::Processes),
            depth: ThroughputTuner::new(Parameter::Requests),
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

    /// Reads that may go or are in the device.
    fn under_way(&self) -> u32 {
        self.reads_open + self.reads_in_device
    }

    /// Whether one more may go of a process that has so many under way.
    fn has_room(&self, own: u32) -> bool {
        let depth = if self.is_uneven { self.depth.allowed() } else { None };
        own == 0 || depth.is_none_or(|depth| self.under_way() < depth)
    }

    /// Lets parked reads go, as far as the limit or the depth allows.
    fn admit(&mut self, now: Time, requests: &RequestTable) {
        match self.places.allowed() {
            Some(limit) => self.turn(now, limit as usize, requests),
            None => {
                if self.active > 0 {
                    self.processes.values_mut().for_each(|process| process.turn = None);
                    self.active = 0;
                }
                while self.parked > 0
                    && let Some(id) = self.fewest_under_way()
                    && self.has_room(self.processes[&id].under_way())
                {
                    self.open_oldest(id, requests);
                }
            }
        }
    }

    fn fewest_under_way(&self) -> Option<ProcessId> {
        let parked = self.processes.iter().filter(|(_, process)| !process.parked.is_empty());
        parked.min_by_key(|(_, it)| (it.under_way(), it.parked_since)).map(|(&id, _)| id)
    }

    /// The oldest parked read of the process may go.
    fn open_oldest(&mut self, id: ProcessId, requests: &RequestTable) {
        let process = self.processes.get_mut(&id).expect("who is parked is known");
        let (place, _) = process.parked.oldest(requests).expect("it has parked reads");
        let waiting = process.parked.remove(place).expect("the oldest is there");
        self.parked -= usize::from(process.parked.is_empty());
        process.open += 1;
        self.reads_open += 1;
        self.open.admit(waiting, requests);
    }

    /// A read of the process has left those that may go.
    fn remove_dispatchable(&mut self, id: ProcessId) -> &mut ProcessHistory {
        self.reads_open -= 1;
        let process = self.processes.get_mut(&id).expect("who has open reads is known");
        process.open -= 1;
        process
    }

    /// Takes places away and gives them, up to the limit.
    fn turn(&mut self, now: Time, limit: usize, requests: &RequestTable) {
        if self.parked == 0 && self.active <= limit {
            return;
        }
        let turn = self.slice_length(limit);
        for process in self.processes.values_mut() {
            let Some(ProcessTurn { since, .. }) = process.turn else { continue };
            let is_over = since + turn <= now;
            let has_left = !process.has_outstanding_reads() && !process.is_demand(now);
            if is_over || has_left || self.active > limit {
                process.turn = None;
                self.active -= 1;
            }
        }
        while self.active < limit
            && let Some(process) = self.longest_parked()
        {
            self.give_place(now, process, requests);
        }
    }

    fn slice_length(&self, limit: usize) -> Time {
        let wanting =
            self.processes.values().filter(|process| process.has_outstanding_reads()).count();
        let share_ns = ROUND.ns() * limit.min(wanting) as u64 / wanting.max(1) as u64;
        Time(share_ns.max(EPOCH_TIME.ns()).max(SLICE_SEEK_FACTOR * self.first_request_ns))
    }

    fn longest_parked(&self) -> Option<ProcessId> {
        let parked = self.processes.iter().filter(|(_, process)| !process.parked.is_empty());
        parked.min_by_key(|(_, process)| process.parked_since).map(|(&id, _)| id)
    }

    fn give_place(&mut self, now: Time, id: ProcessId, requests: &RequestTable) {
        let process = self.processes.get_mut(&id).expect("who is parked is known");
        process.turn = Some(ProcessTurn { since: now, has_begun: false });
        self.active += 1;
        while self.processes.get(&id).is_some_and(|process| !process.parked.is_empty()) {
            self.open_oldest(id, requests);
        }
    }

    /// When the device need not be kept for anybody any more.
    fn idle_timeout_ends(&self, now: Time) -> Option<Time> {
        let active = self.processes.values().filter(|process| process.turn.is_some());
        let demand = active.filter(|process| process.is_demand(now));
        demand.map(|process| process.last_completion + IDLE_TIMEOUT).min()
    }

    /// Reads on their way, of processes that have no place: they were sent under
    /// another limit.
    fn foreign_requests(&self) -> u32 {
        if self.places.allowed().is_none() {
            return 0;
        }
        let others = self.processes.values().filter(|process| process.turn.is_none());
        others.map(ProcessHistory::under_way).sum()
    }

    fn sent(&mut self, now: Time, id: RequestId) {
        let at = id.0 as usize;
        if at >= self.sent.len() {
            self.sent.resize(at + 1, Time::ZERO);
        }
        self.sent[at] = now;
        self.reads_in_device += 1;
    }

    /// A read of a process is back: its turn may begin with it.
    fn served(&mut self, now: Time, id: ProcessId, latency: Time, foreign: u32) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.in_device -= 1;
        process.last_completion = now;
        process.queue_depth.got();
        let Some(turn) = process.turn.as_mut().filter(|turn| !turn.has_begun) else { return };
        *turn = ProcessTurn { since: now, has_begun: foreign == 0 };
        if turn.has_begun {
            self.first_request_ns = match self.first_request_ns {
                0 => latency.ns(),
                mean => (7 * mean + latency.ns()) / 8,
            };
        }
    }

    /// Forgets a process that has ended once the last of what it asked for has come: its place is free.
    fn forget_if_over(&mut self, id: ProcessId) {
        let is_over =
            |process: &ProcessHistory| process.has_ended && !process.has_outstanding_reads();
        if let Some(process) = self.processes.get(&id).filter(|process| is_over(process)) {
            self.active -= usize::from(process.turn.is_some());
            self.processes.remove(&id);
        }
    }

    /// A read is back: how many processes serve best, while some of them are near.
    fn try_places(&mut self, now: Time, served: ServedRead) {
        let (contention, processes) = (&self.contention, &self.processes);
        let may_gain = || {
            let near = NearCounts::of(processes, now);
            near.are >= 2 && 2 * near.are >= near.here && contention.is_contended()
        };
        let is_set = self.places.allowed().is_some();
        let more = self.places.allowed().map_or(0, |few| 2 * few as usize);
        let found = match is_set && self.completions.is_multiple_of(EWMA_WINDOW) {
            true if NearCounts::of(processes, now).may_be < 2 => self.places.reset("far"),
            _ if is_set => {
                self.places.completed(now, served, || more < NearCounts::of(processes, now).may_be)
            }
            _ => self.places.completed(now, served, may_gain),
        };
        if let Some(ProbeResult { setting, why, kib_per_s, all_kib_per_s }) = found {
            self.contention = Contention::default();
            self.log.say(now, || Decision::Limit {
                limit: setting,
                why,
                kib_per_s,
                before_kib_per_s: all_kib_per_s,
            });
        }
    }

    /// All are active, and a read is back: how many requests are worth having, while some ask for
    /// many and others for few.
    fn try_depth(&mut self, now: Time, served: ServedRead) {
        if self.completions.is_multiple_of(EWMA_WINDOW) {
            let here = self
                .processes
                .values()
                .filter(|it| it.has_outstanding_reads() || it.is_demand(now));
            self.is_uneven = QueueDepth::are_uneven(here.map(|process| process.queue_depth));
        }
        if !self.is_uneven {
            return;
        }
        let is_settled = self.depth.allowed().is_none_or(|depth| served.under_way <= depth);
        let found = self.depth.completed(now, ServedRead { is_settled, ..served }, || true);
        if let Some(ProbeResult { setting: Some(depth), kib_per_s, all_kib_per_s, .. }) = found {
            let most_kib_per_s = all_kib_per_s;
            self.log.say(now, || Decision::Depth { depth, kib_per_s, most_kib_per_s });
        }
    }
}

/// Of the processes that want something, or were just given it, how many read
/// near to where they read before.
#[derive(Clone, Copy, Debug)]
struct NearCounts {
    here: usize,
    are: usize,
    /// With those that have not read enough to tell.
    may_be: usize,
}

impl NearCounts {
    fn of(processes: &BTreeMap<ProcessId, ProcessHistory>, now: Time) -> NearCounts {
        let mut near = NearCounts { here: 0, are: 0, may_be: 0 };
        for process in
            processes.values().filter(|it| it.has_outstanding_reads() || it.is_demand(now))
        {
            near.here += 1;
            near.are += usize::from(process.locality.is_near());
            near.may_be += usize::from(process.locality.may_be_near());
        }
        near
    }
}

impl Scheduler for AdaptiveScheduler {
    fn insert(&mut self, now: Time, id: RequestId, requests: &mut RequestTable) -> Inserted {
        let request = &requests[id];
        if request.op == Op::Write {
            return self.open.insert(now, id, requests);
        }
        let process = self.processes.entry(request.process).or_default();
        // Else it is another one of its number.
        process.has_ended = false;
        process.locality.observe(request);
        process.queue_depth.asks(u64::from(process.under_way()) + process.parked.count() as u64);
        let own = process.under_way();
        let may_go = match self.places.allowed() {
            Some(_) => process.turn.is_some(),
            None => self.has_room(own),
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
                // It may have been another process's.
                Inserted::Merged { with: Some(gone), .. } => {
                    self.remove_dispatchable(requests[gone].process);
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

    fn dispatch(&mut self, now: Time, requests: &RequestTable) -> Dispatch {
        self.admit(now, requests);
        match self.open.dispatch(now, requests) {
            Dispatch::Request(id) => {
                let request = &requests[id];
                if request.op == Op::Read {
                    self.remove_dispatchable(request.process).in_device += 1;
                    self.sent(now, id);
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

    fn complete(&mut self, now: Time, id: RequestId, requests: &RequestTable) {
        let request = &requests[id];
        if request.op == Op::Write {
            return;
        }
        let foreign = self.foreign_requests();
        let latency = now.since(self.sent[id.0 as usize]);
        self.served(now, request.process, latency, foreign);
        self.forget_if_over(request.process);
        self.completions += 1;
        let (under_way, is_settled) = (self.under_way(), foreign == 0);
        let served = ServedRead { bytes: request.bytes(), under_way, is_settled };
        if self.places.allowed().is_none() {
            self.contention.add(latency, self.reads_in_device);
        }
        self.reads_in_device -= 1;
        self.try_places(now, served);
        if self.places.allowed().is_none() {
            self.try_depth(now, served);
        }
    }

    fn demand(&mut self, id: RequestId, requests: &RequestTable) {
        self.open.demand(id, requests);
    }

    fn queued(&self) -> usize {
        if self.parked == 0 {
            return self.open.count();
        }
        let parked = self.processes.values().map(|process| process.parked.count());
        self.open.count() + parked.sum::<usize>()
    }

    fn process_ended(&mut self, _now: Time, process: ProcessId) {
        let Some(ended) = self.processes.get_mut(&process) else { return };
        ended.has_ended = true;
        self.forget_if_over(process);
    }

    fn decisions(&mut self) -> Option<&mut DecisionLog> {
        Some(&mut self.log)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{caps, read};
    use super::*;
    use crate::request::Request;

    /// One place: who has it ends while what it has read ahead is on its way. Nobody waits for that, and so nobody would
    /// come after 8 ms to have the next one's go.
    #[test]
    fn an_ended_process_frees_its_place_at_its_last_completion() {
        let mut policy = AdaptiveScheduler::new(&caps());
        policy.places = ThroughputTuner::at(Parameter::Processes, 1);
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
