//! A memory load: processes that touch more pages than their memory holds.
//!
//! A job (`crate::job`) describes reads of a file, a load describes touches of a mapping. The
//! program that it represents has these steps:
//!
//! 1. Each of `processes` maps `mapping_bytes` of anonymous memory: its own if `share` is private,
//!    one common mapping if it is shared.
//! 2. The mapping is *filled*: every page is written once, in address order, with distinct
//!    contents, so that no kernel can compress or share it. If memory is smaller, the first pages
//!    are swapped out before the last ones are written. The filling is not measured.
//! 3. All processes concurrently touch `touches` pages each, in the order of `pattern`. A touch
//!    reads or writes one word of the page. This part is measured.
//!
//! The whole load runs in `memory_bytes`. The remaining pages go to `swap_bytes` of a device. The
//! text form is described in [`file`](mod@file), the order of touches in [`touches`].

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

/// A memory load. Every load that [`MemoryLoad::check`] accepts can run in the simulation and on a
/// kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLoad {
    /// Name in the rows.
    pub name: String,
    /// Mapped bytes per process, in whole pages. For shared memory, the size of the common mapping.
    pub mapping_bytes: u64,
    /// Memory for all mappings together, in whole pages.
    pub memory_bytes: u64,
    /// Swap space in whole pages.
    pub swap_bytes: u64,
    /// Order of the touches of a process.
    pub pattern: TouchPattern,
    /// Number of touches per process, after filling.
    pub touches: u64,
    /// Percentage of touches that write. The others read.
    pub writes_percent: u32,
    /// Private or shared memory.
    pub share: MemorySharing,
    /// Number of concurrent processes.
    pub processes: u32,
    /// Seed that is combined with the run's seed, so that the loads of one file use different
    /// pages.
    pub seed: u64,
}

/// Order of the touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TouchPattern {
    /// Consecutive pages, repeatedly over the whole mapping.
    Sequential,
    /// Uniformly random pages, with repetitions.
    Random,
    /// Random pages with a Zipf distribution of exponent 0.9. The frequent pages are scattered.
    Zipf,
    /// Alternately a random page of the first eighth and the next page of a sweep over the others.
    Swept,
}

/// Ownership of the memory of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemorySharing {
    /// Private anonymous memory of the process (`Anon`).
    Private,
    /// A shared memory object: tmpfs, memfd (`Shmem`).
    Shared,
}

/// Minimum memory, 1 MiB: eight batches of a kernel that evicts 32 pages at a time.
pub const MEMORY_BYTES_MIN: u64 = 256 * PAGE_BYTES;
/// Maximum number of processes of a load, chosen.
pub const PROCESSES_MAX: u32 = 1024;

impl MemoryLoad {
    /// Creates a load of one process that reads its private memory in one sweep, with swap space of
    /// the size of the mapping.
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

    /// Number of pages in one mapping.
    pub fn mapping_pages(&self) -> u64 {
        self.mapping_bytes / PAGE_BYTES
    }

    /// Number of mappings: one per process, or a single shared one.
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

    /// Returns the touches of process `process` (from 0) for this seed.
    pub fn touches_of(&self, process: u32, run_seed: u64) -> Touches {
        Touches::new(self, process, run_seed)
    }

    /// Checks that the load can run.
    ///
    /// # Errors
    /// Returns the first invalid field with its valid range.
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

/// Maximum bytes of a field, 1 PiB. Its product with [`PROCESSES_MAX`] fits 64 bits.
const BYTES_MAX: u64 = 1 << 50;

/// Fields that [`MemoryLoad::check`] can reject, with their names in a file.
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
    /// `touches`, or `sweeps` instead.
    Touches,
    /// `writes`.
    Writes,
}

impl LoadKey {
    /// Name in a file.
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

/// Error in a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryLoadError {
    /// A size is not a whole number of pages, or is out of range.
    Size {
        /// Invalid field.
        key: LoadKey,
        /// Its value.
        bytes: u64,
        /// Minimum value.
        bytes_min: u64,
    },
    /// The number of processes is 0 or too large.
    Processes {
        /// Number of processes.
        processes: u32,
    },
    /// The load has no touches.
    NoTouches,
    /// The percentage of writes exceeds 100.
    Writes {
        /// Percentage of writes.
        percent: u32,
    },
    /// Memory and swap together are smaller than the mappings.
    NoRoom {
        /// Bytes of all mappings.
        mapped_bytes: u64,
        /// Bytes of memory and swap.
        room_bytes: u64,
    },
}

impl MemoryLoadError {
    /// Returns the invalid field.
    pub fn key(&self) -> LoadKey {
        match self {
            MemoryLoadError::Size { key, .. } => *key,
            MemoryLoadError::Processes { .. } => LoadKey::Processes,
            MemoryLoadError::NoTouches => LoadKey::Touches,
            MemoryLoadError::Writes { .. } => LoadKey::Writes,
            // The message advises more swap.
            MemoryLoadError::NoRoom { .. } => LoadKey::Swap,
        }
    }
}

impl fmt::Display for MemoryLoadError {
    /// Writes the problem without the field, which callers take from [`MemoryLoadError::key`].
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
