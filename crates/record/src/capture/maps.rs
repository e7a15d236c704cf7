//! File mappings in the address spaces of recorded processes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

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
    /// The file, or [`UNKNOWN`].
    pub inode: Inode,
    /// Number of the file in the recording. Without meaning for an unknown file, and in a
    /// mapping that comes from `/proc`: [`Maps::set_file`] or the caller sets it later.
    pub file: u32,
    /// File offset of the first byte.
    pub offset: u64,
}

/// A page of a file at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MappedPage {
    /// Process of the mapping.
    pub process: u32,
    /// The address.
    pub address: u64,
    /// File of the mapping, or [`UNKNOWN`].
    pub inode: Inode,
    /// Page of the file at the address.
    pub page: u64,
    /// All pages of the file in this mapping.
    pub pages: PageRange,
    /// Pages of a possible huge page entry, if the mapping contains all of them.
    pub huge: Option<PageRange>,
}

/// Mappings by process and first address.
#[derive(Debug, Default)]
pub(super) struct Maps {
    /// Mappings of each process by their first addresses. They do not overlap.
    processes: HashMap<u32, BTreeMap<u64, Mapping>>,
    /// Numbers in the recording of the files that were mapped for execution.
    executables: BTreeSet<u32>,
}

impl Maps {
    /// Adds a file that was mapped for execution. Returns false if it was added before.
    pub fn add_executable(&mut self, file: u32) -> bool {
        self.executables.insert(file)
    }

    /// Adds a mapping from `address` on, and removes older ones at its addresses.
    pub fn insert(&mut self, process: u32, address: u64, mapping: Mapping) {
        self.remove(process, address, mapping.end);
        self.processes.entry(process).or_default().insert(address, mapping);
    }

    /// Removes the addresses from `first` to `end` (exclusive; at least `first`). Returns the
    /// removed parts of mappings with their addresses. Parts outside the range stay. An empty range
    /// within a mapping splits it at `first`, and returns an empty part of it.
    pub fn remove(&mut self, process: u32, first: u64, end: u64) -> Vec<(u64, Mapping)> {
        let Some(maps) = self.processes.get_mut(&process) else { return Vec::new() };
        // The mapping that begins before the range may reach into it.
        let previous = maps.range(..first).next_back().map(|(start, _)| *start);
        // A map panics on a range that ends before its start.
        let within = maps.range(first..end.max(first)).map(|(start, _)| *start);
        let candidates: Vec<u64> = previous.into_iter().chain(within).collect();
        let mut removed = Vec::new();
        for start in candidates {
            let mapping = maps[&start];
            if mapping.end <= first {
                continue;
            }
            maps.remove(&start);
            // The mapping from address `begin` to `end` only.
            let part = |begin: u64, end: u64| Mapping {
                end,
                offset: mapping.offset + (begin - start),
                ..mapping
            };
            if start < first {
                maps.insert(start, part(start, first));
            }
            if mapping.end > end {
                maps.insert(end, part(end, mapping.end));
            }
            let begin = start.max(first);
            removed.push((begin, part(begin, mapping.end.min(end))));
        }
        removed
    }

    /// Moves the mappings of a range of addresses, as `mremap` does with these `flags`: from the
    /// old address and length to the new ones. The last mapping is extended or cut to the new
    /// length. With the old length 0 or the flag `MREMAP_DONTUNMAP`, the old mapping stays.
    pub fn move_range(
        &mut self,
        process: u32,
        (first, bytes): (u64, u64),
        (new_first, new_bytes): (u64, u64),
        flags: u64,
    ) {
        let moved = match bytes == 0 || flags & libc::MREMAP_DONTUNMAP as u64 != 0 {
            // With the old length 0, only the start of the mapping in that range has an effect.
            true => self.mappings_within(process, first, first.saturating_add(bytes.max(1))),
            false => self.remove(process, first, first.saturating_add(bytes)),
        };
        self.remove(process, new_first, new_first.saturating_add(new_bytes));
        let count = moved.len();
        for (nth, (address, mapping)) in moved.into_iter().enumerate() {
            let new_address = new_first.saturating_add(address - first);
            let end = match nth + 1 == count {
                true => new_first.saturating_add(new_bytes),
                false => new_first.saturating_add(mapping.end - first),
            };
            // A shorter new length may leave nothing of the last mapping.
            if new_address < end {
                self.insert(process, new_address, Mapping { end, ..mapping });
            }
        }
    }

    /// Copies the mappings of process `parent` to its child, as `fork` does.
    pub fn copy_process(&mut self, parent: u32, child: u32) {
        if let Some(maps) = self.processes.get(&parent).cloned() {
            self.processes.insert(child, maps);
        }
    }

