//! Options of a read path, and its construction.
//!
//! The *engine* of a path is its own cache with its requests. It consists of the *machine*, which
//! decides on requests, frames and evictions, of the *frame cache*, the memory of the pages, and of
//! the *storage*, which executes the requests. Its *owner* has it, or the options to build it. A
//! *source* is a file that the program itself provides. *Elastic* memory grows with its use while
//! the system has spare memory.

use std::borrow::Cow;
use std::sync::Arc;

use readpath_core::machine::{self, Config, ConfigError};
use readpath_core::policy::{Spec, SpecError};
use readpath_core::readahead::ReadaheadLimits;
use readpath_core::request::DeviceCaps;
use readpath_core::unit::{PAGE_BYTES, SECTOR_BYTES};

use crate::backend::{BackendError, BackendKind};
use crate::os::clock::Clock;
use crate::os::frames::{FrameMemory, FrameMemoryError, can_allocate_page_metadata};
use crate::page_cache::kernel::PathPages;
use crate::page_cache::kernel::kernel_readahead::PathKernelReadahead;
use crate::page_cache::own::elastic_memory::{Elastic, FIXED_BYTES, MemoryPlan};
use crate::page_cache::own::frame_cache::{FrameCache, FrameSharer};
use crate::page_cache::own::lazy_engine::{BuildEngine, EngineError};
use crate::page_cache::own::storage_backend::StorageBackend;
use crate::page_cache::own::{Engine, LazyEngine, READ_BYTES_MAX};
use crate::page_cache::{NFS, OptionError, PageCache, SOURCE};
use crate::path::ReadPath;
#[cfg(doc)]
use crate::path::Stats;
use crate::storage::{FileStorage, Sleeper, Storage};
use crate::target::Coherence;

/// Largest file of a source with a memory by its size. The default memory has tables for all free
/// memory of the machine, and a first frame of 2 MiB. Its preparation takes 2 ms, longer than the
/// answer of a fast server. Most objects of this size are read once and closed.
const SMALL_FILE_BYTES_MAX: u64 = 1 << 20;

/// Smallest memory of such a file in bytes.
const SMALL_MEMORY_BYTES: u64 = 1 << 20;

/// Options of a [`ReadPath`].
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
/// let error = readpath::ReadPath::builder().memory(1 << 20).readahead("psychic").build().err().unwrap();
/// assert!(error.to_string().contains("there is no readahead policy `psychic`"));
/// # Ok::<(), readpath::BuildError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Builder {
    // Each field is the value of the option of its name; `None` if the option was not given.
    page_cache: Option<PageCache>,
    /// Value of the option `memory`.
    memory_bytes: Option<u64>,
    /// Value of the option `held_memory`.
    pinned_bytes_max: Option<u64>,
    readahead: Option<Cow<'static, str>>,
    scheduler: Option<Cow<'static, str>>,
    eviction: Option<Cow<'static, str>>,
    depth: Option<u32>,
    backend: Option<BackendKind>,
    /// Value of the option `log_decisions`.
    logs_decisions: bool,
    coherence: Coherence,
    /// Value of the option `whole_file_memory`.
    whole_file_bytes_max: Option<u64>,
    /// Value of the option `kernel_cache`.
    uses_kernel_cache: Option<bool>,
}

/// Default policy for readahead, scheduling and eviction.
const DEFAULT_POLICY: &str = "adaptive";
/// Default queue depth in requests.
const DEFAULT_DEPTH: u32 = 128;

/// Memory in bytes of a path without a page cache, for reads in flight: four of the largest reads.
const IN_FLIGHT_BYTES: u64 = 4 * READ_BYTES_MAX;

impl Builder {
    /// Page cache of the path. Default [`Kernel`](PageCache::Kernel); `Own` for files of an NFS
    /// server, and if [`memory`](Builder::memory) is given.
    ///
    /// An option without effect in the mode is an [error](OptionError) of
    /// [`build`](Builder::build):
    ///
    /// | option | `Kernel` | `Own` | `None` |
    /// |---|---|---|---|
    /// | `coherence`, `log_decisions` | yes | yes | yes |
    /// | `whole_file_memory` | yes | error | error |
    /// | `scheduler`, `depth`, `backend`, `held_memory` | error | yes | yes |
    /// | `memory`, `readahead`, `eviction`, `kernel_cache` | error | yes | error |
    ///
    /// A file of an NFS server is refused with another [`coherence`](Builder::coherence) than the
    /// default.
    pub fn page_cache(mut self, page_cache: PageCache) -> Builder {
        self.page_cache = Some(page_cache);
        self
    }

