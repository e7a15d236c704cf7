//! `adaptive`: as many processes at a time as the device serves best, found by trying.
//!
//! One head serves a reader best who has it to himself: the next request lies
//! close, and it is worth to keep the head idle for it. Many heads, or none,
//! serve best whoever comes. No law can know which it drives, but it can see
//! it: more bytes come back in the same time. The law in words:
//!
//! - Requests go in the order of their sectors, as in `deadline`, and never wait
//!   there longer than its deadlines.
//! - Of the processes that want something only so many are *active* as the
//!   *limit* says; the reads of the others are kept apart. At first everybody is active.
//! - An active process keeps its place until its turn is over, 300 ms shared by
//!   all who want one and at least 20 ms, or until it has asked for nothing for 8
//!   ms: so long the device is kept for it. Then comes who has waited longest.
//! - The limit is found by trying. Where at least two processes read near to
//!   where they read before, all of them are served for 16 completions and then
//!   one alone for 16 more, and what brought more bytes a second is kept. From then on
//!   epochs of 64 completions are measured, and now and then another limit is
//!   tried for one of them. If it brings a twentieth more it stays. It is
//!   given up after 16 completions if it has not half, after 32 if it falls short by
//!   a quarter. Each trial that fails makes the next one four times as rare, up to
//!   one in 64 epochs; one that succeeds makes them frequent again, and so does a
//!   rate that falls to less than half: the device, or the load, is another one.
//! - Where nobody reads near to where it read before, nobody is worth waiting
//!   for: everybody is active, and nothing is tried.
//!
//! The turn, its share and the wait are CFQ's (`slice_sync`, `target_latency`
//! and `slice_idle`, KERNEL.md section 4.1). Which part of what the device was
//! given it serves first is the device's own business: the limit is one of
//! processes, not of requests.

use alloc::collections::BTreeMap;

use crate::request::{DeviceCaps, Op, ProcessId, Request};
use crate::unit::Time;

use super::deadline::{Deadline, DeadlineTunables};
use super::decision::{Decision, DecisionLog};
use super::requests::Requests;
use super::{Dispatch, Inserted, Scheduler};

mod trial;

use trial::Trials;

/// How long the device is kept for an active process that asks for nothing.
const PATIENCE: Time = Time::from_ms(8);

/// All who want a turn have had one after about so long.
const ROUND: Time = Time::from_ms(300);

/// No turn is shorter.
const TURN_MIN: Time = Time::from_ms(20);

/// A read is near that begins within so many sectors, 400 KiB, of where the last one ended.
const NEAR_SECTORS: u64 = 800;

/// The share of near requests is a mean of all, and from so many on of the newest.
const NEAR_REQUESTS: u32 = 16;

/// All requests of a process are near.
const NEAR_ALL: u32 = 256;

/// The scheduler `adaptive`.
#[derive(Debug)]
pub struct Adaptive {
    /// Requests that may go: those of active processes, and all writes.
    open: Deadline,
    processes: BTreeMap<ProcessId, Process>,
    sectors_max: u32,
    /// How many processes have a place.
    active: usize,
    /// How many want something: have a request here or in the device, or a place.
    trials: Trials,
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
    /// Since when it has a place; `None`: it has none.
    active_since: Option<Time>,
    /// Since when it waits for one.
    parked_since: Time,
    last_completion: Time,
    last_end: u64,
    /// The share of near requests, of [`NEAR_ALL`], and of how many.
    near: u32,
    requests: u32,
}

impl Process {
    fn wants(&self) -> bool {
        self.open > 0 || self.in_device > 0 || !self.parked.is_empty()
    }

    fn is_near(&self) -> bool {
        self.near >= NEAR_ALL / 2
    }

    /// Whether the device is still kept for it though it asks for nothing.
    fn is_awaited(&self, now: Time) -> bool {
        self.open == 0 && self.in_device == 0 && now < self.last_completion + PATIENCE
    }
}

impl Adaptive {
    /// For a device with these abilities.
    pub fn new(caps: &DeviceCaps) -> Adaptive {
        Adaptive {
            open: Deadline::new(caps, DeadlineTunables::default()),
            processes: BTreeMap::new(),
            sectors_max: caps.request_sectors_max,
            active: 0,
            trials: Trials::default(),
            log: DecisionLog::default(),
        }
    }

    fn is_limited(&self) -> bool {
        self.trials.limit().is_some()
    }

    /// Takes places away and gives them, up to the limit.
    fn turn(&mut self, now: Time) {
        let limit = self.trials.limit().unwrap_or(usize::MAX);
        if self.processes.values().all(|process| process.parked.is_empty()) && self.active <= limit
        {
            return;
        }
        let wanting = self.processes.values().filter(|process| process.wants()).count();
        let turn = Time(
            (ROUND.ns() * limit.min(wanting) as u64 / wanting.max(1) as u64).max(TURN_MIN.ns()),
        );
        for process in self.processes.values_mut() {
            let Some(since) = process.active_since else { continue };
            let is_over = since + turn <= now;
            let has_left = !process.wants() && !process.is_awaited(now);
            if is_over || has_left || self.active > limit {
                process.active_since = None;
                self.active -= 1;
            }
        }
        while self.active < limit
            && let Some(process) = self.longest_parked()
        {
            self.give_place(now, process);
        }
    }

