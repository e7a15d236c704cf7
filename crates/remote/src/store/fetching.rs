//! Fetches: each is a task that reads one range of one version of an object. The planner has asked
//! for it, and gets its bytes in order. The *generation* is the version as the planner has it.

use std::ops::Range;
use std::sync::Arc;

use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectStore};

use super::answers::body_of;
use super::blocks::{Blocks, Ends};
use super::errors::{
    dropped_error, may_succeed_later, other_range, own_error, too_long, too_short,
};
use super::objects::{generation_of, is_weak};
use super::shared::{Body, Shared};
use crate::planner::{Arrival, Fetch, Time};

/// Starts the task of a fetch. The bytes come from `body` first, if there is one.
pub(super) fn spawn<S: ObjectStore>(
    shared: &Arc<Shared<S>>,
    fetch: Fetch,
    location: Path,
    body: Option<Body>,
) {
    let task = FetchTask {
        shared: Arc::clone(shared),
        location,
        is_done: false,
        names_version: true,
        at: fetch.range.start,
        end: fetch.range.end,
        blocks: Blocks::default(),
        ends: Ends::default(),
        fetch,
    };
    shared.runtime.spawn(Box::pin(task.run(body)));
}

/// A fetch in progress.
struct FetchTask<S: ObjectStore> {
    shared: Arc<Shared<S>>,
    fetch: Fetch,
    /// The object, as the store names it.
    location: Path,
    /// True once the end is reported to the planner.
    is_done: bool,
    /// True if the latest request of this task named the version, or it has sent no request.
    names_version: bool,
    /// The next byte of the object.
    at: u64,
    /// End of the bytes to request; the rest is in the disk tier.
    end: u64,
    /// The disk tier of the fetch, which is offered the requested bytes at the end.
    blocks: Blocks,
    /// The first and the last bytes of the fetch, as far as the disk tier has them.
    ends: Ends,
}

/// End of a try.
enum Try {
    /// All bytes have arrived.
    Done,
    /// The planner has ended the fetch, and ignores its bytes. The rest of the answer is not read.
    Ignored,
    /// The object has another version now, or is gone.
    Changed,
    /// The answer has failed. Its bytes before that are good.
    Failed(Error),
    /// The answer has the wrong length. It is unknown which of its bytes are good.
    WrongLength(Error),
}

impl<S: ObjectStore> FetchTask<S> {
    /// Fetches all bytes, and reports the end to the planner.
    async fn run(mut self, mut body: Option<Body>) {
        let mut retries_left = self.shared.options.retries_max;
        self.look_at_disk(body.is_some()).await;
        let end = loop {
            let is_first_body = body.is_some();
            let end = match body.take() {
                Some(body) => self.read_body(body).await,
                None => self.request().await,
            };
            let may_retry = match &end {
                Try::Failed(error) => may_succeed_later(error),
                Try::WrongLength(_) => true,
                Try::Done | Try::Ignored | Try::Changed => false,
            };
            // The first body is the answer to the request that opened the object. It is no try of
            // this task, and its failure costs no retry.
            if !may_retry || retries_left == 0 && !is_first_body {
                break end;
            }
            retries_left -= u32::from(!is_first_body);
            if let Try::WrongLength(_) = end {
                self.restart();
            }
        };
        let end = match end {
            Try::Failed(error) | Try::WrongLength(error) => match self.has_changed().await {
                true => Try::Changed,
                false => Try::Failed(error),
            },
            end => end,
        };
        self.is_done = true;
        if let Try::Done = end {
            self.blocks.offer();
        }
        let FetchTask { shared, fetch, location, ends, .. } = &self;
        shared.run(|state, now| match end {
            Try::Done => {
                // The planner takes the bytes in order: the suffix comes after the requested ones.
                state.planner.fill(now, fetch.id, &ends.suffix);
                state.planner.finish(now, fetch.id);
            }
            Try::Ignored => {}
            // The forgotten object's file is closed. Its reads end, and their gets begin again.
            Try::Changed => state.forget_version(now, location, &fetch.generation),
            Try::Failed(error) | Try::WrongLength(error) => state.fail(now, fetch.id, error),
        });
    }

    /// Takes the bytes that the disk tier has. No effect if the object was forgotten, or if its
    /// known version is not the one of the fetch. If the body of another request is at hand, the
    /// folder is not read: the first bytes come from that body.
    async fn look_at_disk(&mut self, has_body: bool) {
        let known =
            self.shared.lock().objects.find(&self.location).map(|object| &object.meta).cloned();
        let Some(known) = known else { return };
        if generation_of(&known).as_ref() != Some(&self.fetch.generation) {
            return;
        }
        self.blocks = self.shared.disk.blocks(&known);
        if !has_body {
            self.ends = self.blocks.read(self.fetch.range.clone()).await;
            self.end -= self.ends.suffix.len() as u64;
            self.fill_prefix();
        }
    }

    /// Stores the first bytes of the fetch, as far as the disk tier has them.
    fn fill_prefix(&mut self) {
        let now = self.shared.now();
        self.shared.lock().planner.fill(now, self.fetch.id, &self.ends.prefix);
        self.at += self.ends.prefix.len() as u64;
    }

