//! Buffers of the kernel baseline, page-aligned for direct I/O.

use std::ptr::NonNull;
use std::rc::Rc;

use readpath_core::unit::PAGE_BYTES;
use rustix::mm::{self, MapFlags, ProtFlags};

/// Bytes at a fixed address. The kernel may fill them while the owner moves.
#[derive(Debug)]
pub(super) struct FixedBuffer {
    /// Page-aligned start.
    address: NonNull<u8>,
    /// Usable length in bytes. The rest of the last page is not used.
    bytes: usize,
    /// Keeps the common mapping of all buffers alive.
    _memory: Rc<Memory>,
}

/// One anonymous mapping for all buffers. The system can refuse it as a whole, and allocates each
/// page at its first use.
#[derive(Debug)]
struct Memory {
    /// Start of the mapping.
    address: NonNull<u8>,
    /// Length of the mapping in bytes.
    bytes: usize,
}

impl FixedBuffer {
    /// Creates `count` buffers of `bytes` zero bytes. Returns `None` without enough memory, or for
    /// a total of zero bytes.
    pub(super) fn allocate(count: u32, bytes: u32) -> Option<Vec<FixedBuffer>> {
        let bytes = bytes as usize;
        let stride_bytes = bytes.next_multiple_of(PAGE_BYTES as usize);
        let memory = Rc::new(Memory::new(stride_bytes.checked_mul(count as usize)?)?);
        let buffer = |index: usize| {
            // SAFETY: `index` is below `count`, so the address lies in the mapping.
            let address = unsafe { memory.address.add(index * stride_bytes) };
            FixedBuffer { address, bytes, _memory: Rc::clone(&memory) }
        };
        Some((0..count as usize).map(buffer).collect())
    }

    /// Returns the bytes. A transfer owns its buffer, so no transfer uses this one.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is initialised, this part belongs to this buffer alone, and the slice
        // lives no longer than `self`.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.bytes) }
    }

    /// Returns the bytes for changes.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.bytes) }
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// Start address.
    pub(super) fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }
}

impl Memory {
    /// Maps `bytes` zero bytes. Returns `None` if the system refuses.
    fn new(bytes: usize) -> Option<Memory> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a new private mapping at an address chosen by the kernel.
        let address = unsafe { mm::mmap_anonymous(null, bytes, protection, MapFlags::PRIVATE) };
        Some(Memory { address: NonNull::new(address.ok()?.cast())?, bytes })
    }
}

impl Drop for Memory {
    /// Unmaps the memory.
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`. Its last buffer is gone.
        let _ = unsafe { mm::munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}
