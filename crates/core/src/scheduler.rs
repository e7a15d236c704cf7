//! I/O schedulers: the order and the time in which requests go to the device.
//!
//! A scheduler holds the requests that the machine has created and the device has not received yet.
//! It merges neighbours, orders them, and may keep the device idle for an expected request. It
//! knows sectors, processes and times, but no files, pages or frames.

use alloc::boxed::Box;

use crate::decision::DecisionLog;
use crate::policy::{self, Policy, RegisterError, Registry, Spec, SpecError};
use crate::request::{DeviceCaps, ProcessId, RequestId, RequestTable};
use crate::unit::Time;

mod adaptive;
mod arrivals;
mod batches;
mod bfq;
pub mod cfq;
mod deadline;
mod decaying_mean;
mod kyber;
mod mq_deadline;
mod noop;
mod requests;
mod seek_order;
mod sorted;

pub use adaptive::AdaptiveScheduler;
pub use batches::DeadlineTunables;
pub use bfq::{Bfq, BfqTunables};
pub use cfq::{Cfq, CfqTunables};
pub use deadline::Deadline;
pub use kyber::{Kyber, KyberTunables};
pub use mq_deadline::{MqDeadline, MqDeadlineTunables};
pub use noop::Noop;

/// Outcome of the insertion of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The request is queued by itself.
    Queued,
    /// The request was merged with a neighbour, which covers both from then on. The dispatch for
    /// both names `into`.
    Merged {
        /// The request that was queued before.
        into: RequestId,
        /// Another queued request adjacent to the two, which is part of `into` now as well.
        with: Option<RequestId>,
    },
}

/// The next action of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// Send this request, with all merged ones, to the device.
    Request(RequestId),
    /// Cancel this read, with all merged ones, and call `dispatch` again. No reader waits for it,
    /// and it isn't worth the device's time.
    Withdraw(RequestId),
    /// No request now, although some may be queued. Call again at this time, or when a request
    /// arrives or completes, whichever comes first.
    WaitUntil(Time),
    /// No request now. Call again when a request arrives or completes.
    Nothing,
}

/// A scheduling policy.
///
/// A policy holds identifiers of requests; the requests themselves are in the table that each call
/// passes. The policy changes that table only by [merging](RequestTable::merge).
///
/// Order of calls: `insert` for each new request; `dispatch`, while the device accepts requests,
/// until it returns none; `complete` for each request that the device has finished. Time never goes
/// backwards between calls.
pub trait Scheduler: Send {
    /// Queues a request. Merges it with a queued neighbour of the same direction and the same
    /// `is_sync` if the two are together no larger than the device's largest request. The merged
    /// request is then merged with a request that it touches, under the same conditions.
    fn insert(&mut self, now: Time, id: RequestId, requests: &mut RequestTable) -> Inserted;

    /// Returns the request that goes to the device next, or a read to cancel. Called only while the
    /// device accepts requests.
    fn dispatch(&mut self, now: Time, requests: &RequestTable) -> Dispatch;

    /// Records that the device has finished a dispatched request, which is still in the table.
    fn complete(&mut self, now: Time, id: RequestId, requests: &RequestTable);

    /// Records that a reader waits for a request that was only prefetched until then: its
    /// [`need`](crate::request::Request::need) has changed. The request may not have been inserted
    /// yet, or may already be in the device. The default ignores it, because most policies order
    /// requests without regard to their need.
    fn idled_for(&mut self, _id: RequestId, _requests: &RequestTable) {}

    /// Number of queued requests; merged requests count as one.
    fn queued(&self) -> usize;

    /// Records that the process has ended and sends no more requests. The default ignores it, for
    /// policies that neither keep state of a process nor idle for it.
    ///
    /// Another request may be allowed now: call `dispatch` again.
    fn process_ended(&mut self, _now: Time, _process: ProcessId) {}

    /// The log of this policy's decisions, to enable and to drain it; `None` for a policy without a
    /// log.
    fn decisions(&mut self) -> Option<&mut DecisionLog> {
        None
    }
}

