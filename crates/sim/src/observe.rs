//! Records the events of a simulation with their times: reads, device requests, and decisions of
//! the readahead policy. They serve for plots and for the explanation of results.
//!
//! An [`Observer`] receives the events of a simulation from
//! [`SimulatedEnvironment::with_observer`](crate::world::SimulatedEnvironment::with_observer). It
//! also wraps readahead policies ([`Observer::observe_policy`]) and passes all calls on unchanged.
//! A policy has no clock, so the simulation sets the time of the log, and a decision has the time
//! of the call.
//!
//! A *folio* is a block of pages that was added to the cache as one. A read that reaches a folio
//! with the *readahead mark* makes the policy read further ahead. The *credit* of a file is the
//! number of pages that it may have prefetched and not yet used.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use readpath_core::machine::{Done, Machine};
use readpath_core::readahead::{
    Advice, Demand, DeviceEvidence, Evidence, Folio, PageView, ReadRequest, ReadaheadPolicy,
};
use readpath_core::request::{Completion, DeviceRequest, Op, RequestId};
use readpath_core::unit::{PageRange, Time};
use serde::Serialize;

/// A read or write of the machine: an operation of the job, or one fault of a mapped operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReadEvent {
    /// Index of the process.
    pub process: u32,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes transferred. Null after a failure.
    pub bytes: Option<u64>,
    /// Start time.
    pub issued_ns: u64,
    /// Completion time.
    pub done_ns: u64,
}

/// A device request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestEvent {
    /// First sector, of 512 bytes.
    pub sector: u64,
    /// Number of sectors.
    pub sectors: u32,
    /// True for a write.
    pub is_write: bool,
    /// Time of submission to the device.
    pub issued_ns: u64,
    /// Completion time. Null while in flight.
    pub done_ns: Option<u64>,
}

/// A call of a readahead policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyCallEvent {
    /// Time of the call.
    pub now_ns: u64,
    /// Number of the open file handle, from 0.
    pub handle: u32,
    /// First requested page.
    pub page: u64,
    /// Number of requested pages.
    pub pages: u64,
    /// Number of requested pages that the policy added.
    pub demand_pages: u64,
    /// Number of other pages that the policy added: the prefetch.
    pub ahead_pages: u64,
}

/// Events of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Events {
    /// Reads and writes in order of completion.
    pub reads: Vec<ReadEvent>,
    /// Device requests in order of submission.
    pub requests: Vec<RequestEvent>,
    /// Calls of the policies in order.
    pub windows: Vec<PolicyCallEvent>,
    /// Number of events that were dropped because a list was full.
    pub dropped: u64,
}

/// The log that the copies of an observer share.
#[derive(Debug)]
struct ObserverLog {
    /// Present time of the simulation.
    now: Time,
    /// The events that [`Observer::take`] has not taken.
    events: Events,
    /// Maximum number of events in each list.
    events_max: usize,
    /// Requests in flight, with their indices in the list.
    in_flight: BTreeMap<RequestId, usize>,
    /// Number of handles opened so far.
    handles: u32,
}

/// Records the events of a simulation. Copies share one log.
#[derive(Clone, Debug)]
pub struct Observer(Arc<Mutex<ObserverLog>>);

impl Observer {
    /// Creates an empty log for at most `events_max` events of each type, with about 40 bytes each.
    /// Further events are only counted ([`Events::dropped`]).
    pub fn new(events_max: usize) -> Observer {
        let (now, events, in_flight) = (Time::ZERO, Events::default(), BTreeMap::new());
        Observer(Arc::new(Mutex::new(ObserverLog {
            now,
            events,
            events_max,
            in_flight,
            handles: 0,
        })))
    }

    /// Wraps the policy of a newly opened file, so that its decisions are recorded.
    pub fn observe_policy(&self, policy: Box<dyn ReadaheadPolicy>) -> Box<dyn ReadaheadPolicy> {
        let mut log = self.log();
        let handle = log.handles;
        log.handles += 1;
        Box::new(ObservedPolicy { policy, observer: self.clone(), handle })
    }

