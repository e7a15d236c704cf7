//! Processor costs of a memory load.

/// Times in nanoseconds on one processor. The kernel's work for a fault is charged to the faulting
/// process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryHost {
    /// Touch of a mapped page: a miss in the processor's caches and a page-table walk.
    pub touch_ns: u64,
    /// Fault on private memory that finds its page or creates a zero page.
    pub minor_fault_private_ns: u64,
    /// Fault on shared memory that finds its page or creates a zero page.
    pub minor_fault_shared_ns: u64,
    /// Fault that waits, without the cost of its page: request, interrupt, two context switches.
    pub major_fault_ns: u64,
    /// Allocation and mapping of a frame for a page that is read in.
    pub page_in_ns: u64,
    /// Selection, unmapping and write-out of a page.
    pub page_out_ns: u64,
}

impl MemoryHost {
    /// A virtual machine of 2026 under Linux 6.18, measured. Minor faults take 1.5 µs
    /// (anonymous) and 2.3 µs (shared). Sequential swapping takes 8 to 11 µs of system time per
    /// page with `page_cluster` 3 (8 pages per wait), and 18 to 35 µs with 0 (one page per
    /// wait). A wait `w` and the two transfers of a page `p` follow from the mid-points. `w + p
    /// = 26.5` and `w / 8 + 7 / 8 · 1.5 + p = 9.5`, where seven of eight pages are minor
    /// faults, yield about 21 and 6, half of the 6 in each direction. The touch time of 0.1 µs
    /// is chosen.
    pub const TODAY: MemoryHost = MemoryHost {
        touch_ns: 100,
        minor_fault_private_ns: 1_500,
        minor_fault_shared_ns: 2_300,
        major_fault_ns: 21_000,
        page_in_ns: 3_000,
        page_out_ns: 3_000,
    };

    /// The machine of 2012. Published are 64 µs of system time for a fault on its solid-state
    /// drive, with one page in and one page out. This is 2.4 times today's value, so each part
    /// of a fault is scaled by 2.4. The touch time stays.
    pub const OF_2012: MemoryHost = MemoryHost {
        touch_ns: 100,
        minor_fault_private_ns: 3_600,
        minor_fault_shared_ns: 5_500,
        major_fault_ns: 50_000,
        page_in_ns: 7_000,
        page_out_ns: 7_000,
    };
}
