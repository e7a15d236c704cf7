//! No request is lost or dispatched twice, in any order of calls.

use proptest::prelude::*;
use readpath_core::request::{
    Class, Need, Op, Priority, ProcessId, Request, RequestId, RequestTable,
};
use readpath_core::scheduler::{Dispatch, Inserted, Scheduler};
use readpath_core::unit::Time;

use super::rig::{SPINDLE, SpindleDevice, policy};

#[derive(Clone, Debug)]
enum SchedulerCall {
    Insert { process: u32, start: u64, sectors: u32, priority: Priority, op: Op, is_sync: bool },
    Dispatch,
    Complete { at: usize },
    End { process: u32 },
    Pass { ms: u64 },
}

fn step() -> impl Strategy<Value = SchedulerCall> {
    let class = prop_oneof![
        1 => Just(Class::RealTime),
        6 => Just(Class::BestEffort),
        1 => Just(Class::Idle),
    ];
    let level = prop_oneof![4 => Just(4u8), 1 => 0..8u8];
    let place = prop_oneof![0..64u64, 100_000..100_064u64, 1_000_000_000..1_000_000_064u64];
    let request = (0..5u32, place, 1..3u32, class, level, 0..6u32);
    prop_oneof![
        6 => request.prop_map(|(process, page, pages, class, level, kind)| SchedulerCall::Insert {
            process,
            start: page * 8,
            sectors: pages * 8,
            priority: Priority { class, level },
            op: if kind < 4 { Op::Read } else { Op::Write },
            is_sync: kind < 5,
        }),
        6 => Just(SchedulerCall::Dispatch),
        4 => any::<usize>().prop_map(|at| SchedulerCall::Complete { at }),
        1 => (0..5u32).prop_map(|process| SchedulerCall::End { process }),
        2 => (0..40u64).prop_map(|ms| SchedulerCall::Pass { ms }),
    ]
}

fn specs() -> impl Strategy<Value = String> {
    prop_oneof![4 => cfq_specs(), 2 => mq_deadline_specs(), 1 => kyber_specs(), 3 => bfq_specs()]
}

fn mq_deadline_specs() -> impl Strategy<Value = String> {
    (1..9u32, 0..3u32, 0..2u32, 0..60u32).prop_map(|(batch, starved, front_merges, aging)| {
        format!(
            "mq-deadline,fifo_batch={batch},writes_starved={starved},read_expire=20,\
             write_expire=50,front_merges={front_merges},prio_aging_expire={aging}"
        )
    })
}

fn bfq_specs() -> impl Strategy<Value = String> {
    (0..10u32, 32..500u32, 1..60u32, 0..2u32, 0..2u32).prop_map(
        |(idle, budget, timeout, low_latency, strict)| {
            format!(
                "bfq,slice_idle={idle},max_budget={budget},timeout_sync={timeout},\
                 low_latency={low_latency},strict_guarantees={strict}"
            )
        },
    )
}

/// Latencies that the device exceeds, so that the depths fall to a few.
fn kyber_specs() -> impl Strategy<Value = String> {
    (1..20_000_000u32, 1..20_000_000u32)
        .prop_map(|(read, write)| format!("kyber,read_lat_nsec={read},write_lat_nsec={write}"))
}

fn cfq_specs() -> impl Strategy<Value = String> {
    let seeky = prop_oneof![Just("mean"), Just("history")];
    (seeky, 0..10u32, 1..9u32, 0..2u32, 1..120u32).prop_map(
        |(seeky, idle, quantum, low_latency, slice)| {
            format!(
                "cfq,seeky={seeky},slice_idle={idle},quantum={quantum},\
                 low_latency={low_latency},slice_sync={slice}"
            )
        },
    )
}

/// A policy, a device, and the expected sectors of each request.
struct ConservationCheck {
    policy: Box<dyn Scheduler>,
    /// No request is closed, so that identifiers count 0, 1, … in the order of arrival.
    requests: RequestTable,
    now: Time,
    in_device: Vec<RequestId>,
    /// (first sector, sectors) of all parts of a request, itself included.
    parts: Vec<Vec<(u64, u32)>>,
    waiting: usize,
    depth_max: usize,
}

