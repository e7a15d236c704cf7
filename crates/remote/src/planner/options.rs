//! Options of a planner, and the errors of its calls.

use std::fmt;

use readpath_core::machine::{Config, ConfigError};
use readpath_core::policy::Spec;
use readpath_core::readahead::ReadaheadLimits;
use readpath_core::request::DeviceCaps;
use readpath_core::unit::{PAGE_BYTES, SECTOR_BYTES};

use super::addresses::{DEVICE_SECTORS, FILE_BYTES_MAX};
use super::demand_first;

/// Options of a [`Planner`](super::Planner).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannerOptions {
    /// Memory of the page cache of all files, in bytes. Default 64 MiB, at least 64 KiB. Each page
    /// of 4 KiB costs up to 104 bytes of bookkeeping in addition, and 32 more while it is fetched.
    /// A stream gets one window per latency of the storage, so the memory should hold more than
    /// two windows of each stream.
    pub memory_bytes: u64,
    /// Maximum size of one fetch in bytes. Default 2 MiB; whole pages of 4 KiB, at most 1 GiB.
    /// Larger ranges are cut and fetched in parallel. A small size helps if one connection is
    /// slower than the network; a large size needs fewer requests.
    pub part_bytes: u64,
    /// Maximum number of fetches in flight. Default 64, at least 1. An eighth of them, at least
    /// one, is reserved for fetches that a reader waits for; with a maximum of 1 none is. A store
    /// over the planner also sends requests for the versions of objects, which do not count here.
    pub fetches_max: u32,
    /// Maximum number of open reads. Default 65,536.
    pub reads_max: u32,
    /// Readahead policy with its parameters, as in `readpath policies`. Default `adaptive`.
    pub readahead: String,
}

impl Default for PlannerOptions {
    /// The defaults that the fields state.
    fn default() -> PlannerOptions {
        PlannerOptions {
            memory_bytes: 64 << 20,
            part_bytes: 2 << 20,
            fetches_max: 64,
            reads_max: 65_536,
            readahead: "adaptive".to_owned(),
        }
    }
}

/// Smallest memory in pages, chosen: 64 KiB.
const MEMORY_PAGES_MIN: u64 = 16;

/// Largest fetch in bytes: its number of sectors fits in 32 bits, with reserve.
const PART_BYTES_MAX: u64 = 1 << 30;

impl PlannerOptions {
    /// Configuration of the machine. Fails if the memory is too small, the size of a fetch is out
    /// of its bounds, or the text of the readahead policy is malformed. The machine checks the
    /// other options when it is built. Registers the scheduler of planners.
    pub(super) fn config(&self) -> Result<Config, PlannerError> {
        let PlannerOptions { memory_bytes, part_bytes, fetches_max, .. } = *self;
        if memory_bytes < MEMORY_PAGES_MIN * PAGE_BYTES {
            return Err(PlannerError::MemoryTooSmall { memory_bytes });
        }
        let is_whole = part_bytes > 0 && part_bytes.is_multiple_of(PAGE_BYTES);
        if !is_whole || part_bytes > PART_BYTES_MAX {
            return Err(PlannerError::BadPartSize { part_bytes });
        }
        demand_first::register();
        // The machine's device is the remote storage, where any sector can be addressed.
        let caps = DeviceCaps {
            sectors: DEVICE_SECTORS,
            request_sectors_max: (part_bytes / SECTOR_BYTES) as u32,
            depth_max: fetches_max,
            is_rotational: false,
            alignment_sectors: 1,
        };
        let part_pages = part_bytes / PAGE_BYTES;
        let readahead = Spec::parse(&self.readahead)
            .map_err(|error| PlannerError::Config(ConfigError::Policy(error)))?;
        Ok(Config {
            memory_bytes,
            readahead,
            limits: ReadaheadLimits { request_pages_max: part_pages, ..Default::default() },
            scheduler: Spec::plain(demand_first::NAME),
            open_reads_max: self.reads_max,
            ..Config::new(caps)
        })
    }
}

