//! What the cache counts.

/// What the cache has counted since it was made, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Pages added ahead of need.
    pub readahead_pages: u64,
    /// Pages read ahead that somebody then used.
    pub used_pages: u64,
    /// Pages added ahead of need that were never read: their request was withdrawn.
    pub withdrawn_pages: u64,
    /// Pages read ahead that left the cache unused.
    pub waste_pages: u64,
    /// Those of them that were pages of memory.
    pub memory_waste_pages: u64,
    /// Filled pages that were given up for others.
    pub evicted_pages: u64,
}

impl CacheCounters {
    /// Pages that were read ahead, or are on their way, and that nobody has used yet, whether they have left or not.
    pub fn unused_pages(&self) -> u64 {
        self.readahead_pages - self.used_pages - self.withdrawn_pages
    }

    /// Those of them that are in the cache, or on their way there.
    pub fn standing_pages(&self) -> u64 {
        self.unused_pages() - self.waste_pages
    }
}
