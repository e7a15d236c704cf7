//! Stores for tests: a slow one that counts, and one with faults.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions,
    PutPayload, PutResult, RenameOptions, Result,
};
use readpath_core::splitmix;
use readpath_remote::planner::PlannerOptions;
use readpath_remote::store::{ReadpathStore, StoreOptions, TokioRuntime};
use tokio::time::Instant;

#[path = "../content/mod.rs"]
mod content;

pub use content::content;

/// Bytes in a chunk of a body.
const CHUNK_BYTES: usize = 64 << 10;

/// Faults of gets. Each number n means every n-th get; 0 means none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The get fails with an error that another try may not have.
    pub errors: u64,
    /// The body ends after a half.
    pub truncations: u64,
    /// The body has a byte too many.
    pub extra_bytes: u64,
    /// The body breaks off with an error after a half.
    pub breaks: u64,
    /// The object is written again, with the same bytes, before a get of a range of 1,000 bytes or
    /// more. (The suite expects that its small objects keep their version.)
    pub changes: u64,
}

/// A store over another one, with latency, bandwidth for each connection, and faults, that counts.
#[derive(Debug)]
pub struct TestStore<S> {
    pub store: S,
    /// Time before the answer of a get.
    pub latency: Duration,
    /// Random part of it, from zero to this time.
    pub jitter: Duration,
    /// Bandwidth of one body in bytes a second; `None` for no limit.
    pub bandwidth: Option<u64>,
    /// Network that all bodies share.
    pub link: Arc<Link>,
    pub faults: Faults,
    /// The error of a get is a missing right, which each further try has too.
    pub is_denied: bool,
    /// Faults happen while it is set.
    pub is_faulty: AtomicBool,
    /// Conditional gets of whole objects have no faults.
    pub spares_conditions: bool,
    /// Each answer is for the range that begins a byte before the requested one.
    pub is_shifted: bool,
    /// Hides the ETag, and the time of modification.
    pub hides: [bool; 2],
    /// Each body is 64 MiB long, in chunks of 1 MiB, for any range.
    pub is_long: bool,
    /// Gives all versions one weak ETag.
    pub is_weak: bool,
    /// Time by which objects look older.
    pub age: Duration,
    /// Gets of ranges fail while it is set.
    pub is_down: AtomicBool,
    pub gets: Arc<AtomicU64>,
    pub heads: Arc<AtomicU64>,
    /// Bytes of all bodies as far as they were read.
    pub body_bytes: Arc<AtomicU64>,
    /// Bodies that are being read, and their largest number.
    pub bodies: Arc<[AtomicU64; 2]>,
    /// Number of gets of a range.
    pub ranged_gets: AtomicU64,
}

impl<S: ObjectStore> TestStore<S> {
    pub fn new(store: S) -> TestStore<S> {
        TestStore {
            store,
            latency: Duration::ZERO,
            jitter: Duration::ZERO,
            bandwidth: None,
            link: Arc::default(),
            faults: Faults::default(),
            is_denied: false,
            is_faulty: AtomicBool::new(true),
            spares_conditions: true,
            is_shifted: false,
            hides: [false; 2],
            is_long: false,
            is_weak: false,
            age: Duration::ZERO,
            is_down: AtomicBool::new(false),
            gets: Arc::default(),
            heads: Arc::default(),
            body_bytes: Arc::default(),
            bodies: Arc::default(),
            ranged_gets: AtomicU64::new(0),
        }
    }

    pub fn gets(&self) -> u64 {
        self.gets.load(Ordering::Relaxed)
    }

    pub fn heads(&self) -> u64 {
        self.heads.load(Ordering::Relaxed)
    }

    pub fn body_bytes(&self) -> u64 {
        self.body_bytes.load(Ordering::Relaxed)
    }

    /// Writes an object again with its bytes and attributes.
    async fn change(&self, location: &Path) -> Result<()> {
        let result = self.store.get(location).await?;
        let attributes = result.attributes.clone();
        let bytes = result.bytes().await?;
        self.store.put_opts(location, bytes.into(), attributes.into()).await?;
        Ok(())
    }

