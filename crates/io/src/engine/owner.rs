//! Who keeps an engine going, and has it built.
//!
//! A path that keeps pages itself has its engine from the start. One that has the kernel keep them doesn't: the memory, the tables,
//! the queue to the device and what is asked of the system for them take as long as to open a file a hundred times, and mostly nobody
//! ever needs them. Such an engine is built when something is first to be read past the kernel's cache: where the kernel
//! has failed a read, or of a block device. Who can tell that it failed asks [`ready`](LazyEngine::ready) before.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use readpath_core::decision::LoggedDecision;

use super::Engine;
use super::elastic::enlist;
use super::frame_cache::copies_max;
use super::locked::Locked;
use crate::kernel_pages::KernelCache;
use crate::kernel_pages::kernel_readahead::ThroughKernel;
use crate::path::{BuildError, Builder, Coherence};
use crate::process::{ForkLocal, Own};
use crate::read_error::{Forked, ReadError};

/// Keeps an engine going: with the last of these it ends.
pub(crate) struct LazyEngine {
    /// Built when it is first needed, or from the start.
    engine: Own<ForkLocal<Arc<Engine>>>,
    pub(crate) coherence: Coherence,
    pub(crate) kernel_cache: KernelCache,
    /// How it is built, and another in a child; none over a server.
    builder: Option<Builder>,
    fork_local: ForkLocal<Arc<LazyEngine>>,
    /// How many copies out of the cache may be under way at a time.
    pub(super) copies_max: usize,
    /// How many files were opened.
    opened: AtomicU32,
}

impl LazyEngine {
    /// Has the engine from the start.
    pub(crate) fn new(
        engine: Engine,
        coherence: Coherence,
        kernel_cache: KernelCache,
        builder: Option<Builder>,
    ) -> LazyEngine {
        let engine = Arc::new(engine);
        enlist(&engine);
        let copies_max = engine.frame_cache.copies_max();
        LazyEngine::with(ForkLocal::of(engine), copies_max, coherence, kernel_cache, builder)
    }

    /// Has the engine built when it is first needed.
    pub(crate) fn later(
        coherence: Coherence,
        kernel_cache: KernelCache,
        builder: Builder,
    ) -> LazyEngine {
        LazyEngine::with(ForkLocal::new(), copies_max(), coherence, kernel_cache, Some(builder))
    }

    fn with(
        engine: ForkLocal<Arc<Engine>>,
        copies_max: usize,
        coherence: Coherence,
        kernel_cache: KernelCache,
        builder: Option<Builder>,
    ) -> LazyEngine {
        LazyEngine {
            engine: Own::new(engine),
            coherence,
            kernel_cache,
            builder,
            fork_local: ForkLocal::new(),
            copies_max,
            opened: AtomicU32::new(0),
        }
    }

    /// Whether it was made by this process.
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.engine.is_ours()
    }

    /// The one of this process: itself, or one that is built like it.
    ///
    /// # Errors
    /// It can't be built in this child.
    pub(crate) fn here(self: &Arc<LazyEngine>) -> Result<Arc<LazyEngine>, Forked> {
        if self.is_ours() {
            return Ok(Arc::clone(self));
        }
        let builder = self.builder.as_ref().ok_or(Forked::Server)?;
        let build = || match builder.clone().build() {
            Ok(path) => Ok(Arc::clone(path.engine())),
            Err(BuildError::Memory(error)) => Err(Forked::Memory(error)),
            Err(BuildError::Backend(error)) => Err(Forked::Backend(error)),
            Err(error) => unreachable!("it was built before: {error}"),
        };
        self.fork_local.get_or_make(build)?.here()
    }

    /// The one of this process, unless it is still to be built.
    pub(crate) fn here_already(&self) -> Option<&LazyEngine> {
        match self.is_ours() {
            true => Some(self),
            false => self.fork_local.get()?.here_already(),
        }
    }

    /// The engine of this process, if there is one so far.
    #[inline]
    pub(crate) fn built(&self) -> Option<&Arc<Engine>> {
        self.engine.get()?.get()
    }

    /// The engine, built now if nobody has needed it before. Its process is this one.
    ///
    /// # Errors
    /// The system has no room for its memory.
    pub(crate) fn ready(&self) -> Result<&Arc<Engine>, ReadError> {
        let build = || {
            let builder = self.builder.clone().expect("who has no builder has an engine");
            let engine = Arc::new(builder.build_engine()?);
            enlist(&engine);
            Ok(engine)
        };
        self.engine.inherited().get_or_make(build).map_err(|error| match error {
            BuildError::Memory(error) => ReadError::Memory { error },
            BuildError::Backend(error) => ReadError::Storage { error },
            error => unreachable!("it is checked when the path is built: {error}"),
        })
    }

    /// The number of a file that is about to be opened.
    pub(super) fn next_number(&self) -> u32 {
        self.opened.fetch_add(1, Ordering::Relaxed)
    }

    /// The state, for one caller at a time.
    ///
    /// # Panics
    /// The engine was inherited: whoever comes here has passed the door by.
    pub(crate) fn lock(&self) -> Locked<'_> {
        assert!(self.is_ours(), "the lock of another process is never taken");
        let engine: &Engine = self;
        engine.lock()
    }

    /// What was read through the kernel's cache, where it keeps the pages.
    pub(crate) fn through_kernel(&self) -> ThroughKernel {
        self.kernel_cache.counted()
    }

    /// What the law decided of these reads.
    pub(crate) fn take_decisions(&self, all: &mut Vec<LoggedDecision>) {
        self.kernel_cache.take_decisions(all);
    }

    /// Has a thread lead for futures from now on.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start_reactor(&self) -> std::io::Result<()> {
        self.ready()?.start_reactor()
    }
}

impl Deref for LazyEngine {
    type Target = Engine;

    /// # Panics
    /// It is still to be built, and can't be.
    #[inline]
    fn deref(&self) -> &Engine {
        match self.engine.inherited().get() {
            Some(engine) => engine,
            None => self.ready().unwrap_or_else(|error| panic!("{error}")),
        }
    }
}

impl Drop for LazyEngine {
    fn drop(&mut self) {
        if let Some(engine) = self.built() {
            engine.close();
        }
    }
}
