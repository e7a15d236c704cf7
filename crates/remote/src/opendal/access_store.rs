//! The storage below a layer, as the store under the planner: reads and versions only.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ::opendal::raw::oio::Read as _;
use ::opendal::raw::{Access, BytesRange, OpRead, OpStat};
use ::opendal::{Buffer, Capability, Metadata};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::errors::{not_supported, own_error, to_store};
use super::metadata::{self, attributes_of, has_version, path_of, version_of};
use crate::store::{generation_of, too_long, too_short};

/// Number of objects, chosen, of a storage without versions in its answers whose version is
/// remembered.
const SEEN_MAX: usize = 4096;

/// Number of reads of a range until the versions before and after it are equal. The remembered
/// version may be older than the one that a fetch is for, so that one read is not enough.
const UNVERSIONED_TRIES: u32 = 2;

/// A storage of OpenDAL.
///
/// An answer of OpenDAL does not state its range. A server that ignores the requested range sends
/// the object from its beginning, and only the length of the body shows it. For that reason the
/// body of a range that begins later, or ends before the object, is complete before its bytes are
/// used.
#[derive(Debug)]
pub(super) struct AccessStore<A> {
    /// The storage below the layer.
    pub(super) access: A,
    /// Operations that the storage supports, such as conditional reads.
    capability: Capability,
    /// False once an answer to a read had no version: the version is then asked for separately.
    has_versions: AtomicBool,
    /// True once a server has ignored the range of a request: its objects are not cached.
    ignores_ranges: AtomicBool,
    /// The latest version of objects of a storage without versions in its answers.
    seen: Mutex<BTreeMap<Path, ObjectMeta>>,
}

impl<A: Access> AccessStore<A> {
    /// The store over a storage.
    pub(super) fn new(access: A) -> AccessStore<A> {
        AccessStore {
            capability: access.info().full_capability(),
            access,
            has_versions: AtomicBool::new(true),
            ignores_ranges: AtomicBool::new(false),
            seen: Mutex::default(),
        }
    }

    /// Returns true if a server was found to ignore the ranges of requests.
    pub(super) fn ignores_ranges(&self) -> bool {
        self.ignores_ranges.load(Ordering::Relaxed)
    }

    /// The description of an object; without a version if the object cannot be cached.
    pub(super) fn meta_of(&self, location: &Path, metadata: &Metadata) -> ObjectMeta {
        let mut meta = metadata::to_store(location, metadata);
        if self.ignores_ranges() {
            meta.e_tag = None;
            meta.last_modified = Default::default();
        }
        meta
    }

    /// Locks the versions that were seen.
    fn seen(&self) -> MutexGuard<'_, BTreeMap<Path, ObjectMeta>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the metadata of an object. The version is remembered if reads return none; all are
    /// forgotten when there are [`SEEN_MAX`] of them.
    async fn stat(&self, location: &Path) -> Result<(ObjectMeta, Metadata)> {
        let reply = self.access.stat(&path_of(location), OpStat::new()).await;
        let metadata = reply.map_err(|error| to_store(error, location))?.into_metadata();
        let meta = self.meta_of(location, &metadata);
        if !self.has_versions.load(Ordering::Relaxed) {
            let mut seen = self.seen();
            if seen.len() >= SEEN_MAX && !seen.contains_key(location) {
                seen.clear();
            }
            seen.insert(location.clone(), meta.clone());
        }
        Ok((meta, metadata))
    }

    /// Sends a read. Returns the metadata of its answer, if that has a version, and its body. The
    /// condition is left out if the storage has no such reads: the caller compares versions anyway.
    async fn read(
        &self,
        location: &Path,
        options: &GetOptions,
        range: BytesRange,
    ) -> Result<(Option<Metadata>, A::Reader)> {
        let mut read = OpRead::new().with_range(range);
        // A version without an ETag is not named: a storage with versions also returns an old one,
        // and the answer would be no proof that the version is current.
        if let Some(tag) = &options.if_match
            && version_of(tag).is_none()
            && self.capability.read_with_if_match
        {
            read = read.with_if_match(tag);
        }
        let reply = self.access.read(&path_of(location), read).await;
        let (reply, body) = reply.map_err(|error| to_store(error, location))?;
        Ok((reply.into_metadata().filter(has_version), body))
    }

