//! The read path of a program: memory, laws and depth for any number of files.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use readpath_core::decision::LoggedDecision;
use readpath_core::machine::{self, Config, ConfigError};
use readpath_core::policy::{Spec, SpecError};
use readpath_core::readahead::ReadaheadLimits;
use readpath_core::request::DeviceCaps;
use readpath_core::unit::PAGE_BYTES;

use crate::backend::{BackendError, BackendInUse, BackendKind};
use crate::clock::Clock;
use crate::engine::below::{Below, Opening};
use crate::engine::elastic::{Elastic, FIXED_BYTES, MemoryPlan};
use crate::engine::frame_cache::{FrameCache, FrameSharer};
use crate::engine::{Engine, Handle, LazyEngine};
use crate::file::File;
use crate::frames::{FrameMemoryError, has_room_for_tables};
use crate::identity::file_time;
use crate::kernel_pages::KernelCache;
use crate::kernel_pages::kernel_readahead::KernelReadahead;
use crate::storage::{FileStorage, Sleeper, Storage};
use crate::target::{OpenError, OpenOptions, Target};

/// One cache, one readahead law and one queue of requests, for any number of
/// files on any number of threads.
///
/// Cheap to clone: every clone is the same path. Files keep it alive; with the
/// last of them, and the last clone, requests in flight are withdrawn or waited
/// for, and memory and threads are given back.
///
/// Each byte of a file that others change is one that the file had at some time since the opening.
/// [`Builder::coherence`] promises more. See [`File`], also for a path in a child made by `fork(2)`.
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
    /// What a path is to be like; every knob has a default.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Opens a regular file or a block device.
    ///
    /// A file that is open already, and has not changed since (device, inode,
    /// length, times of modification and of change), shares its cached pages. One
    /// that has changed is read afresh by this and by later handles; earlier
    /// handles go on with what they have until they are
    /// [revalidated](File::revalidate). So has an empty file that grows: until then
    /// it has no bytes.
    ///
    /// # Errors
    /// It isn't there, can't be opened, is neither of the two, or its bytes are made
    /// by the kernel as it is read (`/proc`).
    pub fn open(&self, name: impl AsRef<Path>) -> Result<File, OpenError> {
        let name = name.as_ref();
        let engine = self.engine.here().map_err(|why| OpenError::forked(name, why))?;
        let time = file_time();
        let target = Target::open_to_fill(
            name,
            OpenOptions { is_writable: false, direct: engine.kernel_cache.direct() },
            false,
        )?;
        if target.is_block_device() {
            engine.ready().map_err(|why| OpenError::unbuilt(name, why))?;
        }
        let identity = target.identity().marked(time, engine.coherence);
        let name = target.name();
        Ok(File::new(Handle::open(&engine, Opening::Local(target), identity), name))
    }

    /// What was counted since the path was built; in a child made by `fork`, since it was
    /// first used there.
    pub fn stats(&self) -> Stats {
        let Some(owner) = self.engine.here_already() else { return Stats::default() };
        let through_kernel = owner.through_kernel();
        let by_kernel = Stats {
            kernel_waits: through_kernel.waits,
            kernel_read_bytes: through_kernel.waited_bytes,
            kernel_advised_bytes: through_kernel.advised_bytes,
            ..Stats::default()
        };
        let Some(engine) = owner.built() else { return by_kernel };
        let mut state = engine.lock();
        state.take_in(Ok(false));
        state.machine.settle();
        let (meter, cache) = (*state.machine.meter(), state.machine.cache_counters());
        let [memory_bytes, used_memory_bytes] = state.machine.memory_bytes();
        Stats {
            device_reads: meter.device_reads,
            device_bytes: meter.device_read_bytes,
            in_flight: meter.in_device(),
            readahead_bytes: cache.readahead_pages * PAGE_BYTES,
            waste_bytes: cache.waste_pages * PAGE_BYTES,
            unused_bytes: cache.unused_pages() * PAGE_BYTES,
            evicted_bytes: cache.evicted_pages * PAGE_BYTES,
            depth_mean_milli: meter.depth_mean_milli(),
            depth_max: meter.depth_max,
            backend: state.backend(),
            memory_bytes,
            used_memory_bytes,
            ..by_kernel
        }
    }

    /// What the scheduler and the readahead law have decided since this was last asked, and by
    /// which numbers, oldest first, if the path [logs](Builder::log_decisions) them. Each prints
    /// as a line of the command's `--log`; `at_ms` counts from when the path was built.
    ///
    /// Each of the two keeps its last 4,096 decisions: ask often enough, or
    /// [`Lost`](crate::Decision::Lost) says how many are missing. Empty where neither law keeps a
    /// log (of the schedulers `cfq` and `adaptive` do, of the readahead laws `adaptive`).
    pub fn take_decisions(&self) -> Vec<LoggedDecision> {
        let mut all: Vec<LoggedDecision> = Vec::new();
        if let Some(engine) = self.engine.built() {
            let mut state = engine.lock();
            let machine = &mut state.machine;
            if let Some(log) = machine.scheduler_decisions() {
                all.extend(std::iter::from_fn(|| log.poll()));
            }
            let log = machine.readahead_decisions();
            all.extend(std::iter::from_fn(|| log.poll()));
        }
        self.engine.take_decisions(&mut all);
        all.sort_by_key(|decided| decided.at);
        all
    }

    /// The path that owns this engine.
    pub(crate) fn of(engine: Arc<LazyEngine>) -> ReadPath {
        ReadPath { engine }
    }

    pub(crate) fn engine(&self) -> &Arc<LazyEngine> {
        &self.engine
    }
}

