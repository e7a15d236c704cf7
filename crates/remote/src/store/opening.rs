//! Openings: an *opening* is a request for the version of an object, whose bytes are used too. Each
//! object has at most one at a time: all readers that need its version wait for the same one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream};
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, GetResult, GetResultPayload, ObjectStore, Result};

use super::answers::body_of;
use super::errors::{copy_of, dropped_error, may_succeed_later};
use super::objects::{Found, Object, settles_at};
use super::ranges::{first_part, first_pieces};
use super::shared::{Body, Opening, ReadTicket, Shared, State};
use crate::planner::Time;

/// The bytes that a reader needs, which the first request for an object may bring.
#[derive(Clone, Debug)]
pub(super) enum Need {
    /// The version alone.
    Version,
    /// A range.
    Range(GetRange),
    /// The whole object.
    Whole,
}

/// Part of the answer of an opening request that belongs to the reader who caused it.
pub(super) enum FirstAnswer<S: ObjectStore> {
    /// The reads of its range have begun, of this version of the object.
    Reads(Object, Vec<ReadTicket<S>>),
    /// An object that is too large for the cache, as the store returned it.
    Whole(GetResult),
}

/// Place where the opening task leaves the first answer for its reader. It is dropped with the
/// reader, and its reads are then abandoned.
type AnswerSlot<S> = Arc<Mutex<Option<FirstAnswer<S>>>>;

/// A step of a lookup.
enum Step<S: ObjectStore> {
    /// The known version is current enough.
    Known(Object),
    /// Another reader's request is in flight: its end is awaited.
    Wait(Opening),
    /// A new request is due, by this task.
    Open(OpeningTask<S>),
}

impl<S: ObjectStore> Shared<S> {
    /// The object in a version that was the current one at `since` or later. Requests it if needed.
    /// Also returns the first answer, if the request of this call brought one. `None` if the object
    /// is written again and again meanwhile.
    ///
    /// # Errors
    /// The request for the version has failed.
    pub(super) async fn lookup(
        self: &Arc<Self>,
        location: &Path,
        need: Need,
        since: Time,
    ) -> Result<Option<(Object, Option<FirstAnswer<S>>)>> {
        let slot: AnswerSlot<S> = Arc::default();
        // One step asks the store, and the next one uses its answer.
        for _ in 0..=self.options.repeats_max.saturating_add(1) {
            let step = self.look(location, &need, since, &slot);
            let promise = match step {
                Step::Known(object) => {
                    let answer = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
                    return Ok(Some((object, answer)));
                }
                Step::Wait(promise) => promise,
                Step::Open(task) => {
                    let promise = task.promise.clone();
                    self.runtime.spawn(task.run().boxed());
                    promise
                }
            };
            promise.wait().await.map_err(|error| copy_of(&error, location))?;
        }
        Ok(None)
    }

    /// The next step of a lookup: a known version, the request of another reader, or a new request.
    /// The new request needs only the version if the bytes may be cached: the object is known, or
    /// the disk tier has bytes of it.
    fn look(
        self: &Arc<Self>,
        location: &Path,
        need: &Need,
        since: Time,
        slot: &AnswerSlot<S>,
    ) -> Step<S> {
        let (started, unix_started) = (self.now(), self.runtime.unix_time());
        let mut state = self.lock();
        let known = state.objects.use_object(location);
        let is_known = known.is_some();
        if let Some(object) = known
            && object.is_current(since, started)
        {
            return Step::Known(object.clone());
        }
        if let Some(opening) = state.openings.get(location) {
            return Step::Wait(opening.clone());
        }
        let needs_version_only = is_known || self.disk.has(location);
        let promise = Opening::new();
        state.openings.insert(location.clone(), promise.clone());
        Step::Open(OpeningTask {
            shared: Arc::clone(self),
            location: location.clone(),
            need: if needs_version_only { Need::Version } else { need.clone() },
            started,
            unix_started,
            slot: Arc::clone(slot),
            promise,
        })
    }
}

/// The task of an opening request.
struct OpeningTask<S: ObjectStore> {
    shared: Arc<Shared<S>>,
    location: Path,
    /// The bytes that the request is to bring besides the version.
    need: Need,
    /// Time of the start, by the clock of the runtime: the answered version was current then or
    /// later.
    started: Time,
    /// Time of the start since the Unix epoch.
    unix_started: Duration,
    slot: AnswerSlot<S>,
    /// Set at the end of the request. All readers that need the version wait for it.
    promise: Opening,
}

impl<S: ObjectStore> OpeningTask<S> {
    /// Requests the object, and installs its version.
    async fn run(self) {
        let result = self.request().await;
        let installed = match result {
            Ok(result) => {
                self.install(result);
                Ok(())
            }
            Err(error) => {
                self.shared.run(|state, now| {
                    // False if the object was forgotten since, or has a newer request.
                    if state.is_opening(&self.location, &self.promise) {
                        match error {
                            // The object is gone: its pages go too.
                            Error::NotFound { .. } => state.forget(now, &self.location),
                            _ => drop(state.openings.remove(&self.location)),
                        }
                    }
                });
                Err(error)
            }
        };
        self.promise.set(installed.map_err(Arc::new));
    }

