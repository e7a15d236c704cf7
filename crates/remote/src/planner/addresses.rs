//! Address ranges of files on the planner's one device.
//!
//! The machine reads files of one device, so that each file needs sectors of its own there. No two
//! files touch: requests of two files are never merged. Ranges of closed files are used again.

use std::collections::BTreeMap;

use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS};

/// Maximum size of a file in bytes: 128 TiB. The planner has addresses for 32,768 such files, and
/// for proportionally more smaller ones.
pub const FILE_BYTES_MAX: u64 = 1 << 47;

/// Size of the device in sectors: 2^63 bytes.
pub(super) const DEVICE_SECTORS: u64 = 1 << 54;

/// Allocator of address ranges, in sizes that are powers of two.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    /// The first sector that was never used.
    end_sector: u64,
    /// First sectors of free ranges, by the size of the range in sectors.
    free: BTreeMap<u64, Vec<u64>>,
}

/// Size in sectors of the range for a file, with at least one unused page at its end.
fn range_sectors(bytes: u64) -> u64 {
    (bytes.div_ceil(PAGE_BYTES) + 1).next_power_of_two() * PAGE_SECTORS
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
            None => self.split(sectors),
        }
    }

    /// Cuts a range of this size off the smallest larger free range. The rest stays free, in halves
    /// of the ranges before. Parts are not joined again.
    fn split(&mut self, sectors: u64) -> Option<u64> {
        let mut larger = self.free.range_mut(sectors..);
        let (size, start) = larger.find_map(|(&size, starts)| Some((size, starts.pop()?)))?;
        let mut rest = size / 2;
        while rest >= sectors {
            self.free.entry(rest).or_default().push(start + rest);
            rest /= 2;
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

    /// Files of 0, 1 and 2 pages take ranges of 1, 2 and 4 pages (of 8 sectors each).
    #[test]
    fn files_never_touch_and_free_ranges_are_used_again() {
        let mut addresses = Addresses::default();
        let starts = [0, 4096, 4097].map(|bytes| addresses.allocate(bytes));
        assert_eq!(starts, [Some(0), Some(8), Some(24)]);
        addresses.free(8, 4096);
        assert_eq!([100, 100].map(|bytes| addresses.allocate(bytes)), [Some(8), Some(56)]);
    }

    #[test]
    fn full_device_is_reported() {
        let mut addresses = Addresses::default();
        let mut starts = std::iter::from_fn(|| addresses.allocate(FILE_BYTES_MAX));
        // Each file takes 2^39 sectors of the 2^54, because of the unused page.
        assert_eq!(starts.by_ref().count(), 1 << 15);
    }

    /// The largest range is cut in halves down to one page, of 8 sectors. The other half of the
    /// last cut is the next range of a page.
    #[test]
    fn small_file_finds_place_in_a_free_large_range() {
        let mut addresses = Addresses::default();
        let large: Vec<u64> = std::iter::from_fn(|| addresses.allocate(FILE_BYTES_MAX)).collect();
        assert_eq!(addresses.allocate(0), None);
        addresses.free(large[3], FILE_BYTES_MAX);
        let starts = [0, 0, 1, 0].map(|bytes| addresses.allocate(bytes).unwrap() - large[3]);
        assert_eq!(starts, [0, 8, 16, 32]);
        assert_eq!(addresses.allocate(FILE_BYTES_MAX), None);
        addresses.free(large[5], FILE_BYTES_MAX);
        assert_eq!(addresses.allocate(FILE_BYTES_MAX), Some(large[5]));
    }
}
