//! Pages that the program has given up by itself (madvise(2)), where this thread is to look at them: it would wait for itself
//! for ever.

use readpath_core::machine::ReadError;
use readpath_core::request::{Op, Outcome, RequestId};
use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::{Areas, PagePresence};
use crate::transfers::{self, Progress, TransferStart};

impl Areas {
    /// Has a page be there if the user's area is to have it: where it isn't, it is read once more, on this thread, for a read
    /// is done that has it pinned.
    pub(super) fn bring_back(&mut self, page: u64) -> Result<(), ReadError> {
        while self.is_at(page, PagePresence::User) && !self.user.is_present(page) {
            if !self.read_again(page)? {
                break;
            }
        }
        Ok(())
    }

    /// False where it is there after all: the kernel has swapped it out, which looks the same (mincore(2)), and brings it back by
    /// itself when it is looked at.
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
        // SAFETY: a page of the shadow, of which nobody else knows, and which no transfer fills: it was in the user's area.
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
                // SAFETY: nobody holds a page of the shadow.
                unsafe { self.shadow.release(range) };
                Err(failed.map_or_else(
                    |error| error,
                    |bytes| ReadError::Shrunk { offset: offset + bytes },
                ))
            }
        }
    }
}
