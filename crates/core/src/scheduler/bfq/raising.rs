//! Weight raising: interactive and soft real-time processes get a larger share for a while.
//!
//! A process is *interactive* if it begins to read, or does so again after 2 s without requests.
//! Its weight is raised for the time that a large program takes to start on this device, and for 60
//! MB at most. A process is *soft real-time* if it reads at a low rate with pauses, as a player
//! does, and not only because all its requests are far apart. Its weight is raised for 300 ms at a
//! time. A *burst* of many processes that begin together is not raised, for example the services of
//! a system or a parallel build. Only their common end counts, and that needs throughput.

use alloc::vec::Vec;

use super::peak_rate::REFERENCE_RATE;
use super::{Bfq, QueueId};
use crate::unit::Time;

/// Factor of the weight of an interactive process (bfq_wr_coeff).
const INTERACTIVE_FACTOR: u64 = 30;

/// Factor of the weight of a soft real-time process: 100 times as much (SOFTRT_WEIGHT_FACTOR).
const SOFT_REAL_TIME_FACTOR: u64 = 100 * INTERACTIVE_FACTOR;

/// Time without requests after which a process is interactive again (bfq_wr_min_idle_time).
const IDLE_TIME_MIN: Time = Time::from_s(2);

/// Sectors after which an interactive process is not raised any more: 60 MB
/// (max_service_from_wr).
const INTERACTIVE_SECTORS_MAX: u64 = 120_000;

/// Time for which a soft real-time process is raised (bfq_wr_rt_max_time).
const SOFT_REAL_TIME: Time = Time::from_ms(300);

/// Highest rate of a soft real-time process, in sectors per second: 3.5 MB/s
/// (bfq_wr_max_softrt_rate).
const SOFT_REAL_TIME_SECTORS_PER_S: u64 = 7_000;

/// Added to the idle time for the earliest next request of a soft real-time process: 4 jiffies.
const SOFT_REAL_TIME_GAP: Time = Time::from_ms(4);

/// Time that a large program takes to start on a disk and on solid-state storage with the reference
/// rates (ref_wr_duration).
const REFERENCE_START: [Time; 2] = [Time::from_ms(7_000), Time::from_ms(2_500)];

/// Bounds of the time for which an interactive process is raised.
const INTERACTIVE_TIME: [Time; 2] = [Time::from_s(3), Time::from_s(25)];

/// Longest time between two new queues of a burst (bfq_burst_interval).
const BURST_GAP: Time = Time::from_ms(180);

/// Number of queues from which a burst is large (bfq_large_burst_thresh).
const LARGE_BURST: usize = 8;

/// Time without requests after which a queue is not counted to its burst any more.
const BURST_MEMORY: Time = Time::from_s(10);

/// State of the weight raising of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RaisingState {
    /// The weight is not raised.
    None,
    /// Raised because the process begins to read.
    Interactive,
    /// Raised because the process reads at a low rate with pauses.
    SoftRealTime,
}

/// Raising that a merged queue passes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct RaisedState {
    state: RaisingState,
    until: Time,
    service: u64,
}

/// Weight raising of a queue.
#[derive(Debug)]
pub(super) struct Raising {
    /// Reason for the raised weight, if it is raised.
    state: RaisingState,
    /// End of the raising.
    until: Time,
    /// Service since the raising began, in sectors.
    service: u64,
    /// True if it is part of a large burst.
    is_in_large_burst: bool,
    /// Earliest time of the next request by which the process is soft real-time.
    soft_real_time_from: Time,
    /// Time at which it got requests after it had none.
    backlogged_since: Time,
    /// Service since then, in sectors.
    backlog_service: u64,
}

impl Raising {
    pub(super) fn new(now: Time) -> Raising {
        Raising {
            state: RaisingState::None,
            until: now,
            service: 0,
            is_in_large_burst: false,
            soft_real_time_from: now,
            backlogged_since: now,
            backlog_service: 0,
        }
    }

    /// Factor of the weight.
    pub(super) fn factor(&self) -> u64 {
        match self.state {
            RaisingState::None => 1,
            RaisingState::Interactive => INTERACTIVE_FACTOR,
            RaisingState::SoftRealTime => SOFT_REAL_TIME_FACTOR,
        }
    }

