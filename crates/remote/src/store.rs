//! A store of the crate `object_store` over another one: reads pass the planner.
//!
//! ```
//! use object_store::memory::InMemory;
//! use object_store::{ObjectStoreExt, path::Path};
//! use readpath_remote::store::{ReadpathStore, StoreOptions, TokioRuntime};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = ReadpathStore::new(InMemory::new(), StoreOptions::default(), TokioRuntime::current())?;
//! let path = Path::from("table/part-0.parquet");
//! store.put(&path, vec![7; 100_000].into()).await?;
//! assert_eq!(store.get_range(&path, 1_000..1_004).await?, vec![7; 4]);
//! assert_eq!(store.get_range(&path, 2_000..2_004).await?, vec![7; 4]);
//! // The second range was in a page of the first.
//! assert_eq!(store.counters().fetches, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Versions
//! The version of an object is its strong ETag. Each fetch names the version (`If-Match`), and its
//! answer is checked too: bytes of two versions are never mixed. If the object has changed, the get
//! is repeated with the new version.
//!
//! Without a strong ETag, the version is the time of modification with the size, and the weak ETag
//! if there is one. HTTP has this time in whole seconds. For that reason such an object is not
//! cached until two seconds after its modification, by the [clock](Runtime::unix_time) of the
//! system. Versions may still be mixed if that clock is ahead of the server's by a second or more,
//! or if a client writes an object and sets its time back. An object with neither a strong ETag nor
//! a time of modification is not cached.
//!
//! A version that was seen counts as the current one for [`StoreOptions::max_age`]. Writes through
//! this store take effect at once. A write that is dropped, or that fails, may still take effect
//! later: it then counts as one of another client.
//!
//! # Gets
//! - A get of up to half of the memory, less a page, passes the page cache. Up to 32 MiB are read
//!   before the get returns; a larger one streams pieces of 32 MiB, and reads up to two pieces
//!   ahead of its consumer, outside of the cache. If the object changes after the first piece, the
//!   stream ends with [`Error::Precondition`](object_store::Error::Precondition).
//! - A larger get passes straight to the underlying store, and is not cached.
//! - A get with a version, with conditions, or with extensions passes too. The exception is
//!   `if_match` alone: it is answered from the cache where it names the known version.
//! - The first get of an object needs one request: its answer brings the version and the bytes. If
//!   other fetches are in flight in full number, a part of these bytes may be requested again.
//! - `get_ranges` reads the bytes between two ranges where they cost less than the requests that
//!   they save. Up to `fetches_max` ranges leave at once, and have gaps of at most 32 KiB. The
//!   ranges pass the cache in any size; a range of half of the memory or more has a buffer of its
//!   own. Ranges of an object that is not cached are requested from the underlying store, up to
//!   `fetches_max` at a time, with gaps of up to 32 KiB between them.
//! - Returned buffers have exactly the size of their bytes, and share no memory with the cache.
//! - A dropped future abandons its read. Its fetches go on for other readers.
//!
//! # Errors
//! An answer of the wrong length, or for another range, is an error, never wrong bytes. Its message
//! names the object, its bytes, and where the answer ended. Several readers may wait for a request
//! of the cache: each gets an error with the original as source. It has the kind of the original if
//! that is a missing object, an unmet condition, a missing right or an unsupported request, and the
//! kind `Generic` otherwise. Requests that fail with an error of this kind are tried again at once
//! ([`StoreOptions::retries_max`]), and so are answers of the wrong length. The clients of
//! `object_store` do the waiting.
//!
//! A get that passes straight to the underlying store returns before its body has arrived. An error
//! then ends the body: the bytes before it are not requested again. A file of a local store becomes
//! a stream that is checked in the same way.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt, future};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    Result,
};
use readpath_core::near_ranges::{self, GAP_BYTES_MIN};

mod answers;
mod blocks;
mod errors;
mod fetching;
#[cfg(feature = "opendal")]
mod layered;
mod objects;
mod opening;
mod options;
mod pieces;
mod ranges;
mod runtime;
mod shared;
mod writes;

use answers::checked;
use errors::own_error;
use objects::Object;
use opening::{FirstAnswer, Need};
pub use options::StoreOptions;
use pieces::Pieces;
use ranges::first_pieces;
pub use runtime::Runtime;
#[cfg(feature = "tokio")]
pub use runtime::TokioRuntime;
use shared::Shared;
#[cfg(feature = "opendal")]
pub(crate) use writes::WriteGuard as ObjectWriteGuard;
use writes::{Upload, WriteGuard};
#[cfg(all(feature = "file", target_os = "linux"))]
pub(crate) use {
    answers::body_of,
    blocks::{Blocks, Disk, Ends},
    errors::{dropped_error, other_range},
    objects::{SETTLING_TIME, settles_at},
};
pub(crate) use {errors::may_succeed_later, objects::is_weak};
#[cfg(any(feature = "opendal", all(feature = "file", target_os = "linux")))]
pub(crate) use {
    errors::{too_long, too_short},
    objects::generation_of,
};