/// Error of a command to a planner. The command has had no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlannerError {
    /// The memory has fewer than 16 pages.
    MemoryTooSmall {
        /// The given memory in bytes.
        memory_bytes: u64,
    },
    /// The size of a fetch is zero, larger than 1 GiB, or not a number of whole pages.
    BadPartSize {
        /// The given size in bytes.
        part_bytes: u64,
    },
    /// The readahead policy is unknown, the number of fetches is 0, or the memory too large.
    Config(ConfigError),
    /// A file is larger than [`FILE_BYTES_MAX`].
    FileTooLarge {
        /// The given size in bytes.
        file_bytes: u64,
    },
    /// The open files use all addresses of the planner.
    TooManyFiles,
    /// `reads_max` reads are open.
    TooManyReads {
        /// The configured limit.
        reads_max: u32,
    },
    /// No memory is available for the cache, or for the buffer of a read that bypasses it.
    OutOfMemory {
        /// Size of the cache or buffer.
        bytes: u64,
    },
    /// The identifier is not of an open file, handle or read of this planner.
    NotOpen,
    /// The file still has handles: close them first.
    HasHandles,
}

impl fmt::Display for PlannerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlannerError::MemoryTooSmall { memory_bytes } => {
                write!(f, "a memory of {memory_bytes} bytes is too small; give at least 65536")
            }
            PlannerError::BadPartSize { part_bytes } => write!(
                f,
                "a fetch of {part_bytes} bytes is not possible; give a multiple of 4096 bytes, at \
                 most {PART_BYTES_MAX}"
            ),
            PlannerError::Config(error) => error.fmt(f),
            PlannerError::FileTooLarge { file_bytes } => write!(
                f,
                "a file of {file_bytes} bytes is too large; the largest has {FILE_BYTES_MAX}"
            ),
            PlannerError::TooManyFiles => {
                f.write_str("the open files use all addresses of the planner; close some files")
            }
            PlannerError::TooManyReads { reads_max } => {
                write!(f, "{reads_max} reads are open, the limit; wait for some to end")
            }
            PlannerError::OutOfMemory { bytes } => write!(
                f,
                "no memory for a buffer of {bytes} bytes; give less memory to the cache, or read \
                 the file in smaller pieces"
            ),
            PlannerError::NotOpen => {
                f.write_str("this file, handle or read is not open in this planner")
            }
            PlannerError::HasHandles => f.write_str("the file has open handles; close them first"),
        }
    }
}

impl std::error::Error for PlannerError {}

/// Reason for which a read has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadFailure {
    /// A fetch of its bytes [failed](super::Planner::fail).
    Fetch {
        /// The first byte of the file, within the read, that could not be fetched.
        offset: u64,
        /// The reason that the caller gave.
        reason: i32,
    },
    /// A fetch [finished](super::Planner::finish) with too few bytes, or more bytes arrived than it
    /// has. Its bytes are not used.
    WrongLength {
        /// The first byte of the file, within the read, that could not be fetched.
        offset: u64,
    },
    /// The file [ended](super::Planner::finish_at_file_end) before the last byte of the read.
    Shrunk {
        /// The first missing byte of the file, or one behind it.
        offset: u64,
    },
    /// The generation of the file changed while the read was in progress. Read again.
    Changed,
    /// The file was closed while the read was in progress.
    Closed,
}

impl fmt::Display for ReadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadFailure::Fetch { offset, reason } => {
                write!(f, "the bytes from {offset} on could not be fetched (reason {reason})")
            }
            ReadFailure::WrongLength { offset } => write!(
                f,
                "a fetch returned the wrong number of bytes from {offset} on; none of them is used"
            ),
            ReadFailure::Shrunk { offset } => write!(
                f,
                "the file ends at or before byte {offset}: it has become shorter since it was \
                 opened; open it again"
            ),
            ReadFailure::Changed => {
                f.write_str("the file changed while it was read; read it again")
            }
            ReadFailure::Closed => f.write_str("the file was closed while it was read"),
        }
    }
}

impl std::error::Error for ReadFailure {}
