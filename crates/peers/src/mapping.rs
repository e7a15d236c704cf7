//! A read-only mapping of a whole file: to touch its bytes, and to advise on them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use readpath_core::readahead::Advice;

/// The mapping of one file, as long as the file was when it was made.
///
/// Invariant: `address` is the start of a live mapping of `length` bytes, more than 0.
#[derive(Debug)]
pub struct PlainMapping {
    address: *mut libc::c_void,
    length: usize,
}

// SAFETY: the memory is the process's, whichever thread reads it, and is never written to.
unsafe impl Send for PlainMapping {}
// SAFETY: as above.
unsafe impl Sync for PlainMapping {}

impl PlainMapping {
    /// Maps the whole file; `None` when it is empty.
    ///
    /// # Errors
    /// What `fstat` or `mmap` answered.
    pub fn of(file: &File) -> io::Result<Option<PlainMapping>> {
        let length =
            usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        if length == 0 {
            return Ok(None);
        }
        // SAFETY: a new shared mapping at an address of the kernel's choice.
        let address = unsafe {
            let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), length, protection, flags, file.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Some(PlainMapping { address, length }))
    }

    /// Reads the byte at `offset`, through a page fault where the page is not
    /// mapped. False when the offset lies past the end, where nothing is read.
    ///
    /// Should the file have become shorter than the mapping, the process gets
    /// SIGBUS, as with every mapping.
    pub fn touch(&self, offset: u64) -> bool {
        let is_inside = offset < self.length as u64;
        if is_inside {
            // SAFETY: the byte lies within the mapping, which is readable; the
            // access is volatile since other processes may write to the file.
            unsafe { self.address.cast::<u8>().add(offset as usize).read_volatile() };
        }
        is_inside
    }

    /// The bytes of the file.
    ///
    /// # Safety
    /// Nobody changes the file as long as the slice is used.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: a mapping of ours of so many bytes, which is readable; the caller promises that
        // they stay as they are.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.length) }
    }

    /// `madvise(2)` for the whole mapping. `DontNeed` takes its pages out of
    /// the process's page table; they stay in the page cache.
    ///
    /// # Errors
    /// What `madvise` answered.
    pub fn advise(&self, advice: Advice) -> io::Result<()> {
        let advice = match advice {
            Advice::Normal => libc::MADV_NORMAL,
            Advice::Sequential => libc::MADV_SEQUENTIAL,
            Advice::Random => libc::MADV_RANDOM,
            Advice::WillNeed => libc::MADV_WILLNEED,
            Advice::DontNeed => libc::MADV_DONTNEED,
        };
        // SAFETY: the whole of a mapping of ours; no reference into it is alive.
        match unsafe { libc::madvise(self.address, self.length, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for PlainMapping {
    fn drop(&mut self) {
        // SAFETY: a mapping of ours, which nobody uses any more.
        unsafe { libc::munmap(self.address, self.length) };
    }
}
