//! A raw file beside a read path: what the one overwrites, the other doesn't
//! serve from its cache any more.
//!
//! A write takes the pages of its range out of the cache before it begins, as far
//! as they are there: a long write does not leave old bytes to be served until
//! it ends. When it has ended, however it did, it takes out what readers brought
//! in meanwhile, and waits for pages that are on their way: a read that found
//! one there would share it, and might get the old bytes. So a read that begins
//! after the write has returned sees what was written; one that overlaps with it
//! may see old bytes, new ones, or some of both.

use std::path::Path;
use std::sync::Arc;

use readpath_core::unit::PageRange;

use super::{RawFile, RawFileBuilder, RawOpenError};
use crate::engine::Handle;
use crate::file::File;
use crate::nfs::url::NfsUrl;
use crate::read_error::ReadError;
use crate::target::{OpenError, Target};

/// The file of a read path that a raw file writes to as well.
pub(super) struct Beside {
    file: File,
}

impl File {
    /// Opens this file as a [`RawFile`], whose writes this read path takes notice
    /// of: a read, by any handle of the file in this [`ReadPath`](crate::ReadPath),
    /// that begins after a write has returned sees what was written, up to the
    /// [length](File::len) that its handle knows.
    ///
    /// This holds for what is written through the raw file that is given back.
    /// Not of what others write: another raw file, another path, another process;
    /// tell the path with [`invalidate`](File::invalidate), or look with
    /// [`revalidate`](File::revalidate). Guards, and pages of a
    /// [`Mapping`](crate::Mapping) that were touched, keep what they have. Each
    /// write changes the file's times, so that a later
    /// [`open`](crate::ReadPath::open) reads it afresh.
    ///
    /// ```
    /// use readpath::{RawFile, ReadPath};
    ///
    /// # let name = std::env::temp_dir().join(format!("readpath-doc-beside-{}", std::process::id()));
    /// std::fs::write(&name, vec![1; 100_000])?;
    /// let file = ReadPath::builder().build()?.open(&name)?;
    /// let mut byte = [0];
    /// file.read_exact_at(&mut byte, 50_000)?; // cached now
    /// file.raw(RawFile::builder().write(true))?.write_all_at(&[2], 50_000)?;
    /// file.read_exact_at(&mut byte, 50_000)?;
    /// assert_eq!(byte, [2]);
    /// # std::fs::remove_file(&name)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`RawFileBuilder::open`]; the file is a server's; or another one has taken
    /// its name.
    pub fn raw(&self, builder: RawFileBuilder) -> Result<RawFile, RawOpenError> {
        let name = self.name();
        if name.to_str().is_some_and(NfsUrl::is_meant) {
            return Err(RawOpenError::Remote { path: name.to_path_buf() });
        }
        builder.open_beside(name, Some(Beside { file: self.reopen() }))
    }
}

impl Beside {
    /// # Errors
    /// `target` is not the file that the read path has open.
    pub(super) fn check(&self, target: &Target, name: &Path) -> Result<(), RawOpenError> {
        let refused = |error: ReadError| RawOpenError::Open(OpenError::of(name, &error.into()));
        let handle = self.here().map_err(refused)?;
        match target.identity().is_same(&handle.file.identity) {
            true => Ok(()),
            false => Err(RawOpenError::Replaced { path: name.to_path_buf() }),
        }
    }

    /// Begins a write of bytes that lie in `range`; what is given back ends it when it is dropped.
    pub(super) fn overwrite(&self, range: PageRange) -> Overwriting<'_> {
        self.invalidate(range);
        Overwriting { beside: self, range }
    }

    /// The handle of the read path.
    fn here(&self) -> Result<Arc<Handle>, ReadError> {
        self.file.handle().here_as_seen()
    }

    fn invalidate(&self, range: PageRange) {
        // Where there is no engine, and in a child that can have none, nothing is cached.
        let Ok(handle) = self.here() else { return };
        if handle.engine.built().is_none() {
            return;
        }
        let file = handle.in_machine().file;
        handle.engine.lock().invalidate_states(file, range);
    }
}

/// A write under way, whose range is invalidated once more when it ends.
pub(super) struct Overwriting<'b> {
    beside: &'b Beside,
    range: PageRange,
}

impl Drop for Overwriting<'_> {
    fn drop(&mut self) {
        if let Ok(handle) = self.beside.here() {
            handle.invalidate(self.range);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::path::ReadPath;

    const RANGE: PageRange = PageRange { first: 0, end: 1 };

    /// A file whose bytes are 1, which goes when the test ends, and a read path that has it open.
    fn opened(name: &str) -> (std::fs::File, File) {
        let name =
            std::env::temp_dir().join(format!("readpath-beside-{name}-{}", std::process::id()));
        std::fs::write(&name, [1; 8192]).unwrap();
        let written = std::fs::OpenOptions::new().write(true).open(&name).unwrap();
        let path = ReadPath::builder().readahead("none").build().unwrap();
        let file = path.open(&name).unwrap();
        std::fs::remove_file(&name).unwrap();
        (written, file)
    }

    fn first_byte(file: &File) -> u8 {
        let mut byte = [0];
        file.read_exact_at(&mut byte, 0).unwrap();
        byte[0]
    }

    #[test]
    fn what_a_reader_caches_during_a_write_is_not_served_after_it() {
        let (written, file) = opened("during");
        let beside = Beside { file: file.reopen() };
        let overwriting = beside.overwrite(RANGE);
        assert_eq!(first_byte(&file), 1);
        written.write_all_at(&[2; 4096], 0).unwrap();
        drop(overwriting);
        assert_eq!(first_byte(&file), 2);
    }

    #[test]
    fn what_was_cached_is_not_served_while_it_is_overwritten() {
        let (written, file) = opened("while");
        assert_eq!(first_byte(&file), 1);
        let beside = Beside { file: file.reopen() };
        let _overwriting = beside.overwrite(RANGE);
        written.write_all_at(&[2; 4096], 0).unwrap();
        assert_eq!(first_byte(&file), 2);
    }

    #[test]
    fn what_is_on_its_way_when_a_write_ends_is_shared_by_nobody_after_it() {
        let (written, file) = opened("on-its-way");
        let beside = Beside { file: file.reopen() };
        let overwriting = beside.overwrite(RANGE);
        file.prefetch(0, 4096);
        // The device is done with it by then, mostly, and nobody has taken it in.
        std::thread::sleep(std::time::Duration::from_millis(50));
        written.write_all_at(&[2; 4096], 0).unwrap();
        drop(overwriting);
        assert_eq!(first_byte(&file), 2);
    }
}