/// The policies of this crate by name, each with a one-line description. `source` is the file with
/// the policy's manual page: the module documentation at its top.
pub const POLICIES: &[Policy] = &[
    Policy {
        name: "noop",
        line: "first come, first served; adjacent requests are merged",
        source: include_str!("scheduler/noop.rs"),
    },
    Policy {
        name: "deadline",
        line: "batches in sector order, reads before writes, a deadline for each request",
        source: include_str!("scheduler/deadline.rs"),
    },
    Policy {
        name: "mq-deadline",
        line: "`deadline` for each priority class; a lower class waits for the higher ones",
        source: include_str!("scheduler/mq_deadline.rs"),
    },
    Policy {
        name: "kyber",
        line: "first come, first served; limits reads and writes in the device by target latencies",
        source: include_str!("scheduler/kyber.rs"),
    },
    Policy {
        name: "cfq",
        line: "time slices by process, with idling for the next near request (seeky=mean|history)",
        source: include_str!("scheduler/cfq.rs"),
    },
    Policy {
        name: "bfq",
        line: "budgets in sectors by process, with idling; starting programs get a larger share",
        source: include_str!("scheduler/bfq.rs"),
    },
    Policy {
        name: "adaptive",
        line: "measures how many processes at a time give the device its best throughput",
        source: include_str!("scheduler/adaptive.rs"),
    },
];

/// Constructor of a registered scheduler.
pub type BuildScheduler = fn(&Spec, &DeviceCaps) -> Result<Box<dyn Scheduler>, SpecError>;

/// Schedulers of other crates, added by [`register`].
static REGISTERED: Registry<BuildScheduler> = Registry::new();

/// Registers a scheduler of another crate. Its name is then valid wherever a scheduler is
/// named: in models, traces, the library and the command.
///
/// A path calls the policy under its lock. A panic of the policy there ends the process.
///
/// # Errors
/// The name is malformed or taken.
pub fn register(policy: Policy, build: BuildScheduler) -> Result<(), RegisterError> {
    REGISTERED.register(policy, build, POLICIES)
}

/// The policies of this crate, then the registered ones.
pub fn policies() -> impl Iterator<Item = &'static Policy> {
    POLICIES.iter().chain(REGISTERED.policies())
}

/// Builds the scheduler that `spec` names, for one device. The crate's own policies come first;
/// registered names cannot hide them.
///
/// # Errors
/// The name or a parameter is unknown, or a value is out of range.
pub fn build(spec: &Spec, caps: &DeviceCaps) -> Result<Box<dyn Scheduler>, SpecError> {
    Ok(match spec.name.as_str() {
        "noop" => {
            // No parameter is allowed.
            spec.only(&[])?;
            Box::new(Noop::new(caps))
        }
        "deadline" => Box::new(Deadline::new(caps, DeadlineTunables::from_spec(spec)?)),
        "mq-deadline" => Box::new(MqDeadline::new(caps, MqDeadlineTunables::from_spec(spec)?)),
        "kyber" => Box::new(Kyber::new(caps, KyberTunables::from_spec(spec)?)),
        "cfq" => Box::new(Cfq::new(caps, CfqTunables::from_spec(spec)?)),
        "bfq" => Box::new(Bfq::new(caps, BfqTunables::from_spec(spec)?)),
        "adaptive" => {
            spec.only(&[])?;
            Box::new(AdaptiveScheduler::new(caps))
        }
        name => match REGISTERED.find(name) {
            Some(build) => return build(spec, caps),
            None => return Err(policy::unknown("scheduler", name, policies())),
        },
    })
}

#[cfg(test)]
mod testing {
    //! Helpers for the tests of every scheduler.

    use alloc::boxed::Box;

    use super::{Dispatch, Inserted, Scheduler};
    use crate::request::{DeviceCaps, Need, Op, ProcessId, Request, RequestId, RequestTable};
    use crate::unit::Time;

    /// A disk with requests of up to 256 sectors, 32 at a time.
    pub(super) fn caps() -> DeviceCaps {
        DeviceCaps {
            sectors: 1 << 30,
            request_sectors_max: 256,
            depth_max: 32,
            is_rotational: true,
            alignment_sectors: 1,
        }
    }

