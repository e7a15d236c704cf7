//! A queue: the synchronous requests of one process, or the shared asynchronous requests of one
//! level; and its state.

use core::ops::{Index, IndexMut};

use slab::Slab;

use super::QueueId;
use super::injection::InjectionLimit;
use super::raising::Raising;
use crate::request::{Class, Priority, Request};
use crate::scheduler::decaying_mean::DecayingMean;
use crate::scheduler::requests::{QueuedRequests, SectorKey};
use crate::unit::Time;

/// Distance above which a request is far: 8 × 100 sectors, 400 KiB (`BFQQ_SEEK_THR`).
const FAR_SECTORS: u64 = 8 * 100;

/// On a device without a head, a request from this size on is never far: 32 KiB.
const LARGE_SECTORS: u32 = 2 * 32;

/// Number of far requests among the last 32 above which a queue is seeky.
const FAR_OF_32: u32 = 19;

/// Factor between the level of a priority and a weight: level 4 has weight 40
/// (`IOPRIO_BE_NR - level`, times 10).
const LEVEL_WEIGHT: u64 = 10;

/// Number of levels of a class.
const LEVELS: u64 = 8;

/// Share of its time for which an I/O-bound process may have no request: a fifth.
const IDLE_SHARE_DIVISOR: u64 = 5;

/// Time after which the observation of a process's idle time is halved.
const IDLE_OBSERVATION: Time = Time::from_ms(200);

/// A queue.
///
/// Invariants:
///
/// 1. `is_busy` holds while it has queued requests, and while it is in service.
/// 2. `next` is set while it has queued requests.
#[derive(Debug)]
pub(super) struct BfqQueue {
    /// True if processes wait for the requests.
    pub is_sync: bool,
    pub priority: Priority,
    /// Queued requests.
    pub requests: QueuedRequests,
    /// The request to serve next.
    pub next: Option<SectorKey>,
    /// Number of its requests in the device.
    pub in_device: u32,
    /// Number of processes that may send further requests here; always 1 if it is asynchronous.
    pub processes: u32,
    /// Time of its creation.
    pub created: Time,
    /// Queue with which it is merged later, if idling for it does not pay.
    pub merges_with: Option<QueueId>,
    /// True if it is in a service tree as active, or in service.
    pub is_busy: bool,

    /// Class and weight under which it is counted among the busy queues, and true if it is counted
    /// as raised.
    pub counted_as: Option<((Class, u64), bool)>,

    /// Budget for the next service, in sectors, by the feedback of the earlier ones.
    pub next_budget: u64,
    /// Start of its service.
    pub service_start: Time,
    /// Latest end of its service.
    pub service_end: Time,
    /// Last time at which the device began to idle for it.
    pub idling_start: Time,
    /// True if it ran empty in service with budget left, so that a request that comes soon may use
    /// the rest.
    pub may_continue: bool,

    /// True until its first request is queued.
    pub is_new: bool,
    /// Time since which it has no request, queued or in the device, and is not in service. `None`
    /// while that is not so, and before its first request.
    pub empty_since: Option<Time>,
    /// Time of its last completion, or of its creation.
    pub last_end: Time,
    /// Mean think time: from a completion to the next request, in microseconds.
    think: DecayingMean,
    /// Start of the observation of `idle_time`, moved forward when both are halved.
    observed_since: Time,
    /// Time without a request, queued or in the device, since then.
    idle_time: Time,
    /// True if its process has requests for most of the time.
    is_io_bound: bool,
    /// The sector after its last request.
    end_of_last: Option<u64>,
    /// Verdicts of the last 32 requests, a bit each: 1 is far. A new queue begins with one far
    /// verdict, since the first request of a process usually is far from those before.
    far_bits: u32,
    pub raising: Raising,
    /// Limit of injection while it is in service.
    pub injection: InjectionLimit,
    /// Number of its last turn: its activation, or the end of a service with requests left.
    pub turn: u64,
}

impl BfqQueue {
    /// Creates a queue without requests, for one process or for asynchronous requests.
    /// `next_budget` is the budget of its first service, in sectors.
    pub(super) fn new(now: Time, is_sync: bool, priority: Priority, next_budget: u64) -> BfqQueue {
        BfqQueue {
            is_sync,
            priority,
            requests: QueuedRequests::default(),
            next: None,
            in_device: 0,
            processes: 1,
            created: now,
            merges_with: None,
            is_busy: false,
            counted_as: None,
            next_budget,
            service_start: now,
            service_end: now,
            idling_start: now,
            may_continue: false,
            is_new: true,
            empty_since: None,
            last_end: now,
            think: DecayingMean::default(),
            observed_since: now,
            idle_time: Time::ZERO,
            // A synchronous queue counts as I/O-bound until its process is observed.
            is_io_bound: is_sync,
            end_of_last: None,
            far_bits: 1,
            raising: Raising::new(now),
            injection: InjectionLimit::default(),
            turn: 0,
        }
    }

    /// Weight by its level, without weight raising.
    pub(super) fn plain_weight(&self) -> u64 {
        let level = match self.priority.class {
            Class::Idle => LEVELS - 1,
            _ => u64::from(self.priority.level).min(LEVELS - 1),
        };
        (LEVELS - level) * LEVEL_WEIGHT
    }

