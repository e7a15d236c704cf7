//! Budgets: the service that a queue may get in one go, by feedback.
//!
//! A queue that uses up its budget gets a larger one, for throughput. A queue that leaves the
//! device idle gets a smaller one, since a small budget is an early finish and thus a low latency.
//! A queue that is slow is charged by time: it cannot take more of the device than a fast one. A
//! queue is *seeky* if most of its requests are far apart. It is *raised* if its weight is larger
//! for a while.

use super::tunables::SEEKY_IDLE;
use super::{Bfq, QueueId};
use crate::unit::Time;

/// Largest budget until the peak rate is estimated, in sectors (8 MiB).
const DEFAULT_MAX_BUDGET: u64 = 16 * 1024;

/// The smallest budget is this part of the largest.
const MIN_BUDGET_DIVISOR: u64 = 32;

/// Number of services after which the estimated peak rate decides the largest budget. The kernel
/// has a decaying count that reaches its threshold, 194, then.
const SERVICES_MIN: u32 = 11;

/// Length from which a service can be slow. In shorter ones the rate varies too much.
const SLOW_SERVICE_MIN: Time = Time::from_ms(20);

/// Length below which a service shows nothing. It counts as `slice_idle` on a disk, for a seek, and
/// as [`SEEKY_IDLE`] elsewhere.
const SHORT_SERVICE: Time = Time::from_ms(1);

/// Charge of an asynchronous request, as a multiple of its sectors, while all weights are equal:
/// writes would take the device from reads, since they need not wait.
const ASYNC_CHARGE_FACTOR: u64 = 3;

/// Reason for the end of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndReason {
    /// The device idled for it, and no request came.
    TooIdle,
    /// Its time is over.
    Timeout,
    /// The next request exceeds its budget.
    Exhausted,
    /// It has no request, and the device does not idle for it.
    NoMoreRequests,
    /// Another queue takes its place.
    Preempted,
}

/// A service that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedService {
    /// Budget before it, in sectors.
    pub budget: u64,
    /// Charged service, in sectors.
    pub service: u64,
    /// True if requests of the queue are in the device.
    pub has_in_device: bool,
}

/// The budget after a service of a synchronous queue. `max` is the largest budget, in sectors. All
/// factors are the kernel's.
pub(super) fn budget_after(ended: EndedService, reason: EndReason, max: u64) -> u64 {
    let EndedService { budget, service, has_in_device } = ended;
    let min = max / MIN_BUDGET_DIVISOR;
    match reason {
        // Its requests are only late.
        EndReason::TooIdle if has_in_device => (2 * budget).min(max),
        EndReason::TooIdle if budget > 5 * min => budget - 4 * min,
        EndReason::TooIdle => min,
        // It could not use the budget in time, probably since it is new: it may have begun slowly.
        EndReason::Timeout => (2 * budget).min(max),
        EndReason::Exhausted => (4 * budget).min(max),
        EndReason::NoMoreRequests => service.max(min),
        EndReason::Preempted => budget,
    }
}

impl Bfq {
    /// Largest budget, in sectors.
    pub(super) fn max_budget(&self) -> u64 {
        match self.tunables.max_budget {
            0 if self.services < SERVICES_MIN => DEFAULT_MAX_BUDGET,
            0 => self.peak_rate.sectors_in(self.tunables.timeout_sync).max(MIN_BUDGET_DIVISOR),
            user => user,
        }
    }

    /// Budget of a queue whose weight is raised, in sectors: small, for a low latency.
    pub(super) fn raised_budget(&self) -> u64 {
        2 * (self.max_budget() / MIN_BUDGET_DIVISOR)
    }

    /// Budget of a new queue, in sectors.
    pub(super) fn first_budget(&self) -> u64 {
        2 * self.max_budget() / 3
    }

    /// Charge for a request of `sectors` sectors of the queue, in sectors. Asynchronous requests
    /// cost more while all weights are equal.
    pub(super) fn charge(&self, id: QueueId, sectors: u32) -> u64 {
        let queue = &self.queues[id];
        let is_equal = !queue.raising.is_raised() && !self.is_asymmetric();
        let factor = if !queue.is_sync && is_equal { ASYNC_CHARGE_FACTOR } else { 1 };
        u64::from(sectors) * factor
    }

    /// Sets the budget for the next service of the queue, whose service ends. An asynchronous queue
    /// always gets the largest, a raised one a small one, and any other follows the feedback of
    /// `budget_after`.
    pub(super) fn adjust_budget(&mut self, id: QueueId, reason: EndReason) {
        let max = self.max_budget();
        let raised_budget = self.raised_budget();
        let service = self.trees.service(id);
        let queue = &mut self.queues[id];
        let has_in_device = queue.in_device > 0;
        queue.next_budget = match (queue.is_sync, queue.raising.is_raised()) {
            (false, _) => max,
            // At least a sector, also if code sets a tiny tunable `max_budget`.
            (true, true) => raised_budget.max(1),
            (true, false) => {
                let ended = EndedService { budget: queue.next_budget, service, has_in_device };
                budget_after(ended, reason, max)
            }
        };
    }

