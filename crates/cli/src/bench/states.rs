//! Cache states of the measurements, and the goal of a cell in each.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use readpath_eval::access_patterns::Baseline;
use readpath_record::cold;
use serde::{Deserialize, Serialize};

use super::rows::{Row, RowAccesses, Scale};
use crate::exit::Failure;
use crate::progress::Interrupt;
use crate::real_file::make_cold;

/// Minimum size of a memory group in bytes. The memory of a process before its first read must be
/// small compared with it.
const GROUP_BYTES_MIN: u64 = 16 << 20;

/// Cache state of the files, and available memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheState {
    /// No page of the files is in the kernel page cache
    Cold,
    /// All pages are in the kernel page cache, read by another process
    Cached,
    /// Cold, and read once before by the same process
    Second,
    /// Cold, and read twice by a process with memory for a quarter of the bytes
    Short,
}

impl CacheState {
    /// All states, in the order of the table.
    pub const ALL: [CacheState; 4] =
        [CacheState::Cold, CacheState::Cached, CacheState::Second, CacheState::Short];

    /// Name of the state.
    pub const fn name(self) -> &'static str {
        match self {
            CacheState::Cold => "cold",
            CacheState::Cached => "cached",
            CacheState::Second => "second",
            CacheState::Short => "short",
        }
    }

    /// Description for the title of a table.
    pub const fn description(self) -> &'static str {
        match self {
            CacheState::Cold => "no page of the file is in memory",
            CacheState::Cached => "all pages are in the kernel page cache, read by another process",
            CacheState::Second => "second pass over the file in one process",
            CacheState::Short => {
                "two passes with memory for a quarter of the touched bytes, including the kernel \
                    page cache"
            }
        }
    }

    /// True if the measurement starts with no page of the files in the kernel page cache.
    pub const fn is_cold(self) -> bool {
        !matches!(self, CacheState::Cached)
    }

    /// Number of passes before the measurement, and number of measured passes.
    pub const fn passes(self) -> [u32; 2] {
        match self {
            CacheState::Cold | CacheState::Cached => [0, 1],
            CacheState::Second => [1, 1],
            CacheState::Short => [0, 2],
        }
    }

    /// True if the row is meaningful in this state.
    pub fn applies_to(self, row: &Row, scale: Scale) -> bool {
        if self != CacheState::Short {
            return true;
        }
        // The group must be smaller than the data, so that the data does not fit into it. From
        // twice the minimum on, the group has at most half of the data. A small run only checks
        // that the row runs.
        let exceeds_group = scale == Scale::Small || row.bytes() >= 2 * GROUP_BYTES_MIN;
        // The program's own buffer may take half of the group, which is a quarter of the bytes.
        let has_small_buffer = row.buffer_bytes() * 8 <= row.bytes();
        // A row with its own memory limit does not depend on the memory of the process.
        let has_own_limit = matches!(row.work, RowAccesses::Mapped { memory_bytes: Some(_), .. });
        exceeds_group && has_small_buffer && !has_own_limit
    }

    /// Memory limit of the process in bytes; `None`: no limit.
    pub fn group_bytes(self, row: &Row) -> Option<u64> {
        (self == CacheState::Short).then(|| (row.bytes() / 4).max(GROUP_BYTES_MIN))
    }

    /// Returns the goal of a cell in this state. `is_mapping` selects the baseline of
    /// cached cells: a mapping or `pread(2)`.
    pub const fn goal(self, is_mapping: bool) -> CellGoal {
        let same_access = if is_mapping { Baseline::Mmap } else { Baseline::Pread };
        match self {
            CacheState::Cold => {
                CellGoal { baseline: None, ratio_min: 0.97, cpu_ratio_max: Some(1.1) }
            }
            CacheState::Cached => {
                CellGoal { baseline: Some(same_access), ratio_min: 0.9, cpu_ratio_max: None }
            }
            CacheState::Second => {
                CellGoal { baseline: Some(Baseline::Pread), ratio_min: 0.97, cpu_ratio_max: None }
            }
            CacheState::Short => CellGoal { baseline: None, ratio_min: 1.0, cpu_ratio_max: None },
        }
    }
}

/// Goal of a cell. Its numbers are bars that the project has set for itself. The library has to be
/// as fast as the baseline where memory is short, and nearly as fast in the other states.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CellGoal {
    /// Baseline of the comparison; `None`: the fastest.
    pub baseline: Option<Baseline>,
    /// Minimum ratio of the baseline's time to the library's.
    pub ratio_min: f64,
    /// Maximum ratio of the library's processor time to the baseline's. Applies where the library
    /// is not faster.
    pub cpu_ratio_max: Option<f64>,
}

/// Brings the files into the page cache state with which a measurement in `state` begins. Returns
/// the number of pages in the wrong state: resident ones for a cold state, else missing ones.
///
/// `files` has the path and the length of each file. Files for a cold state are read first and
/// dropped then. Every contender thus finds the same free memory. A virtual machine may return free
/// memory to its host; the first contender without free pages would pay 5 us a page to get them
/// back.
pub fn prepare(
    state: CacheState,
    files: &[(PathBuf, u64)],
    interrupt: &Interrupt,
) -> Result<u64, Failure> {
    let mut stray_pages = 0;
    let mut buffer = vec![0; 1 << 20];
    for (path, _) in files {
        if interrupt.is_signalled() {
            return Err(Failure::Interrupted);
        }
        let missing = read_into_page_cache(path, &mut buffer);
        let missing = missing.map_err(|error| Failure::usage_of(path.display(), error))?;
        // Pages that are still absent do not matter for a cold state.
        stray_pages += if state.is_cold() { 0 } else { missing };
    }
    if state.is_cold() {
        for (path, _) in files {
            stray_pages += make_cold(path, &mut || !interrupt.is_signalled())?.resident;
        }
    }
    Ok(stray_pages)
}

/// Reads the whole file into the kernel page cache, unless all of it is there. Returns the number
/// of pages that are missing from it afterwards.
fn read_into_page_cache(path: &Path, buffer: &mut [u8]) -> io::Result<u64> {
    let is_complete = |residency: cold::Residency| residency.resident == residency.pages;
    if is_complete(cold::residency(path)?) {
        return Ok(0);
    }
    let mut file = File::open(path)?;
    while file.read(buffer)? > 0 {}
    let residency = cold::residency(path)?;
    Ok(residency.pages - residency.resident)
}