/// What a [`ReadPath`] has counted since it was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests that the storage was given, past the kernel's cache.
    pub device_reads: u64,
    /// Bytes that it was asked for.
    pub device_bytes: u64,
    /// Requests that it has now.
    pub in_flight: u32,
    /// Bytes read ahead of need.
    pub readahead_bytes: u64,
    /// Those of them that left the cache without having been used.
    pub waste_bytes: u64,
    /// Bytes read ahead and not used so far, in the cache or not.
    pub unused_bytes: u64,
    /// Bytes given up for others.
    pub evicted_bytes: u64,
    /// The mean number of requests in the storage while it had any, in thousandths; `None` when
    /// it never had one.
    pub depth_mean_milli: Option<u64>,
    /// The most requests that were in the storage at once.
    pub depth_max: u32,
    /// What carries the bytes, and why not what suits better; none for a server's, which
    /// come over a connection, and as long as nothing was read past the kernel, which keeps the pages.
    pub backend: Option<BackendInUse>,
    /// How much memory there is for cached pages now: [`Builder::memory`]. None is taken before something is read past the
    /// kernel where that keeps the pages.
    pub memory_bytes: u64,
    /// Those of them that were ever used, and not given back since.
    pub used_memory_bytes: u64,
    /// Reads that waited for the kernel to bring something into its cache, where it keeps the pages
    /// ([`Builder::kernel_cache`]).
    pub kernel_waits: u64,
    /// The bytes that these waited for.
    pub kernel_read_bytes: u64,
    /// Bytes that the kernel was advised to read ahead of reads, beside what it reads ahead by itself.
    pub kernel_advised_bytes: u64,
}

/// When a [`ReadPath`] looks whether a file was changed by others: by another process, or past
/// the path in this one.
///
/// To look is one `fstat(2)`: device, inode, length, and the times of modification and of change. A file
/// that has changed is read afresh from then on by each handle that saw it, with its new
/// [length](File::len); nothing is served any more of what was cached. Guards and reads under way keep what
/// they have. What isn't seen: stores to a shared mapping, which change the times late; writes
/// to a block device; a change while the system's clock is set back. A server's file
/// (`nfs://`) is not looked at; of one that the kernel has mounted from a server, the times are as fresh as
/// that mount has them (`actimeo`, nfs(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coherence {
    /// When it is opened, or [revalidated](File::revalidate), and not later: after a change a handle
    /// gives what it has cached as it was, and the rest as it is. For files that nobody
    /// changes while they are read.
    #[default]
    WhenOpened,
    /// Also whenever a read doesn't find all of its bytes cached, and when bytes are prefetched: no read has both bytes that were
    /// cached before a change and bytes that were asked for after it. (What is on its way while the file changes, for
    /// whomever it may be, comes as it is or as it was.) Two changes within one tick of the
    /// file system's clock look like one (10 ms at most; FAT: 2 s).
    EachMiss,
    /// At each read: one that begins after a write, or a truncation, has returned has none of the bytes
    /// that were there before. A write may take up to 2 s: for so long after a change nothing
    /// of the file is served from the cache.
    EachRead,
}

