//! The stream of a get: its pieces in order, all of one version. A *piece* is a range of limited
//! size, which one read of the planner returns.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, future};
use object_store::path::Path;
use object_store::{Error, ObjectStore, Result};

use super::errors::{changed_during_stream, own_error};
use super::objects::{Object, generation_of};
use super::opening::Need;
use super::shared::{ReadTicket, Shared};
use crate::planner::{ReadFailure, Time};

/// A get in pieces.
pub(super) struct Pieces<S: ObjectStore> {
    shared: Arc<Shared<S>>,
    location: Path,
    /// The object in the version of all pieces.
    object: Object,
    /// Reads that have started, in order. An error in place of a read is the end.
    started: VecDeque<Result<ReadTicket<S>>>,
    /// Pieces whose reads have not started.
    rest: VecDeque<Range<u64>>,
}

impl<S: ObjectStore> Pieces<S> {
    /// The get of these pieces. `started` has the reads of the first ones.
    pub(super) fn new(
        shared: &Arc<Shared<S>>,
        location: &Path,
        object: Object,
        started: Vec<ReadTicket<S>>,
        pieces: &[Range<u64>],
    ) -> Pieces<S> {
        let rest = pieces[started.len()..].iter().cloned().collect();
        let started = started.into_iter().map(Ok).collect();
        Pieces { shared: Arc::clone(shared), location: location.clone(), object, started, rest }
    }

    /// Waits for the first piece. Returns the object, and the stream of all pieces.
    pub(super) async fn stream(
        mut self,
    ) -> Result<(Object, BoxStream<'static, Result<Bytes>>), ReadFailure> {
        let first = self.started.pop_front().and_then(Result::ok);
        let first = first.expect("the first read has started").await?;
        let object = self.object.clone();
        let rest = stream::unfold(self, Pieces::next);
        Ok((object, stream::once(future::ready(Ok(first))).chain(rest).boxed()))
    }

    /// The next piece. An error is the last one. `None` after the last piece or an error.
    async fn next(mut self) -> Option<(Result<Bytes>, Pieces<S>)> {
        let piece = match self.started.pop_front()? {
            // One more read starts before this one is awaited: they run at the same time.
            Ok(read) => {
                self.start_next().await;
                read.await.map_err(|failure| self.shared.error_of(failure, &self.location))
            }
            Err(error) => Err(error),
        };
        if piece.is_err() {
            self.started.clear();
            self.rest.clear();
        }
        Some((piece, self))
    }

    /// Starts the read of one more piece. No effect if the reads of all pieces have started.
    async fn start_next(&mut self) {
        if let Some(piece) = self.rest.pop_front() {
            let read = self.start(piece).await;
            self.started.push_back(read);
        }
    }

    /// Starts the read of a piece. If the object was forgotten, or is another file of the planner,
    /// it is looked up again. It must then have the same size and version, and be cached.
    ///
    /// # Errors
    /// The planner starts no read, the lookup fails, or the object has changed. An object that is
    /// forgotten again after each of several lookups counts as changed.
    async fn start(&mut self, piece: Range<u64>) -> Result<ReadTicket<S>> {
        let pieces = [piece];
        for _ in 0..=self.shared.options.repeats_max {
            let started = self.shared.start(&self.location, &self.object, &pieces);
            let started = started.map_err(|error| own_error(error.to_string()))?;
            // `None`: the object was forgotten, or opened again as another file of the planner.
            if let Some(mut reads) = started {
                return Ok(reads.pop().expect("one read was started"));
            }
            // Any known version suffices (`Time::ZERO`), because its generation is compared below.
            let found = self.shared.lookup(&self.location, Need::Version, Time::ZERO).await;
            let object = match found {
                Ok(Some((object, _))) => object,
                // The object is written again and again, or is gone.
                Ok(None) | Err(Error::NotFound { .. }) => break,
                Err(error) => return Err(error),
            };
            let (old, new) = (&self.object.meta, &object.meta);
            let is_same = old.size == new.size && generation_of(old) == generation_of(new);
            // An object without a file is not cached: the planner cannot read it.
            if !is_same || object.file.is_none() {
                break;
            }
            self.object = object;
        }
        Err(changed_during_stream(&self.location))
    }
}
