//! A layer for operators of the crate `opendal`: their reads pass the planner.
//!
//! ```
//! use opendal::{Operator, services::Memory};
//! use readpath_remote::opendal::ReadpathLayer;
//! use readpath_remote::store::{StoreOptions, TokioRuntime};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let layer = ReadpathLayer::new(StoreOptions::default(), TokioRuntime::current())?;
//! let operator = Operator::new(Memory::default())?.layer(layer.clone()).finish();
//! operator.write("table/part-0.parquet", vec![7; 100_000]).await?;
//! let read = operator.read_with("table/part-0.parquet").range(1_000..1_004).await?;
//! assert_eq!(read.to_vec(), [7; 4]);
//! // Objects in memory have no version, so that they are not cached. Those of S3 are.
//! assert_eq!(layer.counters().fetches, 0);
//! # Ok(())
//! # }
//! ```
//!
//! The layer keeps pages of objects in memory, and one request serves all readers of a page. It
//! joins close ranges, prefetches, and cuts large ranges into parts, fetched in parallel. Its
//! options are the [`StoreOptions`] of [`ReadpathStore`](crate::store::ReadpathStore), and their
//! rules hold here too.
//!
//! Apply the layer before all others, such as one that retries, so that it is next to the storage:
//! `operator.layer(readpath_layer).layer(RetryLayer::new())`. It is for version 0.57 of `opendal`.
//! Chunks and concurrency of OpenDAL's own reader are not needed: the planner does both.
//!
//! # Versions
//! The version of an object is its strong ETag. Without one it is the version of the storage
//! (`Metadata::version`), or the time of modification with the length. Bytes of two versions are
//! never mixed. The rules of [`store`](crate::store#versions) about versions without an ETag hold
//! here too: such an object is cached two seconds after its modification.
//!
//! - If answers to reads have the version (S3, Azure, Google Cloud Storage, HTTP), each fetch is
//!   one request. It names the ETag where the storage has conditional reads.
//! - If they do not (local files, memory, WebDAV), the version is asked for after each fetch. Each
//!   fetch is then a read and a stat.
//! - An object without a version, and one of length 0, is not cached. OpenDAL reports the length 0
//!   for an unknown length, too.
//! - Times of modification are compared with [`Runtime::unix_time`].
//!
//! # Operations
//! - `read` passes the cache, except for ranges that end past the end of the object, reads of a
//!   version, and reads with conditions other than `if_match` or with replaced headers. These pass
//!   straight to the storage.
//! - `stat`, `list`, `presign` and `create_dir` pass to the storage. A `stat` that finds another
//!   version than the cached one drops its pages.
//! - `write`, `delete`, `copy` and `rename` pass to the storage. The cached object is forgotten at
//!   their end, with success or with an error, or when they are dropped.
//! - The metadata of a read has the length, ETag, version, time of modification, content type and
//!   other headers, and the metadata of the user. It has no checksum.
//!
//! # Errors
//! A read returns an error of the kind that the storage has returned. An answer of the wrong length
//! is an error of the kind `Unexpected`, marked as temporary, never wrong bytes. Its message names
//! the object, its bytes, and where the answer ended.
//!
//! A server that ignores the ranges of requests is found by the length of its answers. The objects
//! of the operator are then not cached any more. Whole objects are read straight from the storage.
//! A read from a later byte on is an error of the kind `Unsupported`. OpenDAL itself returns the
//! bytes from the beginning.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use ::opendal::raw::{Access, Layer};
use futures_util::future::BoxFuture;

mod access;
mod access_store;
mod errors;
mod handles;
mod metadata;

pub use access::ReadpathAccess;
use access_store::AccessStore;
pub use handles::{LayeredDeleter, LayeredReader, LayeredWriter};
use metadata::location_of;

use crate::planner::{Counters, Planner, PlannerError};
use crate::store::{ReadpathStore, Runtime, StoreOptions};

/// A layer with a page cache, readahead and single flight. See the [module](self). Each operator
/// that it is applied to has a cache of its own.
#[derive(Clone)]
pub struct ReadpathLayer {
    /// Options of each cache: checked when the layer was created.
    options: StoreOptions,
    /// Runs the fetches of all caches.
    runtime: Arc<dyn Runtime>,
    /// The cache of the operator that this layer was applied to last.
    cache: Arc<Mutex<Option<Weak<dyn Cache>>>>,
}

/// The cache of an operator of any storage.
trait Cache: Send + Sync {
    /// Counters of its planner.
    fn counters(&self) -> Counters;

    /// Forgets an object.
    fn forget(&self, path: &str);
}

impl<A: Access> Cache for ReadpathStore<AccessStore<A>> {
    fn counters(&self) -> Counters {
        ReadpathStore::counters(self)
    }

    fn forget(&self, path: &str) {
        ReadpathStore::forget(self, &location_of(path));
    }
}

impl ReadpathLayer {
    /// Creates a layer with these options.
    ///
    /// # Errors
    /// An option of the planner is out of its bounds, or the readahead policy is unknown.
    pub fn new(
        options: StoreOptions,
        runtime: impl Runtime,
    ) -> Result<ReadpathLayer, PlannerError> {
        Planner::new(&options.planner)?;
        Ok(ReadpathLayer { options, runtime: Arc::new(runtime), cache: Arc::default() })
    }

    /// Counters of the planner of the operator that this layer, or a clone of it, was applied to
    /// last. Zeros without such an operator, and after it was dropped.
    pub fn counters(&self) -> Counters {
        self.cache().map(|cache| cache.counters()).unwrap_or_default()
    }

    /// Forgets the version of an object, and its pages, in the operator of
    /// [`counters`](ReadpathLayer::counters): after a write past the operator, the next read asks
    /// the storage. No effect without such an operator.
    pub fn forget(&self, path: &str) {
        if let Some(cache) = self.cache() {
            cache.forget(path.trim_start_matches('/'));
        }
    }

    /// The cache of the operator that this layer was applied to last.
    fn cache(&self) -> Option<Arc<dyn Cache>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.upgrade()
    }
}

impl<A: Access> Layer<A> for ReadpathLayer {
    type LayeredAccess = ReadpathAccess<A>;

    /// Puts a new cache over `inner`, whose counters this layer shows from now on.
    fn layer(&self, inner: A) -> ReadpathAccess<A> {
        let runtime = SharedRuntime(Arc::clone(&self.runtime));
        let store = ReadpathStore::new(AccessStore::new(inner), self.options.clone(), runtime);
        let store = Arc::new(store.expect("the options were checked when the layer was created"));
        let cache: Arc<dyn Cache> = Arc::clone(&store) as Arc<dyn Cache>;
        *self.cache.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::downgrade(&cache));
        ReadpathAccess(store)
    }
}

/// The runtime of a layer, for each operator.
#[derive(Debug)]
struct SharedRuntime(Arc<dyn Runtime>);

impl Runtime for SharedRuntime {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn unix_time(&self) -> Duration {
        self.0.unix_time()
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.0.spawn(task);
    }
}

impl fmt::Debug for ReadpathLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReadpathLayer { options, runtime, .. } = self;
        let mut parts = f.debug_struct("ReadpathLayer");
        parts.field("options", options).field("runtime", runtime).finish_non_exhaustive()
    }
}
