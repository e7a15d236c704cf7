//! The state of a store, shared by its readers and its fetches.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{Error, ObjectStore};

use super::blocks::Disk;
use super::errors::{changed_during_stream, copy_of, dropped_error, own_error};
use super::objects::{Found, Object, Objects, generation_of};
use super::options::StoreOptions;
use super::runtime::Runtime;
use crate::planner::{
    Event, Fetch, FetchId, FileId, Generation, Planner, PlannerError, ReadFailure, ReadId, Time,
};
use crate::promise::Promise;

/// A store with its planner.
pub(super) struct Shared<S> {
    /// The underlying store.
    pub(super) store: S,
    /// Runs the tasks of fetches and openings, and has the clock.
    pub(super) runtime: Box<dyn Runtime>,
    pub(super) options: StoreOptions,
    /// The disk tier below the page cache; without effect if the options name none.
    pub(super) disk: Disk,
    /// Starts the task of a fetch.
    start_fetch: StartFetch<S>,
    state: Mutex<State>,
}

/// Starts the task of a fetch, whose first bytes come from the body, if there is one.
pub(super) type StartFetch<S> = fn(&Arc<Shared<S>>, Fetch, Path, Option<Body>);

/// The body of an answer, which covers this range of the object.
pub(super) struct Body {
    pub(super) range: Range<u64>,
    /// Its chunks, in order. Their total length is not checked yet.
    pub(super) stream: BoxStream<'static, Result<Bytes, Error>>,
}

/// The end of a request for the version of an object.
pub(super) type Opening = Promise<Result<(), Arc<Error>>>;

/// The state behind the lock. No task waits while it holds the lock.
pub(super) struct State {
    /// Page cache, readahead and scheduler. It fetches nothing itself.
    pub(super) planner: Planner,
    /// Known objects, each with its file in the planner.
    pub(super) objects: Objects,
    /// Requests for the version of an object.
    pub(super) openings: BTreeMap<Path, Opening>,
    /// The body of the request that opened a file, until the end of the change of the state. A
    /// fetch of the file that begins within the body takes it over, if there is one.
    pub(super) bodies: BTreeMap<FileId, Body>,
    /// Reads whose result no reader has taken.
    reads: BTreeMap<ReadId, ReadSlot>,
    /// Errors of fetches, by the reason given to the planner.
    errors: VecDeque<(i32, Arc<Error>)>,
    /// The reason given last: failures are numbered.
    last_reason: i32,
    /// True while a task is due that begins the reads that have started: see [`BeginReads`].
    is_begin_due: bool,
    /// True once the runtime has dropped a task: it runs no more.
    pub(super) has_ended: bool,
}

/// Number of errors that are kept for readers that have not seen them. Chosen.
const ERRORS_MAX: usize = 1024;

/// A read whose reader waits, or has not been polled since its end.
enum ReadSlot {
    /// With the waker of its reader; `None` before the first poll.
    Waiting(Option<Waker>),
    Ended(Result<Bytes, ReadFailure>),
}

/// Work that follows from a change of the state, to be done without the lock.
#[derive(Default)]
struct Actions {
    /// Fetches to start, each with its object, and a body that has its first bytes.
    fetches: Vec<(Fetch, Path, Option<Body>)>,
    /// Wakers of the readers whose reads have ended.
    wakers: Vec<Waker>,
    /// Bodies that no fetch has taken over.
    unused: BTreeMap<FileId, Body>,
}

impl<S: ObjectStore> Shared<S> {
    /// Creates the state of a store without known objects.
    pub(super) fn new(
        store: S,
        options: StoreOptions,
        runtime: Box<dyn Runtime>,
        start_fetch: StartFetch<S>,
    ) -> Result<Shared<S>, PlannerError> {
        let state = State {
            planner: Planner::new(&options.planner)?,
            objects: Objects::default(),
            openings: BTreeMap::new(),
            bodies: BTreeMap::new(),
            reads: BTreeMap::new(),
            errors: VecDeque::new(),
            last_reason: 0,
            is_begin_due: false,
            has_ended: false,
        };
        let disk = options.disk_tier();
        Ok(Shared { store, runtime, options, disk, start_fetch, state: Mutex::new(state) })
    }

