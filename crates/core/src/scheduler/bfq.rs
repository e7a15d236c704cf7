//! `bfq`: budget fair queueing, as in Linux since 4.12.
//!
//! How it works: each process that waits for its requests has its own queue. One queue is served at
//! a time, until it has got its *budget* in sectors, its time is over, or it has no request. The
//! share of a queue is thus one of the sectors, and not of the time, unless it is slow: then it is
//! charged by time. Virtual times decide which queue is next. If the queue in service runs empty
//! and its next request is likely to come soon and close, the device is kept *idle* for it.
//!
//! A program that starts, and one that reads little and regularly, get a larger share for a while
//! (`low_latency`). It suits disks and other slow devices on which a person waits. On fast devices
//! it costs processor time.
//!
//! One topic per file:
//!
//! - `queue`: a queue and the statistics of its process; `processes`: the queue of each process;
//! - `service_trees`: the choice of the next queue by virtual times (B-WF2Q+);
//! - `budgets`: the budget of a queue by feedback, and the charge for slow service; `peak_rate`:
//!   the rate of the device, from which the largest budget follows;
//! - `activation`: a queue gets a request, and may end the service of another one;
//! - `idling`: the decision to wait for a queue's next request;
//! - `injection`: requests of other queues meanwhile;
//! - `merging`: one queue for processes that begin together;
//! - `raising`: interactive and soft real-time processes, and bursts of new processes.
//!
//! Longest wait: of a request in a queue of weight `w`, where the weights of the busy queues of its
//! class have the sum `W`. Before the queue has got its budget `B`, the others get at most `B W /
//! w` sectors, and one largest budget. Raised weights count as such: of an interactive process for
//! up to 25 s, of a soft real-time one for as long as it reads at its low rate. A real-time process
//! starves all others by design; the idle class is served once in 200 ms.
//!
//! Source: Linux's `Documentation/block/bfq-iosched.rst`, and P. Valente and F. Checconi, "High
//! Throughput Disk Scheduling with Fair Bandwidth Distribution" (IEEE Transactions on Computers,
//! 2010), P. Valente and M. Andreolini, "Improving Application Responsiveness with the BFQ Disk I/O
//! Scheduler" (SYSTOR 2012). Constants are the kernel's.
//!
//! Omitted: groups; merging of queues by the places of their requests; the raising of asynchronous
//! queues. A process that is raised as interactive does not become soft real-time before that ends.
//! An arrival may end a service although a third queue is next. The queue with the smallest of
//! different weights is idled for as well. Think times are measured during idling, too. A burst may
//! begin while other queues are busy.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::requests::WaitingRequest;
use super::seek_order::{nearest_to_head, next_after_merge, request_after};
use super::{Dispatch, Inserted, Scheduler};
use crate::request::{Class, DeviceCaps, ProcessId, RequestId, RequestTable};
use crate::unit::Time;

mod activation;
mod budgets;
mod idling;
mod injection;
mod merging;
mod peak_rate;
mod processes;
mod queue;
mod raising;
mod service_trees;
mod tunables;

pub use tunables::BfqTunables;

use budgets::EndReason;
use injection::ServiceMeasurement;
use merging::GroupStart;
use peak_rate::PeakRate;
use processes::AsyncQueues;
use queue::{BfqQueues, ObservationRules, is_far_from_head};
use raising::Burst;
use service_trees::ServiceTrees;

/// Identifies a queue; reused when the queue is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct QueueId(u32);

/// The scheduler `bfq`.
///
/// A queue is *busy* if it has queued requests or is in service. It is *raised* while its weight is
/// larger, because its process is interactive or soft real-time. A *burst* is a number of processes
/// that begin together.
///
/// Invariants:
///
/// 1. `queued` is the number of requests in all queues together.
/// 2. `idle_until` is set only while the queue in service has no queued request.
/// 3. Every queue in the trees has requests, except the one in service.
#[derive(Debug)]
pub struct Bfq {
    /// Times, budgets and switches of the policy.
    tunables: BfqTunables,
    /// True if the device has a moving head.
    is_rotational: bool,
    /// True if the device orders several requests itself.
    has_queueing: bool,
    /// Largest request that merging may produce.
    request_sectors_max: u32,

