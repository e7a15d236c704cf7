//! A load on memory: processes that touch more pages than their memory holds.
//!
//! A job (`crate::job`) says which bytes of a file are read; a load says which pages of a
//! mapping are touched. The program that it describes, in words:
//!
//! 1. Each of `processes` maps `mapping_bytes` of memory that no file backs: its own when
//!    `share` is private, one that all of them map when it is shared.
//! 2. The mapping is *filled*: every page is written once, in the order of its addresses, with
//!    bytes of its own, so that no kernel can store a page in less than a page. With less
//!    memory than that, the first pages are out again before the last ones are written.
//!    Filling is not measured.
//! 3. Then, all processes at once, each touches `touches` pages one after the other, in the
//!    order of `pattern`; a touch reads or writes one word of the page. That is measured.
//!
//! All of it happens in `memory_bytes` for the whole load; what doesn't fit goes to `swap_bytes`
//! of a device. The text form is in [`file`](mod@file), the order of touches in [`touches`].

pub mod file;
mod host;
mod report;
mod run;
pub mod touches;

use std::fmt;

use readpath_core::unit::PAGE_BYTES;
use serde::{Deserialize, Serialize};

pub use host::MemoryHost;
pub use report::LoadRow;
pub use run::{LoadSetup, check_load, observe_load, simulate_load, simulate_load_with};
pub use touches::{Touch, Touches};

/// One load. A [`MemoryLoad`] that [`MemoryLoad::check`] accepts can be run anywhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLoad {
    /// Its name in the rows.
    pub name: String,
    /// Bytes that a process maps, in whole pages; shared: that all of them map together.
    pub mapping_bytes: u64,
    /// Memory for all the mappings together, in whole pages.
    pub memory_bytes: u64,
    /// Room for what memory doesn't hold, in whole pages.
    pub swap_bytes: u64,
    /// The order in which a process touches its pages.
    pub pattern: TouchPattern,
    /// How many touches each process makes, after filling.
    pub touches: u64,
    /// How many touches of a hundred write; the others read.
    pub writes_percent: u32,
    /// Whose memory it is.
    pub share: MemorySharing,
    /// How many processes run at once.
    pub processes: u32,
    /// Mixed with the seed of the run, so that loads of one file draw different pages.
    pub seed: u64,
}

/// The order of touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TouchPattern {
    /// Page after page, and from the start again after the last: sweeps.
    Sequential,
    /// Any page, each as likely as the others, repeats allowed.
    Random,
    /// Some pages far more often than others, by Zipf's law with the exponent 0.9; the frequent ones
    /// are scattered.
    Zipf,
    /// In turn any page of the first eighth, and the next page of a sweep over the others.
    Swept,
}

/// Whose memory a mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemorySharing {
    /// The process's own: private anonymous memory (`Anon`).
    Private,
    /// An object in memory that processes share: tmpfs, memfd (`Shmem`).
    Shared,
}

/// The least memory: a kernel that reclaims 32 pages at a time has eight batches.
pub const MEMORY_BYTES_MIN: u64 = 256 * PAGE_BYTES;
/// The most processes of a load.
pub const PROCESSES_MAX: u32 = 1024;

impl MemoryLoad {
    /// A load of one process that reads its own memory, swept once, with as much swap as it
    /// maps.
    pub fn new(name: &str, mapping_bytes: u64, memory_bytes: u64) -> MemoryLoad {
        MemoryLoad {
            name: name.to_owned(),
            mapping_bytes,
            memory_bytes,
            swap_bytes: mapping_bytes,
            pattern: TouchPattern::Sequential,
            touches: mapping_bytes / PAGE_BYTES,
            writes_percent: 0,
            share: MemorySharing::Private,
            processes: 1,
            seed: 0,
        }
    }

    /// Pages of one mapping.
    pub fn mapping_pages(&self) -> u64 {
        self.mapping_bytes / PAGE_BYTES
    }

    /// How many mappings there are: one a process, or one for all.
    pub fn mappings(&self) -> u32 {
        match self.share {
            MemorySharing::Private => self.processes,
            MemorySharing::Shared => 1,
        }
    }

    /// Bytes of all mappings together.
    pub fn mapped_bytes(&self) -> u64 {
        self.mapping_bytes * u64::from(self.mappings())
    }

    /// What process `process` (from 0) touches in a run with this seed.
    pub fn touches_of(&self, process: u32, run_seed: u64) -> Touches {
        Touches::new(self, process, run_seed)
    }