    /// Weight for its share of the device.
    pub(super) fn weight(&self) -> u64 {
        self.plain_weight() * self.raising.factor()
    }

    /// Returns true if a process of the default priority waits for its requests.
    pub(super) fn has_default_priority(&self) -> bool {
        self.is_sync && self.priority == Priority::default()
    }

    /// Returns true if it has no request, queued or in the device.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.in_device == 0
    }

    /// Returns true if most of its requests are far from the one before.
    pub(super) fn is_seeky(&self) -> bool {
        self.far_bits.count_ones() > FAR_OF_32
    }

    /// Returns true if all of its last 32 requests are far from the one before.
    pub(super) fn is_totally_seeky(&self) -> bool {
        self.far_bits == u32::MAX
    }

    /// Returns true if its next request probably comes soon, close to the last one.
    pub(super) fn is_worth_idling(&self, slice_idle: Time) -> bool {
        !self.is_seeky() && self.is_io_bound && self.has_short_think_time(slice_idle)
    }

    /// Returns true if the mean think time of its process, from a completion to the next request,
    /// is at most half of `slice_idle`. True also while it is unknown, so that a new process counts
    /// as one that reads on at once.
    pub(super) fn has_short_think_time(&self, slice_idle: Time) -> bool {
        let slice_idle_us = slice_idle.ns() / 1_000;
        !self.think.is_valid() || self.think.mean() <= slice_idle_us / 2
    }

    /// Updates the statistics of its process by a new request: think time, time without requests,
    /// and distance from the request before. A pause counts as a think time only if the process
    /// waited for all its requests. It counts at most twice the idle time, because any longer pause
    /// is equally useless.
    pub(super) fn observe(&mut self, now: Time, request: &Request, rules: &ObservationRules) {
        let pause = now.since(self.last_end);
        if self.is_empty() {
            let slice_idle_us = rules.slice_idle.ns() / 1_000;
            self.think.add((pause.ns() / 1_000).min(2 * slice_idle_us));
        }
        self.observe_idle_time(now, pause);
        // The first request is not far from any other.
        let distance = self.end_of_last.map_or(0, |end| end.abs_diff(request.start));
        // Without seeks, a large request is efficient at any distance.
        let is_far =
            distance > FAR_SECTORS && (rules.is_rotational || request.sectors < LARGE_SECTORS);
        self.far_bits = self.far_bits << 1 | u32::from(is_far);
        self.end_of_last = Some(request.end());
    }

    /// Decides at a new request if the process is I/O-bound: without a request for at most a fifth
    /// of its observed time. `pause` is the time since its last completion, which counts if the
    /// process had no request in it. An observation of more than 200 ms (`IDLE_OBSERVATION`) is
    /// halved, so that old times lose weight.
    fn observe_idle_time(&mut self, now: Time, pause: Time) {
        // The new request is not in the queue yet.
        if self.is_empty() {
            self.idle_time += pause;
        }
        // A new queue has no observed time yet, and keeps the initial verdict.
        if self.is_new {
            return;
        }
        let observed = now.since(self.observed_since);
        self.is_io_bound = self.idle_time.ns() * IDLE_SHARE_DIVISOR <= observed.ns();
        if observed > IDLE_OBSERVATION {
            self.observed_since = Time(now.ns() - observed.ns() / 2);
            self.idle_time = Time(self.idle_time.ns() / 2);
        }
    }
}

/// Parameters of the statistics of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObservationRules {
    pub slice_idle: Time,
    pub is_rotational: bool,
}

/// Returns true if a request from `start` is far from the head. On a device without a head, a large
/// request never is.
pub(super) fn is_far_from_head(head: u64, request: &Request, is_rotational: bool) -> bool {
    head.abs_diff(request.start) > FAR_SECTORS && (is_rotational || request.sectors < LARGE_SECTORS)
}

/// All queues by identifier.
#[derive(Debug, Default)]
pub(super) struct BfqQueues(Slab<BfqQueue>);

impl BfqQueues {
    /// Adds a queue, and returns its identifier.
    pub(super) fn add(&mut self, queue: BfqQueue) -> QueueId {
        QueueId(self.0.insert(queue) as u32)
    }

    /// Removes a queue.
    pub(super) fn remove(&mut self, id: QueueId) {
        self.0.remove(id.0 as usize);
    }

    /// Removes a queue that is gone from the plans of others.
    pub(super) fn forget_merges_with(&mut self, id: QueueId) {
        for (_, queue) in &mut self.0 {
            queue.merges_with = queue.merges_with.filter(|target| *target != id);
        }
    }

    /// All queues, in the order of their identifiers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (QueueId, &BfqQueue)> {
        self.0.iter().map(|(index, queue)| (QueueId(index as u32), queue))
    }

    /// Number of queues.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }
}

impl Index<QueueId> for BfqQueues {
    type Output = BfqQueue;
    fn index(&self, id: QueueId) -> &BfqQueue {
        &self.0[id.0 as usize]
    }
}

impl IndexMut<QueueId> for BfqQueues {
    fn index_mut(&mut self, id: QueueId) -> &mut BfqQueue {
        &mut self.0[id.0 as usize]
    }
}