    /// Size of the page cache in bytes: at least 8 KiB, at most 16 TiB less 8 KiB, rounded down to
    /// pages of 4 KiB. The system provides the memory at first use, 2 MiB at a time if huge pages
    /// are available. Metadata needs at most 160 bytes a page (4 %), 1.3 MiB at the start, and for
    /// each read in progress 100 bytes plus 4 bytes a page.
    ///
    /// This option means [`PageCache::Own`] with this size. Without a size, the memory of such a
    /// path is elastic:
    ///
    /// - It grows with use to 256 MiB, and further when a larger cache would have avoided repeated
    ///   reads. It is limited by the spare memory of the machine and of the process's control
    ///   groups, and by three quarters of all memory.
    /// - It leaves an eighth of all memory to others, and shrinks within a second when others need
    ///   memory ([`Stats::memory_bytes`]).
    /// - It keeps at least 48 MiB for reads (at most a quarter of all memory) and 64 MiB for guards
    ///   (at most a sixteenth).
    /// - It is fixed at 256 MiB if the amount of memory is unknown, or if the program locks its
    ///   mappings (mlockall(2); at most a quarter of all memory then).
    ///
    /// The bytes of a read that blocks another one, and whose caller does not collect them, are
    /// copied to separate memory.
    pub fn memory(mut self, bytes: u64) -> Builder {
        self.memory_bytes = Some(bytes);
        self
    }

    /// Memory in bytes that [`PageGuard`](crate::PageGuard)s may pin at once. Default: a quarter of
    /// the cache, at least 1 page. With elastic memory: 64 MiB, at most a sixteenth of all memory.
    /// Reads have the rest.
    pub fn held_memory(mut self, bytes: u64) -> Builder {
        self.pinned_bytes_max = Some(bytes);
        self
    }

    /// Readahead policy with its parameters, as `readpath policies` names it. Default `adaptive`:
    /// it estimates the cost of a request and of a byte, and reads as far ahead of each stream as
    /// its reader needs.
    pub fn readahead(mut self, policy: &str) -> Builder {
        self.readahead = Some(Cow::Owned(policy.to_owned()));
        self
    }

    /// Scheduler between the readers and the storage. Default `adaptive`: all readers run at once,
    /// unless measurement shows contention and higher throughput with fewer readers. The other
    /// schedulers know one queue. If a path spans several devices, use one path per device to
    /// schedule each separately.
    pub fn scheduler(mut self, policy: &str) -> Builder {
        self.scheduler = Some(Cow::Owned(policy.to_owned()));
        self
    }

    /// Eviction policy, as `readpath policies` names it. Default `adaptive`: the policy that would
    /// have missed least on a sample of the pages.
    ///
    /// With elastic memory it begins to choose when evicted pages are read again. Until then pages
    /// leave in order of arrival, as in `two-lists`.
    ///
    /// ```
    /// let error = readpath::ReadPath::builder().memory(1 << 20).eviction("psychic").build().err().unwrap();
    /// assert!(error.to_string().contains("there is no eviction policy `psychic`"));
    /// ```
    pub fn eviction(mut self, policy: &str) -> Builder {
        self.eviction = Some(Cow::Owned(policy.to_owned()));
        self
    }

    /// Largest queue depth of the storage in requests: 1 to 16,383, default 128. A deeper queue
    /// hides more latency and needs more kernel memory.
    pub fn depth(mut self, requests: u32) -> Builder {
        self.depth = Some(requests);
        self
    }

    /// I/O backend. Default [`BackendKind::Auto`]: Linux AIO, or threads if the kernel provides
    /// none; [`Stats::backend`] reports the choice. A backend that is named is used or is an error.
    pub fn backend(mut self, backend: BackendKind) -> Builder {
        self.backend = Some(backend);
        self
    }

    /// Enables the decision log for [`take_decisions`](ReadPath::take_decisions): the last 4,096
    /// decisions of each policy. Default no. Off costs a branch per decision; on costs some tens of
    /// nanoseconds and up to 2 MiB.
    pub fn log_decisions(mut self, is_on: bool) -> Builder {
        self.logs_decisions = is_on;
        self
    }

