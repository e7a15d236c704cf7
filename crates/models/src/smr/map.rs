//! Map of the persistent cache of a shingled drive: a log of written sectors on the medium.
//!
//! New data go to the head of the log. Each write is an *entry* of the log. The part of an entry
//! that is still the newest version of its sectors consists of *extents*, each in one band of the
//! user's sectors. The log is a ring: a place is used again once no entry up to it has live data.

use std::collections::{BTreeMap, VecDeque};

/// Place of a piece of user data on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In its band, at this sector of the user's address space.
    Band(u64),
    /// In the persistent cache, at this sector of the cache.
    Cache(u64),
}

/// Sectors of user data whose newest version lies in the cache.
#[derive(Clone, Copy, Debug)]
struct CachedExtent {
    sectors: u64,
    /// Position in the log, counted without wrapping.
    position: u64,
    /// Number of the log entry that wrote the data.
    entry: u64,
}

/// One write to the log.
#[derive(Clone, Copy, Debug)]
struct LogEntry {
    position: u64,
    /// Band of the written sectors.
    band: u64,
    /// Sectors that no later write or cleaning has replaced.
    live_sectors: u64,
}

/// The map. All sizes are in sectors.
#[derive(Clone, Debug)]
pub(super) struct CacheMap {
    band_sectors: u64,
    cache_sectors: u64,
    /// Maximum number of extents.
    extents_max: usize,
    /// Extents by their first user sector. They never overlap and never cross a band.
    extents: BTreeMap<u64, CachedExtent>,
    /// Log entries from the oldest one with live data to the newest.
    log: VecDeque<LogEntry>,
    /// Number of the oldest entry in `log`.
    first_entry: u64,
    /// Next position of the log, counted without wrapping.
    head: u64,
}

impl CacheMap {
    /// Creates an empty map for at most `extents_max` extents.
    pub(super) fn new(band_sectors: u64, cache_sectors: u64, extents_max: usize) -> CacheMap {
        CacheMap {
            band_sectors,
            cache_sectors,
            extents_max,
            extents: BTreeMap::new(),
            log: VecDeque::new(),
            first_entry: 0,
            head: 0,
        }
    }

    /// Returns true if no data lie in the cache.
    pub(super) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Returns true if a write of `sectors`, all in one band, fits the log and the map. A write
    /// adds its own extent and can divide another one.
    pub(super) fn has_room(&self, sectors: u64) -> bool {
        let position = self.place_at_head(sectors);
        let tail = self.log.front().map_or(position, |entry| entry.position);
        let is_in_log = position + sectors - tail <= self.cache_sectors;
        self.extents.len() + 2 <= self.extents_max && is_in_log
    }

    /// Returns the position of the next write, counted without wrapping. A write never wraps: one
    /// that does not fit the rest of the ring begins at its start, and the rest stays unused.
    fn place_at_head(&self, sectors: u64) -> u64 {
        let in_ring = self.head % self.cache_sectors;
        if in_ring + sectors <= self.cache_sectors {
            self.head
        } else {
            self.head - in_ring + self.cache_sectors
        }
    }

    /// Appends a write of one band, for which `has_room` is true, and removes older data of its
    /// sectors. Returns its first sector in the cache.
    pub(super) fn append(&mut self, start: u64, sectors: u64) -> u64 {
        self.remove(start, sectors);
        let position = self.place_at_head(sectors);
        self.head = position + sectors;
        let entry = self.first_entry + self.log.len() as u64;
        self.log.push_back(LogEntry {
            position,
            band: start / self.band_sectors,
            live_sectors: sectors,
        });
        self.extents.insert(start, CachedExtent { sectors, position, entry });
        position % self.cache_sectors
    }

    /// Removes a range of user sectors from the cache. Cuts the extents that overlap it, from the
    /// last one to the first. Then drops the oldest log entries up to the first one with live data.
    pub(super) fn remove(&mut self, start: u64, sectors: u64) {
        let end = start + sectors;
        while let Some((first, extent)) = self.last_extent_before(end) {
            let extent_end = first + extent.sectors;
            // The extent and all earlier ones end before the range.
            if extent_end <= start {
                break;
            }
            self.extents.remove(&first);
            let (cut_start, cut_end) = (first.max(start), extent_end.min(end));
            self.log[(extent.entry - self.first_entry) as usize].live_sectors -=
                cut_end - cut_start;
            if first < cut_start {
                let before = CachedExtent { sectors: cut_start - first, ..extent };
                self.extents.insert(first, before);
            }
            if cut_end < extent_end {
                let position = extent.position + (cut_end - first);
                let after = CachedExtent { sectors: extent_end - cut_end, position, ..extent };
                self.extents.insert(cut_end, after);
            }
            // Extents do not overlap, so every earlier one ends before `start`.
            if first < start {
                break;
            }
        }
        while self.log.front().is_some_and(|entry| entry.live_sectors == 0) {
            self.log.pop_front();
            self.first_entry += 1;
        }
    }

