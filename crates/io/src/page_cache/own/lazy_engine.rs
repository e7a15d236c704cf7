//! Ownership and lazy construction of an engine. A *path* is a `ReadPath` of the public API. The
//! *engine* is the path's own cache with its requests. The *owner* is the object here that has the
//! engine, or the options to build it. The *reactor* is the engine's thread for futures.
//!
//! A path that caches pages itself builds its engine at once. A path with the kernel page cache
//! does not. An engine costs as much as opening a file a hundred times (memory, tables, the device
//! queue and their system calls), and most such paths never need it. It is built when the first
//! read must bypass the kernel page cache, after a failed read of the kernel. A caller that can
//! report an error calls [`engine_or_build`](LazyEngine::engine_or_build) first.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use readpath_core::decision::LoggedDecision;

use super::Engine;
use super::elastic_memory::register_engine;
use super::engine_guard::EngineGuard;
use super::frame_cache::concurrent_copies_max;
use crate::backend::BackendError;
use crate::os::frames::FrameMemoryError;
use crate::os::process::{ForkLocal, ProcessOwned};
use crate::page_cache::kernel::PathPages;
use crate::page_cache::kernel::kernel_readahead::KernelReadTotals;
use crate::read_error::{Forked, ReadError};
use crate::target::Coherence;

/// Builds engines with the options of a path.
pub(crate) trait BuildEngine: Send + Sync {
    /// Builds an engine over local files, or over the source of the path.
    ///
    /// # Errors
    /// The system cannot provide its memory or its I/O backend.
    fn engine(&self) -> Result<Engine, EngineError>;

    /// Builds an owner with the same options, for a child made by `fork`. `None` if a child cannot
    /// use the storage.
    ///
    /// # Errors
    /// As [`engine`](BuildEngine::engine).
    fn owner(&self) -> Result<Option<Arc<LazyEngine>>, EngineError>;
}

/// Error of building an engine with options that were checked before.
pub(crate) enum EngineError {
    /// The system cannot provide the memory.
    Memory(FrameMemoryError),
    /// The backend is not available.
    Backend(BackendError),
}

/// Owner of an engine, which ends with the last reference to this owner.
pub(crate) struct LazyEngine {
    /// Set when the engine is built. In a child made by `fork`, `get` of the outer value returns
    /// `None`.
    engine: ProcessOwned<ForkLocal<Arc<Engine>>>,
    /// Times at which files are checked for changes.
    pub(crate) coherence: Coherence,
    /// Page cache of the path: of the kernel, of the path, or none.
    pub(crate) pages: PathPages,
    /// Builds the engine, and for files the owner of another one in a child. `None` for a server,
    /// and for a source whose engine was built at its opening: these cannot be built again.
    builder: Option<Box<dyn BuildEngine>>,
    /// Owner for a child made by `fork`.
    child_engine: ForkLocal<Arc<LazyEngine>>,
    /// Maximum number of simultaneous copies out of the cache.
    pub(super) concurrent_copies_max: usize,
    /// Number of openings so far, of files and of their changed versions.
    opened_files: AtomicU32,
}

impl LazyEngine {
    /// Creates an owner of an existing engine. `builder` builds the owner in a child; `None` if a
    /// child cannot use the storage.
    pub(crate) fn new(
        engine: Engine,
        coherence: Coherence,
        pages: PathPages,
        builder: Option<Box<dyn BuildEngine>>,
    ) -> LazyEngine {
        let engine = Arc::new(engine);
        // The thread that adapts elastic memory finds the engine in this registry.
        register_engine(&engine);
        let copies_max = engine.frame_cache.copies_max();
        LazyEngine::from_parts(ForkLocal::with_value(engine), copies_max, coherence, pages, builder)
    }

    /// Creates an owner that builds its engine on first use.
    pub(crate) fn with_builder(
        coherence: Coherence,
        pages: PathPages,
        builder: Box<dyn BuildEngine>,
    ) -> LazyEngine {
        LazyEngine::from_parts(
            ForkLocal::new(),
            concurrent_copies_max(),
            coherence,
            pages,
            Some(builder),
        )
    }

    /// Creates an owner. `engine` may be empty; `builder` then builds the engine at first use.
    /// `copies_max` is the maximum number of threads that copy out of the cache at the same time.
    fn from_parts(
        engine: ForkLocal<Arc<Engine>>,
        copies_max: usize,
        coherence: Coherence,
        pages: PathPages,
        builder: Option<Box<dyn BuildEngine>>,
    ) -> LazyEngine {
        LazyEngine {
            engine: ProcessOwned::new(engine),
            coherence,
            pages,
            builder,
            child_engine: ForkLocal::new(),
            concurrent_copies_max: copies_max,
            opened_files: AtomicU32::new(0),
        }
    }