    /// The answer of a storage whose reads return no version. The version before the read and the
    /// version after it are compared. Without an equal pair, the answer has no bytes: it has the
    /// newest version, so that a fetch of an older one finds that the object has changed.
    async fn unversioned_get(
        &self,
        location: &Path,
        options: &GetOptions,
        range: BytesRange,
    ) -> Result<GetResult> {
        let before = self.seen().get(location).cloned();
        let mut before = match before {
            Some(before) => before,
            None => self.stat(location).await?.0,
        };
        let mut tries_left = UNVERSIONED_TRIES;
        loop {
            let requested = clipped(location, range, before.size)?;
            // `stat` describes the object, so the metadata of the answer is not used.
            let (_metadata, body) = self.read(location, options, range).await?;
            // An error counts only if the object has not changed meanwhile.
            let bytes = self.whole_body(location, &requested, body).await;
            let (after, metadata) = self.stat(location).await?;
            tries_left -= 1;
            if generation_of(&before) == generation_of(&after) && before.size == after.size {
                return Ok(result_of(after, &metadata, requested, one(bytes?)));
            }
            if tries_left == 0 {
                return Ok(result_of(after, &metadata, 0..0, stream::empty().boxed()));
            }
            before = after;
        }
    }

    /// Asks for one byte of an object. Returns true if the answer has more; false too if the
    /// request fails.
    async fn ignores_a_range(&self, location: &Path, byte: u64) -> bool {
        let range = BytesRange::new(byte, Some(1));
        let Ok((_, mut body)) = self.read(location, &GetOptions::default(), range).await else {
            return false;
        };
        let mut count = 0;
        while count <= 1 {
            match body.read().await {
                Ok(buffer) if !buffer.is_empty() => count += buffer.len(),
                _ => return false,
            }
        }
        true
    }

    /// All bytes of a body for this range, collected before one is used: a body of another length
    /// is an error, as the server may ignore ranges. The range is a part of the object, or the
    /// storage returns no version.
    async fn whole_body(
        &self,
        location: &Path,
        range: &Range<u64>,
        mut body: A::Reader,
    ) -> Result<Bytes> {
        let expected = (range.end - range.start) as usize;
        let mut bytes = BytesMut::new();
        loop {
            match body.read().await {
                Ok(buffer) if buffer.is_empty() => break,
                Ok(buffer) => bytes.extend(buffer),
                // OpenDAL reports a range past the end as an error after the last byte.
                Err(_) if bytes.len() == expected => break,
                Err(error) => return Err(to_store(error, location)),
            }
            if bytes.len() > expected {
                drop(body);
                // The server may ignore ranges. A request for a single byte shows it.
                if self.ignores_a_range(location, range.end - 1).await {
                    self.ignores_ranges.store(true, Ordering::Relaxed);
                }
                return Err(too_long(location, range));
            }
        }
        match bytes.len() == expected {
            true => Ok(bytes.freeze()),
            false => Err(too_short(location, range, range.start + bytes.len() as u64)),
        }
    }
}

/// The bytes of a range that an object of `size` bytes has.
fn clipped(location: &Path, range: BytesRange, size: u64) -> Result<Range<u64>> {
    let start = range.offset();
    let end = range.size().and_then(|bytes| start.checked_add(bytes)).unwrap_or(u64::MAX);
    match start < size {
        true => Ok(start..end.min(size)),
        false => Err(own_error(format!("{location}: byte {start} is past the end, {size}"))),
    }
}

/// A stream of one chunk.
fn one(bytes: Bytes) -> BoxStream<'static, Result<Bytes>> {
    stream::iter([Ok(bytes)]).boxed()
}

