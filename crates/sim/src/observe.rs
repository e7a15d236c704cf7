//! What went on in a run, moment by moment: each read, each request of the
//! device, each decision of a readahead law, with its time. For plots, and for
//! finding out why a figure is what it is.
//!
//! An [`Observer`] is told by the world that it looks at
//! ([`ModelledWorld::observed_by`](crate::world::ModelledWorld::observed_by)), and stands around any
//! law ([`Observer::watch`]), letting everything pass unchanged. A law has no clock, so the world
//! tells the time to the log, and what a law does is noted with the time of its call.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use readpath_core::machine::{Done, Machine};
use readpath_core::readahead::{
    Advice, Demand, DeviceEvidence, Evidence, Folio, PageView, ReadRequest, ReadaheadPolicy,
};
use readpath_core::request::{Completion, DeviceRequest, Op, RequestId};
use readpath_core::unit::Time;
use serde::Serialize;

/// One read or write of the machine: an operation of the job, or one fault of a mapped one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReadEvent {
    /// The process, by its place in the run.
    pub process: u32,
    /// The first byte, in its file.
    pub offset: u64,
    /// Bytes moved; null when it failed.
    pub bytes: Option<u64>,
    /// When it began.
    pub issued_ns: u64,
    /// When its bytes were there.
    pub done_ns: u64,
}

/// One request of the device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestEvent {
    /// The first sector, of 512 bytes.
    pub sector: u64,
    /// How many sectors.
    pub sectors: u32,
    /// Whether it was a write.
    pub is_write: bool,
    /// When the device was given it.
    pub issued_ns: u64,
    /// When the device was done with it; null while it isn't.
    pub done_ns: Option<u64>,
}

/// One call of a readahead law.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyCallEvent {
    /// When.
    pub now_ns: u64,
    /// Which opening of a file, counted from 0.
    pub handle: u32,
    /// The first page asked for.
    pub page: u64,
    /// How many pages are asked for.
    pub pages: u64,
    /// How many of the pages that the law added were asked for.
    pub demand_pages: u64,
    /// How many pages the law added beyond them.
    pub ahead_pages: u64,
}

/// What was seen of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Events {
    /// The reads and writes, in the order in which they ended.
    pub reads: Vec<ReadEvent>,
    /// The device's requests, in the order in which it was given them.
    pub requests: Vec<RequestEvent>,
    /// The calls of the laws, in their order.
    pub windows: Vec<PolicyCallEvent>,
    /// Events that came when a list was full, and are in none.
    pub dropped: u64,
}

#[derive(Debug)]
struct ObserverLog {
    now: Time,
    events: Events,
    /// The most events in each of the lists.
    events_max: usize,
    /// Requests in the device, and their places in the list.
    under_way: BTreeMap<RequestId, usize>,
    handles: u32,
}

/// Sees a run; its copies share one log.
#[derive(Clone, Debug)]
pub struct Observer(Arc<Mutex<ObserverLog>>);

impl Observer {
    /// An empty log with room for `events_max` events of each kind, of about 40 bytes each.
    pub fn new(events_max: usize) -> Observer {
        let (now, events, under_way) = (Time::ZERO, Events::default(), BTreeMap::new());
        Observer(Arc::new(Mutex::new(ObserverLog {
            now,
            events,
            events_max,
            under_way,
            handles: 0,
        })))
    }

    /// The law of a file that is opened now, seen by this observer.
    pub fn watch(&self, policy: Box<dyn ReadaheadPolicy>) -> Box<dyn ReadaheadPolicy> {
        let mut log = self.log();
        let handle = log.handles;
        log.handles += 1;
        Box::new(ObservedPolicy { policy, observer: self.clone(), handle })
    }

    /// What was seen since the last call.
    pub fn take(&self) -> Events {
        std::mem::take(&mut self.log().events)
    }

    /// The device was given a request.
    pub(crate) fn submitted(&self, now: Time, request: &DeviceRequest) {
        let event = RequestEvent {
            sector: request.start,
            sectors: request.sectors,
            is_write: request.op == Op::Write,
            issued_ns: now.ns(),
            done_ns: None,
        };
        let mut log = self.log();
        let ObserverLog { events, events_max, under_way, .. } = &mut *log;
        if let Some(at) = note(&mut events.requests, &mut events.dropped, *events_max, event) {
            under_way.insert(request.id, at);
        }
    }

    /// A process takes the bytes of what is done.
    pub(crate) fn taken(&self, now: Time, machine: &Machine, done: &Done) {
        let event = ReadEvent {
            process: done.process.0,
            offset: machine.offset(done.read),
            bytes: done.result.ok(),
            issued_ns: done.started.ns(),
            done_ns: now.ns(),
        };
        let mut log = self.log();
        let ObserverLog { events, events_max, .. } = &mut *log;
        note(&mut events.reads, &mut events.dropped, *events_max, event);
    }

