//! Bytes of a cached page, without a copy.

use std::ops::Deref;

use crate::os::aligned_bytes::AlignedBytes;
use crate::os::process::ProcessOwned;
use crate::page_cache::own::frame_cache::PinnedPage;
use crate::read_error::Forked;

/// Bytes of one cached page, which stays pinned as long as the guard lives. The guard has a copy
/// instead if the bytes came from the kernel page cache, or if the page was evicted at once for a
/// waiting read.
///
/// Guards pin at most [`held_memory`](crate::Builder::held_memory) at once, so keep them short. A
/// guard may outlive its file and its path and may move to another thread. In a child made by
/// `fork(2)` a dereference panics, and slices borrowed before the fork are unmapped.
///
/// ```
/// # let name = std::env::temp_dir().join(format!("readpath-doc-guard-{}", std::process::id()));
/// # std::fs::write(&name, vec![7u8; 5_000])?;
/// let path = readpath::ReadPath::builder().build()?;
/// let file = path.open(&name)?;
/// assert_eq!(*file.page(4096)?, [7; 904]);
/// assert!(file.page(5_000)?.is_empty());
/// # std::fs::remove_file(&name)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PageGuard {
    bytes: GuardBytes,
}

/// Location of a guard's bytes.
enum GuardBytes {
    /// Range of a pinned page.
    Pinned { page: ProcessOwned<PinnedPage>, start: usize, end: usize },
    /// Memory owned by the guard; possibly empty.
    Copied(AlignedBytes),
}

impl PageGuard {
    /// Creates a guard of the bytes `start..end` of a pinned page.
    pub(crate) fn from_pinned(page: PinnedPage, start: usize, end: usize) -> PageGuard {
        PageGuard { bytes: GuardBytes::Pinned { page: ProcessOwned::new(page), start, end } }
    }

    /// Creates a guard without bytes.
    pub(crate) fn empty() -> PageGuard {
        PageGuard::from_copy(AlignedBytes::default())
    }

    /// True if the guard pins a page, and has no copy.
    #[cfg(simulation)]
    pub(crate) fn has_pinned_page(&self) -> bool {
        matches!(self.bytes, GuardBytes::Pinned { .. })
    }

    /// Creates a guard of bytes in memory of their own.
    pub(crate) fn from_copy(bytes: AlignedBytes) -> PageGuard {
        PageGuard { bytes: GuardBytes::Copied(bytes) }
    }

    /// Returns the memory of a copy, for reuse. `None` for a guard that pins pages of the cache.
    pub(crate) fn into_copy(self) -> Option<AlignedBytes> {
        match self.bytes {
            GuardBytes::Copied(bytes) => Some(bytes),
            GuardBytes::Pinned { .. } => None,
        }
    }
}

impl Deref for PageGuard {
    type Target = [u8];

    /// Returns the bytes of the guard.
    ///
    /// # Panics
    /// The guard pins a page, and this is a child made by `fork` after its creation.
    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.bytes {
            // `None` in another process than the guard's.
            GuardBytes::Pinned { page, start, end } => match page.get() {
                Some(page) => &page[*start..*end],
                None => panic_in_child(),
            },
            GuardBytes::Copied(bytes) => bytes,
        }
    }
}

/// Panics: the guard belongs to the parent process.
#[cold]
fn panic_in_child() -> ! {
    panic!("a page guard: {}", Forked::UnderWay)
}

impl AsRef<[u8]> for PageGuard {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for PageGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = match &self.bytes {
            GuardBytes::Pinned { start, end, .. } => end - start,
            GuardBytes::Copied(bytes) => bytes.len(),
        };
        f.debug_struct("PageGuard").field("bytes", &bytes).finish()
    }
}