    /// The time of the runtime.
    pub(super) fn now(&self) -> Time {
        Time(u64::try_from(self.runtime.now().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Locks the state, for a change that causes no fetch and ends no read.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with the state locked")
    }

    /// Changes the state; then starts the fetches that follow, and wakes the readers.
    pub(super) fn run<R>(self: &Arc<Self>, change: impl FnOnce(&mut State, Time) -> R) -> R {
        let now = self.now();
        self.change(self.lock(), now, change)
    }

    /// As [`run`](Shared::run), for a destructor. No effect after a panic with the state locked: a
    /// second panic would abort the process.
    pub(super) fn run_in_drop(self: &Arc<Self>, change: impl FnOnce(&mut State, Time)) {
        let now = self.now();
        if let Ok(state) = self.state.lock() {
            self.change(state, now, change);
        }
    }

    /// Changes the locked state, as [`run`](Shared::run) does.
    fn change<R>(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        now: Time,
        change: impl FnOnce(&mut State, Time) -> R,
    ) -> R {
        let result = change(&mut state, now);
        let actions = state.actions(now);
        drop(state);
        for (fetch, location, body) in actions.fetches {
            (self.start_fetch)(self, fetch, location, body);
        }
        actions.wakers.into_iter().for_each(Waker::wake);
        drop(actions.unused);
        result
    }

    /// Starts the reads of these ranges of an object, if it still has this version. `None` if not.
    /// The reads begin with the next change of the state, at the latest in a task of the runtime.
    ///
    /// # Errors
    /// The planner has no place for the reads: none of them has started.
    pub(super) fn start(
        self: &Arc<Self>,
        location: &Path,
        object: &Object,
        ranges: &[Range<u64>],
    ) -> Result<Option<Vec<ReadTicket<S>>>, PlannerError> {
        let now = self.now();
        let mut state = self.lock();
        let known = state.objects.use_object(location);
        if known.is_none_or(|known| known.file != object.file) {
            return Ok(None);
        }
        let reads = state.start(now, object, ranges)?;
        let is_begin_due = std::mem::replace(&mut state.is_begin_due, true);
        drop(state);
        if !is_begin_due {
            // The reads begin in a task of their own, together with the reads that other futures of
            // this task start now: the planner puts them in order.
            let begin = BeginReads(Arc::clone(self));
            self.runtime.spawn(Box::pin(async move { drop(begin) }));
        }
        let ticket = |read| ReadTicket::new(self, read);
        Ok(Some(reads.into_iter().map(ticket).collect()))
    }

    /// The error of a failed read.
    pub(super) fn error_of(&self, failure: ReadFailure, location: &Path) -> Error {
        match failure {
            ReadFailure::Fetch { reason, .. } => match self.lock().error(reason) {
                Some(error) => copy_of(&error, location),
                // Newer errors have displaced it.
                None => own_error(format!("{location}: {failure}")),
            },
            ReadFailure::Changed | ReadFailure::Closed => changed_during_stream(location),
            _ => own_error(format!("{location}: {failure}")),
        }
    }
}

impl State {
    /// Starts the reads of these ranges: all, or none after an error. The object must have a file
    /// in the planner; otherwise the error is `NotOpen`.
    pub(super) fn start(
        &mut self,
        now: Time,
        object: &Object,
        ranges: &[Range<u64>],
    ) -> Result<Vec<ReadId>, PlannerError> {
        let (_, handle) = object.file.ok_or(PlannerError::NotOpen)?;
        let reads = self.planner.start_many(now, handle, ranges)?;
        self.reads.extend(reads.iter().map(|&read| (read, ReadSlot::Waiting(None))));
        Ok(reads)
    }

    /// Polls the planner, and returns the work that is due. Ended reads leave the planner at once:
    /// their pages are not pinned until the reader is polled. After the end of the runtime each new
    /// fetch fails.
    fn actions(&mut self, now: Time) -> Actions {
        let mut actions = Actions::default();
        while let Some(event) = self.planner.poll(now) {
            match event {
                Event::Fetch(fetch) if self.has_ended => self.fail(now, fetch.id, dropped_error()),
                Event::Fetch(fetch) => {
                    let location = self.objects.location(fetch.file);
                    let location = location.expect("an open file is a known object").clone();
                    // The body of the opening request, if the fetch begins in its range.
                    let first = fetch.range.start;
                    let body = self.bodies.get(&fetch.file);
                    let fits = body.is_some_and(|body| body.range.contains(&first));
                    let body = match fits {
                        true => self.bodies.remove(&fetch.file),
                        false => None,
                    };
                    actions.fetches.push((fetch, location, body));
                }
                Event::Ended(read) => {
                    let taken = self.planner.take(now, read).expect("the read has ended");
                    let slot = self.reads.get_mut(&read).expect("an abandoned read has no event");
                    let ended = ReadSlot::Ended(taken.map(Bytes::from));
                    if let ReadSlot::Waiting(Some(waker)) = std::mem::replace(slot, ended) {
                        actions.wakers.push(waker);
                    }
                }
            }
        }
        // Dropped by the caller, without the lock.
        actions.unused = std::mem::take(&mut self.bodies);
        actions
    }

    /// Fails a fetch with an error for its readers. The planner gets the number under which the
    /// error is kept. The oldest error is dropped when there are [`ERRORS_MAX`].
    pub(super) fn fail(&mut self, now: Time, fetch: FetchId, error: Error) {
        if self.errors.len() == ERRORS_MAX {
            self.errors.pop_front();
        }
        self.last_reason = self.last_reason.wrapping_add(1);
        self.errors.push_back((self.last_reason, Arc::new(error)));
        self.planner.fail(now, fetch, self.last_reason);
    }

    /// The error with which a fetch failed; `None` if it is no longer kept.
    fn error(&self, reason: i32) -> Option<Arc<Error>> {
        let found = self.errors.iter().rev().find(|(other, _)| *other == reason);
        found.map(|(_, error)| Arc::clone(error))
    }

    /// Sets the version of an object. The version that a cached object has already is only
    /// confirmed. Pages of another version are dropped. Before a new object is added, the least
    /// recently used ones are forgotten until there are fewer than `objects_max`. Objects with
    /// reads in progress stay, even if there are more.
    pub(super) fn install(
        &mut self,
        now: Time,
        location: &Path,
        mut found: Found,
        objects_max: usize,
    ) {
        let (generation, bytes) = (generation_of(&found.meta), found.meta.size);
        if let Some(Object { file: Some((file, _)), .. }) = self.objects.find(location)
            && self.planner.generation(*file) == generation.as_ref()
            && self.planner.file_bytes(*file) == Some(bytes)
        {
            return self.objects.confirm(*file, found.checked_at);
        }
        self.close(now, location);
        while self.objects.count() >= objects_max.max(1) {
            let planner = &self.planner;
            let is_idle =
                |object: &Object| object.file.is_none_or(|(file, _)| !planner.has_reads(file));
            let Some(oldest) = self.objects.oldest(is_idle) else { break };
            self.close(now, &oldest);
        }
        // A version without a strong ETag is cached only if it was two seconds old when the request
        // began: a later write could look alike before that.
        let is_settled = found.checked_at >= found.settles_at;
        let file = generation.filter(|_| is_settled).and_then(|generation| {
            let file = self.planner.open_file(bytes, generation).ok()?;
            Some((file, self.planner.open(file).expect("the file was opened just now")))
        });
        if is_settled && file.is_none() {
            // The planner has no place for the file. The next check of the version tries again.
            found.settles_at = Time(u64::MAX);
        }
        self.objects.add(location.clone(), found, file);
    }

    /// Forgets an object and its pages. Reads in progress end with a failure, and requests for its
    /// version that have begun before are not used.
    pub(super) fn forget(&mut self, now: Time, location: &Path) {
        self.openings.remove(location);
        self.close(now, location);
    }

    /// As [`forget`](State::forget), if the object still has this version.
    pub(super) fn forget_version(&mut self, now: Time, location: &Path, version: &Generation) {
        let file = self.objects.find(location).and_then(|object| object.file);
        if file.is_some_and(|(file, _)| self.planner.generation(file) == Some(version)) {
            self.forget(now, location);
        }
    }

    /// Makes the next get of an object ask for its version. Answers to earlier requests do not
    /// count. The pages stay, if the version is the same.
    pub(super) fn doubt(&mut self, now: Time, location: &Path) {
        self.openings.remove(location);
        self.objects.doubt(location, now);
    }

    /// Removes an object, and closes its file.
    fn close(&mut self, now: Time, location: &Path) {
        if let Some((file, handle)) = self.objects.remove(location) {
            self.planner.close(handle).expect("the handle of a known object is open");
            self.planner.close_file(now, file).expect("its only handle was closed");
        }
    }
}

/// Begins the reads that have started when it is dropped: in its task, or with a runtime that has
/// shut down.
struct BeginReads<S: ObjectStore>(Arc<Shared<S>>);

impl<S: ObjectStore> Drop for BeginReads<S> {
    /// Begins the reads: each change of the state polls the planner, which begins them.
    fn drop(&mut self) {
        self.0.run_in_drop(|state, _| state.is_begin_due = false);
    }
}

/// A read that has started. The future returns its bytes. Dropping it abandons the read: its
/// fetches go on for others.
pub(super) struct ReadTicket<S: ObjectStore> {
    shared: Arc<Shared<S>>,
    /// `None` after the end.
    read: Option<ReadId>,
}

impl<S: ObjectStore> ReadTicket<S> {
    /// A ticket for a read of this state.
    pub(super) fn new(shared: &Arc<Shared<S>>, read: ReadId) -> ReadTicket<S> {
        ReadTicket { shared: Arc::clone(shared), read: Some(read) }
    }
}

impl<S: ObjectStore> Future for ReadTicket<S> {
    type Output = Result<Bytes, ReadFailure>;

    /// Returns the result of an ended read. A waiting read keeps the waker of the latest poll.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let read = self.read.expect("a read is not polled after its end");
        let mut state = self.shared.lock();
        let slot = state.reads.get_mut(&read).expect("the slot of an open read");
        if let ReadSlot::Waiting(waker) = slot {
            let is_same = waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker()));
            let old = match is_same {
                true => None,
                false => waker.replace(context.waker().clone()),
            };
            // The destructor of a waker may run any code: not with the state locked.
            drop(state);
            drop(old);
            return Poll::Pending;
        }
        let Some(ReadSlot::Ended(result)) = state.reads.remove(&read) else {
            unreachable!("the slot is not waiting")
        };
        drop(state);
        self.read = None;
        Poll::Ready(result)
    }
}

impl<S: ObjectStore> Drop for ReadTicket<S> {
    /// Abandons a read whose result was not returned.
    fn drop(&mut self) {
        if let Some(read) = self.read {
            let mut slot = None;
            self.shared.run_in_drop(|state, now| {
                slot = state.reads.remove(&read);
                state.planner.abandon(now, read);
            });
            // With its waker, after the state is unlocked.
            drop(slot);
        }
    }
}

impl<S: ObjectStore> fmt::Debug for Shared<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { store, options, runtime, .. } = self;
        let mut parts = f.debug_struct("Shared");
        parts.field("store", store).field("options", options).field("runtime", runtime);
        parts.finish_non_exhaustive()
    }
}
