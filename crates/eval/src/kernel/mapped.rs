//! Mapping engine: copies each block out of a mapping of the file, or into it, as fio's `mmap`
//! engine does. Each absent page costs a fault, and the kernel decides how much it reads for it.
//!
//! A file may shrink under its mapping. An access to a page past the new end, or to an unreadable
//! one, raises a bus error, which ends an ordinary program. Here it ends only the transfer, see
//! [`bus`]. Within the page of the new end there is no bus error, since the kernel supplies zeros.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::time::Duration;

use readpath_core::readahead::Advice;
use readpath_core::request::Op;
use readpath_core::unit::PAGE_BYTES;
use rustix::mm::{self, MapFlags, ProtFlags};

use super::bus;
use super::under_way::{KernelTransfer, TransferAnswer, TransferEngine};

/// Maximum number of bytes per system call (read(2)). A larger copy is continued, as with system
/// calls.
const MOVED_BYTES_MAX: usize = 0x7fff_f000;

/// The mapping engine.
pub(super) struct Mapped {
    /// Handle of its own, for mapping pages again after a bus error.
    file: File,
    /// Start of the mapping.
    address: *mut u8,
    /// Length of the file when it was mapped, in bytes.
    file_bytes: u64,
    /// Protection of the mapping, also of pages that are mapped again.
    protection: ProtFlags,
    /// Advice for the mapping, also for pages that are mapped again.
    advice: Advice,
    /// Results that `next_answer` has not returned yet.
    answers: VecDeque<TransferAnswer>,
}

impl Mapped {
    /// Maps the whole file of `file_bytes` bytes, shared with other processes, and gives the kernel
    /// the advice for all of it. The mapping allows writes if `is_writable`.
    ///
    /// # Errors
    /// The handler of bus errors cannot be installed, the file is empty, or the address space is
    /// too small. The file system may also refuse mappings, and the kernel the advice.
    pub(super) fn new(
        file: &File,
        file_bytes: u64,
        is_writable: bool,
        advice: Advice,
    ) -> io::Result<Mapped> {
        bus::install()?;
        let file = file.try_clone()?;
        let protection = match is_writable {
            true => ProtFlags::READ | ProtFlags::WRITE,
            false => ProtFlags::READ,
        };
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at an address chosen by the kernel.
        let address =
            unsafe { mm::mmap(null, file_bytes as usize, protection, MapFlags::SHARED, &file, 0)? };
        let (address, answers) = (address.cast(), VecDeque::new());
        let mapped = Mapped { file, address, file_bytes, protection, advice, answers };
        let from_start = 0;
        mapped.advise(from_start, file_bytes)?;
        Ok(mapped)
    }

    /// Applies the advice to `bytes` bytes of the mapping at `offset`. Normal advice is the default
    /// of a new mapping, and needs no call.
    fn advise(&self, offset: u64, bytes: u64) -> rustix::io::Result<()> {
        let advice = match self.advice {
            Advice::Normal => return Ok(()),
            Advice::Sequential => mm::Advice::Sequential,
            Advice::Random => mm::Advice::Random,
            Advice::WillNeed => mm::Advice::WillNeed,
            Advice::DontNeed => mm::Advice::LinuxDontNeed,
        };
        // SAFETY: the range lies in the mapping. The mapping is shared, so no bytes are lost.
        unsafe { mm::madvise(self.address_of(offset).cast(), bytes as usize, advice) }
    }

    /// Address of a byte of the file in the mapping.
    fn address_of(&self, offset: u64) -> *mut u8 {
        self.address.wrapping_add(offset as usize)
    }

    /// Copies up to `bytes` bytes between the mapping at `offset` and `memory`: at most to the end
    /// of the mapping, and at most [`MOVED_BYTES_MAX`]. Returns a result in the kernel's form:
    /// bytes moved, 0 past the end of the mapping, or `-EIO`.
    ///
    /// # Safety
    /// `memory` is valid for `bytes` bytes and not used elsewhere.
    unsafe fn copy(&self, op: Op, offset: u64, memory: *mut u8, bytes: usize) -> i32 {
        let bytes_left = self.file_bytes.saturating_sub(offset);
        let bytes = bytes.min(bytes_left as usize).min(MOVED_BYTES_MAX);
        let mapped = self.address_of(offset);
        let outcome = bus::catch_bus_error(mapped as usize, bytes, || {
            // SAFETY: both are valid for `bytes` bytes. The handler replaces inaccessible pages of
            // the mapping. The buffer is not part of the mapping, so they do not overlap.
            unsafe {
                match op {
                    Op::Read => std::ptr::copy_nonoverlapping(mapped, memory, bytes),
                    Op::Write => std::ptr::copy_nonoverlapping(memory, mapped, bytes),
                }
            }
        });
        match outcome {
            Ok(()) => bytes as i32,
            Err(address) => self.remap_after_error(offset, bytes as u64, address),
        }
    }

    /// Maps the file again over the empty pages after a bus error at `address`. Returns the result
    /// of the transfer: its bytes before the new end of a shorter file. Returns `-EIO` if the file
    /// still has all bytes of the transfer, if its length is unknown, or if it cannot be mapped
    /// again.
    fn remap_after_error(&self, offset: u64, bytes: u64, address: usize) -> i32 {
        let end = (offset + bytes).next_multiple_of(PAGE_BYTES);
        let first = (address - self.address as usize) as u64 / PAGE_BYTES * PAGE_BYTES;
        // SAFETY: the range lies in the mapping and has no references.
        let mapped = unsafe {
            mm::mmap(
                self.address_of(first).cast(),
                (end - first) as usize,
                self.protection,
                MapFlags::SHARED | MapFlags::FIXED,
                &self.file,
                first,
            )
        };
        let is_repaired = mapped.is_ok() && self.advise(first, end - first).is_ok();
        let file_bytes = file_length(&self.file);
        if is_repaired
            && let Some(file_bytes) = file_bytes
            && file_bytes < offset + bytes
        {
            return file_bytes.saturating_sub(offset) as i32;
        }
        -libc::EIO
    }
}

/// Returns the current length of a file or block device in bytes, or `None` if it is unknown.
fn file_length(file: &File) -> Option<u64> {
    rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).ok()
}

impl TransferEngine for Mapped {
    /// Performs the transfer by a copy, and queues its answer.
    unsafe fn start(&mut self, call: KernelTransfer) -> io::Result<()> {
        // SAFETY: guaranteed by the caller.
        let bytes_or_errno = unsafe { self.copy(call.op, call.offset, call.memory, call.bytes) };
        self.answers.push_back(TransferAnswer { token: call.token, bytes_or_errno });
        Ok(())
    }

    /// Returns at once, because each transfer has ended when it was started.
    fn wait(&mut self, _time_max: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    /// Returns the oldest result that was not returned yet, or `None`.
    fn next_answer(&mut self) -> Option<TransferAnswer> {
        self.answers.pop_front()
    }
}

impl Drop for Mapped {
    /// Unmaps the file.
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, without references.
        let _ = unsafe { mm::munmap(self.address.cast(), self.file_bytes as usize) };
    }
}
