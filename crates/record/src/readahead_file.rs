//! A file whose pages are brought into the kernel page cache by `readahead(2)`.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use readpath_core::unit::{PAGE_BYTES, PageRange};
use readpath_os::page_cache;
use readpath_os::queue::QueueLimits;
use rustix::io::ReadWriteFlags;

/// Bytes that the kernel reads ahead for one call on a device with its default readahead window.
pub(crate) const CALL_BYTES_MIN: u64 = 128 << 10;

/// A regular file, opened for reading.
#[derive(Debug)]
pub(crate) struct ReadaheadFile {
    /// The open file.
    file: File,
    /// Length of the file.
    bytes: u64,
    /// Largest range in bytes that the kernel reads ahead for one call.
    call_bytes: u64,
    /// True if the kernel counts the resident pages of the file: it is not on overlayfs.
    has_page_counts: bool,
}

impl ReadaheadFile {
    /// Opens the regular file at a path. Returns `None` if it is no regular file, or if `is_wanted`
    /// rejects its attributes.
    ///
    /// # Errors
    /// The file cannot be opened or examined.
    pub fn open(
        path: &Path,
        is_wanted: impl Fn(&Metadata) -> bool,
    ) -> io::Result<Option<ReadaheadFile>> {
        let is_accepted = |metadata: &Metadata| metadata.is_file() && is_wanted(metadata);
        if !is_accepted(&fs::metadata(path)?) {
            return Ok(None);
        }
        // A pipe may have replaced the file: the open must not wait for a writer.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        if !is_accepted(&metadata) {
            return Ok(None);
        }
        // One call covers a short file. The limits of its device would take five files of sysfs.
        let is_short = metadata.len() <= CALL_BYTES_MIN;
        let queue = if is_short { None } else { QueueLimits::from_metadata(&metadata) };
        let call_bytes =
            queue.map_or(0, |queue| queue.read_ahead_bytes.max(queue.request_bytes_max));
        let call_bytes = call_bytes.max(CALL_BYTES_MIN);
        let has_page_counts = !page_cache::is_on_overlay(&file);
        Ok(Some(ReadaheadFile { file, bytes: metadata.len(), call_bytes, has_page_counts }))
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Length of the file in pages.
    pub fn pages(&self) -> u64 {
        self.bytes.div_ceil(PAGE_BYTES)
    }

    /// Number of resident pages in a range. `None` where the kernel reports no number.
    pub fn cached_pages(&self, range: PageRange) -> Option<u64> {
        // A length of 0 would mean the rest of the file.
        match range.is_empty() {
            true => Some(0),
            false if !self.has_page_counts => None,
            false => {
                let (offset, bytes) = (range.first * PAGE_BYTES, range.count() * PAGE_BYTES);
                page_cache::resident_pages(&self.file, offset, bytes).ok()
            }
        }
    }

    /// Returns true if the data of a page are in memory, by a read of its first byte that does not
    /// wait. `None` if the file system does not support this, after an error, or beyond the end.
    pub fn is_read(&self, page: u64) -> Option<bool> {
        let mut byte = [0];
        let bytes = &mut [io::IoSliceMut::new(&mut byte)];
        match rustix::io::preadv2(&self.file, bytes, page * PAGE_BYTES, ReadWriteFlags::NOWAIT) {
            Ok(read_bytes) => (read_bytes > 0).then_some(true),
            Err(rustix::io::Errno::AGAIN) => Some(false),
            Err(_) => None,
        }
    }

    /// Starts to read these pages into the kernel page cache, without a wait for them. Returns
    /// false if the kernel refuses.
    pub fn read_ahead(&self, range: PageRange) -> bool {
        for_each_call(range, self.call_bytes, |offset, bytes| {
            page_cache::read_ahead(&self.file, offset, bytes as usize).is_ok()
        })
    }
}

/// Splits a range into parts of at most `call_bytes` bytes, and calls `advise` with the offset and
/// the bytes of each. Ends with the first part for which `advise` returns false, and returns false
/// then.
pub(crate) fn for_each_call(
    range: PageRange,
    call_bytes: u64,
    mut advise: impl FnMut(u64, u64) -> bool,
) -> bool {
    let (mut offset, end) = (range.first * PAGE_BYTES, range.end * PAGE_BYTES);
    while offset < end {
        let bytes = call_bytes.min(end - offset);
        if !advise(offset, bytes) {
            return false;
        }
        offset += bytes;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: 130 pages from the third on, in calls of 64 pages. The second walk ends at its
    /// second call, which fails.
    #[test]
    fn range_is_advised_in_calls_that_the_kernel_does_not_cut() {
        let range = PageRange::new(2, 130);
        let mut calls = Vec::new();
        assert!(for_each_call(range, 64 * PAGE_BYTES, |offset, bytes| {
            calls.push((offset / PAGE_BYTES, bytes / PAGE_BYTES));
            true
        }));
        assert_eq!(calls, [(2, 64), (66, 64), (130, 2)]);
        let mut count = 0;
        assert!(!for_each_call(range, 64 * PAGE_BYTES, |_, _| {
            count += 1;
            count < 2
        }));
        assert_eq!(count, 2);
    }
}
