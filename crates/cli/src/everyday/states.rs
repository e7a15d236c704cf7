//! The states that a row is measured in, and how much a cell of each has to reach.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use readpath_peers::cold;
use readpath_peers::everyday::Peer;
use serde::{Deserialize, Serialize};

use super::rows::{Row, RowAccesses, Scale};
use crate::exit::Failure;
use crate::progress::Interrupt;
use crate::real_file::make_cold;

/// The least that a memory group is given, in bytes: what a process takes before it reads anything is
/// to be small beside it.
const GROUP_BYTES_MIN: u64 = 16 << 20;

/// What of a file is in memory, and how much memory there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheState {
    /// The kernel's cache has nothing of it
    Cold,
    /// The kernel's cache has all of it, read by another process
    Cached,
    /// Cold, and read once before by the same process
    Second,
    /// Cold, and read twice by a process whose memory is a quarter of what it reads
    Short,
}

impl CacheState {
    /// All of them, in the order of the table.
    pub const ALL: [CacheState; 4] =
        [CacheState::Cold, CacheState::Cached, CacheState::Second, CacheState::Short];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            CacheState::Cold => "cold",
            CacheState::Cached => "cached",
            CacheState::Second => "second",
            CacheState::Short => "short",
        }
    }

    /// What it is, for a table's title.
    pub const fn words(self) -> &'static str {
        match self {
            CacheState::Cold => "nothing of the file is in memory",
            CacheState::Cached => "another process has read it: the kernel's cache has all of it",
            CacheState::Second => "the second pass over it in one process",
            CacheState::Short => {
                "two passes with a quarter of the memory that they touch, the kernel's cache included"
            }
        }
    }

    /// Whether it begins with nothing in memory.
    pub const fn is_cold(self) -> bool {
        !matches!(self, CacheState::Cached)
    }

    /// Passes before the measurement, and passes that are measured.
    pub const fn passes(self) -> [u32; 2] {
        match self {
            CacheState::Cold | CacheState::Cached => [0, 1],
            CacheState::Second => [1, 1],
            CacheState::Short => [0, 2],
        }
    }

    /// Whether the row says anything in this state.
    pub fn suits(self, row: &Row, scale: Scale) -> bool {
        if self != CacheState::Short {
            return true;
        }
        let is_short = scale == Scale::Small || row.bytes() >= 2 * GROUP_BYTES_MIN;
        let has_room = row.buffer_bytes() * 8 <= row.bytes();
        // Who says how much memory it takes doesn't say all that the process is given.
        let says_how_much = matches!(row.work, RowAccesses::Mapped { memory_bytes: Some(_), .. });
        is_short && has_room && !says_how_much
    }

    /// How much memory the process is given, in bytes; `None`: as much as there is.
    pub fn group_bytes(self, row: &Row) -> Option<u64> {
        (self == CacheState::Short).then(|| (row.bytes() / 4).max(GROUP_BYTES_MIN))
    }

    /// How a cell of it is judged.
    pub const fn bar(self, is_mapping: bool) -> CellGoal {
        let copies = if is_mapping { Peer::Mmap } else { Peer::Pread };
        match self {
            CacheState::Cold => CellGoal { peer: None, ratio_min: 0.97, cpu_ratio_max: Some(1.1) },
            CacheState::Cached => {
                CellGoal { peer: Some(copies), ratio_min: 0.9, cpu_ratio_max: None }
            }
            CacheState::Second => {
                CellGoal { peer: Some(Peer::Pread), ratio_min: 0.97, cpu_ratio_max: None }
            }
            CacheState::Short => CellGoal { peer: None, ratio_min: 1.0, cpu_ratio_max: None },
        }
    }
}

/// What a cell has to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CellGoal {
    /// Beside whom; `None`: the fastest of all peers.
    pub peer: Option<Peer>,
    /// The least ratio of its time to ours.
    pub ratio_min: f64,
    /// The most of its processor time that ours may take, where ours is not faster.
    pub cpu_ratio_max: Option<f64>,
}

/// Brings the files into the state; gives how many of their pages are not as it wants them.
///
/// What is to be cold is brought in first and given up then: so whoever is measured finds the memory that it
/// takes as the others do. A machine that gives its free memory back to its host would have who comes behind
/// a way without pages pay for fetching it again, 5 us a page.
pub fn prepare(
    state: CacheState,
    files: &[(PathBuf, u64)],
    interrupt: &Interrupt,
) -> Result<u64, Failure> {
    let mut pages = 0;
    let mut buffer = vec![0; 1 << 20];
    for (path, _) in files {
        if interrupt.has_come() {
            return Err(Failure::Interrupted);
        }
        let missing = bring_in(path, &mut buffer);
        let missing = missing.map_err(|error| Failure::about(path.display(), error))?;
        pages += if state.is_cold() { 0 } else { missing };
    }
    if state.is_cold() {
        for (path, _) in files {
            pages += make_cold(path, &mut || !interrupt.has_come())?.resident;
        }
    }
    Ok(pages)
}

/// Has the kernel's cache have all of a file; gives how many pages it hasn't.
fn bring_in(path: &Path, buffer: &mut [u8]) -> io::Result<u64> {
    let is_there = |residency: cold::Residency| residency.resident == residency.pages;
    if is_there(cold::residency(path)?) {
        return Ok(0);
    }
    let mut file = File::open(path)?;
    while file.read(buffer)? > 0 {}
    let residency = cold::residency(path)?;
    Ok(residency.pages - residency.resident)
}
