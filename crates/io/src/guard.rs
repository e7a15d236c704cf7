//! Bytes of a cached page, lent without a copy.

use std::ops::Deref;

use crate::copied::Copied;
use crate::engine::frame_cache::PinnedPage;
use crate::process::Own;
use crate::read_error::Forked;

/// Bytes of one cached page, which stays where it is as long as this lives; or a copy: of what the kernel's
/// cache had of it, or of a page that had to go as soon as it was there, since others wait for its memory.
///
/// At most [`held_memory`](crate::Builder::held_memory) is held at once, so hold a guard for
/// as long as you look at the bytes. It may outlive its file and its path, and go
/// to another thread, but not into a child made by `fork(2)`: to look at it there panics,
/// and bytes of it that were borrowed before are not mapped there.
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
    bytes: Bytes,
}

/// Where the bytes of a guard are.
enum Bytes {
    /// In a part of a page that is held.
    Held { held: Own<PinnedPage>, start: usize, end: usize },
    /// In memory of their own; perhaps there are none.
    Copied(Copied),
}

impl PageGuard {
    /// Bytes `start` up to, and without, `end` of a page.
    pub(crate) fn of(held: PinnedPage, start: usize, end: usize) -> PageGuard {
        PageGuard { bytes: Bytes::Held { held: Own::new(held), start, end } }
    }

    /// No bytes.
    pub(crate) fn empty() -> PageGuard {
        PageGuard::of_copy(Copied::default())
    }

    /// Whether it holds a page.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn holds(&self) -> bool {
        matches!(self.bytes, Bytes::Held { .. })
    }

    /// Bytes of which it has a copy.
    pub(crate) fn of_copy(bytes: Copied) -> PageGuard {
        PageGuard { bytes: Bytes::Copied(bytes) }
    }

    /// The memory of a copy.
    pub(crate) fn into_copy(self) -> Option<Copied> {
        match self.bytes {
            Bytes::Copied(bytes) => Some(bytes),
            Bytes::Held { .. } => None,
        }
    }
}

impl Deref for PageGuard {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Held { held, start, end } => match held.get() {
                Some(held) => &held[*start..*end],
                None => inherited(),
            },
            Bytes::Copied(bytes) => bytes,
        }
    }
}

#[cold]
fn inherited() -> ! {
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
            Bytes::Held { start, end, .. } => end - start,
            Bytes::Copied(bytes) => bytes.len(),
        };
        f.debug_struct("PageGuard").field("bytes", &bytes).finish()
    }
}
