//! Injection: requests of other queues while the queue in service has none queued.
//!
//! During a service the device is idle, or nearly so, whenever the queue in service waits for its
//! process. Requests of other queues fill these holes, up to a limit on the requests in the device.
//! The limit follows from a measurement: the time of the first request of an empty queue, from its
//! arrival to its completion. The *baseline* is the newest such time without injected requests, or
//! a shorter one since, with or without them. A time with them of one and a half baselines or more
//! lowers the limit by one. A shorter one raises it by one, unless the limit already exceeds the
//! largest number of requests that the device has had.
//!
//! A queue is *raised* if its weight is larger for a while. The *turn* of a queue is the number of
//! its last activation, or of the last end of its service with requests left.
//!
//! Sources: P. Valente's descriptions of two changes in Linux. "block, bfq: inject other-queue I/O
//! into seeky idle queues on NCQ flash" is of 2018, and "block, bfq: tune service injection basing
//! on request service times" of 2019. Omitted: the injection of the same process's writes, and of
//! the queues that wake the queue in service.

use super::{Bfq, QueueId};
use crate::request::{RequestId, RequestTable};
use crate::unit::Time;

/// Time after which the measurements of a queue are dropped, since its requests may have changed.
const MEMORY: Time = Time::from_s(1);

/// Shortest time from a decrease of the limit to the next measurement.
const MEASUREMENT_GAP: Time = Time::from_ms(10);

/// Size from which a request is large on a device without a head, in sectors: 32 KiB. One of them
/// at a time is injected.
const LARGE_SECTORS: u32 = 2 * 32;

/// Limit of injection for a queue, by the service times of its first requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InjectionLimit {
    /// Number of requests in the device below which another one is injected.
    limit: u32,
    /// Service time without injected requests, or a shorter one since; `None` before the first
    /// measurement.
    baseline: Option<Time>,
    /// Last decrease of the limit, or the start of the measurements. `None` before the first
    /// request.
    lowered: Option<Time>,
}

/// A measured service time.
#[derive(Clone, Copy, Debug)]
struct MeasuredService {
    /// From the arrival of the request to its completion.
    time: Time,
    /// True if requests of other queues were injected.
    has_injected: bool,
    /// Number of requests in the device, the measured one included.
    in_device: u32,
    /// Largest number of requests in the device so far.
    in_device_max: u32,
}

impl InjectionLimit {
    /// Starts again if the measurements are old, with a limit of 1 for a process that thinks for
    /// long, and 0 otherwise: the former hardly notices one injected request.
    fn refresh(&mut self, now: Time, has_short_think_time: bool) {
        if self.lowered.is_none_or(|lowered| lowered + MEMORY <= now) {
            let limit = u32::from(!has_short_think_time);
            *self = InjectionLimit { limit, baseline: None, lowered: Some(now) };
        }
    }

    /// Updates the limit and the baseline by a measurement. Only a time with injected requests
    /// changes an existing limit, and only compared with a baseline. The first baseline needs a
    /// device without other requests at the completion, and raises the limit to 1 at least.
    fn update(&mut self, now: Time, measured: MeasuredService) {
        let MeasuredService { time, has_injected, in_device, in_device_max } = measured;
        if let Some(baseline) = self.baseline
            && has_injected
        {
            if 2 * time.ns() >= 3 * baseline.ns() {
                if self.limit > 0 {
                    self.limit -= 1;
                    self.lowered = Some(now);
                }
            } else if self.limit <= in_device_max {
                self.limit += 1;
            }
        }
        let is_alone = in_device == 1;
        match self.baseline {
            None if is_alone => {
                self.limit = self.limit.max(1);
                self.baseline = Some(time);
            }
            None => {}
            // With injected requests the time is an upper bound of the baseline, and without them
            // the baseline itself.
            Some(baseline) if time < baseline || !has_injected && is_alone => {
                self.baseline = Some(time);
            }
            Some(_) => {}
        }
    }
}

/// The measurement in progress, of the queue in service.
#[derive(Debug, Default)]
pub(super) struct ServiceMeasurement {
    /// Arrival of the measured request, until it is sent.
    arrived: Option<Time>,
    /// The measured request in the device, and its arrival.
    request: Option<(RequestId, Time)>,
    /// True if a request was injected since the device was empty.
    has_injected: bool,
    /// Largest number of requests in the device since the start.
    in_device_max: u32,
}

