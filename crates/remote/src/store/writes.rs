//! Writes pass to the underlying store, and the cached state of their objects is dropped.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    Error, MultipartUpload, ObjectStore, PutPayload, PutResult, Result, UploadPart,
};

use super::shared::Shared;

/// Forgets an object when a write ends: with success, with an error, or because its future is
/// dropped. Gets during the write may return either version.
///
/// A write that was dropped, or has failed, may still take effect later in the underlying store.
/// Gets may then return the older version for some time after that, as after a write by another
/// client.
#[derive(Debug)]
pub(crate) struct WriteGuard<S: ObjectStore> {
    shared: Arc<Shared<S>>,
    location: Path,
    /// True if the store has refused the write: the object is as it was, perhaps in a version that
    /// is not known here.
    is_refused: bool,
}

impl<S: ObjectStore> WriteGuard<S> {
    /// A guard for a write of an object that begins now.
    pub(super) fn new(shared: &Arc<Shared<S>>, location: &Path) -> WriteGuard<S> {
        WriteGuard { shared: Arc::clone(shared), location: location.clone(), is_refused: false }
    }

    /// The store has refused the write: no pages are dropped.
    #[cfg(feature = "opendal")]
    pub(crate) fn refuse(mut self) {
        self.is_refused = true;
    }

    /// The write has ended with this result. A refused one drops no pages.
    pub(super) fn end<T>(mut self, result: &Result<T>) {
        self.is_refused =
            matches!(result, Err(Error::AlreadyExists { .. } | Error::Precondition { .. }));
    }
}

impl<S: ObjectStore> Drop for WriteGuard<S> {
    /// Forgets the object. After a refused write its pages stay, and the next get asks for its
    /// version.
    fn drop(&mut self) {
        self.shared.run_in_drop(|state, now| match self.is_refused {
            true => state.doubt(now, &self.location),
            false => state.forget(now, &self.location),
        });
    }
}

/// An upload in parts, which forgets its object when it completes.
#[derive(Debug)]
pub(super) struct Upload<S: ObjectStore> {
    /// The upload of the underlying store.
    pub(super) upload: Box<dyn MultipartUpload>,
    pub(super) shared: Arc<Shared<S>>,
    pub(super) location: Path,
}

#[async_trait]
impl<S: ObjectStore> MultipartUpload for Upload<S> {
    /// Uploads a part, which no get returns before `complete`.
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.upload.put_part(data)
    }

    /// Completes the upload, and forgets the cached object.
    async fn complete(&mut self) -> Result<PutResult> {
        let guard = WriteGuard::new(&self.shared, &self.location);
        let result = self.upload.complete().await;
        guard.end(&result);
        result
    }

    /// Ends the upload without effect on the object.
    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}

/// Deletes objects, and forgets each of them when the stream reports it, and all others when the
/// stream ends or is dropped: the store may delete in batches.
pub(super) fn delete_stream<S: ObjectStore>(
    shared: &Arc<Shared<S>>,
    locations: BoxStream<'static, Result<Path>>,
) -> BoxStream<'static, Result<Path>> {
    let guards: Guards<S> = Guards(Arc::default());
    let (added, owner) = (guards.clone(), Arc::clone(shared));
    let locations = locations.inspect(move |location| {
        if let Ok(location) = location {
            added.lock().push_back(WriteGuard::new(&owner, location));
        }
    });
    let (reported, owner) = (guards.clone(), Arc::clone(shared));
    let deleted = shared.store.delete_stream(locations.boxed()).inspect(move |location| {
        if let Ok(location) = location {
            match reported.remove(location) {
                Some(guard) => drop(guard),
                // The store reports a location twice, or one that it was not given.
                None => owner.run(|state, now| state.forget(now, location)),
            }
        }
    });
    let end = stream::poll_fn(move |_| {
        let left = std::mem::take(&mut *guards.lock());
        drop(left);
        Poll::Ready(None)
    });
    deleted.chain(end).boxed()
}

/// Guards of the deletes that have begun and were not reported, in their order.
struct Guards<S: ObjectStore>(Arc<Mutex<VecDeque<WriteGuard<S>>>>);

impl<S: ObjectStore> Guards<S> {
    /// Locks the guards.
    fn lock(&self) -> MutexGuard<'_, VecDeque<WriteGuard<S>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns a guard of an object; `None` if it has none.
    fn remove(&self, location: &Path) -> Option<WriteGuard<S>> {
        let mut guards = self.lock();
        let index = guards.iter().position(|guard| guard.location == *location)?;
        guards.remove(index)
    }
}

impl<S: ObjectStore> Clone for Guards<S> {
    fn clone(&self) -> Guards<S> {
        Guards(Arc::clone(&self.0))
    }
}
