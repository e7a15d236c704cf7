//! The memory loads of the policy matrix.
//!
//! They are sequential sweeps and random touches, of private and of shared memory, as in the table
//! of 2012 (`reproduce B`). Every touch writes. The total is about the same for any number of
//! processes, with a minimum for each process that has memory of its own. A quarter of the mapped
//! memory fits. In the table of 2012 it is nine tenths. With nine tenths, several sweeping
//! processes take one to ten times as long under any policy, depending on which process happens to
//! keep all its pages.
//!
//! Swap is on every device of the matrix except the object store. A page that is written out
//! replaces one in place, and an object can only be written as a whole. A server's file accepts
//! pages in place, so the kernel also swaps over NFS.

use readpath_core::machine::SwapOut;
use readpath_core::policy::Spec;
use readpath_core::unit::PAGE_BYTES;

use readpath_sim::load::{LoadSetup, MemoryLoad, MemorySharing, TouchPattern};

/// A memory load: access pattern, and private or shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixMemoryLoad {
    /// Order of the touched pages.
    pattern: TouchPattern,
    /// Private or shared memory.
    share: MemorySharing,
}

/// The memory loads with their names in the matrix.
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

/// Classic swap-in policies.
pub(super) const SWAPINS: [&str; 4] = ["none", "cluster", "hits", "vma"];

/// Returns the setup of a memory load under a swap-in policy. Classic policies are combined with
/// the kernel's eviction policy and swap-out order, as in a real kernel. The project's own policies
/// are combined with the default ones.
pub(super) fn setup_under(swapin: &Spec, device: Spec) -> LoadSetup {
    let setup = LoadSetup { swapin: swapin.clone(), ..LoadSetup::new(device) };
    if !SWAPINS.contains(&swapin.name.as_str()) {
        return setup;
    }
    LoadSetup { eviction: Spec::plain("two-lists"), swap_out: SwapOut::Oldest, ..setup }
}

/// Pages of all mappings together: 32 MiB. This size and the ones below are chosen, not measured.
const TOTAL_PAGES: u64 = 8192;
/// Minimum pages of one mapping: 1 MiB.
const MAPPING_PAGES_MIN: u64 = 256;

/// Number of sweeps over a mapping, or the same number of random touches.
const SWEEPS: u64 = 3;
/// Minimum touches of a process, before the division for quick tests. A process on a shared mapping
/// then also reaches pages that other processes have touched.
const TOUCHES_MIN: u64 = 1024;

/// Returns true if a device of the matrix supports swap.
pub(super) fn supports_swap(device: &str) -> bool {
    device != "object"
}

impl MatrixMemoryLoad {
    /// Returns the load of `processes` processes. `work_divisor` divides the number of
    /// touches.
    pub(super) fn load(self, processes: u32, work_divisor: u64) -> MemoryLoad {
        let process_count = u64::from(processes);
        let (mapping_pages, pages_per_process) = match self.share {
            MemorySharing::Private => {
                let pages = (TOTAL_PAGES / process_count).max(MAPPING_PAGES_MIN);
                (pages, pages)
            }
            MemorySharing::Shared => (TOTAL_PAGES, TOTAL_PAGES / process_count),
        };
        let mapping_bytes = mapping_pages * PAGE_BYTES;
        let load = MemoryLoad {
            pattern: self.pattern,
            touches: ((SWEEPS * pages_per_process).max(TOUCHES_MIN) / work_divisor).max(1),
            writes_percent: 100,
            share: self.share,
            processes,
            // The memory size is set below, where the bytes of all mappings are known. The name is
            // not shown: a cell has a name of its own.
            ..MemoryLoad::new("regret", mapping_bytes, mapping_bytes)
        };
        let mapped_pages = load.mapped_bytes() / PAGE_BYTES;
        let memory_bytes = mapped_pages / 4 * PAGE_BYTES;
        // A tenth more than is mapped, so that a run of free slots is available.
        MemoryLoad { memory_bytes, swap_bytes: mapped_pages * 11 / 10 * PAGE_BYTES, ..load }
    }
}
