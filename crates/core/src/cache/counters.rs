//! What the cache counts.

/// What the cache has counted since it was made, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Pages added ahead of need.
    pub readahead_pages: u64,
    /// Pages read ahead that somebody then used.
    pub used_pages: u64,
    /// Pages read ahead that left the cache unused.
    pub waste_pages: u64,
    /// Those of them that were pages of memory.
    pub memory_waste_pages: u64,
    /// Filled pages that were given up for others.
    pub evicted_pages: u64,
}
