//! The file of a source: a read path over one source.
//!
//! The *engine* of a path is its own cache with its requests. A *fetch* is the source's work for
//! one range of bytes.

use std::io;
use std::path::Path;
use std::sync::Arc;

use readpath_core::request::DeviceCaps;
use readpath_core::unit::{PAGE_BYTES, SECTOR_BYTES};

use crate::file::open_file::OpenFileError;
use crate::file::{File, clip_to_file};
use crate::os::clock::Clock;
use crate::os::process::ProcessOwned;
use crate::page_cache::own::lazy_engine::{BuildEngine, EngineError};
use crate::page_cache::own::storage_backend::{StorageBackend, StorageFile};
use crate::page_cache::own::{Engine, Handle, LazyEngine};
use crate::page_cache::{PageCache, SOURCE};
use crate::path::builder::{BuildError, Builder};
use crate::read_error::ReadError;
use crate::source::Source;
use crate::source::direct::{DirectCounters, DirectRead, SourceFile};
use crate::source::storage::SourceStorage;
use crate::target::identity::Identity;
use crate::target::{Coherence, FILE_BYTES_MAX, OpenError, TRANSFER_BYTES_MAX};

/// Largest number of fetches in flight, for any [`depth`](Builder::depth). The number is chosen,
/// not measured.
const FETCHES_MAX: u32 = 4096;

impl Builder {
    /// Opens the file of a source, with a read path of its own that has these options. `name`
    /// appears in errors alone. [`depth`](Builder::depth) is the largest number of fetches in
    /// flight. The backend option is not used.
    ///
    /// The library keeps the pages: the [page cache](Builder::page_cache) is `Own` or `None`. A
    /// child made by `fork` must open the file again. A source has one version:
    /// [`coherence`](Builder::coherence) is not used, and [`revalidate`](File::revalidate) finds no
    /// change.
    ///
    /// # Errors
    /// The path cannot be built, or the file is too large.
    pub fn open_source(
        self,
        name: impl AsRef<Path>,
        source: Arc<dyn Source>,
    ) -> Result<File, OpenFileError> {
        let (name, bytes) = (name.as_ref(), source.bytes());
        // Reads of bytes in memory need no engine, which is then built late. If an option for it is
        // given, it is built now, because the option could be refused.
        let is_lazy = source.all_bytes().is_some() && self.has_default_source_options();
        if bytes > FILE_BYTES_MAX {
            let (path, bytes_max) = (name.into(), FILE_BYTES_MAX);
            return Err(OpenFileError::Open(OpenError::TooLarge { path, bytes, bytes_max }));
        }
        // A small file gets a small memory, which is prepared faster.
        let options = self.with_memory_for(bytes).map_err(BuildError::from)?;
        let pages = options.server_pages(SOURCE).map_err(BuildError::from)?;
        let memory_bytes = match pages.page_cache() {
            // Elastic memory grows with its use.
            PageCache::Own { bytes } => Some(bytes.unwrap_or(u64::MAX)),
            // `server_pages` has refused the mode `Kernel`.
            PageCache::None | PageCache::Kernel => None,
        };
        let depth = options.depth_or_default();
        let file = SourceFile::new(Arc::clone(&source), memory_bytes, depth);
        let coherence = Coherence::WhenOpened;
        let builder = SourceBuilder { options, source: ProcessOwned::new(source) };
        let engine = match is_lazy {
            true => LazyEngine::with_builder(coherence, pages, Box::new(builder)),
            // A child cannot build another engine: it has no threads of the source.
            false => LazyEngine::new(builder.build()?, coherence, pages, None),
        };
        let file = StorageFile::Source(Arc::new(file));
        let handle = Handle::open(&Arc::new(engine), file, identity(bytes));
        Ok(File::new(handle, name.into()))
    }
}

/// Builds the engine of a source.
struct SourceBuilder {
    options: Builder,
    /// The source. A child made by `fork` never drops it.
    source: ProcessOwned<Arc<dyn Source>>,
}