    /// Removes and returns the events since the last call. A request that is in flight now never
    /// gets its completion time: its index is one of the removed list.
    pub fn take(&self) -> Events {
        let mut log = self.log();
        log.in_flight.clear();
        std::mem::take(&mut log.events)
    }

    /// Records the submission of a request to the device. Beyond the maximum number of events it is
    /// counted as dropped.
    pub(crate) fn on_submit(&self, now: Time, request: &DeviceRequest) {
        let event = RequestEvent {
            sector: request.start,
            sectors: request.sectors,
            is_write: request.op == Op::Write,
            issued_ns: now.ns(),
            done_ns: None,
        };
        let mut log = self.log();
        let ObserverLog { events, events_max, in_flight, .. } = &mut *log;
        let requests = &mut events.requests;
        if let Some(index) = push_or_drop(requests, &mut events.dropped, *events_max, event) {
            in_flight.insert(request.id, index);
        }
    }

    /// Records the completion of a read or write that the machine has not released yet. Beyond the
    /// maximum number of events it is counted as dropped.
    pub(crate) fn on_done(&self, now: Time, machine: &Machine, done: &Done) {
        let event = ReadEvent {
            process: done.process.0,
            offset: machine.offset(done.read),
            bytes: done.result.ok(),
            issued_ns: done.started.ns(),
            done_ns: now.ns(),
        };
        let mut log = self.log();
        let ObserverLog { events, events_max, .. } = &mut *log;
        push_or_drop(&mut events.reads, &mut events.dropped, *events_max, event);
    }

    /// Sets the time to `now` and adds the completion times to the recorded requests. A completion
    /// of a dropped request, or of a flush, has no record.
    pub(crate) fn on_time(&self, now: Time, completed: &VecDeque<Completion>) {
        let mut log = self.log();
        log.now = now;
        let ObserverLog { events, in_flight, .. } = &mut *log;
        for completion in completed {
            if let Some(index) = in_flight.remove(&completion.id) {
                events.requests[index].done_ns = Some(completion.at.ns());
            }
        }
    }

    /// Locks the shared log.
    fn log(&self) -> MutexGuard<'_, ObserverLog> {
        self.0.lock().expect("no thread panics while holding the log")
    }
}

/// Appends an event to its list and returns its index, or counts it as dropped if the list is full.
fn push_or_drop<T>(
    list: &mut Vec<T>,
    dropped: &mut u64,
    events_max: usize,
    event: T,
) -> Option<usize> {
    if list.len() >= events_max {
        *dropped += 1;
        return None;
    }
    list.push(event);
    Some(list.len() - 1)
}

/// A readahead policy whose calls are recorded.
struct ObservedPolicy {
    /// The policy that decides.
    policy: Box<dyn ReadaheadPolicy>,
    /// Receiver of the records.
    observer: Observer,
    /// Number of the file handle in the log, in the order of opening from 0.
    handle: u32,
}

impl ObservedPolicy {
    /// Calls the policy by `call`, and records the pages that it added, if `is_recorded` returns
    /// true for its answer. The call is for `page_count` pages from `first_page` on.
    fn call_and_record<T>(
        &mut self,
        first_page: u64,
        page_count: u64,
        pages: &mut dyn PageView,
        call: impl FnOnce(&mut dyn ReadaheadPolicy, &mut dyn PageView) -> T,
        is_recorded: impl FnOnce(&T) -> bool,
    ) -> T {
        let mut counting = CountingPages {
            pages,
            first_page,
            end: first_page + page_count,
            requested_pages: 0,
            prefetched_pages: 0,
        };
        let answer = call(&mut *self.policy, &mut counting);
        let (demand_pages, ahead_pages) = (counting.requested_pages, counting.prefetched_pages);
        if is_recorded(&answer) {
            let mut log = self.observer.log();
            let (now_ns, handle) = (log.now.ns(), self.handle);
            let event = PolicyCallEvent {
                now_ns,
                handle,
                page: first_page,
                pages: page_count,
                demand_pages,
                ahead_pages,
            };
            let ObserverLog { events, events_max, .. } = &mut *log;
            push_or_drop(&mut events.windows, &mut events.dropped, *events_max, event);
        }
        answer
    }
}