    /// Times at which files are checked for changes. Default [`WhenOpened`](Coherence::WhenOpened).
    /// A check costs about half a microsecond (`fstat(2)`): cached reads of 4 KiB took 0.50 instead
    /// of 0.08 us on a busy machine (`cargo bench -p readpath-eval --bench held_reads`). Files of a
    /// server are not checked: `nfs://` is an error with another value than the default.
    pub fn coherence(mut self, coherence: Coherence) -> Builder {
        self.coherence = coherence;
        self
    }

    /// Largest file in bytes that a lone reader may have read ahead whole, with
    /// [`PageCache::Kernel`]. Default: a sixteenth of the available memory, at most 512 MiB. 0
    /// means that no file is read whole beyond 64 MiB. A named size has no effect beyond 512 MiB,
    /// and takes at most half of the available memory.
    ///
    /// One thread that reads a file at random waits for each read. Once it has paid for half of the
    /// file in waits, the file is read from its beginning, in steps. The steps cost at most a
    /// sixteenth of the waits so far, plus the waits that were avoided since.
    /// [`Stats::kernel_whole_file_bytes`] counts them.
    pub fn whole_file_memory(mut self, bytes: u64) -> Builder {
        self.whole_file_bytes_max = Some(bytes);
        self
    }

    /// Reads from the kernel page cache with [`PageCache::Own`]. Default yes.
    ///
    /// Yes: pages that are resident there (the file was just written, or another program reads it)
    /// are read from there, without a copy in the path's memory.
    ///
    /// No: all bytes that are not in the path's cache come from the storage. For measurements, and
    /// for programs that need every page in the path's cache.
    pub fn kernel_cache(mut self, is_used: bool) -> Builder {
        self.uses_kernel_cache = Some(is_used);
        self
    }

