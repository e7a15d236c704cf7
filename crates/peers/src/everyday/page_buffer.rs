//! Memory that begins at a page: what direct I/O asks of a buffer, and what is given to every way.

use std::ops::{Deref, DerefMut};

use readpath_core::unit::PAGE_BYTES;

/// Zero bytes that begin at a page, taken from the system as they are touched.
#[derive(Debug)]
pub struct PageBuffer {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl PageBuffer {
    /// Room for `bytes` bytes, rounded up to whole pages.
    pub fn of(bytes: u64) -> PageBuffer {
        let (bytes, page) = (bytes.next_multiple_of(PAGE_BYTES) as usize, PAGE_BYTES as usize);
        let memory = vec![0; bytes + page];
        let start = memory.as_ptr().align_offset(page);
        PageBuffer { memory, start, bytes }
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.bytes]
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}

impl AsMut<[u8]> for PageBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}
