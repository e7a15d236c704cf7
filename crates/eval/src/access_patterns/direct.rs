//! `O_DIRECT` reads, with a bounce buffer for unaligned ones.
//!
//! Offset, size and memory must be multiples of the device's block size. A page satisfies this on
//! every device without larger blocks. An unaligned range is read with its surrounding pages into
//! an internal buffer and copied.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use readpath_core::unit::PAGE_BYTES;
use readpath_os::page_buffer::PageBuffer;

use super::ReadAt;

/// Buffer size of a stream in bytes, the usual size of reads without a given length.
const STREAM_BYTES: u64 = 64 << 10;

/// A file read with `O_DIRECT`.
#[derive(Debug)]
pub(super) struct DirectFile {
    /// The file, open with `O_DIRECT`.
    file: File,
    /// Length of the file when it was opened.
    bytes: u64,
}

impl DirectFile {
    /// Opens the file with `O_DIRECT`.
    ///
    /// # Errors
    /// The file cannot be opened with `O_DIRECT`.
    pub(super) fn open(path: &Path) -> io::Result<DirectFile> {
        let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path)?;
        let bytes = file.metadata()?.len();
        Ok(DirectFile { file, bytes })
    }

    /// Reads into page-aligned memory at a page-aligned offset. Returns the number of bytes, less
    /// at the end of the file.
    fn read_aligned(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(&self.file, buffer, offset)
    }
}

/// True if offset, length and address are multiples of a page, as `O_DIRECT` requires.
fn is_aligned(buffer: &[u8], offset: u64) -> bool {
    let page_bytes = PAGE_BYTES as usize;
    offset.is_multiple_of(PAGE_BYTES)
        && buffer.len().is_multiple_of(page_bytes)
        && buffer.as_ptr().addr().is_multiple_of(page_bytes)
}

impl ReadAt for DirectFile {
    /// Size of the file in bytes.
    fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads into the buffer at `offset`. An unaligned read goes through a buffer of whole pages,
    /// which each thread keeps at the size of its largest read. Returns the number of bytes, less
    /// at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if is_aligned(buffer, offset) {
            return self.read_aligned(buffer, offset);
        }
        thread_local! {
            // Empty until the first unaligned read of the thread.
            static BOUNCE_BUFFER: RefCell<PageBuffer> = RefCell::new(PageBuffer::new(0));
        }
        let first = offset / PAGE_BYTES * PAGE_BYTES;
        let end = (offset + buffer.len() as u64).next_multiple_of(PAGE_BYTES);
        let bytes = (end - first) as usize;
        BOUNCE_BUFFER.with_borrow_mut(|page_buffer| {
            if page_buffer.len() < bytes {
                *page_buffer = PageBuffer::new(bytes as u64);
            }
            let bytes_read = self.read_aligned(&mut page_buffer[..bytes], first)?;
            let skip = ((offset - first) as usize).min(bytes_read);
            let count = (bytes_read - skip).min(buffer.len());
            buffer[..count].copy_from_slice(&page_buffer[skip..skip + count]);
            Ok(count)
        })
    }
}

/// Buffered sequential file over `O_DIRECT`, like a `BufReader`. Aligned reads bypass the buffer.
#[derive(Debug)]
pub(super) struct DirectStream {
    /// The file to read.
    file: DirectFile,
    /// Offset of the next read in the file.
    position: u64,
    /// Memory for one direct read.
    buffer: PageBuffer,
    /// Range of the file in the buffer.
    buffered_range: Range<u64>,
}

impl DirectStream {
    /// Creates a stream at the start of the file.
    pub(super) fn over(file: DirectFile) -> DirectStream {
        DirectStream {
            file,
            position: 0,
            buffer: PageBuffer::new(STREAM_BYTES),
            buffered_range: 0..0,
        }
    }
}

impl Read for DirectStream {
    /// Reads from the position, directly if position, length and memory are aligned, else through
    /// the stream's own buffer. Bytes that are buffered already are returned first, without another
    /// read. Returns the number of bytes, 0 at the end of the file, and advances the position. It
    /// may be less than `buffer` holds before the end too. An unaligned read thus returns at most
    /// [`STREAM_BYTES`].
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        if !self.buffered_range.contains(&self.position) {
            if is_aligned(buffer, self.position) {
                count = self.file.read_aligned(buffer, self.position)?;
                self.position += count as u64;
                return Ok(count);
            }
            let first = self.position / PAGE_BYTES * PAGE_BYTES;
            let bytes_read = self.file.read_aligned(&mut self.buffer, first)?;
            self.buffered_range = first..first + bytes_read as u64;
        }
        // At the end of the file the buffer does not reach the position, and 0 is returned.
        if self.buffered_range.contains(&self.position) {
            let skip = (self.position - self.buffered_range.start) as usize;
            count = ((self.buffered_range.end - self.position) as usize).min(buffer.len());
            buffer[..count].copy_from_slice(&self.buffer[skip..skip + count]);
        }
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for DirectStream {
    /// Sets the position of the next read, and returns it. A position before the start of the file
    /// is the error `InvalidInput`.
    fn seek(&mut self, target: SeekFrom) -> io::Result<u64> {
        let position = match target {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(distance) => self.file.bytes.checked_add_signed(distance),
            SeekFrom::Current(distance) => self.position.checked_add_signed(distance),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
