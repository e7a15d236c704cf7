//! Requests on their way to the device, from creation to completion.
//!
//! # The poll contract
//! 1. [`send`](RequestQueue::send) for each new request, which is then *plugged*: held back, so
//!    that requests created together are merged before the device receives the first.
//! 2. [`poll`](RequestQueue::poll) until it returns none: requests for the device, and cancelled
//!    ones.
//! 3. [`handle_completion`](RequestQueue::handle_completion) for each request that the device
//!    finished. After it, as after each cancelled request, [`poll_ended`](RequestQueue::poll_ended)
//!    until it returns none: the parts that were merged into it, each with its waiters.
//! 4. If no call has work, wait for a completion, a new request, or the time returned by
//!    [`next_wake`](RequestQueue::next_wake).
//!
//! The queue knows sectors, processes and times, and the outcome of requests. Each request is
//! stored once in its [`RequestTable`]; the plug, the scheduler and all other code use identifiers.
//! The purpose of its data is in the [`RequestContent`], which the queue stores and does not
//! interpret.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::meter::Meter;
use super::{Config, ConfigError};
use crate::decision::DecisionLog;
use crate::readahead::DeviceEvidence;
use crate::request::{Completion, DeviceCaps, DeviceError, DeviceRequest, Need, Outcome};
use crate::request::{Priority, ProcessId, Request, RequestId, RequestTable};
use crate::scheduler::{self, Dispatch, Scheduler};
use crate::unit::{PAGE_BYTES, PAGE_SECTORS, SECTOR_BYTES, Time};

mod payload;

use payload::Payloads;
pub(super) use payload::{RequestContent, SearchTail, Waiter};

/// Most plugged requests: the kernel's `BLK_MAX_REQUEST_COUNT`.
const PLUG_REQUESTS_MAX: usize = 32;

/// Outcome of one part of a request that the device has finished.
#[derive(Debug)]
pub(super) struct EndedPart {
    /// The part as it was sent, removed from the table.
    pub(super) request: Request,
    /// The pages, slots or transfer that it was for.
    pub(super) content: RequestContent,
    /// The result for its own sectors.
    pub(super) outcome: PartOutcome,
    /// True if it was merged with others: a failure does not show whose data is bad, so the parts
    /// are retried alone.
    pub(super) is_merged: bool,
    /// Its waiters; the list must be returned to [`RequestQueue::recycle_waiters`].
    pub(super) waiters: Vec<Waiter>,
}

/// Outcome of one part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartOutcome {
    /// The device moved this number of bytes, from the start of the part; the rest is past the end.
    Moved(u64),
    /// No byte is good.
    Failed(DeviceError),
}

impl PartOutcome {
    /// Number of whole good pages from the start of the part, and the error of its other pages. A
    /// page that was moved in part is not good. A short transfer has no error of its own, so its
    /// missing pages get `Medium`, as unreadable ones. After a whole transfer no page has the
    /// error.
    pub(super) fn good_pages(self) -> (u64, DeviceError) {
        match self {
            PartOutcome::Moved(bytes) => (bytes / PAGE_BYTES, DeviceError::Medium),
            PartOutcome::Failed(error) => (0, error),
        }
    }
}

/// An ended request whose parts are being returned.
#[derive(Clone, Copy, Debug)]
struct EndingRequest {
    /// The part to be returned next; `None` after the last one.
    next_part: Option<RequestId>,
    /// First sector of the whole request, from which a short outcome counts its bytes.
    start: u64,
    /// Outcome of the whole request.
    outcome: Outcome,
    /// True if the request has several parts.
    is_merged: bool,
}

/// Result of [`RequestQueue::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueAction {
    /// A request for the device.
    Request(DeviceRequest),
    /// A read without a waiter was cancelled: [`RequestQueue::poll_ended`] returns its parts.
    Withdrawn,
}

