//! Page-aligned memory, as required by direct I/O and used for every implementation.

use std::ops::{Deref, DerefMut};

use readpath_core::unit::PAGE_BYTES;

/// Page-aligned bytes, zero at first. The system allocates each page at its first use.
#[derive(Debug)]
pub struct PageBuffer {
    memory: Vec<u8>,
    /// Index of the first page-aligned byte in the memory.
    start: usize,
    /// Length of the buffer.
    bytes: usize,
}

impl PageBuffer {
    /// Creates a buffer of `bytes` bytes, rounded up to whole pages.
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
