//! Checksum of the bytes read, for comparison of the implementations.
//!
//! One byte per page enters the sum, so its cost is equal for all implementations and below the
//! cost of any read. The offset of each byte enters too, so a page in the wrong place changes the
//! sum. The order of the reads has no effect, so the sums of threads can be added.

use readpath_core::splitmix;
use readpath_core::unit::PAGE_BYTES;

/// Value of the sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum(pub u64);

impl Checksum {
    /// Adds the first byte of each page that begins in `bytes`, which were read at `offset`.
    pub fn add(&mut self, offset: u64, bytes: &[u8]) {
        let bytes_before_page = offset.next_multiple_of(PAGE_BYTES) - offset;
        let first_page = (offset + bytes_before_page) / PAGE_BYTES;
        let aligned_bytes = bytes.iter().skip(bytes_before_page as usize);
        let first_bytes = aligned_bytes.step_by(PAGE_BYTES as usize);
        for (page, byte) in (first_page..).zip(first_bytes) {
            self.add_byte(page, *byte);
        }
    }

    /// Adds the first and the last of `bytes`, for unaligned reads and reads smaller than a page.
    pub fn add_ends(&mut self, offset: u64, bytes: &[u8]) {
        if let (Some(first), Some(last)) = (bytes.first(), bytes.last()) {
            self.add_byte(offset, *first);
            self.add_byte(offset + bytes.len() as u64 - 1, *last);
        }
    }

    /// Adds another sum.
    pub fn add_all(&mut self, other: Checksum) {
        self.0 = self.0.wrapping_add(other.0);
    }

    /// Adds one byte at `position`: the number of a page, or an offset in the file.
    fn add_byte(&mut self, position: u64, byte: u8) {
        // One is added to the byte, so that a zero byte changes the sum too.
        // Odd factors are invertible modulo 2^64, so different bytes and positions stay different.
        let weight = (2 * position + 1).wrapping_mul(splitmix::STEP);
        self.0 = self.0.wrapping_add((u64::from(byte) + 1).wrapping_mul(weight));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the checksum of bytes that were read at `offset` at once.
    fn checksum_of(offset: u64, bytes: &[u8]) -> Checksum {
        let mut sum = Checksum::default();
        sum.add(offset, bytes);
        sum
    }

    /// Equal bytes are added at once, and in pieces from the last to the first.
    #[test]
    fn checksum_is_equal_for_pieces_of_any_order_and_size() {
        let bytes: Vec<u8> = (0..40_000u32).map(|offset| (offset / 77) as u8).collect();
        let whole = checksum_of(0, &bytes);
        for piece_bytes in [1, 100, 4096, 5000, 16_384] {
            let mut sum = Checksum::default();
            let pieces: Vec<&[u8]> = bytes.chunks(piece_bytes).collect();
            for (index, part) in pieces.iter().enumerate().rev() {
                sum.add((index * piece_bytes) as u64, part);
            }
            assert_eq!(sum, whole, "pieces of {piece_bytes}");
        }
    }

    #[test]
    fn checksum_changes_with_any_byte_or_offset() {
        let page = vec![7; 4096];
        assert_ne!(checksum_of(0, &page), checksum_of(4096, &page));
        assert_ne!(checksum_of(0, &page), checksum_of(0, &vec![8; 4096]));
        assert_eq!(checksum_of(1, &page[..4095]), Checksum::default(), "no page begins there");
        let ends = |bytes: &[u8]| {
            let mut sum = Checksum::default();
            sum.add_ends(10, bytes);
            sum
        };
        assert_ne!(ends(&[1, 2, 3]), ends(&[1, 2, 4]));
        assert_ne!(ends(&[1, 2, 3]), ends(&[0, 2, 3]));
    }
}