    /// Removes all mappings of a process.
    pub fn remove_process(&mut self, process: u32) {
        self.processes.remove(&process);
    }

    /// Returns the parts of mappings from address `first` to `end` (exclusive; at least `first`),
    /// with their addresses. An empty range within a mapping returns an empty part of it.
    pub fn mappings_within(&self, process: u32, first: u64, end: u64) -> Vec<(u64, Mapping)> {
        let Some(maps) = self.processes.get(&process) else { return Vec::new() };
        // The mapping that begins before the range may reach into it.
        let previous = maps.range(..first).next_back();
        let candidates = previous.into_iter().chain(maps.range(first..end.max(first)));
        let parts =
            candidates.filter(|(_, mapping)| mapping.end > first).map(|(&start, mapping)| {
                let begin = start.max(first);
                let offset = mapping.offset + (begin - start);
                (begin, Mapping { end: mapping.end.min(end), offset, ..*mapping })
            });
        parts.collect()
    }

    /// Sets the unknown file of the mapping at an address. No effect without a mapping of unknown
    /// file there: another thread may have removed or replaced it since the caller's look-up.
    pub fn set_file(&mut self, process: u32, address: u64, inode: Inode, file: u32) {
        let Some(maps) = self.processes.get_mut(&process) else { return };
        if let Some((_, mapping)) = maps.range_mut(..=address).next_back()
            && address < mapping.end
            && mapping.inode == UNKNOWN
        {
            (mapping.inode, mapping.file) = (inode, file);
        }
    }

