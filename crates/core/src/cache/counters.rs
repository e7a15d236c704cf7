//! Counters of the cache.

/// Counters of the cache since it was created, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Prefetched pages.
    pub readahead_pages: u64,
    /// Prefetched pages that were then used.
    pub used_pages: u64,
    /// Prefetched pages that were never read, because their request was cancelled.
    pub withdrawn_pages: u64,
    /// Prefetched pages that left the cache unused.
    pub waste_pages: u64,
    /// The part of `waste_pages` that were pages of memory (swap); the rest were pages of files.
    pub memory_waste_pages: u64,
    /// Filled pages that were evicted.
    pub evicted_pages: u64,
}

impl CacheCounters {
    /// Prefetched pages, in flight included, that are not used yet or left the cache unused.
    pub fn unused_pages(&self) -> u64 {
        self.readahead_pages - self.used_pages - self.withdrawn_pages
    }

    /// The part of `unused_pages` that is in the cache or in flight.
    pub fn standing_pages(&self) -> u64 {
        self.unused_pages() - self.waste_pages
    }
}