// A method that is not passed on would decide by its default.
#[deny(clippy::missing_trait_methods)]
impl ReadaheadPolicy for ObservedPolicy {
    /// Calls the policy for a read, and records the added pages. Pages beyond the end of the file
    /// are not counted as requested.
    fn read(&mut self, read_request: &ReadRequest, pages: &mut dyn PageView) {
        let request = read_request.request().clipped(read_request.file_pages());
        self.call_and_record(
            request.first,
            request.count(),
            pages,
            |policy, pages| policy.read(read_request, pages),
            |()| true,
        );
    }

    /// Calls the policy for a touch of a mapping, and records the added pages.
    fn fault(&mut self, page: u64, read: &ReadRequest, pages: &mut dyn PageView) {
        let fault = |policy: &mut dyn ReadaheadPolicy, pages: &mut dyn PageView| {
            policy.fault(page, read, pages);
        };
        let page_count = 1;
        self.call_and_record(page, page_count, pages, fault, |()| true);
    }

    /// Calls the policy for the next absent page of a read. The call is recorded if the policy
    /// demands one page in its own request ([`Demand::Page`]). The answer [`Demand::Whole`] decides
    /// nothing: the machine reads all absent pages, as without the call.
    fn demand(
        &mut self,
        page: u64,
        read_request: &ReadRequest,
        pages: &mut dyn PageView,
    ) -> Demand {
        let demand = |policy: &mut dyn ReadaheadPolicy, pages: &mut dyn PageView| {
            policy.demand(page, read_request, pages)
        };
        let page_count = 1;
        self.call_and_record(page, page_count, pages, demand, |&demand| demand == Demand::Page)
    }

    /// Passes the advice to the policy.
    fn advise(&mut self, advice: Advice) {
        self.policy.advise(advice);
    }

    /// Returns true if the policy logs its decisions.
    fn keeps_log(&self) -> bool {
        self.policy.keeps_log()
    }

    /// Returns true if the machine limits the policy by its credit.
    fn is_limited_by_credit(&self) -> bool {
        self.policy.is_limited_by_credit()
    }

    /// Returns true if request costs influence the policy.
    fn uses_costs(&self) -> bool {
        self.policy.uses_costs()
    }

    /// Returns true if the policy must be called for every read from the cache.
    fn needs_every_hit(&self) -> bool {
        self.policy.needs_every_hit()
    }

    /// Passes on that reads from the cache were made without a call, the last of them up to byte
    /// `end` of the file.
    fn record_cached_reads(&mut self, end: u64) {
        self.policy.record_cached_reads(end);
    }

    /// Passes on that the handle was closed, with the last page read, if it is known.
    fn on_close(&mut self, last_page: Option<u64>, file_pages: u64, device: &mut DeviceEvidence) {
        self.policy.on_close(last_page, file_pages, device);
    }
}

/// Wraps a page table and counts added pages, within and outside the requested range.
struct CountingPages<'a> {
    /// The page table of the call.
    pages: &'a mut dyn PageView,
    /// First page of the requested range.
    first_page: u64,
    /// End of the requested range, exclusive.
    end: u64,
    /// Number of pages added within the range.
    requested_pages: u64,
    /// Number of pages added outside of it.
    prefetched_pages: u64,
}

impl CountingPages<'_> {
    /// Counts the pages of a range that were added, within the requested range and outside of it.
    /// Pages outside the requested range are the prefetch.
    fn count_added(&mut self, added: PageRange) {
        let requested_pages =
            added.end.min(self.end).saturating_sub(added.first.max(self.first_page));
        self.requested_pages += requested_pages;
        self.prefetched_pages += added.count() - requested_pages;
    }
}

