//! Length of a regular file after a write of whole blocks.

use std::ops::Range;

use readpath_core::unit::PAGE_BYTES;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::{BatchWrites, Channel, RawFault};

impl Channel {
    /// Truncates a regular file that a write of whole blocks made longer than its content.
    ///
    /// The file had `bytes_before` bytes. The write of the bytes `requested` moved the first
    /// `bytes_done`. Does nothing to a block device, or if the content fills the blocks of the
    /// write. Bytes of another writer stay if they lie before `requested` or if the file ends
    /// beyond these blocks. The file stays longer than its content if a batch writes beyond the
    /// content.
    ///
    /// # Errors
    /// The length cannot be read or set.
    pub(super) fn restore_length(
        &self,
        bytes_before: u64,
        requested: &Range<u64>,
        bytes_done: u64,
        batch_writes: &BatchWrites,
    ) -> Result<(), RawFault> {
        let covered_end = requested.end.next_multiple_of(self.block_bytes());
        // Without a written byte the content does not reach to the start of the write.
        let written_end = if bytes_done == 0 { 0 } else { requested.start + bytes_done };
        let content_end = bytes_before.max(written_end);
        if self.target().is_block_device() || content_end >= covered_end {
            return Ok(());
        }
        // From here on no batch's write beyond the content begins, until the file is truncated.
        let Some(_truncation) = batch_writes.begin_truncation(content_end) else { return Ok(()) };
        // Each block of the write ends beyond `requested.start`. A file that is not longer than
        // that, or longer than `covered_end`, has its length from another writer: keep it.
        let extended = content_end.max(requested.start) + 1..=covered_end;
        if !extended.contains(&self.bytes()?) {
            return Ok(());
        }
        let length_bytes = match self.may_have_data(content_end..requested.start) {
            // By another writer, during the write. Its end is unknown.
            true => requested.start,
            false => content_end,
        };
        rustix::fs::ftruncate(self.target(), length_bytes)
            .map_err(|errno| RawFault::Length { errno: errno.raw_os_error() })
    }

    /// True if bytes were written in `range`, from the old end of the file to a later offset. The
    /// page of the old end is not checked, because it has data in any case. File systems that do
    /// not report holes have data everywhere.
    fn may_have_data(&self, range: Range<u64>) -> bool {
        let start = range.start.next_multiple_of(PAGE_BYTES);
        if start >= range.end {
            return false;
        }
        match rustix::fs::seek(self.target(), SeekFrom::Data(start)) {
            Ok(data_start) => data_start < range.end,
            // ENXIO: only a hole follows (lseek(2)). After another error keep the bytes.
            Err(errno) => errno != Errno::NXIO,
        }
    }
}
