//! Pages that the program has dropped itself (madvise(2)). If this thread touched such a page, it
//! would wait for itself forever.
//!
//! The program sees the *user area*. The device's bytes arrive in the *shadow*, an area of the same
//! length. The *machine* is the state machine of the cache, which decides on reads.

use readpath_core::machine::ReadError;
use readpath_core::request::{Op, Outcome, RequestId};
use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::{Areas, PagePresence};
use crate::transfers::{self, TransferProgress, TransferStart};

impl Areas {
    /// Reads a page of the user area again on this thread, which waits for the device, if the
    /// program has dropped it. Does nothing if the page is present or in the shadow. A completed
    /// read has the page pinned, so the machine still counts it as cached and does not read it.
    ///
    /// # Errors
    /// The page cannot be read again, and stays absent.
    pub(super) fn restore_dropped_page(&mut self, page: u64) -> Result<(), ReadError> {
        // Again, because the program may drop the page while it is read.
        while self.has_presence(page, PagePresence::User) && !self.user.is_present(page) {
            if !self.reread_page(page)? {
                break;
            }
        }
        Ok(())
    }

    /// Reads a page again and puts it into the user area. Returns false if it is present there
    /// after all: a page that the kernel has swapped out looks absent (mincore(2)), and the kernel
    /// brings it back on access. After an error the page stays absent.
    fn reread_page(&mut self, page: u64) -> Result<bool, ReadError> {
        let range = PageRange::new(page, 1);
        // A page of zeros in the shadow, which the transfer fills.
        self.make_present(range);
        let offset = page * PAGE_BYTES;
        let start = TransferStart {
            // Not used, because the request does not go through the machine.
            id: RequestId(0),
            file: transfers::TransferFile::from_target(&self.target),
            op: Op::Read,
            offset,
            bytes: PAGE_BYTES,
        };
        let segment = libc::iovec {
            iov_base: self.shadow.address(page) as *mut _,
            iov_len: PAGE_BYTES as usize,
        };
        // SAFETY: a page of the shadow that no other thread uses and no transfer fills, because it
        // was in the user area.
        let bytes = match unsafe { TransferProgress::new(start, vec![segment]).execute() } {
            Outcome::Done => Ok(PAGE_BYTES),
            Outcome::Short { bytes } => Ok(bytes),
            Outcome::Failed(error) => Err(ReadError::Device { offset, error }),
        };
        // The last page of the file has less.
        let requested_bytes = PAGE_BYTES.min(self.file_bytes - offset);
        match bytes {
            Ok(bytes) if bytes >= requested_bytes => {
                self.remove_poison(page);
                // Also releases the page of the shadow.
                Ok(self.copy_page(page))
            }
            failed => {
                // The page stays absent, and the caller poisons it or reports the error. SAFETY:
                // there are no references into the shadow.
                unsafe { self.shadow.release(range) };
                Err(failed.map_or_else(
                    |error| error,
                    |bytes| ReadError::Shrunk { offset: offset + bytes },
                ))
            }
        }
    }
}
