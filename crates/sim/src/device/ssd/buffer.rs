//! The write buffer: DRAM that takes writes at once and gives them to the
//! flash in units of one page on each plane of a die.
//!
//! A write is admitted when it fits, and answered then. Bytes fill the open
//! unit; each full unit is programmed, and leaves the buffer when its program
//! is done. What doesn't fill a unit stays until more comes. A read of a page
//! that is still here is answered from here.
//!
//! Which pages are here is remembered in a table of one place per page number
//! modulo its size: a newer page on the same place makes the older one look
//! programmed. The table has two places for each page of the buffer, and is
//! made when the first write comes. Which page it is stands apart from how long it stays, and in four
//! bytes: most reads find another one there, at a place that the processor seldom has near.

use readpath_core::unit::{PAGE_BYTES, PageRange};

/// A buffer of so many bytes.
#[derive(Debug)]
pub struct WriteBuffer {
    capacity_bytes: u64,
    unit_bytes: u64,
    used_bytes: u64,
    open_bytes: u64,
    /// Bytes admitted since the start; bytes before `admitted - used` have been programmed.
    admitted_bytes: u64,
    /// By page number modulo their length: which of the pages of that place it is; and the bytes
    /// admitted up to its end.
    recent: Vec<u32>,
    ends: Vec<u64>,
}

impl WriteBuffer {
    /// An empty buffer, which must hold a unit and the largest request.
    pub fn new(capacity_bytes: u64, unit_bytes: u64) -> WriteBuffer {
        WriteBuffer {
            capacity_bytes,
            unit_bytes,
            used_bytes: 0,
            open_bytes: 0,
            admitted_bytes: 0,
            recent: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Takes a write in: how many units are now full and to be programmed;
    /// `None` when there is no room yet.
    ///
    /// A page that is written in part takes the room, and the program, of a whole one.
    pub fn admit(&mut self, pages: PageRange) -> Option<u64> {
        let bytes = pages.count() * PAGE_BYTES;
        if self.used_bytes + bytes > self.capacity_bytes {
            return None;
        }
        if self.recent.is_empty() {
            let places = (2 * self.capacity_bytes / PAGE_BYTES).next_power_of_two();
            self.recent = vec![UNUSED_TAG; places as usize];
            self.ends = vec![0; places as usize];
        }
        self.used_bytes += bytes;
        self.admitted_bytes += bytes;
        for page in pages.pages() {
            let (place, which) = self.place(page);
            self.recent[place] = which;
            self.ends[place] = self.admitted_bytes;
        }
        self.open_bytes += bytes;
        let units = self.open_bytes / self.unit_bytes;
        self.open_bytes %= self.unit_bytes;
        Some(units)
    }

    /// Fills the open unit up with nothing; whether there was one, which is to be programmed.
    pub fn pad(&mut self) -> bool {
        if self.open_bytes == 0 {
            return false;
        }
        let bytes = self.unit_bytes - std::mem::take(&mut self.open_bytes);
        self.used_bytes += bytes;
        self.admitted_bytes += bytes;
        true
    }

    /// Bytes that one program takes.
    pub fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// Bytes taken in since the start.
    pub fn admitted_bytes(&self) -> u64 {
        self.admitted_bytes
    }

    /// Bytes of those that have been programmed.
    pub fn programmed_bytes(&self) -> u64 {
        self.admitted_bytes - self.used_bytes
    }

    /// A unit has been programmed.
    pub fn release(&mut self) {
        self.used_bytes -= self.unit_bytes;
    }

    /// Whether every page in `pages` waits here to be programmed.
    #[inline]
    pub fn holds(&self, pages: PageRange) -> bool {
        if self.used_bytes == 0 {
            return false;
        }
        let programmed = self.admitted_bytes - self.used_bytes;
        pages.pages().all(|page| {
            let (place, which) = self.place(page);
            self.recent[place] == which && self.ends[place] > programmed
        })
    }

    /// The place of a page, and which of the pages of that place it is: of a drive of 2^38 pages, the largest, less
    /// than 2^29, as the smallest buffer has 512 places.
    #[inline]
    fn place(&self, page: u64) -> (usize, u32) {
        let places = self.recent.len();
        (page as usize & (places - 1), (page >> places.trailing_zeros()) as u32)
    }
}

/// At a place where there was none yet.
const UNUSED_TAG: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_admitted_until_it_is_full_and_leave_in_units() {
        let mut buffer = WriteBuffer::new(64 << 10, 32 << 10);
        assert_eq!(buffer.admit(PageRange::new(0, 4)), Some(0)); // 16 KiB: half a unit.
        assert_eq!(buffer.admit(PageRange::new(4, 8)), Some(1)); // 48 KiB: one unit, half open.
        assert_eq!(buffer.admit(PageRange::new(12, 5)), None); // 20 KiB more than there is room for.
        assert!(buffer.holds(PageRange::new(0, 4)));
        assert!(!buffer.holds(PageRange::new(0, 13)));
        buffer.release();
        assert!(!buffer.holds(PageRange::new(0, 4)));
        assert_eq!(buffer.admit(PageRange::new(12, 5)), Some(1));
    }
}