    /// Drops the bytes that were requested. The planner has dropped the prefix with them, so that
    /// it is stored again.
    fn restart(&mut self) {
        self.at = self.fetch.range.start;
        self.blocks.restart();
        self.shared.lock().planner.restart(self.fetch.id);
        self.fill_prefix();
    }

    /// Returns true if a failed fetch has failed because the object has another version, or is
    /// gone. A store may report that as any error if the request did not name the version: then the
    /// store is asked.
    async fn has_changed(&self) -> bool {
        if self.names_version {
            return false;
        }
        let options = GetOptions { head: true, ..GetOptions::default() };
        match self.shared.store.get_opts(&self.location, options).await {
            Ok(found) => generation_of(&found.meta).as_ref() != Some(&self.fetch.generation),
            Err(Error::Precondition { .. } | Error::NotFound { .. }) => true,
            Err(_) => false,
        }
    }

    /// Requests the bytes that have not arrived, and stores them. Done at once if none is missing.
    async fn request(&mut self) -> Try {
        let range = self.at..self.end;
        if range.is_empty() {
            return Try::Done;
        }
        let started = self.shared.now();
        let known =
            self.shared.lock().objects.find(&self.location).map(|object| object.meta.clone());
        // A forgotten object counts as changed: its file is closed.
        let Some(known) = known else { return Try::Changed };
        if generation_of(&known).as_ref() != Some(&self.fetch.generation) {
            return Try::Changed;
        }
        // A weak ETag never matches.
        let tag = known.e_tag.filter(|tag| !is_weak(tag));
        self.names_version = tag.is_some();
        let options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            if_match: tag,
            ..GetOptions::default()
        };
        self.blocks.on_request(started);
        let end = self.answer(started, range.clone(), options, known.size).await;
        let bytes = matches!(end, Try::Done).then_some(range.end - range.start);
        self.blocks.on_answer(self.shared.now(), bytes);
        end
    }

    /// Sends a request for a range of an object of `size` bytes, and stores the bytes of the
    /// answer. `started` is the time at which the request begins.
    async fn answer(
        &mut self,
        started: Time,
        range: Range<u64>,
        options: GetOptions,
        size: u64,
    ) -> Try {
        let result = match self.shared.store.get_opts(&self.location, options).await {
            Ok(result) => result,
            Err(Error::Precondition { .. } | Error::NotFound { .. }) => return Try::Changed,
            Err(error) => return Try::Failed(error),
        };
        if generation_of(&result.meta).as_ref() != Some(&self.fetch.generation)
            || result.meta.size != size
        {
            return Try::Changed;
        }
        // The version was the current one at `started`.
        self.shared.lock().objects.confirm(self.fetch.file, started);
        if result.range != range {
            return Try::Failed(other_range(&self.location, &range, &result.range));
        }
        self.read_body(Body { range, stream: body_of(result) }).await
    }

    /// Stores the bytes of a body that the fetch needs: from `self.at` to `self.end`. The body
    /// begins at `self.at` or before. If it ends after `self.end`, it is read only up to there.
    async fn read_body(&mut self, mut body: Body) -> Try {
        let range = body.range;
        let (mut position, end) = (range.start, range.end);
        let needed_end = self.end;
        while let Some(chunk) = body.stream.next().await {
            let mut chunk = match chunk {
                Ok(chunk) => chunk,
                Err(error) => return Try::Failed(error),
            };
            let (first, last) = (position, position + chunk.len() as u64);
            if last > end {
                return Try::WrongLength(too_long(&self.location, &range));
            }
            position = last;
            // Only the bytes from `self.at` to `needed_end` are needed.
            chunk.truncate(last.min(needed_end).saturating_sub(first) as usize);
            let skipped = self.at.saturating_sub(first).min(chunk.len() as u64);
            let needed = chunk.slice(skipped as usize..);
            let now = self.shared.now();
            let arrival = self.shared.lock().planner.fill(now, self.fetch.id, &needed);
            match arrival {
                Arrival::Accepted => {
                    let start = self.at;
                    self.at += needed.len() as u64;
                    self.blocks.keep(start, needed);
                }
                Arrival::Ignored => return Try::Ignored,
                Arrival::WrongLength => unreachable!("the needed bytes are within the fetch"),
            }
            // The rest of a longer body is not needed.
            if self.at == needed_end && end > needed_end {
                return Try::Done;
            }
        }
        if position < end {
            return Try::WrongLength(too_short(&self.location, &range, position));
        }
        match self.at == needed_end {
            true => Try::Done,
            // The first body may end before the fetch does: the rest is then requested.
            false => Try::Failed(own_error("more bytes are needed")),
        }
    }
}

impl<S: ObjectStore> Drop for FetchTask<S> {
    /// Fails the fetch of a task that has not ended. Its runtime has shut down, and then all other
    /// fetches fail too; or the store has panicked.
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let is_panic = std::thread::panicking();
        self.shared.run_in_drop(|state, now| {
            state.has_ended |= !is_panic;
            state.fail(now, self.fetch.id, dropped_error());
        });
    }
}