    /// Demand read of process 0.
    pub(super) fn read(start: u64, sectors: u32) -> Request {
        Request {
            op: Op::Read,
            start,
            sectors,
            process: ProcessId(0),
            priority: Default::default(),
            is_sync: true,
            need: Need::Demand,
        }
    }

    /// Asynchronous write of process 0.
    pub(super) fn write(start: u64, sectors: u32) -> Request {
        Request { op: Op::Write, is_sync: false, need: Need::Prefetch, ..read(start, sectors) }
    }

    /// A policy with its own table. No request is closed, so that identifiers count 0, 1, 2, … in
    /// the order of insertion.
    pub(super) struct SchedulerBench {
        pub(super) policy: Box<dyn Scheduler>,
        requests: RequestTable,
    }

    impl SchedulerBench {
        pub(super) fn new(policy: impl Scheduler + 'static) -> SchedulerBench {
            SchedulerBench::of(Box::new(policy))
        }

        pub(super) fn of(policy: Box<dyn Scheduler>) -> SchedulerBench {
            SchedulerBench { policy, requests: RequestTable::default() }
        }

        /// Opens a request in the table and inserts it.
        pub(super) fn insert(&mut self, now: Time, request: Request) -> Inserted {
            let id = self.requests.open(request);
            self.policy.insert(now, id, &mut self.requests)
        }

        pub(super) fn dispatch(&mut self, now: Time) -> Dispatch {
            self.policy.dispatch(now, &self.requests)
        }

        pub(super) fn complete(&mut self, now: Time, id: RequestId) {
            self.policy.complete(now, id, &self.requests);
        }

        /// Dispatches `N` requests, after which none must be left. Returns for each the identifier,
        /// the first sector and the number of sectors.
        pub(super) fn dispatch_all<const N: usize>(&mut self, now: Time) -> [(u32, u64, u32); N] {
            let dispatched = core::array::from_fn(|_| match self.dispatch(now) {
                Dispatch::Request(id) => (id.0, self.requests[id].start, self.requests[id].sectors),
                other => panic!("expected a request, got {other:?}"),
            });
            assert_eq!(self.dispatch(now), Dispatch::Nothing);
            dispatched
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{SchedulerBench, caps, read, write};
    use super::*;

    /// The scheduler `policy` with its defaults.
    fn bench(policy: &str) -> SchedulerBench {
        SchedulerBench::of(build(&Spec::plain(policy), &caps()).unwrap())
    }

    /// For every order of insertion and every policy, 24 adjacent sectors are one request with the
    /// identifier of the oldest.
    #[test]
    fn two_queued_requests_are_merged_by_one_between_them() {
        for policy in POLICIES {
            for starts in [[100, 116, 108], [116, 100, 108], [100, 108, 116], [116, 108, 100]] {
                let mut scheduler = bench(policy.name);
                for start in starts {
                    scheduler.insert(Time::ZERO, read(start, 8));
                }
                assert_eq!(scheduler.policy.queued(), 1, "{} {starts:?}", policy.name);
                assert_eq!(scheduler.dispatch_all(Time::ZERO), [(0, 100, 24)], "{}", policy.name);
            }
        }
    }

    /// Requests that touch stay separate if they are too large together, or if a write touches
    /// reads.
    #[test]
    fn queued_requests_stay_separate_if_too_large_or_different() {
        for policy in POLICIES {
            // 128 + 8 + 128 sectors exceed the 256 of the device's largest request.
            let mut scheduler = bench(policy.name);
            scheduler.insert(Time::ZERO, read(0, 128));
            scheduler.insert(Time::ZERO, read(136, 128));
            scheduler.insert(Time::ZERO, read(128, 8));
            assert_eq!(scheduler.policy.queued(), 2, "{}", policy.name);
            let mut scheduler = bench(policy.name);
            scheduler.insert(Time::ZERO, read(0, 8));
            scheduler.insert(Time::ZERO, write(16, 8));
            scheduler.insert(Time::ZERO, read(8, 8));
            assert_eq!(scheduler.policy.queued(), 2, "{}", policy.name);
        }
    }
}