/// Requests that are plugged, queued, in the device, or to be retried.
pub(super) struct RequestQueue {
    /// Properties of the device. The scheduler has another largest request if it must not merge.
    caps: DeviceCaps,
    /// Limit of requests in the device: the lower limit of configuration and device.
    depth_max: u32,
    /// Size of the queue, which determines congestion.
    queue_requests: u32,
    /// Priorities by process.
    priorities: Vec<Priority>,
    /// Holds the requests that the device has not received, except plugged ones and retries.
    scheduler: Box<dyn Scheduler>,
    /// All open requests; merged ones are parts of another, their head.
    requests: RequestTable,
    /// Content and waiters of each request.
    payloads: Payloads,
    /// Requests created since the last poll.
    plug: Vec<RequestId>,
    /// Parts of failed requests that are retried individually, without the scheduler.
    retries: VecDeque<RequestId>,
    /// Time at which the scheduler asked to be polled again.
    wake: Option<Time>,
    /// The ended request whose parts are being returned.
    ending: Option<EndingRequest>,
    /// Evidence that the policies share, including the costs of the device.
    pub(super) evidence: DeviceEvidence,
    /// True if a policy or the caller of the machine may ask for the costs of requests.
    learns_costs: bool,
    /// Counters of requests and bytes.
    pub(super) meter: Meter,
}

impl RequestQueue {
    /// Creates an empty queue for the device of `config`, with its scheduler. Fails if the depth is
    /// 0, the device's largest request is less than a page, or the scheduler is unknown or has a
    /// bad parameter.
    pub(super) fn new(config: &Config) -> Result<RequestQueue, ConfigError> {
        if config.depth_max == 0 || config.caps.depth_max == 0 {
            return Err(ConfigError::NoDepth);
        }
        let request_sectors_max = config.caps.request_sectors_max;
        if u64::from(request_sectors_max) < PAGE_SECTORS {
            return Err(ConfigError::RequestTooSmall { request_sectors_max });
        }
        // For the scheduler, a largest request of 0 sectors disables merging.
        let merged_sectors_max = if config.merges { request_sectors_max } else { 0 };
        let caps = DeviceCaps { request_sectors_max: merged_sectors_max, ..config.caps };
        let scheduler = scheduler::build(&config.scheduler, &caps).map_err(ConfigError::Policy)?;
        Ok(RequestQueue {
            caps: config.caps,
            depth_max: config.depth_max.min(config.caps.depth_max),
            queue_requests: config.queue_requests,
            priorities: Vec::new(),
            scheduler,
            requests: RequestTable::default(),
            payloads: Payloads::default(),
            plug: Vec::new(),
            retries: VecDeque::new(),
            wake: None,
            ending: None,
            evidence: DeviceEvidence::default(),
            // If false here, a policy that asks for costs turns it on (`learn_costs`).
            learns_costs: config.learns_unused_costs,
            meter: Meter::default(),
        })
    }

    /// Makes each later completion update the costs in `evidence`, for a policy that asks for them.
    pub(super) fn learn_costs(&mut self) {
        self.learns_costs = true;
    }

    /// Properties of the device.
    pub(super) fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    /// Limit of requests in the device at once: the lower limit of configuration and device.
    pub(super) fn depth_max(&self) -> u32 {
        self.depth_max
    }

    /// The device's largest request, in whole pages.
    pub(super) fn request_pages_max(&self) -> u64 {
        u64::from(self.caps.request_sectors_max) / PAGE_SECTORS
    }

    /// Sets the priority of a process's later requests.
    pub(super) fn set_priority(&mut self, process: ProcessId, priority: Priority) {
        let index = process.0 as usize;
        if index >= self.priorities.len() {
            self.priorities.resize(index + 1, Priority::default());
        }
        self.priorities[index] = priority;
    }

    /// Priority of the later requests of a process; the default one if none was set.
    pub(super) fn priority(&self, process: ProcessId) -> Priority {
        self.priorities.get(process.0 as usize).copied().unwrap_or_default()
    }

    /// Reports the end of a process to the scheduler, which then expects no request from it.
    pub(super) fn process_ended(&mut self, now: Time, process: ProcessId) {
        self.scheduler.process_ended(now, process);
    }

