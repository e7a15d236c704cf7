//! Sequential reader of a file, with the traits of `std::io`.

use std::io::{self, BufRead, Read, Seek, SeekFrom};

use readpath_core::unit::PAGE_BYTES;

use crate::file::{File, SEQUENTIAL_COPY_BYTES};
use crate::os::aligned_bytes::AlignedBytes;
use crate::page_cache::PageCache;
use crate::page_guard::PageGuard;
use crate::read_error::ReadError;
use crate::target::Coherence;

/// Reads a [`File`] from a position that advances.
///
/// As a [`BufRead`] it returns cached pages in place and pins one page at a time. Pages of the
/// kernel page cache are copied, 128 KiB at a time.
///
/// If [the kernel caches the pages](crate::PageCache::Kernel), small sequential reads are also
/// served from such a copy, as by a [`BufReader`](io::BufReader). The copy is at most as long as
/// the sequential run before it, or as the read if that is longer. A seek elsewhere drops it. Bytes
/// written after the copy was made are visible to [`File::read_at`], and to the reader past the end
/// of the copy. A path that [checks for changes](Coherence) after opening uses no such copies.
///
/// Bytes before an unreadable one are returned as by `read(2)`: the next read returns the error.
///
/// ```
/// use std::io::{BufRead, Seek, SeekFrom};
/// # let name = std::env::temp_dir().join(format!("readpath-doc-reader-{}", std::process::id()));
/// # std::fs::write(&name, "one\ntwo\nthree\n")?;
/// let path = readpath::ReadPath::builder().build()?;
/// let mut reader = path.open(&name)?.reader();
/// reader.seek(SeekFrom::Start(4))?;
/// let lines: Result<Vec<String>, _> = reader.lines().collect();
/// assert_eq!(lines?, ["two", "three"]);
/// # std::fs::remove_file(&name)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reader {
    file: File,
    /// File offset of the first byte of `page`, or of the next byte without a `page`.
    offset: u64,
    /// Page or copy that begins at `offset`, if any.
    page: Option<PageGuard>,
    /// Number of bytes of `page` that were consumed.
    consumed: usize,
    /// Bytes that [`Read::read`] has returned since the last seek: the length of the sequential run
    /// that may be continued. Bytes consumed through [`BufRead`] are not counted.
    run_bytes: u64,
    /// True if small reads may be served from a larger copy.
    uses_larger_copies: bool,
}

/// Largest read in bytes for which a new copy is made; a read with bytes in the present copy counts
/// without these. For larger reads the second copy costs more than the system calls saved. 256 MiB
/// resident, by 8, 16 and 32 KiB: 56, 51 and 49 ms direct; 49, 49 and 51 ms from copies.
const COPIED_READ_BYTES_MAX: usize = 16 << 10;

impl Reader {
    /// Creates a reader at the start of the file. Larger copies need the kernel page cache, and a
    /// path that does not check reads for a change of the file. The bytes of a copy are returned
    /// later without a check.
    pub(crate) fn new(file: File) -> Reader {
        let handle = file.handle();
        let uses_larger_copies = file.page_cache() == PageCache::Kernel
            && handle.is_fast_path_enabled()
            && handle.engine.coherence == Coherence::WhenOpened;
        Reader { file, offset: 0, page: None, consumed: 0, run_bytes: 0, uses_larger_copies }
    }

    /// The file of this reader.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Offset of the next byte.
    fn position(&self) -> u64 {
        self.offset + self.consumed as u64
    }

    /// Moves to an offset and drops the present page or copy.
    fn set_position(&mut self, position: u64) {
        self.offset = position;
        self.consumed = 0;
        self.page = None;
    }

    /// Bytes of the present page or copy that were not consumed.
    fn unconsumed(&self) -> &[u8] {
        self.page.as_ref().map_or(&[], |page| &page[self.consumed..])
    }

    /// Fetches the page at the present position, or a copy from the kernel page cache. The copy
    /// begins at the position. Its end is at most `copy_bytes_max`, in whole pages, from the start
    /// of the page. After a read error, only the bytes before the unreadable one are fetched. At
    /// the end of the file the fetched page is empty.
    ///
    /// # Errors
    /// The byte at the position cannot be read.
    fn fetch_page(&mut self, copy_bytes_max: u64) -> io::Result<()> {
        let position = self.position();
        // Reuse the memory of the last copy.
        let reusable = self.page.take().and_then(PageGuard::into_copy);
        self.set_position(position);
        let fetched = self.file.page_and_following(position, copy_bytes_max, reusable);
        self.page = Some(match fetched {
            Ok(page) => page,
            Err(error) => {
                let (bytes, reusable) = (readable_bytes(error, position)?, None);
                let mut copy = AlignedBytes::allocate(bytes, reusable);
                // The file may have become shorter since.
                let bytes = self.file.read_at(&mut copy, position)?;
                PageGuard::from_copy(AlignedBytes::allocate(bytes, Some(copy)))
            }
        });
        Ok(())
    }