use crate::planner::{Counters, PlannerError, ReadFailure, Time};

/// A store with a page cache, readahead and single flight over another store. See the
/// [module](self). Clones share one cache.
pub struct ReadpathStore<S: ObjectStore>(Arc<Shared<S>>);

impl<S: ObjectStore> ReadpathStore<S> {
    /// Creates a store with an empty cache over `store`.
    ///
    /// # Errors
    /// An option of the planner is out of its bounds, or the readahead policy is unknown.
    pub fn new(
        store: S,
        options: StoreOptions,
        runtime: impl Runtime,
    ) -> Result<ReadpathStore<S>, PlannerError> {
        Ok(ReadpathStore(Arc::new(Shared::new(
            store,
            options,
            Box::new(runtime),
            fetching::spawn,
        )?)))
    }

    /// The underlying store. After a write to it, call [`forget`](ReadpathStore::forget).
    pub fn inner(&self) -> &S {
        &self.0.store
    }

    /// Forgets the version of an object, and its pages: the next get asks the underlying store.
    pub fn forget(&self, location: &Path) {
        self.0.run(|state, now| state.forget(now, location));
    }

    /// Counters of the planner since the start.
    pub fn counters(&self) -> Counters {
        self.0.lock().planner.counters()
    }

    /// Returns true if a get of this range is small enough for the cache.
    fn is_cached_size(&self, range: &Range<u64>) -> bool {
        range.end - range.start <= self.0.options.cached_bytes_max()
    }

    /// Earliest check of a version that still counts at `now`: `max_age` before it. Zero while the
    /// runtime's clock shows less than that.
    fn oldest_check(&self, now: Time) -> Time {
        let age_ns = u64::try_from(self.0.options.max_age.as_nanos()).unwrap_or(u64::MAX);
        Time(now.0.saturating_sub(age_ns))
    }

    /// A get through the cache. Each turn of the loop looks up the version, starts the reads unless
    /// the lookup has started them, and waits for the first piece. If the object changes meanwhile,
    /// the next turn begins. An object without a file in the planner is not cached; only a `head`
    /// of it is answered, if its version was requested since this get began.
    ///
    /// `None` if the get must pass straight to the underlying store. The object is not cached,
    /// `if_match` names another version, the range is too large for the cache, or the planner has
    /// no place. An object that has changed again in each of `repeats_max` repetitions passes too.
    async fn cached_get(&self, location: &Path, options: &GetOptions) -> Result<Option<GetResult>> {
        let shared = &self.0;
        let need = match &options.range {
            _ if options.head => Need::Version,
            Some(range) => Need::Range(range.clone()),
            None => Need::Whole,
        };
        let started = shared.now();
        let mut since = self.oldest_check(started);
        for _ in 0..=shared.options.repeats_max {
            let Some((object, first)) = shared.lookup(location, need.clone(), since).await? else {
                return Ok(None);
            };
            let (object, reads) = match first {
                // The whole object is too large for the cache.
                Some(FirstAnswer::Whole(result)) => {
                    let is_match =
                        options.if_match.is_none() || options.if_match == result.meta.e_tag;
                    return match is_match {
                        true => checked(location, options, result).map(Some),
                        false => Ok(None),
                    };
                }
                Some(FirstAnswer::Reads(object, reads)) => (object, Some(reads)),
                None => (object, None),
            };
            let is_other = options.if_match.is_some() && options.if_match != object.meta.e_tag;
            let is_fresh = object.checked_at >= started;
            if is_other || object.file.is_none() && !(options.head && is_fresh) {
                return Ok(None);
            }
            let range = match &options.range {
                Some(range) => range.as_range(object.meta.size),
                None => Ok(0..object.meta.size),
            };
            let range = match range {
                Ok(range) => range,
                Err(_) if !is_fresh => {
                    // The object may have grown: the next turn asks the store for its version.
                    since = started;
                    continue;
                }
                Err(error) => return Err(own_error(format!("{location}: {error}"))),
            };
            if options.head {
                return Ok(Some(result_of(object, range, stream::empty().boxed())));
            }
            if !self.is_cached_size(&range) {
                return Ok(None);
            }
            let pieces = shared.options.pieces(&range);
            let reads = match reads {
                Some(reads) => reads,
                None => match shared.start(location, &object, first_pieces(&pieces)) {
                    Ok(Some(reads)) => reads,
                    // The object was forgotten or replaced since the lookup.
                    Ok(None) => continue,
                    // The planner has no place for the reads.
                    Err(_) => return Ok(None),
                },
            };
            match Pieces::new(shared, location, object, reads, &pieces).stream().await {
                Ok((object, stream)) => return Ok(Some(result_of(object, range, stream))),
                Err(ReadFailure::Changed | ReadFailure::Closed) => {}
                Err(failure) => return Err(shared.error_of(failure, location)),
            }
        }
        Ok(None)
    }

