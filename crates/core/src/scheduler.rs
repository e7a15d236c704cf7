//! I/O schedulers: in which order, and when, requests go to the device.
//!
//! A scheduler holds the requests that the machine has made and the device has
//! not been given yet. It merges neighbours, orders them, and may hold the
//! device idle for a request that it expects. It knows sectors, processes and
//! times; it knows nothing of files, pages or frames.

use alloc::boxed::Box;

use crate::decision::DecisionLog;
use crate::policy::{self, Policy, Spec, SpecError};
use crate::request::{DeviceCaps, ProcessId, RequestId, RequestTable};
use crate::unit::Time;

mod adaptive;
mod arrivals;
pub mod cfq;
mod deadline;
mod noop;
pub mod replay;
mod requests;
mod sorted;

pub use adaptive::AdaptiveScheduler;
pub use cfq::{Cfq, CfqTunables};
pub use deadline::{Deadline, DeadlineTunables};
pub use noop::Noop;

/// What became of a request that was inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// It waits on its own.
    Queued,
    /// It was merged with a neighbour, which now covers both; `into` is the
    /// name that will be dispatched for both.
    Merged {
        /// The request that was there before.
        into: RequestId,
        /// Another one that waited, next to the two, and is part of `into` now as well.
        with: Option<RequestId>,
    },
}

/// What the scheduler wants to happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// Give this request, with all that was merged into it, to the device.
    Request(RequestId),
    /// End this read undone, with all that was merged into it, and ask again: nobody waits for it, and it isn't
    /// worth the device's time.
    Withdraw(RequestId),
    /// Nothing now, though something may be queued: ask again at this time, or
    /// when a request arrives or completes, whichever comes first.
    WaitUntil(Time),
    /// Nothing now: ask again when a request arrives or completes.
    Nothing,
}

/// A scheduling law.
///
/// It holds names of requests; what each is stands in the table that it is lent. It changes that
/// table only by [merging](RequestTable::merge).
///
/// Order of calls: `insert` for each new request; `dispatch`, as long as the
/// device has room, until it gives no request; `complete` for each request
/// that the device has finished. Time never goes backwards between calls.
pub trait Scheduler: Send {
    /// Takes a request in, and merges it when a neighbour of the same direction is queued and the
    /// two together are no larger than the device takes; and with what the two come to touch,
    /// on the same terms.
    fn insert(&mut self, now: Time, id: RequestId, requests: &mut RequestTable) -> Inserted;

    /// Says what goes to the device next, or is not to go there at all; called only while the device has room.
    fn dispatch(&mut self, now: Time, requests: &RequestTable) -> Dispatch;

    /// The device has finished a request that was dispatched, and is in the table still.
    fn complete(&mut self, now: Time, id: RequestId, requests: &RequestTable);

    /// Somebody has come to wait for a request for which nobody waited before: its
    /// [`need`](crate::request::Request::need) has changed. It may be on its way here still, or to the
    /// device.
    fn demand(&mut self, _id: RequestId, _requests: &RequestTable) {}

    /// How many requests are queued, merged ones counted as one.
    fn queued(&self) -> usize;

    /// The process will ask for nothing more.
    ///
    /// Something may be free to go now: ask `dispatch` again.
    fn process_ended(&mut self, _now: Time, _process: ProcessId) {}

    /// The log of this law's decisions, to turn it on and to take them out;
    /// `None` for a law that keeps none.
    fn decisions(&mut self) -> Option<&mut DecisionLog> {
        None
    }
}

/// The laws by name, each with one line on what it does.
pub const POLICIES: &[Policy] = &[
    Policy {
        name: "noop",
        line: "first come, first served, with merging",
        source: include_str!("scheduler/noop.rs"),
    },
    Policy {
        name: "deadline",
        line: "by sector in batches, reads before writes, nobody waits too long",
        source: include_str!("scheduler/deadline.rs"),
    },
    Policy {
        name: "cfq",
        line: "processes take turns, idling for the next near request (seeky=mean|history)",
        source: include_str!("scheduler/cfq.rs"),
    },
    Policy {
        name: "adaptive",
        line: "as many processes at a time as the device serves best, found by trying",
        source: include_str!("scheduler/adaptive.rs"),
    },
];

