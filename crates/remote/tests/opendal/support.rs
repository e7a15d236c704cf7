//! Operators with the layer, and a layer below it that counts requests and adds ETags.

use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use opendal::raw::oio::{self, Read as _};
use opendal::raw::{
    Access, AccessorInfo, Layer, LayeredAccess, OpCopier, OpCopy, OpDelete, OpList, OpRead,
    OpRename, OpStat, OpWrite, RpCopy, RpDelete, RpList, RpRead, RpRename, RpStat, RpWrite,
};
use opendal::services::{Http, Memory};
use opendal::{Capability, Error, ErrorKind, Metadata, Operator, Result};
use readpath_remote::opendal::ReadpathLayer;
use readpath_remote::planner::PlannerOptions;
use readpath_remote::store::{Runtime, StoreOptions, TokioRuntime};

use crate::server::Server;

#[path = "../content/mod.rs"]
mod content;

pub use content::content;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// Options without readahead: each fetch is for a read. A part has 64 KiB, the memory 4 MiB.
pub fn options() -> StoreOptions {
    let planner = PlannerOptions {
        readahead: "none".to_owned(),
        memory_bytes: 4 * MIB,
        part_bytes: 64 * KIB,
        ..PlannerOptions::default()
    };
    StoreOptions { planner, retries_max: 0, ..StoreOptions::default() }
}

/// Tokio with a clock of the system that is an hour ahead: all versions have settled.
#[derive(Debug)]
pub struct LateRuntime(TokioRuntime);

impl Runtime for LateRuntime {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn unix_time(&self) -> Duration {
        self.0.unix_time() + Duration::from_secs(3600)
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.0.spawn(task);
    }
}

/// A layer with these options.
pub fn layer(options: StoreOptions) -> ReadpathLayer {
    ReadpathLayer::new(options, LateRuntime(TokioRuntime::current())).unwrap()
}

/// An operator without the layer.
pub fn plain_http(server: &Server) -> Operator {
    Operator::new(Http::default().endpoint(&server.url())).unwrap().finish()
}

/// An operator with the layer, and the layer.
pub fn over_http(server: &Server, options: StoreOptions) -> (Operator, ReadpathLayer) {
    let layer = layer(options);
    (plain_http(server).layer(layer.clone()), layer)
}

/// An operator over memory with the layer. Objects have ETags: in answers to reads too, or only
/// in answers to stats.
pub fn over_memory(watch: &Watch, options: StoreOptions) -> (Operator, ReadpathLayer) {
    let (operator, layer, _) = shared_memory(watch, options);
    (operator, layer)
}

/// As [`over_memory`], with an operator of another client of the same memory.
pub fn shared_memory(watch: &Watch, options: StoreOptions) -> (Operator, ReadpathLayer, Operator) {
    let (layer, other) = (layer(options), Operator::new(Memory::default()).unwrap().finish());
    (other.clone().layer(watch.clone()).layer(layer.clone()), layer, other)
}

/// A layer that counts reads and stats.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    pub counts: Arc<[AtomicU64; 2]>,
    /// True if answers to reads have the ETag.
    pub tags_reads: bool,
    /// True if renames take effect and are never answered.
    pub hangs_renames: bool,
    /// True if the first close of a deleter fails, and the next one deletes.
    pub fails_first_close: bool,
    /// Number of the current version, from 1 on, of objects whose versions are all kept, without
    /// ETags. Version n of the object `a` is the object `a.n` below. 0: no such versions.
    pub version: Arc<AtomicU64>,
}

impl Watch {
    /// Numbers of reads and stats since the last call.
    pub fn take(&self) -> (u64, u64) {
        let [reads, stats] = &*self.counts;
        (reads.swap(0, Ordering::Relaxed), stats.swap(0, Ordering::Relaxed))
    }
}

#[derive(Debug)]
pub struct Watched<A> {
    inner: A,
    watch: Watch,
}

impl<A: Access> Layer<A> for Watch {
    type LayeredAccess = Watched<A>;

    fn layer(&self, inner: A) -> Watched<A> {
        Watched { inner, watch: self.clone() }
    }
}

