//! A storage with the layer.

use std::sync::Arc;

use ::opendal::raw::{
    Access, AccessorInfo, BytesRange, LayeredAccess, OpCopier, OpCopy, OpList, OpRead, OpRename,
    OpStat, OpWrite, RpCopy, RpDelete, RpList, RpRead, RpRename, RpStat, RpWrite,
};
use ::opendal::{Error, ErrorKind, Result};
use object_store::path::Path;
use object_store::{GetOptions, GetRange};

use super::access_store::AccessStore;
use super::errors::from_store;
use super::handles::{LayeredDeleter, LayeredReader, LayeredWriter};
use super::metadata;
use super::metadata::location_of;
use crate::store::ReadpathStore;

/// A storage of OpenDAL whose reads pass the planner. See [`ReadpathLayer`](super::ReadpathLayer).
#[derive(Debug)]
pub struct ReadpathAccess<A: Access>(pub(super) Arc<ReadpathStore<AccessStore<A>>>);

/// Forgets the objects at and below the locations of a rename when it is dropped.
struct RenameGuard<'a, A: Access> {
    store: &'a ReadpathStore<AccessStore<A>>,
    locations: [Path; 2],
}

impl<A: Access> Drop for RenameGuard<'_, A> {
    fn drop(&mut self) {
        for location in &self.locations {
            self.store.forget_below(location);
        }
    }
}

/// The get of a read that the cache may answer; `None` for all other reads.
fn cacheable(path: &str, args: &OpRead) -> Option<GetOptions> {
    let is_plain = args.if_none_match().is_none()
        && args.if_modified_since().is_none()
        && args.if_unmodified_since().is_none()
        && args.version().is_none()
        && args.override_cache_control().is_none()
        && args.override_content_disposition().is_none()
        && args.override_content_type().is_none();
    let range = args.range();
    let bounds = match range.size() {
        None if range.offset() == 0 => None,
        None => Some(GetRange::Offset(range.offset())),
        // An empty range is left to the storage.
        Some(0) => return None,
        Some(bytes) => Some(GetRange::Bounded(range.offset()..range.offset().checked_add(bytes)?)),
    };
    let options = GetOptions { if_match: args.if_match().map(str::to_owned), ..Default::default() };
    // A slash at the end marks a folder.
    (is_plain && !path.ends_with('/')).then(|| options.with_range(bounds))
}

/// Returns true if a stat is for the current version, without a condition.
fn is_plain(args: &OpStat) -> bool {
    args.version().is_none()
        && args.if_match().is_none()
        && args.if_none_match().is_none()
        && args.if_modified_since().is_none()
        && args.if_unmodified_since().is_none()
}

impl<A: Access> ReadpathAccess<A> {
    /// The answer of the cache to a read; `None` if the read must pass straight to the storage.
    async fn cached(
        &self,
        path: &str,
        options: &GetOptions,
    ) -> Option<Result<(RpRead, LayeredReader<A::Reader>)>> {
        let location = location_of(path);
        let end = |range: &Option<GetRange>| match range {
            Some(GetRange::Bounded(range)) => Some(range.end),
            _ => None,
        };
        match self.0.cached_read(&location, options).await {
            Ok(Some(result)) => {
                // The storage decides about a range that ends past the end of the object.
                if end(&options.range).is_some_and(|end| end != result.range.end) {
                    return None;
                }
                let reply = RpRead::new(metadata::from_store(&result));
                Some(Ok((reply, LayeredReader::cached(path, result.into_stream()))))
            }
            Ok(None) => None,
            Err(error) => {
                // A range past the end, and a server that ignores ranges, are left to the storage.
                let bytes = self.0.known_bytes(&location);
                let is_past = bytes.is_some_and(|bytes| match &options.range {
                    Some(range) => range.as_range(bytes).is_err(),
                    None => false,
                });
                match is_past || self.0.inner().ignores_ranges() {
                    true => None,
                    false => Some(Err(from_store(error, path))),
                }
            }
        }
    }
}