impl SourceBuilder {
    /// Builds the engine.
    ///
    /// # Errors
    /// An option has no effect or a bad value, a policy is unknown, or memory is short.
    fn build(&self) -> Result<Engine, BuildError> {
        let (clock, source) = (Clock::start(), self.source.get_in_any_process());
        let fetch_bytes_max = source.fetch_bytes_max().clamp(PAGE_BYTES, TRANSFER_BYTES_MAX);
        let caps = DeviceCaps {
            // No limit: the length of the file is checked at the opening.
            sectors: u64::MAX,
            // In whole pages, at least one and at most the largest transfer.
            request_sectors_max: (fetch_bytes_max / PAGE_BYTES * PAGE_BYTES / SECTOR_BYTES) as u32,
            depth_max: FETCHES_MAX,
            // Unknown for a source.
            is_rotational: false,
            // Bytes are copied, which needs no alignment.
            alignment_sectors: 1,
        };
        let (storage, sleeper) = SourceStorage::new(Arc::clone(source), caps, clock);
        let storage = StorageBackend::Source(Box::new(storage));
        let options = self.options.clone();
        // The path has its page cache mode already, by the same options.
        let (engine, _pages) = options.build_server_engine(storage, sleeper, caps, clock)?;
        engine.lock().machine.fail_requests_whole();
        Ok(engine)
    }
}

impl BuildEngine for SourceBuilder {
    fn engine(&self) -> Result<Engine, EngineError> {
        self.build().map_err(EngineError::from)
    }

    /// Returns `None`, because a child has no threads of the source.
    fn owner(&self) -> Result<Option<Arc<LazyEngine>>, EngineError> {
        Ok(None)
    }
}

impl File {
    /// Reads bytes from `offset` on straight into `buffer`, if a read of this length bypasses the
    /// cache. Returns their number, less than the length of the buffer only at the end of the file.
    /// `None` without an effect if the read goes through the cache: see
    /// [`read_at`](File::read_at).
    ///
    /// A read of 4 MiB or more of a [source](crate::source) bypasses the cache if there is none, or
    /// if the read is larger than the memory. The first one of half of the file or more does too,
    /// unless much of it may be cached. All reads do if the source has all bytes in memory. Other
    /// files have no such reads.
    ///
    /// The read may wait for seconds. `continues` is called at least every 50 ms. If it returns
    /// false, the read ends with the error [`Interrupted`](io::ErrorKind::Interrupted).
    ///
    /// # Errors
    /// As [`read_at`](File::read_at).
    pub fn read_direct_at(
        &self,
        buffer: &mut [u8],
        offset: u64,
        continues: impl FnMut() -> bool,
    ) -> io::Result<Option<usize>> {
        let handle = self.handle().current()?;
        let buffer = clip_to_file(buffer, &handle, offset);
        match read_direct(&handle, buffer, offset, continues)? {
            Some(DirectRead::Ended) => Err(io::ErrorKind::Interrupted.into()),
            Some(DirectRead::Done) => Ok(Some(buffer.len())),
            None => Ok(None),
        }
    }
}

/// Fills `buffer` with the bytes from `offset` on past the cache, if such a read bypasses it, or if
/// the source has all bytes in memory. Counts the read if it is done. The buffer ends within the
/// file. `None` without an effect otherwise, also for a file that is no source: the caller then
/// reads through the cache. `continues` is as for [`File::read_direct_at`], and is not called for
/// bytes in memory.
pub(super) fn read_direct(
    handle: &Handle,
    buffer: &mut [u8],
    offset: u64,
    continues: impl FnMut() -> bool,
) -> Result<Option<DirectRead>, ReadError> {
    let bytes = buffer.len() as u64;
    let Some(file) = handle.file.storage_file.source() else { return Ok(None) };
    if let Some(all) = file.all_bytes() {
        // No byte lies past the end, where `offset` may be.
        let start = (offset as usize).min(all.len());
        buffer.copy_from_slice(&all[start..start + buffer.len()]);
        // Counted like a read through the machine that finds all bytes in the cache.
        let cached_bytes = bytes;
        handle.read_counters.record_machine_read(bytes, cached_bytes, offset + bytes);
        return Ok(Some(DirectRead::Done));
    }
    let engine = handle.engine.existing_engine();
    let used_bytes = || {
        engine.map_or(0, |engine| {
            let [_limit_bytes, used_bytes] = engine.lock().machine.memory_bytes();
            used_bytes
        })
    };
    let Some(reason) = file.decide_direct(bytes, used_bytes) else { return Ok(None) };
    // A path without an engine is one in a child of `fork`, which has no counters.
    let no_counters = DirectCounters::default();
    let counters = engine.map_or(&no_counters, |engine| &engine.direct_counters);
    let end = file.read(reason, buffer, offset, counters, continues)?;
    if end == DirectRead::Done {
        let cached_bytes = 0;
        handle.read_counters.record_machine_read(bytes, cached_bytes, offset + bytes);
    }
    Ok(Some(end))
}

/// Identity of a source of `bytes` bytes. The other numbers are 0: a source is the only file of its
/// engine, and has one version.
fn identity(bytes: u64) -> Identity {
    Identity { device: 0, inode: 0, bytes, modified: (0, 0), changed: (0, 0), unstable_id: 0 }
}
