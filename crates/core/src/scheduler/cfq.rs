//! `cfq`: complete fair queueing, as in Linux around 2.6.34.
//!
//! How it works: each process that waits for its requests has its own queue, and the queues get
//! time slices in turn. The active queue may use the device for its *slice*; its requests go in
//! sector order. If it runs empty and its next request is likely to come soon and close, the device
//! is kept *idle* for it. On one spindle this is faster, since a request of another process would
//! move the head away and back. Processes that seek anyway are served together, several requests at
//! once. Requests without a waiting process are served in the same way.
//!
//! One topic per file:
//!
//! - `queue`: a queue and its state; `seek_order`: the order of service inside it;
//! - `seek`: two detectors of random access ([`verdict_table`]);
//! - `trees`: the choice of the next queue; `slices`: the length of its slice; `turns`: the end of
//!   one slice and the start of the next;
//! - `idling`: the decision to wait for a queue's next request; `depth`: the number of requests in
//!   the device;
//! - `preemption`: the queues that may interrupt a slice; `cooperators`: processes with
//!   neighbouring requests; `processes`: the queue of each process.
//!
//! Source: the discussion of CFQ's seek detection in 2010 (*source D*), and the description of
//! 2.6.33 and 2.6.34. `seeky=mean` is the detector of the former and `seeky=history` of the latter.
//! All else is the same for both, so that a comparison shows the detector alone.
//!
//! All decisions use time in jiffies of 1 ms. There is one group (the root): `group_idle`, weights
//! and the charge of groups have no effect and are omitted. Two features of the kernel don't exist
//! here. One is plugging: a request is sent as soon as its queue may send. The other is requests
//! that are flagged as metadata or as not idled for.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::requests::WaitingRequest;
use super::seek_order::{nearest_to_head, next_after_merge, request_after};
use super::{Dispatch, Inserted, Scheduler};
use crate::decision::{Decision, DecisionLog};
use crate::request::{Class, DeviceCaps, ProcessId, RequestId, RequestTable};
use crate::unit::Time;

mod cooperators;
mod depth;
mod idling;
mod preemption;
mod processes;
mod queue;
mod seek;
mod slices;
mod trees;
mod tunables;
mod turns;

pub use seek::{SeekVerdict, Seekiness, VERDICT_REQUESTS, verdict_table};
pub use tunables::{CfqTunables, KEYS};

use cooperators::QueuesBySector;
use depth::QueueingDetector;
use idling::ThinkTime;
use processes::{AsyncQueues, CfqProcess};
use queue::CfqQueues;
use trees::{ServiceTrees, TreeKind};
use tunables::{HZ, Jiffies, jiffies, time_of};

/// Identifies a queue; reused when the queue is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct QueueId(u32);

/// The policy `cfq` for one device.
///
/// A *think time* is the time from a completion to the next request of its process. A queue is
/// *seeky* if its requests are far apart. It has an *idle window* while idling for it pays.
///
/// Invariants:
///
/// 1. `queued` is the number of requests in all queues together.
/// 2. At most one queue is active; idling is always for the active queue.
/// 3. Every queue in the trees except the active one has requests.
#[derive(Debug)]
pub struct Cfq {
    /// Lengths of slices, deadlines and limits.
    tunables: CfqTunables,
    /// True if the device has a moving head.
    is_rotational: bool,
    /// Largest request that merging may produce.
    request_sectors_max: u32,

    /// All queues, with and without requests.
    queues: CfqQueues,
    /// The processes that have sent a request and have not ended.
    processes: BTreeMap<ProcessId, CfqProcess>,
    /// The shared queues of asynchronous requests, by priority.
    async_queues: AsyncQueues,
    /// The queues with requests, and the active one, by class and kind.
    trees: ServiceTrees,
    /// The queues that may be found as close cooperators.
    by_sector: QueuesBySector,
    /// Number of requests in all queues.
    queued: usize,

    /// The tree whose queues get slices now.
    serving: ServedTree,
    /// Mean number of busy best-effort queues: with requests, or active.
    average_best_effort: u32,
    /// Mean number of busy real-time queues.
    average_real_time: u32,
    /// The queue that has the present slice.
    active: Option<QueueId>,
    /// The process whose request was sent last in this slice; `None` before its first request. Its
    /// think time decides about idling.
    active_process: Option<ProcessId>,
    /// Time until which the device is kept idle for the active queue; `None` without idling.
    idle_until: Option<Jiffies>,

