//! Writes: they pass to the underlying store, and what is known of their objects is forgotten.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, PutPayload, PutResult, Result, UploadPart};

use super::shared::Shared;

/// Forgets an object when a write ends: with success, with an error, or because its future is
/// dropped. Gets during the write may return either version.
#[derive(Debug)]
pub(super) struct WriteGuard<S: ObjectStore> {
    shared: Arc<Shared<S>>,
    location: Path,
}

impl<S: ObjectStore> WriteGuard<S> {
    /// A guard for a write of an object that begins now.
    pub(super) fn new(shared: &Arc<Shared<S>>, location: &Path) -> WriteGuard<S> {
        WriteGuard { shared: Arc::clone(shared), location: location.clone() }
    }
}

impl<S: ObjectStore> Drop for WriteGuard<S> {
    fn drop(&mut self) {
        self.shared.run(|state, now| state.forget(now, &self.location));
    }
}

/// An upload in parts, which forgets its object when it completes.
#[derive(Debug)]
pub(super) struct Upload<S: ObjectStore> {
    pub(super) upload: Box<dyn MultipartUpload>,
    pub(super) shared: Arc<Shared<S>>,
    pub(super) location: Path,
}

#[async_trait]
impl<S: ObjectStore> MultipartUpload for Upload<S> {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.upload.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let _guard = WriteGuard::new(&self.shared, &self.location);
        self.upload.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}

/// Deletes objects, and forgets each of them when the stream reports it, and all of them when the
/// stream ends or is dropped: the store may delete in batches.
pub(super) fn delete_stream<S: ObjectStore>(
    shared: &Arc<Shared<S>>,
    locations: BoxStream<'static, Result<Path>>,
) -> BoxStream<'static, Result<Path>> {
    let guards: Arc<Mutex<Vec<WriteGuard<S>>>> = Arc::default();
    let lock = |guards: &Arc<Mutex<Vec<WriteGuard<S>>>>, guard: WriteGuard<S>| {
        guards.lock().unwrap_or_else(PoisonError::into_inner).push(guard);
    };
    let (added, owner) = (Arc::clone(&guards), Arc::clone(shared));
    let locations = locations.inspect(move |location| {
        if let Ok(location) = location {
            lock(&added, WriteGuard::new(&owner, location));
        }
    });
    let owner = Arc::clone(shared);
    let deleted = shared.store.delete_stream(locations.boxed());
    deleted
        .inspect(move |location| {
            // The guards live as long as this closure.
            let _ = &guards;
            if let Ok(location) = location {
                owner.run(|state, now| state.forget(now, location));
            }
        })
        .boxed()
}
