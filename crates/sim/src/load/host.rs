//! What the host's processor costs a load.

/// Times in nanoseconds, of one processor; everything that the kernel does for
/// a fault is charged to the process that faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryHost {
    /// A touch of a page that is mapped: a miss of the processor's caches and a
    /// walk through its page tables.
    pub touch_ns: u64,
    /// A fault on private memory that finds its page, or makes it of zeros.
    pub minor_fault_private_ns: u64,
    /// The same on shared memory.
    pub minor_fault_shared_ns: u64,
    /// A fault that has to wait, beside its page: the request, its interrupt,
    /// two changes of context.
    pub major_fault_ns: u64,
    /// To take a frame for a page that is read in, and to put it there.
    pub page_in_ns: u64,
    /// To choose a page, unmap it, and have it written.
    pub page_out_ns: u64,
}

impl MemoryHost {
    /// A virtual machine of 2026 under Linux 6.18, measured: minor faults of
    /// 1.5 µs (anonymous) and 2.3 µs (shared); sequential swapping takes 8 to 11
    /// µs of system time a page with `page_cluster` 3, 18 to 35 with 0. A wait
    /// `w` and a page's way in and out `p` follow from the middles of those:
    /// `w + p = 26.5` and `w / 8 + 7 / 8 · 1.5 + p = 9.5` give 21 and 6, half of
    /// it each way. The touch is our choice: 0.1 µs.
    pub const TODAY: MemoryHost = MemoryHost {
        touch_ns: 100,
        minor_fault_private_ns: 1_500,
        minor_fault_shared_ns: 2_300,
        major_fault_ns: 21_000,
        page_in_ns: 3_000,
        page_out_ns: 3_000,
    };

    /// The machine of 2012: 64 µs of system time for a fault on its solid-state
    /// drive, with one page in and one page out, as was published. That is 2.4
    /// times today's; so is each part of it.
    pub const OF_2012: MemoryHost = MemoryHost {
        touch_ns: 100,
        minor_fault_private_ns: 3_600,
        minor_fault_shared_ns: 5_500,
        major_fault_ns: 50_000,
        page_in_ns: 7_000,
        page_out_ns: 7_000,
    };
}