/// What a [`ReadPath`] is to be like.
///
/// ```
/// let path = readpath::ReadPath::builder()
///     .memory(32 << 20)
///     .held_memory(4 << 20)
///     .readahead("ondemand,read_ahead_kb=1024")
///     .scheduler("deadline")
///     .depth(64)
///     .build()?;
/// assert_eq!(path.stats().device_reads, 0);
/// let error = readpath::ReadPath::builder().readahead("psychic").build().err().unwrap();
/// assert!(error.to_string().contains("there is no readahead law `psychic`"));
/// # Ok::<(), readpath::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    memory_bytes: Option<u64>,
    held_bytes: Option<u64>,
    readahead: Cow<'static, str>,
    scheduler: Cow<'static, str>,
    eviction: Cow<'static, str>,
    depth: u32,
    backend: BackendKind,
    logs_decisions: bool,
    coherence: Coherence,
    takes_kernel_pages: bool,
}

/// The laws, and the most requests at once, unless they are named.
const POLICY: &str = "adaptive";
const DEPTH: u32 = 128;

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            memory_bytes: None,
            held_bytes: None,
            readahead: Cow::Borrowed(POLICY),
            scheduler: Cow::Borrowed(POLICY),
            eviction: Cow::Borrowed(POLICY),
            depth: DEPTH,
            backend: BackendKind::default(),
            logs_decisions: false,
            coherence: Coherence::default(),
            takes_kernel_pages: true,
        }
    }
}

impl Builder {
    /// Memory for cached pages, in bytes: at least 8 KiB, less
    /// than 16 TiB; rounded down to whole pages of 4 KiB. It is taken from the
    /// system as it is first used, 2 MiB at a time where there are huge pages.
    /// Beside it go at most 160 bytes a page (4 %), 1.3 MiB at the start, and what
    /// reads under way need: 100 bytes for each, and 4 bytes for each of their
    /// pages.
    ///
    /// Where nothing is named, the kernel keeps the pages ([`kernel_cache`](Builder::kernel_cache)), and this memory is for what needs
    /// pages of its own: futures, and reads that failed there. It is 256 MiB, and grows as bytes are read anew that a larger one would have kept, as far as the
    /// machine, and the control groups that the process is in, have memory to spare: to three quarters of all memory at
    /// the most. It leaves an eighth of it to others, and is given back,
    /// within a second, when others need it ([`Stats::memory_bytes`]). It doesn't become smaller than 112 MiB, or 48 and a
    /// sixteenth of all that there is. Where that isn't known, or the program locks all that it maps (mlockall(2)), it
    /// is 256 MiB.
    /// A read that somebody else has to wait for, and whose bytes nobody
    /// comes to take, has them moved to memory of their own.
    pub fn memory(mut self, bytes: u64) -> Builder {
        self.memory_bytes = Some(bytes);
        self
    }

    /// How much of the memory [`PageGuard`](crate::PageGuard)s may hold at once, in bytes;
    /// default a quarter of it, but 1 page at least; where no memory is named 64 MiB, or a sixteenth of all
    /// that there is. Reads have the rest to
    /// themselves.
    pub fn held_memory(mut self, bytes: u64) -> Builder {
        self.held_bytes = Some(bytes);
        self
    }

    /// The readahead law, as `readpath policies` names it, with its parameters;
    /// default `adaptive`: it learns what a request and a byte cost, and reads as far
    /// ahead of each stream as its reader needs.
    pub fn readahead(mut self, policy: &str) -> Builder {
        self.readahead = Cow::Owned(policy.to_owned());
        self
    }

    /// The scheduler between all readers and the storage; default `adaptive`: everybody at
    /// once, unless it is seen that the readers are in each other's way, and that fewer at a time
    /// bring more. The others know of one queue. A path may span several devices; to have each
    /// decided for by itself, give each a path of its own.
    pub fn scheduler(mut self, policy: &str) -> Builder {
        self.scheduler = Cow::Owned(policy.to_owned());
        self
    }

