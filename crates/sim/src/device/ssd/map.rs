//! The drive's map from logical to physical pages, as far as it fits its memory.
//!
//! A drive whose memory holds the whole map looks nothing up. A drive with
//! less holds some of the map's pages, one place for each page number modulo
//! their count, and must read the others from flash before it can find the data.

/// Bytes of one map entry: a physical page number of 32 bits.
const ENTRY_BYTES: u64 = 4;

/// Sectors behind one map entry: 4 KiB, the unit that page-mapped drives keep.
const ENTRY_SECTORS: u64 = 8;

/// The part of the map that is in memory.
#[derive(Debug)]
pub struct MapCache {
    sectors_per_page: u64,
    /// The map page in each place, and whether it has changed since it was read; empty when
    /// the whole map is in memory.
    held: Vec<(u64, bool)>,
}

/// A map page that must be read first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapMiss {
    /// Its number.
    pub page: u64,
    /// Whether the page whose place it takes has changed, and is to be programmed.
    pub writes_back: bool,
}

impl MapCache {
    /// A map cut into pages of `page_bytes`, of which memory holds those of
    /// `span_bytes` of data; 0: all.
    pub fn new(page_bytes: u64, span_bytes: u64) -> MapCache {
        let sectors_per_page = page_bytes / ENTRY_BYTES * ENTRY_SECTORS;
        let places = (span_bytes / 512).div_ceil(sectors_per_page);
        MapCache { sectors_per_page, held: vec![(u64::MAX, false); places as usize] }
    }

    /// Looks up the map page of `sector`, for a write to change it; gives what must be read first.
    #[inline]
    pub fn miss(&mut self, sector: u64, is_write: bool) -> Option<MapMiss> {
        if self.held.is_empty() {
            return None;
        }
        let page = sector / self.sectors_per_page;
        let at = (page % self.held.len() as u64) as usize;
        let (held, has_changed) = &mut self.held[at];
        if *held == page {
            *has_changed |= is_write;
            return None;
        }
        *held = page;
        let writes_back = std::mem::replace(has_changed, is_write);
        Some(MapMiss { page, writes_back })
    }

    /// Sectors whose map is one page.
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