    /// All queues, with and without requests.
    queues: BfqQueues,
    /// Queue of the synchronous requests of each process.
    processes: BTreeMap<ProcessId, QueueId>,
    /// The first queue of the present group. Queues that are created soon after it merge with it.
    group_start: Option<GroupStart>,
    async_queues: AsyncQueues,
    /// The busy queues by virtual times, with the budget and the service of each.
    trees: ServiceTrees,
    /// Processes that have begun together, which are not raised.
    burst: Burst,
    /// Number of requests in all queues.
    queued: usize,

    /// Number of busy queues.
    busy: u32,
    /// Number of busy queues with a raised weight.
    busy_raised: u32,
    /// Number of other busy queues by class and weight.
    busy_plain: BTreeMap<(Class, u64), u32>,
    /// Number of busy queues of each class.
    busy_by_class: [u32; 3],

    /// The queue whose requests are sent now; `None` between two services.
    in_service: Option<QueueId>,
    /// Time until which the device is kept idle for the queue in service.
    idle_until: Option<Time>,
    /// Number of services so far; after a few, the largest budget follows from `peak_rate`.
    services: u32,
    /// Estimated rate of the device for sequential requests.
    peak_rate: PeakRate,
    /// Measurement of a service time, for the limit of injection.
    measurement: ServiceMeasurement,
    /// Number of turns of queues so far. An activation of a queue is a turn, and the end of its
    /// service with requests left.
    turns: u64,

    /// Queues of the requests in the device, by identifier of the request.
    sent: Vec<Option<QueueId>>,
    /// Number of requests in the device.
    in_device: u32,
    /// The sector after the last sent request: the assumed position of the head.
    head: u64,
}

impl Bfq {
    /// Creates the scheduler for a device with these properties.
    pub fn new(caps: &DeviceCaps, tunables: BfqTunables) -> Bfq {
        Bfq {
            tunables,
            is_rotational: caps.is_rotational,
            has_queueing: Bfq::device_queues(caps.depth_max),
            request_sectors_max: caps.request_sectors_max,
            queues: BfqQueues::default(),
            processes: BTreeMap::new(),
            group_start: None,
            async_queues: AsyncQueues::new(),
            trees: ServiceTrees::default(),
            burst: Burst::default(),
            queued: 0,
            busy: 0,
            busy_raised: 0,
            busy_plain: BTreeMap::new(),
            busy_by_class: [0; 3],
            in_service: None,
            idle_until: None,
            services: 0,
            peak_rate: PeakRate::new(caps.is_rotational),
            measurement: ServiceMeasurement::default(),
            turns: 0,
            sent: Vec::new(),
            in_device: 0,
            head: 0,
        }
    }

    /// Merges the new request with an adjacent request of the queue of its process, or of its
    /// priority if it is asynchronous. Returns `None` if there is no such queue yet, or no request
    /// there can be merged with it.
    fn merge_into_queue(
        &mut self,
        request: RequestId,
        requests: &mut RequestTable,
    ) -> Option<Inserted> {
        let id = self.find_queue(&requests[request])?;
        let queue = &mut self.queues[id];
        let merged = queue.requests.merge(request, requests, self.request_sectors_max)?;
        // The new request may have closed the gap between two queued requests, now one.
        self.queued -= usize::from(merged.absorbed.is_some());
        // Under its new key, the grown request may come before the next one, or be it.
        if merged.has_changed_key() {
            let back_seek = self.tunables.back_seek();
            queue.next = next_after_merge(queue.next, &merged, self.head, back_seek);
        }
        Some(Inserted::Merged { into: merged.into, with: merged.absorbed })
    }