    /// A body in chunks, at the bandwidth, with the faults of the get of this number, if any.
    fn body(&self, result: &mut GetResult, bytes: Bytes, number: Option<u64>) {
        let is_due =
            |every: u64| every > 0 && number.is_some_and(|number| number.is_multiple_of(every));
        let half = bytes.len() / 2;
        let mut chunks: Vec<Result<Bytes>> = Vec::new();
        let (is_cut, is_broken) = (is_due(self.faults.truncations), is_due(self.faults.breaks));
        let end = if is_cut || is_broken { half } else { bytes.len() };
        let starts = (0..end).step_by(CHUNK_BYTES);
        chunks.extend(starts.map(|start| Ok(bytes.slice(start..end.min(start + CHUNK_BYTES)))));
        if self.is_long {
            chunks = vec![Bytes::from(vec![0; MIB as usize]); 64].into_iter().map(Ok).collect();
        } else if is_broken {
            chunks.push(Err(broken("the connection broke")));
        } else if is_due(self.faults.extra_bytes) && !is_cut {
            chunks.push(Ok(Bytes::from_static(b"!")));
        }
        let (bandwidth, total) = (self.bandwidth, Arc::clone(&self.body_bytes));
        let (open, link) = (OpenBody::new(&self.bodies), Arc::clone(&self.link));
        let stream = stream::iter(chunks).then(move |chunk| {
            let _ = &open;
            let bytes = chunk.as_ref().map_or(0, Bytes::len) as u64;
            total.fetch_add(bytes, Ordering::Relaxed);
            let link_end = link.send(bytes);
            async move {
                if let Some(bandwidth) = bandwidth {
                    let time = Duration::from_nanos(bytes * 1_000_000_000 / bandwidth);
                    tokio::time::sleep_until(link_end.max(Instant::now() + time)).await;
                }
                chunk
            }
        });
        result.payload = GetResultPayload::Stream(stream.boxed());
    }
}

/// A network that sends one chunk after the other.
#[derive(Debug)]
pub struct Link {
    /// Bytes a second; `None` for no limit.
    pub bandwidth: Option<u64>,
    /// End of the latest chunk.
    end: Mutex<Instant>,
}

impl Default for Link {
    fn default() -> Link {
        Link::new(None)
    }
}

impl Link {
    pub fn new(bandwidth: Option<u64>) -> Link {
        Link { bandwidth, end: Mutex::new(Instant::now()) }
    }

    /// Sends a chunk. Returns the time at which it has arrived.
    fn send(&self, bytes: u64) -> Instant {
        let mut end = self.end.lock().unwrap();
        let nanos = self.bandwidth.map_or(0, |bandwidth| bytes * 1_000_000_000 / bandwidth);
        *end = Instant::now().max(*end) + Duration::from_nanos(nanos);
        *end
    }
}

/// Counts the bodies that are being read.
struct OpenBody(Arc<[AtomicU64; 2]>);

impl OpenBody {
    fn new(bodies: &Arc<[AtomicU64; 2]>) -> OpenBody {
        let count = bodies[0].fetch_add(1, Ordering::Relaxed) + 1;
        bodies[1].fetch_max(count, Ordering::Relaxed);
        OpenBody(Arc::clone(bodies))
    }
}

impl Drop for OpenBody {
    fn drop(&mut self) {
        self.0[0].fetch_sub(1, Ordering::Relaxed);
    }
}

/// The range that begins a byte before.
fn shifted(range: GetRange) -> GetRange {
    match range {
        GetRange::Bounded(range) => GetRange::Bounded(range.start - 1..range.end),
        GetRange::Offset(start) => GetRange::Offset(start - 1),
        GetRange::Suffix(bytes) => GetRange::Suffix(bytes + 1),
    }
}

/// An error that another try may not have.
fn broken(text: &str) -> Error {
    Error::Generic { store: "test", source: text.into() }
}

/// An error that each further try has, too.
fn denied(location: &Path) -> Error {
    Error::PermissionDenied { path: location.to_string(), source: "no right".into() }
}