    /// Copies unconsumed bytes of the present page or copy to the start of `buffer`, consumes them,
    /// and returns their number: 0 if none is left. Does not fetch.
    fn take_unconsumed(&mut self, buffer: &mut [u8]) -> usize {
        let unconsumed = self.unconsumed();
        let bytes = unconsumed.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&unconsumed[..bytes]);
        self.consumed += bytes;
        bytes
    }

    /// Reads from the file at the present position into `buffer`, without a copy in between. After
    /// success drops the present page or copy, also its unconsumed bytes: they are read again.
    /// Returns the number of bytes, which end at the first unreadable one. Fails if that is at the
    /// present position.
    fn read_into_caller(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let position = self.position();
        let bytes = match self.file.read_at(buffer, position) {
            Ok(bytes) => bytes,
            Err(error) => {
                let bytes = readable_bytes(error, position)?;
                self.file.read_at(&mut buffer[..bytes], position)?
            }
        };
        self.set_position(position + bytes as u64);
        Ok(bytes)
    }

    /// Continues a sequential run: fills `buffer` first from the rest of the copy. Small reads then
    /// come from a new copy as long as the run so far, at most [`SEQUENTIAL_COPY_BYTES`] but at
    /// least the rest of the read. Larger reads go directly to the file. Returns the number of
    /// bytes.
    fn read_sequential(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut bytes_done = self.take_unconsumed(buffer);
        while bytes_done < buffer.len() {
            let rest = &mut buffer[bytes_done..];
            let result = match rest.len() <= COPIED_READ_BYTES_MAX {
                true => {
                    // A copy's length counts from the start of the page.
                    let requested_bytes = self.position() % PAGE_BYTES + rest.len() as u64;
                    let copy_bytes = self.run_bytes.min(SEQUENTIAL_COPY_BYTES).max(requested_bytes);
                    self.fetch_page(copy_bytes).map(|()| self.take_unconsumed(rest))
                }
                false => self.read_into_caller(rest),
            };
            match result {
                // The end of the file.
                Ok(0) => break,
                Ok(bytes) => bytes_done += bytes,
                // Return the bytes read so far. A read that continues from there returns the error.
                Err(_) if bytes_done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(bytes_done)
    }
}

/// Returns the number of bytes from `position` to the first unreadable byte of a read that failed.
///
/// # Errors
/// The byte at `position` is unreadable, or the error names no byte: returns the error.
fn readable_bytes(error: io::Error, position: u64) -> io::Result<usize> {
    let first_unreadable = match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(ReadError::Device { offset, .. } | ReadError::Shrunk { offset }) => *offset,
        _ => return Err(error),
    };
    match first_unreadable.checked_sub(position) {
        Some(bytes) if bytes > 0 => Ok(bytes as usize),
        _ => Err(error),
    }
}

impl Read for Reader {
    /// Reads at the position and advances it. A read that continues a run may come from a copy. The
    /// first read after a seek goes to the file directly, because no run is known yet.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = match self.uses_larger_copies && self.run_bytes > 0 {
            true => self.read_sequential(buffer)?,
            false => self.read_into_caller(buffer)?,
        };
        self.run_bytes += bytes as u64;
        Ok(bytes)
    }
}

impl BufRead for Reader {
    /// Returns the unconsumed bytes. Fetches the next page or copy if there are none.
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.unconsumed().is_empty() {
            self.fetch_page(SEQUENTIAL_COPY_BYTES)?;
        }
        Ok(self.unconsumed())
    }

    /// Consumes `amount` bytes, but at most the rest of the present page or copy.
    fn consume(&mut self, amount: usize) {
        let page_bytes = self.page.as_ref().map_or(0, |page| page.len());
        self.consumed = self.consumed.saturating_add(amount).min(page_bytes);
    }
}

impl Seek for Reader {
    /// Moves the position, also past the end of the file. A move drops the present page or copy and
    /// ends the sequential run. A seek to the present position keeps them.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(distance) => self.file.len().checked_add_signed(distance),
            SeekFrom::Current(distance) => self.position().checked_add_signed(distance),
        };
        let position = position.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "a seek to before the start of the file")
        })?;
        if position != self.position() {
            self.set_position(position);
            self.run_bytes = 0;
        }
        Ok(position)
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        Ok(self.position())
    }
}
