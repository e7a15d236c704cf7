//! The file of a source: a read path over one source.

use std::path::Path;
use std::sync::Arc;

use readpath_core::request::DeviceCaps;
use readpath_core::unit::{PAGE_BYTES, SECTOR_BYTES};

use crate::file::File;
use crate::file::open_file::OpenFileError;
use crate::os::clock::Clock;
use crate::page_cache::own::storage_backend::{StorageBackend, StorageFile};
use crate::page_cache::own::{Handle, LazyEngine};
use crate::path::builder::{BuildError, Builder};
use crate::source::Source;
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
        if bytes > FILE_BYTES_MAX {
            let (path, bytes_max) = (name.into(), FILE_BYTES_MAX);
            return Err(OpenFileError::Open(OpenError::TooLarge { path, bytes, bytes_max }));
        }
        let clock = Clock::start();
        let fetch_bytes_max = source.fetch_bytes_max().clamp(PAGE_BYTES, TRANSFER_BYTES_MAX);
        let caps = DeviceCaps {
            // No limit: the length of the file is checked above.
            sectors: u64::MAX,
            // In whole pages.
            request_sectors_max: (fetch_bytes_max / PAGE_BYTES * PAGE_BYTES / SECTOR_BYTES) as u32,
            depth_max: FETCHES_MAX,
            // Unknown for a source.
            is_rotational: false,
            // Bytes are copied, which needs no alignment.
            alignment_sectors: 1,
        };
        let (storage, sleeper) = SourceStorage::new(Arc::clone(&source), caps, clock);
        let storage = StorageBackend::Source(Box::new(storage));
        // A small file gets a small memory, which is prepared faster.
        let path = self.with_memory_for(bytes).map_err(BuildError::from)?;
        let (engine, pages) = path.build_server_engine(storage, sleeper, caps, clock)?;
        // A child cannot build another engine: it has no threads of the source.
        let builder_for_child = None;
        // A source has one version, and is never checked.
        let coherence = Coherence::WhenOpened;
        let engine = Arc::new(LazyEngine::new(engine, coherence, pages, builder_for_child));
        let handle = Handle::open(&engine, StorageFile::Source { bytes }, identity(bytes));
        Ok(File::new(handle, name.into()))
    }
}

/// Identity of a source of `bytes` bytes. The other numbers are 0: a source is the only file of its
/// engine, and has one version.
fn identity(bytes: u64) -> Identity {
    Identity { device: 0, inode: 0, bytes, modified: (0, 0), changed: (0, 0), unstable_id: 0 }
}
