//! The buffers of the peer, aligned to a page as direct I/O wants it.

use std::ptr::NonNull;
use std::rc::Rc;

use readpath_core::unit::PAGE_BYTES;
use rustix::mm::{self, MapFlags, ProtFlags};

/// Bytes at a fixed address, so that the kernel may fill them while the owner moves.
#[derive(Debug)]
pub(super) struct FixedBuffer {
    address: NonNull<u8>,
    bytes: usize,
    /// Keeps the memory, which the buffers share.
    _memory: Rc<Memory>,
}

/// One anonymous mapping: asked for in one piece, so that the system can say no
/// to the whole of it, and taken page by page as it is touched.
#[derive(Debug)]
struct Memory {
    address: NonNull<u8>,
    bytes: usize,
}

impl FixedBuffer {
    /// `count` buffers of `bytes` zero bytes; `None` if there is no memory for
    /// them, or none is asked for.
    pub(super) fn several(count: u32, bytes: u32) -> Option<Vec<FixedBuffer>> {
        let bytes = bytes as usize;
        let stride = bytes.next_multiple_of(PAGE_BYTES as usize);
        let memory = Rc::new(Memory::new(stride.checked_mul(count as usize)?)?);
        let buffer = |index: usize| {
            // SAFETY: `index` is below `count`, and so the address in the mapping.
            let address = unsafe { memory.address.add(index * stride) };
            FixedBuffer { address, bytes, _memory: Rc::clone(&memory) }
        };
        Some((0..count as usize).map(buffer).collect())
    }

    /// The bytes. No transfer has the buffer: it would keep it.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is initialised, this part of it belongs to this
        // buffer alone, and it is lent for as long as `self` is.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.bytes) }
    }

    /// The bytes, to be changed.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.bytes) }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// Where they begin.
    pub(super) fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }
}

impl Memory {
    fn new(bytes: usize) -> Option<Memory> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let address = unsafe { mm::mmap_anonymous(null, bytes, protection, MapFlags::PRIVATE) };
        Some(Memory { address: NonNull::new(address.ok()?.cast())?, bytes })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; the last buffer of it is gone.
        let _ = unsafe { mm::munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}
