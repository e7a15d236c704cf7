//! Readers, writers, deleters and copiers of a layered storage.

use std::sync::{Arc, Mutex, PoisonError};

use ::opendal::raw::{Access, OpDelete, oio};
use ::opendal::{Buffer, Error, ErrorKind, Metadata, Result};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;

use super::access_store::AccessStore;
use super::errors::from_store;
use super::metadata::location_of;
use crate::store::{ObjectWriteGuard, ReadpathStore};

/// Bytes of a read, from the cache or straight from the storage.
pub struct LayeredReader<R>(Inner<R>);

enum Inner<R> {
    Cached {
        path: String,
        /// The lock makes the stream `Sync`; it is never waited for.
        stream: Mutex<BoxStream<'static, object_store::Result<Bytes>>>,
    },
    Passed(R),
    /// The first bytes of a whole object.
    First {
        path: String,
        reader: R,
        /// Number of bytes that are left.
        left: u64,
    },
}

impl<R> LayeredReader<R> {
    /// A reader of the bytes of the cache.
    pub(super) fn cached(
        path: &str,
        stream: BoxStream<'static, object_store::Result<Bytes>>,
    ) -> LayeredReader<R> {
        LayeredReader(Inner::Cached { path: path.to_owned(), stream: Mutex::new(stream) })
    }

    /// A reader of the storage.
    pub(super) fn passed(reader: R) -> LayeredReader<R> {
        LayeredReader(Inner::Passed(reader))
    }

    /// A reader of the first `bytes` bytes of a whole object of the storage.
    pub(super) fn first_bytes(path: &str, reader: R, bytes: u64) -> LayeredReader<R> {
        LayeredReader(Inner::First { path: path.to_owned(), reader, left: bytes })
    }
}

impl<R: oio::Read> oio::Read for LayeredReader<R> {
    /// Returns the next bytes, an empty buffer at the end.
    async fn read(&mut self) -> Result<Buffer> {
        let (path, stream) = match &mut self.0 {
            Inner::Passed(reader) => return reader.read().await,
            Inner::First { path, reader, left } => return read_first(path, reader, left).await,
            Inner::Cached { path, stream } => (path, stream),
        };
        let stream = stream.get_mut().unwrap_or_else(PoisonError::into_inner);
        loop {
            match stream.next().await {
                // An empty buffer would be the end.
                Some(Ok(bytes)) if bytes.is_empty() => {}
                Some(Ok(bytes)) => return Ok(bytes.into()),
                Some(Err(error)) => return Err(from_store(error, path)),
                None => return Ok(Buffer::new()),
            }
        }
    }
}

/// Reads the next of `left` bytes. The end of the object before them is an error, as it is for a
/// range.
async fn read_first<R: oio::Read>(path: &str, reader: &mut R, left: &mut u64) -> Result<Buffer> {
    if *left == 0 {
        return Ok(Buffer::new());
    }
    let buffer = reader.read().await?;
    if buffer.is_empty() {
        let text = format!("the object ends {left} bytes before the range; read it to its end");
        return Err(Error::new(ErrorKind::RangeNotSatisfied, text).with_context("path", path));
    }
    let count = usize::try_from(*left).map_or(buffer.len(), |left| buffer.len().min(left));
    *left -= count as u64;
    Ok(buffer.slice(..count))
}

/// Returns true if a storage has refused a write: the object is as it was.
fn is_refused(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::ConditionNotMatch | ErrorKind::AlreadyExists)
}

/// A write or a copy, which forgets the cached object when it ends.
pub struct LayeredWriter<A: Access, W> {
    /// The writer or copier of the storage.
    writer: W,
    /// Forgets the object when it is dropped, unless the write was refused. `None` after the end.
    guard: Option<ObjectWriteGuard<AccessStore<A>>>,
}

impl<A: Access, W> LayeredWriter<A, W> {
    /// A writer of the storage. The guard began before it.
    pub(super) fn new(writer: W, guard: ObjectWriteGuard<AccessStore<A>>) -> LayeredWriter<A, W> {
        LayeredWriter { writer, guard: Some(guard) }
    }

