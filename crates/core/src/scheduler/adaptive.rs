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
//!   grows (`adaptive/nearness.rs`), and where their requests are in each other's way
//!   (`adaptive/crowd.rs`). Elsewhere nothing is tried, ever.
//! - *A few are tried* then, one at first, and kept if they bring a quarter more than all together
//!   (`adaptive/probe.rs`).
//! - An active process keeps its place until its *turn* is over, or until it has
//!   asked for nothing for 8 ms: so long the device is kept for it. A turn is 300 ms
//!   shared by all who want one, at least an epoch of the probe, and at least eight times what the first
//!   request of a turn takes, so that no more than an eighth is spent on the way.
//!   Then comes who has waited longest.
//! - *Depth.* While all are active and some ask for many requests at a time and others for few (`adaptive/asking.rs`),
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

use super::requests::Requests;
use super::{Dispatch, Inserted, Scheduler};
use crate::decision::{Decision, DecisionLog};
use crate::observed::NEWEST;

mod asking;
mod crowd;
mod nearness;
mod open;
mod probe;

use asking::Asking;
use crowd::Crowd;
use nearness::Nearness;
use open::Open;
use probe::{EPOCH_TIME, Found, Knob, Probe, Served};

/// How long the device is kept for an active process that asks for nothing.
const PATIENCE: Time = Time::from_ms(8);

/// All who want a turn have had one after about so long.
const ROUND: Time = Time::from_ms(300);

/// No turn is shorter than an epoch, nor than so many times what its first request takes.
const TURN_SWITCHES: u64 = 8;

/// The scheduler `adaptive`.
///
/// 1. Reads are parked while their process has no place under a limit, or beyond the depth that is
///    worth having; never otherwise.
/// 2. `active` is the number of processes that have a place.
#[derive(Debug)]
pub struct Adaptive {
    /// Requests that may go: those of active processes, and all writes.
    open: Open,
    processes: BTreeMap<ProcessId, Process>,
    sectors_max: u32,
    active: usize,
    /// How many processes have parked reads.
    parked: usize,
    /// How many processes have a place; and how many requests are under way.
    places: Probe,
    depth: Probe,
    /// Whether some ask for much and others for little.
    is_uneven: bool,
    crowd: Crowd,
    completions: u64,
    /// Reads that may go, and are not in the device.
    reads_open: u32,
    /// When each read in the device went there, by name.
    sent: Vec<Time>,
    reads_in_device: u32,
    /// What the first request of a turn takes, mean; 0 before the first.
    switch_ns: u64,
    log: DecisionLog,
}

/// A process, as the scheduler sees it. It is there while it has requests, a
/// place, or a history that says whether it is worth waiting for.
#[derive(Debug, Default)]
struct Process {
    /// Its reads that wait for a place.
    parked: Requests,
    /// Its reads that may go.
    open: u32,
    in_device: u32,
    turn: Option<Turn>,
    /// Since when it waits for a place.
    parked_since: Time,
    last_completion: Time,
    /// What it has asked for still comes, and it is waited for no longer.
    has_ended: bool,
    nearness: Nearness,
    asking: Asking,
}

/// A process has a place.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Since when; once its first request is back, since then.
    since: Time,
    /// Whether it is, and nobody else's request was in the device any more.
    has_begun: bool,
}

impl Process {
    fn under_way(&self) -> u32 {
        self.open + self.in_device
    }

    fn wants(&self) -> bool {
        self.under_way() > 0 || !self.parked.is_empty()
    }

    /// Whether the device is still kept for it though it asks for nothing.
    fn is_awaited(&self, now: Time) -> bool {
        self.under_way() == 0 && now < self.last_completion + PATIENCE
    }
}

