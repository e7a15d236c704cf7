//! File mappings in the address spaces of recorded processes.

use std::collections::{BTreeMap, HashMap};

use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::event::Inode;

/// Size of a huge page in bytes: the range of one entry in the middle level of the page table.
const HUGE_BYTES: u64 = 2 << 20;

/// Stands for the unknown file of a mapping whose descriptor was closed before the look-up. The
/// first fault identifies it.
pub(super) const UNKNOWN: Inode = Inode { device: 0, number: 0 };

/// A mapping of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    /// End address (exclusive).
    pub end: u64,
    pub inode: Inode,
    /// Number of the file in the recording.
    pub file: u32,
    /// File offset of the first byte.
    pub offset: u64,
}

/// A page of a file at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MappedPage {
    pub process: u32,
    pub address: u64,
    pub inode: Inode,
    pub page: u64,
    /// All pages of the file in this mapping.
    pub pages: PageRange,
    /// Pages of a possible huge page entry, if the mapping contains all of them.
    pub huge: Option<PageRange>,
}

/// Mappings by process and first address.
#[derive(Debug, Default)]
pub(super) struct Maps {
    processes: HashMap<u32, BTreeMap<u64, Mapping>>,
}

impl Maps {
    /// Adds a mapping and replaces older ones at its addresses.
    pub fn insert(&mut self, process: u32, address: u64, mapping: Mapping) {
        self.remove(process, address, mapping.end);
        self.processes.entry(process).or_default().insert(address, mapping);
    }

    /// Removes a range of addresses. Returns the mappings in it, cut to it.
    pub fn remove(&mut self, process: u32, first: u64, end: u64) -> Vec<(u64, Mapping)> {
        let Some(maps) = self.processes.get_mut(&process) else { return Vec::new() };
        let before = maps.range(..first).next_back().map(|(start, _)| *start);
        let within = maps.range(first..end.max(first)).map(|(start, _)| *start);
        let touched: Vec<u64> = before.into_iter().chain(within).collect();
        let mut removed = Vec::new();
        for start in touched {
            let whole = maps[&start];
            if whole.end <= first {
                continue;
            }
            maps.remove(&start);
            let part = |from: u64, end: u64| Mapping {
                end,
                offset: whole.offset + (from - start),
                ..whole
            };
            if start < first {
                maps.insert(start, part(start, first));
            }
            if whole.end > end {
                maps.insert(end, part(end, whole.end));
            }
            let from = start.max(first);
            removed.push((from, part(from, whole.end.min(end))));
        }
        removed
    }

    /// Moves mappings to another address, as `mremap` does. The last one is extended to the new
    /// length.
    pub fn rename(&mut self, process: u32, (from, bytes): (u64, u64), (to, to_bytes): (u64, u64)) {
        let moved = self.remove(process, from, from.saturating_add(bytes));
        self.remove(process, to, to.saturating_add(to_bytes));
        let count = moved.len();
        for (nth, (address, mapping)) in moved.into_iter().enumerate() {
            let at = to.saturating_add(address - from);
            let end = match nth + 1 == count {
                true => to.saturating_add(to_bytes),
                false => to.saturating_add(mapping.end - from),
            };
            if at < end {
                self.insert(process, at, Mapping { end, ..mapping });
            }
        }
    }

    /// Copies the mappings of a process to its child.
    pub fn copy(&mut self, from: u32, to: u32) {
        if let Some(maps) = self.processes.get(&from).cloned() {
            self.processes.insert(to, maps);
        }
    }

    /// Removes a process.
    pub fn forget(&mut self, process: u32) {
        self.processes.remove(&process);
    }

    /// Returns the mappings in a range of addresses, cut to it.
    pub fn within(&self, process: u32, first: u64, end: u64) -> Vec<(u64, Mapping)> {
        let Some(maps) = self.processes.get(&process) else { return Vec::new() };
        let before = maps.range(..first).next_back();
        let all = before.into_iter().chain(maps.range(first..end.max(first)));
        let cut = all.filter(|(_, mapping)| mapping.end > first).map(|(&start, mapping)| {
            let from = start.max(first);
            let offset = mapping.offset + (from - start);
            (from, Mapping { end: mapping.end.min(end), offset, ..*mapping })
        });
        cut.collect()
    }