    /// Returns the page of a file at an address, or `None` without a file mapping there.
    pub fn mapped_page_at(&self, process: u32, address: u64) -> Option<MappedPage> {
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
        // A huge page needs addresses and file offsets that are multiples of its size.
        let is_within_mapping = huge_start >= start && huge_start + HUGE_BYTES <= end;
        let is_aligned =
            is_within_mapping && (offset + (huge_start - start)).is_multiple_of(HUGE_BYTES);
        let huge = is_aligned.then(|| PageRange::new(page_of(huge_start), HUGE_BYTES / PAGE_BYTES));
        Some(MappedPage { process, address, inode, page, pages, huge })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INODE: Inode = Inode { device: 1, number: 2 };
    const MIB: u64 = 1 << 20;

    /// Mapping up to the address `end`. `offset`: file offset of its first byte.
    fn mapping(end: u64, offset: u64) -> Mapping {
        Mapping { end, inode: INODE, file: 0, offset }
    }

    /// By hand: 1 MiB is mapped from page 1 of the file on. Address `0x15_0000` is `0x50` pages on.
    #[test]
    fn removed_part_splits_a_mapping() {
        let mut maps = Maps::default();
        maps.insert(7, 0x10_0000, mapping(0x20_0000, 4096));
        maps.remove(7, 0x14_0000, 0x15_0000);
        let page = |maps: &Maps, address| {
            maps.mapped_page_at(7, address).map(|mapped_page| mapped_page.page)
        };
        assert_eq!(page(&maps, 0x10_0000), Some(1));
        assert_eq!(page(&maps, 0x13_ffff), Some(1 + 0x3f));
        assert_eq!(page(&maps, 0x14_0000), None);
        assert_eq!(page(&maps, 0x15_0000), Some(1 + 0x50));
        assert_eq!(page(&maps, 0x20_0000), None);
        // A second mapping replaces a part of it.
        maps.insert(7, 0x18_0000, mapping(0x19_0000, 0));
        assert_eq!(
            [0x17_f000, 0x18_0000, 0x19_0000].map(|address| page(&maps, address)),
            [Some(1 + 0x7f), Some(0), Some(1 + 0x90)]
        );
    }

    /// The mapping of unknown file is removed before its file is known. In its place lies nothing
    /// at first, and then a mapping of another file.
    #[test]
    fn file_of_a_removed_mapping_goes_to_no_other() {
        let mut maps = Maps::default();
        maps.insert(7, MIB, mapping(2 * MIB, 0));
        maps.insert(7, 4 * MIB, Mapping { inode: UNKNOWN, ..mapping(5 * MIB, 0) });
        maps.remove(7, 4 * MIB, 5 * MIB);
        let found = Inode { device: 1, number: 3 };
        maps.set_file(7, 4 * MIB, found, 9);
        maps.insert(7, 4 * MIB, mapping(5 * MIB, 0));
        maps.set_file(7, 4 * MIB, found, 9);
        for address in [MIB, 4 * MIB] {
            assert_eq!(maps.mapped_page_at(7, address).unwrap().inode, INODE);
        }
        maps.insert(7, 4 * MIB, Mapping { inode: UNKNOWN, ..mapping(5 * MIB, 0) });
        maps.set_file(7, 5 * MIB - 1, found, 9);
        assert_eq!(maps.mapped_page_at(7, 4 * MIB).unwrap().inode, found);
    }

    /// By hand: 4 MiB from the start of the file move from address 4 MiB to 100 MiB, and grow to
    /// 6 MiB. The child's copy stays.
    #[test]
    fn moved_and_copied_mappings_keep_their_offsets() {
        let mut maps = Maps::default();
        maps.insert(7, 4 * MIB, mapping(8 * MIB, 0));
        maps.copy_process(7, 8);
        maps.move_range(7, (4 * MIB, 4 * MIB), (100 * MIB, 6 * MIB), 0);
        assert_eq!(maps.mapped_page_at(7, 5 * MIB), None);
        assert_eq!(maps.mapped_page_at(7, 105 * MIB).map(|page| page.page), Some(5 * MIB / 4096));
        assert_eq!(maps.mapped_page_at(8, 5 * MIB).map(|page| page.page), Some(256));
    }

    /// The kernel's table of this process: `mremap` of a shared mapping copies it if the old length
    /// is 0, at the first page and within, and with `MREMAP_DONTUNMAP`.
    #[test]
    fn mapping_that_mremap_copies_stays() {
        let file = rustix::fs::memfd_create("maps", rustix::fs::MemfdFlags::empty()).unwrap();
        rustix::fs::ftruncate(&file, 8 * 4096).unwrap();
        let mapped_parts = || -> Vec<(u64, u64, u64)> {
            let text = std::fs::read_to_string("/proc/self/maps").unwrap();
            let of_file = text.lines().filter(|line| line.contains("/memfd:maps"));
            let parts = of_file.filter_map(super::super::names::parse_mapping);
            parts.map(|(first, mapping, _)| (first, mapping.end, mapping.offset)).collect()
        };
        for (page, bytes, new_bytes, flags) in [
            (0, 0, 0x4000, 0),
            (2, 0, 0x4000, 0),
            (0, 0x8000, 0x8000, libc::MREMAP_DONTUNMAP),
            (0, 0x8000, 0x8000, 0),
        ] {
            let (access, shared) = (libc::PROT_READ, libc::MAP_SHARED);
            let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
            // SAFETY: new memory at addresses that the kernel chooses. It is never accessed.
            let (first, moved) = unsafe {
                let null = std::ptr::null_mut();
                let mapped = libc::mmap(null, 0x8000, access, shared, descriptor, 0);
                let old = mapped.byte_add(page * 4096);
                let moved = libc::mremap(old, bytes, new_bytes, libc::MREMAP_MAYMOVE | flags, null);
                (mapped as u64, moved as u64)
            };
            assert_ne!(moved, u64::MAX, "{}", std::io::Error::last_os_error());
            let mut maps = Maps::default();
            maps.insert(7, first, mapping(first + 0x8000, 0));
            let old = (first + page as u64 * 4096, bytes as u64);
            maps.move_range(7, old, (moved, new_bytes as u64), flags as u64);
            let kernel_parts = mapped_parts();
            // The kernel may merge two parts, so they are compared page by page.
            let kernel_page = |address: u64| {
                let of_address = |part: &&(u64, u64, u64)| (part.0..part.1).contains(&address);
                let part = kernel_parts.iter().find(of_address);
                part.map(|(first, _, offset)| (offset + (address - first)) / 4096)
            };
            for address in (0..8).flat_map(|nth| [first + nth * 4096, moved + nth * 4096]) {
                let actual = maps.mapped_page_at(7, address).map(|mapped| mapped.page);
                assert_eq!(actual, kernel_page(address), "{bytes:#x}, {flags}: {address:#x}");
            }
            // SAFETY: all mappings of the file were made above and have no references.
            kernel_parts.iter().for_each(|&(first, end, _)| unsafe {
                libc::munmap(first as *mut libc::c_void, (end - first) as usize);
            });
        }
    }

    /// The mapping from 3 to 9 MiB contains whole huge pages from 4 to 8 MiB. A mapping from page 1
    /// of the file has none, because its offset is not aligned.
    #[test]
    fn huge_page_candidates_require_size_and_alignment() {
        let mut maps = Maps::default();
        maps.insert(7, 3 * MIB, mapping(9 * MIB, 3 * MIB));
        let huge = |address| maps.mapped_page_at(7, address).unwrap().huge;
        assert_eq!(huge(3 * MIB), None);
        assert_eq!(huge(5 * MIB), Some(PageRange::new(1024, 512)));
        assert_eq!(huge(8 * MIB), None);
        let mut shifted = Maps::default();
        shifted.insert(7, 4 * MIB, mapping(9 * MIB, 4096));
        assert_eq!(shifted.mapped_page_at(7, 5 * MIB).unwrap().huge, None);
    }
}