    /// The log of the scheduler's decisions; `None` if its policy has no log.
    pub(super) fn scheduler_decisions(&mut self) -> Option<&mut DecisionLog> {
        self.scheduler.decisions()
    }

    /// Returns true if more than seven eighths of `queue_requests` requests are in the scheduler or
    /// in the device. Prefetch of swapped-out memory then stops, as do some readahead policies. The
    /// fraction is the kernel's limit of congestion.
    pub(super) fn is_congested(&self) -> bool {
        let requests = self.scheduler.queued() as u64 + u64::from(self.meter.in_device());
        requests > u64::from(self.queue_requests) * 7 / 8
    }

    /// Returns true if no request is open.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Adds a request, and returns its identifier. If it reads pages, the caller must store it in
    /// their frames before the next poll, so that later readers find it. The request goes to the
    /// scheduler at that poll, or at once with the `PLUG_REQUESTS_MAX`-th plugged one.
    pub(super) fn send(
        &mut self,
        now: Time,
        request: Request,
        content: RequestContent,
    ) -> RequestId {
        let id = self.requests.open(request);
        let is_retry = false;
        self.payloads.store(id, content, is_retry);
        self.plug.push(id);
        if self.plug.len() >= PLUG_REQUESTS_MAX {
            self.unplug(now);
        }
        id
    }

    /// Adds a request that retries a failed one: it goes to the device without the scheduler, so
    /// that it is not merged again.
    pub(super) fn enqueue_retry(&mut self, request: Request, content: RequestContent) -> RequestId {
        let id = self.requests.open(request);
        let is_retry = true;
        self.payloads.store(id, content, is_retry);
        self.retries.push_back(id);
        id
    }

    /// Registers `waiter` for the end of the request, whose need becomes `Demand`. Informs the
    /// scheduler if the need has changed.
    pub(super) fn add_waiter(&mut self, id: RequestId, waiter: Waiter) {
        // The scheduler knows the request by its head, the request that it was merged into.
        // `idled_for` reports that a reader now waits, or idles, for that head.
        if let Some(head) = self.requests.set_demand(id) {
            self.scheduler.idled_for(head, &self.requests);
        }
        self.payloads.add_waiter(id, waiter);
    }

    /// Returns true if `waiter` waits for the request, or for a request that was merged into it.
    pub(super) fn has_waiter(&self, id: RequestId, waiter: Waiter) -> bool {
        self.requests.parts(id).any(|part| self.payloads.has_waiter(part, waiter))
    }

    /// The next action; `None` if `depth_max` requests are in the device, or if the scheduler has
    /// no request for it now. Passes the plugged requests to the scheduler first. Retries precede
    /// the requests of the scheduler.
    pub(super) fn poll(&mut self, now: Time) -> Option<QueueAction> {
        self.unplug(now);
        if self.meter.in_device() >= self.depth_max {
            // `wake` is `None`: the dispatch that reached the limit has cleared it. The next
            // completion causes a poll.
            return None;
        }
        if self.retries.is_empty() && self.scheduler.queued() == 0 {
            // No request could be sent, so the scheduler is not called.
            self.wake = None;
            return None;
        }
        // The next request: a retry, or else the scheduler decides.
        let id = match self.retries.pop_front() {
            Some(id) => id,
            None => match self.scheduler.dispatch(now, &self.requests) {
                Dispatch::Request(id) => id,
                // No reader waits for it, and it isn't worth the device's time: it ends without
                // reaching the device.
                Dispatch::Withdraw(id) => {
                    debug_assert!(self.requests[id].need != Need::Demand, "a read waits for it");
                    let outcome = Outcome::Failed(DeviceError::Cancelled);
                    self.prepare_ended_parts(id, outcome);
                    return Some(QueueAction::Withdrawn);
                }
                // No request yet. The scheduler decides again at this time.
                Dispatch::WaitUntil(time) => {
                    self.wake = Some(time);
                    return None;
                }
                // No request before the next arrival or completion.
                Dispatch::Nothing => {
                    self.wake = None;
                    return None;
                }
            },
        };
        // The request goes to the device.
        self.wake = None;
        let request = &self.requests[id];
        self.meter.on_dispatch(now, request);
        let Request { op, start, sectors, .. } = *request;
        // Recorded in any case: a policy that asks for costs may be added before the completion.
        self.evidence.estimate.on_dispatch(now, id, Some(start..request.end()));
        Some(QueueAction::Request(DeviceRequest { id, op, start, sectors }))
    }

