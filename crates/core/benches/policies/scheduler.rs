//! Insertion, dispatch and completion of one request.
//!
//! Each load keeps a number of processes busy, each with one or eight requests at a time, on a
//! device of depth 32. Completions return in the order of dispatch, 100 µs apart in virtual time.
//! Published for the kernel: mq-deadline 0.7 µs a request, BFQ 1.9 µs.

use std::collections::VecDeque;
use std::fmt::{self, Display};

use divan::Bencher;
use readpath_core::policy::Spec;
use readpath_core::request::{
    DeviceCaps, Need, Op, Priority, ProcessId, Request, RequestId, RequestTable,
};
use readpath_core::scheduler::{self, Dispatch, Inserted, Scheduler};
use readpath_core::unit::Time;

use crate::drawn;

/// Policies, each with a flag: its decisions are logged, and the log is read.
const POLICIES: [(&str, bool); 10] = [
    ("noop", false),
    ("adaptive", false),
    ("deadline", false),
    ("mq-deadline", false),
    ("kyber", false),
    ("cfq", false),
    ("cfq,seeky=mean", false),
    ("cfq,slice_idle=0", false),
    ("cfq", true),
    ("bfq", false),
];

#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    processes: u32,
    /// Requests in flight of each process.
    depth: u32,
    is_random: bool,
}

const LOADS: [Load; 5] = [
    Load { name: "1 process, sequential", processes: 1, depth: 1, is_random: false },
    Load { name: "8 processes, sequential", processes: 8, depth: 1, is_random: false },
    Load { name: "8 processes, random", processes: 8, depth: 1, is_random: true },
    Load { name: "8 processes, random, depth 8", processes: 8, depth: 8, is_random: true },
    Load { name: "64 processes, random, depth 8", processes: 64, depth: 8, is_random: true },
];

const CAPS: DeviceCaps = DeviceCaps {
    sectors: 1 << 40,
    request_sectors_max: 8,
    depth_max: 32,
    is_rotational: true,
    alignment_sectors: 1,
};

struct Case {
    policy: &'static str,
    is_logged: bool,
    load: Load,
}

impl Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = if self.is_logged { " with its log" } else { "" };
        write!(out, "{}, {}{log}", self.load.name, self.policy)
    }
}

fn cases() -> impl Iterator<Item = Case> {
    LOADS
        .into_iter()
        .flat_map(|load| POLICIES.map(|(policy, is_logged)| Case { policy, is_logged, load }))
}

#[divan::bench(args = cases(), sample_size = 1000)]
fn a_request(bencher: Bencher, case: &Case) {
    let mut queue = BenchQueue::new(case);
    bencher.bench_local(|| queue.complete_one());
}

struct BenchQueue {
    policy: Box<dyn Scheduler>,
    is_logged: bool,
    readers: Vec<OffsetGenerator>,
    requests: RequestTable,
    in_device: VecDeque<RequestId>,
    now: Time,
}

impl BenchQueue {
    fn new(case: &Case) -> BenchQueue {
        let spec = Spec::parse(case.policy).expect("the policies above are well-formed");
        let mut policy = scheduler::build(&spec, &CAPS).expect("the policies above exist");
        if let Some(log) = policy.decisions() {
            log.set_enabled(case.is_logged);
        }
        let mut queue = BenchQueue {
            policy,
            is_logged: case.is_logged,
            readers: Vec::new(),
            requests: RequestTable::default(),
            in_device: VecDeque::new(),
            now: Time::ZERO,
        };
        for process in 0..case.load.processes {
            queue.readers.push(OffsetGenerator::new(process, case.load.is_random));
            (0..case.load.depth).for_each(|_| queue.ask(process));
        }
        queue
    }

    /// Completes one request in the device, after which its process sends the next.
    fn complete_one(&mut self) {
        loop {
            let wake = self.fill();
            self.now += Time::from_us(100);
            let Some(id) = self.in_device.pop_front() else {
                let wake = wake.expect("a policy with requests sends one, or says when");
                self.now = wake.max(self.now);
                continue;
            };
            self.policy.complete(self.now, id, &self.requests);
            let (request, _) = self.requests.close(id);
            self.ask(request.process.0);
            if self.is_logged {
                while self.policy.decisions().and_then(|log| log.poll()).is_some() {}
            }
            return;
        }
    }

    /// Dispatches requests until the device is full. Returns the time at which the policy wants to
    /// be called again.
    fn fill(&mut self) -> Option<Time> {
        while self.in_device.len() < CAPS.depth_max as usize {
            match self.policy.dispatch(self.now, &self.requests) {
                Dispatch::Request(id) => self.in_device.push_back(id),
                Dispatch::Withdraw(_) => unreachable!("nothing here is read in doubt"),
                Dispatch::WaitUntil(wake) => return Some(wake),
                Dispatch::Nothing => return None,
            }
        }
        None
    }

    /// Sends the next 4 KiB request of this process.
    fn ask(&mut self, process: u32) {
        let page = self.readers[process as usize].next();
        let id = self.requests.open(Request {
            op: Op::Read,
            start: (u64::from(process) << 24) + 8 * page,
            sectors: 8,
            process: ProcessId(process),
            priority: Priority::default(),
            is_sync: true,
            need: Need::Demand,
        });
        let inserted = self.policy.insert(self.now, id, &mut self.requests);
        debug_assert_eq!(inserted, Inserted::Queued, "no request is larger than 8 sectors");
    }
}

/// The offsets of one process.
struct OffsetGenerator {
    is_random: bool,
    count: u64,
    state: u64,
}

impl OffsetGenerator {
    fn new(process: u32, is_random: bool) -> OffsetGenerator {
        OffsetGenerator { is_random, count: 0, state: u64::from(process) + 1 }
    }

    fn next(&mut self) -> u64 {
        self.count += 1;
        if self.is_random { drawn(&mut self.state) >> 43 } else { self.count }
    }
}
