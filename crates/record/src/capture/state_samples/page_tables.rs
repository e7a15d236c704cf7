//! Pages of file mappings in a process's page table, without root.
//!
//! `/proc/PID/pagemap` shows which pages of a mapping are in memory and mapped. The program has
//! touched them, or the kernel mapped them together with a touched page: 16 pages at a time, or a
//! large folio. Any process may read it that may trace the other one.

use std::fs::File;

use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::super::event::Inode;
use super::super::names::{NamedFile, is_executable, mapped_flags, maps_text, parse_mapping};

/// Number of pages in a chunk, which is read at once from a page table. Chosen: an entry has 8
/// bytes, so 64 KiB at a time.
const CHUNK_PAGES: u64 = 8192;

/// A mapping of a file, and its mapped pages at the last look.
#[derive(Debug)]
pub(super) struct MappingPages {
    /// First address.
    pub address: u64,
    /// File of the mapping.
    pub inode: Inode,
    /// Its path.
    pub named: NamedFile,
    /// Pages of the file that the mapping contains.
    pub pages: PageRange,
    /// One flag per page: true if it was mapped at the last look.
    is_mapped: Vec<bool>,
    /// Number of mapped pages in each chunk.
    mapped_counts: Vec<u64>,
    /// True for each chunk in which pages were mapped between the last two looks at it.
    is_active: Vec<bool>,
}

/// Chunks of a look at a page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookScope {
    /// All chunks.
    All,
    /// Only chunks with new pages at the last look, and the chunk behind each.
    Active,
}

/// File mappings of a process, except programs, libraries and mappings of more than `pages_max`
/// pages. No page of them counts as mapped so far.
pub(super) fn file_mappings(process: u32, pages_max: u64) -> Vec<MappingPages> {
    let lines = maps_text(process).unwrap_or_default();
    let mappings: Vec<_> = lines
        .lines()
        .filter_map(|line| Some((is_executable(line), parse_mapping(line)?)))
        .collect();
    let is_program = |inode: Inode| {
        mappings
            .iter()
            .any(|(is_executable, (_, mapping, _))| *is_executable && mapping.inode == inode)
    };
    let data = mappings.iter().filter(|(_, (_, mapping, _))| !is_program(mapping.inode));
    data.filter_map(|(_, (address, mapping, named))| {
        let first = mapping.offset / PAGE_BYTES;
        let pages = PageRange::new(first, (mapping.end - address) / PAGE_BYTES);
        let is_small = pages.count() <= pages_max;
        is_small.then(|| MappingPages::new(*address, mapping.inode, named.clone(), pages))
    })
    .collect()
}

impl MappingPages {
    /// Creates the state of a mapping of these pages of a file, none of them mapped so far.
    fn new(address: u64, inode: Inode, named: NamedFile, pages: PageRange) -> MappingPages {
        let is_mapped = vec![false; pages.count() as usize];
        let mapped_counts = vec![0; pages.count().div_ceil(CHUNK_PAGES) as usize];
        let is_active = vec![false; mapped_counts.len()];
        MappingPages { address, inode, named, pages, is_mapped, mapped_counts, is_active }
    }

    /// Ranges of the file's pages that have been mapped since the last look at their chunks. A page
    /// counts once, even if it is unmapped and mapped again. Chunks in which all pages were mapped
    /// are thus not read again. Empty if the mapping or its process is gone.
    pub fn newly_mapped(&mut self, page_table: &File, scope: LookScope) -> Vec<PageRange> {
        let mut added: Vec<PageRange> = Vec::new();
        let was_active = self.is_active.clone();
        for (chunk, mapped_count) in self.mapped_counts.iter_mut().enumerate() {
            let first = chunk as u64 * CHUNK_PAGES;
            let count = CHUNK_PAGES.min(self.pages.count() - first);
            let is_behind_active = chunk > 0 && was_active[chunk - 1];
            let is_in_scope = scope == LookScope::All || was_active[chunk] || is_behind_active;
            if *mapped_count == count || !is_in_scope {
                continue;
            }
            let count_before = *mapped_count;
            let page_number = self.address / PAGE_BYTES + first;
            // The mapping or its process is gone if the table cannot be read.
            let Some(flags) = mapped_flags(page_table, page_number, count) else { break };
            for (index, is_mapped) in (first..).zip(flags) {
                let was_mapped = &mut self.is_mapped[index as usize];
                if !is_mapped || *was_mapped {
                    continue;
                }
                *was_mapped = true;
                *mapped_count += 1;
                add_page(&mut added, self.pages.first + index);
            }
            self.is_active[chunk] = *mapped_count > count_before;
        }
        added
    }
}

/// Returns true while a process uses the memory of this page table. False after the end of the
/// process, or after a call of execve, which gives the process new memory and another page table.
pub(super) fn has_memory(page_table: &File) -> bool {
    mapped_flags(page_table, 0, 1).is_some()
}

/// Adds a page behind the last range, or as a range of its own.
pub(super) fn add_page(ranges: &mut Vec<PageRange>, page: u64) {
    match ranges.last_mut().filter(|range| range.end == page) {
        Some(range) => range.end += 1,
        None => ranges.push(PageRange::new(page, 1)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    use super::super::super::names::open_page_table;
    use std::fs;

    use super::*;

    /// A file of 8 pages, mapped whole and with MADV_RANDOM: pages 1, 2 and 6 are touched, then
    /// page 3. Without the advice the kernel maps neighbours as well.
    #[test]
    fn touched_pages_of_a_mapping_are_found_once() {
        const PAGES: u64 = 8;
        let path =
            std::env::temp_dir().join(format!("readpath-page-tables-{}", std::process::id()));
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        file.write_all(&vec![7; (PAGES * PAGE_BYTES) as usize]).unwrap();
        let bytes = (PAGES * PAGE_BYTES) as usize;
        // SAFETY: a new mapping of a file that only this test has; it is unmapped below.
        let address = unsafe {
            let address =
                mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, &file, 0);
            let address = address.unwrap().cast::<u8>();
            libc::madvise(address.cast(), bytes, libc::MADV_RANDOM);
            address
        };
        // SAFETY: the page lies in the mapping.
        let touch =
            |page: u64| unsafe { address.add((page * PAGE_BYTES) as usize).read_volatile() };
        let process = std::process::id();
        let page_table = open_page_table(process).unwrap();
        let mut mappings = file_mappings(process, PAGES);
        mappings.retain(|mapping| mapping.address == address as u64);
        let [mapping] = &mut mappings[..] else { panic!("{mappings:?}") };
        assert_eq!(mapping.pages, PageRange::new(0, PAGES));
        assert_eq!([1, 2, 6].map(touch), [7; 3]);
        let added = mapping.newly_mapped(&page_table, LookScope::All);
        touch(3);
        let later = mapping.newly_mapped(&page_table, LookScope::All);
        // SAFETY: nothing refers to the mapping any more.
        unsafe { munmap(address.cast(), bytes) }.unwrap();
        // A large folio maps several pages at a touch.
        if added.iter().map(|range| range.count()).sum::<u64>() > 3 {
            return println!("skipped: this file system has large folios");
        }
        assert_eq!(added, [PageRange::new(1, 2), PageRange::new(6, 1)]);
        assert_eq!(later, [PageRange::new(3, 1)]);
    }
}