    /// True if this process made the owner.
    #[inline]
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.engine.is_of_this_process()
    }

    /// Returns the owner for this process: itself, or a child's own one with the same options.
    ///
    /// # Errors
    /// In a child: the path has a connection to a server or a source, which a child cannot use
    /// (`Forked::Server`), or the engine cannot be built there.
    pub(crate) fn for_this_process(self: &Arc<LazyEngine>) -> Result<Arc<LazyEngine>, Forked> {
        if self.is_of_this_process() {
            return Ok(Arc::clone(self));
        }
        let builder = self.builder.as_ref().ok_or(Forked::Server)?;
        let build = || {
            let owner = builder.owner().map_err(|error| match error {
                EngineError::Memory(error) => Forked::Memory(error),
                EngineError::Backend(error) => Forked::Backend(error),
            });
            owner.and_then(|owner| owner.ok_or(Forked::Server))
        };
        // A grandchild inherits the child's owner here, and needs its own one in turn. The child's
        // owner returns itself in the child, which ends the recursion.
        self.child_engine.get_or_init(build)?.for_this_process()
    }

    /// Returns the owner for this process: itself, the child's one, or that one's for a grandchild.
    /// Returns `None` if it does not exist yet.
    pub(crate) fn existing_for_this_process(&self) -> Option<&LazyEngine> {
        match self.is_of_this_process() {
            true => Some(self),
            false => self.child_engine.get()?.existing_for_this_process(),
        }
    }

    /// Returns the engine of this process if it exists. `None` also in a child made by `fork`, for
    /// the parent's owner.
    #[inline]
    pub(crate) fn existing_engine(&self) -> Option<&Arc<Engine>> {
        self.engine.get()?.get()
    }

    /// Returns the engine and builds it on first use. The caller is in the process that made this
    /// owner.
    ///
    /// # Errors
    /// The system cannot provide its memory or its I/O backend.
    pub(crate) fn engine_or_build(&self) -> Result<&Arc<Engine>, ReadError> {
        let build = || {
            let builder = self.builder.as_ref().expect("an owner without a builder has an engine");
            let engine = Arc::new(builder.engine()?);
            // As in `new`.
            register_engine(&engine);
            Ok(engine)
        };
        self.engine.get_in_any_process().get_or_init(build).map_err(|error| match error {
            EngineError::Memory(error) => ReadError::Memory { error },
            EngineError::Backend(error) => ReadError::Storage { error },
        })
    }

    /// Returns the number of the next file to be opened, from 0 in the order of the openings, and
    /// counts it.
    pub(super) fn next_file_number(&self) -> u32 {
        self.opened_files.fetch_add(1, Ordering::Relaxed)
    }

    /// Locks the engine's state, and builds the engine if necessary.
    ///
    /// # Panics
    /// The engine cannot be built. Or it was inherited by `fork`: the caller has not gone through
    /// `Handle::current`.
    pub(crate) fn lock(&self) -> EngineGuard<'_> {
        assert!(self.is_of_this_process(), "the lock of another process is never taken");
        let engine: &Engine = self;
        engine.lock()
    }

    /// Counters of the reads through the kernel page cache.
    pub(crate) fn kernel_read_totals(&self) -> KernelReadTotals {
        self.pages.kernel_read_totals()
    }

    /// Moves the policy's decisions on reads through the kernel page cache, made since the last
    /// call, to the end of `decisions`.
    pub(crate) fn take_decisions(&self, decisions: &mut Vec<LoggedDecision>) {
        self.pages.take_decisions(decisions);
    }

    /// Starts the reactor thread, which leads for futures, if it does not run. Builds the engine
    /// first if necessary.
    ///
    /// # Errors
    /// The system cannot start a thread, or the engine cannot be built.
    pub(crate) fn start_reactor(&self) -> std::io::Result<()> {
        self.engine_or_build()?.start_reactor()
    }
}

impl Deref for LazyEngine {
    type Target = Engine;

    /// Builds the engine if necessary. In a child made by `fork` it returns the inherited engine,
    /// whose lock must not be taken.
    ///
    /// # Panics
    /// The engine cannot be built.
    #[inline]
    fn deref(&self) -> &Engine {
        match self.engine.get_in_any_process().get() {
            Some(engine) => engine,
            None => self.engine_or_build().unwrap_or_else(|error| panic!("{error}")),
        }
    }
}

impl Drop for LazyEngine {
    /// Ends the reactor of the engine of this process. Waits for its thread.
    fn drop(&mut self) {
        if let Some(engine) = self.existing_engine() {
            engine.close();
        }
    }
}