    /// Adds the request to the queue `id`, and updates its statistics and its next request. A queue
    /// without requests becomes busy. If the device is kept idle for the queue, the idle time ends.
    /// The statistics decide about idling and weight raising.
    fn enqueue(&mut self, now: Time, id: QueueId, request: RequestId, requests: &RequestTable) {
        // Before the request is queued: a measurement begins only if the queue has none.
        self.measure_arrival(now, id);
        let rules = ObservationRules {
            slice_idle: self.tunables.slice_idle,
            is_rotational: self.is_rotational,
        };
        let queue = &mut self.queues[id];
        queue.observe(now, &requests[request], &rules);
        // Requests that are all far apart are not the pattern of a soft real-time process, such as
        // a player.
        if queue.is_totally_seeky() {
            queue.raising.end_soft_real_time();
        }
        let key = queue.requests.insert(WaitingRequest { id: request, arrived: now }, requests);
        let back_seek = self.tunables.back_seek();
        queue.next = nearest_to_head(queue.next, Some(key), self.head, back_seek);
        self.queued += 1;
        if !queue.is_busy {
            self.activate(now, id, requests);
        } else if self.in_service == Some(id) {
            // No effect if the device is not kept idle.
            self.idle_until = None;
        }
    }

    /// Charge for the next request of the queue, in sectors; 0 without one.
    fn next_charge(&self, id: QueueId, requests: &RequestTable) -> u64 {
        let queue = &self.queues[id];
        let next = queue.next.and_then(|key| queue.requests.waiting(key));
        next.map_or(0, |waiting| self.charge(id, requests[waiting.id].sectors))
    }

    /// Puts the next queue in service and sets the end of its time. Its first request is the oldest
    /// if that one has waited for `fifo_expire` or longer. Raises a smaller budget to the charge of
    /// the first request. Returns `None` if no queue has requests.
    fn begin_service(&mut self, now: Time, requests: &RequestTable) -> Option<QueueId> {
        let id = self.trees.select(now)?;
        self.in_service = Some(id);
        self.services = self.services.saturating_add(1);
        let queue = &mut self.queues[id];
        // The factor is 1, or larger for an interactive process.
        let time = Time(self.tunables.timeout_sync.ns() * queue.raising.time_factor());
        (queue.service_start, queue.service_end) = (now, now + time);
        // The oldest request goes first if it has waited too long.
        let expire = self.tunables.fifo_expire(queue.is_sync);
        if let Some((key, oldest)) = queue.requests.oldest(requests)
            && oldest.arrived + expire <= now
        {
            queue.next = Some(key);
        }
        // A smaller budget would end the service before its first request. A larger one stays.
        let first_charge = self.next_charge(id, requests);
        self.trees.raise_budget_to(id, first_charge);
        Some(id)
    }

    /// Sends the next request of the queue, in service or not, charges it, and returns it. The
    /// queue must have one. Ends the service of a queue of the idle class if other queues are busy.
    /// A queue that runs empty stays in the trees: the caller handles it.
    fn send(&mut self, now: Time, id: QueueId, requests: &RequestTable) -> RequestId {
        let charge = self.next_charge(id, requests);
        let queue = &mut self.queues[id];
        let key = queue.next.expect("the queue has a request");
        queue.next = request_after(&queue.requests, key, self.tunables.back_seek());
        let WaitingRequest { id: request_id, .. } =
            queue.requests.remove(key).expect("next is among the requests");
        let request = &requests[request_id];
        queue.in_device += 1;
        // The service counts for the raised weight, which may end by it, and for the virtual times.
        queue.raising.on_service(charge);
        queue.raising.end_if_over(now);
        self.trees.serve(id, charge);
        // A request far from the head is no evidence of the rate for sequential ones.
        let is_far = is_far_from_head(self.head, request, self.is_rotational);
        self.peak_rate.on_dispatch(now, request.sectors.into(), is_far, self.in_device);
        self.queued -= 1;
        self.in_device += 1;
        self.head = request.end();
        let index = request_id.0 as usize;
        if index >= self.sent.len() {
            self.sent.resize(index + 1, None);
        }
        self.sent[index] = Some(id);
        // For the limit of requests that are injected into idle time.
        self.measure_dispatch(id, request_id);
        // A queue of the idle class sends one request at a time next to others.
        let is_idle_class = self.queues[id].priority.class == Class::Idle;
        if is_idle_class && self.busy > 1 && self.in_service == Some(id) {
            self.end_service(now, id, EndReason::Exhausted);
        }
        request_id
    }