    /// Returns the page cache mode of the path by its options, or `default` if no option names it.
    ///
    /// # Errors
    /// An option has no effect in the mode.
    fn chosen_page_cache(&self, default: PageCache) -> Result<PageCache, OptionError> {
        // The option `memory` means the path's own cache of this size.
        let from_memory = self.memory_bytes.map(|bytes| PageCache::Own { bytes: Some(bytes) });
        let page_cache = match (self.page_cache, from_memory) {
            // An own cache without a size takes the size of `memory`.
            (Some(PageCache::Own { bytes: None }), Some(sized_cache)) => sized_cache,
            (Some(named_cache), _) => named_cache,
            (None, from_memory) => from_memory.unwrap_or(default),
        };
        // The groups of the table at `page_cache`, each accepted or rejected as a whole.
        let queue_options = [
            ("scheduler", self.scheduler.is_some()),
            ("depth", self.depth.is_some()),
            ("backend", self.backend.is_some()),
            ("held_memory", self.pinned_bytes_max.is_some()),
        ];
        let cache_options = [
            ("memory", self.memory_bytes.is_some()),
            ("readahead", self.readahead.is_some()),
            ("eviction", self.eviction.is_some()),
            ("kernel_cache", self.uses_kernel_cache.is_some()),
        ];
        let kernel_options = [("whole_file_memory", self.whole_file_bytes_max.is_some())];
        // An error names the first option that is set.
        let reject_set_options = |options: &[(&'static str, bool)]| {
            let set_option = options.iter().find(|(_, is_set)| *is_set);
            set_option.map_or(Ok(page_cache), |(option, _)| Err(OptionError { option, page_cache }))
        };
        match page_cache {
            PageCache::Kernel => {
                reject_set_options(&cache_options).and_then(|_| reject_set_options(&queue_options))
            }
            PageCache::None => {
                reject_set_options(&cache_options).and_then(|_| reject_set_options(&kernel_options))
            }
            PageCache::Own { bytes } => match self.memory_bytes {
                // The two options name different sizes.
                Some(_) if self.memory_bytes != bytes => {
                    Err(OptionError { option: "memory", page_cache })
                }
                _ => reject_set_options(&kernel_options),
            },
        }
    }

    /// Builds the path.
    ///
    /// # Errors
    /// An option has no effect in the page cache mode, a policy is unknown or has a bad parameter,
    /// or a number is out of bounds. Memory is short, or the kernel does not provide the backend.
    pub fn build(self) -> Result<ReadPath, BuildError> {
        // The backend checks the largest depth.
        if self.depth == Some(0) {
            return Err(BuildError::Config(ConfigError::NoDepth));
        }
        let page_cache = self.chosen_page_cache(PageCache::Kernel)?;
        let coherence = self.coherence;
        let pages = match page_cache {
            PageCache::Kernel => {
                let readahead = PathKernelReadahead::new(
                    Clock::start(),
                    self.logs_decisions,
                    self.whole_file_bytes_max,
                );
                let pages = PathPages::Kernel(Arc::new(readahead));
                // The engine is built when a read first needs it, with this mode: unnamed, the
                // mode of an engine is `Own`, where other options have an effect.
                let builder = Builder { page_cache: Some(PageCache::Kernel), ..self };
                let owner = LazyEngine::with_builder(coherence, pages, Box::new(builder));
                return Ok(ReadPath::from_engine(Arc::new(owner)));
            }
            PageCache::Own { bytes } => {
                PathPages::Own { bytes, reads_resident: self.uses_kernel_cache.unwrap_or(true) }
            }
            PageCache::None => PathPages::None,
        };
        let engine = self.clone().build_engine()?;
        let owner = LazyEngine::new(engine, coherence, pages, Some(Box::new(self)));
        Ok(ReadPath::from_engine(Arc::new(owner)))
    }

    /// Builds an engine for files of an NFS server, or of a source, over `storage_backend`, whose
    /// completions `sleeper` waits for. Returns the page cache mode too. `clock` is the clock of
    /// the storage.
    ///
    /// # Errors
    /// As [`build`](Builder::build). Or the kernel page cache was chosen, or for a server another
    /// [`coherence`](Builder::coherence) than the default.
    pub(crate) fn build_server_engine(
        self,
        storage_backend: StorageBackend,
        sleeper: Arc<dyn Sleeper>,
        caps: DeviceCaps,
        clock: Clock,
    ) -> Result<(Engine, PathPages), BuildError> {
        let pages = self.server_pages(match storage_backend {
            StorageBackend::Source(_) => SOURCE,
            _ => NFS,
        })?;
        Ok((self.build_engine_over(storage_backend, sleeper, caps, clock)?, pages))
    }

    /// Page cache mode of a path over a server (`option` is [`NFS`]) or a source ([`SOURCE`]). An
    /// error for the kernel page cache names `option`.
    ///
    /// # Errors
    /// The kernel page cache was chosen, or an option has no effect. For a server also
    /// [`coherence`](Builder::coherence) with another value than the default.
    pub(crate) fn server_pages(&self, option: &'static str) -> Result<PathPages, OptionError> {
        // A source has one version, which needs no check.
        if option == NFS && self.coherence != Coherence::WhenOpened {
            let page_cache = self.page_cache.unwrap_or(PageCache::Own { bytes: None });
            return Err(OptionError { option: "coherence", page_cache });
        }
        match self.chosen_page_cache(PageCache::Own { bytes: None })? {
            // The kernel of this machine has no pages of the file.
            PageCache::Own { bytes } => Ok(PathPages::Own { bytes, reads_resident: false }),
            PageCache::None => Ok(PathPages::None),
            page_cache @ PageCache::Kernel => Err(OptionError { option, page_cache }),
        }
    }

    /// Returns true if no option is given that concerns the engine of a source. The engine can then
    /// be built late, because it cannot be refused for its options. The options `kernel_cache`,
    /// `backend` and `coherence` have no effect on a source. `whole_file_memory` is refused in any
    /// case.
    pub(crate) fn has_default_source_options(&self) -> bool {
        let Builder { page_cache, memory_bytes, pinned_bytes_max, depth, .. } = self;
        let Builder { readahead, scheduler, eviction, logs_decisions, .. } = self;
        let policies = [readahead, scheduler, eviction];
        page_cache.is_none()
            && memory_bytes.is_none()
            && pinned_bytes_max.is_none()
            && depth.is_none()
            && policies.iter().all(|policy| policy.is_none())
            && !logs_decisions
    }

    /// Largest queue depth in requests: the option, or its default.
    pub(crate) fn depth_or_default(&self) -> u32 {
        self.depth.unwrap_or(DEFAULT_DEPTH)
    }

    /// Returns these options with a memory that holds all of a small file several times. Returns
    /// them unchanged for a file larger than [`SMALL_FILE_BYTES_MAX`], and if a size, memory for
    /// guards or no page cache is chosen.
    ///
    /// # Errors
    /// The options exclude each other.
    pub(crate) fn with_memory_for(self, file_bytes: u64) -> Result<Builder, OptionError> {
        let page_cache = self.chosen_page_cache(PageCache::Own { bytes: None })?;
        let has_no_size = page_cache == (PageCache::Own { bytes: None });
        if !has_no_size || self.pinned_bytes_max.is_some() || file_bytes > SMALL_FILE_BYTES_MAX {
            return Ok(self);
        }
        // Four times the file, because one read may have only a part of the memory: at least a
        // quarter of it.
        let bytes = (4 * file_bytes.next_multiple_of(PAGE_BYTES)).max(SMALL_MEMORY_BYTES);
        Ok(self.page_cache(PageCache::Own { bytes: Some(bytes) }))
    }

    /// Builds the engine over local files.
    ///
    /// # Errors
    /// As [`build`](Builder::build).
    pub(crate) fn build_engine(self) -> Result<Engine, BuildError> {
        let clock = Clock::start();
        let depth = self.depth.unwrap_or(DEFAULT_DEPTH);
        let backend = self.backend.unwrap_or_default();
        let (files, sleeper) =
            FileStorage::for_several_threads(depth, backend, clock).map_err(BuildError::Backend)?;
        let caps = files.caps();
        self.build_engine_over(StorageBackend::Files(Box::new(files)), sleeper, caps, clock)
    }

    /// Builds the engine over the given storage, whose completions `sleeper` waits for. `caps` are
    /// the capabilities of the storage, and `clock` is its clock.
    ///
    /// # Errors
    /// As [`build`](Builder::build).
    pub(crate) fn build_engine_over(
        self,
        storage_backend: StorageBackend,
        sleeper: Arc<dyn Sleeper>,
        caps: DeviceCaps,
        clock: Clock,
    ) -> Result<Engine, BuildError> {
        let spec = |text: &Option<Cow<'static, str>>, default: &str| {
            Spec::parse(text.as_deref().unwrap_or(default)).map_err(BuildError::Policy)
        };
        // Without a named page cache, an engine serves a server's file or a source. Its memory is
        // elastic, as with `Own` without a size.
        let (memory_bytes, default_readahead) =
            match self.chosen_page_cache(PageCache::Own { bytes: None })? {
                // Only reads that the kernel could not answer come here.
                PageCache::Kernel => (None, DEFAULT_POLICY),
                PageCache::Own { bytes } => (bytes, DEFAULT_POLICY),
                PageCache::None => (Some(IN_FLIGHT_BYTES), "none"),
            };
        let limits = ReadaheadLimits {
            request_pages_max: u64::from(caps.request_sectors_max) * SECTOR_BYTES / PAGE_BYTES,
            ..ReadaheadLimits::default()
        };
        // Memory that readahead counts on: all of a fixed size, the default of an elastic one.
        let policy_memory_bytes_max = match memory_bytes {
            Some(_) => u64::MAX,
            None => FIXED_BYTES,
        };
        let config = Config {
            policy_memory_bytes_max,
            readahead: spec(&self.readahead, default_readahead)?,
            limits,
            scheduler: spec(&self.scheduler, DEFAULT_POLICY)?,
            eviction: spec(&self.eviction, DEFAULT_POLICY)?,
            depth_max: self.depth.unwrap_or(DEFAULT_DEPTH),
            ..Config::new(caps)
        };
        let plan = match memory_bytes {
            Some(bytes) => MemoryPlan::fixed(bytes, self.pinned_bytes_max),
            None => MemoryPlan::elastic(self.pinned_bytes_max),
        };
        let (mut machine, frame_cache, plan) = build_machine(&config, plan)?;
        machine.readahead_decisions().set_enabled(self.logs_decisions);
        if let Some(log) = machine.scheduler_decisions() {
            log.set_enabled(self.logs_decisions);
        }
        // Readers then copy filled pages from the frame cache, without the machine.
        machine.share_through(Box::new(FrameSharer(Arc::clone(&frame_cache))));
        let engine = Engine::new(machine, storage_backend, sleeper, frame_cache, clock);
        Ok(engine.with_memory(Elastic::from_plan(plan)))
    }
}

