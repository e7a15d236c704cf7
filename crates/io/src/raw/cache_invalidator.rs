//! Raw writes to a file that a read path has open: overwritten pages leave its cache.
//!
//! A write invalidates its range before it begins, so a long write does not leave old pages in the
//! cache until its end. After its end, successful or not, it invalidates the range again, because
//! readers may have cached pages meanwhile. It also waits for requests in flight in the range: a
//! later read could share such a request and return old bytes. A read that begins after the write
//! has returned therefore sees the new bytes. A read that overlaps the write may return old bytes,
//! new bytes or both.
//!
//! A *version* of a file is its content between two changes, as found at an opening. The *engine*
//! is the cache of a read path with its requests. It has the pages of each version that is open.

use std::path::Path;
use std::sync::Arc;

use readpath_core::unit::PageRange;

use super::{RawFile, RawFileBuilder, RawOpenError};
use crate::file::File;
use crate::nfs::url::NfsUrl;
use crate::page_cache::own::Handle;
use crate::read_error::ReadError;
use crate::target::{OpenError, Target};

/// File of a read path whose cached pages are invalidated by a raw file's writes.
pub(super) struct CacheInvalidator {
    /// A handle of its own, which keeps the file open in the read path.
    file: File,
}

impl File {
    /// Opens this file as a [`RawFile`] whose writes invalidate this path's cache. A read by any
    /// handle of the file in this [`ReadPath`](crate::ReadPath) that begins after a write has
    /// returned sees the new bytes, up to the [length](File::len) that its handle knows.
    ///
    /// Only writes through the returned raw file do this. After writes by another raw file, path or
    /// process, call [`invalidate`](File::invalidate) or [`revalidate`](File::revalidate). Guards,
    /// and touched pages of a [`Mapping`](crate::Mapping), keep their bytes. Each write changes the
    /// file's times, so a later [`open`](crate::ReadPath::open) reads the file again.
    ///
    /// ```
    /// use readpath::{RawFile, ReadPath};
    ///
    /// # let folder = std::env::temp_dir();
    /// # let name = folder.join(format!("readpath-doc-beside-{}", std::process::id()));
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
    /// As [`RawFileBuilder::open`]; the file is on an NFS server or of a source; or another file
    /// has taken its name.
    pub fn raw(&self, builder: RawFileBuilder) -> Result<RawFile, RawOpenError> {
        let name = self.name();
        // Neither a server's file nor a source is a file of this machine.
        let is_source = self.handle().file.storage_file.source().is_some();
        if is_source || name.to_str().is_some_and(NfsUrl::is_meant) {
            return Err(RawOpenError::Remote { path: name.to_path_buf() });
        }
        builder.open_with_invalidator(name, Some(CacheInvalidator { file: self.reopen() }))
    }
}

impl CacheInvalidator {
    /// Checks that `target` is the file that the read path has open.
    ///
    /// # Errors
    /// It is another file, or this is a child made by `fork` that cannot use the read path.
    pub(super) fn check_same_file(&self, target: &Target, name: &Path) -> Result<(), RawOpenError> {
        let open_error =
            |error: ReadError| RawOpenError::Open(OpenError::from_io_error(name, &error.into()));
        let handle = self.current_handle().map_err(open_error)?;
        match target.identity().is_same_file(&handle.file.identity) {
            true => Ok(()),
            false => Err(RawOpenError::Replaced { path: name.to_path_buf() }),
        }
    }