    /// Charges the service of the queue by time if it was slow, or if it used at most two thirds of
    /// its budget in all its time. The charge is the share of the largest budget that belongs to
    /// the length of the service. It is never less than the sectors served. Weight-raised and
    /// asynchronous queues are not charged by time. A charge above the budget raises the budget to
    /// it. `until` is the end of the service, without the last idling.
    pub(super) fn charge_slow_service(&mut self, id: QueueId, reason: EndReason, until: Time) {
        let queue = &self.queues[id];
        if queue.raising.is_raised() || !queue.is_sync {
            return;
        }
        let max = self.max_budget();
        let mut length = until.since(queue.service_start);
        let is_slow = if length < SHORT_SERVICE {
            // Too short for a rate: a seeky queue counts as slow. On a disk at least one seek is
            // charged.
            length = if self.is_rotational { self.tunables.slice_idle } else { SEEKY_IDLE };
            queue.is_seeky()
        } else if length > SLOW_SERVICE_MIN {
            // Slow only below half of the peak rate: the outer zones of a disk are faster than the
            // inner ones, and the estimate is a mean of both.
            self.trees.service(id) < max / 2
        } else {
            // The rate varies too much: a seeky queue counts as slow here too.
            queue.is_seeky()
        };
        let is_budget_left = self.trees.budget_left(id) >= self.trees.budget(id) / 3;
        let is_time_wasted = reason == EndReason::Timeout && is_budget_left;
        if !is_slow && !is_time_wasted {
            return;
        }
        let timeout = self.tunables.timeout_sync;
        // In microseconds the product fits into 64 bits.
        let [length_us, timeout_us] = [length.min(timeout), timeout].map(|time| time.ns() / 1_000);
        let by_time = max * length_us / timeout_us;
        self.trees.raise_budget_to(id, by_time);
        self.trees.serve(id, by_time.saturating_sub(self.trees.service(id)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::BfqTunables;
    use super::super::queue::ObservationRules;
    use super::*;
    use crate::request::{DeviceCaps, Request, RequestTable};
    use crate::scheduler::Scheduler;
    use crate::scheduler::testing::{caps, read, write};

    /// The largest budget is 3,200 sectors, so that the smallest is 100.
    #[test]
    fn golden_budgets_by_the_end_of_the_service() {
        let after = |budget, service, reason| {
            budget_after(EndedService { budget, service, has_in_device: false }, reason, 3_200)
        };
        assert_eq!(after(800, 800, EndReason::Exhausted), 3_200, "four times");
        assert_eq!(after(900, 900, EndReason::Exhausted), 3_200, "at most the largest");
        assert_eq!(after(700, 300, EndReason::Timeout), 1_400, "twice");
        assert_eq!(after(800, 20, EndReason::TooIdle), 400, "four smallest less");
        assert_eq!(after(500, 20, EndReason::TooIdle), 100, "the smallest");
        assert_eq!(after(800, 260, EndReason::NoMoreRequests), 260, "its service");
        assert_eq!(after(800, 8, EndReason::NoMoreRequests), 100);
        assert_eq!(after(800, 8, EndReason::Preempted), 800);
        let in_device = EndedService { budget: 800, service: 20, has_in_device: true };
        assert_eq!(budget_after(in_device, EndReason::TooIdle, 3_200), 1_600);
    }

    /// Tunables without weight raising.
    fn plain(max_budget: u64, timeout_sync: Time) -> BfqTunables {
        BfqTunables { max_budget, timeout_sync, low_latency: false, ..BfqTunables::default() }
    }

    /// Charge for a service of one request, in sectors. Its queue is seeky.
    fn charged(
        caps: &DeviceCaps,
        tunables: BfqTunables,
        request: Request,
        length: Time,
        reason: EndReason,
    ) -> u64 {
        let mut bfq = Bfq::new(caps, tunables);
        let mut requests = RequestTable::default();
        let request = requests.open(request);
        bfq.insert(Time::ZERO, request, &mut requests);
        bfq.dispatch(Time::ZERO, &requests);
        let id = bfq.in_service.expect("the queue of the request");
        let rules = ObservationRules { slice_idle: Time::ZERO, is_rotational: true };
        for nth in 0..32 {
            bfq.queues[id].observe(Time::ZERO, &read(nth * 10_000, 8), &rules);
        }
        bfq.end_service(length, id, reason);
        bfq.trees.service(id)
    }

    /// The largest budget is 3,200 sectors for 125 ms. In 0.5 ms a seek shows nothing: on a disk
    /// the charge is for `slice_idle`, 8 ms: 3,200 × 8/125 = 204.8. Without a head it is for 2 ms:
    /// 51.2. A service of 100 ms is slow: 2,560. Three times the 8 sectors is the charge of an
    /// asynchronous request, however long it takes.
    #[test]
    fn golden_charges_by_time() {
        let disk = caps();
        let solid = DeviceCaps { is_rotational: false, ..caps() };
        let charged_in = |caps: &DeviceCaps, request, us, reason| {
            charged(caps, plain(3_200, Time::from_ms(125)), request, Time::from_us(us), reason)
        };
        let short = |caps, request| charged_in(caps, request, 500, EndReason::Preempted);
        assert_eq!((short(&disk, read(0, 8)), short(&solid, read(0, 8))), (204, 51));
        assert_eq!(charged_in(&disk, read(0, 8), 100_000, EndReason::TooIdle), 2_560);
        assert_eq!(short(&disk, write(0, 8)), 24);
        assert_eq!(charged_in(&disk, write(0, 8), 100_000, EndReason::NoMoreRequests), 24);
        assert_eq!(charged_in(&disk, write(0, 8), 125_000, EndReason::Timeout), 24);
    }

    /// The largest values of both tunables: half of the time is half of the budget.
    #[test]
    fn charge_by_time_does_not_overflow() {
        let largest = plain(1 << 30, Time::from_s(60));
        let half = charged(&caps(), largest, read(0, 8), Time::from_s(30), EndReason::TooIdle);
        assert_eq!(half, 1 << 29);
    }
}