    /// Removes the data of a range of whole bands that lie in the log before `log_end`, an earlier
    /// [`head`](Self::head): data written since then stays. No extent crosses a band's end.
    pub(super) fn remove_before(&mut self, start: u64, sectors: u64, log_end: u64) {
        let old: Vec<(u64, u64)> = self
            .extents
            .range(start..start + sectors)
            .filter(|(_, extent)| extent.position < log_end)
            .map(|(first, extent)| (*first, extent.sectors))
            .collect();
        for (first, sectors) in old {
            self.remove(first, sectors);
        }
    }

    /// Returns the position in the log, without wrapping, after the newest write.
    pub(super) const fn head(&self) -> u64 {
        self.head
    }

    /// Returns the last extent that begins before `sector`.
    fn last_extent_before(&self, sector: u64) -> Option<(u64, CachedExtent)> {
        self.extents.range(..sector).next_back().map(|(first, extent)| (*first, *extent))
    }

    /// Returns the places of a range of user sectors, in order, each with its size.
    pub(super) fn places(&self, start: u64, sectors: u64) -> Vec<(Place, u64)> {
        let (mut places, mut next, end) = (Vec::new(), start, start + sectors);
        let before =
            self.last_extent_before(start).filter(|(first, extent)| first + extent.sectors > start);
        let from = before.map_or(start, |(first, _)| first);
        for (first, extent) in self.extents.range(from..end) {
            let (cut_start, cut_end) = ((*first).max(start), (first + extent.sectors).min(end));
            if next < cut_start {
                places.push((Place::Band(next), cut_start - next));
            }
            let position = extent.position + (cut_start - first);
            places.push((Place::Cache(position % self.cache_sectors), cut_end - cut_start));
            next = cut_end;
        }
        if next < end {
            places.push((Place::Band(next), end - next));
        }
        places
    }

    /// Returns the band of the oldest data in the cache; `None` if the cache is empty.
    pub(super) fn oldest_band(&self) -> Option<u64> {
        self.log.front().map(|entry| entry.band)
    }

    /// Returns the places in the cache, each with its size, of the data of `band`. They are in the
    /// order of the cache's sectors.
    pub(super) fn cached_parts(&self, band: u64) -> Vec<(u64, u64)> {
        let start = band * self.band_sectors;
        let extents = self.extents.range(start..start + self.band_sectors);
        let mut parts: Vec<(u64, u64)> = extents
            .map(|(_, extent)| (extent.position % self.cache_sectors, extent.sectors))
            .collect();
        parts.sort_unstable();
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A newer write of the middle divides an older extent; the older entry keeps its two ends.
    #[test]
    fn places_follow_the_newest_write() {
        let mut map = CacheMap::new(1_000, 500, 10);
        assert_eq!(map.append(100, 100), 0);
        assert_eq!(map.append(140, 20), 100);
        let places = map.places(90, 120);
        let expected = [
            (Place::Band(90), 10),
            (Place::Cache(0), 40),
            (Place::Cache(100), 20),
            (Place::Cache(60), 40),
            (Place::Band(200), 10),
        ];
        assert_eq!(places, expected);
        assert_eq!(map.cached_parts(0), [(0, 40), (60, 40), (100, 20)]);
    }

    /// The log has 500 sectors. A write of 300 behind one of 300 would wrap, so it waits until the
    /// first one is replaced, and then begins at the ring's start.
    #[test]
    fn log_is_a_ring_whose_places_free_in_order() {
        let mut map = CacheMap::new(1_000, 500, 10);
        map.append(0, 300);
        assert!(map.has_room(200) && !map.has_room(300));
        map.append(2_500, 100);
        map.remove(0, 300);
        assert_eq!(map.oldest_band(), Some(2));
        assert!(map.has_room(300));
        assert_eq!(map.append(3_000, 300), 0);
        assert!(!map.has_room(1));
        map.remove(2_500, 100);
        map.remove(3_000, 300);
        assert!(map.is_empty() && map.has_room(500));
    }
}