/// Builds the scheduler that `spec` names, for one device.
///
/// # Errors
/// The name or a parameter is unknown, or a value can't be used.
pub fn build(spec: &Spec, caps: &DeviceCaps) -> Result<Box<dyn Scheduler>, SpecError> {
    Ok(match spec.name.as_str() {
        "noop" => {
            spec.only(&[])?;
            Box::new(Noop::new(caps))
        }
        "deadline" => Box::new(Deadline::new(caps, DeadlineTunables::from_spec(spec)?)),
        "cfq" => Box::new(Cfq::new(caps, CfqTunables::from_spec(spec)?)),
        "adaptive" => {
            spec.only(&[])?;
            Box::new(AdaptiveScheduler::new(caps))
        }
        _ => return Err(policy::unknown("scheduler", &spec.name, POLICIES)),
    })
}

#[cfg(test)]
mod testing {
    //! What the tests of every scheduler need.

    use alloc::boxed::Box;

    use super::{Dispatch, Inserted, Scheduler};
    use crate::request::{DeviceCaps, Need, Op, ProcessId, Request, RequestTable};
    use crate::unit::Time;

    pub(super) fn caps() -> DeviceCaps {
        DeviceCaps {
            sectors: 1 << 30,
            request_sectors_max: 256,
            depth_max: 32,
            is_rotational: true,
            alignment_sectors: 1,
        }
    }

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

    pub(super) fn write(start: u64, sectors: u32) -> Request {
        Request { op: Op::Write, is_sync: false, need: Need::Prefetch, ..read(start, sectors) }
    }

    /// A law with a table of its own, in which nothing is closed: so requests are named
    /// 0, 1, 2, … in the order in which they come.
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

        pub(super) fn insert(&mut self, now: Time, request: Request) -> Inserted {
            let id = self.requests.open(request);
            self.policy.insert(now, id, &mut self.requests)
        }

        pub(super) fn dispatch(&mut self, now: Time) -> Dispatch {
            self.policy.dispatch(now, &self.requests)
        }

        /// The next `N` dispatches as (name, first sector, sectors); there must be just `N`.
        pub(super) fn dispatched<const N: usize>(&mut self, now: Time) -> [(u32, u64, u32); N] {
            let got = core::array::from_fn(|_| match self.dispatch(now) {
                Dispatch::Request(id) => (id.0, self.requests[id].start, self.requests[id].sectors),
                other => panic!("expected a request, got {other:?}"),
            });
            assert_eq!(self.dispatch(now), Dispatch::Nothing);
            got
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{SchedulerBench, caps, read, write};
    use super::*;

    fn bench(policy: &str) -> SchedulerBench {
        SchedulerBench::of(build(&Spec::plain(policy), &caps()).unwrap())
    }

    /// Whatever the order in which they come, and whichever law: 24 sectors in a row are one
    /// request, under the name of the oldest.
    #[test]
    fn two_queued_requests_are_merged_by_one_between_them() {
        for policy in POLICIES {
            for starts in [[100, 116, 108], [116, 100, 108], [100, 108, 116], [116, 108, 100]] {
                let mut scheduler = bench(policy.name);
                for start in starts {
                    scheduler.insert(Time::ZERO, read(start, 8));
                }
                assert_eq!(scheduler.policy.queued(), 1, "{} {starts:?}", policy.name);
                assert_eq!(scheduler.dispatched(Time::ZERO), [(0, 100, 24)], "{}", policy.name);
            }
        }
    }

    #[test]
    fn queued_requests_stay_separate_if_too_large_or_different() {
        for policy in POLICIES {
            // 128 + 8 + 128 sectors are more than the 256 that the device takes.
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
