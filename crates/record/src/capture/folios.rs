//! Large folios of the kernel page cache, from the events of their insertion.
//!
//! A *folio* is a group of contiguous pages that the kernel handles as one, of 2ⁿ pages with the
//! *order* n. A fault maps the whole folio of the page that it needs. This was measured on Linux
//! 6.18 with a file of 256 MiB touched in order: `/proc/PID/pagemap` was read after each fault.
//! Folios of order 6, 8 and 9 (64, 256 and 512 pages) are mapped by one fault each.
//! `filemap:mm_filemap_map_pages` names 16 pages for the first two. The third causes no event of
//! `filemap`. The field `order` of `filemap:mm_filemap_add_to_page_cache` is exact.
//!
//! Other sources were rejected. The kernel sets the access bits of all pages that it maps.
//! `cachestat(2)` reports nothing about mappings. `/proc/PID/pagemap` is exact, but ends with the
//! process. It is read only for pages added to the cache before the recording.

use std::collections::{BTreeMap, HashMap};

use readpath_core::unit::PageRange;

use super::event::Inode;

/// Number of pages that the kernel maps around a touched one (`fault_around_bytes`). Smaller folios
/// are not kept.
pub(super) const AROUND_PAGES: u64 = 16;

/// Maximum number of ranges of all files, chosen. All are discarded beyond it.
const RANGES_MAX: usize = 1 << 20;

/// Folios of all files.
#[derive(Debug, Default)]
pub(super) struct Folios {
    /// Folios of each file.
    files: HashMap<Inode, FileFolios>,
    /// Number of ranges in all files.
    range_count: usize,
}

/// Known folios of a file.
#[derive(Debug, Default)]
struct FileFolios {
    /// Folios of more than [`AROUND_PAGES`] pages: first page and end (exclusive).
    large: BTreeMap<u64, u64>,
    /// Pages of known folios, as ranges: first page and end (exclusive).
    known: BTreeMap<u64, u64>,
}

impl Folios {
    /// Records that a folio was added to the kernel page cache. It replaces older folios with its
    /// pages. All folios are forgotten first if there are `RANGES_MAX` ranges.
    pub fn insert(&mut self, inode: Inode, folio: PageRange) {
        if self.range_count >= RANGES_MAX {
            *self = Folios::default();
        }
        let file = self.files.entry(inode).or_default();
        let ranges_before = file.large.len() + file.known.len();
        remove_overlapping(&mut file.large, folio);
        if folio.count() > AROUND_PAGES {
            file.large.insert(folio.first, folio.end);
        }
        insert_merged(&mut file.known, folio);
        self.range_count =
            (self.range_count + file.large.len() + file.known.len()).saturating_sub(ranges_before);
    }

    /// Returns true when the folio of a page was recorded. It may have been evicted since.
    pub fn is_known(&self, inode: Inode, page: u64) -> bool {
        self.files.get(&inode).is_some_and(|file| range_containing(&file.known, page).is_some())
    }

    /// Extends a range by the known large folios at its ends. Returns an empty range, and a range
    /// of a file without known folios, unchanged.
    pub fn covering(&self, inode: Inode, range: PageRange) -> PageRange {
        let Some(file) = self.files.get(&inode).filter(|_| !range.is_empty()) else { return range };
        let first_folio = range_containing(&file.large, range.first);
        let last_folio = range_containing(&file.large, range.end - 1);
        PageRange {
            first: first_folio.map_or(range.first, |folio| folio.first),
            end: last_folio.map_or(range.end, |folio| folio.end),
        }
    }
}

/// Returns the range that contains a page, or `None`. `ranges`: first page and end of each. They
/// do not overlap.
fn range_containing(ranges: &BTreeMap<u64, u64>, page: u64) -> Option<PageRange> {
    let (&first, &end) = ranges.range(..=page).next_back()?;
    (page < end).then_some(PageRange { first, end })
}

/// Removes the ranges that share a page with `range`, as a whole. They do not overlap each other.
fn remove_overlapping(ranges: &mut BTreeMap<u64, u64>, range: PageRange) {
    while let Some((&first, &end)) = ranges.range(..range.end).next_back() {
        if end <= range.first {
            break;
        }
        ranges.remove(&first);
    }
}

/// Adds a range to disjoint ranges, and merges it with the ranges that overlap or touch it.
fn insert_merged(ranges: &mut BTreeMap<u64, u64>, range: PageRange) {
    let PageRange { mut first, mut end } = range;
    while let Some((&other, &other_end)) = ranges.range(..=end).next_back() {
        if other_end < first {
            break;
        }
        (first, end) = (first.min(other), end.max(other_end));
        ranges.remove(&other);
    }
    ranges.insert(first, end);
}

#[cfg(test)]
mod tests {
    use super::*;

    const INODE: Inode = Inode { device: 1, number: 2 };

    /// By hand: folios of 64 pages from 448, and of 512 pages from 512. A range that begins or ends
    /// in one is extended to its edge. The folio of four pages from 440 extends nothing.
    #[test]
    fn covering_range_extends_to_the_folios_at_its_ends() {
        let mut folios = Folios::default();
        folios.insert(INODE, PageRange::new(512, 512));
        folios.insert(INODE, PageRange::new(448, 64));
        folios.insert(INODE, PageRange::new(440, 4));
        let cover = |folios: &Folios, first, end| {
            let range = folios.covering(INODE, PageRange { first, end });
            (range.first, range.end)
        };
        assert_eq!(cover(&folios, 600, 616), (512, 1024));
        assert_eq!(cover(&folios, 500, 516), (448, 1024));
        assert_eq!(cover(&folios, 432, 448), (432, 448));
        assert!(folios.is_known(INODE, 443) && !folios.is_known(INODE, 444));
        // The folio was evicted, and its pages returned one by one.
        folios.insert(INODE, PageRange::new(700, 1));
        assert_eq!(cover(&folios, 688, 704), (688, 704));
    }
}
