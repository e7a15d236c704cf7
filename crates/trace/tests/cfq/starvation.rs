//! Bounds of the wait: the longest wait of a request under `cfq`, and under the other schedulers.
//!
//! `cfq`. Inside one class, with n queues, a device of depth D that serves a request in at most S,
//! and the tunables' largest slice and key offset of a level:
//!
//! - a *turn* lasts at most `slice + 3 D S + 2 idle`. The terms are: the requests in the device
//!   drain, the first request completes and the slice gets its length, the slice, the last requests
//!   complete, and idling for more;
//! - the key of a queue whose turn has ended is at most `(n − 1) offset + D S + idle` ahead. Once
//!   that and another slice (a rest that others may be credited with) have passed, no queue enters
//!   before it. From then on each of the n − 1 others has at most one turn before it, and each may
//!   bring the share of its tree with it. A *round* therefore takes at most `(n − 1) offset + D S +
//!   idle + slice + (n + 1) (share + turn)`;
//! - the first request of a turn is the oldest that has waited `fifo_expire`. With `ahead` older
//!   ones in its queue a request thus waits at most `fifo_expire + (ahead + 1) rounds`.
//!
//! Two rules are outside the order of the trees, and can be used repeatedly: preemption, and turns
//! for close cooperators. Each use adds at most one round. The policy itself does not bound their
//! number: two processes with neighbouring reads, each ending the other's idle time, can starve a
//! third (see `close_readers_can_starve_other_processes`).
//!
//! A real-time process starves all others, and a best-effort one the idle class, by design.
//!
//! `deadline`: once a request has expired, the current batch ends. Each expired request ahead of it
//! in its direction begins a batch, and then it does. For every `writes_starved` batches of reads
//! there may be one of writes, and before each batch of writes as many of reads. `mq-deadline` has
//! this bound inside one class, and for a lower class the age at which it passes the higher ones.
//! `noop`: a request waits for all requests before it, without a bound. `bfq` without raised
//! weights: the first request of a service is the oldest that has waited `fifo_expire`. Between two
//! services of a queue, the others get at most the largest budget for each unit of its weight, by
//! the sum of all weights, and two largest budgets more.

use proptest::prelude::*;
use readpath_core::request::{Class, Need, Op, Priority, ProcessId, Request};
use readpath_core::unit::Time;

use super::rig::*;

/// Short times in ms, so that a run of seconds has many rounds.
const SPEC: &str = "cfq,slice_sync=20,slice_async=10,slice_idle=2,target_latency=40,\
                    fifo_expire_sync=30,fifo_expire_async=60";
const SLICE: u64 = 36; // level 0: 20 + 20/5 × 4
const OFFSET: u64 = 32; // from level 0 to asynchronous level 7: 36 − (10 − 10/5 × 3)
const SHARE: u64 = 40;
const IDLE: u64 = 2;
const FIFO_EXPIRE: u64 = 60;

const DEVICE: SpindleDevice =
    SpindleDevice { near: Time::from_ms(1), far: Time::from_ms(3), depth_max: 2, ..SPINDLE };

/// The bound in ms for a request with `ahead` older ones in its queue.
fn bound_ms(queues: u64, ahead: u64, uses: u64) -> u64 {
    let drain = u64::from(DEVICE.depth_max) * 3;
    let turn = SLICE + 3 * drain + 2 * IDLE;
    let round = (queues - 1) * OFFSET + drain + IDLE + SLICE + (queues + 1) * (SHARE + turn);
    FIFO_EXPIRE + (ahead + 1 + uses) * round
}

fn arrivals() -> impl Strategy<Value = Vec<(Time, Request)>> {
    // Bursts of one process each: time, process, region, number of requests, distance.
    let burst = (0..6_000u64, 0..4u32, 0..64u64, 1..120u64, prop_oneof![Just(8u64), Just(5_000)]);
    let levels = prop::array::uniform4(0..8u8);
    (prop::collection::vec(burst, 1..40), levels, any::<bool>()).prop_map(
        |(bursts, levels, has_writer)| {
            let mut arrivals = Vec::new();
            for (at_ms, process, region, count, step) in bursts {
                for number in 0..count {
                    let is_sync = !(has_writer && process == 3);
                    let request = Request {
                        op: if is_sync { Op::Read } else { Op::Write },
                        // Pages that don't touch, so that none is merged.
                        start: region * 10_000_000 + number * (step + 8),
                        sectors: 8,
                        process: ProcessId(process),
                        priority: Priority {
                            level: levels[process as usize],
                            ..Priority::default()
                        },
                        is_sync,
                        need: Need::Demand,
                    };
                    arrivals.push((Time::from_ms(at_ms + number), request));
                }
            }
            arrivals.sort_by_key(|(at, _)| *at);
            arrivals
        },
    )
}