    /// It is now `now`, and these were completed.
    pub(crate) fn on_time(&self, now: Time, completed: &VecDeque<Completion>) {
        let mut log = self.log();
        log.now = now;
        let ObserverLog { events, under_way, .. } = &mut *log;
        for completion in completed {
            if let Some(at) = under_way.remove(&completion.id) {
                events.requests[at].done_ns = Some(completion.at.ns());
            }
        }
    }

    fn log(&self) -> MutexGuard<'_, ObserverLog> {
        self.0.lock().expect("nobody panics while holding the log")
    }
}

/// Adds an event to its list, unless that is full.
fn note<T>(list: &mut Vec<T>, dropped: &mut u64, events_max: usize, event: T) -> Option<usize> {
    if list.len() >= events_max {
        *dropped += 1;
        return None;
    }
    list.push(event);
    Some(list.len() - 1)
}

/// A law that an observer looks at.
struct ObservedPolicy {
    policy: Box<dyn ReadaheadPolicy>,
    observer: Observer,
    handle: u32,
}

impl ObservedPolicy {
    /// Has the law look at some pages, and notes what it added if `is_noted` says so of its answer.
    fn call<T>(
        &mut self,
        page: u64,
        count: u64,
        pages: &mut dyn PageView,
        call: impl FnOnce(&mut dyn ReadaheadPolicy, &mut dyn PageView) -> T,
        is_noted: impl FnOnce(&T) -> bool,
    ) -> T {
        let mut counting = CountingPages { pages, page, end: page + count, demand: 0, ahead: 0 };
        let answer = call(&mut *self.policy, &mut counting);
        let (demand_pages, ahead_pages) = (counting.demand, counting.ahead);
        if is_noted(&answer) {
            let mut log = self.observer.log();
            let (now_ns, handle) = (log.now.ns(), self.handle);
            let event =
                PolicyCallEvent { now_ns, handle, page, pages: count, demand_pages, ahead_pages };
            let ObserverLog { events, events_max, .. } = &mut *log;
            note(&mut events.windows, &mut events.dropped, *events_max, event);
        }
        answer
    }
}

impl ReadaheadPolicy for ObservedPolicy {
    fn read(&mut self, ask: &ReadRequest, pages: &mut dyn PageView) {
        let request = ask.request().clipped(ask.file_pages());
        self.call(
            request.first,
            request.count(),
            pages,
            |policy, pages| policy.read(ask, pages),
            |()| true,
        );
    }

    fn fault(&mut self, page: u64, ask: &ReadRequest, pages: &mut dyn PageView) {
        self.call(page, 1, pages, |policy, pages| policy.fault(page, ask, pages), |()| true);
    }

    fn demand(&mut self, page: u64, ask: &ReadRequest, pages: &mut dyn PageView) -> Demand {
        let demand = |policy: &mut dyn ReadaheadPolicy, pages: &mut dyn PageView| {
            policy.demand(page, ask, pages)
        };
        self.call(page, 1, pages, demand, |&demand| demand == Demand::Page)
    }

    fn advise(&mut self, advice: Advice) {
        self.policy.advise(advice);
    }

    fn sees_every_hit(&self) -> bool {
        self.policy.sees_every_hit()
    }

    fn passed(&mut self, end: u64) {
        self.policy.passed(end);
    }

    fn closed(&mut self, last_page: Option<u64>, file_pages: u64, device: &mut DeviceEvidence) {
        self.policy.closed(last_page, file_pages, device);
    }
}

/// Pages that count what is added to them, inside and outside of the demand.
struct CountingPages<'a> {
    pages: &'a mut dyn PageView,
    page: u64,
    /// The page after the demand: exclusive.
    end: u64,
    demand: u64,
    ahead: u64,
}

impl PageView for CountingPages<'_> {
    fn is_cached(&self, page: u64) -> bool {
        self.pages.is_cached(page)
    }

    fn is_filled(&self, page: u64) -> bool {
        self.pages.is_filled(page)
    }

    fn is_unused(&self, page: u64) -> bool {
        self.pages.is_unused(page)
    }

    fn evidence(&mut self) -> Evidence<'_> {
        self.pages.evidence()
    }

    fn folio(&self, page: u64) -> Option<Folio> {
        self.pages.folio(page)
    }

    fn begin_window(&mut self) {
        self.pages.begin_window();
    }

    fn marked(&self, page: u64) -> Option<Folio> {
        self.pages.marked(page)
    }

    fn clear_mark(&mut self, folio: Folio) {
        self.pages.clear_mark(folio);
    }

    fn add(&mut self, folio: Folio, is_marked: bool) -> bool {
        let is_added = self.pages.add(folio, is_marked);
        if is_added {
            let range = folio.range();
            let asked = range.end.min(self.end).saturating_sub(range.first.max(self.page));
            self.demand += asked;
            self.ahead += range.count() - asked;
        }
        is_added
    }
}
