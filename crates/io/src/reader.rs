//! A file with a place of its own: `std::io`'s traits.

use std::io::{self, BufRead, Read, Seek, SeekFrom};

use readpath_core::unit::PAGE_BYTES;

use crate::file::{COPIED_BYTES, File};
use crate::guard::PageGuard;
use crate::path::Coherence;

/// Reads a [`File`] from a place that moves on.
///
/// As a [`BufRead`] it lends the cached pages themselves, one at a time, and so
/// holds one page; what the kernel's cache has it copies from there, 128 KiB at a time.
///
/// Where the kernel [keeps the pages](File::kernel_keeps), small reads that go on from each other are given out of such a copy too,
/// as a [`BufReader`](io::BufReader) does it: no longer than what was read in a row before it, and given up by a seek elsewhere. What is
/// written to the bytes of a copy after it was made is seen by [`File::read_at`], and by the reader once it has passed
/// them; where a path [looks for changes](Coherence) after it was opened, no read is given so.
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
    /// The bytes from `offset` on, as far as they were lent.
    page: Option<PageGuard>,
    /// How many of them were consumed.
    consumed: usize,
    /// How many bytes were read since it went to another place.
    in_a_row: u64,
    /// Whether small reads may be given out of a copy of more.
    copies_ahead: bool,
}

/// Reads of more bytes are made straight into the caller's memory: to copy twice costs more than the calls that it spares (256 MiB held, by
/// 8, 16 and 32 KiB: 56, 51 and 49 ms straight, 49, 49 and 51 out of copies).
const SMALL_BYTES: usize = 16 << 10;

impl Reader {
    pub(crate) fn new(file: File) -> Reader {
        let handle = file.handle();
        let copies_ahead = file.kernel_keeps()
            && handle.lends()
            && handle.engine.coherence == Coherence::WhenOpened;
        Reader { file, offset: 0, page: None, consumed: 0, in_a_row: 0, copies_ahead }
    }

    /// The file that is read.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where the next byte comes from.
    fn place(&self) -> u64 {
        self.offset + self.consumed as u64
    }

    fn go_to(&mut self, place: u64) {
        self.offset = place;
        self.consumed = 0;
        self.page = None;
    }

    /// What was lent and not consumed.
    fn lent(&self) -> &[u8] {
        self.page.as_ref().map_or(&[], |page| &page[self.consumed..])
    }

    /// Has bytes to lend from its place on, up to so many where they are copied.
    fn lend(&mut self, bytes: u64) -> io::Result<()> {
        let place = self.place();
        // A copy is made in the memory of the last one.
        let spare = self.page.take().and_then(PageGuard::into_copy);
        self.go_to(place);
        self.page = Some(self.file.page_and_on(place, bytes, spare)?);
        Ok(())
    }

    /// Copies what was lent; gives how many bytes.
    fn take_lent(&mut self, buffer: &mut [u8]) -> usize {
        let lent = self.lent();
        let bytes = lent.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&lent[..bytes]);
        self.consumed += bytes;
        bytes
    }

    fn read_straight(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let place = self.place();
        let bytes = self.file.read_at(buffer, place)?;
        self.go_to(place + bytes as u64);
        Ok(bytes)
    }

    /// Reads what goes on from the reads before it: first what is left of a copy, then, of small ones, out of a copy of as much
    /// as was read in a row.
    fn read_on(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = self.take_lent(buffer);
        while done < buffer.len() {
            let rest = &mut buffer[done..];
            let read = match rest.len() <= SMALL_BYTES {
                true => {
                    // A copy begins at its place, and is measured from the begin of that page.
                    let asked = self.place() % PAGE_BYTES + rest.len() as u64;
                    let bytes = self.in_a_row.min(COPIED_BYTES).max(asked);
                    self.lend(bytes).map(|()| self.take_lent(rest))
                }
                false => self.read_straight(rest),
            };
            match read {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                // What there is is given first: who goes on from there is told.
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
        // As much as was lent: more was never there.
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
