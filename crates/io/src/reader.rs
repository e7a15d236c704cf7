//! Sequential reader of a file, with the traits of `std::io`.

use std::io::{self, BufRead, Read, Seek, SeekFrom};

use readpath_core::unit::PAGE_BYTES;

use crate::file::{COPIED_BYTES, File};
use crate::page_guard::PageGuard;
use crate::path::Coherence;

/// Reads a [`File`] from a position that advances.
///
/// As a [`BufRead`] it returns cached pages in place and pins one page at a time. Pages of the
/// kernel page cache are copied, 128 KiB at a time.
///
/// If [the kernel caches the pages](File::kernel_keeps), small sequential reads are also served
/// from such a copy, as by a [`BufReader`](io::BufReader). The copy is at most as long as the
/// sequential run before it, and a seek elsewhere drops it. Bytes written after the copy was made
/// are visible to [`File::read_at`], and to the reader past the end of the copy. A path that
/// [checks for changes](Coherence) after opening uses no such copies.
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
    offset: u64,
    /// Page or copy that begins at `offset`, if any.
    page: Option<PageGuard>,
    /// Number of bytes of `page` that were consumed.
    consumed: usize,
    /// Length of the present sequential run in bytes.
    in_a_row: u64,
    /// True if small reads may be served from a larger copy.
    copies_ahead: bool,
}

/// Largest read in bytes that is served from a copy. For larger ones the second copy costs more
/// than the system calls saved. 256 MiB resident, by 8, 16 and 32 KiB: 56, 51 and 49 ms direct; 49,
/// 49 and 51 ms from copies.
const SMALL_BYTES: usize = 16 << 10;

impl Reader {
    pub(crate) fn new(file: File) -> Reader {
        let handle = file.handle();
        let copies_ahead = file.kernel_keeps()
            && handle.lends()
            && handle.engine.coherence == Coherence::WhenOpened;
        Reader { file, offset: 0, page: None, consumed: 0, in_a_row: 0, copies_ahead }
    }

    /// The file of this reader.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Offset of the next byte.
    fn place(&self) -> u64 {
        self.offset + self.consumed as u64
    }

    /// Moves to an offset and drops the present page or copy.
    fn go_to(&mut self, place: u64) {
        self.offset = place;
        self.consumed = 0;
        self.page = None;
    }

    /// Bytes of the present page or copy that were not consumed.
    fn lent(&self) -> &[u8] {
        self.page.as_ref().map_or(&[], |page| &page[self.consumed..])
    }

    /// Fetches the page at the present position, or a copy of up to `bytes` bytes from the kernel
    /// page cache.
    fn lend(&mut self, bytes: u64) -> io::Result<()> {
        let place = self.place();
        // Reuse the memory of the last copy.
        let spare = self.page.take().and_then(PageGuard::into_copy);
        self.go_to(place);
        self.page = Some(self.file.page_and_on(place, bytes, spare)?);
        Ok(())
    }

    /// Consumes bytes of the present page or copy into `buffer` and returns their number.
    fn take_lent(&mut self, buffer: &mut [u8]) -> usize {
        let lent = self.lent();
        let bytes = lent.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&lent[..bytes]);
        self.consumed += bytes;
        bytes
    }

    /// Reads from the file into `buffer`, without a copy in between.
    fn read_straight(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let place = self.place();
        let bytes = self.file.read_at(buffer, place)?;
        self.go_to(place + bytes as u64);
        Ok(bytes)
    }

    /// Continues a sequential run: first the rest of the copy. Small reads then come from a new
    /// copy as long as the run so far, larger ones go directly to the file.
    fn read_on(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = self.take_lent(buffer);
        while done < buffer.len() {
            let rest = &mut buffer[done..];
            let read = match rest.len() <= SMALL_BYTES {
                true => {
                    // `bytes` counts from the start of the page, and the copy begins at the
                    // position.
                    let asked = self.place() % PAGE_BYTES + rest.len() as u64;
                    let bytes = self.in_a_row.min(COPIED_BYTES).max(asked);
                    self.lend(bytes).map(|()| self.take_lent(rest))
                }
                false => self.read_straight(rest),
            };
            match read {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                // Return the bytes read so far. A read that continues from there returns the error.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = match self.copies_ahead && self.in_a_row > 0 {
            true => self.read_on(buffer)?,
            false => self.read_straight(buffer)?,
        };
        self.in_a_row += bytes as u64;
        Ok(bytes)
    }
}

impl BufRead for Reader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.lent().is_empty() {
            self.lend(COPIED_BYTES)?;
        }
        Ok(self.lent())
    }

    fn consume(&mut self, amount: usize) {
        // Not more than the present page or copy holds.
        let lent = self.page.as_ref().map_or(0, |page| page.len());
        self.consumed = self.consumed.saturating_add(amount).min(lent);
    }
}

impl Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let place = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(distance) => self.file.len().checked_add_signed(distance),
            SeekFrom::Current(distance) => self.place().checked_add_signed(distance),
        };
        let place = place.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "a seek to before the start of the file")
        })?;
        if place != self.place() {
            self.go_to(place);
            self.in_a_row = 0;
        }
        Ok(place)
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        Ok(self.place())
    }
}