/// Builds the machine and the frames of a memory plan. If the system cannot provide the addresses
/// of an elastic plan, half of them are tried, and so on. Returns them with the plan that was used.
/// `config` has the other options of the machine.
///
/// # Errors
/// The machine rejects an option or the size, or the system cannot provide the memory.
fn build_machine(
    config: &Config,
    mut plan: MemoryPlan,
) -> Result<(machine::Machine, Arc<FrameCache>, MemoryPlan), BuildError> {
    loop {
        match (build_machine_of(config, &plan), plan.halved()) {
            (Ok((machine, frame_cache)), _) => return Ok((machine, Arc::new(frame_cache), plan)),
            // Address space is shorter than memory: ulimit(1) or strict overcommit. The next round
            // tries half, with another machine of that size. A fixed plan has no half, nor has an
            // elastic one near its floor.
            (Err(BuildError::Memory(_)), Some(halved)) => plan = halved,
            (Err(error), _) => return Err(error),
        }
    }
}

/// Builds the machine and the frames of exactly this plan; `config` is as for [`build_machine`].
///
/// # Errors
/// As for [`build_machine`].
fn build_machine_of(
    config: &Config,
    plan: &MemoryPlan,
) -> Result<(machine::Machine, FrameCache), BuildError> {
    let pages_max = plan.bytes_max / PAGE_BYTES;
    // Without pages, and with more than a `u32` can number, `Machine::new` below reports the error.
    let memory = match pages_max {
        1.. if pages_max < u64::from(u32::MAX) => {
            // Mapped before the check of the metadata: the limit of data is for both.
            let memory = FrameMemory::new(pages_max as u32).map_err(BuildError::Memory)?;
            if !can_allocate_page_metadata(pages_max) {
                let (bytes, errno) = (plan.bytes_max as usize, libc::ENOMEM);
                return Err(BuildError::Memory(FrameMemoryError::Memory { bytes, errno }));
            }
            Some(memory)
        }
        _ => None,
    };
    let guard_pages_max = plan.pinned_bytes_max / PAGE_BYTES;
    let machine = machine::Machine::new(Config {
        memory_bytes: plan.limit_bytes,
        memory_bytes_max: plan.bytes_max,
        pinned_bytes_max: guard_pages_max * PAGE_BYTES,
        ..config.clone()
    });
    let machine = machine.map_err(BuildError::Config)?;
    let memory = memory.expect("the machine has checked the number of pages");
    Ok((machine, FrameCache::new(memory, guard_pages_max as u32)))
}