impl ServiceMeasurement {
    /// Ends the measurement without a result: the service of the queue ends.
    pub(super) fn cancel(&mut self) {
        (self.arrived, self.request) = (None, None);
    }
}

impl Bfq {
    /// Begins a measurement by a request that arrives at the queue `id`. Only a synchronous queue
    /// in service with none queued is measured, and only some time after its limit has fallen, or
    /// its measurements have started again. Drops measurements that are too old.
    pub(super) fn measure_arrival(&mut self, now: Time, id: QueueId) {
        let slice_idle = self.tunables.slice_idle;
        let queue = &mut self.queues[id];
        if !queue.is_sync || !queue.requests.is_empty() {
            return;
        }
        let has_short_think_time = queue.has_short_think_time(slice_idle);
        queue.injection.refresh(now, has_short_think_time);
        let InjectionLimit { baseline, lowered, .. } = queue.injection;
        // Requests in the device delay the measured one. The delay is of interest only if some of
        // them were injected, and a baseline shows its size.
        let is_measurable =
            self.in_device == 0 || baseline.is_some() && self.measurement.has_injected;
        let is_gap_over = lowered.is_none_or(|lowered| lowered + MEASUREMENT_GAP <= now);
        if self.in_service == Some(id) && is_measurable && is_gap_over {
            self.measurement.arrived = Some(now);
            // An empty device has no injected request any more.
            self.measurement.has_injected &= self.in_device > 0;
        }
    }

    /// Records the dispatch of `request` of the queue `id`. After the arrival that is measured, the
    /// first request of the queue in service to be sent is that request.
    pub(super) fn measure_dispatch(&mut self, id: QueueId, request: RequestId) {
        let measurement = &mut self.measurement;
        measurement.in_device_max = measurement.in_device_max.max(self.in_device);
        if self.in_service == Some(id)
            && let Some(arrived) = measurement.arrived.take()
        {
            measurement.request = Some((request, arrived));
        }
    }

    /// Ends the measurement if `request` of the queue `id` is the measured one, and updates the
    /// queue's limit by it. The completed request still counts in `in_device`.
    pub(super) fn measure_completion(&mut self, now: Time, id: QueueId, request: RequestId) {
        let measurement = &mut self.measurement;
        let Some((_, arrived)) = measurement.request.take_if(|(measured, _)| *measured == request)
        else {
            return;
        };
        let measured = MeasuredService {
            time: now.since(arrived),
            has_injected: measurement.has_injected,
            in_device: self.in_device,
            in_device_max: measurement.in_device_max,
        };
        self.queues[id].injection.update(now, measured);
    }

    /// Sends a request of another queue while the queue `served` has none queued. Returns `None` if
    /// none may be sent now.
    pub(super) fn inject(
        &mut self,
        now: Time,
        served: QueueId,
        requests: &RequestTable,
    ) -> Option<RequestId> {
        let id = self.queue_to_inject(now, served, requests)?;
        self.measurement.has_injected = true;
        let request = self.send(now, id, requests);
        // Only a queue in service stays in the trees without a queued request.
        if self.queues[id].requests.is_empty() {
            self.leave_trees(id);
        }
        Some(request)
    }