    /// Time at which to poll again without another event; `None`: no need.
    pub(super) fn next_wake(&self) -> Option<Time> {
        self.wake
    }

    /// Calls `visit` with the parts of a request, in the order of its sectors. The arguments are
    /// the content and the size in bytes of the part.
    pub(super) fn for_each_part(&self, id: RequestId, mut visit: impl FnMut(RequestContent, u64)) {
        for part in self.requests.parts(id) {
            visit(self.payloads.content(part), self.requests.opened(part).bytes());
        }
    }

    /// Records that the device has finished a request, in the meter, the cost estimate and the
    /// scheduler. The estimate needs the earliest time at which it can have finished
    /// (`completion.not_before`), to ignore durations that are too uncertain. `poll_ended` must
    /// return its parts before any other call.
    pub(super) fn handle_completion(&mut self, now: Time, completion: Completion) {
        let id = completion.id;
        let bytes = self.requests[id].bytes();
        self.meter.on_completion(now);
        if self.learns_costs {
            self.evidence.estimate.on_completion(now, completion.not_before, id, bytes);
        }
        // A retry bypassed the scheduler, which does not know it.
        if !self.payloads.is_retry(id) {
            self.scheduler.complete(now, id, &self.requests);
        }
        self.prepare_ended_parts(id, completion.outcome);
    }

    /// Prepares the parts of the request `id` for `poll_ended`, with the outcome of the whole
    /// request. The request covers all merged parts, so its first sector is position 0 of the
    /// outcome.
    fn prepare_ended_parts(&mut self, id: RequestId, outcome: Outcome) {
        debug_assert!(self.ending.is_none_or(|ending| ending.next_part.is_none()), "one at a time");
        let (start, is_merged) = (self.requests[id].start, self.requests.is_merged(id));
        self.ending = Some(EndingRequest { next_part: Some(id), start, outcome, is_merged });
    }

    /// Returns the next part of the ended request, or `None` after the last one, or without such a
    /// request. The identifier of the part may be reused.
    pub(super) fn poll_ended(&mut self) -> Option<EndedPart> {
        let ending = self.ending.as_mut()?;
        let part = ending.next_part?;
        let request;
        (request, ending.next_part) = self.requests.close(part);
        let offset_bytes = (request.start - ending.start) * SECTOR_BYTES;
        let outcome = match ending.outcome {
            Outcome::Done => PartOutcome::Moved(request.bytes()),
            // `bytes` counts from the start of the whole request.
            Outcome::Short { bytes } => {
                PartOutcome::Moved(bytes.saturating_sub(offset_bytes).min(request.bytes()))
            }
            Outcome::Failed(error) => PartOutcome::Failed(error),
        };
        let is_merged = ending.is_merged;
        let (content, waiters) = self.payloads.take_content(part);
        Some(EndedPart { request, content, outcome, is_merged, waiters })
    }

    /// Takes back the list of waiters of an ended part, to reuse its memory.
    pub(super) fn recycle_waiters(&mut self, waiters: Vec<Waiter>) {
        self.payloads.recycle_waiters(waiters);
    }