    /// Requests in the device, by identifier.
    sent: Vec<Option<SentRequest>>,
    /// Number of synchronous requests in the device.
    in_device_sync: u32,
    /// Number of asynchronous requests in the device.
    in_device_async: u32,
    /// The sector after the last sent request: the assumed position of the head.
    head: u64,
    /// Last time at which a synchronous request completed late: `fifo_expire_sync` or more after
    /// its arrival.
    last_late_sync: Jiffies,
    /// Shows if the device queues requests internally.
    queueing: QueueingDetector,

    /// Log of the decisions and their reasons, for diagnosis. The caller enables and drains it.
    log: DecisionLog,
}

/// The served tree, and the end of its share.
#[derive(Clone, Copy, Debug)]
struct ServedTree {
    /// Priority class of its queues.
    class: Class,
    /// Kind of its queues: asynchronous, or synchronous with or without idling.
    kind: TreeKind,
    /// End of its share. `None`: another tree must be chosen.
    expires: Option<Jiffies>,
}

/// A request in the device.
#[derive(Clone, Copy, Debug)]
struct SentRequest {
    /// The queue that it was sent from.
    queue: QueueId,
    /// Time of its arrival in the scheduler.
    arrived: Jiffies,
}

impl Cfq {
    /// Creates the policy for one device.
    pub fn new(caps: &DeviceCaps, tunables: CfqTunables) -> Cfq {
        Cfq {
            tunables,
            is_rotational: caps.is_rotational,
            request_sectors_max: caps.request_sectors_max,
            queues: CfqQueues::default(),
            processes: BTreeMap::new(),
            async_queues: AsyncQueues::new(),
            trees: ServiceTrees::default(),
            by_sector: QueuesBySector::new(),
            queued: 0,
            serving: ServedTree {
                class: Class::BestEffort,
                kind: TreeKind::SyncNoIdle,
                expires: None,
            },
            average_best_effort: 0,
            average_real_time: 0,
            active: None,
            active_process: None,
            idle_until: None,
            sent: Vec::new(),
            in_device_sync: 0,
            in_device_async: 0,
            head: 0,
            // As if the last second had passed without a late request, so that asynchronous
            // requests start at a good depth.
            last_late_sync: -HZ,
            queueing: QueueingDetector::default(),
            log: DecisionLog::default(),
        }
    }

    /// Number of requests in the device, synchronous and asynchronous.
    fn in_device(&self) -> u32 {
        self.in_device_sync + self.in_device_async
    }

    /// Merges the new request with an adjacent request of its process's queue, or of the shared
    /// queue of its priority if it is asynchronous. Updates the queue's next request and its
    /// position by sector. Returns `None` if there is no such queue yet, or no request there can be
    /// merged with it.
    fn merge_into_queue(
        &mut self,
        request: RequestId,
        requests: &mut RequestTable,
    ) -> Option<Inserted> {
        let id = self.find_present_queue(&requests[request])?;
        let queue = &mut self.queues[id];
        let merged = queue.requests.merge(request, requests, self.request_sectors_max)?;
        // The new request may have closed the gap between two queued requests, now one.
        self.queued -= usize::from(merged.absorbed.is_some());
        // Under its new key, the grown request may come before the next one, or be it.
        if merged.has_changed_key() {
            let back_seek = self.tunables.back_seek();
            queue.next = next_after_merge(queue.next, &merged, self.head, back_seek);
            self.update_sector_index(id);
        }
        Some(Inserted::Merged { into: merged.into, with: merged.absorbed })
    }

    /// Adds the request to the queue `id`, updates the statistics of process and queue, and checks
    /// if the queue may interrupt the active one.
    fn enqueue(&mut self, now: Time, id: QueueId, request_id: RequestId, requests: &RequestTable) {
        let now_jiffies = jiffies(now);
        let request = &requests[request_id];
        // The queue and its place in the trees.
        self.queued += 1;
        let queue = &mut self.queues[id];
        let key = queue.requests.insert(WaitingRequest { id: request_id, arrived: now }, requests);
        queue.next = nearest_to_head(queue.next, Some(key), self.head, self.tunables.back_seek());
        if queue.position.is_none() {
            // Its key decides its place in the tree.
            let is_first = false;
            self.insert_into_trees(now_jiffies, id, is_first);
        }
        self.update_sector_index(id);

        // Statistics: think time, seeks, and the idle window that depends on both.
        let process = self.processes.get_mut(&request.process);
        let process = process.expect("queue_for knows each process that sends a request");
        process.record_think_time(now_jiffies, self.tunables.slice_idle);
        // Alive: the process has just sent this request.
        let think_time = ThinkTime { mean: process.think_time(), is_alive: true };
        self.queues[id].seek.observe(request.start, request.sectors);
        // Only for a joined queue with `seeky=mean`: the time since which it is seeky.
        self.update_seeky_since(now_jiffies, id);
        self.update_idle_window(now, id, think_time);

        if self.active == Some(id) {
            // No effect if the device is not kept idle for the queue.
            self.on_arrival_while_idling(now, id, request);
        } else {
            // The result is not needed: the next dispatch begins the slice of the queue.
            let _ = self.try_preempt(now, id, request);
        }
    }