impl ConservationCheck {
    fn insert(&mut self, request: Request) {
        let part = (request.start, request.sectors);
        self.parts.push(vec![part]);
        let id = self.requests.open(request);
        match self.policy.insert(self.now, id, &mut self.requests) {
            Inserted::Queued => self.waiting += 1,
            Inserted::Merged { into, with } => {
                self.parts[into.0 as usize].push(part);
                if let Some(with) = with {
                    let parts = std::mem::take(&mut self.parts[with.0 as usize]);
                    self.parts[into.0 as usize].extend(parts);
                    self.waiting -= 1;
                }
            }
        }
    }

    /// Returns true if a request was dispatched, or time was advanced to the next wake-up.
    fn dispatch(&mut self) -> Result<bool, TestCaseError> {
        if self.in_device.len() == self.depth_max {
            return Ok(false);
        }
        match self.policy.dispatch(self.now, &self.requests) {
            Dispatch::Request(id) => {
                let mut parts = std::mem::take(&mut self.parts[id.0 as usize]);
                prop_assert!(!parts.is_empty(), "{:?} comes a second time", id);
                let request = &self.requests[id];
                parts.sort_unstable();
                let mut end = request.start;
                for (start, sectors) in parts {
                    prop_assert_eq!(start, end, "the parts of {:?} follow each other", request);
                    end += u64::from(sectors);
                }
                prop_assert_eq!(end, request.end());
                prop_assert!(request.sectors <= 1024);
                self.waiting -= 1;
                self.in_device.push(id);
                return Ok(true);
            }
            Dispatch::Withdraw(_) => unreachable!("only `adaptive` withdraws"),
            Dispatch::WaitUntil(time) => {
                prop_assert!(time > self.now);
                // No other event will come: advance to that time.
                if self.in_device.is_empty() {
                    self.now = time;
                    return Ok(true);
                }
            }
            Dispatch::Nothing => {}
        }
        Ok(false)
    }

    fn complete(&mut self, at: usize) {
        if !self.in_device.is_empty() {
            let id = self.in_device.remove(at % self.in_device.len());
            self.policy.complete(self.now, id, &self.requests);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_inserted_request_is_dispatched_once(
        steps in prop::collection::vec(step(), 0..300),
        spec in specs(),
        depth_max in 1..12u32,
        is_rotational in any::<bool>(),
    ) {
        let device = SpindleDevice { depth_max, is_rotational, ..SPINDLE };
        let mut world = ConservationCheck {
            policy: policy(&spec, &device),
            requests: RequestTable::default(),
            now: Time::ZERO,
            in_device: Vec::new(),
            parts: Vec::new(),
            waiting: 0,
            depth_max: depth_max as usize,
        };
        for step in steps {
            match step {
                SchedulerCall::Insert { process, start, sectors, priority, op, is_sync } => {
                    let (process, is_demand) = (ProcessId(process), is_sync);
                    world.insert(Request {
                        op,
                        start,
                        sectors,
                        process,
                        priority,
                        is_sync,
                        need: Need::of(is_demand),
                    });
                }
                SchedulerCall::Dispatch => {
                    world.dispatch()?;
                }
                SchedulerCall::Complete { at } => world.complete(at),
                SchedulerCall::End { process } => world.policy.process_ended(world.now, ProcessId(process)),
                SchedulerCall::Pass { ms } => world.now += Time::from_ms(ms),
            }
            prop_assert_eq!(world.policy.queued(), world.waiting);
        }
        while world.waiting > 0 || !world.in_device.is_empty() {
            if !world.dispatch()? {
                prop_assert!(!world.in_device.is_empty(), "stuck: {} wait", world.waiting);
                world.now += Time::from_ms(1);
                world.complete(0);
            }
        }
    }
}
