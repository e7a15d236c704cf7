//! Options, counters and errors of a disk tier.
//!
//! The folder of a tier has one file, an *entry*, for each block of 256 KiB of a version of an
//! object. Its *head* names the version, and has the checksums of the pages. The *ledger* is
//! one more file, with the number of bytes of all entries.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Options of a [`DiskTier`](super::DiskTier).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// Folder of this tier alone, on a local file system. It is created with mode 0700 if it does
    /// not exist. Several processes of one user may share it.
    pub folder: PathBuf,
    /// Largest number of bytes of all entries, at least 1 MiB. Each entry has a head of 4 KiB. In
    /// addition, the folder and its ledger take 8 KiB and about 100 bytes for each entry. Some file
    /// systems take 4 KiB more for an entry with more than four runs of pages.
    pub budget_bytes: u64,
    /// Selection of the blocks that are written. Default: by their cost.
    pub admission: Admit,
}

impl DiskOptions {
    /// A folder with a budget, and the default of all other options.
    pub fn new(folder: impl Into<PathBuf>, budget_bytes: u64) -> DiskOptions {
        DiskOptions { folder: folder.into(), budget_bytes, admission: Admit::ByCost }
    }
}

/// Selection of the blocks that are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admit {
    /// Blocks whose next read from the store is likely to cost more than the write: see the
    /// [module](super).
    #[default]
    ByCost,
    /// All fetched blocks. For a program that will read the same objects again, perhaps in another
    /// process.
    All,
}

/// Counters of a disk tier since it was opened by this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskCounters {
    /// Blocks of fetches that had their first or their last requested bytes. A block counts once
    /// for each fetch that looks it up.
    pub hits: u64,
    /// Blocks of fetches that had neither. Blocks between two absent ones are not looked up, and do
    /// not count.
    pub misses: u64,
    /// Bytes that came from the folder.
    pub hit_bytes: u64,
    /// Blocks that were written, in whole or in part.
    pub writes: u64,
    /// Bytes that were written, without heads.
    pub written_bytes: u64,
    /// Blocks that were not written because their next read is cheaper than the write.
    pub rejected: u64,
    /// Blocks that were not written because too many writes were waiting, or because the removal of
    /// all other entries made no place for them.
    pub dropped: u64,
    /// Fetches of objects without a strong ETag, or with a name that is too long for a head or
    /// contains a zero byte.
    pub unversioned: u64,
    /// Entries that were removed or rewritten because a checksum did not match, the medium failed,
    /// or their write was not finished.
    pub damaged: u64,
    /// Entries that were removed to stay within the budget, or below 2^20 entries.
    pub evicted: u64,
    /// System calls that have failed, apart from the ones that a lookup expects.
    pub failures: u64,
    /// Bytes of all entries of all processes, at the latest write or count of this one.
    pub used_bytes: u64,
    /// Reason for which the tier is off: it reads and writes nothing more.
    pub off: Option<DiskOff>,
}

/// Reason for which a tier is off. Reads go on from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskOff {
    /// The disk, or the quota of the user, is full.
    DiskFull,
    /// The folder cannot be written: it is read-only, or its rights have changed.
    ReadOnly,
    /// The folder was deleted.
    FolderDeleted,
    /// The system provides no thread.
    NoThread,
    /// A system call has failed with this error number.
    Failed {
        /// The error number; 0 if there was none.
        errno: i32,
    },
}

impl DiskOff {
    /// Reason for which this error of a write turns the tier off; `None` if the next write may
    /// succeed, as after a shortage of descriptors or memory.
    pub(super) fn of_error(error: &io::Error) -> Option<DiskOff> {
        use rustix::io::Errno;
        let errno = error.raw_os_error().unwrap_or(0);
        Some(match Errno::from_io_error(error) {
            Some(Errno::NOSPC | Errno::DQUOT) => DiskOff::DiskFull,
            Some(Errno::ROFS | Errno::ACCESS | Errno::PERM) => DiskOff::ReadOnly,
            Some(Errno::NOENT | Errno::STALE) => DiskOff::FolderDeleted,
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR) => return None,
            _ => DiskOff::Failed { errno },
        })
    }
}

impl fmt::Display for DiskOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskOff::DiskFull => f.write_str("the disk or the quota is full; free some space"),
            DiskOff::ReadOnly => f.write_str("the folder cannot be written; check its rights"),
            DiskOff::FolderDeleted => f.write_str("the folder was deleted; open the tier again"),
            DiskOff::NoThread => f.write_str("the system provides no thread"),
            DiskOff::Failed { errno } => {
                write!(f, "a system call on the folder has failed (errno {errno})")
            }
        }
    }
}

/// Refusal of a folder or a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskError {
    /// The path is a symbolic link, or no folder.
    NoFolder {
        /// The path.
        folder: PathBuf,
    },
    /// The folder is of another user.
    OtherOwner {
        /// The folder.
        folder: PathBuf,
        /// Number of its owner.
        owner: u32,
    },
    /// Other users may open the folder.
    OpenMode {
        /// The folder.
        folder: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The budget is less than 1 MiB.
    SmallBudget {
        /// The given budget in bytes.
        budget_bytes: u64,
    },
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskError::NoFolder { folder } => {
                let folder = folder.display();
                write!(f, "{folder} is a symbolic link or no folder; give the folder itself")
            }
            DiskError::OtherOwner { folder, owner } => {
                write!(f, "{} is of user {owner}; give a folder of your own", folder.display())
            }
            DiskError::OpenMode { folder, mode } => {
                let folder = folder.display();
                write!(f, "{folder} has mode {mode:04o}; run `chmod 0700 {folder}`")
            }
            DiskError::SmallBudget { budget_bytes } => {
                write!(f, "a budget of {budget_bytes} bytes is too small; give at least 1048576")
            }
        }
    }
}

impl std::error::Error for DiskError {}
