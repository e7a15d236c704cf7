//! Cache of the drive's map from logical to physical pages.
//!
//! A drive whose memory holds the whole map never misses. A drive with less memory caches some of
//! the map's pages, direct-mapped by page number modulo the cache size. It must read the other map
//! pages from flash before it can find the data.

use readpath_core::unit::SECTOR_BYTES;

/// Size of a map entry in bytes: a 32-bit physical page number.
const ENTRY_BYTES: u64 = 4;

/// Sectors per map entry: 4 KiB, the mapping unit of page-mapped drives.
const ENTRY_SECTORS: u64 = 8;

/// The part of the map that is in memory.
#[derive(Debug)]
pub struct MapCache {
    /// Sectors covered by one map page.
    sectors_per_page: u64,
    /// Cached map page at each index. Empty if the whole map is in memory.
    cached_pages: Vec<CachedMapPage>,
}

/// A map page in memory.
#[derive(Clone, Copy, Debug)]
struct CachedMapPage {
    /// Number of the map page, or `u64::MAX` for none.
    page: u64,
    /// True if the page was changed since it was read, and must be programmed before eviction.
    has_changed: bool,
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
    /// Creates a map with pages of `page_bytes`, of which those for `span_bytes` of data fit the
    /// cache. With a `span_bytes` of 0 the whole map is in memory.
    pub fn new(page_bytes: u64, span_bytes: u64) -> MapCache {
        let sectors_per_page = page_bytes / ENTRY_BYTES * ENTRY_SECTORS;
        let cached_count = (span_bytes / SECTOR_BYTES).div_ceil(sectors_per_page);
        let no_page = CachedMapPage { page: u64::MAX, has_changed: false };
        MapCache { sectors_per_page, cached_pages: vec![no_page; cached_count as usize] }
    }

    /// Looks up the map page of `sector`, for a write if `is_write`. A write marks the map page as
    /// changed. Returns `None` if it is in memory. Otherwise it replaces the map page at its index
    /// and is returned: the drive must read it from flash before the request.
    #[inline]
    pub fn look_up(&mut self, sector: u64, is_write: bool) -> Option<MapMiss> {
        if self.cached_pages.is_empty() {
            return None;
        }
        let page = sector / self.sectors_per_page;
        let index = (page % self.cached_pages.len() as u64) as usize;
        let cached = &mut self.cached_pages[index];
        if cached.page == page {
            cached.has_changed |= is_write;
            return None;
        }
        cached.page = page;
        let writes_back = std::mem::replace(&mut cached.has_changed, is_write);
        Some(MapMiss { page, writes_back })
    }

    /// Number of sectors (512 bytes) that one map page covers.
    pub fn sectors_per_page(&self) -> u64 {
        self.sectors_per_page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map page of 4 KiB has 1,024 entries of 8 sectors: 8,192 sectors. The cache holds two map
    /// pages, so page 2 evicts page 0. The write to the last sector of page 0 has changed it.
    #[test]
    fn a_map_page_of_4_kib_covers_4_mib() {
        let (read, write) = (false, true);
        let mut map = MapCache::new(4096, 8 << 20);
        let miss = |page, writes_back| Some(MapMiss { page, writes_back });
        assert_eq!(map.look_up(0, read), miss(0, false));
        assert_eq!(map.look_up(8191, write), None);
        assert_eq!(map.look_up(8192, read), miss(1, false));
        assert_eq!(map.look_up(2 * 8192, read), miss(2, true));
        assert_eq!(map.look_up(0, read), miss(0, false));
        let whole_map = 0;
        assert_eq!(MapCache::new(4096, whole_map).look_up(0, write), None);
    }
}
