//! A test rig for schedulers: processes that send one request after another, a device of spindles
//! in virtual time, and their results.

use std::collections::{BTreeMap, VecDeque};

use readpath_core::policy::Spec;
use readpath_core::request::{
    Class, DeviceCaps, Need, Op, Priority, ProcessId, Request, RequestId, RequestTable,
};
use readpath_core::scheduler::{self, Dispatch, Inserted, Scheduler};
use readpath_core::splitmix;
use readpath_core::unit::Time;
use readpath_trace::scheduler_replay::replay;

/// A device of equal spindles, striped; each serves one request at a time, the oldest first.
#[derive(Clone, Copy, Debug)]
pub struct SpindleDevice {
    pub spindles: u64,
    pub stripe_sectors: u64,
    /// Service time of a request within 800 sectors of the end of one of the last `streams`
    /// requests of its spindle.
    pub near: Time,
    /// Service time of any other request.
    pub far: Time,
    pub streams: usize,
    pub depth_max: u32,
    pub is_rotational: bool,
}

/// One spindle, 1 ms near and 8 ms far: the figures of source D.
pub const SPINDLE: SpindleDevice = SpindleDevice {
    spindles: 1,
    stripe_sectors: 128,
    near: Time::from_ms(1),
    far: Time::from_ms(8),
    streams: 1,
    depth_max: 32,
    is_rotational: true,
};

impl SpindleDevice {
    pub fn caps(&self) -> DeviceCaps {
        DeviceCaps {
            sectors: 1 << 40,
            request_sectors_max: 1024,
            depth_max: self.depth_max,
            is_rotational: self.is_rotational,
            alignment_sectors: 1,
        }
    }
}

/// Maps the request number of a process to its start sector; `None`: the process has ended.
pub type StartSectors = Box<dyn FnMut(u64) -> Option<u64>>;

/// A process that keeps `depth` requests in flight.
pub struct RigProcess {
    pub priority: Priority,
    pub op: Op,
    pub is_sync: bool,
    pub sectors: u32,
    pub depth: u32,
    /// Time from a completion to the next request.
    pub think: Time,
    pub begins: Time,
    pub places: StartSectors,
}

impl RigProcess {
    /// A process that reads pages of 4 KiB, one at a time, without think time.
    pub fn reading(places: impl FnMut(u64) -> Option<u64> + 'static) -> RigProcess {
        RigProcess {
            priority: Priority::default(),
            op: Op::Read,
            is_sync: true,
            sectors: 8,
            depth: 1,
            think: Time::ZERO,
            begins: Time::ZERO,
            places: Box::new(places),
        }
    }

    pub fn of_level(self, level: u8) -> RigProcess {
        self.of_class(Class::BestEffort, level)
    }

    pub fn of_class(mut self, class: Class, level: u8) -> RigProcess {
        self.priority = Priority { class, level };
        self
    }
}

/// Sequential pages from `first`.
pub fn sequential(first: u64) -> impl FnMut(u64) -> Option<u64> + 'static {
    move |number| Some(first + 8 * number)
}

/// Records of `pages` pages at pseudo-random offsets within 8 GiB from `first`.
pub fn random_records(first: u64, pages: u64) -> impl FnMut(u64) -> Option<u64> + 'static {
    move |number| {
        let (record, page) = (number / pages, number % pages);
        let slot = random_access(record ^ first.rotate_left(17)) % (1 << 17);
        Some(first + slot * 128 + page * 8)
    }
}

/// A pseudo-random number for each number.
pub fn random_access(mut number: u64) -> u64 {
    splitmix::next(&mut number)
}

/// Result of a program.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProgramResult {
    pub requests: u64,
    /// The longest time from arrival to dispatch.
    pub wait_max: Time,
}

/// Results of a run.
pub struct RigReport {
    pub programs: Vec<ProgramResult>,
    /// The decisions.
    pub lines: Vec<String>,
}

/// The values of `key` in the lines of one event, in order.
pub fn values<'a>(lines: &'a [String], event: &str, key: &str) -> Vec<&'a str> {
    let value = |line: &'a String, key: &str| {
        line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    };
    let of_event = lines.iter().filter(|line| value(line, "event") == Some(event));
    of_event.filter_map(|line| value(line, key)).collect()
}

impl RigReport {
    /// The values of `key` in the decisions of one event, in order.
    pub fn values(&self, event: &str, key: &str) -> Vec<&str> {
        values(&self.lines, event, key)
    }