    /// A get that passes straight to the underlying store, with up to `retries_max` retries.
    async fn passed_get(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let mut retries_left = self.0.options.retries_max;
        loop {
            let result = self.0.store.get_opts(location, options.clone()).await;
            match result.and_then(|result| checked(location, &options, result)) {
                Err(error) if may_succeed_later(&error) && retries_left > 0 => retries_left -= 1,
                result => return result,
            }
        }
    }

    /// Ranges that pass straight to the underlying store, in parallel. A *run* of at least two near
    /// ranges is one request, with the gaps between its members. The gaps have up to
    /// [`GAP_BYTES_MIN`] bytes: no costs were measured for an object without a file.
    /// The `get_ranges` of the store is not used. The one of `object_store` reads gaps of up to
    /// 1 MiB, and panics if a body ends early or a range begins past the end.
    async fn passed_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        // `u64::MAX`: the size of a run has no limit.
        let runs = near_ranges::runs(ranges, GAP_BYTES_MIN, u64::MAX);
        // Each request has the indexes of its members in `ranges`, and the range that it is for.
        let mut requests: Vec<(Vec<usize>, Range<u64>)> =
            runs.into_iter().map(|run| (run.members, run.extent)).collect();
        // Ranges in no run have a request of their own.
        let mut is_alone = vec![true; ranges.len()];
        requests.iter().flat_map(|(members, _)| members).for_each(|&at| is_alone[at] = false);
        // A store rejects the request of an empty range. Next to other ranges, an empty one gets no
        // bytes without a request. If all ranges are empty, they are requested, and that fails.
        let is_any_filled = ranges.iter().any(|range| range.start < range.end);
        let is_skipped = |range: &Range<u64>| is_any_filled && range.start == range.end;
        let alone = (0..ranges.len()).filter(|&at| is_alone[at] && !is_skipped(&ranges[at]));
        requests.extend(alone.map(|at| (vec![at], ranges[at].clone())));
        let fetch = |(members, range): (Vec<usize>, Range<u64>)| async move {
            let fetched = self.passed_range(location, range.clone()).await?;
            let end = range.start + fetched.len() as u64;
            let part = |at: usize| {
                let Range { start, end: part_end } = ranges[at];
                if start >= end {
                    let past = start..part_end;
                    return Err(own_error(format!("{location}: {past:?} begins past the end")));
                }
                // A range that ends past the end of the object gets the bytes up to there.
                let offset = |position: u64| (position.min(end) - range.start) as usize;
                Ok((at, fetched.slice(offset(start)..offset(part_end))))
            };
            members.into_iter().map(part).collect::<Result<Vec<_>>>()
        };
        let in_flight_max = self.0.options.planner.fetches_max as usize;
        let parts: Vec<Vec<(usize, Bytes)>> = stream::iter(requests.into_iter().map(fetch))
            .buffered(in_flight_max)
            .try_collect()
            .await?;
        let mut bytes = vec![Bytes::new(); ranges.len()];
        parts.into_iter().flatten().for_each(|(at, part)| bytes[at] = part);
        Ok(bytes)
    }

    /// The bytes of a range that passes straight to the underlying store. A body that breaks off is
    /// requested again up to `retries_max` times, each with the retries of `passed_get`.
    async fn passed_range(&self, location: &Path, range: Range<u64>) -> Result<Bytes> {
        let options = GetOptions::new().with_range(Some(GetRange::Bounded(range)));
        let mut retries_left = self.0.options.retries_max;
        loop {
            let result = self.passed_get(location, options.clone()).await?;
            match result.bytes().await {
                Err(error) if may_succeed_later(&error) && retries_left > 0 => retries_left -= 1,
                result => return result,
            }
        }
    }

    /// The ranges of an object, all of one version. If the object changes meanwhile, they are read
    /// again. `None` if they must pass straight to the underlying store. The object is not cached,
    /// the planner has no place, or the object has changed in each of `repeats_max` repetitions.
    async fn cached_ranges(
        &self,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Option<Vec<Bytes>>> {
        let shared = &self.0;
        let started = shared.now();
        let mut since = self.oldest_check(started);
        for _ in 0..=shared.options.repeats_max {
            // The caller passes at least one range.
            let need = Need::Range(GetRange::Bounded(ranges[0].clone()));
            // The reads of the first answer are not used: the reads below find its bytes in memory
            // or in flight.
            let Some((object, _first)) = shared.lookup(location, need, since).await? else {
                return Ok(None);
            };
            if object.file.is_none() {
                return Ok(None);
            }
            let clipped = ranges
                .iter()
                .map(|range| GetRange::Bounded(range.clone()).as_range(object.meta.size));
            let clipped = match clipped.collect::<Result<Vec<_>, _>>() {
                Ok(clipped) => clipped,
                // The object may have grown since its version was checked.
                Err(_) if object.checked_at < started => {
                    since = started;
                    continue;
                }
                Err(error) => return Err(own_error(format!("{location}: {error}"))),
            };
            let reads = match shared.start(location, &object, &clipped) {
                Ok(Some(reads)) => reads,
                // The object was forgotten or replaced since the lookup.
                Ok(None) => continue,
                // The planner has no place for the reads.
                Err(_) => return Ok(None),
            };
            match future::try_join_all(reads).await {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(ReadFailure::Changed | ReadFailure::Closed) => {}
                Err(failure) => return Err(shared.error_of(failure, location)),
            }
        }
        Ok(None)
    }
}

