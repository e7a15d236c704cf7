//! Address ranges of files on the planner's one device.
//!
//! The machine (page cache and scheduler of the core) reads files of one device, so that each file
//! needs sectors of its own there. No two files touch: requests of two files are never merged.
//! Ranges of closed files are used again.

use std::collections::BTreeMap;

use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS};

/// Maximum size of a file in bytes: 2^63 - 1, as on most systems. The planner has addresses for one
/// such file, or for 32,769 files of 128 TiB, and for proportionally more smaller ones.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Unit of the ranges of files that do not fit into it: 256 TiB, in pages.
const LARGE_PAGES: u64 = 1 << 36;

/// Size of the device in sectors: 2^63 bytes, and one unit for the unused page of the largest file.
pub(super) const DEVICE_SECTORS: u64 = (1 << 54) + LARGE_PAGES * PAGE_SECTORS;

/// Allocator of address ranges. Their sizes are powers of two up to [`LARGE_PAGES`], and multiples
/// of it beyond that.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    /// The first sector that was never used.
    end_sector: u64,
    /// First sectors of free ranges, by the size of the range in sectors.
    free: BTreeMap<u64, Vec<u64>>,
}

/// Size in sectors of the range for a file, with at least one unused page at its end.
fn range_sectors(bytes: u64) -> u64 {
    let pages = bytes.div_ceil(PAGE_BYTES) + 1;
    let rounded_pages = match pages <= LARGE_PAGES {
        true => pages.next_power_of_two(),
        false => pages.next_multiple_of(LARGE_PAGES),
    };
    rounded_pages * PAGE_SECTORS
}

impl Addresses {
    /// Returns the first sector for a file of `bytes` bytes; `None` if the device is full.
    pub(super) fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let sectors = range_sectors(bytes);
        if let Some(start) = self.free.get_mut(&sectors).and_then(Vec::pop) {
            return Some(start);
        }
        let start = self.end_sector;
        match start.checked_add(sectors).filter(|&end| end <= DEVICE_SECTORS) {
            Some(end) => {
                self.end_sector = end;
                Some(start)
            }
            // No sectors are left that were never used.
            None => self.split(sectors),
        }
    }

    /// Cuts a range of this size off the smallest larger free range, and returns its first sector;
    /// `None` if no free range is as large. The rest stays free: the further units of a range in
    /// one piece, and halves of a unit. Parts are not joined again.
    fn split(&mut self, sectors: u64) -> Option<u64> {
        let mut larger = self.free.range_mut(sectors..);
        let (mut size, start) = larger.find_map(|(&size, starts)| Some((size, starts.pop()?)))?;
        // Whole units only: half of an odd number of units is the size of no file's range.
        let used_units = sectors.max(LARGE_PAGES * PAGE_SECTORS);
        if size > used_units {
            self.free.entry(size - used_units).or_default().push(start + used_units);
            size = used_units;
        }
        while size > sectors {
            size /= 2;
            self.free.entry(size).or_default().push(start + size);
        }
        Some(start)
    }

    /// Frees the range of a file of `bytes` bytes.
    pub(super) fn free(&mut self, start_sector: u64, bytes: u64) {
        self.free.entry(range_sectors(bytes)).or_default().push(start_sector);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 128 TiB.
    const LARGE_BYTES: u64 = 1 << 47;

    /// Files of 0, 1 and 2 pages take ranges of 1, 2 and 4 pages (of 8 sectors each).
    #[test]
    fn files_never_touch_and_free_ranges_are_used_again() {
        let mut addresses = Addresses::default();
        let starts = [0, 4096, 4097].map(|bytes| addresses.allocate(bytes));
        assert_eq!(starts, [Some(0), Some(8), Some(24)]);
        addresses.free(8, 4096);
        assert_eq!([100, 100].map(|bytes| addresses.allocate(bytes)), [Some(8), Some(56)]);
    }

    /// Each file of 128 TiB takes 2^39 sectors because of the unused page. The device has 2^54, and
    /// 2^39 more.
    #[test]
    fn full_device_is_reported() {
        let mut addresses = Addresses::default();
        let mut starts = std::iter::from_fn(|| addresses.allocate(LARGE_BYTES));
        assert_eq!(starts.by_ref().count(), (1 << 15) + 1);
    }

    #[test]
    fn largest_file_fills_the_device_and_leaves_it_again() {
        let mut addresses = Addresses::default();
        assert_eq!(addresses.allocate(FILE_BYTES_MAX), Some(0));
        assert_eq!(addresses.allocate(0), None);
        addresses.free(0, FILE_BYTES_MAX);
        assert!(addresses.allocate(LARGE_BYTES).is_some());
        assert!(addresses.allocate(3 * LARGE_BYTES).is_some());
        assert_eq!(addresses.allocate(FILE_BYTES_MAX), None);
    }

    /// A file of 640 TiB takes 3 units of 256 TiB (2^39 sectors) because of the unused page. One of
    /// 384 TiB takes 2. Freed, the 3 units hold a file of one page, of 8 sectors, and another
    /// of 2 units, or 3 files of a unit each.
    #[test]
    fn range_of_three_units_is_cut_into_whole_units() {
        let mut addresses = Addresses::default();
        assert_eq!(addresses.allocate(5 * LARGE_BYTES), Some(0));
        while addresses.allocate(LARGE_BYTES).is_some() {}
        addresses.free(0, 5 * LARGE_BYTES);
        let files = [LARGE_BYTES; 4];
        let starts = files.map(|bytes| addresses.allocate(bytes));
        assert_eq!(starts, [Some(0), Some(1 << 39), Some(2 << 39), None]);
        let mut addresses = Addresses::default();
        assert_eq!(addresses.allocate(5 * LARGE_BYTES), Some(0));
        while addresses.allocate(LARGE_BYTES).is_some() {}
        addresses.free(0, 5 * LARGE_BYTES);
        let files = [0, 3 * LARGE_BYTES, 0, LARGE_BYTES];
        let starts = files.map(|bytes| addresses.allocate(bytes));
        assert_eq!(starts, [Some(0), Some(1 << 39), Some(8), None]);
    }

    /// The largest range is cut in halves down to one page, of 8 sectors. The other half of the
    /// last cut is the next range of a page.
    #[test]
    fn small_file_finds_place_in_a_free_large_range() {
        let mut addresses = Addresses::default();
        let large: Vec<u64> = std::iter::from_fn(|| addresses.allocate(LARGE_BYTES)).collect();
        assert_eq!(addresses.allocate(0), None);
        addresses.free(large[3], LARGE_BYTES);
        let starts = [0, 0, 1, 0].map(|bytes| addresses.allocate(bytes).unwrap() - large[3]);
        assert_eq!(starts, [0, 8, 16, 32]);
        assert_eq!(addresses.allocate(LARGE_BYTES), None);
        addresses.free(large[5], LARGE_BYTES);
        assert_eq!(addresses.allocate(LARGE_BYTES), Some(large[5]));
    }
}
