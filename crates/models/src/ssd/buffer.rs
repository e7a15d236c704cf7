//! The write buffer: DRAM that completes writes early and passes them to the flash in program units
//! of one page on each plane of a die.
//!
//! A write is admitted and completed when it fits. Its bytes fill the open unit. Each full unit is
//! programmed and leaves the buffer at the end of its program. A partial unit stays until more data
//! arrives. Reads of buffered pages are served from the buffer.
//!
//! A table records the buffered pages. Its index is the page number modulo its size, so a newer
//! page can hide an older page with the same index. The older page then counts as programmed. The
//! table has two entries per page of the buffer and is allocated by the first write. It is split
//! into two arrays: most look-ups find a different page, and the 4-byte page tags miss the
//! processor cache less often.

use readpath_core::unit::{PAGE_BYTES, PageRange};

/// A write buffer of fixed size.
#[derive(Debug)]
pub struct WriteBuffer {
    /// Size of the buffer.
    capacity_bytes: u64,
    /// Bytes of one program.
    unit_bytes: u64,
    /// Bytes in the buffer.
    used_bytes: u64,
    /// Bytes in the open unit.
    open_bytes: u64,
    /// Bytes admitted since the start. All but the last `used_bytes` of them have been programmed.
    admitted_bytes: u64,
    /// Page tags by index: the page number divided by the table size.
    tags: Vec<u32>,
    /// Value of `admitted_bytes` after the write that brought the page with that index. All pages
    /// of a write thus count as buffered until its last byte is programmed.
    end_bytes: Vec<u64>,
}

impl WriteBuffer {
    /// Creates an empty buffer. It must have room for one unit and the largest request together.
    pub fn new(capacity_bytes: u64, unit_bytes: u64) -> WriteBuffer {
        WriteBuffer {
            capacity_bytes,
            unit_bytes,
            used_bytes: 0,
            open_bytes: 0,
            admitted_bytes: 0,
            tags: Vec::new(),
            end_bytes: Vec::new(),
        }
    }

    /// Admits a write of these pages. Returns the number of units that are now full and must be
    /// programmed, or `None` if there is no room.
    ///
    /// A partially written page takes the room, and the program, of a whole page.
    pub fn admit(&mut self, pages: PageRange) -> Option<u64> {
        let bytes = pages.count() * PAGE_BYTES;
        if self.used_bytes + bytes > self.capacity_bytes {
            return None;
        }
        if self.tags.is_empty() {
            let table_entries = (2 * self.capacity_bytes / PAGE_BYTES).next_power_of_two();
            self.tags = vec![UNUSED_TAG; table_entries as usize];
            self.end_bytes = vec![0; table_entries as usize];
        }
        self.used_bytes += bytes;
        self.admitted_bytes += bytes;
        for page in pages.pages() {
            let (index, tag) = self.index_and_tag(page);
            self.tags[index] = tag;
            self.end_bytes[index] = self.admitted_bytes;
        }
        self.open_bytes += bytes;
        let units = self.open_bytes / self.unit_bytes;
        self.open_bytes %= self.unit_bytes;
        Some(units)
    }

    /// Pads the open unit to its full size. Returns true if there was one, which the caller then
    /// programs. The padding may exceed the capacity, because a flush does not wait for room.
    pub fn pad_open_unit(&mut self) -> bool {
        if self.open_bytes == 0 {
            return false;
        }
        let bytes = self.unit_bytes - std::mem::take(&mut self.open_bytes);
        self.used_bytes += bytes;
        self.admitted_bytes += bytes;
        true
    }

    /// Bytes of one program.
    pub fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// Number of bytes admitted since the start, with padding.
    pub fn admitted_bytes(&self) -> u64 {
        self.admitted_bytes
    }

    /// Number of admitted bytes that have been programmed.
    pub fn programmed_bytes(&self) -> u64 {
        self.admitted_bytes - self.used_bytes
    }

    /// Removes the oldest unit, which has been programmed: its bytes become free. Dies can finish
    /// in another order; the model counts bytes and takes each end for the oldest unit's.
    pub fn release_unit(&mut self) {
        self.used_bytes -= self.unit_bytes;
    }

    /// Returns true if all of `pages` are in the buffer.
    #[inline]
    pub fn holds(&self, pages: PageRange) -> bool {
        if self.used_bytes == 0 {
            return false;
        }
        let programmed_bytes = self.admitted_bytes - self.used_bytes;
        pages.pages().all(|page| {
            let (index, tag) = self.index_and_tag(page);
            self.tags[index] == tag && self.end_bytes[index] > programmed_bytes
        })
    }

    /// Returns the table index and the tag of a page. The largest drive has 2^38 pages and the
    /// smallest table 512 entries, so tags are below 2^29.
    #[inline]
    fn index_and_tag(&self, page: u64) -> (usize, u32) {
        let table_entries = self.tags.len();
        (page as usize & (table_entries - 1), (page >> table_entries.trailing_zeros()) as u32)
    }
}

/// Tag of a table entry without a page. It exceeds every tag of a page.
const UNUSED_TAG: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_admits_writes_until_full_and_releases_whole_units() {
        let (capacity_bytes, unit_bytes) = (64 << 10, 32 << 10);
        let mut buffer = WriteBuffer::new(capacity_bytes, unit_bytes);
        assert_eq!(buffer.admit(PageRange::new(0, 4)), Some(0)); // 16 KiB: half a unit.
        // 32 KiB more, 48 KiB in all: one unit, and half an open one.
        assert_eq!(buffer.admit(PageRange::new(4, 8)), Some(1));
        // 20 KiB do not fit into the remaining 16 KiB.
        assert_eq!(buffer.admit(PageRange::new(12, 5)), None);
        assert!(buffer.holds(PageRange::new(0, 4)));
        assert!(!buffer.holds(PageRange::new(0, 13)));
        // The oldest unit, pages 0 to 7, leaves the buffer.
        buffer.release_unit();
        assert!(!buffer.holds(PageRange::new(0, 4)));
        assert_eq!(buffer.admit(PageRange::new(12, 5)), Some(1));
    }
}
