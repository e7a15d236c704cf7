//! Read-only mapping of a whole file, for touching its bytes and for `madvise(2)`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use readpath_core::readahead::Advice;

/// Mapping of one file, with the file's length at the time of the mapping.
///
/// Invariant: `address` is the start of a live mapping of `length` bytes, more than 0.
#[derive(Debug)]
pub struct PlainMapping {
    /// Start of the mapping.
    address: *mut libc::c_void,
    /// Length of the mapping in bytes.
    length: usize,
}

// SAFETY: the memory belongs to the process, not to a thread, and is never written to.
unsafe impl Send for PlainMapping {}
// SAFETY: as above.
unsafe impl Sync for PlainMapping {}

impl PlainMapping {
    /// Maps the whole file. Returns `None` when it is empty.
    ///
    /// # Errors
    /// Error of `fstat` or `mmap`.
    pub fn of(file: &File) -> io::Result<Option<PlainMapping>> {
        let length =
            usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        if length == 0 {
            return Ok(None);
        }
        // SAFETY: a new shared mapping at an address chosen by the kernel.
        let address = unsafe {
            let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), length, protection, flags, file.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Some(PlainMapping { address, length }))
    }

    /// Reads the byte at `offset`, which may cause a page fault. Returns false without a read when
    /// the offset lies past the end.
    ///
    /// If the file has become shorter than the mapping, the process gets SIGBUS, as with every
    /// mapping.
    pub fn touch(&self, offset: u64) -> bool {
        let is_inside = offset < self.length as u64;
        if is_inside {
            // SAFETY: the byte lies within the readable mapping. The access is volatile because
            // other processes may write to the file.
            unsafe { self.address.cast::<u8>().add(offset as usize).read_volatile() };
        }
        is_inside
    }

    /// Returns the bytes of the file.
    ///
    /// # Safety
    /// The file must not change while the slice is in use.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: a readable mapping of `length` bytes. The caller guarantees that the bytes do not
        // change.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.length) }
    }

    /// Calls `madvise(2)` for the whole mapping. `DontNeed` removes its pages from the process's
    /// page table. They stay in the kernel page cache.
    ///
    /// # Errors
    /// Error of `madvise`.
    pub fn advise(&self, advice: Advice) -> io::Result<()> {
        let advice = match advice {
            Advice::Normal => libc::MADV_NORMAL,
            Advice::Sequential => libc::MADV_SEQUENTIAL,
            Advice::Random => libc::MADV_RANDOM,
            Advice::WillNeed => libc::MADV_WILLNEED,
            Advice::DontNeed => libc::MADV_DONTNEED,
        };
        // SAFETY: the whole of a mapping owned here, without live references.
        match unsafe { libc::madvise(self.address, self.length, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for PlainMapping {
    /// Unmaps the file.
    fn drop(&mut self) {
        // SAFETY: a mapping owned here and no longer used.
        unsafe { libc::munmap(self.address, self.length) };
    }
}