    /// The queue of which a request may be injected: the one with the latest turn, among the queues
    /// whose budget suffices. `None` also if the device has as many requests as the limit allows,
    /// or if injection would spoil the throughput of the queue `served`. `None` under
    /// `strict_guarantees`, and if only raised queues may be injected and there is no other one.
    fn queue_to_inject(
        &self,
        now: Time,
        served: QueueId,
        requests: &RequestTable,
    ) -> Option<QueueId> {
        let slice_idle = self.tunables.slice_idle;
        let queue = &self.queues[served];
        // Into the service of a raised process that sends its requests soon, only requests of other
        // raised queues are injected, and none of plain ones. With one raised queue, its own, there
        // are none.
        let allows_plain = !queue.raising.is_raised() || !queue.has_short_think_time(slice_idle);
        if self.tunables.strict_guarantees
            || self.does_idling_raise_throughput(served)
            || !allows_plain && self.busy_raised <= 1
        {
            return None;
        }
        let is_long_idle = self.idle_until.is_some() && queue.idling_start + slice_idle <= now;
        // Without a measurement, one request is tried in a long hole.
        let is_trial = queue.injection.limit == 0 && queue.injection.baseline.is_none();
        let limit = if is_trial && is_long_idle { 1 } else { queue.injection.limit };
        if self.in_device >= limit {
            return None;
        }
        let others = self.queues.iter().filter(|(id, other)| {
            *id != served && (allows_plain || other.raising.is_raised()) && other.next.is_some()
        });
        let fitting = others.filter(|(id, other)| {
            let next = other.next.and_then(|key| other.requests.waiting(key));
            let is_large =
                next.is_some_and(|waiting| requests[waiting.id].sectors >= LARGE_SECTORS);
            let is_one_too_many = !self.is_rotational && is_large && self.in_device > 0;
            !is_one_too_many && self.next_charge(*id, requests) <= self.trees.budget_left(*id)
        });
        fitting.max_by_key(|(_, other)| other.turn).map(|(id, _)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{DeviceCaps, Priority, ProcessId, Request};
    use crate::scheduler::testing::{SchedulerBench, caps, read};
    use crate::scheduler::{BfqTunables, Dispatch};

    /// A baseline of 4 ms: with injected requests 6 ms are too long, and 5.9 ms are not. The limit
    /// is at most one above the largest number of requests in the device.
    #[test]
    fn golden_limits_by_measured_times() {
        let mut limit = InjectionLimit::default();
        let mut after = |us, has_injected, in_device| {
            let time = Time::from_us(us);
            let measured = MeasuredService { time, has_injected, in_device, in_device_max: 2 };
            limit.update(Time::ZERO, measured);
            (limit.limit, limit.baseline.map_or(0, |time| time.ns() / 1_000))
        };
        assert_eq!(after(4_000, false, 2), (0, 0), "not alone: no baseline");
        assert_eq!(after(4_000, false, 1), (1, 4_000), "the baseline allows one");
        assert_eq!(after(5_900, true, 2), (2, 4_000));
        assert_eq!(after(5_900, true, 2), (3, 4_000));
        assert_eq!(after(5_900, true, 2), (3, 4_000), "one above the largest number");
        assert_eq!(after(6_000, true, 2), (2, 4_000));
        assert_eq!(after(3_000, true, 2), (3, 3_000), "a shorter time is a better baseline");
        assert_eq!(after(5_000, false, 1), (3, 5_000), "without injected requests it may rise");
    }

    /// Process 0 has the higher level, so that a device without a head is kept idle for it. Its
    /// request at 11 ms is measured: 1 ms. From then on a request of process 1 is sent in the hole
    /// after it, and a second one only while the first is not in the device.
    #[test]
    fn hole_of_a_measured_queue_is_filled_by_another_queue() {
        let device = DeviceCaps { is_rotational: false, ..caps() };
        let tunables = BfqTunables { low_latency: false, ..BfqTunables::default() };
        let mut bench = SchedulerBench::new(Bfq::new(&device, tunables));
        let ms = Time::from_ms;
        let priority = Priority { level: 0, ..Priority::default() };
        for nth in 0..3 {
            let other = Request { process: ProcessId(1), ..read(1_000_000 * (nth + 1), 8) };
            bench.insert(ms(0), other);
        }
        let mut serve = |at: u64, id: u32| {
            bench.insert(ms(at), Request { priority, ..read(8_000 * at, 8) });
            assert_eq!(bench.dispatch(ms(at)), Dispatch::Request(RequestId(id)), "at {at} ms");
            bench.complete(ms(at + 1), RequestId(id));
            bench.dispatch(ms(at + 1))
        };
        assert_eq!(serve(1, 3), Dispatch::WaitUntil(ms(10)));
        assert_eq!(serve(6, 4), Dispatch::WaitUntil(ms(15)));
        let Dispatch::Request(injected) = serve(11, 5) else { panic!("a request is injected") };
        assert!(injected.0 < 3);
        assert_eq!(bench.dispatch(ms(12)), Dispatch::WaitUntil(ms(20)));
        bench.complete(ms(13), injected);
        assert!(matches!(bench.dispatch(ms(13)), Dispatch::Request(_)));
    }
}