/// Times at which a rule outside the order of the trees was used.
fn uses(lines: &[String]) -> Vec<Time> {
    let at = |line: &String| {
        let text = line.trim_start_matches("at_ms=").split(' ').next().unwrap_or_default();
        let (ms, ns) = text.split_once('.').unwrap();
        Time::from_ms(ms.parse().unwrap()) + Time(ns.parse().unwrap())
    };
    let is_use =
        |line: &&String| line.contains("event=preempt") || line.contains("why=close_cooperator");
    lines.iter().filter(is_use).map(at).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_request_is_served_within_the_bound(arrivals in arrivals(), seeky in 0..2usize) {
        let spec = format!("{SPEC},seeky={}", ["mean", "history"][seeky]);
        let count = arrivals.len();
        let (waits, lines) = run_arrivals(&spec, DEVICE, arrivals);
        prop_assert_eq!(waits.len(), count, "all are served");
        let uses = uses(&lines);
        for wait in waits {
            let before = uses.partition_point(|at| *at < wait.arrived);
            let until = uses.partition_point(|at| *at <= wait.dispatched);
            let waited = wait.dispatched.since(wait.arrived);
            let bound = Time::from_ms(bound_ms(4, wait.ahead, (until - before) as u64));
            prop_assert!(waited <= bound, "{:?}: {waited}, above {bound}", wait);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn deadlines_and_noop_serve_every_request_within_their_bounds(
        arrivals in arrivals(),
        policy in prop::sample::select(&["deadline", "mq-deadline"][..]),
    ) {
        const BATCH: u64 = 4;
        const STARVED: u64 = 2;
        let tunables = "read_expire=30,write_expire=60,fifo_batch=4,writes_starved=2";
        let spec = format!("{policy},{tunables}");
        for wait in run_arrivals(&spec, DEVICE, arrivals.clone()).0 {
            let batches = wait.ahead_of_all + 2;
            let (expire, all_batches) = match wait.op {
                Op::Read => (30, batches + batches / STARVED + 1),
                Op::Write => (60, batches * (STARVED + 1)),
            };
            let bound = Time::from_ms(expire + all_batches * BATCH * 3);
            let waited = wait.dispatched.since(wait.arrived);
            prop_assert!(waited <= bound, "{:?}: {waited}, above {bound}", wait);
        }
        for wait in run_arrivals("noop", DEVICE, arrivals).0 {
            let before = wait.ahead_of_all + u64::from(DEVICE.depth_max);
            let waited = wait.dispatched.since(wait.arrived);
            prop_assert!(waited <= Time::from_ms(before * 3), "{:?}: {waited}", wait);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A write of a domain with one token waits for a batch of 16 reads for each write before it,
    /// and a read for batches of 8 writes. The targets make the device congested, and the depths
    /// change every 100 ms.
    #[test]
    fn kyber_serves_every_request_within_its_bound(
        arrivals in arrivals(),
        read_ms in 1..20u64,
        write_ms in 1..20u64,
    ) {
        let spec = format!("kyber,read_lat_nsec={read_ms}000000,write_lat_nsec={write_ms}000000");
        let count = arrivals.len();
        let (waits, _) = run_arrivals(&spec, DEVICE, arrivals);
        prop_assert_eq!(waits.len(), count, "all are served");
        for wait in waits {
            let batch = if wait.op == Op::Read { 8 } else { 16 };
            let before = (wait.ahead_of_all + 1) * (1 + batch) + u64::from(DEVICE.depth_max);
            let waited = wait.dispatched.since(wait.arrived);
            prop_assert!(waited <= Time::from_ms(before * 3), "{:?}: {waited}", wait);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Weights are 10 to 80. All time is spent in requests of 8 sectors, or idle after one.
    #[test]
    fn bfq_serves_every_request_within_its_bound(arrivals in arrivals()) {
        const BUDGET: u64 = 32;
        const EXPIRE: u64 = 30;
        let spec = format!(
            "bfq,low_latency=0,max_budget={BUDGET},slice_idle={IDLE},timeout_sync=20,\
             fifo_expire_sync={EXPIRE},fifo_expire_async={EXPIRE}"
        );
        let weight = |arrival: &(Time, Request)| 80 - 10 * u64::from(arrival.1.priority.level);
        let (least, most) = arrivals.iter().fold((80, 10), |(least, most), arrival| {
            (weight(arrival).min(least), weight(arrival).max(most))
        });
        let count = arrivals.len();
        let (waits, _) = run_arrivals(&spec, DEVICE, arrivals);
        prop_assert_eq!(waits.len(), count, "all are served");
        let round_sectors = BUDGET * (3 * most + least) / least + 2 * BUDGET;
        let round_ms = round_sectors.div_ceil(8) * (3 + IDLE);
        for wait in waits {
            let bound = Time::from_ms(EXPIRE + (wait.ahead + 1) * round_ms);
            let waited = wait.dispatched.since(wait.arrived);
            prop_assert!(waited <= bound, "{:?}: {waited}, above {bound}", wait);
        }
    }
}

/// One process keeps N requests waiting, and another reads page by page. The second waits no longer
/// if N grows; under `noop` it waits for all of them.
#[test]
fn a_flood_delays_others_under_noop_and_not_under_cfq() {
    let wait_max = |spec: &str, depth| {
        let flood = RigProcess { depth, ..RigProcess::reading(random_records(0, 1)) };
        let reader = RigProcess::reading(random_records(1 << 30, 1));
        run(spec, DEVICE, vec![flood, reader], Time::from_s(10)).programs[1].wait_max
    };
    let bound = Time::from_ms(bound_ms(2, 0, 0));
    assert!(wait_max(SPEC, 100) <= bound, "{}", wait_max(SPEC, 100));
    assert!(wait_max(SPEC, 2_000) <= bound, "{}", wait_max(SPEC, 2_000));
    // 3 ms for each request before it.
    assert!(wait_max("noop", 100) >= Time::from_ms(3 * 90));
    assert!(wait_max("noop", 2_000) >= Time::from_ms(3 * 1_900));
}

/// Real-time processes keep the device busy all the time. The best-effort and the idle reader get
/// one request for each `prio_aging_expire` of 100 ms, plus the requests in the device.
#[test]
fn aged_requests_are_served_next_to_a_busy_real_time_class() {
    let wait_max = |aging_ms: u64, class| {
        let busy = |at: u64| {
            let reader = RigProcess::reading(random_records(at << 30, 1));
            RigProcess { depth: 8, ..reader }.of_class(Class::RealTime, 4)
        };
        let lower = RigProcess::reading(sequential(1 << 33)).of_class(class, 4);
        let spec = format!("mq-deadline,prio_aging_expire={aging_ms}");
        let report = run(&spec, DEVICE, vec![busy(0), busy(1), lower], Time::from_s(10));
        (report.programs[2].requests, report.programs[2].wait_max)
    };
    for class in [Class::BestEffort, Class::Idle] {
        let (requests, waited) = wait_max(100, class);
        assert!(requests > 90 && waited <= Time::from_ms(100 + 3), "{requests}, {waited}");
        assert_eq!(wait_max(20_000, class).0, 0, "without aging it starves");
    }
}

/// A process with one far request, and endless new ones next to the head.
#[test]
fn a_far_request_is_served_among_endless_near_ones_of_its_own_process() {
    let far = |number| if number == 4 { 1 << 30 } else { number * 16 };
    let wait_max = |spec| {
        let program =
            RigProcess { depth: 8, ..RigProcess::reading(move |number| Some(far(number))) };
        let other = RigProcess::reading(sequential(1 << 33));
        run(spec, DEVICE, vec![program, other], Time::from_s(10)).programs[0].wait_max
    };
    let bound = Time::from_ms(bound_ms(2, 7, 0));
    assert!(wait_max(SPEC) <= bound, "{}", wait_max(SPEC));
    // Only its age gets it served.
    let patient = "cfq,slice_sync=20,slice_idle=2,target_latency=40,fifo_expire_sync=5000";
    assert!(wait_max(patient) >= Time::from_s(5), "{}", wait_max(patient));
}

/// The reason for which the bound counts preemptions. Two processes with neighbouring reads, each
/// during the other's think time, preempt each other's idle time as long as they read, and always
/// with a new slice. A third process waits all the time, although it needs the disk only once.
#[test]
fn close_readers_can_starve_other_processes() {
    let close = |first, begins| RigProcess {
        think: Time::from_ms(3),
        begins: Time::from_ms(begins),
        ..RigProcess::reading(sequential(first))
    };
    // One is served from 9 to 10 ms, the other from 11 to 12, and so on.
    let requests_of_third = |distance| {
        let third =
            RigProcess { begins: Time::from_ms(20), ..RigProcess::reading(sequential(1 << 33)) };
        let programs = vec![close(0, 0), close(distance, 9), third];
        run("cfq", SPINDLE, programs, Time::from_s(4)).programs[2].requests
    };
    assert_eq!(requests_of_third(400), 0);
    // 8,192 sectors are close; further apart they alternate like other processes.
    assert!(requests_of_third(10_000) > 100);
}