impl Adaptive {
    /// For a device with these abilities.
    pub fn new(caps: &DeviceCaps) -> Adaptive {
        Adaptive {
            open: Open::new(caps),
            processes: BTreeMap::new(),
            sectors_max: caps.request_sectors_max,
            active: 0,
            parked: 0,
            places: Probe::new(Knob::Processes),
            depth: Probe::new(Knob::Requests),
            is_uneven: false,
            crowd: Crowd::default(),
            completions: 0,
            reads_open: 0,
            sent: Vec::new(),
            reads_in_device: 0,
            switch_ns: 0,
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
    fn is_open_no_more(&mut self, id: ProcessId) -> &mut Process {
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
        let turn = self.turn_length(limit);
        for process in self.processes.values_mut() {
            let Some(Turn { since, .. }) = process.turn else { continue };
            let is_over = since + turn <= now;
            let has_left = !process.wants() && !process.is_awaited(now);
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

    fn turn_length(&self, limit: usize) -> Time {
        let wanting = self.processes.values().filter(|process| process.wants()).count();
        let share_ns = ROUND.ns() * limit.min(wanting) as u64 / wanting.max(1) as u64;
        Time(share_ns.max(EPOCH_TIME.ns()).max(TURN_SWITCHES * self.switch_ns))
    }

    fn longest_parked(&self) -> Option<ProcessId> {
        let parked = self.processes.iter().filter(|(_, process)| !process.parked.is_empty());
        parked.min_by_key(|(_, process)| process.parked_since).map(|(&id, _)| id)
    }

    fn give_place(&mut self, now: Time, id: ProcessId, requests: &RequestTable) {
        let process = self.processes.get_mut(&id).expect("who is parked is known");
        process.turn = Some(Turn { since: now, has_begun: false });
        self.active += 1;
        while self.processes.get(&id).is_some_and(|process| !process.parked.is_empty()) {
            self.open_oldest(id, requests);
        }
    }

    /// When the device need not be kept for anybody any more.
    fn patience_ends(&self, now: Time) -> Option<Time> {
        let active = self.processes.values().filter(|process| process.turn.is_some());
        let awaited = active.filter(|process| process.is_awaited(now));
        awaited.map(|process| process.last_completion + PATIENCE).min()
    }

    /// Reads on their way, of processes that have no place: they were sent under
    /// another limit.
    fn foreign_requests(&self) -> u32 {
        if self.places.allowed().is_none() {
            return 0;
        }
        let others = self.processes.values().filter(|process| process.turn.is_none());
        others.map(Process::under_way).sum()
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
        process.asking.got();
        let Some(turn) = process.turn.as_mut().filter(|turn| !turn.has_begun) else { return };
        *turn = Turn { since: now, has_begun: foreign == 0 };
        if turn.has_begun {
            self.switch_ns = match self.switch_ns {
                0 => latency.ns(),
                mean => (7 * mean + latency.ns()) / 8,
            };
        }
    }

    /// Forgets a process that has ended once the last of what it asked for has come: its place is free.
    fn forget_if_over(&mut self, id: ProcessId) {
        let is_over = |process: &Process| process.has_ended && !process.wants();
        if let Some(process) = self.processes.get(&id).filter(|process| is_over(process)) {
            self.active -= usize::from(process.turn.is_some());
            self.processes.remove(&id);
        }
    }

    /// A read is back: how many processes serve best, while some of them are near.
    fn try_places(&mut self, now: Time, served: Served) {
        let (crowd, processes) = (&self.crowd, &self.processes);
        let may_gain = || {
            let near = Near::of(processes, now);
            near.are >= 2 && 2 * near.are >= near.here && crowd.is_in_its_own_way()
        };
        let is_set = self.places.allowed().is_some();
        let more = self.places.allowed().map_or(0, |few| 2 * few as usize);
        let found = match is_set && self.completions.is_multiple_of(NEWEST) {
            true if Near::of(processes, now).may_be < 2 => self.places.reset("far"),
            _ if is_set => {
                self.places.completed(now, served, || more < Near::of(processes, now).may_be)
            }
            _ => self.places.completed(now, served, may_gain),
        };
        if let Some(Found { setting, why, kib_per_s, all_kib_per_s }) = found {
            self.crowd = Crowd::default();
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
    fn try_depth(&mut self, now: Time, served: Served) {
        if self.completions.is_multiple_of(NEWEST) {
            let here = self.processes.values().filter(|it| it.wants() || it.is_awaited(now));
            self.is_uneven = Asking::are_uneven(here.map(|process| process.asking));
        }
        if !self.is_uneven {
            return;
        }
        let is_settled = self.depth.allowed().is_none_or(|depth| served.under_way <= depth);
        let found = self.depth.completed(now, Served { is_settled, ..served }, || true);
        if let Some(Found { setting: Some(depth), kib_per_s, all_kib_per_s, .. }) = found {
            let most_kib_per_s = all_kib_per_s;
            self.log.say(now, || Decision::Depth { depth, kib_per_s, most_kib_per_s });
        }
    }
}

/// Of the processes that want something, or were just given it, how many read
/// near to where they read before.
#[derive(Clone, Copy, Debug)]
struct Near {
    here: usize,
    are: usize,
    /// With those that have not read enough to tell.
    may_be: usize,
}

impl Near {
    fn of(processes: &BTreeMap<ProcessId, Process>, now: Time) -> Near {
        let mut near = Near { here: 0, are: 0, may_be: 0 };
        for process in processes.values().filter(|it| it.wants() || it.is_awaited(now)) {
            near.here += 1;
            near.are += usize::from(process.nearness.is_near());
            near.may_be += usize::from(process.nearness.may_be_near());
        }
        near
    }
}

impl Scheduler for Adaptive {
    fn insert(&mut self, now: Time, id: RequestId, requests: &mut RequestTable) -> Inserted {
        let request = &requests[id];
        if request.op == Op::Write {
            return self.open.insert(now, id, requests);
        }
        let process = self.processes.entry(request.process).or_default();
        // Else it is another one of its number.
        process.has_ended = false;
        process.nearness.observe(request);
        process.asking.asks(u64::from(process.under_way()) + process.parked.count() as u64);
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
                    self.is_open_no_more(requests[gone].process);
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
                    self.is_open_no_more(request.process).in_device += 1;
                    self.sent(now, id);
                }
                Dispatch::Request(id)
            }
            Dispatch::Withdraw(id) => {
                self.is_open_no_more(requests[id].process);
                self.forget_if_over(requests[id].process);
                Dispatch::Withdraw(id)
            }
            _ if self.parked == 0 => Dispatch::Nothing,
            _ => self.patience_ends(now).map_or(Dispatch::Nothing, Dispatch::WaitUntil),
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
        let served = Served { bytes: request.bytes(), under_way, is_settled };
        if self.places.allowed().is_none() {
            self.crowd.add(latency, self.reads_in_device);
        }
        self.reads_in_device -= 1;
        self.try_places(now, served);
        if self.places.allowed().is_none() {
            self.try_depth(now, served);
        }
    }

    fn awaited(&mut self, id: RequestId, requests: &RequestTable) {
        self.open.awaited(id, requests);
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
    fn a_process_that_has_ended_is_not_waited_for_once_its_last_request_is_back() {
        let mut law = Adaptive::new(&caps());
        law.places = Probe::at(Knob::Processes, 1);
        let mut table = RequestTable::default();
        let ids: Vec<RequestId> = [0, 1]
            .map(|process| Request { process: ProcessId(process), ..read(100, 8) })
            .into_iter()
            .map(|request| {
                let id = table.open(request);
                assert!(matches!(law.insert(Time::ZERO, id, &mut table), Inserted::Queued));
                id
            })
            .collect();
        assert_eq!(law.dispatch(Time::ZERO, &table), Dispatch::Request(ids[0]));
        assert_eq!(law.dispatch(Time::ZERO, &table), Dispatch::Nothing, "the place is taken");
        law.process_ended(Time::ZERO, ProcessId(0));
        let now = Time::from_ms(1);
        law.complete(now, ids[0], &table);
        assert_eq!(law.dispatch(now, &table), Dispatch::Request(ids[1]));
        law.complete(now, ids[1], &table);
        law.process_ended(now, ProcessId(1));
        assert!(law.processes.is_empty() && law.active == 0, "{law:?}");
    }
}