    /// Invalidates `range` before a write, without waiting for its requests in flight. Dropping the
    /// returned guard invalidates it again, and waits for them.
    pub(super) fn begin_overwrite(&self, range: PageRange) -> OverwriteGuard<'_> {
        self.invalidate(range);
        OverwriteGuard { invalidator: self, range }
    }

    /// Returns the read path's handle in this process, of the newest version of the file that it
    /// knows.
    fn current_handle(&self) -> Result<Arc<Handle>, ReadError> {
        self.file.handle().current_unchecked()
    }

    /// Drops the cached pages of the range, in every version of the file. Does not wait for
    /// requests in flight, unlike the guard's drop.
    fn invalidate(&self, range: PageRange) {
        // Without an engine (also in a child that cannot have one) no page is cached by the path.
        let Ok(handle) = self.current_handle() else { return };
        if handle.engine.existing_engine().is_none() {
            return;
        }
        // The engine may not know the file yet: the handle is registered at its first use.
        let file_id = handle.machine_ids_or_register().file_id;
        handle.engine.lock().invalidate_all_versions(file_id, range);
    }
}

/// A write in progress. Its range is invalidated again on drop.
pub(super) struct OverwriteGuard<'b> {
    invalidator: &'b CacheInvalidator,
    /// Pages that the write touches.
    range: PageRange,
}

impl Drop for OverwriteGuard<'_> {
    /// Invalidates the range again, and waits for its requests in flight.
    fn drop(&mut self) {
        // Without a handle in this process no page is cached. The call below waits.
        if let Ok(handle) = self.invalidator.current_handle() {
            handle.invalidate(self.range);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::page_cache::PageCache;
    use crate::path::ReadPath;

    /// First page of the file.
    const FIRST_PAGE: PageRange = PageRange { first: 0, end: 1 };

    /// Creates a file of bytes 1 and unlinks it. Returns it open for writing, and a read path's
    /// handle of it.
    fn open_unlinked(name: &str) -> (std::fs::File, File) {
        let name =
            std::env::temp_dir().join(format!("readpath-beside-{name}-{}", std::process::id()));
        std::fs::write(&name, [1; 8192]).unwrap();
        let written = std::fs::OpenOptions::new().write(true).open(&name).unwrap();
        let path = ReadPath::builder()
            .page_cache(PageCache::Own { bytes: None })
            .readahead("none")
            .build()
            .unwrap();
        let file = path.open(&name).unwrap();
        std::fs::remove_file(&name).unwrap();
        (written, file)
    }

    /// Reads the first byte of the file through the read path.
    fn first_byte(file: &File) -> u8 {
        let mut byte = [0];
        file.read_exact_at(&mut byte, 0).unwrap();
        byte[0]
    }

    /// The first page is cached after the write has begun and before its bytes change.
    #[test]
    fn page_cached_during_a_raw_write_is_not_served_after_it() {
        let (written, file) = open_unlinked("during");
        let invalidator = CacheInvalidator { file: file.reopen() };
        let overwriting = invalidator.begin_overwrite(FIRST_PAGE);
        assert_eq!(first_byte(&file), 1);
        written.write_all_at(&[2; 4096], 0).unwrap();
        drop(overwriting);
        assert_eq!(first_byte(&file), 2);
    }

    /// The first page is cached before the write begins. A read during the write sees its bytes.
    #[test]
    fn cached_page_is_not_served_during_a_raw_overwrite() {
        let (written, file) = open_unlinked("while");
        assert_eq!(first_byte(&file), 1);
        let invalidator = CacheInvalidator { file: file.reopen() };
        let _overwriting = invalidator.begin_overwrite(FIRST_PAGE);
        written.write_all_at(&[2; 4096], 0).unwrap();
        assert_eq!(first_byte(&file), 2);
    }

    /// A prefetch during the write has read the old bytes when the write ends.
    #[test]
    fn request_in_flight_at_the_end_of_a_write_is_not_shared_later() {
        let (written, file) = open_unlinked("on-its-way");
        let invalidator = CacheInvalidator { file: file.reopen() };
        let overwriting = invalidator.begin_overwrite(FIRST_PAGE);
        file.prefetch(0, 4096);
        // By then the device has usually completed the request, and no thread has processed the
        // completion.
        std::thread::sleep(std::time::Duration::from_millis(50));
        written.write_all_at(&[2; 4096], 0).unwrap();
        drop(overwriting);
        assert_eq!(first_byte(&file), 2);
    }
}