    /// The largest of these values.
    pub fn largest(&self, event: &str, key: &str) -> i64 {
        self.values(event, key).iter().filter_map(|value| value.parse().ok()).max().unwrap()
    }

    pub fn requests(&self) -> u64 {
        self.programs.iter().map(|outcome| outcome.requests).sum()
    }
}

pub fn policy(spec: &str, device: &SpindleDevice) -> Box<dyn Scheduler> {
    scheduler::build(&Spec::parse(spec).unwrap(), &device.caps()).unwrap()
}

/// Decisions of the policy on a list that it agrees with.
#[track_caller]
pub fn decided(spec: &str, depth_max: u32, events: &str) -> Vec<String> {
    let replayed = replay(&mut *policy(spec, &SPINDLE), depth_max, events).unwrap();
    assert_eq!(replayed.divergences, [], "the list is worked out for this policy");
    replayed.lines
}

/// Runs the programs, named 0, 1, …, until `end`.
pub fn run(spec: &str, device: SpindleDevice, programs: Vec<RigProcess>, end: Time) -> RigReport {
    let mut world = RigSimulation::new(policy(spec, &device), device, programs);
    world.run(end);
    RigReport { programs: world.outcomes, lines: world.lines }
}

/// An independent request, and its waiting time.
#[derive(Clone, Copy, Debug)]
pub struct RequestWait {
    pub arrived: Time,
    pub dispatched: Time,
    pub op: Op,
    /// Number of older waiting requests of its process at its arrival.
    pub ahead: u64,
    /// Number of all waiting requests at its arrival.
    pub ahead_of_all: u64,
}

/// Sends requests at given times, independent of completions, until all are served. They must not
/// merge.
pub fn run_arrivals(
    spec: &str,
    device: SpindleDevice,
    arrivals: Vec<(Time, Request)>,
) -> (Vec<RequestWait>, Vec<String>) {
    let mut world = RigSimulation::new(policy(spec, &device), device, Vec::new());
    for (at, request) in arrivals {
        world.at(at, RigEvent::Arrive(request));
    }
    world.run(Time::from_s(3_600));
    (world.waits, world.lines)
}

/// An event of the simulation.
#[derive(Clone, Copy, Debug)]
enum RigEvent {
    Arrive(Request),
    Ask(usize),
    Served(usize),
    Wake,
}

struct Spindle {
    /// End sectors of the last requests, the newest last.
    ends: VecDeque<u64>,
    queue: VecDeque<RequestId>,
}

/// The simulation: scheduler, device and programs.
struct RigSimulation {
    policy: Box<dyn Scheduler>,
    /// No request is closed, so that identifiers count 0, 1, … in the order of arrival.
    requests: RequestTable,
    device: SpindleDevice,
    spindles: Vec<Spindle>,
    programs: Vec<RigProcess>,
    asked: Vec<u64>,
    events: BTreeMap<(Time, u64), RigEvent>,
    sequence: u64,
    in_device: u32,
    /// The waiting requests, with the known part of their wait.
    waiting: BTreeMap<RequestId, (ProcessId, RequestWait)>,
    waits: Vec<RequestWait>,
    /// Processes whose requests were merged into another.
    merged: BTreeMap<RequestId, Vec<ProcessId>>,
    outcomes: Vec<ProgramResult>,
    lines: Vec<String>,
}

impl RigSimulation {
    fn new(
        mut policy: Box<dyn Scheduler>,
        device: SpindleDevice,
        programs: Vec<RigProcess>,
    ) -> RigSimulation {
        if let Some(log) = policy.decisions() {
            log.set_enabled(true);
        }
        let spindle = || Spindle { ends: VecDeque::new(), queue: VecDeque::new() };
        RigSimulation {
            policy,
            requests: RequestTable::default(),
            device,
            spindles: (0..device.spindles).map(|_| spindle()).collect(),
            asked: vec![0; programs.len()],
            outcomes: vec![ProgramResult::default(); programs.len()],
            programs,
            events: BTreeMap::new(),
            sequence: 0,
            in_device: 0,
            waiting: BTreeMap::new(),
            waits: Vec::new(),
            merged: BTreeMap::new(),
            lines: Vec::new(),
        }
    }

    fn at(&mut self, time: Time, event: RigEvent) {
        self.sequence += 1;
        self.events.insert((time, self.sequence), event);
    }