/// The chunks of a body whose first byte is the first one of the object. With `expected`, which is
/// for a request past the end, the stream ends after that number of bytes: OpenDAL reports an error
/// there. Otherwise it ends with the body.
fn chunks<R: ::opendal::raw::oio::Read + 'static>(
    location: Path,
    body: R,
    expected: Option<u64>,
) -> BoxStream<'static, Result<Bytes>> {
    let start = (body, Buffer::new(), expected.unwrap_or(u64::MAX));
    stream::try_unfold(start, move |(mut body, mut buffer, left)| {
        let location = location.clone();
        async move {
            if left == 0 {
                return Ok(None);
            }
            let chunk = match Iterator::next(&mut buffer) {
                Some(chunk) => Some(chunk),
                None => {
                    buffer = body.read().await.map_err(|error| to_store(error, &location))?;
                    Iterator::next(&mut buffer)
                }
            };
            Ok(chunk.map(|chunk| {
                let left = left.saturating_sub(chunk.len() as u64);
                (chunk, (body, buffer, left))
            }))
        }
    })
    .boxed()
}

/// The result of a get.
fn result_of(
    meta: ObjectMeta,
    metadata: &Metadata,
    range: Range<u64>,
    body: BoxStream<'static, Result<Bytes>>,
) -> GetResult {
    GetResult {
        payload: GetResultPayload::Stream(body),
        meta,
        range,
        attributes: attributes_of(metadata),
        extensions: Default::default(),
    }
}

#[async_trait]
impl<A: Access> ObjectStore for AccessStore<A> {
    /// A range of an object, of the version `if_match` if the storage can ask for that, or its
    /// description with an empty body.
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.head {
            let (meta, metadata) = self.stat(location).await?;
            return Ok(result_of(meta, &metadata, 0..0, stream::empty().boxed()));
        }
        let range = match &options.range {
            None => BytesRange::default(),
            Some(GetRange::Bounded(range)) => {
                BytesRange::new(range.start, Some(range.end - range.start))
            }
            Some(GetRange::Offset(start)) => BytesRange::new(*start, None),
            Some(GetRange::Suffix(_)) => return Err(not_supported("OpenDAL has no suffix reads")),
        };
        if self.has_versions.load(Ordering::Relaxed) {
            let (metadata, body) = self.read(location, &options, range).await?;
            if let Some(metadata) = metadata {
                let meta = self.meta_of(location, &metadata);
                if meta.size == 0 {
                    // It is empty, or has an unknown length: it is not cached.
                    return Ok(result_of(meta, &metadata, 0..0, stream::empty().boxed()));
                }
                let requested = clipped(location, range, meta.size)?;
                // A server that ignores ranges sends the right bytes for the whole object alone.
                let body = match requested == (0..meta.size) {
                    true => {
                        let is_clipped = range.size().is_some_and(|bytes| bytes > requested.end);
                        chunks(location.clone(), body, is_clipped.then_some(requested.end))
                    }
                    false => one(self.whole_body(location, &requested, body).await?),
                };
                return Ok(result_of(meta, &metadata, requested, body));
            }
            // The unread body is dropped. From here on the version is asked for separately.
            self.has_versions.store(false, Ordering::Relaxed);
        }
        if range.is_full() {
            // It may exceed the memory. After this error the store asks for the version, and reads
            // ranges.
            return Err(not_supported("the storage returns no version with its bytes"));
        }
        self.unversioned_get(location, &options, range).await
    }

    /// Not supported, as all functions below: only the reads of a layer pass the planner.
    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(not_supported(READS_ONLY))
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(not_supported(READS_ONLY))
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        stream::iter([Err(not_supported(READS_ONLY))]).boxed()
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        stream::iter([Err(not_supported(READS_ONLY))]).boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(not_supported(READS_ONLY))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(not_supported(READS_ONLY))
    }
}

/// Text of the error of other requests than reads.
const READS_ONLY: &str = "a layer passes other requests than reads to its storage";

impl<A: Access> fmt::Display for AccessStore<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenDAL({})", self.access.info().scheme())
    }
}