impl<A: Access> Watched<A> {
    /// The metadata of an object, with a hash of its bytes as ETag.
    async fn tagged(&self, path: &str) -> Result<Metadata> {
        let metadata = self.inner.stat(path, OpStat::new()).await?.into_metadata();
        let (_, mut reader) = self.inner.read(path, OpRead::new()).await?;
        let bytes = reader.read_all().await?.to_vec();
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        Ok(metadata.with_etag(format!("\"{:x}\"", hasher.finish())))
    }
}

impl<A: Access> LayeredAccess for Watched<A> {
    type Inner = A;
    type Reader = A::Reader;
    type Writer = A::Writer;
    type Lister = A::Lister;
    type Deleter = LateDeleter<A::Deleter>;
    type Copier = A::Copier;

    fn inner(&self) -> &A {
        &self.inner
    }

    fn info(&self) -> Arc<AccessorInfo> {
        let info = self.inner.info();
        if self.watch.version.load(Ordering::Relaxed) > 0 {
            let read_with_version = true;
            info.update_full_capability(|other| Capability { read_with_version, ..other });
        }
        info
    }

    async fn read(&self, path: &str, args: OpRead) -> Result<(RpRead, A::Reader)> {
        self.watch.counts[0].fetch_add(1, Ordering::Relaxed);
        let current = self.watch.version.load(Ordering::Relaxed);
        if current > 0 {
            let version = args.version().map_or(current.to_string(), str::to_owned);
            let kept = format!("{path}.{version}");
            let metadata = self.inner.stat(&kept, OpStat::new()).await?.into_metadata();
            let read = OpRead::new().with_range(args.range());
            let (_, reader) = self.inner.read(&kept, read).await?;
            return Ok((RpRead::new(metadata.with_version(version)), reader));
        }
        let (reply, reader) = self.inner.read(path, args).await?;
        match self.watch.tags_reads {
            true => Ok((RpRead::new(self.tagged(path).await?), reader)),
            false => Ok((reply, reader)),
        }
    }

    async fn stat(&self, path: &str, args: OpStat) -> Result<RpStat> {
        self.watch.counts[1].fetch_add(1, Ordering::Relaxed);
        let current = self.watch.version.load(Ordering::Relaxed);
        if current > 0 {
            let reply = self.inner.stat(&format!("{path}.{current}"), args).await?;
            let version = current.to_string();
            return Ok(RpStat::new(reply.into_metadata().with_version(version)));
        }
        let reply = self.inner.stat(path, args).await?;
        match reply.clone().into_metadata().is_file() {
            true => Ok(RpStat::new(self.tagged(path).await?)),
            false => Ok(reply),
        }
    }

    async fn write(&self, path: &str, args: OpWrite) -> Result<(RpWrite, A::Writer)> {
        self.inner.write(path, args).await
    }

    async fn copy(
        &self,
        from: &str,
        to: &str,
        args: OpCopy,
        options: OpCopier,
    ) -> Result<(RpCopy, A::Copier)> {
        self.inner.copy(from, to, args, options).await
    }

    async fn rename(&self, from: &str, to: &str, args: OpRename) -> Result<RpRename> {
        let result = self.inner.rename(from, to, args).await;
        match self.watch.hangs_renames {
            true => std::future::pending().await,
            false => result,
        }
    }

    async fn delete(&self) -> Result<(RpDelete, LateDeleter<A::Deleter>)> {
        let (reply, inner) = self.inner.delete().await?;
        let fails = self.watch.fails_first_close;
        Ok((reply, LateDeleter { inner, fails, deletes: Vec::new() }))
    }

    async fn list(&self, path: &str, args: OpList) -> Result<(RpList, A::Lister)> {
        self.inner.list(path, args).await
    }
}

/// A deleter that deletes at its close, as one that sends batches.
pub struct LateDeleter<D> {
    inner: D,
    /// True if the next close fails.
    fails: bool,
    deletes: Vec<(String, OpDelete)>,
}

impl<D: oio::Delete> oio::Delete for LateDeleter<D> {
    async fn delete(&mut self, path: &str, args: OpDelete) -> Result<()> {
        self.deletes.push((path.to_owned(), args));
        Ok(())
    }

    async fn close(&mut self) -> Result<()> {
        if std::mem::take(&mut self.fails) {
            return Err(Error::new(ErrorKind::Unexpected, "busy").set_temporary());
        }
        for (path, args) in self.deletes.drain(..) {
            self.inner.delete(&path, args).await?;
        }
        self.inner.close().await
    }
}