impl<A: Access> LayeredAccess for ReadpathAccess<A> {
    type Inner = A;
    type Reader = LayeredReader<A::Reader>;
    type Writer = LayeredWriter<A, A::Writer>;
    type Lister = A::Lister;
    type Deleter = LayeredDeleter<A>;
    type Copier = LayeredWriter<A, A::Copier>;

    fn inner(&self) -> &A {
        &self.0.inner().access
    }

    fn info(&self) -> Arc<AccessorInfo> {
        self.inner().info()
    }

    /// Reads from the cache if it may and can answer, otherwise from the storage.
    async fn read(&self, path: &str, args: OpRead) -> Result<(RpRead, Self::Reader)> {
        if let Some(options) = cacheable(path, &args)
            && let Some(answer) = self.cached(path, &options).await
        {
            return answer;
        }
        let range = args.range();
        if !self.0.inner().ignores_ranges() || range.is_full() {
            let (reply, reader) = self.inner().read(path, args).await?;
            return Ok((reply, LayeredReader::passed(reader)));
        }
        match range.size() {
            // The whole object has these bytes at its beginning.
            Some(bytes) if range.offset() == 0 => {
                let whole = args.with_range(BytesRange::default());
                let (reply, reader) = self.inner().read(path, whole).await?;
                Ok((reply, LayeredReader::first_bytes(path, reader, bytes)))
            }
            // OpenDAL does not notice: it returns the bytes from the beginning.
            _ => {
                let text = "the server ignores the ranges of requests; read the whole object";
                Err(Error::new(ErrorKind::Unsupported, text).with_context("path", path))
            }
        }
    }

    /// Asks the storage. A known object is forgotten if the answer has another version, or if there
    /// is no such object. Otherwise its version counts as checked, if it has a file of the planner.
    /// A stat of a named version, with a condition, or with another error has no effect.
    async fn stat(&self, path: &str, args: OpStat) -> Result<RpStat> {
        let (started, location) = (self.0.now(), location_of(path));
        let is_plain = is_plain(&args);
        let result = self.inner().stat(path, args).await;
        match &result {
            _ if !is_plain => {}
            Ok(reply) => {
                let metadata = reply.clone().into_metadata();
                self.0.on_version(&self.0.inner().meta_of(&location, &metadata), started);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => self.0.forget(&location),
            Err(_) => {}
        }
        result
    }

    /// Writes to the storage. The cached object is forgotten when the writer is closed or dropped.
    async fn write(&self, path: &str, args: OpWrite) -> Result<(RpWrite, Self::Writer)> {
        let guard = self.0.write_guard(&location_of(path));
        let (reply, writer) = self.inner().write(path, args).await?;
        Ok((reply, LayeredWriter::new(writer, guard)))
    }

    /// Copies in the storage. The cached object at `to` is forgotten, as after a write.
    async fn copy(
        &self,
        from: &str,
        to: &str,
        args: OpCopy,
        options: OpCopier,
    ) -> Result<(RpCopy, Self::Copier)> {
        let guard = self.0.write_guard(&location_of(to));
        let (reply, copier) = self.inner().copy(from, to, args, options).await?;
        Ok((reply, LayeredWriter::new(copier, guard)))
    }

    /// Renames in the storage. The cached objects at and below both paths are forgotten when it
    /// ends, also with an error, or when its future is dropped.
    async fn rename(&self, from: &str, to: &str, args: OpRename) -> Result<RpRename> {
        let _guard = RenameGuard { store: &self.0, locations: [from, to].map(location_of) };
        self.inner().rename(from, to, args).await
    }

    /// Deletes in the storage, and forgets the deleted objects.
    async fn delete(&self) -> Result<(RpDelete, Self::Deleter)> {
        let (reply, deleter) = self.inner().delete().await?;
        Ok((reply, LayeredDeleter::new(deleter, Arc::clone(&self.0))))
    }

    /// Lists the storage: lists are not cached.
    async fn list(&self, path: &str, args: OpList) -> Result<(RpList, Self::Lister)> {
        self.inner().list(path, args).await
    }
}