#[async_trait]
impl<S: ObjectStore> ObjectStore for TestStore<S> {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        if self.latency == Duration::ZERO {
            return self.store.put_opts(location, payload, options).await;
        }
        // The write takes effect after half of its time.
        tokio::time::sleep(self.latency / 2).await;
        let result = self.store.put_opts(location, payload, options).await;
        tokio::time::sleep(self.latency / 2).await;
        result
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(location, options).await
    }

    /// Conditional gets of whole objects pass straight to the store, without another try of their
    /// bodies: in the suite they have no faults.
    async fn get_opts(&self, location: &Path, mut options: GetOptions) -> Result<GetResult> {
        let GetOptions { head, .. } = options;
        let is_conditional = options.if_match.is_some()
            || options.if_none_match.is_some()
            || options.if_modified_since.is_some()
            || options.if_unmodified_since.is_some()
            || options.version.is_some();
        let is_ranged = options.range.is_some();
        let counter = if head { &self.heads } else { &self.gets };
        let number = counter.fetch_add(1, Ordering::Relaxed) + 1;
        let is_spared = self.spares_conditions && is_conditional && !is_ranged;
        let has_faults = !head && !is_spared && self.is_faulty.load(Ordering::Relaxed);
        if has_faults && self.faults.errors > 0 && number.is_multiple_of(self.faults.errors) {
            return Err(match self.is_denied {
                true => denied(location),
                false => broken("the server is busy"),
            });
        }
        if is_ranged && self.is_down.load(Ordering::Relaxed) {
            return Err(broken("the server is down"));
        }
        let is_long = match &options.range {
            Some(GetRange::Bounded(range)) => range.end.saturating_sub(range.start) >= 1000,
            _ => false,
        };
        if is_long && self.faults.changes > 0 {
            let ranged = self.ranged_gets.fetch_add(1, Ordering::Relaxed) + 1;
            if ranged.is_multiple_of(self.faults.changes) {
                self.change(location).await?;
            }
        }
        if self.latency > Duration::ZERO {
            let jitter_ns = self.jitter.as_nanos() as u64 + 1;
            let random = Duration::from_nanos(splitmix::mixed(number) % jitter_ns);
            tokio::time::sleep(self.latency + random).await;
        }
        if self.is_shifted {
            options.range = options.range.map(shifted);
        }
        let mut result = self.store.get_opts(location, options).await?;
        if self.is_weak || self.hides[0] {
            // As by HTTP, in whole seconds.
            let nanos = result.meta.last_modified.timestamp_subsec_nanos();
            result.meta.last_modified -= self.age + Duration::from_nanos(nanos.into());
            result.meta.e_tag = Some("W/\"1\"".to_owned()).filter(|_| self.is_weak);
        }
        if self.hides[1] {
            result.meta.last_modified = Default::default();
        }
        if head {
            return Ok(result);
        }
        let payload = std::mem::replace(
            &mut result.payload,
            GetResultPayload::Stream(stream::empty().boxed()),
        );
        let (meta, range, attributes) =
            (result.meta.clone(), result.range.clone(), result.attributes.clone());
        let extensions = Default::default();
        let whole = GetResult { payload, meta, range, attributes, extensions };
        let bytes = whole.bytes().await?;
        self.body(&mut result, bytes, Some(number).filter(|_| has_faults));
        Ok(result)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.store.rename_opts(from, to, options).await
    }
}

impl<S: ObjectStore> fmt::Display for TestStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Test({})", self.store)
    }
}

/// The bytes of a get, by its stream.
pub async fn bytes_of(result: GetResult) -> Result<Vec<u8>> {
    result
        .into_stream()
        .try_fold(Vec::new(), |mut all, chunk| async move {
            all.extend_from_slice(&chunk);
            Ok(all)
        })
        .await
}

/// A get of a range.
pub fn ranged(range: Range<u64>) -> GetOptions {
    GetOptions::new().with_range(Some(GetRange::Bounded(range)))
}

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

pub type Cached = ReadpathStore<TestStore<InMemory>>;

/// Options without readahead: each fetch is for a read.
pub fn options() -> StoreOptions {
    let readahead = "none".to_owned();
    let planner = PlannerOptions { readahead, memory_bytes: 4 * MIB, ..Default::default() };
    StoreOptions { planner, ..StoreOptions::default() }
}

/// A store with one object of `bytes` bytes of version 0.
pub async fn cached(
    store: TestStore<InMemory>,
    options: StoreOptions,
    bytes: u64,
) -> (Cached, Path) {
    let path = Path::from("folder/object");
    store.store.put(&path, content(0, 0..bytes).into()).await.unwrap();
    (ReadpathStore::new(store, options, TokioRuntime::current()).unwrap(), path)
}

pub fn slow() -> TestStore<InMemory> {
    TestStore { latency: Duration::from_millis(20), ..TestStore::new(InMemory::new()) }
}
