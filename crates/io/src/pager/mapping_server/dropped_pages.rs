//! Pages that the program has dropped itself (madvise(2)). If this thread touched such a page, it
//! would wait for itself forever.

use readpath_core::machine::ReadError;
use readpath_core::request::{Op, Outcome, RequestId};
use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::{Areas, PagePresence};
use crate::transfers::{self, Progress, TransferStart};

impl Areas {
    /// Restores a page of the user area if the program has dropped it. The page is read again on
    /// this thread, because a completed read has it pinned.
    pub(super) fn bring_back(&mut self, page: u64) -> Result<(), ReadError> {
        while self.is_at(page, PagePresence::User) && !self.user.is_present(page) {
            if !self.read_again(page)? {
                break;
            }
        }
        Ok(())
    }

    /// Reads a page again. Returns false if it is present after all: a page that the kernel has
    /// swapped out looks the same (mincore(2)), and the kernel brings it back on access.
    fn read_again(&mut self, page: u64) -> Result<bool, ReadError> {
        let range = PageRange::new(page, 1);
        self.make_present(range);
        let offset = page * PAGE_BYTES;
        let start = TransferStart {
            id: RequestId(0),
            place: transfers::TransferFile::of(&self.target),
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
        let bytes = match unsafe { Progress::begun(start, vec![segment]).carry() } {
            Outcome::Done => Ok(PAGE_BYTES),
            Outcome::Short { bytes } => Ok(bytes),
            Outcome::Failed(error) => Err(ReadError::Device { offset, error }),
        };
        let wanted = PAGE_BYTES.min(self.file_bytes - offset);
        match bytes {
            Ok(bytes) if bytes >= wanted => {
                self.cure(page);
                Ok(self.copy(page))
            }
            failed => {
                // SAFETY: there are no references into the shadow.
                unsafe { self.shadow.release(range) };
                Err(failed.map_or_else(
                    |error| error,
                    |bytes| ReadError::Shrunk { offset: offset + bytes },
                ))
            }
        }
    }
}