    /// The answer of the store: with bytes if the reader needs some, or else by a `head`. The first
    /// part of a range suffices, as its bytes are for the first fetch. A `head` also follows if the
    /// length is needed to know the beginning of the range.
    async fn request(&self) -> Result<GetResult> {
        let part_bytes = self.shared.options.planner.part_bytes;
        let options = match &self.need {
            Need::Version => None,
            Need::Whole => Some(GetOptions::default()),
            Need::Range(range) => first_part(range, part_bytes)
                .map(|range| GetOptions { range: Some(range), ..GetOptions::default() }),
        };
        if let Some(options) = options {
            match self.shared.store.get_opts(&self.location, options).await {
                // Perhaps the object is empty, or the store has no ranges of this kind: the `head`
                // below decides.
                Err(Error::NotSupported { .. } | Error::NotImplemented { .. }) => {}
                // Tried again below, with the retries of the `head`.
                Err(error) if may_succeed_later(&error) => {}
                result => return result,
            }
        }
        let mut retries_left = self.shared.options.retries_max;
        loop {
            let options = GetOptions { head: true, ..GetOptions::default() };
            match self.shared.store.get_opts(&self.location, options).await {
                Err(error) if may_succeed_later(&error) && retries_left > 0 => retries_left -= 1,
                // A store that returns a body all the same: it is not needed.
                Ok(result) => {
                    let payload = GetResultPayload::Stream(stream::empty().boxed());
                    return Ok(GetResult { payload, range: 0..0, ..result });
                }
                result => return result,
            }
        }
    }

    /// Installs the version of an answer, unless a write has ended meanwhile. Starts the reads of
    /// the reader who caused it: a fetch that begins in the answer's range takes its bytes. A
    /// whole object that is too large for the cache goes to that reader as the store returned it.
    /// In all other cases no answer is left, and the reader goes on with the known object.
    fn install(&self, result: GetResult) {
        let cached_bytes_max = self.shared.options.cached_bytes_max();
        let (meta, attributes) = (result.meta.clone(), result.attributes.clone());
        let objects_max = self.shared.options.objects_max;
        // `None` if the reader needs only the version, or a range that is not within the object.
        let needed = match &self.need {
            Need::Version => None,
            Need::Whole => Some(0..meta.size),
            Need::Range(range) => range.as_range(meta.size).ok(),
        };
        let is_whole = matches!(self.need, Need::Whole);
        let settles_at = settles_at(&meta, self.started, self.unix_started);
        let found = Found { meta, attributes, checked_at: self.started, settles_at };
        let exceeds_cache =
            needed.as_ref().is_some_and(|range| range.end - range.start > cached_bytes_max);
        let mut answer = Some(result);
        let reads = self.shared.run(|state, now| {
            if !state.is_opening(&self.location, &self.promise) {
                // A write has ended since the request: its answer may be the older version.
                return None;
            }
            state.openings.remove(&self.location);
            state.install(now, &self.location, found, objects_max);
            let object = state.objects.find(&self.location).expect("installed just now").clone();
            // `object.file` is the file and its handle in the planner.
            let (Some((file, _)), Some(range), false) = (object.file, needed, exceeds_cache) else {
                // The object is not cached, nothing is needed, or the range exceeds the cache.
                return None;
            };
            if let Some(GetResult { range: body, .. }) = &answer
                && !body.is_empty()
            {
                let range = body.clone();
                let stream = body_of(answer.take().expect("it is there"));
                state.bodies.insert(file, Body { range, stream });
            }
            let pieces = self.shared.options.pieces(&range);
            // If the planner has no place for the reads, none starts, and the reader has no answer.
            let reads = state.start(now, &object, first_pieces(&pieces)).ok()?;
            Some((object, reads))
        });
        let answer = match (reads, answer) {
            (Some((object, reads)), _) => {
                let ticket = |read| ReadTicket::new(&self.shared, read);
                let tickets = reads.into_iter().map(ticket).collect();
                Some(FirstAnswer::Reads(object, tickets))
            }
            // The answer to a `head` has no body.
            (None, Some(result)) if is_whole && exceeds_cache && !result.range.is_empty() => {
                Some(FirstAnswer::Whole(result))
            }
            _ => None,
        };
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }
}

impl State {
    /// Returns true if this request for the version is the one whose answer counts.
    fn is_opening(&self, location: &Path, promise: &Opening) -> bool {
        self.openings.get(location).is_some_and(|opening| opening.is(promise))
    }
}

impl<S: ObjectStore> Drop for OpeningTask<S> {
    /// Wakes the readers of a task that has not ended, with an error.
    fn drop(&mut self) {
        self.shared.run_in_drop(|state, _| {
            if state.is_opening(&self.location, &self.promise) {
                state.openings.remove(&self.location);
            }
        });
        // No effect after the end.
        self.promise.set(Err(Arc::new(dropped_error())));
    }
}