// Only `add` and `add_absent` count. All other calls are passed on unchanged. A method that is not
// passed on would have the effect of its default.
#[deny(clippy::missing_trait_methods)]
impl PageView for CountingPages<'_> {
    /// Returns true if the page is in the cache, or being read into it.
    fn is_cached(&self, page: u64) -> bool {
        self.pages.is_cached(page)
    }

    /// Returns true if the page is in the cache and its data has arrived.
    fn is_filled(&self, page: u64) -> bool {
        self.pages.is_filled(page)
    }

    /// Returns true if the page was prefetched and is not used yet.
    fn is_unused(&self, page: u64) -> bool {
        self.pages.is_unused(page)
    }

    /// Returns the evidence of the device and of the file.
    fn evidence(&mut self) -> Evidence<'_> {
        self.pages.evidence()
    }

    /// Returns the folio of a cached page; `None` for any other page.
    fn folio(&self, page: u64) -> Option<Folio> {
        self.pages.folio(page)
    }

    /// Starts a window: pages added from here on reach the device in separate requests.
    fn begin_window(&mut self) {
        self.pages.begin_window();
    }

    /// Returns the folio of a page with the readahead mark; `None` without it.
    fn marked(&self, page: u64) -> Option<Folio> {
        self.pages.marked(page)
    }

    /// Removes the readahead mark from a folio.
    fn clear_mark(&mut self, folio: Folio) {
        self.pages.clear_mark(folio);
    }

    /// Puts a readahead mark on a cached page.
    fn mark(&mut self, page: u64) {
        self.pages.mark(page);
    }

    /// Passes the folio on. Counts its pages inside and outside the range and returns true if it
    /// was added.
    fn add(&mut self, folio: Folio, is_marked: bool) -> bool {
        let is_added = self.pages.add(folio, is_marked);
        if is_added {
            self.count_added(folio.range());
        }
        is_added
    }

    /// Passes the range on. Counts its absent pages that were added, inside and outside the
    /// requested range. Returns true if all were added.
    fn add_absent(&mut self, range: PageRange, is_marked: bool) -> bool {
        // The policy's page table does not report the pages that it adds.
        let absent: Vec<u64> = range.pages().filter(|&page| !self.pages.is_cached(page)).collect();
        let are_all_added = self.pages.add_absent(range, is_marked);
        for page in absent {
            if self.pages.is_cached(page) {
                self.count_added(PageRange::new(page, 1));
            }
        }
        are_all_added
    }

    /// Passes on that unused pages of a range no longer count as prefetched.
    fn forget_unused(&mut self, range: PageRange) {
        self.pages.forget_unused(range);
    }

    /// Returns the number of cached pages directly before a page, at most `pages_max`.
    fn cached_run_before(&self, page: u64, pages_max: u64) -> u64 {
        self.pages.cached_run_before(page, pages_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use readpath_core::policy::Spec;
    use readpath_core::readahead::{POLICIES, ReadaheadLimits, build};
    use readpath_core::request::Outcome;

    /// The properties of a policy by which the machine decides for it.
    fn properties(policy: &dyn ReadaheadPolicy) -> [bool; 4] {
        [
            policy.keeps_log(),
            policy.is_limited_by_credit(),
            policy.uses_costs(),
            policy.needs_every_hit(),
        ]
    }

    #[test]
    fn observed_policy_has_the_properties_of_the_policy() {
        let limits = ReadaheadLimits::default();
        for policy in POLICIES {
            let build = || build(&Spec::plain(policy.name), &limits).unwrap();
            let observed = Observer::new(0).observe_policy(build());
            assert_eq!(properties(&*observed), properties(&*build()), "{}", policy.name);
        }
    }

    /// Request 1 is in flight at the first call, and request 2 has its index later.
    #[test]
    fn completion_of_a_request_taken_in_flight_marks_no_later_request() {
        let observer = Observer::new(10);
        let request = |id| DeviceRequest { id: RequestId(id), op: Op::Read, start: 0, sectors: 8 };
        let completion = |id, at| Completion::at(Time(at), RequestId(id), Outcome::Done);
        observer.on_submit(Time(1), &request(1));
        assert_eq!(observer.take().requests.len(), 1);
        observer.on_time(Time(2), &[completion(1, 2)].into());
        observer.on_submit(Time(3), &request(1));
        observer.take();
        observer.on_submit(Time(4), &request(2));
        observer.on_time(Time(6), &[completion(1, 5), completion(2, 6)].into());
        let times: Vec<_> =
            observer.take().requests.iter().map(|event| (event.issued_ns, event.done_ns)).collect();
        assert_eq!(times, [(4, Some(6))]);
    }
}
