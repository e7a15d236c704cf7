//! Memory loads larger than memory that can profit from an eviction policy.
//!
//! Memory is 16 MiB, as for the reads. The loads differ in the order of touches, the part of the
//! mapping that fits, the share of writes, and the number of processes. `Swept` alternates between
//! random touches of the first eighth and a sweep over the rest.

use readpath_sim::load::{MemoryLoad, TouchPattern};

use super::reads::MEMORY_BYTES;

/// Name, access pattern, mapped size in percent of the memory, percentage of writes, and number of
/// processes that share the mapped size.
const TOUCHES: [(&str, TouchPattern, u64, u32, u32); 10] = [
    ("sweep-110%", TouchPattern::Sequential, 110, 100, 1),
    ("sweep-200%", TouchPattern::Sequential, 200, 100, 1),
    ("sweep-200%-reads", TouchPattern::Sequential, 200, 0, 1),
    ("four-sweeps-200%", TouchPattern::Sequential, 200, 100, 4),
    ("random-200%", TouchPattern::Random, 200, 50, 1),
    ("zipf-200%", TouchPattern::Zipf, 200, 50, 1),
    ("zipf-400%", TouchPattern::Zipf, 400, 20, 1),
    ("four-zipf-400%", TouchPattern::Zipf, 400, 20, 4),
    ("swept-200%", TouchPattern::Swept, 200, 50, 1),
    ("swept-400%-reads", TouchPattern::Swept, 400, 0, 1),
];

/// Touches of all processes together, before the work is divided. Chosen, not measured.
const TOUCHES_ALL: u64 = 60_000;
/// Minimum touches of each process, after the division. Chosen, not measured.
const TOUCHES_MIN: u64 = 1024;

/// Returns the loads with their names in the matrix. `work_divisor` divides the touches.
pub(super) fn loads(work_divisor: u64) -> impl Iterator<Item = MemoryLoad> {
    TOUCHES.into_iter().map(move |(name, pattern, percent, writes_percent, processes)| {
        let mapping_bytes = MEMORY_BYTES * percent / 100 / u64::from(processes);
        let mapping_bytes = mapping_bytes.next_multiple_of(readpath_core::unit::PAGE_BYTES);
        let load = MemoryLoad::new(&format!("touches/{name}"), mapping_bytes, MEMORY_BYTES);
        let touches = (TOUCHES_ALL / u64::from(processes) / work_divisor).max(TOUCHES_MIN);
        let load = MemoryLoad { pattern, touches, writes_percent, processes, ..load };
        // A tenth more than is mapped, so that a run of free slots is available. In whole MiB.
        let swap_bytes = (load.mapped_bytes() * 11 / 10).next_multiple_of(1 << 20);
        MemoryLoad { swap_bytes, ..load }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_passes_its_check() {
        for work_divisor in [1, 64] {
            loads(work_divisor).for_each(|load| assert_eq!(load.check(), Ok(()), "{}", load.name));
        }
    }
}