    /// Returns true if the weight is raised.
    pub(super) fn is_raised(&self) -> bool {
        self.state != RaisingState::None
    }

    /// Ends the raising of a queue whose process gets another queue. Returns the raising, to be
    /// passed on, or `None` if the weight was not raised.
    pub(super) fn take_raised_state(&mut self) -> Option<RaisedState> {
        let state = core::mem::replace(&mut self.state, RaisingState::None);
        let raised = RaisedState { state, until: self.until, service: self.service };
        (state != RaisingState::None).then_some(raised)
    }

    /// Raises the weight as the one of a merged queue was, unless it is raised already.
    pub(super) fn adopt_raised_state(&mut self, raised: RaisedState) {
        if !self.is_raised() {
            RaisedState { state: self.state, until: self.until, service: self.service } = raised;
        }
    }

    /// Factor of the time for one service. A soft real-time process needs no long one.
    pub(super) fn time_factor(&self) -> u64 {
        match self.state {
            RaisingState::Interactive => INTERACTIVE_FACTOR,
            RaisingState::None | RaisingState::SoftRealTime => 1,
        }
    }

    /// Adds a service of `sectors` to both counts: since the raising began, and since the queue
    /// last got requests after it had none.
    pub(super) fn on_service(&mut self, sectors: u64) {
        self.service += sectors;
        self.backlog_service += sectors;
    }

    /// Records that the queue has no request any more. The process is a soft real-time one if its
    /// next request comes late enough. The service so far must not exceed the rate of such a
    /// process by then. The idle time `slice_idle` and a gap must have passed as well.
    pub(super) fn on_empty(&mut self, now: Time, slice_idle: Time) {
        let service_ns = self.backlog_service * 1_000_000_000 / SOFT_REAL_TIME_SECTORS_PER_S;
        let by_rate = self.backlogged_since + Time(service_ns);
        self.soft_real_time_from = by_rate.max(now + slice_idle + SOFT_REAL_TIME_GAP);
    }

    /// Ends the raising if its time or its service is used up, or if the queue is part of a large
    /// burst.
    pub(super) fn end_if_over(&mut self, now: Time) {
        let is_served =
            self.state == RaisingState::Interactive && self.service > INTERACTIVE_SECTORS_MAX;
        if self.is_in_large_burst || now > self.until || is_served {
            self.state = RaisingState::None;
        }
    }

    /// Ends the raising of a soft real-time process; no effect on any other.
    pub(super) fn end_soft_real_time(&mut self) {
        if self.state == RaisingState::SoftRealTime {
            self.state = RaisingState::None;
        }
    }
}

/// Queues that began to send requests shortly after each other.
#[derive(Debug, Default)]
pub(super) struct Burst {
    /// Queues of the burst while it is small. The members of a large one are marked instead.
    members: Vec<QueueId>,
    /// Time of the last member.
    last: Option<Time>,
    /// True once the burst has [`LARGE_BURST`] queues.
    is_large: bool,
}

impl Burst {
    /// Removes a queue that is gone.
    pub(super) fn forget(&mut self, id: QueueId) {
        self.members.retain(|&member| member != id);
    }
}

impl Bfq {
    /// Adds a new queue to the burst, or begins another one if the last queue is too long ago. The
    /// queues of a large burst are marked with `is_in_large_burst`: their processes
    /// probably belong to one service that starts, so none of them is raised.
    pub(super) fn add_to_burst(&mut self, now: Time, id: QueueId) {
        let burst = &mut self.burst;
        let is_member = burst.last.is_some_and(|last| now <= last + BURST_GAP);
        burst.last = Some(now);
        if !is_member {
            burst.members.clear();
            burst.is_large = false;
        }
        burst.members.push(id);
        burst.is_large |= burst.members.len() >= LARGE_BURST;
        if burst.is_large {
            for member in burst.members.drain(..) {
                self.queues[member].raising.is_in_large_burst = true;
            }
        }
    }