    /// Returns true if the time of the queue in service is over, and the device is neither kept
    /// idle for it nor has to be. In the idle cases the end of the idle time ends the service.
    fn is_time_over(&self, now: Time, id: QueueId) -> bool {
        self.idle_until.is_none() && self.queues[id].service_end <= now && !self.must_idle(id)
    }
}

impl Scheduler for Bfq {
    /// Merges the request with a neighbour of its queue, or adds it to its queue.
    fn insert(&mut self, now: Time, id: RequestId, requests: &mut RequestTable) -> Inserted {
        self.end_expired_idling(now);
        if let Some(merged) = self.merge_into_queue(id, requests) {
            return merged;
        }
        let queue = self.queue_for(now, &requests[id]);
        self.enqueue(now, queue, id, requests);
        Inserted::Queued
    }

    /// Sends a request of the queue in service. Ends its service and begins another one if its
    /// budget or its time is used up, or if it has no request and idling for it does not pay.
    /// During idling, returns the end of the idle time. While the queue in service has no request,
    /// a request of another queue may be *injected*. Returns `Nothing` if no queue has a request,
    /// or while the completion of a request of the queue in service decides about idling.
    fn dispatch(&mut self, now: Time, requests: &RequestTable) -> Dispatch {
        self.end_expired_idling(now);
        // One request at a time, so that the device cannot reorder any.
        if self.tunables.strict_guarantees && self.in_device > 0 {
            return Dispatch::Nothing;
        }
        loop {
            let Some(id) = self.in_service.or_else(|| self.begin_service(now, requests)) else {
                return Dispatch::Nothing;
            };
            let queue = &self.queues[id];
            let reason = if self.is_time_over(now, id) {
                EndReason::Timeout
            } else if queue.next.is_some() {
                if self.next_charge(id, requests) <= self.trees.budget_left(id) {
                    return Dispatch::Request(self.send(now, id, requests));
                }
                EndReason::Exhausted
            } else if let Some(until) = self.idle_until {
                let injected = self.inject(now, id, requests).map(Dispatch::Request);
                return injected.unwrap_or(Dispatch::WaitUntil(until));
            } else if queue.in_device > 0 && self.is_idling_better(id) {
                let injected = self.inject(now, id, requests).map(Dispatch::Request);
                return injected.unwrap_or(Dispatch::Nothing);
            } else {
                EndReason::NoMoreRequests
            };
            self.end_service(now, id, reason);
        }
    }

