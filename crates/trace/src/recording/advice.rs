//! Range of a recorded advice.

use super::AdviceGiven;

impl AdviceGiven {
    /// Returns the end of the range. A length of 0 means the rest of the file.
    pub fn end(&self) -> u64 {
        match self.bytes {
            0 => u64::MAX,
            bytes => self.offset.saturating_add(bytes),
        }
    }

    /// Returns the length of the range within a file of `file_bytes` bytes.
    pub fn bytes_within(&self, file_bytes: u64) -> u64 {
        self.end().min(file_bytes).saturating_sub(self.offset)
    }
}
