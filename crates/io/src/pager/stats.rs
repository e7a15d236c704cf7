//! Counters of mappings and regions.

/// Counters of a mapping since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappingStats {
    /// Faults reported by the kernel, including faults on pages that were mapped meanwhile.
    pub faults: u64,
    /// Faults that waited for the device.
    pub faults_read: u64,
    /// Pages mapped, by faults or together with a neighbour.
    pub mapped_pages: u64,
    /// Pages copied instead of moved: a transfer still used them, or the kernel rejected the move,
    /// as into locked memory. Also pages read again after the program has dropped them itself.
    pub copied_pages: u64,
    /// Pages whose memory was released: evicted for others, dropped by advice, or not delivered by
    /// a failed transfer.
    pub evicted_pages: u64,
    /// Pages that could not be read when they were touched.
    pub poisoned_pages: u64,
    /// Pages of long runs that were delegated to the kernel's own mapping, touched or not. Pages
    /// that were in memory before also count as evicted.
    pub delegated_pages: u64,
    /// Pages in memory now.
    pub resident_pages: u64,
    /// Requests to the device.
    pub device_reads: u64,
    /// Bytes that these requests read.
    pub device_read_bytes: u64,
}

/// Counters of a region since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionStats {
    /// Faults reported by the kernel, including faults on pages that came in meanwhile.
    pub faults: u64,
    /// Faults on pages that had to be read, or were already being read.
    pub faults_major: u64,
    /// Faults on pages in memory, or never written before.
    pub faults_minor: u64,
    /// Writes to pages that were mapped read-only.
    pub faults_protected: u64,
    /// Faults on prefetched pages.
    pub hits: u64,
    /// Pages read from the storage.
    pub swap_in_pages: u64,
    /// Pages written to the storage.
    pub swap_out_pages: u64,
    /// Failed page writes. The page stays in memory and is written to another slot.
    pub failed_writes: u64,
    /// Pages that ended in a bus error.
    pub poisoned_pages: u64,
    /// Failed attempts to unmap a page, because a system call was using its memory, or the program
    /// has protected or dropped it.
    pub busy_pages: u64,
    /// Pages of memory in use: mapped, in a transfer, or kept free.
    pub memory_pages: u64,
    /// Maximum of `memory_pages`.
    pub memory_pages_max: u64,
    /// Reads of the storage.
    pub device_reads: u64,
    /// Bytes that these requests read.
    pub device_read_bytes: u64,
    /// Writes to the storage.
    pub device_writes: u64,
    /// Bytes that these requests wrote.
    pub device_write_bytes: u64,
}
