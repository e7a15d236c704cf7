//! Kernel baseline of memory loads: a working set larger than the memory limit, swapped by the
//! kernel.
//!
//! The processes of a load are children, placed in a memory cgroup ([`group`]) before they map
//! memory. Pages beyond the limit go to a swap area ([`area`]) on the storage under test.
//! [`memory`] is the memory that a child touches, [`counters`] reads the kernel's counters, and
//! [`page_cluster`] is the kernel's only parameter of swap readahead.
//!
//! # Cleanup
//! Each object is removed when its value is dropped, also in a panic. A killed run drops nothing.
//! Therefore every name starts with `readpath-` and every object stays locked (`flock(2)`) while
//! its run lives. The next run in the same folder removes unlocked objects and reports them
//! ([`CleanupEntry`]). The next run of any command does the same from the cleanup journal
//! ([`readpath_record::cleanup`]).
//!
//! # Effects on other processes
//! A swap area serves the whole machine. While it exists, the kernel may swap any process's memory
//! to it, if the *machine* runs short or proactive reclaim (DAMON) is on.
//! [`counters::swapped_bytes_of_others`] counts these bytes. [`SwapLock`] allows one run at a time.
//! `page_cluster` is global too, and is set only when a run names it.

pub mod area;
pub mod counters;
pub mod group;
pub mod memory;
pub mod page_cluster;

use std::fmt;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

pub use readpath_record::cleanup::CleanupEntry;

/// Prefix of every name that a run creates.
const PREFIX: &str = "readpath-";

/// Exclusive right to a swap run. The kernel fills areas of one priority in rotation and counts the
/// pages of all areas together, so two runs would disturb each other.
#[derive(Debug)]
pub struct SwapLock {
    /// Path of the locked file.
    path: PathBuf,
    /// Open file that holds the lock.
    _file: File,
}

impl SwapLock {
    /// Takes the lock, without a wait. Returns `None` while another run holds it or releases it.
    ///
    /// # Errors
    /// The lock file cannot be created.
    pub fn take() -> Result<Option<SwapLock>, SwapError> {
        let path = PathBuf::from("/run/readpath-kernel-swap");
        let file = File::create(&path)
            .map_err(|error| SwapError::refused("make", &path, error, area::NEEDS_ROOT))?;
        Ok(try_lock_path(&file, &path).then_some(SwapLock { path, _file: file }))
    }
}

impl Drop for SwapLock {
    /// Removes the lock file. The lock ends when the file is closed, after this.
    fn drop(&mut self) {
        // A file that cannot be removed is empty and unlocked, so the next run can take it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Error of the swap baseline.
#[derive(Debug)]
pub enum SwapError {
    /// A system call was refused.
    Refused {
        /// Action that was tried: "make", "swap on", ….
        action: &'static str,
        /// Path of the object.
        path: PathBuf,
        /// Error of the system call.
        source: std::io::Error,
        /// Advice to the user.
        advice: &'static str,
    },
    /// No memory cgroup hierarchy allows this process to create a group.
    NoMemoryGroups,
    /// The storage is too small for the area.
    TooSmall {
        /// Path of the file or device.
        path: PathBuf,
        /// Size in bytes.
        bytes: u64,
        /// Size that the area needs, in bytes.
        needed_bytes: u64,
    },
    /// The storage is neither a folder, a regular file nor a block device.
    NotStorage {
        /// Path given by the user.
        path: PathBuf,
    },
    /// Another live run has set `page_cluster`.
    PageClusterInUse {
        /// Path of its lock file.
        path: PathBuf,
    },
}

impl SwapError {
    /// Creates the error for a refused action on `path`. `advice` is for the user.
    fn refused(
        action: &'static str,
        path: impl AsRef<Path>,
        source: impl Into<std::io::Error>,
        advice: &'static str,
    ) -> SwapError {
        let path = path.as_ref().to_path_buf();
        SwapError::Refused { action, path, source: source.into(), advice }
    }
}

impl fmt::Display for SwapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SwapError::Refused { action, path, source, advice } => {
                write!(f, "can't {action} {}: {source}; {advice}", path.display())
            }
            SwapError::NoMemoryGroups => f.write_str(
                "there is no cgroup hierarchy with a memory controller; mount one \
                 (`mount -t cgroup -o memory cgroup /sys/fs/cgroup/memory`), or enable it for the \
                 groups below in cgroup.subtree_control",
            ),
            SwapError::TooSmall { path, bytes, needed_bytes } => write!(
                f,
                "{}: has {bytes} bytes, and a swap area for this load needs {needed_bytes}; name \
                 a larger one, or make `swap` smaller",
                path.display()
            ),
            SwapError::NotStorage { path } => write!(
                f,
                "{}: is no folder, file or block device; name one of these",
                path.display()
            ),
            SwapError::PageClusterInUse { path } => write!(
                f,
                "{}: another run has set page_cluster, which the whole machine shares; wait for \
                 its end",
                path.display()
            ),
        }
    }
}

impl std::error::Error for SwapError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SwapError::Refused { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Takes the lock that marks a live run, without a wait. Returns false when another run holds it.
/// The lock ends when the file is closed.
fn try_lock_file(file: &File) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Takes the lock like [`try_lock_file`]. Returns false also when `path` no longer names the locked
/// file, because a previous owner has removed it since it was opened.
fn try_lock_path(file: &File, path: &Path) -> bool {
    let names_same_file = || {
        let (opened, named) = (file.metadata().ok()?, std::fs::metadata(path).ok()?);
        Some((opened.dev(), opened.ino()) == (named.dev(), named.ino()))
    };
    try_lock_file(file) && names_same_file() == Some(true)
}

/// Returns a new name from the prefix, the process number, a counter and `ending`.
fn fresh_name(ending: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{}-{count}{ending}", std::process::id())
}

/// Lists the entries of a folder with names made by [`fresh_name`] with this `ending`. Empty if the
/// folder cannot be listed.
fn own_entries(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let is_ours = |name: &str| {
        let stem = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(ending));
        stem.and_then(|stem| stem.split_once('-')).is_some_and(|(process, number)| {
            process.parse::<u32>().is_ok() && number.parse::<u32>().is_ok()
        })
    };
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name());
    names.filter(|name| name.to_str().is_some_and(is_ours)).map(|name| folder.join(name)).collect()
}