    /// What stays in memory when that is short, as `readpath policies` names it; default `adaptive`: the
    /// one of the others that would have missed least of a sample of the pages.
    ///
    /// Where no memory is named, and the path keeps pages itself, it decides once pages are read again that had to leave; until then they go in
    /// the order in which they came, as `two-lists` has it.
    ///
    /// ```
    /// let error = readpath::ReadPath::builder().reclaim("psychic").build().err().unwrap();
    /// assert!(error.to_string().contains("there is no reclaim law `psychic`"));
    /// ```
    pub fn eviction(mut self, policy: &str) -> Builder {
        self.eviction = Cow::Owned(policy.to_owned());
        self
    }

    /// The most requests in the storage at once; default 128, 1 to 16,383. More
    /// hides more latency, and costs memory of the kernel.
    pub fn depth(mut self, requests: u32) -> Builder {
        self.depth = requests;
        self
    }

    /// What carries the requests; default [`BackendKind::Auto`]: Linux AIO, and threads where the
    /// kernel gives none; [`Stats::backend`] says which. One that is named is that or an error.
    pub fn backend(mut self, backend: BackendKind) -> Builder {
        self.backend = backend;
        self
    }

    /// Whether the laws' decisions are kept for [`take_decisions`](ReadPath::take_decisions), the
    /// last 4,096 of each law; default no. Off it costs a branch a decision; on, some tens of
    /// nanoseconds for one, and up to 2 MiB.
    pub fn log_decisions(mut self, is_on: bool) -> Builder {
        self.logs_decisions = is_on;
        self
    }

    /// When a file is looked at for changes by others; default
    /// [`WhenOpened`](Coherence::WhenOpened). To look costs half
    /// a microsecond, an `fstat(2)` and some (`cargo bench -p readpath-peers --bench held_reads`):
    /// a cached read of 4 KiB took 0.50 in place of 0.08 us on a machine that was busy otherwise.
    pub fn coherence(mut self, coherence: Coherence) -> Builder {
        self.coherence = coherence;
        self
    }

    /// What the kernel's page cache is to this path; default yes.
    ///
    /// With yes, and nothing named of what the path would keep pages by itself with (memory, laws, depth, backend), **the kernel
    /// keeps the pages**: reads come through its cache straight into the caller's memory, stay there for the next pass and for other
    /// programs, and give way to whatever else needs memory; the readahead law sees them, and has the kernel advised of what comes
    /// next that it doesn't see by itself (strides, streams that go down, pieces). [`File::mode`] says so, [`Stats`] what was
    /// advised and waited for.
    ///
    /// With yes, and any of these named, the path keeps pages itself and reads past that cache; but what it holds, since a program
    /// has just written the file or reads it too, is taken from there, with no copy in this path's memory.
    ///
    /// With no, all that this path has not cached itself comes from the storage: for who measures that, or wants its pages here.
    pub fn kernel_cache(mut self, is_used: bool) -> Builder {
        self.takes_kernel_pages = is_used;
        self
    }

    /// What the path does with the kernel's cache.
    fn kernel_cache_use(&self) -> KernelCache {
        match self.takes_kernel_pages {
            false => KernelCache::Unused,
            true if self.names_nothing() => KernelCache::Keeps(Arc::new(KernelReadahead::new(
                Clock::start(),
                self.logs_decisions,
            ))),
            true => KernelCache::Taken,
        }
    }

    /// Whether what the path would keep pages by itself with is left as it is by default.
    fn names_nothing(&self) -> bool {
        let Builder { memory_bytes, held_bytes, readahead, scheduler, eviction, .. } = self;
        (memory_bytes, held_bytes) == (&None, &None)
            && [readahead, scheduler, eviction].iter().all(|policy| *policy == POLICY)
            && (self.depth, self.backend) == (DEPTH, BackendKind::Auto)
    }

    /// Builds it.
    ///
    /// # Errors
    /// A law is unknown or has a bad parameter, a number is out of bounds, there
    /// is not so much memory, or the kernel gives no such backend.
    pub fn build(self) -> Result<ReadPath, BuildError> {
        if self.depth == 0 {
            return Err(BuildError::Config(ConfigError::NoDepth));
        }
        let coherence = self.coherence;
        let kernel_cache = self.kernel_cache_use();
        let owner = match kernel_cache {
            KernelCache::Keeps(_) => LazyEngine::later(coherence, kernel_cache, self),
            _ => {
                let again = Some(self.clone());
                LazyEngine::new(self.build_engine()?, coherence, kernel_cache, again)
            }
        };
        Ok(ReadPath { engine: Arc::new(owner) })
    }