    /// Passes the plugged requests to the scheduler. The scheduler may merge them with each other
    /// and with requests that it has.
    fn unplug(&mut self, now: Time) {
        for &id in &self.plug {
            self.scheduler.insert(now, id, &mut self.requests);
        }
        self.plug.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Spec;
    use crate::request::{Need, Op};
    use crate::unit::PageRange;

    const NOW: Time = Time::ZERO;
    const READER: Waiter = Waiter::Read(crate::machine::ReadId(7));

    /// A queue for a device that takes two requests at once, of at most 64 KiB.
    fn queue(scheduler: &str) -> RequestQueue {
        let caps = DeviceCaps {
            sectors: 1 << 20,
            request_sectors_max: 128,
            depth_max: 2,
            is_rotational: false,
            alignment_sectors: 1,
        };
        let scheduler = Spec::parse(scheduler).unwrap();
        match RequestQueue::new(&Config { scheduler, ..Config::new(caps) }) {
            Ok(queue) => queue,
            Err(error) => panic!("{error}"),
        }
    }

    /// Adds a prefetch of `sectors` sectors from sector `start` on.
    fn send(queue: &mut RequestQueue, start: u64, sectors: u32) -> RequestId {
        send_needed(queue, start, sectors, Need::Prefetch)
    }

    /// Adds a read with this need, of `sectors` sectors from sector `start` on.
    fn send_needed(queue: &mut RequestQueue, start: u64, sectors: u32, need: Need) -> RequestId {
        let request = Request {
            op: Op::Read,
            start,
            sectors,
            process: ProcessId(0),
            priority: Priority::default(),
            is_sync: true,
            need,
        };
        queue.send(
            NOW,
            request,
            RequestContent::Slots { range: PageRange::default(), ahead_pages: 0 },
        )
    }

    fn poll_request(queue: &mut RequestQueue) -> Option<DeviceRequest> {
        queue.poll(NOW).map(|action| match action {
            QueueAction::Request(request) => request,
            QueueAction::Withdrawn => panic!("nothing is withdrawn"),
        })
    }

    /// Passes all requests to the device that it takes now. Returns the first sector and the number
    /// of sectors of each.
    fn dispatch_all(queue: &mut RequestQueue) -> Vec<(u64, u32)> {
        core::iter::from_fn(|| poll_request(queue))
            .map(|request| (request.start, request.sectors))
            .collect()
    }

    /// Completes a request with this outcome. Returns the first sector and outcome of each part.
    fn complete_request(
        queue: &mut RequestQueue,
        id: RequestId,
        outcome: Outcome,
    ) -> Vec<(u64, PartOutcome)> {
        queue.handle_completion(NOW, Completion::at(NOW, id, outcome));
        core::iter::from_fn(|| queue.poll_ended())
            .map(|ended| (ended.request.start, ended.outcome))
            .collect()
    }

    /// Three adjacent requests of 8 sectors leave as one of 24. A fourth comes after that.
    #[test]
    fn adjacent_requests_merge_only_before_the_next_poll() {
        let mut queue = queue("noop");
        for start in [0, 8, 16] {
            send(&mut queue, start, 8);
        }
        assert_eq!(dispatch_all(&mut queue), [(0, 24)]);
        send(&mut queue, 24, 8);
        assert_eq!(dispatch_all(&mut queue), [(24, 8)]);
    }

    /// The device takes two of three requests, and the third after one of them has completed.
    #[test]
    fn requests_in_flight_never_exceed_the_device_depth() {
        let mut queue = queue("noop");
        let ids = [0, 1000, 2000].map(|start| send(&mut queue, start, 8));
        assert_eq!(dispatch_all(&mut queue), [(0, 8), (1000, 8)]);
        complete_request(&mut queue, ids[0], Outcome::Done);
        assert_eq!(dispatch_all(&mut queue), [(2000, 8)]);
    }

    /// Two merged speculative reads wait behind three demand reads, two of which fill the device.
    /// After half a second the scheduler withdraws the speculative ones, and sends the third.
    #[test]
    fn cancelled_requests_end_without_reaching_the_device() {
        let mut queue = queue("adaptive");
        for start in [0, 8] {
            send_needed(&mut queue, start, 8, Need::Speculative);
        }
        let ids = [1000, 2000, 3000].map(|start| send_needed(&mut queue, start, 8, Need::Demand));
        assert_eq!(dispatch_all(&mut queue), [(1000, 8), (2000, 8)]);
        let late = Time::from_ms(500);
        queue.handle_completion(late, Completion::at(late, ids[0], Outcome::Done));
        while queue.poll_ended().is_some() {}
        assert_eq!(queue.poll(late), Some(QueueAction::Withdrawn));
        let ended_parts = core::iter::from_fn(|| queue.poll_ended());
        let mut parts: Vec<_> =
            ended_parts.map(|part| (part.request.start, part.outcome)).collect();
        parts.sort_by_key(|&(start, _)| start);
        let cancelled = PartOutcome::Failed(DeviceError::Cancelled);
        assert_eq!(parts, [(0, cancelled), (8, cancelled)]);
        let third = queue.poll(late);
        assert!(matches!(third, Some(QueueAction::Request(request)) if request.start == 3000));
        assert_eq!(queue.meter.device_reads, 3, "the device was asked for no more");
        for id in &ids[1..] {
            complete_request(&mut queue, *id, Outcome::Done);
        }
        assert!(queue.is_empty());
    }

    /// 5,000 of 3 × 4,096 bytes arrived: all of the first part, 904 of the second, none of the
    /// third.
    #[test]
    fn each_part_of_a_merged_request_gets_its_own_outcome() {
        let mut queue = queue("noop");
        let ids = [0, 8, 16].map(|start| send(&mut queue, start, 8));
        dispatch_all(&mut queue);
        let mut parts = complete_request(&mut queue, ids[0], Outcome::Short { bytes: 5_000 });
        parts.sort_by_key(|&(start, _)| start);
        let moved = PartOutcome::Moved;
        assert_eq!(parts, [(0, moved(4096)), (8, moved(904)), (16, moved(0))]);
        assert!(queue.is_empty());
    }

    /// A failed read is retried while another one is plugged.
    #[test]
    fn retries_are_sent_first_and_bypass_the_scheduler() {
        let mut queue = queue("cfq");
        let first = send(&mut queue, 0, 8);
        let request = poll_request(&mut queue).expect("an idle device takes it");
        assert_eq!(request.id, first);
        queue.handle_completion(
            NOW,
            Completion::at(NOW, first, Outcome::Failed(DeviceError::Medium)),
        );
        let ended = queue.poll_ended().expect("it has one part");
        send(&mut queue, 8, 8);
        let retry = queue.enqueue_retry(ended.request, ended.content);
        assert_eq!(dispatch_all(&mut queue)[0], (0, 8));
        // The scheduler did not dispatch the retry. If it received this completion, it would count
        // one request too few in the device.
        assert_eq!(
            complete_request(&mut queue, retry, Outcome::Done),
            [(0, PartOutcome::Moved(4096))]
        );
    }

    /// A read waits for the second of two prefetched requests, before or after they are merged.
    #[test]
    fn a_request_is_demand_once_a_part_has_a_waiter() {
        for is_merged_first in [false, true] {
            let mut queue = queue("noop");
            let ids = [0, 8].map(|start| send(&mut queue, start, 8));
            if is_merged_first {
                queue.unplug(NOW);
            }
            assert!(queue.requests[ids[0]].need != Need::Demand);
            queue.add_waiter(ids[1], READER);
            queue.unplug(NOW);
            assert_eq!(queue.requests[ids[0]].need, Need::Demand);
        }
    }

    #[test]
    fn waiters_are_returned_once_and_the_identifier_is_reused() {
        let mut queue = queue("noop");
        let first = send(&mut queue, 0, 8);
        queue.add_waiter(first, READER);
        dispatch_all(&mut queue);
        queue.handle_completion(NOW, Completion::at(NOW, first, Outcome::Done));
        let ended = queue.poll_ended().expect("it has one part");
        assert_eq!(ended.waiters, [READER]);
        assert!(queue.poll_ended().is_none());
        queue.recycle_waiters(ended.waiters);
        assert_eq!(send(&mut queue, 0, 8), first);
        dispatch_all(&mut queue);
        queue.handle_completion(NOW, Completion::at(NOW, first, Outcome::Done));
        assert!(queue.poll_ended().expect("it has one part").waiters.is_empty());
    }
}