    /// Sends one request of the active queue `id` to the device, and returns it. It is the next by
    /// sector, or the oldest if that has waited too long, which is checked once per slice as in the
    /// kernel. `limit` is the depth limit, for the log.
    fn send(
        &mut self,
        now: Time,
        id: QueueId,
        limit: Option<u32>,
        requests: &RequestTable,
    ) -> RequestId {
        let now_jiffies = jiffies(now);
        // The choice: an expired request, or the next by sector.
        let queue = &mut self.queues[id];
        let expired_key = if core::mem::replace(&mut queue.is_fifo_checked, true) {
            None
        } else {
            let fifo_expire = self.tunables.fifo_expire(queue.is_sync);
            let is_expired = |arrived| now_jiffies >= jiffies(arrived) + fifo_expire;
            let oldest =
                queue.requests.oldest(requests).filter(|(_, waiting)| is_expired(waiting.arrived));
            oldest.map(|(key, _)| key)
        };
        let key = expired_key.or(queue.next).expect("a queue with requests has a next one");
        queue.next = request_after(&queue.requests, key, self.tunables.back_seek());
        let WaitingRequest { id: request_id, arrived } =
            queue.requests.remove(key).expect("next is among the requests");
        let request = &requests[request_id];
        queue.in_device += 1;
        queue.slice_dispatched += 1;
        queue.must_dispatch = false;

        // The counts of the device, and the position of the head.
        let distance = request.start.abs_diff(self.head);
        self.queued -= 1;
        self.head = request.end();
        self.active_process = Some(request.process);
        *self.in_device_count_mut(request.is_sync) += 1;
        let index = request_id.0 as usize;
        if index >= self.sent.len() {
            self.sent.resize(index + 1, None);
        }
        self.sent[index] = Some(SentRequest { queue: id, arrived: jiffies(arrived) });
        let in_device = self.in_device();
        self.log.log_with(now, || Decision::Dispatch {
            request: request_id,
            queue: Some(id.0),
            process: request.process,
            start: request.start,
            sectors: request.sectors,
            why: if expired_key.is_some() { "waited_too_long" } else { "next_by_sector" },
            distance,
            in_device,
            limit,
        });
        request_id
    }

    /// The count of synchronous or asynchronous requests in the device.
    fn in_device_count_mut(&mut self, is_sync: bool) -> &mut u32 {
        if is_sync { &mut self.in_device_sync } else { &mut self.in_device_async }
    }
}

impl Scheduler for Cfq {
    /// Merges the request with a neighbour of its queue, or adds it to its queue.
    fn insert(&mut self, now: Time, id: RequestId, requests: &mut RequestTable) -> Inserted {
        if let Some(merged) = self.merge_into_queue(id, requests) {
            return merged;
        }
        let queue = self.queue_for(now, &requests[id]);
        self.enqueue(now, queue, id, requests);
        Inserted::Queued
    }

    /// Selects the active queue and sends one of its requests, if the depth limits allow it.
    /// Otherwise returns the end of the idle time during idling, and `Nothing` without it. The
    /// selected queue may be another one than before: its slice begins then.
    fn dispatch(&mut self, now: Time, requests: &RequestTable) -> Dispatch {
        self.end_expired_idling(now);
        let no_request = |cfq: &Cfq| match cfq.idle_until {
            Some(until) => Dispatch::WaitUntil(time_of(until)),
            None => Dispatch::Nothing,
        };
        let Some(id) = self.select_queue(now) else { return no_request(self) };
        match self.depth_limit(now, id) {
            Ok(limit) => {
                let request = self.send(now, id, limit, requests);
                // Slices of asynchronous queues and of the idle class end after a few requests.
                self.end_short_slice(now, id);
                Dispatch::Request(request)
            }
            Err(refusal) => {
                self.log.log_with(now, || Decision::Hold {
                    queue: id.0,
                    why: refusal.why,
                    in_device: refusal.in_device,
                    limit: refusal.limit,
                });
                no_request(self)
            }
        }
    }

