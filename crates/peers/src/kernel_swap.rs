//! The peer of memory loads: memory that is larger than memory, by the kernel's own swap.
//!
//! A load's processes are children of ours, placed in a memory cgroup ([`group`]) before they map
//! anything. What its limit pushes out goes to a swap area ([`area`]) made for the run on the
//! storage under test. [`memory`] is what a child touches, [`counters`] what the kernel counted,
//! and [`page_cluster`] the kernel's one knob for reading ahead in swap.
//!
//! # What it leaves behind
//! Nothing: each piece is undone when its value is dropped, in a panic as well. A run that was
//! killed can't drop anything. So everything that has a name in the system starts with
//! `readpath-` and is locked (`flock(2)`) as long as its run lives; the next run in the same place
//! removes what nobody holds the lock of, and says so ([`CleanupEntry`]). So does the next run of any
//! command, by the records that are kept of it ([`crate::cleanup_entry`]).
//!
//! # What it does to others
//! A swap area serves the whole machine: while it is there, anybody's memory may be swapped to it
//! if the *machine* runs short, or if something else reclaims in advance (DAMON).
//! [`counters::swapped_bytes_of_others`] shows it. One run at a time has its [`SwapTurn`]. `page_cluster` is the whole machine's too, and is set only
//! when a run asks for it by name.

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

pub use crate::cleanup_entry::CleanupEntry;

/// What everything starts with that a run makes.
const PREFIX: &str = "readpath-";

/// The turn of one run. Swap areas of one priority are filled by turns, and the kernel counts
/// pages of all together: two runs at once would measure each other.
#[derive(Debug)]
pub struct SwapTurn {
    path: PathBuf,
    /// Holds the lock.
    _file: File,
}

impl SwapTurn {
    /// Takes it; None while another run has it.
    ///
    /// # Errors
    /// The lock can't be made.
    pub fn take() -> Result<Option<SwapTurn>, SwapError> {
        let path = PathBuf::from("/run/readpath-kernel-swap");
        let file = File::create(&path)
            .map_err(|error| SwapError::refused("make", &path, error, area::NEEDS_ROOT))?;
        Ok(claim_at(&file, &path).then_some(SwapTurn { path, _file: file }))
    }
}

impl Drop for SwapTurn {
    fn drop(&mut self) {
        // Where it can't be removed it is an empty file without a lock: free to be taken.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Why the kernel's swap can't be used.
#[derive(Debug)]
pub enum SwapError {
    /// Something that the system has to give was refused.
    Refused {
        /// What was tried: "make", "swap on", ….
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
        /// What to do about it.
        advice: &'static str,
    },
    /// There is no memory cgroup hierarchy that this process could make a group in.
    NoMemoryGroups,
    /// The storage has no room for the area.
    TooSmall {
        /// The file or device.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// What the area needs.
        needed_bytes: u64,
    },
    /// The storage is neither a folder, a regular file nor a block device.
    NotStorage {
        /// What was named.
        path: PathBuf,
    },
    /// Another run has set `page_cluster` and is still at work.
    PageClusterInUse {
        /// The file that it holds.
        path: PathBuf,
    },
}

impl SwapError {
    fn refused(
        action: &'static str,
        path: impl AsRef<Path>,
        source: impl Into<std::io::Error>,
        advice: &'static str,
    ) -> SwapError {
        let path = path.as_ref().to_path_buf();
        SwapError::Refused { action, path, source: source.into(), advice }
    }

    /// Whether it is the storage that is wrong, rather than the system that lacks something.
    pub fn is_about_storage(&self) -> bool {
        matches!(self, SwapError::TooSmall { .. } | SwapError::NotStorage { .. })
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

/// Takes the lock by which a run shows that it lives; false when another run holds it.
fn claim(file: &File) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// The same, of a file that its last owner may have removed since it was opened: then it is not
/// the one that others find at `path`.
fn claim_at(file: &File, path: &Path) -> bool {
    let is_there = || {
        let (opened, there) = (file.metadata().ok()?, std::fs::metadata(path).ok()?);
        Some((opened.dev(), opened.ino()) == (there.dev(), there.ino()))
    };
    claim(file) && is_there() == Some(true)
}

/// A name for something new: the prefix, the process, and a count.
fn fresh_name(ending: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{}-{number}{ending}", std::process::id())
}

/// The entries of a folder whose names are of [`fresh_name`]'s form.
fn ours_in(folder: &Path, ending: &str) -> Vec<PathBuf> {
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
