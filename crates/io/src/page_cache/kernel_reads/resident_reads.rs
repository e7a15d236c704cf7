//! Reads of pages that are resident in the kernel, by a path with a cache of its own.
//!
//! A page is *resident* if it is in the kernel page cache. A page in the path's own cache is always
//! returned from there, so a reader never sees new bytes and then old ones. The *fast path* returns
//! cached bytes without a check of the process and of the file's version.

use std::io::IoSliceMut;

use crate::page_cache::kernel::ResidentFile;
use crate::page_cache::kernel::buffered_file::BufferedFile;
use crate::page_cache::own::Handle;

impl Handle {
    /// Reads `bytes` bytes from `offset` on that are resident in the kernel into `buffers`, without
    /// waiting, and counts the read. Returns false if they are not all known to be resident, or if
    /// the path's own cache has one of the pages. The content of `buffers` is then unspecified.
    pub(super) fn read_resident_pages(
        &self,
        file: &ResidentFile,
        offset: u64,
        bytes: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> bool {
        let Some(buffered_file) = self.resident_kernel_file(file, offset, bytes) else {
            return false;
        };
        // `record_resident_read` always returns true.
        file.read(buffered_file, offset, bytes, buffers) && self.record_resident_read(bytes, offset)
    }

    /// Reads bytes from `offset` on into `buffer` if they are known to be resident in the kernel,
    /// without the engine, and counts the read. Returns false if they are not, if the read failed,
    /// or if the fast path is disabled. Also returns false if the path's own cache may have pages
    /// of the file. The check is for the whole file, because it needs no look into the cache.
    #[inline]
    pub(crate) fn read_known_resident(
        &self,
        file: &ResidentFile,
        offset: u64,
        buffer: &mut [u8],
    ) -> bool {
        if self.has_pages() || !self.is_fast_path_enabled() {
            return false;
        }
        let bytes = buffer.len() as u64;
        file.read_known(offset, buffer) && self.record_resident_read(bytes, offset)
    }

    /// Returns the second open file of `file`, which is open without O_DIRECT. All pages of the
    /// range must be known to be resident, or found so by a check that is due. The path's own cache
    /// must have none of them. Otherwise returns `None`.
    pub(super) fn resident_kernel_file<'a>(
        &self,
        file: &'a ResidentFile,
        offset: u64,
        bytes: u64,
    ) -> Option<&'a BufferedFile> {
        match self.has_own_pages(offset, bytes) {
            true => None,
            false => file.resident_file(offset, bytes),
        }
    }
}