    /// Builds its engine over files of this machine.
    ///
    /// # Errors
    /// As [`build`](Builder::build).
    pub(crate) fn build_engine(self) -> Result<Engine, BuildError> {
        let clock = Clock::start();
        let (files, sleeper) =
            FileStorage::several(self.depth, self.backend, clock).map_err(BuildError::Backend)?;
        let caps = files.caps();
        self.build_over(Below::Files(Box::new(files)), sleeper, caps, clock)
    }

    /// Builds it over what carries its requests.
    ///
    /// # Errors
    /// As [`build`](Builder::build).
    pub(crate) fn build_over(
        self,
        below: Below,
        sleeper: Arc<dyn Sleeper>,
        caps: DeviceCaps,
        clock: Clock,
    ) -> Result<Engine, BuildError> {
        let spec = |text: &str| Spec::parse(text).map_err(BuildError::Policy);
        let limits = ReadaheadLimits {
            request_pages_max: u64::from(caps.request_sectors_max) * 512 / PAGE_BYTES,
            ..ReadaheadLimits::default()
        };
        let policy_memory_bytes_max = match self.memory_bytes {
            Some(_) => u64::MAX,
            None => FIXED_BYTES,
        };
        let config = Config {
            policy_memory_bytes_max,
            readahead: spec(&self.readahead)?,
            limits,
            scheduler: spec(&self.scheduler)?,
            eviction: spec(&self.eviction)?,
            depth_max: self.depth,
            ..Config::new(caps)
        };
        let mut plan = match self.memory_bytes {
            Some(bytes) => MemoryPlan::fixed(bytes, self.held_bytes),
            None => MemoryPlan::elastic(self.held_bytes),
        };
        let pages_max = plan.bytes_max / PAGE_BYTES;
        // Of more the machine says that they can't be numbered.
        if pages_max < u64::from(u32::MAX) && !has_room_for_tables(pages_max) {
            let (bytes, errno) = (plan.bytes_max as usize, libc::ENOMEM);
            return Err(BuildError::Memory(FrameMemoryError::Memory { bytes, errno }));
        }
        let (mut machine, frame_cache) = loop {
            let held_pages = plan.held_bytes / PAGE_BYTES;
            let machine = machine::Machine::new(Config {
                memory_bytes: plan.limit_bytes,
                memory_bytes_max: plan.bytes_max,
                pinned_bytes_max: held_pages * PAGE_BYTES,
                ..config.clone()
            });
            let machine = machine.map_err(BuildError::Config)?;
            let pages_max = plan.bytes_max / PAGE_BYTES;
            match (FrameCache::new(pages_max as u32, held_pages as u32), plan.halved()) {
                (Ok(frame_cache), _) => break (machine, Arc::new(frame_cache)),
                // There are fewer addresses than memory: ulimit(1), or strict overcommit.
                (Err(_), Some(halved)) => plan = halved,
                (Err(error), None) => return Err(BuildError::Memory(error)),
            }
        };
        machine.readahead_decisions().turn(self.logs_decisions);
        if let Some(log) = machine.scheduler_decisions() {
            log.turn(self.logs_decisions);
        }
        machine.lend_through(Box::new(FrameSharer(Arc::clone(&frame_cache))));
        let engine = Engine::new(machine, below, sleeper, frame_cache, clock);
        Ok(engine.with_memory(Elastic::of(plan)))
    }
}

/// Why there is no read path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// A law is not of the form `NAME,key=value,…`.
    Policy(SpecError),
    /// A law is unknown, or a number is out of bounds.
    Config(ConfigError),
    /// The system has no room for the memory.
    Memory(FrameMemoryError),
    /// The backend isn't to be had here.
    Backend(BackendError),
}

impl std::fmt::Display for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BuildError::Policy(error) => error.fmt(f),
            BuildError::Config(error) => error.fmt(f),
            BuildError::Memory(error) => error.fmt(f),
            BuildError::Backend(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BuildError {}
