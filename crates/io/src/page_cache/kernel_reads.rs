//! Reads of a handle through the kernel page cache. A *handle* is one opening of a file, and a
//! *path* is the `ReadPath` of the public API that it belongs to. A page is *resident* if it is in
//! the kernel page cache.
//!
//! - [`cached_reads`]: a file whose pages the kernel caches;
//! - [`submitted_reads`]: the same for a batch, which takes completed reads in any order;
//! - [`resident_reads`]: pages that are resident in the kernel, for a path with a cache of its own.

use std::io::IoSliceMut;

use readpath_core::unit::PageRange;

use super::kernel::FilePages;
use super::kernel::buffered_file::buffers_part;
use super::own::Handle;
use crate::os::aligned_bytes::AlignedBytes;

mod cached_reads;
mod resident_reads;
pub(crate) mod submitted_reads;

impl Handle {
    /// Reads from `offset` on through the kernel page cache into buffers of `bytes` bytes in total.
    /// Waits for the device only if the kernel caches the pages. Returns false if the read must
    /// bypass that cache; the content of the buffers is then unspecified.
    #[inline]
    pub(crate) fn read_from_kernel(
        &self,
        offset: u64,
        bytes: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> bool {
        match &self.file.pages {
            FilePages::Kernel(file) => self.read_kernel_pages(file, offset, bytes, buffers),
            FilePages::Own(Some(file)) => self.read_resident_pages(file, offset, bytes, buffers),
            _ => false,
        }
    }

    /// Like [`read_from_kernel`](Handle::read_from_kernel), into the first `bytes` bytes of buffers
    /// that may have more.
    pub(crate) fn read_start_from_kernel(
        &self,
        offset: u64,
        bytes: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> bool {
        match buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>() == bytes {
            true => self.read_from_kernel(offset, bytes, buffers),
            // `read_from_kernel` fills its buffers completely, so it gets only the first part.
            false => self.read_from_kernel(offset, bytes, &mut buffers_part(buffers, 0..bytes)),
        }
    }

    /// Copies `bytes` bytes from `offset` on out of the kernel page cache, without waiting, and
    /// counts the read. Returns `None` if a page is absent there or not known to be resident, or if
    /// the path's own cache has one of the pages. Also returns `None` if the path has no cache of
    /// its own. The memory from `reusable` is used if it is large enough.
    pub(crate) fn copy_resident(
        &self,
        offset: u64,
        bytes: u64,
        reusable: impl FnOnce() -> Option<AlignedBytes>,
    ) -> Option<AlignedBytes> {
        let FilePages::Own(Some(file)) = &self.file.pages else { return None };
        let buffered_file = self.resident_kernel_file(file, offset, bytes)?;
        let mut copy = AlignedBytes::allocate(bytes as usize, reusable());
        let is_read = file.read(buffered_file, offset, bytes, &mut [IoSliceMut::new(&mut copy)]);
        (is_read && self.record_resident_read(bytes, offset)).then_some(copy)
    }

    /// Like [`read_from_kernel`](Handle::read_from_kernel), but returns the bytes in memory of
    /// their own. The memory from `reusable` is used if it is large enough. Returns `None` if the
    /// read must bypass the kernel page cache. The memory is then dropped.
    pub(crate) fn copy_from_kernel(
        &self,
        offset: u64,
        bytes: u64,
        reusable: impl FnOnce() -> Option<AlignedBytes>,
    ) -> Option<AlignedBytes> {
        let Some(file) = self.file.pages.kernel_file() else {
            return self.copy_resident(offset, bytes, reusable);
        };
        let mut copy = AlignedBytes::allocate(bytes as usize, reusable());
        let buffers = &mut [IoSliceMut::new(&mut copy)];
        self.read_kernel_pages(file, offset, bytes, buffers).then_some(copy)
    }

    /// Counts a read of `bytes` resident bytes from `offset` on. Always returns true, so that the
    /// call can end a condition: the bytes were read.
    #[inline]
    pub(super) fn record_resident_read(&self, bytes: u64, offset: u64) -> bool {
        let awaited_bytes = 0;
        self.record_kernel_read(bytes, awaited_bytes, offset)
    }

    /// Counts a read of `bytes` bytes from `offset` on, of which `awaited_bytes` bytes were not
    /// resident. Always returns true: the bytes were read.
    pub(super) fn record_kernel_read(&self, bytes: u64, awaited_bytes: u64, offset: u64) -> bool {
        self.read_counters.kernel_reads().record_read(bytes, awaited_bytes, offset + bytes);
        true
    }

    /// True if the path's cache has any page of the range. If it may have pages of the file, the
    /// handle is registered with the engine first.
    pub(crate) fn has_own_pages(&self, offset: u64, bytes: u64) -> bool {
        self.has_pages()
            && self.engine.frame_cache.is_any_shared(
                self.machine_ids_or_register().file_id,
                PageRange::covering(offset, bytes),
            )
    }
}