    /// Forgets the object, unless the write was refused. A failed write may be closed again: the
    /// guard stays.
    fn end<T>(&mut self, result: &Result<T>) {
        match result {
            Ok(_) => drop(self.guard.take()),
            Err(error) if is_refused(error) => {
                if let Some(guard) = self.guard.take() {
                    guard.refuse();
                }
            }
            Err(_) => {}
        }
    }
}

impl<A: Access, W: oio::Write> oio::Write for LayeredWriter<A, W> {
    async fn write(&mut self, bytes: Buffer) -> Result<()> {
        self.writer.write(bytes).await
    }

    /// Ends the write. The object is forgotten, unless the write was refused. After another error
    /// the write may be closed again.
    async fn close(&mut self) -> Result<Metadata> {
        let result = self.writer.close().await;
        self.end(&result);
        result
    }

    async fn abort(&mut self) -> Result<()> {
        self.writer.abort().await
    }
}

impl<A: Access, W: oio::Copy> oio::Copy for LayeredWriter<A, W> {
    async fn next(&mut self) -> Result<Option<usize>> {
        self.writer.next().await
    }

    /// Ends the copy, as a write.
    async fn close(&mut self) -> Result<Metadata> {
        let result = self.writer.close().await;
        self.end(&result);
        result
    }

    async fn abort(&mut self) -> Result<()> {
        self.writer.abort().await
    }
}

/// Number of deletes without an end that are remembered each, chosen. After more of them, all
/// objects are forgotten at the end.
const DELETES_MAX: usize = 4096;

/// Deletes of objects, which are forgotten when the storage has deleted them.
pub struct LayeredDeleter<A: Access> {
    /// The deleter of the storage.
    deleter: A::Deleter,
    /// The cache of the layer.
    store: Arc<ReadpathStore<AccessStore<A>>>,
    /// Deletes without an end, with their locations.
    guards: Vec<(Path, ObjectWriteGuard<AccessStore<A>>)>,
    /// Folders whose deletes have no end. The empty path stands for all objects.
    folders: Vec<Path>,
}

impl<A: Access> LayeredDeleter<A> {
    /// Deletes of the storage.
    pub(super) fn new(
        deleter: A::Deleter,
        store: Arc<ReadpathStore<AccessStore<A>>>,
    ) -> LayeredDeleter<A> {
        LayeredDeleter { deleter, store, guards: Vec::new(), folders: Vec::new() }
    }

    /// Forgets the objects of all deletes.
    fn forget(&mut self) {
        self.guards.clear();
        for folder in self.folders.drain(..) {
            self.store.forget_below(&folder);
        }
    }
}

impl<A: Access> oio::Delete for LayeredDeleter<A> {
    /// Deletes an object or a folder, now or at `close`. An object is forgotten after both, and the
    /// objects below a folder after `close`.
    async fn delete(&mut self, path: &str, args: OpDelete) -> Result<()> {
        let location = location_of(path);
        if self.guards.len() + self.folders.len() >= DELETES_MAX {
            // The storage may not have executed these deletes yet. For that reason all objects, for
            // which the empty path stands, are forgotten again at the end.
            self.forget();
            self.folders.push(Path::default());
        } else if args.recursive() || path.ends_with('/') {
            self.folders.push(location.clone());
        } else {
            let guard = self.store.write_guard(&location);
            self.guards.push((location.clone(), guard));
        }
        let result = self.deleter.delete(path, args).await;
        // The storage may delete now, or at the end.
        self.store.forget(&location);
        result
    }

    /// Ends the deletes. Their objects are forgotten, also after an error. Then the deletes may be
    /// closed again: the objects are forgotten at that end too.
    async fn close(&mut self) -> Result<()> {
        let result = self.deleter.close().await;
        match result.is_ok() {
            true => self.forget(),
            false => {
                self.guards.iter().for_each(|(location, _)| self.store.forget(location));
                self.folders.iter().for_each(|folder| self.store.forget_below(folder));
            }
        }
        result
    }
}

impl<A: Access> Drop for LayeredDeleter<A> {
    fn drop(&mut self) {
        self.forget();
    }
}