    /// Sets the file of the mapping at an address.
    pub fn set_file(&mut self, process: u32, address: u64, inode: Inode, file: u32) {
        let Some(maps) = self.processes.get_mut(&process) else { return };
        if let Some((_, mapping)) = maps.range_mut(..=address).next_back() {
            (mapping.inode, mapping.file) = (inode, file);
        }
    }

    /// Returns the page of a file at an address.
    pub fn at(&self, process: u32, address: u64) -> Option<MappedPage> {
        let maps = self.processes.get(&process)?;
        let (&start, mapping) = maps.range(..=address).next_back()?;
        let Mapping { end, inode, offset, .. } = *mapping;
        if address >= end {
            return None;
        }
        let page_of = |address: u64| (offset + (address - start)) / PAGE_BYTES;
        let pages = PageRange::covering(offset, end - start);
        let page = page_of(address);
        let huge_start = address / HUGE_BYTES * HUGE_BYTES;
        let has_room = huge_start >= start && huge_start + HUGE_BYTES <= end;
        let is_aligned = has_room && (offset + (huge_start - start)).is_multiple_of(HUGE_BYTES);
        let huge = is_aligned.then(|| PageRange::new(page_of(huge_start), HUGE_BYTES / PAGE_BYTES));
        Some(MappedPage { process, address, inode, page, pages, huge })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INODE: Inode = Inode { device: 1, number: 2 };
    const MIB: u64 = 1 << 20;

    fn mapping(end: u64, offset: u64) -> Mapping {
        Mapping { end, inode: INODE, file: 0, offset }
    }

    #[test]
    fn removed_part_splits_a_mapping() {
        let mut maps = Maps::default();
        maps.insert(7, 0x10_0000, mapping(0x20_0000, 4096));
        maps.remove(7, 0x14_0000, 0x15_0000);
        let page = |maps: &Maps, address| maps.at(7, address).map(|place| place.page);
        assert_eq!(page(&maps, 0x10_0000), Some(1));
        assert_eq!(page(&maps, 0x13_ffff), Some(1 + 0x3f));
        assert_eq!(page(&maps, 0x14_0000), None);
        assert_eq!(page(&maps, 0x15_0000), Some(1 + 0x50));
        assert_eq!(page(&maps, 0x20_0000), None);
        // A second mapping replaces a part of it.
        maps.insert(7, 0x18_0000, mapping(0x19_0000, 0));
        assert_eq!(
            [0x17_f000, 0x18_0000, 0x19_0000].map(|at| page(&maps, at)),
            [Some(1 + 0x7f), Some(0), Some(1 + 0x90)]
        );
    }

    #[test]
    fn moved_and_copied_mappings_keep_their_offsets() {
        let mut maps = Maps::default();
        maps.insert(7, 4 * MIB, mapping(8 * MIB, 0));
        maps.copy(7, 8);
        maps.rename(7, (4 * MIB, 4 * MIB), (100 * MIB, 6 * MIB));
        assert_eq!(maps.at(7, 5 * MIB), None);
        assert_eq!(maps.at(7, 105 * MIB).map(|place| place.page), Some(5 * MIB / 4096));
        assert_eq!(maps.at(8, 5 * MIB).map(|place| place.page), Some(256));
    }

    #[test]
    fn huge_page_candidates_require_size_and_alignment() {
        let mut maps = Maps::default();
        maps.insert(7, 3 * MIB, mapping(9 * MIB, 3 * MIB));
        let huge = |address| maps.at(7, address).unwrap().huge;
        assert_eq!(huge(3 * MIB), None);
        assert_eq!(huge(5 * MIB), Some(PageRange::new(1024, 512)));
        assert_eq!(huge(8 * MIB), None);
        let mut shifted = Maps::default();
        shifted.insert(7, 4 * MIB, mapping(9 * MIB, 4096));
        assert_eq!(shifted.at(7, 5 * MIB).unwrap().huge, None);
    }
}
