//! What a scheduling law costs: insert + dispatch + complete of one request,
//! on one core.
//!
//! `cargo run --release -p readpath-core --example scheduler_cost [REQUESTS]`
//!
//! Each load keeps a number of processes busy, each with one request at a time
//! or eight, on a device that takes 32; completions come back in the order of
//! dispatch, 100 µs apart in virtual time. The best of five rounds is printed:
//! the machine's other work only adds to it. Published for the kernel:
//! mq-deadline 0.7 µs a request, BFQ 1.9 µs.

#![allow(clippy::disallowed_methods)] // It measures on the wall clock and reads its arguments.

use std::collections::VecDeque;
use std::time::Instant;

use readpath_core::law::Spec;
use readpath_core::request::{
    DeviceCaps, Need, Op, Priority, ProcessId, Request, RequestId, RequestTable,
};
use readpath_core::scheduler::{self, Dispatch, Inserted, Scheduler};
use readpath_core::unit::Time;

const LAWS: &[&str] =
    &["noop", "adaptive", "deadline", "cfq", "cfq,seeky=mean", "cfq,slice_idle=0"];

struct Load {
    name: &'static str,
    processes: u32,
    /// Requests in flight of each process.
    depth: u32,
    is_random: bool,
}

const LOADS: &[Load] = &[
    Load { name: "1 process, sequential", processes: 1, depth: 1, is_random: false },
    Load { name: "8 processes, sequential", processes: 8, depth: 1, is_random: false },
    Load { name: "8 processes, random", processes: 8, depth: 1, is_random: true },
    Load { name: "8 processes, random, depth 8", processes: 8, depth: 8, is_random: true },
    Load { name: "64 processes, random, depth 8", processes: 64, depth: 8, is_random: true },
];

const ROUNDS: u32 = 5;

fn main() {
    let requests = std::env::args().nth(1).map_or(Ok(200_000), |text| text.parse());
    let Ok(requests) = requests else {
        eprintln!("REQUESTS must be a whole number, as 200000");
        std::process::exit(2);
    };
    table(requests);
}

/// Prints a row for each load, with `requests` requests a round.
pub fn table(requests: u64) {
    print!("{:32}", "ns per request");
    LAWS.iter().for_each(|law| print!("{law:>18}"));
    println!("{:>18}", "cfq with log");
    for load in LOADS {
        print!("{:32}", load.name);
        LAWS.iter().for_each(|law| print!("{:>18}", best(law, load, requests, false)));
        println!("{:>18}", best("cfq", load, requests, true));
    }
}

fn best(law: &str, load: &Load, requests: u64, is_logged: bool) -> u64 {
    (0..ROUNDS).map(|_| round(law, load, requests, is_logged)).min().unwrap_or(0)
}

/// Nanoseconds per request.
fn round(law: &str, load: &Load, requests: u64, is_logged: bool) -> u64 {
    let caps = DeviceCaps {
        sectors: 1 << 40,
        request_sectors_max: 8,
        depth_max: 32,
        is_rotational: true,
        alignment_sectors: 1,
    };
    let spec = Spec::parse(law).expect("the laws above are well-formed");
    let mut law = scheduler::build(&spec, &caps).expect("the laws above exist");
    if let Some(log) = law.decisions() {
        log.turn(is_logged);
    }
    let mut readers: Vec<Reader> =
        (0..load.processes).map(|it| Reader::new(it, load.is_random)).collect();
    let mut now = Time::ZERO;
    let mut requests_open = RequestTable::default();
    let mut in_device = VecDeque::new();
    for reader in &mut readers {
        (0..load.depth).for_each(|_| reader.ask(&mut *law, now, &mut requests_open));
    }
    let begin = Instant::now();
    let mut completed = 0;
    while completed < requests {
        let wake = fill(&mut *law, now, &requests_open, &mut in_device, caps.depth_max as usize);
        now += Time::from_us(100);
        match in_device.pop_front() {
            Some(id) => {
                law.complete(now, id, &requests_open);
                completed += 1;
                let (request, _) = requests_open.close(id);
                let reader = &mut readers[request.process.0 as usize];
                reader.ask(&mut *law, now, &mut requests_open);
            }
            None => now = wake.expect("a law with requests sends one, or says when").max(now),
        }
        if is_logged {
            while law.decisions().and_then(|log| log.poll()).is_some() {}
        }
    }
    (begin.elapsed().as_nanos() / u128::from(requests)) as u64
}

/// Gives the device what the law gives out; or when the law wants to be asked again.
fn fill(
    law: &mut dyn Scheduler,
    now: Time,
    requests: &RequestTable,
    in_device: &mut VecDeque<RequestId>,
    depth_max: usize,
) -> Option<Time> {
    while in_device.len() < depth_max {
        match law.dispatch(now, requests) {
            Dispatch::Request(id) => in_device.push_back(id),
            Dispatch::WaitUntil(wake) => return Some(wake),
            Dispatch::Nothing => return None,
        }
    }
    None
}

struct Reader {
    process: u32,
    is_random: bool,
    count: u64,
    state: u64,
}

impl Reader {
    fn new(process: u32, is_random: bool) -> Reader {
        Reader { process, is_random, count: 0, state: u64::from(process) + 1 }
    }

    /// Asks for the next 4 KiB.
    fn ask(&mut self, law: &mut dyn Scheduler, now: Time, requests: &mut RequestTable) {
        self.count += 1;
        // A linear congruential generator (Knuth's MMIX).
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let page = if self.is_random { self.state >> 43 } else { self.count };
        let id = requests.open(Request {
            op: Op::Read,
            start: (u64::from(self.process) << 24) + 8 * page,
            sectors: 8,
            process: ProcessId(self.process),
            priority: Priority::default(),
            is_sync: true,
            need: Need::Awaited,
        });
        let inserted = law.insert(now, id, requests);
        debug_assert_eq!(inserted, Inserted::Queued, "no request is larger than 8 sectors");
    }
}
