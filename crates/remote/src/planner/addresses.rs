//! Address ranges of files on the planner's one device.
//!
//! The machine reads files of one device, so that each file needs sectors of its own there. No two
//! files touch: requests of two files are never merged. Ranges of closed files are used again.

use std::collections::BTreeMap;

use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS};

/// Maximum size of a file in bytes: 128 TiB. The planner has addresses for 32,768 such files, and
/// for proportionally more smaller ones.
pub const FILE_BYTES_MAX: u64 = 1 << 47;

/// Size of the device in sectors: its last byte still has a number of 63 bits.
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
        let end = start.checked_add(sectors).filter(|&end| end <= DEVICE_SECTORS)?;
        self.end_sector = end;
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
}