    /// Finds out whether the load can be run at all.
    ///
    /// # Errors
    /// The first field that can't be so, with what it may be.
    pub fn check(&self) -> Result<(), MemoryLoadError> {
        let sizes = [
            (LoadKey::Mapping, self.mapping_bytes, PAGE_BYTES),
            (LoadKey::Memory, self.memory_bytes, MEMORY_BYTES_MIN),
            (LoadKey::Swap, self.swap_bytes, PAGE_BYTES),
        ];
        for (key, bytes, bytes_min) in sizes {
            if bytes < bytes_min || bytes > BYTES_MAX || bytes % PAGE_BYTES != 0 {
                return Err(MemoryLoadError::Size { key, bytes, bytes_min });
            }
        }
        if !(1..=PROCESSES_MAX).contains(&self.processes) {
            return Err(MemoryLoadError::Processes { processes: self.processes });
        }
        if self.touches == 0 {
            return Err(MemoryLoadError::NoTouches);
        }
        if self.writes_percent > 100 {
            return Err(MemoryLoadError::Writes { percent: self.writes_percent });
        }
        let (mapped_bytes, room_bytes) = (self.mapped_bytes(), self.memory_bytes + self.swap_bytes);
        if mapped_bytes > room_bytes {
            return Err(MemoryLoadError::NoRoom { mapped_bytes, room_bytes });
        }
        Ok(())
    }
}

/// The most bytes of a field: so that their sums and products stay far from the end of 64 bits.
const BYTES_MAX: u64 = 1 << 50;

/// The fields that [`MemoryLoad::check`] finds fault with, by their names in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadKey {
    /// `mapping`.
    Mapping,
    /// `memory`.
    Memory,
    /// `swap`.
    Swap,
    /// `processes`.
    Processes,
    /// `touches`, or `sweeps` in its place.
    Touches,
    /// `writes`.
    Writes,
}

impl LoadKey {
    /// Its name in a file.
    pub fn name(self) -> &'static str {
        match self {
            LoadKey::Mapping => "mapping",
            LoadKey::Memory => "memory",
            LoadKey::Swap => "swap",
            LoadKey::Processes => "processes",
            LoadKey::Touches => "touches",
            LoadKey::Writes => "writes",
        }
    }
}

/// Why a load can't be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryLoadError {
    /// A size is not made of whole pages, too small or too large.
    Size {
        /// Which.
        key: LoadKey,
        /// What it is.
        bytes: u64,
        /// The least that it may be.
        bytes_min: u64,
    },
    /// No process, or too many.
    Processes {
        /// How many.
        processes: u32,
    },
    /// No page would be touched.
    NoTouches,
    /// More than all touches would write.
    Writes {
        /// How many of a hundred.
        percent: u32,
    },
    /// Memory and swap together don't hold what is mapped.
    NoRoom {
        /// Of all mappings.
        mapped_bytes: u64,
        /// Of memory and swap.
        room_bytes: u64,
    },
}

impl MemoryLoadError {
    /// The field that is at fault.
    pub fn key(&self) -> LoadKey {
        match self {
            MemoryLoadError::Size { key, .. } => *key,
            MemoryLoadError::Processes { .. } => LoadKey::Processes,
            MemoryLoadError::NoTouches => LoadKey::Touches,
            MemoryLoadError::Writes { .. } => LoadKey::Writes,
            MemoryLoadError::NoRoom { .. } => LoadKey::Swap,
        }
    }
}

impl fmt::Display for MemoryLoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryLoadError::Size { bytes, bytes_min, .. } => write!(
                f,
                "{bytes} bytes; expected whole pages of {PAGE_BYTES} bytes, from {bytes_min} bytes \
                 to {BYTES_MAX}, such as \"512MiB\""
            ),
            MemoryLoadError::Processes { processes } => {
                write!(f, "{processes} processes; expected 1 to {PROCESSES_MAX}")
            }
            MemoryLoadError::NoTouches => f.write_str("no page is touched; expected at least 1"),
            MemoryLoadError::Writes { percent } => {
                write!(f, "{percent} of a hundred touches; expected at most 100")
            }
            MemoryLoadError::NoRoom { mapped_bytes, room_bytes } => write!(
                f,
                "all mappings together have {mapped_bytes} bytes, memory and swap {room_bytes}; \
                 give at least {} bytes more swap",
                mapped_bytes - room_bytes
            ),
        }
    }
}

impl std::error::Error for MemoryLoadError {}