    /// Updates the statistics. If the request was the last of the queue in service, decides between
    /// idling for it and the end of its service. A service whose time is over ends here too.
    fn complete(&mut self, now: Time, id: RequestId, _requests: &RequestTable) {
        self.end_expired_idling(now);
        let sent = self.sent[id.0 as usize].take();
        let queue_id = sent.expect("only what was sent completes");
        self.measure_completion(now, queue_id, id);
        self.peak_rate.on_completion(now);
        self.in_device -= 1;
        let slice_idle = self.tunables.slice_idle;
        let queue = &mut self.queues[queue_id];
        queue.in_device -= 1;
        queue.last_end = now;
        // It has no request any more, queued or in the device, and is not in service.
        if queue.is_empty() && !queue.is_busy {
            // The pause from now on decides about weight raising at the next request.
            queue.empty_since = Some(now);
            queue.raising.on_empty(now, slice_idle);
        }
        if self.in_service != Some(queue_id) {
            self.remove_if_unused(queue_id);
            return;
        }
        let is_empty = self.queues[queue_id].is_empty();
        if is_empty && self.is_idling_better(queue_id) {
            self.begin_idling(now, queue_id);
        } else if self.is_time_over(now, queue_id) {
            self.end_service(now, queue_id, EndReason::Timeout);
        } else if is_empty {
            self.end_service(now, queue_id, EndReason::NoMoreRequests);
        }
    }

    /// Number of requests that are not in the device.
    fn queued(&self) -> usize {
        self.queued
    }

    /// Forgets an ended process, and removes its queue once the queue is empty.
    fn process_ended(&mut self, now: Time, process: ProcessId) {
        self.end_expired_idling(now);
        self.forget_process(now, process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Need, Op, Priority, Request};

    /// Processes of all classes start, read close to each other and far apart, write, and end, with
    /// requests still queued and in the device. After the last completion only the asynchronous
    /// queues are left.
    #[test]
    fn ended_processes_leave_no_state() {
        let caps = super::super::testing::caps();
        let mut bfq = Bfq::new(&caps, BfqTunables::default());
        let mut requests = RequestTable::default();
        let mut in_device: Vec<RequestId> = Vec::new();
        let mut random = 1;
        for step in 0..60_000u64 {
            let now = Time::from_us(step * 300);
            let draw = crate::splitmix::next(&mut random) >> 33;
            // Three processes at a time, replaced after 12,000 steps.
            let process = ProcessId((step / 12_000 * 3 + draw % 3) as u32);
            let is_near = step / 6_000 % 2 == 0;
            let page = if is_near { step * 3 + draw % 3 } else { draw % 1_000_000_000 };
            let classes = [Class::BestEffort, Class::BestEffort, Class::RealTime, Class::Idle];
            if bfq.queued() < 16 && in_device.len() < 4 {
                let is_sync = !draw.is_multiple_of(50);
                let new = requests.open(Request {
                    op: if is_sync { Op::Read } else { Op::Write },
                    start: page * 8,
                    sectors: 8,
                    process,
                    priority: Priority { class: classes[process.0 as usize % 4], level: 4 },
                    is_sync,
                    need: Need::Demand,
                });
                bfq.insert(now, new, &mut requests);
            }
            if in_device.len() < 4
                && let Dispatch::Request(request) = bfq.dispatch(now, &requests)
            {
                in_device.push(request);
            }
            if !draw.is_multiple_of(4) && !in_device.is_empty() {
                let request = in_device.remove(0);
                bfq.complete(now, request, &requests);
                requests.close_all(request);
            }
            if step % 12_000 == 11_999 {
                (0..3).for_each(|back| {
                    bfq.process_ended(now, ProcessId(process.0 / 3 * 3 + back));
                });
            }
        }
        let mut now = Time::from_s(60);
        while bfq.queued() > 0 || !in_device.is_empty() {
            now += Time::from_ms(10);
            match bfq.dispatch(now, &requests) {
                Dispatch::Request(request) => in_device.push(request),
                _ => in_device.drain(..).for_each(|request| {
                    bfq.complete(now, request, &requests);
                    requests.close_all(request);
                }),
            }
        }
        bfq.end_expired_idling(now + Time::from_s(1));
        assert!(bfq.processes.is_empty() && bfq.in_service.is_none());
        assert_eq!(bfq.queues.count(), bfq.async_queues.len());
        assert_eq!((bfq.busy, bfq.busy_raised, bfq.in_device), (0, 0, 0));
        assert!(bfq.busy_plain.is_empty());
    }
}
