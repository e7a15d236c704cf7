//! Cache of the drive's map from logical to physical pages.
//!
//! A drive whose memory holds the whole map never misses. A drive with less memory caches some of
//! the map's pages, direct-mapped by page number modulo the cache size. It must read the other map
//! pages from flash before it can find the data.

/// Size of a map entry in bytes: a 32-bit physical page number.
const ENTRY_BYTES: u64 = 4;

/// Sectors per map entry: 4 KiB, the mapping unit of page-mapped drives.
const ENTRY_SECTORS: u64 = 8;

/// The part of the map that is in memory.
#[derive(Debug)]
pub struct MapCache {
    /// Sectors covered by one map page.
    sectors_per_page: u64,
    /// Cached map page at each index, with a flag for changed pages. Empty if the whole map is in
    /// memory.
    cached_pages: Vec<(u64, bool)>,
}

/// A map page that must be read first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapMiss {
    /// Number of the map page.
    pub page: u64,
    /// True if the evicted map page was changed and must be programmed.
    pub writes_back: bool,
}

impl MapCache {
    /// Creates a map with pages of `page_bytes`. The cache covers `span_bytes` of data, or all data
    /// if 0.
    pub fn new(page_bytes: u64, span_bytes: u64) -> MapCache {
        let sectors_per_page = page_bytes / ENTRY_BYTES * ENTRY_SECTORS;
        let cached_count = (span_bytes / 512).div_ceil(sectors_per_page);
        MapCache { sectors_per_page, cached_pages: vec![(u64::MAX, false); cached_count as usize] }
    }

    /// Looks up the map page of `sector`. A write marks it as changed. Returns the map page that
    /// must be read first; `None` if it is cached.
    #[inline]
    pub fn miss(&mut self, sector: u64, is_write: bool) -> Option<MapMiss> {
        if self.cached_pages.is_empty() {
            return None;
        }
        let page = sector / self.sectors_per_page;
        let index = (page % self.cached_pages.len() as u64) as usize;
        let (cached_page, has_changed) = &mut self.cached_pages[index];
        if *cached_page == page {
            *has_changed |= is_write;
            return None;
        }
        *cached_page = page;
        let writes_back = std::mem::replace(has_changed, is_write);
        Some(MapMiss { page, writes_back })
    }

    /// Number of sectors covered by one map page.
    pub fn sectors_per_page(&self) -> u64 {
        self.sectors_per_page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_page_of_4_kib_covers_4_mib() {
        let mut map = MapCache::new(4096, 8 << 20);
        let miss = |page, writes_back| Some(MapMiss { page, writes_back });
        assert_eq!(map.miss(0, false), miss(0, false));
        assert_eq!(map.miss(8191, true), None);
        assert_eq!(map.miss(8192, false), miss(1, false));
        assert_eq!(map.miss(2 * 8192, false), miss(2, true));
        assert_eq!(map.miss(0, false), miss(0, false));
        assert_eq!(MapCache::new(4096, 0).miss(0, true), None);
    }
}