    /// Updates the counts for a completed request. A synchronous one sets the time from which its
    /// process thinks, and shows if synchronous requests are late. For a request of the active
    /// queue, decides the end of its slice.
    fn complete(&mut self, now: Time, id: RequestId, requests: &RequestTable) {
        let now_jiffies = jiffies(now);
        let request = &requests[id];
        // For the detection of a device that queues requests internally. The completed request
        // still counts as in the device.
        self.observe_load(now);
        let sent = self.sent[id.0 as usize].take();
        let SentRequest { queue, arrived } = sent.expect("only what was sent completes");
        self.queues[queue].in_device -= 1;
        *self.in_device_count_mut(request.is_sync) -= 1;
        if request.is_sync {
            if let Some(process) = self.processes.get_mut(&request.process) {
                process.last_end = now_jiffies;
            }
            // A late request limits the asynchronous ones in the device from now on.
            if now_jiffies - arrived >= self.tunables.fifo_expire_sync {
                self.last_late_sync = now_jiffies;
            }
        }
        if self.active == Some(queue) {
            self.continue_after_completion(now, queue);
        }
        self.queues.remove_if_unused(queue);
    }

    /// Number of requests that are not in the device.
    fn queued(&self) -> usize {
        self.queued
    }

    /// Forgets an ended process, and removes its queue once the queue is empty.
    fn process_ended(&mut self, now: Time, process: ProcessId) {
        self.forget_process(now, process);
    }

    /// Log of the decisions and their reasons.
    fn decisions(&mut self) -> Option<&mut DecisionLog> {
        Some(&mut self.log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Need, Op, Priority, Request};

    /// Processes start, read close to each other and far apart, are joined and split, and end, with
    /// requests still queued and in the device. After the last completion only the asynchronous
    /// queues are left.
    #[test]
    fn ended_processes_leave_no_state() {
        let caps = super::super::testing::caps();
        for seeky in [Seekiness::Mean, Seekiness::History] {
            let mut cfq = Cfq::new(&caps, CfqTunables { seeky, ..CfqTunables::default() });
            let mut requests = RequestTable::default();
            let mut in_device: Vec<RequestId> = Vec::new();
            let (mut random, mut joins, mut splits) = (1u64, 0, 0);
            cfq.log.set_enabled(true);
            for step in 0..60_000u64 {
                let now = Time::from_us(step * 300);
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let draw = random >> 33;
                // Three processes at a time, replaced after 12,000 steps.
                let process = ProcessId((step / 12_000 * 3 + draw % 3) as u32);
                let is_near = step / 6_000 % 2 == 0;
                let page = if is_near { step * 3 + draw % 3 } else { draw % 1_000_000_000 };
                if cfq.queued() < 16 && cfq.in_device() < 4 {
                    let is_sync = draw % 50 > 0;
                    let new = requests.open(Request {
                        op: if is_sync { Op::Read } else { Op::Write },
                        start: page * 8,
                        sectors: 8,
                        process,
                        priority: Priority::default(),
                        is_sync,
                        need: Need::Demand,
                    });
                    cfq.insert(now, new, &mut requests);
                }
                if in_device.len() < 4
                    && let Dispatch::Request(request) = cfq.dispatch(now, &requests)
                {
                    in_device.push(request);
                }
                if draw % 4 != 0 && !in_device.is_empty() {
                    let request = in_device.remove(0);
                    cfq.complete(now, request, &requests);
                    requests.close_all(request);
                }
                if step % 12_000 == 11_999 {
                    (0..3).for_each(|back| {
                        cfq.process_ended(now, ProcessId(process.0 / 3 * 3 + back))
                    });
                }
                while let Some(decided) = cfq.log.poll() {
                    joins += u32::from(matches!(decided.decision, Decision::Join { .. }));
                    splits += u32::from(matches!(decided.decision, Decision::Split { .. }));
                }
            }
            let mut now = Time::from_s(60);
            while cfq.queued() > 0 || !in_device.is_empty() {
                now += Time::from_ms(10);
                match cfq.dispatch(now, &requests) {
                    Dispatch::Request(request) => in_device.push(request),
                    _ if in_device.is_empty() => {}
                    _ => cfq.complete(now, in_device.remove(0), &requests),
                }
            }
            cfq.dispatch(now + Time::from_s(1), &requests);
            assert!(joins > 0 && splits > 0, "{joins} joins, {splits} splits");
            assert!(cfq.processes.is_empty() && cfq.by_sector.is_empty());
            assert!(cfq.sent.iter().all(Option::is_none));
            assert_eq!((cfq.in_device(), cfq.idle_until), (0, None));
            assert_eq!(cfq.queues.count(), cfq.async_queues.len(), "those stay");
        }
    }
}
