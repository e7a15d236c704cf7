//! The loads on memory of the regret matrix: what touches how much of it.
//!
//! Sweeps and random touches, of private and of shared memory, as in the table of
//! 2012 (`reproduce B`), and each touch writes. The total stays about the same however many
//! processes share it, down to a least share for each of those that have memory of
//! their own. A quarter of what is mapped fits, where in that table nine tenths do: with
//! nine tenths, several processes that sweep take from one to ten times as
//! long by which of them happens to keep all of its pages, whatever the law.
//!
//! Swap lies on every device of the matrix but the object store: a page that is
//! written out replaces one that lies there, and an object can only be written
//! whole. A server's file takes pages in place: so the kernel swaps over NFS too.

use readpath_core::machine::SwapOut;
use readpath_core::policy::Spec;
use readpath_core::unit::PAGE_BYTES;

use crate::load::{LoadSetup, MemoryLoad, MemorySharing, TouchPattern};

/// What a cell touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixMemoryLoad {
    pattern: TouchPattern,
    share: MemorySharing,
}

/// The loads by the names under which they stand in the matrix.
pub(super) const LOADS: &[(&str, MatrixMemoryLoad)] = &[
    (
        "swap-seq-anon",
        MatrixMemoryLoad { pattern: TouchPattern::Sequential, share: MemorySharing::Private },
    ),
    (
        "swap-seq-shmem",
        MatrixMemoryLoad { pattern: TouchPattern::Sequential, share: MemorySharing::Shared },
    ),
    (
        "swap-rand-anon",
        MatrixMemoryLoad { pattern: TouchPattern::Random, share: MemorySharing::Private },
    ),
    (
        "swap-rand-shmem",
        MatrixMemoryLoad { pattern: TouchPattern::Random, share: MemorySharing::Shared },
    ),
];

/// The classic swap-in laws.
pub(super) const SWAPINS: [&str; 4] = ["none", "cluster", "hits", "vma"];

/// What leaves memory, and with what, under a swap-in law: the classic laws have the kernel's reclaim and its
/// order, which is what a program gets that has the kernel's law; ours have what they ship with.
pub(super) fn setup_under(swapin: &Spec, device: Spec) -> LoadSetup {
    let setup = LoadSetup { swapin: swapin.clone(), ..LoadSetup::new(device) };
    if !SWAPINS.contains(&swapin.name.as_str()) {
        return setup;
    }
    LoadSetup { eviction: Spec::plain("two-lists"), swap_out: SwapOut::Oldest, ..setup }
}

/// Pages of all mappings together, 32 MiB, and of one at least, 1 MiB.
const TOTAL_PAGES: u64 = 8192;
const MAPPING_PAGES_MIN: u64 = 256;

/// Mappings swept whole, or as many random touches. Of a process at least 1024 touches: one of many on a shared mapping comes to where others were.
const SWEEPS: u64 = 3;
const TOUCHES_MIN: u64 = 1024;

/// Whether swap can lie on a device of the matrix.
pub(super) fn supports_swap(device: &str) -> bool {
    device != "object"
}

impl MatrixMemoryLoad {
    /// What `processes` of it touch.
    pub(super) fn load(self, processes: u32, part: u64) -> MemoryLoad {
        let each = u64::from(processes);
        let (pages, touched_pages) = match self.share {
            MemorySharing::Private => {
                let pages = (TOTAL_PAGES / each).max(MAPPING_PAGES_MIN);
                (pages, pages)
            }
            MemorySharing::Shared => (TOTAL_PAGES, TOTAL_PAGES / each),
        };
        let mapping_bytes = pages * PAGE_BYTES;
        let load = MemoryLoad {
            pattern: self.pattern,
            touches: ((SWEEPS * touched_pages).max(TOUCHES_MIN) / part).max(1),
            writes_percent: 100,
            share: self.share,
            processes,
            ..MemoryLoad::new("regret", mapping_bytes, mapping_bytes)
        };
        let mapped_pages = load.mapped_bytes() / PAGE_BYTES;
        let memory_bytes = mapped_pages / 4 * PAGE_BYTES;
        // A tenth more than is mapped, so that a run of free slots is found.
        MemoryLoad { memory_bytes, swap_bytes: mapped_pages * 11 / 10 * PAGE_BYTES, ..load }
    }
}
