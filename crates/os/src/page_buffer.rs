//! Page-aligned memory, as required by direct I/O.

use std::ops::{Deref, DerefMut};

/// Size of a page in bytes.
const PAGE_BYTES: usize = 4096;

/// Page-aligned bytes, zero at first. The system allocates each page at its first use.
#[derive(Debug)]
pub struct PageBuffer {
    /// The buffer, with unused bytes before and after it.
    memory: Vec<u8>,
    /// Index of the first page-aligned byte in the memory.
    start: usize,
    /// Length of the buffer.
    bytes: usize,
}

impl PageBuffer {
    /// Creates a buffer of `bytes` bytes, rounded up to whole pages.
    pub fn new(bytes: u64) -> PageBuffer {
        let bytes = (bytes as usize).next_multiple_of(PAGE_BYTES);
        // One page more, so that the memory contains an aligned buffer wherever it begins.
        let memory = vec![0; bytes + PAGE_BYTES];
        let start = memory.as_ptr().align_offset(PAGE_BYTES);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_begins_at_a_page_and_has_whole_pages() {
        for (bytes, expected_bytes) in [(0, 0), (1, 4096), (4096, 4096), (4097, 8192)] {
            let mut buffer = PageBuffer::new(bytes);
            assert_eq!((buffer.len(), buffer.as_ptr() as usize % 4096), (expected_bytes, 0));
            buffer.fill(1);
        }
    }
}
