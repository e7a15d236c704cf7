//! Read path of a program: one memory budget, one set of policies and one queue for any number of
//! files.
//!
//! The *engine* of a path is its own cache with its requests. Its *machine* is the state machine of
//! that cache. A path with the kernel page cache builds its engine only if a read must bypass that
//! cache. The *owner* has the engine, or the options to build it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use readpath_core::decision::LoggedDecision;
use readpath_core::unit::PAGE_BYTES;

use crate::backend::BackendInUse;
use crate::page_cache::PageCache;
use crate::page_cache::own::LazyEngine;

pub(crate) mod builder;

use builder::Builder;

/// One cache, one readahead policy and one request queue, for any number of files and threads.
///
/// A clone is cheap and shares the same path. Files keep the path alive. Dropping the last file and
/// clone withdraws requests in flight or waits for them, and releases memory and threads.
///
/// Each byte read from a file that others change is a byte that the file had at some time since its
/// opening. [`Builder::coherence`] gives stronger guarantees. See [`File`](crate::File), also for a
/// path in a child made by `fork(2)`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let name = std::env::temp_dir().join(format!("readpath-doc-{}", std::process::id()));
/// # std::fs::write(&name, vec![7u8; 100_000])?;
/// let path = readpath::ReadPath::builder().memory(64 << 20).build()?;
/// let file = path.open(&name)?;
/// let mut buffer = [0; 4096];
/// file.read_exact_at(&mut buffer, 8192)?;
/// # assert_eq!(buffer, [7; 4096]);
/// # std::fs::remove_file(&name)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ReadPath {
    engine: Arc<LazyEngine>,
}

impl ReadPath {
    /// Options of a `ReadPath`. Every option has a default.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Page cache of the path. `Own` has the size that was given.
    pub fn page_cache(&self) -> PageCache {
        self.engine.pages.page_cache()
    }

    /// Counters since the path was built. In a child made by `fork`: since its first use there, and
    /// all 0 before.
    pub fn stats(&self) -> Stats {
        let Some(owner) = self.engine.existing_for_this_process() else { return Stats::default() };
        let kernel_totals = owner.kernel_read_totals();
        let kernel_stats = Stats {
            kernel_waits: kernel_totals.waits,
            kernel_read_bytes: kernel_totals.waited_bytes,
            kernel_advised_bytes: kernel_totals.advised_bytes,
            kernel_whole_file_bytes: kernel_totals.whole_file_bytes,
            ..Stats::default()
        };
        // Without an engine its counters are 0.
        let Some(engine) = owner.existing_engine() else { return kernel_stats };
        let mut state = engine.lock();
        // Completed requests and uses of pages that were not processed yet are counted too.
        // Without a sleep before, the times of the completions stay as they are.
        let has_slept = Ok(false);
        state.collect_completions(has_slept);
        state.machine.collect_uses();
        let (meter, cache) = (*state.machine.meter(), state.machine.cache_counters());
        let [memory_bytes, used_memory_bytes] = state.machine.memory_bytes();
        // Reads of a source past the cache do not pass the machine.
        let direct = &engine.direct_counters;
        Stats {
            device_reads: meter.device_reads + direct.fetches.load(Ordering::Relaxed),
            device_bytes: meter.device_read_bytes + direct.bytes.load(Ordering::Relaxed),
            in_flight: meter.in_device() + direct.in_flight.load(Ordering::Relaxed),
            readahead_bytes: cache.readahead_pages * PAGE_BYTES,
            waste_bytes: cache.waste_pages * PAGE_BYTES,
            unused_bytes: cache.unused_pages() * PAGE_BYTES,
            evicted_bytes: cache.evicted_pages * PAGE_BYTES,
            depth_mean_milli: meter.depth_mean_milli(),
            depth_max: meter.depth_max,
            backend: state.backend(),
            memory_bytes,
            used_memory_bytes,
            ..kernel_stats
        }
    }

    /// Takes the decisions of the scheduler and the readahead policy since the last call, with
    /// their numbers, oldest first. The path must [log](Builder::log_decisions) them. Each decision
    /// prints as a line of the command's `--log`; `at_ms` counts from the building of the path.
    ///
    /// Each of the two logs keeps its last 4,096 decisions. [`Lost`](crate::Decision::Lost) reports
    /// how many are missing. The list is empty if neither policy keeps a log. The schedulers `cfq`
    /// and `adaptive` and the readahead policy `adaptive` do. A child made by `fork` has its own
    /// decisions, from its first use of the path on.
    pub fn take_decisions(&self) -> Vec<LoggedDecision> {
        let mut decisions: Vec<LoggedDecision> = Vec::new();
        let Some(owner) = self.engine.existing_for_this_process() else { return decisions };
        // `poll` removes the oldest decision of a log, and returns `None` at its end.
        if let Some(engine) = owner.existing_engine() {
            let mut state = engine.lock();
            let machine = &mut state.machine;
            if let Some(log) = machine.scheduler_decisions() {
                decisions.extend(std::iter::from_fn(|| log.poll()));
            }
            let log = machine.readahead_decisions();
            decisions.extend(std::iter::from_fn(|| log.poll()));
        }
        // Decisions of the policy that advises the kernel, if the kernel caches the pages.
        owner.take_decisions(&mut decisions);
        decisions.sort_by_key(|decided| decided.at);
        decisions
    }

    /// Wraps the engine in the public type.
    pub(crate) fn from_engine(engine: Arc<LazyEngine>) -> ReadPath {
        ReadPath { engine }
    }

    /// Returns the owner of the path's engine, which may not be built yet.
    pub(crate) fn engine(&self) -> &Arc<LazyEngine> {
        &self.engine
    }
}

/// Counters of a [`ReadPath`] since it was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests submitted to the storage. Reads through the kernel page cache are not included.
    pub device_reads: u64,
    /// Bytes of these requests.
    pub device_bytes: u64,
    /// Requests in flight now.
    pub in_flight: u32,
    /// Prefetched bytes.
    pub readahead_bytes: u64,
    /// Prefetched bytes that left the cache unused.
    pub waste_bytes: u64,
    /// Prefetched bytes that have not been used so far, in the cache or not.
    pub unused_bytes: u64,
    /// Bytes evicted to free memory for other pages.
    pub evicted_bytes: u64,
    /// Mean queue depth of the storage while it was busy, in thousandths. `None` if it was never
    /// busy. Neither this nor `depth_max` includes reads of a source past the cache.
    pub depth_mean_milli: Option<u64>,
    /// Largest number of requests that were in flight at once.
    pub depth_max: u32,
    /// I/O backend, with the reason why no faster one is used. `None` for an NFS server, for a
    /// source, and until the first read that bypasses the kernel page cache.
    pub backend: Option<BackendInUse>,
    /// Present size of the path's memory in bytes: [`Builder::memory`]. With [`PageCache::Kernel`]
    /// it is 0 before the first bypassing read.
    pub memory_bytes: u64,
    /// Bytes of cache memory that were used at least once and have not been returned to the system.
    pub used_memory_bytes: u64,
    /// Reads that waited for the kernel to fill its page cache, and reads of a batch with an absent
    /// page at their submission. Counted only with [`PageCache::Kernel`].
    pub kernel_waits: u64,
    /// Bytes for which these reads waited.
    pub kernel_read_bytes: u64,
    /// Bytes that the path advised the kernel to read ahead, in addition to the kernel's own
    /// readahead.
    pub kernel_advised_bytes: u64,
    /// The part of these bytes by which files were read whole: [`Builder::whole_file_memory`].
    pub kernel_whole_file_bytes: u64,
}
