//! The memory that a watched program and its watcher share: a ring of reads, and the names of files.
//!
//! A file of [`BYTES`] bytes that both map: the [`Head`], then [`SLOTS`] times a [`RingSlot`], then names. All programs
//! that the watched one starts write to it as well. This file is a part of both crates, so that the two agree.
//!
//! **The ring** is bounded, with many who write and one who reads (after D. Vyukov): a slot's `turn` says whose it is. It begins
//! as the slot's place. Who has drawn the ticket `t` may write to the slot `t % SLOTS` when its turn is `t`, and then makes that `t + 1`;
//! the reader takes it, and makes the turn `t + SLOTS`. Nobody waits: who finds the ring full counts a read as lost.
//!
//! **Names** are not taken back. Each is a [`Name`] and then its path, in whole words; it is there when its
//! `words` is not zero.

use core::ffi::CStr;
use core::sync::atomic::AtomicU64;

/// The first word of the file.
pub const MAGIC: u64 = 0x7265_6164_7061_7468;

/// The variable that names the file.
pub const VARIABLE: &CStr = c"READPATH_WATCH_RING";

/// The reads that fit into the ring: at 50,000 a second, of more than a second.
pub const SLOTS: u64 = 1 << 16;

/// The room for names.
pub const NAMES_BYTES: u64 = 64 << 20;

/// The longest path that is told.
pub const PATH_BYTES_MAX: usize = 4096;

const HEAD_BYTES: u64 = 4096;

/// The length of the file.
pub const BYTES: u64 = HEAD_BYTES + SLOTS * size_of::<RingSlot>() as u64 + NAMES_BYTES;

/// The ways in a slot: 0 `read`, 1 `pread`, 2 `readv`, 3 `preadv`, 4 `sendfile` and `copy_file_range`; and from here
/// on advice: this, and the number of `posix_fadvise(2)`.
pub const ADVICE: u64 = 64;

/// The beginning of the file.
#[repr(C)]
pub struct Head {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// The next ticket.
    pub ticket: AtomicU64,
    /// Reads for which there was no room.
    pub lost: AtomicU64,
    /// How many programs have found this file.
    pub programs: AtomicU64,
    /// How many bytes of names are given out.
    pub names_bytes: AtomicU64,
}

/// One read that has ended.
#[repr(C)]
#[derive(Default)]
pub struct RingSlot {
    /// Whose it is.
    pub turn: AtomicU64,
    /// When it began and ended, by `CLOCK_MONOTONIC`.
    pub begin_ns: AtomicU64,
    /// See `begin_ns`.
    pub end_ns: AtomicU64,
    /// The process × 2³² + the thread, as the kernel numbers them.
    pub task: AtomicU64,
    /// The way × 2³² + the descriptor.
    pub way: AtomicU64,
    /// The file: the major number of its device × 2²⁰ + the minor one.
    pub device: AtomicU64,
    /// And its inode.
    pub inode: AtomicU64,
    /// The first byte.
    pub offset: AtomicU64,
    /// How many were asked for.
    pub asked: AtomicU64,
    /// What came of it: bytes, or an error's number × -1.
    pub result: AtomicU64,
}

/// A file that was read, at a descriptor.
#[repr(C)]
pub struct Name {
    /// How long this and its path are in words; 0: not written yet.
    pub words: AtomicU64,
    /// The device, as in [`RingSlot`].
    pub device: AtomicU64,
    /// The inode.
    pub inode: AtomicU64,
    /// The file's length in bytes.
    pub bytes: AtomicU64,
    /// The task, as in [`RingSlot`].
    pub task: AtomicU64,
    /// The flags of `open(2)` × 2³² + the descriptor.
    pub opened: AtomicU64,
    /// The length of the path in bytes.
    pub path_bytes: AtomicU64,
}

/// The file, mapped.
#[derive(Clone, Copy, Debug)]
pub struct RecordRing(*const u8);

// SAFETY: all that is behind the pointer are atomics, but for paths, of which each is written once by who owns it.
unsafe impl Send for RecordRing {}
// SAFETY: as above.
unsafe impl Sync for RecordRing {}

impl RecordRing {
    /// # Safety
    /// `address` is that of a writable mapping of [`BYTES`] bytes, which stays.
    pub const unsafe fn new(address: *const u8) -> RecordRing {
        RecordRing(address)
    }

    /// The beginning.
    pub fn head(&self) -> &Head {
        // SAFETY: the mapping is longer and aligned to a page; any bytes are atomics.
        unsafe { &*self.0.cast() }
    }

    /// The slot of a ticket.
    pub fn slot(&self, ticket: u64) -> &RingSlot {
        let at = HEAD_BYTES + ticket % SLOTS * size_of::<RingSlot>() as u64;
        // SAFETY: it lies in the mapping, at a multiple of eight.
        unsafe { &*self.0.add(at as usize).cast() }
    }

    /// A name, and where its path stands; `None` where so much is not left. `at` is a multiple of 8.
    pub fn name(&self, at: u64) -> Option<(&Name, *mut u8)> {
        let room = size_of::<Name>() as u64;
        if at.checked_add(room + PATH_BYTES_MAX as u64)? > NAMES_BYTES || !at.is_multiple_of(8) {
            return None;
        }
        let place = (BYTES - NAMES_BYTES + at) as usize;
        // SAFETY: it and the longest path lie in the mapping.
        unsafe {
            let place = self.0.add(place);
            Some((&*place.cast(), place.add(room as usize).cast_mut()))
        }
    }
}