    fn run(&mut self, end: Time) {
        for index in 0..self.programs.len() {
            for _ in 0..self.programs[index].depth {
                self.at(self.programs[index].begins, RigEvent::Ask(index));
            }
        }
        while let Some(((now, _), event)) = self.events.pop_first() {
            if now > end {
                break;
            }
            match event {
                RigEvent::Arrive(request) => self.insert(now, request),
                RigEvent::Ask(program) => self.ask(now, program),
                RigEvent::Served(spindle) => self.served(now, spindle),
                RigEvent::Wake => {}
            }
            // Events at one time are processed together, as with a plug.
            if self.events.first_key_value().is_none_or(|((next, _), _)| *next > now) {
                self.pump(now);
            }
        }
    }

    fn ask(&mut self, now: Time, index: usize) {
        let program = &mut self.programs[index];
        let number = self.asked[index];
        self.asked[index] += 1;
        let Some(start) = (program.places)(number) else {
            self.policy.process_ended(now, ProcessId(index as u32));
            return;
        };
        let request = Request {
            op: program.op,
            start,
            sectors: program.sectors,
            process: ProcessId(index as u32),
            priority: program.priority,
            is_sync: program.is_sync,
            need: Need::of(program.is_sync),
        };
        self.insert(now, request);
    }

    fn insert(&mut self, now: Time, request: Request) {
        let of_process = |it: &&(ProcessId, RequestWait)| it.0 == request.process;
        let wait = RequestWait {
            arrived: now,
            dispatched: now,
            op: request.op,
            ahead: self.waiting.values().filter(of_process).count() as u64,
            ahead_of_all: self.waiting.len() as u64,
        };
        let id = self.requests.open(request);
        match self.policy.insert(now, id, &mut self.requests) {
            Inserted::Queued => {
                self.waiting.insert(id, (request.process, wait));
            }
            Inserted::Merged { into, with } => {
                let mut joined = vec![request.process];
                if let Some(with) = with {
                    let (process, _) = self.waiting.remove(&with).unwrap();
                    joined.push(process);
                    joined.extend(self.merged.remove(&with).unwrap_or_default());
                }
                self.merged.entry(into).or_default().extend(joined);
            }
        }
    }

    fn pump(&mut self, now: Time) {
        while self.in_device < self.device.depth_max {
            match self.policy.dispatch(now, &self.requests) {
                Dispatch::Request(request) => self.submit(now, request),
                Dispatch::WaitUntil(wake) if wake > now => {
                    self.at(wake, RigEvent::Wake);
                    break;
                }
                _ => break,
            }
        }
        while let Some(decided) = self.policy.decisions().and_then(|log| log.poll()) {
            self.lines.push(decided.to_string());
        }
    }

    fn submit(&mut self, now: Time, id: RequestId) {
        let (_, wait) = self.waiting.remove(&id).unwrap();
        let request = &self.requests[id];
        match self.outcomes.get_mut(request.process.0 as usize) {
            Some(outcome) => outcome.wait_max = outcome.wait_max.max(now.since(wait.arrived)),
            None => self.waits.push(RequestWait { dispatched: now, ..wait }),
        }
        self.in_device += 1;
        let index = (request.start / self.device.stripe_sectors % self.device.spindles) as usize;
        self.spindles[index].queue.push_back(id);
        if self.spindles[index].queue.len() == 1 {
            self.serve(now, index);
        }
    }

    fn serve(&mut self, now: Time, index: usize) {
        let spindle = &mut self.spindles[index];
        let Some(&id) = spindle.queue.front() else { return };
        let request = &self.requests[id];
        let near = spindle.ends.iter().position(|end| end.abs_diff(request.start) <= 800);
        match near {
            Some(stream) => {
                spindle.ends.remove(stream);
            }
            None if spindle.ends.len() == self.device.streams => {
                spindle.ends.pop_front();
            }
            None => {}
        }
        spindle.ends.push_back(request.end());
        let span = if near.is_some() { self.device.near } else { self.device.far };
        self.at(now + span, RigEvent::Served(index));
    }

    fn served(&mut self, now: Time, index: usize) {
        let id = self.spindles[index].queue.pop_front().unwrap();
        self.serve(now, index);
        self.in_device -= 1;
        self.policy.complete(now, id, &self.requests);
        let merged = self.merged.remove(&id).unwrap_or_default();
        for process in merged.into_iter().chain([self.requests[id].process]) {
            let program = process.0 as usize;
            if program < self.programs.len() {
                self.outcomes[program].requests += 1;
                self.at(now + self.programs[program].think, RigEvent::Ask(program));
            }
        }
    }
}