    /// Raises the weight of a queue without requests that gets one, if its process is interactive
    /// or soft real-time. This needs `low_latency`, a process of the default priority, and no large
    /// burst. A raising that is over ends first. An interactive process does not become soft
    /// real-time before its time is over. Returns true if the queue is raised.
    pub(super) fn update_raising(&mut self, now: Time, id: QueueId) -> bool {
        let interactive_time = self.interactive_time();
        let queue = &mut self.queues[id];
        // Without `empty_since` it has requests in the device, or never had one. The latter counts
        // as a long idle time.
        let is_idle_for = |time: Time| queue.empty_since.is_none_or(|since| since + time <= now);
        let is_idle_long = queue.in_device == 0 && is_idle_for(IDLE_TIME_MIN);
        // After a long pause, the process no longer belongs to the burst in which it began.
        if !queue.is_new && queue.empty_since.is_some() && is_idle_for(BURST_MEMORY) {
            queue.raising.is_in_large_burst = false;
        }
        let may_rise = self.tunables.low_latency && queue.has_default_priority();
        let may_be_soft_real_time = queue.in_device == 0 && !queue.is_totally_seeky();
        let raising = &mut queue.raising;
        raising.end_if_over(now);
        if may_rise && !raising.is_in_large_burst {
            if is_idle_long {
                raising.state = RaisingState::Interactive;
                raising.until = now + interactive_time;
                raising.service = 0;
            } else if may_be_soft_real_time
                && raising.state != RaisingState::Interactive
                && now > raising.soft_real_time_from
            {
                raising.state = RaisingState::SoftRealTime;
                raising.until = now + SOFT_REAL_TIME;
            }
        }
        // `on_empty` computes the rate of the process from here.
        raising.backlogged_since = now;
        raising.backlog_service = 0;
        raising.is_raised()
    }

    /// Time that a large program takes to start on this device: the time at the reference rate,
    /// scaled by the estimated rate of the device. It is kept within `INTERACTIVE_TIME`.
    fn interactive_time(&self) -> Time {
        let kind = usize::from(!self.is_rotational);
        let reference = REFERENCE_RATE[kind] * REFERENCE_START[kind].ns();
        let [least, most] = INTERACTIVE_TIME;
        Time(reference / self.peak_rate.rate()).clamp(least, most)
    }
}

#[cfg(test)]
mod tests {
    use super::super::BfqTunables;
    use super::*;
    use crate::request::RequestTable;
    use crate::scheduler::testing::{caps, read};
    use crate::scheduler::{Dispatch, Scheduler};

    /// Factors of a process after each of its requests of 4 KiB: a service of 8 ms, and 50 ms to
    /// think. Its first `near` requests are in sequence, the others far apart.
    fn factors(near: u64, count: u64) -> Vec<u64> {
        let mut bfq = Bfq::new(&caps(), BfqTunables::default());
        let mut requests = RequestTable::default();
        let factor_after = |nth| {
            let start = if nth < near { nth * 8 } else { nth * 100_000 };
            let now = Time::from_ms(58 * nth);
            let request = requests.open(read(start, 8));
            bfq.insert(now, request, &mut requests);
            assert_eq!(bfq.dispatch(now, &requests), Dispatch::Request(request));
            bfq.complete(now + Time::from_ms(8), request, &requests);
            let (_, &id) = bfq.processes.first_key_value().expect("one process");
            bfq.queues[id].raising.factor()
        };
        (0..count).map(factor_after).collect()
    }

    /// 8 sectors in 58 ms are a low rate. The pause is longer than 8 + 4 ms, also after 20 ms of
    /// idling. Thus a process is soft real-time when it is not interactive any more, after 10.5 s:
    /// from request 182 on. But if its last 32 requests were all far, it is not: it may only be
    /// slow because of the seeks.
    #[test]
    fn process_with_far_requests_only_is_not_soft_real_time() {
        let near = factors(300, 300);
        assert_eq!([near[181], near[182], near[299]], [30, 3_000, 3_000]);
        let far = factors(0, 300);
        assert_eq!([far[181], far[182], far[299]], [30, 1, 1]);
        // It reads far from request 300 on: the 32nd such request ends the raising.
        let changing = factors(300, 400);
        assert_eq!([changing[330], changing[331], changing[399]], [3_000, 1, 1]);
    }
}