/// The result of a get.
fn result_of(
    object: Object,
    range: Range<u64>,
    stream: BoxStream<'static, Result<Bytes>>,
) -> GetResult {
    GetResult {
        payload: GetResultPayload::Stream(stream),
        meta: object.meta,
        range,
        attributes: object.attributes,
        extensions: Default::default(),
    }
}

/// Returns true if the cache may answer a get.
fn may_be_cached(options: &GetOptions) -> bool {
    // A weak ETag never matches in `If-Match` (RFC 9110, section 8.8.3.2). A list of tags, or `*`
    // for any tag, is left to the store.
    let is_one_tag = |tag: &String| !tag.contains([',', '*']) && !is_weak(tag);
    options.if_match.as_ref().is_none_or(is_one_tag)
        && options.if_none_match.is_none()
        && options.if_modified_since.is_none()
        && options.if_unmodified_since.is_none()
        && options.version.is_none()
        && options.extensions.is_empty()
        && options.range.as_ref().is_none_or(|range| range.is_valid().is_ok())
}

#[async_trait]
impl<S: ObjectStore> ObjectStore for ReadpathStore<S> {
    /// Writes to the underlying store. The cached object is forgotten when the write ends, or when
    /// its future is dropped.
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let guard = WriteGuard::new(&self.0, location);
        let result = self.0.store.put_opts(location, payload, options).await;
        guard.end(&result);
        result
    }

    /// Begins an upload to the underlying store. The cached object is forgotten when it completes.
    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.0.store.put_multipart_opts(location, options).await?;
        let (shared, location) = (Arc::clone(&self.0), location.clone());
        Ok(Box::new(Upload { upload, shared, location }))
    }

    /// Gets from the cache if it may and can answer, otherwise from the underlying store.
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if may_be_cached(&options)
            && let Some(result) = self.cached_get(location, &options).await?
        {
            return Ok(result);
        }
        self.passed_get(location, options).await
    }

    /// Gets ranges from the cache if all are valid and the object is cached, otherwise from the
    /// underlying store.
    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let are_valid =
            ranges.iter().all(|range| GetRange::Bounded(range.clone()).is_valid().is_ok());
        if are_valid
            && !ranges.is_empty()
            && let Some(bytes) = self.cached_ranges(location, ranges).await?
        {
            return Ok(bytes);
        }
        self.passed_ranges(location, ranges).await
    }

    /// Deletes in the underlying store, and forgets the deleted objects.
    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        writes::delete_stream(&self.0, locations)
    }

    /// Lists the underlying store, as do the two functions below: lists are not cached.
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.store.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.store.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.store.list_with_delimiter(prefix).await
    }

    /// Copies in the underlying store. The cached object at `to` is forgotten, as after a put.
    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let guard = WriteGuard::new(&self.0, to);
        let result = self.0.store.copy_opts(from, to, options).await;
        guard.end(&result);
        result
    }

    /// Renames in the underlying store. The cached objects at both locations are forgotten, also
    /// after an error.
    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let _guards = [from, to].map(|location| WriteGuard::new(&self.0, location));
        self.0.store.rename_opts(from, to, options).await
    }
}

impl<S: ObjectStore> Clone for ReadpathStore<S> {
    /// Returns another handle on the same cache.
    fn clone(&self) -> ReadpathStore<S> {
        ReadpathStore(Arc::clone(&self.0))
    }
}

impl<S: ObjectStore> fmt::Debug for ReadpathStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<S: ObjectStore> fmt::Display for ReadpathStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Readpath({})", self.0.store)
    }
}
