//! A file with a place of its own: `std::io`'s traits.

use std::io::{self, BufRead, Read, Seek, SeekFrom};

use crate::file::File;
use crate::guard::PageGuard;

/// Reads a [`File`] from a place that moves on.
///
/// As a [`BufRead`] it lends the cached pages themselves, one at a time, and so
/// holds one page; what the kernel's cache has it copies from there, 64 KiB at a time.
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
}

impl Reader {
    pub(crate) fn new(file: File) -> Reader {
        Reader { file, offset: 0, page: None, consumed: 0 }
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
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let place = self.place();
        let bytes = self.file.read_at(buffer, place)?;
        self.go_to(place + bytes as u64);
        Ok(bytes)
    }
}

impl BufRead for Reader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let is_empty = self.page.as_ref().is_none_or(|page| self.consumed >= page.len());
        if is_empty {
            let place = self.place();
            // A copy is made in the memory of the last one.
            let spare = self.page.take().and_then(PageGuard::into_copy);
            self.go_to(place);
            self.page = Some(self.file.page_and_on(place, spare)?);
        }
        Ok(self.page.as_ref().map_or(&[], |page| &page[self.consumed..]))
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
        self.go_to(place);
        Ok(place)
    }
}