impl BuildEngine for Builder {
    /// Builds an engine over local files from a copy of the options.
    fn engine(&self) -> Result<Engine, EngineError> {
        self.clone().build_engine().map_err(EngineError::from)
    }

    /// Builds an owner with the same options, for a child made by `fork`.
    fn owner(&self) -> Result<Option<Arc<LazyEngine>>, EngineError> {
        let path = self.clone().build()?;
        Ok(Some(Arc::clone(path.engine())))
    }
}

impl From<BuildError> for EngineError {
    /// Takes an error of options with which a path was built before.
    fn from(error: BuildError) -> EngineError {
        match error {
            BuildError::Memory(error) => EngineError::Memory(error),
            BuildError::Backend(error) => EngineError::Backend(error),
            error => unreachable!("the options were checked when the path was built: {error}"),
        }
    }
}

/// Error of building a read path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// An option has no effect in the page cache mode.
    Option(OptionError),
    /// The policy is not of the form `NAME,key=value,…`.
    Policy(SpecError),
    /// The policy is unknown, or a number is out of bounds.
    Config(ConfigError),
    /// The system cannot provide the memory.
    Memory(FrameMemoryError),
    /// The backend is not available here.
    Backend(BackendError),
}

impl std::fmt::Display for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BuildError::Option(error) => error.fmt(f),
            BuildError::Policy(error) => error.fmt(f),
            BuildError::Config(error) => error.fmt(f),
            BuildError::Memory(error) => error.fmt(f),
            BuildError::Backend(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BuildError {}

impl From<OptionError> for BuildError {
    fn from(error: OptionError) -> BuildError {
        BuildError::Option(error)
    }
}