    fn longest_parked(&self) -> Option<ProcessId> {
        let parked = self.processes.iter().filter(|(_, process)| !process.parked.is_empty());
        parked.min_by_key(|(_, process)| process.parked_since).map(|(&id, _)| id)
    }

    fn give_place(&mut self, now: Time, id: ProcessId) {
        let process = self.processes.get_mut(&id).expect("who is parked is known");
        process.active_since = Some(now);
        self.active += 1;
        while let Some((place, _)) = process.parked.oldest() {
            let waiting = process.parked.remove(place).expect("the oldest is there");
            process.open += 1;
            self.open.admit(waiting);
        }
    }

    /// When the device need not be kept for anybody any more.
    fn patience_ends(&self, now: Time) -> Option<Time> {
        let active = self.processes.values().filter(|process| process.active_since.is_some());
        let awaited = active.filter(|process| process.is_awaited(now));
        awaited.map(|process| process.last_completion + PATIENCE).min()
    }

    /// Requests on their way, of processes that have no place: they had one under
    /// the limit before.
    fn foreign_requests(&self) -> u32 {
        let others = self.processes.values().filter(|process| process.active_since.is_none());
        others.map(|process| process.open + process.in_device).sum()
    }

    /// How many processes read near to where they read before, and want
    /// something or were just given it.
    fn near_processes(&self, now: Time) -> usize {
        let is_here = |process: &Process| process.wants() || process.is_awaited(now);
        self.processes.values().filter(|process| process.is_near() && is_here(process)).count()
    }
}

impl Scheduler for Adaptive {
    fn insert(&mut self, now: Time, request: Request) -> Inserted {
        if request.op == Op::Write {
            return self.open.insert(now, request);
        }
        let process = self.processes.entry(request.process).or_default();
        let distance = request.start.abs_diff(process.last_end);
        let near = if distance <= NEAR_SECTORS { NEAR_ALL } else { 0 };
        process.requests = (process.requests + 1).min(NEAR_REQUESTS);
        process.near = (process.near * (process.requests - 1) + near) / process.requests;
        process.last_end = request.end();
        let may_go = process.active_since.is_some() || self.trials.limit().is_none();
        if may_go {
            let inserted = self.open.insert(now, request);
            if inserted == Inserted::Queued {
                process.open += 1;
            }
            return inserted;
        }
        if process.parked.is_empty() {
            process.parked_since = now;
        }
        process.parked.insert_or_merge(now, request, self.sectors_max)
    }

    fn dispatch(&mut self, now: Time) -> Dispatch {
        if self.is_limited() || self.processes.values().any(|process| !process.parked.is_empty()) {
            self.turn(now);
        }
        match self.open.dispatch(now) {
            Dispatch::Request(request) => {
                if request.op == Op::Read {
                    let process = self.processes.entry(request.process).or_default();
                    process.open -= 1;
                    process.in_device += 1;
                }
                Dispatch::Request(request)
            }
            _ if self.longest_parked().is_none() => Dispatch::Nothing,
            _ => match self.patience_ends(now) {
                Some(end) => Dispatch::WaitUntil(end),
                None => Dispatch::Nothing,
            },
        }
    }

    fn complete(&mut self, now: Time, request: &Request) {
        if request.op == Op::Read
            && let Some(process) = self.processes.get_mut(&request.process)
        {
            process.in_device -= 1;
            process.last_completion = now;
        }
        let near = self.near_processes(now);
        let is_clean = !self.is_limited() || self.foreign_requests() == 0;
        if let Some(tried) = self.trials.completed(now, request.bytes(), near, is_clean) {
            self.log.say(now, || Decision::Limit {
                limit: tried.limit.map(|limit| limit as u32),
                why: tried.why,
                kib_per_s: tried.kib_per_s,
                before_kib_per_s: tried.before_kib_per_s,
            });
        }
    }

    fn queued(&self) -> usize {
        let parked = self.processes.values().map(|process| process.parked.count());
        self.open.queued() + parked.sum::<usize>()
    }

    fn process_ended(&mut self, now: Time, process: ProcessId) {
        let Some(ended) = self.processes.get_mut(&process) else { return };
        if ended.wants() {
            // What it has asked for still comes; it is waited for no longer.
            ended.last_completion = Time(now.ns().saturating_sub(PATIENCE.ns()));
            return;
        }
        self.active -= usize::from(ended.active_since.is_some());
        self.processes.remove(&process);
    }

    fn decisions(&mut self) -> Option<&mut DecisionLog> {
        Some(&mut self.log)
    }
}
